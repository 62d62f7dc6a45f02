//! What the application asks for: sends and receives, and the channels that count them.

use super::api::{Operation, PostError, RecvRequest, SendRequest, SessionKey, Status};
use super::engine::Engine;
use super::protect::STAGE;
use super::session::{Channel, Fate, Queue, Receiving, Sending, State};
use super::table::List;
use crate::time::Instant;
use crate::wire::shim::{Data, Seq};

/// Receives of a channel, however short, after which they are announced: what is announced draws on no grant.
const AHEAD: u32 = 64;

/// Segments of a message: one even if it is empty.
#[inline]
pub(super) const fn segments_of(len: u64, segment: u32) -> u64 {
    if len == 0 { 1 } else { len.div_ceil(segment as u64) }
}

impl Engine {
    /// Posts a message to send. It completes when every byte is in its place at the peer, or in the peer's bounce pool.
    ///
    /// # Errors
    /// Nothing was queued; see [`PostError::is_back_pressure`].
    pub fn post_send(&mut self, session: SessionKey, request: &SendRequest) -> Result<(), PostError> {
        // Apart from the start, so that what has no tag pays for no more than the question.
        if STAGE && self.may_protect(&request.semantics) {
            self.post_tagged(session, request)
        } else {
            self.post(session, request).map(drop)
        }
    }

    #[cold]
    fn post_tagged(&mut self, session: SessionKey, request: &SendRequest) -> Result<(), PostError> {
        let at = self.post(session, request)?;
        self.protect_send(at);
        Ok(())
    }

    /// Posts a message without protection; its record.
    #[inline(always)]
    fn post(&mut self, session: SessionKey, request: &SendRequest) -> Result<u32, PostError> {
        let slot = self.open_slot(session)?;
        if slot != self.posted {
            self.posted = slot;
            self.look_at_sender(slot);
        }
        let s = &self.sessions[slot];
        let segments = segments_of(request.len, s.segment);
        let max = (u64::from(u32::MAX) * u64::from(s.segment)).min(Data::MAX_LENGTH);
        let Ok(segments) = u32::try_from(segments)
            .map_err(drop)
            .and_then(|n| if request.len > max { Err(()) } else { Ok(n) })
        else {
            return Err(PostError::TooLong { len: request.len, max });
        };
        if !self.has_place(Operation::Send) {
            return Err(PostError::Full(self.config.limits.sends));
        }
        let channel = self.channel(slot, request.communicator, request.tag)?;
        let c = &mut self.channels[channel];
        let ordinal = c.next_send;
        let s = &mut self.sessions[slot];
        let announced = ordinal.before(c.through);
        let queue = if announced {
            Queue::Ready
        } else if request.len <= u64::from(s.eager) {
            Queue::Eager
        } else {
            Queue::Waiting
        };
        let number = s.tx.next_message;
        let send = Sending {
            session: slot,
            channel,
            token: request.token,
            len: request.len,
            number,
            ordinal,
            segments,
            sent: 0,
            acked: 0,
            again: 0,
            semantics: request.semantics,
            protection: None,
            bare: 0,
            alone: segments == 1,
            queue,
            void: None,
            granted: false,
            posted: self.now,
            lost: Instant::ZERO,
        };
        let at = self.sends.insert(send).ok_or(PostError::Full(self.config.limits.sends))?;
        c.next_send = ordinal.next();
        s.tx.next_message = number.next();
        self.send_chain.push_back(&mut s.sends, at);
        let list = match queue {
            Queue::Ready => &mut s.tx.ready,
            Queue::Eager => &mut s.tx.eager,
            Queue::Waiting | Queue::None | Queue::Active => &mut c.waiting,
        };
        self.queue_chain.push_back(list, at);
        if queue == Queue::Waiting {
            self.sessions[slot].tx.waiting += 1;
            self.ask_later(slot);
        } else {
            self.wake(slot);
        }
        Ok(at)
    }

