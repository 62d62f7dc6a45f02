//! Linux' own RoCEv2 implementation, `rdma_rxe` in a guest, takes every UD message of ours and we take its: both families,
//! every length up to the IB MTU, with and without an immediate; and both drop and count what they must not take.
//!
//! Needs root, for the network namespace; the guest needs no hardware and no module of this machine's kernel.
#![cfg(feature = "dpdk")]

mod peer;

use peer::{GUEST, OURS, PATIENCE, Packet, Peer, Receiver, fields, judged};
use serde_json::Value;
use std::collections::HashMap;
use testbed_net::Ended;

/// An immediate that reads differently in another byte order.
const IMM: u32 = 0xca1e_f00d;
/// The Q_Key of these tests.
const QKEY: &str = "0x1ee7a11c";
/// First PSN of a run: every run of more than 256 messages crosses its wrap.
const PSN: u64 = 0xff_ff00;
/// A run is repeated so often when the network lost a message, which UD does not repair. What comes must be right in each.
const ATTEMPTS: u32 = 3;

/// The kernel's address on the bridge, for perftest's own connection.
const BRIDGE: &str = "10.77.0.1";

/// How we are connected to the bridge, and what is sent over it.
#[derive(Clone, Copy)]
struct Link<'a> {
    peer: &'a Peer,
    port: &'a str,
    /// The lengths of the messages of a run, first and last: message n has n bytes more than the first.
    lengths: (u16, u16),
    /// What brings the port to the bridge once the program has made it.
    attach: fn(&Peer),
}

/// One kind of message.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// 0: IPv4, 1: IPv6.
    family: usize,
    imm: Option<u32>,
}

impl Kind {
    fn all() -> impl Iterator<Item = Kind> {
        let families = |imm| [0, 1].map(|family| Kind { family, imm });
        [None, Some(IMM)].into_iter().flat_map(families)
    }
}

/// Byte `i` of message `number` is their sum: the pattern of both tools.
fn message(number: u64, len: usize) -> Vec<u8> {
    (number..).take(len).map(|n| n as u8).collect()
}

/// FNV-1a with 64 bits, by its authors' definition: what the guest's tool prints of a payload.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The source address in the first 40 bytes of a receive, as the guest shows them.
fn source(grh: &str, family: usize) -> String {
    let bytes: Vec<u8> = (0..grh.len()).step_by(2).map(|i| hex(&grh[i..i + 2]) as u8).collect();
    if family == 0 {
        <[u8; 4]>::try_from(&bytes[32..36]).map(|b| std::net::Ipv4Addr::from(b).to_string()).unwrap()
    } else {
        <[u8; 16]>::try_from(&bytes[8..24]).map(|b| std::net::Ipv6Addr::from(b).to_string()).unwrap()
    }
}

/// The messages of a run as a capture has them: each has its length, and the PSNs count up across their wrap.
fn check_capture(packets: &[Packet], link: &Link, kind: Kind) {
    let psn = |p: &Packet| (p.number("psn").unwrap() + (1 << 24) - PSN) % (1 << 24);
    for packet in packets {
        let number = psn(packet);
        assert!(number < link.count(), "{kind:?}: PSN {:?}", packet.number("psn"));
        let want = message(number, usize::from(link.lengths.0) + number as usize);
        assert_eq!(packet.payload(), want, "{kind:?}: message {number}");
        assert_eq!(packet.number("imm"), kind.imm.map(u64::from), "{kind:?}: message {number}");
        assert_eq!(packet.number("qkey"), Some(hex(QKEY)), "{kind:?}: message {number}");
    }
}

