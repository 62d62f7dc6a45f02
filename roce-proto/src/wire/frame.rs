//! Taking received frames apart: the fast path of receiving.
//!
//! [`parse`] goes once over the headers and returns views into the frame. What is not RoCEv2 but understood (ARP, echo,
//! neighbour discovery) comes back parsed; what is valid and somebody else's is [`Frame::Other`]; anything broken is a
//! [`Reject`]. A wrong ICRC is not: [`Packet::icrc_ok`] is asked for separately, so that it can be counted apart.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::Sum;
use super::deth::Deth;
use super::ethernet::{self, EtherType, MacAddr, VlanStack};
use super::ext::Extensions;
use super::immdt::ImmDt;
use super::opcode::Opcode;
use super::{ROCE_PORT, Reject, arp, be16, bth, grh, icmp, icmpv6, icrc, ipv4, ipv6, udp};
use crate::types::{PKey, Qpn};

/// The Ethernet part of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    mac: &'a [u8; 12],
    /// The tags' 0, 4 or 8 bytes.
    tags: &'a [u8],
}

impl Link<'_> {
    /// Destination address.
    #[inline]
    pub fn dst(&self) -> MacAddr {
        let [a, b, c, d, e, f, ..] = *self.mac;
        MacAddr([a, b, c, d, e, f])
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> MacAddr {
        let [.., a, b, c, d, e, f] = *self.mac;
        MacAddr([a, b, c, d, e, f])
    }

    /// VLAN tags.
    #[inline]
    pub fn vlans(&self) -> VlanStack {
        VlanStack::from_tag_bytes(self.tags)
    }

    /// Where the IP header starts in the frame: 14, 18 or 22.
    #[inline]
    pub fn l3_offset(&self) -> usize {
        ethernet::Header::LEN + self.tags.len()
    }
}

/// The IP header of a packet, as received.
#[derive(Clone, Copy, Debug)]
pub enum Ip<'a> {
    /// IPv4, without options.
    V4(&'a [u8; 20]),
    /// IPv6, without extension headers.
    V6(&'a [u8; 40]),
}

impl Ip<'_> {
    /// Source address.
    #[inline]
    pub fn src(&self) -> IpAddr {
        match self {
            Ip::V4(h) => IpAddr::V4(v4_address(h, 12)),
            Ip::V6(h) => IpAddr::V6(ipv6::address(h, 8)),
        }
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> IpAddr {
        match self {
            Ip::V4(h) => IpAddr::V4(v4_address(h, 16)),
            Ip::V6(h) => IpAddr::V6(ipv6::address(h, 24)),
        }
    }

    /// IPv4 type of service or IPv6 traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self {
            Ip::V4(h) => h[1],
            Ip::V6(h) => h[0] << 4 | h[1] >> 4,
        }
    }

    /// Differentiated services code point, 6 bits.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Explicit congestion notification, 2 bits; 3 is "congestion experienced".
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// Time to live, or hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        match self {
            Ip::V4(h) => h[8],
            Ip::V6(h) => h[7],
        }
    }

    /// Whether it is IPv6.
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        matches!(self, Ip::V6(_))
    }

    /// IPv4 identification; `None` of IPv6.
    pub fn ident(&self) -> Option<u16> {
        match self {
            Ip::V4(h) => Some(be16(h[4], h[5])),
            Ip::V6(_) => None,
        }
    }

    /// IPv6 flow label; `None` of IPv4.
    pub fn flow_label(&self) -> Option<u32> {
        match self {
            Ip::V4(_) => None,
            Ip::V6(h) => Some(u32::from_be_bytes([0, h[1] & 0x0f, h[2], h[3]])),
        }
    }
}

/// The IPv4 address at byte `at` of a header.
#[inline]
fn v4_address(h: &[u8; 20], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(h[at], h[at + 1], h[at + 2], h[at + 3])
}

/// A RoCEv2 packet: headers checked, ICRC not.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Ethernet addresses and tags.
    pub link: Link<'a>,
    /// The IP header.
    pub ip: Ip<'a>,
    udp: &'a [u8; 8],
    /// What the ICRC covers: IP header to pad.
    covered: &'a [u8],
    bth_bytes: &'a [u8; 12],
    /// Everything between BTH and ICRC.
    padded: &'a [u8],
    icrc: &'a [u8; 4],
}

