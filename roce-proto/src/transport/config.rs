//! What an engine is made with: sizes, limits, times. Each number's reason stands in `docs/protocol.md`.

use core::time::Duration;

use super::protect::Fec;
use crate::wire::shim::{Rails, Seq};
use thiserror::Error;

/// The sizes, limits and times of an engine. Every table is allocated when the engine is made and never grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Number of this incarnation: another each time the endpoint starts.
    pub epoch: u64,
    /// What session ids and cookies are derived from; nobody else may know it.
    pub secret: [u8; 16],
    /// First value of every counter that wraps. Any is right; tests begin near the wrap.
    pub first: Seq,
    /// Largest segment in bytes, see [`segment_size`](crate::wire::shim::segment_size); a multiple of 8.
    pub segment: u32,
    /// Bytes that a control packet may have; larger feedback leaves words out.
    pub control: u32,
    /// Whether sessions that others begin are accepted.
    pub listen: bool,
    /// Paths (UDP source ports) of a session, 1 to 32; the peer may want fewer.
    pub paths: u8,
    /// Further ports of this endpoint, for peers of IPv4 and of IPv6: paths take turns on them and on the first.
    pub rails: [Rails; 2],
    /// Bounds of the tables.
    pub limits: Limits,
    /// Times.
    pub times: Times,
    /// Largest message that may come before its receive, in bytes.
    pub eager: u32,
    /// Unexpected segments that a session may have here, unplaced.
    pub allowance: u32,
    /// Congestion control of every session.
    pub congestion: Algorithm,
    /// Forward error correction.
    pub fec: Fec,
    /// What is switched on.
    pub mechanisms: Mechanisms,
}

/// Mechanisms that can be switched off, to see what each is worth. All are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanisms {
    /// Paths that mark or lose are passed over, and bad ones only probed.
    pub health: bool,
    /// The first detector: a gap on one path.
    pub gap: bool,
    /// The second: across paths, by time.
    pub time: bool,
    /// The third: the receiver's deadline, by what it expects of a step.
    pub deadline: bool,
    /// A probe right after the last segment of a long burst.
    pub tail: bool,
    /// The last two segments of messages tagged SYNC go twice.
    pub copies: bool,
    /// Messages tagged SYNC of 3 to 64 segments have parity instead, while segments are lost.
    pub parity: bool,
    /// Small messages to one peer that wait together share packets.
    pub bundle: bool,
    /// Receivers of many senders say how much each should have in flight.
    pub share: bool,
    /// A window over a long way goes over its round trip, not all at once.
    pub pace: bool,
    /// In place of all detectors and of the retransmission time-out, for comparison: a segment is lost if it is not acknowledged for so long. None is how it is meant to be.
    pub interval: Option<Duration>,
}

impl Default for Mechanisms {
    fn default() -> Mechanisms {
        Mechanisms {
            health: true,
            gap: true,
            time: true,
            deadline: true,
            tail: true,
            copies: true,
            parity: true,
            bundle: true,
            share: true,
            pace: true,
            interval: None,
        }
    }
}

/// Bounds of an engine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions, at most 2²⁴.
    pub sessions: u32,
    /// Channels, which are a session, communicator and tag each.
    pub channels: u32,
    /// Channels of one session, each way.
    pub session_channels: u32,
    /// Sends whose completion has not been taken.
    pub sends: u32,
    /// Receives whose completion has not been taken.
    pub receives: u32,
    /// Messages of several segments that a session may have coming in at once, at most 65,535.
    pub session_incoming: u32,
    /// Blocks of unexpected data, of one segment each.
    pub blocks: u32,
    /// Parity shards that are kept while something of their group is missing, of one segment each.
    pub shards: u32,
    /// Segments in flight; counted in chunks of 32.
    pub segments: u32,
    /// Steps that receives belong to at once.
    pub steps: u32,
    /// Sessions with a hole in what they received.
    pub windows: u32,
    /// Sequences in flight of one session, a power of two from 64 to 65,536.
    pub window: u32,
}

/// The times of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Longest wait of a segment for feedback.
    pub feedback: Duration,
    /// How long a gap on a path is watched before it is a loss.
    pub gap_age: Duration,
    /// Least retransmission time-out.
    pub min_rto: Duration,
    /// Largest retransmission time-out.
    pub max_rto: Duration,
    /// Silence after which a session asks whether its peer is there.
    pub keep_alive: Duration,
    /// Silence after which a session is given up.
    pub silence: Duration,
    /// First wait for an answer to an INIT.
    pub handshake: Duration,
    /// A round that comes this much later than its deadline was held up.
    pub poll_gap: Duration,
}

