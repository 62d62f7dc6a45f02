//! A session between two ends: hello, some tests, bye.

mod client;
mod lane;
mod server;

pub use client::Client;
pub use lane::{Ending, Lane};
pub use server::Serve;

use super::drive::Drive;
use super::flow::{DATA_QKEY, Flow, Qps, Sending};
use crate::error::Error;
use crate::rendezvous::Control;
use crate::rendezvous::message::{RxReport, TestSpec};
use crate::report::numbers::Si;
use dataplane::buffer::Buffer;
use dataplane::counters::{Counters, DropReason};
use dataplane::cq::Completion;
use dataplane::io::{PortIo, PortState, PortWatch};
use dataplane::qp::{CqKey, QpConfig, QpError};
use dataplane::worker::Worker;
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
/// The same when nothing happens: then a round takes up to five milliseconds (see `IdlePolicy`), which must not keep a signal
/// or a reply waiting.
const IDLE_ROUNDS_PER_LOOK: u32 = 8;
/// Places of the completion queue for data; bounds the sum of the depths of a test.
pub const MAX_OUTSTANDING: usize = 65_536;

/// What a session tells while it runs.
pub trait Watch {
    /// The client still waits for the server.
    fn waiting(&mut self, _host: IpAddr, _elapsed: Duration) {}
    /// A test runs: messages so far on this side (received, or sent if it receives nothing).
    fn progress(&mut self, _spec: &TestSpec, _messages: u64, _elapsed: Duration) {}
}

/// An end of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was started with a host.
    Client,
    /// The one that waited for it.
    Server,
}

impl TestResult {
    /// What `side` received, as far as that is known.
    pub fn known(&self, side: Side) -> Option<&RxReport> {
        let report = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        (self.untold != Some(side)).then_some(report)
    }

    /// Messages that `side` sent, as far as that is known.
    pub fn sent(&self, side: Side) -> Option<u64> {
        let report = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        (self.unsaid != Some(side)).then_some(report.sent)
    }

    /// Itself, unless the test failed.
    ///
    /// # Errors
    /// Why it did.
    pub fn whole(self) -> Result<TestResult, Error> {
        match self.failure {
            Some(e) => Err(e),
            None => Ok(self),
        }
    }
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
    /// The side that did not say what it received: all but `sent` of its report is unknown.
    pub untold: Option<Side>,
    /// The side that did not say how many messages it sent.
    pub unsaid: Option<Side>,
    /// It was ended before its time by a signal.
    pub interrupted: bool,
    /// Why it ended before its time, if that was no signal here. The rest is what was measured until then.
    pub failure: Option<Error>,
    /// Times that this side's link went down meanwhile.
    pub link_lost: u64,
    /// What the reliable service did, if the test was over it.
    pub reliable: Option<serde_json::Value>,
}

/// One end, between or in tests.
pub struct Bench<D: Drive> {
    drive: D,
    control: Control,
    data_cq: CqKey,
    stop: Arc<AtomicBool>,
    port: PortWatch,
    qps: Option<Qps>,
    last_ping: Instant,
    last_heard: Instant,
    last_look: Instant,
    rounds: u32,
    lane: Lane,
}

