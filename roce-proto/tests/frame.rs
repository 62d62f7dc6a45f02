//! Whole frames: what is taken, what is somebody else's, what is refused and why.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::{build, datagram, fix_ipv4_checksum, icrc_naive, l3_offset, roce, route};
use roce_proto::types::Qpn;
use roce_proto::wire::checksum::Sum;
use roce_proto::wire::ethernet::{EtherType, MacAddr, VlanStack, VlanTag};
use roce_proto::wire::frame::{self, Frame, Other, Verified};
use roce_proto::wire::opcode::Opcode;
use roce_proto::wire::ud::{Route, Template, overhead, pad};
use roce_proto::wire::{EmitError, Reject, control, icmp, icmpv6};

fn refusal(frame: &[u8]) -> Reject {
    frame::parse(frame).expect_err("refused")
}

fn other(frame: &[u8]) -> Other {
    match frame::parse(frame) {
        Ok(Frame::Other(other)) => other,
        found => panic!("{found:?}"),
    }
}

/// Inserts tags after the addresses of an untagged frame.
fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&frame[..12], &tags.concat(), &frame[12..]].concat()
}

/// Puts the right ICRC at the end of a frame.
fn fix_icrc(frame: &mut [u8]) {
    let end = frame.len() - 4;
    let icrc = icrc_naive(&frame[l3_offset(frame)..end]);
    frame[end..].copy_from_slice(&icrc.to_le_bytes());
}

/// Where the BTH of an untagged frame starts.
fn bth_at(ipv6: bool) -> usize {
    if ipv6 { 62 } else { 42 }
}

