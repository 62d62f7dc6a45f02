//! What is said of many short runs on a machine that is never the same for a minute.

use serde::Serialize;

/// The value at a share (0 to 1) of the sorted values, interpolated between neighbours; none of no values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// The middle value.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

impl Better {
    /// The best of the values.
    pub fn best(self, values: &[f64]) -> Option<f64> {
        values.iter().copied().reduce(|a, b| match self {
            Better::Higher => a.max(b),
            Better::Lower => a.min(b),
        })
    }

    /// Whether a ratio is as good as the wanted one, or better.
    pub fn reaches(self, ratio: f64, wanted: f64) -> bool {
        match self {
            Better::Higher => ratio >= wanted,
            Better::Lower => ratio <= wanted,
        }
    }
}

/// The values of the rounds that have one.
pub fn present(runs: &[Option<f64>]) -> Vec<f64> {
    runs.iter().flatten().copied().collect()
}

/// One contestant held against the baseline of the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Rounds in which both have a value.
    pub pairs: usize,
    /// Median of the rounds' ratios.
    pub ratio: f64,
    /// Lower quartile of the rounds' ratios.
    pub q1: f64,
    /// Upper quartile.
    pub q3: f64,
    /// The contestant's best run over the baseline's best.
    pub best: f64,
}

impl Comparison {
    /// Compares round by round; none if no round has both values.
    pub fn new(baseline: &[Option<f64>], contestant: &[Option<f64>], better: Better) -> Option<Comparison> {
        let ratios: Vec<f64> = baseline
            .iter()
            .zip(contestant)
            .filter_map(|(a, b)| Some((*b)? / (*a)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let best = better.best(&present(contestant))? / better.best(&present(baseline))?;
        Some(Comparison {
            pairs: ratios.len(),
            ratio: median(&ratios)?,
            q1: quantile(&ratios, 0.25)?,
            q3: quantile(&ratios, 0.75)?,
            best,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 4.0, 5.0]), Some(4.5));
        let values = [5.0, 1.0, 2.0, 4.0, 3.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.25), Some(2.0));
        assert_eq!(quantile(&values, 0.875), Some(4.5));
        assert_eq!(quantile(&values, 1.0), Some(5.0));
        assert_eq!(quantile(&values, 7.0), Some(5.0));
    }

    #[test]
    fn ratios_are_paired_by_round() {
        // The machine doubles its speed after two rounds; the contestant is at nine tenths throughout.
        let bare = [Some(10.0), Some(10.0), Some(20.0), Some(20.0)];
        let worker = [Some(9.0), Some(9.0), Some(18.0), Some(18.0)];
        let c = Comparison::new(&bare, &worker, Better::Higher).unwrap();
        assert_eq!((c.pairs, c.ratio, c.q1, c.q3, c.best), (4, 0.9, 0.9, 0.9, 0.9));
    }

    #[test]
    fn failed_rounds_make_no_pair_but_may_hold_the_best() {
        let bare = [Some(10.0), None, Some(30.0), Some(10.0)];
        let worker = [Some(5.0), Some(60.0), None, Some(10.0)];
        let c = Comparison::new(&bare, &worker, Better::Higher).unwrap();
        assert_eq!((c.pairs, c.ratio, c.best), (2, 0.75, 2.0));
        assert_eq!(Comparison::new(&bare, &[None; 4], Better::Higher), None);
        assert_eq!(Comparison::new(&[None], &[Some(1.0)], Better::Higher), None);
        let zero = [Some(0.0)];
        assert_eq!(Comparison::new(&zero, &[Some(1.0)], Better::Higher), None);
    }

    #[test]
    fn of_times_the_least_is_best() {
        let bare = [Some(1000.0), Some(2000.0)];
        let worker = [Some(1200.0), Some(2000.0)];
        let c = Comparison::new(&bare, &worker, Better::Lower).unwrap();
        assert_eq!(c.best, 1.2);
        assert!((c.ratio - 1.1).abs() < 1e-12);
        assert!(Better::Lower.reaches(1.3, 1.3) && !Better::Lower.reaches(1.31, 1.3));
        assert!(Better::Higher.reaches(0.8, 0.8) && !Better::Higher.reaches(0.79, 0.8));
    }
}
