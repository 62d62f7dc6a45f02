//! The sender's half.

use super::choose::Question;
use super::losses::{MOST_PATHS, Watched};
use super::pace::Pace;
use super::{CODEC, Shards};
use crate::time::Instant;
use crate::transport::api::{Destination, Transmit};
use crate::transport::congestion::Congestion;
use crate::transport::engine::Engine;
use crate::transport::path::BAD;
use crate::transport::recovery::Protection as Left;
use crate::transport::segments::{CHUNK, Segments, State};
use crate::transport::session::Sending;
use crate::transport::table::List;
use crate::wire::shim::{Data, Kind, Parity, Seq, Ticks};
use core::time::Duration;
use fec::MOST_DATA;
use fec::policy::{Losses, Protection};

/// What a session keeps once it has sent something that its tags may protect.
#[derive(Debug)]
pub struct Protecting {
    /// What is lost.
    pub(super) losses: Losses,
    /// Packets that the peer has told of, on all paths, in all, modulo 2³².
    pub(super) told: u32,
    /// What the peer's last feedback said of path sequences that were skipped, and of gaps.
    pub(super) last: (u32, u16),
    /// What of that was taken for lost, and what for runs of losses; none before the first feedback.
    pub(super) counted: Option<(u32, u16)>,
    /// Of what the peer says was skipped, what congestion control was not told of; less than nothing while it knows of losses that the
    /// peer has not told.
    pub(super) untold: i32,
    /// On each path that is for parity, a shard of which nothing is known yet.
    pub(super) watched: [Option<Watched>; MOST_PATHS],
    /// How fast its way carries.
    pub(super) pace: Pace,
    /// When the next round trip of `losses` begins.
    pub(super) next_round: Instant,
    /// Lost segments that parity may bring back, in the order of the verdicts.
    pub awaiting: List,
    /// Parity that is being sent.
    run: Option<Run>,
    /// The last answer of the policy, and what it was asked.
    pub(super) answer: Option<(Question, Option<Protection>)>,
}

/// Parity of a block.
#[derive(Clone, Copy, Debug)]
struct Run {
    send: u32,
    message: Seq,
    block: Block,
    next: u32,
}

/// A block of a message: groups that are interleaved.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Its first segment, and that one's sequence. The others follow without a gap.
    first: u32,
    seq: Seq,
    segments: u32,
    groups: u32,
}

impl Protecting {
    pub(super) fn new(told: u32) -> Protecting {
        Protecting {
            told,
            losses: Losses::default(),
            last: (0, 0),
            counted: None,
            untold: 0,
            watched: [None; MOST_PATHS],
            pace: Pace::default(),
            next_round: Instant::ZERO,
            awaiting: List::default(),
            run: None,
            answer: None,
        }
    }
}

impl Block {
    /// The block of a segment of a message of so many, of which the first `bare` are in none.
    fn of(p: Protection, bare: u32, index: u32, segments: u32, seq: Seq) -> Block {
        let first = index - index.saturating_sub(bare) % p.block();
        let here = (segments - first).min(p.block());
        let groups = here.div_ceil(u32::from(p.data)).min(u32::from(p.depth)).max(1);
        Block { first, seq: seq.back(index - first), segments: here, groups }
    }

    /// Segments of a group.
    fn count(&self, group: u32) -> u32 {
        self.segments / self.groups + u32::from(group < self.segments % self.groups)
    }
}

impl Sending {
    /// Whether the next segment is the first of a block with this protection.
    const fn begins_block(&self, p: Protection) -> bool {
        self.sent >= self.bare && (self.sent - self.bare).is_multiple_of(p.block())
    }
}

