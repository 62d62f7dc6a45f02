//! Which of a session's paths are used: each has a penalty, and is passed over that many times when it is its turn.
//!
//! The penalties are those of the Ultra Ethernet transport's published path selection (a mark 1, a negative acknowledgement 4, a time-out
//! 15), the states those of MRC 1.0 (GOOD, SKIP, ASSUMED_BAD, DENIED). A report without marks halves the penalty, so a path that is clean is
//! taken again soon, which is what REPS gains by recycling entropies of clean acknowledgements. The reason for all of it: a hash that is
//! not ours spreads paths unevenly, and only marks and losses tell which of them share a link.

use super::PathTx;
use crate::time::Instant;
use crate::transport::api::SessionKey;
use crate::transport::engine::Engine;
use crate::transport::rtt::Rtt;
use crate::transport::session::due;
use crate::wire::shim::{PathReport, Seq};
use core::time::Duration;

/// Penalty of a mark.
const MARK: u8 = 1;
/// Of a loss that a later packet of the path showed.
const LOSS: u8 = 4;
/// Of losses while nothing of the path arrived.
pub(super) const TIMEOUT: u8 = 15;
/// From this penalty on it is not used, but probed. Marks and losses alone do not lead there: a path that brings something is not dark.
pub(in crate::transport) const BAD: u8 = 15;
/// The penalty of one that the driver cannot use.
const DENIED: u8 = u8::MAX;
/// Losses in a row that nothing later on the path showed, from which on it counts as dark: one may be the last packet on it.
const SILENT: u8 = 2;
/// Marks of one report that count: with more, the path's turn would come after all others' queues have emptied.
const MARKS: u16 = 4;
/// The longest time between two probes of a bad path: half a second brings one back within a second of its return.
const SLOWEST: Duration = Duration::from_millis(500);
/// Packets on a path that came back, after which its next trouble is probed as soon as its first was.
const PROVEN: u32 = 256;

/// Whether a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It has its turn.
    Good,
    /// It is passed over for some turns.
    Skip,
    /// Nothing comes through: it is only probed.
    Bad,
    /// The driver cannot use it.
    Denied,
}

impl PathState {
    /// The name that reports carry.
    pub const fn name(self) -> &'static str {
        match self {
            PathState::Good => "good",
            PathState::Skip => "skip",
            PathState::Bad => "bad",
            PathState::Denied => "denied",
        }
    }
}

/// Figures of one path since its session began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// Whether it is used.
    pub state: PathState,
    /// Segments sent on it, those sent again included.
    pub sent: u64,
    /// Of them, those that arrived while it was the path they were sent on last.
    pub echoed: u64,
    /// Of them, those that were found lost, rightly or not.
    pub lost: u64,
    /// Packets of it that carried Congestion Experienced.
    pub marks: u64,
    /// Its smoothed round trip; none before the first measurement.
    pub round_trip: Option<Duration>,
    /// Its least round trip.
    pub least: Option<Duration>,
    /// Its jitter: the smoothed deviation of its round trip (RFC 6298).
    pub jitter: Option<Duration>,
}

impl PathTx {
    const fn state(&self) -> PathState {
        match self.penalty {
            0 => PathState::Good,
            1..BAD => PathState::Skip,
            BAD..DENIED => PathState::Bad,
            DENIED => PathState::Denied,
        }
    }
}

impl Engine {
    /// Figures of a path; none if the session has not so many, or is gone.
    pub fn path_stats(&self, session: SessionKey, path: u8) -> Option<PathStats> {
        let slot = self.slot_of(session)?;
        if path >= self.sessions[slot].paths {
            return None;
        }
        let tx = &self.path(slot, path).tx;
        Some(PathStats {
            state: tx.state(),
            sent: tx.sent,
            echoed: tx.echoed,
            lost: tx.lost,
            marks: tx.marks,
            round_trip: tx.rtt.smoothed(),
            least: tx.rtt.least(),
            jitter: tx.rtt.variation(),
        })
    }

    /// The driver has no way to the peer on a path: it is not used any more.
    pub fn deny_path(&mut self, session: SessionKey, path: u8) {
        if let Some(slot) = self.slot_of(session)
            && path < self.sessions[slot].paths
        {
            self.path_mut(slot, path).tx.penalty = DENIED;
        }
    }

    /// The next path to send on, another than `not` if there is one.
    #[inline]
    pub(in crate::transport) fn next_path(&mut self, slot: u32, not: Option<u8>) -> u8 {
        if self.sessions[slot].paths == 1 { 0 } else { self.turn_of(slot, not) }
    }

    fn turn_of(&mut self, slot: u32, not: Option<u8>) -> u8 {
        let healthy = self.config.mechanisms.health;
        let s = &mut self.sessions[slot];
        let from = slot as usize * usize::from(self.config.paths);
        let paths = &mut self.paths[from..from + usize::from(s.paths)];
        let mut at = s.tx.path;
        let mut best = (u16::MAX, at);
        for _ in 0..s.paths {
            at = if at + 1 >= s.paths { 0 } else { at + 1 };
            let penalty = if healthy { paths[usize::from(at)].tx.penalty } else { 0 };
            if Some(at) == not {
                continue;
            }
            if u16::from(penalty) < best.0 {
                best = (u16::from(penalty), at);
            }
            match penalty {
                0 => break,
                1..BAD => paths[usize::from(at)].tx.penalty -= 1,
                _ => {}
            }
        }
        s.tx.path = best.1;
        best.1
    }

