//! How sessions begin and end; see `docs/protocol.md`, section 3.

use super::api::{Address, ConnectError, DownReason, Drop, Event, Origin, Received, SessionKey, Status};
use super::congestion::Controller;
use super::engine::Engine;
use super::path::Path;
use super::protect::CODECS;
use super::recovery::Order;
use super::session::{Announcing, Queue, Rx, Sending, Session, SessionStats, State, Tx, due};
use super::stateless::{self, CookieOf};
use super::table::List;
use super::window::Window;
use crate::time::Instant;
use crate::wire::shim::{
    Accept, Close, CloseReason, Cookie, CookieReply, Init, Kind, Offer, Rails, Refuse, RefuseReason, Reset,
    Seq, ShimError, Ticks,
};
use core::net::IpAddr;

/// The largest grant that is believed, in segments.
pub(super) const MOST_GRANT: u32 = 1 << 20;
/// The smallest segment size and window that two sides can agree on.
const LEAST: u32 = 64;

impl Engine {
    /// Begins a session with `peer`. Its [`Event::Up`] or [`Event::Down`] follows.
    ///
    /// # Errors
    /// There is one already, or no room.
    pub fn connect(&mut self, peer: Address) -> Result<SessionKey, ConnectError> {
        if let Some(slot) = self.find_address(&peer) {
            return Err(ConnectError::Exists(self.key(slot)));
        }
        let slot =
            self.new_session(peer, State::InitSent).ok_or(ConnectError::Full(self.config.limits.sessions))?;
        self.send_init(slot);
        Ok(self.key(slot))
    }

    /// Ends a session: the peer is told once, every operation completes, and [`Event::Down`] follows.
    pub fn close(&mut self, session: SessionKey) {
        if let Some(slot) = self.slot_of(session) {
            let opened = self.sessions[slot].state == State::Open;
            self.bring_down(slot, DownReason::Closed);
            if opened {
                self.owe(slot, due::CLOSE);
            }
        }
    }

    /// The session with a peer, if there is one that is not over.
    pub fn session_with(&self, peer: Address) -> Option<SessionKey> {
        self.find_address(&peer).map(|slot| self.key(slot))
    }

    fn hash_address(&self, of: &Address) -> u64 {
        let (high, low) = match of.ip {
            IpAddr::V4(ip) => (0, u64::from(u32::from(ip))),
            IpAddr::V6(ip) => ((u128::from(ip) >> 64) as u64, u128::from(ip) as u64),
        };
        self.mixer
            .mix(high ^ u64::from(of.qpn.get()).rotate_left(32) ^ u64::from(of.via).rotate_left(16), low)
    }

    fn find_address(&self, of: &Address) -> Option<u32> {
        self.by_address.find(self.hash_address(of), |slot| self.sessions[slot].peer == *of)
    }

    fn new_session(&mut self, peer: Address, state: State) -> Option<u32> {
        if !self.sessions.has_room() {
            return None;
        }
        let first = self.config.first;
        let session = Session {
            id: 0,
            remote: 0,
            epoch: 0,
            peer,
            state,
            accepted: false,
            goodbye: CloseReason::Application,
            told: false,
            in_due: false,
            in_ready: false,
            in_copying: false,
            due: 0,
            probe: 0,
            codecs: CODECS,
            paths: self.config.paths,
            reply: 0,
            segment: self.config.segment,
            peer_window: 0,
            eager: 0,
            peer_first: Seq(0),
            cookie: Cookie::NONE,
            heard: self.clock,
            alive_at: Instant::MAX,
            wheel_at: Instant::MAX,
            inits: 0,
            began: Ticks(0),
            channel_count: 0,
            channels: List::default(),
            sends: List::default(),
            receives: List::default(),
            tx: Tx::new(
                first,
                Controller::new(self.config.congestion, self.config.segment, self.config.mechanisms.pace),
            ),
            rx: Rx::new(first),
            announcing: Announcing {
                dirty: List::default(),
                outstanding: List::default(),
                number: first,
                at: Instant::MAX,
                repeats: 0,
                again: false,
            },
            stats: SessionStats::default(),
        };
        let slot = self.sessions.insert(session)?;
        let paths = usize::from(self.config.paths);
        let from = slot as usize * paths;
        if self.paths.len() < from + paths {
            // Within the capacity that was reserved.
            self.paths.resize(from + paths, Path::default());
            self.orders.resize(slot as usize + 1, Order::new(first));
        }
        self.orders[slot as usize] = Order::new(first);
        self.name(slot);
        self.by_address.insert(self.hash_address(&peer), slot);
        Some(slot)
    }

    /// Gives a session an id that no other has had.
    fn name(&mut self, slot: u32) {
        self.begun += 1;
        self.sessions[slot].id =
            u64::from(slot) << 40 | stateless::unguessable(&self.config.secret, self.begun);
    }

