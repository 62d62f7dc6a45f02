//! The table of [`tail`](super::tail): every cell with each mechanism switched off in turn, the oracle, and fixed intervals of which the best counts.

use super::tail::{Cell, SWITCHES, Tail, Variant};
use crate::Violation;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The intervals that are tried, in microseconds: from what is hardly a round trip of the empty network on.
pub const INTERVALS: [u64; 6] = [30, 40, 60, 100, 200, 400];

/// Names of the figures of a [`Row`].
pub const FIGURES: [&str; 4] = ["message p99", "step p50", "step p99", "all"];

/// One line of a cell's table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was switched off, or how else losses were found.
    pub name: String,
    /// What came of each seed.
    pub tails: Vec<Tail>,
    /// The figures by [`FIGURES`] in microseconds, means over the seeds.
    pub means: [f64; 4],
}

/// A cell with all its lines.
#[derive(Clone, Debug)]
pub struct Table {
    /// The cell, with its first seed.
    pub cell: Cell,
    /// Everything on, then each switch.
    pub switches: Vec<Row>,
    /// Whatever is lost is known at once.
    pub oracle: Row,
    /// Whatever is lost is known when an answer could have come.
    pub answered: Row,
    /// Each of [`INTERVALS`].
    pub fixed: Vec<Row>,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

impl Row {
    fn new(name: String, tails: Vec<Tail>) -> Row {
        let mean = |figure: fn(&Tail) -> Duration| {
            let sum: Duration = tails.iter().map(figure).sum();
            sum.as_nanos() as f64 / 1_000.0 / tails.len().max(1) as f64
        };
        let means = [mean(|t| t.message), mean(|t| t.step_p50), mean(|t| t.step_p99), mean(|t| t.whole)];
        Row { name, tails, means }
    }
}

impl Table {
    /// Runs a cell with so many seeds in so many threads; `told` hears of each run that has ended.
    pub fn run(cell: Cell, seeds: u64, threads: usize, told: &(dyn Fn(&str) + Sync)) -> Table {
        let switches = SWITCHES.iter().map(|s| (s.0.to_owned(), Variant::without(*s)));
        let oracle = [("oracle", Variant::oracle()), ("oracle by answers", Variant::answered())];
        let oracle = oracle.map(|(name, variant)| (name.to_owned(), variant));
        let fixed = INTERVALS.map(|us| (format!("fixed {us} µs"), Variant::fixed(Duration::from_micros(us))));
        let variants: Vec<(String, Variant)> = switches.chain(oracle).chain(fixed).collect();
        let jobs = variants.len() * seeds as usize;
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(jobs)));
        thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let job = next.fetch_add(1, Ordering::Relaxed);
                        let Some((name, variant)) = variants.get(job / seeds as usize) else { return };
                        let seed = cell.seed.wrapping_add(job as u64 % seeds);
                        let (mut tail, verdict) = Cell { seed, ..cell }.run(*variant);
                        // Of these there are as many as messages, and nobody reads them.
                        tail.report.spans = Vec::new();
                        tail.report.times = Vec::new();
                        tail.report.carried = Vec::new();
                        told(&format!("{:?} {} {} {name} {seed}", cell.collective, cell.size, cell.loss));
                        if let Ok(mut done) = done.lock() {
                            done.push((job, tail, verdict));
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_default();
        done.sort_by_key(|(job, ..)| *job);
        let violations = done.iter().filter_map(|(.., verdict)| verdict.clone().err()).collect();
        let mut tails = done.into_iter().map(|(_, tail, _)| tail);
        let mut rows = variants.into_iter().map(|(name, _)| {
            let tails = tails.by_ref().take(seeds as usize).collect();
            Row::new(name, tails)
        });
        let switches: Vec<Row> = rows.by_ref().take(SWITCHES.len()).collect();
        let [oracle, answered] =
            std::array::from_fn(|_| rows.next().unwrap_or_else(|| Row::new(String::new(), Vec::new())));
        let fixed: Vec<Row> = rows.collect();
        Table { cell, switches, oracle, answered, fixed, violations }
    }

    /// A figure with the fixed interval that is best for it.
    pub fn tuned(&self, figure: usize) -> f64 {
        self.fixed.iter().map(|row| row.means[figure]).fold(f64::INFINITY, f64::min)
    }

    /// The share that a row closes of what lies, in a figure, between the best fixed interval and the oracle; above one, if it is better than the oracle: it may send for the case what the oracle sends
    /// when it knows. None where there is less than a twentieth of the oracle's figure between them: then no detection is worth more than another.
    pub fn share(&self, row: &Row, figure: usize) -> Option<f64> {
        let (fixed, oracle) = (self.tuned(figure), self.oracle.means[figure]);
        (fixed - oracle >= oracle / 20.0).then(|| (fixed - row.means[figure]) / (fixed - oracle))
    }
}
