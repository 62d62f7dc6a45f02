//! `spraywire wan`: a forwarder between two ports that behaves as a long, narrow or bad network, or between several pairs.

mod forward;
mod pairs;
mod rest;

use crate::args::{CoresArg, EalArg, Idle as IdleArg, OutputArgs};
use crate::endpoint;
use crate::error::{Error, Exit};
use crate::report::Out;
use crate::report::json::Document;
use crate::report::table::{Align, Table};
use crate::signal::{self, Stop};
use crate::units;
use clap::Args;
use dataplane::clock::Clock;
use dataplane::io::dpdk::{DpdkPort, DpdkPortConfig};
use dataplane::io::{PortIo, PortState};
use dataplane::open::Plan;
use forward::{Forwarder, Passed, Way};
use pairs::{Pair, PairArgs};
use rest::Rest;
use roce_proto::time::Instant;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

const AFTER: &str = "\
Everything that one port receives leaves by the other, later, or not at all: whatever it is, for whomever. Loss comes before \
the bottleneck's queue. Frames count from the Ethernet header to the end of the payload, without FCS.

Examples:
  spraywire wan --port net_memif0,role=server,socket=left \\
      --port net_memif1,role=server,socket=right --delay 12.5ms
      between a bw with --port net_memif0,role=client,socket=left and one with socket=right
  spraywire wan --port net_af_packet0,iface=veth0 --port net_af_packet1,iface=veth1 --delay 25ms \\
      --rate 1g --loss 0.1%
  spraywire wan --port A --port B --loss 1% --burst 8
      bursts of eight losses on average
  spraywire wan --port A --port B --rate 10g --queue 1MB --mark-from 100KB
  spraywire wan --port A --port B --black-out 5 --lasting 300ms
      nothing passes for 300 ms, five seconds after the start
  spraywire wan --pairs FILE
      a pair in each line, such as: --port A --port B --delay 5ms --loss 1%";

/// Arguments of `wan`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct WanArgs {
    /// The pair of ports and what happens between them.
    #[command(flatten)]
    #[serde(flatten)]
    pub pair: PairArgs,

    /// More pairs, which the same loop serves: one in each line of this file, with arguments as those of the first (--port, --mtu,
    /// --one-way, --seed and the network's); # begins a remark
    #[arg(long, value_name = "FILE")]
    pub pairs: Option<PathBuf>,

    /// How long to run; until a signal if not given, which is then its proper end: exit code 0
    #[arg(short = 'D', long, value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "duration_s", serialize_with = "units::maybe_seconds")]
    pub duration: Option<Duration>,

    /// How long to wait for a memif server, if a port is a client
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = units::duration)]
    #[serde(rename = "wait_s", serialize_with = "units::seconds")]
    pub wait: Duration,

    /// The core to poll on
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoresArg>,

    /// What the poll loop does in rounds without work. While frames are on the way, and some milliseconds more, it sleeps for 30 µs at most, so as not to be late
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

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// Buffers of a port beside those that its link holds: what waits for the other port, and copies.
const SPARE: u32 = 512;

/// Time between two looks at the links.
const LOOK: Duration = Duration::from_millis(250);

/// Runs the command.
pub fn run(args: &WanArgs, verbosity: u8) -> Result<Exit, Error> {
    let pairs = pairs::read(&args.pair, args.pairs.as_deref())?;
    let target = args.output.json();
    target.check()?;
    let stop = signal::install()?;
    let mut forwarders = Vec::new();
    for (pair, ports) in pairs.iter().zip(open(args, &pairs, verbosity, &stop)?) {
        forwarders.push(Forwarder::new(ports, pair.links()?));
    }
    let mut out = target.text();
    for (pair, forwarder) in pairs.iter().zip(&forwarders) {
        let [a, b] = names(forwarder);
        let ready = format!("READY {a} <-> {b}: {}", pair.args.impair);
        if target.is_stdout() {
            Out::stderr().line(ready)?;
        } else {
            out.line(ready)?;
        }
    }
    out.flush()?;
    let gone = forward(&mut forwarders, args, &stop);

    for forwarder in &forwarders {
        table(forwarder).lines().try_for_each(|line| out.line(line))?;
    }
    out.flush()?;
    let mut document = Document::new("wan", args);
    document.set("results", &forwarders.iter().flat_map(results).collect::<Vec<_>>());
    document.set("interrupted", &(args.duration.is_some() && stop.requested()));
    document.write(&target)?;
    match gone {
        Err(e) => Err(e),
        // Without a duration a signal is its proper end.
        Ok(()) if args.duration.is_some() && stop.requested() => Ok(Exit::Interrupted),
        Ok(()) => Ok(Exit::Ok),
    }
}

