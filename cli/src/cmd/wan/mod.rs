//! `spraywire wan`: a forwarder between two ports that behaves as a long, narrow or bad network.

mod forward;

use crate::args::{CoresArg, EalArg, Idle as IdleArg, OutputArgs};
use crate::endpoint;
use crate::error::{Error, Exit};
use crate::impair::ImpairArgs;
use crate::report::Out;
use crate::report::json::Document;
use crate::report::numbers::plural;
use crate::report::table::{Align, Table};
use crate::signal::{self, Stop};
use crate::units;
use clap::Args;
use dataplane::clock::Clock;
use dataplane::idle::Idle;
use dataplane::io::dpdk::{DpdkPort, DpdkPortConfig};
use dataplane::io::{PortIo, PortState};
use dataplane::open::Plan;
use dataplane::spec::PortSpec;
use forward::{Forwarder, Passed, Way};
use roce_proto::time::Instant;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;
use testbed_impair::{Config, Link};

const AFTER: &str = "\
Everything that one port receives leaves by the other, later, or not at all: whatever it is, for whomever. Loss comes before
the bottleneck's queue. Frames count from the Ethernet header to the end of the payload, without FCS.

Examples:
  spraywire wan --port net_memif0,role=server,socket=left --port net_memif1,role=server,socket=right --delay 12.5ms
      between a `spraywire bw` with --port net_memif0,role=client,socket=left and one with socket=right
  spraywire wan --port net_af_packet0,iface=veth0 --port net_af_packet1,iface=veth1 --delay 25ms --rate 1g --loss 0.1%
  spraywire wan --port A --port B --loss 1% --burst 8               bursts of eight losses on average
  spraywire wan --port A --port B --rate 10g --queue 1MB --mark-from 100KB
  spraywire wan --port A --port B --black-out 5 --lasting 300ms     nothing passes for 300 ms, five seconds after the start";

/// Arguments of `wan`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct WanArgs {
    /// A port, in DPDK's own syntax; to be given twice
    #[arg(long, value_name = "DEVICE", required = true)]
    #[serde(serialize_with = "port_texts")]
    pub port: Vec<PortSpec>,

    /// MTU of both ports in bytes, from the IP header on
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(64..))]
    pub mtu: Option<u16>,

    /// What happens on the way.
    #[command(flatten)]
    #[serde(flatten)]
    pub impair: ImpairArgs,

    /// Impair the way from the first port to the second only; back, frames pass at once
    #[arg(long)]
    pub one_way: bool,

    /// Seed of all that happens by chance; the same seed and traffic at the same times have the same fates
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,

    /// How long to run; until a signal if not given
    #[arg(short = 'D', long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// How long to wait for a memif server, if a port is a client
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = units::duration)]
    pub wait: Duration,

    /// The core to poll on
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoresArg>,

    /// What the poll loop does in rounds without work. While frames are on the way it yields at most, so as not to be late
    #[arg(long, value_enum, default_value_t = IdleArg::Backoff, value_name = "HOW")]
    pub idle: IdleArg,

    /// More arguments for DPDK's EAL, as one word
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub eal: Option<EalArg>,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

fn port_texts<S: serde::Serializer>(ports: &[PortSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ports.iter().map(PortSpec::to_string))
}

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// How long before a frame is due the loop no longer sleeps.
const NEAR: Duration = Duration::from_millis(6);

/// Time between two looks at the links.
const LOOK: Duration = Duration::from_millis(250);

/// Runs the command.
pub fn run(args: &WanArgs, verbosity: u8) -> Result<Exit, Error> {
    let [first, second] = args.port.as_slice() else {
        return Err(Error::usage(format_args!("{} given", plural(args.port.len() as u64, "port")))
            .hint("a forwarder stands between two: --port A --port B"));
    };
    if first.selector() == second.selector() {
        return Err(Error::usage(format_args!("both ports are {}", first.selector()))
            .hint("give virtual devices different numbers, such as net_memif0 and net_memif1"));
    }
    let config = args.impair.config()?;
    let target = args.output.json();
    target.check()?;
    let stop = signal::install()?;
    let ports = open(args, [first, second], &config, verbosity, &stop)?;
    let back =
        if args.one_way { Config { capacity: config.capacity, ..Config::default() } } else { config.clone() };
    let link = |config, seed| Link::new(config, seed).map_err(Error::usage);
    let links = [link(config, args.seed)?, link(back, args.seed ^ u64::MAX)?];
    let mut forwarder = Forwarder::new(ports, links);
    let mut out = target.text();
    let names = forwarder.ports().each_ref().map(|port| port.info().name.clone());
    let ready = format!("READY {} <-> {}: {}", names[0], names[1], args.impair);
    if target.is_stdout() {
        Out::stderr().line(ready)?;
    } else {
        out.line(ready)?;
        out.flush()?;
    }
    let gone = forward(&mut forwarder, args, &stop);

    table(&forwarder, &names).lines().try_for_each(|line| out.line(line))?;
    out.flush()?;
    let mut document = Document::new("wan", args);
    document.set("results", &results(&forwarder, &names));
    document.set("interrupted", &(args.duration.is_some() && stop.requested()));
    document.write(&target)?;
    match gone {
        Err(e) => Err(e),
        // Without a duration a signal is its proper end.
        Ok(()) if args.duration.is_some() && stop.requested() => Ok(Exit::Interrupted),
        Ok(()) => Ok(Exit::Ok),
    }
}

