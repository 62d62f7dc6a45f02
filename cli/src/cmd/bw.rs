//! `spraywire bw`: throughput, with the habits of perftest.

use super::lanes;
use super::measure::{
    Job, MeasureArgs, Progress, WorkerKind, direction, drops_text, goodput_cell, lost_of, open_config,
    other_side, rate_cell, resolve, run_client, with_bench,
};
use crate::error::{Error, Exit};
use crate::reliable::{self, Audience, ScaleArgs, Service};
use crate::rendezvous::message::{RxReport, TestKind, TestSpec};
use crate::report::numbers::{Si, plural};
use crate::report::table::Align::{Left, Right};
use crate::report::{Document, JsonTarget, Out, Table};
use crate::signal;
use crate::steps::{self, StepArgs};
use crate::tags::{self, Mix};
use crate::traffic::drive::Drive;
use crate::traffic::session::{Bench, Serve, Side, TestResult, Watch, check_spec, message_size};
use crate::units::{self, Rate};
use clap::Args;
use dataplane::group::MAX_WORKERS;
use roce_proto::types::Mtu;
use serde::Serialize;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;

const AFTER: &str = "\
The same command runs on both sides: first without HOST (the server, which waits), then with it. The two find each other \
over the port itself. What the client asks for governs both sides; --service, --worker, --workers and -m are for each side.

Rates are those of receiver completions. Messages are reliable and of any size, unless both sides have --service ud: then a message \
is one UD packet, so nothing larger than the IB MTU can be sent; packets that find no posted receive are dropped and counted, as UD \
does. Several workers, queue pairs (-q) and --worker thread are of raw UD.

With --workload, ranks run steps of a collective together: all of them in this process, or each in one of its own, on one machine or many. \
Each step begins when all ranks are ready, and takes as long as the slowest of them; every value that comes is checked. Rank 0 has the \
table. Bandwidths are those of nccl-tests: algo, the buffer of a rank by the time of a step; bus, what each rank's link carries for it.

Examples:
  spraywire bw                                    the server: a net_memif port, address 192.0.2.1
  spraywire bw 192.0.2.1
      the client on the same machine: 2 seconds of messages of 1 MiB
  spraywire bw 192.0.2.1 -a                       all sizes: 2 B, 4 B, … to 1 MiB
  spraywire bw 192.0.2.1 -s 64 -n 10M             ten million messages of 64 bytes
  spraywire bw 192.0.2.1 -s 1k -D 5 --rate 1Mpps  a million messages a second for five seconds
  spraywire bw 192.0.2.1 -s 64 --peers 1000       each message to a random one of a thousand peers
  spraywire bw 192.0.2.1 --service ud -b -q 4 --json
      raw UD: both directions, four queue pairs, as JSON
  spraywire bw 192.0.2.1 --service ud --workers 2 --cores 2,3
      two workers over two queues, if the server has the same
  spraywire bw 192.0.2.1 --mix dp:70,pp:25,control:5 -s 256k
                                                  messages of three classes, with figures of each
  spraywire bw 10.0.0.1 --port 0000:01:00.0 --ip 10.0.0.2 --port 0000:01:00.1 --ip 10.1.0.2 \\
      --paths 8
                                                  two ports as rails, if the server has two as well
  spraywire bw --workload all-reduce --ranks 8    a ring of eight ranks in this process
  spraywire bw --workload all-to-all --ranks 8 -a --loss 0.1%
  mpirun -n 16 spraywire bw --workload all-reduce -s 64M --port 0000:01:00.0 --first-ip 10.0.0.1/24
  torchrun --no-python --nnodes 4 … spraywire bw --workload all-reduce --port 0000:01:00.0 \\
      --first-ip 10.0.0.1/24
  spraywire bw --workload all-to-all --ranks 3 --rank 2 --master 10.0.0.1 \\
      --port net_af_packet0,iface=eth1 --ip 10.0.0.3
  spraywire bw --port net_af_packet0,iface=eth1 --ip 10.0.0.1
  spraywire bw --port 0000:01:00.0 --ip 10.0.0.2 10.0.0.1";

