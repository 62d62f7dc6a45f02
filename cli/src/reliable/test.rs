//! The tests themselves, as the client and as the server run them.

use super::classes::Classes;
use super::end::{CONTROL, DATA, End, RESULT, lost};
use super::figures::{self, Figures, PortShare};
use super::peers::{self, Cost};
use super::plan::Test;
use super::{Audience, Message, VERSION, Wish, meet};
use crate::error::Error;
use crate::host::Host;
use crate::rendezvous::message::{RxReport, TestKind, TestSpec};
use crate::traffic::drive::Buf;
use crate::traffic::meter::Meter;
use crate::traffic::pingpong::{WARM_UP, is_warm};
use crate::traffic::session::{Counted, Side, TestResult, drops_since};
use dataplane::io::PortIo;
use dataplane::reliable::{Counters, Done};
use hdrhistogram::Histogram;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Completion, Event, Operation, PostError, RecvRequest, SendRequest, SessionKey, Status,
};
use serde_json::{Value, json};
use std::time::Duration;

/// After a signal the client waits so long for what is under way, and for the server's word about it.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Rounds between two looks at the signal and the progress line.
const LOOK: u32 = 4_096;

/// Bytes of a message that are written between two rounds, which takes less than a millisecond.
const PIECE: usize = 1 << 20;

/// One end of a test that runs.
struct Run {
    spec: TestSpec,
    /// The session by which the ends speak about the test: the first of those that it has.
    session: SessionKey,
    sessions: Vec<SessionKey>,
    rng: fastrand::Rng,
    /// This end sends of its own accord.
    sends: bool,
    client: bool,
    free: Vec<Buf>,
    posted: u64,
    sent: u64,
    started: Instant,
    /// The client's last message of a latency test set out then, and whether its round trip counts.
    pinged: Instant,
    counts: bool,
    over: bool,
    told: bool,
    meter: Meter,
    /// What the peer said it sent.
    expected: Option<u64>,
    answered: bool,
    /// The peer has our result.
    taken: bool,
    /// The session is gone.
    closed: bool,
    before: Counters,
    counted: Counted,
    link_lost: u64,
    recovery: Histogram<u64>,
    classes: Classes,
    rtt: Option<Histogram<u64>>,
    /// What the peer received, and what its transport did.
    result: Option<(RxReport, Figures)>,
    own: Option<(RxReport, Figures)>,
    /// What its sessions cost this side.
    cost: Option<Cost>,
}

#[cold]
fn failed(status: Status) -> Error {
    Error::failed(format_args!("a message failed: {status}"))
}

