//! Reliable endpoints on workers over ports within the process.

mod rails;

use super::*;
use crate::counters::{DropReason, LocalDrop};
use crate::io::memory::{MemoryBurst, MemoryConfig, MemoryPort};
use crate::io::{PacketBuf, PacketBurst};
use crate::worker::{PortConfig, WorkerConfig};
use fec::policy::Protection;
use roce_proto::transport::{Destination, DownReason, Limits, Protect, Shards, Status};
use roce_proto::wire::shim::{Data, Kind, Seq};
use std::net::Ipv6Addr;

type W = Worker<MemoryPort, Vec<u8>>;
type R = Reliable<Vec<u8>>;

fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last))
}

/// Two ports and what is done to frames that go from one to the other.
type Between = (MemoryPort, MemoryPort, fn(&mut [u8]));

struct Net {
    a: (W, Vec<R>),
    b: (W, Vec<R>),
    /// What stands between the two, and changes what passes.
    between: Option<Between>,
    now: u64,
    events: Vec<Event>,
}

fn config(paths: u8) -> ReliableConfig {
    let mut config = ReliableConfig::new(7, [9; 16]);
    config.engine.limits = Limits { sessions: 32, ..Limits::SMALL };
    config.engine.first = Seq(u32::MAX - 100);
    config.engine.paths = paths;
    config
}

impl Net {
    /// One endpoint on the first worker, `peers` on the second.
    fn new(memory: MemoryConfig, peers: usize, config: &ReliableConfig) -> Net {
        let (a, b) = MemoryPort::pair(&memory);
        Net::on(a, b, peers, config)
    }

    /// The same, on ports.
    fn on(a: MemoryPort, b: MemoryPort, peers: usize, config: &ReliableConfig) -> Net {
        Net::over([vec![a], vec![b]], peers, config)
    }

    /// The same, on several ports each, whose addresses end in 1, 11, 21… and in 2, 12, 22…
    fn over(ports: [Vec<MemoryPort>; 2], peers: usize, config: &ReliableConfig) -> Net {
        let worker = |ports: Vec<MemoryPort>, last: u8| {
            let port = |(at, io)| {
                let last = last + 10 * at as u8;
                let addrs = vec![v4(last).into(), v6(u16::from(last)).into()];
                (io, PortConfig { addrs, ..PortConfig::new(v4(last)) })
            };
            let ports = ports.into_iter().enumerate().map(port).collect();
            W::new(&WorkerConfig { seed: u64::from(last), ..WorkerConfig::default() }, ports).unwrap()
        };
        let [a, b] = ports;
        let (mut a, mut b) = (worker(a, 1), worker(b, 2));
        let one = R::new(&mut a, config, |len| vec![0; len]).unwrap();
        let others = (0..peers).map(|i| {
            let mut config = *config;
            config.engine.secret = [i as u8; 16];
            R::new(&mut b, &config, |len| vec![0; len]).unwrap()
        });
        let others = others.collect();
        Net { a: (a, vec![one]), b: (b, others), between: None, now: 1_000, events: Vec::new() }
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn round(&mut self) {
        self.now += 5_000;
        let now = self.at();
        for (worker, endpoints) in [&mut self.a, &mut self.b] {
            for r in endpoints {
                r.poll(worker, now);
                while let Some(event) = r.poll_event(worker) {
                    self.events.push(event);
                }
            }
        }
        if let Some((left, right, change)) = &mut self.between {
            forward(left, right, *change);
            forward(right, left, *change);
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Net) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.round();
        }
        panic!("not done: {:?} {:?}", self.a.1[0].counters(), self.a.0.counters(0));
    }

    /// Opens sessions from the endpoint to every peer; returns both ends' keys.
    fn open(&mut self, ip: IpAddr, own: IpAddr) -> Vec<(SessionKey, SessionKey)> {
        let now = self.at();
        let peers: Vec<Address> = self.b.1.iter().map(|r| Address::new(ip, r.qpn())).collect();
        let keys: Vec<SessionKey> =
            peers.iter().map(|p| self.a.1[0].connect(&mut self.a.0, *p, now).unwrap()).collect();
        let us = Address::new(own, self.a.1[0].qpn());
        let open = |r: &R, key: Option<SessionKey>| key.filter(|k| r.engine().is_open(*k));
        self.until(|net| {
            keys.iter().all(|k| net.a.1[0].engine().is_open(*k))
                && net.b.1.iter().all(|r| open(r, r.engine().session_with(us)).is_some())
        });
        keys.into_iter().zip(self.b.1.iter().map(|r| r.engine().session_with(us).unwrap())).collect()
    }
}

