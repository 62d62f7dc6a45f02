//! A session between two ends: hello, some tests, bye.

use super::drive::Drive;
use super::flow::{DATA_QKEY, Flow, Qps, Sending};
use super::pingpong::{Echo, Pinger, WARM_UP};
use crate::error::Error;
use crate::rendezvous::message::{Message, RxReport, TestKind, TestSpec, VERSION};
use crate::rendezvous::{CONTROL_QPN, Control, Peer};
use crate::report::numbers::Si;
use dataplane::ah::AhKey;
use dataplane::counters::Counters;
use dataplane::cq::Completion;
use dataplane::qp::{CqKey, QpConfig, QpError};
use hdrhistogram::Histogram;
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two repetitions of a question.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A test is over when its end was announced and nothing has come for so long.
const QUIET: Duration = Duration::from_millis(200);
/// The other side is gone when it has been silent for so long.
const SILENCE: Duration = Duration::from_secs(5);
/// Between two looks at the messages an end that runs does not take so long: it was stopped itself, as a suspended machine is.
const STALL: Duration = Duration::from_secs(1);
/// The client shows signs of life so often during a test.
const PING_EVERY: Duration = Duration::from_millis(500);
/// Rounds between two looks at the clock, the control messages and the signals.
const ROUNDS_PER_LOOK: u32 = 64;
/// Places of the completion queue for data; bounds the sum of the depths of a test.
pub const MAX_OUTSTANDING: usize = 65_536;

/// What a session tells while it runs.
pub trait Watch {
    /// The client still waits for the server.
    fn waiting(&mut self, _host: IpAddr, _elapsed: Duration) {}
    /// A test runs: messages so far on this side (received, or sent if it receives nothing).
    fn progress(&mut self, _spec: &TestSpec, _messages: u64, _elapsed: Duration) {}
}

/// Both ends' results of a test, as the client or the server knows them.
#[derive(Clone, Debug)]
pub struct TestResult {
    /// What was measured.
    pub spec: TestSpec,
    /// What the server received.
    pub server: RxReport,
    /// What the client received; nothing in a one-way throughput test.
    pub client: RxReport,
    /// Round trips in nanoseconds, of a latency test, on the client's side.
    pub rtt: Option<Histogram<u64>>,
    /// Messages of a latency test that did not come back.
    pub unanswered: u64,
    /// It was ended before its time by a signal.
    pub interrupted: bool,
}

/// One end, between or in tests.
pub struct Bench<D: Drive> {
    drive: D,
    control: Control,
    data_cq: CqKey,
    stop: Arc<AtomicBool>,
    qps: Option<Qps>,
    last_ping: Instant,
    last_heard: Instant,
    last_look: Instant,
    rounds: u32,
}

/// A session that the client has.
pub struct Client<D: Drive> {
    bench: Bench<D>,
    peer: Peer,
    id: u64,
    test: u32,
    connect_limit: Duration,
    met: bool,
}

