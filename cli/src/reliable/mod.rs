//! `bw` and `lat` over the reliable service: messages of any size, none lost. Client and server agree on a test by reliable
//! messages too; each test has a session of its own, whose end frees whatever it left.

mod end;
mod test;

use crate::cmd::bw::Report;
use crate::cmd::measure::{MeasureArgs, open_config, resolve, seed};
use crate::endpoint::Endpoint;
use crate::error::{Error, Exit};
use crate::rendezvous::message::{RxReport, TestKind, TestSpec};
use crate::signal::Stop;
use crate::traffic::session::TestResult;
use crate::units;
use clap::{Args, ValueEnum};
use dataplane::clock::Clock;
use dataplane::reliable::{Reliable, ReliableConfig, fresh_secret};
use dataplane::worker::WorkerConfig;
use end::End;
use roce_proto::transport::{Address, Algorithm, Limits};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::Kind;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The server's queue pair: one above that of tests over raw UD.
const SERVER_QPN: u32 = crate::rendezvous::CONTROL_QPN + 1;
/// Version of the messages below.
const VERSION: u16 = 1;

/// Which service carries the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Raw UD: a message is a packet, and may be lost
    #[default]
    Ud,
    /// Reliable messages of any size (CSA-UD)
    Reliable,
}

/// Which congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cc {
    /// A window of a fixed size: --window
    #[default]
    Fixed,
    /// A window that follows delay and ECN
    DelayEcn,
}

/// What the reliable service has of its own.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct ServiceArgs {
    /// Which service carries the messages; the same on both sides
    #[arg(long, value_enum, default_value_t = Service::Ud)]
    pub service: Service,

    /// Congestion control of the reliable service
    #[arg(long, value_enum, default_value_t = Cc::Fixed)]
    pub cc: Cc,

    /// Bytes that the reliable service may have in flight, with --cc fixed
    #[arg(long, value_name = "BYTES", default_value = "512k", value_parser = units::size)]
    pub window: u64,

    /// Paths (UDP source ports) of a session of the reliable service
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub paths: u8,
}

impl Default for ServiceArgs {
    fn default() -> Self {
        ServiceArgs { service: Service::Ud, cc: Cc::Fixed, window: 512 * 1024, paths: 1 }
    }
}

impl ServiceArgs {
    /// The largest message of a test, and the largest of `--all` or if no size was given.
    pub fn sizes(&self, mtu: usize) -> (usize, usize) {
        match self.service {
            Service::Ud => (mtu, mtu),
            Service::Reliable => (u32::MAX as usize, 1 << 20),
        }
    }
}

/// What client and server say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum Message {
    /// Client: this is what I want.
    Hello {
        /// Version of these messages.
        version: u16,
        /// The test.
        spec: TestSpec,
        /// No other follows.
        last: bool,
    },
    /// Server: go ahead, or why not.
    Ready {
        /// Why not.
        refusal: Option<String>,
    },
    /// Whoever sends: that was all.
    End {
        /// Messages sent.
        sent: u64,
    },
    /// Whoever receives: this is what came.
    Result {
        /// What came.
        report: RxReport,
        /// What the transport did for it.
        figures: Figures,
    },
}

/// What the transport of one side did during a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Figures {
    /// Segments sent, those sent again included.
    segments: u64,
    /// Segments sent again.
    retransmitted: u64,
    /// Of them, those that the peer had.
    spurious: u64,
    /// Segments that a gap on their path showed to be lost.
    gap_losses: u64,
    /// Segments given up by a time-out.
    rto_losses: u64,
    /// Packets that carried no segment.
    control: u64,
    /// Feedback among them.
    feedback: u64,
    /// Probes among them.
    probes: u64,
    /// Time from the first loss of a message to its last acknowledgement, of messages that lost something: the median and the
    /// longest, nanoseconds.
    recovery_ns: [u64; 2],
}

