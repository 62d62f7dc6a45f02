//! A window that follows queueing delay and ECN, in the manner of the Ultra Ethernet transport's NSCC: delay says how full the queue is,
//! ECN with delay that it is too full, and ECN without delay that one of many paths is busy, which is no reason to send less.

use super::{Acked, Congestion};
use crate::time::Instant;
use core::time::Duration;

/// The largest window: 8 MiB is 64 Gb/s times 1 ms.
const MOST: u64 = 8 << 20;
/// The first window in segments: about one bandwidth-delay product in a rack.
const FIRST: u64 = 64;
/// Least target delay: the 32 segments that one feedback frees, of 4 KiB at 10 Gb/s. Below it a sender's own batches are all there is to
/// see, and windows would be kept so small that control packets are a good part of all.
const LEAST_TARGET: Duration = Duration::from_micros(100);

/// The window and what it follows.
#[derive(Clone, Copy, Debug)]
pub struct DelayEcn {
    window: u64,
    segment: u32,
    /// Smoothed delay above the least round trip, nanoseconds.
    delay: u32,
    /// Smoothed round trip for "once a round trip", nanoseconds.
    rtt: u32,
    last_cut: Instant,
}

impl DelayEcn {
    /// For segments of so many bytes.
    pub fn new(segment: u32) -> DelayEcn {
        DelayEcn { window: FIRST * u64::from(segment), segment, delay: 0, rtt: 0, last_cut: Instant::ZERO }
    }

    fn least(&self) -> u64 {
        2 * u64::from(self.segment)
    }

    /// At most half, once a round trip.
    fn cut(&mut self, now: Instant, factor_256: u64) {
        let since = now.saturating_since(self.last_cut);
        if self.last_cut != Instant::ZERO && since < Duration::from_nanos(u64::from(self.rtt)) {
            return;
        }
        self.last_cut = now;
        self.window = (self.window * factor_256.max(128) / 256).max(self.least());
    }
}

impl Congestion for DelayEcn {
    fn on_acked(&mut self, acked: &Acked) {
        let Some((rtt, least)) = acked.rtt else {
            return;
        };
        let nanos = |d: Duration| u32::try_from(d.as_nanos()).unwrap_or(u32::MAX);
        self.rtt = nanos(rtt);
        let delay = nanos(rtt.saturating_sub(least));
        // An eighth: about as many samples as a window of feedback has.
        self.delay = self.delay - self.delay / 8 + delay / 8;
        let target = nanos(least.max(LEAST_TARGET));
        if delay <= target {
            if !acked.limited {
                return;
            }
            // One segment a round trip at the target, eight with an empty queue.
            let emptiness = u64::from(target - delay) * 7 / u64::from(target) + 1;
            let grown = acked.bytes * u64::from(self.segment) * emptiness / self.window.max(1);
            self.window = (self.window + grown).min(MOST);
        } else if acked.ce > 0 || self.delay > target {
            // The share of the delay that is above the target, half of it at most.
            let factor = u64::from(target) * 256 / u64::from(self.delay.max(target));
            self.cut(acked.now, (256 + factor) / 2);
        }
    }

    fn on_lost(&mut self, now: Instant, _: u64) {
        self.cut(now, 192);
    }

    fn on_timeout(&mut self) {
        self.window = self.least();
    }

    fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_micros(100);

    fn acked(at: u64, delay: u64, ce: u32) -> Acked {
        Acked {
            now: Instant::from_nanos(at * 1_000),
            bytes: 64_000,
            rtt: Some((BASE + Duration::from_micros(delay), BASE)),
            ce,
            limited: true,
        }
    }

    #[test]
    fn an_empty_queue_lets_it_grow_even_with_ecn() {
        let mut c = DelayEcn::new(1_000);
        assert_eq!(c.window(), 64_000);
        c.on_acked(&acked(1, 0, 3));
        assert_eq!(c.window(), 64_000 + 8_000, "a window acknowledged, eight segments");
        let before = c.window();
        c.on_acked(&Acked { limited: false, ..acked(2, 0, 0) });
        assert_eq!(c.window(), before, "nobody knows whether more would have fitted");
        for i in 0..10_000 {
            c.on_acked(&Acked { bytes: 8 << 20, ..acked(i, 0, 0) });
        }
        assert_eq!(c.window(), MOST);
    }

    #[test]
    fn delay_with_ecn_cuts_once_a_round_trip_and_at_most_by_half() {
        let mut c = DelayEcn::new(1_000);
        c.on_acked(&acked(1_000, 200, 1));
        let once = c.window();
        assert!((32_000..64_000 + 1).contains(&once), "{once}");
        c.on_acked(&acked(1_010, 200, 1));
        assert_eq!(c.window(), once, "within the same round trip");
        for i in 0..100 {
            let before = c.window();
            c.on_acked(&acked(2_000 + 1_000 * i, 10_000, 1));
            assert!(c.window() >= before / 2);
        }
        assert_eq!(c.window(), 2_000, "never below two segments");
    }

    #[test]
    fn losses_and_time_outs() {
        let mut c = DelayEcn::new(1_000);
        c.on_lost(Instant::from_nanos(1), 1_000);
        assert_eq!(c.window(), 48_000);
        c.on_timeout();
        assert_eq!(c.window(), 2_000);
    }
}
