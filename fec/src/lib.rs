//! Forward error correction for small groups of packets: bytes and numbers in, bytes and numbers out. No packets, no clock.
//!
//! * [`ReedSolomon`] is a systematic Reed–Solomon code over GF(2⁸): `k` data shards as they are, and `r` parity shards, of
//!   which any `k` of all `k + r` give the data back. [`Decoder`] does that, for this code only. Encoding is behind [`Codec`];
//!   [`CodecId`] is how the wire names a code.
//! * [`kernel`] holds what multiplies shards by coefficients: a readable oracle, and one implementation for each
//!   instruction set, of which [`kernel::best`] chooses at run time. All give the same bytes.
//! * [`policy`] turns what a message is and what the network does into a strength, or into none.
//!
//! The parity equals that of the crate `reed-solomon-erasure` for the same data, which is also what `klauspost/reedsolomon`
//! and Backblaze's library make: a Vandermonde matrix, multiplied by the inverse of its top square.
//!
//! Codes and decoders allocate nothing after construction. A [`Workshop`] makes a code when it is first used.

// The single exception are the calls that enter an instruction set which was found at run time, in `kernel/dispatch.rs`,
// and those that enter ISA-L.
#![deny(unsafe_code)]

mod codec;
mod decoder;
mod error;
mod field;
pub mod kernel;
mod matrix;
pub mod policy;
mod workshop;

pub use codec::{Codec, CodecId, MAX_SHARDS, ReedSolomon};
pub use decoder::Decoder;
pub use error::Error;
pub use workshop::{MOST_DATA, MOST_PARITY, Workshop};
