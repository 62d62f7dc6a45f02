//! What the receiver tells: feedback, announcements, rejections; and the probes of the sender. Each is written when it is sent,
//! so that it tells of the latest.

use super::api::{Destination, Drop, Origin, Received, Transmit};
use super::engine::Engine;
use super::session::{Queue, State, due};
use super::table::List;
use crate::time::Instant;
use crate::wire::shim::{
    Accept, Announce, AnnounceEntry, Close, FeedbackHead, Init, Kind, MAX_ENTRIES, MAX_PATHS, MAX_WORDS,
    PathReport, Probe, RejectMessage, Seq, ShimError, Ticks,
};
use core::time::Duration;

/// How long a message waits for its receive before the peer is asked, at first.
const ASK: Duration = Duration::from_millis(10);
/// While a long message comes in, feedback for fewer segments is dear:
const ENOUGH: u16 = 24;
/// it waits longer the next time, the delay so many times doubled at the most,
const SLOWEST: u8 = 6;
/// unless nothing has come for so many delays.
const IDLE: u32 = 2;

impl Engine {
    /// A feedback is due, at the latest after the delay that saves packets; after a message that came `alone`, at once if that delay saved
    /// none the last time.
    #[inline]
    pub(super) fn feedback_within(&mut self, slot: u32, alone: bool) {
        let s = &self.sessions[slot];
        if s.rx.at != Instant::MAX || s.due & due::FEEDBACK != 0 {
            return;
        }
        let delay = self.feedback_delay(slot);
        if s.rx.sparse {
            let clock = self.clock;
            let rx = &mut self.sessions[slot].rx;
            let gap = rx.latest <= clock;
            rx.sparse = gap && rx.long == 0;
            if rx.sparse && alone {
                rx.latest = clock + delay;
                return self.owe(slot, due::FEEDBACK);
            }
        }
        let s = &self.sessions[slot];
        let most = if s.rx.long > 0 {
            (delay * (1 << s.rx.slowness)).min(delay.max(self.config.times.min_rto))
        } else {
            delay
        };
        let clock = self.clock;
        let rx = &mut self.sessions[slot].rx;
        rx.latest = clock + most;
        rx.at = rx.latest.min(clock + IDLE * delay);
        let at = rx.at;
        self.arm(slot, at);
    }

    /// The wait for more segments is over, unless they still come in and there is time left.
    pub(super) fn feedback_late(&mut self, slot: u32) {
        let (clock, idle) = (self.clock, IDLE * self.feedback_delay(slot));
        let s = &mut self.sessions[slot];
        let idle_at = s.heard + idle;
        if s.rx.latest > clock && idle_at > clock {
            s.rx.at = s.rx.latest.min(idle_at);
            return;
        }
        if idle_at > clock && s.rx.long > 0 && s.rx.unreported < ENOUGH {
            s.rx.slowness = (s.rx.slowness + 1).min(SLOWEST);
        }
        s.rx.sparse = s.rx.unreported == 1;
        self.owe(slot, due::FEEDBACK);
    }

    /// The larger of 25 µs and an eighth of the round trip.
    pub(super) fn feedback_delay(&self, slot: u32) -> Duration {
        let rtt = self.measured(slot).smoothed().unwrap_or_default();
        self.config.times.feedback.max(rtt / 8)
    }

