//! The worker over two memory ports, and over one port whose other end speaks raw frames.

use super::*;
use crate::ah::AhState;
use crate::counters::{DropReason, LocalDrop};
use crate::cq::{Arm, Completion, Family, WcOpcode, WcStatus};
use crate::io::memory::{MemoryConfig, MemoryPort};
use crate::qp::{GRH_LEN, SendWr};
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
    let config = PortConfig { addrs: vec![v4(last), v6(u16::from(last))], ..PortConfig::new(v4(last)) };
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
            assert_eq!(counters.rx_packets, w.port_stats(0).unwrap().rx_packets, "{name}");
        }
    }
}

#[test]
fn a_message_arrives_whole_over_either_family_with_its_grh_area() {
    for (dst, src, family) in [(v4(2), v4(1), Family::V4), (v6(2), v6(1), Family::V6)] {
        let mut net = Net::default();
        let ah = net.ah(AhConfig { traffic_class: 0x6a, hop_limit: 9, ..AhConfig::new(dst) });
        net.post_recv(1, 4096 + GRH_LEN);
        let payload: Vec<u8> = (0..1001u32).map(|i| i as u8).collect();
        let wr = SendWr { imm: Some(0xCAFE_F00D), solicited: true, ..net.wr(ah) };
        net.a.post_send(net.qp[0], &wr, &payload).unwrap();
        net.rounds(2);
        let done = net.received().unwrap();
        assert_eq!((done.wr_id, done.status, done.opcode), (1, WcStatus::Success, WcOpcode::Recv));
        assert_eq!(done.byte_len as usize, GRH_LEN + payload.len(), "pad and ICRC are not counted");
        assert_eq!(done.payload_len(), payload.len());
        assert_eq!(done.imm, Some(0xCAFE_F00D));
        assert_eq!(done.src_qpn, net.a.qpn(net.qp[0]).unwrap());
        assert_eq!(done.family, family);
        assert!(done.solicited);
        let buf = done.buf.as_ref().unwrap();
        assert_eq!(&buf[GRH_LEN..done.byte_len as usize], payload);
        assert!(buf[done.byte_len as usize..].iter().all(|&b| b == 0xEE), "the pad is not delivered");
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                assert_eq!(buf[..20], [0; 20]);
                assert_eq!(buf[20], 0x45);
                assert_eq!(buf[21], 0x6a);
                assert_eq!(buf[28], 9);
                assert_eq!(buf[32..36], src.octets());
                assert_eq!(buf[36..40], dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                assert_eq!(buf[0] >> 4, 6);
                assert_eq!(buf[7], 9);
                assert_eq!(buf[8..24], src.octets());
                assert_eq!(buf[24..40], dst.octets());
            }
            _ => unreachable!(),
        }
        let sent = net.sent().unwrap();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (7, WcStatus::Success, WcOpcode::Send));
        net.assert_reconciled();
    }
}

#[test]
fn both_families_reach_one_queue_pair() {
    let mut net = Net::default();
    let (four, six) = (net.ah(AhConfig::new(v4(2))), net.ah(AhConfig::new(v6(2))));
    for wr_id in 0..4 {
        net.post_recv(wr_id, 100);
    }
    for ah in [four, six, six, four] {
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.rounds(2);
    let families: Vec<_> = std::iter::from_fn(|| net.received()).map(|c| c.family).collect();
    assert_eq!(families, [Family::V4, Family::V6, Family::V6, Family::V4]);
}

#[test]
fn every_length_from_nothing_to_the_mtu_is_delivered_exactly() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let mtu = net.a.ib_mtu(0);
    assert_eq!(mtu, 4096);
    for len in (0..70).chain([1023, 1024, 1025, 4093, 4094, 4095, 4096]) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        // A buffer of exactly the needed size: one byte more from the wire would not fit.
        net.post_recv(len as u64, GRH_LEN + len);
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, &payload).unwrap();
        net.rounds(2);
        let done = net.received().unwrap();
        assert_eq!((done.status, done.payload_len()), (WcStatus::Success, len));
        assert_eq!(done.buf.unwrap()[GRH_LEN..], payload);
        net.sent().unwrap();
    }
    net.assert_reconciled();
}

