//! What a run took.

use crate::figures::{Carried, Traffic};
use crate::groups::Groups;
use roce_proto::wire::shim::Kind;
use std::time::Duration;

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Virtual time that passed.
    pub time: Duration,
    /// A number that is the same for the same run.
    pub trace: u64,
    /// Packets handed to the network and packets delivered.
    pub packet_events: u64,
    /// Rounds of all engines.
    pub rounds: u64,
    /// Packets that the engines sent, by [`Kind`].
    pub sent: [u64; Kind::ALL.len()],
    /// Packets that links lost, in whatever way.
    pub lost: u64,
    /// Packets that hosts lost: their ring was full, or they were away.
    pub missed: u64,
    /// Packets from and to further ports of a host, and those that came to dark ports or were to leave them.
    pub rails: [u64; 2],
    /// Packets that failed their ICRC.
    pub corrupt: u64,
    /// Copies that links made.
    pub duplicated: u64,
    /// Segments that did not come and were recovered from parity.
    pub repaired: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Of them, those that had arrived before or did so later.
    pub spurious: u64,
    /// Sends and receives that ended well.
    pub succeeded: u64,
    /// Sends and receives whose message was too long.
    pub too_long: u64,
    /// Sends and receives that ended with their session.
    pub failed: u64,
    /// Sessions that went down before the end.
    pub downs: u64,
    /// Bytes of messages that arrived.
    pub bytes: u64,
    /// Segments found lost: by a gap on their path, across paths by time, by the receiver's deadline, by a time-out.
    pub found: [u64; 4],
    /// From the first loss of each segment to its arrival, in order of size.
    pub repairs: Vec<Duration>,
    /// The mean round trip, queues included.
    pub round_trip: Duration,
    /// The longest time between two segments that were new.
    pub stall: Duration,
    /// What each link carried.
    pub carried: Vec<Carried>,
    /// What was sent, by class and time.
    pub traffic: Traffic,
    /// What of that had parity.
    pub groups: Groups,
    /// Of each send that ended well, the number of its message, when it was posted and when it ended.
    pub spans: Vec<(usize, Duration, Duration)>,
    /// From post to completion of each send that ended well, in order of size.
    pub times: Vec<Duration>,
}

impl Report {
    /// The time that a share `q` of the sends did not exceed; none without sends.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        quantile(&self.times, q)
    }

    /// The repairs that a share `q` did not exceed, in round trips; none without any.
    pub fn repaired(&self, q: f64) -> Option<f64> {
        let trip = self.round_trip.as_secs_f64();
        quantile(&self.repairs, q).map(|d| d.as_secs_f64() / trip)
    }

    /// The share of lost segments that only a time-out found.
    pub fn timed_out(&self) -> f64 {
        let all: u64 = self.found.iter().sum();
        if all == 0 { 0.0 } else { self.found[self.found.len() - 1] as f64 / all as f64 }
    }

    /// All packets that the engines sent.
    pub fn packets(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// The share of packets that carried neither a segment nor parity.
    pub fn control_share(&self) -> f64 {
        let all = self.packets();
        if all == 0 {
            0.0
        } else {
            1.0 - (self.sent[Kind::Data as usize] + self.sent[Kind::Parity as usize]) as f64 / all as f64
        }
    }

    /// Adds another run's figures. Times are not added: they are of different networks.
    pub fn add(&mut self, other: &Report) {
        self.time += other.time;
        self.trace = self.trace.rotate_left(7) ^ other.trace;
        for (sum, more) in self.sent.iter_mut().zip(other.sent).chain(self.rails.iter_mut().zip(other.rails))
        {
            *sum += more;
        }
        for (sum, more) in [
            (&mut self.packet_events, other.packet_events),
            (&mut self.rounds, other.rounds),
            (&mut self.lost, other.lost),
            (&mut self.missed, other.missed),
            (&mut self.corrupt, other.corrupt),
            (&mut self.duplicated, other.duplicated),
            (&mut self.repaired, other.repaired),
            (&mut self.retransmitted, other.retransmitted),
            (&mut self.spurious, other.spurious),
            (&mut self.succeeded, other.succeeded),
            (&mut self.too_long, other.too_long),
            (&mut self.failed, other.failed),
            (&mut self.downs, other.downs),
            (&mut self.bytes, other.bytes),
        ] {
            *sum += more;
        }
    }
}

pub(crate) fn quantile(sorted: &[Duration], q: f64) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * q).round() as usize).copied()
}
