//! What parity is made of and what it repairs: the bytes behind the engine's descriptions.

use super::store::Store;
use crate::buffer::Buffer;
use arrayvec::ArrayVec;
use fec::{MOST_DATA, MOST_PARITY, Workshop};
use roce_proto::transport::{Repair, SessionKey, Shards};
use roce_proto::wire::shim::Seq;

/// Groups whose parity can wait to be sent: those of the deepest block that the policy makes, twice.
const AHEAD: usize = 64;
/// Parity shards of a group that wait: the first goes at once.
const WAITING: usize = MOST_PARITY - 1;

/// The codes, and the parity shards that the engine keeps.
pub(super) struct ParityStore {
    workshop: Workshop,
    /// Shards one after the other, each with room for a segment.
    shards: Vec<u8>,
    segment: usize,
    ahead: Ahead,
}

/// Parity shards that were made with the first of their group and wait for their turn, so that the group is read once.
struct Ahead {
    /// Whose they are. Groups of a block have sequences one after the other, so each has a place of its own. Those of other sessions may
    /// take it before its turn: then each shard that is left is made by itself.
    groups: [Option<Group>; AHEAD],
    /// The shards of each place, one after the other, each with room for a segment.
    shards: Vec<u8>,
}

/// A group of parity shards. Another message may have the token of one that is over, so they are told apart by what stands on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Group {
    session: SessionKey,
    seq: Seq,
    count: u8,
    shards: u8,
    len: u32,
}

impl Group {
    fn of(session: SessionKey, of: &Shards) -> Group {
        Group { session, seq: of.seq, count: of.count, shards: of.shards, len: of.len }
    }

    fn place(&self) -> usize {
        self.seq.0 as usize % AHEAD
    }
}

impl Ahead {
    /// A shard that was made before.
    fn shard(&self, group: &Group, index: u8, segment: usize) -> Option<&[u8]> {
        let place = group.place();
        if self.groups[place] != Some(*group) || index >= group.shards {
            return None;
        }
        let from = (place * WAITING + usize::from(index).checked_sub(1)?) * segment;
        self.shards.get(from..from + group.len as usize)
    }

    /// Room for the shards behind the first.
    fn room(&mut self, group: &Group, segment: usize) -> impl Iterator<Item = &mut [u8]> {
        // What lay there is nobody's from now on.
        self.groups[group.place()] = None;
        let len = group.len as usize;
        let count = usize::from(group.shards).saturating_sub(1).min(WAITING);
        let from = group.place() * WAITING * segment;
        let room = self.shards.get_mut(from..from + count * segment).unwrap_or_default();
        room.chunks_exact_mut(segment).filter_map(move |shard| shard.get_mut(..len))
    }
}

impl ParityStore {
    /// Room for `count` shards of up to `segment` bytes.
    pub fn new(count: u32, segment: usize) -> ParityStore {
        let shards = vec![0; count as usize * segment];
        // Memory that is not touched before it is used.
        let ahead = Ahead { groups: [None; AHEAD], shards: vec![0; AHEAD * WAITING * segment] };
        ParityStore { workshop: Workshop::new(segment), shards, segment, ahead }
    }

    /// Keeps a shard that came.
    pub fn keep(&mut self, at: u32, shard: &[u8]) {
        let from = at as usize * self.segment;
        if let Some(place) = self.shards.get_mut(from..from + shard.len()) {
            place.copy_from_slice(shard);
        }
    }

