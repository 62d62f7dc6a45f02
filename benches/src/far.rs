//! Forward error correction between two data centres: real processes with `spraywire wan` between them.

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Entry, Event, Outcome, hold};
use crate::peers::Setup;
use crate::peers::reliable::{Transfer, Wan, completion, goodput};
use crate::stats::Better;
use std::time::Duration;

/// The link.
const RATE: u64 = 1_000_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(25);
const LOSS: f64 = 0.001;
/// How losses come: each by itself, and in bursts of so many on average.
const WEATHERS: [(&str, Option<f64>); 2] = [("independent losses", None), ("bursts of 8", Some(8.0))];
/// Bytes of a message, and how many are sent one after the other.
const SIZES: [(usize, u64); 4] = [(256 << 10, 300), (1 << 20, 300), (4 << 20, 200), (16 << 20, 100)];
/// All of a message may be in flight: no setting repairs sooner by sending again.
const WINDOW: usize = 32 << 20;
/// p99 of protected messages, at most so many times that without losses.
const NEAR: f64 = 1.15;
/// What p99 is above that without losses, at most this share of what it is if everything lost is sent again.
const EXCESS: f64 = 0.2;
/// p99, at most this share of what a time-out of three round trips makes it.
const BY_TIMEOUT: f64 = 0.5;
/// A link that is the bottleneck of a stream: what three processes on two processors carry without being it themselves. A message for it is whole groups of each code,
/// and the window some of its round trips.
const NARROW: u64 = 400_000_000;
const MESSAGE: usize = 256 * 4008;
const STREAM: usize = 4 << 20;
/// Codes of which the goodput is measured: without losses, and with. What is wanted of what they leave.
const CODES: [((u32, u32), [&str; 3]); 2] = [
    ((32, 4), ["--fec=32,4", "(32,4), no loss", "(32,4), 0.1 % lost"]),
    ((16, 4), ["--fec=16,4", "(16,4), no loss", "(16,4), 0.1 % lost"]),
];
const GOODPUT: f64 = 0.97;

/// Measures; `each` gets the outcomes. Of `sizes`, those that there are here, or all if there is none.
pub fn measure(
    setup: &Setup,
    rounds: usize,
    sizes: &[usize],
    stop: &Stop,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), Failure> {
    let chosen: Vec<_> = SIZES.into_iter().filter(|(size, _)| sizes.contains(size)).collect();
    let goodput = sizes.contains(&1);
    let all = chosen.is_empty() && !goodput;
    for (size, count) in if all { SIZES.to_vec() } else { chosen } {
        let outcome = completions(setup, rounds, (size, count), stop)?;
        let derived = WEATHERS.map(|(weather, _)| conclusions(&outcome, weather));
        each(outcome);
        derived.into_iter().flatten().for_each(&mut *each);
    }
    if all || goodput {
        each(throughput(setup, rounds, stop)?);
    }
    Ok(())
}

/// A transfer of messages that are gradients.
fn transfer(setup: &Setup, size: usize, weather: Option<Option<f64>>, how: &[&str]) -> Transfer {
    let (loss, burst) = weather.map_or((0.0, None), |burst| (LOSS, burst));
    Transfer {
        wan: Some(Wan { burst, ..Wan::new(RATE, ROUND_TRIP, loss) }),
        window: WINDOW,
        memory: WINDOW.max(4 * size),
        tx_depth: 1,
        both: ["--class=dp"].iter().chain(how).map(|&word| word.to_owned()).collect(),
        ..Transfer::new(setup, size)
    }
}

/// The names of contestants in a weather: protected as tags ask, sent again, and by a time-out.
fn names(weather: &str) -> [&'static str; 3] {
    match weather {
        "bursts of 8" => ["by tags, bursts", "sent again, bursts", "time-out, bursts"],
        _ => ["by tags", "sent again", "time-out of 3 round trips"],
    }
}

fn completions(
    setup: &Setup,
    rounds: usize,
    (size, count): (usize, u64),
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let timeout = format!("--rto-only={}ms", 3 * ROUND_TRIP.as_millis());
    let contestant = |name, wanted, weather, how: &[&str]| {
        let transfer = Transfer { count: Some(count), ..transfer(setup, size, weather, how) };
        Contestant { name, wanted, run: Box::new(move || completion(setup, &transfer, ROUND_TRIP / 2, stop)) }
    };
    let mut contestants = vec![contestant("no loss", None, None, &["--fec=off"])];
    for (weather, burst) in WEATHERS {
        let [tags, again, slow] = names(weather);
        contestants.push(contestant(tags, Some(NEAR), Some(burst), &[]));
        contestants.push(contestant(again, None, Some(burst), &["--fec=off"]));
        contestants.push(contestant(slow, None, Some(burst), &["--fec=off", &timeout]));
    }
    let event = Event {
        figure: "fec-wan",
        title: format!(
            "p99 completion of {count} messages of {} KiB over 1 Gbit/s and 25 ms, 0.1 % lost",
            size >> 10
        ),
        size,
        unit: "ns",
        better: Better::Lower,
    };
    hold(event, contestants, rounds, stop, &mut |text| eprintln!("{text}"))
}

