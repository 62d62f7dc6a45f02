//! ICMPv6 echo (RFC 4443) and neighbour discovery (RFC 4861): solicitation and advertisement.

use core::net::Ipv6Addr;

use super::checksum::Sum;
use super::ethernet::MacAddr;
use super::icmp::Echo;
use super::ipv6::next_header::ICMPV6;
use super::{EmitError, Reject, be16, head};

/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 128;
/// Type of an echo reply.
pub const ECHO_REPLY: u8 = 129;
/// Type of a neighbour solicitation.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Type of a neighbour advertisement.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Hop limit of every neighbour discovery packet: one that has crossed a router has less.
pub const ND_HOP_LIMIT: u8 = 255;

/// Option type of a source link-layer address.
const SOURCE_LINK_LAYER: u8 = 1;
/// Option type of a target link-layer address.
const TARGET_LINK_LAYER: u8 = 2;
/// Bytes before the options: type, code, checksum, flags and target.
const ND_HEADER: usize = 24;
/// Bytes of a link-layer address option of Ethernet.
const ND_OPTION: usize = 8;

/// A neighbour solicitation: who has the target address?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Solicitation {
    /// The address asked about.
    pub target: Ipv6Addr,
    /// The asker's link-layer address; left out by one that has no address yet (duplicate address detection).
    pub source_mac: Option<MacAddr>,
}

/// A neighbour advertisement: the target address is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advertisement {
    /// The sender is a router.
    pub router: bool,
    /// It answers a solicitation.
    pub solicited: bool,
    /// It should replace a cached link-layer address.
    pub override_cached: bool,
    /// The address advertised.
    pub target: Ipv6Addr,
    /// Its link-layer address.
    pub target_mac: Option<MacAddr>,
}

/// An ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// Echo request or reply.
    Echo(Echo<'a>),
    /// Neighbour solicitation.
    Solicitation(Solicitation),
    /// Neighbour advertisement.
    Advertisement(Advertisement),
    /// A message of another type or code: valid, and not looked into.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

/// The solicited-node multicast address of `ip` (RFC 4291 §2.7.1): where a solicitation for it goes.
pub const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let s = ip.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (s[6] & 0xff), s[7])
}

impl<'a> Message<'a> {
    /// Reads an ICMPv6 message, all of an IPv6 payload, and checks it against its IP header.
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort), [`Icmpv6Checksum`](Reject::Icmpv6Checksum); of neighbour discovery
    /// [`NdHopLimit`](Reject::NdHopLimit), [`NdInvalid`](Reject::NdInvalid), [`NdOption`](Reject::NdOption).
    pub fn parse(
        bytes: &'a [u8],
        src: Ipv6Addr,
        dst: Ipv6Addr,
        hop_limit: u8,
    ) -> Result<Message<'a>, Reject> {
        let h: &[u8; Echo::HEADER_LEN] = head(bytes)?;
        // An IPv6 payload is never longer than 65,535 bytes.
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        if !Sum::new().pseudo_v6(src, dst, ICMPV6, len).bytes(bytes).is_valid() {
            return Err(Reject::Icmpv6Checksum { found: be16(h[2], h[3]) });
        }
        match (h[0], h[1]) {
            (ECHO_REQUEST, 0) => Ok(Message::Echo(Echo::from_parts(false, bytes))),
            (ECHO_REPLY, 0) => Ok(Message::Echo(Echo::from_parts(true, bytes))),
            (kind @ (NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT), code) => {
                if hop_limit != ND_HOP_LIMIT {
                    return Err(Reject::NdHopLimit { hop_limit });
                }
                if code != 0 {
                    return Err(Reject::NdInvalid);
                }
                if kind == NEIGHBOUR_SOLICITATION {
                    Ok(Message::Solicitation(Solicitation::parse(bytes, src, dst)?))
                } else {
                    Ok(Message::Advertisement(Advertisement::parse(bytes, dst)?))
                }
            }
            (kind, code) => Ok(Message::Other { kind, code }),
        }
    }

    /// Length of the message in bytes; 0 for one that cannot be emitted.
    pub const fn len(&self) -> usize {
        match self {
            Message::Echo(echo) => echo.len(),
            Message::Solicitation(s) => ND_HEADER + if s.source_mac.is_some() { ND_OPTION } else { 0 },
            Message::Advertisement(a) => ND_HEADER + if a.target_mac.is_some() { ND_OPTION } else { 0 },
            Message::Other { .. } => 0,
        }
    }

    /// Whether there is nothing to emit.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the message, with the checksum for these addresses, into the first [`len`](Message::len) bytes.
    /// [`Other`](Message::Other) writes nothing.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes; [`PayloadTooLong`](EmitError::PayloadTooLong) for an
    /// echo that no IPv6 packet holds.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, bytes: &mut [u8]) -> Result<(), EmitError> {
        let need = self.len();
        let max = usize::from(u16::MAX);
        let len = u16::try_from(need).map_err(|_| EmitError::PayloadTooLong { len: need, max })?;
        let pseudo = Sum::new().pseudo_v6(src, dst, ICMPV6, len);
        match self {
            Message::Echo(echo) => {
                let kind = if echo.is_reply { ECHO_REPLY } else { ECHO_REQUEST };
                echo.emit_with(kind, pseudo, bytes)
            }
            Message::Solicitation(s) => {
                let option = s.source_mac.map(|mac| (SOURCE_LINK_LAYER, mac));
                emit_nd(NEIGHBOUR_SOLICITATION, 0, s.target, option, pseudo, bytes)
            }
            Message::Advertisement(a) => {
                let flags =
                    u8::from(a.router) << 7 | u8::from(a.solicited) << 6 | u8::from(a.override_cached) << 5;
                let option = a.target_mac.map(|mac| (TARGET_LINK_LAYER, mac));
                emit_nd(NEIGHBOUR_ADVERTISEMENT, flags, a.target, option, pseudo, bytes)
            }
            Message::Other { .. } => Ok(()),
        }
    }
}

