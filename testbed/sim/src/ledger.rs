//! The checker of messages: what was posted, what arrived, how it ended, and whether the two sides agree on that.

use crate::watch::{Check, Told};
use roce_proto::time::Instant;
use roce_proto::transport::{Completion, Operation, SessionKey, Status};
use roce_proto::wire::shim::{Data, Seq};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// A session: host, incarnation, key.
pub type Session = (usize, u32, SessionKey);
type Found<T> = Result<T, (Check, String)>;

/// An operation's place in its channel: session, kind, communicator, tag, number.
type Place = (Session, Operation, u32, u64, u32);

/// What a receive's buffer holds before anything comes.
const EMPTY: u8 = 0xee;
/// A prime, so that no message's length is a multiple of it.
const POOL: usize = 1_048_573;

/// A send or a receive that was posted.
#[derive(Debug)]
pub struct Op {
    /// The number of its message in the plan.
    pub message: usize,
    /// Its session.
    pub session: Session,
    /// Send or receive.
    pub operation: Operation,
    communicator: u32,
    tag: u64,
    /// Its number in its channel.
    number: u32,
    /// Bytes of a send, room of a receive.
    len: u64,
    /// A receive's, made when the first byte comes.
    buffer: Vec<u8>,
    /// Bytes that were placed: of a receive in it, of a send at the peer.
    placed: u64,
    /// How it ended.
    pub outcome: Option<Status>,
    /// The receive that got it.
    delivered: Option<usize>,
}

/// Everything that was posted in a run.
#[derive(Debug, Default)]
pub struct Ledger {
    ops: Vec<Op>,
    pool: Vec<u8>,
    /// The next number of a channel.
    numbers: HashMap<(Session, Operation, u32, u64), u32>,
    /// The host at the other end of each operation.
    peers: Vec<usize>,
    places: HashMap<Place, usize>,
    /// By which id a session is reached.
    own: HashMap<Session, u64>,
    owner: HashMap<u64, Session>,
    /// By which id a session reaches its peer.
    peer: HashMap<Session, u64>,
    down: HashSet<Session>,
    /// Operations that have not ended.
    open: usize,
    /// Segments and bytes placed, and completions: whatever is progress.
    pub progress: u64,
    /// From post to completion of sends that ended well.
    pub times: Vec<Duration>,
    /// Of each send that ended well, the number of its message, when it was posted and when it ended, by its host's clock.
    pub spans: Vec<(usize, Duration, Duration)>,
    /// Sends and receives by how they ended: well, too long, with their session.
    pub ended: [u64; 3],
    /// Bytes that arrived.
    pub bytes: u64,
}

