//! The state machine of a segment; `docs/protocol.md`, section 6.

use super::Cause;
use crate::time::Instant;
use crate::transport::api::Status;
use crate::transport::congestion::Congestion;
use crate::transport::engine::{BEHIND, Engine};
use crate::transport::segments::{CHUNK, Segments, State};
use crate::transport::session::Queue;
use crate::wire::shim::{RejectMessage, RejectReason, Seq};

/// What else may bring a lost segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing: it has to be sent again.
    None,
    /// Parity of its block, which can still repair so many losses more.
    Parity {
        /// Losses that can be repaired beside those known.
        spare: u32,
    },
}

/// Where a segment goes that was found lost.
pub const fn after_loss(protection: Protection) -> State {
    match protection {
        Protection::None | Protection::Parity { spare: 0 } => State::Requested,
        Protection::Parity { .. } => State::AwaitRepair,
    }
}

impl Engine {
    /// A segment in flight is lost. Returns its bytes.
    pub(super) fn lose(&mut self, slot: u32, record: u32, cause: Cause) -> u64 {
        let segment = self.segments.get_mut(record);
        let (path, bytes, message) = (segment.path, u64::from(segment.bytes), segment.message);
        // After a black-out there is no parity either, and what was rejected is sent void.
        let protection = if matches!(cause, Cause::Gap | Cause::Time | Cause::Told) {
            self.parity_left(slot, record)
        } else {
            Protection::None
        };
        let state = after_loss(protection);
        let segment = self.segments.get_mut(record);
        (segment.state, segment.blind) = (state, cause == Cause::Timeout);
        let paths = usize::from(self.config.paths);
        let tx = &mut self.paths[slot as usize * paths + usize::from(path)].tx;
        self.path_chain.remove(&mut tx.in_flight, record);
        if cause != Cause::Rejected {
            self.path_lost(slot, path, matches!(cause, Cause::Gap | Cause::Told));
            self.losses_told(slot, 1);
        }
        let s = &mut self.sessions[slot];
        s.tx.in_flight -= 1;
        s.tx.in_flight_bytes -= bytes;
        if state == State::AwaitRepair {
            self.await_repair(slot, record);
        } else {
            let s = &mut self.sessions[slot];
            s.tx.requested += 1;
            self.segments.request(&mut s.tx.chunks, record);
            if let Protection::Parity { .. } = protection {
                self.give_up_group(slot, record);
            }
        }
        let send = &mut self.sends[message];
        if send.lost == Instant::ZERO && cause != Cause::Rejected {
            send.lost = self.now;
        }
        match cause {
            Cause::Gap => self.counters.gap_losses += 1,
            Cause::Time => self.counters.time_losses += 1,
            Cause::Deadline => self.counters.deadline_losses += 1,
            Cause::Timeout => self.counters.rto_losses += 1,
            Cause::Told => self.counters.told_losses += 1,
            Cause::Rejected => {}
        }
        bytes
    }

    /// A segment has arrived, whatever was thought of it.
    #[inline]
    pub(in crate::transport) fn placed(&mut self, slot: u32, record: u32) -> u64 {
        let segment = *self.segments.get(record);
        let seq = self.segments.seq(record);
        let s = &mut self.sessions[slot];
        if !segment.again && s.paths > 1 {
            self.orders[slot as usize].came(seq);
        }
        match segment.state {
            State::InFlight => {
                s.tx.in_flight -= 1;
                s.tx.in_flight_bytes -= u64::from(segment.bytes);
                let paths = usize::from(self.config.paths);
                let tx = &mut self.paths[slot as usize * paths + usize::from(segment.path)].tx;
                self.path_chain.remove(&mut tx.in_flight, record);
                tx.echoed += 1;
                if segment.again {
                    let rtt = tx.rtt.smoothed().unwrap_or_default().as_nanos().max(1);
                    // The clock stands still while the driver is away; who waits for the segment does not.
                    let behind = u128::from(self.behind().wrapping_sub(segment.behind)) << BEHIND;
                    let by_clock = self.clock.saturating_since(segment.time).as_nanos();
                    let took = by_clock + u128::from(segment.lag) + behind;
                    let eighths = took.saturating_sub(rtt / 2) * 8 / rtt;
                    self.counters.repairs.note(eighths);
                    self.counters.timeout_repairs += u64::from(segment.blind);
                    if !self.absences.any(self.now.as_nanos().saturating_sub(took as u64), rtt as u64) {
                        self.counters.steady_repairs.note(eighths);
                    }
                }
            }
            State::Requested => {
                s.tx.requested -= 1;
                self.returned += 1;
            }
            State::AwaitRepair => {
                self.returned += 1;
                self.await_no_more(slot, record);
            }
        }
        self.segments.close(record);
        let at = segment.message;
        let send = &mut self.sends[at];
        send.acked += 1;
        if send.void.is_some() {
            if send.acked == send.sent {
                self.voided(at);
            }
        } else if send.acked == send.segments {
            self.sessions[slot].tx.begun -= u16::from(send.segments > 1);
            self.finish_send(at, Status::Success);
        }
        u64::from(segment.bytes)
    }

