//! The pairs of processes that are measured: each module knows how to start one kind and to read what it reports.

pub mod bare;
pub mod perftest;
pub mod place;
pub mod reliable;
pub mod spraywire;
pub mod testbed;
pub mod testpmd;

use place::Place;
use std::path::PathBuf;
use std::time::Duration;

/// The two addresses, of the block set aside for documentation (RFC 5737).
const IPS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// Whether the user's path has all of these programs.
fn on_path(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.iter().all(|program| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// For a process to start DPDK and meet its peer; generous, since a loaded machine takes its time.
const START: Duration = Duration::from_secs(15);
/// For a process to end after it has reported.
const END: Duration = Duration::from_secs(10);

/// What all pairs of a session have in common, so that they differ in nothing else.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This program.
    pub benches: PathBuf,
    /// The `spraywire` command.
    pub spraywire: PathBuf,
    /// MTU of the ports in bytes.
    pub mtu: u16,
    /// Processors of the receiver and of the sender.
    pub cores: [usize; 2],
    /// Not measured, in seconds.
    pub warmup: f64,
    /// Measured, in seconds.
    pub seconds: f64,
    /// Message buffers of the sending application.
    pub tx_depth: usize,
    /// Message buffers of the receiving application.
    pub rx_depth: usize,
    /// Round trips of a latency run.
    pub round_trips: usize,
    /// Where the sides meet.
    pub place: Place,
}

/// A command line, to compare.
#[cfg(test)]
pub(crate) fn text(line: &[std::ffi::OsString]) -> String {
    line.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) fn test_setup() -> Setup {
    Setup {
        benches: "benches".into(),
        spraywire: "spraywire".into(),
        mtu: 4200,
        cores: [2, 3],
        warmup: 0.2,
        seconds: 0.7,
        tx_depth: 128,
        rx_depth: 512,
        round_trips: 1000,
        place: Place::Memif,
    }
}
