//! From a received packet to where its segment belongs, or to the reason why not.

use super::api::{Drop, Origin, Place, Placement, Received, Status};
use super::config::REJECTED;
use super::engine::Engine;
use super::post::segments_of;
use super::protect::STAGE;
use super::session::{Block, Fate, Incoming, Receiving, State, due};
use super::table::List;
use super::window::Verdict;
use crate::wire::shim::{Common, Data, Kind, Probe, RejectReason, Reset, Seq, ShimError, Ticks};

/// Segments from which on a message counts as long: less feedback is enough for it.
pub(super) const LONG: u32 = 64;
/// Segments for a feedback.
const EVERY: u16 = 16;
/// Segments for a feedback while a long message comes in.
const EVERY_LONG: u16 = 32;

impl Engine {
    /// Takes a packet of the endpoint's queue pair: `payload` is what follows the DETH and the immediate, without pad.
    ///
    /// What it answers has to be carried out before the engine is called again.
    #[inline]
    pub fn receive(&mut self, origin: &Origin, payload: &[u8]) -> Received {
        let received = match self.dispatch(origin, payload) {
            Ok(received) => received,
            Err(malformed) => Received::Dropped(Drop::Malformed(malformed)),
        };
        self.counters.note(&received);
        received
    }

    #[inline]
    fn dispatch(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        match Common::parse(payload)?.kind {
            Kind::Data => {
                let (data, segment) = Data::parse(payload)?;
                let received = self.on_data(origin, &data, segment.len());
                if let Received::Dropped(drop) = received {
                    self.answer_stranger(origin, data.session, drop);
                }
                Ok(received)
            }
            Kind::Parity => self.on_parity(origin, payload),
            Kind::Feedback => self.on_feedback(origin, payload),
            Kind::Probe => self.on_probe(origin, payload),
            Kind::Announce => self.on_announce(origin, payload),
            Kind::Init => self.on_init(origin, payload),
            Kind::Cookie => self.on_cookie(origin, payload),
            Kind::Accept => self.on_accept(origin, payload),
            Kind::Refuse => self.on_refuse(origin, payload),
            Kind::Reset => self.on_reset(origin, payload),
            Kind::Close => self.on_close(origin, payload),
            Kind::Reject => self.on_reject(origin, payload),
        }
    }

    /// The session with an id, if the packet came from its peer.
    #[inline]
    pub(super) fn lookup(&self, id: u64, origin: &Origin) -> Result<u32, Drop> {
        let slot = (id >> 40) as u32;
        let s = self.sessions.get(slot).filter(|s| s.id == id && s.state != State::Down);
        let s = s.ok_or(Drop::UnknownSession)?;
        if s.peer != origin.from && !self.is_rail(slot, &origin.from) {
            return Err(Drop::ForeignSource);
        }
        Ok(slot)
    }

    /// The same for packets that only an open session takes.
    #[inline]
    pub(super) fn lookup_open(&mut self, id: u64, origin: &Origin) -> Result<u32, Drop> {
        let slot = self.lookup(id, origin)?;
        let s = &mut self.sessions[slot];
        if s.state != State::Open {
            return Err(Drop::NotOpen);
        }
        s.heard = self.clock;
        Ok(slot)
    }

    /// Tells who sends to a session that is not known that it is not.
    #[cold]
    pub(super) fn answer_stranger(&mut self, origin: &Origin, session: u64, drop: Drop) {
        // A CLOSE that waits to be sent says more than a RESET, which would be there before it.
        let closing = self
            .sessions
            .get((session >> 40) as u32)
            .is_some_and(|s| s.id == session && s.due & due::CLOSE != 0);
        if drop == Drop::UnknownSession && !closing {
            self.stateless.push(self.now, origin.from, Kind::Reset, &Reset { session }.to_bytes());
        }
    }

