//! The Internet checksum (RFC 1071) and the pseudo headers of UDP and ICMPv6.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum that has not been folded yet.
///
/// Pieces must be added in order, each of them but the last an even number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// Adds a 16-bit value.
    #[inline]
    #[must_use]
    pub const fn word(self, value: u16) -> Sum {
        Sum(self.0 + value as u64)
    }

    /// Adds bytes, an odd last one as if a zero followed.
    ///
    /// 2³² bytes and more may be added before the 64-bit accumulator could overflow.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        let mut sum = self.0;
        // A one's complement sum is the same whether taken by 16 or by 32 bits.
        let mut quads = bytes.chunks_exact(4);
        for q in &mut quads {
            sum += u64::from(u32::from_be_bytes([q[0], q[1], q[2], q[3]]));
        }
        match *quads.remainder() {
            [a] => sum += u64::from(a) << 8,
            [a, b] => sum += u64::from(super::be16(a, b)),
            [a, b, c] => sum += u64::from(super::be16(a, b)) + (u64::from(c) << 8),
            _ => {}
        }
        Sum(sum)
    }

    /// Adds the pseudo header of an IPv4 packet (RFC 768): addresses, protocol, payload length in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_v4(self, src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
        self.bytes(&src.octets()).bytes(&dst.octets()).word(u16::from(protocol)).word(len)
    }

    /// Adds the pseudo header of an IPv6 packet (RFC 8200 §8.1): addresses, payload length in bytes, next header.
    #[inline]
    #[must_use]
    pub fn pseudo_v6(self, src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, len: u16) -> Sum {
        self.bytes(&src.octets()).bytes(&dst.octets()).word(len).word(u16::from(next_header))
    }

    /// The folded sum: 0xffff over data that contains its own right checksum.
    #[inline]
    pub const fn fold(self) -> u16 {
        let mut s = self.0;
        s = (s & 0xffff_ffff) + (s >> 32);
        s = (s & 0xffff) + (s >> 16);
        s = (s & 0xffff) + (s >> 16);
        s = (s & 0xffff) + (s >> 16);
        s as u16
    }

    /// The checksum to write into the header: the complement of the folded sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Whether the data summed contains its own right checksum.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sum_of_rfc_1071() {
        // The numerical example of RFC 1071 §3.
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&data).fold(), 0xddf2);
        assert_eq!(Sum::new().bytes(&data).checksum(), 0x220d);
    }

    #[test]
    fn odd_tails_count_as_high_bytes() {
        assert_eq!(Sum::new().bytes(&[0x12]).fold(), 0x1200);
        assert_eq!(Sum::new().bytes(&[0x12, 0x34]).fold(), 0x1234);
        assert_eq!(Sum::new().bytes(&[0x12, 0x34, 0x01]).fold(), 0x1334);
        assert_eq!(Sum::new().bytes(&[]).checksum(), 0xffff);
    }

    #[test]
    fn folding_carries_all_the_way() {
        assert_eq!(Sum(0xffff_ffff_ffff_ffff).fold(), 0xffff);
        assert_eq!(Sum(0x1_ffff_ffff).fold(), 1);
        assert_eq!(Sum(0xffff_0001).fold(), 1);
    }
}
