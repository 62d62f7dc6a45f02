//! Bytes on the wire and plain values: one module per header.
//!
//! Every header is a value struct with `parse(&[u8])`, which refuses with a [`Reject`], and `emit(&self, &mut [u8])`, which
//! fails only if the buffer is too small. Fixed-size headers also convert to and from byte arrays without failing.
//! Multi-byte fields are big-endian; the ICRC alone is little-endian.

pub mod aeth;
pub mod arp;
pub mod atomiceth;
pub mod bth;
pub mod checksum;
pub mod control;
pub mod deth;
pub mod ecn;
pub mod ethernet;
pub mod ext;
pub mod frame;
pub mod grh;
pub mod icmp;
pub mod icmpv6;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod ipv4;
pub mod ipv6;
pub mod opcode;
pub mod peek;
pub mod predict;
pub mod reject;
pub mod reth;
pub mod shim;
pub mod ud;
pub mod udp;

pub use reject::{EmitError, Reject, RejectReason};

/// The UDP destination port of RoCEv2 (assigned by IANA, IBTA annex A17).
pub const ROCE_PORT: u16 = 4791;

/// The first `N` bytes, or the refusal that says how many there were.
#[inline]
pub(crate) fn head<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Reject> {
    bytes.first_chunk().ok_or(Reject::TooShort { have: bytes.len(), need: N })
}

/// The first `N` bytes of a buffer to write to.
#[inline]
pub(crate) fn head_mut<const N: usize>(bytes: &mut [u8]) -> Result<&mut [u8; N], EmitError> {
    let have = bytes.len();
    bytes.first_chunk_mut().ok_or(EmitError::BufferLength { have, need: N })
}

/// Big-endian 16 bits from a slice pattern's two bytes.
#[inline]
pub(crate) const fn be16(a: u8, b: u8) -> u16 {
    u16::from_be_bytes([a, b])
}

/// Implements the fallible slice forms of a fixed-size header by its array forms.
macro_rules! fixed_header {
    ($ty:ty, $len:expr) => {
        impl $ty {
            /// Length on the wire in bytes.
            pub const LEN: usize = $len;

            /// Reads the header from the first [`LEN`](Self::LEN) bytes.
            ///
            /// # Errors
            /// [`TooShort`](crate::wire::Reject::TooShort) with fewer bytes.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::wire::Reject> {
                Ok(Self::from_bytes($crate::wire::head(bytes)?))
            }

            /// Writes the header into the first [`LEN`](Self::LEN) bytes.
            ///
            /// # Errors
            /// [`BufferLength`](crate::wire::EmitError::BufferLength) with fewer bytes.
            #[inline]
            pub fn emit(&self, bytes: &mut [u8]) -> Result<(), $crate::wire::EmitError> {
                *$crate::wire::head_mut(bytes)? = self.to_bytes();
                Ok(())
            }
        }
    };
}
pub(crate) use fixed_header;
