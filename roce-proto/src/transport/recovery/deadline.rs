//! The third detector: the receiver's deadline, from what the application says of its steps.
//!
//! A collective waits for the last message of a step, and what is lost at its tail leaves no gap, as nothing follows. But the receiver knows more than the sender: its posts
//! say which step of which communicator a message belongs to and how many bytes are to come. So it does not wait for a time-out of the sender, which cannot tell a loss
//! from a peer that has nothing to say, but asks: a feedback with the flag *status*, upon which the sender judges what is in flight by its age alone.
//!
//! The wait since the last new segment of the step, from whomever, shrinks with the fraction f of the step that has come,
//!
//! ```text
//! T = Tmin + (Tmax − Tmin)·(1 − f)²    Tmax = 2·SRTT    Tmin = max(10 µs, SRTT/4, skew of the paths + 4·jitter)
//! ```
//!
//! and is at least three of the usual gaps between its segments. The last open message of a step waits Tmin. While a step still comes in, the queue before the receiver explains
//! what has not come, so only silence counts; and only once at most eight of its messages are open, as so many timers are enough for its tail. The formula is this project's own (the idea to speed up
//! recovery at the tail of a collective is that of CSA-UD, arXiv 2606.20582): while much is to come, traffic itself shows gaps, and asking early would only cost packets; the
//! square keeps T near Tmax at first. Nothing is asked before something of the step has come, from whomever, or the step before it (its number less one) is complete, which is waited after for Tmax: before that the
//! peers may be computing. A question without an answer is repeated after twice the wait, and not more often than eight times.

use crate::time::Instant;
use crate::transport::engine::Engine;
use crate::transport::session::due;
use crate::transport::table::List;
use core::time::Duration;

/// Least wait: some rounds of a busy poller.
const LEAST: Duration = Duration::from_micros(10);
/// Gaps between the peer's segments that are no sign of a loss.
const GAPS: u32 = 3;
/// Questions until something new comes.
const QUESTIONS: u8 = 8;
/// Open messages of a step from which on they are watched; and receives of a session that are looked at, those posted first.
const TAIL: u32 = 8;

/// What is known of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Its communicator.
    pub communicator: u32,
    /// Its number there.
    pub number: u32,
    /// Bytes that its receives expect.
    pub expected: u64,
    /// Bytes of them that have come.
    pub received: u64,
    /// Its receives that have not ended.
    pub open: u32,
    /// Something of it has come, or the step before it is complete.
    pub begun: bool,
    /// When its last new segment came, or the step before was complete.
    pub newest: Instant,
    /// The usual time between its segments, nanoseconds.
    pub gap: u32,
    /// Those.
    pub receives: List,
}

impl Step {
    /// The wait, between its bounds.
    fn wait(&self, least: Duration, most: Duration) -> Duration {
        if most <= least || (self.open <= 1 && self.received > 0) {
            return least;
        }
        let left = self.expected.saturating_sub(self.received).min(self.expected);
        // In 1/1024, squared in 1/2²⁰; 2⁵⁴ bytes are no bound that counts.
        let left = u128::from(left) * 1024 / u128::from(self.expected.max(1));
        let more = ((most - least).as_nanos() * left * left) >> 20;
        least + Duration::from_nanos(more as u64)
    }
}

impl Engine {
    /// A receive was posted that belongs to a step. Without room for another step it is as one that belongs to none.
    pub(in crate::transport) fn join_step(&mut self, receive: u32, number: u32) {
        let r = self.receives[receive];
        let at = match self.find_step(r.communicator, number) {
            Some(at) => at,
            None => {
                let step = Step { communicator: r.communicator, number, ..Step::default() };
                let Some(at) = self.steps.insert(step) else {
                    self.counters.no_step += 1;
                    return;
                };
                self.by_step.insert(self.hash_step(r.communicator, number), at);
                at
            }
        };
        let step = &mut self.steps[at];
        step.expected = step.expected.saturating_add(r.capacity);
        step.open += 1;
        let begun = step.begun && step.open <= TAIL;
        self.step_chain.push_back(&mut step.receives, receive);
        self.receives[receive].step = at + 1;
        if begun {
            self.expect_within(r.session, at);
        }
    }

    fn hash_step(&self, communicator: u32, number: u32) -> u64 {
        self.mixer.mix(u64::from(communicator), u64::from(number) | 1 << 32)
    }

    /// Bytes came for a receive of a step.
    pub(in crate::transport) fn step_came(&mut self, receive: u32, bytes: u64) {
        let r = &self.receives[receive];
        let (slot, Some(at)) = (r.session, r.step.checked_sub(1)) else { return };
        let clock = self.clock;
        let step = &mut self.steps[at];
        let first = !step.begun;
        step.begun = true;
        step.received += bytes;
        let gap = clock.saturating_since(step.newest).as_nanos() as u64;
        // A pause is no gap between segments.
        let most = 4 * u64::from(step.gap) + 1_000;
        step.gap = (step.gap - step.gap / 8).saturating_add((gap.min(most) / 8) as u32);
        step.newest = clock;
        self.sessions[slot].rx.questions = 0;
        if first {
            self.watch_step(at);
        } else if self.steps[at].open <= TAIL && self.sessions[slot].rx.ask_at == Instant::MAX {
            self.expect_within(slot, at);
        }
    }

    /// A step is complete, so the next one of its communicator is at hand.
    fn step_follows(&mut self, communicator: u32, number: u32) {
        let clock = self.clock;
        if let Some(next) = self.find_step(communicator, number) {
            let step = &mut self.steps[next];
            if !step.begun {
                (step.begun, step.newest) = (true, clock);
                self.watch_step(next);
            }
        }
    }

