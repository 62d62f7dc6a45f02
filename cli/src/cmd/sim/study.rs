//! Scenarios with promises: many paths, a permutation that other simulators publish figures of, the tail of collectives.

use super::{SimArgs, Study};
use crate::error::{Error, Exit};
use crate::report::Out;
use crate::report::json::Document;
use crate::report::table::{Align, Table};
use serde_json::{Value, json};
use std::time::Duration;
use testbed_sim::single::Single;
use testbed_sim::study::tail::{Cell, Collective, SWITCHES};
use testbed_sim::study::{paths, permutation};
use testbed_sim::{Trace, Violation, simulate};

/// Seeds of each figure.
const SEEDS: u64 = 3;
/// Paths of the permutation's sessions.
const PATHS: u8 = 32;
/// Hosts of a collective at the least, and if nothing else is asked for.
const HOSTS: u16 = 16;

/// What all studies give: rows of results, and what was wrong.
pub(super) struct Findings {
    pub results: Vec<Value>,
    pub violations: Vec<String>,
}

impl Findings {
    pub fn take(&mut self, verdict: Result<(), Violation>, result: Value) {
        self.judge(verdict);
        self.results.push(result);
    }

    pub fn judge(&mut self, verdict: Result<(), Violation>) {
        if let Err(violation) = verdict {
            self.violations.push(violation.to_string());
        }
    }
}

/// Runs a study and reports.
pub fn run(args: &SimArgs, study: Study) -> Result<Exit, Error> {
    let target = args.output.json();
    let mut out = target.text();
    let first = args.seed.unwrap_or(1);
    let seeds: Vec<u64> = (0..SEEDS).map(|i| first.wrapping_add(i)).collect();
    let mut found = Findings { results: Vec::new(), violations: Vec::new() };
    match study {
        Study::Paths => many_paths(&seeds, &mut found, &mut out)?,
        Study::Permutation => two_tiers(&seeds, &mut found, &mut out)?,
        Study::Fec => super::long::run(first, &mut found, &mut out)?,
        Study::Tail => collectives(&seeds, args.one.hosts.max(HOSTS), &mut found, &mut out)?,
    }
    for violation in &found.violations {
        out.line(format_args!("VIOLATION {violation}"))?;
    }
    out.flush()?;
    let mut document = Document::new("sim", args);
    document.set("results", &found.results);
    document.set("violations", &found.violations);
    document.set("ok", &found.violations.is_empty());
    document.write(&target)?;
    Ok(if found.violations.is_empty() { Exit::Ok } else { Exit::Failed })
}

pub(super) fn print(table: &Table, out: &mut Out) -> Result<(), Error> {
    table.to_string().lines().try_for_each(|line| out.line(line))?;
    out.flush()
}

fn micros(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1_000.0
}

fn percent(share: f64) -> String {
    format!("{:.3} %", 100.0 * share)
}

fn times(n: Option<f64>) -> String {
    n.map_or_else(|| "–".to_owned(), |n| format!("{n:.2}"))
}

fn many_paths(seeds: &[u64], found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    let columns = [
        "seed",
        "needless",
        "lost",
        "repaired p50",
        "p99",
        "max",
        "by RTO",
        "pause",
        "back",
        "Jain",
        "Gbit/s",
    ];
    let columns = columns.map(|name| (name, Align::Right));
    let mut table = Table::new([("network", Align::Left)].into_iter().chain(columns));
    for &seed in seeds {
        for case in paths::cases(seed) {
            let (o, verdict) = case.run();
            let r = &o.report;
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| r.repaired(q));
            let result = json!({
                "network": case.name,
                "seed": seed,
                "needless_share": o.spurious,
                "lost": r.lost,
                "repaired_round_trips": { "p50": p50, "p99": p99, "max": max },
                "rto_share": r.timed_out(),
                "longest_pause_ns": r.stall.as_nanos() as u64,
                "back_ns": o.back.map(|d| d.as_nanos() as u64),
                "fairness": o.fairness,
                "goodput": 8.0 * o.goodput,
                "round_trip_ns": r.round_trip.as_nanos() as u64,
            });
            table.row([
                case.name.to_owned(),
                seed.to_string(),
                percent(o.spurious),
                r.lost.to_string(),
                times(p50),
                times(p99),
                times(max),
                percent(r.timed_out()),
                format!("{:.0} µs", micros(r.stall)),
                o.back.map_or_else(|| "–".to_owned(), |d| format!("{:.0} ms", micros(d) / 1_000.0)),
                format!("{:.3}", o.fairness),
                format!("{:.2}", o.goodput * 8e-9),
            ]);
            found.take(verdict, result);
        }
    }
    out.line("Repairs are in mean round trips, queues included, from the loss to the arrival.")?;
    print(&table, out)
}

