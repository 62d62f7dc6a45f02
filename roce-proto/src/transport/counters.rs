//! What an engine counts. Every packet that it was given is in exactly one of the counters of receipt.

use super::api::{Drop, Received};
use crate::wire::shim::Kind;
use fec::policy::Class;

/// Classes that are counted by themselves.
pub const CLASSES: usize = 4;

/// What an engine counts of a class of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounters {
    /// Messages posted to send. Those without a class are counted only where everything is protected: else nobody pays for them.
    pub messages: u64,
    /// Segments of protected messages, sent for the first time.
    pub protected: u64,
    /// Segments that did not come and were recovered here.
    pub repaired: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Of them, those of protected messages, each once: what parity was there for and did not save.
    pub residual: u64,
    /// Parity shards sent.
    pub parity: u64,
    /// Their bytes, without headers.
    pub parity_bytes: u64,
}

impl ClassCounters {
    /// What was counted since.
    pub fn since(&self, before: &ClassCounters) -> ClassCounters {
        ClassCounters {
            messages: self.messages - before.messages,
            protected: self.protected - before.protected,
            repaired: self.repaired - before.repaired,
            retransmitted: self.retransmitted - before.retransmitted,
            residual: self.residual - before.residual,
            parity: self.parity - before.parity,
            parity_bytes: self.parity_bytes - before.parity_bytes,
        }
    }
}

/// Places of [`Repairs`]: sixteen round trips.
pub const REPAIRS: usize = 128;

/// Segments that were sent again and arrived, by how long that took: in eighths of a round trip, the last place being for all that took longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repairs(pub [u64; REPAIRS]);

impl Repairs {
    /// One more that took so many eighths.
    pub(super) const fn note(&mut self, eighths: u128) {
        let last = REPAIRS - 1;
        self.0[if eighths < last as u128 { eighths as usize } else { last }] += 1;
    }
}

impl Default for Repairs {
    fn default() -> Repairs {
        Repairs([0; REPAIRS])
    }
}

/// The counters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub received: u64,
    /// Segments that were placed in a receive.
    pub placed: u64,
    /// Segments that were placed in the bounce pool.
    pub bounced: u64,
    /// Parity shards that were kept, as something of their group was missing.
    pub shards: u64,
    /// Packets taken that had nothing to place, by [`Kind`].
    pub taken: [u64; Kind::ALL.len()],
    /// Packets dropped, by [`Drop::index`].
    pub dropped: [u64; Drop::COUNT],
    /// Packets sent, by [`Kind`].
    pub sent: [u64; Kind::ALL.len()],
    /// Segments sent behind another in its packet. Everywhere else such a segment counts as a packet of its own.
    pub bundled: u64,
    /// Of each class, by its number on the wire ([`Class::to_wire`](fec::policy::Class::to_wire)); classes without a name count as the first.
    pub classes: [ClassCounters; CLASSES],
    /// Segments of protected messages, sent for the first time.
    pub protected: u64,
    /// Segments that were lost and waited for their repair.
    pub awaited: u64,
    /// Of them, those that were sent again after all.
    pub unrepaired: u64,
    /// Segments that did not come and were recovered here.
    pub repaired: u64,
    /// Segments that the peer recovered before anything showed that they were lost.
    pub unseen: u64,
    /// Losses that no detector found and nothing repaired: parity shards, for the most part. Congestion control was told of them then.
    pub parity_lost: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Segments sent twice at once, at the end of messages tagged SYNC.
    pub copies: u64,
    /// Segments sent again of which the peer said that it had them.
    pub spurious: u64,
    /// Segments that a gap on their path showed to be lost.
    pub gap_losses: u64,
    /// Segments that later ones on other paths showed to be lost.
    pub time_losses: u64,
    /// Segments that were lost by the receiver's deadline.
    pub deadline_losses: u64,
    /// Questions to peers after something of a step that has not come in time.
    pub questions: u64,
    /// Receives that named a step while all steps were in use.
    pub no_step: u64,
    /// Segments given up by a retransmission time-out.
    pub rto_losses: u64,
    /// Segments that the driver was told to be lost.
    pub told_losses: u64,
    /// Expiries of a retransmission time-out.
    pub rtos: u64,
    /// Segments that were sent again and arrived, by how much longer that took than the half of a round trip in which an answer comes: in parts of the
    /// smoothed round trip of the path they took last. The delay of the answer is in it.
    pub repairs: Repairs,
    /// Of them, those during which neither this side nor a peer was away for longer than such a round trip: no round of ours took as long, and no peer reported to have waited as long.
    pub steady_repairs: Repairs,
    /// Of all of them, those that went last because a time-out had given them up. Peers had some of these already.
    pub timeout_repairs: u64,
    /// Rounds whose delay moved the deadlines.
    pub held_up: u64,
    /// Transmissions put off because all chunks of segments in flight were in use.
    pub no_chunk: u64,
    /// Announcements or feedback that named more channels than the session may have.
    pub no_channel: u64,
}

impl Counters {
    /// Packets that a counter of receipt has: equals [`received`](Counters::received).
    pub fn accounted(&self) -> u64 {
        self.placed
            + self.bounced
            + self.shards
            + self.taken.iter().sum::<u64>()
            + self.dropped.iter().sum::<u64>()
    }

    /// The counters of a class, by its number on the wire.
    pub(super) fn class(&mut self, number: u8) -> &mut ClassCounters {
        &mut self.classes[usize::from(Class::from_wire(number).to_wire()) % CLASSES]
    }

    /// Packets of a kind that were sent.
    pub const fn sent(&self, kind: Kind) -> u64 {
        self.sent[kind as usize]
    }

    /// Packets dropped for one reason.
    pub const fn dropped(&self, reason: Drop) -> u64 {
        self.dropped[reason.index()]
    }

    /// Counts one packet received.
    #[inline]
    pub(super) fn note(&mut self, what: &Received) {
        self.received += 1;
        match what {
            Received::Taken(kind) => self.taken[*kind as usize] += 1,
            Received::Place(p) => match p.to {
                super::api::Place::Receive { .. } => self.placed += 1,
                super::api::Place::Block(_) => self.bounced += 1,
                super::api::Place::Shard(_) => self.shards += 1,
            },
            Received::Dropped(reason) => self.dropped[reason.index()] += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drops_are_distinct() {
        for (i, name) in Drop::NAMES.iter().enumerate() {
            assert!(Drop::NAMES[..i].iter().all(|n| n != name));
        }
        assert_eq!(Drop::NoShard.index(), Drop::COUNT - 1);
        assert_eq!(Drop::Duplicate.name(), "duplicate");
    }
}
