//! What parity is made of and what it repairs: the bytes behind the engine's descriptions.

use super::store::Store;
use crate::buffer::Buffer;
use arrayvec::ArrayVec;
use fec::{MOST_DATA, MOST_PARITY, Workshop};
use roce_proto::transport::{Repair, Shards};

/// The codes, and the parity shards that the engine keeps.
pub(super) struct ParityStore {
    workshop: Workshop,
    /// Shards one after the other, each with room for a segment.
    shards: Vec<u8>,
    segment: usize,
}

impl ParityStore {
    /// Room for `count` shards of up to `segment` bytes.
    pub fn new(count: u32, segment: usize) -> ParityStore {
        ParityStore { workshop: Workshop::new(segment), shards: vec![0; count as usize * segment], segment }
    }

    /// Keeps a shard that came.
    pub fn keep(&mut self, at: u32, shard: &[u8]) {
        let from = at as usize * self.segment;
        if let Some(place) = self.shards.get_mut(from..from + shard.len()) {
            place.copy_from_slice(shard);
        }
    }

    /// Makes a shard to send in its place; false if the send is over, and its buffer gone.
    pub fn make<B: Buffer>(&mut self, of: &Shards, sends: &Store<B>, place: &mut [u8]) -> bool {
        let part = |i| {
            let (at, len) = of.part(i);
            sends.bytes(of.token, at, len)
        };
        let data: Option<ArrayVec<&[u8], MOST_DATA>> =
            (0..usize::from(of.count).min(MOST_DATA)).map(part).collect();
        let Some(data) = data else { return false };
        place.is_empty() || self.workshop.encode(of.index.into(), &data, place).is_ok()
    }

    /// Recovers what is missing of a group, in its place in the receive's buffer.
    #[cold]
    pub fn repair<B: Buffer>(&mut self, r: &Repair, receives: &mut Store<B>) {
        let count = usize::from(r.count).min(MOST_DATA);
        let length = r.len as usize;
        let shard = |at: u32| {
            let from = at as usize * self.segment;
            self.shards.get(from..from + length)
        };
        let parity: ArrayVec<(usize, &[u8]), MOST_PARITY> = r
            .shards
            .iter()
            .take(r.parity.into())
            .filter_map(|(index, at)| Some((usize::from(*index), shard(*at)?)))
            .collect();
        let data: ArrayVec<Option<&[u8]>, MOST_DATA> = (0..count)
            .map(|i| {
                let (at, len) = r.part(i);
                if r.is_missing(i) { None } else { receives.bytes(r.token, at, len) }
            })
            .collect();
        // A message of no bytes has nothing to recover, and nothing else fails: the engine has counted what is there.
        let recovered = self.workshop.recover(length, &data, &parity);
        drop(data);
        let Ok(recovered) = recovered else { return };
        let missing = (0..count).filter(|i| r.is_missing(*i));
        for (i, bytes) in missing.zip(recovered) {
            let (at, len) = r.part(i);
            receives.write(r.token, at, bytes.get(..len).unwrap_or_default());
        }
    }
}
