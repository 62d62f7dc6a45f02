//! Groups over memory ports: as many pairs of them as the port has queues, all with the same address.

use super::*;
use crate::ah::{AhConfig, AhKey, AhState};
use crate::counters::Counters;
use crate::io::memory::{MemoryConfig, MemoryPort};
use crate::io::{PacketBurst, PortIo};
use crate::qp::{CqKey, QpConfig, QpKey, RecvWr, SendWr};
use proptest::prelude::*;
use roce_proto::time::Instant;
use roce_proto::types::QKey;
use roce_proto::wire::frame::{self, Frame};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

type W = Worker<Member<MemoryPort>, Vec<u8>>;

const QKEY: QKey = QKey(7);

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(us)
}

/// One side: its workers, each with a queue pair.
struct Side {
    group: Group,
    workers: Vec<W>,
    qps: Vec<(QpKey, CqKey)>,
}

impl Side {
    fn new(ports: Vec<MemoryPort>, workers: usize, last: u8) -> Side {
        let (group, members) = Group::new(ports, workers).unwrap();
        let mut workers: Vec<W> = members
            .into_iter()
            .map(|m| group.worker(m, PortConfig::new(ip(last)), &WorkerConfig::default()).unwrap())
            .collect();
        let qps = workers
            .iter_mut()
            .map(|w| {
                let cq = w.create_cq(4096);
                let config = QpConfig { qkey: QKEY, recv_depth: 2048, ..QpConfig::new(cq) };
                (w.create_qp(&config).unwrap(), cq)
            })
            .collect();
        Side { group, workers, qps }
    }

    fn qpn(&self, worker: usize) -> Qpn {
        self.workers[worker].qpn(self.qps[worker].0).unwrap()
    }

    fn post_recvs(&mut self, n: u64) {
        for (w, (qp, _)) in self.workers.iter_mut().zip(&self.qps) {
            for wr_id in 0..n {
                w.post_recv(*qp, RecvWr { wr_id, buf: vec![0; 128] }).map_err(|(e, _)| e).unwrap();
            }
        }
    }

    /// First payload byte of each message that a worker received.
    fn received(&mut self, worker: usize) -> Vec<u8> {
        let cq = self.qps[worker].1;
        let cq = self.workers[worker].cq(cq).unwrap();
        std::iter::from_fn(|| cq.pop()).map(|done| done.buf.unwrap()[crate::qp::GRH_LEN]).collect()
    }

    fn counters(&self, worker: usize) -> &Counters {
        self.workers[worker].counters(0).unwrap()
    }

    /// Every packet that the queues gave is in exactly one counter.
    fn assert_reconciled(&self) {
        let members = self.group.counters();
        for (m, i) in members.iter().zip(0..) {
            assert_eq!(self.workers[i].queue_counters(0), Some(*m));
            let c = self.counters(i);
            assert_eq!(c.accounted(), c.rx_packets, "{i}: {c:?}");
            let here = m.rx - m.steered_out - m.steer_full + m.steered_in + m.news_in;
            assert_eq!(c.rx_packets, here, "{i}: {m:?}");
        }
        let sum = |f: fn(&MemberCounters) -> u64| members.iter().map(f).sum::<u64>();
        assert_eq!(sum(|m| m.steered_in), sum(|m| m.steered_out));
    }
}

/// Two sides joined by as many queues as asked for.
struct Net {
    sides: [Side; 2],
    now: u64,
    /// Packets moved for others in [`Net::rounds`], by side and worker.
    relayed: [Vec<usize>; 2],
}

impl Net {
    fn new(queues: usize, workers: [usize; 2]) -> Net {
        let config = MemoryConfig { ring: 4096, buffers: 6000, mtu: 256 + 76 };
        let (a, b) = (0..queues).map(|_| MemoryPort::pair(&config)).unzip();
        let sides = [Side::new(a, workers[0], 1), Side::new(b, workers[1], 2)];
        Net { sides, now: 0, relayed: workers.map(|n| vec![0; n]) }
    }

    fn rounds(&mut self, n: usize) {
        for _ in 0..n {
            self.now += 10;
            for (side, relayed) in self.sides.iter_mut().zip(&mut self.relayed) {
                for (w, relayed) in side.workers.iter_mut().zip(relayed) {
                    *relayed += w.poll(at(self.now)).relayed;
                }
            }
        }
    }

