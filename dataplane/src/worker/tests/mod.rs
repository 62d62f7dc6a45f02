//! The worker over two memory ports, and over one port whose other end speaks raw frames.

mod chained;
mod consume;
mod look;
mod neighbours;
mod network;
mod observe;
mod predict;
mod quick;
mod routes;
mod sealed;
mod verbs;

use super::*;
use crate::ah::AhState;
use crate::counters::{DropReason, LocalDrop};
use crate::cq::{Arm, Completion, Family, WcOpcode, WcStatus};
use crate::io::memory::{MemoryConfig, MemoryPort};
use crate::qp::{GRH_LEN, QpChange, SendWr};
use proptest::prelude::*;
use roce_proto::types::{PKey, Psn, QKey};
use roce_proto::wire::frame::{self, Frame};
use roce_proto::wire::ud::Send;
use roce_proto::wire::{Reject, RejectReason};
use std::net::Ipv4Addr;
use std::time::Duration;

type W = Worker<MemoryPort, Vec<u8>>;

const QKEY: QKey = QKey(0x1111_1111);

fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn v6(last: u16) -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last))
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

fn worker(io: MemoryPort, last: u8) -> W {
    let config =
        PortConfig { addrs: vec![v4(last).into(), v6(u16::from(last)).into()], ..PortConfig::new(v4(last)) };
    W::new(&WorkerConfig { seed: u64::from(last), ..WorkerConfig::default() }, vec![(io, config)]).unwrap()
}

/// Two endpoints with a queue pair each.
struct Net {
    a: W,
    b: W,
    cq: [CqKey; 2],
    qp: [QpKey; 2],
    now: u64,
}

impl Net {
    fn new(memory: MemoryConfig, tune: impl Fn(&mut QpConfig)) -> Net {
        let (a, b) = MemoryPort::pair(&memory);
        let (mut a, mut b) = (worker(a, 1), worker(b, 2));
        let cq = [a.create_cq(64), b.create_cq(64)];
        let qp = [&mut a, &mut b].into_iter().zip(cq).map(|(w, cq)| {
            let mut config = QpConfig::new(cq);
            tune(&mut config);
            w.create_qp(&config).unwrap()
        });
        let qp: Vec<_> = qp.collect();
        Net { a, b, cq, qp: [qp[0], qp[1]], now: 0 }
    }

    fn default() -> Net {
        Net::new(MemoryConfig::default(), |_| {})
    }

    fn rounds(&mut self, n: usize) {
        for _ in 0..n {
            self.now += 10;
            self.a.poll(at(self.now));
            self.b.poll(at(self.now));
        }
    }

    fn ah(&mut self, config: AhConfig) -> AhKey {
        let ah = self.a.create_ah(&config, at(self.now)).unwrap();
        self.rounds(4);
        assert_eq!(self.a.ah_state(ah), Some(AhState::Ready));
        ah
    }

    fn wr(&self, ah: AhKey) -> SendWr {
        let dst_qpn = self.b.qpn(self.qp[1]).unwrap();
        SendWr { wr_id: 7, ah, dst_qpn, qkey: QKEY, imm: None, solicited: false, signaled: true }
    }

    fn post_recv(&mut self, wr_id: u64, room: usize) {
        let wr = RecvWr { wr_id, buf: vec![0xEE; room] };
        self.b.post_recv(self.qp[1], wr).map_err(|(e, _)| e).unwrap();
    }

    fn received(&mut self) -> Option<Completion<Vec<u8>>> {
        self.b.cq(self.cq[1]).unwrap().pop()
    }

    fn sent(&mut self) -> Option<Completion<Vec<u8>>> {
        self.a.cq(self.cq[0]).unwrap().pop()
    }

    fn local_drops(&self, reason: LocalDrop) -> u64 {
        self.b.counters(0).unwrap().dropped(DropReason::Local(reason))
    }

    fn assert_reconciled(&self) {
        for (name, w) in [("a", &self.a), ("b", &self.b)] {
            let counters = w.counters(0).unwrap();
            assert_eq!(counters.accounted(), counters.rx_packets, "{name}: {counters:?}");
            let port = w.port_stats(0).unwrap();
            assert_eq!((counters.rx_packets, counters.rx_bytes), (port.rx_packets, port.rx_bytes), "{name}");
        }
    }
}
