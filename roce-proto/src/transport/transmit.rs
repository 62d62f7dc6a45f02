//! What is sent next: answers outside sessions, control, segments to be sent again, new segments.

use super::api::{Destination, Source, Transmit};
use super::congestion::Congestion;
use super::engine::Engine;
use super::protect::STAGE;
use super::segments::{Segment, State};
use super::session::{Queue, Session};
use crate::time::Instant;
use crate::wire::shim::{Data, Kind, Seq, Ticks};
use core::time::Duration;

/// Segments of one message, and packets of one session, in a row while others wait.
const BURST: u8 = 16;
/// Messages of a session whose segments take turns.
const ACTIVE: u8 = 8;
/// With fewer segments in flight, one that has to be the last for now asks for feedback; with more, the peer's count of
/// segments brings it.
const FEW: u32 = 32;
/// While one that asked is not acknowledged, another asks only after so many more: else small windows, of which each answer frees
/// one segment, would bring an answer for each.
const SOME: u32 = 20;
/// Over a long way, a window that is to keep a link busy must not wait for feedback of much of it: so many answers for each window,
const ANSWERS: u64 = 6;
/// as far as the least round trip is this or more. So they are 30,000 a second at the most, and a rack's network, where an answer takes no time beside a
/// window, has none of it.
const FAR: Duration = Duration::from_micros(200);

/// What holds a session's next segment back.
enum Blocked {
    /// There is none.
    NoWork,
    /// The window, the grant or the peer's room: feedback or a timer will tell.
    Waits,
    /// The pace.
    Early,
    /// All chunks are in use.
    NoChunk,
}

impl Engine {
    /// Writes the header of the next packet to send into `buf`, which has room for
    /// [`MAX_CONTROL_LEN`](crate::wire::shim::MAX_CONTROL_LEN) bytes, and says what follows it; `None` if there is nothing to send
    /// now. Only to be called if the packet can be sent.
    #[inline]
    pub fn transmit(&mut self, buf: &mut [u8]) -> Option<Transmit> {
        if let Some(answer) = self.stateless.pop() {
            let bytes = answer.bytes();
            buf.get_mut(..bytes.len())?.copy_from_slice(bytes);
            self.counters.sent[answer.kind as usize] += 1;
            return Some(Transmit {
                to: Destination::Address(answer.to),
                path: self.stateless.path(self.config.paths),
                kind: answer.kind,
                header_len: bytes.len() as u16,
                source: None,
                parity: None,
                more: false,
            });
        }
        if !self.due.is_empty()
            && let Some(control) = self.next_control(buf)
        {
            return Some(control);
        }
        if self.copy_is_due(false)
            && let Some(copy) = self.transmit_copy(false, buf)
        {
            return Some(copy);
        }
        while let Some(slot) = self.ready.head() {
            let tx = &self.sessions[slot].tx;
            // Both in one branch.
            let rare = tx.requested | if STAGE { tx.protecting } else { 0 };
            let blocked = if rare != 0 {
                match self.next_rare(slot, buf) {
                    Ok(transmit) => return Some(transmit),
                    Err(blocked) => blocked,
                }
            } else {
                match self.next_segment::<false>(slot, false, buf) {
                    Ok(transmit) => return Some(transmit),
                    Err(blocked) => blocked,
                }
            };
            if let Blocked::NoChunk = blocked {
                // It looks again when something of its own is acknowledged, or soon.
                self.counters.no_chunk += 1;
                self.sessions[slot].tx.wake_at = self.clock + self.config.times.feedback;
                self.arm(slot, self.sessions[slot].tx.wake_at);
            }
            if let Blocked::Early = blocked {
                let s = &mut self.sessions[slot];
                s.tx.wake_at = s.tx.wake_at.min(s.tx.control.look_at());
                self.arm(slot, self.sessions[slot].tx.wake_at);
            }
            self.sessions[slot].in_ready = false;
            self.ready_chain.remove(&mut self.ready, slot);
            if let Blocked::NoWork = blocked {
                self.end_of_burst(slot);
            }
            if let Blocked::Waits = blocked {
                self.watch_grant(slot);
                if !self.sessions[slot].tx.eager.is_empty() {
                    self.ask_later(slot);
                }
            }
        }
        // The end of a burst may have brought a probe.
        let control = if self.due.is_empty() { None } else { self.next_control(buf) };
        control.or_else(|| if self.copying.is_empty() { None } else { self.transmit_copy(true, buf) })
    }

