//! Random scenarios, one for each seed. A seed that fails is made smaller, and printed with the command that shows it again.

use super::{SimArgs, cut, figures, simulate, table};
use crate::error::{Error, Exit};
use crate::report::Out;
use crate::report::json::Document;
use crate::report::numbers::plural;
use crate::signal;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use testbed_sim::shrink::{Cut, shrink};
use testbed_sim::{Report, Scenario, Trace};

/// Scenarios, if nothing else is asked for.
const RUNS: u64 = 100;
/// Runs that making a failing scenario smaller may take.
const TRIES: usize = 100;
/// Failing seeds that are made smaller; of more, only the numbers are printed.
const SHRUNK: usize = 10;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// A seed that failed.
struct Failure {
    seed: u64,
    what: String,
    replay: String,
}

/// Runs them and reports.
pub fn run(args: &SimArgs) -> Result<Exit, Error> {
    let target = args.output.json();
    let mut out = target.text();
    let stop = signal::install()?;
    // Below 2⁵³, so that every reader of the report has it exactly.
    let first = args.seed.unwrap_or_else(|| fresh() >> 11);
    let runs = args.runs.unwrap_or(if args.seconds.is_some() { u64::MAX } else { RUNS });
    out.line(format_args!("seeds from {first} on"))?;
    out.flush()?;
    let (start, mut told) = (Instant::now(), Instant::now());
    let (mut sum, mut done, mut failures) = (Report::default(), 0, Vec::new());
    while done < runs && !stop.requested() && args.seconds.is_none_or(|limit| start.elapsed() < limit) {
        let seed = first.wrapping_add(done);
        done += 1;
        if let Some(failure) = play(args, seed, &mut sum, &mut out, failures.len() < SHRUNK)? {
            out.line(format_args!("seed {seed} FAILED: {}", failure.what))?;
            out.line(format_args!("  {}", failure.replay))?;
            out.flush()?;
            failures.push(failure);
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            let failed = failures.len();
            Out::stderr().line(format_args!("{}, {failed} failed, seed {seed}", plural(done, "run")))?;
        }
    }
    let wall = start.elapsed();
    table(&sum, wall).to_string().lines().try_for_each(|line| out.line(line))?;
    out.line(format_args!("{}, {} failed", plural(done, "run"), failures.len()))?;
    out.flush()?;
    let mut document = Document::new("sim", args);
    let list = failures.iter().map(|f| json!({"seed": f.seed, "violation": f.what, "replay": f.replay}));
    document.set("results", &list.collect::<Vec<Value>>());
    document.set("summary", &figures(&sum));
    document.set("first_seed", &first);
    document.set("runs", &done);
    document.set("wall_ns", &(wall.as_nanos() as u64));
    document.set("ok", &failures.is_empty());
    document.set("interrupted", &stop.requested());
    document.write(&target)?;
    Ok(match (failures.is_empty(), stop.requested()) {
        (false, _) => Exit::Failed,
        (true, true) => Exit::Interrupted,
        (true, false) => Exit::Ok,
    })
}

/// A number that differs from run to run.
fn fresh() -> u64 {
    let mut bytes = [0; 8];
    // Without the kernel's the time does: it is only to be another one each time.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64),
    }
}

/// Plays one seed.
fn play(
    args: &SimArgs,
    seed: u64,
    sum: &mut Report,
    out: &mut Out,
    small: bool,
) -> Result<Option<Failure>, Error> {
    let whole = Scenario::swarm(seed);
    let scenario = cut(args).apply(&whole);
    // A panic of an engine is a finding as any other, and its seed is wanted.
    let played =
        catch_unwind(AssertUnwindSafe(|| simulate(args, &scenario, std::mem::replace(out, Out::nowhere()))));
    let Ok(played) = played else {
        *out = args.output.json().text();
        return Ok(Some(Failure { seed, what: "panic".to_owned(), replay: replay(seed, &cut(args)) }));
    };
    let (report, verdict, back) = played?;
    *out = back;
    sum.add(&report);
    let Err(violation) = verdict else { return Ok(None) };
    let asked = cut(args);
    let cut = if small && asked == Cut::default() && !args.trace {
        catch_unwind(|| shrink(&whole, violation.check, TRIES)).unwrap_or_default()
    } else {
        asked
    };
    // What the smaller one says, since that is what will be looked at.
    let what = match testbed_sim::simulate(&cut.apply(&whole), Trace::hash()).1 {
        Err(smaller) => smaller.to_string(),
        Ok(()) => violation.to_string(),
    };
    Ok(Some(Failure { seed, what, replay: replay(seed, &cut) }))
}

/// The command that plays a seed again, as a log.
fn replay(seed: u64, cut: &Cut) -> String {
    let mut line = format!("spraywire sim --swarm --seed {seed} --runs 1 --trace");
    if let Some(messages) = cut.messages {
        line.push_str(&format!(" --first-messages {messages}"));
    }
    if !cut.without_faults.is_empty() {
        let list: Vec<String> = cut.without_faults.iter().map(usize::to_string).collect();
        line.push_str(&format!(" --without-faults {}", list.join(",")));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn what_is_printed_is_taken_again() {
        for cut in [
            Cut::default(),
            Cut { messages: Some(12), without_faults: vec![0, 3] },
            Cut { messages: None, without_faults: vec![1] },
        ] {
            let line = replay(7, &cut);
            let Command::Sim(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            assert!(args.swarm && args.trace);
            assert_eq!((args.seed, args.runs), (Some(7), Some(1)));
            assert_eq!(super::cut(&args), cut);
        }
    }
}