impl Engine {
    /// The next segment of a protected message was given its sequence.
    #[cold]
    pub(in crate::transport) fn open_protected(&mut self, slot: u32, at: u32, seq: Seq) {
        let send = &self.sends[at];
        let mut protection = send.protection;
        if send.sent == 0 || protection.is_some_and(|p| send.begins_block(p)) {
            protection = self.renew_protection(slot, at);
        }
        let send = &mut self.sends[at];
        protection = protection.filter(|_| send.sent >= send.bare);
        send.sent += 1;
        if send.sent == send.segments {
            if send.semantics.sync && protection.is_none() && self.config.mechanisms.copies {
                self.copy_later(slot, self.sends[at].segments, seq);
            }
            self.leave_queue(at);
        }
        if let Some(protection) = protection {
            self.note_protected(slot, at, protection, seq);
        }
    }

    /// Its protection is this. With the last of a block, its parity is due.
    fn note_protected(&mut self, slot: u32, at: u32, p: Protection, seq: Seq) {
        let send = &self.sends[at];
        let Some(protecting) = self.sessions[slot].tx.protecting.checked_sub(1) else { return };
        if send.begins_block(p) || send.sent == send.segments {
            let block = Block::of(p, send.bare, send.sent - 1, send.segments, seq);
            self.protecting[protecting].run = Some(Run { send: at, message: send.number, block, next: 0 });
        }
        self.counters.protected += 1;
        self.counters.class(send.semantics.class).protected += 1;
    }

    /// Whether a block of a session's message at hand has begun and not ended: no other may take its turn.
    #[inline]
    pub(in crate::transport) fn in_block(&self, slot: u32) -> bool {
        let s = &self.sessions[slot];
        s.tx.protecting != 0
            && s.tx.active.head().is_some_and(|at| {
                let send = &self.sends[at];
                send.protection.is_some_and(|p| send.sent > send.bare && !send.begins_block(p))
            })
    }

    /// The next parity shard of a session, if one is due.
    #[cold]
    pub(in crate::transport) fn next_parity(&mut self, slot: u32, buf: &mut [u8]) -> Option<Transmit> {
        let at = self.sessions[slot].tx.protecting.checked_sub(1)?;
        let run = self.protecting[at].run?;
        let send = self.sends[run.send];
        // Of a message that is over parity is of no use any more; its record may be another's.
        let lives = (send.session, send.number) == (slot, run.message) && send.acked < send.segments;
        let (Some(p), None, true) = (send.protection, send.void, lives) else {
            self.protecting[at].run = None;
            return None;
        };
        // One of each group, then the next of each: a burst takes few of a group.
        let Run { block, next, .. } = run;
        let (group, index) = (next % block.groups, next / block.groups);
        let done = next + 1 >= block.groups * u32::from(p.parity);
        self.protecting[at].run = (!done).then_some(Run { next: next + 1, ..run });
        Some(self.write_parity(slot, &send, p, block, (group, index), buf))
    }