    /// What a session sends next that has something to send again or protects some of its messages. Others are spared these questions.
    #[cold]
    #[inline(never)]
    fn next_rare(&mut self, slot: u32, buf: &mut [u8]) -> Result<Transmit, Blocked> {
        if !STAGE || self.sessions[slot].tx.protecting == 0 {
            return self.next_segment::<false>(slot, true, buf);
        }
        match self.next_parity(slot, buf) {
            Some(parity) => Ok(parity),
            None => {
                let again = self.sessions[slot].tx.requested > 0;
                self.next_segment::<true>(slot, again, buf)
            }
        }
    }

    #[inline(always)]
    fn next_segment<const PROTECTING: bool>(
        &mut self,
        slot: u32,
        again: bool,
        buf: &mut [u8],
    ) -> Result<Transmit, Blocked> {
        let (seq, record) =
            if again { self.pick_requested(slot)? } else { self.pick_new::<PROTECTING>(slot)? };
        let path = match again {
            false if PROTECTING => Some(self.path_of_new(slot, record)),
            _ => None,
        };
        let transmit = self.write_segment(slot, seq, record, again, path, buf);
        self.count_turn(slot);
        self.watch_tail(slot);
        Ok(transmit)
    }

    #[inline]
    fn count_turn(&mut self, slot: u32) {
        let tx = &mut self.sessions[slot].tx;
        tx.burst = tx.burst.saturating_add(1);
        if tx.burst >= BURST && !self.in_block(slot) && !self.before_copied(slot) {
            let tx = &mut self.sessions[slot].tx;
            tx.burst = 0;
            self.take_turns(slot);
        }
    }

    /// Whether only the last segment of a message is left whose last two go twice: they follow each other.
    fn before_copied(&self, slot: u32) -> bool {
        self.sessions[slot].tx.active.head().is_some_and(|at| {
            let send = &self.sends[at];
            send.semantics.sync && send.sent > 0 && send.sent + 1 == send.segments
        })
    }

    /// The segment of a session that is next, if it is a whole message, has no more than `room` bytes with its header, and may go on this
    /// path. The tail is watched from what went before it in this round.
    #[inline(always)]
    pub(super) fn bundle_segment(
        &mut self,
        slot: u32,
        path: u8,
        room: usize,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let s = &mut self.sessions[slot];
        let again = s.tx.requested > 0;
        let (seq, record) = if again {
            let record = self.segments.oldest_requested(&mut s.tx.chunks)?;
            let segment = self.segments.get(record);
            let elsewhere = s.paths == 1 || segment.path != path;
            let fits = usize::from(segment.bytes) <= room && self.sends[segment.message].segments == 1;
            if !(elsewhere && fits) {
                return None;
            }
            self.pick_requested(slot).ok()?
        } else {
            self.has_window(slot).ok()?;
            let at = self.pick_message(slot).ok()?;
            let send = &self.sends[at];
            if !send.alone || send.len as usize + Data::LEN > room {
                return None;
            }
            self.open_segment::<false>(slot, at).ok()?
        };
        if !again {
            // A burst is counted in packets.
            let tx = &mut self.sessions[slot].tx;
            tx.burst_from = tx.burst_from.next();
        }
        let transmit = self.write_segment(slot, seq, record, again, Some(path), buf);
        self.count_turn(slot);
        Some(transmit)
    }

    /// The next message, and the next session.
    #[inline(never)]
    fn take_turns(&mut self, slot: u32) {
        let tx = &mut self.sessions[slot].tx;
        if let Some(first) = self.queue_chain.pop_front(&mut tx.active) {
            self.queue_chain.push_back(&mut tx.active, first);
        }
        self.ready_chain.remove(&mut self.ready, slot);
        self.ready_chain.push_back(&mut self.ready, slot);
    }