#[test]
fn larger_than_the_mtu_is_refused_with_both_sizes_before_anything_is_queued() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    let e = net.a.post_send(net.qp[0], &wr, &vec![0; 4097]).unwrap_err();
    assert_eq!(e, PostError::TooLong { len: 4097, max: 4096 });
    assert!(e.to_string().contains("4097") && e.to_string().contains("4096"), "{e}");
    let before = net.a.counters(0).unwrap().clone();
    net.rounds(3);
    assert_eq!(*net.a.counters(0).unwrap(), before, "nothing left");
    assert_eq!(net.a.outstanding(net.qp[0]), 0);
}

#[test]
fn sent_counts_only_what_the_driver_took() {
    let mut net = Net::new(MemoryConfig { ring: 8, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    let mut posted = 0;
    let refusal = loop {
        match net.a.post_send(net.qp[0], &wr, b"abc") {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refusal, PostError::PortBusy);
    assert!(refusal.is_back_pressure());
    // The ring took 8, the burst behind it holds 32.
    assert_eq!(posted, 8 + crate::io::BURST);
    assert_eq!(net.a.counters(0).unwrap().tx_packets, 8);
    assert_eq!(net.a.counters(0).unwrap().tx_busy, 1);
    assert_eq!(std::iter::from_fn(|| net.sent()).count(), 8, "completions follow the driver");
    assert_eq!(net.a.outstanding(net.qp[0]) as usize, crate::io::BURST);
    for wr_id in 0..posted as u64 {
        net.post_recv(wr_id, 64);
    }
    net.rounds(10);
    assert_eq!(net.a.counters(0).unwrap().tx_packets, posted as u64);
    assert_eq!(std::iter::from_fn(|| net.received()).count(), posted, "nothing was lost");
}

#[test]
fn an_exhausted_pool_is_back_pressure_and_leaks_nothing() {
    let mut net = Net::new(MemoryConfig { buffers: 4, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..4 {
        net.a.post_send(net.qp[0], &wr, b"abc").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b"abc"), Err(PostError::NoBuffer));
    assert_eq!(net.a.counters(0).unwrap().tx_no_buffer, 1);
    net.rounds(3);
    assert_eq!(net.a.io_mut(0).unwrap().free_buffers(), 4);
    net.a.post_send(net.qp[0], &wr, b"abc").unwrap();
}

#[test]
fn full_queues_refuse_and_recover() {
    let mut net = Net::new(MemoryConfig::default(), |q| (q.send_depth, q.recv_depth) = (4, 2));
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..4 {
        net.a.post_send(net.qp[0], &wr, b"").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b""), Err(PostError::QueueFull { depth: 4 }));
    net.post_recv(0, 40);
    net.post_recv(1, 40);
    let (e, back) = net.b.post_recv(net.qp[1], RecvWr { wr_id: 9, buf: vec![1, 2, 3] }).unwrap_err();
    assert_eq!(e, PostError::QueueFull { depth: 2 });
    assert_eq!((back.wr_id, back.buf), (9, vec![1, 2, 3]), "the request comes back");
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::NoReceive), 2, "four came for two receives");
    net.a.post_send(net.qp[0], &wr, b"").unwrap();
    net.assert_reconciled();
}

#[test]
fn a_full_completion_queue_refuses_signaled_sends_and_drops_packets_without_losing_a_receive() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..64 {
        net.a.post_send(net.qp[0], &wr, b"").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b""), Err(PostError::CqFull));
    let unsignaled = SendWr { signaled: false, ..wr };
    net.a.post_send(net.qp[0], &unsignaled, b"").unwrap();
    for wr_id in 0..70 {
        net.post_recv(wr_id, 40);
    }
    net.rounds(4);
    assert_eq!(net.local_drops(LocalDrop::CqFull), 1);
    let ids: Vec<_> = std::iter::from_fn(|| net.received()).map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..64).collect::<Vec<_>>());
    net.a.post_send(net.qp[0], &unsignaled, b"").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().wr_id, 64, "the dropped packet took no receive");
    net.assert_reconciled();
}

#[test]
fn keys_numbers_and_states_each_have_their_own_counter() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    let good = net.wr(ah);
    let other = Qpn::new(0x77).unwrap();
    net.a.post_send(net.qp[0], &SendWr { qkey: QKey(0x1111_1112), ..good }, b"x").unwrap();
    net.a.post_send(net.qp[0], &SendWr { dst_qpn: other, ..good }, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QKey), 1);
    assert_eq!(net.b.qp_counters(net.qp[1]).unwrap().qkey_violations, 1);
    assert_eq!(net.local_drops(LocalDrop::UnknownQpn), 1);
    net.b.modify_qp(net.qp[1], QpState::Reset).unwrap();
    net.b.modify_qp(net.qp[1], QpState::Init).unwrap();
    net.post_recv(1, 64);
    net.a.post_send(net.qp[0], &good, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QpState), 1);
    net.b.modify_qp(net.qp[1], QpState::ReadyToReceive).unwrap();
    net.a.post_send(net.qp[0], &good, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().wr_id, 1);
    net.assert_reconciled();
}

