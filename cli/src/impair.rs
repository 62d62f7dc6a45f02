//! What happens to frames on the way, as it is written on the command line.

use crate::error::Error;
use crate::units::{self, Rate as RateArg};
use clap::Args;
use roce_proto::time::Instant;
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use testbed_impair::{BlackOut, Config, Loss, Rate, Reorder};

/// Impairments of a way.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
#[command(next_help_heading = "Network")]
pub struct ImpairArgs {
    /// Propagation delay of each way: half of what is added to the round trip
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    #[serde(rename = "delay_s", serialize_with = "units::seconds")]
    pub delay: Duration,

    /// Added to the delay of each frame, from nothing to this; frames keep their order
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    #[serde(rename = "jitter_s", serialize_with = "units::seconds")]
    pub jitter: Duration,

    /// Share of frames that are lost: 0.1% or 0.001
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = units::share)]
    pub loss: f64,

    /// Losses in a row, on average (Gilbert–Elliott); without it each frame is lost by itself
    #[arg(long, value_name = "FRAMES")]
    pub burst: Option<f64>,

    /// Share of frames that are overtaken by later ones
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = units::share)]
    pub reorder: f64,

    /// What is added to the delay of those, from nothing to this
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::duration)]
    #[serde(rename = "reorder_by_s", serialize_with = "units::seconds")]
    pub reorder_by: Duration,

    /// Share of frames that come twice
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = units::share)]
    pub duplicate: f64,

    /// Share of frames one bit of which is inverted
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = units::share)]
    pub corrupt: f64,

    /// Bottleneck in bits of frames per second: 1g, 100Mbit
    #[arg(long, value_name = "RATE", value_parser = bits_per_second)]
    pub rate: Option<u64>,

    /// Size of the queue before the bottleneck; what it holds in the time of a round trip, at least 128 KiB, if not given
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "rate")]
    pub queue: Option<u64>,

    /// Mark ECN-capable frames (Congestion Experienced) that find so many bytes in the queue
    #[arg(long, value_name = "SIZE", value_parser = units::size, requires = "rate")]
    pub mark_from: Option<u64>,

    /// When nothing passes any more, from the start on
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    #[serde(rename = "black_out_s", serialize_with = "units::maybe_seconds")]
    pub black_out: Option<Duration>,

    /// How long nothing passes
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::duration, requires = "black_out")]
    #[serde(rename = "lasting_s", serialize_with = "units::seconds")]
    pub lasting: Duration,

    /// From the beginning of a black-out to that of the next; there is one only if not given
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "black_out")]
    #[serde(rename = "every_s", serialize_with = "units::maybe_seconds")]
    pub every: Option<Duration>,

    /// Frames that may be on each way at once; more are dropped and counted. Memory for them is taken at the start
    #[arg(long, value_name = "FRAMES", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub capacity: u32,
}

fn bits_per_second(text: &str) -> Result<u64, String> {
    match units::rate(text)? {
        RateArg::BitsPerSecond(rate) if rate >= 1.0 => Ok(rate.round() as u64),
        RateArg::BitsPerSecond(_) => Err(format!("`{text}`: at least 1 bit per second")),
        RateArg::MessagesPerSecond(_) => Err(format!("`{text}`: a bottleneck is in bits per second: 1g")),
    }
}

impl ImpairArgs {
    /// The model's configuration.
    ///
    /// # Errors
    /// Losses in a row that cannot be.
    pub fn config(&self) -> Result<Config, Error> {
        let loss = match self.burst {
            Some(burst) => Loss::bursts(self.loss, burst).map_err(Error::usage)?,
            None if self.loss > 0.0 => Loss::Random(self.loss),
            None => Loss::None,
        };
        let rate = self.rate.map(|bits_per_second| Rate {
            bits_per_second,
            queue: self.queue.unwrap_or_else(|| self.round_trip_of_bytes(bits_per_second)),
            mark_from: self.mark_from,
        });
        let config = Config {
            loss,
            delay: self.delay,
            jitter: self.jitter,
            reorder: (self.reorder > 0.0).then_some(Reorder { share: self.reorder, by: self.reorder_by }),
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            rate,
            black_out: self.black_out.map(|from| BlackOut {
                from: Instant::ZERO + from,
                lasting: self.lasting,
                every: self.every,
            }),
            stall: None,
            capacity: self.capacity as usize,
        };
        config.check().map_err(Error::usage)?;
        Ok(config)
    }