/// Which congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// A window of so many bytes.
    Fixed(u64),
    /// A window that follows delay and ECN.
    DelayEcn,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            epoch: 1,
            secret: [0; 16],
            first: Seq(0),
            segment: 4008,
            control: 1068,
            listen: true,
            paths: 1,
            rails: [Rails::NONE; 2],
            limits: Limits::default(),
            times: Times::default(),
            eager: 65_536,
            allowance: 64,
            congestion: Algorithm::Fixed(512 * 1024),
            mechanisms: Mechanisms::default(),
            fec: Fec::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 16_384,
            channels: 65_536,
            session_channels: 1_024,
            sends: 65_536,
            receives: 65_536,
            session_incoming: 64,
            blocks: 1_024,
            shards: 1_024,
            segments: 262_144,
            steps: 1_024,
            windows: 1_024,
            window: 4_096,
        }
    }
}

impl Limits {
    /// Small tables, for tests and simulations of many hosts.
    pub const SMALL: Limits = Limits {
        sessions: 64,
        channels: 512,
        session_channels: 64,
        sends: 1_024,
        receives: 1_024,
        session_incoming: 16,
        blocks: 64,
        shards: 128,
        segments: 8_192,
        steps: 64,
        windows: 16,
        window: 1_024,
    };
}

impl Default for Times {
    fn default() -> Times {
        Times {
            feedback: Duration::from_micros(25),
            gap_age: Duration::from_micros(2),
            min_rto: Duration::from_millis(1),
            max_rto: Duration::from_secs(1),
            keep_alive: Duration::from_secs(5),
            silence: Duration::from_secs(15),
            handshake: Duration::from_millis(10),
            poll_gap: Duration::from_micros(50),
        }
    }
}

/// Rejected messages of one segment that are remembered until they come void.
pub(super) const REJECTED: u32 = 1_024;

/// A configuration that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{name} is {value}: it must be {least} to {most}")]
    Range {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
    /// A number that must be a multiple.
    #[error("{name} is {value}: it must be a multiple of {of}")]
    Multiple {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What it must be a multiple of.
        of: u64,
    },
    /// The window is not a power of two.
    #[error("a window of {0} sequences: it must be a power of two")]
    Window(u32),
}

impl Config {
    /// Messages that can be coming in together: what every session may have, those of which the pool holds something, and some that
    /// were rejected.
    pub(super) const fn incoming(&self) -> u32 {
        self.limits.sessions * self.limits.session_incoming + self.limits.blocks + REJECTED
    }

    /// Whether the numbers fit together.
    ///
    /// # Errors
    /// The first that does not, with what it can be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let l = &self.limits;
        let most = 1 << 24;
        let ranges: [(&'static str, u64, u64, u64); 17] = [
            ("segment", u64::from(self.segment), 64, 65_000),
            ("control", u64::from(self.control), 128, 65_000),
            ("paths", u64::from(self.paths), 1, 32),
            ("eager", u64::from(self.eager), 0, 1 << 30),
            ("allowance", u64::from(self.allowance), 1, 1 << 20),
            ("limits.sessions", u64::from(l.sessions), 1, most),
            ("limits.channels", u64::from(l.channels), 1, most),
            ("limits.session_channels", u64::from(l.session_channels), 1, most),
            ("limits.sends", u64::from(l.sends), 1, most),
            ("limits.receives", u64::from(l.receives), 1, most),
            ("limits.session_incoming", u64::from(l.session_incoming), 1, 65_535),
            ("limits.blocks", u64::from(l.blocks), 1, most),
            ("limits.shards", u64::from(l.shards), 1, most),
            ("fec.policy.block", u64::from(self.fec.policy.block), 1, 4_096),
            ("limits.segments", u64::from(l.segments), 64, 1 << 26),
            ("limits.steps", u64::from(l.steps), 1, most),
            ("limits.window", u64::from(l.window), 64, 65_536),
        ];
        for (name, value, least, most) in ranges {
            if value < least || value > most {
                return Err(ConfigError::Range { name, value, least, most });
            }
        }
        if l.windows == 0 || u64::from(l.windows) > most {
            return Err(ConfigError::Range {
                name: "limits.windows",
                value: u64::from(l.windows),
                least: 1,
                most,
            });
        }
        let incoming = u64::from(l.sessions) * u64::from(l.session_incoming);
        if incoming > 1 << 28 {
            let name = "limits.sessions times limits.session_incoming";
            return Err(ConfigError::Range { name, value: incoming, least: 1, most: 1 << 28 });
        }
        if !self.segment.is_multiple_of(8) {
            return Err(ConfigError::Multiple { name: "segment", value: u64::from(self.segment), of: 8 });
        }
        if !l.window.is_power_of_two() {
            return Err(ConfigError::Window(l.window));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        assert_eq!(Config { limits: Limits::SMALL, ..Config::default() }.check(), Ok(()));
        let error = Config { segment: 4004, ..Config::default() }.check().expect_err("no multiple of 8");
        assert_eq!(error.to_string(), "segment is 4004: it must be a multiple of 8");
        let error = Config { paths: 33, ..Config::default() }.check().expect_err("too many");
        assert_eq!(error.to_string(), "paths is 33: it must be 1 to 32");
        let limits = Limits { window: 1_000, ..Limits::SMALL };
        let error = Config { limits, ..Config::default() }.check().expect_err("no power of two");
        assert_eq!(error, ConfigError::Window(1_000));
    }
}
