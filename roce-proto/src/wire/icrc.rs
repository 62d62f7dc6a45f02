//! The invariant CRC of RoCEv2 (IBTA annex A17): it covers what no router may change.
//!
//! A CRC-32 (the polynomial of IEEE 802.3, reflected, initial value and final inversion of all ones) over eight bytes of
//! ones that stand for the InfiniBand local route header, then the packet from its IP header to the end of the pad, where
//! these fields read as ones: of IPv4 the type of service, time to live and header checksum; of IPv6 the traffic class, flow
//! label and hop limit; the UDP checksum; and the BTH byte of FECN and BECN. The value stands least significant byte
//! first, unlike everything else in the packet.

use crc32fast::Hasher;

use super::deth::Deth;
use super::immdt::ImmDt;
use super::{bth, ipv4, ipv6, udp};

/// Length on the wire in bytes.
pub const LEN: usize = 4;

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

/// For each top byte of a CRC, the index of the step that led to it: those bytes are a permutation.
const STEP_BACK: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[(STEP[i] >> 24) as usize] = i as u8;
        i += 1;
    }
    table
};

/// What each change of one byte does to the CRC, told at another place of the data.
///
/// A CRC is linear: the effect of a change depends on nothing else, and where the byte stands only moves it by so many
/// steps over zeros, forwards or backwards.
type Effect = [u32; 256];

/// An effect from those of the single bits.
const fn spread(bits: [u32; 8]) -> Effect {
    let mut table = [0; 256];
    let mut i = 1;
    while i < 256 {
        let low = i & (i - 1);
        table[i] = table[low] ^ bits[i.trailing_zeros() as usize];
        i += 1;
    }
    table
}

/// The effect on the CRC behind the byte and `after` more.
const fn effect_after(after: usize) -> Effect {
    let mut bits = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        let mut crc = STEP[1 << bit];
        let mut n = 0;
        while n < after {
            crc = crc >> 8 ^ STEP[(crc & 0xff) as usize];
            n += 1;
        }
        bits[bit] = crc;
        bit += 1;
    }
    spread(bits)
}

/// The effect on the CRC `before` bytes ahead of the byte: starting there from a CRC so changed does what the change of the
/// byte would do.
const fn effect_before(before: usize) -> Effect {
    let mut bits = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        let mut crc: u32 = 1 << bit;
        let mut n = 0;
        while n < before {
            let index = STEP_BACK[(crc >> 24) as usize];
            crc = (crc ^ STEP[index as usize]) << 8 | index as u32;
            n += 1;
        }
        bits[bit] = crc;
        bit += 1;
    }
    spread(bits)
}

/// The effects of a 16-bit field, high byte first, on the CRC behind it and `after` more bytes.
const fn field_after(after: usize) -> [Effect; 2] {
    [effect_after(after + 1), effect_after(after)]
}

/// The effects of two fields of equal value.
const fn twins(first: [Effect; 2], second: [Effect; 2]) -> [Effect; 2] {
    let mut table = first;
    let mut i = 0;
    while i < 256 {
        table[0][i] ^= second[0][i];
        table[1][i] ^= second[1][i];
        i += 1;
    }
    table
}

/// Transport headers of a UD packet with immediate: the most that [`fold`] takes.
const MAX_FOLD: usize = bth::Header::LEN + Deth::LEN + ImmDt::LEN;

/// The effect of a byte behind it and 0, 1, … more bytes.
static SLICES: [Effect; MAX_FOLD] = {
    let mut tables = [[0; 256]; MAX_FOLD];
    let mut after = 0;
    while after < MAX_FOLD {
        tables[after] = effect_after(after);
        after += 1;
    }
    tables
};

/// Continues a finished CRC over `N` bytes, 4 to [`MAX_FOLD`], that need not be in memory.
///
/// For headers that were put together a moment ago: a vector load from where they were stored piece by piece would wait
/// until the pieces have left the store buffer, longer than these look-ups take.
#[inline]
fn fold<const N: usize>(crc: u32, bytes: [u8; N]) -> u32 {
    const { assert!(N >= 4 && N <= MAX_FOLD) };
    let carried = (!crc).to_le_bytes();
    let mut folded = 0;
    for (i, byte) in bytes.into_iter().enumerate() {
        let index = if i < 4 { byte ^ carried[i] } else { byte };
        folded ^= SLICES[N - 1 - i][usize::from(index)];
    }
    !folded
}

