//! Gateways, source addresses and VLANs: what leaves the port for a destination, and what it takes.

use super::*;
use crate::route::{Gateway, PortAddr};
use roce_proto::wire::ethernet::{VlanStack, VlanTag};
use roce_proto::wire::{arp, control as frames};

pub(super) const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

pub(super) fn on(addr: &str) -> PortAddr {
    let (ip, len) = addr.split_once('/').unwrap();
    PortAddr { ip: ip.parse().unwrap(), prefix_len: Some(len.parse().unwrap()) }
}

/// Every frame that the worker sent.
pub(super) fn sent(peer: &mut MemoryPort) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| peer.take()).collect()
}

/// The ARP requests among frames that ask for another than the asker: who is asked for, from which address.
pub(super) fn arp_requests(frames: &[Vec<u8>]) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let requests = frames.iter().filter_map(|f| match frame::parse(f) {
        Ok(Frame::Arp(_, p)) if p.operation == arp::Operation::Request => Some((p.target_ip, p.sender_ip)),
        _ => None,
    });
    requests.filter(|(target, sender)| target != sender && !sender.is_unspecified()).collect()
}

/// An ARP reply of `ip` at `mac` to the worker.
pub(super) fn arp_reply(to: &MemoryPort, ip: &str, mac: MacAddr, vlans: VlanStack) -> Vec<u8> {
    let ip: Ipv4Addr = ip.parse().unwrap();
    let own = to.info().mac;
    let reply = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: mac,
        sender_ip: ip,
        target_mac: own,
        target_ip: "10.0.0.1".parse().unwrap(),
    };
    let mut bytes = vec![0; 64];
    let n = frames::arp(&frames::Link { src: mac, dst: own, vlans }, &reply, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn what_is_off_the_link_goes_to_the_gateway() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let config = PortConfig {
        addrs: vec![on("10.0.0.1/24"), on("fd00::1/64")],
        gateways: vec![Gateway::default_by("10.0.0.254".parse().unwrap())],
        ..PortConfig::new(v4(1))
    };
    let answer = arp_reply(&io, "10.0.0.254", PEER, VlanStack::EMPTY);
    let mut w = W::new(&WorkerConfig::default(), vec![(io, config)]).unwrap();
    let far: IpAddr = "198.51.100.7".parse().unwrap();
    let ah = w.create_ah(&AhConfig::new(far), at(0)).unwrap();
    w.poll(at(0));
    let gateway = ("10.0.0.254".parse().unwrap(), "10.0.0.1".parse().unwrap());
    assert_eq!(arp_requests(&sent(&mut peer)), [gateway], "the router is asked for, not the destination");
    assert!(peer.inject(&answer));
    w.poll(at(10));
    assert_eq!(w.ah_state(ah), Some(AhState::Ready));

    let cq = w.create_cq(4);
    let qp = w.create_qp(&QpConfig::new(cq)).unwrap();
    let wr = SendWr {
        wr_id: 0,
        ah,
        dst_qpn: Qpn::new(2).unwrap(),
        qkey: QKEY,
        imm: None,
        solicited: false,
        signaled: false,
    };
    sent(&mut peer);
    w.post_send(qp, &wr, b"x").unwrap();
    w.poll(at(20));
    let frames = sent(&mut peer);
    let [Ok(Frame::Roce(packet))] = frames.iter().map(|f| frame::parse(f)).collect::<Vec<_>>()[..] else {
        panic!("{frames:02x?}")
    };
    assert_eq!((packet.link.dst(), packet.ip.dst()), (PEER, far));
    assert_eq!(packet.ip.src(), "10.0.0.1".parse::<IpAddr>().unwrap());

    let e = w.create_ah(&AhConfig::new("2001:db8::1".parse().unwrap()), at(20)).unwrap_err();
    assert!(matches!(e, AhError::NoRoute { .. }) && e.to_string().contains("--gateway"), "{e}");
    for none in ["10.0.0.255", "10.0.0.0", "10.0.0.1", "127.0.0.1", "::ffff:10.0.0.9"] {
        let dst = none.parse().unwrap();
        assert_eq!(w.create_ah(&AhConfig::new(dst), at(20)), Err(AhError::NotAPeer(dst)));
    }
}

#[test]
fn ports_that_cannot_be_are_refused() {
    let refused = |addrs: &[&str], gateways: &[&str]| {
        let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
        let config = PortConfig {
            addrs: addrs.iter().map(|a| on(a)).collect(),
            gateways: gateways.iter().map(|g| Gateway::default_by(g.parse().unwrap())).collect(),
            ..PortConfig::new(v4(1))
        };
        match W::new(&WorkerConfig::default(), vec![(io, config)]) {
            Ok(_) => panic!("{addrs:?} {gateways:?} was taken"),
            Err(e) => e.to_string(),
        }
    };
    assert!(refused(&["10.0.0.1/24", "10.0.0.1/8"], &[]).contains("memory0: 10.0.0.1 is given twice"));
    assert!(refused(&["127.0.0.1/8"], &[]).contains("loopback"));
    assert!(refused(&["ff02::1/64"], &[]).contains("multicast"));
    assert!(refused(&["10.0.0.1/24"], &["10.0.1.1"]).contains("not on the link"));
}