impl Run {
    /// An end of `test` over `sessions`, of which there is one at least.
    fn new<I: PortIo + 'static>(
        end: &mut End<I>,
        test: &Test,
        sessions: Vec<SessionKey>,
        client: bool,
    ) -> Result<Run, Error> {
        let spec = &test.spec;
        let session = *sessions.first().ok_or_else(|| Error::failed("a test without a session"))?;
        let lat = spec.kind == TestKind::Lat;
        let (sends, receives) = test.roles(client);
        let size = spec.size as usize;
        let (tx, rx) = test.depths();
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).map_err(Error::failed);
        let mut run = Run {
            spec: spec.clone(),
            session,
            sessions,
            rng: fastrand::Rng::with_seed(end.now.as_nanos()),
            sends,
            client,
            free: Vec::new(),
            posted: 0,
            sent: 0,
            started: end.now,
            pinged: end.now,
            counts: false,
            over: !sends,
            told: !sends,
            meter: Meter::new(),
            expected: None,
            answered: !receives || (lat && client),
            taken: true,
            closed: false,
            before: end.reliable.counters().clone(),
            counted: Counted::of(end.worker()),
            link_lost: end.link_lost(),
            recovery: histogram()?,
            classes: Classes::new(&end.tags, test.mix, spec.size),
            rtt: if lat && client { Some(histogram()?) } else { None },
            result: None,
            own: None,
            cost: None,
        };
        if sends {
            run.free = (0..tx).map(|i| message(end, size, i)).collect::<Result<_, Error>>()?;
        }
        if receives {
            for i in 0..rx * run.sessions.len() {
                let session = run.sessions.get(i % run.sessions.len()).copied().unwrap_or(session);
                for tag in run.classes.tags() {
                    run.receive(end, (session, tag), vec![0; size].into())?;
                }
            }
        }
        Ok(run)
    }

    fn receive<I: PortIo + 'static>(
        &self,
        end: &mut End<I>,
        (session, tag): (SessionKey, u64),
        buf: Buf,
    ) -> Result<(), Error> {
        let request = RecvRequest { communicator: DATA, tag, ..RecvRequest::default() };
        match end.reliable.post_recv(session, &request, buf) {
            Ok(()) => Ok(()),
            // Its end will be told of as an event.
            Err((PostError::NoSession, _)) => Ok(()),
            Err((e, _)) => Err(Error::failed(e)),
        }
    }

    /// A random one of the sessions.
    #[inline]
    fn any_session(&mut self) -> SessionKey {
        match self.sessions.len() {
            1 => self.session,
            n => self.sessions.get(self.rng.usize(0..n)).copied().unwrap_or(self.session),
        }
    }

    /// Messages that quota, time and rate allow now.
    fn due(&mut self, now: Instant) -> u64 {
        let elapsed = now.saturating_since(self.started);
        let quota = self.spec.iters.map_or(u64::MAX, |n| n + self.warm_up());
        let time_is_up = self.spec.duration_ms.is_some_and(|ms| elapsed >= Duration::from_millis(ms));
        // However slow the way is, one round trip is measured.
        let some_counted = self.rtt.is_none() || self.counts;
        if self.posted >= quota || time_is_up && some_counted {
            self.over = true;
            return 0;
        }
        let by_rate =
            self.spec.rate.map_or(u64::MAX, |rate| (elapsed.as_secs_f64() * rate as f64) as u64 + 1);
        by_rate.min(quota).saturating_sub(self.posted)
    }

    fn warm_up(&self) -> u64 {
        if self.spec.kind == TestKind::Lat { WARM_UP } else { 0 }
    }

    fn send<I: PortIo + 'static>(&mut self, end: &mut End<I>, buf: Buf) -> Result<bool, Error> {
        let session = self.any_session();
        let (tag, semantics) = self.classes.next(&mut self.rng);
        let request = SendRequest {
            token: end.now.as_nanos(),
            len: u64::from(self.spec.size),
            communicator: DATA,
            tag,
            semantics,
        };
        match end.reliable.post_send(session, &request, buf) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            // Of a session that is gone, an event will say why.
            Err((e, buf)) if e.is_back_pressure() || e == PostError::NoSession => {
                self.free.push(buf);
                Ok(false)
            }
            Err((e, _)) => Err(Error::failed(e)),
        }
    }

    /// Posts what may be sent; returns whether anything was.
    fn post<I: PortIo + 'static>(&mut self, end: &mut End<I>) -> Result<bool, Error> {
        let mut any = false;
        if !self.over && !self.free.is_empty() {
            let due = self.due(end.now).min(self.free.len() as u64);
            for _ in 0..due {
                let Some(buf) = self.free.pop() else { break };
                if !self.send(end, buf)? {
                    break;
                }
                any = true;
            }
        }
        if self.over && !self.told && self.sent == self.posted {
            self.told = true;
            end.say(self.session, &Message::End { sent: self.posted })?;
        }
        Ok(any)
    }

    /// An operation ended.
    #[inline(always)]
    fn take<I: PortIo + 'static>(&mut self, end: &mut End<I>, done: Done<Buf>) -> Result<(), Error> {
        // Each on its own: what stays in one piece is written in small parts, and a wider read of it waits for the processor's store
        // buffer.
        let Done {
            completion:
                Completion {
                    session,
                    operation,
                    status,
                    token,
                    len,
                    communicator,
                    tag,
                    recovery,
                    posted,
                    done: ended,
                    ..
                },
            buf,
        } = done;
        // What other clients say waits for its turn, which is after this test: they ask again.
        if status == Status::SessionDown || (communicator == CONTROL && session != self.session) {
            return Ok(());
        }
        if status != Status::Success {
            return Err(failed(status));
        }
        match (communicator, operation) {
            (DATA, Operation::Send) => {
                self.sent += 1;
                self.classes.ended(tag, ended.saturating_since(posted));
                if !recovery.is_zero() {
                    self.recovery.saturating_record(recovery.as_nanos() as u64);
                }
                if self.spec.kind == TestKind::Lat && !self.client {
                    // The server's answers are the messages that came: their memory receives again.
                    self.receive(end, (session, tag), buf)?;
                } else {
                    self.free.push(buf);
                }
            }
            (DATA, Operation::Recv) => {
                self.meter.add(1, end.now);
                self.classes.came(tag);
                match (&mut self.rtt, self.spec.kind) {
                    (Some(rtt), _) => {
                        if self.counts {
                            let trip = end.moment().saturating_since(self.pinged);
                            rtt.saturating_record(trip.as_nanos() as u64);
                        }
                        self.receive(end, (session, tag), buf)?;
                    }
                    (None, TestKind::Lat) => {
                        self.send(end, buf)?;
                    }
                    (None, TestKind::Bw) => self.receive(end, (session, tag), buf)?,
                }
            }
            (CONTROL, Operation::Send) => self.taken |= token == RESULT,
            (CONTROL, Operation::Recv) => match end.hear(session, len, buf)? {
                Message::End { sent } => self.expected = Some(sent),
                Message::Result { report, figures } => self.result = Some((report, *figures)),
                Message::Hello { .. } | Message::Ready { .. } | Message::Connect {} => {}
            },
            _ => {}
        }
        Ok(())
    }

    /// Tells the peer what came, once everything has, and what was sent has arrived: its figures are of the whole test then.
    fn answer<I: PortIo + 'static>(&mut self, end: &mut End<I>) -> Result<(), Error> {
        if self.answered || !self.told || self.expected.is_none_or(|sent| self.meter.count() < sent) {
            return Ok(());
        }
        self.answered = true;
        let (report, figures) = self.report(end);
        let told = Message::Result { report: report.clone(), figures: Box::new(figures.clone()) };
        end.say(self.session, &told)?;
        self.own = Some((report, figures));
        self.taken = false;
        Ok(())
    }

    fn report<I: PortIo + 'static>(&self, end: &mut End<I>) -> (RxReport, Figures) {
        let mut figures = Figures::of(end.reliable.counters(), &self.before, &self.recovery);
        figures.cost = self.cost;
        figures.ports = self.ports(end);
        figures.classes = self.classes.figures(end.reliable.counters(), &self.before);
        let mut report = self.meter.report();
        report.sent = self.posted;
        report.drops = drops_since(&self.counted, &Counted::of(end.worker()));
        (report, figures)
    }

    /// What went over each port, if there are several.
    fn ports<I: PortIo + 'static>(&self, end: &mut End<I>) -> Vec<PortShare> {
        let worker = end.worker();
        let (now, count) = (Counted::of(worker), worker.ports());
        let share = |port| {
            let [now, before] = [&now, &self.counted].map(|counted| counted.packets(port));
            let name = worker.port_info(port).map(|info| info.name.clone()).unwrap_or_default();
            PortShare { name, sent: now[0] - before[0], received: now[1] - before[1] }
        };
        let shares: Vec<_> = (0..count).map(share).collect();
        if shares.len() > 1 { shares } else { Vec::new() }
    }

    fn has_all(&self) -> bool {
        let waits_for_result = self.sends && self.result.is_none();
        self.told && self.answered && !waits_for_result
    }

    /// Nothing is left to do but to let the peer know.
    fn is_done(&self) -> bool {
        self.closed || (self.has_all() && self.taken)
    }

    /// Runs until both ends have what they want; false if a signal came first.
    fn run<I: PortIo + 'static>(
        &mut self,
        end: &mut End<I>,
        audience: &mut impl Audience,
    ) -> Result<bool, Error> {
        let (mut rounds, mut give_up) = (0, None);
        self.started = end.now;
        while !self.is_done() {
            let mut busy = match self.rtt {
                // One message in flight: the next when the last is back.
                Some(_) => self.meter.count() == self.posted && self.ping(end)?,
                None => self.post(end)?,
            };
            end.round(busy);
            busy = false;
            while let Some(done) = end.reliable.poll_completion() {
                self.take(end, done)?;
                busy = true;
            }
            self.answer(end)?;
            while let Some(event) = end.event() {
                match event {
                    Event::Down { session, reason, .. } if self.sessions.contains(&session) => {
                        // The peer closes once it has our result, which may be before we know that it has.
                        match self.has_all() {
                            true => self.closed |= session == self.session,
                            // A signal to the terminal is for both.
                            false if give_up.is_some() => return Ok(false),
                            false => return Err(lost(reason)),
                        }
                    }
                    Event::Up { session, .. } => end.listen(session)?,
                    Event::Down { .. } => {}
                }
            }
            rounds += if busy { 1 } else { 16 };
            if rounds >= LOOK {
                rounds = 0;
                if end.stopped() {
                    if !self.client || end.now >= *give_up.get_or_insert(end.now + LAST_WORDS) {
                        return Ok(false);
                    }
                    self.over = true;
                }
                end.check_port()?;
                let messages = if self.sends { self.sent } else { self.meter.count() };
                audience.progress(&self.spec, messages, end.now.saturating_since(self.started));
            }
        }
        Ok(give_up.is_none())
    }

    /// The client's next message of a latency test.
    fn ping<I: PortIo + 'static>(&mut self, end: &mut End<I>) -> Result<bool, Error> {
        let due = self.due(end.now);
        if due == 0 || self.over {
            return self.post(end);
        }
        let Some(buf) = self.free.pop() else { return Ok(false) };
        self.pinged = end.now;
        self.counts = is_warm(&self.spec, self.posted, end.now.saturating_since(self.started));
        self.send(end, buf)
    }
}

