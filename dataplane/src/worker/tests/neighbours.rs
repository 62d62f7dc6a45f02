//! Neighbours on the wire: asked for, confirmed, lost, moved; addresses announced and disputed; floods.

use super::routes::{PEER, arp_reply, arp_requests, on, sent};
use super::*;
use crate::ah::AhError;
use crate::neighbour::State;
use roce_proto::wire::control as frames;
use roce_proto::wire::ethernet::VlanStack;
use roce_proto::wire::{arp, icmpv6};

const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 10]);

/// A worker with 10.0.0.1/24 and fd00::1/64, a handle for 10.0.0.9, and the other end of its wire.
fn one() -> (W, MemoryPort, AhKey) {
    let (io, peer) = MemoryPort::pair(&MemoryConfig::default());
    let config = PortConfig { addrs: vec![on("10.0.0.1/24"), on("fd00::1/64")], ..PortConfig::new(v4(1)) };
    let mut w = W::new(&WorkerConfig::default(), vec![(io, config)]).unwrap();
    let ah = w.create_ah(&AhConfig::new("10.0.0.9".parse().unwrap()), at(0)).unwrap();
    (w, peer, ah)
}

fn ms(ms: u64) -> Instant {
    at(ms * 1000)
}

pub(super) fn hear(w: &mut W, peer: &mut MemoryPort, frame: &[u8], now: Instant) {
    assert!(peer.inject(frame));
    w.poll(now);
}

fn reply(w: &mut W, mac: MacAddr) -> Vec<u8> {
    arp_reply(w.io_mut(0).unwrap(), "10.0.0.9", mac, VlanStack::EMPTY)
}