#[test]
fn a_partition_key_that_does_not_match_is_dropped() {
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let ports = |last: u8, pkeys: Vec<PKey>| PortConfig { pkeys, ..PortConfig::new(v4(last)) };
    let mut a =
        W::new(&WorkerConfig::default(), vec![(a, ports(1, vec![PKey(0x8001), PKey(0x0002), PKey(0x8002)]))])
            .unwrap();
    let mut b = W::new(&WorkerConfig::default(), vec![(b, ports(2, vec![PKey(0x0002)]))]).unwrap();
    let (acq, bcq) = (a.create_cq(16), b.create_cq(16));
    let bqp = b.create_qp(&QpConfig::new(bcq)).unwrap();
    let ah = a.create_ah(&AhConfig::new(v4(2)), at(0)).unwrap();
    for us in 0..4 {
        a.poll(at(us));
        b.poll(at(us));
    }
    assert_eq!(a.create_qp(&QpConfig { pkey_index: 3, ..QpConfig::new(acq) }), Err(QpError::NoPKey(3)));
    // Another partition; both limited members of the same; a full and a limited member.
    for (pkey_index, delivered) in [(0, 0), (1, 0), (2, 1)] {
        let qp = a.create_qp(&QpConfig { pkey_index, ..QpConfig::new(acq) }).unwrap();
        b.post_recv(bqp, RecvWr { wr_id: 0, buf: vec![0; 64] }).map_err(|e| e.0).unwrap();
        let wr = SendWr {
            wr_id: 0,
            ah,
            dst_qpn: b.qpn(bqp).unwrap(),
            qkey: QKEY,
            imm: None,
            solicited: false,
            signaled: false,
        };
        a.post_send(qp, &wr, b"x").unwrap();
        a.poll(at(10));
        b.poll(at(10));
        assert_eq!(b.counters(0).unwrap().delivered, delivered, "P_Key index {pkey_index}");
    }
    assert_eq!(b.counters(0).unwrap().dropped(DropReason::Local(LocalDrop::PKey)), 2);
}

#[test]
fn a_controlled_qkey_is_replaced_by_the_queue_pairs_own() {
    let mut net = Net::new(MemoryConfig::default(), |q| q.qkey = QKey(0x8765_4321));
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    let wr = SendWr { qkey: QKey(0x8000_0000), ..net.wr(ah) };
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().status, WcStatus::Success);
}

#[test]
fn a_short_buffer_completes_in_error_and_flushes_the_rest() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, GRH_LEN + 9);
    net.post_recv(1, 100);
    net.post_recv(2, 100);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, &[1; 10]).unwrap();
    net.rounds(3);
    let got: Vec<_> = std::iter::from_fn(|| net.received()).collect();
    let statuses: Vec<_> = got.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(
        statuses,
        [
            (0, WcStatus::LocalLengthError),
            (1, WcStatus::WorkRequestFlushed),
            (2, WcStatus::WorkRequestFlushed)
        ]
    );
    assert!(got.iter().all(|c| c.buf.as_ref().is_some_and(|b| b.iter().all(|&x| x == 0xEE))));
    assert_eq!(net.b.qp_state(net.qp[1]), Some(QpState::Error));
    assert_eq!(net.local_drops(LocalDrop::ShortBuffer), 1);
    net.assert_reconciled();
}

#[test]
fn flushing_waits_for_room_in_the_completion_queue() {
    let mut net = Net::default();
    for wr_id in 0..200 {
        net.post_recv(wr_id, 1);
    }
    net.b.modify_qp(net.qp[1], QpState::Error).unwrap();
    let mut ids = Vec::new();
    for _ in 0..10 {
        net.rounds(1);
        assert!(net.b.cq(net.cq[1]).unwrap().len() <= 64);
        ids.extend(std::iter::from_fn(|| net.received()).map(|c| (c.wr_id, c.status)));
    }
    assert_eq!(ids, (0..200).map(|i| (i, WcStatus::WorkRequestFlushed)).collect::<Vec<_>>());
}

