//! The sender's segments in flight: records in chunks of 32 consecutive sequences of one session, which the session links in
//! order. A feedback's bitmap is compared with a chunk word by word, so what was known before costs nothing.

use super::table::Slab;
use crate::time::Instant;
use crate::wire::shim::Seq;

/// Sequences of a chunk: one word of a feedback's bitmap.
pub const CHUNK: u32 = 32;

/// Where a segment stands; see `docs/protocol.md`, section 6. A segment that was placed is a bit of its chunk, and one that is suspect is
/// in flight and older than its path's gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Sent, and nothing known against it.
    #[default]
    InFlight,
    /// Lost, and to be sent again.
    Requested,
    /// Lost, and its block's parity may bring it back.
    AwaitRepair,
}

/// A segment that was sent and is not known to have arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// When it was sent last, by the engine's clock.
    pub time: Instant,
    /// Its message's record.
    pub message: u32,
    /// Its number in the message.
    pub index: u32,
    /// Its path sequence when sent last.
    pub path_seq: Seq,
    /// Its bytes, as congestion control counts them.
    pub bytes: u16,
    /// The path it was sent on last.
    pub path: u8,
    /// Where it stands.
    pub state: State,
    /// It was sent before.
    pub again: bool,
    /// While it waits for its repair: nanoseconds from when it was sent to the verdict. When it was sent again: from when it was sent first to the last time.
    pub lag: u32,
    /// How far the engine's clock was behind when it was sent first, see [`Engine::behind`](super::engine::Engine::behind).
    pub behind: u16,
    /// Only a time-out told that it is lost.
    pub blind: bool,
}

/// 32 consecutive sequences.
#[derive(Clone, Debug)]
pub struct ChunkHead {
    /// The first, a multiple of 32.
    pub base: Seq,
    /// Bit *i*: sequence `base + i` was sent and has not been acknowledged.
    pub open: u32,
    /// Bit *i*: it is requested.
    pub requested: u32,
    /// One more than the next chunk of the session, or 0.
    next: u32,
}

/// The chunks of one session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunks {
    /// One more than the first, or 0.
    head: u32,
    tail: u32,
    /// Where the oldest requested segment is, or before that.
    hint: u32,
}

/// The chunks of all sessions.
#[derive(Debug)]
pub struct Segments {
    heads: Slab<ChunkHead>,
    records: Vec<Segment>,
}

/// A segment's record: its chunk and its place there.
#[inline]
pub const fn chunk_of(record: u32) -> u32 {
    record / CHUNK
}

impl Segments {
    /// Room for at least so many segments.
    pub fn new(capacity: u32) -> Segments {
        let chunks = capacity.div_ceil(CHUNK);
        Segments { heads: Slab::new(chunks), records: Vec::with_capacity((chunks * CHUNK) as usize) }
    }

    /// Records that there can be.
    pub fn capacity(&self) -> u32 {
        self.records.capacity() as u32
    }

    /// Chunks in use.
    #[cfg(test)]
    pub fn chunks_in_use(&self) -> usize {
        self.heads.len()
    }

    /// A record for `seq`, the next of its session; `None` without room.
    #[inline]
    pub fn open(&mut self, of: &mut Chunks, seq: Seq) -> Option<u32> {
        let bit = seq.0 % CHUNK;
        let chunk = if of.tail == 0 || bit == 0 { self.append(of, seq)? } else { of.tail - 1 };
        self.heads[chunk].open |= 1 << bit;
        Some(chunk * CHUNK + bit)
    }

    #[inline(never)]
    fn append(&mut self, of: &mut Chunks, seq: Seq) -> Option<u32> {
        let head = ChunkHead { base: Seq(seq.0 & !(CHUNK - 1)), open: 0, requested: 0, next: 0 };
        let chunk = self.heads.insert(head)?;
        let end = (chunk as usize + 1) * CHUNK as usize;
        if self.records.len() < end {
            // Within the capacity that was reserved.
            self.records.resize(end, Segment::default());
        }
        match of.tail.checked_sub(1) {
            Some(last) => self.heads[last].next = chunk + 1,
            None => of.head = chunk + 1,
        }
        of.tail = chunk + 1;
        Some(chunk)
    }

    /// The first chunk of a session.
    #[inline]
    pub const fn first(of: &Chunks) -> Option<u32> {
        of.head.checked_sub(1)
    }

    /// The chunk after one.
    #[inline]
    pub fn next(&self, chunk: u32) -> Option<u32> {
        self.heads[chunk].next.checked_sub(1)
    }

    /// A chunk.
    #[inline]
    pub fn head(&self, chunk: u32) -> &ChunkHead {
        &self.heads[chunk]
    }

    /// A record.
    #[inline]
    pub fn get(&self, record: u32) -> &Segment {
        &self.records[record as usize]
    }

