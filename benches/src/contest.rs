//! Rounds of runs, each contestant once a round: A B C A B C …

use crate::child::{Failure, Stop};
use crate::stats::{Better, Comparison, median, present};
use serde::Serialize;
use serde_json::Value;

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The value that is compared.
    pub value: f64,
    /// What else is worth keeping of the run.
    pub detail: Value,
}

/// How one run of a contestant is done.
pub type Runner<'a> = Box<dyn FnMut() -> Result<Sample, Failure> + 'a>;

/// Somebody who takes part.
pub struct Contestant<'a> {
    /// Shown in tables.
    pub name: &'static str,
    /// The ratio to the baseline that is wanted of it.
    pub wanted: Option<f64>,
    /// Does one run.
    pub run: Runner<'a>,
}

/// What is contested.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// A word for it, in JSON.
    pub figure: &'static str,
    /// A heading for it.
    pub title: String,
    /// Payload of a message in bytes.
    pub size: usize,
    /// Of the values.
    pub unit: &'static str,
    /// Which values are good.
    pub better: Better,
}

/// All runs of one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// One value per round; none if the run failed.
    pub runs: Vec<Option<f64>>,
    /// What else is known of each run.
    pub details: Vec<Value>,
    /// Of the values that there are.
    pub median: Option<f64>,
    /// Of the values that there are.
    pub best: Option<f64>,
    /// How it stands to the baseline; the baseline itself has none.
    pub comparison: Option<Comparison>,
    /// The wanted ratio.
    pub wanted: Option<f64>,
    /// Whether the median of the ratios is as wanted; none if nothing is wanted. False if there is no ratio.
    pub pass: Option<bool>,
    /// Instructions of one operation, where they are counted.
    pub instructions: Option<f64>,
    /// What went wrong in the last run that failed.
    pub failure: Option<String>,
}

/// The outcome of an event. The first entry is the baseline.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was contested.
    #[serde(flatten)]
    pub event: Event,
    /// Everybody, the baseline first.
    pub entries: Vec<Entry>,
}

/// A contestant that failed in so many rounds from the start is not tried again.
const GIVE_UP_AFTER: usize = 2;

