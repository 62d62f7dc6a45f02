//! The worker and its network: addresses, neighbours, echo, and frames that are broken or hostile.

use super::neighbours::hear;
use super::*;
use crate::io::{PacketBuf, PacketBurst};
use roce_proto::wire::frame::Verified;

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

/// A multicast listener report (MLDv2), as Linux sends it when an interface comes up; and the same to one host.
#[test]
fn reports_to_routers_are_ignored_and_extension_headers_to_us_dropped() {
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w = W::new(&WorkerConfig::default(), vec![(io, PortConfig::new(v6(1)))]).unwrap();
    let mut report = vec![0x33, 0x33, 0, 0, 0, 0x16, 0x52, 0x54, 0, 0, 0, 9, 0x86, 0xdd];
    report.extend([0x60, 0, 0, 0, 0, 36, 0, 1]);
    report.extend("fe80::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
    report.extend("ff02::16".parse::<std::net::Ipv6Addr>().unwrap().octets());
    report.extend([58, 0, 5, 2, 0, 0, 1, 0]);
    report.extend([0x8f; 28]);
    hear(&mut w, &mut peer, &report, at(0));
    let counts = |w: &W| {
        let c = w.counters(0).unwrap();
        (c.ignored, c.dropped_total(), c.rx_packets)
    };
    assert_eq!(counts(&w), (1, 0, 1));
    report[..6].copy_from_slice(&w.port_info(0).unwrap().mac.0);
    hear(&mut w, &mut peer, &report, at(1));
    assert_eq!(counts(&w), (1, 1, 2));
    assert_eq!(w.counters(0).unwrap().accounted(), 2);
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
    assert!(frames.iter().all(|f| matches!(frame::parse(f), Ok(Frame::Arp(..)))));
    assert_eq!(super::routes::arp_requests(&frames).len(), 3, "at 0, 1 and 2 s");
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
    let request = super::routes::sent(&mut peer).pop().unwrap();
    let Ok(Frame::Arp(_, request)) = frame::parse(&request) else { panic!() };
    for (s, mac) in [(0, MacAddr([2, 0, 0, 0, 0, 9])), (2, MacAddr([2, 0, 0, 0, 0, 10]))] {
        let link = roce_proto::wire::control::Link {
            src: mac,
            dst: request.sender_mac,
            vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
        };
        let mut bytes = [0; 64];
        let n = roce_proto::wire::control::arp(&link, &request.reply(mac), &mut bytes).unwrap();
        assert!(peer.inject(&bytes[..n]));
        w.poll(at(s * 1_000_000 + 10));
        assert_eq!(w.ah_state(ah), Some(AhState::Ready));
        assert_eq!(w.core.ahs[ah].template.route().dst_mac, mac);
    }
    assert_eq!(w.counters(0).unwrap().neighbour, 2);
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

/// The port's word stands for the checksum, and for nothing else.
#[test]
fn what_the_port_has_verified_is_not_verified_again() {
    let mut net = Net::default();
    let mut frame = good_frame(&mut net, b"x");
    // The IPv4 header's checksum, which the ICRC leaves out.
    frame[24] ^= 0xff;
    for (verified, delivered) in [
        (Verified::default(), false),
        (Verified { ip: false, udp: true }, false),
        (Verified { ip: true, udp: false }, true),
    ] {
        net.post_recv(0, 100);
        assert!(net.a.io_mut(0).unwrap().inject_verified(&frame, verified));
        net.b.poll(at(0));
        assert_eq!(net.received().is_some(), delivered, "{verified:?}");
    }
    let sum = Reject::Ipv4Checksum { found: 0 }.reason();
    assert_eq!(net.b.counters(0).unwrap().dropped(DropReason::Wire(sum)), 2);
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

#[test]
fn pings_of_our_own_come_back_whole() {
    let mut net = Net::default();
    let mtu = usize::from(net.a.port_info(0).unwrap().mtu);
    for (dst, header) in [(v4(2), 20), (v6(2), 40)] {
        let ah = net.a.create_ah(&AhConfig::new(dst), at(net.now)).unwrap();
        assert_eq!(net.a.send_echo(ah, 1, 1, 100), Err(EchoError::Unresolved));
        net.rounds(20);
        assert_eq!(net.a.ah_state(ah), Some(AhState::Ready));
        let min = header + 8;
        for len in [min - 1, mtu + 1] {
            assert_eq!(net.a.send_echo(ah, 1, 1, len), Err(EchoError::Length { len, min, max: mtu }));
        }
        for (sequence, len) in [(7, min), (8, 99), (0xffff, mtu)] {
            let before = [net.a.counters(0).unwrap().echo, net.b.counters(0).unwrap().echo];
            net.a.send_echo(ah, 0x1234, sequence, len).unwrap();
            net.rounds(4);
            assert_eq!(net.a.echo_reply(0), Some(EchoReply { from: dst, sequence, len }));
            assert_eq!(net.a.echo_reply(0), None, "it was taken");
            let after = [net.a.counters(0).unwrap().echo, net.b.counters(0).unwrap().echo];
            assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1]);
        }
        // An answer that comes after another question was asked is nobody's any more.
        net.a.send_echo(ah, 1, 1, 100).unwrap();
        net.a.send_echo(ah, 2, 2, 100).unwrap();
        let ignored = net.a.counters(0).unwrap().ignored;
        net.rounds(4);
        assert_eq!(net.a.echo_reply(0).map(|reply| reply.sequence), Some(2));
        assert_eq!(net.a.counters(0).unwrap().ignored, ignored + 1);
    }
    net.assert_reconciled();
}

/// N queue pairs are N flows to whatever spreads packets by UDP ports: queues of a port, links of a network.
#[test]
fn each_queue_pair_has_a_source_port_of_its_own_unless_one_was_asked_for() {
    const FLOWS: usize = 64;
    let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
    let mut w = worker(io, 1);
    for dst in [v4(2), v6(2)] {
        w.add_neighbour(0, dst, MacAddr([2, 0, 0, 0, 0, 9])).unwrap();
        let own = w.create_ah(&AhConfig::new(dst), at(0)).unwrap();
        let asked = w.create_ah(&AhConfig { src_port: Some(0xABCD), ..AhConfig::new(dst) }, at(0)).unwrap();
        let mut ports = std::collections::HashMap::new();
        for _ in 0..FLOWS {
            let cq = w.create_cq(8);
            let qp = w.create_qp(&QpConfig::new(cq)).unwrap();
            // Twice by each handle, in turns: what one has sent must not show in what the other sends.
            for ah in [own, asked, own, asked] {
                let dst_qpn = Qpn::new(2).unwrap();
                let wr = SendWr {
                    wr_id: 0,
                    ah,
                    dst_qpn,
                    qkey: QKEY,
                    imm: None,
                    solicited: false,
                    signaled: false,
                };
                w.post_send(qp, &wr, b"x").unwrap();
                w.poll(at(0));
                let mut burst = Default::default();
                while peer.rx_burst(&mut burst, 8) > 0 {}
                let mut seen = Vec::new();
                for i in 0..burst.len() {
                    if let Ok(Frame::Roce(packet)) = frame::parse(burst.get(i).unwrap().contiguous().unwrap())
                    {
                        seen.push(packet.src_port());
                    }
                }
                burst.clear();
                let [port] = seen[..] else { panic!("{seen:?}") };
                if ah == asked {
                    assert_eq!(port, 0xABCD);
                } else {
                    assert!(port >= 0xC000, "{port:#x}");
                    *ports.entry(port).or_insert(0) += 1;
                }
            }
        }
        assert_eq!((ports.len(), ports.values().all(|&n| n == 2)), (FLOWS, true), "{dst}: {ports:?}");
    }
}

#[test]
fn a_queue_pair_receives_and_sends_on_its_own_port_only() {
    let (a, mut first) = MemoryPort::pair(&MemoryConfig::default());
    let (b, mut second) = MemoryPort::pair(&MemoryConfig::default());
    let ports = vec![(a, PortConfig::new(v4(1))), (b, PortConfig::new(v4(3)))];
    let mut w = W::new(&WorkerConfig::default(), ports).unwrap();
    let cq = w.create_cq(16);
    let qp = w.create_qp(&QpConfig { qpn: Qpn::new(0x77), ..QpConfig::new(cq) }).unwrap();
    w.post_recv(qp, RecvWr { wr_id: 1, buf: vec![0; 100] }).map_err(|(e, _)| e).unwrap();
    let frame = |w: &W, port: usize| {
        let own = [1, 3][port];
        let route = roce_proto::wire::ud::Route {
            src_mac: MacAddr([2, 0, 0, 0, 0, 9]),
            dst_mac: w.port_info(port).unwrap().mac,
            vlan: None,
            ip: roce_proto::wire::ud::IpRoute::V4 {
                src: Ipv4Addr::new(192, 0, 2, 9),
                dst: Ipv4Addr::new(192, 0, 2, own),
                ident: 0,
            },
            dscp: 0,
            ecn: 0,
            hop_limit: 64,
            src_port: 0xC000,
        };
        let send = Send {
            dst_qpn: Qpn::new(0x77).unwrap(),
            src_qpn: Qpn::new(0x99).unwrap(),
            qkey: QKEY,
            pkey: PKey::DEFAULT,
            psn: Psn::default(),
            imm: None,
            solicited: false,
        };
        let template = roce_proto::wire::ud::Template::new(&route);
        let mut frame = vec![0; template.frame_len(false, 4)];
        template.emit(&send, 4, &mut frame).unwrap();
        frame
    };
    assert!(second.inject(&frame(&w, 1)));
    w.poll(at(1));
    assert!(w.cq(cq).unwrap().is_empty());
    let unknown = DropReason::Local(LocalDrop::UnknownQpn);
    assert_eq!([0, 1].map(|port| w.counters(port).unwrap().dropped(unknown)), [0, 1]);
    assert!(first.inject(&frame(&w, 0)));
    w.poll(at(2));
    assert_eq!(w.cq(cq).unwrap().pop().unwrap().wr_id, 1);
    // Nor does it send through a handle of the other port.
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
    let ah = w.create_ah(&AhConfig { port: 1, dst_mac: mac, ..AhConfig::new(v4(9)) }, at(3)).unwrap();
    let dst_qpn = Qpn::new(0x99).unwrap();
    let wr = SendWr { wr_id: 0, ah, dst_qpn, qkey: QKEY, imm: None, solicited: false, signaled: false };
    assert_eq!(w.post_send(qp, &wr, b"x"), Err(PostError::NoAh));
}