impl<D: Drive> Bench<D> {
    /// An end over `drive`, whose completions come from `data_cq` and `control_cq`. `listen` takes the well-known control
    /// number.
    pub fn new(
        drive: D,
        data_cq: CqKey,
        control_cq: CqKey,
        listen: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Bench<D>, Error> {
        Bench::in_lane(drive, data_cq, control_cq, listen, stop, Lane::alone())
    }

    /// The same for one of several ends that run side by side.
    pub fn in_lane(
        mut drive: D,
        data_cq: CqKey,
        control_cq: CqKey,
        listen: bool,
        stop: Arc<AtomicBool>,
        lane: Lane,
    ) -> Result<Bench<D>, Error> {
        let control = Control::open(&mut drive, control_cq, listen.then(|| lane.control()))?;
        let port = drive.with_worker(|w| w.watch(0)).map_err(Error::failed)?;
        let port = port.ok_or_else(|| Error::failed("the worker has no port"))?;
        let now = drive.now();
        Ok(Bench {
            drive,
            control,
            data_cq,
            stop,
            port,
            qps: None,
            last_ping: now,
            last_heard: now,
            last_look: now,
            rounds: 0,
            lane,
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

    /// An error if the port is gone for good.
    fn check_port(&self) -> Result<(), Error> {
        match self.port.state() {
            PortState::Gone => Err(Error::port_gone()),
            PortState::Up | PortState::Down => Ok(()),
        }
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

    fn counters(&mut self) -> Result<Counted, Error> {
        self.drive.with_worker(Counted::of).map_err(Error::failed)
    }

    /// What this end saw of a test.
    fn report_of(&self, flow: &Flow, drops: Vec<(String, u64)>, sent: u64) -> RxReport {
        let series = (self.lane.workers() > 1).then(|| flow.rx.series());
        RxReport { drops, sent, series, ..flow.rx.report() }
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

    /// True once in a while, and more often when there is nothing to do, but not every time: who waits for the next message
    /// should find it at once.
    fn time_to_look(&mut self, busy: bool) -> bool {
        self.rounds += if busy { 1 } else { ROUNDS_PER_LOOK / IDLE_ROUNDS_PER_LOOK };
        let look = self.rounds >= ROUNDS_PER_LOOK;
        if look {
            self.rounds = 0;
        }
        look
    }

    fn all_taken(&mut self, flow: &Flow) -> Result<bool, Error> {
        let keys = flow.qps.keys.clone();
        let outstanding =
            self.drive.with_worker(move |w| keys.iter().map(|&k| w.outstanding(k)).sum::<u32>());
        Ok(outstanding.map_err(Error::failed)? == 0 && flow.tx.as_ref().is_none_or(Sending::all_back))
    }
}

/// What was counted up to a moment.
pub struct Counted {
    /// By each port.
    ports: Vec<Counters>,
    /// Dropped between workers.
    undelivered: u64,
}

impl Counted {
    /// By a worker.
    pub fn of<I: PortIo, B: Buffer>(w: &mut Worker<I, B>) -> Counted {
        Counted {
            ports: (0..w.ports()).filter_map(|port| w.counters(port).cloned()).collect(),
            undelivered: (0..w.ports()).filter_map(|port| w.io_mut(port).map(|io| io.undelivered())).sum(),
        }
    }

    /// Packets that a port sent and received.
    pub fn packets(&self, port: usize) -> [u64; 2] {
        self.ports.get(port).map_or([0; 2], |port| [port.tx_packets, port.rx_packets])
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.ports.iter().map(|port| port.dropped(reason)).sum()
    }
}

/// The drops since `before`, by reason.
pub fn drops_since(before: &Counted, after: &Counted) -> Vec<(String, u64)> {
    let drops = DropReason::all()
        .map(|reason| (reason.name().to_owned(), after.dropped(reason) - before.dropped(reason)));
    let between = ("steer_full".to_owned(), after.undelivered - before.undelivered);
    drops.chain([between]).filter(|&(_, n)| n > 0).collect()
}

/// A size as tests have it, in bytes.
///
/// # Errors
/// It is more than a test's message has.
pub fn message_size(size: u64) -> Result<u32, Error> {
    u32::try_from(size).map_err(|_| {
        Error::usage(format_args!("a message of {size} bytes is too large: use -s {} or less", u32::MAX))
    })
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
    if spec.iters == Some(0) {
        return Err("a test needs at least one message: -n 1 or more".to_owned());
    }
    if spec.duration_ms == Some(0) {
        return Err("a test takes at least a millisecond: -D 1ms or more".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
