//! The tests themselves, as the client and as the server run them.

use super::end::{CONTROL, DATA, End, RESULT, lost};
use super::{Figures, Message, VERSION, figures_json};
use crate::cmd::bw::Report;
use crate::error::Error;
use crate::rendezvous::message::{RxReport, TestKind, TestSpec};
use crate::traffic::drive::Buf;
use crate::traffic::meter::Meter;
use crate::traffic::pingpong::WARM_UP;
use crate::traffic::session::{TestResult, Watch, check_spec};
use dataplane::io::PortIo;
use dataplane::reliable::{Counters, Done};
use hdrhistogram::Histogram;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, DownReason, Event, Operation, RecvRequest, SendRequest, SessionKey, Status,
};
use std::time::Duration;

/// Bytes that a side's posted receives, or its sends, have together at the most, beyond two messages.
const MEMORY: usize = 4 << 20;
/// Rounds between two looks at the signal and the progress line.
const LOOK: u32 = 4_096;

/// One end of a test that runs.
struct Run {
    spec: TestSpec,
    session: SessionKey,
    /// This end sends of its own accord.
    sends: bool,
    client: bool,
    free: Vec<Buf>,
    posted: u64,
    sent: u64,
    started: Instant,
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
    recovery: Histogram<u64>,
    rtt: Option<Histogram<u64>>,
    /// What the peer received, and what its transport did.
    result: Option<(RxReport, Figures)>,
    own: Option<(RxReport, Figures)>,
}

fn depth(wanted: u32, size: usize) -> usize {
    (wanted as usize).min((MEMORY / size.max(1)).max(2))
}