    /// The oldest segment to be sent again, if the window allows.
    fn pick_requested(&mut self, slot: u32) -> Result<(Seq, u32), Blocked> {
        let s = &mut self.sessions[slot];
        let record = self.segments.oldest_requested(&mut s.tx.chunks).ok_or(Blocked::NoWork)?;
        let segment = self.segments.get(record);
        if !fits(s, u64::from(segment.bytes)) {
            return Err(Blocked::Waits);
        }
        let (first, index) = (!segment.again, segment.index);
        if segment.blind {
            let told = Duration::from_nanos(u64::from(s.tx.patience));
            self.orders[slot as usize].sent_blindly(self.clock + told);
        }
        s.tx.requested -= 1;
        self.segments.resent(record);
        let send = &mut self.sends[self.segments.get(record).message];
        if send.void.is_none() {
            s.tx.doubtful = s.tx.doubtful.saturating_add(1);
            s.stats.retransmitted += 1;
            self.counters.retransmitted += 1;
            let counted = self.counters.class(send.semantics.class);
            counted.retransmitted += 1;
            counted.residual += u64::from(send.protection.is_some() && first && index >= send.bare);
            send.again += 1;
        }
        Ok((self.segments.seq(record), record))
    }

    /// The message whose next segment is to be sent: one that was begun, or at the begin of a turn, or without any, another.
    #[inline]
    fn pick_message(&mut self, slot: u32) -> Result<u32, Blocked> {
        let tx = &mut self.sessions[slot].tx;
        let may_begin = tx.active.is_empty() || (tx.burst == 0 && tx.active_count < ACTIVE);
        if may_begin {
            if tx.raised && tx.ready.is_empty() {
                self.pass_the_blocked(slot);
            }
            let tx = &mut self.sessions[slot].tx;
            let begins = match (tx.ready.head(), tx.eager.head()) {
                (Some(at), _) => Some((at, 0)),
                (None, Some(at)) => {
                    let send = &self.sends[at];
                    let announced = send.ordinal.before(self.channels[send.channel].through);
                    let draws = if announced { 0 } else { send.segments };
                    (tx.granted.until(tx.grant) >= draws).then_some((at, draws))
                }
                (None, None) => None,
            };
            if let Some((at, draws)) = begins {
                let send = &mut self.sends[at];
                if send.segments == 1 || tx.begun < tx.most_begun {
                    send.granted = draws > 0;
                    tx.granted = tx.granted.add(draws);
                    tx.begun += u16::from(send.segments > 1);
                    let list = if send.queue == Queue::Ready { &mut tx.ready } else { &mut tx.eager };
                    self.queue_chain.remove(list, at);
                    send.queue = Queue::Active;
                    tx.active_count += 1;
                    self.queue_chain.push_front(&mut tx.active, at);
                }
            }
        }
        let tx = &self.sessions[slot].tx;
        match tx.active.head() {
            Some(at) => Ok(at),
            None if tx.ready.is_empty() && tx.eager.is_empty() => Err(Blocked::NoWork),
            None => Err(Blocked::Waits),
        }
    }

    /// A record for the next segment that was never sent, if window and grant allow.
    #[inline]
    fn pick_new<const PROTECTING: bool>(&mut self, slot: u32) -> Result<(Seq, u32), Blocked> {
        self.has_window(slot)?;
        let at = self.pick_message(slot)?;
        self.open_segment::<PROTECTING>(slot, at)
    }

    /// Whether the window has room for a segment that was never sent, and its pace lets it go.
    #[inline]
    fn has_window(&self, slot: u32) -> Result<(), Blocked> {
        let s = &self.sessions[slot];
        if s.tx.una.until(s.tx.next) >= s.peer_window || !fits(s, u64::from(s.segment)) {
            return Err(Blocked::Waits);
        }
        if s.tx.control.is_early(self.clock) {
            return Err(Blocked::Early);
        }
        Ok(())
    }

    /// A record for the next segment of a message, which has no parity unless that is asked for.
    #[inline]
    fn open_segment<const PROTECTING: bool>(&mut self, slot: u32, at: u32) -> Result<(Seq, u32), Blocked> {
        let (clock, behind) = (self.clock, self.behind());
        let s = &mut self.sessions[slot];
        let send = &mut self.sends[at];
        let offset = u64::from(send.sent) * u64::from(s.segment);
        let bytes = (send.len - offset).min(u64::from(s.segment)) + Data::LEN as u64;
        let seq = s.tx.next;
        let record = self.segments.open(&mut s.tx.chunks, seq).ok_or(Blocked::NoChunk)?;
        s.tx.next = seq.next();
        s.stats.segments_sent += 1;
        *self.segments.get_mut(record) = Segment {
            time: clock,
            message: at,
            index: send.sent,
            path_seq: Seq(0),
            bytes: bytes as u16,
            path: 0,
            state: State::InFlight,
            again: false,
            lag: 0,
            behind,
            blind: false,
        };
        if PROTECTING && send.protection.is_some() {
            self.open_protected(slot, at, seq);
            return Ok((seq, record));
        }
        send.sent += 1;
        if send.sent == send.segments {
            if send.semantics.sync && self.config.mechanisms.copies {
                self.copy_later(slot, self.sends[at].segments, seq);
            }
            self.leave_queue(at);
        }
        Ok((seq, record))
    }