/// Writes a neighbour discovery message with at most one link-layer address option.
fn emit_nd(
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: Option<(u8, MacAddr)>,
    pseudo: Sum,
    bytes: &mut [u8],
) -> Result<(), EmitError> {
    let have = bytes.len();
    let need = ND_HEADER + if option.is_some() { ND_OPTION } else { 0 };
    let out = bytes.get_mut(..need).ok_or(EmitError::BufferLength { have, need })?;
    out[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    out[8..ND_HEADER].copy_from_slice(&target.octets());
    if let Some((option, mac)) = option {
        out[ND_HEADER..ND_HEADER + 2].copy_from_slice(&[option, 1]);
        out[ND_HEADER + 2..].copy_from_slice(&mac.0);
    }
    let checksum = pseudo.bytes(out).checksum();
    out[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// The flags byte, the target and the options of a neighbour discovery message.
fn split_nd(bytes: &[u8]) -> Result<(u8, Ipv6Addr, &[u8]), Reject> {
    let b: &[u8; ND_HEADER] = head(bytes)?;
    let mut target = [0; 16];
    target.copy_from_slice(&b[8..]);
    let target = Ipv6Addr::from(target);
    if target.is_multicast() {
        return Err(Reject::NdInvalid);
    }
    Ok((b[4], target, &bytes[ND_HEADER..]))
}

/// The link-layer address in the options, if there is one of the type `wanted`; the options' lengths are all checked.
fn link_layer_option(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, Reject> {
    let mut found = None;
    while let Some(&kind) = options.first() {
        let have = options.len();
        let len = options.get(1).map_or(0, |&units| usize::from(units) * 8);
        if len == 0 || len > have || (kind == wanted && len != ND_OPTION) {
            return Err(Reject::NdOption { kind, len, have });
        }
        if let (true, &[_, _, a, b, c, d, e, f, ..]) = (kind == wanted, options) {
            found = Some(MacAddr([a, b, c, d, e, f]));
        }
        options = &options[len..];
    }
    Ok(found)
}

impl Solicitation {
    fn parse(bytes: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<Solicitation, Reject> {
        let (_, target, options) = split_nd(bytes)?;
        let source_mac = link_layer_option(options, SOURCE_LINK_LAYER)?;
        // One without an address asks the solicited-node group, and has no link-layer address to give.
        if src.is_unspecified() && (source_mac.is_some() || dst != solicited_node(target)) {
            return Err(Reject::NdInvalid);
        }
        Ok(Solicitation { target, source_mac })
    }
}

impl Advertisement {
    fn parse(bytes: &[u8], dst: Ipv6Addr) -> Result<Advertisement, Reject> {
        let (flags, target, options) = split_nd(bytes)?;
        let target_mac = link_layer_option(options, TARGET_LINK_LAYER)?;
        let solicited = flags & 0x40 != 0;
        if solicited && dst.is_multicast() {
            return Err(Reject::NdInvalid);
        }
        let (router, override_cached) = (flags & 0x80 != 0, flags & 0x20 != 0);
        Ok(Advertisement { router, solicited, override_cached, target, target_mac })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ICMPv6 messages of `ud-v6-nd.pcap`.
    const NS: [u8; 32] = [
        0x87, 0x00, 0xdb, 0xf7, 0x00, 0x00, 0x00, 0x00, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        1, 1, 0x52, 0x54, 0, 0, 0, 1,
    ];
    const NA: [u8; 32] = [
        0x88, 0x00, 0x7a, 0x83, 0x60, 0x00, 0x00, 0x00, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        2, 1, 0x52, 0x54, 0, 0, 0, 2,
    ];

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    /// `message` with one byte changed and the checksum made right again.
    fn with(message: &[u8], at: usize, value: u8, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
        let mut b = message.to_vec();
        b[at] = value;
        b[2..4].fill(0);
        let sum = Sum::new().pseudo_v6(src, dst, ICMPV6, b.len() as u16).bytes(&b).checksum();
        b[2..4].copy_from_slice(&sum.to_be_bytes());
        b
    }

    #[test]
    fn known_bytes_of_a_capture() {
        let (a, group, b) = (ip("fe80::5054:ff:fe00:1"), ip("ff02::1:ff00:2"), ip("fd77::2"));
        assert_eq!(solicited_node(b), group);
        let ns = Solicitation { target: b, source_mac: Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])) };
        assert_eq!(Message::parse(&NS, a, group, 255), Ok(Message::Solicitation(ns)));
        let na = Advertisement {
            router: false,
            solicited: true,
            override_cached: true,
            target: b,
            target_mac: Some(MacAddr([0x52, 0x54, 0, 0, 0, 2])),
        };
        assert_eq!(Message::parse(&NA, b, a, 255), Ok(Message::Advertisement(na)));
        let mut out = [0; 32];
        Message::Solicitation(ns).emit(a, group, &mut out).expect("fits");
        assert_eq!(out, NS);
        Message::Advertisement(na).emit(b, a, &mut out).expect("fits");
        assert_eq!(out, NA);
        let short = Message::Advertisement(na).emit(b, a, &mut out[..31]);
        assert_eq!(short, Err(EmitError::BufferLength { have: 31, need: 32 }));
    }

    #[test]
    fn rules_of_rfc_4861() {
        let (a, group, b) = (ip("fe80::5054:ff:fe00:1"), ip("ff02::1:ff00:2"), ip("fd77::2"));
        assert_eq!(Message::parse(&NS, a, group, 254), Err(Reject::NdHopLimit { hop_limit: 254 }));
        assert_eq!(Message::parse(&NS, a, b, 255), Err(Reject::Icmpv6Checksum { found: 0xdbf7 }));
        assert_eq!(Message::parse(&NS[..7], a, group, 255), Err(Reject::TooShort { have: 7, need: 8 }));
        let code = with(&NS, 1, 1, a, group);
        assert_eq!(Message::parse(&code, a, group, 255), Err(Reject::NdInvalid));
        let multicast_target = with(&NS, 8, 0xff, a, group);
        assert_eq!(Message::parse(&multicast_target, a, group, 255), Err(Reject::NdInvalid));
        let cut = with(&NS[..23], 1, 0, a, group);
        assert_eq!(Message::parse(&cut, a, group, 255), Err(Reject::TooShort { have: 23, need: 24 }));
        // Options: none, of length zero, beyond the end, of a wrong length, unknown.
        let none = with(&NS[..24], 1, 0, a, group);
        let bare = Solicitation { target: b, source_mac: None };
        assert_eq!(Message::parse(&none, a, group, 255), Ok(Message::Solicitation(bare)));
        let zero = with(&NS, 25, 0, a, group);
        assert_eq!(Message::parse(&zero, a, group, 255), Err(Reject::NdOption { kind: 1, len: 0, have: 8 }));
        let beyond = with(&NS, 25, 2, a, group);
        assert_eq!(
            Message::parse(&beyond, a, group, 255),
            Err(Reject::NdOption { kind: 1, len: 16, have: 8 })
        );
        let half = with(&NS[..25], 1, 0, a, group);
        assert_eq!(Message::parse(&half, a, group, 255), Err(Reject::NdOption { kind: 1, len: 0, have: 1 }));
        let unknown = with(&NS, 24, 14, a, group);
        assert_eq!(Message::parse(&unknown, a, group, 255), Ok(Message::Solicitation(bare)));
        // Without a source address: only to the solicited-node group, and without a link-layer address.
        let any = Ipv6Addr::UNSPECIFIED;
        let dad = with(&NS[..24], 1, 0, any, group);
        assert_eq!(Message::parse(&dad, any, group, 255), Ok(Message::Solicitation(bare)));
        let with_mac = with(&NS, 1, 0, any, group);
        assert_eq!(Message::parse(&with_mac, any, group, 255), Err(Reject::NdInvalid));
        let unicast = with(&NS[..24], 1, 0, any, b);
        assert_eq!(Message::parse(&unicast, any, b, 255), Err(Reject::NdInvalid));
        // A solicited advertisement goes to whoever asked, never to a group.
        let all = ip("ff02::1");
        let to_all = with(&NA, 4, 0x60, b, all);
        assert_eq!(Message::parse(&to_all, b, all, 255), Err(Reject::NdInvalid));
        let unsolicited = with(&NA, 4, 0x20, b, all);
        assert!(matches!(Message::parse(&unsolicited, b, all, 255), Ok(Message::Advertisement(_))));
    }

    #[test]
    fn echo_and_other_types() {
        let (a, b) = (ip("fd77::1"), ip("fd77::2"));
        let echo = Echo { is_reply: false, ident: 7, sequence: 9, data: b"abc" };
        let mut out = [0; 11];
        Message::Echo(echo).emit(a, b, &mut out).expect("fits");
        assert_eq!(out[0], 128);
        assert_eq!(Message::parse(&out, a, b, 1), Ok(Message::Echo(echo)));
        Message::Echo(echo.reply()).emit(b, a, &mut out).expect("fits");
        assert_eq!(out[0], 129);
        assert_eq!(Message::parse(&out, b, a, 64), Ok(Message::Echo(echo.reply())));
        let router = with(&[0; 16], 0, 133, a, b);
        assert_eq!(Message::parse(&router, a, b, 255), Ok(Message::Other { kind: 133, code: 0 }));
    }
}