/// Runs the rounds; the first contestant is the baseline. `say` hears of every run. Interrupted, it returns the error:
/// half a figure is none.
pub fn hold(
    event: Event,
    mut contestants: Vec<Contestant<'_>>,
    rounds: usize,
    stop: &Stop,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome, Failure> {
    let mut entries: Vec<Entry> = contestants.iter().map(|c| Entry::new(c.name, c.wanted)).collect();
    for round in 0..rounds {
        for (contestant, entry) in contestants.iter_mut().zip(&mut entries) {
            stop.check()?;
            if entry.runs.len() >= GIVE_UP_AFTER && entry.runs.iter().all(Option::is_none) {
                entry.add(None, Value::Null);
                continue;
            }
            let prefix = format!("{} [{}/{rounds}] {}", event.title, round + 1, contestant.name);
            let ran = match (contestant.run)() {
                // A machine that stood still for a second fails a run that has nothing wrong.
                Err(Failure::Said(text)) => {
                    say(&format!("{prefix}: failed, once more: {text}"));
                    (contestant.run)()
                }
                ran => ran,
            };
            match ran {
                Ok(sample) => {
                    say(&format!("{prefix}: {}", crate::report::amount(sample.value, event.unit)));
                    entry.add(Some(sample.value), sample.detail);
                }
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(Failure::Said(text)) => {
                    say(&format!("{prefix}: failed: {text}"));
                    entry.add(None, Value::Null);
                    entry.failure = Some(text);
                }
            }
        }
    }
    Ok(Outcome::of(event, entries))
}

impl Entry {
    /// Without any run yet.
    pub fn new(name: &'static str, wanted: Option<f64>) -> Entry {
        Entry {
            name,
            runs: Vec::new(),
            details: Vec::new(),
            median: None,
            best: None,
            comparison: None,
            wanted,
            pass: None,
            instructions: None,
            failure: None,
        }
    }

    /// Of runs that there were: what is derived from others' entries.
    pub fn of(name: &'static str, wanted: Option<f64>, runs: Vec<Option<f64>>) -> Entry {
        Entry { runs, ..Entry::new(name, wanted) }
    }

    fn add(&mut self, value: Option<f64>, detail: Value) {
        self.runs.push(value);
        self.details.push(detail);
    }

    fn conclude(&mut self, baseline: Option<&[Option<f64>]>, better: Better) {
        let values = present(&self.runs);
        self.median = median(&values);
        self.best = better.best(&values);
        self.comparison = baseline.and_then(|baseline| Comparison::new(baseline, &self.runs, better));
        self.pass =
            self.wanted.map(|wanted| self.comparison.is_some_and(|c| better.reaches(c.ratio, wanted)));
    }
}

impl Outcome {
    /// Of entries that have their runs: compared with the first.
    pub fn of(event: Event, mut entries: Vec<Entry>) -> Outcome {
        let baseline = entries.first().map(|e| e.runs.clone()).unwrap_or_default();
        for (i, entry) in entries.iter_mut().enumerate() {
            entry.conclude((i > 0).then_some(baseline.as_slice()), event.better);
        }
        Outcome { event, entries }
    }

    /// Whether everything that was wanted came.
    pub fn passed(&self) -> bool {
        self.entries.iter().all(|entry| entry.pass != Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn event() -> Event {
        Event { figure: "ud", title: "test".into(), size: 64, unit: "msg/s", better: Better::Higher }
    }

    fn sample(value: f64) -> Result<Sample, Failure> {
        Ok(Sample { value, detail: Value::Null })
    }

    #[test]
    fn rounds_are_interleaved_and_compared_with_the_first() {
        let order = RefCell::new(String::new());
        let contestants = vec![
            Contestant {
                name: "bare",
                wanted: None,
                run: Box::new(|| {
                    order.borrow_mut().push('A');
                    sample(10.0)
                }),
            },
            Contestant {
                name: "worker",
                wanted: Some(0.8),
                run: Box::new(|| {
                    order.borrow_mut().push('B');
                    sample(order.borrow().len() as f64)
                }),
            },
        ];
        let mut said = 0;
        let outcome = hold(event(), contestants, 3, &Stop::never(), &mut |_| said += 1).unwrap();
        assert_eq!(order.into_inner(), "ABABAB");
        assert_eq!(said, 6);
        let worker = &outcome.entries[1];
        assert_eq!(worker.runs, [Some(2.0), Some(4.0), Some(6.0)]);
        assert_eq!(worker.comparison.unwrap().ratio, 0.4);
        assert_eq!(worker.pass, Some(false));
        assert_eq!(outcome.entries[0].comparison, None);
        assert_eq!(outcome.entries[0].pass, None);
        assert!(!outcome.passed());
    }

    #[test]
    fn a_run_that_failed_is_done_once_more() {
        let mut tries = 0;
        let run = || {
            tries += 1;
            if tries == 1 { Err(Failure::Said("the machine stood still".into())) } else { sample(7.0) }
        };
        let contestants = vec![Contestant { name: "bare", wanted: None, run: Box::new(run) }];
        let outcome = hold(event(), contestants, 2, &Stop::never(), &mut |_| {}).unwrap();
        assert_eq!(outcome.entries[0].runs, [Some(7.0), Some(7.0)]);
        assert_eq!(outcome.entries[0].failure, None);
    }

    #[test]
    fn a_contestant_that_never_runs_is_given_up_and_fails() {
        let mut tries = 0;
        let contestants = vec![
            Contestant { name: "bare", wanted: None, run: Box::new(|| sample(1.0)) },
            Contestant {
                name: "worker",
                wanted: Some(0.5),
                run: Box::new(|| {
                    tries += 1;
                    Err(Failure::Said("no".into()))
                }),
            },
        ];
        let outcome = hold(event(), contestants, 5, &Stop::never(), &mut |_| {}).unwrap();
        assert_eq!(outcome.entries[1].runs, [None; 5]);
        assert_eq!(outcome.entries[1].failure.as_deref(), Some("no"));
        assert_eq!(outcome.entries[1].pass, Some(false));
        assert_eq!(tries, 2 * GIVE_UP_AFTER, "each round tries twice");
    }
}