    /// Takes note of a packet on a path. Returns whether it leaves a gap there.
    #[inline]
    pub(super) fn note_path(
        &mut self,
        slot: u32,
        path: u8,
        seq: Seq,
        time: Ticks,
        ce: bool,
    ) -> Result<bool, Drop> {
        if path >= self.sessions[slot].paths {
            return Err(Drop::Inconsistent);
        }
        let (now, waited) = (self.now, self.waited);
        let ahead = self.path_mut(slot, path).rx.note(seq, time, ce, now, waited);
        if ahead == 1 {
            return Ok(false);
        }
        if STAGE {
            self.note_skipped(slot, ahead);
        }
        Ok(ahead > 1)
    }

    /// A packet is not the next of its path: others are missing before it, or it is one that was.
    #[cold]
    fn note_skipped(&mut self, slot: u32, ahead: i32) {
        let rx = &mut self.sessions[slot].rx;
        if ahead > 1 {
            rx.skipped = rx.skipped.wrapping_add(ahead as u32 - 1);
            rx.gaps = rx.gaps.wrapping_add(1);
        } else if ahead < 0 {
            rx.skipped = rx.skipped.wrapping_sub(1);
        }
    }

    fn on_probe(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let probe = Probe::parse(payload)?;
        let noted = self.lookup_open(probe.session, origin).and_then(|slot| {
            self.note_path(slot, probe.path, probe.path_seq, probe.time, origin.ce)?;
            let s = &mut self.sessions[slot];
            s.announcing.again |= probe.forgot;
            if probe.urgent {
                // What was answered may not arrive; this path carries, at least to here.
                s.reply = probe.path;
            }
            self.owe(slot, if probe.asks { due::FEEDBACK | due::TELL } else { due::FEEDBACK });
            Ok(())
        });
        Ok(match noted {
            Ok(()) => Received::Taken(Kind::Probe),
            Err(drop) => {
                self.answer_stranger(origin, probe.session, drop);
                Received::Dropped(drop)
            }
        })
    }

    /// The session of a segment that is new.
    #[inline]
    fn admit(&mut self, origin: &Origin, data: &Data, len: usize) -> Result<(u32, bool), Drop> {
        let slot = self.lookup_open(data.session, origin)?;
        let gap = self.note_path(slot, data.path, data.path_seq, data.time, origin.ce)?;
        let s = &mut self.sessions[slot];
        match self.windows.judge(&s.rx.window, data.seq) {
            Verdict::New if STAGE => self.came = (slot, data.seq),
            Verdict::New => {}
            Verdict::Duplicate => {
                // The end of a message tagged SYNC comes twice, which says nothing about verdicts.
                let left = data.length.saturating_sub(u64::from(data.segment) * u64::from(s.segment));
                let twice = data.semantics.sync && left <= 2 * u64::from(s.segment);
                s.rx.duplicates = s.rx.duplicates.wrapping_add(u32::from(!twice));
                s.stats.duplicates += 1;
                self.owe(slot, due::FEEDBACK);
                return Err(Drop::Duplicate);
            }
            Verdict::Beyond => return Err(Drop::BeyondWindow),
            Verdict::NoBitmap => return Err(Drop::NoWindow),
        }
        let segment = s.segment;
        if !data.void {
            self.check(data, len, segment)?;
        }
        Ok((slot, gap))
    }

    /// What becomes of a segment. From here on there is one value that says it, made where it is known: taken apart and put together
    /// again on its way out, as `?` would, it cost as much as a tenth of the whole packet.
    #[inline]
    fn on_data(&mut self, origin: &Origin, data: &Data, len: usize) -> Received {
        let (slot, gap) = match self.admit(origin, data, len) {
            Ok(admitted) => admitted,
            Err(drop) => return Received::Dropped(drop),
        };
        let partial = self.sessions[slot].rx.partial;
        let received = if data.void { whole(self.void(slot, data)) } else { self.assign(slot, data, len) };
        if let Received::Dropped(_) = received {
            return received;
        }
        let s = &mut self.sessions[slot];
        let segment = s.segment;
        // Over several paths, what was sent before is often under way still; only a gap on its path says that something is missing.
        let leaves_hole = if s.paths > 1 { gap } else { s.rx.window.end.before(data.seq) };
        self.windows.take(&mut s.rx.window, data.seq);
        s.stats.segments_received += 1;
        self.intake.bytes += len as u64;
        s.rx.unreported = s.rx.unreported.saturating_add(1);
        let every = if s.rx.long > 0 { EVERY_LONG } else { EVERY };
        let last = s.rx.partial < partial
            || (s.paths == 1
                && data.segment > 0
                && u64::from(data.segment) + 1 == segments_of(data.length, segment));
        let enough = s.rx.unreported >= every;
        s.rx.slowness = s.rx.slowness.saturating_sub(u8::from(enough));
        // A mark does not hasten it: at most once a round trip the sender sends less, and it hears from us as often.
        if data.ask || leaves_hole || last || enough {
            self.owe(slot, due::FEEDBACK);
        } else {
            self.feedback_within(slot, data.length <= u64::from(segment) && !data.more);
        }
        received
    }