/// The same flows with and without health of paths, and what was published of others.
fn two_tiers(seeds: &[u64], found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    let columns = ["seed", "p50, µs", "p99, µs", "max, µs", "lost"].map(|name| (name, Align::Right));
    let mut table = Table::new([("flows of 2 MB, 64 hosts, 8 × 8", Align::Left)].into_iter().chain(columns));
    let variants: [(&str, bool, u8); 3] =
        [("32 paths by health", true, PATHS), ("32 paths in turn", false, PATHS), ("one path", true, 1)];
    for (name, health, paths) in variants {
        for &seed in seeds {
            let mut single: Single = permutation::scenario(seed, paths);
            single.config.mechanisms.health = health;
            let (report, verdict) = simulate(&single.scenario(), Trace::hash());
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| report.quantile(q).map_or(0.0, micros));
            let cells = [p50, p99, max].map(|us| format!("{us:.1}"));
            table.row(
                [name.to_owned(), seed.to_string()].into_iter().chain(cells).chain([report.lost.to_string()]),
            );
            let completion = json!({ "p50": p50, "p99": p99, "max": max });
            found.take(
                verdict,
                json!({ "flows": name, "seed": seed, "completion_us": completion, "lost": report.lost }),
            );
        }
    }
    for (name, p50, p99) in permutation::ELSEWHERE {
        let cells = [name.to_owned(), "–".to_owned(), p50.to_string(), p99.to_string()];
        table.row(cells.into_iter().chain(["–".to_owned(), "–".to_owned()]));
        found.results.push(json!({ "flows": name, "completion_us": { "p50": p50, "p99": p99 } }));
    }
    print(&table, out)?;
    out.line("A flow ends with the acknowledgement of its last byte. Its bound: 160 µs for 2 MB at 100 Gb/s, 165 with headers, and about")?;
    out.line("10 for the last segment's way and its feedback's. Neither packet trimming nor PFC is used.")
}

fn collectives(seeds: &[u64], hosts: u16, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line(format_args!(
        "{hosts} hosts; each switch loses the share given, most packets pass three; means of {} seeds",
        seeds.len()
    ))?;
    for collective in [Collective::Ring, Collective::AllToAll] {
        for size in [4 << 10, 64 << 10, 1 << 20] {
            for loss in [0.000_3, 0.003] {
                let columns = ["message p99", "step p50", "step p99", "all", "lost", "by RTO", "needless"];
                let columns = columns.map(|name| (name, Align::Right));
                let title = format!("{collective:?}, {size} bytes, {} %", 100.0 * loss);
                let mut table = Table::new([(title.as_str(), Align::Left)].into_iter().chain(columns));
                for switch in SWITCHES {
                    let mut sum = [0.0; 7];
                    for &seed in seeds {
                        let cell = Cell { collective, hosts: usize::from(hosts), size, loss, seed };
                        let (t, verdict) = cell.run(switch);
                        let r = &t.report;
                        let figures = [
                            micros(t.message),
                            micros(t.step_p50),
                            micros(t.step_p99),
                            micros(t.whole),
                            r.lost as f64,
                            r.timed_out(),
                            r.spurious as f64,
                        ];
                        for (sum, figure) in sum.iter_mut().zip(figures) {
                            *sum += figure / seeds.len() as f64;
                        }
                        let result = json!({
                            "collective": format!("{collective:?}"), "size": size, "switch_loss": loss, "seed": seed,
                            "variant": switch.0, "message_p99_us": figures[0], "step_p50_us": figures[1],
                            "step_p99_us": figures[2], "whole_us": figures[3], "lost": r.lost,
                            "rto_share": figures[5], "needless": r.spurious,
                        });
                        found.take(verdict, result);
                    }
                    let [message, p50, p99, whole, lost, timed_out, needless] = sum;
                    let cells = [message, p50, p99, whole].map(|us| format!("{us:.1} µs"));
                    let tail = [format!("{lost:.0}"), percent(timed_out), format!("{needless:.0}")];
                    table.row([switch.0.to_owned()].into_iter().chain(cells).chain(tail));
                }
                print(&table, out)?;
            }
        }
    }
    Ok(())
}
