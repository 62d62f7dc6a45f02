//! Building UD packets: the fast path of sending.
//!
//! A [`Template`] is made once for a route and holds everything that its packets have in common; [`Template::emit`] fills
//! in the rest around a payload that already stands in the frame, and computes the ICRC in one pass over it.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::deth::Deth;
use super::ethernet::{self, EtherType, MacAddr, VlanStack, VlanTag};
use super::icrc::{self, Prefix};
use super::immdt::ImmDt;
use super::opcode::Opcode;
use super::{EmitError, ROCE_PORT, bth, ipv4, ipv6, udp};
use crate::types::{PKey, Psn, QKey, Qpn};

/// The addresses of a route, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpRoute {
    /// By IPv4.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
        /// Identification field. 0 is right for packets that may not be fragmented, and all ours may not (RFC 6864);
        /// another value reproduces the packets of another implementation.
        ident: u16,
    },
    /// By IPv6.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
        /// Flow label, 20 bits.
        flow_label: u32,
    },
}

/// Where packets go and how: what an address handle and a port give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The port's own address.
    pub src_mac: MacAddr,
    /// The next hop's address.
    pub dst_mac: MacAddr,
    /// A VLAN tag to send with.
    pub vlan: Option<VlanTag>,
    /// IP addresses.
    pub ip: IpRoute,
    /// Differentiated services code point, the low 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, the low 2 bits.
    pub ecn: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// UDP source port: the entropy by which networks choose a path.
    pub src_port: u16,
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Send {
    /// Destination queue pair.
    pub dst_qpn: Qpn,
    /// The sending queue pair.
    pub src_qpn: Qpn,
    /// The Q_Key as it goes on the wire; the rule of [controlled keys](QKey::is_controlled) is applied before.
    pub qkey: QKey,
    /// Partition key.
    pub pkey: PKey,
    /// Packet sequence number.
    pub psn: Psn,
    /// Immediate data, making the packet a "SEND only with immediate".
    pub imm: Option<u32>,
    /// Asks for a solicited completion event.
    pub solicited: bool,
}

/// Bytes of BTH and DETH.
const TRANSPORT: usize = bth::Header::LEN + Deth::LEN;
/// The longest Ethernet, IP and UDP headers: one VLAN tag, IPv6.
const MAX_PREFIX: usize = ethernet::Header::LEN + VlanTag::LEN + ipv6::Header::LEN + udp::Header::LEN;
/// The shortest: no tag, IPv4.
const MIN_PREFIX: usize = ethernet::Header::LEN + ipv4::Header::LEN + udp::Header::LEN;
/// The first bytes of a prefix, which may be copied whatever its length: transport headers follow and overwrite.
const COMMON: usize = MIN_PREFIX + TRANSPORT;

/// The longest headers before a payload in bytes: VLAN tag, IPv6, immediate.
pub const MAX_HEADER_LEN: usize = MAX_PREFIX + TRANSPORT + ImmDt::LEN;

/// Bytes that a link's MTU counts around a payload, pad not included: IP header to extension headers, and ICRC.
///
/// ```
/// use roce_proto::{types::Mtu, wire::ud::overhead};
/// assert_eq!(overhead(false, false), 52);
/// assert_eq!(Mtu::fitting(1500, overhead(true, true)), Some(Mtu::B1024));
/// ```
pub const fn overhead(ipv6: bool, imm: bool) -> usize {
    let ip = if ipv6 { ipv6::Header::LEN } else { ipv4::Header::LEN };
    ip + udp::Header::LEN + TRANSPORT + if imm { ImmDt::LEN } else { 0 } + icrc::LEN
}

/// Zero bytes after a payload, up to a multiple of four.
#[inline]
pub const fn pad(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// BTH and DETH side by side.
#[inline]
const fn transport_bytes(bth: &bth::Header, deth: &Deth) -> [u8; TRANSPORT] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bth.to_bytes();
    let [m, n, o, p, q, r, s, t] = deth.to_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t]
}

/// The same, followed by an immediate.
#[inline]
const fn join(head: [u8; TRANSPORT], imm: [u8; ImmDt::LEN]) -> [u8; TRANSPORT + ImmDt::LEN] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = head;
    let [u, v, w, x] = imm;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x]
}

/// The precomputed part of the packets of one route.
///
/// IPv4 packets have DF set; the UDP checksum is 0, as RoCEv2 allows and Linux does.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Ethernet, IP and UDP headers, lengths and IPv4 checksum zero; `prefix_len` bytes of it are used.
    bytes: [u8; MAX_PREFIX],
    /// 42, 46, 62 or 66.
    prefix_len: u8,
    /// Where the IP header starts: 14 or 18.
    l3: u8,
    ipv6: bool,
    /// Folded sum of the IPv4 header without its total length.
    ip_sum: u16,
    /// CRC of what the ICRC covers of the prefix, lengths zero.
    crc: Prefix,
}