    fn ahs(&mut self) -> Vec<AhKey> {
        let now = at(self.now);
        let made = |w: &mut W| w.create_ah(&AhConfig::new(ip(2)), now).unwrap();
        let ahs: Vec<AhKey> = self.sides[0].workers.iter_mut().map(made).collect();
        self.rounds(8);
        for (w, ah) in self.sides[0].workers.iter().zip(&ahs) {
            assert_eq!(w.ah_state(*ah), Some(AhState::Ready));
        }
        ahs
    }

    fn send(&mut self, from: usize, ah: AhKey, to: Qpn, payload: &[u8]) {
        let wr =
            SendWr { wr_id: 0, ah, dst_qpn: to, qkey: QKEY, imm: None, solicited: false, signaled: false };
        let qp = self.sides[0].qps[from].0;
        self.sides[0].workers[from].post_send(qp, &wr, payload).unwrap();
    }
}

#[test]
fn each_message_reaches_its_worker_whichever_queue_brings_it() {
    // The fourth and fifth worker of the receiving side have no queue, and neither has the sender's third.
    let mut net = Net::new(3, [4, 5]);
    let ahs = net.ahs();
    net.sides[1].post_recvs(100);
    for (from, &ah) in ahs.iter().enumerate() {
        for to in 0..5 {
            let qpn = net.sides[1].qpn(to);
            net.send(from, ah, qpn, &[(10 * from + to) as u8; 64]);
        }
    }
    net.rounds(6);
    for to in 0..5 {
        let mut got = net.sides[1].received(to);
        got.sort_unstable();
        let want: Vec<u8> = (0..4).map(|from| (10 * from + to) as u8).collect();
        assert_eq!(got, want, "worker {to}");
        assert_eq!(net.sides[1].counters(to).delivered, 4);
    }
    let [sender, receiver] = &net.sides;
    sender.assert_reconciled();
    receiver.assert_reconciled();
    let members = receiver.group.counters();
    assert_eq!(members.iter().map(|m| m.queue).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), None, None]);
    assert_eq!(members.iter().map(|m| m.steer_full).sum::<u64>(), 0);
    assert_eq!((members[3].rx, members[3].steered_in), (0, 4));
    // The sender's fourth worker sends by the first one's queue: its messages and not its own.
    let sent = sender.group.counters();
    assert_eq!((sent[0].lent, sent[1].lent, sent[3].tx), (5, 0, 0), "{sent:?}");
    assert_eq!(sender.counters(3).tx_packets, 5);
    // A worker that only moves packets for others has something to do, and does not go to sleep.
    for (side, relayed) in net.sides.iter().zip(&net.relayed) {
        let moved: Vec<usize> =
            side.group.counters().iter().map(|m| (m.steered_out + m.steer_full + m.lent) as usize).collect();
        assert_eq!(relayed, &moved);
    }
}

/// A queue that brings a full burst in every round starves neither what others pass on, nor they it.
#[test]
fn what_others_pass_on_takes_turns_with_a_full_queue() {
    let mut net = Net::new(2, [2, 2]);
    let ahs = net.ahs();
    let to = net.sides[1].qpn(0);
    net.sides[1].post_recvs(2000);
    for i in 0..2600 {
        // The second sender's come by the second queue.
        net.send(i % 2, ahs[i % 2], to, &[0; 8]);
        if i % 32 == 31 {
            net.now += 10;
            for w in &mut net.sides[0].workers {
                w.poll(at(net.now));
            }
        }
    }
    // Enough for ten bursts wait at both.
    for _ in 0..10 {
        net.now += 10;
        net.sides[1].workers[1].poll(at(net.now));
        net.sides[1].workers[0].poll(at(net.now));
    }
    let members = net.sides[1].group.counters();
    assert!(members[0].steered_in >= 200 && members[0].rx >= 200, "{members:?}");
}

/// Nobody gets more than he asked for, from wherever it comes.
#[test]
fn a_burst_has_what_was_asked_for_at_most() {
    let (ports, mut ends): (Vec<_>, Vec<_>) =
        (0..2).map(|_| MemoryPort::pair(&MemoryConfig::default())).unzip();
    let (group, mut members) = Group::new(ports, 2).unwrap();
    let mac = roce_proto::wire::ethernet::MacAddr([2, 0, 0, 0, 0, 9]);
    let own = members[0].info().mac;
    let link = roce_proto::wire::control::Link {
        src: mac,
        dst: own,
        vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
    };
    let request =
        roce_proto::wire::arp::Packet::request(own, Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 9));
    let mut answer = [0; 64];
    let n = roce_proto::wire::control::arp(&link, &request.reply(mac), &mut answer).unwrap();
    let mut burst = <Member<MemoryPort> as PortIo>::Burst::default();
    for _ in 0..5 {
        assert!(ends[0].inject(&answer[..n]) && ends[1].inject(&[0; 20]));
    }
    assert_eq!(members[0].rx_burst(&mut burst, 64), 5);
    burst.clear();
    // Five copies and five of its own wait for the other.
    let mut came = 0;
    for _ in 0..10 {
        assert_eq!(members[1].rx_burst(&mut burst, 2), 2 * usize::from(came < 10), "after {came}");
        came += burst.len();
        burst.clear();
    }
    let counts = group.counters()[1];
    assert_eq!((counts.rx, counts.news_in, counts.news_lost), (5, 5, 0));
}

