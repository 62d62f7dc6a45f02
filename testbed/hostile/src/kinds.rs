//! Every kind of hostile frame, and its fate.

use crate::frame::{
    self, ICMPV6, L3, PAYLOAD, Target, any_mac, any_v4, any_v6, ethernet, fix_icrc, fix_ip, is_v6, l4,
};
use fastrand::Rng;

/// What an endpoint must make of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It ends in the counter of this name, whether that is one of drops or not.
    Counted(&'static str),
    /// It ends in some counter: which one is up to the endpoint, or to chance.
    Any,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostile {
    /// Its kind, as [`KINDS`] names it.
    pub kind: &'static str,
    /// What must become of it.
    pub fate: Fate,
    /// The frame, without FCS; at least an Ethernet header.
    pub frame: Vec<u8>,
}

type Made = (Fate, Vec<u8>);
/// Makes the frame number `n` of a kind: kinds that go through all values of something do so with it.
type Make = fn(rng: &mut Rng, to: &Target, n: u64) -> Made;

const fn counted(name: &'static str) -> Fate {
    Fate::Counted(name)
}

/// The kinds by name.
pub const KINDS: &[(&str, Make)] = &[
    ("truncated", truncated),
    ("ip_length_beyond_frame", ip_length_beyond),
    ("ip_length_short", ip_length_short),
    ("udp_length", udp_length),
    ("udp_cut", udp_cut),
    ("ip_version", ip_version),
    ("ipv4_header_length", ipv4_header_length),
    ("ipv4_options", ipv4_options),
    ("ipv4_checksum", ipv4_checksum),
    ("ipv4_fragment", ipv4_fragment),
    ("ipv6_extension", ipv6_extension),
    ("udp_checksum", udp_checksum),
    ("roce_too_short", roce_too_short),
    ("roce_alignment", roce_alignment),
    ("bth_version", bth_version),
    ("pad_beyond_packet", pad_beyond),
    ("pad_into_headers", pad_into_headers),
    ("opcode", opcode),
    ("immediate_missing", immediate_missing),
    ("icrc", icrc),
    ("unknown_qpn", unknown_qpn),
    ("pkey", pkey),
    ("qkey", qkey),
    ("foreign_mac", foreign_mac),
    ("foreign_ip", foreign_ip),
    ("source_ip", source_ip),
    ("source_ip_echo", source_ip_echo),
    ("vlan_stack", vlan_stack),
    ("arp_format", arp_format),
    ("arp_operation", arp_operation),
    ("arp_spoofed", arp_spoofed),
    ("arp_asks", arp_asks),
    ("nd_hop_limit", nd_hop_limit),
    ("nd_checksum", nd_checksum),
    ("nd_code", nd_code),
    ("nd_option", nd_option),
    ("nd_spoofed", nd_spoofed),
    ("nd_asks", nd_asks),
    ("icmp_checksum", icmp_checksum),
    ("echo", echo),
    ("other_protocol", other_protocol),
    ("noise", noise),
    ("bits_turned", bits_turned),
];

/// Frames of chosen kinds in turn; the same seed makes the same frames.
pub struct Generator {
    rng: Rng,
    target: Target,
    kinds: Vec<(&'static str, Make)>,
    next: u64,
}

impl Generator {
    /// Frames of all kinds for which `wanted` holds.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(seed: u64, target: Target, wanted: impl Fn(&str) -> bool) -> Generator {
        let kinds: Vec<_> = KINDS.iter().filter(|(name, _)| wanted(name)).copied().collect();
        assert!(!kinds.is_empty(), "no such kind of frame");
        Generator { rng: Rng::with_seed(seed), target, kinds, next: 0 }
    }
}

impl Iterator for Generator {
    type Item = Hostile;

    fn next(&mut self) -> Option<Hostile> {
        let count = self.kinds.len() as u64;
        let (kind, make) = self.kinds[(self.next % count) as usize];
        let (fate, frame) = make(&mut self.rng, &self.target, self.next / count);
        self.next += 1;
        Some(Hostile { kind, fate, frame })
    }
}

/// A message over either family, by chance.
fn message(rng: &mut Rng, to: &Target) -> Vec<u8> {
    let six = rng.bool();
    to.message(rng, six)
}

/// A message over IPv4 with one change to its header, whose checksum is right again.
fn v4_with(rng: &mut Rng, to: &Target, change: impl FnOnce(&mut [u8], &mut Rng)) -> Vec<u8> {
    let mut frame = to.message(rng, false);
    change(&mut frame[L3..], rng);
    fix_ip(&mut frame);
    frame
}

fn put16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn get16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Cut at every byte behind the Ethernet header, in turn.
fn truncated(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = to.message(rng, n % 2 == 1);
    let (header, six) = (l4(&frame) - L3, is_v6(&frame));
    let keep = (n / 2) as usize % (frame.len() - L3);
    frame.truncate(L3 + keep);
    let fate = match (keep < header, six) {
        (true, _) => "too_short",
        (false, false) => "ipv4_total_length",
        (false, true) => "ipv6_payload_length",
    };
    (counted(fate), frame)
}

/// An IP length that lies beyond the frame.
fn ip_length_beyond(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let mut frame = message(rng, to);
    let at = L3 + if is_v6(&frame) { 4 } else { 2 };
    let whole = get16(&frame, at);
    put16(&mut frame, at, rng.u16(whole + 1..));
    if is_v6(&frame) {
        return (counted("ipv6_payload_length"), frame);
    }
    fix_ip(&mut frame);
    (counted("ipv4_total_length"), frame)
}

/// An IPv4 length that ends in its own header.
fn ip_length_short(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("ipv4_total_length"), v4_with(rng, to, |ip, rng| put16(ip, 2, rng.u16(..20))))
}

