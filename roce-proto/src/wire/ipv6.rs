//! IPv6 headers without extension headers (RFC 8200).

use core::net::Ipv6Addr;

use super::{EmitError, Reject, be16, head, head_mut};

/// Next header values that are looked at (IANA registry).
pub mod next_header {
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;

    /// Whether the value names an extension header (IANA "IPv6 Extension Header Types").
    #[inline]
    pub const fn is_extension(value: u8) -> bool {
        matches!(value, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140 | 253 | 254)
    }
}

/// An IPv6 header of 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Differentiated services code point, 6 bits: the upper part of the traffic class.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits: the lower part of the traffic class.
    pub ecn: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
    /// What follows the header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
}

impl Header {
    /// Length on the wire in bytes.
    pub const LEN: usize = 40;

    /// Reads a header and checks that its packet lies whole in `bytes`, which may be longer.
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort), [`IpVersion`](Reject::IpVersion), [`Ipv6Extension`](Reject::Ipv6Extension),
    /// [`Ipv6PayloadLength`](Reject::Ipv6PayloadLength).
    pub fn parse(bytes: &[u8]) -> Result<Header, Reject> {
        let (header, _) = split(bytes)?;
        Ok(Header::from_bytes(header))
    }

    /// From bytes that are known to be a valid header.
    #[inline]
    pub(crate) fn from_bytes(b: &[u8; 40]) -> Header {
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        Header {
            dscp: (word >> 22) as u8 & 0x3f,
            ecn: (word >> 20) as u8 & 3,
            flow_label: word & 0xf_ffff,
            payload_len: be16(b[4], b[5]),
            next_header: b[6],
            hop_limit: b[7],
            src: address(b, 8),
            dst: address(b, 24),
        }
    }

    /// Its bytes. DSCP, ECN and flow label are cut to their widths.
    pub fn to_bytes(&self) -> [u8; 40] {
        let word = 6 << 28
            | u32::from(self.dscp & 0x3f) << 22
            | u32::from(self.ecn & 3) << 20
            | self.flow_label & 0xf_ffff;
        let mut b = [0; 40];
        b[0..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        b
    }

    /// Writes the header into the first 40 bytes.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<(), EmitError> {
        *head_mut(bytes)? = self.to_bytes();
        Ok(())
    }
}

/// The address at byte `at`, 8 for the source and 24 for the destination.
#[inline]
pub(crate) fn address(b: &[u8; 40], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&b[at..at + 16]);
    Ipv6Addr::from(octets)
}

/// Checks a header and splits a packet into header and payload, without what follows the packet.
#[inline]
pub(crate) fn split(bytes: &[u8]) -> Result<(&[u8; 40], &[u8]), Reject> {
    let h: &[u8; 40] = head(bytes)?;
    if h[0] >> 4 != 6 {
        return Err(Reject::IpVersion { version: h[0] >> 4 });
    }
    if next_header::is_extension(h[6]) {
        return Err(Reject::Ipv6Extension { next_header: h[6] });
    }
    let len = be16(h[4], h[5]);
    match bytes.get(Header::LEN..Header::LEN + usize::from(len)) {
        Some(payload) => Ok((h, payload)),
        None => Err(Reject::Ipv6PayloadLength { len, have: bytes.len() - Header::LEN }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IP header of the RoCE packet of `ud-v6-solicited-tc.pcap`, and room for its payload.
    fn packet() -> [u8; 136] {
        let mut p = [0; 136];
        p[..8].copy_from_slice(&[0x66, 0xa0, 0x00, 0x00, 0x00, 0x60, 0x11, 0x40]);
        p[8..10].copy_from_slice(&[0xfd, 0x77]);
        p[23] = 1;
        p[24..26].copy_from_slice(&[0xfd, 0x77]);
        p[39] = 2;
        p
    }

    #[test]
    fn known_bytes_of_a_capture() {
        let p = packet();
        let h = Header::parse(&p).expect("valid");
        let want = Header {
            dscp: 26,
            ecn: 2,
            flow_label: 0,
            payload_len: 96,
            next_header: next_header::UDP,
            hop_limit: 64,
            src: "fd77::1".parse().expect("an address"),
            dst: "fd77::2".parse().expect("an address"),
        };
        assert_eq!(h, want);
        let mut out = [0; 40];
        h.emit(&mut out).expect("fits");
        assert_eq!(out, p[..40]);
        assert_eq!(h.emit(&mut out[..39]), Err(EmitError::BufferLength { have: 39, need: 40 }));
    }

    #[test]
    fn fields_share_the_first_word_without_touching() {
        let mut h = Header::parse(&packet()).expect("valid");
        (h.dscp, h.ecn, h.flow_label) = (0x3f, 0, 0xf_ffff);
        assert_eq!(h.to_bytes()[..4], [0x6f, 0xcf, 0xff, 0xff]);
        (h.dscp, h.ecn, h.flow_label) = (0, 3, 0x1_2345);
        assert_eq!(h.to_bytes()[..4], [0x60, 0x31, 0x23, 0x45]);
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let mut p = packet();
        assert_eq!(Header::parse(&p[..39]), Err(Reject::TooShort { have: 39, need: 40 }));
        assert_eq!(Header::parse(&p[..135]), Err(Reject::Ipv6PayloadLength { len: 96, have: 95 }));
        for next_header in [0, 43, 44, 50, 51, 60, 135, 139, 140, 253, 254] {
            p[6] = next_header;
            assert_eq!(Header::parse(&p), Err(Reject::Ipv6Extension { next_header }));
        }
        p[6] = 59;
        assert!(Header::parse(&p).is_ok(), "no next header is no extension header");
        p[0] = 0x45;
        assert_eq!(Header::parse(&p), Err(Reject::IpVersion { version: 4 }));
    }
}
