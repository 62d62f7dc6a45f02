//! Properties that hold for all values: every header survives the way to bytes and back, and the ICRC covers exactly
//! what the standard says.

mod common;
#[path = "common/reverse.rs"]
mod reverse;

use std::net::{Ipv4Addr, Ipv6Addr};

use common::{build, icrc_naive, l3_offset, roce};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use reverse::reverse;
use roce_proto::types::{PKey, Psn, QKey, Qpn};
use roce_proto::wire::aeth::Aeth;
use roce_proto::wire::atomiceth::{AtomicAckEth, AtomicEth};
use roce_proto::wire::checksum::Sum;
use roce_proto::wire::deth::Deth;
use roce_proto::wire::ethernet::{self, EtherType, MacAddr, VlanStack, VlanTag};
use roce_proto::wire::ext::{Feth, Rdeth, Xrceth};
use roce_proto::wire::grh::Grh;
use roce_proto::wire::ieth::Ieth;
use roce_proto::wire::immdt::ImmDt;
use roce_proto::wire::opcode::Opcode;
use roce_proto::wire::reth::Reth;
use roce_proto::wire::ud::{IpRoute, Route, Send, Template};
use roce_proto::wire::{arp, bth, icmp, icmpv6, icrc, ipv4, ipv6, udp};

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn vlan() -> impl Strategy<Value = VlanTag> {
    let tpid = prop_oneof![Just(EtherType::VLAN), Just(EtherType::QINQ), Just(EtherType::QINQ_OLD)];
    (tpid, 0..8u8, any::<bool>(), 0..4096u16)
        .prop_map(|(tpid, pcp, dei, vid)| VlanTag::new(tpid, pcp, dei, vid).expect("in range"))
}

/// Queue pair numbers over the whole 24 bits, with the large ones well represented.
fn qpn() -> impl Strategy<Value = Qpn> {
    prop_oneof![0..=0xff_ffffu32, 0x1_0000..=0xff_fffeu32].prop_map(|n| Qpn::new(n).expect("24 bits"))
}

/// Sequence numbers, many near the wrap.
fn psn() -> impl Strategy<Value = Psn> {
    prop_oneof![0..=0xff_ffffu32, 0xff_fff0..=0xff_ffffu32, 0..16u32]
        .prop_map(|n| Psn::new(n).expect("24 bits"))
}

fn ip_route() -> impl Strategy<Value = IpRoute> {
    prop_oneof![
        (any::<Ipv4Addr>(), any::<Ipv4Addr>(), any::<u16>()).prop_map(|(src, dst, ident)| IpRoute::V4 {
            src,
            dst,
            ident
        }),
        (any::<Ipv6Addr>(), any::<Ipv6Addr>(), 0..=0xf_ffffu32)
            .prop_map(|(src, dst, flow_label)| IpRoute::V6 { src, dst, flow_label }),
    ]
}

prop_compose! {
    fn route()(
        src_mac in mac(), dst_mac in mac(), vlan in option::of(vlan()), ip in ip_route(),
        dscp in 0..64u8, ecn in 0..4u8, hop_limit: u8, src_port: u16,
    ) -> Route {
        Route { src_mac, dst_mac, vlan, ip, dscp, ecn, hop_limit, src_port }
    }
}

prop_compose! {
    fn send()(
        dst_qpn in qpn(), src_qpn in qpn(), qkey: u32, pkey: u16, psn in psn(), imm: Option<u32>, solicited: bool,
    ) -> Send {
        Send { dst_qpn, src_qpn, qkey: QKey(qkey), pkey: PKey(pkey), psn, imm, solicited }
    }
}