    fn write_parity(
        &mut self,
        slot: u32,
        send: &Sending,
        p: Protection,
        block: Block,
        (group, index): (u32, u32),
        buf: &mut [u8],
    ) -> Transmit {
        let now = self.now;
        let (from, count) = parity_paths(self.sessions[slot].paths);
        let mut path = from + (index % u32::from(count)) as u8;
        if self.path(slot, path).tx.penalty >= BAD {
            path = self.next_path(slot, None);
        }
        let paths = usize::from(self.config.paths);
        let tx = &mut self.paths[slot as usize * paths + usize::from(path)].tx;
        let path_seq = tx.next;
        tx.next = path_seq.next();
        tx.sent += 1;
        if let Some(own) = path.checked_sub(from) {
            self.watch_parity(slot, own, path_seq);
        }
        // It goes at once, and what comes after it later.
        let s = &mut self.sessions[slot];
        s.tx.control.on_sent(self.clock, s.segment);
        let s = &self.sessions[slot];
        let channel = &self.channels[send.channel];
        let number = block.first + group;
        let (segment, count) = (u64::from(s.segment), block.count(group) as u8);
        let offset = u64::from(number) * segment;
        let first = Data {
            session: s.remote,
            path,
            path_seq,
            seq: block.seq.add(group),
            time: Ticks::of(now),
            message: send.number,
            segment: number,
            communicator: channel.communicator,
            tag: channel.tag,
            ordinal: send.ordinal,
            length: send.len,
            semantics: send.semantics,
            granted: send.granted,
            ..Data::default()
        };
        let (stride, index) = (block.groups as u8, index as u8);
        let parity = Parity {
            first,
            codec: CODEC.id,
            version: CODEC.version,
            segments: count,
            shards: p.parity,
            index,
            stride,
        };
        if let Some(place) = buf.first_chunk_mut() {
            *place = parity.to_bytes();
        }
        self.counters.sent[Kind::Parity as usize] += 1;
        let len = (send.len - offset).min(segment) as u32;
        let counted = self.counters.class(send.semantics.class);
        counted.parity += 1;
        counted.parity_bytes += u64::from(len);
        let shards = Shards {
            token: send.token,
            length: send.len,
            segment: s.segment,
            offset,
            stride: u64::from(stride) * segment,
            count,
            index,
            shards: p.parity,
            seq: first.seq,
            len,
        };
        let to = Destination::Session(self.key(slot));
        let header_len = Parity::LEN as u16;
        Transmit { to, path, kind: Kind::Parity, header_len, source: None, parity: Some(shards), more: false }
    }

    /// The path of a segment that was never sent, of a session that protects some. That of a protected one is not for parity, unless no other lets anything
    /// through.
    pub(in crate::transport) fn path_of_new(&mut self, slot: u32, record: u32) -> u8 {
        let segment = self.segments.get(record);
        let send = &self.sends[segment.message];
        if send.protection.is_none() || segment.index < send.bare {
            return self.next_path(slot, None);
        }
        let paths = self.sessions[slot].paths;
        let (from, _) = parity_paths(paths);
        let mut path = self.next_path(slot, None);
        for _ in 1..paths {
            if path < from {
                break;
            }
            path = self.next_path(slot, None);
        }
        path
    }

    /// What parity there is for a segment in flight that is lost.
    pub(in crate::transport) fn parity_left(&self, slot: u32, record: u32) -> Left {
        let segment = self.segments.get(record);
        let send = &self.sends[segment.message];
        let (Some(p), false) = (send.protection, segment.again || segment.index < send.bare) else {
            return Left::None;
        };
        let lost = self.others_lost(slot, record, p, send.segments);
        Left::Parity { spare: u32::from(p.parity).saturating_sub(lost) }
    }

    /// Of a segment's group, how many others are lost and not there yet.
    fn others_lost(&self, slot: u32, record: u32, p: Protection, segments: u32) -> u32 {
        let mut lost = 0;
        self.for_others(slot, record, p, segments, |other| {
            lost += u32::from(self.segments.get(other).state != State::InFlight);
        });
        lost
    }

    /// The records of a segment's group that are open, without its own.
    fn for_others(&self, slot: u32, record: u32, p: Protection, segments: u32, mut each: impl FnMut(u32)) {
        let segment = self.segments.get(record);
        let bare = self.sends[segment.message].bare;
        let block = Block::of(p, bare, segment.index, segments, self.segments.seq(record));
        let own = block.seq.until(self.segments.seq(record));
        let mut chunk = Segments::first(&self.sessions[slot].tx.chunks);
        while let Some(i) = chunk {
            let head = self.segments.head(i);
            chunk = self.segments.next(i);
            if block.seq.distance(head.base) >= block.segments as i32 {
                break;
            }
            if block.seq.distance(head.base) <= -(CHUNK as i32) {
                continue;
            }
            let mut open = head.open;
            while open != 0 {
                let bit = open.trailing_zeros();
                open &= open - 1;
                let at = block.seq.distance(head.base.add(bit));
                if at >= 0
                    && (at as u32) < block.segments
                    && at as u32 % block.groups == own % block.groups
                    && at as u32 != own
                {
                    each(i * CHUNK + bit);
                }
            }
        }
    }