impl Template {
    /// Precomputes the packets of a route. Fields wider than their place are cut to it.
    pub fn new(route: &Route) -> Template {
        let vlans = VlanStack::single(route.vlan);
        let (ethertype, ipv6) = match route.ip {
            IpRoute::V4 { .. } => (EtherType::IPV4, false),
            IpRoute::V6 { .. } => (EtherType::IPV6, true),
        };
        let ethernet = ethernet::Header { dst: route.dst_mac, src: route.src_mac, vlans, ethertype };
        let l3 = ethernet.len();
        let mut bytes = [0; MAX_PREFIX];
        // The buffer holds one tag and IPv6, the longest there is.
        let _ = ethernet.emit(&mut bytes);
        let udp = udp::Header { src_port: route.src_port, dst_port: ROCE_PORT, len: 0, checksum: 0 };
        let (l4, crc, ip_sum) = match route.ip {
            IpRoute::V4 { src, dst, ident } => {
                let mut ip = ipv4::Header {
                    dscp: route.dscp,
                    ecn: route.ecn,
                    total_len: 0,
                    ident,
                    dont_fragment: true,
                    ttl: route.hop_limit,
                    protocol: ipv4::protocol::UDP,
                    src,
                    dst,
                }
                .to_bytes();
                let ip_sum = !u16::from_be_bytes([ip[10], ip[11]]);
                ip[10..12].fill(0);
                bytes[l3..l3 + 20].copy_from_slice(&ip);
                (l3 + 20, Prefix::v4(&ip, &udp.to_bytes()), ip_sum)
            }
            IpRoute::V6 { src, dst, flow_label } => {
                let ip = ipv6::Header {
                    dscp: route.dscp,
                    ecn: route.ecn,
                    flow_label,
                    payload_len: 0,
                    next_header: ipv6::next_header::UDP,
                    hop_limit: route.hop_limit,
                    src,
                    dst,
                }
                .to_bytes();
                bytes[l3..l3 + 40].copy_from_slice(&ip);
                (l3 + 40, Prefix::v6(&ip, &udp.to_bytes()), 0)
            }
        };
        bytes[l4..l4 + 8].copy_from_slice(&udp.to_bytes());
        Template { bytes, prefix_len: (l4 + 8) as u8, l3: l3 as u8, ipv6, ip_sum, crc }
    }

    /// Changes the UDP source port: another path, the same route.
    #[inline]
    pub fn set_src_port(&mut self, port: u16) {
        let l4 = usize::from(self.prefix_len) - udp::Header::LEN;
        let old = u16::from_be_bytes([self.bytes[l4], self.bytes[l4 + 1]]);
        self.bytes[l4..l4 + 2].copy_from_slice(&port.to_be_bytes());
        self.crc = self.crc.with_other_src_port(old ^ port);
    }

    /// Changes where its packets go on the link: the next hop has another address. No ICRC covers it.
    #[inline]
    pub fn set_dst_mac(&mut self, mac: MacAddr) {
        if let Some(place) = self.bytes.first_chunk_mut() {
            *place = mac.0;
        }
    }

    /// The route that it is for: what [`Template::new`] was given, cut to the fields' places, and what was changed since.
    pub fn route(&self) -> Route {
        let l3 = usize::from(self.l3);
        let mac = |at: usize| MacAddr(core::array::from_fn(|i| self.bytes[at + i]));
        let (ip, dscp, ecn, hop_limit) = if self.ipv6 {
            let ip = ipv6::Header::from_bytes(&core::array::from_fn(|i| self.bytes[l3 + i]));
            let addresses = IpRoute::V6 { src: ip.src, dst: ip.dst, flow_label: ip.flow_label };
            (addresses, ip.dscp, ip.ecn, ip.hop_limit)
        } else {
            let ip = ipv4::Header::from_bytes(&core::array::from_fn(|i| self.bytes[l3 + i]));
            (IpRoute::V4 { src: ip.src, dst: ip.dst, ident: ip.ident }, ip.dscp, ip.ecn, ip.ttl)
        };
        let tags = &self.bytes[12..l3 - 2];
        Route {
            src_mac: mac(6),
            dst_mac: mac(0),
            vlan: VlanStack::from_tag_bytes(tags).outer(),
            ip,
            dscp,
            ecn,
            hop_limit,
            src_port: self.src_port(),
        }
    }

    /// Whether its packets carry a VLAN tag.
    #[inline]
    pub const fn is_tagged(&self) -> bool {
        self.l3 as usize != ethernet::Header::LEN
    }

    /// The UDP source port.
    #[inline]
    pub const fn src_port(&self) -> u16 {
        let l4 = self.prefix_len as usize - udp::Header::LEN;
        u16::from_be_bytes([self.bytes[l4], self.bytes[l4 + 1]])
    }