/// Memory of a message, written so that each page of it is there. That of a large one takes seconds, in which the sessions live on and
/// a signal is heard.
fn message<I: PortIo + 'static>(end: &mut End<I>, size: usize, nth: usize) -> Result<Buf, Error> {
    let mut buf: Buf = vec![0; size].into();
    for (at, piece) in buf.chunks_mut(PIECE).enumerate() {
        if at > 0 {
            end.round(true);
            end.check()?;
        }
        piece.iter_mut().enumerate().for_each(|(i, byte)| *byte = (nth + i) as u8);
    }
    Ok(buf)
}

/// What the sessions of a test cost, for its report.
fn costs(test: &Test, client: Option<Cost>, server: Option<Cost>) -> Value {
    match test.peers {
        0 | 1 => Value::Null,
        count => json!({ "count": count, "client": client, "server": server }),
    }
}

/// Runs the tests as a client; returns whether a signal ended them.
pub(super) fn measure<I: PortIo + 'static>(
    end: &mut End<I>,
    server: Address,
    wait: Duration,
    wish: &Wish<'_>,
    audience: &mut impl Audience,
) -> Result<bool, Error> {
    for (i, spec) in wish.specs.iter().enumerate() {
        audience.begins(i, spec);
        let test =
            Test { spec: spec.clone(), peers: wish.scale.peers, memory: wish.scale.memory, mix: wish.mix };
        test.check(None, true, &Host::here()).map_err(Error::usage)?;
        let session = meet::connect(end, server, wait, audience)?;
        end.listen(session)?;
        end.say(
            session,
            &Message::Hello {
                version: VERSION,
                spec: spec.clone(),
                peers: test.peers,
                memory: test.memory,
                mix: test.mix,
                last: i + 1 == wish.specs.len(),
            },
        )?;
        let mut sessions = vec![session];
        let mut cost = None;
        loop {
            match meet::word(end, session)? {
                Message::Connect {} if sessions.len() == 1 => {
                    let opened = peers::open(end, server, session, test.peers, audience)?;
                    (sessions, cost) = (opened.0, Some(opened.1));
                }
                Message::Ready { refusal: Some(why) } => {
                    meet::close(end, &sessions);
                    return Err(Error::usage(format_args!("{} refused the test: {why}", server.ip)));
                }
                _ => break,
            }
        }
        let mut run = match Run::new(end, &test, sessions.clone(), true) {
            Ok(run) => run,
            Err(e) => {
                meet::close(end, &sessions);
                return Err(e);
            }
        };
        run.cost = cost;
        let ended = run.run(end, audience);
        let (client, own) = run.report(end);
        let untold = run.result.is_none().then_some(Side::Server);
        let (mut server, theirs) = run.result.take().unwrap_or_default();
        // Its result may have been written before it had sent all.
        server.sent = run.expected.unwrap_or(server.sent);
        let unanswered = run.posted - run.sent;
        let mut result = TestResult {
            spec: spec.clone(),
            server,
            client,
            rtt: run.rtt.take(),
            unanswered,
            untold,
            unsaid: untold.filter(|_| run.expected.is_none()),
            interrupted: matches!(ended, Ok(false)),
            failure: ended.as_ref().err().cloned(),
            link_lost: end.link_lost() - run.link_lost,
            reliable: None,
        };
        let mut json = figures::to_json(&result, &own, &theirs);
        json["peers"] = costs(&test, cost, theirs.cost);
        result.reliable = Some(json);
        audience.result(result)?;
        meet::close(end, &run.sessions);
        if !ended? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Serves one client; returns whether a signal ended it.
pub(super) fn serve<I: PortIo + 'static>(
    end: &mut End<I>,
    kind: Option<TestKind>,
    audience: &mut impl Audience,
) -> Result<bool, Error> {
    let addrs: Vec<String> = end.worker().addrs(0).iter().map(ToString::to_string).collect();
    audience.ready(&format!("waiting for a client at {} (reliable service)", addrs.join(", ")))?;
    let mut after_test = false;
    loop {
        let Some((session, test, last)) = meet::hello(end, after_test)? else {
            // Its results are there; that it went without a word changes nothing about them.
            return Ok(false);
        };
        if let Err(why) = test.check(kind, false, &Host::here()) {
            tracing::warn!("refused a test: {why}");
            end.say(session, &Message::Ready { refusal: Some(why) })?;
            continue;
        }
        let (sessions, cost) = match test.peers {
            1 => (vec![session], None),
            n => peers::accept(end, session, n, audience).map(|(sessions, cost)| (sessions, Some(cost)))?,
        };
        let mut run = match Run::new(end, &test, sessions.clone(), false) {
            Ok(run) => run,
            Err(e) => {
                meet::close(end, &sessions);
                return Err(e);
            }
        };
        run.cost = cost;
        end.say(session, &Message::Ready { refusal: None })?;
        let ended = run.run(end, audience);
        let (mut server, own) = match run.own.take() {
            Some(own) => own,
            None => run.report(end),
        };
        let untold = run.result.is_none().then_some(Side::Client);
        let (mut client, theirs) = run.result.take().unwrap_or_default();
        // Results may have been written before all was sent.
        server.sent = run.posted;
        client.sent = run.expected.unwrap_or(client.sent);
        let mut result = TestResult {
            spec: test.spec.clone(),
            server,
            client,
            rtt: None,
            unanswered: 0,
            untold,
            unsaid: untold.filter(|_| run.expected.is_none()),
            interrupted: matches!(ended, Ok(false)),
            failure: ended.as_ref().err().cloned(),
            link_lost: end.link_lost() - run.link_lost,
            reliable: None,
        };
        let mut json = figures::to_json(&result, &theirs, &own);
        json["peers"] = costs(&test, theirs.cost, cost);
        result.reliable = Some(json);
        audience.result(result)?;
        match ended {
            Ok(true) => {}
            // The client need not wait until it misses this side.
            over => {
                meet::close(end, &run.sessions);
                return over.map(|_| true);
            }
        }
        if !run.closed {
            meet::down(end, session)?;
        }
        if last {
            return Ok(false);
        }
        after_test = true;
    }
}