/// Bytes of the UDP header after its source port.
const SRC_PORT_AFTER: usize = 6;
/// Bytes of the UDP header after its length.
const UDP_LENGTH_AFTER: usize = 2;
/// IPv4 total length, seen from the end of the UDP header.
static V4_LENGTH: [Effect; 2] = field_after(16 + udp::Header::LEN);
/// IPv6 payload length, seen from there, and the UDP length, which equals it.
static V6_LENGTH: [Effect; 2] = twins(field_after(34 + udp::Header::LEN), field_after(UDP_LENGTH_AFTER));

/// The bytes of an IPv4 packet that read as ones, from the IP header on: type of service, time to live, both bytes of the
/// header checksum, both of the UDP checksum, congestion bits of the BTH.
const V4_MASKED: [usize; 7] = [1, 8, 10, 11, 26, 27, 32];
/// The same of an IPv6 packet, after the first byte, of which the low half is masked: the rest of traffic class and flow
/// label, hop limit, UDP checksum, congestion bits.
const V6_MASKED: [usize; 7] = [1, 2, 3, 7, 46, 47, 52];

/// Effects of masking them, seen from the start of the IP header.
static V4_MASK: [Effect; 7] = effects_before(V4_MASKED);
/// The same of IPv6.
static V6_MASK: [Effect; 7] = effects_before(V6_MASKED);

const fn effects_before(at: [usize; 7]) -> [Effect; 7] {
    let mut tables = [[0; 256]; 7];
    let mut i = 0;
    while i < 7 {
        tables[i] = effect_before(at[i]);
        i += 1;
    }
    tables
}

/// The effect of a field's value by its tables.
#[inline]
fn of(table: &[Effect; 2], value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    table[0][usize::from(high)] ^ table[1][usize::from(low)]
}

/// The effect of a field's value that `after` bytes follow.
#[inline]
fn of_field(after: usize, value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    SLICES[after + 1][usize::from(high)] ^ SLICES[after][usize::from(low)]
}

/// Continues a finished CRC over more bytes.
#[inline]
pub(crate) fn update(crc: u32, bytes: &[u8]) -> u32 {
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

/// Bytes of IP, UDP and base transport header of an IPv4 packet: the least that has an ICRC.
pub(crate) const MIN_V4: usize = ipv4::Header::LEN + udp::Header::LEN + bth::Header::LEN;
/// The same of an IPv6 packet.
pub(crate) const MIN_V6: usize = ipv6::Header::LEN + udp::Header::LEN + bth::Header::LEN;

/// The ICRC of a packet given from its IP header to the end of its pad, without its ICRC. The little-endian bytes of the
/// result go on the wire.
///
/// The packet is read where it lies, in one pass: instead of setting the masked fields to ones in a copy, the CRC starts
/// from the value that makes up for them.
///
/// `None` if that is no IPv4 packet without options, no IPv6 packet, or too short for the headers. Nothing else is
/// checked: [`frame::parse`](super::frame::parse) is for packets of others.
#[inline]
pub fn compute(packet: &[u8]) -> Option<u32> {
    Some(update(masked_start(packet)?, packet))
}

/// The first part of [`compute`]: over `packet`'s first `covered` bytes, to be continued with the others as they are,
/// masked fields included.
///
/// A hasher that is cloned for each packet spares each of them the choice of an implementation for this processor.
pub(crate) fn begin(packet: &[u8], covered: usize) -> Option<Hasher> {
    let mut hasher = Hasher::new_with_initial(masked_start(packet)?);
    hasher.update(packet.get(..covered)?);
    Some(hasher)
}

/// The CRC to start a packet from, its masked fields made up for.
#[inline]
fn masked_start(packet: &[u8]) -> Option<u32> {
    match packet.first()? {
        0x45 => Some(masked_start_v4(packet.first_chunk()?)),
        0x60..=0x6f => Some(masked_start_v6(packet.first_chunk()?)),
        _ => None,
    }
}

/// The CRC to start an IPv4 packet from, its masked fields made up for.
#[inline]
fn masked_start_v4(headers: &[u8; MIN_V4]) -> u32 {
    let mut start = LRH;
    for (effect, at) in V4_MASK.iter().zip(V4_MASKED) {
        start ^= effect[usize::from(!headers[at])];
    }
    start
}

/// The same of an IPv6 packet.
#[inline]
fn masked_start_v6(headers: &[u8; MIN_V6]) -> u32 {
    // Nothing stands before the first byte: its change is that of the CRC's low byte.
    let mut start = LRH ^ u32::from(!headers[0] & 0x0f);
    for (effect, at) in V6_MASK.iter().zip(V6_MASKED) {
        start ^= effect[usize::from(!headers[at])];
    }
    start
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
        Prefix(self.0 ^ of_field(SRC_PORT_AFTER, change))
    }

    fn masked_udp(udp: &[u8; 8]) -> [u8; 8] {
        [udp[0], udp[1], udp[2], udp[3], 0, 0, 0xff, 0xff]
    }

    /// The CRC up to the end of the UDP header of an IPv4 packet with these lengths.
    #[inline]
    pub(crate) fn with_v4_lengths(self, total: u16, udp: u16) -> u32 {
        self.0 ^ of(&V4_LENGTH, total) ^ of_field(UDP_LENGTH_AFTER, udp)
    }

    /// The CRC up to the end of the UDP header of an IPv6 packet, whose payload length and UDP length are the same.
    #[inline]
    pub(crate) fn with_v6_length(self, len: u16) -> u32 {
        self.0 ^ of(&V6_LENGTH, len)
    }
}

