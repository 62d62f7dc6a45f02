//! The receiver's half: parity is kept while something of its group is missing, and repairs it as soon as enough is there.

use super::{CODEC, STAGE, part};
use crate::transport::api::{Drop, Origin, Place, Placement, Received, Status};
use crate::transport::engine::Engine;
use crate::transport::post::segments_of;
use crate::transport::session::{Fate, due};
use crate::transport::table::List;
use crate::transport::window::Verdict;
use crate::wire::shim::{Kind, Parity, Seq, ShimError};
use fec::{MOST_DATA, MOST_PARITY};

/// Parity shards that one session may keep, so that none has all of them: two blocks of 16 groups.
const MOST_KEPT: u32 = 128;
/// What a session may keep when half of all shards are in use: else a few sessions, each with as many as it may have, would leave nothing for
/// the others. It is the parity of four groups.
const FEW_KEPT: u32 = 16;

/// A group with parity, of which something is missing.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    session: u32,
    /// The record of its message, and the message's number.
    incoming: u32,
    message: Seq,
    /// Its first segment, and that one's sequence.
    first: u32,
    seq: Seq,
    count: u8,
    stride: u8,
    granted: bool,
    /// The class of its message.
    class: u8,
    /// Which parity shards there are.
    have: u16,
    /// Where they lie.
    shards: List,
}

impl Group {
    fn seq_of(&self, i: u8) -> Seq {
        self.seq.add(u32::from(i) * u32::from(self.stride))
    }

    /// Whether another one can stand beside it: groups of one block have the same stride and take turns, those of others lie apart. So no
    /// segment is of two groups, whatever a peer says.
    fn allows(&self, seq: Seq, count: u32, stride: u32) -> bool {
        let own = u32::from(self.stride);
        let (from, to) = (self.seq.distance(seq), self.seq.until(self.seq_of(self.count - 1)));
        let apart = from > to as i32 || from + (((count - 1) * stride) as i32) < 0;
        apart || (own == stride && !from.unsigned_abs().is_multiple_of(own))
    }
}

/// Segments to recover from what else of their group is in its place, and from parity. To be carried out before the engine is called
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The receive's token.
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
    /// Bit *i*: the group's segment *i* is missing.
    pub missing: u64,
    /// Parity shards, as many as segments are missing: number in the group, and block.
    pub shards: [(u8, u32); MOST_PARITY],
    /// How many of them.
    pub parity: u8,
    /// Bytes of a parity shard.
    pub len: u32,
}

impl Repair {
    /// Place and length in the message of one of the group's segments.
    pub fn part(&self, i: usize) -> (u64, usize) {
        part(self.offset, self.stride, self.segment, self.length, i)
    }

    /// Whether one of the group's segments is missing.
    pub const fn is_missing(&self, i: usize) -> bool {
        self.missing >> i & 1 != 0
    }
}

impl Engine {
    pub(in crate::transport) fn on_parity(
        &mut self,
        origin: &Origin,
        payload: &[u8],
    ) -> Result<Received, ShimError> {
        let (parity, shard) = Parity::parse(payload)?;
        Ok(match self.take_parity(origin, &parity, shard.len()) {
            Ok(received) => received,
            Err(drop) => {
                self.answer_stranger(origin, parity.first.session, drop);
                Received::Dropped(drop)
            }
        })
    }

    fn take_parity(&mut self, origin: &Origin, parity: &Parity, len: usize) -> Result<Received, Drop> {
        let first = &parity.first;
        let slot = self.lookup_open(first.session, origin)?;
        self.note_path(slot, first.path, first.path_seq, first.time, origin.ce)?;
        if (parity.codec, parity.version) != (CODEC.id, CODEC.version) {
            return Err(Drop::UnknownCodec);
        }
        let (count, stride) = (u32::from(parity.segments), u32::from(parity.stride));
        let sound = (1..=MOST_DATA as u32).contains(&count)
            && (1..=MOST_PARITY as u8).contains(&parity.shards)
            && parity.index < parity.shards
            && stride > 0
            && !first.void;
        if !sound {
            return Err(Drop::Inconsistent);
        }
        let segment = self.sessions[slot].segment;
        let last = u64::from(first.segment) + u64::from((count - 1) * stride);
        if last >= segments_of(first.length, segment) {
            return Err(Drop::Inconsistent);
        }
        self.check(first, len, segment)?;
        let (known, seq) = (self.find_group(slot, parity)?, first.seq);
        let mut missing = false;
        for i in 0..count {
            match self.windows.judge(&self.sessions[slot].rx.window, seq.add(i * stride)) {
                Verdict::New => missing = true,
                Verdict::Duplicate => {}
                Verdict::Beyond => return Err(Drop::BeyondWindow),
                Verdict::NoBitmap => return Err(Drop::NoWindow),
            }
        }
        if !missing {
            return Ok(Received::Taken(Kind::Parity));
        }
        let group = match known {
            Some(group) => group,
            None => self.begin_group(slot, parity)?,
        };
        self.keep(slot, group, parity.index, len)
    }

