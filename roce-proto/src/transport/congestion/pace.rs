//! When the segments of a window leave: over its round trip, instead of as fast as the port takes them.
//!
//! A window says how much may be in flight, not when it goes. While feedback comes all the time it sets the pace. Where a sender has had nothing to
//! send for a while, as between the steps of a collective, a whole window would go at the speed of its own port, into the queue of a bottleneck that is slower:
//! over a long way that is many times what the queue holds.

use crate::time::Instant;
use core::time::Duration;

/// Segments that may go at once: those that bring a feedback. With fewer there would be more control packets.
pub(super) const BURST: u64 = 32;
/// And as many as go in this time: the queue that congestion control takes for none.
const SHORT: Duration = super::delay_ecn::LEAST_TARGET;

/// A pace, and how far the segments that were sent go with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// When the next segment is due, not counting that some may go at once.
    next: Instant,
    /// Nanoseconds for 1,024 bytes; 0 is as fast as the port takes them.
    per_kib: u32,
}

impl Pace {
    /// So many bytes in that time from now on; none is as fast as the port takes them.
    #[inline]
    pub fn set(&mut self, rate: Option<(u64, Duration)>) {
        let Some((bytes, time)) = rate else {
            *self = Pace::default();
            return;
        };
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let per_kib = nanos.saturating_mul(1_024) / bytes.max(1);
        self.per_kib = u32::try_from(per_kib).unwrap_or(u32::MAX).max(1);
    }

    /// Whether the next segment has to wait.
    #[inline]
    pub fn is_early(&self, now: Instant) -> bool {
        self.next > now
    }

    /// So many bytes were sent, in segments of `segment` bytes.
    #[inline]
    pub fn sent(&mut self, now: Instant, bytes: u32, segment: u32) {
        if self.per_kib != 0 {
            self.spend(now, bytes, segment);
        }
    }

    #[cold]
    #[inline(never)]
    fn spend(&mut self, now: Instant, bytes: u32, segment: u32) {
        let earliest = now.saturating_sub(self.burst(segment));
        self.next = self.next.max(earliest) + self.time_of(u64::from(bytes));
    }

    /// When to look again: not for each segment, each of which would bring a feedback, but when as many may go at once as ever do.
    pub fn look_at(&self, segment: u32) -> Instant {
        self.next + self.burst(segment)
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes * u64::from(self.per_kib)) >> 10)
    }

    /// The time of what may go at once.
    fn burst(&self, segment: u32) -> Duration {
        self.time_of(BURST * u64::from(segment)).max(SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_go_at_once_and_the_others_at_the_pace() {
        let mut pace = Pace::default();
        // 1 Gb/s: a segment takes 32.8 µs.
        pace.set(Some((125_000_000, Duration::from_secs(1))));
        let mut now = Instant::from_nanos(1_000_000_000);
        let send = |pace: &mut Pace, now| {
            let mut count = 0;
            while !pace.is_early(now) {
                pace.sent(now, 4_096, 4_096);
                count += 1;
            }
            count
        };
        assert_eq!(send(&mut pace, now), 33, "32 at once, and the next is due");
        let begin = now;
        let mut all = 0;
        for _ in 0..100 {
            now = pace.look_at(4_096);
            let some = send(&mut pace, now);
            assert!((32..=33).contains(&some), "{some}");
            all += some;
        }
        let took = now.saturating_since(begin).as_secs_f64();
        let rate = f64::from(all * 4_096 * 8) / took;
        assert!((0.97e9..1.03e9).contains(&rate), "{rate}");
        // What was not sent in an hour is no reason for more at once.
        now += Duration::from_secs(3_600);
        assert_eq!(send(&mut pace, now), 33);
    }

    #[test]
    fn without_a_pace_nothing_waits() {
        let mut pace = Pace::default();
        let now = Instant::from_nanos(5);
        pace.sent(now, u32::MAX, 4_096);
        assert!(!pace.is_early(now));
        // Nor does anything go wrong at the slowest there is.
        pace.set(Some((0, Duration::MAX)));
        pace.sent(now, 65_535, 65_000);
        assert!(pace.is_early(now) && pace.look_at(65_000) > now);
        pace.set(None);
        assert!(!pace.is_early(now), "nor after one");
    }

    #[test]
    fn a_fast_one_lets_go_what_takes_a_tenth_of_a_millisecond() {
        let mut pace = Pace::default();
        // 64 Gb/s: a segment in half a microsecond.
        pace.set(Some((8_000_000_000, Duration::from_secs(1))));
        let now = Instant::from_nanos(1_000_000_000);
        let mut count = 0;
        while !pace.is_early(now) {
            pace.sent(now, 4_096, 4_096);
            count += 1;
        }
        assert_eq!(count, 196);
    }
}