#[test]
fn what_is_built_is_what_is_parsed() {
    for ipv6 in [false, true] {
        for imm in [None, Some(0x0102_0304)] {
            let frame = build(&route(ipv6), &datagram(imm), b"hello");
            let packet = roce(&frame);
            assert!(packet.icrc_ok());
            assert_eq!(packet.link.src(), MacAddr([0x52, 0x54, 0, 0, 0, 1]));
            assert_eq!(packet.link.dst(), MacAddr([0x52, 0x54, 0, 0, 0, 2]));
            assert_eq!((packet.link.vlans(), packet.link.l3_offset()), (VlanStack::EMPTY, 14));
            let (src, dst): (IpAddr, IpAddr) = if ipv6 {
                ("fd77::1".parse().expect("address"), "fd77::2".parse().expect("address"))
            } else {
                ([10, 77, 0, 1].into(), [10, 77, 0, 2].into())
            };
            assert_eq!((packet.ip.src(), packet.ip.dst()), (src, dst));
            assert_eq!((packet.ip.dscp(), packet.ip.ecn(), packet.ip.hop_limit()), (26, 2, 64));
            assert_eq!((packet.src_port(), packet.udp_checksum()), (0xc123, 0));
            let opcode = if imm.is_some() { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
            assert_eq!((packet.bth().opcode, packet.bth().pad), (opcode, 3));
            let ud = packet.ud().expect("UD");
            assert_eq!((ud.imm, ud.payload), (imm, &b"hello"[..]));
            assert_eq!(ud.deth.src_qpn, Qpn::new(0x12).expect("24 bits"));
            assert_eq!(packet.ip_len(), overhead(ipv6, imm.is_some()) + 5 + 3);
            assert_eq!(frame.len(), 14 + packet.ip_len());
        }
    }
}

/// Payload lengths ≡ 0…3 mod 4: the pad count is right, the ICRC comes after the pad, the pad is never delivered.
#[test]
fn pad_fills_up_to_four_and_is_not_delivered() {
    for ipv6 in [false, true] {
        for len in 0..=9 {
            let payload = vec![0xff; len];
            let frame = build(&route(ipv6), &datagram(None), &payload);
            let packet = roce(&frame);
            let want = [0, 3, 2, 1][len % 4];
            assert_eq!((pad(len), usize::from(packet.bth().pad)), (want, want));
            assert_eq!(packet.padding(), &[0; 3][..want]);
            assert_eq!(packet.ud().expect("UD").payload, payload);
            let end = bth_at(ipv6) + 20 + len + want;
            assert_eq!(frame.len(), end + 4);
            assert_eq!(frame[end..], icrc_naive(&frame[14..end]).to_le_bytes());
        }
    }
}

/// IP and UDP lengths include the ICRC; what is delivered does not.
#[test]
fn lengths_count_the_icrc() {
    let v4 = build(&route(false), &datagram(None), &[1; 100]);
    let be16 = |frame: &[u8], at| u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!(be16(&v4, 16), 20 + 8 + 12 + 8 + 100 + 4, "IPv4 total length");
    assert_eq!(be16(&v4, 38), 8 + 12 + 8 + 100 + 4, "UDP length");
    assert_eq!(roce(&v4).ud().expect("UD").payload.len(), 100);
    let v6 = build(&route(true), &datagram(Some(1)), &[1; 101]);
    assert_eq!(be16(&v6, 18), 8 + 12 + 8 + 4 + 101 + 3 + 4, "IPv6 payload length");
    assert_eq!(be16(&v6, 58), be16(&v6, 18), "UDP length");
    assert_eq!(roce(&v6).ud().expect("UD").payload.len(), 101);
    // The link MTUs that 4096 bytes of payload need.
    assert_eq!([overhead(false, false), overhead(false, true)].map(|o| o + 4096), [4148, 4152]);
    assert_eq!([overhead(true, false), overhead(true, true)].map(|o| o + 4096), [4168, 4172]);
}

/// 802.1Q and QinQ parse, the builder tags, and the ICRC does not notice.
#[test]
fn vlan_tags_leave_the_icrc_alone() {
    for ipv6 in [false, true] {
        let plain = build(&route(ipv6), &datagram(None), &[7; 64]);
        let tag = VlanTag::new(EtherType::VLAN, 3, false, 100).expect("in range");
        let one = build(&Route { vlan: Some(tag), ..route(ipv6) }, &datagram(None), &[7; 64]);
        assert_eq!(one, tagged(&plain, &[tag.to_bytes()]));
        assert_eq!(roce(&one).link.vlans(), VlanStack::single(Some(tag)));
        let two = tagged(&plain, &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]]);
        let packet = roce(&two);
        let vids: Vec<_> = packet.link.vlans().iter().map(VlanTag::vid).collect();
        assert_eq!((vids, packet.link.l3_offset()), (vec![5, 6], 22));
        for frame in [&one, &two] {
            assert!(roce(frame).icrc_ok());
            assert_eq!(roce(frame).icrc(), roce(&plain).icrc());
        }
        let three = tagged(&two, &[[0x91, 0, 0, 4]]);
        assert_eq!(refusal(&three), Reject::VlanDepth);
    }
}

#[test]
fn udp_checksum_is_verified_when_there_is_one() {
    for ipv6 in [false, true] {
        let mut frame = build(&route(ipv6), &datagram(None), &[9; 33]);
        let udp = bth_at(ipv6) - 8;
        let len = (frame.len() - udp) as u16;
        let pseudo = match roce(&frame).ip {
            frame::Ip::V4(h) => Sum::new().bytes(&h[12..]),
            frame::Ip::V6(h) => Sum::new().bytes(&h[8..]),
        };
        // The ICRC reads the checksum as ones, so it is computed first.
        let checksum = pseudo.word(17).word(len).bytes(&frame[udp..]).checksum();
        frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        let packet = roce(&frame);
        assert_eq!((packet.udp_checksum(), packet.icrc_ok()), (checksum, true));
        frame[udp + 7] ^= 1;
        let found = checksum ^ 1;
        assert_eq!(refusal(&frame), Reject::UdpChecksum { found });
    }
}