/// Arguments of `bw`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct BwArgs {
    /// Message size in bytes; 1 MiB if not given, over raw UD the IB MTU
    #[arg(short, long, value_name = "BYTES", value_parser = units::size)]
    pub size: Option<u64>,

    /// Run all sizes from 2 bytes to 1 MiB, over raw UD to the IB MTU, doubling
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,

    /// Number of messages that each sender sends
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = units::count, conflicts_with = "duration")]
    pub iters: Option<u64>,

    /// How long to send; 2 seconds if neither this nor -n is given
    #[arg(short = 'D', long, value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "duration_s", serialize_with = "units::maybe_seconds")]
    pub duration: Option<Duration>,

    /// Depth of the send queue of each queue pair; over the reliable service, messages that a side sends at a time
    #[arg(short, long, value_name = "COUNT", default_value_t = 128, value_parser = units::how_many::<u32>)]
    pub tx_depth: u32,

    /// Depth of the receive queue of each queue pair, or of each peer
    #[arg(short, long, value_name = "COUNT", default_value_t = 512, value_parser = units::how_many::<u32>)]
    pub rx_depth: u32,

    /// Number of queue pairs, of each worker
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = units::how_many::<u16>)]
    pub qps: u16,

    /// Number of workers, each in a thread of its own (see --cores) and with its share of the messages and the rate; the same on
    /// both sides
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=MAX_WORKERS as i64))]
    pub workers: u16,

    /// Number of queue pairs of the port; if not given, as many as workers, or as the port has. Workers without one get their
    /// packets from the others
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub queues: Option<u16>,

    /// Peers and memory.
    #[command(flatten)]
    #[serde(flatten)]
    pub scale: ScaleArgs,

    /// Several classes of messages, and their weights: dp:70,pp:25,control:5. Each message is of a random one of them, and both sides have
    /// figures of each; what --class says of a class, --policy, --priority, --stage and --tolerance do
    #[arg(long, value_name = "CLASS:WEIGHT,…", value_parser = tags::mix, conflicts_with_all = ["class", "workload"])]
    #[serde(serialize_with = "mix_text")]
    pub mix: Option<Mix>,

    /// Both sides send
    #[arg(short, long)]
    pub bidirectional: bool,

    /// Limit of each sender: bits (10g) or messages (1Mpps) per second
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    #[serde(serialize_with = "rate_text")]
    pub rate: Option<Rate>,

    /// Collectives.
    #[command(flatten)]
    #[serde(flatten)]
    pub steps: StepArgs,

    /// What every measurement has.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: MeasureArgs,
}

fn mix_text<S: serde::Serializer>(mix: &Option<Mix>, serializer: S) -> Result<S::Ok, S::Error> {
    match mix {
        None => serializer.serialize_none(),
        Some(mix) => serializer.collect_str(mix),
    }
}

fn rate_text<S: serde::Serializer>(rate: &Option<Rate>, serializer: S) -> Result<S::Ok, S::Error> {
    match rate {
        None => serializer.serialize_none(),
        Some(Rate::BitsPerSecond(n)) => serializer.collect_str(&format_args!("{n} bit/s")),
        Some(Rate::MessagesPerSecond(n)) => serializer.collect_str(&format_args!("{n} pps")),
    }
}

/// How long a test sends if nothing else is said.
const DEFAULT_DURATION: Duration = Duration::from_secs(2);

impl BwArgs {
    /// The tests that the client asks for over an IB MTU of `mtu` bytes.
    pub fn specs(&self, mtu: usize) -> Result<Vec<TestSpec>, Error> {
        let (most, all) = self.common.service.sizes(mtu);
        let sizes: Vec<u64> = if self.all {
            (1..).map(|i| 1u64 << i).take_while(|&s| s <= all as u64).collect()
        } else {
            vec![self.size.unwrap_or(all as u64)]
        };
        sizes.into_iter().map(|size| self.spec(size, most)).collect()
    }

    /// What several workers cannot do.
    fn check_workers(&self) -> Result<(), Error> {
        let workers = self.workers;
        self.common.service.check()?;
        if self.common.service.service == Service::Ud && self.scale.peers > 1 {
            return Err(Error::usage("--peers is of the reliable service: leave --service out"));
        }
        if self.common.service.service == Service::Ud && self.mix.is_some() {
            return Err(Error::usage("--mix is of the reliable service: leave --service out"));
        }
        if self.queues.is_some_and(|queues| queues > workers) {
            return Err(Error::usage("a queue without a worker would fill up: use --queues up to --workers"));
        }
        if workers > 1 && self.common.worker == WorkerKind::Thread {
            return Err(Error::usage(
                "--workers puts each worker in a thread of its own: leave --worker out",
            ));
        }
        if self.iters.is_some_and(|n| n < u64::from(workers)) {
            return Err(Error::usage(format_args!(
                "{workers} workers need at least as many messages: -n {workers}"
            )));
        }
        Ok(())
    }