    /// Posts a receive. What has come of its message already leaves the bounce pool: [`Engine::next_move`].
    ///
    /// # Errors
    /// Nothing was queued; see [`PostError::is_back_pressure`].
    pub fn post_recv(&mut self, session: SessionKey, request: &RecvRequest) -> Result<(), PostError> {
        let slot = self.open_slot(session)?;
        if !self.has_place(Operation::Recv) {
            return Err(PostError::Full(self.config.limits.receives));
        }
        let channel = self.channel(slot, request.communicator, request.tag)?;
        let ordinal = self.channels[channel].next_receive;
        let receive = Receiving {
            session: slot,
            communicator: request.communicator,
            tag: request.tag,
            ordinal,
            step: 0,
            token: request.token,
            capacity: request.capacity,
            posted: self.now,
        };
        let at = self.receives.insert(receive).ok_or(PostError::Full(self.config.limits.receives))?;
        let c = &mut self.channels[channel];
        c.next_receive = ordinal.next();
        let always = c.always;
        let ahead = c.announce.until(c.next_receive) >= AHEAD;
        let s = &mut self.sessions[slot];
        self.receive_chain.push_back(&mut s.receives, at);
        if let Some(number) = request.step {
            self.join_step(at, number);
        }
        let s = &mut self.sessions[slot];
        // What the peer may send unannounced: no more than we let it, nor than it lets itself.
        let eager = u64::from(s.eager).min(u64::from(self.config.allowance) * u64::from(s.segment));
        let holds = s.rx.blocks > 0;
        let hash = self.hash_match(slot, request.communicator, request.tag, ordinal);
        let unexpected = self.find_unexpected(hash, slot, request.communicator, request.tag, ordinal);
        // While other messages hold the grant, this one may wait for it at the peer.
        let held = unexpected.is_none() && holds;
        if request.capacity > eager || always || ahead || held {
            self.announce_through(slot, channel, false);
        }
        match unexpected {
            Some(message) => self.bind(message, at, hash),
            None => self.by_match.insert(hash, at),
        }
        Ok(())
    }

    /// A receive for a message of which something has come.
    fn bind(&mut self, message: u32, receive: u32, hash: u64) {
        self.by_unexpected.remove(hash, message);
        let r = self.receives[receive];
        let m = &mut self.incoming[message];
        let fits = m.length <= r.capacity;
        let mut blocks = core::mem::take(&mut m.blocks);
        let (mut moved, missing) = (0, m.count);
        let mut at = blocks.head();
        while let Some(block) = at {
            at = self.block_chain.next(block);
            self.blocks[block].token = r.token;
            moved += 1;
        }
        self.reserved -= missing;
        let rx = &mut self.sessions[r.session].rx;
        rx.blocks -= moved + missing;
        rx.grant = rx.grant.add(moved);
        if fits {
            m.fate = Fate::Placed(receive);
            self.block_chain.append(&mut self.moves, &mut blocks);
        } else {
            m.fate = Fate::Discarded;
            while let Some(block) = self.block_chain.pop_front(&mut blocks) {
                self.blocks.remove(block);
            }
        }
        let (left, length) = (m.count, m.length);
        let came = length - (u64::from(left) * u64::from(self.sessions[r.session].segment)).min(length);
        if came > 0 {
            self.step_came(receive, came);
        }
        if left == 0 {
            self.forget_incoming(message);
        }
        match (fits, left) {
            (true, 0) => self.finish_receive(receive, Status::Success, length),
            (true, _) => {}
            (false, _) => self.finish_receive(receive, Status::TooLong, 0),
        }
        // The grant has risen, and the peer may be waiting for it.
        self.feedback_within(r.session, false);
    }

    /// Reads what the first message of a session for a while needs until it is sent: all of it is waited for at once, and not step by step. For nothing
    /// but that; what was read is thrown away.
    #[inline]
    fn look_at_sender(&self, slot: u32) {
        let (s, path) = (&self.sessions[slot], &self.path(slot, 0).tx);
        let tx = &s.tx;
        // Something of each line of the cache.
        let lines =
            [tx.una.0, tx.next_message.0, tx.longest, tx.copies.from.0, s.announcing.number.0, path.next.0];
        let all = s.heard.as_nanos() ^ s.remote ^ path.sent;
        core::hint::black_box(lines.iter().fold(all, |all, line| all ^ u64::from(*line)));
    }