impl<D: Drive> Bench<D> {
    /// An end over `drive`, whose completions come from `data_cq` and `control_cq`. `listen` takes the well-known control
    /// number.
    pub fn new(
        mut drive: D,
        data_cq: CqKey,
        control_cq: CqKey,
        listen: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Bench<D>, Error> {
        let control = Control::open(&mut drive, control_cq, listen)?;
        let now = drive.now();
        Ok(Bench {
            drive,
            control,
            data_cq,
            stop,
            qps: None,
            last_ping: now,
            last_heard: now,
            last_look: now,
            rounds: 0,
        })
    }

    /// The largest message that the port carries, in bytes.
    pub fn ib_mtu(&mut self) -> Result<usize, Error> {
        self.drive.with_worker(|w| w.ib_mtu(0)).map_err(Error::failed)
    }

    /// The addresses of the port, and its IB MTU.
    pub fn addresses(&mut self) -> Result<(Vec<IpAddr>, usize), Error> {
        self.drive.with_worker(|w| (w.addrs(0).to_vec(), w.ib_mtu(0))).map_err(Error::failed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The time in which this end itself did not run is no silence of the other.
    fn excuse_stall(&mut self, now: Instant) {
        let gap = now.saturating_since(self.last_look);
        self.last_look = now;
        if gap > STALL {
            tracing::debug!("did not run for {} ms", gap.as_millis());
            self.last_heard = (self.last_heard + gap).min(now);
        }
    }

    fn counters(&mut self) -> Result<Counters, Error> {
        self.drive.with_worker(|w| w.counters(0).cloned().unwrap_or_default()).map_err(Error::failed)
    }

    /// Replaces the data queue pairs.
    fn make_qps(&mut self, spec: &TestSpec) -> Result<Qps, Error> {
        self.drop_qps()?;
        let config = QpConfig {
            qkey: DATA_QKEY,
            send_depth: spec.tx_depth,
            recv_depth: spec.rx_depth,
            ..QpConfig::new(self.data_cq)
        };
        let count = usize::from(spec.qps);
        let made = self
            .drive
            .with_worker(move |w| {
                // Numbers are handed out in order; only where one is taken or they wrap does a run break.
                for _ in 0..4 {
                    let keys: Vec<_> =
                        (0..count).map(|_| w.create_qp(&config)).collect::<Result<_, QpError>>()?;
                    let numbers: Vec<u32> = keys.iter().filter_map(|&k| w.qpn(k)).map(Qpn::get).collect();
                    if numbers.windows(2).all(|n| n[0] + 1 == n[1])
                        && let Some(base) = numbers.first().and_then(|&n| Qpn::new(n))
                    {
                        return Ok(Some(Qps { keys, base }));
                    }
                    for key in keys {
                        w.destroy_qp(key)?;
                    }
                }
                Ok::<_, QpError>(None)
            })
            .map_err(Error::failed)?
            .map_err(Error::failed)?
            .ok_or_else(|| Error::failed("found no run of free queue pair numbers"))?;
        self.qps = Some(made.clone());
        Ok(made)
    }

    fn drop_qps(&mut self) -> Result<(), Error> {
        let Some(qps) = self.qps.take() else { return Ok(()) };
        self.drive
            .with_worker(move |w| {
                for key in qps.keys {
                    // It was made by us and is destroyed once: nothing to be done about a refusal.
                    let _ = w.destroy_qp(key);
                }
            })
            .map_err(Error::failed)
    }

    /// One round between tests.
    fn idle_round(&mut self) {
        let mut busy = false;
        while let Some(done) = self.drive.complete() {
            busy = true;
            // Completions of data queue pairs belong to a test that is over.
            let _: Option<Completion<_>> = self.control.take(&mut self.drive, done);
        }
        self.drive.turn(busy);
    }

    /// Sends what can be sent and takes what is there for a little while, so that a last word leaves.
    fn linger(&mut self) -> Result<(), Error> {
        let end = self.drive.now() + Duration::from_millis(20);
        while self.drive.now() < end {
            self.control.pump(&mut self.drive)?;
            self.idle_round();
        }
        Ok(())
    }

    /// True once in a while, and whenever there was nothing to do.
    fn time_to_look(&mut self, busy: bool) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        !busy || self.rounds.is_multiple_of(ROUNDS_PER_LOOK)
    }

    fn all_taken(&mut self, flow: &Flow) -> Result<bool, Error> {
        let keys = flow.qps.keys.clone();
        let outstanding =
            self.drive.with_worker(move |w| keys.iter().map(|&k| w.outstanding(k)).sum::<u32>());
        Ok(outstanding.map_err(Error::failed)? == 0 && flow.tx.as_ref().is_none_or(Sending::all_back))
    }
}

/// The drops since `before`, by reason.
fn drops_since(before: &Counters, after: &Counters) -> Vec<(String, u64)> {
    after
        .drops()
        .map(|(reason, n)| (reason.name().to_owned(), n - before.dropped(reason)))
        .filter(|&(_, n)| n > 0)
        .collect()
}

fn report_of(flow: &Flow, drops: Vec<(String, u64)>, sent: u64) -> RxReport {
    RxReport { drops, sent, ..flow.rx.report() }
}

impl<D: Drive> Client<D> {
    /// A client of the server at `host`. `id` names the session; `limit` is how long to wait for the server.
    pub fn new(bench: Bench<D>, host: IpAddr, id: u64, limit: Duration) -> Client<D> {
        let qpn = Qpn::new(CONTROL_QPN).unwrap_or(Qpn::MAX);
        let peer = Peer { ip: host, qpn };
        Client { bench, peer, id, test: 0, connect_limit: limit, met: false }
    }

    /// Runs one test.
    pub fn run(&mut self, spec: &TestSpec, watch: &mut impl Watch) -> Result<TestResult, Error> {
        self.test += 1;
        let qps = self.bench.make_qps(spec)?;
        let base = qps.base;
        let mut flow = Flow::open(&mut self.bench.drive, qps, spec)?;
        let before = self.bench.counters()?;
        let server_base = self.hello(spec, base, &mut flow, watch)?;
        self.met = true;
        let (ah, _) = self.bench.control.route(&mut self.bench.drive, self.peer.ip)?;
        let now = self.bench.drive.now();
        self.bench.last_heard = now;
        self.bench.last_look = now;
        self.bench.last_ping = now;
        let mut rtt = None;
        let (mut sent, mut unanswered) = (0, 0);
        match spec.kind {
            TestKind::Bw => {
                flow.tx = Some(Sending::new(spec, ah, server_base, now));
                self.stream(spec, &mut flow, watch)?;
                sent += flow.tx.as_ref().map_or(0, Sending::posted);
            }
            TestKind::Lat => {
                let mut pinger = Pinger::new(ah, server_base, spec.size as usize)?;
                self.ping_pong(spec, &mut flow, &mut pinger, watch)?;
                (sent, unanswered) = (sent + pinger.sent, pinger.lost);
                rtt = Some(pinger.rtt);
            }
        }
        let interrupted = self.bench.stopped();
        let server = self.conclude(spec, &mut flow, sent)?;
        let after = self.bench.counters()?;
        let client = report_of(&flow, drops_since(&before, &after), sent);
        self.bench.drop_qps()?;
        Ok(TestResult { spec: spec.clone(), server, client, rtt, unanswered, interrupted })
    }

    /// Says goodbye; the server ends its session.
    pub fn bye(mut self) -> Result<(), Error> {
        if self.met {
            self.bench.control.send(&mut self.bench.drive, self.peer, &Message::Bye { id: self.id })?;
            self.bench.linger()?;
        }
        Ok(())
    }

    /// Asks until the server says welcome; returns its first data queue pair.
    fn hello(
        &mut self,
        spec: &TestSpec,
        base: Qpn,
        flow: &mut Flow,
        watch: &mut impl Watch,
    ) -> Result<Qpn, Error> {
        let bench = &mut self.bench;
        let mtu = bench.drive.with_worker(|w| w.ib_mtu(0)).map_err(Error::failed)? as u32;
        let hello = Message::Hello {
            v: VERSION,
            id: self.id,
            test: self.test,
            qpn: base.get(),
            mtu,
            spec: spec.clone(),
        };
        let started = bench.drive.now();
        let mut asked: Option<Instant> = None;
        let mut told = started;
        loop {
            // Data may come right behind the welcome.
            flow.round(&mut bench.drive, &mut bench.control)?;
            let now = bench.drive.now();
            while let Some((_, message)) = bench.control.next_message() {
                match message {
                    Message::Welcome { id, test, qpn } if id == self.id && test == self.test => {
                        return Qpn::new(qpn).ok_or_else(|| Error::failed("the server named no queue pair"));
                    }
                    Message::Refuse { id, why } if id == self.id => {
                        return Err(Error::usage(format_args!("{} refused the test: {why}", self.peer.ip)));
                    }
                    Message::Bye { id } if id == self.id => return Err(server_left()),
                    _ => {}
                }
            }
            if bench.stopped() {
                return Err(Error::interrupted());
            }
            if asked.is_none_or(|t| now.saturating_since(t) >= ASK_AGAIN) {
                asked = Some(now);
                bench.control.send(&mut bench.drive, self.peer, &hello)?;
            } else {
                bench.control.pump(&mut bench.drive)?;
            }
            if now.saturating_since(told) >= Duration::from_secs(1) {
                told = now;
                watch.waiting(self.peer.ip, now.saturating_since(started));
            }
            if now.saturating_since(started) > self.connect_limit {
                return Err(no_answer(bench, self.peer.ip, self.connect_limit));
            }
        }
    }

    /// What must be looked after while a test runs.
    fn look(&mut self) -> Result<Option<RxReport>, Error> {
        let bench = &mut self.bench;
        let now = bench.drive.now();
        bench.excuse_stall(now);
        let mut report = None;
        while let Some((_, message)) = bench.control.next_message() {
            if message.session() != self.id {
                continue;
            }
            bench.last_heard = now;
            match message {
                Message::Bye { .. } => return Err(server_left()),
                Message::Report { test, rx, .. } if test == self.test => report = Some(rx),
                _ => {}
            }
        }
        if now.saturating_since(bench.last_ping) >= PING_EVERY {
            bench.last_ping = now;
            bench.control.send(&mut bench.drive, self.peer, &Message::Ping { id: self.id })?;
        } else {
            bench.control.pump(&mut bench.drive)?;
        }
        if now.saturating_since(bench.last_heard) > SILENCE {
            return Err(Error::failed(format_args!(
                "{} has not answered for {} seconds",
                self.peer.ip,
                SILENCE.as_secs()
            ))
            .hint("the server was killed, or the link between the two is down"));
        }
        Ok(report)
    }

    fn stream(&mut self, spec: &TestSpec, flow: &mut Flow, watch: &mut impl Watch) -> Result<(), Error> {
        let started = self.bench.drive.now();
        let mut told = started;
        loop {
            let busy = flow.round(&mut self.bench.drive, &mut self.bench.control)?;
            if !self.bench.time_to_look(busy) {
                continue;
            }
            self.look()?;
            let now = self.bench.drive.now();
            if now.saturating_since(told) >= Duration::from_millis(200) {
                told = now;
                let sent = flow.tx.as_ref().map_or(0, Sending::posted);
                watch.progress(spec, sent, now.saturating_since(started));
            }
            if self.bench.stopped()
                && let Some(tx) = &mut flow.tx
            {
                tx.end();
            }
            if flow.tx.as_ref().is_none_or(Sending::is_done) && self.bench.all_taken(flow)? {
                return Ok(());
            }
        }
    }

    fn ping_pong(
        &mut self,
        spec: &TestSpec,
        flow: &mut Flow,
        pinger: &mut Pinger,
        watch: &mut impl Watch,
    ) -> Result<(), Error> {
        let started = self.bench.drive.now();
        let until = spec.duration_ms.map(|ms| started + Duration::from_millis(ms));
        let iters = spec.iters.map(|n| n.saturating_add(WARM_UP));
        let mut told = started;
        loop {
            pinger.ping(&mut self.bench.drive, flow, &mut self.bench.control)?;
            let now = self.bench.drive.now();
            if now.saturating_since(told) >= Duration::from_millis(200) {
                told = now;
                watch.progress(spec, pinger.sent, now.saturating_since(started));
            }
            if self.bench.time_to_look(true) || pinger.lost > 0 {
                self.look()?;
            }
            let enough = until.is_some_and(|u| now >= u) && pinger.sent > WARM_UP
                || iters.is_some_and(|n| pinger.sent >= n);
            if enough || self.bench.stopped() {
                return Ok(());
            }
        }
    }

    /// Announces the end and waits for the server's report, and for what the server still sends.
    fn conclude(&mut self, spec: &TestSpec, flow: &mut Flow, sent: u64) -> Result<RxReport, Error> {
        flow.tx = None;
        let done = Message::Done { id: self.id, test: self.test, sent };
        let mut asked: Option<Instant> = None;
        let mut report: Option<RxReport> = None;
        loop {
            let busy = flow.round(&mut self.bench.drive, &mut self.bench.control)?;
            if !self.bench.time_to_look(busy) {
                continue;
            }
            if let Some(rx) = self.look()? {
                report = Some(rx);
            }
            let now = self.bench.drive.now();
            let quiet = now.saturating_since(flow.rx.last()) >= QUIET;
            if let Some(rx) = &report
                && (!spec.bidirectional || flow.rx.count() >= rx.sent || quiet)
            {
                return Ok(rx.clone());
            }
            if report.is_none() && asked.is_none_or(|t| now.saturating_since(t) >= ASK_AGAIN) {
                asked = Some(now);
                self.bench.control.send(&mut self.bench.drive, self.peer, &done)?;
            }
        }
    }
}

fn server_left() -> Error {
    Error::failed("the server ended the session").hint("it was interrupted on its side; start it again")
}

fn no_answer<D: Drive>(bench: &mut Bench<D>, host: IpAddr, limit: Duration) -> Error {
    let resolved = bench.control.route(&mut bench.drive, host).is_ok_and(|(_, ready)| ready);
    let link = bench.drive.with_worker(|w| w.link_up(0)).unwrap_or(false);
    let why = match (link, resolved) {
        (false, _) => "the link of the port is down: nothing is connected to its other end",
        (true, false) => {
            "its address was asked for (ARP or neighbour discovery) without an answer: is the server started, with that \
             --ip, on the same network?"
        }
        (true, true) => {
            "its address is known, but no server answers there: start the same command there, without HOST"
        }
    };
    Error::failed(format_args!("{host} did not answer within {} s", limit.as_secs_f64())).hint(why)
}

/// What the server does with the tests of a session.
pub trait Serve: Watch {
    /// Whether to accept; the refusal is for the client's user.
    fn accept(&mut self, spec: &TestSpec, mtu: usize) -> Result<(), String>;
    /// A test begins.
    fn began(&mut self, peer: IpAddr, spec: &TestSpec);
    /// A test ended.
    fn ended(&mut self, result: TestResult) -> Result<(), Error>;
}

/// The test that a server runs, and what it has to say about it again if asked.
struct Serving {
    peer: Peer,
    id: u64,
    test: u32,
    spec: TestSpec,
    client_base: Qpn,
    welcome: Message,
}

impl<D: Drive> Bench<D> {
    /// Waits for a client and serves its session; returns when the client has said goodbye, or has gone after a test.
    pub fn serve(&mut self, server: &mut impl Serve) -> Result<(), Error> {
        let mut last: Option<(Serving, Message)> = None;
        self.last_heard = self.drive.now();
        loop {
            self.idle_round();
            self.control.pump(&mut self.drive)?;
            if self.stopped() {
                if let Some((serving, _)) = &last {
                    let bye = Message::Bye { id: serving.id };
                    self.control.send(&mut self.drive, serving.peer, &bye)?;
                    self.linger()?;
                }
                return Err(Error::interrupted());
            }
            let now = self.drive.now();
            self.excuse_stall(now);
            if last.is_some() && now.saturating_since(self.last_heard) > SILENCE {
                // Its results are there; that it went without a word changes nothing about them.
                return Ok(());
            }
            while let Some((peer, message)) = self.control.next_message() {
                let current = last.as_ref().filter(|(s, _)| s.id == message.session() && s.peer == peer);
                match message {
                    Message::Hello { v, id, test, qpn, mtu, spec } => {
                        if last.is_some() && current.is_none() {
                            self.refuse(peer, id, "another client is being served: try again later")?;
                            continue;
                        }
                        if current.is_some_and(|(s, _)| test <= s.test) {
                            continue;
                        }
                        let Some(mut serving) = self.welcome(peer, v, id, test, qpn, mtu, spec, server)?
                        else {
                            continue;
                        };
                        let report = self.serve_test(&mut serving, server)?;
                        self.last_heard = self.drive.now();
                        last = Some((serving, report));
                        break;
                    }
                    Message::Done { test, .. } => {
                        if let Some((s, report)) = current.filter(|(s, _)| s.test == test) {
                            let (peer, report) = (s.peer, report.clone());
                            self.last_heard = self.drive.now();
                            self.control.send(&mut self.drive, peer, &report)?;
                        }
                    }
                    Message::Ping { id } if current.is_some() => {
                        self.last_heard = self.drive.now();
                        self.control.send(&mut self.drive, peer, &Message::Pong { id, received: 0 })?;
                    }
                    Message::Bye { .. } if current.is_some() => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn refuse(&mut self, peer: Peer, id: u64, why: &str) -> Result<(), Error> {
        self.control.send(&mut self.drive, peer, &Message::Refuse { id, why: why.to_owned() })
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a Hello")]
    fn welcome(
        &mut self,
        peer: Peer,
        v: u16,
        id: u64,
        test: u32,
        qpn: u32,
        client_mtu: u32,
        spec: TestSpec,
        server: &mut impl Serve,
    ) -> Result<Option<Serving>, Error> {
        let mtu = self.drive.with_worker(|w| w.ib_mtu(0)).map_err(Error::failed)?;
        let checked = if v != VERSION {
            Err(format!("the server speaks version {VERSION}, the client {v}: use the same release"))
        } else {
            check_spec(&spec, mtu.min(client_mtu as usize)).and_then(|()| server.accept(&spec, mtu))
        };
        let client_base = Qpn::new(qpn).filter(|q| q.get() + u32::from(spec.qps) <= Qpn::MAX.get());
        let client_base = match (checked, client_base) {
            (Ok(()), Some(base)) => base,
            (Ok(()), None) => {
                self.refuse(peer, id, "the client's queue pair numbers are out of range")?;
                return Ok(None);
            }
            (Err(why), _) => {
                tracing::warn!("refused a test of {}: {why}", peer.ip);
                self.refuse(peer, id, &why)?;
                return Ok(None);
            }
        };
        let qps = self.make_qps(&spec)?;
        let welcome = Message::Welcome { id, test, qpn: qps.base.get() };
        Ok(Some(Serving { peer, id, test, spec, client_base, welcome }))
    }

    /// Runs the server's end of a test; returns the report it gave.
    fn serve_test(&mut self, s: &mut Serving, server: &mut impl Serve) -> Result<Message, Error> {
        let qps = self.qps.clone().ok_or_else(|| Error::failed("no queue pairs"))?;
        let mut flow = Flow::open(&mut self.drive, qps, &s.spec)?;
        server.began(s.peer.ip, &s.spec);
        let ah = self.reach(s.peer.ip)?;
        let before = self.counters()?;
        let started = self.drive.now();
        self.last_heard = started;
        self.last_look = started;
        self.control.send(&mut self.drive, s.peer, &s.welcome)?;
        let mut echo = None;
        match s.spec.kind {
            TestKind::Lat => echo = Some(Echo::new(ah, s.client_base, s.spec.size as usize)),
            TestKind::Bw if s.spec.bidirectional => {
                flow.tx = Some(Sending::new(&s.spec, ah, s.client_base, started));
            }
            TestKind::Bw => {}
        }
        let mut announced: Option<u64> = None;
        let mut told = started;
        loop {
            let busy = match &mut echo {
                Some(echo) => echo.round(&mut self.drive, &mut flow, &mut self.control)?,
                None => flow.round(&mut self.drive, &mut self.control)?,
            };
            if !self.time_to_look(busy) {
                continue;
            }
            let now = self.drive.now();
            self.hear(s, &flow, now, &mut announced)?;
            if now.saturating_since(told) >= Duration::from_millis(200) {
                told = now;
                server.progress(&s.spec, flow.rx.count(), now.saturating_since(started));
            }
            if let Some(sent) = announced
                && self.finished(&mut flow, sent, now)?
            {
                break;
            }
        }
        let after = self.counters()?;
        let sent = flow.tx.as_ref().map_or(0, Sending::posted);
        let rx = report_of(&flow, drops_since(&before, &after), sent);
        let report = Message::Report { id: s.id, test: s.test, rx: rx.clone() };
        self.control.send(&mut self.drive, s.peer, &report)?;
        let client = RxReport { sent: announced.unwrap_or(0), ..RxReport::default() };
        let spec = s.spec.clone();
        server.ended(TestResult {
            spec,
            server: rx,
            client,
            rtt: None,
            unanswered: 0,
            interrupted: false,
        })?;
        Ok(report)
    }

    /// The address handle for the client; its neighbour entry may have to be asked for first.
    fn reach(&mut self, ip: IpAddr) -> Result<AhKey, Error> {
        let started = self.drive.now();
        loop {
            let (ah, ready) = self.control.route(&mut self.drive, ip)?;
            if ready {
                return Ok(ah);
            }
            if self.drive.now().saturating_since(started) > SILENCE {
                return Err(Error::failed(format_args!(
                    "{ip} reached us, but does not answer when asked for its MAC address"
                )));
            }
            self.idle_round();
        }
    }

    /// The server's control messages while a test runs.
    fn hear(
        &mut self,
        s: &Serving,
        flow: &Flow,
        now: Instant,
        announced: &mut Option<u64>,
    ) -> Result<(), Error> {
        self.excuse_stall(now);
        while let Some((peer, message)) = self.control.next_message() {
            if peer != s.peer || message.session() != s.id {
                if let Message::Hello { id, .. } = message {
                    self.refuse(peer, id, "another client is being served: try again later")?;
                }
                continue;
            }
            self.last_heard = now;
            match message {
                // The welcome was lost.
                Message::Hello { test, .. } if test == s.test => {
                    self.control.send(&mut self.drive, peer, &s.welcome)?;
                }
                Message::Done { test, sent, .. } if test == s.test => *announced = Some(sent),
                Message::Ping { id } => {
                    let pong = Message::Pong { id, received: flow.rx.count() };
                    self.control.send(&mut self.drive, peer, &pong)?;
                }
                Message::Bye { .. } => {
                    return Err(Error::failed(format_args!(
                        "{} ended the session during the test, after {} messages",
                        peer.ip,
                        flow.rx.count()
                    )));
                }
                _ => {}
            }
        }
        self.control.pump(&mut self.drive)?;
        if self.stopped() {
            self.control.send(&mut self.drive, s.peer, &Message::Bye { id: s.id })?;
            self.linger()?;
            return Err(Error::interrupted());
        }
        let heard = self.last_heard.max(flow.rx.last());
        if now.saturating_since(heard) > SILENCE {
            return Err(Error::failed(format_args!(
                "{} has been silent for {} seconds, after {} messages",
                s.peer.ip,
                SILENCE.as_secs(),
                flow.rx.count()
            ))
            .hint("the client was killed, or the link between the two is down"));
        }
        Ok(())
    }

    fn finished(&mut self, flow: &mut Flow, announced: u64, now: Instant) -> Result<bool, Error> {
        let received_all = flow.rx.count() >= announced;
        let quiet = now.saturating_since(flow.rx.last()) >= QUIET;
        if !(received_all || quiet) {
            return Ok(false);
        }
        Ok(flow.tx.as_ref().is_none_or(Sending::is_done) && self.all_taken(flow)?)
    }
}

/// Whether a test can be run over `mtu` bytes at all.
pub fn check_spec(spec: &TestSpec, mtu: usize) -> Result<(), String> {
    if spec.size as usize > mtu {
        return Err(format!(
            "a raw UD message is one packet: {} bytes do not fit the IB MTU of {mtu}; use -s {mtu} or less",
            spec.size
        ));
    }
    if spec.qps == 0 || spec.tx_depth == 0 || spec.rx_depth == 0 {
        return Err("queue pairs and depths must be at least 1".to_owned());
    }
    let outstanding = (u64::from(spec.tx_depth) + u64::from(spec.rx_depth)) * u64::from(spec.qps);
    if outstanding > MAX_OUTSTANDING as u64 {
        return Err(format!(
            "{} queue pairs of depth {} + {} are {} requests; at most {MAX_OUTSTANDING} are possible: lower -q, -t or -r",
            spec.qps,
            spec.tx_depth,
            spec.rx_depth,
            Si(outstanding as f64)
        ));
    }
    if spec.iters.is_none() == spec.duration_ms.is_none() {
        return Err("a test runs for a number of messages or for a duration".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
