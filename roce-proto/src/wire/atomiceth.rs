//! The atomic extended transport headers (IBTA volume 1): the request's and the acknowledgement's.

use super::fixed_header;

/// An atomic operation on eight bytes at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

fixed_header!(AtomicEth, 28);

impl AtomicEth {
    /// From its bytes.
    pub const fn from_bytes(b: &[u8; 28]) -> AtomicEth {
        AtomicEth {
            address: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            swap_or_add: u64::from_be_bytes([b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19]]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 28] {
        let mut b = [0; 28];
        b[0..8].copy_from_slice(&self.address.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// The answer to an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

fixed_header!(AtomicAckEth, 8);

impl AtomicAckEth {
    /// From its bytes.
    pub const fn from_bytes(b: &[u8; 8]) -> AtomicAckEth {
        AtomicAckEth { original: u64::from_be_bytes(*b) }
    }

    /// Its bytes.
    pub const fn to_bytes(&self) -> [u8; 8] {
        self.original.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_order() {
        let mut bytes = [0; 28];
        for (b, i) in bytes.iter_mut().zip(1..) {
            *b = i;
        }
        let h = AtomicEth {
            address: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        assert_eq!(AtomicEth::parse(&bytes), Ok(h));
        assert_eq!(h.to_bytes(), bytes);
        let ack = AtomicAckEth { original: 0x0102_0304_0506_0708 };
        assert_eq!(AtomicAckEth::parse(&bytes), Ok(ack));
        assert_eq!(ack.to_bytes(), bytes[..8]);
    }
}
