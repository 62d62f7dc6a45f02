//! The RDMA extended transport header (IBTA volume 1).

use super::fixed_header;

/// Where an RDMA operation works: address, key and length at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole operation.
    pub len: u32,
}

fixed_header!(Reth, 16);

impl Reth {
    /// From its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; 16]) -> Reth {
        let word = u128::from_be_bytes(*b);
        Reth { address: (word >> 64) as u64, rkey: (word >> 32) as u32, len: word as u32 }
    }

    /// Its bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 16] {
        ((self.address as u128) << 64 | (self.rkey as u128) << 32 | self.len as u128).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_order() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0x0b, 0xb8];
        let h = Reth { address: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, len: 3000 };
        assert_eq!(Reth::parse(&bytes), Ok(h));
        assert_eq!(h.to_bytes(), bytes);
    }
}