/// Passes frames on, changed.
fn forward(from: &mut MemoryPort, to: &mut MemoryPort, change: fn(&mut [u8])) {
    let (mut burst, mut out) = (MemoryBurst::default(), MemoryBurst::default());
    while from.rx_burst(&mut burst, 32) > 0 {
        while let Some(buf) = burst.pop_front() {
            let bytes = buf.contiguous().expect("one piece");
            let mut copy = to.alloc().expect("a buffer");
            let place = copy.append(bytes.len()).expect("room");
            place.copy_from_slice(bytes);
            change(place);
            out.push(copy).expect("room for a burst");
        }
        to.tx_burst(&mut out);
        assert!(out.is_empty(), "the ring is large enough");
    }
}

fn pattern(peer: usize, i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + i * 7 + peer * 13 + at / 251) as u8).collect()
}

/// Sends messages of all sizes to every peer and back, receives posted first or last.
fn exchange(net: &mut Net, keys: &[(SessionKey, SessionKey)], ahead: bool) {
    let sizes = [0, 1, 100, 4_000, 4_008, 4_009, 60_000, 300_000];
    let mut expected = 0;
    let post_receives = |net: &mut Net| {
        for (peer, (to, from)) in keys.iter().enumerate() {
            for (i, len) in sizes.iter().enumerate() {
                let request = RecvRequest { token: i as u64, tag: 5, ..RecvRequest::default() };
                net.b.1[peer].post_recv(*from, &request, vec![0; *len]).map_err(|e| e.0).unwrap();
                net.a.1[0].post_recv(*to, &request, vec![0; *len]).map_err(|e| e.0).unwrap();
            }
        }
    };
    if ahead {
        post_receives(net);
    }
    for (peer, (to, from)) in keys.iter().enumerate() {
        for (i, len) in sizes.iter().enumerate() {
            let request = SendRequest { token: i as u64, len: *len as u64, tag: 5, ..SendRequest::default() };
            net.a.1[0].post_send(*to, &request, pattern(peer, i, *len)).map_err(|e| e.0).unwrap();
            net.b.1[peer].post_send(*from, &request, pattern(peer, i + 50, *len)).map_err(|e| e.0).unwrap();
            expected += 4;
        }
    }
    if !ahead {
        for _ in 0..500 {
            net.round();
        }
        post_receives(net);
    }
    let mut done = 0;
    net.until(|net| {
        for (which, endpoints) in [(0, &mut net.a.1), (50, &mut net.b.1)] {
            for (at, r) in endpoints.iter_mut().enumerate() {
                while let Some(Done { completion, buf }) = r.poll_completion() {
                    assert_eq!(completion.status, Status::Success);
                    done += 1;
                    let peer = if which == 0 {
                        keys.iter().position(|k| k.0 == completion.session).unwrap()
                    } else {
                        at
                    };
                    let i = completion.token as usize;
                    assert_eq!(completion.len, sizes[i] as u64);
                    // What was received at one end was sent by the other.
                    let sender = if completion.operation == Operation::Send { which } else { 50 - which };
                    assert!(buf == pattern(peer, i + sender, sizes[i]), "message {i} of peer {peer}");
                }
            }
        }
        done == expected
    });
}

#[test]
fn messages_go_both_ways_with_receives_posted_ahead_or_late() {
    let mut net = Net::new(MemoryConfig::default(), 1, &config(1));
    let keys = net.open(v4(2), v4(1));
    exchange(&mut net, &keys, true);
    assert_eq!(net.a.1[0].counters().retransmitted, 0);
    exchange(&mut net, &keys, false);
    assert_eq!(net.a.1[0].engine().segment(keys[0].0), Some(4008));
}

#[test]
fn many_peers_over_ipv6_and_several_paths() {
    let mut c = config(4);
    // The peers' queue pairs share a worker, and each round of one finds packets of all.
    c.rx_depth = 256;
    let mut net = Net::new(MemoryConfig::default(), 12, &c);
    let keys = net.open(v6(2), v6(1));
    exchange(&mut net, &keys, true);
}

/// Case 31: drops for want of a receive are counted, and recovered from.
#[test]
fn packets_without_a_receive_are_counted_and_recovered() {
    let mut c = config(1);
    c.rx_depth = 1;
    let mut net = Net::new(MemoryConfig::default(), 3, &c);
    let keys = net.open(v4(2), v4(1));
    exchange(&mut net, &keys, true);
    let drops = net.b.0.counters(0).unwrap();
    let lost = drops.dropped(crate::counters::DropReason::Local(crate::counters::LocalDrop::NoReceive));
    assert!(lost > 0, "one receive is not enough for three endpoints that take turns");
    assert!(net.a.1[0].counters().retransmitted > 0);
    assert_eq!(drops.accounted(), drops.rx_packets);
}