/// By a NIC, for instance. Everything else is looked at as ever.
#[test]
fn a_checksum_that_was_verified_is_not_looked_at() {
    let parse = |frame: &[u8], ip, udp| frame::parse_verified(frame, Verified { ip, udp }).map(|_| ());
    let good = build(&route(false), &datagram(None), &[9; 33]);
    let mut wrong = good.clone();
    wrong[24] ^= 0xff;
    assert!(matches!(parse(&wrong, false, true), Err(Reject::Ipv4Checksum { .. })));
    assert_eq!(parse(&wrong, true, false), Ok(()));
    wrong[20] = 0x60;
    assert_eq!(parse(&wrong, true, true), Err(Reject::Ipv4Fragment { offset: 0, more: true }));
    for ipv6 in [false, true] {
        let mut wrong = build(&route(ipv6), &datagram(None), &[9; 33]);
        wrong[bth_at(ipv6) - 1] = 1;
        assert_eq!(parse(&wrong, true, false), Err(Reject::UdpChecksum { found: 1 }));
        assert_eq!(parse(&wrong, false, true), Ok(()));
        wrong[bth_at(ipv6) - 3] ^= 1;
        assert!(matches!(parse(&wrong, true, true), Err(Reject::UdpLength { .. })));
    }
}

#[test]
fn congestion_bits_are_seen_and_do_not_break_the_icrc() {
    for ipv6 in [false, true] {
        let mut frame = build(&route(ipv6), &datagram(None), &[1; 8]);
        frame[bth_at(ipv6) + 4] = 0xff;
        let packet = roce(&frame);
        assert!(packet.bth().fecn && packet.bth().becn && packet.icrc_ok());
        assert_eq!(packet.bth().dst_qpn.get(), 0x11);
    }
}

#[test]
fn a_wrong_icrc_is_parsed_and_told() {
    let mut frame = build(&route(false), &datagram(None), &[1; 8]);
    let at = frame.len() - 5;
    frame[at] ^= 0x10;
    let packet = roce(&frame);
    assert!(!packet.icrc_ok());
    assert_eq!(packet.icrc_expected(), icrc_naive(&frame[14..frame.len() - 4]));
    assert_eq!(packet.ud().expect("UD").payload[7], 0x11);
}

#[test]
fn broken_transport_headers_have_their_reasons() {
    for ipv6 in [false, true] {
        let bth = bth_at(ipv6);
        let good = build(&route(ipv6), &datagram(None), &[]);
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            frame
        };
        assert_eq!(refusal(&with(bth + 1, 0x05)), Reject::BthVersion { version: 5 });
        // Eight bytes stand between BTH and ICRC, of which a pad may take three; then the DETH is short.
        let padded = with(bth + 1, 0x30);
        assert_eq!(roce(&padded).ud(), Err(Reject::ExtensionLength { have: 5, need: 8 }));
        assert_eq!(roce(&with(bth, 0x04)).ud(), Err(Reject::Opcode { opcode: 4 }));
        assert_eq!(roce(&with(bth, 0x65)).ud(), Err(Reject::ExtensionLength { have: 8, need: 12 }));

        // Shorter packets with lengths that agree: cut to `len` bytes of UDP payload.
        let cut = |len: usize, flags: u8| {
            let mut frame = good[..bth + len].to_vec();
            frame[bth + 1] = flags;
            let udp = (8 + len) as u16;
            frame[bth - 4..bth - 2].copy_from_slice(&udp.to_be_bytes());
            if ipv6 {
                frame[18..20].copy_from_slice(&udp.to_be_bytes());
            } else {
                frame[16..18].copy_from_slice(&(udp + 20).to_be_bytes());
                fix_ipv4_checksum(&mut frame);
            }
            frame
        };
        assert_eq!(refusal(&cut(15, 0)), Reject::RoceLength { have: 15, need: 16 });
        assert_eq!(refusal(&cut(4, 0)), Reject::RoceLength { have: 4, need: 16 });
        assert_eq!(refusal(&cut(17, 0)), Reject::RoceAlignment { have: 17 });
        assert_eq!(refusal(&cut(16, 0x10)), Reject::PadCount { pad: 1, have: 0 });
        let bare = cut(16, 0);
        assert_eq!(
            (roce(&bare).body(), roce(&bare).ud()),
            (&[][..], Err(Reject::ExtensionLength { have: 0, need: 8 }))
        );

        // A UDP length that says something else than the IP header.
        for wrong in [31u16, 33, 7, 0] {
            let mut frame = good.clone();
            frame[bth - 4..bth - 2].copy_from_slice(&wrong.to_be_bytes());
            assert_eq!(refusal(&frame), Reject::UdpLength { len: wrong, have: 32 });
        }
    }
}