    /// The group of a shard, if there is one.
    fn find_group(&self, slot: u32, parity: &Parity) -> Result<Option<u32>, Drop> {
        let first = &parity.first;
        let (count, stride) = (parity.segments, parity.stride);
        let mut at = self.sessions[slot].rx.groups.head();
        while let Some(group) = at {
            let g = &self.groups[group];
            if (g.seq, g.stride, g.count, g.first, g.message)
                == (first.seq, stride, count, first.segment, first.message)
                && self.incoming[g.incoming].length == first.length
            {
                return Ok(Some(group));
            }
            if !g.allows(first.seq, count.into(), stride.into()) {
                return Err(Drop::Inconsistent);
            }
            at = self.group_chain.next(group);
        }
        Ok(None)
    }

    /// A record for a group, if its message has a receive: what lies in the bounce pool is sent again instead.
    fn begin_group(&mut self, slot: u32, parity: &Parity) -> Result<u32, Drop> {
        let first = &parity.first;
        if !self.groups.has_room() || !self.has_room_for_shard(slot) {
            return Err(Drop::NoShard);
        }
        let incoming = match self.find_incoming(slot, first.message) {
            Some(at) => at,
            None => self.begin_by_parity(slot, parity)?,
        };
        let m = &self.incoming[incoming];
        let same = m.length == first.length && m.ordinal == first.ordinal && m.tag == first.tag;
        if !same || m.communicator != first.communicator || !matches!(m.fate, Fate::Placed(_)) {
            return Err(Drop::NoUse);
        }
        let group = Group {
            session: slot,
            incoming,
            message: first.message,
            first: first.segment,
            seq: first.seq,
            count: parity.segments,
            stride: parity.stride,
            granted: first.granted,
            class: first.semantics.class,
            have: 0,
            shards: List::default(),
        };
        let at = self.groups.insert(group).ok_or(Drop::NoShard)?;
        self.watched += 1;
        self.group_chain.push_back(&mut self.sessions[slot].rx.groups, at);
        Ok(at)
    }

    /// Parity is the first that comes of its message.
    fn begin_by_parity(&mut self, slot: u32, parity: &Parity) -> Result<u32, Drop> {
        let first = &parity.first;
        let hash = self.hash_match(slot, first.communicator, first.tag, first.ordinal);
        let receive = self.find_receive(hash, slot, first).ok_or(Drop::NoUse)?;
        if first.length > self.receives[receive].capacity {
            return Err(Drop::NoUse);
        }
        let at = self.begin_message(slot, first, Fate::Placed(receive))?;
        // No segment of it has come.
        self.incoming[at].count += 1;
        self.by_match.remove(hash, receive);
        Ok(at)
    }

    fn has_room_for_shard(&self, slot: u32) -> bool {
        let own = self.sessions[slot].rx.shards;
        let plenty = 2 * self.shards.len() < self.config.limits.shards as usize;
        self.shards.has_room() && own < if plenty { MOST_KEPT } else { FEW_KEPT }
    }

    /// Keeps a parity shard, and sees whether it is enough now.
    fn keep(&mut self, slot: u32, group: u32, index: u8, len: usize) -> Result<Received, Drop> {
        if self.groups[group].have >> index & 1 != 0 {
            return Err(Drop::Duplicate);
        }
        let room = self.has_room_for_shard(slot);
        let Some(block) = room.then(|| self.shards.insert(index)).flatten() else {
            return Err(Drop::NoShard);
        };
        let g = &mut self.groups[group];
        g.have |= 1 << index;
        self.shard_chain.push_back(&mut g.shards, block);
        self.sessions[slot].rx.shards += 1;
        self.evaluate(group);
        Ok(Received::Place(Placement { to: Place::Shard(block), len: len as u32 }))
    }

    /// A segment has come while groups have something missing, perhaps of its session.
    fn look_at_groups(&mut self, slot: u32, seq: Seq) {
        let mut at = self.sessions[slot].rx.groups.head();
        while let Some(group) = at {
            at = self.group_chain.next(group);
            let g = &self.groups[group];
            let (ahead, stride) = (g.seq.until(seq), u32::from(g.stride));
            if ahead.is_multiple_of(stride) && ahead / stride < u32::from(g.count) {
                self.evaluate(group);
            }
        }
    }

