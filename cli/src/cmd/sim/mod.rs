//! `spraywire sim`: reliable endpoints and the network between them under a virtual clock; one scenario, or a swarm of them.

mod long;
mod one;
mod study;
mod swarm;

use crate::args::OutputArgs;
use crate::error::{Error, Exit};
use crate::impair::ImpairArgs;
use crate::report::numbers::{Si, Time};
use crate::report::table::{Align, Table};
use crate::report::{Out, quantiles};
use crate::tags::TagArgs;
use crate::units;
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use testbed_sim::shrink::Cut;
use testbed_sim::{Report, Scenario, Trace, Violation};

const AFTER: &str = "\
The clock is virtual: a second of a slow network may take a millisecond. The same arguments give the same run, packet by packet. \
Checked in each run: every message arrives once and byte-identical, or the side that must know is told; tables, windows and \
grants keep their bounds; every packet is accounted for; things go on while the network lets packets through; after the last fault \
everything comes to its end, and nothing is left in a table. A check that fails is exit code 1.

Examples:
  spraywire sim --delay 5ms --loss 1% -s 1MB -n 100
      a hundred megabytes over a bad network of 10 ms round trip
  spraywire sim --hosts 9 --pattern many-to-one --topology star --rate 10g --mark-from 100KB \\
      --cc delay-ecn
  spraywire sim --paths 4 --lanes 4 --reorder 10% --trace    each event in a line: time, host, event
  spraywire sim --hosts 16 --pattern permutation --topology leaf-spine --rate 100g --paths 16 \\
      -s 2MB -n 16
  spraywire sim --study permutation
      64 hosts over two tiers, beside published figures of others
  spraywire sim --study fec
      losses of 0.1 % over 25 ms: protected, sent again, protected alike
  spraywire sim --swarm --seconds 60
      random hosts, networks, loads, faults and restarts for a minute
  spraywire sim --swarm --seed 7 --runs 1000 --json          these thousand scenarios
  spraywire sim --swarm --seed 7 --runs 1 --trace            one of them again, as a log";

/// Arguments of `sim`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct SimArgs {
    /// Run random scenarios, one for each seed
    #[arg(long)]
    pub swarm: bool,

    /// Run scenarios with promises, most with three seeds, and print their figures
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["swarm", "trace"])]
    pub study: Option<Study>,

    /// Sizes of messages that the study of tails makes its cells of
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = units::size, requires = "study", default_value = "4KiB,64KiB,1MiB")]
    pub sizes: Vec<u64>,

    /// Seed of all that happens by chance; the first of a swarm. 1 if not given, and for a swarm a fresh one
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Scenarios of a swarm; 100 if neither this nor --seconds is given
    #[arg(long, value_name = "COUNT", value_parser = units::count, requires = "swarm")]
    pub runs: Option<u64>,

    /// How long to run a swarm
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "swarm")]
    #[serde(rename = "seconds", serialize_with = "units::maybe_seconds")]
    pub seconds: Option<Duration>,

    /// Only the first so many messages of a swarm's scenario: what a failing seed was reduced to
    #[arg(long, value_name = "COUNT", requires = "swarm")]
    pub first_messages: Option<usize>,

    /// Leave these faults of a swarm's scenario out
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "swarm")]
    pub without_faults: Vec<usize>,

    /// Print each event: time, host, event
    #[arg(long)]
    pub trace: bool,

    /// The scenario.
    #[command(flatten)]
    #[serde(flatten)]
    pub one: OneArgs,

    /// The links, each way of each.
    #[command(flatten)]
    #[serde(flatten)]
    pub impair: ImpairArgs,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

/// What a scenario is, if it is not one of the swarm's.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Scenario")]
pub struct OneArgs {
    /// Hosts
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=256), conflicts_with = "swarm")]
    pub hosts: u16,

    /// Who sends to whom
    #[arg(long, value_enum, default_value_t = Pattern::Pair, value_name = "PATTERN", conflicts_with = "swarm")]
    pub pattern: Pattern,

    /// Messages of all hosts together
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "swarm")]
    pub messages: u32,

    /// Bytes of a message
    #[arg(short, long, value_name = "SIZE", default_value = "64k", value_parser = units::size, conflicts_with = "swarm")]
    pub size: u64,

    /// How long after the sends the receives are posted
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration, conflicts_with = "swarm")]
    #[serde(rename = "late_s", serialize_with = "units::seconds")]
    pub late: Duration,

    /// How hosts are joined
    #[arg(long, value_enum, default_value_t = Topology::Mesh, value_name = "SHAPE", conflicts_with = "swarm")]
    pub topology: Topology,

    /// Links in parallel, between each two hosts or the two switches, that paths are spread over
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32), conflicts_with = "swarm")]
    pub lanes: u8,

    /// Leaves of a leaf-spine network
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "swarm")]
    pub leaves: u8,

    /// Spines of a leaf-spine network
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with = "swarm")]
    pub spines: u8,

    /// Paths of a session
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32), conflicts_with = "swarm")]
    pub paths: u8,

    /// Congestion control
    #[arg(long, value_enum, default_value_t = Congestion::Fixed, value_name = "NAME", conflicts_with = "swarm")]
    pub cc: Congestion,

    /// The fixed window
    #[arg(long, value_name = "SIZE", default_value = "512k", value_parser = units::size, conflicts_with = "swarm")]
    pub window: u64,

    /// IB MTU of all hosts
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(256..=4096), conflicts_with = "swarm")]
    pub mtu: u16,

    /// What the messages are, for forward error correction
    #[command(flatten)]
    pub tags: TagArgs,

    /// Hosts look for packets only so often; without it, a packet wakes its host
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "swarm")]
    #[serde(rename = "poll_s", serialize_with = "units::maybe_seconds")]
    pub poll: Option<Duration>,
}

