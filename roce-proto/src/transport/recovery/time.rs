//! The second detector: across paths, by time.
//!
//! A packet that was the last on its path leaves no gap, and a path that is dark none at all. What tells of these is that packets sent later
//! have arrived on other paths: the manner of RACK (RFC 8985, sections 6.2 and 7.2), whose order by time of transmission holds whatever
//! the paths are like. What RACK has in one round trip is taken here for each path, since those of paths may differ by orders of
//! magnitude. A segment is lost if
//!
//! - something that was sent later has arrived, and
//! - the feedback was written when the segment should have been there for a while: its age is more than its path's round trip, four times
//!   that path's jitter (or what its least is with the longest queue that any path has now) and the reordering window W. The round trip has no delay of the receiver in it, so the comparison holds
//!   however long that waited with the feedback.
//!
//! W is a quarter of the path's least round trip (RFC 8985: a quarter of the least), doubled whenever a segment that was sent again
//! turns out to have arrived, at most to the round trip, and halved after 256 verdicts that were right.

use super::Cause;
use crate::time::Instant;
use crate::transport::engine::Engine;
use crate::transport::session::due;
use crate::wire::shim::Seq;
use core::time::Duration;

/// Verdicts in a row that were right, after which W is halved.
const RIGHT: u16 = 256;
/// How often W is doubled at the most: from a quarter of a round trip to a whole one, which is also its bound, and a margin for paths whose
/// least is far below what is usual.
const DOUBLINGS: u8 = 6;
/// Of a path that nothing came back from yet nothing is known: longer than around half of the earth.
const UNKNOWN: Duration = Duration::from_millis(20);

impl Engine {
    /// What a path's round trip hardly exceeds. Of one that was never measured, a multiple of what the others have.
    pub(in crate::transport) fn path_bound(&self, slot: u32, path: u8) -> Duration {
        let rtt = &self.path(slot, path).tx.rtt;
        if rtt.smoothed().is_some() {
            return rtt.bound();
        }
        self.known_bound(slot).map_or(rtt.bound(), |known| (4 * known).max(UNKNOWN))
    }

    /// How old a segment on a path may be that arrives. While queues fill, what a path took of late is too little: its least with the longest queue
    /// that any path has now is possible for it too.
    fn usual(&self, slot: u32, path: u8) -> Duration {
        let least = self.path(slot, path).tx.rtt.least().unwrap_or_default();
        let longest = Duration::from_nanos(u64::from(self.sessions[slot].tx.longest));
        self.path_bound(slot, path).max(least + longest + longest / 2)
    }

    /// What to take for the round trip of a path that was never measured when the receiver asks: a multiple of what others have, and the least time-out.
    fn unknown_at_most(&self, slot: u32) -> Duration {
        (4 * self.known_bound(slot).unwrap_or_default()).max(self.config.times.min_rto)
    }

    /// The longest of the bounds that were measured.
    pub(in crate::transport) fn known_bound(&self, slot: u32) -> Option<Duration> {
        let rtts = (0..self.sessions[slot].paths).map(|p| &self.path(slot, p).tx.rtt);
        rtts.filter(|rtt| rtt.smoothed().is_some()).map(|rtt| rtt.bound()).max()
    }

    fn reordering(&self, slot: u32, path: u8) -> Duration {
        let rtt = &self.path(slot, path).tx.rtt;
        let (least, most) = (rtt.least().unwrap_or_default(), rtt.smoothed().unwrap_or_default());
        let w = (least / 4) * (1 << self.sessions[slot].tx.doublings);
        w.min(most).max(self.config.times.gap_age)
    }

    /// How old something on a path is that will not come any more, if things sent later have.
    pub(in crate::transport) fn overdue_after(&self, slot: u32, path: u8) -> Duration {
        self.usual(slot, path) + self.reordering(slot, path)
    }

    /// A feedback came that was written a moment ago, but for its way. What is at or beyond `end`, it says nothing of. With `status`, the receiver misses something,
    /// see [`deadline`](super::deadline): then age is enough.
    pub(in crate::transport) fn judge_time(&mut self, slot: u32, end: Option<Seq>, status: bool) {
        if self.sessions[slot].paths == 1 && self.config.mechanisms.gap && !status {
            return;
        }
        let clock = self.clock;
        let newest = if status { clock } else { self.sessions[slot].tx.newest };
        let cause = if status { Cause::Deadline } else { Cause::Time };
        let coarse = !status && self.sessions[slot].paths > 1 && self.apart > self.config.times.gap_age;
        // Ports are looked into one after the other: what came by one may be told of a whole burst after what came by another.
        let coarse = coarse && !self.has_rails(slot);
        let (mut bytes, mut doubtful) = (0, Instant::MAX);
        for path in 0..self.sessions[slot].paths {
            let Some(mut oldest) = self.path(slot, path).tx.in_flight.head() else { continue };
            let wait = self.overdue_after(slot, path);
            // The receiver misses something: what nobody measured is not taken for that long then.
            let unknown = self.path(slot, path).tx.rtt.smoothed().is_none() && status;
            let wait = if unknown {
                wait.min(self.unknown_at_most(slot) + self.reordering(slot, path))
            } else {
                wait
            };
            loop {
                let (sent, seq) = (self.segments.get(oldest).time, self.segments.seq(oldest));
                if end.is_some_and(|end| !seq.before(end)) {
                    break;
                }
                let by_order =
                    coarse && !self.segments.get(oldest).again && self.orders[slot as usize].is_lost(seq);
                if sent >= newest && !by_order {
                    break;
                }
                if clock < sent + wait && !by_order {
                    doubtful = doubtful.min(sent + wait);
                    break;
                }
                bytes += self.lose(slot, oldest, cause);
                let tx = &mut self.sessions[slot].tx;
                tx.time_verdicts += 1;
                if tx.time_verdicts == RIGHT {
                    tx.time_verdicts = 0;
                    tx.doublings = tx.doublings.saturating_sub(1);
                }
                match self.path(slot, path).tx.in_flight.head() {
                    Some(next) => oldest = next,
                    None => break,
                }
            }
        }
        if doubtful != Instant::MAX {
            let late = Duration::from_nanos(u64::from(self.sessions[slot].tx.peer_delay));
            doubtful += late.max(self.feedback_delay(slot));
            self.arm(slot, doubtful);
        }
        self.sessions[slot].tx.time_at = doubtful;
        self.lost_bytes(slot, bytes);
    }

    /// Something is old enough to be lost, and no feedback came to say so, though it could have: the peer is asked. Its answer is judged.
    pub(in crate::transport) fn ask_by_time(&mut self, slot: u32) {
        self.sessions[slot].tx.time_at = Instant::MAX;
        if self.sessions[slot].tx.in_flight > 0 {
            let path = self.next_path(slot, None);
            self.sessions[slot].probe |= 1 << path;
            self.owe(slot, due::PROBE);
        }
    }

    /// Something was sent again that had arrived.
    pub(in crate::transport) fn widen_reordering(&mut self, slot: u32) {
        let tx = &mut self.sessions[slot].tx;
        tx.doublings = (tx.doublings + 1).min(DOUBLINGS);
        tx.time_verdicts = 0;
        self.orders[slot as usize].wrong();
    }
}