    fn spec(&self, size: u64, mtu: usize) -> Result<TestSpec, Error> {
        let duration = self.duration.or(self.iters.is_none().then_some(DEFAULT_DURATION));
        let spec = TestSpec {
            kind: TestKind::Bw,
            size: message_size(size)?,
            qps: self.qps,
            iters: self.iters,
            duration_ms: duration.map(|d| d.as_millis() as u64),
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            bidirectional: self.bidirectional,
            rate: self.rate.map(|rate| messages_per_second(rate, size)),
        };
        check_spec(&spec, mtu).map_err(Error::usage)?;
        Ok(spec)
    }
}

/// A rate in whole messages per second, at least one.
fn messages_per_second(rate: Rate, size: u64) -> u64 {
    let messages = match rate {
        Rate::MessagesPerSecond(n) => n,
        Rate::BitsPerSecond(bits) => bits / (size.max(1) as f64 * 8.0),
    };
    (messages.round() as u64).max(1)
}

/// Runs the command.
pub fn run(args: &BwArgs, verbosity: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    if let Some(workload) = args.steps.workload {
        return steps::run(args, workload, verbosity, &stop);
    }
    let json_target = args.common.output.json();
    json_target.check_beside(args.common.endpoint.pcap.as_ref())?;
    if let Some(host) = &args.common.host {
        // What no port could do is refused before one is opened.
        other_side(host, &args.common.endpoint)?;
        args.specs(Mtu::B4096.bytes())?;
    }
    args.check_workers()?;
    let mut document = Document::new("bw", args);
    let mut out = json_target.text().unbuffered();
    let report = Report { out: &mut out, results: Vec::new(), header: false, progress: Progress::new() };
    let measured = if args.common.service.service == Service::Reliable {
        if args.workers > 1 || args.queues.is_some() || args.qps > 1 {
            return Err(Error::usage(
                "the reliable service has one worker and one queue pair for all its peers: leave --workers, --queues and -q out",
            )
            .hint("raw UD has several: --service ud on both sides"));
        }
        let specs = args.specs(Mtu::B4096.bytes())?;
        report.reliable(TestKind::Bw, &args.common, &specs, (args.scale, args.mix), verbosity, &stop)
    } else if args.workers > 1 {
        let lanes::Outcome { measured, queues } = lanes::run(args, verbosity, &stop, report)?;
        document.set("queues", &queues);
        measured
    } else {
        with_bench(&args.common, &open_config(&args.common, verbosity), &stop, BwJob { args, report })?
    };
    measured.document(document, &args.common, &json_target)
}

/// What a command measured, and how it came to its end: whether a signal asked for it, or why it failed.
pub struct Measured {
    /// The results as JSON.
    pub results: Vec<Value>,
    /// The end.
    pub ended: Result<bool, Error>,
}

impl Measured {
    /// Completes and writes the report: what was measured before the end is in it, however the end was. Without a result, a failure
    /// is all that there is to say.
    pub fn document(
        self,
        mut document: Document,
        args: &MeasureArgs,
        target: &JsonTarget,
    ) -> Result<Exit, Error> {
        let failure = match self.ended {
            Err(e) if self.results.is_empty() => return Err(e),
            Err(e) if e.exit != Exit::Interrupted => Some(e),
            Ok(false) => None,
            Ok(true) | Err(_) => Some(Error::interrupted()),
        };
        let interrupted = failure.as_ref().is_some_and(|e| e.exit == Exit::Interrupted);
        document.set("role", &if args.host.is_some() { "client" } else { "server" });
        document.set("interrupted", &interrupted);
        document.set("results", &self.results);
        document.write(target)?;
        match failure {
            Some(_) if interrupted => Ok(Exit::Interrupted),
            Some(e) => Err(e),
            None => Ok(Exit::Ok),
        }
    }
}

struct BwJob<'a> {
    args: &'a BwArgs,
    report: Report<'a>,
}

impl Job for BwJob<'_> {
    type Out = Measured;

    fn run<D: Drive>(mut self, mut bench: Bench<D>) -> Result<Self::Out, Error> {
        let Some(host) = &self.args.common.host else {
            return serve(&mut bench, TestKind::Bw, self.report);
        };
        let host = resolve(host, false)?;
        let mtu = bench.ib_mtu()?;
        let specs = self.args.specs(mtu)?;
        let mut progress = Progress::new();
        let report = &mut self.report;
        let ended = run_client(bench, host, self.args.common.wait, &specs, &mut progress, |r| report.row(r));
        Ok(Measured { results: self.report.results, ended })
    }
}