    /// Writes the next control packet that a session owes.
    pub(super) fn next_control(&mut self, buf: &mut [u8]) -> Option<Transmit> {
        while let Some(slot) = self.due.head() {
            let s = &self.sessions[slot];
            let what = s.due & s.due.wrapping_neg();
            let written = match what {
                0 => None,
                due::INIT => {
                    let (path, cookie, rails) = (self.opening_path(slot), s.cookie, self.own_rails(slot));
                    let init = Init { offer: self.offer(slot), cookie, rails };
                    write(buf, Kind::Init, &init.to_bytes()).map(|(kind, len, _)| (kind, len, path))
                }
                due::ACCEPT => {
                    let (path, session, rails) = (self.opening_path(slot), s.remote, self.own_rails(slot));
                    let (offer, clock) = (self.offer(slot), Ticks::of(self.now));
                    let accept = Accept { session, offer, clock, rails };
                    write(buf, Kind::Accept, &accept.to_bytes()).map(|(kind, len, _)| (kind, len, path))
                }
                due::REJECT => {
                    let (message, seq, reason) = s.rx.reject;
                    let reject = RejectMessage { session: s.remote, message, seq, reason };
                    // Until it comes through, nothing behind the message is acknowledged: it takes the way that answers take.
                    let path = self.reply_path(slot);
                    write(buf, Kind::Reject, &reject.to_bytes()).map(|(kind, len, _)| (kind, len, path))
                }
                due::ANNOUNCE => self.write_announce(slot, buf),
                due::PROBE => self.write_probe(slot, buf),
                due::CLOSE => {
                    let (path, close) = (s.reply, Close { session: s.remote, reason: s.goodbye });
                    write(buf, Kind::Close, &close.to_bytes()).map(|(kind, len, _)| (kind, len, path))
                }
                due::FEEDBACK => self.write_feedback(slot, buf),
                _ => {
                    self.tell_all(slot);
                    None
                }
            };
            let s = &mut self.sessions[slot];
            if what != due::PROBE || s.probe == 0 {
                s.due &= !what;
            }
            if s.due == 0 {
                s.in_due = false;
                self.due_chain.remove(&mut self.due, slot);
            }
            let (over, peer) = (s.due == 0 && s.state == State::Down && s.told, s.peer);
            let key = self.key(slot);
            if over {
                self.free_session(slot);
            }
            if let Some((kind, len, path)) = written {
                self.counters.sent[kind as usize] += 1;
                let to = match kind {
                    // The driver may have forgotten the session.
                    Kind::Close => Destination::Address(peer),
                    _ => Destination::Session(key),
                };
                return Some(Transmit {
                    to,
                    path,
                    kind,
                    header_len: len as u16,
                    source: None,
                    parity: None,
                    more: false,
                });
            }
        }
        None
    }

    fn write_probe(&mut self, slot: u32, buf: &mut [u8]) -> Option<(Kind, usize, u8)> {
        let now = self.now;
        let s = &mut self.sessions[slot];
        if s.probe == 0 {
            return None;
        }
        // Several on one path: see `recovery/tail.rs`.
        let path = s.probe.trailing_zeros() as u8 % s.paths;
        s.probe &= s.probe - 1;
        let (session, seq, asks) = (s.remote, s.tx.next, s.tx.asking);
        let forgot = asks && s.tx.forgot;
        s.tx.asking &= s.probe != 0;
        let urgent = s.tx.expiries > 0;
        let tx = &mut self.path_mut(slot, path).tx;
        let path_seq = tx.next;
        tx.next = path_seq.next();
        let probe = Probe { session, path, path_seq, seq, time: Ticks::of(now), asks, forgot, urgent };
        write(buf, Kind::Probe, &probe.to_bytes()).map(|(kind, len, _)| (kind, len, path))
    }

    fn write_feedback(&mut self, slot: u32, buf: &mut [u8]) -> Option<(Kind, usize, u8)> {
        let room = buf.len().min(self.config.control as usize);
        let reply = self.reply_path(slot);
        let paths = self.sessions[slot].paths;
        let now = self.now;
        let mut at = FeedbackHead::LEN;
        let mut reports = 0;
        for path in 0..paths {
            let rx = &mut self.path_mut(slot, path).rx;
            if reports == MAX_PATHS || at + PathReport::LEN > room {
                break;
            }
            if !core::mem::take(&mut rx.fresh) {
                continue;
            }
            let delay = now.saturating_since(rx.arrived) + Duration::from_nanos(u64::from(rx.waited));
            let report = PathReport {
                path,
                late: rx.waited > 0,
                ce: rx.ce,
                highest: rx.highest,
                time: rx.time,
                delay: Ticks::span(delay),
            };
            buf.get_mut(at..at + PathReport::LEN)?.copy_from_slice(&report.to_bytes());
            at += PathReport::LEN;
            reports += 1;
        }
        let share = self.share(slot);
        let s = &mut self.sessions[slot];
        let words = buf.get_mut(at..room)?.as_chunks_mut::<4>().0;
        let most = words.len().min(MAX_WORDS);
        let (words, cut) = self.windows.report(&s.rx.window, words.get_mut(..most)?);
        let head = FeedbackHead {
            session: s.remote,
            cut,
            status: core::mem::take(&mut s.rx.status),
            paths: reports as u8,
            words: words as u8,
            number: s.rx.feedback,
            next: s.rx.window.next,
            grant: s.rx.grant,
            duplicates: s.rx.duplicates,
            announced: s.rx.announced,
            skipped: s.rx.skipped,
            gaps: s.rx.gaps,
            repaired: s.rx.repaired,
            share,
        };
        buf.get_mut(..FeedbackHead::LEN)?.copy_from_slice(&head.to_bytes());
        s.rx.feedback = s.rx.feedback.next();
        s.rx.unreported = 0;
        s.rx.at = Instant::MAX;
        Some((Kind::Feedback, at + 4 * words, reply))
    }