/// What the same runs say of protection beside both ways of sending again.
fn conclusions(outcome: &Outcome, weather: &str) -> Vec<Outcome> {
    let runs = |name: &str| {
        outcome.entries.iter().find(|e| e.name == name).map(|e| e.runs.clone()).unwrap_or_default()
    };
    let [tags, again, slow] = names(weather);
    let lossless = runs("no loss");
    let above = |runs: Vec<Option<f64>>| -> Vec<Option<f64>> {
        // Where it is nothing, a microsecond: a ratio to nothing would say nothing.
        runs.iter().zip(&lossless).map(|(run, bound)| Some(((*run)? - (*bound)?).max(1e3))).collect()
    };
    let event = |title: String| Event { title, ..outcome.event.clone() };
    let whole = &outcome.event.title;
    let excess =
        [Entry::of(again, None, above(runs(again))), Entry::of(tags, Some(EXCESS), above(runs(tags)))];
    let timeout = [Entry::of(slow, None, runs(slow)), Entry::of(tags, Some(BY_TIMEOUT), runs(tags))];
    vec![
        Outcome::of(event(format!("{weather}: what is above no loss, {whole}")), excess.into()),
        Outcome::of(event(format!("{weather}: beside a time-out, {whole}")), timeout.into()),
    ]
}

/// The goodputs of codes, without losses and with, beside that of nothing without.
fn throughput(setup: &Setup, rounds: usize, stop: &Stop) -> Result<Outcome, Failure> {
    let time = Duration::from_secs(3);
    let contestant = |name, wanted, weather: Option<Option<f64>>, how: &str| {
        let base = transfer(setup, MESSAGE, weather, &[how]);
        let wan = base.wan.map(|wan| Wan { rate: NARROW, ..wan });
        let transfer = Transfer { time, wan, window: STREAM, tx_depth: 32, ..base };
        Contestant { name, wanted, run: Box::new(move || goodput(setup, &transfer, stop)) }
    };
    let mut contestants = vec![contestant("nothing, no loss", None, None, "--fec=off")];
    for ((k, r), [how, calm, lossy]) in CODES {
        let wanted = GOODPUT * f64::from(k) / f64::from(k + r);
        contestants.push(contestant(calm, Some(wanted), None, how));
        contestants.push(contestant(lossy, Some(wanted), Some(None), how));
    }
    let event = Event {
        figure: "fec-wan",
        title: format!("protected goodput over 400 Mbit/s and 25 ms, messages of {MESSAGE} B"),
        size: MESSAGE,
        unit: "bit/s",
        better: Better::Higher,
    };
    hold(event, contestants, rounds, stop, &mut |text| eprintln!("{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::test_setup;

    #[test]
    fn protection_is_judged_by_what_it_leaves_of_the_excess() {
        let entry = |name, value| Entry::of(name, None, vec![Some(value)]);
        let [tags, again, slow] = names("bursts of 8");
        let event =
            Event { figure: "fec-wan", title: "t".into(), size: 1, unit: "ns", better: Better::Lower };
        let entries = vec![entry("no loss", 20e6), entry(tags, 22e6), entry(again, 50e6), entry(slow, 88e6)];
        let outcome = Outcome::of(event, entries);
        let [excess, timeout] = conclusions(&outcome, "bursts of 8").try_into().unwrap();
        let ratio = |outcome: &Outcome| (outcome.entries[1].comparison.unwrap().ratio * 1e3).round() / 1e3;
        assert_eq!((ratio(&excess), excess.passed()), (0.067, true));
        assert_eq!((ratio(&timeout), timeout.passed()), (0.25, true));
        assert!(
            conclusions(&outcome, "independent losses").iter().all(|o| !o.passed()),
            "there are no such runs"
        );
    }

    #[test]
    fn contestants_differ_in_what_they_are_to_differ_in() {
        let setup = test_setup();
        let calm = transfer(&setup, 1 << 20, None, &["--fec=off"]);
        let stormy = transfer(&setup, 1 << 20, Some(Some(8.0)), &[]);
        assert_eq!(calm.both, ["--class=dp", "--fec=off"]);
        assert_eq!(stormy.both, ["--class=dp"]);
        let wan = |t: &Transfer| t.wan.map(|w| (w.loss, w.burst, w.rate)).unwrap();
        assert_eq!((wan(&calm), wan(&stormy)), ((0.0, None, RATE), (LOSS, Some(8.0), RATE)));
    }
}
