//! What the loop does after a round: a frame that is under way has its time, and others need the core until then.

use dataplane::idle::{Idle, IdlePolicy};
use std::num::NonZeroU64;
use std::time::Duration;

/// The longest sleep while frames are under way: so late may one be received, and no frame is later by it, as its delay counts from then. A
/// loop that yields instead is far later where cores are few: it never has a claim to run at once, as one has that slept.
const POLL: Duration = Duration::from_micros(30);
/// Below this, a sleep would end too late.
const SHORT: Duration = Duration::from_micros(3);
/// How exactly the kernel is to end sleeps, in nanoseconds; it is 50 µs without asking.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// Rounds without a frame, each with a sleep, before longer sleeps begin: some milliseconds, in which an answer would have come.
const CALM: u32 = 512;

/// What to do in rounds without work.
#[derive(Debug)]
pub struct Rest {
    idle: Idle,
    spins: bool,
    calm: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Sleep(Duration),
    /// As if there was nothing to forward.
    Idle,
}

impl Rest {
    /// One that follows a policy, without yielding.
    pub fn new(policy: IdlePolicy) -> Rest {
        // Where the kernel does not let it, sleeps are a little longer.
        let _ = rustix::thread::set_current_timer_slack(Some(SLACK));
        let spins = policy == IdlePolicy::Spin;
        let policy = match policy {
            IdlePolicy::Spin => policy,
            IdlePolicy::BackOff { spins, max_sleep, .. } => {
                IdlePolicy::BackOff { spins, yields: 0, max_sleep }
            }
        };
        Rest { idle: Idle::new(policy), spins, calm: 0 }
    }

    /// Ends a round, in which something `moved` or not; the next frame is due after `due`.
    pub fn after_round(&mut self, moved: bool, due: Option<Duration>) {
        match self.step(moved, due) {
            Step::Spin => std::hint::spin_loop(),
            Step::Sleep(time) => std::thread::sleep(time),
            Step::Idle => {
                self.idle.after_round(moved);
            }
        }
    }

    fn step(&mut self, moved: bool, due: Option<Duration>) -> Step {
        if moved || due.is_some() {
            self.calm = 0;
        }
        match due {
            // What moved may be followed by more.
            _ if moved => Step::Idle,
            _ if self.spins => Step::Spin,
            Some(due) if due < SHORT => Step::Spin,
            Some(due) => Step::Sleep(due.min(POLL)),
            None if self.calm < CALM => {
                self.calm += 1;
                Step::Sleep(POLL)
            }
            None => Step::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_until_a_frame_is_due_and_never_for_long() {
        let us = Duration::from_micros;
        let mut rest = Rest::new(IdlePolicy::default());
        assert_eq!(rest.step(false, Some(us(20))), Step::Sleep(us(20)));
        assert_eq!(rest.step(false, Some(us(9_000))), Step::Sleep(POLL), "another may come");
        assert_eq!(rest.step(false, Some(us(1))), Step::Spin);
        assert_eq!(rest.step(true, Some(us(20))), Step::Idle);
        assert_eq!(Rest::new(IdlePolicy::Spin).step(false, Some(us(20))), Step::Spin);
    }

    #[test]
    fn longer_sleeps_begin_when_nothing_has_come_for_a_while() {
        let mut rest = Rest::new(IdlePolicy::default());
        for _ in 0..2 {
            assert_eq!(rest.step(true, None), Step::Idle);
            for _ in 0..CALM {
                assert_eq!(rest.step(false, None), Step::Sleep(POLL));
            }
            assert_eq!(rest.step(false, None), Step::Idle);
        }
    }
}
