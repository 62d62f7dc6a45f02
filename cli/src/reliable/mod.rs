//! `bw`, `lat` and `demo` over the reliable service: messages of any size, none lost. Client and server agree on a test by
//! reliable messages too; each test has sessions of its own, whose end frees whatever it left.

mod classes;
mod end;
mod figures;
mod meet;
mod peers;
mod plan;
mod test;

pub use figures::{again, text};

use crate::cmd::measure::{MeasureArgs, idle_for, resolve, seed};
use crate::endpoint::{Endpoint, MOST_PORTS, OpenConfig};
use crate::error::Error;
use crate::rendezvous::message::{RxReport, TestKind, TestSpec};
use crate::signal::Stop;
use crate::tags::{Mix, TagArgs};
use crate::traffic::session::{TestResult, Watch};
use crate::units;
use clap::{Args, ValueEnum};
use dataplane::reliable::{Reliable, ReliableConfig, fresh_secret};
use dataplane::worker::WorkerConfig;
use end::End;
use figures::Figures;
use roce_proto::transport::{Address, Algorithm, Config, Limits, Mechanisms, Times};
use roce_proto::types::Qpn;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The server's queue pair: one above that of tests over raw UD. Those of further peers follow.
const SERVER_QPN: u32 = crate::rendezvous::CONTROL_QPN + 1;
/// Version of the messages below.
const VERSION: u16 = 3;
/// Sessions of an endpoint: those of a test, and of clients that come meanwhile.
const MORE_SESSIONS: u32 = 1_024;
/// Silence after which a side asks whether the other is there.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Silence after which a side is gone.
pub const SILENCE: Duration = Duration::from_secs(5);
/// Peers of a test at the most.
pub const MAX_PEERS: u16 = 10_000;

/// Which service carries the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reliable messages of any size (CSA-UD)
    #[default]
    Reliable,
    /// Raw UD: a message is a packet, and may be lost
    Ud,
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
    #[arg(long, value_enum, default_value_t = Service::Reliable)]
    pub service: Service,

    /// Congestion control of the reliable service
    #[arg(long, value_enum, default_value_t = Cc::Fixed)]
    pub cc: Cc,

    /// Bytes that a session of the reliable service may have in flight, with --cc fixed
    #[arg(long, value_name = "BYTES", default_value = "512k", value_parser = units::size)]
    pub window: u64,

    /// Paths (UDP source ports) of a session of the reliable service; one for each port at least
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub paths: u8,

    /// What this side's messages are, for forward error correction
    #[command(flatten)]
    pub tags: TagArgs,

    /// Find this side's losses by a time-out of this length alone, as much RDMA hardware does: to compare with
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "rto_only_s", serialize_with = "units::maybe_seconds")]
    pub rto_only: Option<Duration>,

    /// Sends each message of the reliable service in a packet of its own, instead of small ones that wait together in one
    #[arg(long)]
    pub no_bundle: bool,
}

impl Default for ServiceArgs {
    fn default() -> Self {
        ServiceArgs {
            service: Service::Reliable,
            cc: Cc::Fixed,
            window: 512 * 1024,
            paths: 1,
            tags: TagArgs::default(),
            rto_only: None,
            no_bundle: false,
        }
    }
}

impl ServiceArgs {
    /// Puts into an engine's configuration all that is said here of it.
    pub fn engine(&self, config: &mut Config) {
        config.paths = self.paths;
        config.mechanisms.bundle = !self.no_bundle;
        config.fec = self.tags.fec();
        if let Some(rto) = self.rto_only {
            let off =
                Mechanisms { gap: false, time: false, deadline: false, tail: false, ..config.mechanisms };
            config.mechanisms = off;
            config.times.min_rto = rto;
            config.times.max_rto = config.times.max_rto.max(rto);
        }
        config.congestion = match self.cc {
            Cc::Fixed => Algorithm::Fixed(self.window),
            Cc::DelayEcn => Algorithm::DelayEcn,
        };
    }

    /// Makes an endpoint use so many ports, its paths taking turns on them.
    pub fn over(&self, ports: usize, config: &mut ReliableConfig) {
        config.rails = std::array::from_fn(|at| Some(at + 1).filter(|port| *port < ports));
        config.engine.paths = self.paths_over(ports);
    }

    /// Paths of a session over so many ports.
    fn paths_over(&self, ports: usize) -> u8 {
        self.paths.max(ports.min(MOST_PORTS) as u8)
    }