    fn find_step(&self, communicator: u32, number: u32) -> Option<u32> {
        self.by_step.find(self.hash_step(communicator, number), |at| {
            let step = &self.steps[at];
            step.communicator == communicator && step.number == number
        })
    }

    /// The few messages of a step that are open are expected soon.
    fn watch_step(&mut self, at: u32) {
        if self.steps[at].open > TAIL {
            return;
        }
        let mut next = self.steps[at].receives.head();
        while let Some(other) = next {
            next = self.step_chain.next(other);
            self.expect_within(self.receives[other].session, at);
        }
    }

    /// A receive of a step has ended, with a message of `len` bytes.
    pub(in crate::transport) fn leave_step(&mut self, receive: u32, len: u64) {
        let r = self.receives[receive];
        let Some(at) = r.step.checked_sub(1) else { return };
        let step = &mut self.steps[at];
        step.expected = step.expected.saturating_sub(r.capacity).saturating_add(len);
        step.open -= 1;
        self.step_chain.remove(&mut step.receives, receive);
        match (step.open, step.begun) {
            (0, _) => {
                let r_step = self.steps[at].number;
                let hash = self.hash_step(r.communicator, r_step);
                self.by_step.remove(hash, at);
                self.steps.remove(at);
                self.step_follows(r.communicator, r_step.wrapping_add(1));
            }
            // The tail begins, or its last message is at hand, for which the wait is the least.
            (1 | TAIL, true) => self.watch_step(at),
            _ => {}
        }
    }

    /// The bounds of the wait for a session's segments.
    fn waits(&self, slot: u32) -> (Duration, Duration) {
        let s = &self.sessions[slot];
        let rtts = (0..s.paths).map(|p| &self.path(slot, p).tx.rtt);
        let (mut srtt, mut jitter) = (Duration::ZERO, Duration::ZERO);
        let (mut low, mut high) = (Duration::MAX, Duration::ZERO);
        for rtt in rtts {
            let (Some(smoothed), Some(least), Some(off)) = (rtt.smoothed(), rtt.least(), rtt.variation())
            else {
                continue;
            };
            srtt = srtt.max(smoothed);
            jitter = jitter.max(off);
            (low, high) = (low.min(least), high.max(least));
        }
        let least = LEAST.max(srtt / 4).max(high.saturating_sub(low) + 4 * jitter);
        (least, (2 * srtt).max(least))
    }

    /// How long to wait for a segment of a session now, by the step at hand.
    fn patience_of(&self, slot: u32, step: &Step) -> Duration {
        let (least, most) = self.waits(slot);
        let least = least.max(GAPS * Duration::from_nanos(u64::from(step.gap)));
        step.wait(least, most) * (1 << self.sessions[slot].rx.questions.min(QUESTIONS))
    }

    /// Something of a step is expected from a session's peer.
    fn expect_within(&mut self, slot: u32, step: u32) {
        if !self.config.mechanisms.deadline || self.sessions[slot].rx.questions >= QUESTIONS {
            return;
        }
        let step = &self.steps[step];
        let wait = self.patience_of(slot, step);
        let clock = self.clock;
        let newest = step.newest;
        let rx = &mut self.sessions[slot].rx;
        let at = (newest.max(rx.asked_at) + wait).max(clock + Duration::from_nanos(1));
        if at < rx.ask_at {
            rx.ask_at = at;
            self.arm(slot, at);
        }
    }

    /// The wait may be over: if nothing new came, and something of a step that has begun is missing, the peer is asked.
    pub(in crate::transport) fn deadline_passed(&mut self, slot: u32) {
        self.sessions[slot].rx.ask_at = Instant::MAX;
        let mut next = self.sessions[slot].receives.head();
        let mut sooner = None::<(Duration, u32)>;
        for _ in 0..TAIL {
            let Some(receive) = next else { break };
            next = self.receive_chain.next(receive);
            let Some(at) = self.receives[receive].step.checked_sub(1) else { continue };
            let step = &self.steps[at];
            if step.begun && step.open <= TAIL {
                let wait = self.patience_of(slot, step);
                sooner = sooner.filter(|s| s.0 <= wait).or(Some((wait, at)));
            }
        }
        let Some((wait, step)) = sooner else { return };
        let (clock, newest) = (self.clock, self.steps[step].newest);
        let rx = &mut self.sessions[slot].rx;
        if clock >= newest.max(rx.asked_at) + wait {
            rx.questions += 1;
            rx.status = true;
            // The next wait counts from this question.
            rx.asked_at = clock;
            self.counters.questions += 1;
            self.owe(slot, due::FEEDBACK);
        }
        self.expect_within(slot, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_shrinks_with_the_square_of_what_is_missing() {
        let us = Duration::from_micros;
        let step = |received, open| Step { expected: 1_000, received, open, ..Step::default() };
        let wait = |received| step(received, 5).wait(us(10), us(110));
        assert_eq!(wait(0), us(110));
        assert_eq!(wait(500), us(35));
        assert!((us(16)..us(17)).contains(&wait(750)), "{:?}", wait(750));
        assert_eq!(wait(1_000), us(10));
        assert_eq!(wait(2_000), us(10), "more than was expected");
        assert_eq!(step(1, 1).wait(us(10), us(110)), us(10), "the last one of its step");
        assert_eq!(step(0, 1).wait(us(10), us(110)), us(110), "of which nothing has come");
        assert_eq!(step(0, 5).wait(us(200), us(110)), us(200));
    }
}