#[test]
fn psn_and_numbers_cross_their_wraps() {
    let mut net = Net::new(MemoryConfig::default(), |q| {
        (q.qpn, q.psn) = (Qpn::new(0xFF_FFFE), Psn::new(0xFF_FFFE));
    });
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for wr_id in 0..4 {
        net.post_recv(wr_id, 64);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.poll(at(100));
    let psns: Vec<_> = std::iter::from_fn(|| net.b.io_mut(0).unwrap().take())
        .map(|f| match frame::parse(&f).unwrap() {
            Frame::Roce(p) => {
                assert_eq!(p.bth().dst_qpn.get(), 0xFF_FFFE);
                assert_eq!(p.ud().unwrap().deth.src_qpn.get(), 0xFF_FFFE);
                p.bth().psn.get()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(psns, [0xFF_FFFE, 0xFF_FFFF, 0, 1]);
}

#[test]
fn queue_pair_numbers_wrap_within_the_range_for_applications() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let config =
        WorkerConfig { first_qpn: Qpn::new(0xFF_FFFD).unwrap(), max_qps: 5, ..WorkerConfig::default() };
    let mut w = W::new(&config, vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let cq = w.create_cq(4);
    let small = QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(cq) };
    let taken = w.create_qp(&QpConfig { qpn: Qpn::new(2), ..small }).unwrap();
    let made: Vec<_> = (0..4).map(|_| w.create_qp(&small).unwrap()).collect();
    let numbers: Vec<_> = made.iter().map(|&q| w.qpn(q).unwrap().get()).collect();
    assert_eq!(numbers, [0xFF_FFFD, 0xFF_FFFE, 3, 4], "2 is taken; 0, 1 and 0xFFFFFF are reserved");
    assert_eq!(w.create_qp(&small), Err(QpError::TooMany(5)));
    w.destroy_qp(taken).unwrap();
    assert_eq!(w.qpn(taken), None, "a stale key names nothing");
    for reserved in [0, 1, 0xFF_FFFF] {
        let config = QpConfig { qpn: Qpn::new(reserved), ..small };
        assert_eq!(w.create_qp(&config), Err(QpError::QpnReserved(reserved)));
    }
    assert_eq!(w.create_qp(&QpConfig { qpn: Qpn::new(3), ..small }), Err(QpError::QpnTaken(3)));
}

#[test]
fn no_source_address_of_the_family_is_an_error_that_names_the_port() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w = W::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let e = w.create_ah(&AhConfig::new(v6(2)), at(0)).unwrap_err();
    assert!(e.to_string().contains("memory0") && e.to_string().contains("IPv6"), "{e}");
    for (config, want) in [
        (AhConfig::new(v4(1)), AhError::NotAPeer(v4(1))),
        (AhConfig::new("224.0.0.1".parse().unwrap()), AhError::NotAPeer("224.0.0.1".parse().unwrap())),
        (AhConfig { dst_mac: Some(MacAddr::ZERO), ..AhConfig::new(v4(2)) }, AhError::BadMac(MacAddr::ZERO)),
        (AhConfig { port: 1, ..AhConfig::new(v4(2)) }, AhError::NoPort(1)),
    ] {
        assert_eq!(w.create_ah(&config, at(0)), Err(want));
    }
}

#[test]
fn an_unresolved_neighbour_is_asked_once_a_second_and_never_sent_to() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w = W::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let cq = w.create_cq(4);
    let qp = w.create_qp(&QpConfig::new(cq)).unwrap();
    let ah = w.create_ah(&AhConfig::new(v4(9)), at(0)).unwrap();
    let wr = SendWr {
        wr_id: 0,
        ah,
        dst_qpn: Qpn::new(2).unwrap(),
        qkey: QKEY,
        imm: None,
        solicited: false,
        signaled: true,
    };
    let mut frames = Vec::new();
    // A full-rate send loop for 2.5 seconds.
    for ms in 0..2500 {
        assert_eq!(w.post_send(qp, &wr, b"x"), Err(PostError::AddressUnresolved));
        w.poll(at(ms * 1000));
        frames.extend(std::iter::from_fn(|| peer.take()));
    }
    assert_eq!(frames.len(), 3, "at 0, 1 and 2 s");
    assert!(frames.iter().all(|f| matches!(frame::parse(f), Ok(Frame::Arp(..)))));
    assert_eq!(w.ah_state(ah), Some(AhState::Resolving { asked: 3 }));
    assert!(w.destroy_ah(ah));
    assert!(!w.destroy_ah(ah));
    assert_eq!(w.post_send(qp, &wr, b"x"), Err(PostError::NoAh));
}

#[test]
fn a_peer_that_moves_is_followed() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w = W::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let ah = w.create_ah(&AhConfig::new(v4(9)), at(0)).unwrap();
    w.poll(at(0));
    let request = peer.take().unwrap();
    let Ok(Frame::Arp(_, request)) = frame::parse(&request) else { panic!() };
    for mac in [MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 10])] {
        let link = roce_proto::wire::control::Link {
            src: mac,
            dst: request.sender_mac,
            vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
        };
        let mut bytes = [0; 64];
        let n = roce_proto::wire::control::arp(&link, &request.reply(mac), &mut bytes).unwrap();
        assert!(peer.inject(&bytes[..n]));
        w.poll(at(10));
        assert_eq!(w.ah_state(ah), Some(AhState::Ready));
        assert_eq!(w.core.ahs[ah].route.dst_mac, mac);
    }
    assert_eq!(w.counters(0).unwrap().neighbour, 2);
}