    /// The peer has messages that wait: every receive that is posted is to be announced, however short.
    fn tell_all(&mut self, slot: u32) {
        let again = core::mem::take(&mut self.sessions[slot].announcing.again);
        let mut next = self.sessions[slot].channels.head();
        while let Some(channel) = next {
            next = self.channel_chain.next(channel);
            self.announce_through(slot, channel, again);
        }
    }

    /// The receives of a channel are to be announced, all that are posted; those that were before too, if `again`.
    pub(super) fn announce_through(&mut self, slot: u32, channel: u32, again: bool) {
        let c = &mut self.channels[channel];
        let s = &mut self.sessions[slot];
        if c.announce == c.next_receive && !(again && c.next_receive != s.peer_first) {
            return;
        }
        c.announce = c.next_receive;
        if !c.listed {
            c.listed = true;
            self.announce_chain.push_back(&mut s.announcing.dirty, channel);
        }
        if s.announcing.outstanding.is_empty() {
            self.owe(slot, due::ANNOUNCE);
        }
    }

    /// Announces what is dirty; if the last announcement is not acknowledged, that again.
    fn write_announce(&mut self, slot: u32, buf: &mut [u8]) -> Option<(Kind, usize, u8)> {
        let room = buf.len().min(self.config.control as usize).checked_sub(Announce::HEAD_LEN)?;
        let most = (room / AnnounceEntry::LEN).min(MAX_ENTRIES);
        let path = self.reply_path(slot);
        let s = &mut self.sessions[slot];
        let a = &mut s.announcing;
        let mut count = 0;
        let again = !a.outstanding.is_empty();
        let mut next = a.outstanding.head();
        loop {
            let channel = match next {
                Some(channel) => channel,
                None if again || count == most => break,
                None => match self.announce_chain.pop_front(&mut a.dirty) {
                    Some(channel) => {
                        self.announce_chain.push_back(&mut a.outstanding, channel);
                        channel
                    }
                    None => break,
                },
            };
            next = if again { self.announce_chain.next(channel) } else { None };
            let c = &mut self.channels[channel];
            c.announced = c.announce;
            let entry = AnnounceEntry { communicator: c.communicator, tag: c.tag, through: c.announced };
            let at = Announce::HEAD_LEN + count * AnnounceEntry::LEN;
            buf.get_mut(at..at + AnnounceEntry::LEN)?.copy_from_slice(&entry.to_bytes());
            count += 1;
        }
        if count == 0 {
            return None;
        }
        a.number = a.number.next();
        let head = Announce::head_bytes(s.remote, a.number, count as u8);
        buf.get_mut(..Announce::HEAD_LEN)?.copy_from_slice(&head);
        let wait = self.measured(slot).bound() + self.feedback_delay(slot);
        let times = self.config.times;
        let a = &mut self.sessions[slot].announcing;
        let wait = (wait.max(times.min_rto) * (1 << a.repeats.min(10))).min(times.max_rto);
        a.repeats = a.repeats.saturating_add(1);
        a.at = self.clock + wait;
        let at = a.at;
        self.arm(slot, at);
        Some((Kind::Announce, Announce::HEAD_LEN + count * AnnounceEntry::LEN, path))
    }

    /// The peer took an announcement.
    pub(super) fn announced(&mut self, slot: u32, number: Seq) {
        let s = &mut self.sessions[slot];
        let a = &mut s.announcing;
        if a.outstanding.is_empty() || number != a.number {
            return;
        }
        let mut done = core::mem::take(&mut a.outstanding);
        while let Some(channel) = self.announce_chain.pop_front(&mut done) {
            let c = &mut self.channels[channel];
            if c.announced == c.announce {
                c.listed = false;
            } else {
                self.announce_chain.push_back(&mut a.dirty, channel);
            }
        }
        a.at = Instant::MAX;
        a.repeats = 0;
        if !a.dirty.is_empty() {
            self.owe(slot, due::ANNOUNCE);
        }
    }