impl Figures {
    /// What one endpoint counted since `before`.
    fn of(now: &dataplane::reliable::Counters, before: &dataplane::reliable::Counters) -> Figures {
        let sent = |kind| now.sent(kind) - before.sent(kind);
        let all: u64 = Kind::ALL.iter().map(|&kind| sent(kind)).sum();
        Figures {
            segments: sent(Kind::Data),
            retransmitted: now.retransmitted - before.retransmitted,
            spurious: now.spurious - before.spurious,
            gap_losses: now.gap_losses - before.gap_losses,
            rto_losses: now.rto_losses - before.rto_losses,
            control: all - sent(Kind::Data),
            feedback: sent(Kind::Feedback),
            probes: sent(Kind::Probe),
            recovery_ns: [0; 2],
        }
    }
}

/// Runs the tests of `specs` as a client, or serves one client's.
///
/// # Errors
/// As the tests over raw UD have them.
pub fn run(
    kind: TestKind,
    args: &MeasureArgs,
    specs: &[TestSpec],
    verbosity: u8,
    stop: &Stop,
    mut report: Report<'_>,
) -> Result<(Vec<serde_json::Value>, bool), Error> {
    if args.worker != crate::cmd::measure::WorkerKind::Inline {
        return Err(Error::usage("the reliable service runs inline here: leave --worker out"));
    }
    let endpoint = Endpoint::open(&args.endpoint, &open_config(args, verbosity), stop)?;
    if let Some(core) = endpoint.core(0) {
        dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
    }
    let idle = crate::cmd::measure::idle_for(endpoint.idle(), endpoint.idle() == Default::default(), 1);
    let seed = seed();
    let (mut worker, environment) =
        endpoint.into_worker(&WorkerConfig { seed, ..WorkerConfig::default() })?;
    let secret =
        fresh_secret().map_err(|e| Error::failed(format_args!("the system gives no random numbers: {e}")))?;
    let mut config = ReliableConfig::new(seed, secret);
    config.qpn = args.host.is_none().then(|| Qpn::new(SERVER_QPN)).flatten();
    config.engine.listen = args.host.is_none();
    config.engine.paths = args.service.paths;
    config.engine.limits = Limits { sessions: 1_024, ..Limits::default() };
    config.engine.congestion = match args.service.cc {
        Cc::Fixed => Algorithm::Fixed(args.service.window),
        Cc::DelayEcn => Algorithm::DelayEcn,
    };
    let reliable = Reliable::new(&mut worker, &config, |len| vec![0; len].into()).map_err(Error::usage)?;
    let mut end = End::new(worker, reliable, Clock::new(), idle, stop.clone());
    let interrupted = match &args.host {
        None => test::serve(&mut end, kind, &mut report),
        Some(host) => resolve(host, false).and_then(|ip| {
            let server = Address { ip, qpn: Qpn::new(SERVER_QPN).unwrap_or_default() };
            test::measure(&mut end, server, args.wait, specs, &mut report)
        }),
    };
    // What was said last may still be on its way.
    end.linger(Duration::from_millis(20));
    drop(end);
    environment.close();
    match interrupted {
        Ok(interrupted) => Ok((report.results, interrupted)),
        // What was measured before the signal is reported.
        Err(e) if e.exit == Exit::Interrupted && !report.results.is_empty() => Ok((report.results, true)),
        Err(e) => Err(e),
    }
}

/// Both sides' figures as JSON.
fn figures_json(result: &TestResult, client: &Figures, server: &Figures) -> serde_json::Value {
    let control = client.control + server.control;
    let all = control + client.segments + server.segments;
    serde_json::json!({
        "client": client,
        "server": server,
        "control_share": if all == 0 { 0.0 } else { control as f64 / all as f64 },
        "messages": result.server.messages + result.client.messages,
    })
}

/// The figures in a line.
pub fn text(figures: &serde_json::Value) -> String {
    let sum = |name: &str| -> u64 {
        ["client", "server"].iter().filter_map(|side| figures[side][name].as_u64()).sum()
    };
    format!(
        "  segments {}, sent again {} ({} of them needlessly), control {:.1} % of packets",
        sum("segments"),
        sum("retransmitted"),
        sum("spurious"),
        100.0 * figures["control_share"].as_f64().unwrap_or_default()
    )
}