/// Those without a queue are spread over those with one; each worker has numbers and first PSNs of its own.
#[test]
fn guests_are_spread_over_the_queues_and_workers_start_apart() {
    let mut net = Net::new(2, [4, 2]);
    let ahs = net.ahs();
    let before: Vec<u64> = net.sides[0].group.counters().iter().map(|m| m.lent).collect();
    for (guest, ah) in ahs.iter().enumerate().skip(2) {
        let to = net.sides[1].qpn(0);
        net.send(guest, *ah, to, &[0; 8]);
    }
    net.rounds(4);
    let lent: Vec<u64> = net.sides[0].group.counters().iter().zip(before).map(|(m, n)| m.lent - n).collect();
    assert_eq!(lent, [1, 1, 0, 0]);
    let side = &net.sides[1];
    assert_eq!([side.qpn(0).get(), side.qpn(1).get()], [0x1_0000, 0x80_0000 + 0x1_0000 - 2]);
    let psn = |i: usize| side.workers[i].core.qps.get(side.qps[i].0).map(|qp| qp.psn);
    assert_ne!(psn(0), psn(1));
    // The link is the business of who has a queue.
    let (port, _end) = MemoryPort::pair(&MemoryConfig::default());
    let (_group, mut members) = Group::new(vec![port], 2).unwrap();
    assert!(!members[1].recover());
}

/// Who has no queue keeps what the one who has takes no more of.
#[test]
fn what_a_lender_does_not_take_waits() {
    let mut net = Net::new(1, [2, 1]);
    let ah = net.ahs()[1];
    let (to, count) = (net.sides[1].qpn(0), 3 * CROSSING);
    net.sides[1].post_recvs(2000);
    let wr = SendWr { wr_id: 0, ah, dst_qpn: to, qkey: QKEY, imm: None, solicited: false, signaled: false };
    let (mut sent, mut refused) = (0, 0);
    while sent < count {
        let qp = net.sides[0].qps[1].0;
        net.now += 1;
        // The lender comes by rarely.
        let turns = if refused % 500 == 499 { [true, true] } else { [false, true] };
        match net.sides[0].workers[1].post_send(qp, &wr, &[1; 8]) {
            Ok(()) => sent += 1,
            Err(e) => {
                assert!(e.is_back_pressure(), "{e}");
                refused += 1;
            }
        }
        for (w, _) in net.sides[0].workers.iter_mut().zip(turns).filter(|(_, turn)| *turn) {
            w.poll(at(net.now));
        }
        net.sides[1].workers[0].poll(at(net.now));
        assert!(refused < 5_000_000);
    }
    net.rounds(200);
    assert!(refused > 0, "there was room for all");
    let got = net.sides[1].counters(0);
    assert_eq!(got.delivered + got.dropped_total(), count as u64, "none is lost on the way: {got:?}");
}

