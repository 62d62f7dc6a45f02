//! What must hold of the receive path for every sequence of bytes: one function, for the fuzzer and for the tests.

#[path = "reverse.rs"]
mod reverse;

use reverse::reverse;
use roce_proto::wire::frame::{self, Frame, Ip, Packet};
use roce_proto::wire::grh::Grh;
use roce_proto::wire::peek::{PEEK_LEN, Peek, peek};
use roce_proto::wire::ud::Template;
use roce_proto::wire::{Reject, arp, control, ethernet, icmp, icmpv6, icrc, ipv4, ipv6};

/// What became of a frame, to tell whether the inputs reach every part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A UD packet, its ICRC right or wrong.
    Ud {
        /// The ICRC is right.
        intact: bool,
    },
    /// A RoCEv2 packet that is no UD SEND.
    Roce,
    /// ARP.
    Arp,
    /// ICMP echo.
    Icmp4,
    /// ICMPv6.
    Icmp6,
    /// Somebody else's.
    Other,
    /// Refused, for the reason of this number.
    Refused(usize),
}

/// Parses a frame and checks everything that can be checked without knowing where it came from.
pub fn check(frame: &[u8]) -> Outcome {
    let peeked = peek(frame);
    assert_eq!(peeked, peek(&frame[..frame.len().min(PEEK_LEN)]), "more than it says was looked at");
    let parsed = match frame::parse(frame) {
        Ok(parsed) => parsed,
        Err(reject) => {
            assert!(!reject.to_string().is_empty() && !reject.reason().name().is_empty());
            return Outcome::Refused(reject.reason() as usize);
        }
    };
    let ethernet = ethernet::Header::parse(frame).expect("a parsed frame has an Ethernet header");
    let mut header = [0; ethernet::Header::MAX_LEN];
    ethernet.emit(&mut header).expect("fits");
    assert_eq!(header[..ethernet.len()], frame[..ethernet.len()]);
    let l3 = &frame[ethernet.len()..];
    check_peek(peeked, &parsed);
    match parsed {
        Frame::Roce(packet) => check_roce(frame, l3, &ethernet, &packet),
        Frame::Arp(link, packet) => {
            assert_eq!((link.src(), link.dst(), link.vlans()), (ethernet.src, ethernet.dst, ethernet.vlans));
            assert_eq!(packet.to_bytes(), l3[..arp::Packet::LEN]);
            Outcome::Arp
        }
        Frame::Icmp4(m) => {
            let link = control::Link { src: ethernet.src, dst: ethernet.dst, vlans: ethernet.vlans };
            let mut ours = vec![0; frame.len()];
            let len =
                control::icmp_echo(&link, m.src, m.dst, &m.echo, &mut ours).expect("as long as what came");
            let Ok(Frame::Icmp4(again)) = frame::parse(&ours[..len]) else { panic!("our own echo") };
            assert_eq!((again.src, again.dst, again.echo), (m.src, m.dst, m.echo));
            assert!(matches!(icmp::Message::parse(&l3[20..20 + m.echo.len()]), Ok(icmp::Message::Echo(_))));
            Outcome::Icmp4
        }
        Frame::Icmp6(m) => {
            assert!(!matches!(m.message, icmpv6::Message::Other { .. }));
            let link = control::Link { src: ethernet.src, dst: ethernet.dst, vlans: ethernet.vlans };
            let mut ours = vec![0; frame.len()];
            let len = control::icmpv6(&link, m.src, m.dst, &m.message, &mut ours)
                .expect("not longer than what came");
            let Ok(Frame::Icmp6(again)) = frame::parse(&ours[..len]) else { panic!("our own message") };
            assert_eq!((again.src, again.dst, again.message), (m.src, m.dst, m.message));
            Outcome::Icmp6
        }
        Frame::Other(_) => Outcome::Other,
    }
}

/// The first look saw what the frame turned out to be.
fn check_peek(peeked: Peek, parsed: &Frame<'_>) {
    let news = match parsed {
        Frame::Roce(packet) => return assert_eq!(peeked, Peek::Roce(packet.dst_qpn())),
        Frame::Arp(_, packet) => {
            packet.operation == arp::Operation::Reply || packet.sender_ip == packet.target_ip
        }
        Frame::Icmp6(m) => matches!(m.message, icmpv6::Message::Advertisement(_)),
        Frame::Icmp4(_) => false,
        // Of UDP to other ports, and of what we do not understand, nothing is promised.
        Frame::Other(_) => return,
    };
    assert_eq!(peeked == Peek::Neighbour, news, "{parsed:?}");
}