    /// All that was sent of a rejected message has come void.
    fn voided(&mut self, at: u32) {
        let send = &mut self.sends[at];
        let slot = send.session;
        let tx = &mut self.sessions[slot].tx;
        tx.begun -= u16::from(send.segments > 1);
        if send.void == Some(RejectReason::TooLong) {
            return self.finish_send(at, Status::TooLong);
        }
        // It begins anew, under another number, when its receive is announced.
        send.void = None;
        send.granted = false;
        (send.sent, send.acked) = (0, 0);
        send.number = tx.next_message;
        tx.next_message = tx.next_message.next();
        let c = &mut self.channels[send.channel];
        if send.ordinal.before(c.through) {
            send.queue = Queue::Ready;
            self.queue_chain.push_back(&mut tx.ready, at);
            self.wake(slot);
        } else {
            send.queue = Queue::Waiting;
            tx.waiting += 1;
            let ordinal = send.ordinal;
            // In order, as announcements take them from the front.
            let mut after = None;
            let mut next = c.waiting.head();
            while let Some(other) = next
                && self.sends[other].ordinal.before(ordinal)
            {
                after = next;
                next = self.queue_chain.next(other);
            }
            match after {
                Some(after) => self.queue_chain.insert_after(&mut c.waiting, after, at),
                None => self.queue_chain.push_front(&mut c.waiting, at),
            }
            self.ask_later(slot);
        }
    }

    /// The peer rejected a message: what was sent of it and has not arrived goes again, void. False if there is no such
    /// message.
    pub(in crate::transport) fn void_message(&mut self, slot: u32, reject: &RejectMessage) -> bool {
        let Some(record) = self.find_open(slot, reject.seq) else { return false };
        let at = self.segments.get(record).message;
        let send = &self.sends[at];
        // What was acknowledged in part has a receive, or a place in the pool.
        if send.number != reject.message || send.void.is_some() || send.acked > 0 {
            return false;
        }
        self.leave_queue(at);
        let send = &mut self.sends[at];
        send.void = Some(reject.reason);
        if send.granted {
            // What it reserved of the grant and did not use.
            let tx = &mut self.sessions[slot].tx;
            tx.granted = tx.granted.back(send.segments - send.sent);
        }
        let mut chunk = Segments::first(&self.sessions[slot].tx.chunks);
        while let Some(i) = chunk {
            let mut open = self.segments.head(i).open;
            while open != 0 {
                let record = i * CHUNK + open.trailing_zeros();
                open &= open - 1;
                let segment = self.segments.get(record);
                match segment.state {
                    State::InFlight if segment.message == at => {
                        self.lose(slot, record, Cause::Rejected);
                    }
                    State::AwaitRepair if segment.message == at => self.request_awaiting(slot, record),
                    _ => {}
                }
            }
            chunk = self.segments.next(i);
        }
        self.wake(slot);
        true
    }

    /// The record of a sequence that is not acknowledged.
    pub(in crate::transport) fn find_open(&self, slot: u32, seq: Seq) -> Option<u32> {
        let mut chunk = Segments::first(&self.sessions[slot].tx.chunks);
        while let Some(i) = chunk {
            let head = self.segments.head(i);
            let ahead = head.base.until(seq);
            if ahead < CHUNK {
                return (head.open >> ahead & 1 == 1).then_some(i * CHUNK + ahead);
            }
            chunk = self.segments.next(i);
        }
        None
    }

    /// Tells congestion control of losses.
    pub(in crate::transport) fn lost_bytes(&mut self, slot: u32, bytes: u64) {
        if bytes > 0 {
            if !self.is_crowded(slot) {
                // Another path first.
                return self.wake(slot);
            }
            let clock = self.clock;
            self.sessions[slot].tx.control.on_lost(clock, bytes);
            self.wake(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_requested_unless_parity_can_repair_it() {
        assert_eq!(after_loss(Protection::None), State::Requested);
        assert_eq!(after_loss(Protection::Parity { spare: 0 }), State::Requested);
        assert_eq!(after_loss(Protection::Parity { spare: 1 }), State::AwaitRepair);
    }
}