    fn send_init(&mut self, slot: u32) {
        let times = self.config.times;
        let s = &mut self.sessions[slot];
        let wait = times.handshake * (1 << s.inits.min(10));
        s.inits = s.inits.saturating_add(1);
        s.alive_at = self.clock + wait.min(times.max_rto);
        let at = s.alive_at;
        self.owe(slot, due::INIT);
        self.arm(slot, at);
    }

    /// An INIT was not answered in time.
    pub(super) fn repeat_init(&mut self, slot: u32) {
        let tried = self.clock.saturating_since(self.sessions[slot].heard);
        if tried >= self.config.times.silence {
            self.bring_down(slot, DownReason::NoAnswer(tried));
        } else {
            self.turn_reply(slot);
            self.send_init(slot);
        }
    }

    /// What this side says of itself.
    pub(super) fn offer(&self, slot: u32) -> Offer {
        let s = &self.sessions[slot];
        Offer {
            id: s.id,
            epoch: self.config.epoch,
            first: self.config.first,
            segment: s.segment,
            window: self.config.limits.window,
            grant: self.config.allowance,
            eager: self.config.eager,
            time: if s.accepted { s.began } else { Ticks::of(self.now) },
            paths: s.paths,
            codecs: s.codecs,
            messages: self.config.limits.session_incoming as u16,
        }
    }

    fn refuse(&mut self, origin: &Origin, offer: &Offer, reason: RefuseReason) -> Received {
        let packet = Refuse { session: offer.id, reason, time: offer.time }.to_bytes();
        if self.stateless.push(self.now, origin.from, Kind::Refuse, &packet) {
            Received::Taken(Kind::Init)
        } else {
            Received::Dropped(Drop::RateLimited)
        }
    }

    /// A peer wants to begin a session.
    pub(super) fn on_init(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let init = Init::parse(payload)?;
        let offer = init.offer;
        let existing = self.find_address(&origin.from);
        let waits = existing.is_some_and(|slot| self.sessions[slot].state != State::Open);
        if !self.config.listen && !waits {
            return Ok(self.refuse(origin, &offer, RefuseReason::NotListening));
        }
        let (secret, from) = (self.config.secret, origin.from);
        // A cookie is of the session that there is when it is made, if that is open: so an INIT that was sent before a session began
        // cannot end it, however late it comes and whatever epoch it has.
        let mut open = 0;
        if let Some((slot, s)) = existing.map(|slot| (slot, &self.sessions[slot]))
            && s.state == State::Open
        {
            if s.remote == offer.id && s.epoch == offer.epoch {
                if s.accepted {
                    // Our answer was lost. The next one is to this INIT: with the time of the first, the wait between them would be taken for a round trip.
                    self.sessions[slot].began = offer.time;
                    self.turn_reply(slot);
                    self.owe(slot, due::ACCEPT);
                }
                return Ok(Received::Taken(Kind::Init));
            }
            open = s.id;
        }
        let of = CookieOf { from, id: offer.id, epoch: offer.epoch, open };
        if !stateless::is_sound(&secret, &of, self.now, &init.cookie) {
            let cookie = stateless::cookie(&secret, &of, self.now);
            let packet = CookieReply { session: offer.id, cookie, time: offer.time }.to_bytes();
            let sent = self.stateless.push(self.now, from, Kind::Cookie, &packet);
            return Ok(match (sent, init.cookie == Cookie::NONE) {
                (true, true) => Received::Taken(Kind::Init),
                (_, false) => Received::Dropped(Drop::BadCookie),
                (false, true) => Received::Dropped(Drop::RateLimited),
            });
        }
        if offer.segment < LEAST
            || offer.window < LEAST
            || offer.paths == 0
            || offer.messages == 0
            || offer.grant > MOST_GRANT
        {
            return Ok(self.refuse(origin, &offer, RefuseReason::Sizes));
        }
        let slot = match existing.map(|slot| (slot, &self.sessions[slot])) {
            Some((slot, s)) if s.state != State::Open => {
                // Both began at once: the larger id stays the initiator.
                if s.id > offer.id {
                    return Ok(Received::Taken(Kind::Init));
                }
                // Our INIT may still be under way, and must not begin another session with this id.
                self.name(slot);
                slot
            }
            other => {
                if let Some((old, _)) = other {
                    self.bring_down(old, DownReason::Restarted);
                }
                match self.new_session(from, State::Echoed) {
                    Some(slot) => slot,
                    None => return Ok(self.refuse(origin, &offer, RefuseReason::Full)),
                }
            }
        };
        let began_here = existing == Some(slot);
        let s = &mut self.sessions[slot];
        s.accepted = true;
        s.began = offer.time;
        self.open(slot, &offer, &init.rails, !began_here);
        // The initiator has a round trip from our answer; this brings us one.
        self.owe(slot, due::ACCEPT);
        self.measure_paths(slot);
        Ok(Received::Taken(Kind::Init))
    }