    /// Whether the packets are IPv6.
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Bytes before the payload.
    #[inline]
    pub const fn header_len(&self, imm: bool) -> usize {
        self.prefix_len as usize + TRANSPORT + if imm { ImmDt::LEN } else { 0 }
    }

    /// Bytes of the whole frame: headers, payload, pad and ICRC, without an Ethernet frame check sequence.
    #[inline]
    pub const fn frame_len(&self, imm: bool, payload_len: usize) -> usize {
        self.header_len(imm) + payload_len + pad(payload_len) + icrc::LEN
    }

    /// The largest payload whose packet an IP length field can tell, in bytes.
    pub const fn max_payload(&self, imm: bool) -> usize {
        let ip = if self.ipv6 { 0 } else { ipv4::Header::LEN };
        let around = ip + udp::Header::LEN + TRANSPORT + if imm { ImmDt::LEN } else { 0 } + icrc::LEN;
        // UDP lengths are multiples of four for RoCE.
        (u16::MAX as usize - around) & !3
    }

    /// Writes headers, pad and ICRC around the payload, which already stands at
    /// [`header_len`](Template::header_len) in `frame`.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) unless `frame` has exactly [`frame_len`](Template::frame_len) bytes;
    /// [`PayloadTooLong`](EmitError::PayloadTooLong) beyond [`max_payload`](Template::max_payload).
    #[inline]
    pub fn emit(&self, send: &Send, payload_len: usize, frame: &mut [u8]) -> Result<(), EmitError> {
        let imm = send.imm.is_some();
        if payload_len > self.max_payload(imm) {
            return Err(EmitError::PayloadTooLong { len: payload_len, max: self.max_payload(imm) });
        }
        let (have, need) = (frame.len(), self.frame_len(imm, payload_len));
        if have != need {
            return Err(EmitError::BufferLength { have, need });
        }
        // In these the lengths were just checked to hold; the errors are for the compiler.
        let short = EmitError::BufferLength { have, need };
        let prefix_len = usize::from(self.prefix_len);

        // A copy of constant length reaches into the transport headers, never into the payload.
        let (common, tail) = self.bytes.split_first_chunk::<COMMON>().ok_or(short)?;
        *frame.first_chunk_mut().ok_or(short)? = *common;
        if prefix_len == MAX_PREFIX {
            frame.get_mut(COMMON..MAX_PREFIX).ok_or(short)?.copy_from_slice(tail);
        }
        let (prefix, transport) = frame.split_at_mut_checked(prefix_len).ok_or(short)?;
        let udp_len = (udp::Header::LEN + transport.len()) as u16;
        let crc = self.fill_lengths(prefix, udp_len).ok_or(short)?;

        let pad = pad(payload_len);
        let opcode = if imm { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
        let bth = bth::Header {
            opcode,
            solicited: send.solicited,
            migrated: false,
            pad: pad as u8,
            version: 0,
            pkey: send.pkey,
            fecn: false,
            becn: false,
            dst_qpn: send.dst_qpn,
            ack_request: false,
            psn: send.psn,
        };
        let deth = Deth { qkey: send.qkey, src_qpn: send.src_qpn };
        let head = transport_bytes(&bth, &deth);
        let (head_out, rest) = transport.split_first_chunk_mut::<TRANSPORT>().ok_or(short)?;
        *head_out = head;
        let (rest, icrc) = rest.split_last_chunk_mut::<{ icrc::LEN }>().ok_or(short)?;
        if pad != 0 {
            let end = rest.len();
            rest[end - pad..].fill(0);
        }
        let crc = match send.imm {
            None => icrc::finish(crc, head, rest),
            Some(imm) => {
                let imm = ImmDt(imm).to_bytes();
                let (imm_out, rest) = rest.split_first_chunk_mut().ok_or(short)?;
                *imm_out = imm;
                icrc::finish(crc, join(head, imm), rest)
            }
        };
        *icrc = crc.to_le_bytes();
        Ok(())
    }

    /// Fills in the lengths, and the IPv4 checksum; returns the CRC so far. `None` never happens.
    #[inline]
    fn fill_lengths(&self, prefix: &mut [u8], udp_len: u16) -> Option<u32> {
        let ip = prefix.get_mut(usize::from(self.l3)..)?;
        if self.ipv6 {
            let ip = ip.first_chunk_mut::<{ ipv6::Header::LEN + udp::Header::LEN }>()?;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[44..46].copy_from_slice(&udp_len.to_be_bytes());
            Some(self.crc.with_v6_length(udp_len))
        } else {
            let ip = ip.first_chunk_mut::<{ ipv4::Header::LEN + udp::Header::LEN }>()?;
            let total = udp_len + ipv4::Header::LEN as u16;
            let sum = u32::from(self.ip_sum) + u32::from(total);
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            ip[24..26].copy_from_slice(&udp_len.to_be_bytes());
            Some(self.crc.with_v4_lengths(total, udp_len))
        }
    }
}
