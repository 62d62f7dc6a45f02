//! What the sender learns from a feedback.

use super::api::{Drop, Origin, Received};
use super::congestion::{Acked, Congestion, RoundTrip};
use super::engine::Engine;
use super::handshake::MOST_GRANT;
use super::protect::STAGE;
use super::segments::{CHUNK, Segments};
use crate::time::Instant;
use crate::wire::shim::{Feedback, FeedbackHead, Kind, ShimError};
use core::time::Duration;

/// The longest delay of a peer's rounds that is waited for: some quanta of a busy scheduler.
const MOST_DELAY: Duration = Duration::from_millis(100);

/// Delay beyond the least round trip that is no jitter of rounds, but a queue.
const QUEUE: Duration = Duration::from_micros(20);

impl Engine {
    /// A feedback of the peer.
    pub(super) fn on_feedback(&mut self, origin: &Origin, payload: &[u8]) -> Result<Received, ShimError> {
        let feedback = Feedback::parse(payload)?;
        let head = feedback.head;
        let slot = match self.lookup_open(head.session, origin) {
            Ok(slot) => slot,
            Err(drop) => return Ok(Received::Dropped(drop)),
        };
        let tx = &mut self.sessions[slot].tx;
        if !tx.feedback.before(head.number) {
            return Ok(Received::Dropped(Drop::Stale));
        }
        // What was never sent cannot have arrived. `next` may lie before `una` only in older feedback, which is gone by now.
        if tx.next.before(head.next) || head.next.before(tx.una) {
            return Ok(Received::Dropped(Drop::Inconsistent));
        }
        tx.feedback = head.number;
        self.returned = 0;
        let limited = tx.in_flight_bytes + u64::from(self.config.segment) > tx.control.window();
        let bytes = self.acknowledge(slot, &feedback);
        self.announced(slot, head.announced);
        let more_grant = self.take_grant(slot, &head);
        self.count_duplicates(slot, head.duplicates);
        if self.sessions[slot].paths > 1 {
            self.orders[slot as usize].told();
        }
        let (rtt, ce) = self.take_reports(slot, &feedback);
        if STAGE && self.sessions[slot].tx.protecting != 0 {
            self.observe_losses(slot, &head, bytes);
        }
        let (now, tx) = (self.clock, &mut self.sessions[slot].tx);
        tx.control.on_acked(&Acked { now, bytes, rtt, ce, limited });
        tx.control.on_share(head.share);
        if bytes > 0 || more_grant {
            tx.expiries = 0;
            self.watch_tail(slot);
        }
        if self.config.mechanisms.time || head.status {
            self.judge_time(slot, feedback.end(), head.status);
        } else if self.sessions[slot].paths > 1 && self.config.mechanisms.interval.is_none() {
            self.sweep(slot);
        }
        self.wake(slot);
        let s = &self.sessions[slot];
        if s.tx.in_flight == 0 && !s.in_ready && s.due == 0 {
            self.put_off(slot);
        }
        Ok(Received::Taken(Kind::Feedback))
    }

    /// Closes every segment that the feedback says has arrived; returns their bytes.
    fn acknowledge(&mut self, slot: u32, feedback: &Feedback<'_>) -> u64 {
        let mut bytes = 0;
        let next = feedback.head.next;
        let mut words = feedback.words();
        // The word that the bitmap has for the chunk at hand; before `next` everything has arrived.
        let mut word_base = feedback.base();
        let mut chunk = Segments::first(&self.sessions[slot].tx.chunks);
        while let Some(i) = chunk {
            chunk = self.segments.next(i);
            let base = self.segments.head(i).base;
            let arrived = if !next.before(base.add(CHUNK)) {
                u32::MAX
            } else {
                let skipped = word_base.distance(base);
                if skipped < 0 {
                    0
                } else {
                    let word = words.nth(skipped as usize / CHUNK as usize);
                    word_base = base.add(CHUNK);
                    match word {
                        Some(word) => word,
                        // Without a bitmap: what stands before `next`.
                        None if base.before(next) => !(u32::MAX << base.until(next)),
                        None => break,
                    }
                }
            };
            let mut anew = arrived & self.segments.head(i).open;
            while anew != 0 {
                let record = i * CHUNK + anew.trailing_zeros();
                anew &= anew - 1;
                bytes += self.placed(slot, record);
            }
        }
        let tx = &mut self.sessions[slot].tx;
        tx.una = self.segments.trim(&mut tx.chunks, tx.next);
        bytes
    }

    /// Returns whether the grant rose.
    fn take_grant(&mut self, slot: u32, head: &FeedbackHead) -> bool {
        let tx = &mut self.sessions[slot].tx;
        let more = tx.grant.distance(head.grant);
        // More than a session can have unplaced is no grant.
        if more > 0 && more as u32 <= MOST_GRANT {
            tx.grant = head.grant;
            return true;
        }
        false
    }