    /// The peer asks to prove the source address.
    pub(super) fn on_cookie(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let reply = CookieReply::parse(payload)?;
        let slot = match self.lookup(reply.session, origin) {
            Ok(slot) => slot,
            Err(drop) => return Ok(Received::Dropped(drop)),
        };
        let s = &mut self.sessions[slot];
        if s.state == State::Open {
            return Ok(Received::Dropped(Drop::Stale));
        }
        s.state = State::Echoed;
        s.cookie = reply.cookie;
        s.inits = 0;
        self.send_init(slot);
        Ok(Received::Taken(Kind::Cookie))
    }

    /// The peer opened the session.
    pub(super) fn on_accept(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let accept = Accept::parse(payload)?;
        let slot = match self.lookup(accept.session, origin) {
            Ok(slot) => slot,
            Err(drop) => {
                // It began a session by an INIT that was long under way.
                self.answer_stranger(origin, accept.session, drop);
                return Ok(Received::Dropped(drop));
            }
        };
        let (offer, s) = (accept.offer, &self.sessions[slot]);
        if s.state == State::Open {
            return Ok(Received::Dropped(Drop::Stale));
        }
        let fits = (LEAST..=s.segment).contains(&offer.segment)
            && offer.window >= LEAST
            && (1..=s.paths).contains(&offer.paths)
            && offer.messages > 0
            && offer.grant <= MOST_GRANT;
        if !fits {
            return Ok(Received::Dropped(Drop::Inconsistent));
        }
        self.open(slot, &offer, &accept.rails, false);
        let rtt = offer.time.age(self.now);
        // Other paths may be much longer, and what is not known of them is not assumed.
        let (now, path) = (self.now, self.opening_path(slot));
        self.path_mut(slot, path).tx.rtt.sample(now, rtt);
        if self.sessions[slot].paths > 1 {
            self.measure_paths(slot);
        }
        self.set_patience(slot);
        Ok(Received::Taken(Kind::Accept))
    }

    /// Asks on each path: what its round trip is with empty queues is known before data fills them.
    fn measure_paths(&mut self, slot: u32) {
        let s = &mut self.sessions[slot];
        s.probe = u32::MAX >> (32 - u32::from(s.paths.clamp(1, 32)));
        self.owe(slot, due::PROBE);
    }

    /// Both sides know of each other.
    fn open(&mut self, slot: u32, offer: &Offer, rails: &Rails, accepted: bool) {
        let (config, clock) = (self.config, self.clock);
        let s = &mut self.sessions[slot];
        s.state = State::Open;
        s.remote = offer.id;
        s.epoch = offer.epoch;
        s.segment = s.segment.min(offer.segment) & !7;
        s.codecs &= offer.codecs;
        s.paths = s.paths.min(offer.paths);
        // Without it, the first is as good as any.
        s.reply = if s.reply < s.paths { s.reply } else { 0 };
        s.peer_window = offer.window.min(65_536);
        // A message begins only if the grant reaches for all of it.
        let granted = u64::from(offer.grant) * u64::from(s.segment);
        s.eager = config.eager.min(offer.eager).min(u32::try_from(granted).unwrap_or(u32::MAX));
        s.tx.most_begun = offer.messages;
        s.peer_first = offer.first;
        s.tx.grant = config.first.add(offer.grant);
        s.rx.grant = offer.first.add(config.allowance);
        s.tx.feedback = offer.first.back(1);
        s.tx.control = Controller::new(config.congestion, s.segment, config.mechanisms.pace);
        s.rx.window = Window::new(offer.first);
        s.rx.announced = offer.first.back(1);
        s.due &= !due::INIT;
        s.heard = clock;
        s.alive_at = clock + config.times.keep_alive;
        let (peer, at, paths) = (s.peer, s.alive_at, s.paths);
        for path in 0..paths {
            let p = self.path_mut(slot, path);
            *p = Path::default();
            p.tx.next = config.first;
            p.tx.told = config.first.back(1);
            p.rx.highest = offer.first.back(1);
        }
        self.know_rails(slot, rails);
        self.set_patience(slot);
        self.arm(slot, at);
        self.events.push_back(Event::Up { session: self.key(slot), peer, accepted });
    }

