//! How fast a session's way carries: what of a message is on it in a round trip, and how much later than a segment its parity comes.
//!
//! Measured from feedback while a long message comes in: then one follows the other closely, and tells of many segments. Whatever else they
//! tell of was sent more slowly than the way carries, and says nothing of it.

use crate::time::Instant;

/// Segments of a feedback that is one of many: it tells of 16 or 32 of a long message.
const MANY: u32 = 8;
/// Segments that say how fast they came, if no time is over in which more would have come: bursts of what is on the way, such as a device hands on, are shorter.
const TELLING: u32 = 128;

/// What is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// When the feedback came that those counted followed, and the last one: nanoseconds, the lower half.
    since: u32,
    last: u32,
    /// Bytes that came in between.
    bytes: u32,
    /// Bytes per millisecond, the most of late; 0 if nothing is known.
    best: u32,
}

impl Pace {
    /// A feedback tells of so many bytes that arrived, over a way with this least round trip, in nanoseconds.
    pub(super) fn observe(&mut self, clock: Instant, bytes: u64, segment: u32, round_trip: u64) {
        let now = clock.as_nanos() as u32;
        // Longer ones than the clock bears are not told from shorter ones.
        let quarter = u32::try_from(round_trip / 4).unwrap_or(u32::MAX).min(u32::MAX / 4);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let apart = *self == Pace::default() || now.wrapping_sub(self.last) > quarter;
        if apart || bytes < MANY.saturating_mul(segment) {
            if self.bytes >= TELLING.saturating_mul(segment) {
                self.take();
            }
            *self = Pace { since: now, last: now, bytes: 0, ..*self };
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.last = now;
        if now.wrapping_sub(self.since) >= quarter {
            self.take();
        }
    }

    /// What came since says how fast that was. A slower one is believed little by little: something else may have been in its way.
    fn take(&mut self) {
        let now = rate(self.bytes, self.last.wrapping_sub(self.since));
        self.best = now.max(self.best - self.best / 16);
        (self.since, self.bytes) = (self.last, 0);
    }

    /// Bytes that the way carries in so many nanoseconds, if that is known.
    pub(super) fn carries(&self, nanos: u64) -> Option<u64> {
        (self.best > 0).then(|| (u128::from(self.best) * u128::from(nanos) / 1_000_000) as u64)
    }

    /// Nanoseconds in which so many bytes come; of a first message, by what came of it until now.
    pub(super) fn takes(&self, bytes: u64) -> Option<u64> {
        let best =
            if self.best > 0 { self.best } else { rate(self.bytes, self.last.wrapping_sub(self.since)) };
        (best > 0).then(|| (u128::from(bytes) * 1_000_000 / u128::from(best)) as u64)
    }
}

/// Bytes per millisecond.
fn rate(bytes: u32, nanos: u32) -> u32 {
    u32::try_from(u64::from(bytes) * 1_000_000 / u64::from(nanos.max(1))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: u64 = 25_000_000;
    const SEGMENT: u32 = 4_000;

    /// Feedback of so many segments each, so many nanoseconds apart.
    fn train(pace: &mut Pace, from: u64, count: u64, apart: u64, segments: u64) -> u64 {
        for i in 0..count {
            let at = Instant::from_nanos(from + i * apart);
            pace.observe(at, segments * u64::from(SEGMENT), SEGMENT, ROUND_TRIP);
        }
        from + count * apart
    }

    #[test]
    fn the_rate_is_that_of_long_messages() {
        // The clock wraps in between.
        let start = u64::from(u32::MAX) - 10_000_000;
        let mut pace = Pace::default();
        assert_eq!((pace.carries(ROUND_TRIP), pace.takes(1_000)), (None, None));
        // 32 segments of 4000 bytes in a millisecond: 128 bytes in a microsecond.
        let end = train(&mut pace, start, 3, 1_000_000, 32);
        assert_eq!(pace.carries(ROUND_TRIP), None, "no quarter of a round trip");
        assert_eq!(pace.takes(128_000), Some(1_000_000), "of what came until now");
        let end = train(&mut pace, end, 30, 1_000_000, 32);
        assert_eq!(pace.carries(ROUND_TRIP), Some(3_200_000));
        assert_eq!(pace.takes(1_280_000), Some(10_000_000));
        // Messages of a few segments each, and long ones far apart, do not carry it down.
        let end = train(&mut pace, end, 100, 1_000_000, 4);
        let end = train(&mut pace, end, 100, 10_000_000, 32);
        assert_eq!(pace.carries(ROUND_TRIP), Some(3_200_000));
        // What is faster is believed at once, what is slower bit by bit.
        let end = train(&mut pace, end, 9, 1_000_000, 64);
        assert_eq!(pace.carries(ROUND_TRIP), Some(6_400_000));
        let end = train(&mut pace, end, 9, 1_000_000, 32);
        assert!(pace.carries(ROUND_TRIP).is_some_and(|c| (5_900_000..6_200_000).contains(&c)), "{pace:?}");
        train(&mut pace, end, 1_000, 1_000_000, 32);
        assert_eq!(pace.carries(ROUND_TRIP), Some(3_200_000));
    }

    #[test]
    fn a_message_that_comes_at_once_is_a_sample_if_it_is_long() {
        for (feedbacks, known) in [(4, None), (5, Some(320_000_000))] {
            let mut pace = Pace::default();
            // 12.8 kilobytes in a microsecond. The first is where counting begins.
            let end = train(&mut pace, 1_000_000, feedbacks, 10_000, 32);
            train(&mut pace, end + 20_000_000, 1, 1, 32);
            assert_eq!(pace.carries(ROUND_TRIP), known, "{feedbacks}");
        }
    }
}
