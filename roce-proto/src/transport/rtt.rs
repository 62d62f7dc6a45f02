//! The round trip of a path (RFC 6298, with samples that are exact because the time is echoed).

use crate::time::Instant;
use core::time::Duration;

/// Samples that a span has at the least, of which the shortest is kept.
const SPAN: u8 = 4;

/// Smoothed round trip, its variation, the least seen, and the least of late. Nanoseconds in 32 bits: 4.2 s at the most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: u32,
    variation: u32,
    least: u32,
    /// The shortest of the span that is over, and of that which is not.
    spans: [u32; 2],
    /// When that began, in µs modulo 2³², and its samples.
    since: u32,
    samples: u8,
}

impl Rtt {
    /// Takes a sample.
    #[inline]
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        let sample = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX).max(1);
        let micros = (now.as_nanos() / 1_000) as u32;
        if self.smoothed == 0 {
            *self = Rtt {
                smoothed: sample,
                variation: sample / 2,
                least: sample,
                spans: [sample; 2],
                since: micros,
                samples: 1,
            };
            return;
        }
        if self.samples >= SPAN && micros.wrapping_sub(self.since) >= self.smoothed / 1_000 {
            (self.spans, self.since, self.samples) = ([self.spans[1], sample], micros, 0);
        }
        self.spans[1] = self.spans[1].min(sample);
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
        (now != 0).then(|| Duration::from_nanos(u64::from(last.min(now))))
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
        rtt.sample(at(1_000), us(100));
        // Only now and then one gets through at once.
        for i in 1..40 {
            rtt.sample(at(1_000 + 50 * i), us(if i % 4 == 0 { 120 } else { 600 }));
        }
        assert_eq!((rtt.standing(), rtt.least()), (Some(us(120)), Some(us(100))), "{rtt:?}");
        // None does any more: two spans later there is a queue.
        for i in 40..44 {
            rtt.sample(at(1_000 + 50 * i), us(700));
        }
        assert_eq!(rtt.standing(), Some(us(120)), "four samples, and no round trip yet");
        for i in 44..80 {
            rtt.sample(at(1_000 + 50 * i), us(700));
        }
        assert_eq!(rtt.standing(), Some(us(700)));
        // However long the pauses, a span has four samples.
        for i in 0..3 {
            rtt.sample(at(1_000_000 * (i + 1)), us(900));
            assert_eq!(rtt.standing(), Some(us(700)), "{i}");
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
