//! What a receiver lets each of many senders have in flight. Senders that share one link into a receiver see its queue through their own marks and delays, and
//! settle on shares that differ; the receiver knows how many there are and how fast all of it comes, so it can say what is fair. In the manner of the
//! Ultra Ethernet transport's receiver-credited congestion control, as a cap beside the sender's own window instead of credit for each packet.

use super::delay_ecn::LEAST_TARGET;
use crate::time::Instant;
use crate::transport::engine::Engine;
use core::time::Duration;

/// With fewer senders, each finds its share by itself, and has a window that needs fewer answers.
const MANY: u32 = 16;
/// How long bytes are counted for a rate.
const SAMPLE: Duration = Duration::from_micros(100);

/// What comes in from all senders.
#[derive(Clone, Copy, Debug, Default)]
pub struct Intake {
    /// Bytes of segments since the last sample.
    pub bytes: u64,
    since: Instant,
    /// The highest rate of late, bytes a second: an eighth less with each sample that is lower.
    rate: u64,
    /// Sessions with a message of several segments that is not complete.
    senders: u32,
}

impl Intake {
    /// A message of several segments begins to come in, of a session that has so many.
    #[inline]
    pub fn began(&mut self, others: u32) {
        self.senders += u32::from(others == 0);
    }

    /// One has ended, and the session has so many left.
    #[inline]
    pub fn ended(&mut self, others: u32) {
        self.senders = self.senders.saturating_sub(u32::from(others == 0));
    }

    /// Takes a sample if it is time.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        let time = now.saturating_since(self.since);
        if time < SAMPLE {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let rate = self.bytes.saturating_mul(1_000_000_000) / nanos;
        self.rate = rate.max(self.rate - self.rate / 8);
        (self.bytes, self.since) = (0, now);
    }
}

impl Engine {
    /// What the peer of a session should have in flight at the most, bytes; 0 if that is for it to find out. Together, what all senders have in flight is
    /// two round trips of what comes in, so that there is room to grow, and the queue that their own windows aim for.
    pub(in crate::transport) fn share(&self, slot: u32) -> u32 {
        let senders = self.intake.senders;
        if senders < MANY || !self.config.mechanisms.share {
            return 0;
        }
        let trip = 2 * self.measured(slot).least().unwrap_or_default() + LEAST_TARGET;
        let all = u128::from(self.intake.rate) * trip.as_nanos() / 1_000_000_000;
        let each = u32::try_from(all / u128::from(senders)).unwrap_or(u32::MAX);
        // It takes less than two segments for as many.
        each.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_highest_of_late_and_falls_slowly() {
        let at = |micros: u64| Instant::from_nanos(1_000_000_000 + micros * 1_000);
        let mut intake = Intake::default();
        intake.look(at(0));
        intake.bytes = 1_250_000;
        intake.look(at(99));
        assert_eq!(intake.rate, 0, "not yet");
        intake.look(at(100));
        assert_eq!((intake.rate, intake.bytes), (12_500_000_000, 0));
        intake.bytes = 125_000;
        intake.look(at(200));
        assert_eq!(intake.rate, 12_500_000_000 - 12_500_000_000 / 8);
        for i in 3..100 {
            intake.look(at(100 * i));
        }
        assert!(intake.rate < 100_000, "{}", intake.rate);
    }

    #[test]
    fn a_session_is_one_sender_however_many_messages_come_of_it() {
        let mut intake = Intake::default();
        let mut partial = [0u32; 3];
        let events =
            [(0, true), (0, true), (1, true), (0, false), (2, true), (0, false), (1, false), (2, false)];
        let mut senders = Vec::new();
        for (of, begins) in events {
            if begins {
                intake.began(partial[of]);
                partial[of] += 1;
            } else {
                partial[of] -= 1;
                intake.ended(partial[of]);
            }
            senders.push(intake.senders);
        }
        assert_eq!(senders, [1, 1, 2, 2, 3, 2, 1, 0]);
    }
}