    /// Refuses what raw UD would not heed.
    ///
    /// # Errors
    /// The first flag that is of the reliable service, with `--service ud`.
    pub fn check(&self) -> Result<(), Error> {
        if self.service == Service::Reliable {
            return Ok(());
        }
        let usual = ServiceArgs::default();
        let said = [
            ("--cc", self.cc != usual.cc),
            ("--window", self.window != usual.window),
            ("--paths", self.paths != usual.paths),
            ("--class", self.tags.class != usual.tags.class),
            ("--priority", self.tags.priority != usual.tags.priority),
            ("--stage", self.tags.stage != usual.tags.stage),
            ("--tolerance", self.tags.tolerance != usual.tags.tolerance),
            ("--policy", self.tags.policy != usual.tags.policy),
            ("--rto-only", self.rto_only != usual.rto_only),
            ("--fec", self.tags.fec != usual.tags.fec),
            ("--no-bundle", self.no_bundle),
        ];
        match said.iter().find(|(_, said)| *said) {
            Some((flag, _)) => {
                Err(Error::usage(format_args!("{flag} is of the reliable service: leave --service out")))
            }
            None => Ok(()),
        }
    }

    /// The largest message of a test, and the largest of `--all` or if no size was given.
    pub fn sizes(&self, mtu: usize) -> (usize, usize) {
        match self.service {
            Service::Ud => (mtu, mtu),
            Service::Reliable => (u32::MAX as usize, 1 << 20),
        }
    }
}

/// How many peers a test has, and what memory its messages come into.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct ScaleArgs {
    /// Peers of the client's endpoint, to a random one of which each message goes. The server's endpoint has a queue pair for each, so that
    /// they are peers of their own to the client
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PEERS)))]
    pub peers: u16,

    /// Bytes that all sends of a side of the reliable service have at most, and all its receives; of two messages at least, for each peer
    #[arg(long, value_name = "BYTES", default_value = "4M", value_parser = units::size)]
    pub memory: u64,
}

impl Default for ScaleArgs {
    fn default() -> Self {
        ScaleArgs { peers: 1, memory: 4 << 20 }
    }
}

/// Who hears of tests as they go.
pub trait Audience: Watch {
    /// The server waits for a client.
    fn ready(&mut self, _text: &str) -> Result<(), Error> {
        Ok(())
    }
    /// The client begins its test of that number, counted from 0.
    fn begins(&mut self, _nth: usize, _spec: &TestSpec) {}
    /// Sessions are opened: so many of so many.
    fn opening(&mut self, _open: usize, _of: u16) {}
    /// A test has ended.
    fn result(&mut self, result: TestResult) -> Result<(), Error>;
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
        /// Peers that it wants the server to be, this session's included.
        #[serde(default = "one")]
        peers: u16,
        /// Bytes of a side's sends, and of its receives.
        #[serde(default)]
        memory: u64,
        /// The classes of both sides' messages, if they are several.
        #[serde(default)]
        mix: Option<Mix>,
        /// No other follows.
        last: bool,
    },
    /// Server: the other peers are there. Connect to them.
    Connect {},
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
        figures: Box<Figures>,
    },
}

fn one() -> u16 {
    1
}

/// What an end is asked for.
pub struct Wish<'a> {
    /// The tests that a client asks for.
    pub specs: &'a [TestSpec],
    /// Their peers and memory.
    pub scale: ScaleArgs,
    /// The classes of their messages, if they are several.
    pub mix: Option<Mix>,
    /// The one kind that a server runs; any if none.
    pub kind: Option<TestKind>,
}