impl<'a> Packet<'a> {
    /// The base transport header; its version is 0.
    ///
    /// Read from its bytes at each call, and so are the fields below: a header kept as a value would be stored piece by
    /// piece and loaded in one, which stalls the receive path for longer than everything else that it does here.
    #[inline]
    pub const fn bth(&self) -> bth::Header {
        bth::Header::from_bytes(self.bth_bytes)
    }

    /// Destination queue pair.
    #[inline]
    pub const fn dst_qpn(&self) -> Qpn {
        let [.., a, b, c, d, _, _, _, _] = *self.bth_bytes;
        Qpn::from_word(u32::from_be_bytes([a, b, c, d]))
    }

    /// Partition key.
    #[inline]
    pub const fn pkey(&self) -> PKey {
        PKey(be16(self.bth_bytes[2], self.bth_bytes[3]))
    }

    /// Whether the sender asks for a completion event.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.bth_bytes[1] & 0x80 != 0
    }

    /// UDP source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.udp[0], self.udp[1])
    }

    /// UDP checksum, 0 for none; any other was verified.
    #[inline]
    pub fn udp_checksum(&self) -> u16 {
        be16(self.udp[6], self.udp[7])
    }

    /// Extension headers and payload: everything between the BTH and the pad.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        // `parse` made sure that the pad is not longer; the fallback is for the compiler.
        let len = self.padded.len().saturating_sub(usize::from(pad_of(self.bth_bytes)));
        self.padded.get(..len).unwrap_or_default()
    }

    /// The pad bytes: 0 to 3, zero if the sender is right.
    pub fn padding(&self) -> &'a [u8] {
        self.padded.get(self.body().len()..).unwrap_or_default()
    }

    /// Bytes from the IP header to the end of the ICRC: what a link's MTU counts.
    pub fn ip_len(&self) -> usize {
        self.covered.len() + icrc::LEN
    }

    /// The ICRC as received; its wire bytes are the little-endian ones.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.icrc)
    }

    /// The ICRC that the packet should have.
    #[inline]
    pub fn icrc_expected(&self) -> u32 {
        // `parse` has seen all headers there; the fallback is for the compiler.
        icrc::compute(self.covered).unwrap_or_default()
    }

    /// Whether the packet is intact from end to end.
    #[inline]
    pub fn icrc_ok(&self) -> bool {
        self.icrc() == self.icrc_expected()
    }

    /// Reads the packet as a UD SEND.
    ///
    /// # Errors
    /// [`Opcode`](Reject::Opcode) if it is none; [`ExtensionLength`](Reject::ExtensionLength) if it is too short for its
    /// headers.
    #[inline]
    pub fn ud(&self) -> Result<Ud<'a>, Reject> {
        let body = self.body();
        let with_imm = match Opcode(self.bth_bytes[0]) {
            Opcode::UD_SEND_ONLY => false,
            Opcode::UD_SEND_ONLY_IMM => true,
            Opcode(opcode) => return Err(Reject::Opcode { opcode }),
        };
        let need = Deth::LEN + if with_imm { ImmDt::LEN } else { 0 };
        let short = Reject::ExtensionLength { have: body.len(), need };
        let (deth, rest) = body.split_first_chunk().ok_or(short)?;
        let (imm, payload) = if with_imm {
            let (imm, payload) = rest.split_first_chunk().ok_or(short)?;
            (Some(ImmDt::from_bytes(imm).0), payload)
        } else {
            (None, rest)
        };
        Ok(Ud { deth: Deth::from_bytes(deth), imm, payload })
    }

    /// Reads the extension headers of any opcode, and the payload behind them.
    ///
    /// # Errors
    /// [`ExtensionLength`](Reject::ExtensionLength) if the packet is too short for them.
    pub fn extensions(&self) -> Result<(Extensions, &'a [u8]), Reject> {
        Extensions::parse(Opcode(self.bth_bytes[0]), self.body())
    }

    /// Writes the 40 bytes that verbs users find in front of the payload; see [`grh`].
    #[inline]
    pub fn write_grh(&self, area: &mut [u8; grh::LEN]) {
        *area = match self.ip {
            Ip::V4(ip) => grh::from_v4(ip),
            Ip::V6(ip) => *ip,
        };
    }
}

