//! The client's side: asks for tests, runs its end of them and collects the results of both.

use super::{ASK_AGAIN, Bench, PING_EVERY, QUIET, SILENCE, Side, TestResult, Watch, drops_since};
use crate::error::Error;
use crate::rendezvous::Peer;
use crate::rendezvous::message::{Message, RxReport, TestKind, TestSpec, VERSION};
use crate::traffic::drive::Drive;
use crate::traffic::flow::{Flow, Sending};
use crate::traffic::pingpong::{Pinger, WARM_UP, is_warm};
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::net::IpAddr;
use std::time::Duration;

/// A session that the client has.
pub struct Client<D: Drive> {
    bench: Bench<D>,
    peer: Peer,
    pub(super) id: u64,
    pub(super) test: u32,
    connect_limit: Duration,
    met: bool,
}

impl<D: Drive> Client<D> {
    /// A client of the server at `host`. `id` names the session; `limit` is how long to wait for the server.
    pub fn new(bench: Bench<D>, host: IpAddr, id: u64, limit: Duration) -> Client<D> {
        let peer = Peer { ip: host, qpn: bench.lane.control() };
        Client { bench, peer, id, test: 0, connect_limit: limit, met: false }
    }

    /// Runs one test. Of one that failed on its way the result has what this side measured until then.
    ///
    /// # Errors
    /// Those of a test that did not begin.
    pub fn run(&mut self, spec: &TestSpec, watch: &mut impl Watch) -> Result<TestResult, Error> {
        self.test += 1;
        let qps = self.bench.make_qps(spec)?;
        let base = qps.base;
        let mut flow = Flow::open(&mut self.bench.drive, qps, spec)?;
        let before = self.bench.counters()?;
        let lost = self.bench.port.lost();
        // Of several ends the first asks alone: if the server refuses, it refuses all.
        let first = self.bench.lane.is_first();
        if !first {
            self.bench.meet(Some(&mut flow))?;
        }
        let server_base = self.hello(spec, base, &mut flow, watch)?;
        self.met = true;
        if first {
            self.bench.meet(Some(&mut flow))?;
        }
        self.bench.meet(Some(&mut flow))?;
        let (ah, _) = self.bench.control.hold(&mut self.bench.drive, self.peer.ip)?;
        let now = self.bench.drive.now();
        self.bench.last_heard = now;
        self.bench.last_look = now;
        self.bench.last_ping = now;
        let mut rtt = None;
        let (mut sent, mut unanswered) = (0, 0);
        let mut ended = match spec.kind {
            TestKind::Bw => {
                flow.tx = Some(Sending::new(spec, ah, server_base, now));
                let ended = self.stream(spec, &mut flow, watch);
                sent += flow.tx.as_ref().map_or(0, Sending::posted);
                ended
            }
            TestKind::Lat => {
                let mut pinger = Pinger::new(ah, server_base, spec.size as usize)?;
                let ended = self.ping_pong(spec, &mut flow, &mut pinger, watch);
                (sent, unanswered) = (sent + pinger.sent, pinger.lost);
                rtt = Some(pinger.rtt);
                ended
            }
        };
        let interrupted = self.bench.stopped();
        let mut server = None;
        if ended.is_ok() {
            match self.conclude(spec, &mut flow, sent) {
                Ok(report) => server = Some(report),
                // A signal to the terminal is for both sides.
                Err(_) if interrupted => {}
                Err(e) => ended = Err(e),
            }
        }
        let after = self.bench.counters()?;
        let client = self.bench.report_of(&flow, drops_since(&before, &after), sent);
        self.bench.drop_qps()?;
        let link_lost = self.bench.port.lost() - lost;
        let silent = server.is_none().then_some(Side::Server);
        Ok(TestResult {
            spec: spec.clone(),
            server: server.unwrap_or_default(),
            client,
            rtt,
            unanswered,
            untold: silent,
            unsaid: silent,
            interrupted,
            failure: ended.err(),
            link_lost,
            reliable: None,
        })
    }

    /// Says goodbye; the server ends its session.
    pub fn bye(&mut self) -> Result<(), Error> {
        if self.met {
            self.bench.control.send(&mut self.bench.drive, self.peer, &Message::Bye { id: self.id })?;
            self.bench.linger()?;
        }
        Ok(())
    }

    /// The end, for what comes after the session.
    pub fn into_bench(self) -> Bench<D> {
        self.bench
    }

    /// The largest message that the port carries, in bytes.
    pub fn ib_mtu(&mut self) -> Result<usize, Error> {
        self.bench.ib_mtu()
    }

    /// Waits for the other ends of this side.
    pub fn meet(&mut self) -> Result<(), Error> {
        self.bench.meet(None)
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
            workers: bench.lane.workers(),
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
            bench.check_port()?;
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
        bench.check_port()?;
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
        let (mut told, mut now) = (started, started);
        loop {
            let counts = is_warm(spec, pinger.sent, now.saturating_since(started));
            pinger.ping(&mut self.bench.drive, flow, &mut self.bench.control, counts)?;
            now = self.bench.drive.now();
            if now.saturating_since(told) >= Duration::from_millis(200) {
                told = now;
                watch.progress(spec, pinger.sent, now.saturating_since(started));
            }
            if self.bench.time_to_look(true) || pinger.lost > 0 {
                self.look()?;
            }
            let enough = counts && until.is_some_and(|u| now >= u) || iters.is_some_and(|n| pinger.sent >= n);
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
        (false, _) => {
            "the link of the port is down: nothing is connected to its other end. Over net_memif, that is also so where the other \
             side was started with another --mtu, or has a client already"
        }
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