    /// A lost segment waits for its repair.
    pub(in crate::transport) fn await_repair(&mut self, slot: u32, record: u32) {
        let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) else { return };
        self.path_chain.push_back(&mut self.protecting[at].awaiting, record);
        self.counters.awaited += 1;
        let clock = self.clock;
        let segment = self.segments.get_mut(record);
        let lag = clock.saturating_since(segment.time).as_nanos();
        segment.lag = u32::try_from(lag).unwrap_or(u32::MAX);
        let due = self.repair_due(slot, record);
        let tx = &mut self.sessions[slot].tx;
        tx.repair_at = tx.repair_at.min(due);
        self.arm(slot, due);
    }

    /// A segment that waited has come, or is to be sent again.
    pub(in crate::transport) fn await_no_more(&mut self, slot: u32, record: u32) {
        if let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) {
            self.path_chain.remove(&mut self.protecting[at].awaiting, record);
        }
    }

    /// Too much of a segment's group is lost: what waits of it is sent again.
    pub(in crate::transport) fn give_up_group(&mut self, slot: u32, record: u32) {
        let segment = self.segments.get(record);
        let send = &self.sends[segment.message];
        let Some(p) = send.protection else { return };
        let mut waiting = [0; MOST_DATA];
        let mut count = 0;
        self.for_others(slot, record, p, send.segments, |other| {
            if self.segments.get(other).state == State::AwaitRepair
                && let Some(place) = waiting.get_mut(count)
            {
                *place = other;
                count += 1;
            }
        });
        for other in &waiting[..count] {
            self.request_awaiting(slot, *other);
        }
    }

    /// No repair came, or none is possible: the segment is sent again.
    pub(in crate::transport) fn request_awaiting(&mut self, slot: u32, record: u32) {
        self.await_no_more(slot, record);
        self.segments.get_mut(record).state = State::Requested;
        let s = &mut self.sessions[slot];
        s.tx.requested += 1;
        self.segments.request(&mut s.tx.chunks, record);
        self.counters.unrepaired += 1;
    }

    /// When a repair is overdue. What was sent right behind the segment has told that it is lost; the last of its block's parity was sent so
    /// much later, or comes so much later as what is in between takes, and so much later, at the most, the peer has told what it repaired. The peer may delay its feedback, and the
    /// parity's path may be longer.
    fn repair_due(&self, slot: u32, record: u32) -> Instant {
        let segment = self.segments.get(record);
        let send = &self.sends[segment.message];
        let tx = &self.sessions[slot].tx;
        let Some(p) = send.protection else { return self.clock };
        let block = Block::of(p, send.bare, segment.index, send.segments, self.segments.seq(record));
        let last = block.seq.add(block.segments - 1);
        // A block that is still being sent moves on with each segment, and not while windows or tables stop it: they may wait for this one.
        let sent = if last.before(tx.next) { self.sent_at(slot, last) } else { tx.last };
        // Sent at once they may have waited for each other on the way. While nobody knows how long, a quarter of a round trip; a block is less than some of them.
        let round_trip = self.measured(slot).smoothed().unwrap_or_default();
        let between = self.segments.seq(record).until(last) + block.groups * u32::from(p.parity);
        let bytes = u64::from(between) * (u64::from(self.sessions[slot].segment) + Data::LEN as u64);
        let takes = self.pace_of(slot).and_then(|pace| pace.takes(bytes)).map(Duration::from_nanos);
        let takes = takes.unwrap_or(round_trip / 4).min(4 * round_trip);
        let round_trips =
            || (0..self.sessions[slot].paths).filter_map(|p| self.path(slot, p).tx.rtt.smoothed());
        let skew = round_trips().max().unwrap_or_default() - round_trips().min().unwrap_or_default();
        let peer = self.feedback_delay(slot) + Duration::from_nanos(u64::from(tx.peer_delay));
        let lag = Duration::from_nanos(u64::from(segment.lag));
        sent.max(segment.time + takes + takes / 4) + lag + peer + skew + self.config.times.poll_gap
    }

    fn pace_of(&self, slot: u32) -> Option<&Pace> {
        let at = self.sessions[slot].tx.protecting.checked_sub(1)?;
        Some(&self.protecting[at].pace)
    }

    /// When a sequence was sent that is not before the first that is open.
    fn sent_at(&self, slot: u32, seq: Seq) -> Instant {
        let mut chunk = Segments::first(&self.sessions[slot].tx.chunks);
        while let Some(i) = chunk {
            let ahead = self.segments.head(i).base.until(seq);
            if ahead < CHUNK {
                return self.segments.get(i * CHUNK + ahead).time;
            }
            chunk = self.segments.next(i);
        }
        self.clock
    }

    /// Time has passed: what was not repaired by now is sent again.
    pub(in crate::transport) fn expire_repairs(&mut self, slot: u32) {
        self.sessions[slot].tx.repair_at = Instant::MAX;
        let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) else { return };
        // All of them: one found later may be due earlier, on a shorter path.
        let mut next = self.protecting[at].awaiting.head();
        while let Some(record) = next {
            next = self.path_chain.next(record);
            let due = self.repair_due(slot, record);
            if due > self.clock {
                let tx = &mut self.sessions[slot].tx;
                tx.repair_at = tx.repair_at.min(due);
            } else {
                self.request_awaiting(slot, record);
            }
        }
        self.wake(slot);
    }

    /// A session is over.
    pub(in crate::transport) fn forget_protecting(&mut self, slot: u32) {
        if let Some(at) = core::mem::take(&mut self.sessions[slot].tx.protecting).checked_sub(1) {
            self.protecting.remove(at);
        }
        self.sessions[slot].tx.repair_at = Instant::MAX;
    }
}

