//! Links that go down and come back.

use super::*;
use crate::io::memory::{MemoryBuf, MemoryBurst};
use crate::io::{PortInfo, PortIo, PortState, PortStats};
use crate::neighbour::Claim;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// A memory port whose state the test sets.
struct Switched {
    port: MemoryPort,
    state: Arc<AtomicU8>,
    looks: Arc<AtomicU32>,
    recoveries: Arc<AtomicU32>,
    under_way: bool,
}

impl PortIo for Switched {
    type Buf = MemoryBuf;
    type Burst = MemoryBurst;

    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn rx_burst(&mut self, burst: &mut MemoryBurst, max: usize) -> usize {
        self.port.rx_burst(burst, max)
    }

    fn tx_burst(&mut self, burst: &mut MemoryBurst) -> usize {
        self.port.tx_burst(burst)
    }

    fn alloc(&mut self) -> Option<MemoryBuf> {
        self.port.alloc()
    }

    fn link_up(&self) -> bool {
        self.state() == PortState::Up
    }

    fn state(&self) -> PortState {
        self.looks.fetch_add(1, Ordering::Relaxed);
        [PortState::Up, PortState::Down, PortState::Gone][usize::from(self.state.load(Ordering::Relaxed))]
    }

    fn recover(&mut self) -> bool {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        self.under_way
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

struct Bed {
    worker: Worker<Switched, Vec<u8>>,
    peer: MemoryPort,
    state: Arc<AtomicU8>,
    looks: Arc<AtomicU32>,
    recoveries: Arc<AtomicU32>,
    ms: u64,
}

impl Bed {
    fn new(under_way: bool) -> Bed {
        let (port, peer) = MemoryPort::pair(&MemoryConfig::default());
        let (state, looks, recoveries) = (Arc::default(), Arc::default(), Arc::default());
        let io = Switched {
            port,
            state: Arc::clone(&state),
            looks: Arc::clone(&looks),
            recoveries: Arc::clone(&recoveries),
            under_way,
        };
        let worker = Worker::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v4(1)))]).unwrap();
        Bed { worker, peer, state, looks, recoveries, ms: 0 }
    }

    fn set(&self, state: PortState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// A round each millisecond.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.worker.poll(at(self.ms * 1000));
            self.ms += 1;
        }
    }

    fn lost_and_back(&self) -> (u64, u64) {
        let counters = self.worker.counters(0).unwrap();
        (counters.link_lost, counters.link_back)
    }
}

#[test]
fn a_link_is_looked_at_four_times_a_second_and_its_changes_are_counted() {
    let mut bed = Bed::new(false);
    let watch = bed.worker.watch(0).unwrap();
    let before = bed.looks.load(Ordering::Relaxed);
    bed.pass(1000);
    assert_eq!(bed.looks.load(Ordering::Relaxed) - before, 4);
    assert_eq!((watch.state(), bed.lost_and_back()), (PortState::Up, (0, 0)));
    for times in 1..=3 {
        bed.set(PortState::Down);
        bed.pass(250);
        assert_eq!(
            (watch.state(), watch.lost(), bed.lost_and_back()),
            (PortState::Down, times, (times, times - 1))
        );
        bed.set(PortState::Up);
        bed.pass(250);
        assert_eq!(
            (watch.state(), watch.lost(), bed.lost_and_back()),
            (PortState::Up, times, (times, times))
        );
    }
    bed.set(PortState::Gone);
    bed.pass(250);
    assert_eq!((watch.state(), bed.lost_and_back()), (PortState::Gone, (4, 3)));
    let recoveries = bed.recoveries.load(Ordering::Relaxed);
    bed.pass(2000);
    assert_eq!(bed.recoveries.load(Ordering::Relaxed), recoveries, "what is gone does not come back");
}

#[test]
fn a_link_that_is_down_is_tried_at_a_slow_rate() {
    for (under_way, tries) in [(false, 12), (true, 3)] {
        let mut bed = Bed::new(under_way);
        bed.pass(1);
        bed.set(PortState::Down);
        bed.pass(249 + 3000);
        assert_eq!(bed.recoveries.load(Ordering::Relaxed), tries, "{under_way}");
    }
}

#[test]
fn neighbours_are_asked_again_when_the_link_is_back() {
    let mut bed = Bed::new(false);
    let (first, second) = (MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 10]));
    let ah = bed.worker.create_ah(&AhConfig::new(v4(9)), at(0)).unwrap();
    let requests = |bed: &mut Bed| {
        let frames = std::iter::from_fn(|| bed.peer.take());
        frames.filter(|f| matches!(frame::parse(f), Ok(Frame::Arp(_, p)) if p.target_ip == Ipv4Addr::new(192, 0, 2, 9))).count()
    };
    bed.pass(1);
    assert_eq!(requests(&mut bed), 1);
    let answer = |mac| Claim { ip: v4(9), mac, solicited: true, replaces: true };
    let table = &mut bed.worker.ports[0].local.neighbours;
    assert!(table.claim(&answer(first), at(1000)));
    bed.worker.core.neighbour_changed(table.users(v4(9)), Some(first));
    bed.set(PortState::Down);
    bed.pass(1000);
    assert_eq!(requests(&mut bed), 0);
    bed.set(PortState::Up);
    bed.pass(500);
    assert_eq!(requests(&mut bed), 1);
    // Meanwhile what was known serves.
    assert_eq!(bed.worker.ah_state(ah), Some(AhState::Ready));
    let now = at(bed.ms * 1000);
    assert!(bed.worker.ports[0].local.neighbours.claim(&answer(second), now));
    bed.pass(3000);
    assert_eq!(requests(&mut bed), 0);
}