/// A UDP length that is not what IP leaves for it.
fn udp_length(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let mut frame = message(rng, to);
    let at = l4(&frame) + 4;
    let wrong = get16(&frame, at).wrapping_add(rng.u16(1..));
    put16(&mut frame, at, wrong);
    fix_icrc(&mut frame);
    (counted("udp_length"), frame)
}

/// An IP packet that ends inside the UDP header.
fn udp_cut(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let six = rng.bool();
    (counted("too_short"), to.ip(rng, six, frame::UDP, &[0x12, 0xb7, 0x12, 0xb7, 0, 8, 0][..n as usize % 8]))
}

/// The header of another version than the EtherType says.
fn ip_version(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = message(rng, to);
    let right = frame[L3] >> 4;
    let wrong = (n as u8 % 15 + right + 1) % 16;
    frame[L3] = wrong << 4 | (frame[L3] & 15);
    (counted("ip_version"), frame)
}

fn ipv4_header_length(rng: &mut Rng, to: &Target, n: u64) -> Made {
    (counted("ipv4_header_length"), v4_with(rng, to, |ip, _| ip[0] = 0x40 | (n % 5) as u8))
}

fn ipv4_options(rng: &mut Rng, to: &Target, n: u64) -> Made {
    (counted("ipv4_options"), v4_with(rng, to, |ip, _| ip[0] = 0x46 + (n % 10) as u8))
}

fn ipv4_checksum(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = to.message(rng, false);
    frame[L3 + 10 + n as usize / 8 % 2] ^= 1 << (n % 8);
    (counted("ipv4_checksum"), frame)
}

/// First, middle and last fragments.
fn ipv4_fragment(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let word = |rng: &mut Rng| match n % 3 {
        0 => 0x2000,
        1 => 0x2000 | rng.u16(1..0x2000),
        _ => rng.u16(1..0x2000),
    };
    (counted("ipv4_fragment"), v4_with(rng, to, |ip, rng| put16(ip, 6, word(rng))))
}

/// Extension headers, that of fragments among them.
fn ipv6_extension(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = to.message(rng, true);
    frame[L3 + 6] = [0, 43, 44, 60][n as usize % 4];
    (counted("ipv6_extension"), frame)
}

fn udp_checksum(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let mut frame = message(rng, to);
    let (udp, six) = (l4(&frame), is_v6(&frame));
    let pseudo = if six { &frame[L3 + 8..L3 + 40] } else { &frame[L3 + 12..L3 + 20] };
    let len = (frame.len() - udp) as u16;
    let right = frame::checksum(&[pseudo, &[0, frame::UDP], &len.to_be_bytes(), &frame[udp..]].concat());
    // Neither right, nor none; and the other zero of this sum is left alone too.
    let wrong = (1..).map(|_| rng.u16(1..u16::MAX)).find(|sum| *sum != right).unwrap_or(1);
    put16(&mut frame, udp + 6, wrong);
    (counted("udp_checksum"), frame)
}

