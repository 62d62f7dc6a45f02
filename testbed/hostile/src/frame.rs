//! Sound frames, and the sums that keep a changed one sound everywhere else.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whom the frames are meant for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// MAC address of its port.
    pub mac: [u8; 6],
    /// An IPv4 address of it.
    pub v4: Ipv4Addr,
    /// An IPv6 address of it.
    pub v6: Ipv6Addr,
    /// Number of a queue pair that receives.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// Where the IP header begins.
pub const L3: usize = 14;
/// UDP's number in IP.
pub const UDP: u8 = 17;
/// ICMPv6's.
pub const ICMPV6: u8 = 58;
/// The source queue pair of all RoCEv2 packets: nobody's.
pub const SOURCE_QPN: u32 = 0x00_0bad;
/// The byte that all payloads consist of.
pub const PAYLOAD: u8 = 0xee;

/// A MAC address that no card has: locally administered.
pub fn any_mac(rng: &mut fastrand::Rng) -> [u8; 6] {
    [0x06, rng.u8(..), rng.u8(..), rng.u8(..), rng.u8(..), rng.u8(..)]
}

/// An address of a network that nobody in a test has.
pub fn any_v4(rng: &mut fastrand::Rng) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, rng.u8(..), rng.u8(1..255))
}

/// The same of IPv6.
pub fn any_v6(rng: &mut fastrand::Rng) -> Ipv6Addr {
    Ipv6Addr::from((0x2001_0db8_u128 << 96) | rng.u128(1..1 << 64))
}

/// The one's complement sum of RFC 1071.
pub fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet header and what it carries.
pub fn ethernet(dst: [u8; 6], src: [u8; 6], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    [&dst[..], &src, &ethertype.to_be_bytes(), rest].concat()
}

/// An IPv4 packet.
pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&src.octets());
    packet.extend_from_slice(&dst.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

/// An IPv6 packet.
pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    let head = [0x60, 0, 0, 0, len[0], len[1], next, hop_limit];
    [&head[..], &src.octets(), &dst.octets(), payload].concat()
}

/// The checksum of an IPv6 payload, whose own field must be zero.
pub fn checksum_v6(src: Ipv6Addr, dst: Ipv6Addr, next: u8, payload: &[u8]) -> u16 {
    let len = (payload.len() as u32).to_be_bytes();
    checksum(&[&src.octets()[..], &dst.octets(), &len, &[0, 0, 0, next], payload].concat())
}

impl Target {
    /// A frame to it over IPv4 or, if `six`, IPv6, from anybody.
    pub fn ip(&self, rng: &mut fastrand::Rng, six: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let (ethertype, packet) = if six {
            (0x86dd, ipv6(any_v6(rng), self.v6, protocol, 64, payload))
        } else {
            (0x0800, ipv4(any_v4(rng), self.v4, protocol, payload))
        };
        ethernet(self.mac, any_mac(rng), ethertype, &packet)
    }

    /// A UDP datagram to a port of it, without a checksum.
    pub fn udp(&self, rng: &mut fastrand::Rng, six: bool, port: u16, payload: &[u8]) -> Vec<u8> {
        let len = ((8 + payload.len()) as u16).to_be_bytes();
        let ports = [rng.u16(49152..).to_be_bytes(), port.to_be_bytes()].concat();
        self.ip(rng, six, UDP, &[&ports[..], &len, &[0, 0], payload].concat())
    }

    /// A RoCEv2 packet whose ICRC is right: `bth` and `rest`, the extension headers, payload and pad.
    pub fn roce(&self, rng: &mut fastrand::Rng, six: bool, bth: [u8; 12], rest: &[u8]) -> Vec<u8> {
        let mut frame = self.udp(rng, six, 4791, &[&bth[..], rest, &[0; 4]].concat());
        fix_icrc(&mut frame);
        frame
    }

    /// A base transport header: UD SEND ONLY to the queue pair, with a pad count.
    pub fn bth(&self, rng: &mut fastrand::Rng, pad: u8) -> [u8; 12] {
        let ([_, a, b, c], psn) = (self.qpn.to_be_bytes(), rng.u32(..1 << 24).to_be_bytes());
        [0x64, pad << 4, 0xff, 0xff, 0, a, b, c, 0, psn[1], psn[2], psn[3]]
    }

    /// The datagram extension header.
    pub fn deth(&self) -> [u8; 8] {
        let [a, b, c, d] = self.qkey.to_be_bytes();
        let [_, e, f, g] = SOURCE_QPN.to_be_bytes();
        [a, b, c, d, 0, e, f, g]
    }

    /// A UD message that the endpoint would deliver, of a length by chance.
    pub fn message(&self, rng: &mut fastrand::Rng, six: bool) -> Vec<u8> {
        let len = rng.usize(8..200);
        let pad = len.wrapping_neg() % 4;
        let payload = [vec![PAYLOAD; len], vec![0; pad]].concat();
        let bth = self.bth(rng, pad as u8);
        self.roce(rng, six, bth, &[&self.deth()[..], &payload].concat())
    }
}

/// Makes the checksum of an untagged frame's IPv4 header right again.
pub fn fix_ip(frame: &mut [u8]) {
    frame[L3 + 10..L3 + 12].fill(0);
    let sum = checksum(&frame[L3..L3 + 20]);
    frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Whether an untagged frame is IPv6 by its EtherType.
pub fn is_v6(frame: &[u8]) -> bool {
    frame[12..14] == [0x86, 0xdd]
}

/// Where the IP payload of an untagged frame begins.
pub fn l4(frame: &[u8]) -> usize {
    L3 + if is_v6(frame) { 40 } else { 20 }
}

/// Makes the ICRC at the end of an untagged frame right: CRC-32 over eight bytes of ones and the packet, with ones for what
/// may change on the way (IBTA volume 1, annex A17.3.3).
pub fn fix_icrc(frame: &mut [u8]) {
    let (l4, end) = (l4(frame) - L3, frame.len() - 4);
    let mut packet = frame[L3..end].to_vec();
    let masked: &[usize] = if is_v6(frame) { &[1, 2, 3, 7] } else { &[1, 8, 10, 11] };
    for at in masked.iter().copied().chain([l4 + 6, l4 + 7, l4 + 12]) {
        packet[at] = 0xff;
    }
    if is_v6(frame) {
        packet[0] |= 0x0f;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&packet);
    frame[end..].copy_from_slice(&crc.finalize().to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of Linux' Soft-RoCE with everything but its MAC addresses, to see that the sums here are its sums.
    #[test]
    fn sums_are_those_of_another_implementation() {
        let pcap = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/ud-v6-solicited-tc.pcap");
        let bytes = std::fs::read(pcap).unwrap();
        let mut at = 24;
        let mut seen = 0;
        while at + 16 <= bytes.len() {
            let len = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
            let frame = &bytes[at + 16..at + 16 + len];
            at += 16 + len;
            if is_v6(frame) && frame[L3 + 6] == UDP {
                let mut again = frame.to_vec();
                again[len - 4..].fill(0);
                fix_icrc(&mut again);
                assert_eq!(again, frame);
                seen += 1;
            }
        }
        assert!(seen > 0, "no packet in the capture");
    }

    /// The example of RFC 1071, section 3: its sum is ddf2, this is the complement.
    #[test]
    fn checksum_of_the_rfc() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }
}
