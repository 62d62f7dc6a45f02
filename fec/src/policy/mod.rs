//! How strongly a message is protected: from what it is and what the network does to a code and an interleaving, or none.
//!
//! [`choose`] asks one small rule after the other, in `rules.rs`; each says its reason. [`Losses`] measures what they need to know of
//! the network, and [`group_failure`] computes exactly what a code leaves unrepaired there.

mod burst;
mod losses;
mod rules;

use crate::{MOST_DATA, MOST_PARITY};
pub use burst::group_failure;
pub use losses::Losses;

/// What kind of traffic a message belongs to. On the wire it is four bits; those that have no name are not protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nothing was said.
    #[default]
    Untagged,
    /// Gradients of data-parallel training.
    DataParallel,
    /// Activations, and their gradients, of pipeline-parallel training.
    PipelineParallel,
    /// Short messages that others wait for.
    Control,
}

impl Class {
    /// By the number that stands on the wire.
    pub const fn from_wire(number: u8) -> Class {
        match number {
            1 => Class::DataParallel,
            2 => Class::PipelineParallel,
            3 => Class::Control,
            _ => Class::Untagged,
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            Class::Untagged => 0,
            Class::DataParallel => 1,
            Class::PipelineParallel => 2,
            Class::Control => 3,
        }
    }
}

/// What is known of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Message {
    /// Its class.
    pub class: Class,
    /// 0 to 15; the upper half is high.
    pub priority: u8,
    /// Place in the pipeline: the earlier, the more stages wait for it.
    pub stage: u8,
    /// Loss that the application tolerates, in 1/256.
    pub tolerance: u8,
    /// Its segments.
    pub segments: u32,
    /// Nanoseconds in which it must be there; 0 is as soon as it can.
    pub deadline: u64,
}

/// What is known of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Share of packets that are lost, from 0 to 1.
    pub loss: f64,
    /// Mean number of consecutive packets of a path that are lost together, at least 1.
    pub burst: f64,
    /// Round trip in nanoseconds.
    pub round_trip: u64,
}

/// How a message is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protection {
    /// Data shards of a group, at most.
    pub data: u8,
    /// Parity shards of a group.
    pub parity: u8,
    /// Groups that are interleaved: consecutive segments belong to as many different ones.
    pub depth: u8,
}

impl Protection {
    /// Segments of a block: groups that are interleaved with each other, their parity behind them.
    pub const fn block(self) -> u32 {
        self.data as u32 * self.depth as u32
    }
}

/// How strongly the messages of a kind are protected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strength {
    /// Data shards of a group, at the most: 1 to [`MOST_DATA`](crate::MOST_DATA).
    pub data: u8,
    /// Parity shards of a group, at the most: up to [`MOST_PARITY`](crate::MOST_PARITY). Without any, nothing is protected.
    pub parity: u8,
    /// Share of groups that may be left unrepaired.
    pub residual: f64,
    /// Messages of a lower priority are not protected.
    pub from_priority: u8,
    /// Groups that are interleaved, where code and interleaving are not to follow what is measured.
    pub fixed: Option<u8>,
}

/// What the rules go by, all of it configurable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Round trips up to this, in nanoseconds, are short enough to send again: nobody is protected.
    pub short_round_trip: u64,
    /// Stages from this on are late ones.
    pub late_stage: u8,
    /// Segments of a block at the most. A receiver waits for a whole block where a loss is to be repaired, and other messages of
    /// the session wait until one is out.
    pub block: u32,
    /// Gradients: long, and nobody takes part of them.
    pub gradients: Strength,
    /// Activations of early stages, which hold up all stages after them.
    pub early: Strength,
    /// Those of late ones, which hold up few.
    pub late: Strength,
    /// Control, which is short.
    pub control: Strength,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            // Below half a millisecond a lost segment is there again before a group of a busy link is through.
            short_round_trip: 500_000,
            late_stage: 4,
            // 1,024 segments of 4 KiB are four megabytes: 336 µs at 100 Gb/s, and more than 1 Gb/s has under way over 25 ms. Groups of 32 can then be interleaved so deep that
            // a burst of 8 rarely takes two shards of one. Half as many segments take half as much parity again.
            block: 1_024,
            gradients: Strength { from_priority: rules::HIGH, ..adaptive(32, 4, 1e-4) },
            early: adaptive(16, 8, 1e-5),
            late: adaptive(32, 2, 1e-3),
            control: adaptive(8, 4, 1e-6),
        }
    }
}

const fn adaptive(data: u8, parity: u8, residual: f64) -> Strength {
    Strength { data, parity, residual, from_priority: 0, fixed: None }
}

/// The protection for a message, or none.
pub fn choose(policy: &Policy, message: &Message, network: &Network) -> Option<Protection> {
    let kind = rules::kind(policy, message)?;
    if !rules::wants_protection(message, kind) || !rules::repair_is_faster(policy, message, network) {
        return None;
    }
    if let Some(depth) = kind.fixed {
        return Some(rules::as_given(policy, message, kind, depth));
    }
    let residual = rules::residual(message, network, kind.residual);
    let protections = rules::depths(policy, message, network).map(|depth| {
        let data = rules::group(policy, message, kind.data.min(MOST_DATA as u8), depth);
        let depth = rules::groups_there_are(message, data, depth);
        let parity = rules::strength(data, depth, kind.parity.min(MOST_PARITY as u8), residual, network);
        Protection { data, parity, depth }
    });
    rules::cheapest(message, network, residual, protections)
}

/// Of a message's segments, how many at its end are to be protected, if the way carries so many in a round trip: those before them are sent again in time.
pub fn late(policy: &Policy, message: &Message, carried: u32) -> u32 {
    match rules::kind(policy, message) {
        Some(kind) if kind.fixed.is_none() => rules::late(message, carried),
        _ => message.segments,
    }
}

/// A message that has begun is protected so from its next block on: its blocks keep their shape, their strength follows the network, unless it is
/// fixed.
pub fn adapt(policy: &Policy, message: &Message, network: &Network, begun: Protection) -> Protection {
    let Some(kind) = rules::kind(policy, message).filter(|kind| kind.fixed.is_none()) else { return begun };
    let residual = rules::residual(message, network, kind.residual);
    let parity =
        rules::strength(begun.data, begun.depth, kind.parity.min(MOST_PARITY as u8), residual, network);
    Protection { parity, ..begun }
}

#[cfg(test)]
mod tests;
