//! `spraywire sim --study fec`: what forward error correction is worth over a long lossy link.

use super::study::{Findings, print};
use crate::error::Error;
use crate::report::Out;
use crate::report::table::{Align, Table};
use serde_json::json;
use std::time::Duration;
use testbed_sim::study::fec::{
    ACTIVATION, CODES, Completion, FAST, GRADIENT, Mixed, SIZES, SLOW, Step, goodputs, losses,
};
use testbed_sim::study::residual::{CELLS, Residual};

/// Groups of each cell of the burst table. Those of independent losses and of the greatest depth fail rarely: there are more of them.
const GROUPS: (usize, usize) = (64_000, 320_000);
/// A computed share from which on the lower number is enough.
const OFTEN: f64 = 1e-3;

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn met(is: bool) -> String {
    if is { "met" } else { "MISSED" }.to_owned()
}

fn columns(first: &str, others: &[&str]) -> Table {
    let others: Vec<(&str, Align)> = others.iter().map(|name| (*name, Align::Right)).collect();
    Table::new([(first, Align::Left)].into_iter().chain(others))
}

/// All of it.
pub fn run(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    completions(seed, found, out)?;
    mixes(seed, found, out)?;
    streams(seed, found, out)?;
    steps(seed, found, out)?;
    residuals(seed, found, out)
}

fn completions(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line(
        "25 ms there and back, losses of 0.1 %, gradients one after the other: the 99th percentile in ms",
    )?;
    out.line("wanted: at most 1.15 of lossless, what exceeds it a fifth of that of sending again, half of a time-out's way")?;
    let names =
        ["Gb/s", "size", "lossless", "protected", "ratio", "parity", "sent again", "gain", "time-out", ""];
    let mut table = columns("losses", &names);
    let both = losses().into_iter().flat_map(|losses| [SLOW, FAST].map(|rate| (losses, rate)));
    for ((name, loss), rate) in both {
        for (size, messages) in SIZES {
            let (c, verdict) = Completion::run(rate, (size, messages), loss, seed);
            table.row([
                name.to_owned(),
                rate.to_string(),
                format!("{} KiB", size >> 10),
                format!("{:.2}", millis(c.lossless)),
                format!("{:.2}", millis(c.protected)),
                format!("{:.3}", c.ratio()),
                format!("{:.1} %", 100.0 * c.cost),
                format!("{:.2}", millis(c.sent_again.0)),
                c.gain().map_or_else(|| "–".to_owned(), |gain| format!("{gain:.0}")),
                format!("{:.2}", millis(c.time_out)),
                met(c.is_met()),
            ]);
            found.take(
                verdict,
                json!({
                    "figure": "completion", "losses": name, "gigabits": rate, "size": size, "messages": messages, "seed": seed,
                    "p99_ms": {
                        "lossless": millis(c.lossless), "protected": millis(c.protected),
                        "sent_again": millis(c.sent_again.0), "time_out": millis(c.time_out),
                    },
                    "sent_again_by": c.sent_again.1, "ratio": c.ratio(), "gain": c.gain(), "parity_share": c.cost,
                    "repaired": c.repaired.0, "retransmitted": c.repaired.1, "met": c.is_met(),
                }),
            );
        }
    }
    print(&table, out)?;
    out.line(
        "gain: times that the excess of the best way of sending again is more; – where less than one message in a hundred is hit",
    )
}