/// The names of its ports.
fn names<I: PortIo>(forwarder: &Forwarder<I>) -> [String; 2] {
    forwarder.ports().each_ref().map(|port| port.info().name.clone())
}

/// Starts DPDK and opens the ports of all pairs, for frames to any station, with buffers for what is on the way.
fn open(args: &WanArgs, pairs: &[Pair], verbosity: u8, stop: &Stop) -> Result<Vec<[DpdkPort; 2]>, Error> {
    let plans: Vec<[Plan; 2]> = pairs.iter().map(Pair::plans).collect();
    let all = Plan {
        vdevs: plans.iter().flatten().flat_map(|plan| plan.vdevs.clone()).collect(),
        allow: plans.iter().flatten().flat_map(|plan| plan.allow.clone()).collect(),
        ..Plan::default()
    };
    let cores = args.cores.as_ref().map(|cores| cores.0.clone());
    let extra = args.eal.as_ref().map(|eal| eal.0.clone()).unwrap_or_default();
    let eal = endpoint::start_for(&all, cores.clone(), extra, verbosity)?;
    if let Some(&core) = cores.as_deref().and_then(<[usize]>::first) {
        dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
    }
    let open = |plan: &Plan, held: u32| {
        let port =
            DpdkPortConfig { promiscuous: true, spare_buffers: held.saturating_add(SPARE), ..plan.port() };
        endpoint::connect_for(args.wait, stop, || DpdkPort::open_queues(&eal, &port, 1))
    };
    let both = |(pair, [a, b]): (&Pair, &[Plan; 2])| {
        let held = pair.args.impair.capacity;
        match (open(a, held)?.pop(), open(b, held)?.pop()) {
            (Some(a), Some(b)) => Ok([a, b]),
            _ => Err(Error::usage("a port has no queue")),
        }
    };
    pairs.iter().zip(&plans).map(both).collect()
}

/// Forwards until the end; an error if a port went away for good.
fn forward<I: PortIo>(forwarders: &mut [Forwarder<I>], args: &WanArgs, stop: &Stop) -> Result<(), Error> {
    let clock = Clock::new();
    let mut rest = Rest::new(args.idle.policy());
    let started = clock.now();
    let end = args.duration.map_or(Instant::MAX, |d| started + d);
    let (mut look_at, mut tell_at) = (started + LOOK, started + PROGRESS);
    let mut before = vec![[Passed::default(); 2]; forwarders.len()];
    // The model's time begins with the forwarder, so that a black-out is told from its start.
    let since_start = |now: Instant| Instant::ZERO + now.saturating_since(started);
    loop {
        let now = clock.now();
        if now >= end || stop.requested() {
            return Ok(());
        }
        let mut moved = false;
        for forwarder in forwarders.iter_mut() {
            // Each has a look of its own: serving the others takes time.
            moved |= forwarder.round(since_start(clock.now()));
        }
        if now >= look_at {
            look_at = now + LOOK;
            let mut ports = forwarders.iter().flat_map(Forwarder::ports);
            if ports.any(|port| port.state() == PortState::Gone) {
                return Err(Error::port_gone());
            }
        }
        if now >= tell_at {
            tell_at = now + PROGRESS;
            forwarders.iter().zip(&mut before).for_each(|(forwarder, before)| progress(forwarder, before));
        }
        let due = forwarders.iter().filter_map(Forwarder::next_at).min();
        rest.after_round(moved, due.map(|at| at.saturating_since(since_start(clock.now()))));
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

fn table<I: PortIo>(forwarder: &Forwarder<I>) -> String {
    let [a, b] = names(forwarder);
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

fn results<I: PortIo>(forwarder: &Forwarder<I>) -> [Value; 2] {
    let way = |from: &str, to: &str, way: &Way<I>| {
        let mut result = json!({"from": from, "to": to});
        for (name, value) in fates(way) {
            result[name] = value.into();
        }
        result
    };
    let ([a, b], [there, back]) = (names(forwarder), &forwarder.ways);
    [way(&a, &b, there), way(&b, &a, back)]
}