impl Link<'_> {
    /// Messages of a run: one of each length.
    fn count(&self) -> u64 {
        let (first, last) = self.lengths;
        u64::from(last - first) + 1
    }

    /// The number of the message of that length.
    fn number(&self, len: usize) -> usize {
        len.checked_sub(self.lengths.0.into()).unwrap_or_else(|| panic!("{len} bytes, of {:?}", self.lengths))
    }

    /// `ud send` to its end.
    fn send(&self, args: &str) -> Ended {
        let process = self.peer.spraywire(&format!("ud send {args} --wait 30 {}", self.port));
        (self.attach)(self.peer);
        process.end(PATIENCE)
    }

    /// `ud recv` with our queue pair, once it is ready.
    fn receive(&self, args: &str) -> Receiver {
        let args = format!("-Q 0xabcdef -k {QKEY} {args} {}", self.port);
        Receiver::start(self.peer, &args, || (self.attach)(self.peer))
    }

    fn imm(kind: Kind) -> String {
        kind.imm.map_or(String::new(), |imm| format!("-i {imm:#x}"))
    }

    fn both_ways(&self, kind: Kind) {
        self.outward(kind);
        self.inward(kind);
    }

    /// Ours arrive there.
    fn outward(&self, kind: Kind) {
        let missing = (0..ATTEMPTS).map(|_| self.send_ours(kind)).find(Option::is_none);
        assert!(missing.is_some(), "{kind:?}: messages to the guest were lost in each of {ATTEMPTS} runs");
    }

    /// One run; the number of messages that did not come, if any.
    fn send_ours(&self, kind: Kind) -> Option<u64> {
        let (peer, count, (first, last)) = (self.peer, self.count(), self.lengths);
        let six = if kind.family == 1 { "-6" } else { "" };
        let (job, qpn) = peer.background(&format!("udtool recv -C -n {count} -D 1024 -t 15 -k {QKEY} {six}"));
        let pcap = peer.file("out.pcap");
        let to = GUEST[kind.family];
        let sent = self.send(&format!(
            "{to} --qpn {qpn} -k {QKEY} -n {count} -s {first}-{last} --rate 1kpps --src-qpn 0xfffffe --psn {PSN} {} --pcap {pcap}",
            Link::imm(kind),
        ));
        let want = format!(
            "{count} messages of {first} to {last} bytes sent to {to} qp {qpn:#08x} from qp 0xfffffe\n"
        );
        assert_eq!(sent.out, want, "{}", sent.err);

        let packets = judged(&pcap);
        assert_eq!(packets.len() as u64, count, "{kind:?}: what our capture says we sent");
        check_capture(&packets, self, kind);
        let received = peer.end(&job);
        let mut seen = vec![false; count as usize];
        for line in received.lines().filter(|l| l.starts_with("RECV ")) {
            let field = fields(line);
            let len: usize = field["len"].parse().unwrap();
            let number = self.number(len);
            assert!(!std::mem::replace(&mut seen[number], true), "{kind:?}: {len} bytes came twice");
            let want = fnv1a(&message(number as u64, len));
            assert_eq!(hex(field["fnv1a"]), want, "{kind:?}: payload of {len} bytes");
            assert_eq!((field["status"], field["grh"]), ("0", "1"), "{kind:?}: {line}");
            assert_eq!(field["byte_len"], (40 + len).to_string(), "{kind:?}: {line}");
            assert_eq!(field["imm"], kind.imm.map_or("-".into(), |imm| format!("{imm:#010x}")), "{line}");
            assert_eq!(hex(field["src_qp"]), 0xff_fffe, "{kind:?}: {line}");
            assert_eq!(source(field["grh_hex"], kind.family), OURS[kind.family], "{line}");
        }
        let missing = seen.iter().filter(|s| !**s).count() as u64;
        (missing > 0).then_some(missing)
    }

    /// Theirs arrive here.
    fn inward(&self, kind: Kind) {
        let missing = (0..ATTEMPTS).map(|_| self.send_theirs(kind)).find(Option::is_none);
        assert!(missing.is_some(), "{kind:?}: messages of the guest were lost in each of {ATTEMPTS} runs");
    }

    fn send_theirs(&self, kind: Kind) -> Option<u64> {
        let (count, (first, last)) = (self.count(), self.lengths);
        let pcap = self.peer.file("in.pcap");
        let receiver = self.receive(&format!("-n {count} --verify incr -r 2048 -q --pcap {pcap}"));
        let said = self
            .guest_sends(kind.family, &format!("-n {count} -l {first}-{last} -w 300 {}", Link::imm(kind)));
        // Its last message came, or is lost: what is on the way needs no second.
        std::thread::sleep(std::time::Duration::from_secs(1));
        let report = receiver.stop();
        let packets = judged(&pcap);
        check_capture(&packets, self, kind);
        accounted(&report);
        assert_eq!(report["summary"]["mismatches"], 0, "{kind:?}: {said}");
        assert_eq!(report["counters"]["dropped"], serde_json::json!({}), "{kind:?}");
        let mut seen = vec![false; count as usize];
        for one in report["results"].as_array().unwrap() {
            let len = one["len"].as_u64().unwrap() as usize;
            let number = self.number(len);
            assert!(!std::mem::replace(&mut seen[number], true), "{kind:?}: {len} bytes came twice");
            assert_eq!(one["verified"], true, "{kind:?}: {one}");
            assert_eq!(one["imm"].as_u64(), kind.imm.map(u64::from), "{kind:?}: {one}");
            assert_eq!(one["src"], GUEST[kind.family], "{kind:?}: {one}");
            assert_eq!(one["src_qpn"].as_u64(), Some(hex(said.as_str())), "{kind:?}: {one}");
        }
        let missing = seen.iter().filter(|s| !**s).count() as u64;
        (missing > 0).then_some(missing)
    }

    /// The guest sends with `args` to our queue pair 0xabcdef, whose Q_Key is [`QKEY`] unless they say otherwise; its own
    /// queue pair's number.
    fn guest_sends(&self, family: usize, args: &str) -> String {
        let to = OURS[family];
        let out = self.peer.guest(&format!("udtool send -a {to} -Q 0xabcdef -k {QKEY} -q -s {PSN} {args}"));
        let ready = out.lines().find(|l| l.starts_with("READY ")).unwrap_or_default();
        fields(ready)["qpn"].to_owned()
    }

    /// What the guest must not take, it drops and, where Linux has a counter for that, counts.
    fn refused_there(&self, family: usize) {
        let peer = self.peer;
        let six = if family == 1 { "-6" } else { "" };
        let (job, qpn) = peer.background(&format!("udtool recv -n 1 -t 100 -k {QKEY} {six}"));
        let send = |args: String| self.send(&format!("{} {args}", GUEST[family])).ok();
        let before = peer.counters();
        let wrong = QKEY.replace("11c", "11d");
        send(format!("--qpn {qpn} -k {wrong} -n 3"));
        send(format!("--qpn {qpn} -k {QKEY} -n 4 --pkey 0x9234"));
        send(format!("--qpn {} -k {QKEY} -n 5", qpn + 4096));
        let pcap = peer.file("damaged.pcap");
        // A whole one for the damaged ones to be made of; it goes to nobody.
        send(format!("--qpn {} -k {QKEY} -s 77 --pcap {pcap}", qpn + 4096));
        let between = peer.counters();
        peer.replay_flipped(6, qpn + 4096, &pcap);
        let after = peer.counters();
        send(format!("--qpn {qpn} -k {QKEY} --pattern text:right"));
        let text = peer.end(&job);
        let came: Vec<&str> = text.lines().filter(|l| l.starts_with("RECV ")).collect();
        assert_eq!(came.len(), 1, "{text}");
        assert_eq!(fields(came[0])["data"], "7269676874", "{text}");

        let rose = |name: &str, from: &HashMap<_, u64>, to: &HashMap<_, u64>| {
            to.get(name).zip(from.get(name)).map(|(a, b)| a - b)
        };
        assert_eq!(rose("qkey_viol_cntr", &before, &after), Some(3));
        assert_eq!(rose("bad_pkey_cntr", &before, &after), Some(4));
        // Of a wrong number and a wrong ICRC there is no counter. The UDP socket below has seen them, and that of the packets
        // that were taken has not.
        let udp = ["udp", "udp6"][family];
        assert_eq!(rose(udp, &before, &between), Some(3 + 4 + 5 + 1));
        assert_eq!(rose(udp, &between, &after), Some(6));
        assert_eq!(rose("rcvd_pkts", &before, &after), Some(0));
        assert_eq!(rose("rcvd_pkts", &after, &peer.counters()), Some(1));
    }

    /// What we must not take, we drop and count.
    fn refused_here(&self, family: usize) {
        let peer = self.peer;
        let pcap = peer.file("whole.pcap");
        let receiver = self.receive(&format!("-n 1 --pcap {pcap}"));
        self.guest_sends(family, "-l 77");
        assert_eq!(receiver.end().0, Some(0));

        let receiver = self.receive("--verify text:right");
        let wrong = QKEY.replace("11c", "11d");
        self.guest_sends(family, &format!("-K {wrong} -n 3 -w 1000"));
        peer.guest(&format!("udtool send -a {} -Q 0xabcdee -k {QKEY} -n 5 -w 1000", OURS[family]));
        peer.replay_flipped(6, 0xab_cdef, &pcap);
        self.guest_sends(family, "-x 7269676874");
        std::thread::sleep(std::time::Duration::from_secs(1));
        let report = receiver.stop();
        accounted(&report);
        let want = serde_json::json!({"qkey": 3, "unknown_qpn": 5, "icrc": 6});
        assert_eq!(report["counters"]["dropped"], want);
        assert_eq!(report["counters"]["delivered"], 1);
        assert_eq!(report["results"][0]["verified"], true);

        // The guest has one P_Key, the default; so it is ours that differs.
        let receiver = self.receive("--pkey 0x9234");
        self.guest_sends(family, "-n 4 -w 1000");
        std::thread::sleep(std::time::Duration::from_secs(1));
        let report = receiver.stop();
        accounted(&report);
        assert_eq!(report["counters"]["dropped"], serde_json::json!({"pkey": 4}));
        assert_eq!(report["counters"]["delivered"], 0);
    }
}