    /// The peer counts duplicates; as far as we sent segments again, those were spurious.
    fn count_duplicates(&mut self, slot: u32, duplicates: u32) {
        let s = &mut self.sessions[slot];
        let more = duplicates.wrapping_sub(s.tx.duplicates);
        if more == 0 || more > 1 << 30 {
            return;
        }
        s.tx.duplicates = duplicates;
        let spurious = more.min(s.tx.doubtful);
        if spurious > 0 {
            s.tx.doubtful -= spurious;
            s.stats.spurious += u64::from(spurious);
            self.counters.spurious += u64::from(spurious);
            self.losses_told(slot, -(spurious as i32));
            // A time-out gives up what was only held up, and that comes twice.
            if self.orders[slot as usize].tells(self.clock) {
                self.be_patient(slot);
                self.widen_reordering(slot);
            }
        }
    }

    /// What each path told: its round trip, its marks, its gaps. Returns the round trip and the marks.
    fn take_reports(&mut self, slot: u32, feedback: &Feedback<'_>) -> (Option<RoundTrip>, u32) {
        let paths = self.sessions[slot].paths;
        let now = self.now;
        let end = feedback.end();
        let (mut best, mut ce) = (None::<(Duration, Duration)>, 0);
        let (mut delays, mut longest, mut samples) = (Duration::ZERO, Duration::ZERO, 0);
        let mut standing = Duration::ZERO;
        let (mut told, mut marked, mut newest) = (0, 0, Duration::MAX);
        let mut late = false;
        let mut delay = Duration::ZERO;
        for report in feedback.paths() {
            if report.path >= paths {
                continue;
            }
            let tx = &mut self.path_mut(slot, report.path).tx;
            if !report.highest.before(tx.next) {
                // It was never sent.
                continue;
            }
            if tx.told.before(report.highest) {
                tx.told = report.highest;
            }
            let marks = report.ce.wrapping_sub(tx.ce);
            marked += u32::from(marks > 0);
            told += 1;
            ce += u32::from(marks);
            tx.ce = report.ce;
            delay = delay.max(report.delay.duration());
            late |= report.late;
            let age = report.time.age(now);
            newest = newest.min(age);
            let sample = age.saturating_sub(report.delay.duration());
            // Where the packet may have waited, the round trip is between the two: enough to see that it is longer, or shorter, than
            // was thought. Without that, the time-outs to a slow poller would not follow a queue that fills.
            let sample = match tx.rtt.smoothed() {
                _ if !report.late => Some(sample),
                Some(known) if sample > known => Some(sample),
                Some(known) if age >= known => None,
                _ => Some(age),
            };
            // An age of a whole turn of the clock is no round trip.
            if let Some(sample) = sample.filter(|s| *s < Duration::from_secs(4) && !s.is_zero()) {
                tx.rtt.sample(now, sample);
                let least = tx.rtt.least().unwrap_or(sample);
                best = best.filter(|b| b.0 <= sample).or(Some((sample, least)));
                delays += sample.saturating_sub(least);
                standing += tx.rtt.standing().unwrap_or(sample).saturating_sub(least);
                longest = longest.max(sample.saturating_sub(least));
                samples += 1;
            }
            self.path_told(slot, &report, marks);
            self.judge_gap(slot, report.path, report.highest, end);
        }
        if feedback.paths().len() > 0 {
            // The longest of late: it shrinks by a sixteenth with each feedback.
            let tx = &mut self.sessions[slot].tx;
            if let Some(sent) = self.clock.as_nanos().checked_sub(newest.as_nanos() as u64) {
                tx.newest = tx.newest.max(Instant::from_nanos(sent));
            }
            if delay > self.config.times.poll_gap {
                self.absences.note(now, delay.as_nanos() as u64);
            }
            let tx = &mut self.sessions[slot].tx;
            let delay = u32::try_from(delay.min(MOST_DELAY).as_nanos()).unwrap_or(u32::MAX);
            tx.peer_delay = delay.max(tx.peer_delay - tx.peer_delay / 16);
            tx.course.note_peer(late);
            self.set_patience(slot);
            self.set_asking(slot);
        }
        let round_trip = best.map(|(rtt, least)| {
            self.sessions[slot].tx.queued = rtt > least + (least / 2).max(QUEUE);
            // Of late: it shrinks by a sixteenth with each feedback, as one tells of few paths.
            let tx = &mut self.sessions[slot].tx;
            tx.longest =
                u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX).max(tx.longest - tx.longest / 16);
            // The mean over the paths: the shortest would be the shorter the more of them there are in a feedback, and favour large windows.
            RoundTrip { least, delay: delays / samples.max(1), standing: standing / samples.max(1) }
        });
        // Marks on some paths of many are for these to be passed over, not for less to be sent.
        (round_trip, if 2 * marked > told || !self.config.mechanisms.health { ce } else { 0 })
    }
}
