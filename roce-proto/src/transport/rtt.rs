//! The round trip of a path (RFC 6298, with samples that are exact because the time is echoed).

use crate::time::Instant;
use core::time::Duration;

/// Samples that a span has at the least, of which the shortest is kept.
const SPAN: u8 = 4;
/// What spans are measured in, nanoseconds.
const TICK: u32 = 16_000;

/// Smoothed round trip, its variation, the least seen, and the least of late. Nanoseconds in 32 bits: 4.2 s at the most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: u32,
    variation: u32,
    least: u32,
    /// The shortest of the span that is over, and of that which is not: in ticks of 16 µs, a second at the most. That is no matter where a queue of 100 µs
    /// is none.
    spans: [u16; 2],
    /// When that began, in such ticks modulo 2¹⁶, and its samples.
    since: u16,
    samples: u8,
}

impl Rtt {
    /// Takes a sample.
    #[inline]
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        let sample = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX).max(1);
        let ticks = |nanos: u32| u16::try_from(nanos / TICK).unwrap_or(u16::MAX);
        let (tick, short) = ((now.as_nanos() / u64::from(TICK)) as u16, ticks(sample));
        if self.smoothed == 0 {
            *self = Rtt {
                smoothed: sample,
                variation: sample / 2,
                least: sample,
                spans: [short; 2],
                since: tick,
                samples: 1,
            };
            return;
        }
        let span = ticks(self.smoothed).min(u16::MAX / 2);
        if self.samples >= SPAN && tick.wrapping_sub(self.since) >= span {
            (self.spans, self.since, self.samples) = ([self.spans[1], short], tick, 0);
        }
        self.spans[1] = self.spans[1].min(short);
        self.samples = self.samples.saturating_add(1);
        let off = self.smoothed.abs_diff(sample);
        // RFC 6298, 2.3: beta 1/4, alpha 1/8.
        self.variation = self.variation - self.variation / 4 + off / 4;
        self.smoothed = self.smoothed - self.smoothed / 8 + sample / 8;
        self.least = self.least.min(sample);
    }

    /// The smoothed round trip; `None` before the first sample.
    #[inline]
    pub fn smoothed(&self) -> Option<Duration> {
        (self.smoothed != 0).then(|| Duration::from_nanos(u64::from(self.smoothed)))
    }

    /// Its smoothed deviation; `None` before the first sample.
    #[inline]
    pub fn variation(&self) -> Option<Duration> {
        (self.smoothed != 0).then(|| Duration::from_nanos(u64::from(self.variation)))
    }

    /// The least round trip; `None` before the first sample.
    #[inline]
    pub fn least(&self) -> Option<Duration> {
        (self.least != 0).then(|| Duration::from_nanos(u64::from(self.least)))
    }

    /// The shortest of the last one to two round trips, and of four samples at least; `None` before the first. A queue that stands is in it, what holds
    /// up some packets and not others is not (the manner of CoDel, RFC 8289).
    #[inline]
    pub fn standing(&self) -> Option<Duration> {
        let [last, now] = self.spans;
        (self.smoothed != 0).then(|| Duration::from_nanos(u64::from(last.min(now)) * u64::from(TICK)))
    }

    /// Smoothed plus four times the variation: what a round trip hardly exceeds. 100 ms before the first sample.
    #[inline]
    pub fn bound(&self) -> Duration {
        if self.smoothed == 0 {
            return Duration::from_millis(100);
        }
        Duration::from_nanos(u64::from(self.smoothed) + 4 * u64::from(self.variation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_is_the_shortest_of_the_last_round_trips() {
        let (us, at) = (Duration::from_micros, |us: u64| Instant::from_nanos(us * 1_000));
        let mut rtt = Rtt::default();
        assert_eq!(rtt.standing(), None);
        rtt.sample(at(1_000), us(112));
        // Only now and then one gets through at once.
        for i in 1..40 {
            rtt.sample(at(1_000 + 50 * i), us(if i % 4 == 0 { 128 } else { 608 }));
        }
        assert_eq!((rtt.standing(), rtt.least()), (Some(us(128)), Some(us(112))), "{rtt:?}");
        // None does any more: two spans later there is a queue.
        for i in 40..44 {
            rtt.sample(at(1_000 + 50 * i), us(704));
        }
        assert_eq!(rtt.standing(), Some(us(128)), "four samples, and no round trip yet");
        for i in 44..80 {
            rtt.sample(at(1_000 + 50 * i), us(704));
        }
        assert_eq!(rtt.standing(), Some(us(704)));
        // However long the pauses, a span has four samples.
        for i in 0..3 {
            rtt.sample(at(1_000_000 * (i + 1)), us(919));
            assert_eq!(rtt.standing(), Some(us(704)), "{i}");
        }
    }

    #[test]
    fn samples_by_hand() {
        let now = Instant::from_nanos(1_000);
        let mut rtt = Rtt::default();
        assert_eq!(rtt.bound(), Duration::from_millis(100));
        rtt.sample(now, Duration::from_nanos(800));
        assert_eq!(
            (rtt.smoothed(), rtt.bound()),
            (Some(Duration::from_nanos(800)), Duration::from_nanos(2400))
        );
        rtt.sample(now, Duration::from_nanos(1600));
        // Variation 400 - 100 + 800/4 = 500, smoothed 800 - 100 + 200 = 900.
        assert_eq!(rtt.bound(), Duration::from_nanos(900 + 2000));
        assert_eq!(rtt.least(), Some(Duration::from_nanos(800)));
        rtt.sample(now, Duration::MAX);
        assert!(rtt.bound() > Duration::from_millis(500));
    }
}
