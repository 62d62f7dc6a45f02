//! How many groups parity does not bring back, through the engine: beside what is computed for the code alone.

use super::wire;
use crate::single::Single;
use crate::{Trace, Violation, simulate};
use fec::policy::{Policy, Protection, group_failure};
use roce_proto::transport::{Algorithm, Config, Fec, Limits, Protect};
use std::time::Duration;
use testbed_impair::Loss;

/// The code.
const CODE: (u8, u8) = (32, 4);
/// The share of packets that is lost, and the mean length of bursts.
const LOSS: f64 = 0.01;
const BURST: f64 = 8.0;
/// Segments of a message: whole blocks, however deep. And bytes of a segment: the fewest there can be, as they are many.
const SEGMENTS: u64 = 1_024;
const SEGMENT: u32 = 64;
/// Groups of a run at the most: its messages lie in memory all at once.
const RUN: usize = 32_000;
/// Standard errors that measured and computed may differ by: 99 % of all measurements are within them.
const WITHIN: f64 = 2.576;

/// Depths of interleaving; with the first, losses are independent.
pub const CELLS: [(bool, u8); 6] = [(false, 1), (true, 1), (true, 2), (true, 8), (true, 16), (true, 32)];

/// What was measured of one depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Groups that were sent.
    pub groups: usize,
    /// Groups of which something was lost, and sent again.
    pub failed: usize,
    /// The share of groups that lose more than their parity, as computed.
    pub computed: f64,
    /// The standard error of the measured share. Groups that are interleaved fail together, so it is that of whole messages.
    pub error: f64,
}

impl Residual {
    /// The share of groups that lose more than their parity.
    pub fn computed((bursts, depth): (bool, u8)) -> f64 {
        let burst = if bursts { BURST } else { 1.0 };
        group_failure(CODE.0.into(), CODE.1.into(), LOSS, burst, depth.into())
    }

    /// Runs so many groups at least, over a path that loses one packet of a hundred.
    pub fn run(cell: (bool, u8), groups: usize, seed: u64) -> (Residual, Result<(), Violation>) {
        let (bursts, depth) = cell;
        let independent = Loss::Random(LOSS);
        let loss = if bursts { Loss::bursts(LOSS, BURST).unwrap_or(independent) } else { independent };
        let of_message = SEGMENTS as usize / usize::from(CODE.0);
        let (mut messages, mut verdict) = (Vec::new(), Ok(()));
        for run in 0..groups.div_ceil(RUN) {
            let here = RUN.min(groups - run * RUN).div_ceil(of_message);
            let (failed, sound) = stream(depth, loss, here, seed ^ (run as u64) << 32);
            if verdict.is_ok() {
                verdict = sound;
            }
            messages.extend(failed.chunks(of_message).map(|of| of.iter().filter(|failed| **failed).count()));
        }
        (Residual::of(&messages, of_message, Residual::computed(cell)), verdict)
    }

    /// Of failures of each message, and groups of each.
    fn of(failures: &[usize], of_message: usize, computed: f64) -> Residual {
        let (n, groups) = (failures.len().max(1) as f64, failures.len() * of_message);
        let failed: usize = failures.iter().sum();
        let mean = failed as f64 / n;
        let variance = failures.iter().map(|f| (*f as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let measured = (variance / n).sqrt() / of_message as f64;
        // Where few fail, or none, that says little.
        let least = (computed * (1.0 - computed) / groups.max(1) as f64).sqrt();
        Residual { groups, failed, computed, error: measured.max(least) }
    }

    /// The share that was measured.
    pub fn measured(&self) -> f64 {
        self.failed as f64 / self.groups.max(1) as f64
    }

    /// Half of the interval around it in which the true share is, in 99 of 100 measurements.
    pub fn margin(&self) -> f64 {
        WITHIN * self.error
    }

    /// Whether the computed share is within that.
    pub fn is_met(&self) -> bool {
        (self.measured() - self.computed).abs() <= self.margin()
    }
}

/// Messages with parity, one behind the other over one path; feedback is not lost, so that nothing else is sent again. Which groups failed.
fn stream(depth: u8, loss: Loss, messages: usize, seed: u64) -> (Vec<bool>, Result<(), Violation>) {
    let (data, parity) = CODE;
    let protection = Protection { data, parity, depth };
    let base = Single::default().config;
    let back = wire(Duration::from_micros(500), 1, 16_000_000, None);
    let link = testbed_impair::Config { loss, ..back.clone() };
    let config = Config {
        segment: SEGMENT,
        // Two blocks may be in flight: none is cut for want of a window, and no hole stops the sequences behind it.
        congestion: Algorithm::Fixed(256 << 10),
        fec: Fec {
            protect: Protect::Everything(protection),
            policy: Policy { block: protection.block(), ..base.fec.policy },
        },
        limits: Limits { window: 8_192, shards: 1_024, ..base.limits },
        ..base
    };
    // The way from the second host to the first.
    let odd = vec![(2, back)];
    let size = SEGMENTS * u64::from(SEGMENT);
    let at = Duration::from_millis(100);
    let single = Single { seed, messages, size, at, link, odd, config, ..Single::default() };
    let (report, verdict) = simulate(&single.scenario(), Trace::hash());
    (report.groups.failed(), verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_whole_messages() {
        // Of 4 messages of 10 groups, one has all failures: deviations of 7.5 and three of -2.5.
        let r = Residual::of(&[10, 0, 0, 0], 10, 0.2);
        assert_eq!((r.groups, r.failed, r.measured()), (40, 10, 0.25));
        // Sum of squares 75, variance 25, of the mean 6.25.
        assert!((r.error - 0.25).abs() < 1e-12, "{r:?}");
        assert!(r.is_met());
        let off = Residual { computed: 0.25 + 0.65, ..r };
        assert!(!off.is_met());
        // Without a failure, the error is that of what is computed.
        let none = Residual::of(&[0; 100], 10, 1e-3);
        assert!((none.error - (1e-3f64 * 0.999 / 1e3).sqrt()).abs() < 1e-12 && none.is_met(), "{none:?}");
        assert!(!Residual::of(&[0; 100], 100, 1e-2).is_met());
    }
}
