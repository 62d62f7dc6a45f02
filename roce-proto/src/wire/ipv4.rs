//! IPv4 headers without options (RFC 791), of packets that are never fragmented.

use core::net::Ipv4Addr;

use super::checksum::Sum;
use super::{EmitError, Reject, be16, head, head_mut};

/// Protocol numbers that are looked at (IANA registry).
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// UDP.
    pub const UDP: u8 = 17;
}

/// An IPv4 header of 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits (RFC 3168).
    pub ecn: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification; means nothing in a packet that may not be fragmented (RFC 6864), yet the ICRC covers it.
    pub ident: u16,
    /// The "don't fragment" flag.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

impl Header {
    /// Length on the wire in bytes.
    pub const LEN: usize = 20;

    /// Reads a header and checks that its packet lies whole in `bytes`, which may be longer (Ethernet pads short frames).
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort), [`IpVersion`](Reject::IpVersion), [`Ipv4HeaderLength`](Reject::Ipv4HeaderLength),
    /// [`Ipv4Options`](Reject::Ipv4Options), [`Ipv4Fragment`](Reject::Ipv4Fragment),
    /// [`Ipv4Checksum`](Reject::Ipv4Checksum), [`Ipv4TotalLength`](Reject::Ipv4TotalLength).
    pub fn parse(bytes: &[u8]) -> Result<Header, Reject> {
        let (header, _) = split(bytes, false)?;
        Ok(Header::from_bytes(header))
    }

    /// From bytes that are known to be a valid header.
    #[inline]
    pub(crate) const fn from_bytes(b: &[u8; 20]) -> Header {
        Header {
            dscp: b[1] >> 2,
            ecn: b[1] & 3,
            total_len: be16(b[2], b[3]),
            ident: be16(b[4], b[5]),
            dont_fragment: b[6] & 0x40 != 0,
            ttl: b[8],
            protocol: b[9],
            src: Ipv4Addr::new(b[12], b[13], b[14], b[15]),
            dst: Ipv4Addr::new(b[16], b[17], b[18], b[19]),
        }
    }

    /// Its bytes, with the right header checksum. DSCP and ECN are cut to their widths.
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut b = [0; 20];
        b[0] = 0x45;
        b[1] = self.dscp << 2 | self.ecn & 3;
        b[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        b[4..6].copy_from_slice(&self.ident.to_be_bytes());
        b[6] = u8::from(self.dont_fragment) << 6;
        b[8] = self.ttl;
        b[9] = self.protocol;
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..20].copy_from_slice(&self.dst.octets());
        let checksum = Sum::new().bytes(&b).checksum();
        b[10..12].copy_from_slice(&checksum.to_be_bytes());
        b
    }

    /// Writes the header, its checksum included, into the first 20 bytes.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<(), EmitError> {
        *head_mut(bytes)? = self.to_bytes();
        Ok(())
    }
}

/// Checks a header and splits a packet into header and payload, without what follows the packet. Its checksum is not looked at if it is
/// `verified`.
#[inline]
pub(crate) fn split(bytes: &[u8], verified: bool) -> Result<(&[u8; 20], &[u8]), Reject> {
    let h: &[u8; 20] = head(bytes)?;
    // One comparison for the usual packet, the words to say what is wrong for the others.
    let flags_and_offset = be16(h[6], h[7]);
    if h[0] != 0x45 || flags_and_offset & 0x3fff != 0 {
        return Err(refuse_shape(h));
    }
    if !verified && !checksum_is_valid(h) {
        return Err(Reject::Ipv4Checksum { found: be16(h[10], h[11]) });
    }
    let total = be16(h[2], h[3]);
    match bytes.get(Header::LEN..usize::from(total)) {
        Some(payload) => Ok((h, payload)),
        None => Err(Reject::Ipv4TotalLength { total, have: bytes.len() }),
    }
}