impl Ledger {
    /// Nothing was posted yet.
    pub fn new(seed: u64) -> Ledger {
        let mut pool = vec![0; POOL];
        fastrand::Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15).fill(&mut pool);
        Ledger { pool, ..Ledger::default() }
    }

    /// The token of the next operation.
    pub fn next_token(&self) -> u64 {
        self.ops.len() as u64
    }

    /// An operation was posted, with [`Ledger::next_token`].
    pub fn post(
        &mut self,
        session: Session,
        operation: Operation,
        (message, communicator, tag, len): (usize, u32, u64, u64),
        peer: usize,
    ) {
        self.peers.push(peer);
        let next = self.numbers.entry((session, operation, communicator, tag)).or_default();
        let number = *next;
        *next += 1;
        self.places.insert((session, operation, communicator, tag, number), self.ops.len());
        self.open += 1;
        self.progress += 1;
        let (buffer, placed, outcome, delivered) = (Vec::new(), 0, None, None);
        self.ops.push(Op {
            message,
            session,
            operation,
            communicator,
            tag,
            number,
            len,
            buffer,
            placed,
            outcome,
            delivered,
        });
    }

    /// Where a message's bytes begin in the pool: elsewhere for each.
    fn start(message: usize) -> usize {
        (message.wrapping_mul(7_919).wrapping_add(message << 11)) % POOL
    }

    /// The parts of the pool that are a range of a message.
    fn content(&self, message: usize, offset: u64, len: usize) -> impl Iterator<Item = &[u8]> {
        let mut at = (Self::start(message) + (offset % POOL as u64) as usize) % POOL;
        let mut left = len;
        std::iter::from_fn(move || {
            let part = self.pool.get(at..POOL.min(at + left)).filter(|p| !p.is_empty())?;
            left -= part.len();
            at = 0;
            Some(part)
        })
    }

    /// Appends bytes of a send that an engine asks for.
    pub fn read(&self, token: u64, offset: u64, len: u32, to: &mut Vec<u8>) -> Found<()> {
        let op = self.ops.get(token as usize).filter(|op| op.operation == Operation::Send);
        let op =
            op.ok_or_else(|| (Check::Metadata, format!("it asks for bytes of {token}, which is no send")))?;
        if op.outcome.is_some() || offset + u64::from(len) > op.len {
            let what = format!("it asks for {len} bytes from {offset} of {}, ended {:?}", op.len, op.outcome);
            return Err((Check::Metadata, what));
        }
        for part in self.content(op.message, offset, len as usize) {
            to.extend_from_slice(part);
        }
        Ok(())
    }

    /// Bytes that were placed in a receive.
    pub fn placed(&self, token: u64, offset: u64, len: usize) -> Found<Vec<u8>> {
        let op = self.ops.get(token as usize).filter(|op| op.operation == Operation::Recv);
        let op = op.ok_or_else(|| (Check::Metadata, format!("a repair in {token}, which is no receive")))?;
        let end = offset + len as u64;
        if op.outcome.is_some() || end > op.len {
            let what = format!("a repair up to {end} in a receive of {}, ended {:?}", op.len, op.outcome);
            return Err((Check::Bounds, what));
        }
        // Without a byte of its own it is as it was made.
        let empty = || vec![EMPTY; len];
        Ok(op.buffer.get(offset as usize..end as usize).map_or_else(empty, <[u8]>::to_vec))
    }

    /// A segment is recovered at the receive that its message goes to.
    pub fn repaired(&mut self, token: u64, len: u64) -> Found<()> {
        let send = self.ops.get(token as usize).and_then(|op| self.counterpart(op));
        let send = send.ok_or_else(|| (Check::Agreement, format!("repaired in {token}, of no send")))?;
        let op = &mut self.ops[send];
        op.placed += len;
        self.progress += 1;
        if op.placed > op.len {
            let what = format!("{} bytes of a message of {} are there after a repair", op.placed, op.len);
            return Err((Check::Once, what));
        }
        Ok(())
    }

    /// Bytes are placed in a receive.
    pub fn write(&mut self, token: u64, offset: u64, bytes: &[u8]) -> Found<()> {
        let op = self.ops.get_mut(token as usize).filter(|op| op.operation == Operation::Recv);
        let op = op.ok_or_else(|| (Check::Metadata, format!("bytes for {token}, which is no receive")))?;
        let end = offset + bytes.len() as u64;
        if op.outcome.is_some() || end > op.len {
            let what = format!("bytes up to {end} in a receive of {}, ended {:?}", op.len, op.outcome);
            return Err((Check::Bounds, what));
        }
        if op.buffer.is_empty() {
            op.buffer = vec![EMPTY; op.len as usize];
        }
        op.buffer[offset as usize..end as usize].copy_from_slice(bytes);
        op.placed += bytes.len() as u64;
        Ok(())
    }

    /// A packet tells who talks to whom. A session may get another id as it opens, but no id is of two.
    pub fn told(&mut self, session: Session, told: Told) -> Found<()> {
        match told {
            Told::Own(id) => {
                if *self.owner.entry(id).or_insert(session) != session {
                    return Err((Check::Agreement, format!("two sessions are reached by {id:#x}")));
                }
                self.own.insert(session, id);
            }
            Told::Peer(id) => {
                let known = *self.peer.entry(session).or_insert(id);
                if known != id {
                    let what = format!("a session sends to {id:#x} after {known:#x}");
                    return Err((Check::Agreement, what));
                }
            }
        }
        Ok(())
    }

    /// A session is over, or its host is.
    pub fn session_down(&mut self, session: Session) {
        self.down.insert(session);
        self.progress += 1;
    }

    /// A host's process has ended, and all that it had going with it.
    pub fn host_down(&mut self, host: usize, incarnation: u32) {
        let here = |session: &Session| (session.0, session.1) == (host, incarnation);
        self.down.extend(self.own.keys().filter(|s| here(s)));
        for op in self.ops.iter_mut().filter(|op| op.outcome.is_none() && here(&op.session)) {
            op.outcome = Some(Status::SessionDown);
            self.down.insert(op.session);
            self.open -= 1;
            self.ended[2] += 1;
        }
        self.progress += 1;
    }

    /// The number of an operation's message in the plan.
    pub fn message(&self, token: u64) -> Option<usize> {
        self.ops.get(token as usize).map(|op| op.message)
    }

    /// The session that one talks to.
    fn peer_of(&self, session: Session) -> Option<Session> {
        self.owner.get(self.peer.get(&session)?).copied()
    }

    /// The operation at the other end.
    fn counterpart(&self, op: &Op) -> Option<usize> {
        let other = match op.operation {
            Operation::Send => Operation::Recv,
            Operation::Recv => Operation::Send,
        };
        let peer = self.peer_of(op.session)?;
        self.places.get(&(peer, other, op.communicator, op.tag, op.number)).copied()
    }

    /// A segment arrived at a session for the first time and is placed, or put in the pool.
    pub fn arrived(
        &mut self,
        at: Session,
        data: &Data,
        len: u32,
        first: Seq,
        token: Option<u64>,
    ) -> Found<()> {
        let number = first.until(data.ordinal);
        let nowhere = || (Check::Agreement, format!("a segment of a message that nobody sent: {data:?}"));
        let from = self.peer_of(at).ok_or_else(nowhere)?;
        let place = (from, Operation::Send, data.communicator, data.tag, number);
        let send = *self.places.get(&place).ok_or_else(nowhere)?;
        let op = &mut self.ops[send];
        op.placed += u64::from(len);
        self.progress += 1;
        if op.len != data.length || op.placed > op.len {
            let what = format!("{} bytes of a message of {} have arrived, {data:?}", op.placed, op.len);
            return Err((Check::Once, what));
        }
        if let Some(token) = token
            && self.ops.get(token as usize).and_then(|r| self.counterpart(r)) != Some(send)
        {
            return Err((
                Check::Agreement,
                format!("a segment goes to receive {token}, not its own: {data:?}"),
            ));
        }
        Ok(())
    }

    /// An operation has ended; `first` is the first ordinal of the side that sends.
    pub fn complete(&mut self, session: Session, done: &Completion, first: Seq) -> Found<()> {
        let at = done.token as usize;
        let op = self.ops.get(at).filter(|op| op.operation == done.operation && op.session == session);
        let op = op.ok_or_else(|| (Check::Metadata, format!("nothing like it was posted: {done:?}")))?;
        if let Some(before) = op.outcome {
            return Err((Check::Once, format!("{done:?} has ended before: {before}")));
        }
        let sound = done.communicator == op.communicator
            && done.tag == op.tag
            && done.ordinal == first.add(op.number)
            && done.done >= done.posted;
        if !sound {
            return Err((Check::Metadata, format!("{done:?} of {} in its channel", op.number)));
        }
        if (done.operation, done.status) == (Operation::Recv, Status::Success) {
            self.check_received(at, done)?;
        }
        if (done.operation, done.status) == (Operation::Send, Status::Success) {
            self.check_sent(at, done)?;
        }
        let op = &mut self.ops[at];
        op.outcome = Some(done.status);
        op.buffer = Vec::new();
        self.open -= 1;
        self.progress += 1;
        self.ended[match done.status {
            Status::Success => 0,
            Status::TooLong => 1,
            Status::SessionDown => 2,
        }] += 1;
        Ok(())
    }

    fn check_received(&mut self, at: usize, done: &Completion) -> Found<()> {
        let op = &self.ops[at];
        let send =
            self.counterpart(op).ok_or_else(|| (Check::Agreement, format!("{done:?} was never sent")))?;
        let sent = &self.ops[send];
        if sent.len != done.len || op.placed != done.len {
            let what = format!("{done:?}: {} bytes sent, {} placed", sent.len, op.placed);
            return Err((Check::Bytes, what));
        }
        let mut rest = op.buffer.as_slice();
        for part in self.content(sent.message, 0, done.len as usize) {
            let Some((here, after)) = rest.split_at_checked(part.len()).filter(|(here, _)| *here == part)
            else {
                return Err((Check::Bytes, format!("{done:?} differs from what was sent")));
            };
            debug_assert_eq!(here.len(), part.len());
            rest = after;
        }
        if rest.iter().any(|b| *b != EMPTY) {
            return Err((Check::Bytes, format!("{done:?}: something was written beyond its end")));
        }
        if let Some(other) = self.ops[send].delivered.replace(at) {
            return Err((Check::Once, format!("{done:?} was delivered to {other} before")));
        }
        self.bytes += done.len;
        Ok(())
    }

    /// A send ends well once all of it is at the peer.
    fn check_sent(&mut self, at: usize, done: &Completion) -> Found<()> {
        let op = &self.ops[at];
        // A receive that was posted late and is too short throws away the rest.
        let short = self.counterpart(op).is_some_and(|r| self.ops[r].len < op.len);
        if done.len != op.len || (op.placed != op.len && !short) {
            return Err((Check::Agreement, format!("{done:?}, and {} bytes are there", op.placed)));
        }
        self.times.push(done.done - done.posted);
        let since = |at: Instant| Duration::from_nanos(at.as_nanos());
        self.spans.push((op.message, since(done.posted), since(done.done)));
        Ok(())
    }

    /// The host at the other end of an operation.
    pub fn peer_host(&self, token: u64) -> Option<usize> {
        self.peers.get(token as usize).copied()
    }

    /// Operations that have not ended.
    pub const fn open(&self) -> usize {
        self.open
    }

    /// How an operation ended, by its token.
    pub fn outcome(&self, token: u64) -> Option<Status> {
        self.ops.get(token as usize)?.outcome
    }

    /// What still has to end by itself: its other side is posted, or its session is over at the other end.
    pub fn unsettled(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(|op| op.outcome.is_none()).filter(|op| {
            let gone = self.peer_of(op.session).is_some_and(|peer| self.down.contains(&peer));
            gone || self.down.contains(&op.session) || self.counterpart(op).is_some()
        })
    }

    /// When everything is over: what one side believes, the other does, or one has an error.
    pub fn verdict(&self) -> Found<()> {
        for (at, op) in self.ops.iter().enumerate() {
            let Some(outcome) = op.outcome else {
                return Err((Check::Completion, format!("it never ended: {op:?}")));
            };
            let Some(other) = self.counterpart(op).map(|i| &self.ops[i]) else { continue };
            if op.operation == Operation::Recv {
                continue;
            }
            let fits = op.len <= other.len;
            let agree = match (outcome, other.outcome) {
                (_, None) => false,
                (Status::Success, Some(Status::Success)) => fits,
                // It was there before its receive was.
                (Status::Success, Some(Status::TooLong)) => !fits,
                (Status::TooLong, Some(Status::TooLong)) => !fits,
                (Status::TooLong, Some(Status::Success)) => false,
                // All of it was there, so the receive had ended, or did so as it was posted.
                (Status::Success | Status::TooLong, Some(Status::SessionDown)) => false,
                (Status::SessionDown, Some(_)) => self.down.contains(&op.session),
            };
            if !agree {
                let what = format!("send {at} ended {outcome:?}, its receive {:?}", other.outcome);
                return Err((Check::Agreement, what));
            }
        }
        Ok(())
    }
}