    /// Puts a segment in flight, on the next path or on the one that it must take, and writes its header.
    // Inlined wherever it is called: what it returns would be written field by field and read whole, which no store buffer forwards.
    #[inline(always)]
    fn write_segment(
        &mut self,
        slot: u32,
        seq: Seq,
        record: u32,
        again: bool,
        on: Option<u8>,
        buf: &mut [u8],
    ) -> Transmit {
        let clock = self.clock;
        // Another path than the one that lost it.
        let not = again.then_some(self.segments.get(record).path);
        let path = on.unwrap_or_else(|| self.next_path(slot, not));
        let segment = self.segments.get_mut(record);
        let s = &mut self.sessions[slot];
        let paths = usize::from(self.config.paths);
        let tx = &mut self.paths[slot as usize * paths + usize::from(path)].tx;
        if again {
            // A repair that was waited for left its wait there, which is counted anew.
            let before = if segment.again { segment.lag } else { 0 };
            let more = clock.saturating_since(segment.time).as_nanos();
            segment.lag = before.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        }
        segment.again = again;
        segment.path = path;
        segment.path_seq = tx.next;
        segment.time = clock;
        s.tx.last = clock;
        segment.state = State::InFlight;
        tx.next = tx.next.next();
        tx.sent += 1;
        self.path_chain.push_back(&mut tx.in_flight, record);
        s.tx.in_flight += 1;
        s.tx.in_flight_bytes += u64::from(segment.bytes);
        s.tx.control.on_sent(clock, u32::from(segment.bytes));
        let send = &self.sends[segment.message];
        let void = send.void.is_some();
        let may_ask = s.tx.asked.before(s.tx.una) || s.tx.asked.until(seq) >= SOME;
        let blocked = s.tx.in_flight < FEW
            && may_ask
            && (!fits(s, u64::from(s.segment))
                || (send.granted && s.tx.granted.until(s.tx.grant) < FEW)
                || s.tx.una.until(s.tx.next) >= s.peer_window);
        let asks = blocked || (s.tx.ask_every > 0 && asks_anew(s, seq));
        if asks {
            s.tx.asked = seq;
        }
        let (path_seq, ask) = (segment.path_seq, asks || void);
        self.header(slot, seq, record, (path, path_seq), (ask, again), buf)
    }

    /// How often a session asks for feedback, from its window and its round trip.
    pub(super) fn set_asking(&mut self, slot: u32) {
        let far = self.measured(slot).least().is_some_and(|least| least >= FAR);
        let s = &mut self.sessions[slot];
        let every = if far {
            s.tx.control.window() / ((u64::from(s.segment) + Data::LEN as u64) * ANSWERS)
        } else {
            u64::from(SOME)
        };
        s.tx.ask_every = if every < u64::from(SOME) { every.max(1) as u8 } else { 0 };
    }

    /// Writes a segment's header.
    #[inline(always)]
    pub(super) fn header(
        &mut self,
        slot: u32,
        seq: Seq,
        record: u32,
        (path, path_seq): (u8, Seq),
        (ask, again): (bool, bool),
        buf: &mut [u8],
    ) -> Transmit {
        let segment = self.segments.get(record);
        let s = &self.sessions[slot];
        let send = &self.sends[segment.message];
        let void = send.void.is_some();
        let channel = &self.channels[send.channel];
        let offset = u64::from(segment.index) * u64::from(s.segment);
        let len = if void { 0 } else { (send.len - offset).min(u64::from(s.segment)) as u32 };
        let data = Data {
            session: s.remote,
            path,
            path_seq,
            seq,
            time: Ticks::of(self.now),
            message: send.number,
            segment: segment.index,
            communicator: channel.communicator,
            tag: channel.tag,
            ordinal: send.ordinal,
            length: if void { u64::from(send.sent) } else { send.len },
            semantics: send.semantics,
            ask,
            again,
            void,
            granted: send.granted,
            more: false,
        };
        let more = self.config.mechanisms.bundle && send.alone && !void;
        if let Some(place) = buf.first_chunk_mut() {
            *place = data.to_bytes();
        }
        self.counters.sent[Kind::Data as usize] += 1;
        let source = (len > 0).then_some(Source { token: send.token, offset, len });
        let to = Destination::Session(self.key(slot));
        Transmit { to, path, kind: Kind::Data, header_len: Data::LEN as u16, source, parity: None, more }
    }

