//! What captured packets begin with, and how to get at the Ethernet frame in or around them.

use std::fmt;

/// A link type of the registry that pcap and pcapng share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(
    /// The number.
    pub u16,
);

impl LinkType {
    /// BSD loopback: an address family in the byte order of the capturing machine.
    pub const NULL: LinkType = LinkType(0);
    /// Ethernet.
    pub const ETHERNET: LinkType = LinkType(1);
    /// IPv4 or IPv6 without anything in front.
    pub const RAW: LinkType = LinkType(101);
    /// OpenBSD loopback: an address family in network byte order.
    pub const LOOP: LinkType = LinkType(108);
    /// Linux "any" device: 16 bytes in front.
    pub const LINUX_SLL: LinkType = LinkType(113);
    /// IPv4 without anything in front.
    pub const IPV4: LinkType = LinkType(228);
    /// IPv6 without anything in front.
    pub const IPV6: LinkType = LinkType(229);
    /// Linux "any" device, second version: 20 bytes in front.
    pub const LINUX_SLL2: LinkType = LinkType(276);

    /// Where the network packet begins and which EtherType it has, for link types other than Ethernet. `None` for link
    /// types that are not understood and packets too short for theirs.
    fn network(self, data: &[u8]) -> Option<(u16, usize)> {
        let by_version = |at: usize| match data.get(at)? >> 4 {
            4 => Some((0x0800, at)),
            6 => Some((0x86dd, at)),
            _ => None,
        };
        let ethertype = |at: usize| Some(u16::from_be_bytes([*data.get(at)?, *data.get(at + 1)?]));
        match self {
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => by_version(0),
            // The family's numbers differ between systems; the packet's own version does not.
            LinkType::NULL | LinkType::LOOP => by_version(4),
            LinkType::LINUX_SLL => Some((ethertype(14)?, 16)),
            LinkType::LINUX_SLL2 => Some((ethertype(0)?, 20)),
            _ => None,
        }
    }

    /// The packet as an Ethernet frame: itself, or what it carries behind a header with zero addresses, which is made in
    /// `scratch`; and how many bytes longer than the packet that is. `None` for what is not understood.
    pub fn as_ethernet<'a>(self, data: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<(&'a [u8], isize)> {
        if self == LinkType::ETHERNET {
            return Some((data, 0));
        }
        let (ethertype, at) = self.network(data)?;
        let packet = data.get(at..)?;
        scratch.clear();
        scratch.extend_from_slice(&[0; 12]);
        scratch.extend_from_slice(&ethertype.to_be_bytes());
        scratch.extend_from_slice(packet);
        Some((scratch, scratch.len() as isize - data.len() as isize))
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            LinkType::NULL => "null",
            LinkType::ETHERNET => "ethernet",
            LinkType::RAW => "raw",
            LinkType::LOOP => "loop",
            LinkType::LINUX_SLL => "linux_sll",
            LinkType::IPV4 => "ipv4",
            LinkType::IPV6 => "ipv6",
            LinkType::LINUX_SLL2 => "linux_sll2",
            LinkType(n) => return write!(f, "link type {n}"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_get_an_ethernet_header() {
        let mut scratch = Vec::new();
        let v4 = [0x45, 1, 2, 3];
        let (frame, extra) = LinkType::RAW.as_ethernet(&v4, &mut scratch).unwrap();
        assert_eq!((&frame[..12], &frame[12..], extra), (&[0; 12][..], &[8, 0, 0x45, 1, 2, 3][..], 14));
        let v6 = [0, 0, 0, 30, 0x60, 9];
        let (frame, extra) = LinkType::NULL.as_ethernet(&v6, &mut scratch).unwrap();
        assert_eq!((&frame[12..], extra), (&[0x86, 0xdd, 0x60, 9][..], 10));
        let mut sll = vec![0; 14];
        sll.extend_from_slice(&[0x08, 0x06, 7]);
        let (frame, extra) = LinkType::LINUX_SLL.as_ethernet(&sll, &mut scratch).unwrap();
        assert_eq!((&frame[12..], extra), (&[8, 6, 7][..], -2));
        let mut sll2 = vec![0x86, 0xdd];
        sll2.extend_from_slice(&[0; 18]);
        assert_eq!(LinkType::LINUX_SLL2.as_ethernet(&sll2, &mut scratch).unwrap().0.len(), 14);
    }

    #[test]
    fn what_is_not_understood_or_too_short_is_none() {
        let mut scratch = Vec::new();
        for (link, data) in [
            (LinkType(105), &[0u8; 64][..]),
            (LinkType::RAW, &[]),
            (LinkType::RAW, &[0x50]),
            (LinkType::NULL, &[0; 4]),
            (LinkType::LINUX_SLL, &[0; 15]),
            (LinkType::LINUX_SLL2, &[0; 19]),
        ] {
            assert_eq!(link.as_ethernet(data, &mut scratch), None, "{link}");
        }
    }
}
