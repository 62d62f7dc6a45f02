//! What can be wrong with a request.

use thiserror::Error;

/// Why a code cannot be made, or shards cannot be coded. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// A group needs data and parity.
    #[error("a group of {data} data and {parity} parity shards: both must be at least one")]
    Empty {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
    },
    /// GF(2⁸) has 256 elements, and each shard needs one of its own.
    #[error(
        "{data} data and {parity} parity shards are more than the 256 that the code allows: make more groups"
    )]
    TooManyShards {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
    },
    /// Fewer or more slices than the code has shards.
    #[error("{given} shards given, {wanted} wanted")]
    Count {
        /// Slices given.
        given: usize,
        /// Slices wanted.
        wanted: usize,
    },
    /// All shards of a group are of one length, and not empty.
    #[error("shard {shard} has {given} bytes, {wanted} wanted")]
    Length {
        /// Which slice, data before parity.
        shard: usize,
        /// Its length in bytes.
        given: usize,
        /// The length of the others; 1 if all are empty.
        wanted: usize,
    },
    /// No parity shard of that number.
    #[error("parity shard {index} of {parity}")]
    Index {
        /// The one asked for, from 0.
        index: usize,
        /// How many there are.
        parity: usize,
    },
    /// More data is lost than parity has come.
    #[error("{lost} data shards lost, {parity} parity shards there")]
    TooFewShards {
        /// Data shards that are missing.
        lost: usize,
        /// Parity shards that are there.
        parity: usize,
    },
}
