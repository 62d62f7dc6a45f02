//! The end of a message tagged SYNC goes twice: nothing follows that could show a loss there, and others wait for it. The copies go when there is nothing else to send. If other sessions had
//! something to send with the message, copies would delay that; then they only go if the answer is late, which most are not. A message with parity needs none.

use super::api::Transmit;
use super::engine::Engine;
use super::segments::{CHUNK, Segments, State};
use crate::time::Instant;
use crate::wire::shim::Seq;
use core::time::Duration;

/// Segments at the end of such a message.
const COPIES: u32 = 2;

/// The longest wait for an answer: less than half of what 32 bits of nanoseconds tell apart.
const LATEST: Duration = Duration::from_secs(1);

/// What copies a session has to send.
enum Next {
    /// This segment now.
    Copy(u32),
    /// None before.
    Later(Instant),
    /// None.
    Over,
}

impl Engine {
    /// The last segment of such a message, which has so many, has been sent.
    pub(super) fn copy_later(&mut self, slot: u32, segments: u32, last: Seq) {
        let alone = self.ready.head() == Some(slot) && self.ready_chain.next(slot).is_none();
        let at = self.clock + self.late_after(slot);
        let s = &mut self.sessions[slot];
        if !s.in_copying {
            s.in_copying = true;
            s.tx.copied = last.back(segments.min(COPIES) - 1);
            s.tx.copy_at = at.as_nanos() as u32;
            self.copy_chain.push_back(&mut self.copying, slot);
            self.arm(slot, at);
        }
        let s = &mut self.sessions[slot];
        if alone && !s.tx.copy_idle {
            s.tx.copy_idle = true;
            self.copy_next(slot);
        }
    }

    /// A session's copies are looked at first: those that are due stand before all others.
    pub(super) fn copy_next(&mut self, slot: u32) {
        self.copy_chain.remove(&mut self.copying, slot);
        self.copy_chain.push_front(&mut self.copying, slot);
    }

    /// When an answer is late: after two round trips. What the peer waits with it is less, as it tells of the end of a message at once; of one segment it may not.
    fn late_after(&self, slot: u32) -> Duration {
        let round_trip = self.path(slot, 0).tx.rtt.smoothed().unwrap_or_default();
        (2 * round_trip).max(self.feedback_delay(slot)).min(LATEST)
    }

    /// From when on a session's copies do not wait for other data.
    pub(super) fn copy_due_at(&self, slot: u32) -> Instant {
        let ahead = self.sessions[slot].tx.copy_at.wrapping_sub(self.clock.as_nanos() as u32) as i32;
        self.clock + Duration::from_nanos(u64::try_from(ahead).unwrap_or(0))
    }

    /// Whether the first copy is due; with `idle`, there is nothing else to send.
    #[inline]
    pub(super) fn copy_is_due(&self, idle: bool) -> bool {
        self.copying.head().is_some_and(|slot| {
            (idle && self.sessions[slot].tx.copy_idle) || self.copy_due_at(slot) <= self.clock
        })
    }

    /// The next copy, of whatever session.
    pub(super) fn transmit_copy(&mut self, idle: bool, buf: &mut [u8]) -> Option<Transmit> {
        while self.copy_is_due(idle)
            && let Some(slot) = self.copying.head()
        {
            match self.next_copy(slot) {
                Next::Copy(record) => return Some(self.write_copy(slot, record, buf)),
                Next::Later(at) => {
                    self.sessions[slot].tx.copy_at = at.as_nanos() as u32;
                    self.copy_chain.remove(&mut self.copying, slot);
                    self.copy_chain.push_back(&mut self.copying, slot);
                    self.arm(slot, at);
                }
                Next::Over => {
                    let s = &mut self.sessions[slot];
                    s.in_copying = false;
                    s.tx.copy_idle = false;
                    self.copy_chain.remove(&mut self.copying, slot);
                }
            }
        }
        None
    }

    /// The segment that goes a second time now: the next that is at the end of such a message and still in flight, if it is old enough. What waits for its repair, or to be sent again, needs no
    /// copy.
    fn next_copy(&mut self, slot: u32) -> Next {
        let (clock, late) = (self.clock, self.late_after(slot));
        let tx = &mut self.sessions[slot].tx;
        let mut chunk = Segments::first(&tx.chunks);
        while let Some(i) = chunk {
            let head = self.segments.head(i);
            chunk = self.segments.next(i);
            // Those before the one that is next are over.
            let over = head.base.distance(tx.copied).clamp(0, CHUNK as i32) as u32;
            let mut open = head.open & u32::MAX.checked_shl(over).unwrap_or(0);
            while open != 0 {
                let record = i * CHUNK + open.trailing_zeros();
                open &= open - 1;
                let segment = self.segments.get(record);
                let send = &self.sends[segment.message];
                let last = send.semantics.sync && segment.index + COPIES >= send.segments;
                if !last || send.protection.is_some() || segment.state != State::InFlight {
                    continue;
                }
                if !tx.copy_idle && segment.time + late > clock {
                    return Next::Later(segment.time + late);
                }
                tx.copied = self.segments.seq(record).next();
                return Next::Copy(record);
            }
        }
        tx.copied = tx.next;
        Next::Over
    }

    /// Sends a segment a second time, on another path. It stays in flight on the first: this one is not waited for.
    fn write_copy(&mut self, slot: u32, record: u32, buf: &mut [u8]) -> Transmit {
        let path = self.next_path(slot, Some(self.segments.get(record).path));
        let tx = &mut self.path_mut(slot, path).tx;
        let path_seq = tx.next;
        tx.next = path_seq.next();
        tx.sent += 1;
        self.counters.copies += 1;
        self.header(slot, self.segments.seq(record), record, (path, path_seq), (false, true), buf)
    }
}
