//! The end of a message tagged SYNC goes twice: nothing follows that could show a loss there, and others wait for it. The copies go when there is nothing else to send. If other sessions had
//! something to send with the message, copies would delay that; then they only go if the answer is late, which most are not.
//! Copies are lost too: what is still not acknowledged one and a half round trips later goes once more, some times. A message with parity needs none.

use super::api::Transmit;
use super::engine::Engine;
use super::segments::{CHUNK, Segments, State};
use crate::time::Instant;
use crate::wire::shim::Seq;
use core::time::Duration;

/// Segments at the end of such a message.
const COPIES: u32 = 2;

/// How often copies are sent anew: of losses of one in a hundred, less than one in 10⁹ is left to the other detectors.
const ROUNDS: u8 = Course::ROUNDS;

/// The longest wait for an answer: less than half of what 32 bits of nanoseconds tell apart.
const LATEST: Duration = Duration::from_secs(1);

/// The copies that a session has to send.
#[derive(Clone, Copy, Debug)]
pub struct Copying {
    /// From where on they are looked for.
    pub(super) from: Seq,
    /// From when on they do not wait for other data: the low half of its nanoseconds.
    at: u32,
}

impl Copying {
    /// None yet; those to come are of `first` and what follows.
    pub const fn from(first: Seq) -> Copying {
        Copying { from: first, at: 0 }
    }
}

/// How they go. In one byte: a session of which there are thousands has no room for more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course(u8);

impl Course {
    /// How often they went anew.
    const ROUNDS: u8 = 3;
    /// They go as soon as there is nothing else to send.
    const IDLE: u8 = 4;
    /// All went, and some go again at the time that is set.
    const AGAIN: u8 = 8;
    /// The peer's rounds are far apart, so an answer may wait for the next one.
    const SLOW: u8 = 16;

    /// Whether the peer's last report was of a packet that may have waited for its round.
    pub(super) const fn note_peer(&mut self, late: bool) {
        self.0 = if late { self.0 | Course::SLOW } else { self.0 & !Course::SLOW };
    }

    const fn rounds(self) -> u8 {
        self.0 & Course::ROUNDS
    }

    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// The next round begins, of which there are no more than [`ROUNDS`].
    const fn again(self) -> Course {
        Course((self.0 & !Course::AGAIN & !Course::ROUNDS) | (self.rounds() + 1) & Course::ROUNDS)
    }
}

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
            s.tx.copies = Copying::from(last.back(segments.min(COPIES) - 1));
            s.tx.copies.at = at.as_nanos() as u32;
            s.tx.course.0 &= Course::SLOW;
            self.copy_chain.push_back(&mut self.copying, slot);
            self.arm(slot, at);
        }
        let s = &mut self.sessions[slot];
        if alone && !s.tx.course.has(Course::IDLE) {
            s.tx.course.0 |= Course::IDLE;
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
        ((2 * round_trip).max(self.feedback_delay(slot)) + self.peer_round(slot)).min(LATEST)
    }

    /// How long an answer waits for the round of a peer whose rounds are far apart: a copy that goes before is for nothing, as is the next.
    fn peer_round(&self, slot: u32) -> Duration {
        let tx = &self.sessions[slot].tx;
        let delay = if tx.course.has(Course::SLOW) { tx.peer_delay } else { 0 };
        Duration::from_nanos(u64::from(delay))
    }

    /// When what was copied now is copied again: one and a half round trips later, as a duplicate is answered at once.
    fn copy_again_at(&self, slot: u32) -> Instant {
        let round_trip = self.path(slot, 0).tx.rtt.smoothed();
        let soonest = |rtt: Duration| rtt + rtt / 2 + self.peer_round(slot);
        self.clock + round_trip.map_or(self.late_after(slot), soonest).min(LATEST)
    }

    /// From when on a session's copies do not wait for other data.
    pub(super) fn copy_due_at(&self, slot: u32) -> Instant {
        let ahead = self.sessions[slot].tx.copies.at.wrapping_sub(self.clock.as_nanos() as u32) as i32;
        self.clock + Duration::from_nanos(u64::try_from(ahead).unwrap_or(0))
    }

    /// Whether the first copy is due; with `idle`, there is nothing else to send.
    #[inline]
    pub(super) fn copy_is_due(&self, idle: bool) -> bool {
        self.copying.head().is_some_and(|slot| {
            (idle && self.sessions[slot].tx.course.has(Course::IDLE)) || self.copy_due_at(slot) <= self.clock
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
                    self.sessions[slot].tx.copies.at = at.as_nanos() as u32;
                    self.copy_chain.remove(&mut self.copying, slot);
                    self.copy_chain.push_back(&mut self.copying, slot);
                    self.arm(slot, at);
                }
                Next::Over => {
                    let s = &mut self.sessions[slot];
                    s.in_copying = false;
                    self.copy_chain.remove(&mut self.copying, slot);
                }
            }
        }
        None
    }

    /// The segment that is copied now: the next that is at the end of such a message and still in flight, if it is old enough. What waits for its repair, or to be sent again, needs no
    /// copy.
    fn next_copy(&mut self, slot: u32) -> Next {
        let (clock, late) = (self.clock, self.late_after(slot));
        let due = self.copy_due_at(slot) <= clock;
        let again_at = self.copy_again_at(slot);
        let tx = &mut self.sessions[slot].tx;
        if tx.course.has(Course::AGAIN) && due {
            tx.copies.from = tx.una;
            tx.course = tx.course.again();
        }
        let (copies, course) = (tx.copies, tx.course);
        let mut some_went = false;
        let mut chunk = Segments::first(&tx.chunks);
        while let Some(i) = chunk {
            let head = self.segments.head(i);
            chunk = self.segments.next(i);
            // Those before the one that is next went.
            let over = head.base.distance(copies.from).clamp(0, CHUNK as i32) as u32;
            let mut open = head.open;
            while open != 0 {
                let at = open.trailing_zeros();
                let record = i * CHUNK + at;
                open &= open - 1;
                let segment = self.segments.get(record);
                let send = &self.sends[segment.message];
                let last = send.semantics.sync && segment.index + COPIES >= send.segments;
                if !last || send.protection.is_some() || segment.state != State::InFlight {
                    continue;
                }
                if at < over {
                    some_went = true;
                    continue;
                }
                if !course.has(Course::IDLE) && segment.time + late > clock {
                    return Next::Later(segment.time + late);
                }
                tx.copies.from = self.segments.seq(record).next();
                return Next::Copy(record);
            }
        }
        tx.copies.from = tx.next;
        tx.course.0 &= !Course::IDLE;
        if some_went && course.rounds() < ROUNDS {
            // What has been waited for the longest decides.
            let at = if course.has(Course::AGAIN) { self.copy_due_at(slot) } else { again_at };
            self.sessions[slot].tx.course.0 |= Course::AGAIN;
            return Next::Later(at);
        }
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
