//! What a link does to its packets.

use crate::loss::Loss;
use roce_proto::time::Instant;
use std::time::Duration;

/// Everything that a direction of a link does. The default does nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which packets are lost.
    pub loss: Loss,
    /// Propagation delay.
    pub delay: Duration,
    /// Added to the delay of each packet, uniformly from nothing to this. Packets keep their order, so those that follow each
    /// other closely are about as late as the latest of them.
    pub jitter: Duration,
    /// Packets that lose their place.
    pub reorder: Option<Reorder>,
    /// Share of packets that come twice, from 0 to 1.
    pub duplicate: f64,
    /// Share of packets one bit of which is inverted, from 0 to 1.
    pub corrupt: f64,
    /// The bottleneck and the queue before it; none means that packets take no time to send.
    pub rate: Option<Rate>,
    /// When nothing passes at all.
    pub black_out: Option<BlackOut>,
    /// When nothing comes out: what would have, does at its end. So does a forwarder that has to wait for its core.
    pub stall: Option<BlackOut>,
    /// Packets that may be held at once; more are dropped and counted. Bounds the memory.
    pub capacity: usize,
}

/// Some packets are delayed more than others and so are overtaken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Share of packets, from 0 to 1.
    pub share: f64,
    /// What is added to their delay, uniformly from nothing to this.
    pub by: Duration,
}

/// A bottleneck with a finite queue that drops at its tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second.
    pub bits_per_second: u64,
    /// Bytes that the queue holds, the packet being sent included.
    pub queue: u64,
    /// ECN-capable packets that find at least so many bytes in the queue are marked (RFC 3168, instantaneous queue length).
    pub mark_from: Option<u64>,
}

/// A time in which nothing passes, perhaps again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackOut {
    /// When the first begins.
    pub from: Instant,
    /// How long one lasts.
    pub lasting: Duration,
    /// From the beginning of one to that of the next; once only without.
    pub every: Option<Duration>,
}

impl BlackOut {
    /// Whether nothing passes at `now`.
    pub fn is_dark(&self, now: Instant) -> bool {
        self.end(now) > now
    }

    /// When the one that there is at `now` is over; `now` if there is none.
    pub fn end(&self, now: Instant) -> Instant {
        if now < self.from {
            return now;
        }
        let since = now.saturating_since(self.from).as_nanos();
        let within = match self.every {
            Some(every) if !every.is_zero() => since % every.as_nanos(),
            _ => since,
        };
        let left = self.lasting.as_nanos().saturating_sub(within);
        now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            loss: Loss::None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: None,
            duplicate: 0.0,
            corrupt: 0.0,
            rate: None,
            black_out: None,
            stall: None,
            capacity: 1 << 16,
        }
    }
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A share or probability is not one.
    #[error("{what} is {value}: it must be a share from 0 to 1")]
    NotAShare {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// Nothing could ever pass.
    #[error("a rate of 0 bits per second lets nothing pass: leave the rate out for none")]
    NoRate,
    /// No packet could be held.
    #[error("a capacity of 0 packets lets nothing pass")]
    NoCapacity,
    /// The loss rate and the mean length of bursts exclude each other.
    #[error(
        "bursts of {burst} packets on average cannot make up a loss rate of {rate}: use a rate below 1 and bursts of at least 1, and longer ones for rates above a half"
    )]
    NoSuchBursts {
        /// The share of packets lost.
        rate: f64,
        /// Packets lost in a row, on average.
        burst: f64,
    },
}

/// A share, or the error that names it.
pub(crate) fn share(what: &'static str, value: f64) -> Result<f64, ConfigError> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(ConfigError::NotAShare { what, value }) }
}

impl Config {
    /// Whether it can be.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.loss.check()?;
        share("the share of duplicates", self.duplicate)?;
        share("the share of corrupt packets", self.corrupt)?;
        share("the share of reordered packets", self.reorder.map_or(0.0, |r| r.share))?;
        if self.rate.is_some_and(|rate| rate.bits_per_second == 0) {
            return Err(ConfigError::NoRate);
        }
        if self.capacity == 0 {
            return Err(ConfigError::NoCapacity);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn black_outs_come_once_or_again_and_again() {
        let ms = |n: u64| Instant::ZERO + Duration::from_millis(n);
        let once = BlackOut { from: ms(10), lasting: Duration::from_millis(5), every: None };
        let again = BlackOut { every: Some(Duration::from_millis(20)), ..once };
        for (at, dark, dark_again) in [
            (0, false, false),
            (9, false, false),
            (10, true, true),
            (14, true, true),
            (15, false, false),
            (29, false, false),
            (30, false, true),
            (34, false, true),
            (35, false, false),
            (10_010, false, true),
        ] {
            assert_eq!((once.is_dark(ms(at)), again.is_dark(ms(at))), (dark, dark_again), "{at} ms");
        }
        // A period of nothing is no period.
        assert!(!BlackOut { every: Some(Duration::ZERO), ..once }.is_dark(ms(15)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let ok = Config::default();
        assert_eq!(ok.check(), Ok(()));
        for (bad, word) in [
            (Config { duplicate: 1.1, ..ok.clone() }, "duplicates"),
            (Config { corrupt: -0.1, ..ok.clone() }, "corrupt"),
            (Config { corrupt: f64::NAN, ..ok.clone() }, "corrupt"),
            (Config { reorder: Some(Reorder { share: 2.0, by: Duration::ZERO }), ..ok.clone() }, "reordered"),
            (Config { loss: Loss::Random(7.0), ..ok.clone() }, "loss"),
            (Config { capacity: 0, ..ok.clone() }, "capacity"),
            (
                Config { rate: Some(Rate { bits_per_second: 0, queue: 1, mark_from: None }), ..ok.clone() },
                "rate of 0",
            ),
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