/// Serves one session of tests of `kind`.
pub fn serve<D: Drive>(bench: &mut Bench<D>, kind: TestKind, report: Report<'_>) -> Result<Measured, Error> {
    let (addrs, mtu) = bench.addresses()?;
    let mut server = Server { kind, report };
    let at = addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    server.report.progress.show(&format!("waiting for a client at {at} (IB MTU {mtu})"), true);
    let served = bench.serve(&mut server);
    server.report.progress.clear();
    Ok(Measured { results: server.report.results, ended: served.map(|()| false) })
}

struct Server<'a> {
    kind: TestKind,
    report: Report<'a>,
}

impl Watch for Server<'_> {
    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        self.report.progress.progress(spec, messages, elapsed);
    }
}

impl Serve for Server<'_> {
    fn accept(&mut self, spec: &TestSpec, _mtu: usize) -> Result<(), String> {
        self.kind.accepts(spec.kind)
    }

    fn began(&mut self, peer: IpAddr, spec: &TestSpec) {
        tracing::info!("{peer} runs {spec:?}");
    }

    fn ended(&mut self, result: TestResult) -> Result<(), Error> {
        self.report.row(&result)
    }
}

/// The results as they come, as text, and kept for JSON.
pub struct Report<'a> {
    /// The text.
    pub out: &'a mut Out,
    /// Results so far.
    pub results: Vec<Value>,
    /// Whether the headings have been printed.
    pub header: bool,
    /// The progress line, which gives way to results.
    pub progress: Progress,
}

impl Watch for Report<'_> {
    fn waiting(&mut self, host: IpAddr, elapsed: Duration) {
        self.progress.waiting(host, elapsed);
    }

    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        self.progress.progress(spec, messages, elapsed);
    }
}

impl Audience for Report<'_> {
    fn ready(&mut self, text: &str) -> Result<(), Error> {
        self.progress.show(text, true);
        Ok(())
    }

    fn opening(&mut self, open: usize, of: u16) {
        self.progress.show(&format!("{open} of {of} sessions"), open == usize::from(of));
    }

    fn result(&mut self, result: TestResult) -> Result<(), Error> {
        self.row(&result)
    }
}

impl Report<'_> {
    /// Runs tests over the reliable service, as a client or as a server.
    pub fn reliable(
        mut self,
        kind: TestKind,
        args: &MeasureArgs,
        specs: &[TestSpec],
        (scale, mix): (ScaleArgs, Option<Mix>),
        verbosity: u8,
        stop: &signal::Stop,
    ) -> Measured {
        let wish = reliable::Wish { specs, scale, mix, kind: Some(kind) };
        let ended = reliable::run(args, &open_config(args, verbosity), &wish, stop, &mut self);
        self.progress.clear();
        Measured { results: self.results, ended }
    }

    /// Prints lines that are no result of a test.
    pub fn lines(&mut self, text: &str) -> Result<(), Error> {
        self.progress.clear();
        text.lines().try_for_each(|line| self.out.line(line))
    }

    /// Prints and keeps one result.
    pub fn row(&mut self, result: &TestResult) -> Result<(), Error> {
        self.progress.clear();
        self.results.push(to_json(result));
        let text = match result.spec.kind {
            TestKind::Bw => bw_table(result).to_string(),
            TestKind::Lat => super::lat::lat_table(result).to_string(),
        };
        // The headings once: every table has the same columns of fixed least width.
        let lines = text.lines().skip(usize::from(self.header));
        for line in lines {
            self.out.line(line)?;
        }
        self.header = true;
        if let Some(figures) = &result.reliable {
            self.out.line(reliable::text(figures))?;
        }
        if result.link_lost > 0 {
            self.out.line(format_args!("  the link was lost {} here", plural(result.link_lost, "time")))?;
        }
        for (side, rx) in [("server", &result.server), ("client", &result.client)] {
            if !rx.drops.is_empty() {
                self.out.line(format_args!("  dropped by the {side}: {}", drops_text(rx)))?;
            }
        }
        Ok(())
    }
}

/// One result as JSON.
pub fn to_json(result: &TestResult) -> Value {
    let spec = &result.spec;
    let mut value = json!({
        "test": spec.kind.name(),
        "size": spec.size,
        "qps": spec.qps,
        "iters": spec.iters,
        "duration_ms": spec.duration_ms,
        "tx_depth": spec.tx_depth,
        "rx_depth": spec.rx_depth,
        "bidirectional": spec.bidirectional,
        "requested_messages_per_second": spec.rate,
        "client_to_server": direction(result.known(Side::Server), result.sent(Side::Client), spec.size),
        "interrupted": result.interrupted,
        "link_lost": result.link_lost,
    });
    if spec.bidirectional {
        value["server_to_client"] =
            direction(result.known(Side::Client), result.sent(Side::Server), spec.size);
    }
    if let Some(failure) = &result.failure {
        value["error"] = failure.message().into();
    }
    if let Some(reliable) = &result.reliable {
        value["reliable"] = reliable.clone();
    }
    if let Some(rtt) = &result.rtt {
        value["latency"] = super::lat::to_json(rtt, result.unanswered);
    }
    value
}