    /// Whether segment number and length are those of a segment of such a message.
    #[inline]
    pub(super) fn check(&self, data: &Data, len: usize, segment: u32) -> Result<(), Drop> {
        let at = u64::from(data.segment) * u64::from(segment);
        let expected = match data.length.checked_sub(at) {
            Some(0) if data.segment > 0 => return Err(Drop::Inconsistent),
            Some(left) => left.min(u64::from(segment)),
            None => return Err(Drop::Inconsistent),
        };
        if expected == len as u64 { Ok(()) } else { Err(Drop::Inconsistent) }
    }

    /// Finds the place of a new segment, which is taken with that.
    #[inline]
    fn assign(&mut self, slot: u32, data: &Data, len: usize) -> Received {
        let offset = u64::from(data.segment) * u64::from(self.sessions[slot].segment);
        if let Some(at) = self.find_incoming(slot, data.message) {
            return whole(self.assign_known(at, data, offset, len));
        }
        let hash = self.hash_match(slot, data.communicator, data.tag, data.ordinal);
        let Some(receive) = self.find_receive(hash, slot, data) else {
            return whole(self.assign_unexpected(slot, data, offset, len, hash));
        };
        let r = self.receives[receive];
        if data.length > r.capacity {
            if let Err(drop) = self.begin_message(slot, data, Fate::Rejected(RejectReason::TooLong)) {
                return Received::Dropped(drop);
            }
            self.by_match.remove(hash, receive);
            self.finish_receive(receive, Status::TooLong, 0);
            self.reject(slot, data, RejectReason::TooLong);
            return Received::Dropped(Drop::Rejected);
        }
        if r.step > 0 {
            self.step_came(receive, len as u64);
        }
        if data.length <= u64::from(self.sessions[slot].segment) {
            self.by_match.remove(hash, receive);
            self.finish_receive(receive, Status::Success, data.length);
        } else {
            if let Err(drop) = self.begin_message(slot, data, Fate::Placed(receive)) {
                return Received::Dropped(drop);
            }
            self.by_match.remove(hash, receive);
        }
        self.return_grant(slot, data.granted);
        placed(r.token, offset, len)
    }

    /// A segment of a message of which something has come.
    fn assign_known(&mut self, at: u32, data: &Data, offset: u64, len: usize) -> Result<Received, Drop> {
        let m = self.incoming[at];
        let same = m.length == data.length
            && m.ordinal == data.ordinal
            && m.tag == data.tag
            && m.communicator == data.communicator;
        if !same || (m.count == 0 && !matches!(m.fate, Fate::Rejected(_))) {
            return Err(Drop::Inconsistent);
        }
        self.sessions[m.session].rx.last = at + 1;
        match m.fate {
            Fate::Rejected(reason) => {
                self.reject(m.session, data, reason);
                return Err(Drop::Rejected);
            }
            Fate::Unexpected => return self.hold(m.session, at, offset, len),
            Fate::Placed(_) | Fate::Discarded => {}
        }
        self.count_down(at);
        self.return_grant(m.session, data.granted);
        if m.count == 1 {
            self.forget_incoming(at);
        }
        match m.fate {
            Fate::Placed(receive) => {
                let Receiving { token, step, .. } = self.receives[receive];
                if step > 0 {
                    self.step_came(receive, len as u64);
                }
                if m.count == 1 {
                    self.finish_receive(receive, Status::Success, m.length);
                }
                Ok(placed(token, offset, len))
            }
            _ => Ok(Received::Taken(Kind::Data)),
        }
    }

