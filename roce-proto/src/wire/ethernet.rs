//! Ethernet II headers with up to two VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use thiserror::Error;

use super::{EmitError, Reject, be16};

/// A 48-bit MAC address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Every station of the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// All zeros: no address. Nothing may be sent to it.
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// Whether the group bit is set (broadcast included).
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether every byte is zero.
    #[inline]
    pub const fn is_zero(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// The group address of an IPv4 multicast address: 01:00:5e and its low 23 bits (RFC 1112 §6.4).
    pub const fn for_ipv4_multicast(ip: Ipv4Addr) -> MacAddr {
        let [_, b, c, d] = ip.octets();
        MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// The group address of an IPv6 multicast address: 33:33 and its low 32 bits (RFC 2464 §7).
    pub const fn for_ipv6_multicast(ip: Ipv6Addr) -> MacAddr {
        let o = ip.octets();
        MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no MAC address: six pairs of hex digits between colons (or dashes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a MAC address: six pairs of hex digits such as 52:54:00:12:34:56")]
pub struct MacAddrError;

impl FromStr for MacAddr {
    type Err = MacAddrError;

    fn from_str(text: &str) -> Result<MacAddr, MacAddrError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut bytes = [0; 6];
        let mut parts = text.split(separator);
        for byte in &mut bytes {
            let part = parts.next().ok_or(MacAddrError)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacAddrError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacAddrError)?;
        }
        if parts.next().is_some() {
            return Err(MacAddrError);
        }
        Ok(MacAddr(bytes))
    }
}

/// What an Ethernet frame carries (IEEE registry); below 0x600 it is a length instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// An 802.1Q tag follows.
    pub const VLAN: EtherType = EtherType(0x8100);
    /// An 802.1ad service tag follows.
    pub const QINQ: EtherType = EtherType(0x88a8);
    /// An outer tag as made by equipment older than 802.1ad.
    pub const QINQ_OLD: EtherType = EtherType(0x9100);

    /// Whether a VLAN tag follows.
    #[inline]
    pub const fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::QINQ | EtherType::QINQ_OLD)
    }
}

/// A VLAN tag: its tag protocol, priority, drop eligibility and VLAN identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    tpid: EtherType,
    tci: u16,
}

impl VlanTag {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// A tag of `tpid`. `None` if that is no tag protocol, the priority is above 7 or the identifier above 4095.
    pub const fn new(tpid: EtherType, pcp: u8, dei: bool, vid: u16) -> Option<VlanTag> {
        if !tpid.is_tag() || pcp > 7 || vid > 0x0fff {
            return None;
        }
        Some(VlanTag { tpid, tci: (pcp as u16) << 13 | (dei as u16) << 12 | vid })
    }

    /// An 802.1Q tag of priority 0. `None` if the identifier is above 4095.
    pub const fn dot1q(vid: u16) -> Option<VlanTag> {
        VlanTag::new(EtherType::VLAN, 0, false, vid)
    }

    /// The tag protocol identifier.
    pub const fn tpid(self) -> EtherType {
        self.tpid
    }

    /// Priority code point, 0 to 7.
    pub const fn pcp(self) -> u8 {
        (self.tci >> 13) as u8
    }

    /// Drop eligible indicator.
    pub const fn dei(self) -> bool {
        self.tci & 0x1000 != 0
    }

    /// VLAN identifier, 0 (priority tag) to 4095.
    pub const fn vid(self) -> u16 {
        self.tci & 0x0fff
    }

    /// The tag control information: the last two bytes of the tag.
    pub const fn tci(self) -> u16 {
        self.tci
    }

    /// The tag's four bytes.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 4] {
        let [a, b] = self.tpid.0.to_be_bytes();
        let [c, d] = self.tci.to_be_bytes();
        [a, b, c, d]
    }
}

/// Up to two VLAN tags, the outer one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanStack {
    outer: Option<VlanTag>,
    inner: Option<VlanTag>,
}

impl VlanStack {
    /// No tag.
    pub const EMPTY: VlanStack = VlanStack { outer: None, inner: None };

    /// One tag, or none.
    pub const fn single(tag: Option<VlanTag>) -> VlanStack {
        VlanStack { outer: tag, inner: None }
    }