/// Whether the header's checksum is right: its words sum to all ones, in whatever byte order they are read.
#[inline]
fn checksum_is_valid(h: &[u8; 20]) -> bool {
    let word = |at: usize| u64::from(u32::from_ne_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]));
    let sum = word(0) + word(4) + word(8) + word(12) + word(16);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// What is wrong with a header that has another version, options, or is of a fragment.
#[cold]
fn refuse_shape(h: &[u8; 20]) -> Reject {
    let (version, words) = (h[0] >> 4, h[0] & 15);
    let flags_and_offset = be16(h[6], h[7]);
    match (version, words) {
        (4, 5) => Reject::Ipv4Fragment {
            offset: (flags_and_offset & 0x1fff) * 8,
            more: flags_and_offset & 0x2000 != 0,
        },
        (4, 0..5) => Reject::Ipv4HeaderLength { words },
        (4, _) => Reject::Ipv4Options { words },
        _ => Reject::IpVersion { version },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IP header of the first RoCE packet of `ud-v4-arp.pcap`, and room for its payload.
    fn packet() -> [u8; 116] {
        let mut p = [0; 116];
        p[..20].copy_from_slice(&[
            0x45, 0x00, 0x00, 0x74, 0xbd, 0x8d, 0x40, 0x00, 0x40, 0x11, 0x68, 0x4f, 10, 77, 0, 1, 10, 77, 0,
            2,
        ]);
        p
    }

    /// `packet` with a byte changed and its checksum made right again.
    fn with(at: usize, value: u8) -> [u8; 116] {
        let mut p = packet();
        p[at] = value;
        p[10..12].fill(0);
        let sum = Sum::new().bytes(&p[..20]).checksum();
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        p
    }

    #[test]
    fn known_bytes_of_a_capture() {
        let p = packet();
        let h = Header::parse(&p).expect("valid");
        let want = Header {
            dscp: 0,
            ecn: 0,
            total_len: 116,
            ident: 0xbd8d,
            dont_fragment: true,
            ttl: 64,
            protocol: protocol::UDP,
            src: Ipv4Addr::new(10, 77, 0, 1),
            dst: Ipv4Addr::new(10, 77, 0, 2),
        };
        assert_eq!(h, want);
        let mut out = [0; 20];
        h.emit(&mut out).expect("fits");
        assert_eq!(out, p[..20]);
        assert_eq!(h.emit(&mut out[..19]), Err(EmitError::BufferLength { have: 19, need: 20 }));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        assert_eq!(Header::parse(&packet()[..19]), Err(Reject::TooShort { have: 19, need: 20 }));
        assert_eq!(Header::parse(&with(0, 0x65)), Err(Reject::IpVersion { version: 6 }));
        assert_eq!(Header::parse(&with(0, 0x44)), Err(Reject::Ipv4HeaderLength { words: 4 }));
        assert_eq!(Header::parse(&with(0, 0x46)), Err(Reject::Ipv4Options { words: 6 }));
        assert_eq!(Header::parse(&with(6, 0x20)), Err(Reject::Ipv4Fragment { offset: 0, more: true }));
        assert_eq!(Header::parse(&with(7, 0x02)), Err(Reject::Ipv4Fragment { offset: 16, more: false }));
        let mut p = packet();
        p[8] -= 1;
        assert_eq!(Header::parse(&p), Err(Reject::Ipv4Checksum { found: 0x684f }));
        assert_eq!(Header::parse(&packet()[..115]), Err(Reject::Ipv4TotalLength { total: 116, have: 115 }));
        assert_eq!(Header::parse(&with(3, 19)), Err(Reject::Ipv4TotalLength { total: 19, have: 116 }));
        assert!(Header::parse(&with(3, 20)).is_ok(), "an empty payload is a packet");
    }

    #[test]
    fn trailing_ethernet_padding_is_not_payload() {
        let p = with(3, 24);
        let (_, payload) = split(&p, false).expect("valid");
        assert_eq!(payload.len(), 4);
    }
}
