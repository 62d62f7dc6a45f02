//! `spraywire lat`: latency by ping-pong, with the habits of perftest.

use super::bw::{Measured, Report, serve};
use super::measure::{Job, MeasureArgs, Progress, open_config, other_side, resolve, run_client, with_bench};
use crate::error::{Error, Exit};
use crate::reliable::Service;
use crate::rendezvous::message::{TestKind, TestSpec};
use crate::report::numbers::Time;
use crate::report::table::Align::Right;
use crate::report::{Document, Table, quantiles};
use crate::signal;
use crate::traffic::drive::Drive;
use crate::traffic::session::{Bench, TestResult, check_spec, message_size};
use crate::units;
use clap::Args;
use hdrhistogram::Histogram;
use roce_proto::types::Mtu;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

const AFTER: &str = "\
The same command runs on both sides: first without HOST (the server, which waits), then with it. One message is in flight at \
a time; the server sends it back. Times are half of the round trip, as perftest has them; the first 200 round trips warm up \
and do not count. The server says how many messages it answered, those included. Messages are reliable and of any size, unless both \
sides have --service ud.

Examples:
  spraywire lat                        the server: a net_memif port, address 192.0.2.1
  spraywire lat 192.0.2.1              the client on the same machine: 10,000 round trips of 2 bytes
  spraywire lat 192.0.2.1 -a -n 1000   all sizes from 2 B to 1 MiB
  spraywire lat 192.0.2.1 -s 64 -D 10  ten seconds of 64-byte messages
  spraywire lat 192.0.2.1 --service ud  raw UD, if the server has --service ud too
  spraywire lat 192.0.2.1 --json=lat.json";

/// Arguments of `lat`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct LatArgs {
    /// Message size in bytes
    #[arg(short, long, value_name = "BYTES", default_value = "2", value_parser = units::size)]
    pub size: u64,

    /// Run all sizes from 2 bytes to 1 MiB, over raw UD to the IB MTU, doubling
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,

    /// Number of round trips; 10,000 if neither this nor -D is given
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = units::count, conflicts_with = "duration")]
    pub iters: Option<u64>,

    /// How long to measure
    #[arg(short = 'D', long, value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "duration_s", serialize_with = "units::maybe_seconds")]
    pub duration: Option<Duration>,

    /// Depth of the receive queue, over raw UD
    #[arg(short, long, value_name = "COUNT", default_value_t = DEPTH, value_parser = units::how_many::<u32>)]
    pub rx_depth: u32,

    /// What every measurement has.
    #[command(flatten)]
    #[serde(flatten)]
    pub common: MeasureArgs,
}

const DEFAULT_ITERS: u64 = 10_000;

/// Receives posted: one message is in flight, late ones may come on top.
const DEPTH: u32 = 64;

impl LatArgs {
    fn specs(&self, mtu: usize) -> Result<Vec<TestSpec>, Error> {
        let (most, all) = self.common.service.sizes(mtu);
        let sizes: Vec<u64> = if self.all {
            (1..).map(|i| 1u64 << i).take_while(|&s| s <= all as u64).collect()
        } else {
            vec![self.size]
        };
        let iters = self.iters.or(self.duration.is_none().then_some(DEFAULT_ITERS));
        sizes.into_iter().map(|size| lat_spec(size, iters, self.duration, self.rx_depth, most)).collect()
    }
}

/// One latency test.
pub fn lat_spec(
    size: u64,
    iters: Option<u64>,
    duration: Option<Duration>,
    rx_depth: u32,
    mtu: usize,
) -> Result<TestSpec, Error> {
    let spec = TestSpec {
        kind: TestKind::Lat,
        size: message_size(size)?,
        qps: 1,
        iters,
        duration_ms: duration.map(|d| d.as_millis() as u64),
        tx_depth: DEPTH,
        rx_depth,
        bidirectional: false,
        rate: None,
    };
    check_spec(&spec, mtu).map_err(Error::usage)?;
    Ok(spec)
}

/// Runs the command.
pub fn run(args: &LatArgs, verbosity: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    let json_target = args.common.output.json();
    json_target.check_beside(args.common.endpoint.pcap.as_ref())?;
    args.common.service.check()?;
    if let Some(host) = &args.common.host {
        // What no port could do is refused before one is opened.
        other_side(host, &args.common.endpoint)?;
        args.specs(Mtu::B4096.bytes())?;
    }
    let document = Document::new("lat", args);
    let mut out = json_target.text().unbuffered();
    let report = Report { out: &mut out, results: Vec::new(), header: false, progress: Progress::new() };
    let measured = if args.common.service.service == Service::Reliable {
        let specs = args.specs(Mtu::B4096.bytes())?;
        report.reliable(TestKind::Lat, &args.common, &specs, Default::default(), verbosity, &stop)
    } else {
        with_bench(&args.common, &open_config(&args.common, verbosity), &stop, LatJob { args, report })?
    };
    measured.document(document, &args.common, &json_target)
}

