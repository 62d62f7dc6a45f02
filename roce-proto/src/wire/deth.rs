//! The datagram extended transport header (IBTA volume 1).

use super::fixed_header;
use crate::types::{QKey, Qpn};

/// Q_Key and source queue pair of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Must be the one of the destination queue pair.
    pub qkey: QKey,
    /// The queue pair that sent it.
    pub src_qpn: Qpn,
}

fixed_header!(Deth, 8);

impl Deth {
    /// From its bytes; the reserved byte is ignored.
    #[inline]
    pub const fn from_bytes(b: &[u8; 8]) -> Deth {
        Deth {
            qkey: QKey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            src_qpn: Qpn::from_word(u32::from_be_bytes([b[4], b[5], b[6], b[7]])),
        }
    }

    /// Its bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 8] {
        (((self.qkey.0 as u64) << 32) | self.src_qpn.get() as u64).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reject;

    #[test]
    fn known_bytes_of_a_capture() {
        // `ud-v6-nd.pcap`
        let bytes = [0x11, 0x11, 0x11, 0x11, 0x00, 0x00, 0x00, 0x38];
        let h = Deth { qkey: QKey(0x1111_1111), src_qpn: Qpn::new(0x38).expect("24 bits") };
        assert_eq!(Deth::parse(&bytes), Ok(h));
        assert_eq!(h.to_bytes(), bytes);
        assert_eq!(Deth::parse(&bytes[..7]), Err(Reject::TooShort { have: 7, need: 8 }));
    }
}
