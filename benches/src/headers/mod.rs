//! The headers alone: what it costs to build a packet's and to check a packet's, beside the bare CRC of the same bytes.

mod callgrind;
mod work;

pub use work::{Op, Work};

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, Sample, hold};
use crate::stats::Better;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one run of one operation lasts, about.
const RUN: Duration = Duration::from_millis(10);

/// Measures the operations of one payload size; with `valgrind`, counts their instructions too.
pub fn measure(
    size: usize,
    rounds: usize,
    this_program: &Path,
    stop: &Stop,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Failure> {
    let event = Event {
        figure: "headers",
        title: format!("headers and ICRC, {size} B payload, IPv4"),
        size,
        unit: "ns",
        better: Better::Lower,
    };
    let contestants = Op::ALL
        .into_iter()
        .map(|op| {
            let mut work = Work::new(size);
            let iters = calibrate(&mut work, op);
            Contestant {
                name: op.title(),
                wanted: None,
                run: Box::new(move || Ok(time(&mut work, op, iters))),
            }
        })
        .collect();
    let mut outcome = hold(event, contestants, rounds, stop, &mut |_| {})?;
    say(&format!("{}: timed", outcome.event.title));
    if !callgrind::installed() {
        say("no valgrind here, so no instructions are counted (Debian's package: valgrind)");
        return Ok(outcome);
    }
    for (op, entry) in Op::ALL.into_iter().zip(&mut outcome.entries) {
        match callgrind::instructions(this_program, op, size, stop) {
            Ok(count) => entry.instructions = Some(count),
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(failure) => say(&format!("{}: instructions not counted: {failure}", entry.name)),
        }
    }
    say(&format!("{}: instructions counted", outcome.event.title));
    Ok(outcome)
}

fn calibrate(work: &mut Work, op: Op) -> u64 {
    const TRIAL: u64 = 2000;
    work.run(op, TRIAL);
    let start = Instant::now();
    work.run(op, TRIAL);
    let each = start.elapsed().as_nanos().max(1) as u64 / TRIAL;
    (RUN.as_nanos() as u64 / each.max(1)).max(TRIAL)
}

fn time(work: &mut Work, op: Op, iters: u64) -> Sample {
    let start = Instant::now();
    work.run(op, iters);
    Sample { value: start.elapsed().as_nanos() as f64 / iters as f64, detail: Value::Null }
}
