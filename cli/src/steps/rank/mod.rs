//! One rank: how it meets the others, and its part in each step.
//!
//! When all have met (`meet.rs`), rank 0 says what is next: it names a step, every rank fills its buffer
//! and posts its receives, and when all are ready rank 0 says go. So the time of a step has nothing in it but the step.

mod meet;
mod word;

pub use word::{Failure, Sent, Test, Who};

use super::collective::{Out, Step};
use super::tally::Tally;
use crate::error::Error;
use crate::traffic::drive::Buf;
use dataplane::clock::Clock;
use dataplane::io::{PortIo, PortState, PortWatch};
use dataplane::reliable::{Done, Reliable};
use dataplane::worker::Worker;
use roce_proto::time::Instant;
use roce_proto::transport::{Address, Operation, PostError, RecvRequest, SendRequest, SessionKey, Status};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{Kind, Semantics};
use std::net::IpAddr;
use std::time::Duration;
use word::Word;

/// The communicator of the ranks' words.
const WORDS: u32 = 1;
/// The communicator of the collective.
const DATA: u32 = 2;
/// The longest word: the addresses of all ranks.
const LONGEST: usize = 32 * 1024;
/// Steps of each test before those that count.
pub const WARM_UP: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until there are sessions with all, and rank 0 knows.
    Meeting,
    /// Rank 0 says what is next.
    Waiting,
    /// Prepared, until rank 0 says go.
    Ready,
    /// In the step, since then.
    Running(Instant),
    /// Everything has come; own messages are still on their way.
    Sending { ns: u64 },
    /// There is nothing left to do.
    Over,
}

/// One rank.
pub struct Rank<I: PortIo + 'static> {
    worker: Worker<I, Buf>,
    reliable: Reliable<Buf>,
    clock: Clock,
    ports: Vec<PortWatch>,
    who: Who,
    tests: Vec<Test>,
    /// Where the others are: known of rank 0, then of all.
    addresses: Vec<Option<Address>>,
    sessions: Vec<Option<SessionKey>>,
    /// The rank at the other end of a session, by its slot.
    of_slot: Vec<Option<u32>>,
    begun: Instant,
    state: State,
    met: bool,
    test: usize,
    step: u64,
    part: Option<Step>,
    /// Longest message of the test, and buffers as long.
    piece: usize,
    spare: Vec<Buf>,
    outstanding: usize,
    /// What had been sent when the step began.
    counted: Sent,
    /// What each test came to: of rank 0, the slowest rank's times.
    pub tallies: Vec<Tally>,
    /// Of rank 0: how many have said what it waits for, and the slowest of them.
    said: u32,
    slowest: u64,
}