#[test]
fn a_small_ring_is_back_pressure_and_no_loss() {
    let memory = MemoryConfig { ring: 8, ..MemoryConfig::default() };
    let mut net = Net::new(memory, 1, &config(1));
    let keys = net.open(v4(2), v4(1));
    exchange(&mut net, &keys, true);
    let c = net.a.1[0].counters();
    assert_eq!((c.retransmitted, c.gap_losses), (0, 0));
    assert!(c.sent(Kind::Data) > 90);
}

/// In a ring of two packets, so that some wait half way, put together and refused by the port.
#[test]
fn small_messages_share_packets_and_stay_whole() {
    const MESSAGES: usize = 600;
    let len = |i: usize| i * 37 % 250;
    let memory = MemoryConfig { ring: 2, ..MemoryConfig::default() };
    let mut net = Net::new(memory, 1, &config(1));
    let (to, from) = net.open(v4(2), v4(1))[0];
    for i in 0..MESSAGES {
        let receive = RecvRequest { token: i as u64, tag: 5, ..RecvRequest::default() };
        net.b.1[0].post_recv(from, &receive, vec![0; 250]).map_err(|e| e.0).unwrap();
        let send = SendRequest { token: i as u64, len: len(i) as u64, tag: 5, ..SendRequest::default() };
        net.a.1[0].post_send(to, &send, pattern(0, i, len(i))).map_err(|e| e.0).unwrap();
    }
    let before = net.b.0.counters(0).unwrap().rx_packets;
    let mut done = 0;
    net.until(|net| {
        while let Some(Done { completion, buf }) = net.b.1[0].poll_completion() {
            let i = completion.token as usize;
            assert_eq!((completion.status, completion.len), (Status::Success, len(i) as u64));
            assert!(buf[..len(i)] == pattern(0, i, len(i)), "message {i}");
            done += 1;
        }
        done == MESSAGES
    });
    let c = net.a.1[0].counters();
    assert_eq!(c.retransmitted, 0);
    // 185 bytes on average with the header, of 4,068.
    let packets = net.b.0.counters(0).unwrap().rx_packets - before;
    assert!(packets < MESSAGES as u64 / 10, "{packets} packets");
}

#[test]
fn closing_gives_everything_back() {
    let mut net = Net::new(MemoryConfig::default(), 2, &config(2));
    for _ in 0..20 {
        let keys = net.open(v4(2), v4(1));
        let request = RecvRequest { token: 3, ..RecvRequest::default() };
        net.a.1[0].post_recv(keys[0].0, &request, vec![0; 10]).map_err(|e| e.0).unwrap();
        for key in &keys {
            net.a.1[0].close(key.0);
        }
        net.events.clear();
        net.until(|net| net.events.len() == 4);
        let closed =
            |e: &Event| matches!(e, Event::Down { reason: DownReason::Closed | DownReason::ByPeer(_), .. });
        assert!(net.events.iter().all(closed), "{:?}", net.events);
        let done = net.a.1[0].poll_completion().expect("the receive");
        assert_eq!((done.completion.status, done.completion.token), (Status::SessionDown, 3));
        assert!(net.a.1[0].handles.iter().all(Option::is_none));
        assert_eq!(net.a.1[0].engine().in_use()[0], ("sessions", 0));
    }
    // Of address handles only those for strangers are left.
    assert!(net.a.1[0].strangers.len() + net.b.1[0].strangers.len() <= 4);
}