    fn open_slot(&self, session: SessionKey) -> Result<u32, PostError> {
        let slot = self.slot_of(session).ok_or(PostError::NoSession)?;
        if self.sessions[slot].state == State::Open { Ok(slot) } else { Err(PostError::NotOpen) }
    }

    fn hash_channel(&self, slot: u32, communicator: u32, tag: u64) -> u64 {
        self.mixer.mix(u64::from(slot) << 32 | u64::from(communicator), tag)
    }

    /// The channel with these names.
    #[inline]
    pub(super) fn find_channel(&self, slot: u32, communicator: u32, tag: u64) -> Option<u32> {
        self.by_channel.find(self.hash_channel(slot, communicator, tag), |at| {
            let c = &self.channels[at];
            c.session == slot && c.communicator == communicator && c.tag == tag
        })
    }

    /// The channel with these names, made if there is none.
    #[inline]
    pub(super) fn channel(&mut self, slot: u32, communicator: u32, tag: u64) -> Result<u32, PostError> {
        match self.find_channel(slot, communicator, tag) {
            Some(at) => Ok(at),
            None => self.new_channel(slot, communicator, tag),
        }
    }

    fn new_channel(&mut self, slot: u32, communicator: u32, tag: u64) -> Result<u32, PostError> {
        let hash = self.hash_channel(slot, communicator, tag);
        let most = self.config.limits.session_channels;
        let s = &mut self.sessions[slot];
        if s.channel_count >= most {
            return Err(PostError::Channels(most));
        }
        let channel = Channel {
            session: slot,
            communicator,
            tag,
            next_send: self.config.first,
            through: self.config.first,
            next_receive: s.peer_first,
            announce: s.peer_first,
            always: false,
            announced: s.peer_first,
            listed: false,
            waiting: List::default(),
        };
        let at = self.channels.insert(channel).ok_or(PostError::Channels(s.channel_count))?;
        s.channel_count += 1;
        self.channel_chain.push_back(&mut s.channels, at);
        self.by_channel.insert(hash, at);
        Ok(at)
    }

    /// Frees a channel of a session that is over, whose lists of announcements are not used again.
    pub(super) fn forget_channel(&mut self, at: u32) {
        let c = self.channels[at];
        self.by_channel.remove(self.hash_channel(c.session, c.communicator, c.tag), at);
        let s = &mut self.sessions[c.session];
        self.channel_chain.remove(&mut s.channels, at);
        s.channel_count -= 1;
        self.channels.remove(at);
    }

    #[inline]
    pub(super) fn hash_match(&self, slot: u32, communicator: u32, tag: u64, ordinal: Seq) -> u64 {
        // The ordinal apart from the product: neighbours lie in neighbouring buckets.
        self.hash_channel(slot, communicator, tag).wrapping_add(u64::from(ordinal.0))
    }

    /// The receive that a message is for.
    #[inline]
    pub(super) fn find_receive(&self, hash: u64, slot: u32, data: &Data) -> Option<u32> {
        self.by_match.find(hash, |at| {
            let r = &self.receives[at];
            r.ordinal == data.ordinal
                && r.session == slot
                && r.tag == data.tag
                && r.communicator == data.communicator
        })
    }

    /// Takes a receive out of those that wait for a message.
    pub(super) fn unmatch(&mut self, at: u32) {
        let r = self.receives[at];
        let hash = self.hash_match(r.session, r.communicator, r.tag, r.ordinal);
        // One that a message has come for in part is not there any more.
        if self.by_match.find(hash, |i| i == at).is_some() {
            self.by_match.remove(hash, at);
        }
    }

    fn find_unexpected(
        &self,
        hash: u64,
        slot: u32,
        communicator: u32,
        tag: u64,
        ordinal: Seq,
    ) -> Option<u32> {
        self.by_unexpected.find(hash, |at| {
            let m = &self.incoming[at];
            m.session == slot && m.communicator == communicator && m.tag == tag && m.ordinal == ordinal
        })
    }
}