    /// The peer has receives posted.
    pub(super) fn on_announce(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let announce = Announce::parse(payload)?;
        let slot = match self.lookup_open(announce.session, origin) {
            Ok(slot) => slot,
            Err(drop) => return Ok(Received::Dropped(drop)),
        };
        if !self.sessions[slot].rx.announced.before(announce.number) {
            // It has been taken, and the feedback that said so was lost.
            self.owe(slot, due::FEEDBACK);
            return Ok(Received::Dropped(Drop::Stale));
        }
        for entry in announce.entries() {
            let Ok(channel) = self.channel(slot, entry.communicator, entry.tag) else {
                // Should a message of that channel be posted, the peer is asked for what we forget here.
                self.counters.no_channel += 1;
                self.sessions[slot].tx.forgot = true;
                continue;
            };
            self.posted_through(channel, entry.through);
        }
        self.sessions[slot].rx.announced = announce.number;
        self.owe(slot, due::FEEDBACK);
        self.wake(slot);
        Ok(Received::Taken(Kind::Announce))
    }

    /// Sends of a channel before `through` have their receive.
    fn posted_through(&mut self, channel: u32, through: Seq) {
        let c = &mut self.channels[channel];
        if !c.through.before(through) {
            return;
        }
        c.through = through;
        self.sessions[c.session].tx.raised = true;
        while let Some(send) = c.waiting.head() {
            if !self.sends[send].ordinal.before(through) {
                return;
            }
            self.queue_chain.remove(&mut c.waiting, send);
            self.sends[send].queue = Queue::Ready;
            let tx = &mut self.sessions[c.session].tx;
            tx.waiting -= 1;
            tx.asks = 0;
            self.queue_chain.push_back(&mut tx.ready, send);
        }
    }

    /// Messages of which the first waits for the grant: those behind it whose receives are posted pass it. Else an application that
    /// receives in another order than its peer sends would wait for ever.
    pub(super) fn pass_the_blocked(&mut self, slot: u32) {
        let tx = &self.sessions[slot].tx;
        let Some(first) = tx.eager.head() else { return };
        if self.is_announced(first) || tx.granted.until(tx.grant) >= self.sends[first].segments {
            return;
        }
        // Only another announcement changes what is found here.
        self.sessions[slot].tx.raised = false;
        let mut next = self.queue_chain.next(first);
        while let Some(send) = next {
            next = self.queue_chain.next(send);
            if self.is_announced(send) {
                let tx = &mut self.sessions[slot].tx;
                self.queue_chain.remove(&mut tx.eager, send);
                self.sends[send].queue = Queue::Ready;
                self.queue_chain.push_back(&mut tx.ready, send);
            }
        }
    }

    /// Whether a send's receive is known to be posted.
    #[inline]
    pub(super) fn is_announced(&self, send: u32) -> bool {
        let send = &self.sends[send];
        send.ordinal.before(self.channels[send.channel].through)
    }

    /// A message waits for its receive: if that is long in coming, the peer is asked for it.
    pub(super) fn ask_later(&mut self, slot: u32) {
        let tx = &mut self.sessions[slot].tx;
        if tx.ask_at != Instant::MAX {
            return;
        }
        let wait = (ASK * (1 << tx.asks.min(10))).min(self.config.times.max_rto);
        tx.ask_at = self.clock + wait;
        let at = tx.ask_at;
        self.arm(slot, at);
    }

    /// Messages have waited for their receives for a while.
    pub(super) fn ask(&mut self, slot: u32) {
        let s = &mut self.sessions[slot];
        s.tx.ask_at = Instant::MAX;
        if s.tx.waiting == 0 && s.tx.eager.is_empty() {
            s.tx.asks = 0;
            return;
        }
        s.tx.asks = s.tx.asks.saturating_add(1);
        s.tx.asking = true;
        let path = self.next_path(slot, None);
        self.sessions[slot].probe |= 1 << path;
        self.owe(slot, due::PROBE);
        self.ask_later(slot);
    }

    /// An announcement was not acknowledged in time, or more is to be announced.
    pub(super) fn repeat_announce(&mut self, slot: u32) {
        let a = &mut self.sessions[slot].announcing;
        a.at = Instant::MAX;
        if a.outstanding != List::default() || a.dirty != List::default() {
            self.turn_reply(slot);
            self.owe(slot, due::ANNOUNCE);
        }
    }

    /// A message that the peer rejected: what was sent of it comes void.
    pub(super) fn on_reject(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let reject = RejectMessage::parse(payload)?;
        let slot = match self.lookup_open(reject.session, origin) {
            Ok(slot) => slot,
            Err(drop) => return Ok(Received::Dropped(drop)),
        };
        debug_assert!(self.sessions[slot].state == State::Open);
        Ok(match self.void_message(slot, &reject) {
            true => Received::Taken(Kind::Reject),
            false => Received::Dropped(Drop::Stale),
        })
    }
}

fn write(buf: &mut [u8], kind: Kind, bytes: &[u8]) -> Option<(Kind, usize, u8)> {
    buf.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some((kind, bytes.len(), 0))
}
