//! What no feedback tells: a lost tail is probed for, and a path that gives no answer times out (RFC 8985 and RFC 6298, in their manner).

use super::Cause;
use crate::time::Instant;
use crate::transport::congestion::Congestion;
use crate::transport::engine::Engine;
use crate::transport::receive::LONG;
use crate::transport::session::due;
use core::time::Duration;

/// What the answers to one round of the peer may be apart: two polls of a busy endpoint. Where all is over sooner, half of what a round trip hardly exceeds.
const BATCH: Duration = Duration::from_micros(50);
/// Of so many segments in flight that nobody speaks of, one is a probe that goes after them when the wait is over. Losses come in bursts, and one that a single probe does not outlast
/// costs the next wait too, which is twice as long.
const SHARE: u32 = 16;
/// Probes at once, at the most.
const TRAIN: u32 = 16;

impl Engine {
    /// Works out how long to wait for an acknowledgement before probing: what the round trip hardly exceeds, the peer's
    /// feedback delay or the gaps between its rounds of late, and the gap that is always possible.
    pub(in crate::transport) fn set_patience(&mut self, slot: u32) {
        let bound = self.known_bound(slot).unwrap_or_else(|| self.path(slot, 0).tx.rtt.bound());
        let peer = Duration::from_nanos(u64::from(self.sessions[slot].tx.peer_delay));
        let slack = self.config.times.poll_gap.min(bound / 2);
        let delay = self.feedback_delay(slot).max(peer);
        let nanos = |d: Duration| u32::try_from(d.as_nanos()).unwrap_or(u32::MAX);
        // A probe is no verdict, so two round trips are enough for the first (RFC 8985, section 7.2), as long as few samples make the bound a large one.
        let rtts = (0..self.sessions[slot].paths).filter_map(|p| self.path(slot, p).tx.rtt.smoothed());
        let probe = rtts.max().map_or(bound, |longest| bound.min(2 * longest));
        let tx = &mut self.sessions[slot].tx;
        tx.patience = nanos(bound + delay + slack);
        tx.probe_after = nanos(probe + delay + slack);
    }

    /// Something was sent or acknowledged: the wait counts from what was sent last.
    #[inline]
    pub(in crate::transport) fn watch_tail(&mut self, slot: u32) {
        if let Some(interval) = self.config.mechanisms.interval {
            return self.watch_interval(slot, interval);
        }
        let clock = self.clock;
        let s = &mut self.sessions[slot];
        if s.tx.in_flight == 0 {
            s.tx.at = Instant::MAX;
            return;
        }
        if s.tx.expiries == 0 {
            let patience = Duration::from_nanos(u64::from(s.tx.probe_after));
            let at = (s.tx.last + patience).max(clock + BATCH.min(patience / 3));
            s.tx.at = at;
            self.arm(slot, at);
        } else if s.tx.at == Instant::MAX {
            // The wait was over while everything was lost and nothing in flight, so it was not begun anew then.
            let at = clock + self.rto(slot, self.sessions[slot].tx.expiries);
            self.sessions[slot].tx.at = at;
            self.arm(slot, at);
        }
    }

    /// Nothing can be sent. With nothing in flight, what is missing is a grant, and the feedback that told of it may be lost.
    pub(in crate::transport) fn watch_grant(&mut self, slot: u32) {
        let tx = &self.sessions[slot].tx;
        if tx.in_flight == 0 && tx.at == Instant::MAX && !tx.eager.is_empty() {
            let at = self.clock + self.rto(slot, tx.expiries);
            self.sessions[slot].tx.at = at;
            self.arm(slot, at);
        }
    }

    /// There is nothing more to send for now. After a long burst a probe follows its last segment, as nothing else would show that one to be lost before the wait is over;
    /// after a longer one another goes on the next path, as the first may be lost where the segment was. So they are less than a fortieth of the packets.
    pub(in crate::transport) fn end_of_burst(&mut self, slot: u32) {
        let tx = &mut self.sessions[slot].tx;
        let burst = tx.burst_from.until(tx.next);
        tx.burst_from = tx.next;
        if burst < LONG || tx.in_flight == 0 || !self.config.mechanisms.tail {
            return;
        }
        let last = tx.path;
        self.sessions[slot].probe |= 1 << last;
        if burst >= 2 * LONG {
            let other = self.next_path(slot, Some(last));
            self.sessions[slot].probe |= 1 << other;
        }
        self.owe(slot, due::PROBE);
    }

    /// Something came in on one of several paths: what waits for much longer than that on another is lost.
    pub(in crate::transport) fn sweep(&mut self, slot: u32) {
        let rto = self.rto(slot, 0);
        let mut bytes = 0;
        for path in 0..self.sessions[slot].paths {
            bytes += self.expire_path(slot, path, rto);
        }
        self.lost_bytes(slot, bytes);
    }

