//! What the many-path part of the protocol promises, as scenarios with figures: [`fec`] is about a long lossy link, [`residual`] about what parity leaves, [`paths`] has one network for each promise, [`permutation`] the
//! traffic that other simulators publish figures of, [`tail`] collectives with mechanisms switched off, [`ablation`] the table of that.

pub mod ablation;
pub mod fec;
pub mod paths;
pub mod permutation;
pub mod residual;
pub mod tail;

use std::time::Duration;
use testbed_impair::{Config, Rate};

/// A link with a delay, a rate in Gb/s, a queue of so many bytes, and marks from a number of bytes on.
fn wire(delay: Duration, gigabits: u64, queue: u64, mark_from: Option<u64>) -> Config {
    let rate = Rate { bits_per_second: gigabits * 1_000_000_000, queue, mark_from };
    Config { delay, rate: Some(rate), ..Config::default() }
}
