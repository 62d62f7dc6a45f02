//! Ports, workers and queue pairs are opened and closed over and over, and memory stays what it was.
#![cfg(feature = "dpdk")]

use dataplane::clock::Clock;
use dataplane::io::dpdk::{DpdkPort, DpdkPortConfig};
use dataplane::qp::{QpConfig, RecvWr};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use dpdk::{Eal, EalConfig};

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

/// Opens the port, makes an endpoint on it, moves some packets, and closes all of it.
fn cycle(eal: &Eal, device: &str) {
    let config = DpdkPortConfig { descriptors: 64, spare_buffers: 64, ..DpdkPortConfig::new(device) };
    let port = DpdkPort::open(eal, &config).unwrap();
    let addr = "192.0.2.1".parse().unwrap();
    let mut worker: Worker<DpdkPort, Vec<u8>> =
        Worker::new(&WorkerConfig::default(), vec![(port, PortConfig::new(addr))]).unwrap();
    let cq = worker.create_cq(16);
    let qp = worker.create_qp(&QpConfig::new(cq)).unwrap();
    for wr_id in 0..4 {
        assert!(worker.post_recv(qp, RecvWr { wr_id, buf: vec![0; 2048] }).is_ok());
    }
    for _ in 0..2 {
        worker.poll(Clock::new().now());
    }
    let counters = worker.counters(0).unwrap();
    assert_eq!(counters.accounted(), counters.rx_packets);
}

/// Runs so many cycles; the growth in KiB after the first tenth of them, in which caches fill.
fn growth(cycles: u32, mut cycle: impl FnMut()) -> u64 {
    for _ in 0..cycles / 10 {
        cycle();
    }
    let before = resident();
    for _ in 0..cycles - cycles / 10 {
        cycle();
    }
    resident().saturating_sub(before)
}

#[test]
fn memory_stays_flat() {
    /// What the allocator's own habits may take, in KiB. A leak of 120 bytes a cycle would be more.
    const SLACK: u64 = 1024;
    let eal = Eal::init(&EalConfig { extra: vec!["--no-pci".into()], ..EalConfig::default() }).unwrap();
    eal.attach("net_null0").unwrap();
    let grown = growth(10_000, || cycle(&eal, "net_null0"));
    assert!(grown < SLACK, "{grown} KiB over ten thousand ports opened and closed");
    // With the device itself made and removed each time.
    let grown = growth(500, || {
        let id = eal.attach("net_ring7").unwrap();
        cycle(&eal, "net_ring7");
        eal.detach(id).unwrap();
    });
    assert!(grown < SLACK, "{grown} KiB over five hundred devices made and removed");
}