    /// The peer refuses the session.
    pub(super) fn on_refuse(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let refuse = Refuse::parse(payload)?;
        Ok(match self.lookup(refuse.session, origin) {
            Ok(slot) if self.sessions[slot].state != State::Open => {
                self.bring_down(slot, DownReason::Refused(refuse.reason));
                Received::Taken(Kind::Refuse)
            }
            Ok(_) => Received::Dropped(Drop::Stale),
            Err(drop) => Received::Dropped(drop),
        })
    }

    /// The peer knows nothing of a session.
    pub(super) fn on_reset(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let reset = Reset::parse(payload)?;
        Ok(match self.find_address(&origin.from) {
            Some(slot)
                if self.sessions[slot].state == State::Open
                    && self.sessions[slot].remote == reset.session =>
            {
                self.bring_down(slot, DownReason::Forgotten);
                Received::Taken(Kind::Reset)
            }
            _ => Received::Dropped(Drop::UnknownSession),
        })
    }

    /// The peer ends a session.
    pub(super) fn on_close(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let close = Close::parse(payload)?;
        Ok(match self.lookup(close.session, origin) {
            Ok(slot) => {
                self.bring_down(slot, DownReason::ByPeer(close.reason));
                Received::Taken(Kind::Close)
            }
            Err(drop) => Received::Dropped(drop),
        })
    }

    /// Time has passed: a session that heard nothing asks whether its peer is there, and gives up in the end.
    pub(super) fn stay_alive(&mut self, slot: u32) {
        let (clock, times) = (self.clock, self.config.times);
        let s = &mut self.sessions[slot];
        match s.state {
            State::InitSent | State::Echoed => return self.repeat_init(slot),
            State::Open => {}
            State::Down => return,
        }
        let silent = clock.saturating_since(s.heard);
        if silent >= times.silence {
            let reason = DownReason::Silence {
                silent,
                unacknowledged: s.tx.in_flight + s.tx.requested,
                path: s.tx.path,
            };
            self.bring_down(slot, reason);
            self.sessions[slot].goodbye = CloseReason::Silence;
            return self.owe(slot, due::CLOSE);
        }
        if silent < times.keep_alive {
            s.alive_at = s.heard + times.keep_alive;
            return;
        }
        s.alive_at = (clock + times.max_rto).min(s.heard + times.silence);
        let path = self.next_path(slot, None);
        let s = &mut self.sessions[slot];
        s.probe |= 1 << path;
        self.owe(slot, due::PROBE);
    }

    /// Ends a session: everything that it has completes or is freed; its slot is free once the event is taken.
    pub(super) fn bring_down(&mut self, slot: u32, reason: DownReason) {
        while let Some(send) = self.sessions[slot].sends.head() {
            self.leave_queue(send);
            self.finish_send(send, Status::SessionDown);
        }
        while let Some(receive) = self.sessions[slot].receives.head() {
            self.unmatch(receive);
            self.finish_receive(receive, Status::SessionDown, 0);
        }
        while let Some(message) = self.sessions[slot].rx.incoming.head() {
            self.forget_incoming(message);
        }
        while let Some(channel) = self.sessions[slot].channels.head() {
            self.forget_channel(channel);
        }
        self.forget_protecting(slot);
        self.forget_groups(slot);
        for path in 0..self.sessions[slot].paths {
            self.path_mut(slot, path).tx.in_flight = List::default();
        }
        let s = &mut self.sessions[slot];
        let peer = s.peer;
        self.segments.clear(&mut s.tx.chunks);
        self.windows.clear(&mut s.rx.window);
        s.state = State::Down;
        s.due = 0;
        s.wheel_at = Instant::MAX;
        if core::mem::take(&mut s.in_due) {
            self.due_chain.remove(&mut self.due, slot);
        }
        if core::mem::take(&mut s.in_copying) {
            self.copy_chain.remove(&mut self.copying, slot);
        }
        let s = &mut self.sessions[slot];
        if core::mem::take(&mut s.in_ready) {
            self.ready_chain.remove(&mut self.ready, slot);
        }
        self.wheel.cancel(slot);
        self.by_address.remove(self.hash_address(&peer), slot);
        self.events.push_back(Event::Down { session: self.key(slot), peer, reason });
    }

    /// Takes a send out of the queue it waits in.
    pub(super) fn leave_queue(&mut self, send: u32) {
        let Sending { session, channel, queue, .. } = self.sends[send];
        let list = match queue {
            Queue::None => return,
            Queue::Active => {
                self.sessions[session].tx.active_count -= 1;
                &mut self.sessions[session].tx.active
            }
            Queue::Ready => &mut self.sessions[session].tx.ready,
            Queue::Eager => &mut self.sessions[session].tx.eager,
            Queue::Waiting => {
                self.sessions[session].tx.waiting -= 1;
                &mut self.channels[channel].waiting
            }
        };
        self.queue_chain.remove(list, send);
        self.sends[send].queue = Queue::None;
    }
}