    /// The first segment of a message that no receive is posted for.
    fn assign_unexpected(
        &mut self,
        slot: u32,
        data: &Data,
        offset: u64,
        len: usize,
        hash: u64,
    ) -> Result<Received, Drop> {
        if !data.granted || data.length > u64::from(self.config.eager) {
            return Err(Drop::NotEager);
        }
        // An ordinal whose receive was posted and is gone: the peer counts otherwise than we do.
        if self.is_past(slot, data) {
            return Err(Drop::Inconsistent);
        }
        let blocks = segments_of(data.length, self.sessions[slot].segment) as u32;
        let free = self.config.limits.blocks as usize - self.blocks.len() - self.reserved as usize;
        if self.sessions[slot].rx.blocks + blocks > self.config.allowance || blocks as usize > free {
            return Err(self.postpone(slot, data));
        }
        let at = self.begin_message(slot, data, Fate::Unexpected)?;
        self.reserved += blocks;
        self.sessions[slot].rx.blocks += blocks;
        self.by_unexpected.insert(hash, at);
        self.hold(slot, at, offset, len)
    }

    /// There is no room for an unexpected message: it is to be sent once its receive is announced.
    fn postpone(&mut self, slot: u32, data: &Data) -> Drop {
        let Ok(channel) = self.channel(slot, data.communicator, data.tag) else {
            self.counters.no_channel += 1;
            return Drop::NoBlock;
        };
        if let Err(drop) = self.begin_message(slot, data, Fate::Rejected(RejectReason::Postponed)) {
            return drop;
        }
        self.channels[channel].always = true;
        self.reject(slot, data, RejectReason::Postponed);
        Drop::NoBlock
    }

    fn is_past(&self, slot: u32, data: &Data) -> bool {
        self.find_channel(slot, data.communicator, data.tag)
            .is_some_and(|c| data.ordinal.before(self.channels[c].next_receive))
    }

    /// Puts a segment into a block that was reserved for it.
    fn hold(&mut self, slot: u32, at: u32, offset: u64, len: usize) -> Result<Received, Drop> {
        debug_assert!(self.reserved > 0 && self.sessions[slot].rx.blocks > 0);
        let block = Block { offset, token: 0, len: len as u32 };
        let Some(block) = self.blocks.insert(block) else { return Err(Drop::NoBlock) };
        self.reserved -= 1;
        self.count_down(at);
        self.block_chain.push_back(&mut self.incoming[at].blocks, block);
        Ok(Received::Place(Placement { to: Place::Block(block), len: len as u32 }))
    }

    /// One segment less is missing of a message.
    #[inline]
    pub(super) fn count_down(&mut self, at: u32) {
        let m = &mut self.incoming[at];
        m.count -= 1;
        if m.count == 0 && m.segments > 1 {
            self.sessions[m.session].rx.partial -= 1;
            self.intake.ended(self.sessions[m.session].rx.partial);
        }
    }

    /// A segment that drew on the grant has left for its receive.
    #[inline]
    pub(super) fn return_grant(&mut self, slot: u32, granted: bool) {
        let rx = &mut self.sessions[slot].rx;
        rx.grant = rx.grant.add(u32::from(granted));
    }

    /// A record for a message of which the first segment came; that segment is counted if it goes to its receive.
    pub(super) fn begin_message(&mut self, slot: u32, data: &Data, fate: Fate) -> Result<u32, Drop> {
        let most = self.config.limits.session_incoming;
        let s = &mut self.sessions[slot];
        let segments = segments_of(data.length, s.segment) as u32;
        // Every session has its records for messages of several segments, and of one the pool is the bound, or there
        // are some for those that are rejected: so no message waits for another's record without end.
        let rejected = matches!(fate, Fate::Rejected(_));
        let room = if segments > 1 { s.rx.partial < most } else { !rejected || self.rejected < REJECTED };
        if !room {
            return Err(Drop::NoIncoming);
        }
        let count = match fate {
            Fate::Rejected(_) => 0,
            Fate::Placed(_) => segments - 1,
            Fate::Unexpected | Fate::Discarded => segments,
        };
        let at = self
            .incoming
            .insert(Incoming {
                session: slot,
                number: data.message,
                communicator: data.communicator,
                tag: data.tag,
                ordinal: data.ordinal,
                length: data.length,
                segments,
                count,
                fate,
                blocks: List::default(),
            })
            .ok_or(Drop::NoIncoming)?;
        if segments > 1 {
            self.intake.began(s.rx.partial);
            s.rx.partial += 1;
        } else if rejected {
            self.rejected += 1;
        }
        s.rx.incoming_count += 1;
        s.rx.long += u32::from(segments >= LONG);
        s.rx.last = at + 1;
        self.incoming_chain.push_back(&mut s.rx.incoming, at);
        self.by_message.insert(self.hash_message(slot, data.message), at);
        Ok(at)
    }

