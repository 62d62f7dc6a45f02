//! What the network loses of a session that protects: for the policy, and, of parity, for congestion control and the health of paths.
//!
//! Nothing acknowledges parity, so no detector of losses knows it. What the peer says was skipped counts parity and data alike; what no
//! detector has found of it is parity. And on a path that is for parity alone, a shard that is old enough and after which the peer told nothing of that path is a loss that
//! nothing later showed, as the second detector has it for data.

use super::send::parity_paths;
use crate::time::Instant;
use crate::transport::engine::Engine;
use crate::wire::shim::{FeedbackHead, Seq};
use core::num::NonZeroU32;

/// Paths for parity of a session: an eighth of those that it has at the most.
pub(super) const MOST_PATHS: usize = 4;

/// A parity shard on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    seq: Seq,
    /// When it was sent: nanoseconds, the lower half, and one if that is zero. Nothing is watched for seconds.
    time: NonZeroU32,
}

/// Four of them in 32 bytes.
const _: () = assert!(size_of::<Option<Watched>>() == 8);

impl Watched {
    fn new(seq: Seq, time: Instant) -> Watched {
        Watched { seq, time: NonZeroU32::new(time.as_nanos() as u32).unwrap_or(NonZeroU32::MIN) }
    }

    /// How long after it something else was, or before if that is negative.
    fn until(&self, time: Instant) -> i64 {
        i64::from((time.as_nanos() as u32).wrapping_sub(self.time.get()) as i32)
    }
}

impl Engine {
    /// A feedback came, the first to tell of so many bytes.
    #[cold]
    pub(in crate::transport) fn observe_losses(&mut self, slot: u32, head: &FeedbackHead, bytes: u64) {
        let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) else { return };
        let all = self.packets_told(slot);
        let told = all.wrapping_sub(core::mem::replace(&mut self.protecting[at].told, all));
        // First, as those are told of by it that would else be taken for parity.
        self.note_repaired(slot, head, told);
        let rtt = &self.path(slot, 0).tx.rtt;
        let (round_trip, least) = (rtt.smoothed(), rtt.least().unwrap_or_default());
        let (clock, segment) = (self.clock, self.sessions[slot].segment);
        let p = &mut self.protecting[at];
        p.pace.observe(clock, bytes, segment, u64::try_from(least.as_nanos()).unwrap_or(u64::MAX));
        // What comes late is taken off again soon: the lower one of two reports counts.
        let now = (head.skipped, head.gaps);
        let last = core::mem::replace(&mut p.last, now);
        let Some(counted) = &mut p.counted else {
            p.counted = Some(now);
            return;
        };
        let (skipped, gaps) = if now.0.wrapping_sub(last.0) as i32 <= 0 { now } else { last };
        let lost = u32::try_from(skipped.wrapping_sub(counted.0) as i32).unwrap_or(0);
        if lost > 0 {
            counted.0 = skipped;
            p.untold = p.untold.saturating_add_unsigned(lost);
        }
        let runs = u32::from(gaps.wrapping_sub(core::mem::replace(&mut counted.1, gaps)));
        p.losses.observe(told.max(lost), lost, runs);
        if let Some(round_trip) = round_trip
            && p.next_round <= clock
        {
            p.losses.round();
            p.next_round = clock + round_trip;
        }
        self.tell_untold(slot, at);
        self.judge_parity(slot, at);
    }

    /// Packets that the peer has told of, on all paths, in all.
    pub(super) fn packets_told(&self, slot: u32) -> u32 {
        let told = (0..self.sessions[slot].paths).map(|path| self.path(slot, path).tx.told.0);
        told.fold(0, u32::wrapping_add)
    }

    /// Losses that were repaired before anything showed them: congestion control learns of them as of any loss.
    fn note_repaired(&mut self, slot: u32, head: &FeedbackHead, told: u32) {
        let tx = &mut self.sessions[slot].tx;
        let more = head.repaired.wrapping_sub(tx.repaired);
        tx.repaired = head.repaired;
        // Those that were known to be lost have been told of. And nobody repairs more than what was sent.
        let unseen = u32::from(more).saturating_sub(self.returned).min(told);
        if unseen > 0 {
            self.counters.unseen += u64::from(unseen);
            self.losses_told(slot, unseen as i32);
            let bytes = u64::from(unseen) * u64::from(self.sessions[slot].segment);
            self.lost_bytes(slot, bytes);
        }
    }

    /// Losses of a session were found, and congestion control is told: what the peer says of them later is nothing new. With less than nothing,
    /// losses turned out to be none.
    pub(in crate::transport) fn losses_told(&mut self, slot: u32, lost: i32) {
        if let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) {
            let untold = &mut self.protecting[at].untold;
            *untold = untold.saturating_sub(lost);
        }
    }

    /// What was lost and no detector has found is parity: congestion control learns of it as of any loss.
    fn tell_untold(&mut self, slot: u32, at: u32) {
        let Ok(lost @ 1..) = u32::try_from(self.protecting[at].untold) else { return };
        self.protecting[at].untold = 0;
        self.counters.parity_lost += u64::from(lost);
        self.lost_bytes(slot, u64::from(lost) * u64::from(self.sessions[slot].segment));
    }

    /// Parity goes on one of the paths that are for it, the first of which is number 0 here.
    pub(super) fn watch_parity(&mut self, slot: u32, own: u8, seq: Seq) {
        let (now, Some(at)) = (self.clock, self.sessions[slot].tx.protecting.checked_sub(1)) else { return };
        if let Some(place) = self.protecting[at].watched.get_mut(usize::from(own)) {
            place.get_or_insert(Watched::new(seq, now));
        }
    }

    /// A feedback came: what it says of paths that are for parity, or does not say though it should by now.
    fn judge_parity(&mut self, slot: u32, at: u32) {
        let paths = self.sessions[slot].paths;
        if paths == 1 {
            return;
        }
        let (from, count) = parity_paths(paths);
        for own in 0..count {
            let Some(Some(watched)) = self.protecting[at].watched.get(usize::from(own)).copied() else {
                continue;
            };
            let path = from + own;
            let told = !self.path(slot, path).tx.told.before(watched.seq);
            let later = watched.until(self.sessions[slot].tx.newest) > 0;
            let overdue = i64::try_from(self.overdue_after(slot, path).as_nanos()).unwrap_or(i64::MAX);
            let lost = !told && later && watched.until(self.clock) >= overdue;
            if told || lost {
                self.protecting[at].watched[usize::from(own)] = None;
            }
            if lost {
                self.path_lost(slot, path, false);
            }
        }
    }
}