    /// Makes a shard to send in its place; false if the send is over, and its buffer gone. With the first of a group it makes the others.
    pub fn make<B: Buffer>(
        &mut self,
        session: SessionKey,
        of: &Shards,
        sends: &Store<B>,
        place: &mut [u8],
    ) -> bool {
        let group = Group::of(session, of);
        if let Some(made) = self.ahead.shard(&group, of.index, self.segment)
            && made.len() == place.len()
        {
            place.copy_from_slice(made);
            return true;
        }
        let part = |i| {
            let (at, len) = of.part(i);
            sends.bytes(of.token, at, len)
        };
        let data: Option<ArrayVec<&[u8], MOST_DATA>> =
            (0..usize::from(of.count).min(MOST_DATA)).map(part).collect();
        let Some(data) = data else { return false };
        let len = place.len();
        if len == 0 {
            return true;
        }
        let mut parity: ArrayVec<&mut [u8], MOST_PARITY> = ArrayVec::new();
        parity.push(place);
        // Blocks of more groups than there are places would have each shard made twice.
        let ahead = of.index == 0 && of.stride <= AHEAD as u64 * u64::from(of.segment) && len <= self.segment;
        if ahead {
            parity.extend(self.ahead.room(&group, self.segment));
        }
        let made = self.workshop.encode(of.index.into(), &data, &mut parity).is_ok();
        drop(parity);
        if ahead && made {
            self.ahead.groups[group.place()] = Some(group);
        }
        made
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reliable::store::Entry;
    use roce_proto::transport::{Address, Config, Engine, Limits};
    use roce_proto::types::Qpn;
    use std::net::IpAddr;

    const SEGMENT: usize = 40;
    const LEN: usize = 21 * SEGMENT - 3;

    /// Group `group` of a block of three, of seven segments each.
    fn shards(seq: u32, group: usize, index: u8) -> Shards {
        let at = (group * SEGMENT) as u64;
        let (length, segment, stride) = (LEN as u64, SEGMENT as u32, 3 * SEGMENT as u64);
        let seq = Seq(seq).add(group as u32);
        Shards {
            token: 0,
            length,
            segment,
            offset: at,
            stride,
            count: 7,
            index,
            shards: 4,
            seq,
            len: segment,
        }
    }

    /// Sessions of an engine: a key can be had in no other way.
    fn keys() -> [SessionKey; 2] {
        let mut engine = Engine::new(&Config { limits: Limits::SMALL, ..Config::default() }).unwrap();
        [1, 2].map(|last| {
            let peer = Address::new(IpAddr::from([192, 0, 2, last]), Qpn::new(7).unwrap());
            engine.connect(peer).unwrap()
        })
    }

    /// A store whose only send has such bytes.
    fn sends(salt: usize) -> Store<Vec<u8>> {
        let mut store = Store::new(1);
        let buf = (0..LEN).map(|i| (i * 7 + i / 251 + salt * 13) as u8).collect();
        store.insert(Entry { wr_id: 0, len: LEN as u64, buf });
        store
    }

    /// What a shard is to be, made by itself.
    fn wanted(of: &Shards, sends: &Store<Vec<u8>>) -> Vec<u8> {
        let parts = (0..of.count.into()).map(|i| of.part(i));
        let data: Vec<&[u8]> = parts.map(|(at, len)| sends.bytes(0, at, len).unwrap()).collect();
        let mut shard = vec![0; SEGMENT];
        Workshop::new(SEGMENT).encode(of.index.into(), &data, &mut [&mut shard]).unwrap();
        shard
    }

    fn made(store: &mut ParityStore, session: usize, of: &Shards, sends: &Store<Vec<u8>>) -> Vec<u8> {
        let mut shard = vec![0xee; SEGMENT];
        assert!(store.make(keys()[session], of, sends, &mut shard));
        shard
    }

    #[test]
    fn a_group_is_read_once() {
        let mut store = ParityStore::new(1, SEGMENT);
        // Sequences wrap within the block.
        let (first, other) = (sends(1), sends(2));
        let of = |group, index| shards(u32::MAX, group, index);
        for group in 0..3 {
            assert_eq!(made(&mut store, 0, &of(group, 0), &first), wanted(&of(group, 0), &first), "{group}");
        }
        // The bytes are others now: what comes was made before.
        for (index, group) in (1..4).flat_map(|index| (0..3).map(move |group| (index, group))) {
            let of = of(group, index);
            assert_eq!(made(&mut store, 0, &of, &other), wanted(&of, &first), "{group}, {index}");
        }
    }

    #[test]
    fn only_shards_of_the_same_group_are_taken() {
        let (first, other) = (sends(1), sends(2));
        let of = shards(7, 0, 1);
        // Of another session, another sequence that has the same place, another shape or length: none is what was made.
        let others = [
            (1, of),
            (0, shards(7 + AHEAD as u32, 0, 1)),
            (0, Shards { shards: 5, index: 4, ..of }),
            (0, Shards { count: 6, ..of }),
        ];
        for (session, other_of) in others {
            let mut store = ParityStore::new(1, SEGMENT);
            made(&mut store, 0, &shards(7, 0, 0), &first);
            assert_eq!(
                made(&mut store, session, &other_of, &other),
                wanted(&other_of, &other),
                "{other_of:?}"
            );
        }
    }

    #[test]
    fn the_place_of_a_group_goes_to_the_next_that_begins() {
        let (first, other) = (sends(1), sends(2));
        let mut store = ParityStore::new(1, SEGMENT);
        let late = 7 + AHEAD as u32;
        made(&mut store, 0, &shards(7, 0, 0), &first);
        made(&mut store, 0, &shards(late, 0, 0), &other);
        // Those of the first are made by themselves again, and do not disturb the second.
        for index in 1..4 {
            assert_eq!(
                made(&mut store, 0, &shards(7, 0, index), &first),
                wanted(&shards(7, 0, index), &first)
            );
            assert_eq!(
                made(&mut store, 0, &shards(late, 0, index), &first),
                wanted(&shards(late, 0, index), &other)
            );
        }
    }

    #[test]
    fn a_send_that_is_over_gives_nothing() {
        let mut store = ParityStore::new(1, SEGMENT);
        let mut shard = vec![0xee; SEGMENT];
        assert!(!store.make(keys()[0], &Shards { token: 1, ..shards(7, 0, 0) }, &sends(1), &mut shard));
        // Nor does what could not be made take anybody's place.
        assert_eq!(made(&mut store, 0, &shards(7, 0, 1), &sends(1)), wanted(&shards(7, 0, 1), &sends(1)));
    }
}