#[test]
fn one_queue_serves_many_workers_and_a_neighbour_is_asked_for_once() {
    let config = MemoryConfig { ring: 4096, buffers: 4096, mtu: 1500 };
    let (io, mut peer) = MemoryPort::pair(&config);
    let mut side = Side::new(vec![io], 4, 1);
    let made = |w: &mut W| w.create_ah(&AhConfig::new(ip(9)), at(0)).unwrap();
    let ahs: Vec<AhKey> = side.workers.iter_mut().map(made).collect();
    let mut asked = Vec::new();
    // 2.5 seconds without an answer.
    for ms in 0..2500 {
        for w in &mut side.workers {
            w.poll(at(ms * 1000));
        }
        asked.extend(std::iter::from_fn(|| peer.take()));
    }
    // The others tell the link of our own address: asked for once, announced twice.
    let about_peer = |frame: &Vec<u8>| match frame::parse(frame) {
        Ok(Frame::Arp(_, request)) => request.target_ip == Ipv4Addr::new(192, 0, 2, 9),
        other => panic!("{other:?}"),
    };
    let (asked, own): (Vec<_>, Vec<_>) = asked.into_iter().partition(about_peer);
    assert_eq!((asked.len(), own.len()), (3, 3), "at 0, 1 and 2 s, and not by each worker");
    let Ok(Frame::Arp(_, request)) = frame::parse(&asked[0]) else { panic!() };
    let mac = roce_proto::wire::ethernet::MacAddr([2, 0, 0, 0, 0, 9]);
    let link = roce_proto::wire::control::Link {
        src: mac,
        dst: request.sender_mac,
        vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
    };
    let mut bytes = [0; 64];
    let n = roce_proto::wire::control::arp(&link, &request.reply(mac), &mut bytes).unwrap();
    assert!(peer.inject(&bytes[..n]));
    for w in side.workers.iter_mut().chain([]) {
        w.poll(at(2_500_000));
    }
    for (w, ah) in side.workers.iter().zip(&ahs) {
        assert_eq!(w.ah_state(*ah), Some(AhState::Ready), "one answer is enough for all");
    }
    side.assert_reconciled();
    let neighbour: Vec<u64> = (0..4).map(|i| side.counters(i).neighbour).collect();
    assert_eq!(neighbour, [1; 4]);
    assert_eq!(side.group.counters().iter().map(|m| m.news_in).collect::<Vec<_>>(), [0, 1, 1, 1]);
    // The question to us is answered once, by whoever received it.
    let question =
        roce_proto::wire::arp::Packet::request(mac, Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(192, 0, 2, 1));
    let n = roce_proto::wire::control::arp(&link, &question, &mut bytes).unwrap();
    assert!(peer.inject(&bytes[..n]));
    for _ in 0..3 {
        for w in &mut side.workers {
            w.poll(at(2_600_000));
        }
    }
    assert_eq!(std::iter::from_fn(|| peer.take()).count(), 1);
}

#[test]
fn what_finds_no_room_between_workers_is_counted_and_nothing_else_stops() {
    let mut net = Net::new(1, [1, 2]);
    let ah = net.ahs()[0];
    net.sides[1].post_recvs(2000);
    let to = [net.sides[1].qpn(0), net.sides[1].qpn(1)];
    let (mut sent, mut dropped, mut relayed) = (0u32, 0, 0);
    while dropped == 0 {
        for qpn in to {
            net.send(0, ah, qpn, &[sent as u8; 16]);
        }
        sent += 1;
        net.now += 10;
        net.sides[0].workers[0].poll(at(net.now));
        // The second worker is never polled.
        relayed += net.sides[1].workers[0].poll(at(net.now)).relayed as u64;
        dropped = net.sides[1].group.counters()[0].steer_full;
        assert!(sent < 100_000);
    }
    assert_eq!(relayed, net.sides[1].group.counters()[0].steered_out + dropped, "each was work");
    // Single packets fill up batches once half of them wait.
    assert!(sent as usize > CROSSING, "dropped after {sent}");
    assert_eq!(net.sides[1].counters(0).delivered.min(2000), u64::from(sent).min(2000));
    for _ in 0..200 {
        net.now += 10;
        net.sides[1].workers[1].poll(at(net.now));
        net.sides[1].workers[0].poll(at(net.now));
    }
    net.sides[1].assert_reconciled();
    let rx: u64 = (0..2).map(|i| net.sides[1].counters(i).rx_packets).sum();
    let members = net.sides[1].group.counters();
    let news: u64 = members.iter().map(|m| m.news_in).sum();
    assert_eq!(members[0].rx, rx + dropped - news);
    assert_eq!(members[1].steered_in, u64::from(sent) - dropped);
    let undelivered = net.sides[1].workers[0].io_mut(0).map(|io| io.undelivered());
    assert_eq!((undelivered, dropped > 0), (Some(dropped), true));
}

