//! Immediate data (IBTA volume 1): four bytes that the sender hands to the receiver's completion.

use super::fixed_header;

/// Immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt(
    /// The bytes on the wire as a big-endian number; verbs keeps them in network order (`imm_data` is `__be32`).
    pub u32,
);

fixed_header!(ImmDt, 4);

impl ImmDt {
    /// From its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; 4]) -> ImmDt {
        ImmDt(u32::from_be_bytes(*b))
    }

    /// Its bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes_of_a_capture() {
        // `ud-v4-mtu1024-imm.pcap`
        assert_eq!(ImmDt::parse(&[1, 2, 3, 4]), Ok(ImmDt(0x0102_0304)));
        assert_eq!(ImmDt(0xdead_beef).to_bytes(), [0xde, 0xad, 0xbe, 0xef]);
    }
}