    /// Gives up what has been in flight on a path for longer than `rto`; returns its bytes.
    fn expire_path(&mut self, slot: u32, path: u8, rto: Duration) -> u64 {
        let clock = self.clock;
        let rto = if self.sessions[slot].paths > 1 { rto.max(self.path_bound(slot, path)) } else { rto };
        let mut bytes = 0;
        while let Some(oldest) = self.path(slot, path).tx.in_flight.head() {
            if self.segments.get(oldest).time + rto > clock {
                break;
            }
            bytes += self.lose(slot, oldest, Cause::Timeout);
        }
        bytes
    }

    fn rto(&self, slot: u32, doublings: u8) -> Duration {
        let times = &self.config.times;
        let paths = self.sessions[slot].paths;
        if (0..paths).all(|p| self.path(slot, p).tx.rtt.smoothed().is_none()) {
            // RFC 6298, 2.1: a second. A probe goes before that, and measures.
            return times.max_rto;
        }
        let patience = Duration::from_nanos(u64::from(self.sessions[slot].tx.patience));
        // A queue that holds more than the largest time-out must not be filled with copies of what is in it.
        (patience.max(times.min_rto) * (1 << doublings.min(16))).min(times.max_rto.max(patience))
    }

    /// The wait is over: the first time every path with something in flight is probed, after that it has timed out.
    pub(in crate::transport) fn expire_tail(&mut self, slot: u32) {
        if let Some(interval) = self.config.mechanisms.interval
            && self.sessions[slot].tx.in_flight > 0
        {
            return self.expire_interval(slot, interval);
        }
        let tx = &self.sessions[slot].tx;
        let expiries = tx.expiries;
        if tx.in_flight == 0 && tx.eager.is_empty() {
            self.sessions[slot].tx.at = Instant::MAX;
            return;
        }
        if expiries > 0 {
            self.time_out(slot, expiries - 1);
        }
        let clock = self.clock;
        let mut probe: u32 = 0;
        for path in 0..self.sessions[slot].paths {
            if !self.path(slot, path).tx.in_flight.is_empty() {
                probe |= 1 << path;
            }
        }
        let wait = self.rto(slot, expiries);
        let path = self.next_path(slot, None);
        let s = &mut self.sessions[slot];
        if s.tx.in_flight == 0 {
            probe = 1 << path;
        }
        s.tx.expiries = expiries.saturating_add(1);
        s.tx.at = clock + wait;
        let more = train(s.tx.in_flight, expiries).saturating_sub(probe.count_ones());
        if probe != 0 {
            for _ in 0..more {
                let path = self.next_path(slot, None);
                probe |= another(probe, path, self.sessions[slot].paths);
            }
            self.sessions[slot].probe |= probe;
            self.owe(slot, due::PROBE);
        }
    }

    /// Gives up what has been in flight for longer than the time-out.
    fn time_out(&mut self, slot: u32, doublings: u8) {
        let rto = self.rto(slot, doublings);
        let mut bytes = 0;
        for path in 0..self.sessions[slot].paths {
            bytes += self.expire_path(slot, path, rto);
        }
        if bytes > 0 {
            self.counters.rtos += 1;
            self.sessions[slot].tx.control.on_timeout();
            self.wake(slot);
        }
    }
}

/// Probes that go at once for so many segments in flight: more with each time that nothing was answered.
fn train(in_flight: u32, expiries: u8) -> u32 {
    (in_flight / SHARE).clamp(1, TRAIN).wrapping_shl(expiries.min(4).into()).min(TRAIN)
}

/// The bit of another probe on a path, beside those in `probes`: a bit stands for the path that is the remainder of its place by their number. None if all of that path's are taken.
fn another(probes: u32, path: u8, paths: u8) -> u32 {
    let mut places = (u32::from(path)..u32::BITS).step_by(usize::from(paths.max(1)));
    places.find(|place| probes & 1 << place == 0).map_or(0, |place| 1 << place)
}

#[cfg(test)]
mod tests {
    use super::{another, train};

    #[test]
    fn the_more_nobody_speaks_of_the_more_probes_ask() {
        assert_eq!([0, 1, 16, 32, 100, 1_000, u32::MAX].map(|n| train(n, 0)), [1, 1, 1, 2, 6, 16, 16]);
        assert_eq!([0, 1, 2, 3, 4, 5, u8::MAX].map(|n| train(3, n)), [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn one_path_can_have_many_probes() {
        assert_eq!((another(0, 0, 1), another(1, 0, 1), another(u32::MAX, 0, 1)), (1, 2, 0));
        // Of three paths, the second: places 1, 4, 7 … 31.
        assert_eq!((another(0b1, 1, 3), another(0b010_010, 1, 3)), (0b10, 0b1000_0000));
        assert_eq!((another(0, 31, 32), another(1 << 31, 31, 32)), (1 << 31, 0));
    }
}
