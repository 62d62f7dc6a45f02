//! Whole frames of the small protocols beside RoCEv2: ARP, ICMP echo and ICMPv6, with their Ethernet and IP headers.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::ethernet::{self, EtherType, MacAddr, VlanStack};
use super::{EmitError, arp, icmp, icmpv6, ipv4, ipv6};

/// The Ethernet header that a control frame gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Source address.
    pub src: MacAddr,
    /// Destination address.
    pub dst: MacAddr,
    /// VLAN tags.
    pub vlans: VlanStack,
}

impl Link {
    /// Writes the header and returns what follows it, exactly `len` bytes.
    fn emit<'a>(
        &self,
        ethertype: EtherType,
        len: usize,
        frame: &'a mut [u8],
    ) -> Result<&'a mut [u8], EmitError> {
        let header = ethernet::Header { dst: self.dst, src: self.src, vlans: self.vlans, ethertype };
        let (have, need) = (frame.len(), header.len() + len);
        let frame = frame.get_mut(..need).ok_or(EmitError::BufferLength { have, need })?;
        header.emit(frame)?;
        Ok(&mut frame[header.len()..])
    }

    /// Length of the header.
    fn len(&self) -> usize {
        ethernet::Header::LEN + self.vlans.depth() * ethernet::VlanTag::LEN
    }
}

/// Writes an ARP frame and returns its length in bytes, below the 60 that Ethernet pads to.
///
/// # Errors
/// [`BufferLength`](EmitError::BufferLength) if the frame is too short.
pub fn arp(link: &Link, packet: &arp::Packet, frame: &mut [u8]) -> Result<usize, EmitError> {
    packet.emit(link.emit(EtherType::ARP, arp::Packet::LEN, frame)?)?;
    Ok(link.len() + arp::Packet::LEN)
}

/// Writes an ICMP echo request or reply over IPv4, TTL 64, and returns the frame's length in bytes.
///
/// # Errors
/// [`BufferLength`](EmitError::BufferLength) if the frame is too short; [`PayloadTooLong`](EmitError::PayloadTooLong)
/// if no IPv4 packet holds the data.
pub fn icmp_echo(
    link: &Link,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    echo: &icmp::Echo<'_>,
    frame: &mut [u8],
) -> Result<usize, EmitError> {
    let len = ipv4::Header::LEN + echo.len();
    let max = usize::from(u16::MAX) - ipv4::Header::LEN - icmp::Echo::HEADER_LEN;
    let total_len =
        u16::try_from(len).map_err(|_| EmitError::PayloadTooLong { len: echo.data.len(), max })?;
    let out = link.emit(EtherType::IPV4, len, frame)?;
    let header = ipv4::Header {
        dscp: 0,
        ecn: 0,
        total_len,
        ident: 0,
        dont_fragment: true,
        ttl: 64,
        protocol: ipv4::protocol::ICMP,
        src,
        dst,
    };
    header.emit(out)?;
    echo.emit(&mut out[ipv4::Header::LEN..])?;
    Ok(link.len() + len)
}

/// Writes an ICMPv6 message and returns the frame's length in bytes. The hop limit is 255, which neighbour discovery must
/// have and echo may.
///
/// # Errors
/// [`BufferLength`](EmitError::BufferLength) if the frame is too short; [`PayloadTooLong`](EmitError::PayloadTooLong)
/// if no IPv6 packet holds the message.
pub fn icmpv6(
    link: &Link,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    message: &icmpv6::Message<'_>,
    frame: &mut [u8],
) -> Result<usize, EmitError> {
    let max = usize::from(u16::MAX);
    let payload_len =
        u16::try_from(message.len()).map_err(|_| EmitError::PayloadTooLong { len: message.len(), max })?;
    let len = ipv6::Header::LEN + message.len();
    let out = link.emit(EtherType::IPV6, len, frame)?;
    let header = ipv6::Header {
        dscp: 0,
        ecn: 0,
        flow_label: 0,
        payload_len,
        next_header: ipv6::next_header::ICMPV6,
        hop_limit: icmpv6::ND_HOP_LIMIT,
        src,
        dst,
    };
    header.emit(out)?;
    message.emit(src, dst, &mut out[ipv6::Header::LEN..])?;
    Ok(link.len() + len)
}