/// A datagram to RoCEv2's port that cannot hold the least packet.
fn roce_too_short(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let six = rng.bool();
    (counted("roce_length"), to.udp(rng, six, 4791, &[0x64; 16][..n as usize % 16]))
}

/// A packet whose length the pad count does not make a multiple of four.
fn roce_alignment(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let (six, bth) = (rng.bool(), to.bth(rng, 0));
    let payload = vec![PAYLOAD; 8 + 4 * rng.usize(..20) + 1 + n as usize % 3];
    (counted("roce_alignment"), to.roce(rng, six, bth, &[&to.deth()[..], &payload].concat()))
}

fn bth_version(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = message(rng, to);
    let at = l4(&frame) + 9;
    frame[at] |= 1 + (n % 15) as u8;
    fix_icrc(&mut frame);
    (counted("bth_version"), frame)
}

/// A pad count without anything that could be padded.
fn pad_beyond(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let (six, bth) = (rng.bool(), to.bth(rng, 1 + (n % 3) as u8));
    (counted("pad_count"), to.roce(rng, six, bth, &[]))
}

/// A pad count that takes from the headers.
fn pad_into_headers(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let (six, bth) = (rng.bool(), to.bth(rng, 1 + (n % 3) as u8));
    (counted("extension_length"), to.roce(rng, six, bth, &to.deth()))
}

/// Every opcode but the two of UD.
fn opcode(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = message(rng, to);
    let at = l4(&frame) + 8;
    frame[at] = (0..=255).filter(|op| !matches!(op, 0x64 | 0x65)).nth(n as usize % 254).unwrap_or_default();
    fix_icrc(&mut frame);
    (counted("opcode"), frame)
}

/// The opcode promises an immediate that is not there.
fn immediate_missing(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let (six, mut bth) = (rng.bool(), to.bth(rng, 0));
    bth[0] = 0x65;
    (counted("extension_length"), to.roce(rng, six, bth, &to.deth()))
}

/// One bit of the ICRC, or of the payload, is another.
fn icrc(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let mut frame = message(rng, to);
    let from = l4(&frame) + 8 + 12 + 8;
    let at = rng.usize(from..frame.len());
    frame[at] ^= 1 << rng.u8(..8);
    (counted("icrc"), frame)
}

/// A message with one change behind the UDP header, and an ICRC to match.
fn bth_with(rng: &mut Rng, to: &Target, change: impl FnOnce(&mut [u8], &mut Rng)) -> Vec<u8> {
    let mut frame = message(rng, to);
    let at = l4(&frame) + 8;
    change(&mut frame[at..], rng);
    fix_icrc(&mut frame);
    frame
}

fn unknown_qpn(rng: &mut Rng, to: &Target, _: u64) -> Made {
    // One bit of its 24 is another.
    let frame = bth_with(rng, to, |bth, rng| bth[5 + rng.usize(..3)] ^= 1 << rng.u8(..8));
    (counted("unknown_qpn"), frame)
}

fn pkey(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("pkey"), bth_with(rng, to, |bth, rng| put16(bth, 2, rng.u16(..0x7fff) | 0x8000)))
}

fn qkey(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("qkey"), bth_with(rng, to, |bth, rng| bth[12 + rng.usize(..4)] ^= 1 << rng.u8(..8)))
}

/// To another station, as a bridge floods it that does not know where that is.
fn foreign_mac(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let mut frame = message(rng, to);
    frame[..6].copy_from_slice(&any_mac(rng));
    (counted("foreign_mac"), frame)
}

fn foreign_ip(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let (v4, v6) = (any_v4(rng), any_v6(rng));
    (counted("foreign_ip"), message(rng, &Target { v4, v6, ..*to }))
}

/// A source that no host has, written over the frame's own.
fn from_no_host(rng: &mut Rng, frame: &mut [u8], n: u64) {
    let n = n as usize;
    if is_v6(frame) {
        let any = rng.u128(..);
        let sources =
            [0, 1, 0xff02 << 112 | 1, 0xff << 120 | any >> 8, 0xffff << 32 | u128::from(any as u32)];
        frame[L3 + 8..L3 + 24].copy_from_slice(&sources[n % sources.len()].to_be_bytes());
    } else {
        let any = rng.u32(..);
        let sources = [0, any >> 8, 127 << 24 | any >> 8, 0xe << 28 | any >> 4, u32::MAX];
        frame[L3 + 12..L3 + 16].copy_from_slice(&sources[n % sources.len()].to_be_bytes());
        fix_ip(frame);
    }
}