/// Completes a CRC that a [`Prefix`] began: over BTH and extension headers, then over payload and pad.
///
/// The header bytes are as they go on the wire, the congestion bits' byte is masked here.
#[inline]
pub(crate) fn finish<const N: usize>(prefix: u32, mut transport: [u8; N], rest: &[u8]) -> u32 {
    transport[4] = 0xff;
    update(fold(prefix, transport), rest)
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
            let (changed, plain) = (crc32fast::hash(&bytes), crc32fast::hash(&zeros));
            assert_eq!(effect_after(after)[usize::from(byte)], changed ^ plain);
            // The same change, made up for in the CRC that the data start from.
            let start = effect_before(36 - after)[usize::from(byte)];
            assert_eq!(update(start, &zeros), changed);
        }
    }

    /// The definition: a copy with the masked fields set to ones, after eight bytes of ones.
    fn by_copy(packet: &[u8]) -> u32 {
        let mut bytes = [&[0xff; 8], packet].concat();
        let ip = &mut bytes[8..];
        let l4 = if ip[0] >> 4 == 4 {
            ip[1] = 0xff;
            ip[8] = 0xff;
            ip[10..12].fill(0xff);
            20
        } else {
            ip[0] |= 0x0f;
            ip[1..4].fill(0xff);
            ip[7] = 0xff;
            40
        };
        ip[l4 + 6..l4 + 8].fill(0xff);
        ip[l4 + 12] = 0xff;
        crc32fast::hash(&bytes)
    }

    #[test]
    fn reading_in_place_equals_masking_a_copy() {
        let mut packet = [0u8; 200];
        let mut x = 1u32;
        for round in 0..2000 {
            for byte in &mut packet {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (x >> 24) as u8;
            }
            packet[0] = if round % 2 == 0 { 0x45 } else { 0x60 | packet[0] & 15 };
            let packet = &packet[..60 + round % 140];
            assert_eq!(compute(packet), Some(by_copy(packet)));
        }
    }

    #[test]
    fn prefix_with_lengths_equals_the_whole_computation() {
        let transport: [u8; 20] = core::array::from_fn(|i| i as u8);
        let with_imm: [u8; 24] = core::array::from_fn(|i| i as u8 ^ 0xa5);
        let payload: [u8; 37] = core::array::from_fn(|i| i as u8 ^ 0x5a);
        let mut ip4 = *b"\x45\xAA\0\0\x12\x34\x40\0\x40\x11\xBB\xCC\x0a\x4d\0\x01\x0a\x4d\0\x02";
        let mut ip6 = [0x61; 40];
        let mut udp = *b"\xc0\x01\x12\xb7\0\0\xAB\xCD";
        let (p4, p6) = (Prefix::v4(&ip4, &udp), Prefix::v6(&ip6, &udp));
        for len in [24u16, 32, 255, 256, 257, 1056, 4128, 9000, 65500] {
            for port in [0xc001u16, 0xffff, 0] {
                udp[0..2].copy_from_slice(&port.to_be_bytes());
                udp[4..6].copy_from_slice(&len.to_be_bytes());
                ip4[2..4].copy_from_slice(&(len + 20).to_be_bytes());
                ip6[4..6].copy_from_slice(&len.to_be_bytes());
                let p4 = p4.with_other_src_port(0xc001 ^ port);
                let fast4 = finish(p4.with_v4_lengths(len + 20, len), transport, &payload);
                assert_eq!(fast4, by_copy(&[&ip4[..], &udp, &transport, &payload].concat()), "IPv4, {len}");
                let p6 = p6.with_other_src_port(0xc001 ^ port);
                let fast6 = finish(p6.with_v6_length(len), with_imm, &payload);
                assert_eq!(fast6, by_copy(&[&ip6[..], &udp, &with_imm, &payload].concat()), "IPv6, {len}");
            }
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