/// The ICRC by copying and masking, independent of the library's way of reading in place.
fn icrc_by_copy(covered: &[u8], ipv6: bool) -> u32 {
    let (l4, ip): (usize, &[usize]) = if ipv6 { (40, &[1, 2, 3, 7]) } else { (20, &[1, 8, 10, 11]) };
    let mut bytes = [&[0xff; 8], covered].concat();
    for at in ip.iter().copied().chain([l4 + 6, l4 + 7, l4 + 12]) {
        bytes[8 + at] = 0xff;
    }
    if ipv6 {
        bytes[8] |= 0x0f;
    }
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

fn check_roce(frame: &[u8], l3: &[u8], ethernet: &ethernet::Header, packet: &Packet<'_>) -> Outcome {
    let ipv6 = packet.ip.is_ipv6();
    assert_eq!((packet.link.src(), packet.link.dst()), (ethernet.src, ethernet.dst));
    assert_eq!((packet.link.vlans(), packet.link.l3_offset()), (ethernet.vlans, ethernet.len()));
    let len = packet.ip_len();
    assert!(len <= l3.len());
    let (covered, trailer) = l3[..len].split_at(len - icrc::LEN);
    assert_eq!(packet.icrc().to_le_bytes(), trailer);
    assert_eq!(packet.icrc_expected(), icrc_by_copy(covered, ipv6));
    assert_eq!(Some(packet.icrc_expected()), icrc::compute(covered));
    let intact = packet.icrc_ok();
    assert_eq!(intact, packet.icrc() == packet.icrc_expected());

    // Body and padding are the end of what the ICRC covers.
    let after_bth = [packet.body(), packet.padding()].concat();
    assert!(covered.ends_with(&after_bth));
    assert_eq!(packet.padding().len(), usize::from(packet.bth().pad));
    assert_eq!((after_bth.len() % 4, packet.bth().version), (0, 0));

    // Bytes behind the packet mean nothing; one byte less is a refusal.
    let end = ethernet.len() + len;
    assert!(matches!(frame::parse(&frame[..end]), Ok(Frame::Roce(p)) if p.body() == packet.body()));
    assert!(frame::parse(&frame[..end - 1]).is_err());

    let mut area = [0xee; 40];
    packet.write_grh(&mut area);
    match (packet.ip, Grh::parse(&area)) {
        (Ip::V4(_), Ok(Grh::V4(h))) => assert_eq!(Ok(h), ipv4::Header::parse(l3)),
        (Ip::V6(_), Ok(Grh::V6(h))) => assert_eq!(Ok(h), ipv6::Header::parse(l3)),
        (_, other) => panic!("{other:?}"),
    }

    match packet.extensions() {
        Ok((_, payload)) => assert!(packet.body().ends_with(payload)),
        Err(e) => assert!(matches!(e, Reject::ExtensionLength { .. })),
    }
    match packet.ud() {
        Ok(ud) => {
            assert_eq!(
                packet.extensions().map(|(e, p)| (e.deth, e.immdt.map(|i| i.0), p)),
                Ok((Some(ud.deth), ud.imm, ud.payload))
            );
            check_rebuilt(frame, ethernet, packet);
            Outcome::Ud { intact }
        }
        Err(e) => {
            assert!(matches!(e, Reject::Opcode { .. } | Reject::ExtensionLength { .. }));
            Outcome::Roce
        }
    }
}

/// Builds the same UD packet with our builder; the result must be the same in all that a template can express.
fn check_rebuilt(frame: &[u8], ethernet: &ethernet::Header, packet: &Packet<'_>) {
    if ethernet.vlans.depth() > 1 {
        return;
    }
    let ud = packet.ud().expect("UD");
    let (route, send) = reverse(packet).expect("UD");
    let template = Template::new(&route);
    let (imm, len) = (send.imm.is_some(), ud.payload.len());
    let mut ours = vec![0xaa; template.frame_len(imm, len)];
    let at = template.header_len(imm);
    ours[at..at + len].copy_from_slice(ud.payload);
    if let Err(e) = template.emit(&send, len, &mut ours) {
        panic!("{len} bytes that came in one packet: {e}");
    }
    let Ok(Frame::Roce(again)) = frame::parse(&ours) else { panic!("our own frame") };
    assert!(again.icrc_ok());
    let ud_again = again.ud().expect("UD");
    // A pad longer than it need be is the sender's mistake, and read as it says.
    let pad = (4 - len % 4) % 4;
    assert_eq!(usize::from(again.bth().pad), pad);
    assert_eq!((ud_again.deth, ud_again.imm, ud_again.payload), (ud.deth, ud.imm, ud.payload));

    // Bit by bit the same frame, unless it has what a template does not make.
    let l4 = ethernet.len() + if packet.ip.is_ipv6() { 40 } else { 20 };
    let bth = &frame[l4 + 8..l4 + 20];
    let df_only = packet.ip.is_ipv6() || frame[ethernet.len() + 6] == 0x40;
    let plain = df_only
        && packet.udp_checksum() == 0
        && (bth[1] & 0x40, bth[4], bth[8], frame[l4 + 24]) == (0, 0, 0, 0)
        && packet.padding().iter().all(|&b| b == 0)
        && packet.icrc_ok();
    if plain {
        assert_eq!(usize::from(packet.bth().pad), pad, "the alignment leaves one pad count");
        // 0 and 0xffff are the same in one's complement; senders may write either.
        let checksum = ethernet.len() + 10..ethernet.len() + 12;
        if !packet.ip.is_ipv6() && frame[checksum.clone()] != ours[checksum.clone()] {
            assert_eq!(frame[checksum.clone()], [0xff; 2]);
            ours[checksum].fill(0xff);
        }
        assert_eq!(ours, frame[..ours.len()]);
    }
}