    /// Two tags.
    pub const fn double(outer: VlanTag, inner: VlanTag) -> VlanStack {
        VlanStack { outer: Some(outer), inner: Some(inner) }
    }

    /// How many tags, 0 to 2.
    pub const fn depth(self) -> usize {
        self.outer.is_some() as usize + self.inner.is_some() as usize
    }

    /// The outer tag: the only one of a plain 802.1Q frame.
    pub const fn outer(self) -> Option<VlanTag> {
        self.outer
    }

    /// The inner tag of a QinQ frame.
    pub const fn inner(self) -> Option<VlanTag> {
        self.inner
    }

    /// The tags, the outer one first.
    pub fn iter(self) -> impl Iterator<Item = VlanTag> {
        self.outer.into_iter().chain(self.inner)
    }

    /// From the 0, 4 or 8 tag bytes of a frame, already checked to be tags.
    pub(crate) fn from_tag_bytes(bytes: &[u8]) -> VlanStack {
        let tag = |b: &[u8; 4]| VlanTag { tpid: EtherType(be16(b[0], b[1])), tci: be16(b[2], b[3]) };
        VlanStack {
            outer: bytes.first_chunk().map(tag),
            inner: bytes.get(VlanTag::LEN..).and_then(|rest| rest.first_chunk()).map(tag),
        }
    }
}

/// An Ethernet header, tags included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// VLAN tags.
    pub vlans: VlanStack,
    /// What follows the header.
    pub ethertype: EtherType,
}

impl Header {
    /// Length in bytes without tags.
    pub const LEN: usize = 14;
    /// Length in bytes with two tags.
    pub const MAX_LEN: usize = Header::LEN + 2 * VlanTag::LEN;

    /// Length of this header in bytes, tags included.
    #[inline]
    pub const fn len(&self) -> usize {
        Header::LEN + self.vlans.depth() * VlanTag::LEN
    }

    /// Always false: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Reads the header and its tags; what follows it starts at [`len`](Header::len).
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort); [`VlanDepth`](Reject::VlanDepth) if a third tag follows.
    pub fn parse(frame: &[u8]) -> Result<Header, Reject> {
        let (mac, tags, ethertype) = split(frame)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *mac;
        Ok(Header {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            vlans: VlanStack::from_tag_bytes(tags),
            ethertype,
        })
    }

    /// Writes the header into the first [`len`](Header::len) bytes.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes.
    pub fn emit(&self, frame: &mut [u8]) -> Result<(), EmitError> {
        let (have, need) = (frame.len(), self.len());
        let out = frame.get_mut(..need).ok_or(EmitError::BufferLength { have, need })?;
        out[0..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        let mut at = 12;
        for tag in self.vlans.iter() {
            out[at..at + 4].copy_from_slice(&tag.to_bytes());
            at += VlanTag::LEN;
        }
        out[at..at + 2].copy_from_slice(&self.ethertype.0.to_be_bytes());
        Ok(())
    }
}

/// The parts of an Ethernet header: the two addresses, the tag bytes (0, 4 or 8) and the type after them.
type Parts<'a> = (&'a [u8; 12], &'a [u8], EtherType);

/// Splits an Ethernet header without copying.
#[inline]
pub(crate) fn split(frame: &[u8]) -> Result<Parts<'_>, Reject> {
    let Some((mac, rest)) = frame.split_first_chunk::<12>() else {
        return Err(Reject::TooShort { have: frame.len(), need: Header::LEN });
    };
    let &[a, b, ..] = rest else {
        return Err(Reject::TooShort { have: frame.len(), need: Header::LEN });
    };
    let ethertype = EtherType(be16(a, b));
    if !ethertype.is_tag() {
        return Ok((mac, &[], ethertype));
    }
    split_tags(frame.len(), mac, rest)
}