/// A UD SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ud<'a> {
    /// Q_Key and source queue pair.
    pub deth: Deth,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The payload, without pad.
    pub payload: &'a [u8],
}

/// An ICMP message over IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Icmp4<'a> {
    /// Ethernet addresses and tags.
    pub link: Link<'a>,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// The echo request or reply.
    pub echo: icmp::Echo<'a>,
}

/// An ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp6<'a> {
    /// Ethernet addresses and tags.
    pub link: Link<'a>,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// The message: echo or neighbour discovery, never [`Other`](icmpv6::Message::Other).
    pub message: icmpv6::Message<'a>,
}

/// A valid frame that is not for us: what it is by the first header that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Other {
    /// Another EtherType; below 0x600 it is a length (802.3).
    EtherType(EtherType),
    /// Another IPv4 protocol.
    Ipv4Protocol(u8),
    /// Another IPv6 next header, no extension header.
    Ipv6NextHeader(u8),
    /// UDP to another destination port.
    UdpPort(u16),
    /// Another ICMP type.
    IcmpType(u8),
    /// Another ICMPv6 type.
    Icmpv6Type(u8),
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// A RoCEv2 packet.
    Roce(Packet<'a>),
    /// ARP.
    Arp(Link<'a>, arp::Packet),
    /// ICMP echo.
    Icmp4(Icmp4<'a>),
    /// ICMPv6 echo or neighbour discovery.
    Icmp6(Icmp6<'a>),
    /// Valid, and not ours.
    Other(Other),
}

/// Takes a frame apart, from its Ethernet header to the end of the IP packet; what follows that is ignored.
///
/// # Errors
/// A [`Reject`] for each way in which a frame of these protocols can be broken or unsupported. Opcodes are not looked at.
// Inlined, the views stay in registers; otherwise a packet goes through memory twice, 3 of 23 ns.
#[inline(always)]
pub fn parse(frame: &[u8]) -> Result<Frame<'_>, Reject> {
    parse_verified(frame, Verified::default())
}

/// Checksums of a frame that the port has verified and found right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The IPv4 header's.
    pub ip: bool,
    /// That of UDP.
    pub udp: bool,
}

/// The same for a frame whose checksums somebody may have verified already: those are not looked at.
///
/// # Errors
/// As of [`parse`].
#[inline(always)]
pub fn parse_verified(frame: &[u8], verified: Verified) -> Result<Frame<'_>, Reject> {
    let (mac, tags, ethertype) = ethernet::split(frame)?;
    let link = Link { mac, tags };
    // `split` has just read the type that stands before this.
    let l3 = frame.get(link.l3_offset()..).unwrap_or_default();
    match ethertype {
        EtherType::IPV4 => {
            let (header, payload) = ipv4::split(l3, verified.ip)?;
            match header[9] {
                ipv4::protocol::UDP => parse_udp(link, Ip::V4(header), l3, payload, verified.udp),
                protocol => parse_v4_other(link, header, protocol, payload),
            }
        }
        EtherType::IPV6 => {
            let (header, payload) = ipv6::split(l3)?;
            match header[6] {
                ipv6::next_header::UDP => parse_udp(link, Ip::V6(header), l3, payload, verified.udp),
                next_header => parse_v6_other(link, header, next_header, payload),
            }
        }
        EtherType::ARP => Ok(Frame::Arp(link, arp::Packet::parse(l3)?)),
        _ => Ok(Frame::Other(Other::EtherType(ethertype))),
    }
}

