//! Times as they are distributed: what a curve can be drawn from.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The quantiles that reports have: even steps, and ever finer ones where the slow ones are.
pub const POINTS: [f64; 22] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998,
    0.999, 0.9999, 1.0,
];

/// A distribution of times, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many were measured.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// The median.
    pub p50: u64,
    /// 99 % take no longer.
    pub p99: u64,
    /// 99.9 % take no longer.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
    /// The mean.
    pub mean: u64,
    /// Share, from 0 to 1, and the time that this share is done in; at [`POINTS`].
    pub quantiles: Vec<(f64, u64)>,
}

impl Quantiles {
    /// Of what was recorded; none if nothing was.
    pub fn of(times: &Histogram<u64>) -> Option<Quantiles> {
        if times.is_empty() {
            return None;
        }
        let at = |q: f64| match q {
            q if q <= 0.0 => times.min(),
            q if q >= 1.0 => times.max(),
            q => times.value_at_quantile(q),
        };
        Some(Quantiles {
            count: times.len(),
            min: times.min(),
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            max: times.max(),
            mean: times.mean() as u64,
            quantiles: POINTS.map(|q| (q, at(q))).into(),
        })
    }
}

/// The same points of any distribution, as JSON.
pub fn points(at: impl Fn(f64) -> Option<f64>) -> Value {
    POINTS.iter().filter_map(|&q| Some(json!([q, at(q)?]))).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut times = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        assert_eq!(Quantiles::of(&times), None);
        (1..=1_000).for_each(|n| times.record(n).unwrap());
        let q = Quantiles::of(&times).unwrap();
        assert_eq!(
            (q.count, q.min, q.p50, q.p99, q.p99_9, q.max, q.mean),
            (1000, 1, 500, 990, 999, 1000, 500)
        );
        assert_eq!(q.quantiles.len(), POINTS.len());
        assert_eq!((q.quantiles[0], q.quantiles[7], q.quantiles[21]), ((0.0, 1), (0.5, 500), (1.0, 1000)));
        assert!(POINTS.is_sorted());
        assert_eq!(points(|q| (q < 0.04).then_some(q * 2.0)), json!([[0.0, 0.0], [0.01, 0.02]]));
    }
}