    /// The path for what answers the peer: always the same while it does, as the round trips that the peer measures have it in them.
    pub(in crate::transport) fn reply_path(&mut self, slot: u32) -> u8 {
        let s = &self.sessions[slot];
        let (reply, paths) = (s.reply, s.paths);
        if paths > 1 && self.path(slot, reply).tx.penalty >= BAD {
            let other =
                (1..paths).map(|i| (reply + i) % paths).find(|p| self.path(slot, *p).tx.penalty < BAD);
            if let Some(other) = other {
                self.sessions[slot].reply = other;
                return other;
            }
        }
        reply
    }

    /// What was answered, or asked, last may have been lost on a path that carries nothing: it takes the next.
    pub(in crate::transport) fn turn_reply(&mut self, slot: u32) {
        let s = &mut self.sessions[slot];
        s.reply = if s.reply + 1 < s.paths { s.reply + 1 } else { 0 };
    }

    /// The round trip of the first path that was measured: path 0, unless it carries nothing.
    pub(in crate::transport) fn measured(&self, slot: u32) -> &Rtt {
        let first = &self.path(slot, 0).tx.rtt;
        let mut all = (0..self.sessions[slot].paths).map(|p| &self.path(slot, p).tx.rtt);
        if first.smoothed().is_some() {
            first
        } else {
            all.find(|rtt| rtt.smoothed().is_some()).unwrap_or(first)
        }
    }

    /// A segment of a path is lost; `shown` says that something later of it arrived.
    pub(in crate::transport) fn path_lost(&mut self, slot: u32, path: u8, shown: bool) {
        let several = self.sessions[slot].paths > 1;
        let tx = &mut self.path_mut(slot, path).tx;
        tx.lost += 1;
        if !several {
            return;
        }
        if !shown {
            tx.silent = tx.silent.saturating_add(1);
        }
        if tx.silent >= SILENT && tx.penalty < BAD {
            tx.penalty = TIMEOUT;
            tx.trial = tx.next;
            self.probe_later(slot, path);
        } else if tx.penalty < BAD {
            tx.penalty = (tx.penalty + LOSS).min(BAD - 1);
        }
    }

    /// When a bad path is probed next.
    pub(super) fn probe_later(&mut self, slot: u32, path: u8) {
        let clock = self.clock;
        let least = self.config.times.min_rto;
        let tx = &mut self.path_mut(slot, path).tx;
        let wait = (tx.rtt.bound().min(SLOWEST).max(least) * (1 << tx.tries.min(10))).min(SLOWEST);
        tx.tries = tx.tries.saturating_add(1);
        tx.probe_at = clock + wait;
        let at = tx.probe_at;
        let s = &mut self.sessions[slot];
        s.tx.bad_at = s.tx.bad_at.min(at);
        self.arm(slot, at);
    }

    /// Time has passed: bad paths are probed.
    pub(in crate::transport) fn probe_bad(&mut self, slot: u32) {
        let clock = self.clock;
        self.sessions[slot].tx.bad_at = Instant::MAX;
        for path in 0..self.sessions[slot].paths {
            let tx = &self.path(slot, path).tx;
            if !matches!(tx.state(), PathState::Bad) {
                continue;
            }
            if tx.probe_at <= clock {
                self.sessions[slot].probe |= 1 << path;
                self.owe(slot, due::PROBE);
                self.probe_later(slot, path);
            } else {
                let s = &mut self.sessions[slot];
                s.tx.bad_at = s.tx.bad_at.min(
                    self.paths[slot as usize * usize::from(self.config.paths) + usize::from(path)]
                        .tx
                        .probe_at,
                );
            }
        }
    }

    /// What a report says of a path's health; `marks` of its packets were marked since the last.
    pub(in crate::transport) fn path_told(&mut self, slot: u32, report: &PathReport, marks: u16) {
        let tx = &mut self.path_mut(slot, report.path).tx;
        tx.marks += u64::from(marks);
        let highest: Seq = report.highest;
        match tx.state() {
            PathState::Denied => {}
            PathState::Bad if highest.before(tx.trial) => {}
            PathState::Bad => {
                tx.penalty = 0;
                tx.silent = 0;
                tx.trial = highest.add(PROVEN);
            }
            PathState::Good | PathState::Skip => {
                tx.silent = 0;
                if tx.tries > 0 && tx.trial.before(highest) {
                    tx.tries = 0;
                }
                if marks > 0 {
                    tx.penalty = (tx.penalty + MARK * marks.min(MARKS) as u8).min(BAD - 1);
                } else {
                    tx.penalty /= 2;
                }
            }
        }
    }

    /// Whether what marks or loses is not one link of many, but one that all paths share: most of them are passed over, or the shortest round trip
    /// that the last feedback told is well above the least.
    pub(in crate::transport) fn is_crowded(&self, slot: u32) -> bool {
        let paths = self.sessions[slot].paths;
        if paths == 1 || self.sessions[slot].tx.queued || !self.config.mechanisms.health {
            return true;
        }
        let good = (0..paths).filter(|p| self.path(slot, *p).tx.penalty == 0).count();
        2 * good < usize::from(paths)
    }
}