/// The paths of parity, the first and how many: an eighth of a session's paths, the last ones. A path that loses a group's data then has
/// none of its parity.
pub(super) const fn parity_paths(paths: u8) -> (u8, u8) {
    if paths < 2 {
        return (0, 1);
    }
    let count = paths.div_ceil(8);
    (paths - count, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_groups() {
        let p = Protection { data: 4, parity: 2, depth: 3 };
        let first = Seq(u32::MAX - 5);
        // A block of twelve, and a rest of five: two groups, of three and two.
        let block = Block::of(p, 0, 7, 17, first.add(7));
        assert_eq!((block.first, block.seq, block.segments, block.groups), (0, first, 12, 3));
        assert_eq!([0, 1, 2].map(|g| block.count(g)), [4, 4, 4]);
        let rest = Block::of(p, 0, 16, 17, first.add(16));
        assert_eq!((rest.first, rest.seq, rest.segments, rest.groups), (12, first.add(12), 5, 2));
        assert_eq!([0, 1].map(|g| rest.count(g)), [3, 2]);
        let one = Block::of(p, 0, 0, 1, first);
        assert_eq!((one.segments, one.groups, one.count(0)), (1, 1, 1));
        // The first five of seventeen have no parity.
        let behind = Block::of(p, 5, 16, 17, first.add(16));
        assert_eq!((behind.first, behind.seq, behind.segments), (5, first.add(5), 12));
    }

    /// What `docs/protocol.md`, section 11, says of the records' sizes.
    #[test]
    fn records_keep_within_their_bounds() {
        assert!(size_of::<Protecting>() <= 256, "{}", size_of::<Protecting>());
        assert!(size_of::<super::super::Group>() <= 48, "{}", size_of::<super::super::Group>());
    }

    #[test]
    fn parity_has_paths_of_its_own() {
        assert_eq!([1, 2, 3, 8, 9, 32].map(parity_paths), [(0, 1), (1, 1), (2, 1), (7, 1), (7, 2), (28, 4)]);
    }
}
