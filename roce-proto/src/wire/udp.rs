//! UDP headers (RFC 768).

use super::{be16, fixed_header};

/// A UDP header.
///
/// RoCEv2 puts the entropy of a flow in the source port and sends the checksum as zero: the ICRC covers more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port, 4791 for RoCEv2.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// The checksum, 0 for none.
    pub checksum: u16,
}

fixed_header!(Header, 8);

impl Header {
    /// From its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; 8]) -> Header {
        Header {
            src_port: be16(b[0], b[1]),
            dst_port: be16(b[2], b[3]),
            len: be16(b[4], b[5]),
            checksum: be16(b[6], b[7]),
        }
    }

    /// Its bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 8] {
        let [a, b] = self.src_port.to_be_bytes();
        let [c, d] = self.dst_port.to_be_bytes();
        let [e, f] = self.len.to_be_bytes();
        let [g, h] = self.checksum.to_be_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{EmitError, Reject};

    #[test]
    fn known_bytes_of_a_capture() {
        let bytes = [0xd8, 0xf7, 0x12, 0xb7, 0x00, 0x60, 0x00, 0x00];
        let h = Header::parse(&bytes).expect("valid");
        assert_eq!(h, Header { src_port: 55543, dst_port: 4791, len: 96, checksum: 0 });
        assert_eq!(h.to_bytes(), bytes);
        assert_eq!(Header::parse(&bytes[..7]), Err(Reject::TooShort { have: 7, need: 8 }));
        assert_eq!(h.emit(&mut [0; 7]), Err(EmitError::BufferLength { have: 7, need: 8 }));
    }
}