#[test]
fn connected_services_parse_with_their_extension_headers() {
    // An RDMA WRITE only, made of a UD packet of the same length.
    let mut frame = build(&route(true), &datagram(None), &[0; 32]);
    let bth = bth_at(true);
    frame[bth] = 0x0a;
    frame[bth + 12..bth + 28].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 5, 0, 0, 0, 24]);
    fix_icrc(&mut frame);
    let packet = roce(&frame);
    assert!(packet.icrc_ok());
    let (extensions, payload) = packet.extensions().expect("long enough");
    let reth = extensions.reth.expect("RDMA");
    assert_eq!((reth.address, reth.rkey, reth.len, payload.len()), (0x1000, 5, 24, 24));
}

#[test]
fn ip_refusals_reach_the_caller() {
    let v4 = build(&route(false), &datagram(None), &[0; 64]);
    let with = |at: usize, value: u8| {
        let mut frame = v4.clone();
        frame[at] = value;
        fix_ipv4_checksum(&mut frame);
        frame
    };
    assert_eq!(refusal(&with(14, 0x46)), Reject::Ipv4Options { words: 6 });
    assert_eq!(refusal(&with(20, 0x60)), Reject::Ipv4Fragment { offset: 0, more: true });
    assert_eq!(refusal(&with(21, 0x01)), Reject::Ipv4Fragment { offset: 8, more: false });
    let mut checksum = v4.clone();
    checksum[24] ^= 0xff;
    assert!(matches!(refusal(&checksum), Reject::Ipv4Checksum { .. }));
    let mut v6 = build(&route(true), &datagram(None), &[0; 64]);
    v6[20] = 44;
    assert_eq!(refusal(&v6), Reject::Ipv6Extension { next_header: 44 });
    let mut confused = v4.clone();
    confused[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(refusal(&confused), Reject::IpVersion { version: 4 });
}

#[test]
fn other_protocols_are_told_apart() {
    let v4 = build(&route(false), &datagram(None), &[0; 64]);
    let v6 = build(&route(true), &datagram(None), &[0; 64]);
    let mut lldp = v4.clone();
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(other(&lldp), Other::EtherType(EtherType(0x88cc)));
    let mut llc = v4.clone();
    llc[12..14].copy_from_slice(&[0, 0x26]);
    assert_eq!(other(&llc), Other::EtherType(EtherType(0x26)));
    let mut tcp = v4.clone();
    tcp[23] = 6;
    fix_ipv4_checksum(&mut tcp);
    assert_eq!(other(&tcp), Other::Ipv4Protocol(6));
    let mut tcp = v6.clone();
    tcp[20] = 6;
    assert_eq!(other(&tcp), Other::Ipv6NextHeader(6));
    for (mut dns, at) in [(v4, 36), (v6, 56)] {
        dns[at..at + 2].copy_from_slice(&53u16.to_be_bytes());
        assert_eq!(other(&dns), Other::UdpPort(53));
    }
}

#[test]
fn echo_is_answered_within_frames() {
    let link = control::Link { src: MacAddr([2; 6]), dst: MacAddr([4; 6]), vlans: VlanStack::EMPTY };
    let echo = icmp::Echo { is_reply: false, ident: 1, sequence: 2, data: &[3; 5] };
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut buffer = [0xaa; 100];
    let len = control::icmp_echo(&link, a, b, &echo, &mut buffer).expect("fits");
    assert_eq!(len, 14 + 20 + 8 + 5);
    // Ethernet pads to 60 bytes; the padding is no data.
    let Ok(Frame::Icmp4(got)) = frame::parse(&buffer[..60]) else { panic!("ICMP") };
    assert_eq!((got.src, got.dst, got.echo, got.link.src()), (a, b, echo, MacAddr([2; 6])));
    buffer[len - 1] ^= 1;
    assert!(matches!(refusal(&buffer[..len]), Reject::IcmpChecksum { .. }));

    let (a, b): (Ipv6Addr, Ipv6Addr) =
        ("fe80::1".parse().expect("address"), "fe80::2".parse().expect("address"));
    let tagged = control::Link { vlans: VlanStack::single(VlanTag::dot1q(9)), ..link };
    let len = control::icmpv6(&tagged, a, b, &icmpv6::Message::Echo(echo), &mut buffer).expect("fits");
    assert_eq!(len, 18 + 40 + 8 + 5);
    let Ok(Frame::Icmp6(got)) = frame::parse(&buffer[..len]) else { panic!("ICMPv6") };
    assert_eq!((got.src, got.dst, got.message), (a, b, icmpv6::Message::Echo(echo)));
    let short = control::icmpv6(&tagged, a, b, &icmpv6::Message::Echo(echo), &mut buffer[..len - 1]);
    assert_eq!(short, Err(EmitError::BufferLength { have: len - 1, need: len }));
    // Types that nobody answers here.
    buffer[18 + 40] = 133;
    let sum = Sum::new().bytes(&buffer[26..58]).word(58).word(13);
    buffer[60..62].fill(0);
    let checksum = sum.bytes(&buffer[58..len]).checksum();
    buffer[60..62].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(other(&buffer[..len]), Other::Icmpv6Type(133));
}

#[test]
fn neighbour_discovery_that_crossed_a_router_is_refused() {
    let link = control::Link { src: MacAddr([2; 6]), dst: MacAddr([4; 6]), vlans: VlanStack::EMPTY };
    let (a, b): (Ipv6Addr, Ipv6Addr) =
        ("fe80::1".parse().expect("address"), "fe80::2".parse().expect("address"));
    let ask = icmpv6::Message::Solicitation(icmpv6::Solicitation { target: b, source_mac: Some(link.src) });
    let mut buffer = [0; 86];
    let len = control::icmpv6(&link, a, icmpv6::solicited_node(b), &ask, &mut buffer).expect("fits");
    assert_eq!(len, 86);
    let Ok(Frame::Icmp6(got)) = frame::parse(&buffer) else { panic!("ICMPv6") };
    assert_eq!(got.message, ask);
    buffer[21] = 254;
    assert_eq!(refusal(&buffer), Reject::NdHopLimit { hop_limit: 254 });
}

#[test]
fn builder_refuses_wrong_lengths() {
    for ipv6 in [false, true] {
        let template = Template::new(&route(ipv6));
        let need = template.frame_len(false, 10);
        for have in [0, need - 1, need + 1] {
            let mut frame = vec![0; have];
            let refused = template.emit(&datagram(None), 10, &mut frame);
            assert_eq!(refused, Err(EmitError::BufferLength { have, need }));
            assert!(frame.iter().all(|&b| b == 0), "nothing is written");
        }
        for imm in [None, Some(1)] {
            let max = template.max_payload(imm.is_some());
            let largest = build(&route(ipv6), &datagram(imm), &vec![0x55; max]);
            let packet = roce(&largest);
            assert!(packet.icrc_ok() && packet.ud().expect("UD").payload.len() == max);
            let mut frame = vec![0; template.frame_len(imm.is_some(), max + 1)];
            let refused = template.emit(&datagram(imm), max + 1, &mut frame);
            assert_eq!(refused, Err(EmitError::PayloadTooLong { len: max + 1, max }));
        }
    }
}
