//! What a poll loop does when a round found nothing, and where it runs.

use std::time::Duration;

/// What to do in rounds without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Never give up the core: lowest latency, 100 % CPU.
    Spin,
    /// Spin a little, then yield the core to whoever else is runnable, then sleep, longer and longer.
    BackOff {
        /// Empty rounds before the first yield.
        spins: u32,
        /// Yields before the first sleep.
        yields: u32,
        /// The longest sleep; the first is a sixteenth of it.
        max_sleep: Duration,
    },
}

impl Default for IdlePolicy {
    /// Yields after a few empty rounds: what is spun for is not there for a peer that has to share the core, and a core that nobody else wants is
    /// back within half a microsecond. Sleeps after about a millisecond of yielding, and
    /// ends at sleeps of five milliseconds: below 5 % of a core, two threads together, which tests hold it to, at the price of
    /// five milliseconds of latency for the first packet after a pause.
    fn default() -> Self {
        IdlePolicy::BackOff { spins: 8, yields: 2000, max_sleep: Duration::from_millis(5) }
    }
}

/// The state of an idle policy in one poll loop.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    empty: u32,
    sleep: Duration,
}

impl Idle {
    /// Starts as busy.
    pub fn new(policy: IdlePolicy) -> Idle {
        Idle { policy, empty: 0, sleep: Duration::ZERO }
    }

    /// Ends a round: `busy` says whether it found work. Sleeps or yields as the policy says; returns whether it did.
    #[inline]
    pub fn after_round(&mut self, busy: bool) -> bool {
        if busy {
            self.empty = 0;
            self.sleep = Duration::ZERO;
            return false;
        }
        self.empty = self.empty.saturating_add(1);
        match self.step() {
            Step::Spin => {
                std::hint::spin_loop();
                return false;
            }
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(d) => std::thread::sleep(d),
        }
        true
    }

    /// Ends a round that found no work, before a moment that a sleep would miss: it goes no further than to yielding. Returns whether it did.
    #[inline]
    pub fn stay_awake(&mut self) -> bool {
        if let IdlePolicy::BackOff { spins, yields, .. } = self.policy {
            self.empty = self.empty.min(spins.saturating_add(yields).saturating_sub(1));
        }
        self.after_round(false)
    }

    fn step(&mut self) -> Step {
        let IdlePolicy::BackOff { spins, yields, max_sleep } = self.policy else { return Step::Spin };
        if self.empty <= spins {
            Step::Spin
        } else if self.empty <= spins.saturating_add(yields) {
            Step::Yield
        } else {
            let now = self.sleep.max(max_sleep / 16).max(Duration::from_micros(1)).min(max_sleep);
            self.sleep = (now + now / 8).min(max_sleep);
            Step::Sleep(now)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Yield,
    Sleep(Duration),
}

/// The CPUs that this thread may run on, in ascending order.
pub fn allowed_cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect(),
        Err(_) => vec![0],
    }
}

/// Why a thread was not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("core {core} is not usable here ({reason}): choose from {allowed:?}")]
pub struct PinError {
    /// The core asked for.
    pub core: usize,
    /// What the system said.
    pub reason: String,
    /// Those that can be used.
    pub allowed: Vec<usize>,
}

/// Pins the calling thread to one CPU.
pub fn pin_current_thread(core: usize) -> Result<(), PinError> {
    let fail = |reason: String| PinError { core, reason, allowed: allowed_cores() };
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(fail("no such number".to_owned()));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| fail(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_never_sleeps_or_yields() {
        let mut idle = Idle::new(IdlePolicy::Spin);
        for _ in 0..100_000 {
            idle.empty = idle.empty.saturating_add(1);
            assert_eq!(idle.step(), Step::Spin);
        }
    }

    #[test]
    fn backing_off_goes_from_spin_to_yield_to_longer_sleeps_and_back() {
        let max = Duration::from_millis(1);
        let mut idle = Idle::new(IdlePolicy::BackOff { spins: 2, yields: 3, max_sleep: max });
        let mut steps = Vec::new();
        for _ in 0..60 {
            idle.empty += 1;
            steps.push(idle.step());
        }
        assert_eq!(steps[..5], [Step::Spin, Step::Spin, Step::Yield, Step::Yield, Step::Yield]);
        let sleeps: Vec<Duration> =
            steps[5..].iter().map(|s| if let Step::Sleep(d) = s { *d } else { panic!("{s:?}") }).collect();
        assert_eq!(sleeps[0], max / 16);
        assert!(sleeps.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(*sleeps.last().unwrap(), max);
        assert!(idle.after_round(false), "it has slept");
        assert!(!idle.after_round(true));
        idle.empty += 1;
        assert_eq!(idle.step(), Step::Spin);
    }

    #[test]
    fn whoever_stays_awake_yields_and_never_sleeps() {
        // A sleep would take until the test is given up.
        let max_sleep = Duration::from_secs(3600);
        let mut idle = Idle::new(IdlePolicy::BackOff { spins: 2, yields: 3, max_sleep });
        let yielded: Vec<bool> = (0..8).map(|_| idle.stay_awake()).collect();
        assert_eq!(yielded, [false, false, true, true, true, true, true, true]);
        idle.empty += 1;
        assert!(matches!(idle.step(), Step::Sleep(_)), "what is not that urgent sleeps at once");
        idle.after_round(true);
        assert!(!idle.stay_awake());
        let mut never = Idle::new(IdlePolicy::BackOff { spins: 2, yields: 0, max_sleep });
        assert!((0..8).all(|_| !never.stay_awake()), "it spins where it must not yield");
        assert!(!Idle::new(IdlePolicy::Spin).stay_awake());
    }

    #[test]
    fn pinning_goes_where_it_is_told_and_says_what_is_possible() {
        std::thread::spawn(|| {
            let cores = allowed_cores();
            let last = *cores.last().unwrap();
            pin_current_thread(last).unwrap();
            assert_eq!(allowed_cores(), [last]);
            let err = pin_current_thread(100_000).unwrap_err();
            assert!(err.to_string().contains("choose from"), "{err}");
        })
        .join()
        .unwrap();
    }
}
