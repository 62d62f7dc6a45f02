//! The engine: its tables, its round, and the small things that all parts need.

use super::absence::Absences;
use super::api::{Address, Completion, Event, Move, Operation, SessionKey, Status};
use super::config::{Config, ConfigError};
use super::congestion::Intake;
use super::counters::Counters;
use super::path::Path;
use super::protect::{Group, Protect, Protecting};
use super::recovery::{Order, Step};
use super::segments::Segments;
use super::session::{Block, Channel, Incoming, Receiving, Sending, Session, SessionStats, State, due};
use super::stateless::Stateless;
use super::table::{Chain, Index, List, Mixer, Slab, Wheel, take_first};
use super::window::Windows;
use crate::time::Instant;
use crate::wire::shim::{Rails, Seq};
use core::time::Duration;
use std::collections::VecDeque;

/// The reliable service of one endpoint: a state machine that its driver feeds with packets, requests and the time. See the
/// [module](super) for the order of calls.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: Config,
    pub(super) mixer: Mixer,
    /// The time of the round.
    pub(super) now: Instant,
    /// What the driver's delays moved the deadlines by.
    held: Duration,
    /// The time by which deadlines count: `now` less `held`.
    pub(super) clock: Instant,
    /// How long packets of this round may have waited, nanoseconds, if that is long.
    pub(super) waited: u32,
    /// How long ago the driver last looked for packets before this round; zero if it is woken by them.
    pub(super) apart: Duration,
    was_held: bool,
    /// Rounds of this driver and of peers that were long.
    pub(super) absences: Absences,
    /// The session that a message was posted to last.
    pub(super) posted: u32,
    /// Sessions begun, from which their ids are made.
    pub(super) begun: u64,

    pub(super) sessions: Slab<Session>,
    pub(super) generations: Vec<u32>,
    pub(super) by_address: Index,
    pub(super) paths: Vec<Path>,
    pub(super) intake: Intake,
    /// The peers' further ports, by session, as far as any has some.
    pub(super) rails: Vec<Rails>,
    /// How each session's segments come in: apart from it, as few need that.
    pub(super) orders: Vec<Order>,
    pub(super) due_chain: Chain,
    pub(super) due: List,
    pub(super) ready_chain: Chain,
    pub(super) ready: List,
    pub(super) copy_chain: Chain,
    /// Sessions with copies to send.
    pub(super) copying: List,
    pub(super) wheel: Wheel,

    pub(super) channels: Slab<Channel>,
    pub(super) by_channel: Index,
    pub(super) channel_chain: Chain,
    pub(super) announce_chain: Chain,

    pub(super) sends: Slab<Sending>,
    pub(super) send_chain: Chain,
    pub(super) queue_chain: Chain,
    pub(super) segments: Segments,
    pub(super) path_chain: Chain,

    pub(super) receives: Slab<Receiving>,
    pub(super) by_match: Index,
    pub(super) receive_chain: Chain,
    pub(super) steps: Slab<Step>,
    pub(super) by_step: Index,
    pub(super) step_chain: Chain,
    pub(super) incoming: Slab<Incoming>,
    pub(super) by_message: Index,
    pub(super) by_unexpected: Index,
    pub(super) incoming_chain: Chain,
    /// Rejected messages of one segment.
    pub(super) rejected: u32,
    pub(super) blocks: Slab<Block>,
    /// Blocks that unexpected messages will need.
    pub(super) reserved: u32,
    pub(super) block_chain: Chain,
    pub(super) moves: List,
    pub(super) windows: Windows,

    pub(super) protecting: Slab<Protecting>,
    pub(super) groups: Slab<Group>,
    pub(super) group_chain: Chain,
    /// Which parity shard of its group lies in a block.
    pub(super) shards: Slab<u8>,
    pub(super) shard_chain: Chain,
    /// 1 if every message is protected, by whatever tags.
    pub(super) protects_all: u8,
    /// The segment that came last: its session, and its sequence.
    pub(super) came: (u32, Seq),
    /// A group that can be repaired.
    pub(super) repairable: Option<u32>,
    /// Groups in use.
    pub(super) watched: u32,
    /// Segments that the feedback at hand acknowledged after they were found lost.
    pub(super) returned: u32,

    completions: VecDeque<Completion>,
    /// Completions of sends and of receives that wait to be taken.
    untaken: [u32; 2],
    pub(super) events: VecDeque<Event>,
    pub(super) stateless: Stateless,
    pub(super) counters: Counters,
}

