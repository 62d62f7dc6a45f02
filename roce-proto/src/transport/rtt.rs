//! The round trip of a path (RFC 6298, with samples that are exact because the time is echoed).

use core::time::Duration;

/// Smoothed round trip, its variation, and the least seen. Nanoseconds in 32 bits: 4.2 s at the most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed: u32,
    variation: u32,
    least: u32,
}

impl Rtt {
    /// Takes a sample.
    #[inline]
    pub fn sample(&mut self, rtt: Duration) {
        let sample = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX).max(1);
        if self.smoothed == 0 {
            *self = Rtt { smoothed: sample, variation: sample / 2, least: sample };
            return;
        }
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
    fn samples_by_hand() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.bound(), Duration::from_millis(100));
        rtt.sample(Duration::from_nanos(800));
        assert_eq!(
            (rtt.smoothed(), rtt.bound()),
            (Some(Duration::from_nanos(800)), Duration::from_nanos(2400))
        );
        rtt.sample(Duration::from_nanos(1600));
        // Variation 400 - 100 + 800/4 = 500, smoothed 800 - 100 + 200 = 900.
        assert_eq!(rtt.bound(), Duration::from_nanos(900 + 2000));
        assert_eq!(rtt.least(), Some(Duration::from_nanos(800)));
        rtt.sample(Duration::MAX);
        assert!(rtt.bound() > Duration::from_millis(500));
    }
}
