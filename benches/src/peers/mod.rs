//! The pairs of processes that are measured: each module knows how to start one kind and to read what it reports.

pub mod bare;
pub mod spraywire;
pub mod testpmd;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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
}

/// The devices of a pair: shared memory of two processes that meet at an abstract socket of a name of its own, so that
/// nothing is left over and nobody else is met. The receiver, or the side that answers, is the first.
fn devices() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    ["server", "client"].map(|role| format!("net_memif0,role={role},id=0,socket=spraywire-benches-{pid}-{n}"))
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
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn pairs_do_not_meet_each_other() {
        let [a, b] = super::devices();
        let [c, _] = super::devices();
        assert_eq!(a.replace("role=server", "role=client"), b);
        assert_ne!(a, c);
    }
}
