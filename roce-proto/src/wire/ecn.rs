//! Explicit Congestion Notification of a frame on its way (RFC 3168), for whoever stands between two endpoints.

use super::ethernet::EtherType;
use super::peek::network_header;

/// The ECN field of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct = 0,
    /// ECN-capable, ECT(1).
    Ect1 = 1,
    /// ECN-capable, ECT(0): what we send.
    Ect0 = 2,
    /// Congestion Experienced.
    Ce = 3,
}

impl Ecn {
    fn of(bits: u8) -> Ecn {
        match bits & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// May be marked, or is.
    pub fn is_capable(self) -> bool {
        self != Ecn::NotEct
    }
}

/// Where the IP header is.
enum At {
    V4(usize),
    V6(usize),
}

fn ip_header(frame: &[u8]) -> Option<At> {
    let (kind, at) = network_header(frame);
    match (kind, frame.get(at)? >> 4) {
        (EtherType::IPV4, 4) if frame.len() >= at + 20 => Some(At::V4(at)),
        (EtherType::IPV6, 6) if frame.len() >= at + 40 => Some(At::V6(at)),
        _ => None,
    }
}

/// The ECN field of a frame; `None` if it carries no IP packet.
pub fn read(frame: &[u8]) -> Option<Ecn> {
    match ip_header(frame)? {
        At::V4(at) => Some(Ecn::of(frame[at + 1])),
        At::V6(at) => Some(Ecn::of(frame[at + 1] >> 4)),
    }
}

/// Sets Congestion Experienced if the packet is ECN-capable; returns whether it is set now. The IPv4 header's checksum is
/// brought up to date as RFC 1624 has it, so that a wrong one stays wrong. The ICRC does not cover the field.
pub fn mark(frame: &mut [u8]) -> bool {
    if !read(frame).is_some_and(Ecn::is_capable) {
        return false;
    }
    match ip_header(frame) {
        Some(At::V4(at)) => {
            let word = |b: &[u8], i: usize| u16::from_be_bytes([b[i], b[i + 1]]);
            let before = word(frame, at);
            frame[at + 1] |= 3;
            let after = word(frame, at);
            // HC' = ~(~HC + ~m + m'), in one's complement arithmetic.
            let sum = u32::from(!word(frame, at + 10)) + u32::from(!before) + u32::from(after);
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            frame[at + 10..at + 12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        }
        Some(At::V6(at)) => frame[at + 1] |= 3 << 4,
        None => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum::Sum;
    use proptest::prelude::*;

    /// A frame with an IPv4 header and the right checksum.
    fn v4(tag: bool, tos: u8, rest: &[u8]) -> Vec<u8> {
        let mut f = vec![0xaa; 12];
        if tag {
            f.extend([0x81, 0, 0, 42]);
        }
        f.extend([8, 0]);
        let at = f.len();
        f.extend([0x45, tos, 0, 60, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend(rest);
        let sum = Sum::new().bytes(&f[at..at + 20]).checksum();
        f[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        f
    }

    fn v6(class: u8) -> Vec<u8> {
        let mut f = vec![0xaa; 12];
        f.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4 | 5, 1, 2]);
        f.resize(14 + 40, 7);
        f
    }

    #[test]
    fn the_field_is_read_and_set_in_either_family() {
        for (bits, ecn) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
            for tag in [false, true] {
                let mut f = v4(tag, 0x68 | bits, b"rest");
                assert_eq!(read(&f), Some(ecn));
                let want = if bits == 0 { f.clone() } else { v4(tag, 0x6b, b"rest") };
                assert_eq!(mark(&mut f), bits != 0);
                assert_eq!(f, want, "nothing else has changed, and the checksum is right");
            }
            let mut f = v6(0x68 | bits);
            assert_eq!(read(&f), Some(ecn));
            assert_eq!(mark(&mut f), bits != 0);
            assert_eq!(f, v6(if bits == 0 { 0x68 } else { 0x6b }));
        }
    }

    #[test]
    fn what_is_no_ip_packet_is_left_alone() {
        let mut arp = [0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let whole = v4(false, 2, b"");
        for frame in [&arp[..], &whole[..33], &v6(2)[..53], &[], &[0x45; 13]] {
            let mut f = frame.to_vec();
            assert_eq!((read(&f), mark(&mut f)), (None, false));
            assert_eq!(f, frame);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_checksum_are_survived(mut f in proptest::collection::vec(any::<u8>(), 0..80)) {
            let before = f.clone();
            if !mark(&mut f) {
                prop_assert_eq!(f, before);
            }
        }

        /// The incremental checksum is that of the whole header.
        #[test]
        fn the_checksum_stays_right(tos: u8, id: u16, src: u32) {
            let mut f = v4(false, tos | 1, b"");
            f[18..20].copy_from_slice(&id.to_be_bytes());
            f[26..30].copy_from_slice(&src.to_be_bytes());
            f[24..26].fill(0);
            let sum = Sum::new().bytes(&f[14..34]).checksum();
            f[24..26].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(mark(&mut f));
            let got = u16::from_be_bytes([f[24], f[25]]);
            f[24..26].fill(0);
            prop_assert_eq!(got, Sum::new().bytes(&f[14..34]).checksum());
        }
    }
}