prop_compose! {
    fn bth_header()(
        opcode: u8, solicited: bool, migrated: bool, pad in 0..4u8, version in 0..16u8, pkey: u16,
        congestion: (bool, bool), dst_qpn in qpn(), ack_request: bool, psn in psn(),
    ) -> bth::Header {
        let (fecn, becn) = congestion;
        let (opcode, pkey) = (Opcode(opcode), PKey(pkey));
        bth::Header { opcode, solicited, migrated, pad, version, pkey, fecn, becn, dst_qpn, ack_request, psn }
    }
}

/// Emits into a longer buffer, checks that only `LEN` bytes changed, and parses them.
macro_rules! round_trip {
    ($value:expr, $ty:ty) => {{
        let value: $ty = $value;
        let mut buffer = [0xeeu8; <$ty>::LEN + 3];
        value.emit(&mut buffer).expect("fits");
        prop_assert_eq!(<$ty>::parse(&buffer), Ok(value));
        prop_assert_eq!(&buffer[<$ty>::LEN..], &[0xee; 3][..]);
        prop_assert!(value.emit(&mut buffer[..<$ty>::LEN - 1]).is_err());
        prop_assert!(<$ty>::parse(&buffer[..<$ty>::LEN - 1]).is_err());
    }};
}

proptest! {
    #[test]
    fn fixed_headers_round_trip(words: [u32; 4], quads: [u64; 3], bytes: [u8; 4], q in qpn(), b in bth_header()) {
        let [a, w, ..] = words;
        round_trip!(udp::Header {
            src_port: a as u16, dst_port: (a >> 16) as u16, len: w as u16, checksum: (w >> 16) as u16,
        }, udp::Header);
        round_trip!(b, bth::Header);
        round_trip!(Deth { qkey: QKey(a), src_qpn: q }, Deth);
        round_trip!(ImmDt(a), ImmDt);
        round_trip!(Ieth { rkey: a }, Ieth);
        round_trip!(Reth { address: quads[0], rkey: a, len: w }, Reth);
        round_trip!(AtomicEth { address: quads[0], rkey: a, swap_or_add: quads[1], compare: quads[2] }, AtomicEth);
        round_trip!(AtomicAckEth { original: quads[0] }, AtomicAckEth);
        round_trip!(Aeth { syndrome: bytes[0], msn: a & 0xff_ffff }, Aeth);
        round_trip!(Rdeth { context: a & 0xff_ffff }, Rdeth);
        round_trip!(Xrceth { srq: q }, Xrceth);
        round_trip!(Feth { placement: bytes[0] & 15, selectivity: bytes[1] & 3 }, Feth);
    }

    #[test]
    fn headers_without_reserved_bits_keep_every_byte(bytes: [u8; 28]) {
        let reth = Reth::parse(&bytes).expect("long enough");
        prop_assert_eq!(&reth.to_bytes()[..], &bytes[..16]);
        let atomic = AtomicEth::parse(&bytes).expect("long enough");
        prop_assert_eq!(&atomic.to_bytes()[..], &bytes[..]);
        let udp = udp::Header::parse(&bytes).expect("long enough");
        prop_assert_eq!(&udp.to_bytes()[..], &bytes[..8]);
        let aeth = Aeth::parse(&bytes).expect("long enough");
        prop_assert_eq!(&aeth.to_bytes()[..], &bytes[..4]);
        // Of the BTH, seven bits beside FECN/BECN and seven beside the acknowledge request are reserved.
        let mut want = bytes;
        want[4] &= 0xc0;
        want[8] &= 0x80;
        let bth = bth::Header::parse(&bytes).expect("long enough");
        prop_assert_eq!(&bth.to_bytes()[..], &want[..12]);
    }

    #[test]
    fn ethernet_round_trips(
        dst in mac(), src in mac(), tags in vec(vlan(), 0..3),
        ethertype in any::<u16>().prop_filter("no tag", |&t| !EtherType(t).is_tag()), rest in vec(any::<u8>(), 0..9),
    ) {
        let vlans = match tags[..] {
            [outer, inner] => VlanStack::double(outer, inner),
            _ => VlanStack::single(tags.first().copied()),
        };
        let header = ethernet::Header { dst, src, vlans, ethertype: EtherType(ethertype) };
        let mut frame = vec![0; header.len() + rest.len()];
        header.emit(&mut frame).expect("fits");
        prop_assert_eq!(header.len(), 14 + 4 * tags.len());
        prop_assert_eq!(ethernet::Header::parse(&frame), Ok(header));
        prop_assert!(ethernet::Header::parse(&frame[..header.len() - 1]).is_err());
        prop_assert_eq!(dst.to_string().parse(), Ok(dst));
    }

    #[test]
    fn ipv4_round_trips(
        src: Ipv4Addr, dst: Ipv4Addr, ident: u16, dont_fragment: bool, ttl: u8, protocol: u8,
        dscp in 0..64u8, ecn in 0..4u8, payload in 0..64u16,
    ) {
        let total_len = 20 + payload;
        let header = ipv4::Header { dscp, ecn, total_len, ident, dont_fragment, ttl, protocol, src, dst };
        let mut packet = vec![0; usize::from(total_len)];
        header.emit(&mut packet).expect("fits");
        prop_assert_eq!(ipv4::Header::parse(&packet), Ok(header));
        prop_assert!(Sum::new().bytes(&packet[..20]).is_valid());
        let mut area = [0; 40];
        Grh::V4(header).emit(&mut area);
        prop_assert_eq!(Grh::parse(&area), Ok(Grh::V4(header)));
    }

    #[test]
    fn any_changed_bit_of_an_ipv4_header_is_noticed(src: Ipv4Addr, dst: Ipv4Addr, bit in 0..160usize) {
        let header = ipv4::Header {
            dscp: 0, ecn: 0, total_len: 20, ident: 0, dont_fragment: true, ttl: 64, protocol: 17, src, dst,
        };
        let mut packet = header.to_bytes();
        packet[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(ipv4::Header::parse(&packet).is_err());
    }

    #[test]
    fn ipv6_round_trips(
        src: Ipv6Addr, dst: Ipv6Addr, flow_label in 0..=0xf_ffffu32, hop_limit: u8, dscp in 0..64u8, ecn in 0..4u8,
        payload_len in 0..64u16,
        next_header in any::<u8>().prop_filter("no extension", |&n| !ipv6::next_header::is_extension(n)),
    ) {
        let header = ipv6::Header { dscp, ecn, flow_label, payload_len, next_header, hop_limit, src, dst };
        let mut packet = vec![0; 40 + usize::from(payload_len)];
        header.emit(&mut packet).expect("fits");
        prop_assert_eq!(ipv6::Header::parse(&packet), Ok(header));
        let mut area = [0; 40];
        Grh::V6(header).emit(&mut area);
        prop_assert_eq!(Grh::parse(&area), Ok(Grh::V6(header)));
    }

    #[test]
    fn arp_round_trips(reply: bool, macs in (mac(), mac()), ips: (Ipv4Addr, Ipv4Addr)) {
        let operation = if reply { arp::Operation::Reply } else { arp::Operation::Request };
        let packet = arp::Packet {
            operation, sender_mac: macs.0, sender_ip: ips.0, target_mac: macs.1, target_ip: ips.1,
        };
        round_trip!(packet, arp::Packet);
        let answer = packet.reply(macs.1);
        prop_assert_eq!((answer.sender_ip, answer.target_ip), (ips.1, ips.0));
        prop_assert_eq!((answer.sender_mac, answer.target_mac), (macs.1, macs.0));
    }

    #[test]
    fn echo_round_trips(
        is_reply: bool, ident: u16, sequence: u16, data in vec(any::<u8>(), 0..70), src: Ipv6Addr, dst: Ipv6Addr,
    ) {
        let echo = icmp::Echo { is_reply, ident, sequence, data: &data };
        let mut bytes = vec![0xee; echo.len()];
        echo.emit(&mut bytes).expect("fits");
        prop_assert_eq!(icmp::Message::parse(&bytes), Ok(icmp::Message::Echo(echo)));
        let message = icmpv6::Message::Echo(echo);
        message.emit(src, dst, &mut bytes).expect("fits");
        prop_assert_eq!(icmpv6::Message::parse(&bytes, src, dst, 3), Ok(message));
    }

    #[test]
    fn neighbour_discovery_round_trips(
        flags: (bool, bool, bool), mac in option::of(mac()),
        target in any::<Ipv6Addr>().prop_filter("no group", |ip| !ip.is_multicast()),
        src in any::<Ipv6Addr>().prop_filter("an address", |ip| !ip.is_unspecified()),
    ) {
        let (router, solicited, override_cached) = flags;
        let messages = [
            icmpv6::Message::Solicitation(icmpv6::Solicitation { target, source_mac: mac }),
            icmpv6::Message::Advertisement(icmpv6::Advertisement {
                router, solicited, override_cached, target, target_mac: mac,
            }),
        ];
        for message in messages {
            let mut bytes = vec![0xee; message.len()];
            message.emit(src, target, &mut bytes).expect("fits");
            prop_assert_eq!(icmpv6::Message::parse(&bytes, src, target, 255), Ok(message));
        }
        let group = icmpv6::solicited_node(target).octets();
        prop_assert_eq!(&group[13..], &target.octets()[13..]);
    }

    #[test]
    fn checksums_equal_a_sum_by_16_bits(data in vec(any::<u8>(), 0..200), start: u16) {
        let mut sum = u64::from(start);
        for pair in data.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        prop_assert_eq!(u64::from(Sum::new().word(start).bytes(&data).fold()), sum);
    }

    #[test]
    fn sequence_numbers_are_a_circle(a in psn(), n in -0x80_0000..=0x7f_ffff_i32, b in psn()) {
        prop_assert_eq!(a.distance(a.add(n as u32)), n);
        prop_assert_eq!(a.next().get(), (a.get() + 1) % (1 << 24));
        let there = a.distance(b);
        prop_assert_eq!(a.add(there as u32), b);
        if there != -0x80_0000 {
            prop_assert_eq!(b.distance(a), -there);
        }
    }
}

/// What two routes and datagrams must agree in after the way over the wire.
fn reversed(frame: &[u8]) -> (Route, Send, Vec<u8>) {
    let packet = roce(frame);
    let (route, send) = reverse(&packet).expect("UD");
    (route, send, packet.ud().expect("UD").payload.to_vec())
}

proptest! {
    #[test]
    fn a_datagram_survives_the_wire(route in route(), send in send(), payload in vec(any::<u8>(), 0..300)) {
        let frame = build(&route, &send, &payload);
        let l3 = l3_offset(&frame);
        let packet = roce(&frame);
        prop_assert!(packet.icrc_ok());
        prop_assert_eq!(packet.icrc(), icrc_naive(&frame[l3..frame.len() - 4]));
        prop_assert_eq!(l3 + packet.ip_len(), frame.len());
        prop_assert_eq!(packet.body().len() % 4, payload.len() % 4);
        prop_assert_eq!((usize::from(packet.bth().pad) + payload.len()) % 4, 0);
        prop_assert!(packet.padding().iter().all(|&b| b == 0));
        let (route_back, send_back, payload_back) = reversed(&frame);
        prop_assert_eq!(route_back, route);
        prop_assert_eq!(send_back, send);
        prop_assert_eq!(payload_back, payload);
    }

    #[test]
    fn another_source_port_is_another_template(route in route(), send in send(), port: u16) {
        let mut template = Template::new(&route);
        template.set_src_port(port);
        prop_assert_eq!(template.src_port(), port);
        let mut frame = vec![0; template.frame_len(send.imm.is_some(), 0)];
        template.emit(&send, 0, &mut frame).expect("the exact length");
        prop_assert_eq!(frame, build(&Route { src_port: port, ..route }, &send, &[]));
    }

    #[test]
    fn a_template_tells_its_route_and_takes_another_next_hop(
        route in route(), send in send(), payload in vec(any::<u8>(), 0..40), mac: [u8; 6],
    ) {
        let mut template = Template::new(&route);
        prop_assert_eq!(template.route(), route);
        prop_assert_eq!(template.is_tagged(), route.vlan.is_some());
        template.set_dst_mac(MacAddr(mac));
        let moved = Route { dst_mac: MacAddr(mac), ..route };
        prop_assert_eq!(template.route(), moved);
        let mut frame = vec![0; template.frame_len(send.imm.is_some(), payload.len())];
        let at = template.header_len(send.imm.is_some());
        frame[at..at + payload.len()].copy_from_slice(&payload);
        template.emit(&send, payload.len(), &mut frame).expect("the exact length");
        prop_assert_eq!(frame, build(&moved, &send, &payload));
    }

    /// Changing one bit anywhere from the IP header to the pad breaks the ICRC, unless the standard masks it.
    #[test]
    fn the_icrc_covers_all_but_what_routers_change(
        route in route(), send in send(), payload in vec(any::<u8>(), 0..80), at: prop::sample::Index, bit in 0..8u8,
    ) {
        let frame = build(&route, &send, &payload);
        let packet = &frame[l3_offset(&frame)..frame.len() - 4];
        let right = u32::from_le_bytes([
            frame[frame.len() - 4], frame[frame.len() - 3], frame[frame.len() - 2], frame[frame.len() - 1],
        ]);
        prop_assert_eq!(icrc::compute(packet), Some(right));
        let at = at.index(packet.len());
        let mut changed = packet.to_vec();
        changed[at] ^= 1 << bit;
        let masked = match route.ip {
            // Type of service, time to live, header checksum, UDP checksum, congestion bits.
            IpRoute::V4 { .. } => matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32),
            // Traffic class, flow label, hop limit, UDP checksum, congestion bits.
            IpRoute::V6 { .. } => matches!(at, 1..=3 | 7 | 46 | 47 | 52) || (at == 0 && bit < 4),
        };
        prop_assert_eq!(icrc::compute(&changed) == Some(right), masked, "byte {} bit {}", at, bit);
    }
}