/// Sessions that may protect messages; others send again what is lost.
const PROTECTING: u32 = 1_024;

/// Nanoseconds of a unit of [`Engine::behind`], as a shift.
pub(super) const BEHIND: u32 = 16;

impl Engine {
    /// An engine with all its tables.
    ///
    /// # Errors
    /// Numbers that do not fit together, see [`Config::check`].
    pub fn new(config: &Config) -> Result<Engine, ConfigError> {
        config.check()?;
        let l = &config.limits;
        let segments = Segments::new(l.segments);
        let operations = l.sends as usize + l.receives as usize;
        Ok(Engine {
            config: *config,
            mixer: Mixer::new(&config.secret),
            now: Instant::ZERO,
            held: Duration::ZERO,
            clock: Instant::ZERO,
            waited: 0,
            apart: Duration::ZERO,
            was_held: false,
            absences: Absences::default(),
            posted: u32::MAX,
            begun: 0,
            sessions: Slab::new(l.sessions),
            generations: vec![0; l.sessions as usize],
            by_address: Index::new(l.sessions),
            paths: Vec::with_capacity(l.sessions as usize * usize::from(config.paths)),
            intake: Intake::default(),
            rails: Vec::with_capacity(l.sessions as usize),
            orders: Vec::with_capacity(l.sessions as usize),
            due_chain: Chain::new(l.sessions),
            due: List::default(),
            ready_chain: Chain::new(l.sessions),
            ready: List::default(),
            copy_chain: Chain::new(l.sessions),
            copying: List::default(),
            wheel: Wheel::new(l.sessions),
            channels: Slab::new(l.channels),
            by_channel: Index::new(l.channels),
            channel_chain: Chain::new(l.channels),
            announce_chain: Chain::new(l.channels),
            sends: Slab::new(l.sends),
            send_chain: Chain::new(l.sends),
            queue_chain: Chain::new(l.sends),
            path_chain: Chain::new(segments.capacity()),
            segments,
            receives: Slab::new(l.receives),
            by_match: Index::new(l.receives),
            receive_chain: Chain::new(l.receives),
            steps: Slab::new(l.steps),
            by_step: Index::new(l.steps),
            step_chain: Chain::new(l.receives),
            incoming: Slab::new(config.incoming()),
            by_message: Index::new(config.incoming()),
            by_unexpected: Index::new(config.incoming()),
            incoming_chain: Chain::new(config.incoming()),
            rejected: 0,
            reserved: 0,
            blocks: Slab::new(l.blocks),
            block_chain: Chain::new(l.blocks),
            moves: List::default(),
            windows: Windows::new(l.windows, l.window),
            protecting: Slab::new(l.sessions.min(PROTECTING)),
            groups: Slab::new(l.shards),
            group_chain: Chain::new(l.shards),
            shards: Slab::new(l.shards),
            shard_chain: Chain::new(l.shards),
            protects_all: matches!(config.fec.protect, Protect::Everything(_)).into(),
            came: (0, Seq(0)),
            repairable: None,
            watched: 0,
            returned: 0,
            completions: VecDeque::with_capacity(operations),
            untaken: [0; 2],
            events: VecDeque::with_capacity(2 * l.sessions as usize),
            stateless: Stateless::new(),
            counters: Counters::default(),
        })
    }

    /// What it was made with.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Begins a round at `now`, which must not go back. Packets that it receives may have lain there for up to `waited`: the time since
    /// the driver last looked, or zero if it is woken by packets.
    ///
    /// If the round comes too late for its deadline, the driver was held up and answers may wait in its receive queue: all
    /// deadlines move, see `docs/protocol.md`, section 10.
    pub fn begin(&mut self, now: Instant, waited: Duration) {
        let gap = now.saturating_since(self.now);
        let long = gap > self.config.times.poll_gap;
        self.apart = waited;
        if long {
            self.absences.note(now, gap.as_nanos() as u64);
        }
        let told = waited > self.config.times.poll_gap;
        self.waited = if told { u32::try_from(waited.as_nanos()).unwrap_or(u32::MAX) } else { 0 };
        let mut held = false;
        if long
            && !self.was_held
            && let Some(deadline) = self.wheel.next()
        {
            let late = now.saturating_since(deadline.max(self.clock) + self.held);
            if late > self.config.times.poll_gap {
                self.held += late + self.config.times.poll_gap;
                self.counters.held_up += 1;
                held = true;
            }
        }
        self.was_held = held;
        self.now = self.now.max(now);
        self.clock = self.clock.max(self.now - self.held);
        self.intake.look(self.now);
    }

