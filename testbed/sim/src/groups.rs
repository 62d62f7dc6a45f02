//! Groups of segments with parity, as they are seen on the wire, and which of them were not repaired.

use roce_proto::wire::shim::{Common, Data, Kind, Parity, Seq};
use std::collections::HashSet;

/// What was sent of groups. Nothing is taken from the engines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// In the order in which their parity was sent.
    begun: Vec<Group>,
    /// Segments whose first transmission was lost, and of them those that were sent again: session id and sequence.
    lost: HashSet<(u64, Seq)>,
    again: HashSet<(u64, Seq)>,
}

/// A group: its session, its first segment's sequence, its segments, and what is from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    session: u64,
    seq: Seq,
    count: u8,
    stride: u8,
}

impl Groups {
    /// A packet is handed to the network: `bytes` follow the DETH.
    pub fn sent(&mut self, bytes: &[u8]) {
        match Common::parse(bytes).map(|common| common.kind) {
            Ok(Kind::Data) => {
                if let Ok((data, _)) = Data::parse(bytes)
                    && data.again
                    && self.lost.contains(&(data.session, data.seq))
                {
                    self.again.insert((data.session, data.seq));
                }
            }
            Ok(Kind::Parity) => {
                // The first shard of each is always sent.
                if let Ok((Parity { first, segments: count, stride, index: 0, .. }, _)) = Parity::parse(bytes)
                {
                    self.begun.push(Group { session: first.session, seq: first.seq, count, stride });
                }
            }
            _ => {}
        }
    }

    /// A link lost a packet.
    pub fn lost(&mut self, bytes: &[u8]) {
        if let Ok((data, _)) = Data::parse(bytes)
            && !data.again
        {
            self.lost.insert((data.session, data.seq));
        }
    }

    /// Of each group whether something of it was sent again that was lost. What a time-out sends again though it had come says nothing of parity.
    pub fn failed(&self) -> Vec<bool> {
        let seq = |g: &Group, i: u8| g.seq.add(u32::from(i) * u32::from(g.stride));
        self.begun
            .iter()
            .map(|g| (0..g.count).any(|i| self.again.contains(&(g.session, seq(g, i)))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_failed_if_one_of_its_segments_is_lost_and_sent_again() {
        let mut groups = Groups::default();
        let first = Seq(u32::MAX - 1);
        let data = |ahead, again| Data { session: 7, seq: first.add(ahead), again, ..Data::default() };
        // Two groups of three segments, interleaved.
        for ahead in 0..6 {
            groups.sent(&data(ahead, false).to_bytes());
        }
        for (index, group) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let first = data(group, false);
            let parity = Parity { first, codec: 1, version: 1, segments: 3, shards: 2, index, stride: 2 };
            groups.sent(&parity.to_bytes());
        }
        assert_eq!(groups.failed(), [false, false]);
        groups.sent(&data(2, true).to_bytes());
        assert_eq!(groups.failed(), [false, false], "it had come");
        groups.lost(&data(5, false).to_bytes());
        assert_eq!(groups.failed(), [false, false], "parity brought it back");
        groups.lost(&data(4, true).to_bytes());
        groups.sent(&data(4, true).to_bytes());
        assert_eq!(groups.failed(), [false, false], "it came at first");
        groups.sent(&data(5, true).to_bytes());
        assert_eq!(groups.failed(), [false, true]);
        // Another session's, and what is behind them.
        groups.sent(&Data { session: 8, ..data(0, true) }.to_bytes());
        groups.sent(&data(6, true).to_bytes());
        assert_eq!(groups.failed(), [false, true]);
    }
}