/// The rarer half of [`split`]: `rest` starts with a tag.
#[inline]
fn split_tags<'a>(have: usize, mac: &'a [u8; 12], rest: &'a [u8]) -> Result<Parts<'a>, Reject> {
    for depth in 1..=2 {
        let tags = depth * VlanTag::LEN;
        let Some((&[a, b], _)) = rest.get(tags..).and_then(|r| r.split_first_chunk()) else {
            return Err(Reject::TooShort { have, need: Header::LEN + tags });
        };
        let ethertype = EtherType(be16(a, b));
        if !ethertype.is_tag() {
            return Ok((mac, &rest[..tags], ethertype));
        }
    }
    Err(Reject::VlanDepth)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [u8; 12] = [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1];

    fn frame(tail: &[u8]) -> Vec<u8> {
        [&MACS[..], tail].concat()
    }

    #[test]
    fn known_bytes_of_a_capture() {
        let bytes = frame(&[0x08, 0x00]);
        let h = Header::parse(&bytes).expect("valid");
        assert_eq!(h.dst.to_string(), "52:54:00:00:00:02");
        assert_eq!(h.src, MacAddr([0x52, 0x54, 0, 0, 0, 1]));
        assert_eq!((h.vlans.depth(), h.ethertype, h.len()), (0, EtherType::IPV4, 14));
        let mut out = [0; 14];
        h.emit(&mut out).expect("fits");
        assert_eq!(out, bytes[..]);
    }

    #[test]
    fn one_and_two_tags() {
        let one = frame(&[0x81, 0x00, 0xa0, 0x2a, 0x86, 0xdd]);
        let h = Header::parse(&one).expect("valid");
        let tag = h.vlans.outer().expect("a tag");
        assert_eq!((tag.pcp(), tag.dei(), tag.vid()), (5, false, 42));
        assert_eq!((h.vlans.inner(), h.ethertype, h.len()), (None, EtherType::IPV6, 18));

        let two = frame(&[0x88, 0xa8, 0x10, 0x07, 0x81, 0x00, 0x0f, 0xff, 0x08, 0x06]);
        let h = Header::parse(&two).expect("valid");
        let outer = VlanTag::new(EtherType::QINQ, 0, true, 7).expect("valid");
        assert_eq!(h.vlans, VlanStack::double(outer, VlanTag::dot1q(4095).expect("valid")));
        assert_eq!((h.ethertype, h.len()), (EtherType::ARP, 22));
        let mut out = [0; 22];
        h.emit(&mut out).expect("fits");
        assert_eq!(out, two[..]);
        assert_eq!(h.emit(&mut out[..21]), Err(EmitError::BufferLength { have: 21, need: 22 }));
    }

    #[test]
    fn refusals() {
        let three = frame(&[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0]);
        assert_eq!(Header::parse(&three), Err(Reject::VlanDepth));
        assert_eq!(Header::parse(&MACS[..11]), Err(Reject::TooShort { have: 11, need: 14 }));
        assert_eq!(Header::parse(&frame(&[8])), Err(Reject::TooShort { have: 13, need: 14 }));
        let cut = frame(&[0x81, 0, 0, 1, 8]);
        assert_eq!(Header::parse(&cut), Err(Reject::TooShort { have: 17, need: 18 }));
        assert_eq!(VlanTag::dot1q(4096), None);
        assert_eq!(VlanTag::new(EtherType::VLAN, 8, false, 1), None);
        assert_eq!(VlanTag::new(EtherType::IPV4, 0, false, 1), None);
    }

    #[test]
    fn addresses_from_text_and_from_groups() {
        assert_eq!("52:54:00:AB:cd:ef".parse(), Ok(MacAddr([0x52, 0x54, 0, 0xab, 0xcd, 0xef])));
        assert_eq!("52-54-00-ab-cd-ef".parse(), Ok(MacAddr([0x52, 0x54, 0, 0xab, 0xcd, 0xef])));
        for bad in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:ef:01",
            "52:54:0:ab:cd:ef",
            "+2:54:00:ab:cd:ef",
            "é2:54:00",
        ] {
            assert_eq!(bad.parse::<MacAddr>(), Err(MacAddrError), "{bad}");
        }
        let v4 = MacAddr::for_ipv4_multicast(Ipv4Addr::new(239, 129, 2, 3));
        assert_eq!(v4.to_string(), "01:00:5e:01:02:03");
        let v6 = MacAddr::for_ipv6_multicast("ff0e::1:77".parse().expect("an address"));
        assert_eq!(v6.to_string(), "33:33:00:01:00:77");
        assert!(v4.is_multicast() && MacAddr::BROADCAST.is_multicast() && !MacAddr::ZERO.is_multicast());
        assert!(MacAddr::ZERO.is_zero() && !v4.is_zero());
    }
}