/// Starts DPDK and opens both ports, for frames to any station, with buffers for what is on the way.
fn open(
    args: &WanArgs,
    specs: [&PortSpec; 2],
    config: &Config,
    verbosity: u8,
    stop: &Stop,
) -> Result<[DpdkPort; 2], Error> {
    let plans = specs.map(|spec| Plan::of(spec, args.mtu));
    let both = Plan {
        vdevs: plans.iter().flat_map(|plan| plan.vdevs.clone()).collect(),
        allow: plans.iter().flat_map(|plan| plan.allow.clone()).collect(),
        ..Plan::default()
    };
    let cores = args.cores.as_ref().map(|cores| cores.0.clone());
    let extra = args.eal.as_ref().map(|eal| eal.0.clone()).unwrap_or_default();
    let eal = endpoint::start_for(&both, cores.clone(), extra, verbosity)?;
    if let Some(&core) = cores.as_deref().and_then(<[usize]>::first) {
        dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
    }
    let held = u32::try_from(config.capacity).unwrap_or(u32::MAX);
    let open = |plan: &Plan| {
        let port = plan.port();
        let port = DpdkPortConfig {
            promiscuous: true,
            spare_buffers: port.spare_buffers.saturating_add(held),
            ..port
        };
        endpoint::connect_for(args.wait, stop, || DpdkPort::open_queues(&eal, &port, 1))
    };
    let [first, second] = [open(&plans[0])?, open(&plans[1])?].map(|mut queues| queues.pop());
    match (first, second) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(Error::usage("a port has no queue")),
    }
}

/// Forwards until the end; an error if a port went away for good.
fn forward<I: PortIo>(forwarder: &mut Forwarder<I>, args: &WanArgs, stop: &Stop) -> Result<(), Error> {
    let clock = Clock::new();
    let mut idle = Idle::new(args.idle.policy());
    let started = clock.now();
    let end = args.duration.map_or(Instant::MAX, |d| started + d);
    let (mut look_at, mut tell_at) = (started + LOOK, started + PROGRESS);
    let mut before = [Passed::default(); 2];
    // The model's time begins with the forwarder, so that a black-out is told from its start.
    let since_start = |now: Instant| Instant::ZERO + now.saturating_since(started);
    loop {
        let now = clock.now();
        if now >= end || stop.requested() {
            return Ok(());
        }
        let moved = forwarder.round(since_start(now));
        let near = forwarder.next_at().is_some_and(|at| at <= since_start(now) + NEAR);
        if now >= look_at {
            look_at = now + LOOK;
            if forwarder.ports().iter().any(|port| port.state() == PortState::Gone) {
                return Err(Error::port_gone());
            }
        }
        if now >= tell_at {
            tell_at = now + PROGRESS;
            progress(forwarder, &mut before);
        }
        if near && !moved {
            // Somebody else may run, but sleep would make the next frame late.
            if args.idle != IdleArg::Spin {
                std::thread::yield_now();
            }
        } else {
            idle.after_round(moved);
        }
    }
}

fn progress<I: PortIo>(forwarder: &Forwarder<I>, before: &mut [Passed; 2]) {
    let line = |way: &Way<I>, before: &mut Passed| {
        let passed = way.passed.since(before);
        format!("{} in, {} out, {} on the way", passed.received, passed.sent, way.under_way())
    };
    let [there, back] = &forwarder.ways;
    let [a, b] = before;
    tracing::info!("there {}; back {}", line(there, a), line(back, b));
}

/// A direction's results by name.
fn fates<I: PortIo>(way: &Way<I>) -> Vec<(&'static str, u64)> {
    let (passed, fates) = (way.passed, way.fates());
    vec![
        ("received", passed.received),
        ("received_bytes", passed.received_bytes),
        ("duplicated", fates.duplicated),
        ("lost", fates.lost),
        ("black_out", fates.dark),
        ("queue_full", fates.queue_full),
        ("no_room", fates.too_many),
        ("sent", passed.sent),
        ("sent_bytes", passed.sent_bytes),
        ("marked", fates.marked),
        ("corrupted", fates.corrupted),
        ("under_way", way.under_way() as u64),
    ]
}

fn table<I: PortIo>(forwarder: &Forwarder<I>, [a, b]: &[String; 2]) -> String {
    let there = format!("{a} -> {b}");
    let back = format!("{b} -> {a}");
    let mut table =
        Table::new([("frames", Align::Left), (there.as_str(), Align::Right), (back.as_str(), Align::Right)]);
    let [there, back] = forwarder.ways.each_ref().map(fates);
    for ((name, there), (_, back)) in there.into_iter().zip(back) {
        if there > 0 || back > 0 || matches!(name, "received" | "sent") {
            table.row([name.replace('_', " "), there.to_string(), back.to_string()]);
        }
    }
    table.to_string()
}

fn results<I: PortIo>(forwarder: &Forwarder<I>, [a, b]: &[String; 2]) -> Value {
    let way = |from: &str, to: &str, way: &Way<I>| {
        let mut result = json!({"from": from, "to": to});
        for (name, value) in fates(way) {
            result[name] = value.into();
        }
        result
    };
    let [there, back] = &forwarder.ways;
    json!([way(a, b, there), way(b, a, back)])
}
