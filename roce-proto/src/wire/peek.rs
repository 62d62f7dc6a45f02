//! A first look at a received frame: whom it is for, before anything is checked.
//!
//! Several workers that share a port pass packets on to whoever has the queue pair. That takes a handful of bytes at places
//! that follow from the first ones; whether the packet is sound is for the receiver to find out.

use super::ethernet::EtherType;
use super::{ROCE_PORT, be16};
use crate::types::Qpn;

/// Bytes from the front of a frame that decide: two VLAN tags, an IPv6 header, UDP and the base transport header.
pub const PEEK_LEN: usize = 14 + 2 * 4 + 40 + 8 + 12;

/// What a frame looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// A RoCEv2 packet for this queue pair.
    Roce(Qpn),
    /// Word of a neighbour's address that may have been asked for: an ARP reply, an ARP request about the asker's own address
    /// (RFC 5227), a neighbour advertisement.
    Neighbour,
    /// Anything else.
    Other,
}

/// Looks at the first [`PEEK_LEN`] bytes of a frame, or at the whole of it.
///
/// Every frame that [`super::frame::parse`] takes for RoCEv2 is [`Peek::Roce`] with the same queue pair; not the other way
/// round.
#[inline]
pub fn peek(frame: &[u8]) -> Peek {
    let (kind, at) = network_header(frame);
    let Some(l3) = frame.get(at..) else { return Peek::Other };
    match kind {
        EtherType::IPV4 => match l3 {
            // Version 4 without options, UDP, and no fragment but perhaps the first.
            [0x45, _, _, _, _, _, f, g, _, 17, ..] if be16(*f, *g) & 0x1fff == 0 => roce(l3, 20),
            _ => Peek::Other,
        },
        EtherType::IPV6 => match l3 {
            [v, _, _, _, _, _, 17, ..] if v >> 4 == 6 => roce(l3, 40),
            // ICMPv6 type 136 (RFC 4861, 4.4).
            [v, _, _, _, _, _, 58, ..] if v >> 4 == 6 && l3.get(40) == Some(&136) => Peek::Neighbour,
            _ => Peek::Other,
        },
        EtherType::ARP => arp(l3),
        _ => Peek::Other,
    }
}

/// What is behind the Ethernet header and up to two VLAN tags, and where it begins.
#[inline]
pub(super) fn network_header(frame: &[u8]) -> (EtherType, usize) {
    let mut at = 12;
    let mut kind = ether_type(frame, at);
    for _ in 0..2 {
        if !kind.is_tag() {
            break;
        }
        at += 4;
        kind = ether_type(frame, at);
    }
    (kind, at + 2)
}

/// The type at `at`; 0, which is none, behind the end.
#[inline]
fn ether_type(frame: &[u8], at: usize) -> EtherType {
    match frame.get(at..at + 2) {
        Some(&[a, b]) => EtherType(be16(a, b)),
        _ => EtherType(0),
    }
}

#[inline]
fn roce(l3: &[u8], header: usize) -> Peek {
    match l3.get(header..header + 16) {
        // UDP: ports, length, checksum; BTH: opcode, flags, P_Key, a reserved byte, 24 bits of queue pair number.
        Some(&[_, _, p, q, _, _, _, _, _, _, _, _, _, a, b, c]) if be16(p, q) == ROCE_PORT => {
            Peek::Roce(Qpn::from_word(u32::from_be_bytes([0, a, b, c])))
        }
        _ => Peek::Other,
    }
}

fn arp(l3: &[u8]) -> Peek {
    match l3.get(6..8) {
        Some(&[0, 2]) => Peek::Neighbour,
        Some(&[0, 1]) if l3.get(14..18).is_some_and(|sender| l3.get(24..28) == Some(sender)) => {
            Peek::Neighbour
        }
        _ => Peek::Other,
    }
}