impl<I: PortIo + 'static> Rank<I> {
    /// A rank that knows where rank 0 is.
    ///
    /// # Errors
    /// As [`Tally::new`].
    pub fn new(
        worker: Worker<I, Buf>,
        reliable: Reliable<Buf>,
        who: Who,
        master: Address,
        tests: Vec<Test>,
    ) -> Result<Rank<I>, Error> {
        let clock = Clock::new();
        let count = who.ranks as usize;
        let mut addresses = vec![None; count];
        if let Some(first) = addresses.first_mut() {
            *first = Some(master);
        }
        let tallies = tests.iter().map(|_| Tally::new()).collect::<Result<_, _>>()?;
        let ports = (0..worker.ports()).filter_map(|port| worker.watch(port)).collect();
        Ok(Rank {
            worker,
            reliable,
            clock,
            ports,
            who,
            tests,
            addresses,
            sessions: vec![None; count],
            of_slot: Vec::new(),
            begun: clock.now(),
            state: State::Meeting,
            met: false,
            test: 0,
            step: 0,
            part: None,
            piece: 0,
            spare: Vec::new(),
            outstanding: 0,
            counted: Sent::default(),
            tallies,
            said: 0,
            slowest: 0,
        })
    }

    /// Whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Steps that counted so far, in all tests.
    pub fn steps(&self) -> u64 {
        self.tallies.iter().map(Tally::steps).sum()
    }

    /// Ranks that this one waits for before the first step; none once it has met all.
    pub fn missing(&self) -> Vec<u32> {
        if self.met || self.state != State::Meeting {
            return Vec::new();
        }
        let others = (0..).zip(&self.sessions).filter(|(rank, _)| *rank != self.who.rank);
        others.filter(|(_, session)| session.is_none()).map(|(rank, _)| rank).collect()
    }

    /// The address of a rank, as far as it is known.
    pub fn address(&self, rank: u32) -> Option<IpAddr> {
        self.addresses.get(rank as usize).copied().flatten().map(|address| address.ip)
    }

    /// One round; whether there was anything to do.
    ///
    /// # Errors
    /// A rank that is gone, or does something else.
    pub fn round(&mut self) -> Result<bool, Failure> {
        let now = self.clock.now();
        let mut busy = self.reliable.poll(&mut self.worker, now).any();
        while let Some(done) = self.reliable.poll_completion() {
            busy = true;
            self.take(done)?;
        }
        while let Some(event) = self.reliable.poll_event(&mut self.worker) {
            busy = true;
            self.hear_of(event)?;
        }
        match self.state {
            State::Meeting => self.meet(now)?,
            State::Running(_) => {
                self.push()?;
            }
            // What came last may have to go on to the next rank.
            State::Sending { ns } => {
                let all = self.push()?;
                if all && self.outstanding == 0 {
                    self.step_is_done(ns)?;
                }
            }
            _ => {}
        }
        if self.ports.iter().all(|port| port.state() == PortState::Gone) {
            return Err(self.own("its port is gone"));
        }
        Ok(busy)
    }

    /// Whether something is due soon, for which it should stay awake.
    pub fn is_due(&self) -> bool {
        let near = self.clock.now() + Duration::from_micros(500);
        self.reliable.next_deadline().is_some_and(|at| at <= near)
    }

    /// Rounds for a while in which nothing is expected, so that what was said last arrives.
    pub fn linger(&mut self, time: Duration) {
        let until = self.clock.now() + time;
        while self.clock.now() < until {
            let now = self.clock.now();
            self.reliable.poll(&mut self.worker, now);
            while self.reliable.poll_completion().is_some() {}
            while self.reliable.poll_event(&mut self.worker).is_some() {}
            std::thread::yield_now();
        }
    }

    /// Lets everybody know why there is no going on.
    pub fn abort(&mut self, failure: &Failure) {
        let word = Word::Abort { rank: failure.rank, why: failure.why.clone() };
        // There is no session with itself.
        for rank in 0..self.who.ranks {
            // Whoever cannot be told finds out by itself.
            let _ = self.say(rank, &word);
        }
        self.linger(Duration::from_millis(300));
        self.close();
    }

    /// Ends all sessions.
    pub fn close(&mut self) {
        self.state = State::Over;
        for session in self.sessions.iter().flatten() {
            self.reliable.close(*session);
        }
        self.linger(Duration::from_millis(20));
    }

    fn own(&self, why: impl Into<String>) -> Failure {
        Failure { rank: self.who.rank, why: why.into() }
    }

    fn listen(&mut self, session: SessionKey, buf: Buf) -> Result<(), Failure> {
        let request = RecvRequest { communicator: WORDS, ..RecvRequest::default() };
        // Of a session that is gone, an event says so.
        match self.reliable.post_recv(session, &request, buf) {
            Ok(()) | Err((PostError::NoSession, _)) => Ok(()),
            Err((e, _)) => Err(self.own(e.to_string())),
        }
    }

    fn say(&mut self, rank: u32, word: &Word) -> Result<(), Failure> {
        match self.sessions.get(rank as usize).copied().flatten() {
            Some(session) => self.say_by(session, word),
            None => Ok(()),
        }
    }

    fn say_by(&mut self, session: SessionKey, word: &Word) -> Result<(), Failure> {
        let bytes: Buf = serde_json::to_vec(word).map_err(|e| self.own(e.to_string()))?.into();
        let request = SendRequest { len: bytes.len() as u64, communicator: WORDS, ..SendRequest::default() };
        match self.reliable.post_send(session, &request, bytes) {
            Ok(()) | Err((PostError::NoSession, _)) => Ok(()),
            Err((e, _)) => Err(self.own(e.to_string())),
        }
    }

    /// Says something to rank 0, which may be this one.
    fn report(&mut self, word: Word) -> Result<(), Failure> {
        if self.who.rank == 0 { self.hear(0, word) } else { self.say(0, &word) }
    }

    /// Says something to all, this one included.
    fn tell_all(&mut self, word: Word) -> Result<(), Failure> {
        for rank in 1..self.who.ranks {
            self.say(rank, &word)?;
        }
        self.hear(0, word)
    }

    fn take(&mut self, done: Done<Buf>) -> Result<(), Failure> {
        let c = done.completion;
        if c.status == Status::SessionDown {
            return Ok(());
        }
        match (c.communicator, c.operation) {
            (DATA, operation) => {
                if c.status != Status::Success {
                    let rank = self.rank_of(c.session).unwrap_or(self.who.rank);
                    return Err(Failure { rank, why: format!("its message failed: {}", c.status) });
                }
                if operation == Operation::Send {
                    self.outstanding -= 1;
                } else if let Some(part) = &mut self.part {
                    part.take(c.token as usize, done.buf.get(..c.len as usize).unwrap_or_default());
                    self.finish();
                }
                self.spare.push(done.buf);
                Ok(())
            }
            (_, Operation::Send) => Ok(()),
            (_, Operation::Recv) => {
                let bytes = done.buf.get(..c.len as usize).unwrap_or_default();
                let word = serde_json::from_slice(bytes);
                self.listen(c.session, done.buf)?;
                match (word, self.rank_of(c.session)) {
                    (Ok(Word::Join { version, rank, ranks, tests }), _) => {
                        self.joined(c.session, version, rank, ranks, &tests)
                    }
                    (Ok(Word::Hello { rank }), _) if rank > self.who.rank && rank < self.who.ranks => {
                        self.know(rank, c.session);
                        Ok(())
                    }
                    (Ok(word), Some(rank)) => self.hear(rank, word),
                    (Err(e), Some(rank)) => {
                        Err(Failure { rank, why: format!("speaks another language: {e}") })
                    }
                    // A stranger.
                    (_, None) => Ok(()),
                }
            }
        }
    }

    fn hear(&mut self, from: u32, word: Word) -> Result<(), Failure> {
        match word {
            Word::Table { addresses } if from == 0 => {
                for (place, (ip, qpn)) in self.addresses.iter_mut().zip(addresses).skip(1) {
                    *place = Some(Address::new(ip, Qpn::new(qpn).unwrap_or_default()));
                }
                Ok(())
            }
            Word::Next { test, step } if from == 0 => self.prepare(test, step),
            Word::Go {} if from == 0 => self.go(),
            Word::Finish {} if from == 0 => {
                self.test = usize::MAX;
                self.report(Word::Bye {})
            }
            Word::Abort { rank, why } => Err(Failure { rank, why }),
            Word::Met {} | Word::Ready {} | Word::Done { .. } | Word::Bye {} if self.who.rank == 0 => {
                self.count(word)
            }
            _ => Ok(()),
        }
    }

    /// Rank 0 waits for a word of everybody, and says what is next.
    fn count(&mut self, word: Word) -> Result<(), Failure> {
        if let Word::Done { ns, wrong, sent } = word {
            self.slowest = self.slowest.max(ns);
            if let Some(tally) = self.tallies.get_mut(self.test) {
                tally.add(wrong, &sent);
            }
        }
        self.said += 1;
        if self.said < self.who.ranks {
            return Ok(());
        }
        self.said = 0;
        match word {
            Word::Met {} => self.tell_all(Word::Next { test: 0, step: 0 }),
            Word::Ready {} => self.tell_all(Word::Go {}),
            Word::Done { .. } => {
                let slowest = std::mem::take(&mut self.slowest);
                let (test, step) = (self.test, self.step);
                if let (Some(tally), Some(test)) = (self.tallies.get_mut(test), self.tests.get(test)) {
                    if step >= WARM_UP {
                        tally.record(slowest);
                    }
                    let enough = test.steps.is_some_and(|steps| tally.steps() >= steps)
                        || test.duration.is_some_and(|d| tally.steps() > 0 && tally.total() >= d);
                    if !enough {
                        return self.tell_all(Word::Next { test: self.test, step: step + 1 });
                    }
                }
                if test + 1 < self.tests.len() {
                    self.tell_all(Word::Next { test: test + 1, step: 0 })
                } else {
                    self.tell_all(Word::Finish {})
                }
            }
            // Everybody knows that this was all.
            _ => {
                self.state = State::Over;
                Ok(())
            }
        }
    }

    /// Fills the buffer and posts the receives of a step.
    fn prepare(&mut self, test: usize, step: u64) -> Result<(), Failure> {
        let Some(&Test { workload, size, .. }) = self.tests.get(test) else {
            return Err(Failure { rank: 0, why: format!("wants a test that there is not: {test}") });
        };
        if self.part.is_none() || self.test != test {
            self.part = Some(Step::new(workload, self.who.rank, self.who.ranks, size as usize));
            self.spare.clear();
        }
        (self.test, self.step) = (test, step);
        // A number of its own for each step of each test, so that none is taken for another's.
        let number = (test as u64) << 32 | step;
        let awaited = self.part.as_mut().map(|part| part.begin(number)).unwrap_or_default();
        self.piece = awaited.iter().map(|(_, len)| *len).max().unwrap_or(0).max(4);
        for (nth, (rank, _)) in awaited.into_iter().enumerate() {
            let buf = self.buffer();
            // What a step misses is asked for, see the receiver's deadline in docs/protocol.md.
            let step = Some(step as u32);
            let request =
                RecvRequest { token: nth as u64, communicator: DATA, step, ..RecvRequest::default() };
            let Some(session) = self.sessions[rank as usize] else { continue };
            if let Err((e, _)) = self.reliable.post_recv(session, &request, buf) {
                // Of a session that is gone, an event says so.
                if e != PostError::NoSession {
                    return Err(self.own(e.to_string()));
                }
            }
        }
        self.counted = self.sent();
        self.state = State::Ready;
        self.report(Word::Ready {})
    }

    fn buffer(&mut self) -> Buf {
        let piece = self.piece;
        self.spare.pop().filter(|buf| buf.len() >= piece).unwrap_or_else(|| vec![0; piece].into())
    }

    /// What was sent so far.
    fn sent(&self) -> Sent {
        let counters = self.reliable.counters();
        Sent {
            segments: counters.sent(Kind::Data),
            again: counters.retransmitted,
            parity: counters.sent(Kind::Parity),
        }
    }

    fn go(&mut self) -> Result<(), Failure> {
        self.state = State::Running(self.clock.now());
        self.push()?;
        // Those who were told before may have sent all already.
        self.finish();
        Ok(())
    }

    /// Sends what may be sent; whether nothing is left to send.
    fn push(&mut self) -> Result<bool, Failure> {
        loop {
            let Some(out) = self.part.as_mut().and_then(Step::next_out) else { return Ok(true) };
            if !self.send(&out)? {
                if let Some(part) = &mut self.part {
                    part.put_back(out);
                }
                return Ok(false);
            }
        }
    }

    fn send(&mut self, out: &Out) -> Result<bool, Failure> {
        let Some(session) = self.sessions[out.to as usize] else { return Ok(false) };
        let mut buf = self.buffer();
        let bytes = self.part.as_ref().map(|part| part.bytes(out)).unwrap_or_default();
        if let Some(room) = buf.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        let request = SendRequest {
            len: bytes.len() as u64,
            communicator: DATA,
            // Others wait for it: the whole step does.
            semantics: Semantics { step: self.step as u32, sync: true, ..self.who.semantics },
            ..SendRequest::default()
        };
        match self.reliable.post_send(session, &request, buf) {
            Ok(()) => {
                self.outstanding += 1;
                Ok(true)
            }
            Err((e, buf)) if e.is_back_pressure() || e == PostError::NoSession => {
                self.spare.push(buf);
                Ok(false)
            }
            Err((e, _)) => Err(self.own(e.to_string())),
        }
    }

    /// Ends the time of a step when everything is there.
    fn finish(&mut self) {
        if let State::Running(since) = self.state
            && self.part.as_ref().is_some_and(Step::is_done)
        {
            let ns = self.clock.now().saturating_since(since).as_nanos() as u64;
            self.state = State::Sending { ns };
        }
    }

    fn step_is_done(&mut self, ns: u64) -> Result<(), Failure> {
        self.state = State::Waiting;
        let wrong = self.part.as_ref().map_or(0, Step::wrong);
        let (now, before) = (self.sent(), self.counted);
        let sent = Sent {
            segments: now.segments - before.segments,
            again: now.again - before.again,
            parity: now.parity - before.parity,
        };
        if self.who.rank != 0
            && let Some(tally) = self.tallies.get_mut(self.test)
        {
            tally.add(wrong, &sent);
            if self.step >= WARM_UP {
                tally.record(ns);
            }
        }
        self.report(Word::Done { ns, wrong, sent })
    }
}