    /// Whether a group has all, or enough for a repair.
    fn evaluate(&mut self, group: u32) {
        let g = self.groups[group];
        let window = self.sessions[g.session].rx.window;
        let (mut missing, mut free) = (0, true);
        for i in 0..g.count {
            match self.windows.judge(&window, g.seq_of(i)) {
                Verdict::Duplicate => {}
                verdict => {
                    missing += 1;
                    free &= verdict == Verdict::New;
                }
            }
        }
        // A peer may name sequences that are not of the message, and have that complete before them.
        if missing == 0 || self.incoming[g.incoming].count < missing {
            self.forget_group(group);
        } else if free && missing <= g.have.count_ones() {
            self.repairable = Some(group);
        }
    }

    fn forget_group(&mut self, group: u32) {
        let mut g = self.groups[group];
        let rx = &mut self.sessions[g.session].rx;
        while let Some(block) = self.shard_chain.pop_front(&mut g.shards) {
            self.shards.remove(block);
            rx.shards -= 1;
        }
        self.group_chain.remove(&mut rx.groups, group);
        self.groups.remove(group);
        self.watched -= 1;
        if self.repairable == Some(group) {
            self.repairable = None;
        }
    }

    /// A message is over, or what came of it: its groups have nothing to repair, whatever is missing of the sequences that a peer named.
    #[cold]
    pub(in crate::transport) fn forget_groups_of(&mut self, incoming: u32) {
        let mut at = self.sessions[self.incoming[incoming].session].rx.groups.head();
        while let Some(group) = at {
            at = self.group_chain.next(group);
            if self.groups[group].incoming == incoming {
                self.forget_group(group);
            }
        }
    }

    /// A session is over.
    pub(in crate::transport) fn forget_groups(&mut self, slot: u32) {
        while let Some(group) = self.sessions[slot].rx.groups.head() {
            self.forget_group(group);
        }
    }

    /// What can be repaired now. To be called after each [`Engine::receive`] once what that answered is carried out: only the segment that came last is looked
    /// at. The shards that it names are free for others with the next packet.
    #[inline]
    pub fn next_repair(&mut self) -> Option<Repair> {
        if STAGE && self.watched > 0 { self.look_and_repair() } else { None }
    }

    /// While nothing is missing anywhere, a segment that comes is not looked at: so it is done here, and not where it is taken.
    #[cold]
    fn look_and_repair(&mut self) -> Option<Repair> {
        let (slot, seq) = self.came;
        if self.repairable.is_none() {
            self.look_at_groups(slot, seq);
        }
        let group = self.repairable?;
        self.repair(group)
    }

    fn repair(&mut self, group: u32) -> Option<Repair> {
        // Packets may have come since.
        self.repairable = None;
        self.evaluate(group);
        self.repairable.take()?;
        let g = self.groups[group];
        let slot = g.session;
        let m = self.incoming[g.incoming];
        let Fate::Placed(receive) = m.fate else {
            self.forget_group(group);
            return None;
        };
        let segment = self.sessions[slot].segment;
        let token = self.receives[receive].token;
        let mut missing = 0u64;
        for i in 0..g.count {
            if self.windows.judge(&self.sessions[slot].rx.window, g.seq_of(i)) == Verdict::New {
                missing |= 1 << i;
                self.windows.take(&mut self.sessions[slot].rx.window, g.seq_of(i));
            }
        }
        let lost = missing.count_ones();
        let mut shards = [(0, 0); MOST_PARITY];
        let (mut at, mut parity) = (g.shards.head(), 0);
        while let (Some(block), Some(place)) = (at, shards.get_mut(parity)) {
            *place = (self.shards[block], block);
            parity += 1;
            at = self.shard_chain.next(block);
        }
        let offset = u64::from(g.first) * u64::from(segment);
        let repair = Repair {
            token,
            length: m.length,
            segment,
            offset,
            stride: u64::from(g.stride) * u64::from(segment),
            count: g.count,
            missing,
            shards,
            parity: parity as u8,
            len: (m.length - offset).min(u64::from(segment)) as u32,
        };
        let came: usize =
            (0..usize::from(g.count)).filter(|i| repair.is_missing(*i)).map(|i| repair.part(i).1).sum();
        self.step_came(receive, came as u64);
        self.forget_group(group);
        for _ in 0..lost {
            self.count_down(g.incoming);
            self.return_grant(slot, g.granted);
        }
        if m.count == lost {
            self.forget_incoming(g.incoming);
            self.finish_receive(receive, Status::Success, m.length);
        }
        self.counters.repaired += u64::from(lost);
        self.counters.class(g.class).repaired += u64::from(lost);
        let rx = &mut self.sessions[slot].rx;
        rx.repaired = rx.repaired.wrapping_add(lost as u16);
        // The sender is waiting to hear whether it has to send again.
        self.owe(slot, due::FEEDBACK);
        Some(repair)
    }
}