struct LatJob<'a> {
    args: &'a LatArgs,
    report: Report<'a>,
}

impl Job for LatJob<'_> {
    type Out = Measured;

    fn run<D: Drive>(mut self, mut bench: Bench<D>) -> Result<Self::Out, Error> {
        let Some(host) = &self.args.common.host else {
            return serve(&mut bench, TestKind::Lat, self.report);
        };
        let host = resolve(host, false)?;
        let specs = self.args.specs(bench.ib_mtu()?)?;
        let mut progress = Progress::new();
        let report = &mut self.report;
        let ended = run_client(bench, host, self.args.common.wait, &specs, &mut progress, |r| report.row(r));
        Ok(Measured { results: self.report.results, ended })
    }
}

/// The percentiles that are reported.
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p99", 99.0), ("p99_9", 99.9), ("p99_99", 99.99)];

/// Latencies as JSON; nanoseconds, half of the round trip.
pub fn to_json(rtt: &Histogram<u64>, unanswered: u64) -> Value {
    let known = |half_ns: f64| (!rtt.is_empty()).then_some(half_ns);
    let half = |ns: u64| known(ns as f64 / 2.0);
    let mut value = json!({
        "round_trips": rtt.len(),
        "unanswered": unanswered,
        "half_rtt_ns": {
            "min": half(rtt.min()),
            "max": half(rtt.max()),
            "mean": known(rtt.mean() / 2.0),
            "stdev": known(rtt.stdev() / 2.0),
        },
    });
    value["half_rtt_ns"]["quantiles"] = quantiles::points(|q| half(rtt.value_at_quantile(q)));
    for (name, p) in PERCENTILES {
        value["half_rtt_ns"][name] = json!(half(rtt.value_at_percentile(p)));
    }
    value
}

/// One result as a table with headings. The server only answers: it knows how often, the first messages to warm up included,
/// and no times.
pub fn lat_table(result: &TestResult) -> Table {
    let counted = if result.rtt.is_some() { "round trips" } else { "   answered" };
    let names = [
        "    size",
        counted,
        "unanswered",
        "     min",
        "     p50",
        "     p99",
        "   p99.9",
        "     max",
        "    mean",
    ];
    let mut table = Table::new(names.map(|n| (n, Right)));
    let half = |ns: u64| Time::nanos(ns / 2).to_string();
    match &result.rtt {
        // A signal may come while nothing counts yet.
        Some(rtt) if rtt.is_empty() => {
            let known = [result.spec.size.to_string(), "0".to_owned(), result.unanswered.to_string()];
            let unknown = names.iter().skip(known.len()).map(|_| "-".to_owned());
            table.row(known.into_iter().chain(unknown));
        }
        Some(rtt) => table.row([
            result.spec.size.to_string(),
            rtt.len().to_string(),
            result.unanswered.to_string(),
            half(rtt.min()),
            half(rtt.value_at_percentile(50.0)),
            half(rtt.value_at_percentile(99.0)),
            half(rtt.value_at_percentile(99.9)),
            half(rtt.max()),
            half(rtt.mean() as u64),
        ]),
        None => {
            let known = [result.spec.size.to_string(), result.server.sent.to_string()];
            let unknown = names.iter().skip(known.len()).map(|_| "-".to_owned());
            table.row(known.into_iter().chain(unknown));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_no_round_trips_are_unknown() {
        let mut rtt = Histogram::<u64>::new(3).unwrap();
        let names = ["min", "max", "mean", "stdev", "p50", "p99", "p99_9", "p99_99"];
        let none = to_json(&rtt, 5);
        assert_eq!((&none["round_trips"], &none["unanswered"]), (&json!(0), &json!(5)));
        assert!(names.iter().all(|name| none["half_rtt_ns"][name].is_null()), "{none}");
        rtt.record(2_000).unwrap();
        let one = to_json(&rtt, 0);
        assert!(names.iter().all(|name| one["half_rtt_ns"][name].is_number()), "{one}");
        assert_eq!(one["half_rtt_ns"]["min"], 1_000.0);
    }
}
