//! What one captured packet is, and whether it is right.

use crate::capture::{LinkType, Record};
use roce_proto::wire::bth;
use roce_proto::wire::ethernet;
use roce_proto::wire::ext::Extensions;
use roce_proto::wire::frame::{self, Frame, Other, Packet};
use roce_proto::wire::{ROCE_PORT, Reject};
use std::fmt;

/// A packet's invariant CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Icrc {
    /// As it should be.
    Ok,
    /// Not as it should be.
    Bad {
        /// What it should be.
        expected: u32,
    },
    /// Not known: the capture has not all of the packet.
    Cut,
}

/// A RoCEv2 packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roce<'a> {
    pub packet: Packet<'a>,
    /// `None` if the capture ends inside them.
    pub extensions: Option<Extensions>,
    /// What was captured of the payload.
    pub payload: &'a [u8],
    /// Bytes of the payload on the wire.
    pub payload_len: usize,
    pub icrc: Icrc,
    /// Whether the frame had MAC addresses.
    pub has_macs: bool,
}

/// What a captured packet is.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack; most captures hold little else")]
pub(super) enum Seen<'a> {
    /// RoCEv2, well-formed.
    Roce(Roce<'a>),
    /// RoCEv2 by its port, and malformed.
    Malformed(Reject),
    /// Something else, broken or of a kind that is not taken apart.
    Rejected(Reject),
    /// Something else.
    Other(Protocol),
    /// Cut before it could be told what it is.
    Cut,
    /// Of a link type that is not understood.
    UnknownLink(LinkType),
}

/// A protocol other than RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Protocol {
    Arp,
    Icmp,
    Icmpv6,
    /// Another port.
    Udp,
    Tcp,
    /// Another protocol over IP.
    Ip(u8),
    /// IEEE 802.3 with a length.
    Llc,
    /// Another EtherType.
    EtherType(u16),
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Arp => "arp",
            Protocol::Icmp => "icmp",
            Protocol::Icmpv6 => "icmpv6",
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Llc => "llc",
            Protocol::EtherType(0x88cc) => "lldp",
            Protocol::EtherType(0x8808) => "mac_control",
            Protocol::Ip(n) => return write!(f, "ip_protocol_{n}"),
            Protocol::EtherType(n) => return write!(f, "ethertype_{n:#06x}"),
        })
    }
}

impl Protocol {
    fn of(other: Other) -> Protocol {
        match other {
            Other::EtherType(t) if t.0 < 0x600 => Protocol::Llc,
            Other::EtherType(t) => Protocol::EtherType(t.0),
            Other::Ipv4Protocol(6) | Other::Ipv6NextHeader(6) => Protocol::Tcp,
            Other::Ipv4Protocol(n) | Other::Ipv6NextHeader(n) => Protocol::Ip(n),
            Other::UdpPort(_) => Protocol::Udp,
            Other::IcmpType(_) => Protocol::Icmp,
            Other::Icmpv6Type(_) => Protocol::Icmpv6,
        }
    }
}

impl Seen<'_> {
    /// Whether this is RoCEv2 and wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Seen::Malformed(_) | Seen::Roce(Roce { icrc: Icrc::Bad { .. }, .. }))
    }

    /// Whether this is RoCEv2, right or wrong.
    pub fn is_roce(&self) -> bool {
        matches!(self, Seen::Malformed(_) | Seen::Roce(_))
    }
}

/// The longest frame that can be RoCEv2: the longest IPv6 packet behind two tags.
const MAX_FRAME: usize = ethernet::Header::MAX_LEN + 40 + 65_535;

/// Judges packets; keeps the memory that it needs for that.
#[derive(Default)]
pub(super) struct Judge {
    /// Packets of link types other than Ethernet, behind an Ethernet header.
    ethernet: Vec<u8>,
    /// Packets that were cut, filled up with zeros.
    filled: Vec<u8>,
}

impl Judge {
    /// What the record is.
    pub fn judge<'a>(&'a mut self, record: &Record<'a>) -> Seen<'a> {
        let has_macs = record.link == LinkType::ETHERNET;
        let Some((captured, extra)) = record.link.as_ethernet(record.data, &mut self.ethernet) else {
            return if record.is_cut() { Seen::Cut } else { Seen::UnknownLink(record.link) };
        };
        match frame::parse(captured) {
            Ok(frame) => of_frame(frame, has_macs, None),
            Err(_) if record.is_cut() => {
                let on_wire = (record.orig_len as usize).saturating_add_signed(extra);
                judge_cut(captured, on_wire, &mut self.filled, has_macs)
            }
            Err(reject) if is_roce(captured) => Seen::Malformed(reject),
            Err(reject) => Seen::Rejected(reject),
        }
    }
}

/// A packet of which the capture has only the front: its headers are read from a copy filled up with zeros.
fn judge_cut<'a>(captured: &[u8], on_wire: usize, filled: &'a mut Vec<u8>, has_macs: bool) -> Seen<'a> {
    let Some(udp) = udp_offset(captured) else { return cut_other(captured) };
    if udp + 8 > captured.len() {
        return Seen::Cut;
    }
    let len = on_wire.clamp(captured.len(), MAX_FRAME.max(captured.len()));
    filled.clear();
    filled.extend_from_slice(captured);
    filled.resize(len, 0);
    // The checksum over bytes that are not there cannot be right; zero stands for none.
    filled[udp + 6..udp + 8].fill(0);
    let has_bth = udp + 8 + bth::Header::LEN <= captured.len();
    match frame::parse(filled) {
        Ok(frame @ Frame::Roce(_)) if has_bth => of_frame(frame, has_macs, Some(captured.len())),
        Ok(Frame::Roce(_)) => Seen::Cut,
        Ok(frame) => of_frame(frame, has_macs, None),
        Err(reject) if has_bth && is_roce(captured) => Seen::Malformed(reject),
        Err(_) => Seen::Cut,
    }
}