/// Scenarios with promises.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Study {
    /// Many paths: no needless retransmissions, how soon losses are repaired, a dark path, a bad one, an incast
    Paths,
    /// 64 hosts at 8 leaves and 8 spines, a flow of 2 MB from each to another, beside what was published of other transports
    Permutation,
    /// Forward error correction over 25 ms: completion, a mix of classes, goodput, a step of the losses; one seed
    Fec,
    /// Ring all-reduce and all-to-all with losses, each mechanism of recovery switched off in turn; --hosts 16 or more
    Tail,
}

/// Who sends to whom.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The first host to the second
    Pair,
    /// All to the first
    ManyToOne,
    /// Each to each
    AllToAll,
    /// Each to the next, once its message from the last has come
    Ring,
    /// There and back, one after the other
    PingPong,
    /// From each to another one, so that each receives from one
    Permutation,
}

/// How hosts are joined.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// A link between each two
    Mesh,
    /// One switch
    Star,
    /// Two switches, half of the hosts at each
    Dumbbell,
    /// Two tiers: hosts at leaves, each leaf joined with each spine, chosen by a hash of addresses and ports (ECMP)
    LeafSpine,
}

/// Congestion control.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// A fixed window
    Fixed,
    /// A window by delay and ECN
    DelayEcn,
}

/// Runs the command.
pub fn run(args: &SimArgs) -> Result<Exit, Error> {
    args.output.json().check()?;
    match args.study {
        Some(study) => study::run(args, study),
        None if args.swarm => swarm::run(args),
        None => one::run(args),
    }
}

/// Runs a scenario; with `--trace`, its events go to where the text goes.
fn simulate(
    args: &SimArgs,
    scenario: &Scenario,
    out: Out,
) -> Result<(Report, Result<(), Violation>, Out), Error> {
    if !args.trace {
        let (report, verdict) = testbed_sim::simulate(scenario, Trace::hash());
        return Ok((report, verdict, out));
    }
    let shared = Rc::new(RefCell::new((out, Ok(()))));
    let sink = Rc::clone(&shared);
    let (report, verdict) = testbed_sim::simulate(
        scenario,
        Trace::lines(move |line| {
            let (out, written) = &mut *sink.borrow_mut();
            if written.is_ok() {
                *written = out.line(line);
            }
        }),
    );
    let (out, written) = Rc::into_inner(shared).map_or((Out::nowhere(), Ok(())), RefCell::into_inner);
    written?;
    Ok((report, verdict, out))
}

/// A report's figures by name.
fn figures(report: &Report) -> Value {
    let nanos = |d: Duration| d.as_nanos() as u64;
    let quantile = |q| report.quantile(q).map(nanos);
    json!({
        "virtual_time_ns": nanos(report.time),
        "trace": format!("{:#018x}", report.trace),
        "packet_events": report.packet_events,
        "rounds": report.rounds,
        "packets": report.packets(),
        "data": report.sent[roce_proto::wire::shim::Kind::Data as usize],
        "control_share": report.control_share(),
        "lost": report.lost,
        "missed": report.missed,
        "icrc_wrong": report.corrupt,
        "duplicated": report.duplicated,
        "parity": report.sent[roce_proto::wire::shim::Kind::Parity as usize],
        "repaired": report.repaired,
        "retransmitted": report.retransmitted,
        "spurious": report.spurious,
        "succeeded": report.succeeded,
        "too_long": report.too_long,
        "failed": report.failed,
        "sessions_down": report.downs,
        "bytes": report.bytes,
        "completion_ns": {
            "min": quantile(0.0), "p50": quantile(0.5), "p99": quantile(0.99), "p99_9": quantile(0.999), "max": quantile(1.0),
            "quantiles": quantiles::points(|q| quantile(q).map(|ns| ns as f64)),
        },
    })
}

/// The same as a table.
fn table(report: &Report, wall: Duration) -> Table {
    let mut table = Table::new([("figure", Align::Left), ("", Align::Right)]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let share = |part: u64, of: u64| if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
    let packets = report.packets();
    row("virtual time", Time(report.time).to_string());
    row("sends and receives: ended well", report.succeeded.to_string());
    row("  message too long", report.too_long.to_string());
    row("  ended with their session", report.failed.to_string());
    row("bytes of messages", report.bytes.to_string());
    if let [Some(p50), Some(p99), Some(max)] = [0.5, 0.99, 1.0].map(|q| report.quantile(q)) {
        row("a send takes: p50", Time(p50).to_string());
        row("  p99", Time(p99).to_string());
        row("  max", Time(max).to_string());
        let seconds = report.time.as_secs_f64();
        row("goodput, bit/s", Si(8.0 * report.bytes as f64 / seconds).to_string());
    }
    row("packets sent", packets.to_string());
    row("  control", format!("{:.2} %", 100.0 * report.control_share()));
    row("  lost by links", report.lost.to_string());
    row("  lost by hosts", report.missed.to_string());
    row("  wrong ICRC", report.corrupt.to_string());
    row("parity packets", report.sent[roce_proto::wire::shim::Kind::Parity as usize].to_string());
    row("segments recovered from parity", report.repaired.to_string());
    row("segments sent again", report.retransmitted.to_string());
    row(
        "  of those the peer had",
        format!("{} ({:.1} %)", report.spurious, share(report.spurious, report.retransmitted)),
    );
    row("sessions that went down", report.downs.to_string());
    row("packet events per second", Si(report.packet_events as f64 / wall.as_secs_f64()).to_string());
    table
}

/// What `--first-messages` and `--without-faults` leave of a scenario.
fn cut(args: &SimArgs) -> Cut {
    Cut { messages: args.first_messages, without_faults: args.without_faults.clone() }
}
