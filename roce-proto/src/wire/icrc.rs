//! The invariant CRC of RoCEv2 (IBTA annex A17): it covers what no router may change.
//!
//! A CRC-32 (the polynomial of IEEE 802.3, reflected, initial value and final inversion of all ones) over eight bytes of
//! ones that stand for the InfiniBand local route header, then the packet from its IP header to the end of the pad, where
//! these fields read as ones: of IPv4 the type of service, time to live and header checksum; of IPv6 the traffic class, flow
//! label and hop limit; the UDP checksum; and the BTH byte of FECN and BECN. The value stands least significant byte
//! first, unlike everything else in the packet.

use crc32fast::Hasher;

use super::{bth, ipv4, ipv6, udp};

/// Length on the wire in bytes.
pub const LEN: usize = 4;

/// Bytes of the masked block of an IPv4 packet: IP, UDP and base transport header.
const BLOCK_V4: usize = ipv4::Header::LEN + udp::Header::LEN + bth::Header::LEN;
/// The same of an IPv6 packet.
const BLOCK_V6: usize = ipv6::Header::LEN + udp::Header::LEN + bth::Header::LEN;

/// One step of the CRC: what each value of the lowest byte turns into.
const STEP: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The CRC of the eight bytes of ones in the place of the local route header.
const LRH: u32 = {
    let mut crc = u32::MAX;
    let mut i = 0;
    while i < 8 {
        crc = crc >> 8 ^ STEP[((crc ^ 0xff) & 0xff) as usize];
        i += 1;
    }
    !crc
};

/// What the CRC changes by, for each value of a byte that had been zero, when `after` more bytes have followed it.
///
/// A CRC is linear: the effect of one byte does not depend on any other.
const fn effect(after: usize) -> [u32; 256] {
    let mut table = STEP;
    let mut i = 0;
    while i < 256 {
        let mut n = 0;
        while n < after {
            table[i] = table[i] >> 8 ^ STEP[(table[i] & 0xff) as usize];
            n += 1;
        }
        i += 1;
    }
    table
}

/// Both bytes of a 16-bit field, high byte first, of which `after` bytes follow.
const fn field_effect(after: usize) -> [[u32; 256]; 2] {
    [effect(after + 1), effect(after)]
}

/// The same for two fields of equal value.
const fn twin_effect(first: [[u32; 256]; 2], second: [[u32; 256]; 2]) -> [[u32; 256]; 2] {
    let mut table = first;
    let mut i = 0;
    while i < 256 {
        table[0][i] ^= second[0][i];
        table[1][i] ^= second[1][i];
        i += 1;
    }
    table
}

/// UDP length, seen from the end of the UDP header: the checksum follows it.
static UDP_LENGTH: [[u32; 256]; 2] = field_effect(2);
/// UDP source port, seen from there.
static SRC_PORT: [[u32; 256]; 2] = field_effect(6);
/// IPv4 total length, seen from there.
static V4_LENGTH: [[u32; 256]; 2] = field_effect(16 + udp::Header::LEN);
/// IPv6 payload length, seen from there, and the UDP length, which equals it.
static V6_LENGTH: [[u32; 256]; 2] = twin_effect(field_effect(34 + udp::Header::LEN), field_effect(2));

/// The effect of a field's value by its tables.
#[inline]
fn of(table: &[[u32; 256]; 2], value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    table[0][usize::from(high)] ^ table[1][usize::from(low)]
}