/// Each queue pair of a wide endpoint has a session of its own with the same peer, in whichever direction it was begun.
#[test]
fn several_sessions_with_one_peer_by_a_queue_pair_each() {
    const WIDE: u16 = 5;
    for begun_by_wide in [false, true] {
        let mut net = Net::new(MemoryConfig::default(), 1, &config(2));
        net.b.1[0].widen(&mut net.b.0, WIDE).unwrap();
        let (narrow, wide) = (net.a.1[0].qpn(), net.b.1[0].qpn());
        let now = net.at();
        for i in 0..WIDE {
            let qpn = Qpn::new(wide.get() + u32::from(i)).unwrap();
            let key = match begun_by_wide {
                true => {
                    net.b.1[0].connect(&mut net.b.0, Address { via: i, ..Address::new(v4(1), narrow) }, now)
                }
                false => net.a.1[0].connect(&mut net.a.0, Address::new(v4(2), qpn), now),
            };
            key.unwrap();
        }
        net.until(|net| net.events.len() == 2 * usize::from(WIDE));
        let mut pairs = Vec::new();
        for i in 0..WIDE {
            let qpn = Qpn::new(wide.get() + u32::from(i)).unwrap();
            let there = net.a.1[0].engine().session_with(Address::new(v4(2), qpn)).unwrap();
            let here = Address { via: i, ..Address::new(v4(1), narrow) };
            pairs.push((there, net.b.1[0].engine().session_with(here).unwrap()));
        }
        for (i, (a, b)) in pairs.iter().enumerate() {
            let recv = RecvRequest { token: i as u64, ..RecvRequest::default() };
            net.a.1[0].post_recv(*a, &recv, vec![0; 9_000]).map_err(|e| e.0).unwrap();
            net.b.1[0].post_recv(*b, &recv, vec![0; 9_000]).map_err(|e| e.0).unwrap();
            let send = SendRequest { token: i as u64, len: 9_000, ..SendRequest::default() };
            net.a.1[0].post_send(*a, &send, pattern(i, 1, 9_000)).map_err(|e| e.0).unwrap();
            net.b.1[0].post_send(*b, &send, pattern(i, 2, 9_000)).map_err(|e| e.0).unwrap();
        }
        let mut done = 0;
        net.until(|net| {
            for (at, other) in [(&mut net.a.1[0], 2), (&mut net.b.1[0], 1)] {
                while let Some(Done { completion, buf }) = at.poll_completion() {
                    assert_eq!(completion.status, Status::Success);
                    let i = completion.token as usize;
                    assert!([pairs[i].0, pairs[i].1].contains(&completion.session));
                    if completion.operation == Operation::Recv {
                        assert!(buf == pattern(i, other, 9_000), "message of pair {i}");
                    }
                    done += 1;
                }
            }
            done == 4 * usize::from(WIDE)
        });
        assert_eq!(net.b.1[0].counters().accounted(), net.b.1[0].counters().received);
    }
}

#[test]
fn an_endpoint_is_widened_by_numbers_that_are_free() {
    let mut net = Net::new(MemoryConfig::default(), 2, &config(1));
    let taken = net.b.1[1].qpn().get();
    assert_eq!(net.b.1[0].widen(&mut net.b.0, 3), Err(QpError::QpnTaken(taken)));
    net.b.1[1].widen(&mut net.b.0, 3).unwrap();
    // It does not narrow.
    net.b.1[1].widen(&mut net.b.0, 1).unwrap();
    assert_eq!(net.b.1[1].qps.len(), 3);
}

/// Whichever of our queue pairs reaches a peer: its paths have different source ports, and path 0 the queue pair's own.
#[test]
fn paths_of_a_session_have_source_ports_of_the_range_and_differ() {
    let range = EntropyRange::new(7_000, 7_015).unwrap();
    let (io, _other) = MemoryPort::pair(&MemoryConfig::default());
    let port = PortConfig { entropy: range, ..PortConfig::new(v4(1)) };
    let mut worker = W::new(&WorkerConfig::default(), vec![(io, port)]).unwrap();
    let mut r = R::new(&mut worker, &config(16), |len| vec![0; len]).unwrap();
    r.widen(&mut worker, 40).unwrap();
    for via in 0..40 {
        let peer = Address { via, ..Address::new(v4(2), Qpn::new(9).unwrap()) };
        assert_eq!(r.first_way(peer, 0).src_port, None);
        let own = Qpn::new(r.qpn().get() + u32::from(via)).unwrap();
        let mut ports = vec![range.port(own, 0)];
        ports.extend((1..16).map(|path| r.first_way(peer, path).src_port.unwrap()));
        ports.sort_unstable();
        assert_eq!(ports, (7_000..7_016).collect::<Vec<u16>>(), "by queue pair {via}");
    }
    let narrow = R::new(&mut worker, &config(17), |len| vec![0; len]).err().unwrap();
    assert_eq!(narrow, ReliableError::Entropy(EntropyError::Narrow { paths: 17, ports: 16, range }));
}