    /// A record, to change.
    #[inline]
    pub fn get_mut(&mut self, record: u32) -> &mut Segment {
        &mut self.records[record as usize]
    }

    /// The sequence of a record.
    #[inline]
    pub fn seq(&self, record: u32) -> Seq {
        self.heads[chunk_of(record)].base.add(record % CHUNK)
    }

    /// Acknowledges an open segment.
    #[inline]
    pub fn close(&mut self, record: u32) {
        let head = &mut self.heads[chunk_of(record)];
        let bit = 1 << (record % CHUNK);
        debug_assert!(head.open & bit != 0);
        head.open &= !bit;
        head.requested &= !bit;
    }

    /// Marks an open segment to be sent again.
    pub fn request(&mut self, of: &mut Chunks, record: u32) {
        let chunk = chunk_of(record);
        self.heads[chunk].requested |= 1 << (record % CHUNK);
        let older = match of.hint.checked_sub(1) {
            Some(hint) => self.heads[chunk].base.before(self.heads[hint].base),
            None => true,
        };
        if older {
            of.hint = chunk + 1;
        }
    }

    /// The oldest segment to be sent again.
    pub fn oldest_requested(&mut self, of: &mut Chunks) -> Option<u32> {
        while let Some(chunk) = of.hint.checked_sub(1) {
            let head = &self.heads[chunk];
            if head.requested != 0 {
                return Some(chunk * CHUNK + head.requested.trailing_zeros());
            }
            of.hint = head.next;
        }
        None
    }

    /// The segment is in flight again.
    pub fn resent(&mut self, record: u32) {
        self.heads[chunk_of(record)].requested &= !(1 << (record % CHUNK));
    }

    /// Frees the chunks at the front that hold nothing that is open; all of them once `next`, the sequence to be sent next,
    /// is the first that is not acknowledged. Returns the first sequence that is not.
    pub fn trim(&mut self, of: &mut Chunks, next: Seq) -> Seq {
        while let Some(chunk) = of.head.checked_sub(1) {
            let head = &self.heads[chunk];
            if head.open != 0 {
                return head.base.add(head.open.trailing_zeros());
            }
            if of.hint == chunk + 1 {
                of.hint = head.next;
            }
            of.head = head.next;
            self.heads.remove(chunk);
        }
        of.tail = 0;
        next
    }

    /// Frees everything of a session.
    pub fn clear(&mut self, of: &mut Chunks) {
        while let Some(chunk) = of.head.checked_sub(1) {
            of.head = self.heads[chunk].next;
            self.heads.remove(chunk);
        }
        *of = Chunks::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map from sequence to "requested", from a start near the wrap.
        #[test]
        fn behaves_like_a_map(start in (u32::MAX - 100)..=u32::MAX, ops in prop::collection::vec((0u8..4, any::<u16>()), 1..300)) {
            let mut segments = Segments::new(160);
            let mut chunks = Chunks::default();
            let mut next = Seq(start);
            // Keys count from the start, so that they do not wrap.
            let mut model: BTreeMap<u32, (bool, u32)> = BTreeMap::new();
            for (op, pick) in ops {
                let chosen = model.iter().nth(usize::from(pick) % model.len().max(1)).map(|(k, v)| (*k, *v));
                match (op, chosen) {
                    (0 | 1, _) => {
                        let full = segments.chunks_in_use() == 5 && next.0.is_multiple_of(CHUNK);
                        match segments.open(&mut chunks, next) {
                            Some(record) => {
                                prop_assert_eq!(segments.seq(record), next);
                                model.insert(next.0.wrapping_sub(start), (false, record));
                                next = next.next();
                            }
                            None => prop_assert!(full),
                        }
                    }
                    (2, Some((key, (_, record)))) => {
                        segments.close(record);
                        model.remove(&key);
                        let una = segments.trim(&mut chunks, next);
                        let oldest = model.keys().next().copied();
                        prop_assert_eq!(una, oldest.map_or(next, |k| Seq(start).add(k)));
                        if model.is_empty() {
                            prop_assert_eq!(segments.chunks_in_use(), 0);
                        }
                    }
                    (3, Some((key, (false, record)))) => {
                        segments.request(&mut chunks, record);
                        model.insert(key, (true, record));
                    }
                    (3, Some((key, (true, record)))) => {
                        segments.resent(record);
                        model.insert(key, (false, record));
                    }
                    _ => {}
                }
                let oldest = model.values().find(|v| v.0).map(|v| v.1);
                prop_assert_eq!(segments.oldest_requested(&mut chunks), oldest);
            }
            segments.clear(&mut chunks);
            prop_assert_eq!(segments.chunks_in_use(), 0);
        }
    }

    #[test]
    fn a_record_keeps_within_half_a_cache_line() {
        assert!(size_of::<Segment>() <= 32, "{}", size_of::<Segment>());
    }
}
