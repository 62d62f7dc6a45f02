//! Which packets are lost.

use crate::config::{ConfigError, share};

/// A process of losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// None is.
    None,
    /// Each with this probability, independently of the others.
    Random(f64),
    /// A chain of two states, good and bad, that makes a step at each packet (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// Probability of going from good to bad.
        worsen: f64,
        /// Probability of going from bad to good.
        recover: f64,
        /// Probability of a loss in the good state.
        good: f64,
        /// Probability of a loss in the bad state.
        bad: f64,
    },
}

impl Loss {
    /// Losses in bursts: a share `rate` of all packets, `burst` in a row on average. In the bad state of the chain all
    /// are lost, in the good one none.
    pub fn bursts(rate: f64, burst: f64) -> Result<Loss, ConfigError> {
        share("the loss rate", rate)?;
        let recover = 1.0 / burst;
        // The share of time in the bad state is worsen / (worsen + recover).
        let worsen = rate * recover / (1.0 - rate);
        if !(burst >= 1.0 && worsen <= 1.0) {
            return Err(ConfigError::NoSuchBursts { rate, burst });
        }
        Ok(Loss::GilbertElliott { worsen, recover, good: 0.0, bad: 1.0 })
    }

    /// The share of packets that it loses in the long run.
    pub fn rate(&self) -> f64 {
        match *self {
            Loss::None => 0.0,
            Loss::Random(p) => p,
            Loss::GilbertElliott { worsen, recover, good, bad } => {
                let in_bad = if worsen == 0.0 { 0.0 } else { worsen / (worsen + recover) };
                good * (1.0 - in_bad) + bad * in_bad
            }
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let shares: &[(&'static str, f64)] = match *self {
            Loss::None => &[],
            Loss::Random(p) => &[("the loss rate", p)],
            Loss::GilbertElliott { worsen, recover, good, bad } => &[
                ("the probability of going to the bad state", worsen),
                ("the probability of going to the good state", recover),
                ("the loss rate of the good state", good),
                ("the loss rate of the bad state", bad),
            ],
        };
        shares.iter().try_for_each(|&(what, value)| share(what, value).map(drop))
    }
}

/// Where a process of losses is.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossState {
    in_bad: bool,
}

impl LossState {
    /// Whether the next packet is lost.
    pub fn next(&mut self, loss: &Loss, rng: &mut fastrand::Rng) -> bool {
        match *loss {
            Loss::None => false,
            Loss::Random(p) => rng.f64() < p,
            Loss::GilbertElliott { worsen, recover, good, bad } => {
                let change = if self.in_bad { recover } else { worsen };
                self.in_bad ^= rng.f64() < change;
                rng.f64() < if self.in_bad { bad } else { good }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of losses and the mean length of runs of them, over a million packets.
    fn measure(loss: Loss) -> (f64, f64) {
        const N: u32 = 1_000_000;
        let (mut rng, mut state) = (fastrand::Rng::with_seed(7), LossState::default());
        let (mut lost, mut runs, mut before) = (0, 0, false);
        for _ in 0..N {
            let now = state.next(&loss, &mut rng);
            lost += u32::from(now);
            runs += u32::from(now && !before);
            before = now;
        }
        (f64::from(lost) / f64::from(N), f64::from(lost) / f64::from(runs.max(1)))
    }

    #[test]
    fn as_many_are_lost_as_asked_and_as_many_in_a_row() {
        // Five standard deviations of a million draws; bursts draw a burst's length fewer times.
        for p in [0.001, 0.05, 0.5] {
            let deviation = (p * (1.0 - p) / 1e6f64).sqrt();
            let (rate, burst) = measure(Loss::Random(p));
            assert!((rate - p).abs() < 5.0 * deviation, "{rate} of {p}");
            // Independent losses come in runs of 1 / (1 - p).
            assert!((burst - 1.0 / (1.0 - p)).abs() < 0.05, "{burst} in a row at {p}");
            let bursty = Loss::bursts(p, 8.0).unwrap();
            assert!((bursty.rate() - p).abs() < 1e-12);
            let (rate, burst) = measure(bursty);
            assert!((rate - p).abs() < 5.0 * 4.0 * deviation, "{rate} of {p}");
            assert!((burst - 8.0).abs() < 1.0, "{burst} in a row at {p}");
        }
        assert_eq!(measure(Loss::None).0, 0.0);
        assert_eq!(measure(Loss::Random(1.0)).0, 1.0);
    }

    #[test]
    fn both_states_have_their_own_losses() {
        let loss = Loss::GilbertElliott { worsen: 0.01, recover: 0.04, good: 0.001, bad: 0.5 };
        assert!((loss.rate() - (0.8 * 0.001 + 0.2 * 0.5)).abs() < 1e-12);
        let (rate, _) = measure(loss);
        assert!((rate - loss.rate()).abs() < 0.005, "{rate}");
        assert_eq!(Loss::GilbertElliott { worsen: 0.0, recover: 0.0, good: 0.25, bad: 1.0 }.rate(), 0.25);
    }

    #[test]
    fn bursts_that_cannot_be_are_refused() {
        for (rate, burst) in [(0.1, 0.5), (1.0, 8.0), (0.9, 1.0), (0.1, f64::NAN), (0.1, f64::INFINITY)] {
            let fine = Loss::bursts(rate, burst);
            // Bursts without end are refused too: then the rate would be all or nothing.
            assert!(fine.is_err() || burst.is_infinite(), "{rate} {burst} {fine:?}");
        }
        assert!(Loss::bursts(1.5, 8.0).is_err());
        assert_eq!(Loss::bursts(0.0, 8.0).unwrap().rate(), 0.0);
    }
}