/// Case 34: a corrupt segment is dropped for its ICRC and never reaches the decoder, which recovers it from parity; so does a corrupt
/// parity shard, without harm.
#[test]
fn a_corrupt_segment_is_dropped_and_recovered() {
    /// Ethernet, IPv4, UDP, BTH and DETH.
    const SHIM: usize = 14 + 20 + 8 + 12 + 8;
    let mut c = config(2);
    c.engine.fec.protect = Protect::Everything(Protection { data: 8, parity: 2, depth: 2 });
    let memory = MemoryConfig::default();
    let ((a, left), (b, right)) = (MemoryPort::pair(&memory), MemoryPort::pair(&memory));
    let mut net = Net::on(a, b, 1, &c);
    net.between = Some((left, right, |frame| {
        // Every fifth segment when it is sent first, and the first parity shard of each group.
        let corrupt = match frame.get(SHIM..).filter(|shim| shim.len() > 100) {
            Some(shim) if shim[0] == 0x10 => shim[1] & 2 == 0 && shim[31] % 5 == 3,
            Some(shim) if shim[0] == 0x1b => shim[64] == 0,
            _ => false,
        };
        if corrupt {
            frame[SHIM + 99] ^= 0x20;
        }
    }));
    let keys = net.open(v4(2), v4(1));
    let (to, from) = keys[0];
    let sizes = [20_000, 40_000, 100_000, 200_001];
    for (i, len) in sizes.into_iter().enumerate() {
        let request = RecvRequest { token: i as u64, ..RecvRequest::default() };
        net.b.1[0].post_recv(from, &request, vec![0; len]).map_err(|e| e.0).unwrap();
        let request = SendRequest { token: i as u64, len: len as u64, ..SendRequest::default() };
        net.a.1[0].post_send(to, &request, pattern(0, i, len)).map_err(|e| e.0).unwrap();
    }
    let mut done = 0;
    net.until(|net| {
        while let Some(Done { completion, buf }) = net.b.1[0].poll_completion() {
            let i = completion.token as usize;
            assert!(completion.status == Status::Success && buf == pattern(0, i, sizes[i]), "message {i}");
            done += 1;
        }
        done == sizes.len() && net.a.1[0].engine().in_use()[2] == ("sends", 0)
    });
    let (sender, receiver) = (net.a.1[0].counters(), net.b.1[0].counters());
    let drops = net.b.0.counters(0).unwrap();
    let corrupt = drops.dropped(DropReason::Local(LocalDrop::Icrc));
    // 5, 10, 25 and 50 segments, of which 1, 2, 5 and 10 were changed, and one shard of 1, 2, 4 and 8 groups.
    let groups = sender.sent(Kind::Parity) / 2;
    assert_eq!(corrupt, 18 + groups);
    assert_eq!(drops.accounted(), drops.rx_packets);
    // Of each group there is one shard, for one loss; what was lost beside that was sent again.
    assert!(
        receiver.repaired > 0 && receiver.repaired + sender.retransmitted >= 18,
        "{receiver:?} {sender:?}"
    );
}

/// A packet that waited for the port while its sends ended, of which the peer has everything: it goes, with nothing in it.
#[test]
fn a_packet_whose_sends_have_ended_brings_nothing_of_others() {
    static SEEN: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
    const SHIM: usize = 14 + 20 + 8 + 12 + 8;
    // So few buffers that each was used before.
    let memory = MemoryConfig { buffers: 16, ..MemoryConfig::default() };
    let ((a, left), (b, right)) = (MemoryPort::pair(&memory), MemoryPort::pair(&memory));
    let mut net = Net::on(a, b, 1, &config(1));
    let watch = |frame: &mut [u8]| {
        if frame.get(SHIM) == Some(&0x77) {
            SEEN.lock().unwrap().extend(&frame[SHIM..]);
        }
    };
    net.between = Some((left, right, watch));
    let keys = net.open(v4(2), v4(1));
    exchange(&mut net, &keys, true);
    let gone = Source { token: 1 << 40, offset: 0, len: 100 };
    let shards = Shards {
        token: 1 << 40,
        length: 100,
        segment: 4_008,
        offset: 0,
        stride: 4_008,
        count: 1,
        index: 0,
        shards: 1,
        seq: Seq(0),
        len: 100,
    };
    let waits = Transmit {
        to: Destination::Session(keys[0].0),
        path: 0,
        kind: Kind::Data,
        header_len: Data::LEN as u16,
        source: Some(gone),
        parity: None,
        more: false,
    };
    for (parity, header_len, parts) in [(None, 60, vec![Some(gone); 2]), (Some(shards), 72, vec![None])] {
        let r = &mut net.a.1[0];
        r.headers[..2 * Data::LEN].fill(0x77);
        (r.parts, r.stalled) = (parts.clone(), Some(Transmit { parity, header_len, ..waits }));
        SEEN.lock().unwrap().clear();
        net.until(|_| !SEEN.lock().unwrap().is_empty());
        let mut wanted = vec![0x77; usize::from(header_len)];
        wanted.extend([0; 100]);
        if parts.len() == 2 {
            wanted.extend([[0x77; 60].as_slice(), &[0; 100]].concat());
        }
        assert_eq!(SEEN.lock().unwrap()[..wanted.len()], wanted);
    }
}
