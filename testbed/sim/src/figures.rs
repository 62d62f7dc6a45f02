//! What a run shows beside whether it is sound: how losses were repaired, how long nothing came, what each link carried.

use roce_proto::time::Instant;
use roce_proto::wire::shim::{Data, Kind, Seq};
use std::collections::HashMap;
use std::time::Duration;

/// What was seen of segments between the network and the engines.
#[derive(Debug, Default)]
pub struct Figures {
    /// Segments that were lost and have not come since, by session id and sequence, and when they were lost first.
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
        let mut left = Some(bytes);
        while let Some(bytes) = left {
            // One or, in a bundle, several.
            left = Data::following(bytes);
            if let Ok((data, _)) = Data::parse(bytes) {
                self.lost.entry((data.session, data.seq)).or_insert(now);
            }
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

/// Packets that hosts handed to the network, of one class in one slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// With a segment that was not sent before.
    pub fresh: u64,
    /// With one that was.
    pub again: u64,
    /// With parity.
    pub parity: u64,
    /// Bytes of parity packets, headers included.
    pub parity_bytes: u64,
}

impl Sent {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: Sent) -> Sent {
        Sent {
            fresh: self.fresh + other.fresh,
            again: self.again + other.again,
            parity: self.parity + other.parity,
            parity_bytes: self.parity_bytes + other.parity_bytes,
        }
    }

    /// Parity packets for each segment.
    pub fn cost(&self) -> f64 {
        self.parity as f64 / self.fresh.max(1) as f64
    }
}

/// What was sent, slice by slice of [`SLICE`]: by class, untagged first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic(pub Vec<[Sent; 4]>);

/// A slice of time.
pub const SLICE: Duration = Duration::from_millis(5);

impl Traffic {
    /// A packet is handed to the network: `bytes` follow the DETH, and `wire` are those of the whole frame.
    pub fn sent(&mut self, now: Instant, bytes: &[u8], wire: usize) {
        let Some([first, flags, _, class]) = bytes.first_chunk() else { return };
        let kind = first & 0x0f;
        if kind != Kind::Data as u8 && kind != Kind::Parity as u8 {
            return;
        }
        let at = (now.as_nanos() / SLICE.as_nanos() as u64) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Default::default());
        }
        let class = usize::from(class >> 4);
        let Some(sent) = self.0[at].get_mut(if class < 4 { class } else { 0 }) else { return };
        if kind == Kind::Parity as u8 {
            sent.parity += 1;
            sent.parity_bytes += wire as u64;
        } else if flags & AGAIN != 0 {
            sent.again += 1;
        } else {
            sent.fresh += 1;
        }
    }

    /// What was sent of a class from one time to another, whole slices.
    pub fn of(&self, class: usize, from: Duration, to: Duration) -> Sent {
        let slice = |at: Duration| (at.as_nanos() / SLICE.as_nanos()) as usize;
        let slices = self.0.iter().take(slice(to)).skip(slice(from));
        slices.filter_map(|s| s.get(class)).fold(Sent::default(), |sum, sent| sum.and(*sent))
    }
}

/// The flag of a segment that was sent before: `docs/protocol.md`, 2.1.
const AGAIN: u8 = 0x02;

/// Jain's fairness index of some shares: 1 if they are equal, 1/n if one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce_proto::wire::shim::{Parity, Semantics};

    #[test]
    fn fairness_by_hand() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        // (1 + 3)² / (2 · (1 + 9))
        assert_eq!(jain(&[1.0, 3.0]), 0.8);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn what_is_sent_is_counted_by_class_and_time() {
        let mut traffic = Traffic::default();
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let data = Data { semantics: Semantics { class: 2, ..Semantics::default() }, ..Data::default() };
        traffic.sent(ms(1), &data.to_bytes(), 100);
        traffic.sent(ms(12), &Data { again: true, ..data }.to_bytes(), 100);
        let parity =
            Parity { first: data, codec: 1, version: 1, segments: 1, shards: 1, index: 0, stride: 1 };
        traffic.sent(ms(13), &parity.to_bytes(), 150);
        // Feedback is of no class.
        traffic.sent(ms(13), &[0x11, 0, 0, 0x20], 60);
        let all = traffic.of(2, Duration::ZERO, Duration::from_millis(15));
        assert_eq!(all, Sent { fresh: 1, again: 1, parity: 1, parity_bytes: 150 });
        assert_eq!(traffic.of(2, Duration::from_millis(5), Duration::from_millis(15)).fresh, 0);
        assert_eq!(traffic.of(1, Duration::ZERO, Duration::from_millis(15)), Sent::default());
        assert_eq!(all.cost(), 1.0);
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