    /// A session's timer has fired: whatever of it is due.
    pub(super) fn fire(&mut self, slot: u32) {
        use super::session::State as Stands;
        let clock = self.clock;
        let s = &mut self.sessions[slot];
        s.wheel_at = Instant::MAX;
        if s.rx.at <= clock {
            self.feedback_late(slot);
        }
        if self.sessions[slot].rx.ask_at <= clock {
            self.deadline_passed(slot);
        }
        if self.sessions[slot].tx.gap_at <= clock {
            self.mature_gaps(slot);
        }
        if self.sessions[slot].tx.at <= clock {
            self.expire_tail(slot);
        }
        if self.sessions[slot].tx.time_at <= clock {
            self.ask_by_time(slot);
        }
        if self.sessions[slot].tx.bad_at <= clock {
            self.probe_bad(slot);
        }
        if STAGE && self.sessions[slot].tx.repair_at <= clock {
            self.expire_repairs(slot);
        }
        if self.sessions[slot].announcing.at <= clock {
            self.repeat_announce(slot);
        }
        if self.sessions[slot].tx.wake_at <= clock {
            self.sessions[slot].tx.wake_at = Instant::MAX;
            self.wake(slot);
        }
        if self.sessions[slot].tx.ask_at <= clock {
            self.ask(slot);
        }
        if self.sessions[slot].in_copying && self.copy_due_at(slot) <= clock {
            self.copy_next(slot);
        }
        if self.sessions[slot].alive_at <= clock {
            self.stay_alive(slot);
        }
        if self.sessions[slot].state == Stands::Down {
            return;
        }
        let at = self.next_due(slot);
        self.arm(slot, at);
    }

    /// Everything of a session was acknowledged: its timer, which was for that, is put off. It would find the session when that is in the cache no more.
    #[inline]
    pub(super) fn put_off(&mut self, slot: u32) {
        let at = self.next_due(slot);
        let s = &mut self.sessions[slot];
        if s.wheel_at < at {
            s.wheel_at = at;
            self.wheel.set(slot, at);
        }
    }

    /// When something of a session is due next.
    #[inline]
    fn next_due(&self, slot: u32) -> Instant {
        let (s, clock) = (&self.sessions[slot], self.clock);
        let tx =
            s.tx.gap_at
                .min(s.tx.time_at)
                .min(s.tx.bad_at)
                .min(s.tx.at)
                .min(s.tx.wake_at)
                .min(s.tx.ask_at)
                .min(if STAGE { s.tx.repair_at } else { Instant::MAX });
        // A copy that is due goes with the round.
        let copy_at = if s.in_copying { self.copy_due_at(slot) } else { Instant::MAX };
        let copy_at = if copy_at > clock { copy_at } else { Instant::MAX };
        s.rx.at.min(copy_at).min(s.rx.ask_at).min(tx).min(s.announcing.at).min(s.alive_at)
    }
}

/// Whether a segment over a long way asks for feedback: half of the window is used, and none asked of late. Not only the last that the window has room for: what
/// was held up together on the way would be answered together, and stay together.
#[cold]
fn asks_anew(s: &Session, seq: Seq) -> bool {
    s.tx.asked.until(seq) >= u32::from(s.tx.ask_every) && 2 * s.tx.in_flight_bytes >= s.tx.control.window()
}

/// Whether so many bytes more may be in flight; one segment always may.
#[inline]
fn fits(s: &Session, bytes: u64) -> bool {
    s.tx.in_flight == 0 || s.tx.in_flight_bytes + bytes <= s.tx.control.window()
}