#[test]
fn numbers_are_of_the_workers_range() {
    let mut net = Net::new(2, [2, 2]);
    let owners = net.sides[1].group.owners();
    for i in 0..2 {
        assert_eq!(owners.of(net.sides[1].qpn(i)), i);
    }
    let side = &mut net.sides[1];
    let cq = side.qps[1].1;
    let mut create =
        |qpn: u32| side.workers[1].create_qp(&QpConfig { qpn: Qpn::new(qpn), ..QpConfig::new(cq) });
    let refused = crate::qp::QpError::QpnOfAnother { qpn: 0x7F_FFFF, first: 0x80_0000, last: 0xFF_FFFE };
    assert_eq!(create(0x7F_FFFF), Err(refused));
    assert!(create(0xFF_FFFE).is_ok(), "the last of all");
    // After its last number a worker goes on with its first one, not with another's.
    let config = WorkerConfig {
        first_qpn: Qpn::new(0xFF_FFFD).unwrap(),
        qpns: owners.range(1),
        ..WorkerConfig::default()
    };
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w: Worker<MemoryPort, Vec<u8>> =
        Worker::new(&config, vec![(io, PortConfig::new(ip(1)))]).unwrap();
    let cq = w.create_cq(1);
    let mut next = || w.create_qp(&QpConfig::new(cq)).map(|qp| w.qpn(qp).unwrap().get()).unwrap();
    assert_eq!([next(), next(), next(), next()], [0xFF_FFFD, 0xFF_FFFE, 0x80_0000, 0x80_0001]);
}

#[test]
fn a_queue_that_gets_nearly_all_is_noticed() {
    let mut net = Net::new(2, [2, 2]);
    let ahs = net.ahs();
    let to = net.sides[1].qpn(0);
    for i in 0..5000 {
        net.send(usize::from(i % 6 == 0), ahs[usize::from(i % 6 == 0)], to, &[0; 8]);
        if i % 32 == 31 {
            net.rounds(1);
        }
    }
    net.rounds(2);
    let group = &net.sides[1].group;
    let uneven = group.warn_if_uneven().expect("five of six");
    assert_eq!(uneven.queue, 0);
    assert!(uneven.packets > 4100 && uneven.of >= 5000, "{uneven:?}");
    assert_eq!(net.sides[0].group.uneven(), None, "the sender received next to nothing");
}

#[test]
fn impossible_groups_are_refused() {
    let port = || MemoryPort::pair(&MemoryConfig { buffers: 1, ..MemoryConfig::default() }).0;
    assert_eq!(Group::new(Vec::<MemoryPort>::new(), 1).err(), Some(GroupError::NoQueue));
    assert_eq!(
        Group::new(vec![port(), port()], 1).err(),
        Some(GroupError::IdleQueue { queues: 2, workers: 1 })
    );
    assert_eq!(Group::new(vec![port()], 65).err(), Some(GroupError::TooMany(65)));
}

#[derive(Clone, Debug)]
enum Op {
    /// A message from one worker to another.
    Send(usize, usize),
    /// A worker of the receiving side is polled.
    Poll(usize),
    /// A frame that is broken, at a queue.
    Junk(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4usize, 0..4usize).prop_map(|(from, to)| Op::Send(from, to)),
        4 => (0..4usize).prop_map(Op::Poll),
        1 => (0..2usize).prop_map(Op::Junk),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_is_lost_doubled_or_reordered_within_a_flow(
        ops in proptest::collection::vec(op(), 1..400), queues in 1usize..4)
    {
        let mut net = Net::new(queues, [4, 4]);
        let ahs = net.ahs();
        net.sides[1].post_recvs(400);
        let mut want = vec![vec![Vec::new(); 4]; 4];
        let mut junk = 0;
        for op in ops {
            match op {
                Op::Send(from, to) => {
                    let number = want[to][from].len() as u8 % 64;
                    let qpn = net.sides[1].qpn(to);
                    // Four senders: two bits; 64 numbers: six.
                    net.send(from, ahs[from], qpn, &[(from as u8) << 6 | number; 40]);
                    want[to][from].push(number);
                    net.now += 10;
                    for w in &mut net.sides[0].workers { w.poll(at(net.now)); }
                }
                Op::Poll(i) => { net.now += 10; net.sides[1].workers[i].poll(at(net.now)); }
                Op::Junk(queue) => {
                    let member = net.sides[0].workers[queue % queues].io_mut(0).unwrap();
                    if let member::Access::Own { io, .. } = &mut member.access {
                        junk += u64::from(io.inject(&[0xff; 77]));
                    }
                }
            }
        }
        net.rounds(10);
        for (to, want) in want.iter().enumerate() {
            let got = net.sides[1].received(to);
            for (from, want) in want.iter().enumerate() {
                let of: Vec<u8> = got.iter().filter(|b| usize::from(*b >> 6) == from).map(|b| b & 63).collect();
                prop_assert_eq!(&of, want, "{} to {}", from, to);
            }
        }
        for side in &net.sides { side.assert_reconciled(); }
        let other: u64 = (0..4).map(|i| {
            let c = net.sides[1].counters(i);
            c.dropped_total() + c.ignored
        }).sum();
        prop_assert_eq!(other, junk);
    }
}