/// Runs tests as a client, or serves one client's; returns whether a signal ended them.
///
/// # Errors
/// As the tests over raw UD have them.
pub fn run(
    args: &MeasureArgs,
    config: &OpenConfig,
    wish: &Wish<'_>,
    stop: &Stop,
    audience: &mut impl Audience,
) -> Result<bool, Error> {
    if args.worker != crate::cmd::measure::WorkerKind::Inline {
        return Err(Error::usage(
            "the reliable service runs inline: leave --worker out, or use --service ud",
        ));
    }
    args.endpoint
        .entropy_range
        .0
        .check(args.service.paths_over(args.endpoint.ports.len()))
        .map_err(|e| Error::usage(e).hint("lower --paths, or give --entropy-range as many ports"))?;
    let config = OpenConfig { rails: true, ..config.clone() };
    let endpoint = Endpoint::open(&args.endpoint, &config, stop)?;
    if let Some(core) = endpoint.core(0) {
        dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
    }
    let idle = idle_for(endpoint.idle(), endpoint.idle() == Default::default(), 1);
    let seed = seed();
    let (mut worker, environment) =
        endpoint.into_worker(&WorkerConfig { seed, ..WorkerConfig::default() })?;
    let listen = args.host.is_none();
    let mut config = engine(args, wish, seed)?;
    args.service.over(worker.ports(), &mut config);
    let reliable = Reliable::new(&mut worker, &config, |len| vec![0; len].into()).map_err(Error::usage)?;
    let mut end = End::new(worker, reliable, idle, stop.clone(), listen)?;
    end.tags = args.service.tags;
    let interrupted = match &args.host {
        None => test::serve(&mut end, wish.kind, audience),
        Some(host) => resolve(host, false).and_then(|ip| {
            let server = Address::new(ip, Qpn::new(SERVER_QPN).unwrap_or_default());
            test::measure(&mut end, server, args.wait, wish, audience)
        }),
    };
    // What was said last may still be on its way.
    end.linger(Duration::from_millis(20));
    drop(end);
    environment.close();
    interrupted
}

/// The endpoint that a test wants.
fn engine(args: &MeasureArgs, wish: &Wish<'_>, seed: u64) -> Result<ReliableConfig, Error> {
    let secret =
        fresh_secret().map_err(|e| Error::failed(format_args!("the system gives no random numbers: {e}")))?;
    let listen = args.host.is_none();
    let mut config = ReliableConfig::new(seed, secret);
    config.qpn = listen.then(|| Qpn::new(SERVER_QPN)).flatten();
    config.engine.listen = listen;
    // The server hears of the client's wish when the tables are there; what is not used of them is not touched.
    let peers = if listen { MAX_PEERS } else { wish.scale.peers };
    let sessions = u32::from(peers) + MORE_SESSIONS;
    // Long fat networks want all the sequences that there can be in flight; bitmaps are touched where something is missing.
    config.engine.limits = Limits { sessions, window: 65_536, ..Limits::default() };
    // A side that is gone is told of as soon as over raw UD.
    config.engine.times = Times { keep_alive: KEEP_ALIVE, silence: SILENCE, ..Times::default() };
    args.service.engine(&mut config.engine);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::ClassArg;
    use roce_proto::transport::Protect;

    #[test]
    fn an_engine_gets_what_is_said_of_it() {
        let mut config = Config::default();
        ServiceArgs::default().engine(&mut config);
        let (congestion, protect) = (config.congestion, config.fec.protect);
        assert_eq!((config.paths, congestion, protect), (1, Algorithm::Fixed(512 * 1024), Protect::ByTag));
        assert!(config.mechanisms.bundle);
        let tags = TagArgs { fec: Protect::Nothing, ..TagArgs::default() };
        let said =
            ServiceArgs { cc: Cc::DelayEcn, paths: 7, tags, no_bundle: true, ..ServiceArgs::default() };
        said.engine(&mut config);
        let (congestion, protect) = (config.congestion, config.fec.protect);
        assert_eq!((config.paths, congestion, protect), (7, Algorithm::DelayEcn, Protect::Nothing));
        assert!(!config.mechanisms.bundle);
        let rto = Duration::from_millis(75);
        ServiceArgs { rto_only: Some(rto), ..ServiceArgs::default() }.engine(&mut config);
        let m = config.mechanisms;
        assert!(!(m.gap || m.time || m.tail || m.deadline) && m.bundle && config.times.min_rto == rto);
    }

    #[test]
    fn raw_ud_has_nothing_of_the_reliable_service() {
        let usual = ServiceArgs { service: Service::Ud, ..ServiceArgs::default() };
        assert_eq!(usual.check().map_err(|e| e.to_string()), Ok(()));
        let tags = |tags| ServiceArgs { tags, ..usual };
        for (said, flag) in [
            (ServiceArgs { window: 1, ..usual }, "--window"),
            (ServiceArgs { paths: 2, ..usual }, "--paths"),
            (tags(TagArgs { class: ClassArg::Dp, ..usual.tags }), "--class"),
            (tags(TagArgs { priority: Some(9), ..usual.tags }), "--priority"),
            (tags(TagArgs { tolerance: Some(9), ..usual.tags }), "--tolerance"),
        ] {
            let error = said.check().unwrap_err().to_string();
            assert!(error.contains(&format!("{flag} is of the reliable service")), "{error}");
            assert!(ServiceArgs { service: Service::Reliable, ..said }.check().is_ok());
        }
    }
}