fn bw_table(result: &TestResult) -> Table {
    let columns = [
        ("    size", Right),
        ("        sent", Right),
        ("    received", Right),
        ("      lost", Right),
        ("   msg/s", Right),
        (" Gbit/s", Right),
        ("     min", Right),
        ("      p1", Right),
        ("     p50", Right),
        ("  asked", Right),
        ("direction", Left),
    ];
    let mut table = Table::new(columns);
    let spec = &result.spec;
    let count = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let mut row = |side: Side, from: Side, name: &str| {
        let (rx, sent) = (result.known(side), result.sent(from));
        let known = |text: fn(&RxReport, &TestSpec) -> String| rx.map_or("-".to_owned(), |rx| text(rx, spec));
        table.row([
            spec.size.to_string(),
            count(sent),
            known(|rx, _| rx.messages.to_string()),
            count(rx.and_then(|rx| lost_of(rx, sent))),
            known(|rx, _| rate_cell(rx)),
            known(|rx, spec| goodput_cell(rx, spec.size)),
            known(|rx, _| interval(rx.intervals, rx.interval_min)),
            known(|rx, _| interval(rx.intervals, rx.interval_p1)),
            known(|rx, _| interval(rx.intervals, rx.interval_p50)),
            spec.rate.map_or("-".to_owned(), |r| Si(r as f64).to_string()),
            name.to_owned(),
        ]);
    };
    row(Side::Server, Side::Client, "to server");
    if spec.bidirectional {
        row(Side::Client, Side::Server, "to client");
    }
    table
}

fn interval(count: u32, rate: f64) -> String {
    if count == 0 { "-".to_owned() } else { Si(rate).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_messages() {
        assert_eq!(messages_per_second(Rate::BitsPerSecond(8e9), 1000), 1_000_000);
        assert_eq!(messages_per_second(Rate::MessagesPerSecond(0.2), 1000), 1);
        assert_eq!(messages_per_second(Rate::BitsPerSecond(8.0), 0), 1);
    }

    #[test]
    fn what_nobody_told_is_neither_none_nor_lost() {
        let spec = TestSpec {
            kind: TestKind::Bw,
            size: 64,
            qps: 1,
            iters: Some(7),
            duration_ms: None,
            tx_depth: 1,
            rx_depth: 1,
            bidirectional: true,
            rate: None,
        };
        let report = |messages| RxReport { messages, sent: 7, ..RxReport::default() };
        let result = |untold| TestResult {
            spec: spec.clone(),
            server: report(5),
            client: report(0),
            rtt: None,
            unanswered: 0,
            untold,
            unsaid: None,
            interrupted: false,
            failure: None,
            link_lost: 0,
            reliable: None,
        };
        let cells = |untold, line: usize| {
            let text = bw_table(&result(untold)).to_string();
            text.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells(None, 1)[1..4], ["7", "5", "2"]);
        assert_eq!(cells(None, 2)[1..4], ["7", "0", "7"]);
        assert_eq!(cells(Some(Side::Client), 1)[1..4], ["7", "5", "2"]);
        assert_eq!(cells(Some(Side::Client), 2)[1..4], ["7", "-", "-"]);
        assert_eq!(cells(Some(Side::Server), 1)[1..6], ["7", "-", "-", "-", "-"]);
        assert_eq!(to_json(&result(Some(Side::Client)))["server_to_client"], json!({ "sent": 7 }));
        assert_eq!(to_json(&result(Some(Side::Client)))["client_to_server"]["lost"], 2);
        // A client that went without a word, of which came what had come until then.
        let gone = TestResult {
            unsaid: Some(Side::Client),
            failure: Some(Error::failed("gone")),
            ..result(Some(Side::Client))
        };
        let text = bw_table(&gone).to_string();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words[1..4], ["-", "5", "-"]);
        let json = to_json(&gone);
        let there = &json["client_to_server"];
        assert_eq!(
            (&there["sent"], &there["received"], &there["lost"]),
            (&Value::Null, &5.into(), &Value::Null)
        );
        assert_eq!(json["error"], "gone");
    }
}
