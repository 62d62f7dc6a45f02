//! The server's side: one client at a time, its tests one after the other.

use super::{Bench, QUIET, SILENCE, Side, TestResult, Watch, check_spec, drops_since};
use crate::error::{Error, Exit};
use crate::rendezvous::Peer;
use crate::rendezvous::message::{Message, RxReport, TestKind, TestSpec, VERSION};
use crate::traffic::drive::Drive;
use crate::traffic::flow::{Flow, Sending};
use crate::traffic::pingpong::Echo;
use dataplane::ah::AhKey;
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::net::IpAddr;
use std::time::Duration;

/// What the server does with the tests of a session.
pub trait Serve: Watch {
    /// Whether to accept; the refusal is for the client's user.
    fn accept(&mut self, spec: &TestSpec, mtu: usize) -> Result<(), String>;
    /// A test begins.
    fn began(&mut self, peer: IpAddr, spec: &TestSpec);
    /// A test ended, or failed: then the result has what this side measured until then.
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
    /// It has said nothing since it asked for the test.
    mute: bool,
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
            self.check_port()?;
            let now = self.drive.now();
            self.excuse_stall(now);
            if last.is_some() && now.saturating_since(self.last_heard) > SILENCE {
                // Its results are there; that it went without a word changes nothing about them.
                return Ok(());
            }
            while let Some((peer, message)) = self.control.next_message() {
                let current = last.as_ref().filter(|(s, _)| s.id == message.session() && s.peer == peer);
                match message {
                    Message::Hello { v, id, test, qpn, mtu, workers, spec } => {
                        if last.is_some() && current.is_none() {
                            self.refuse(peer, id, "another client is being served: try again later");
                            continue;
                        }
                        if current.is_some_and(|(s, _)| test <= s.test) {
                            continue;
                        }
                        let Some(mut serving) =
                            self.welcome(peer, v, id, test, qpn, mtu, workers, spec, server)?
                        else {
                            continue;
                        };
                        let first = last.is_none();
                        let report = self.serve_test(&mut serving, first, server)?;
                        self.last_heard = self.drive.now();
                        if let Some(report) = report {
                            last = Some((serving, report));
                        }
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

    /// Says no. Anybody can ask in the name of anybody, whom there may be no way to: that ends no server.
    fn refuse(&mut self, peer: Peer, id: u64, why: &str) {
        if let Err(e) = self.control.send(&mut self.drive, peer, &Message::Refuse { id, why: why.to_owned() })
        {
            tracing::debug!("{} was not refused: {e}", peer.ip);
        }
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
        workers: u16,
        spec: TestSpec,
        server: &mut impl Serve,
    ) -> Result<Option<Serving>, Error> {
        let mtu = self.drive.with_worker(|w| w.ib_mtu(0)).map_err(Error::failed)?;
        let checked = if v != VERSION {
            Err(format!("the server speaks version {VERSION}, the client {v}: use the same release"))
        } else if workers != self.lane.workers() {
            let ours = self.lane.workers();
            Err(format!("the server has --workers {ours}, the client {workers}: use the same on both sides"))
        } else {
            check_spec(&spec, mtu.min(client_mtu as usize)).and_then(|()| server.accept(&spec, mtu))
        };
        let client_base = Qpn::new(qpn).filter(|q| q.get() + u32::from(spec.qps) <= Qpn::MAX.get());
        let client_base = match (checked, client_base) {
            (Ok(()), Some(base)) => base,
            (Ok(()), None) => {
                self.refuse(peer, id, "the client's queue pair numbers are out of range");
                return Ok(None);
            }
            (Err(why), _) => {
                tracing::warn!("refused a test of {}: {why}", peer.ip);
                self.refuse(peer, id, &why);
                return Ok(None);
            }
        };
        let qps = self.make_qps(&spec)?;
        let welcome = Message::Welcome { id, test, qpn: qps.base.get() };
        Ok(Some(Serving { peer, id, test, spec, client_base, welcome, mute: true }))
    }

    /// Runs the server's end of a test; returns the report it gave. None if it is a client's first, who asked for it and then said
    /// nothing more: anybody can send one packet in anybody's name, and whoever waits for a client goes on waiting.
    fn serve_test(
        &mut self,
        s: &mut Serving,
        first: bool,
        server: &mut impl Serve,
    ) -> Result<Option<Message>, Error> {
        let qps = self.qps.clone().ok_or_else(|| Error::failed("no queue pairs"))?;
        let mut flow = Flow::open(&mut self.drive, qps, &s.spec)?;
        server.began(s.peer.ip, &s.spec);
        let Some(ah) = self.way_to(s.peer.ip, first)? else { return Ok(None) };
        let before = self.counters()?;
        let lost = self.port.lost();
        let started = self.drive.now();
        self.last_heard = started;
        self.last_look = started;
        self.control.send(&mut self.drive, s.peer, &s.welcome)?;
        let mut echo = match s.spec.kind {
            TestKind::Lat => Some(Echo::new(ah, s.client_base, s.spec.size as usize)),
            TestKind::Bw => None,
        };
        let sends = s.spec.kind == TestKind::Bw && s.spec.bidirectional;
        let mut announced: Option<u64> = None;
        let mut told = started;
        let failure = loop {
            let busy = match &mut echo {
                Some(echo) => echo.round(&mut self.drive, &mut flow, &mut self.control)?,
                None => flow.round(&mut self.drive, &mut self.control)?,
            };
            if !self.time_to_look(busy) {
                continue;
            }
            let now = self.drive.now();
            if let Err(e) = self.hear(s, &flow, now, &mut announced) {
                break Some(e);
            }
            // Only to who has said more than the one packet that anybody can send in anybody's name.
            if sends && flow.tx.is_none() && (!s.mute || flow.rx.count() > 0) {
                flow.tx = Some(Sending::new(&s.spec, ah, s.client_base, now));
            }
            if now.saturating_since(told) >= Duration::from_millis(200) {
                told = now;
                server.progress(&s.spec, flow.rx.count(), now.saturating_since(started));
            }
            if let Some(sent) = announced
                && self.finished(&mut flow, sent, now)?
            {
                break None;
            }
        };
        let mute = first && s.mute && flow.rx.count() == 0;
        if failure.is_some() && mute && !self.stopped() && self.check_port().is_ok() {
            tracing::warn!(
                "{} asked for a test and said nothing more: waiting for another client",
                s.peer.ip
            );
            return Ok(None);
        }
        let after = self.counters()?;
        let sent = match &echo {
            Some(echo) => echo.answered,
            None => flow.tx.as_ref().map_or(0, Sending::posted),
        };
        let rx = self.report_of(&flow, drops_since(&before, &after), sent);
        let report = Message::Report { id: s.id, test: s.test, rx: rx.clone() };
        if failure.is_none() {
            self.control.send(&mut self.drive, s.peer, &report)?;
        }
        let interrupted = failure.as_ref().is_some_and(|e| e.exit == Exit::Interrupted);
        let client = RxReport { sent: announced.unwrap_or(0), ..RxReport::default() };
        let spec = s.spec.clone();
        server.ended(TestResult {
            spec,
            server: rx,
            client,
            rtt: None,
            unanswered: 0,
            untold: Some(Side::Client),
            unsaid: announced.is_none().then_some(Side::Client),
            interrupted,
            failure: failure.clone().filter(|_| !interrupted),
            link_lost: self.port.lost() - lost,
            reliable: None,
        })?;
        failure.map_or(Ok(Some(report)), Err)
    }

    /// The way to a client. None if there is none, or nobody answers there, and it is a client's `first` test, which anybody can ask for in anybody's
    /// name.
    fn way_to(&mut self, ip: IpAddr, first: bool) -> Result<Option<AhKey>, Error> {
        match self.reach(ip) {
            Ok(Some(ah)) => return Ok(Some(ah)),
            Err(e) if first => {
                tracing::warn!("{ip} asked for a test, but there is no way to it: {}", e.message());
            }
            Ok(None) if first => {
                tracing::warn!("{ip} asked for a test, but does not answer when asked for its MAC address");
            }
            Err(e) => return Err(e),
            Ok(None) => {
                return Err(Error::failed(format_args!(
                    "{ip} reached us, but does not answer when asked for its MAC address"
                )));
            }
        }
        Ok(None)
    }

    /// The address handle for the client; its neighbour entry may have to be asked for first. None if nobody answers.
    fn reach(&mut self, ip: IpAddr) -> Result<Option<AhKey>, Error> {
        let started = self.drive.now();
        loop {
            let (ah, ready) = self.control.hold(&mut self.drive, ip)?;
            if ready {
                return Ok(Some(ah));
            }
            if self.drive.now().saturating_since(started) > SILENCE {
                return Ok(None);
            }
            self.idle_round();
        }
    }

    /// The server's control messages while a test runs.
    fn hear(
        &mut self,
        s: &mut Serving,
        flow: &Flow,
        now: Instant,
        announced: &mut Option<u64>,
    ) -> Result<(), Error> {
        self.excuse_stall(now);
        self.check_port()?;
        while let Some((peer, message)) = self.control.next_message() {
            if peer != s.peer || message.session() != s.id {
                if let Message::Hello { id, .. } = message {
                    self.refuse(peer, id, "another client is being served: try again later");
                }
                continue;
            }
            self.last_heard = now;
            s.mute &= matches!(message, Message::Hello { .. });
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