/// A cut packet that is no UDP: its headers may still say what it is.
fn cut_other(captured: &[u8]) -> Seen<'static> {
    match ethernet::Header::parse(captured) {
        Ok(h) if h.ethertype == ethernet::EtherType::ARP => Seen::Other(Protocol::Arp),
        Ok(h) if h.ethertype == ethernet::EtherType::IPV4 => match captured.get(h.len() + 9) {
            Some(1) => Seen::Other(Protocol::Icmp),
            Some(6) => Seen::Other(Protocol::Tcp),
            Some(&n) => Seen::Other(Protocol::Ip(n)),
            None => Seen::Cut,
        },
        Ok(h) if h.ethertype == ethernet::EtherType::IPV6 => match captured.get(h.len() + 6) {
            Some(58) => Seen::Other(Protocol::Icmpv6),
            Some(6) => Seen::Other(Protocol::Tcp),
            Some(&n) => Seen::Other(Protocol::Ip(n)),
            None => Seen::Cut,
        },
        _ => Seen::Cut,
    }
}

/// What a frame is. `captured` bytes of it are real, or all.
fn of_frame(frame: Frame<'_>, has_macs: bool, captured: Option<usize>) -> Seen<'_> {
    let packet = match frame {
        Frame::Roce(packet) => packet,
        Frame::Arp(..) => return Seen::Other(Protocol::Arp),
        Frame::Icmp4(_) => return Seen::Other(Protocol::Icmp),
        Frame::Icmp6(_) => return Seen::Other(Protocol::Icmpv6),
        Frame::Other(other) => return Seen::Other(Protocol::of(other)),
    };
    let (extensions, payload) = match packet.extensions() {
        Ok(found) => found,
        Err(reject) => return Seen::Malformed(reject),
    };
    let payload_len = payload.len();
    let Some(captured) = captured else {
        let icrc = if packet.icrc_ok() { Icrc::Ok } else { Icrc::Bad { expected: packet.icrc_expected() } };
        return Seen::Roce(Roce {
            packet,
            extensions: Some(extensions),
            payload,
            payload_len,
            icrc,
            has_macs,
        });
    };
    // Where the payload starts in the frame: everything in front of it and behind it is of known length.
    let payload_at = packet.link.l3_offset() + packet.ip_len() - 4 - packet.padding().len() - payload_len;
    let there = captured.saturating_sub(payload_at).min(payload_len);
    Seen::Roce(Roce {
        packet,
        extensions: (captured >= payload_at).then_some(extensions),
        payload: payload.get(..there).unwrap_or_default(),
        payload_len,
        icrc: Icrc::Cut,
        has_macs,
    })
}

/// Where the UDP header of a frame begins, by its length fields alone; `None` if it has none.
///
/// Unlike the receive parser this goes past what that refuses (IPv4 options, fragments, checksums, lengths), to find out
/// whether a refused frame was meant to be RoCEv2.
fn udp_offset(frame: &[u8]) -> Option<usize> {
    const UDP: u8 = 17;
    let header = ethernet::Header::parse(frame).ok()?;
    let ip = header.len();
    match header.ethertype {
        ethernet::EtherType::IPV4 => {
            let words = usize::from(*frame.get(ip)? & 0x0f);
            // Only the first fragment has a UDP header.
            let offset = u16::from_be_bytes([*frame.get(ip + 6)?, *frame.get(ip + 7)?]) & 0x1fff;
            (*frame.get(ip + 9)? == UDP && words >= 5 && offset == 0).then_some(ip + words * 4)
        }
        ethernet::EtherType::IPV6 => (*frame.get(ip + 6)? == UDP).then_some(ip + 40),
        _ => None,
    }
}

/// Whether a frame is UDP to the port of RoCEv2.
fn is_roce(frame: &[u8]) -> bool {
    let port = udp_offset(frame).and_then(|at| frame.get(at + 2..at + 4));
    port == Some(&ROCE_PORT.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::LinkType;

    /// The front of an IPv6 packet that says it has so many bytes behind its header, for RoCEv2's port, behind two tags.
    fn front(len: u16) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        frame.extend([0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x86, 0xdd]);
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([0xfd; 32]);
        frame.extend([0xc0, 0, 0x12, 0xb7]);
        frame.extend(len.to_be_bytes());
        frame.extend([0, 0]);
        // BTH of a UD SEND only, DETH.
        frame.extend([100, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 0]);
        frame.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        frame
    }

    #[test]
    fn what_a_capture_says_of_its_lengths_takes_no_more_memory_than_a_frame_can_have() {
        // Two tags, the longest IPv6 packet.
        assert_eq!(MAX_FRAME, 22 + 40 + 65_535);
        let mut judge = Judge::default();
        for (len, on_wire, kept) in [
            (64, 62 + 64, 62 + 64),
            (65_532, 62 + 65_532, 62 + 65_532),
            (65_532, u32::MAX, MAX_FRAME),
            (65_532, MAX_FRAME as u32 + 1, MAX_FRAME),
            (65_532, MAX_FRAME as u32, MAX_FRAME),
        ] {
            let data = front(len);
            let record = Record { time: None, link: LinkType::ETHERNET, orig_len: on_wire, data: &data };
            let seen = judge.judge(&record);
            assert!(matches!(&seen, Seen::Roce(_)), "{len} of {on_wire}");
            assert_eq!(judge.filled.len(), kept, "{len} of {on_wire}");
        }
    }
}
