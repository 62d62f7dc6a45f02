//! What the steps of a test came to.

use super::collective::Workload;
use super::rank::Sent;
use crate::error::Error;
use crate::report::numbers::Time;
use crate::report::table::{Align, Table};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Duration;

/// Times of steps, and what was wrong in them.
#[derive(Clone, Debug)]
pub struct Tally {
    times: Histogram<u64>,
    total: u128,
    /// Elements that were not what they should be.
    pub wrong: u64,
    sent: Sent,
}

impl Tally {
    /// Of no step yet.
    ///
    /// # Errors
    /// None that is known: the histogram's bounds are right.
    pub fn new() -> Result<Tally, Error> {
        let times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).map_err(Error::failed)?;
        Ok(Tally { times, total: 0, wrong: 0, sent: Sent::default() })
    }

    /// A step took so long, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.times.saturating_record(ns);
        self.total += u128::from(ns);
    }

    /// What a rank had in a step.
    pub fn add(&mut self, wrong: u64, sent: &Sent) {
        self.wrong += wrong;
        self.sent.segments += sent.segments;
        self.sent.again += sent.again;
        self.sent.parity += sent.parity;
    }

    /// Steps.
    pub fn steps(&self) -> u64 {
        self.times.len()
    }

    /// Their time.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.total).unwrap_or(u64::MAX))
    }

    /// Bits per second that a user sees: the buffer by the mean time of a step.
    fn algorithm(&self, size: u64) -> f64 {
        match self.total {
            0 => 0.0,
            total => size as f64 * 8.0 * self.steps() as f64 / (total as f64 / 1e9),
        }
    }

    /// As JSON.
    pub fn to_json(&self, workload: Workload, ranks: u32, size: u64) -> Value {
        let quantile = |q| self.times.value_at_quantile(q);
        let steps = self.steps();
        json!({
            "workload": workload.name(),
            "ranks": ranks,
            "size": size,
            "steps": steps,
            "wrong": self.wrong,
            "step_ns": {
                "min": if steps == 0 { 0 } else { self.times.min() },
                "p50": quantile(0.5),
                "p99": quantile(0.99),
                "max": self.times.max(),
                "mean": if steps == 0 { 0.0 } else { self.total as f64 / steps as f64 },
            },
            "algorithm_bits_per_second": self.algorithm(size),
            "bus_bits_per_second": self.algorithm(size) * workload.bus_factor(ranks),
            "segments": self.sent.segments,
            "retransmitted": self.sent.again,
            "parity": self.sent.parity,
        })
    }
}

/// A table of tests.
pub fn table(workload: Workload, ranks: u32, tests: &[(u64, &Tally)]) -> Table {
    let columns = [
        "    size",
        "ranks",
        "   steps",
        " step p50",
        "      p99",
        "      max",
        "algo Gbit/s",
        " bus Gbit/s",
        "sent again",
        "wrong",
    ];
    let mut table = Table::new(columns.map(|name| (name, Align::Right)));
    for (size, tally) in tests {
        let time = |q| Time::nanos(tally.times.value_at_quantile(q)).to_string();
        let algorithm = tally.algorithm(*size) / 1e9;
        table.row([
            size.to_string(),
            ranks.to_string(),
            tally.steps().to_string(),
            time(0.5),
            time(0.99),
            time(1.0),
            format!("{algorithm:.3}"),
            format!("{:.3}", algorithm * workload.bus_factor(ranks)),
            tally.sent.again.to_string(),
            tally.wrong.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_of_the_mean_step() {
        let mut tally = Tally::new().unwrap();
        tally.record(1_000_000);
        tally.record(3_000_000);
        tally.add(2, &Sent { segments: 100, again: 7, parity: 9 });
        let json = tally.to_json(Workload::AllReduce, 4, 1_000_000);
        // 8 Mbit in 2 ms.
        assert_eq!(json["algorithm_bits_per_second"], 4e9);
        assert_eq!(json["bus_bits_per_second"], 6e9);
        assert_eq!(
            [&json["wrong"], &json["segments"], &json["retransmitted"], &json["parity"], &json["steps"]],
            [2, 100, 7, 9, 2].map(|n| json!(n)).each_ref()
        );
        let text = table(Workload::AllReduce, 4, &[(1_000_000, &tally)]).to_string();
        let cells: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            ["1000000", "4", "2", "1.00", "ms", "3.00", "ms", "3.00", "ms", "4.000", "6.000", "7", "2"]
        );
    }

    #[test]
    fn no_step_is_no_division_by_zero() {
        let json = Tally::new().unwrap().to_json(Workload::AllToAll, 2, 8);
        assert_eq!((&json["algorithm_bits_per_second"], &json["step_ns"]["p99"]), (&json!(0.0), &json!(0)));
    }
}
