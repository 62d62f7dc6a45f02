//! What a run shows beside whether it is sound: how losses were repaired, how long nothing came, what each link carried.

use roce_proto::time::Instant;
use roce_proto::wire::shim::{Data, Seq};
use std::collections::HashMap;
use std::time::Duration;

/// What was seen of segments between the network and the engines.
#[derive(Debug, Default)]
pub struct Figures {
    /// Segments that had a packet of their own, were lost and have not come since, by session id and sequence, and when they were lost first.
    lost: HashMap<(u64, Seq), Instant>,
    /// From such a segment's first loss to its arrival. Those recovered from parity do not arrive.
    pub repairs: Vec<Duration>,
    /// When a new segment came last.
    last: Option<Instant>,
    /// The longest time between two of them.
    pub stall: Duration,
    /// Sums of the one-way delays of packets with and without a segment, in nanoseconds, and their numbers.
    one_way: [(u64, u64); 2],
}

impl Figures {
    /// A link lost a packet.
    pub fn lost(&mut self, now: Instant, bytes: &[u8]) {
        if let Ok((data, _)) = Data::parse(bytes) {
            self.lost.entry((data.session, data.seq)).or_insert(now);
        }
    }

    /// A packet came out of the network, sent at `sent`.
    pub fn came(&mut self, now: Instant, sent: Instant, is_data: bool) {
        let (sum, count) = &mut self.one_way[usize::from(is_data)];
        *sum += now.saturating_since(sent).as_nanos() as u64;
        *count += 1;
    }

    /// A segment came that is new to its receiver.
    pub fn placed(&mut self, now: Instant, data: &Data) {
        if let Some(at) = self.lost.remove(&(data.session, data.seq)) {
            self.repairs.push(now.saturating_since(at));
        }
        if let Some(last) = self.last {
            self.stall = self.stall.max(now.saturating_since(last));
        }
        self.last = Some(now);
    }

    /// The mean time that a segment takes one way and a control packet the other.
    pub fn round_trip(&self) -> Duration {
        let mean = |(sum, count): (u64, u64)| sum.checked_div(count).unwrap_or_default();
        Duration::from_nanos(mean(self.one_way[0]) + mean(self.one_way[1]))
    }
}

/// What one link carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets with a segment.
    pub segments: u64,
    /// When the last of them came out.
    pub last: Option<Instant>,
    /// The longest time between two of them, and when it ended.
    pub pause: (Duration, Instant),
}

impl Carried {
    /// A packet with a segment came out.
    pub fn note(&mut self, now: Instant) {
        self.segments += 1;
        if let Some(last) = self.last {
            let pause = now.saturating_since(last);
            if pause > self.pause.0 {
                self.pause = (pause, now);
            }
        }
        self.last = Some(now);
    }
}

/// Jain's fairness index of some shares: 1 if they are equal, 1/n if one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_by_hand() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        // (1 + 3)² / (2 · (1 + 9))
        assert_eq!(jain(&[1.0, 3.0]), 0.8);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn the_longest_pause_of_a_link_and_when_it_ended() {
        let mut carried = Carried::default();
        for us in [10, 11, 40, 45] {
            carried.note(Instant::from_nanos(us * 1000));
        }
        assert_eq!(carried.segments, 4);
        assert_eq!(carried.pause, (Duration::from_micros(29), Instant::from_nanos(40_000)));
    }
}