    fn round_trip_of_bytes(&self, bits_per_second: u64) -> u64 {
        let bytes = 2.0 * self.delay.as_secs_f64() * bits_per_second as f64 / 8.0;
        (bytes as u64).max(128 * 1024)
    }
}

/// What is impaired, in a line.
impl fmt::Display for ImpairArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {:?}", self.delay)?;
        let percent = |share: f64| format!("{} %", share * 100.0);
        if !self.jitter.is_zero() {
            write!(f, ", jitter {:?}", self.jitter)?;
        }
        if self.loss > 0.0 {
            write!(f, ", loss {}", percent(self.loss))?;
        }
        if let Some(burst) = self.burst {
            write!(f, " in bursts of {burst}")?;
        }
        for (what, share) in
            [("reordered", self.reorder), ("duplicated", self.duplicate), ("corrupt", self.corrupt)]
        {
            if share > 0.0 {
                write!(f, ", {what} {}", percent(share))?;
            }
        }
        if let Some(rate) = self.rate {
            write!(f, ", {} Mbit/s", rate as f64 / 1e6)?;
        }
        if let Some(from) = self.black_out {
            write!(f, ", black-out of {:?} after {from:?}", self.lasting)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ImpairArgs,
    }

    fn args(line: &str) -> ImpairArgs {
        Line::parse_from(std::iter::once("wan").chain(line.split_whitespace())).args
    }

    #[test]
    fn nothing_asked_is_nothing_done() {
        let config = args("").config().unwrap();
        assert_eq!(config, Config { capacity: 8192, ..Config::default() });
    }

    #[test]
    fn each_flag_has_its_place() {
        let args = args(
            "--delay 25ms --jitter 1ms --loss 1% --burst 8 --reorder 2% --reorder-by 50us --duplicate 0.5 --corrupt 0.001 \
             --rate 1g --mark-from 10KB --black-out 5 --lasting 300ms --every 2 --capacity 100",
        );
        let config = args.config().unwrap();
        let ms = Duration::from_millis;
        assert_eq!(
            config,
            Config {
                loss: Loss::bursts(0.01, 8.0).unwrap(),
                delay: ms(25),
                jitter: ms(1),
                reorder: Some(Reorder { share: 0.02, by: Duration::from_micros(50) }),
                duplicate: 0.5,
                corrupt: 0.001,
                // A round trip of 50 ms at 125 MB/s.
                rate: Some(Rate {
                    bits_per_second: 1_000_000_000,
                    queue: 6_250_000,
                    mark_from: Some(10_000)
                }),
                black_out: Some(BlackOut {
                    from: Instant::ZERO + ms(5000),
                    lasting: ms(300),
                    every: Some(ms(2000))
                }),
                stall: None,
                capacity: 100,
            }
        );
        assert_eq!(
            args.to_string(),
            "delay 25ms, jitter 1ms, loss 1 % in bursts of 8, reordered 2 %, duplicated 50 %, corrupt 0.1 %, 1000 Mbit/s, \
             black-out of 300ms after 5s"
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in [
            "--loss 101%",
            "--loss -1",
            "--loss x",
            "--rate 0",
            "--rate 1Mpps",
            "--rate 0.2",
            "--queue 1MB",
            "--mark-from 1",
            "--every 1",
            "--capacity 0",
            "--burst many",
        ] {
            let words = std::iter::once("wan").chain(line.split_whitespace());
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
        let error = args("--loss 10% --burst 0.5").config().unwrap_err();
        assert!(error.to_string().contains("bursts of 0.5"), "{error}");
    }
}