/// Two workers on one wire, the second in VLAN 42 with priority 5.
fn tagged() -> (W, W, VlanTag) {
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let tag = VlanTag::new(roce_proto::wire::ethernet::EtherType::VLAN, 5, false, 42).unwrap();
    let a = W::new(&WorkerConfig::default(), vec![(a, PortConfig::new(v4(1)))]).unwrap();
    let config = PortConfig { vlan: Some(tag), ..PortConfig::new(v4(2)) };
    let b = W::new(&WorkerConfig::default(), vec![(b, config)]).unwrap();
    (a, b, tag)
}

#[test]
fn all_that_a_port_in_a_vlan_sends_is_tagged() {
    let (mut a, mut b, tag) = tagged();
    let ah = b.create_ah(&AhConfig::new(v4(1)), at(0)).unwrap();
    b.poll(at(0));
    let request = sent(a.io_mut(0).unwrap());
    assert!(!request.is_empty());
    for frame in &request {
        let Ok(Frame::Arp(link, _)) = frame::parse(frame) else { panic!("{frame:02x?}") };
        assert_eq!(link.vlans(), VlanStack::single(Some(tag)));
        assert!(b.io_mut(0).unwrap().inject(frame));
    }
    // The other end has no VLAN: it takes any tag, and answers with the tag of the question.
    for us in 1..6 {
        a.poll(at(us));
        b.poll(at(us));
    }
    assert_eq!(b.ah_state(ah), Some(AhState::Ready));
    assert_eq!(b.core.ahs[ah].template.route().vlan, Some(tag));
    assert_eq!(a.counters(0).unwrap().dropped_total(), 0);
}

#[test]
fn another_tag_or_none_is_dropped_and_counted() {
    let (mut a, mut b, tag) = tagged();
    let (cq, vlan) = (b.create_cq(16), LocalDrop::Vlan);
    let qp = b.create_qp(&QpConfig::new(cq)).unwrap();
    for wr_id in 0..16 {
        b.post_recv(qp, RecvWr { wr_id, buf: vec![0; 100] }).map_err(|(e, _)| e).unwrap();
    }
    let a_cq = a.create_cq(16);
    let a_qp = a.create_qp(&QpConfig::new(a_cq)).unwrap();
    let dst_mac = Some(b.port_info(0).unwrap().mac);
    let other = VlanTag::dot1q(43).unwrap();
    let plain = VlanTag::dot1q(42).unwrap();
    let mut drops = 0;
    for (vlan_of, delivered) in [(None, 0), (Some(other), 0), (Some(tag), 1), (Some(plain), 1), (None, 0)] {
        let config = AhConfig { dst_mac, vlan: vlan_of, ..AhConfig::new(v4(2)) };
        let ah = a.create_ah(&config, at(0)).unwrap();
        let (dst_qpn, qkey) = (b.qpn(qp).unwrap(), QKEY);
        let wr = SendWr { wr_id: 0, ah, dst_qpn, qkey, imm: None, solicited: false, signaled: false };
        let (before, others) =
            (b.counters(0).unwrap().delivered, b.counters(0).unwrap().dropped(DropReason::Local(vlan)));
        for _ in 0..3 {
            a.post_send(a_qp, &wr, b"tagged or not").unwrap();
            a.poll(at(0));
            b.poll(at(0));
        }
        drops = b.counters(0).unwrap().dropped(DropReason::Local(vlan));
        let of_these = b.counters(0).unwrap().delivered - before;
        // The first rounds also bring what `a` says of its own accord, untagged.
        assert_eq!(of_these, 3 * delivered, "{vlan_of:?}");
        assert!(drops - others >= 3 * (1 - delivered), "{vlan_of:?}");
        assert!(drops - others <= 3 * (1 - delivered) + 8, "{vlan_of:?}");
    }
    assert!(drops >= 9);
    let counters = b.counters(0).unwrap();
    assert_eq!(counters.accounted(), counters.rx_packets);
    // What is not RoCEv2 is dropped for the same reason.
    let before = counters.dropped(DropReason::Local(vlan));
    let arp = arp_reply(&*b.io_mut(0).unwrap(), "192.0.2.1", PEER, VlanStack::double(tag, plain));
    assert!(a.io_mut(0).unwrap().inject(&arp));
    b.poll(at(1));
    assert_eq!(b.counters(0).unwrap().dropped(DropReason::Local(vlan)), before + 1, "a stack of tags");
}