fn advertisement(ip: &str, mac: MacAddr) -> Vec<u8> {
    let target = ip.parse().unwrap();
    let all = "ff02::1".parse().unwrap();
    let link = frames::Link { src: mac, dst: MacAddr::for_ipv6_multicast(all), vlans: VlanStack::EMPTY };
    let here = icmpv6::Advertisement {
        router: false,
        solicited: false,
        override_cached: true,
        target,
        target_mac: Some(mac),
    };
    let mut bytes = vec![0; 128];
    let message = icmpv6::Message::Advertisement(here);
    let n = frames::icmpv6(&link, target, all, &message, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

fn sender(w: &mut W, ah: AhKey) -> (QpKey, SendWr) {
    let cq = w.create_cq(4);
    let qp = w.create_qp(&QpConfig::new(cq)).unwrap();
    let dst_qpn = Qpn::new(2).unwrap();
    (qp, SendWr { wr_id: 0, ah, dst_qpn, qkey: QKEY, imm: None, solicited: false, signaled: false })
}

#[test]
fn traffic_does_not_stop_while_a_neighbour_is_confirmed_and_stops_when_it_is_lost() {
    let (mut w, mut peer, ah) = one();
    w.poll(ms(0));
    let frame = reply(&mut w, PEER);
    hear(&mut w, &mut peer, &frame, ms(1));
    sent(&mut peer);
    let (qp, wr) = sender(&mut w, ah);
    let (mut probes, mut asks, mut lost_at) = (Vec::new(), Vec::new(), None);
    for t in 2..70_000 {
        match w.post_send(qp, &wr, b"x") {
            Ok(()) => assert!(lost_at.is_none()),
            Err(e) => {
                assert_eq!(e, PostError::AddressUnresolved);
                lost_at.get_or_insert(t);
            }
        }
        w.poll(ms(t));
        for f in sent(&mut peer) {
            let Ok(Frame::Arp(link, p)) = frame::parse(&f) else { continue };
            if p.sender_ip == p.target_ip || p.sender_ip.is_unspecified() {
                continue;
            }
            assert_eq!(p.target_ip, Ipv4Addr::new(10, 0, 0, 9));
            match link.dst() {
                PEER => probes.push(t),
                MacAddr::BROADCAST => asks.push(t),
                other => panic!("asked {other}"),
            }
        }
        // It confirms the first time, and is gone then.
        if probes.len() == 1 && probes[0] == t {
            let frame = reply(&mut w, PEER);
            assert!(peer.inject(&frame));
        }
    }
    assert_eq!(probes.len(), 4, "one confirmed, three in vain: {probes:?}");
    assert!((15_000..45_000).contains(&probes[0]), "{probes:?}");
    let lost_at = lost_at.unwrap();
    assert!((probes[3] + 4_000..probes[3] + 4_010).contains(&lost_at), "{probes:?} {lost_at}");
    assert_eq!(asks[..3], [1, 2, 3].map(|n| probes[3] + n * 1000));
    assert!(matches!(w.ah_state(ah), Some(AhState::Failed { asked: 6.. })), "{:?}", w.ah_state(ah));
    // Back, from another station.
    let frame = reply(&mut w, OTHER);
    hear(&mut w, &mut peer, &frame, ms(70_001));
    assert_eq!(w.ah_state(ah), Some(AhState::Ready));
    w.post_send(qp, &wr, b"x").unwrap();
    w.poll(ms(70_002));
    let last = sent(&mut peer).pop().unwrap();
    assert_eq!(last[..6], OTHER.0, "remembered headers do not outlive the address");
    let counters = w.counters(0).unwrap();
    assert_eq!(counters.accounted(), counters.rx_packets);
}

#[test]
fn nobody_answers_a_full_rate_loop_that_makes_handles() {
    let (mut w, mut peer, _) = one();
    let mut asked = Vec::new();
    for t in 0..2_500 {
        let ah = w.create_ah(&AhConfig::new("fd00::9".parse().unwrap()), ms(t)).unwrap();
        w.poll(ms(t));
        for f in sent(&mut peer) {
            if let Ok(Frame::Icmp6(m)) = frame::parse(&f)
                && let icmpv6::Message::Solicitation(s) = m.message
                && s.target == "fd00::9".parse::<std::net::Ipv6Addr>().unwrap()
            {
                assert_eq!(m.src, "fd00::1".parse::<std::net::Ipv6Addr>().unwrap());
                asked.push(t);
            }
        }
        w.destroy_ah(ah);
    }
    assert_eq!(asked, [0, 1_000, 2_000]);
}

#[test]
fn each_address_is_asked_for_and_announced_when_the_link_comes_up() {
    let (mut w, mut peer, _) = one();
    let mac = w.port_info(0).unwrap().mac;
    w.poll(ms(0));
    let frames = sent(&mut peer);
    let own = Ipv4Addr::new(10, 0, 0, 1);
    let arps: Vec<_> = frames
        .iter()
        .filter_map(|f| match frame::parse(f) {
            Ok(Frame::Arp(link, p)) if p.target_ip == own => {
                assert_eq!(
                    (link.dst(), p.sender_mac, p.operation),
                    (MacAddr::BROADCAST, mac, arp::Operation::Request)
                );
                Some(p.sender_ip)
            }
            _ => None,
        })
        .collect();
    assert_eq!(arps, [Ipv4Addr::UNSPECIFIED, own], "a probe, then an announcement");
    let nds: Vec<_> = frames
        .iter()
        .filter_map(|f| match frame::parse(f) {
            Ok(Frame::Icmp6(m)) => Some((m.src.to_string(), m.dst.to_string(), format!("{:?}", m.message))),
            Ok(_) => None,
            Err(e) => panic!("{e:?}"),
        })
        .collect();
    assert_eq!(nds.len(), 2, "{nds:?}");
    assert_eq!((nds[0].0.as_str(), nds[0].1.as_str()), ("::", "ff02::1:ff00:1"));
    assert!(nds[0].2.contains("Solicitation") && nds[0].2.contains("fd00::1"), "{nds:?}");
    assert_eq!((nds[1].0.as_str(), nds[1].1.as_str()), ("fd00::1", "ff02::1"));
    assert!(nds[1].2.contains("Advertisement") && nds[1].2.contains("override_cached: true"), "{nds:?}");
}

#[test]
fn what_a_loop_gives_back_of_our_own_is_ignored() {
    let (mut w, mut peer, _) = one();
    w.poll(ms(0));
    let frames = sent(&mut peer);
    assert_eq!(frames.len(), 5, "a request, and a probe and an announcement of each address");
    for frame in &frames {
        hear(&mut w, &mut peer, frame, ms(1));
    }
    assert_eq!(sent(&mut peer), Vec::<Vec<u8>>::new());
    let counters = w.counters(0).unwrap();
    assert_eq!((counters.rx_packets, counters.ignored, counters.dropped_total()), (5, 5, 0));
}

#[test]
fn another_station_with_our_address_is_counted_and_told_about() {
    let (mut w, mut peer, _) = one();
    let own_mac = w.port_info(0).unwrap().mac;
    w.poll(ms(0));
    let dup = |w: &W| w.counters(0).unwrap().dropped(DropReason::Local(LocalDrop::DuplicateAddress));
    let claim = arp_reply(w.io_mut(0).unwrap(), "10.0.0.1", OTHER, VlanStack::EMPTY);
    hear(&mut w, &mut peer, &claim, ms(1));
    hear(&mut w, &mut peer, &advertisement("fd00::1", OTHER), ms(2));
    assert_eq!(dup(&w), 2);
    let conflict = w.conflict(0).unwrap();
    assert_eq!((conflict.ip, conflict.mac, conflict.count), ("fd00::1".parse().unwrap(), OTHER, 2));
    // Our own frames, come back, are no dispute.
    let own = arp_reply(w.io_mut(0).unwrap(), "10.0.0.1", own_mac, VlanStack::EMPTY);
    hear(&mut w, &mut peer, &own, ms(3));
    assert_eq!(dup(&w), 2);
    // Somebody who asks before it takes the address is told that it is taken.
    sent(&mut peer);
    let probe = arp::Packet::request(OTHER, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 0, 0, 1));
    let link = frames::Link { src: OTHER, dst: MacAddr::BROADCAST, vlans: VlanStack::EMPTY };
    let mut bytes = [0; 64];
    let n = frames::arp(&link, &probe, &mut bytes).unwrap();
    hear(&mut w, &mut peer, &bytes[..n], ms(4));
    let answers = sent(&mut peer);
    let Ok(Frame::Arp(_, answer)) = frame::parse(&answers[0]) else { panic!("{answers:02x?}") };
    assert_eq!((answer.operation, answer.sender_mac), (arp::Operation::Reply, own_mac));
    let counters = w.counters(0).unwrap();
    assert_eq!(counters.accounted(), counters.rx_packets);
}

#[test]
fn a_flood_of_spoofed_claims_adds_nothing_and_moves_an_entry_once_a_second_at_most() {
    let (mut w, mut peer, ah) = one();
    w.add_neighbour(0, "10.0.0.7".parse().unwrap(), PEER).unwrap();
    for nobody in ["10.0.0.1", "fd00::1", "224.0.0.1", "ff02::1", "0.0.0.0", "127.0.0.1"] {
        let ip = nobody.parse().unwrap();
        assert_eq!(w.add_neighbour(0, ip, PEER), Err(AhError::NotAPeer(ip)));
    }
    for mac in [MacAddr::ZERO, MacAddr([1, 0, 0, 0, 0, 1])] {
        assert_eq!(w.add_neighbour(0, "10.0.0.8".parse().unwrap(), mac), Err(AhError::BadMac(mac)));
    }
    let fixed = w.create_ah(&AhConfig::new("10.0.0.7".parse().unwrap()), ms(0)).unwrap();
    w.poll(ms(0));
    let (mut moves, mut mac) = (0, MacAddr::ZERO);
    let mut rng = fastrand::Rng::with_seed(7);
    for t in 1..3_000 {
        for _ in 0..4 {
            let of = format!("10.0.0.{}", [9, 7, rng.u8(10..250)][rng.usize(0..3)]);
            let from = MacAddr([2, 1, 0, 0, rng.u8(..), rng.u8(..)]);
            let frame = arp_reply(w.io_mut(0).unwrap(), &of, from, VlanStack::EMPTY);
            assert!(peer.inject(&frame));
            assert!(peer.inject(&advertisement(&format!("fd00::{:x}", rng.u16(2..)), from)));
        }
        w.poll(ms(t));
        sent(&mut peer);
        let now = w.core.ahs[ah].template.route().dst_mac;
        moves += u32::from(now != mac);
        mac = now;
    }
    assert!((1..=4).contains(&moves), "{moves} times in three seconds");
    assert_eq!(w.core.ahs[fixed].template.route().dst_mac, PEER);
    let mut known: Vec<_> = w.neighbours(0).map(|n| (n.ip.to_string(), n.state == State::Static)).collect();
    known.sort();
    assert_eq!(known, [("10.0.0.7".to_owned(), true), ("10.0.0.9".to_owned(), false)]);
    let counters = w.counters(0).unwrap();
    assert_eq!(counters.accounted(), counters.rx_packets);
    assert_eq!(counters.neighbour, 8 * 2_999);
}

#[test]
fn questions_to_an_address_are_answered_whoever_asks_and_change_what_is_known() {
    let (mut w, mut peer, ah) = one();
    w.poll(ms(0));
    assert_eq!(arp_requests(&sent(&mut peer)).len(), 1);
    let ask = arp::Packet::request(PEER, Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
    let link = frames::Link { src: PEER, dst: MacAddr::BROADCAST, vlans: VlanStack::EMPTY };
    let mut bytes = [0; 64];
    let n = frames::arp(&link, &ask, &mut bytes).unwrap();
    hear(&mut w, &mut peer, &bytes[..n], ms(1));
    assert_eq!(w.ah_state(ah), Some(AhState::Ready), "who asks has an address too");
    assert_eq!(sent(&mut peer).len(), 1, "and gets an answer");
}

#[test]
fn a_sender_at_full_rate_still_answers_and_asks() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig { ring: 1, ..MemoryConfig::default() });
    let config = PortConfig { addrs: vec![on("10.0.0.1/24")], ..PortConfig::new(v4(1)) };
    let mut w = W::new(&WorkerConfig::default(), vec![(io, config)]).unwrap();
    let ah = w.create_ah(&AhConfig::new("10.0.0.9".parse().unwrap()), at(0)).unwrap();
    let (qp, wr) = sender(&mut w, ah);
    let answer = reply(&mut w, PEER);
    hear(&mut w, &mut peer, &answer, at(1));
    while peer.take().is_some() {
        w.poll(at(2));
    }
    // As fast as the port takes them, which is one a round.
    let saturate = |w: &mut W| {
        let mut refusal = None;
        while refusal.is_none() {
            refusal = w.post_send(qp, &wr, &[0; 64]).err();
        }
        assert_eq!(refusal, Some(PostError::PortBusy));
    };
    let question = arp::Packet::request(PEER, "10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
    let link = frames::Link { src: PEER, dst: MacAddr::BROADCAST, vlans: VlanStack::EMPTY };
    let mut bytes = [0; 64];
    let n = frames::arp(&link, &question, &mut bytes).unwrap();
    let (mut replies, mut probes) = (0, 0);
    for time in (3..120_000).step_by(10) {
        saturate(&mut w);
        if time % 1000 == 3 {
            assert!(peer.inject(&bytes[..n]));
        }
        w.poll(ms(time));
        let Some(frame) = peer.take() else { continue };
        if let Ok(Frame::Arp(_, packet)) = frame::parse(&frame) {
            match packet.operation {
                arp::Operation::Reply => replies += 1,
                arp::Operation::Request => {
                    probes += 1;
                    assert!(peer.inject(&answer));
                }
            }
        }
    }
    assert_eq!(w.counters(0).unwrap().dropped(DropReason::Local(LocalDrop::NoReplyRoom)), 0);
    assert!(replies > 110, "{replies} answers to 120 questions");
    assert!(probes > 0, "the peer's own address was never confirmed");
}
