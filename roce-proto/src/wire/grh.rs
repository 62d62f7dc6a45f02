//! The 40 bytes that verbs users find in front of a received datagram, in the place of an InfiniBand global route header.
//!
//! With IPv6 they are the IP header as received. With IPv4 the header stands in the last 20 bytes (IBTA annex A17); the
//! first 20, which the annex leaves undefined, are zero here, so that nothing old shows through and the two families can
//! be told apart.

use super::{Reject, ipv4, ipv6};

/// Length of the area in bytes.
pub const LEN: usize = 40;

/// What the area holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grh {
    /// The datagram came by IPv4.
    V4(ipv4::Header),
    /// The datagram came by IPv6.
    V6(ipv6::Header),
}

/// The area of a datagram that came with this IPv4 header.
#[inline]
pub fn from_v4(ip: &[u8; 20]) -> [u8; LEN] {
    let mut area = [0; LEN];
    area[20..].copy_from_slice(ip);
    area
}

impl Grh {
    /// Reads the area of a receive completion, as we or another verbs provider wrote it.
    ///
    /// The family is told by the version nibbles: 6 in the first byte is IPv6, otherwise 4 in the 21st is IPv4. (An IPv6 packet
    /// has part of its source address in the 21st.) Lengths in the headers are not checked: the payload is elsewhere.
    ///
    /// # Errors
    /// [`IpVersion`](Reject::IpVersion) if it holds neither; [`Ipv4HeaderLength`](Reject::Ipv4HeaderLength),
    /// [`Ipv4Options`](Reject::Ipv4Options).
    pub fn parse(area: &[u8; LEN]) -> Result<Grh, Reject> {
        if area[0] >> 4 == 6 {
            return Ok(Grh::V6(ipv6::Header::from_bytes(area)));
        }
        let mut ip = [0; 20];
        ip.copy_from_slice(&area[20..]);
        match (ip[0] >> 4, ip[0] & 15) {
            (4, 5) => Ok(Grh::V4(ipv4::Header::from_bytes(&ip))),
            (4, words @ 0..5) => Err(Reject::Ipv4HeaderLength { words }),
            (4, words) => Err(Reject::Ipv4Options { words }),
            _ => Err(Reject::IpVersion { version: area[0] >> 4 }),
        }
    }

    /// Writes the area.
    pub fn emit(&self, area: &mut [u8; LEN]) {
        *area = match self {
            Grh::V4(header) => from_v4(&header.to_bytes()),
            Grh::V6(header) => header.to_bytes(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [u8; 20] =
        [0x45, 0x00, 0x00, 0x74, 0xbd, 0x8d, 0x40, 0x00, 0x40, 0x11, 0x68, 0x4f, 10, 77, 0, 1, 10, 77, 0, 2];

    #[test]
    fn ipv4_stands_in_the_last_twenty_bytes() {
        let area = from_v4(&V4);
        assert_eq!(area[..20], [0; 20]);
        assert_eq!(area[20..], V4);
        let Ok(Grh::V4(h)) = Grh::parse(&area) else { panic!("IPv4") };
        assert_eq!((h.src.octets(), h.total_len), ([10, 77, 0, 1], 116));
        let mut again = [0xee; LEN];
        Grh::V4(h).emit(&mut again);
        assert_eq!(again, area);
    }

    #[test]
    fn ipv6_fills_the_area() {
        let mut area = [0; LEN];
        area[..8].copy_from_slice(&[0x66, 0xa0, 0x00, 0x00, 0x00, 0x60, 0x11, 0x40]);
        area[8..10].copy_from_slice(&[0xfd, 0x77]);
        area[20] = 0x45; // inside the source address
        let Ok(Grh::V6(h)) = Grh::parse(&area) else { panic!("IPv6") };
        assert_eq!((h.dscp, h.ecn, h.payload_len), (26, 2, 96));
        let mut again = [0; LEN];
        Grh::V6(h).emit(&mut again);
        assert_eq!(again, area);
    }

    #[test]
    fn neither_family() {
        assert_eq!(Grh::parse(&[0; LEN]), Err(Reject::IpVersion { version: 0 }));
        let mut area = from_v4(&V4);
        area[20] = 0x46;
        assert_eq!(Grh::parse(&area), Err(Reject::Ipv4Options { words: 6 }));
        area[20] = 0x44;
        assert_eq!(Grh::parse(&area), Err(Reject::Ipv4HeaderLength { words: 4 }));
    }
}