    #[inline]
    fn hash_message(&self, slot: u32, number: Seq) -> u64 {
        self.mixer.mix(u64::from(slot), u64::from(number.0))
    }

    #[inline]
    pub(super) fn find_incoming(&self, slot: u32, number: Seq) -> Option<u32> {
        let rx = &self.sessions[slot].rx;
        if let Some(last) = rx.last.checked_sub(1)
            && self.incoming[last].number == number
        {
            return Some(last);
        }
        if rx.incoming_count == 0 {
            return None;
        }
        self.by_message.find(self.hash_message(slot, number), |at| {
            self.incoming[at].number == number && self.incoming[at].session == slot
        })
    }

    /// A segment of a rejected message comes void.
    fn void(&mut self, slot: u32, data: &Data) -> Result<Received, Drop> {
        let at = self.find_incoming(slot, data.message).ok_or(Drop::Inconsistent)?;
        let m = &mut self.incoming[at];
        if !matches!(m.fate, Fate::Rejected(_)) {
            return Err(Drop::Inconsistent);
        }
        m.count += 1;
        if u64::from(m.count) >= data.length {
            self.forget_incoming(at);
        }
        self.return_grant(slot, data.granted);
        Ok(Received::Taken(Kind::Data))
    }

    /// The peer is told that a message cannot be delivered.
    fn reject(&mut self, slot: u32, data: &Data, reason: RejectReason) {
        self.sessions[slot].rx.reject = (data.message, data.seq, reason);
        self.owe(slot, due::REJECT);
    }

    /// Frees an incoming message, its blocks and its groups.
    pub(super) fn forget_incoming(&mut self, at: u32) {
        let mut m = self.incoming[at];
        if STAGE && !self.sessions[m.session].rx.groups.is_empty() {
            self.forget_groups_of(at);
        }
        let mut blocks = 0;
        while let Some(block) = self.block_chain.pop_front(&mut m.blocks) {
            self.blocks.remove(block);
            blocks += 1;
        }
        if m.fate == Fate::Unexpected {
            self.reserved -= m.count;
            blocks += m.count;
            let hash = self.hash_match(m.session, m.communicator, m.tag, m.ordinal);
            self.by_unexpected.remove(hash, at);
        }
        self.by_message.remove(self.hash_message(m.session, m.number), at);
        let rejected = matches!(m.fate, Fate::Rejected(_));
        let rx = &mut self.sessions[m.session].rx;
        rx.blocks -= blocks;
        self.incoming_chain.remove(&mut rx.incoming, at);
        rx.incoming_count -= 1;
        rx.long -= u32::from(m.segments >= LONG);
        if m.segments == 1 {
            self.rejected -= u32::from(rejected);
        } else if rejected || m.count > 0 {
            rx.partial -= 1;
            self.intake.ended(rx.partial);
        }
        if rx.last == at + 1 {
            rx.last = 0;
        }
        self.incoming.remove(at);
    }
}

/// A drop is one of the things that a packet may lead to.
#[inline]
fn whole(received: Result<Received, Drop>) -> Received {
    match received {
        Ok(received) => received,
        Err(drop) => Received::Dropped(drop),
    }
}

fn placed(token: u64, offset: u64, len: usize) -> Received {
    Received::Place(Placement { to: Place::Receive { token, offset }, len: len as u32 })
}
