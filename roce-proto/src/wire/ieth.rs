//! The invalidate extended transport header (IBTA volume 1).

use super::fixed_header;

/// A remote key that the responder invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// The key.
    pub rkey: u32,
}

fixed_header!(Ieth, 4);

impl Ieth {
    /// From its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; 4]) -> Ieth {
        Ieth { rkey: u32::from_be_bytes(*b) }
    }

    /// Its bytes.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 4] {
        self.rkey.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes() {
        assert_eq!(Ieth::parse(&[0, 1, 2, 3]), Ok(Ieth { rkey: 0x0001_0203 }));
        assert_eq!(Ieth { rkey: 0x0001_0203 }.to_bytes(), [0, 1, 2, 3]);
    }
}