fn mixes(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line("")?;
    out.line("a mix, each class one after the other: 4 MiB gradients that can wait, 1 MiB that cannot, 1 MiB activations, 16 KiB control; p99 in ms")?;
    let names = ["protected by", "gradients", "activations", "control", "parity, MB", ""];
    let mut table = columns("losses", &names);
    for (name, loss) in losses() {
        let ([tagged, alike @ ..], verdict) = Mixed::run(loss, seed, 2);
        let met_all = alike.iter().all(|other| tagged.is_met(other));
        for (i, m) in [&tagged].into_iter().chain(&alike).enumerate() {
            let p99 = m.p99.map(millis);
            let parity = m.parity_bytes as f64 / 1e6;
            let times = [1, 2, 3].map(|chain| format!("{:.2}", p99[chain]));
            let cells = [name.to_owned(), m.name.to_owned()].into_iter().chain(times);
            let verdict = if i == 0 { met(met_all) } else { String::new() };
            table.row(cells.chain([format!("{parity:.1}"), verdict]));
            found.results.push(json!({
                "figure": "mix", "losses": name, "seed": seed, "protected": m.name,
                "p99_ms": { "bulk": p99[0], "gradient": p99[1], "activation": p99[2], "control": p99[3] },
                "parity_bytes": m.parity_bytes, "met": (i == 0).then_some(met_all),
            }));
        }
        found.judge(verdict);
    }
    print(&table, out)
}

fn streams(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line("")?;
    out.line("goodput over 1 Gb/s and 25 ms with losses of 0.1 %, as a share of k/(k + r) of that without parity and losses; wanted 0.97")?;
    let mut table = columns("code", &["share", ""]);
    let (shares, verdict) = goodputs(300, seed);
    for ((data, parity), share) in CODES.into_iter().zip(shares) {
        let is = share >= 0.97;
        table.row([format!("({data},{parity})"), format!("{share:.4}"), met(is)]);
        let code = json!([data, parity]);
        found
            .results
            .push(json!({ "figure": "goodput", "code": code, "share": share, "seed": seed, "met": is }));
    }
    found.judge(verdict);
    print(&table, out)
}

fn steps(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line("")?;
    out.line("losses rise from 0.01 to 1 % for 40 round trips and fall again: parity for each segment; from the tenth round trip of the step on nothing is to be sent")?;
    out.line("again, and a hundred after it parity is to be what it was")?;
    let names = ["before", "during", "after", "segments", "sent again", "residual", "borne", ""];
    let mut table = columns("class", &names);
    for (name, semantics, residual, data) in
        [("gradients", GRADIENT, 1e-4, 32), ("activations", ACTIVATION, 1e-5, 16)]
    {
        let (s, verdict) = Step::run(semantics, residual, data, seed);
        table.row([
            name.to_owned(),
            format!("{:.3}", s.before),
            format!("{:.3}", s.during),
            format!("{:.3}", s.after),
            s.settled.0.to_string(),
            s.settled.1.to_string(),
            format!("{:.1e}", s.residual.0),
            format!("{:.0e}", s.residual.1),
            met(s.is_met()),
        ]);
        found.take(
            verdict,
            json!({
                "figure": "step", "class": name, "seed": seed,
                "parity_share": { "before": s.before, "during": s.during, "after": s.after },
                "segments": s.settled.0, "retransmitted": s.settled.1,
                "residual": s.residual.0, "borne": s.residual.1, "met": s.is_met(),
            }),
        );
    }
    print(&table, out)
}

fn residuals(seed: u64, found: &mut Findings, out: &mut Out) -> Result<(), Error> {
    out.line("")?;
    out.line("groups of (32,4) of which something is sent again at a loss of 1 %, one path: measured and computed; wanted within the interval of 99 %")?;
    let mut table = columns("losses", &["depth", "groups", "failed", "measured", "±", "computed", ""]);
    for (bursts, depth) in CELLS {
        let often = Residual::computed((bursts, depth)) >= OFTEN;
        let (r, verdict) = Residual::run((bursts, depth), if often { GROUPS.0 } else { GROUPS.1 }, seed);
        let name = if bursts { "in bursts of 8" } else { "each by itself" };
        table.row([
            name.to_owned(),
            depth.to_string(),
            r.groups.to_string(),
            r.failed.to_string(),
            format!("{:.2e}", r.measured()),
            format!("{:.1e}", r.margin()),
            format!("{:.2e}", r.computed),
            met(r.is_met()),
        ]);
        found.take(
            verdict,
            json!({
                "figure": "residual", "losses": name, "depth": depth, "seed": seed, "groups": r.groups, "failed": r.failed,
                "measured": r.measured(), "margin": r.margin(), "computed": r.computed, "met": r.is_met(),
            }),
        );
    }
    print(&table, out)
}