fn source_ip(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = to.message(rng, n % 2 == 1);
    from_no_host(rng, &mut frame, n / 2);
    fix_icrc(&mut frame);
    (counted("source_ip"), frame)
}

/// A ping from there.
fn source_ip_echo(rng: &mut Rng, to: &Target, n: u64) -> Made {
    if n.is_multiple_of(2) {
        let mut frame = ping(rng, to);
        from_no_host(rng, &mut frame, n / 2);
        return (counted("source_ip"), frame);
    }
    let mut frame = to.ip(rng, true, ICMPV6, &[128, 0, 0, 0, 0x0b, 0xad, 0, 1]);
    from_no_host(rng, &mut frame, n / 2);
    let mut src = [0; 16];
    src.copy_from_slice(&frame[L3 + 8..L3 + 24]);
    let body = L3 + 40;
    let sum = frame::checksum_v6(src.into(), to.v6, ICMPV6, &frame[body..]);
    put16(&mut frame, body + 2, sum);
    (counted("source_ip"), frame)
}

/// Four tags and more. A kernel may take the first of them off before anybody sees the frame.
fn vlan_stack(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = message(rng, to);
    for tag in 0..4 + n % 5 {
        let [a, b] = rng.u16(1..4095).to_be_bytes();
        let tpid = if tag % 2 == 0 { [0x81, 0x00] } else { [0x88, 0xa8] };
        frame.splice(12..12, [tpid[0], tpid[1], a & 0x0f, b]);
    }
    (counted("vlan_depth"), frame)
}

/// An ARP packet from somebody about himself; `target` is whom it asks for, or tells.
fn arp(rng: &mut Rng, to: &Target, operation: u16, target: [u8; 4]) -> Vec<u8> {
    let mac = any_mac(rng);
    let head = [0, 1, 8, 0, 6, 4, (operation >> 8) as u8, operation as u8];
    let packet = [&head[..], &mac, &any_v4(rng).octets(), &[0; 6], &target].concat();
    let dst = if operation == 1 { [0xff; 6] } else { to.mac };
    ethernet(dst, mac, 0x0806, &packet)
}

fn arp_format(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = arp(rng, to, 1, to.v4.octets());
    frame[L3 + [0, 1, 2, 3, 4, 5][n as usize % 6]] ^= 1 << rng.u8(..8);
    (counted("arp_format"), frame)
}

fn arp_operation(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let operation = rng.u16(3..);
    (counted("arp_operation"), arp(rng, to, operation, to.v4.octets()))
}

/// Answers that nobody asked for, and questions about others.
fn arp_spoofed(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let target = any_v4(rng).octets();
    (counted("neighbour"), arp(rng, to, 1 + (n % 2) as u16, target))
}

/// Questions that have to be answered.
fn arp_asks(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("neighbour"), arp(rng, to, 1, to.v4.octets()))
}

/// Neighbour discovery: a solicitation (135) or an advertisement (136) of `target`, changed and then summed.
fn nd(
    rng: &mut Rng,
    to: &Target,
    (kind, target): (u8, [u8; 16]),
    hop_limit: u8,
    change: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let (mac, src) = (any_mac(rng), any_v6(rng));
    let option = if kind == 135 { 1 } else { 2 };
    let mut body = [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target, &[option, 1], &mac].concat();
    change(&mut body);
    let sum = frame::checksum_v6(src, to.v6, ICMPV6, &body);
    put16(&mut body, 2, sum);
    ethernet(to.mac, mac, 0x86dd, &frame::ipv6(src, to.v6, ICMPV6, hop_limit, &body))
}

/// Solicitations and advertisements in turn.
fn nd_kind(to: &Target, n: u64) -> (u8, [u8; 16]) {
    (135 + (n % 2) as u8, to.v6.octets())
}

fn nd_hop_limit(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let hops = rng.u8(..255);
    (counted("nd_hop_limit"), nd(rng, to, nd_kind(to, n), hops, |_| ()))
}

fn nd_checksum(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = nd(rng, to, nd_kind(to, n), 255, |_| ());
    frame[L3 + 40 + 2 + n as usize / 8 % 2] ^= 1 << (n % 8);
    (counted("icmpv6_checksum"), frame)
}