    /// What the driver's delays moved the clock by, in units of 2¹⁶ ns and modulo 2¹⁶ of them: what has passed by the clock has taken so much longer as this has grown.
    #[inline]
    pub(super) fn behind(&self) -> u16 {
        (self.held.as_nanos() >> BEHIND) as u16
    }

    /// Ends the receiving part of a round: feedback that is due is made ready, timers fire.
    pub fn turn(&mut self) {
        while let Some(slot) = self.wheel.expire(self.clock) {
            self.fire(slot);
        }
    }

    /// When the next round is due if nothing comes in before: at once if there is something to send.
    pub fn next_deadline(&self) -> Option<Instant> {
        let work = !self.due.is_empty() || !self.ready.is_empty() || self.copy_is_due(true);
        if work || !self.stateless.is_empty() {
            return Some(self.now);
        }
        self.wheel.next().map(|at| (at + self.held).max(self.now))
    }

    /// The next completion. Its place is free again then.
    #[inline(always)]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        let done = take_first(&mut self.completions)?;
        self.untaken[done.operation as usize] -= 1;
        Some(done)
    }

    /// The next event of a session. With [`Event::Down`], the session's place is free again.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = take_first(&mut self.events)?;
        if let Event::Down { session, .. } = event {
            let s = &mut self.sessions[session.slot];
            s.told = true;
            if s.due == 0 {
                self.free_session(session.slot);
            }
        }
        Some(event)
    }

    /// A session is over, its application knows and so does its peer.
    pub(super) fn free_session(&mut self, slot: u32) {
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        self.sessions.remove(slot);
    }

    /// The next bytes that have to leave the bounce pool. To be called after each [`Engine::post_recv`] until there are
    /// none.
    pub fn next_move(&mut self) -> Option<Move> {
        let block = self.block_chain.pop_front(&mut self.moves)?;
        self.blocks.remove(block);
        let b = &self.blocks[block];
        Some(Move { block, len: b.len, token: b.token, offset: b.offset })
    }

    /// What was counted.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sessions in use, including those whose end has not been taken.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The peer of a session that is not over.
    pub fn peer(&self, session: SessionKey) -> Option<Address> {
        self.slot_of(session).map(|slot| self.sessions[slot].peer)
    }

    /// Whether a session is open.
    pub fn is_open(&self, session: SessionKey) -> bool {
        self.slot_of(session).is_some_and(|slot| self.sessions[slot].state == State::Open)
    }

    /// Figures of a session.
    pub fn session_stats(&self, session: SessionKey) -> Option<SessionStats> {
        self.slot_of(session).map(|slot| self.sessions[slot].stats)
    }

    /// The smoothed round trip of a session's first path that has one, once there is one.
    pub fn round_trip(&self, session: SessionKey) -> Option<Duration> {
        self.measured(self.slot_of(session)?).smoothed()
    }

    /// Bytes of a session's segments: what was agreed on with the peer.
    pub fn segment(&self, session: SessionKey) -> Option<u32> {
        self.slot_of(session).map(|slot| self.sessions[slot].segment)
    }

    /// The table entries in use, by name: what tests of leaks compare.
    pub fn in_use(&self) -> [(&'static str, usize); 9] {
        [
            ("sessions", self.sessions.len()),
            ("channels", self.channels.len()),
            ("sends", self.sends.len()),
            ("receives", self.receives.len()),
            ("incoming", self.incoming.len()),
            ("blocks", self.blocks.len()),
            ("completions", self.completions.len()),
            ("steps", self.steps.len()),
            ("shards", self.shards.len()),
        ]
    }

    /// The slot of a session that is not over.
    #[inline]
    pub(super) fn slot_of(&self, session: SessionKey) -> Option<u32> {
        let s = self.sessions.get(session.slot)?;
        (self.generations[session.slot()] == session.generation && s.state != State::Down)
            .then_some(session.slot)
    }

    #[inline]
    pub(super) fn key(&self, slot: u32) -> SessionKey {
        SessionKey { slot, generation: self.generations[slot as usize] }
    }

    #[inline]
    pub(super) fn path(&self, slot: u32, path: u8) -> &Path {
        &self.paths[slot as usize * usize::from(self.config.paths) + usize::from(path)]
    }

    #[inline]
    pub(super) fn path_mut(&mut self, slot: u32, path: u8) -> &mut Path {
        &mut self.paths[slot as usize * usize::from(self.config.paths) + usize::from(path)]
    }

    /// Puts a completion in its reserved place.
    #[inline(always)]
    pub(super) fn complete(&mut self, done: Completion) {
        self.untaken[done.operation as usize] += 1;
        self.completions.push_back(done);
    }

    /// Whether another operation finds a place, and later one for its completion.
    #[inline]
    pub(super) fn has_place(&self, operation: Operation) -> bool {
        let (live, limit) = match operation {
            Operation::Send => (self.sends.len(), self.config.limits.sends),
            Operation::Recv => (self.receives.len(), self.config.limits.receives),
        };
        live + (self.untaken[operation as usize] as usize) < limit as usize
    }

    /// Completes a send that is over, and forgets it.
    pub(super) fn finish_send(&mut self, at: u32, status: Status) {
        let slot = self.sends[at].session;
        self.send_chain.remove(&mut self.sessions[slot].sends, at);
        let send = &self.sends[at];
        let channel = &self.channels[send.channel];
        let session = &mut self.sessions[send.session];
        if status == Status::Success {
            session.stats.bytes_sent += send.len;
        }
        let key = self.key(send.session);
        let done = Completion {
            session: key,
            operation: Operation::Send,
            status,
            token: send.token,
            len: send.len,
            communicator: channel.communicator,
            tag: channel.tag,
            ordinal: send.ordinal,
            posted: send.posted,
            done: self.now,
            retransmitted: send.again,
            recovery: if send.lost == Instant::ZERO { Duration::ZERO } else { self.now - send.lost },
        };
        self.sends.remove(at);
        self.complete(done);
    }

    /// Completes a receive that is over, and forgets it.
    pub(super) fn finish_receive(&mut self, at: u32, status: Status, len: u64) {
        self.leave_step(at, len);
        let r = &self.receives[at];
        let session = &mut self.sessions[r.session];
        self.receive_chain.remove(&mut session.receives, at);
        if status == Status::Success {
            session.stats.bytes_received += len;
        }
        let key = self.key(r.session);
        let done = Completion {
            session: key,
            operation: Operation::Recv,
            status,
            token: r.token,
            len,
            communicator: r.communicator,
            tag: r.tag,
            ordinal: r.ordinal,
            posted: r.posted,
            done: self.now,
            retransmitted: 0,
            recovery: Duration::ZERO,
        };
        self.receives.remove(at);
        self.complete(done);
    }

    /// A session has a control packet to send.
    #[inline]
    pub(super) fn owe(&mut self, slot: u32, what: u8) {
        let s = &mut self.sessions[slot];
        s.due |= what;
        if !s.in_due {
            s.in_due = true;
            self.due_chain.push_back(&mut self.due, slot);
        }
        if what & due::FEEDBACK != 0 {
            s.rx.at = Instant::MAX;
        }
    }

    /// A session may have data to send.
    #[inline]
    pub(super) fn wake(&mut self, slot: u32) {
        let s = &mut self.sessions[slot];
        let work =
            s.tx.requested > 0 || !s.tx.active.is_empty() || !s.tx.ready.is_empty() || !s.tx.eager.is_empty();
        if work && !s.in_ready {
            s.in_ready = true;
            self.ready_chain.push_back(&mut self.ready, slot);
        }
    }

    /// A session wants to be looked at by then.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32, at: Instant) {
        let s = &mut self.sessions[slot];
        if at < s.wheel_at {
            s.wheel_at = at;
            self.wheel.set(slot, at);
        }
    }
}
