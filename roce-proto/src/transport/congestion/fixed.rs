//! A window of a fixed size.

use super::{Acked, Congestion};
use crate::time::Instant;

/// Always the same window, but for the time after a time-out: then it begins with two segments and grows by what is
/// acknowledged, so that a path that came back is not flooded.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    most: u64,
    window: u64,
    least: u64,
}

impl Fixed {
    /// `bytes`, and at least two segments.
    pub fn new(bytes: u64, segment: u32) -> Fixed {
        let least = 2 * u64::from(segment);
        let most = bytes.max(least);
        Fixed { most, window: most, least }
    }
}

impl Congestion for Fixed {
    #[inline]
    fn on_acked(&mut self, acked: &Acked) {
        if self.window < self.most {
            self.window = (self.window + acked.bytes).min(self.most);
        }
    }

    fn on_lost(&mut self, _: Instant, _: u64) {}

    fn on_timeout(&mut self) {
        self.window = self.least;
    }

    #[inline]
    fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_out_moves_it_and_it_comes_back() {
        let mut c = Fixed::new(100_000, 1_000);
        c.on_lost(Instant::ZERO, 50_000);
        assert_eq!(c.window(), 100_000);
        c.on_timeout();
        assert_eq!(c.window(), 2_000);
        let acked = Acked { now: Instant::ZERO, bytes: 3_000, rtt: None, ce: 5, limited: true };
        c.on_acked(&acked);
        assert_eq!(c.window(), 5_000);
        c.on_acked(&Acked { bytes: 1 << 40, ..acked });
        assert_eq!(c.window(), 100_000);
        assert_eq!(Fixed::new(0, 1_000).window(), 2_000);
    }
}