impl Run {
    fn new<I: PortIo>(
        end: &mut End<I>,
        spec: &TestSpec,
        session: SessionKey,
        client: bool,
    ) -> Result<Run, Error> {
        let lat = spec.kind == TestKind::Lat;
        let sends = client || (spec.bidirectional && !lat);
        let receives = !client || spec.bidirectional || lat;
        let size = spec.size as usize;
        let (tx, rx) = if lat { (1, 4) } else { (depth(spec.tx_depth, size), depth(spec.rx_depth, size)) };
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).map_err(Error::failed);
        let mut run = Run {
            spec: spec.clone(),
            session,
            sends,
            client,
            free: Vec::new(),
            posted: 0,
            sent: 0,
            started: end.now,
            over: !sends,
            told: !sends,
            meter: Meter::new(),
            expected: None,
            answered: !receives || (lat && client),
            taken: true,
            closed: false,
            before: end.reliable.counters().clone(),
            recovery: histogram()?,
            rtt: if lat && client { Some(histogram()?) } else { None },
            result: None,
            own: None,
        };
        if sends {
            run.free = (0..tx).map(|i| (0..size).map(|at| (at + i) as u8).collect()).collect();
        }
        if receives {
            for _ in 0..rx {
                run.receive(end, vec![0; size].into())?;
            }
        }
        Ok(run)
    }

    fn receive<I: PortIo>(&self, end: &mut End<I>, buf: Buf) -> Result<(), Error> {
        let request = RecvRequest { communicator: DATA, ..RecvRequest::default() };
        end.reliable.post_recv(self.session, &request, buf).map_err(|(e, _)| Error::failed(e))
    }

    /// Messages that quota, time and rate allow now.
    fn due(&mut self, now: Instant) -> u64 {
        let elapsed = now.saturating_since(self.started);
        let quota = self.spec.iters.map_or(u64::MAX, |n| n + self.warm_up());
        let time_is_up = self.spec.duration_ms.is_some_and(|ms| elapsed >= Duration::from_millis(ms));
        if self.posted >= quota || time_is_up {
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

    fn send<I: PortIo>(&mut self, end: &mut End<I>, buf: Buf) -> Result<bool, Error> {
        let request = SendRequest {
            token: end.now.as_nanos(),
            len: u64::from(self.spec.size),
            communicator: DATA,
            ..SendRequest::default()
        };
        match end.reliable.post_send(self.session, &request, buf) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err((e, buf)) if e.is_back_pressure() => {
                self.free.push(buf);
                Ok(false)
            }
            Err((e, _)) => Err(Error::failed(e)),
        }
    }

    /// Posts what may be sent; returns whether anything was.
    fn post<I: PortIo>(&mut self, end: &mut End<I>) -> Result<bool, Error> {
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
    fn take<I: PortIo>(&mut self, end: &mut End<I>, done: Done<Buf>) -> Result<(), Error> {
        let c = done.completion;
        if c.session != self.session || c.status == Status::SessionDown {
            return Ok(());
        }
        if c.status != Status::Success {
            return Err(Error::failed(format_args!("a message failed: {}", c.status)));
        }
        match (c.communicator, c.operation) {
            (DATA, Operation::Send) => {
                self.sent += 1;
                if !c.recovery.is_zero() {
                    self.recovery.saturating_record(c.recovery.as_nanos() as u64);
                }
                if self.spec.kind == TestKind::Lat && !self.client {
                    // The server's answers are the messages that came: their memory receives again.
                    self.receive(end, done.buf)?;
                } else {
                    self.free.push(done.buf);
                }
            }
            (DATA, Operation::Recv) => {
                self.meter.add(1, end.now);
                match (&mut self.rtt, self.spec.kind) {
                    (Some(rtt), _) => {
                        if self.meter.count() > WARM_UP {
                            rtt.saturating_record(end.now.saturating_since(self.started).as_nanos() as u64);
                        }
                        self.receive(end, done.buf)?;
                    }
                    (None, TestKind::Lat) => {
                        self.send(end, done.buf)?;
                    }
                    (None, TestKind::Bw) => self.receive(end, done.buf)?,
                }
            }
            (CONTROL, Operation::Send) => self.taken |= c.token == RESULT,
            (CONTROL, Operation::Recv) => match end.hear(done)? {
                Message::End { sent } => self.expected = Some(sent),
                Message::Result { report, figures } => self.result = Some((report, figures)),
                Message::Hello { .. } | Message::Ready { .. } => {}
            },
            _ => {}
        }
        if !self.answered && self.expected.is_some_and(|sent| self.meter.count() >= sent) {
            self.answered = true;
            let (report, figures) = self.report(end);
            end.say(self.session, &Message::Result { report: report.clone(), figures: figures.clone() })?;
            self.own = Some((report, figures));
            self.taken = false;
        }
        Ok(())
    }

    fn report<I: PortIo>(&self, end: &End<I>) -> (RxReport, Figures) {
        let mut figures = Figures::of(end.reliable.counters(), &self.before);
        figures.recovery_ns = [self.recovery.value_at_quantile(0.5), self.recovery.max()];
        let mut report = self.meter.report();
        report.sent = self.posted;
        (report, figures)
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
    fn run<I: PortIo>(&mut self, end: &mut End<I>, report: &mut Report<'_>) -> Result<bool, Error> {
        let mut rounds = 0;
        self.started = end.now;
        let begun = end.now;
        while !self.is_done() {
            let mut busy = match self.rtt {
                // One message in flight: the next when the last is back.
                Some(_) => self.meter.count() == self.posted && self.ping(end, begun)?,
                None => self.post(end)?,
            };
            end.round(busy);
            busy = false;
            while let Some(done) = end.reliable.poll_completion() {
                self.take(end, done)?;
                busy = true;
            }
            while let Some(event) = end.event() {
                match event {
                    Event::Down { session, reason, .. } if session == self.session => {
                        // The peer closes once it has our result, which may be before we know that it has.
                        if !self.has_all() {
                            return Err(lost(reason));
                        }
                        self.closed = true;
                    }
                    _ => {}
                }
            }
            rounds += if busy { 1 } else { 16 };
            if rounds >= LOOK {
                rounds = 0;
                if end.stopped() {
                    return Ok(false);
                }
                let messages = if self.sends { self.sent } else { self.meter.count() };
                report.progress.progress(&self.spec, messages, end.now.saturating_since(begun));
            }
        }
        Ok(true)
    }

    /// The client's next message of a latency test.
    fn ping<I: PortIo>(&mut self, end: &mut End<I>, begun: Instant) -> Result<bool, Error> {
        // Quota and time count from the beginning, the round trip from here.
        self.started = begun;
        let due = self.due(end.now);
        self.started = end.now;
        if due == 0 || self.over {
            return self.post(end);
        }
        let Some(buf) = self.free.pop() else { return Ok(false) };
        self.send(end, buf)
    }
}

/// Runs the tests as a client; returns whether a signal ended them.
pub(super) fn measure<I: PortIo>(
    end: &mut End<I>,
    server: Address,
    wait: Duration,
    specs: &[TestSpec],
    report: &mut Report<'_>,
) -> Result<bool, Error> {
    for (i, spec) in specs.iter().enumerate() {
        let session = connect(end, server, wait, report)?;
        end.listen(session)?;
        let hello = Message::Hello { version: VERSION, spec: spec.clone(), last: i + 1 == specs.len() };
        end.say(session, &hello)?;
        if let Some(refusal) = ready(end, session)? {
            return Err(Error::failed(refusal));
        }
        let mut run = Run::new(end, spec, session, true)?;
        let whole = run.run(end, report)?;
        let (client, own) = run.report(end);
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
            interrupted: !whole,
            link_lost: 0,
            reliable: None,
        };
        result.reliable = Some(figures_json(&result, &own, &theirs));
        report.row(&result)?;
        end.reliable.close(session);
        end.linger(Duration::from_millis(5));
        if !whole {
            return Ok(true);
        }
    }
    Ok(false)
}

fn connect<I: PortIo>(
    end: &mut End<I>,
    server: Address,
    wait: Duration,
    report: &mut Report<'_>,
) -> Result<SessionKey, Error> {
    let begun = end.now;
    let mut shown = None;
    loop {
        let session = end.reliable.connect(&mut end.worker, server, end.now).map_err(Error::failed)?;
        loop {
            end.round(false);
            match end.event() {
                Some(Event::Up { session: up, .. }) if up == session => return Ok(session),
                // It may not be there yet.
                Some(Event::Down { reason: DownReason::Refused(_), .. }) => break,
                Some(Event::Down { reason, .. }) => return Err(lost(reason)),
                _ => {}
            }
            let elapsed = end.now.saturating_since(begun);
            if end.stopped() {
                return Err(Error::interrupted());
            }
            if elapsed >= wait {
                let error = Error::failed(format_args!("{server} does not answer"));
                return Err(error.hint("start the same command with --service reliable there, without HOST"));
            }
            if shown != Some(elapsed.as_secs()) {
                shown = Some(elapsed.as_secs());
                report.progress.waiting(server.ip, elapsed);
            }
        }
    }
}

/// Waits for the server's word; its refusal, if it does not want to.
fn ready<I: PortIo>(end: &mut End<I>, session: SessionKey) -> Result<Option<String>, Error> {
    loop {
        end.round(false);
        while let Some(done) = end.reliable.poll_completion() {
            let c = done.completion;
            if c.session == session && (c.communicator, c.operation) == (CONTROL, Operation::Recv) {
                if c.status != Status::Success {
                    continue;
                }
                if let Message::Ready { refusal } = end.hear(done)? {
                    return Ok(refusal);
                }
            }
        }
        if let Some(Event::Down { session: down, reason, .. }) = end.event()
            && down == session
        {
            return Err(lost(reason));
        }
        if end.stopped() {
            return Err(Error::interrupted());
        }
    }
}

/// Serves one client; returns whether a signal ended it.
pub(super) fn serve<I: PortIo>(
    end: &mut End<I>,
    kind: TestKind,
    report: &mut Report<'_>,
) -> Result<bool, Error> {
    let addrs: Vec<String> = end.worker.addrs(0).iter().map(ToString::to_string).collect();
    let text = format!("waiting for a client at {} (reliable service)", addrs.join(", "));
    report.progress.show(&text, true);
    loop {
        let (session, spec, last) = hello(end)?;
        let refusal = kind.accepts(spec.kind).err().or_else(|| check_spec(&spec, u32::MAX as usize).err());
        let refused = refusal.is_some();
        let mut closed = false;
        let mut run = if refused { None } else { Some(Run::new(end, &spec, session, false)?) };
        end.say(session, &Message::Ready { refusal })?;
        if let Some(run) = &mut run {
            let whole = run.run(end, report)?;
            let (mut server, own) = run.own.take().unwrap_or_else(|| run.report(end));
            let (mut client, theirs) = run.result.take().unwrap_or_default();
            // Results may have been written before all was sent.
            server.sent = run.posted;
            client.sent = run.expected.unwrap_or(client.sent);
            let mut result = TestResult {
                spec,
                server,
                client,
                rtt: None,
                unanswered: 0,
                interrupted: !whole,
                link_lost: 0,
                reliable: None,
            };
            result.reliable = Some(figures_json(&result, &theirs, &own));
            report.row(&result)?;
            closed = run.closed;
            if !whole {
                return Ok(true);
            }
        }
        if !closed {
            down(end, session)?;
        }
        if last || refused {
            return Ok(false);
        }
    }
}

/// Waits for a client that wants something.
fn hello<I: PortIo>(end: &mut End<I>) -> Result<(SessionKey, TestSpec, bool), Error> {
    loop {
        end.round(false);
        while let Some(event) = end.event() {
            if let Event::Up { session, .. } = event {
                end.listen(session)?;
            }
        }
        while let Some(done) = end.reliable.poll_completion() {
            let c = done.completion;
            if c.status != Status::Success || (c.communicator, c.operation) != (CONTROL, Operation::Recv) {
                continue;
            }
            if let Message::Hello { version, spec, last } = end.hear(done)? {
                if version == VERSION {
                    return Ok((c.session, spec, last));
                }
                let refusal = format!("the server speaks version {VERSION} of the tests, not {version}");
                end.say(c.session, &Message::Ready { refusal: Some(refusal) })?;
            }
        }
        if end.stopped() {
            return Err(Error::interrupted());
        }
    }
}

/// Waits until the client has closed the session.
fn down<I: PortIo>(end: &mut End<I>, session: SessionKey) -> Result<(), Error> {
    loop {
        end.round(false);
        while end.reliable.poll_completion().is_some() {}
        while let Some(event) = end.event() {
            match event {
                Event::Down { session: down, .. } if down == session => return Ok(()),
                Event::Up { session, .. } => end.listen(session)?,
                Event::Down { .. } => {}
            }
        }
        if end.stopped() {
            return Err(Error::interrupted());
        }
    }
}
