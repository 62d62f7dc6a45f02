//! The first detector: a gap on one path.
//!
//! Packets of one path come in order, mostly. What was sent on a path before the highest path sequence that came, and has not
//! arrived, is suspect; it is lost once that has been so for a while. Where the driver's rounds are further apart than that while, waiting for it would be waiting for a whole round, which
//! is about a round trip there: then it is lost at once, unless the path has shown that its packets come out of order.

use super::Cause;
use crate::time::Instant;
use crate::transport::engine::Engine;
use crate::wire::shim::Seq;
use core::time::Duration;

/// Verdicts in a row that were right, after which a path's patience is halved.
const RIGHT: u16 = 256;

impl Engine {
    /// A feedback reported the highest path sequence of a path. What is at or beyond `end`, the feedback says nothing
    /// of.
    pub(in crate::transport) fn judge_gap(&mut self, slot: u32, path: u8, highest: Seq, end: Option<Seq>) {
        if !self.config.mechanisms.gap {
            return;
        }
        let tx = &self.path(slot, path).tx;
        let Some(oldest) = tx.in_flight.head() else { return };
        if !self.segments.get(oldest).path_seq.before(highest) {
            return;
        }
        if tx.since != Instant::ZERO {
            // What was suspect then is lost if it has been long enough; the rest becomes suspect when the timer fires or with the
            // next feedback.
            self.mature(slot, path);
        }
        let clock = self.clock;
        let age = self.gap_age(slot, path);
        let suspect = end.map_or(highest, |end| self.known_until(slot, path, highest, end));
        let tx = &mut self.path_mut(slot, path).tx;
        if tx.since == Instant::ZERO {
            tx.since = clock;
            tx.suspect = suspect;
            if age.is_zero() {
                return self.mature(slot, path);
            }
            let at = clock + age;
            let s = &mut self.sessions[slot];
            s.tx.gap_at = s.tx.gap_at.min(at);
            self.arm(slot, at);
        }
    }

    /// The path sequence up to which a feedback that was cut short speaks of what is in flight.
    fn known_until(&self, slot: u32, path: u8, highest: Seq, end: Seq) -> Seq {
        let mut at = self.path(slot, path).tx.in_flight.head();
        while let Some(record) = at {
            let path_seq = self.segments.get(record).path_seq;
            if !path_seq.before(highest) {
                break;
            }
            if !self.segments.seq(record).before(end) {
                return path_seq;
            }
            at = self.path_chain.next(record);
        }
        highest
    }

    fn gap_age(&self, slot: u32, path: u8) -> Duration {
        let (age, patience) = (self.config.times.gap_age, self.path(slot, path).tx.patience);
        if patience == 0 && self.apart > age {
            return Duration::ZERO;
        }
        age + Duration::from_nanos(u64::from(patience))
    }

    /// Suspect segments of a path are lost if they have been for long enough.
    fn mature(&mut self, slot: u32, path: u8) {
        let tx = &self.path(slot, path).tx;
        if tx.since == Instant::ZERO || self.clock < tx.since + self.gap_age(slot, path) {
            return;
        }
        let suspect = tx.suspect;
        self.path_mut(slot, path).tx.since = Instant::ZERO;
        let mut bytes = 0;
        while let Some(oldest) = self.path(slot, path).tx.in_flight.head() {
            if !self.segments.get(oldest).path_seq.before(suspect) {
                break;
            }
            bytes += self.lose(slot, oldest, Cause::Gap);
            let tx = &mut self.path_mut(slot, path).tx;
            tx.verdicts += 1;
            if tx.verdicts == RIGHT {
                tx.verdicts = 0;
                tx.patience /= 2;
            }
        }
        self.lost_bytes(slot, bytes);
    }

    /// Time has passed: the same without a feedback.
    pub(in crate::transport) fn mature_gaps(&mut self, slot: u32) {
        self.sessions[slot].tx.gap_at = Instant::MAX;
        for path in 0..self.sessions[slot].paths {
            self.mature(slot, path);
            let since = self.path(slot, path).tx.since;
            if since != Instant::ZERO {
                let at = since + self.gap_age(slot, path);
                let s = &mut self.sessions[slot];
                s.tx.gap_at = s.tx.gap_at.min(at);
            }
        }
    }

    /// Duplicates showed that verdicts were wrong: paths are less in order than was thought.
    pub(in crate::transport) fn be_patient(&mut self, slot: u32) {
        let least = u32::try_from(self.config.times.gap_age.as_nanos()).unwrap_or(u32::MAX);
        for path in 0..self.sessions[slot].paths {
            let tx = &mut self.path_mut(slot, path).tx;
            let most =
                tx.rtt.smoothed().map_or(0, |rtt| u32::try_from(rtt.as_nanos() / 4).unwrap_or(u32::MAX));
            tx.patience = tx.patience.saturating_mul(2).max(least).min(most);
            tx.verdicts = 0;
        }
    }
}
