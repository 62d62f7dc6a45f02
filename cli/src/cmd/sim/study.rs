//! Scenarios with promises: many paths, a permutation that other simulators publish figures of, the tail of collectives.

use super::{SimArgs, Study};
use crate::error::{Error, Exit};
use crate::report::Out;
use crate::report::json::Document;
use crate::report::table::{Align, Table};
use serde_json::{Value, json};
use std::time::Duration;
use testbed_sim::single::Single;
use testbed_sim::study::ablation::{self, FIGURES};
use testbed_sim::study::tail::{Cell, Collective, Tail};
use testbed_sim::study::{paths, permutation};
use testbed_sim::{Trace, Violation, simulate};

/// Seeds of each figure.
const SEEDS: u64 = 3;
/// Paths of the permutation's sessions.
const PATHS: u8 = 32;
/// Hosts of a collective at the least.
const HOSTS: u16 = 16;
/// At each leaf of its network.
const LEAF: u16 = 8;

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
        Study::Tail => collectives(
            &seeds,
            &args.sizes,
            args.one.hosts.max(HOSTS).next_multiple_of(LEAF),
            &mut found,
            &mut out,
        )?,
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

/// The cells that tables are made of.
fn cells(sizes: &[u64], hosts: usize, seed: u64) -> impl Iterator<Item = Cell> {
    let collectives = [Collective::Ring, Collective::AllToAll].into_iter();
    collectives.flat_map(move |collective| {
        sizes.iter().flat_map(move |&size| {
            [0.001, 0.01].into_iter().map(move |loss| Cell { collective, hosts, size, loss, seed })
        })
    })
}

fn collectives(
    seeds: &[u64],
    sizes: &[u64],
    hosts: u16,
    found: &mut Findings,
    out: &mut Out,
) -> Result<(), Error> {
    out.line(format_args!(
        "{hosts} hosts; means of {} seeds, in µs; of what lies between the best fixed interval and an oracle, the share closed",
        seeds.len()
    ))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let first = seeds.first().copied().unwrap_or(1);
    for cell in cells(sizes, usize::from(hosts), first) {
        let table =
            ablation::Table::run(cell, seeds.len() as u64, threads, &|what| tracing::debug!("{what}"));
        tracing::info!("{:?}, {} bytes, {} % lost: done", cell.collective, cell.size, 100.0 * cell.loss);
        let title = format!("{:?}, {} bytes, {} % lost", cell.collective, cell.size, 100.0 * cell.loss);
        let columns = FIGURES.iter().flat_map(|figure| [*figure, "closed"]);
        let columns = columns.chain(["lost", "by RTO", "needless"]).map(|name| (name, Align::Right));
        let mut lines = Table::new([(title.as_str(), Align::Left)].into_iter().chain(columns));
        for row in table.switches.iter().chain([&table.oracle, &table.answered]).chain(&table.fixed) {
            let mean = |figure: fn(&Tail) -> f64| {
                row.tails.iter().map(figure).sum::<f64>() / row.tails.len().max(1) as f64
            };
            let lost = mean(|t| t.report.lost as f64);
            let (timed_out, needless) = (mean(|t| t.report.timed_out()), mean(|t| t.report.spurious as f64));
            let shares: Vec<Option<f64>> = (0..FIGURES.len()).map(|f| table.share(row, f)).collect();
            let figures = row.means.iter().zip(&shares).flat_map(|(mean, share)| {
                let share = share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", 100.0 * share));
                [format!("{mean:.1}"), share]
            });
            let tail = [format!("{lost:.0}"), percent(timed_out), format!("{needless:.0}")];
            lines.row([row.name.clone()].into_iter().chain(figures).chain(tail));
            let [message, p50, p99, whole] = row.means;
            found.results.push(json!({
                "collective": format!("{:?}", cell.collective), "size": cell.size, "loss": cell.loss,
                "hosts": hosts, "variant": row.name, "message_p99_us": message, "step_p50_us": p50,
                "step_p99_us": p99, "whole_us": whole, "closed": shares, "lost": lost,
                "rto_share": timed_out, "needless": needless,
            }));
        }
        found.violations.extend(table.violations.iter().map(ToString::to_string));
        print(&lines, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_some_sizes() {
        let cells: Vec<_> = cells(&[65_536, 4_096], 64, 7).collect();
        let of =
            |i: usize| (cells[i].collective, cells[i].size, cells[i].loss, cells[i].hosts, cells[i].seed);
        assert_eq!(cells.len(), 8);
        assert_eq!(of(0), (Collective::Ring, 65_536, 0.001, 64, 7));
        assert_eq!(of(3), (Collective::Ring, 4_096, 0.01, 64, 7));
        assert_eq!(of(4), (Collective::AllToAll, 65_536, 0.001, 64, 7));
    }
}