/// A UDP datagram in the IP packet that starts `l3`: ours by its port, then a RoCEv2 packet or refused.
#[inline(always)]
fn parse_udp<'a>(
    link: Link<'a>,
    ip: Ip<'a>,
    l3: &'a [u8],
    datagram: &'a [u8],
    verified: bool,
) -> Result<Frame<'a>, Reject> {
    let have = datagram.len();
    let Some((udp, packet)) = datagram.split_first_chunk::<8>() else {
        return Err(Reject::TooShort { have, need: udp::Header::LEN });
    };
    let port = be16(udp[2], udp[3]);
    if port != ROCE_PORT {
        return Ok(Frame::Other(Other::UdpPort(port)));
    }
    let len = be16(udp[4], udp[5]);
    if usize::from(len) != have {
        return Err(Reject::UdpLength { len, have });
    }
    if udp[6] | udp[7] != 0 && !verified {
        check_udp(ip, datagram)?;
    }
    let length = Reject::RoceLength { have: packet.len(), need: bth::Header::LEN + icrc::LEN };
    let (bth_bytes, rest) = packet.split_first_chunk::<12>().ok_or(length)?;
    let (padded, icrc) = rest.split_last_chunk::<4>().ok_or(length)?;
    let version = bth_bytes[1] & 0x0f;
    if version != 0 {
        return Err(Reject::BthVersion { version });
    }
    if padded.len() % 4 != 0 {
        return Err(Reject::RoceAlignment { have: packet.len() });
    }
    let pad = pad_of(bth_bytes);
    if padded.len() < usize::from(pad) {
        return Err(Reject::PadCount { pad, have: padded.len() });
    }
    let ip_len = if ip.is_ipv6() { ipv6::Header::LEN } else { ipv4::Header::LEN };
    // The datagram was taken from there.
    let covered = l3.get(..ip_len + have - icrc::LEN).unwrap_or_default();
    Ok(Frame::Roce(Packet { link, ip, udp, covered, bth_bytes, padded, icrc }))
}

/// The pad count of a base transport header.
#[inline]
const fn pad_of(bth: &[u8; 12]) -> u8 {
    bth[1] >> 4 & 3
}

/// Verifies a UDP checksum that is present; few senders of RoCEv2 have one.
#[cold]
fn check_udp(ip: Ip<'_>, datagram: &[u8]) -> Result<(), Reject> {
    // Equal to the UDP length, which is 16 bits.
    let len = datagram.len() as u16;
    let pseudo = match ip {
        Ip::V4(h) => Sum::new().pseudo_v4(v4_address(h, 12), v4_address(h, 16), ipv4::protocol::UDP, len),
        Ip::V6(h) => {
            Sum::new().pseudo_v6(ipv6::address(h, 8), ipv6::address(h, 24), ipv6::next_header::UDP, len)
        }
    };
    if pseudo.bytes(datagram).is_valid() {
        return Ok(());
    }
    let found = datagram.get(6..8).map_or(0, |b| be16(b[0], b[1]));
    Err(Reject::UdpChecksum { found })
}

/// An IPv4 packet that is not UDP.
#[cold]
fn parse_v4_other<'a>(
    link: Link<'a>,
    header: &'a [u8; 20],
    protocol: u8,
    payload: &'a [u8],
) -> Result<Frame<'a>, Reject> {
    if protocol != ipv4::protocol::ICMP {
        return Ok(Frame::Other(Other::Ipv4Protocol(protocol)));
    }
    let (src, dst) = (v4_address(header, 12), v4_address(header, 16));
    Ok(match icmp::Message::parse(payload)? {
        icmp::Message::Echo(echo) => Frame::Icmp4(Icmp4 { link, src, dst, echo }),
        icmp::Message::Other { kind, .. } => Frame::Other(Other::IcmpType(kind)),
    })
}

/// An IPv6 packet that is not UDP.
#[cold]
fn parse_v6_other<'a>(
    link: Link<'a>,
    header: &'a [u8; 40],
    next_header: u8,
    payload: &'a [u8],
) -> Result<Frame<'a>, Reject> {
    if next_header != ipv6::next_header::ICMPV6 {
        return Ok(Frame::Other(Other::Ipv6NextHeader(next_header)));
    }
    let (src, dst) = (ipv6::address(header, 8), ipv6::address(header, 24));
    Ok(match icmpv6::Message::parse(payload, src, dst, header[7])? {
        icmpv6::Message::Other { kind, .. } => Frame::Other(Other::Icmpv6Type(kind)),
        message => Frame::Icmp6(Icmp6 { link, src, dst, message }),
    })
}