/// Every masked byte at once and one by one, every value: the ICRC stays what it is.
#[test]
fn masked_bytes_may_have_any_value() {
    for ipv6 in [false, true] {
        let frame = build(&common::route(ipv6), &common::datagram(None), &[3; 21]);
        let packet = &frame[14..frame.len() - 4];
        let masked: &[usize] = if ipv6 { &[1, 2, 3, 7, 46, 47, 52] } else { &[1, 8, 10, 11, 26, 27, 32] };
        let right = icrc::compute(packet);
        assert!(right.is_some());
        for value in 0..=255 {
            let mut all = packet.to_vec();
            for &at in masked {
                let mut one = packet.to_vec();
                one[at] = value;
                all[at] = value;
                assert_eq!(icrc::compute(&one), right, "byte {at} = {value:#04x}");
            }
            assert_eq!(icrc::compute(&all), right, "all masked bytes {value:#04x}");
        }
    }
}

/// The sequence number runs through its wrap in frames as it does in the type.
#[test]
fn frames_number_through_the_wrap() {
    let mut send = common::datagram(None);
    send.psn = Psn::new(0xff_fffe).expect("24 bits");
    let mut seen = Vec::new();
    for _ in 0..4 {
        let frame = build(&common::route(false), &send, b"x");
        seen.push(roce(&frame).bth().psn.get());
        send.psn = send.psn.next();
    }
    assert_eq!(seen, [0xff_fffe, 0xff_ffff, 0, 1]);
}