#[test]
fn destroying_a_queue_pair_with_work_outstanding_returns_every_place() {
    let mut net = Net::new(MemoryConfig { ring: 1, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..20 {
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.destroy_qp(net.qp[0]).unwrap();
    assert_eq!(net.a.post_send(net.qp[0], &wr, b"x"), Err(PostError::NoQp));
    net.rounds(50);
    assert!(net.sent().is_none(), "no completion of a queue pair that is gone");
    let again = net.a.create_qp(&QpConfig::new(net.cq[0])).unwrap();
    for _ in 0..64 {
        while let Err(e) = net.a.post_send(again, &wr, b"x") {
            assert_eq!(e, PostError::PortBusy, "all 64 places of the completion queue are free");
            net.rounds(1);
        }
    }
    assert_eq!(net.a.destroy_cq(net.cq[0]), Err(QpError::CqInUse));
    net.a.destroy_qp(again).unwrap();
    net.a.destroy_cq(net.cq[0]).unwrap();
    assert_eq!(net.a.destroy_cq(net.cq[0]), Err(QpError::NoCq));
}

#[test]
fn ten_thousand_handles_and_queue_pairs_leave_the_tables_as_they_were() {
    let mut net = Net::default();
    for i in 0..10_000u32 {
        let ah = net.a.create_ah(&AhConfig::new(v4((i % 200) as u8 + 3)), at(0)).unwrap();
        let qp =
            net.a.create_qp(&QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(net.cq[0]) }).unwrap();
        net.a.destroy_qp(qp).unwrap();
        assert!(net.a.destroy_ah(ah));
    }
    assert_eq!((net.a.core.qps.len(), net.a.core.ahs.len()), (1, 0));
    assert!(net.a.core.qps.capacity() < 64, "slots are reused");
    assert!(net.a.ports[0].local.neighbours.is_empty());
}

#[test]
fn a_solicited_message_raises_the_event_that_was_asked_for() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    net.post_recv(1, 64);
    net.b.cq(net.cq[1]).unwrap().arm(Arm::Solicited);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.rounds(2);
    assert!(!net.b.cq(net.cq[1]).unwrap().take_event());
    net.a.post_send(net.qp[0], &SendWr { solicited: true, ..wr }, b"x").unwrap();
    net.rounds(2);
    assert!(net.b.cq(net.cq[1]).unwrap().take_event());
}

#[test]
fn pings_are_answered() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let mac = io.info().mac;
    let mut w = W::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let link = roce_proto::wire::control::Link {
        src: MacAddr([2, 0, 0, 0, 0, 9]),
        dst: mac,
        vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
    };
    let data: Vec<u8> = (0..200).collect();
    let echo = roce_proto::wire::icmp::Echo { is_reply: false, ident: 5, sequence: 6, data: &data };
    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(192, 0, 2, 1));
    let mut bytes = [0; 512];
    let n = roce_proto::wire::control::icmp_echo(&link, src, dst, &echo, &mut bytes).unwrap();
    assert!(peer.inject(&bytes[..n]));
    w.poll(at(0));
    let answer = peer.take().unwrap();
    let Ok(Frame::Icmp4(answer)) = frame::parse(&answer) else { panic!() };
    assert_eq!((answer.src, answer.dst), (dst, src));
    assert_eq!(answer.link.dst(), link.src);
    assert!(answer.echo.is_reply);
    assert_eq!((answer.echo.ident, answer.echo.sequence, answer.echo.data), (5, 6, &data[..]));
    assert_eq!(w.counters(0).unwrap().echo, 1);
}