/// Every packet that came is in one counter.
fn accounted(report: &Value) {
    let counters = &report["counters"];
    let number = |name: &str| counters[name].as_u64().unwrap();
    let dropped: u64 = counters["dropped"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    let fates = ["delivered", "neighbour", "echo", "ignored"].map(number).iter().sum::<u64>() + dropped;
    assert_eq!(fates, number("rx_packets"), "{counters:#}");
}

/// Over a veth between us and the bridge: everything with an IB MTU of 1024, and what is longer with one of 4096.
#[test]
fn soft_roce_over_af_packet() {
    let Some(peer) = Peer::start("soft_roce_over_af_packet") else { return };
    peer.guest_mtu(1500, 1024);
    let port = "--port net_af_packet0,iface=ep0";
    let link = Link { peer: &peer, port, lengths: (0, 1024), attach: |_| () };
    everything(&link);
    peer.guest_mtu(4200, 4096);
    for lengths in [(0, 1032), (4072, 4096)] {
        for kind in Kind::all() {
            Link { lengths, ..link }.both_ways(kind);
        }
    }
}

/// Over a tap device of our own making on the bridge. Its driver has no MTU above 1504, so there is no larger IB MTU.
#[test]
fn soft_roce_over_tap() {
    let Some(peer) = Peer::start("soft_roce_over_tap") else { return };
    peer.guest_mtu(1500, 1024);
    let port = "--port net_tap0,iface=dt0,mac=02:00:00:00:00:09";
    let tap = Link { peer: &peer, port, lengths: (0, 1024), attach: Peer::attach_tap };
    tap.both_ways(Kind { family: 0, imm: None });
    tap.both_ways(Kind { family: 1, imm: Some(IMM) });
    tap.refused_here(0);
}

fn everything(link: &Link) {
    for kind in Kind::all() {
        link.both_ways(kind);
    }
    for family in [0, 1] {
        link.refused_there(family);
        link.refused_here(family);
    }
}

/// Debian's perftest on our endpoint against the same on Linux' own: what each end says of itself.
impl Link<'_> {
    /// Runs perftest with these arguments for two seconds, with the server there or here; the server's and the client's
    /// numbers: bytes, messages, and so on.
    fn perftest(&self, args: &str, server_there: bool, gid: [u32; 2], pcap: &str) -> [Vec<f64>; 2] {
        let peer = self.peer;
        let there = format!("{args} -F -c UD -D 2 -x {}", gid[1]);
        let here = format!("verbs {} --pcap {pcap}", self.port);
        let ours = OURS.map(|addr| format!("--ip {addr}")).join(" ");
        let command = format!("{here} {ours} -- {args} -F -c UD -D 2 -x {}", gid[0]);
        let (server, client) = if server_there {
            let job = peer.server(&there, 18515);
            let client = peer.command(&format!("{command} {}", GUEST[0])).end(PATIENCE).ok();
            (peer.end(&job), client)
        } else {
            let server = peer.command(&command);
            assert!(testbed_net::eventually(PATIENCE, || peer.listens(18515)), "{:?}", server.said());
            let client = peer.guest(&format!("{there} {BRIDGE}"));
            (server.end(PATIENCE).ok(), client)
        };
        [server, client].map(|out| {
            let last = out.lines().rfind(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
            let words = last.unwrap_or_else(|| panic!("{args}: {out}")).split_whitespace();
            words.map(|word| word.parse().unwrap_or_else(|_| panic!("{args}: {out}"))).collect()
        })
    }
}

#[test]
fn perftest_with_soft_roce() {
    let Some(peer) = Peer::start("perftest_with_soft_roce") else { return };
    peer.kernel_address(BRIDGE);
    let port = "--port net_af_packet0,iface=ep0";
    let link = Link { peer: &peer, port, lengths: (0, 0), attach: |_| () };
    let pcap = peer.file("perftest.pcap");
    // Slow enough for an emulated CPU, and for the decoders of what was captured.
    let bw = "ib_send_bw -s 1000 --rate_limit_type=SW --rate_limit=1 --burst_size=8";
    // Which GIDs: ours are our addresses in order, the guest's those of its kernel.
    for (family, gid) in [(0, [0, peer.gid_index(GUEST[0])]), (1, [1, peer.gid_index(GUEST[1])])] {
        for (args, size, server_there) in [(bw, 1000, family == 0), ("ib_send_lat -s 64", 64, family == 1)] {
            let ends = link.perftest(args, server_there, gid, &pcap);
            assert!(ends.iter().all(|line| line[0] == f64::from(size) && line[1] > 10.0), "{args}: {ends:?}");
            // The rate, or the average.
            assert!(ends.iter().all(|line| line[if size == 64 { 2 } else { 3 }] > 0.0), "{args}: {ends:?}");
            let packets = judged(&pcap);
            assert!(packets.len() > 20, "{args}: {} packets", packets.len());
            assert!(packets.iter().all(|packet| packet.payload().len() == size as usize), "{args}");
        }
    }
}