/// Continues a finished CRC over more bytes.
#[inline]
fn update(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// Sets the masked fields of an IPv4 header to ones.
#[inline]
fn mask_v4(ip: &mut [u8; 20]) {
    ip[1] = 0xff;
    ip[8] = 0xff;
    ip[10] = 0xff;
    ip[11] = 0xff;
}

/// Sets the masked fields of an IPv6 header to ones.
#[inline]
fn mask_v6(ip: &mut [u8; 40]) {
    ip[0] |= 0x0f;
    ip[1] = 0xff;
    ip[2] = 0xff;
    ip[3] = 0xff;
    ip[7] = 0xff;
}

/// The ICRC of an IPv4 packet: its headers, and all bytes between the BTH and the ICRC (pad included).
///
/// The little-endian bytes of the result go on the wire.
#[inline]
pub fn compute_v4(ip: &[u8; 20], udp: &[u8; 8], bth: &[u8; 12], rest: &[u8]) -> u32 {
    let mut ip = *ip;
    mask_v4(&mut ip);
    let mut block = [0; BLOCK_V4];
    block[..20].copy_from_slice(&ip);
    block[20..28].copy_from_slice(udp);
    block[28..].copy_from_slice(bth);
    block[26] = 0xff;
    block[27] = 0xff;
    block[32] = 0xff;
    update(update(LRH, &block), rest)
}

/// The ICRC of an IPv6 packet: its headers, and all bytes between the BTH and the ICRC (pad included).
///
/// The little-endian bytes of the result go on the wire.
#[inline]
pub fn compute_v6(ip: &[u8; 40], udp: &[u8; 8], bth: &[u8; 12], rest: &[u8]) -> u32 {
    let mut ip = *ip;
    mask_v6(&mut ip);
    let mut block = [0; BLOCK_V6];
    block[..40].copy_from_slice(&ip);
    block[40..48].copy_from_slice(udp);
    block[48..].copy_from_slice(bth);
    block[46] = 0xff;
    block[47] = 0xff;
    block[52] = 0xff;
    update(update(LRH, &block), rest)
}

/// The ICRC of a packet given from its IP header to the end of its pad, without its ICRC.
///
/// `None` if that is no IPv4 packet without options, no IPv6 packet, or too short for the headers. Nothing else is
/// checked: [`frame::parse`](super::frame::parse) is for packets of others.
pub fn compute(packet: &[u8]) -> Option<u32> {
    match packet.first()? {
        0x45 => {
            let (ip, rest) = packet.split_first_chunk()?;
            let (udp, rest) = rest.split_first_chunk()?;
            let (bth, rest) = rest.split_first_chunk()?;
            Some(compute_v4(ip, udp, bth, rest))
        }
        0x60..=0x6f => {
            let (ip, rest) = packet.split_first_chunk()?;
            let (udp, rest) = rest.split_first_chunk()?;
            let (bth, rest) = rest.split_first_chunk()?;
            Some(compute_v6(ip, udp, bth, rest))
        }
        _ => None,
    }
}

/// The CRC up to the end of the UDP header, for headers that differ from packet to packet in their lengths only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(u32);

impl Prefix {
    /// Of an IPv4 and a UDP header; their lengths read as zero.
    pub(crate) fn v4(ip: &[u8; 20], udp: &[u8; 8]) -> Prefix {
        let mut ip = *ip;
        mask_v4(&mut ip);
        ip[2..4].fill(0);
        Prefix(update(update(LRH, &ip), &Prefix::masked_udp(udp)))
    }

    /// Of an IPv6 and a UDP header; their lengths read as zero.
    pub(crate) fn v6(ip: &[u8; 40], udp: &[u8; 8]) -> Prefix {
        let mut ip = *ip;
        mask_v6(&mut ip);
        ip[4..6].fill(0);
        Prefix(update(update(LRH, &ip), &Prefix::masked_udp(udp)))
    }

    /// The same headers with another UDP source port: `change` is the old one xor the new one.
    #[inline]
    pub(crate) fn with_other_src_port(self, change: u16) -> Prefix {
        Prefix(self.0 ^ of(&SRC_PORT, change))
    }

    fn masked_udp(udp: &[u8; 8]) -> [u8; 8] {
        [udp[0], udp[1], udp[2], udp[3], 0, 0, 0xff, 0xff]
    }

    /// The CRC up to the end of the UDP header of an IPv4 packet with these lengths.
    #[inline]
    pub(crate) fn with_v4_lengths(self, total: u16, udp: u16) -> u32 {
        self.0 ^ of(&V4_LENGTH, total) ^ of(&UDP_LENGTH, udp)
    }

    /// The CRC up to the end of the UDP header of an IPv6 packet, whose payload length and UDP length are the same.
    #[inline]
    pub(crate) fn with_v6_length(self, len: u16) -> u32 {
        self.0 ^ of(&V6_LENGTH, len)
    }
}

/// Completes a CRC that a [`Prefix`] began: `transport` is everything from the BTH to the end of the pad, where the caller
/// has set the BTH's byte 4 to ones.
#[inline]
pub(crate) fn finish(prefix: u32, transport: &[u8]) -> u32 {
    update(prefix, transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_agree_with_the_engine() {
        assert_eq!(LRH, crc32fast::hash(&[0xff; 8]));
        let zeros = [0; 37];
        for (after, byte) in [(0, 1), (2, 0x80), (24, 0xff), (36, 0x5a)] {
            let mut bytes = zeros;
            bytes[36 - after] = byte;
            assert_eq!(effect(after)[usize::from(byte)], crc32fast::hash(&bytes) ^ crc32fast::hash(&zeros));
        }
    }

    #[test]
    fn prefix_with_lengths_equals_the_whole_computation() {
        let bth = [0xff; 12];
        let mut ip4 = *b"\x45\xAA\0\0\x12\x34\x40\0\x40\x11\xBB\xCC\x0a\x4d\0\x01\x0a\x4d\0\x02";
        let mut ip6 = [0x61; 40];
        let mut udp = *b"\xc0\x01\x12\xb7\0\0\xAB\xCD";
        let (p4, p6) = (Prefix::v4(&ip4, &udp), Prefix::v6(&ip6, &udp));
        for len in [24u16, 32, 255, 256, 257, 1056, 4128, 9000, 65500] {
            udp[4..6].copy_from_slice(&len.to_be_bytes());
            ip4[2..4].copy_from_slice(&(len + 20).to_be_bytes());
            ip6[4..6].copy_from_slice(&len.to_be_bytes());
            let fast4 = finish(p4.with_v4_lengths(len + 20, len), &bth);
            assert_eq!(fast4, compute_v4(&ip4, &udp, &bth, &[]), "IPv4, {len}");
            let fast6 = finish(p6.with_v6_length(len), &bth);
            assert_eq!(fast6, compute_v6(&ip6, &udp, &bth, &[]), "IPv6, {len}");
        }
    }

    #[test]
    fn known_packet_of_a_capture() {
        // The empty datagram that `ud-v4-mtu1024.pcap` begins with, from its IP header on.
        let packet: [u8; 48] = [
            0x45, 0x00, 0x00, 0x34, 0xb9, 0xe5, 0x40, 0x00, 0x40, 0x11, 0x6c, 0x37, 0x0a, 0x4d, 0x00, 0x01,
            0x0a, 0x4d, 0x00, 0x02, 0xdf, 0x94, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00, 0x64, 0x00, 0xff, 0xff,
            0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x00, 0x11, 0x11, 0x11, 0x11, 0x00, 0x00, 0x00, 0x11,
        ];
        assert_eq!(compute(&packet).map(u32::to_le_bytes), Some([0x70, 0x66, 0x31, 0xf1]));
        assert_eq!(compute(&packet[..39]), None, "no whole BTH");
        assert_eq!(compute(&[]), None);
        assert_eq!(compute(&[0x46; 48]), None, "options");
    }
}
