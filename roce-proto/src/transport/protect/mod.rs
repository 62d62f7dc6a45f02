//! Forward error correction: which messages are protected, their parity, and what it repairs. `docs/protocol.md`, section 9.
//!
//! `choose.rs` says how a message is protected. `send.rs` is the sender's half: groups, parity to send, losses that wait for their repair; `losses.rs` what is known of losses, `pace.rs` of how fast the way carries. `repair.rs` is the receiver's. Bytes do
//! not pass through here either: what parity is made of, and what it repairs, is told to the driver ([`Shards`], [`Repair`]).

mod choose;
mod losses;
mod pace;
mod repair;
mod send;

pub use repair::{Group, Repair};
pub(super) use send::Protecting;

use crate::wire::shim::Seq;
use fec::CodecId;
use fec::policy::{Policy, Protection};

/// False in a build without this stage, to count what untagged messages pay for it: `scripts/untagged.sh`.
pub(super) const STAGE: bool = !cfg!(feature = "without-protection");

/// The codecs that this end knows, one bit each: bit 0 is Reed–Solomon, version 1.
pub(super) const CODECS: u8 = 1;
/// What bit 0 stands for on the wire.
pub(super) const CODEC: CodecId = CodecId::REED_SOLOMON;

/// What is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protect {
    /// Nothing. Parity that comes is taken all the same.
    Nothing,
    /// What its tags ask for, as the network needs it.
    #[default]
    ByTag,
    /// Every message, alike: to compare with.
    Everything(Protection),
}

/// How an engine protects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fec {
    /// What it sends parity for.
    pub protect: Protect,
    /// By what tags become strengths.
    pub policy: Policy,
}

/// What a parity shard is made of: segments of a message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// The send's token.
    pub token: u64,
    /// Bytes of the whole message.
    pub length: u64,
    /// Bytes of a segment; the message's last has what is left.
    pub segment: u32,
    /// Where the group's first segment begins in the message.
    pub offset: u64,
    /// From one segment of the group to the next, in bytes.
    pub stride: u64,
    /// Segments of the group.
    pub count: u8,
    /// Which parity shard of the group it is.
    pub index: u8,
    /// How many the group has. The others follow, each once those of other groups of its block are out.
    pub shards: u8,
    /// The sequence of the group's first segment, which is in no other group of the session.
    pub seq: Seq,
    /// Bytes of the shard: those of the group's first segment.
    pub len: u32,
}

impl Shards {
    /// Place and length in the message of one of the group's segments.
    pub fn part(&self, i: usize) -> (u64, usize) {
        part(self.offset, self.stride, self.segment, self.length, i)
    }
}

fn part(offset: u64, stride: u64, segment: u32, length: u64, i: usize) -> (u64, usize) {
    let at = offset + i as u64 * stride;
    (at, length.saturating_sub(at).min(u64::from(segment)) as usize)
}