/// A frame to the first queue pair of `net.b` that is right in every respect.
fn good_frame(net: &mut Net, payload: &[u8]) -> Vec<u8> {
    let ah = net.ah(AhConfig::new(v4(2)));
    let template = net.a.core.ahs[ah].template;
    let send = Send {
        dst_qpn: net.b.qpn(net.qp[1]).unwrap(),
        src_qpn: Qpn::new(0x1234).unwrap(),
        qkey: QKEY,
        pkey: PKey::DEFAULT,
        psn: Psn::default(),
        imm: None,
        solicited: false,
    };
    let mut frame = vec![0; template.frame_len(false, payload.len())];
    let at = template.header_len(false);
    frame[at..at + payload.len()].copy_from_slice(payload);
    template.emit(&send, payload.len(), &mut frame).unwrap();
    frame
}

#[test]
fn a_flipped_bit_anywhere_in_a_frame_is_never_delivered_as_good_payload() {
    let mut net = Net::default();
    let frame = good_frame(&mut net, b"0123456789abcde");
    let mut delivered_anyway = 0;
    for bit in 0..frame.len() * 8 {
        let mut broken = frame.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        net.post_recv(0, 100);
        assert!(net.a.io_mut(0).unwrap().inject(&broken));
        net.b.poll(at(0));
        if let Some(done) = net.received() {
            assert_eq!(&done.buf.unwrap()[GRH_LEN..GRH_LEN + 15], b"0123456789abcde");
            delivered_anyway += 1;
        } else {
            // The receive is still posted; take it back by a good packet so that the queue does not fill.
            assert!(net.a.io_mut(0).unwrap().inject(&frame));
            net.b.poll(at(0));
            assert_eq!(net.received().unwrap().status, WcStatus::Success);
        }
    }
    // Bits that the ICRC leaves out and nobody checks: the source MAC (48), and the reserved byte of the BTH (8). ToS
    // and TTL stand under the IP header checksum, the UDP checksum under itself.
    assert_eq!(delivered_anyway, 48 + 8);
    assert!(net.local_drops(LocalDrop::Icrc) > 0);
    net.assert_reconciled();
}

#[test]
fn refusals_of_the_parser_are_counted_by_their_reason() {
    let mut net = Net::default();
    let frame = good_frame(&mut net, b"x");
    for len in 0..frame.len() {
        net.a.io_mut(0).unwrap().inject(&frame[..len]);
        net.b.poll(at(0));
    }
    let wire: u64 =
        RejectReason::ALL.iter().map(|&r| net.b.counters(0).unwrap().dropped(DropReason::Wire(r))).sum();
    assert_eq!(wire, frame.len() as u64, "every truncation is a refusal");
    let short = Reject::TooShort { have: 0, need: 14 }.reason();
    assert!(net.b.counters(0).unwrap().dropped(DropReason::Wire(short)) >= 14);
    net.assert_reconciled();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever arrives: no panic, one counter each, nothing delivered that was not sent.
    #[test]
    fn any_bytes_end_in_exactly_one_counter(frames in proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..200), any::<prop::sample::Index>(), 0u8..4), 1..100))
    {
        let mut net = Net::default();
        let good = good_frame(&mut net, b"payload");
        for wr_id in 0..50 { net.post_recv(wr_id, 60); }
        let mut intact = 0;
        for (noise, index, how) in &frames {
            let mut bytes = match how { 0 => noise.clone(), _ => good.clone() };
            match how {
                1 if !noise.is_empty() => {
                    // Overwrite a stretch with noise.
                    let at = index.index(bytes.len());
                    for (b, n) in bytes[at..].iter_mut().zip(noise) { *b = *n; }
                }
                2 => bytes.truncate(index.index(bytes.len())),
                _ => {}
            }
            intact += u64::from(bytes == good);
            prop_assert!(net.a.io_mut(0).unwrap().inject(&bytes));
            net.b.poll(at(0));
        }
        net.assert_reconciled();
        let delivered = net.b.counters(0).unwrap().delivered;
        prop_assert!(delivered + net.local_drops(LocalDrop::NoReceive) >= intact);
        while let Some(done) = net.received() {
            if done.status == WcStatus::Success {
                prop_assert_eq!(&done.buf.unwrap()[GRH_LEN..GRH_LEN + 7], b"payload");
            }
        }
    }
}