fn nd_code(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let code = rng.u8(1..);
    (counted("nd_invalid"), nd(rng, to, nd_kind(to, n), 255, |body| body[1] = code))
}

/// Options of no length, and beyond the message.
fn nd_option(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let units = if n % 4 < 2 { 0 } else { rng.u8(2..) };
    (counted("nd_option"), nd(rng, to, nd_kind(to, n), 255, |body| body[25] = units))
}

/// About others.
fn nd_spoofed(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let target = any_v6(rng).octets();
    (counted("neighbour"), nd(rng, to, (135 + (n % 2) as u8, target), 255, |_| ()))
}

/// Solicitations that have to be answered.
fn nd_asks(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("neighbour"), nd(rng, to, (135, to.v6.octets()), 255, |_| ()))
}

/// An ICMP echo request over IPv4.
fn ping(rng: &mut Rng, to: &Target) -> Vec<u8> {
    let mut body = vec![8, 0, 0, 0, 0x0b, 0xad, rng.u8(..), rng.u8(..)];
    body.extend(std::iter::repeat_n(PAYLOAD, rng.usize(..56)));
    let sum = frame::checksum(&body);
    put16(&mut body, 2, sum);
    to.ip(rng, false, 1, &body)
}

fn icmp_checksum(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let mut frame = ping(rng, to);
    frame[L3 + 20 + 2 + n as usize / 8 % 2] ^= 1 << (n % 8);
    (counted("icmp_checksum"), frame)
}

fn echo(rng: &mut Rng, to: &Target, _: u64) -> Made {
    (counted("echo"), ping(rng, to))
}

/// What is sound and nobody's business here.
fn other_protocol(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let six = rng.bool();
    let body = vec![PAYLOAD; rng.usize(46..200)];
    let frame = match n % 3 {
        // An experimental EtherType of IEEE 802's.
        0 => ethernet(to.mac, any_mac(rng), 0x88b5, &body),
        1 => to.ip(rng, six, 6, &body),
        _ => to.udp(rng, six, 53, &body),
    };
    (counted("ignored"), frame)
}

/// Nothing but noise behind an EtherType that means something.
fn noise(rng: &mut Rng, to: &Target, n: u64) -> Made {
    let ethertype = [0x0800, 0x86dd, 0x0806, 0x8100][n as usize % 4];
    let body: Vec<u8> = (0..rng.usize(1..200)).map(|_| rng.u8(..)).collect();
    (Fate::Any, ethernet(to.mac, any_mac(rng), ethertype, &body))
}

/// Up to eight bits anywhere behind the MAC addresses are others. Where the ICRC does not cover them, the wrong Q_Key keeps the
/// message from being delivered.
fn bits_turned(rng: &mut Rng, to: &Target, _: u64) -> Made {
    let nobody = Target { qkey: !to.qkey, ..*to };
    let mut frame = message(rng, &nobody);
    for _ in 0..rng.usize(1..=8) {
        let at = rng.usize(12..frame.len());
        frame[at] ^= 1 << rng.u8(..8);
    }
    (Fate::Any, frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            mac: [2, 0, 0, 0, 0, 9],
            v4: "10.0.0.9".parse().unwrap(),
            v6: "fd00::9".parse().unwrap(),
            qpn: 0xab_cdef,
            qkey: 0x1111_1111,
        }
    }

    #[test]
    fn a_seed_makes_the_same_frames_and_another_one_others() {
        let frames =
            |seed| Generator::new(seed, target(), |_| true).take(5 * KINDS.len()).collect::<Vec<_>>();
        let (one, two) = (frames(1), frames(2));
        assert_eq!(one, frames(1));
        assert_ne!(one, two);
        assert!(one.iter().all(|f| f.frame.len() >= L3));
        assert!(KINDS.iter().all(|(name, _)| one.iter().filter(|f| f.kind == *name).count() == 5));
    }

    #[test]
    fn every_length_and_every_opcode_comes() {
        let lengths: std::collections::HashSet<usize> =
            Generator::new(3, target(), |k| k == "truncated").take(2000).map(|f| f.frame.len()).collect();
        assert!((L3..L3 + 100).all(|len| lengths.contains(&len)));
        let opcodes: std::collections::HashSet<u8> = Generator::new(3, target(), |k| k == "opcode")
            .take(254)
            .map(|f| f.frame[l4(&f.frame) + 8])
            .collect();
        assert_eq!(opcodes.len(), 254);
    }
}
