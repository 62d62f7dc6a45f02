//! In place of the detectors, for comparison: a fixed interval, as other stacks have one. A segment that is not acknowledged for so long after it was sent is lost, whatever the
//! round trips are. There is no probe, and the window does not collapse: it is a detector, not the last resort.

use super::Cause;
use crate::time::Instant;
use crate::transport::engine::Engine;
use core::time::Duration;

impl Engine {
    /// Something was sent or acknowledged.
    pub(super) fn watch_interval(&mut self, slot: u32, interval: Duration) {
        let clock = self.clock;
        let tx = &mut self.sessions[slot].tx;
        if tx.in_flight == 0 {
            tx.at = Instant::MAX;
        } else if tx.at == Instant::MAX {
            tx.at = clock + interval;
            self.arm(slot, clock + interval);
        }
    }

    /// The interval of the oldest segment may be over.
    pub(super) fn expire_interval(&mut self, slot: u32, interval: Duration) {
        let (clock, mut bytes, mut next) = (self.clock, 0, Instant::MAX);
        for path in 0..self.sessions[slot].paths {
            while let Some(oldest) = self.path(slot, path).tx.in_flight.head() {
                let at = self.segments.get(oldest).time + interval;
                if at > clock {
                    next = next.min(at);
                    break;
                }
                bytes += self.lose(slot, oldest, Cause::Timeout);
            }
        }
        self.sessions[slot].tx.at = next;
        self.lost_bytes(slot, bytes);
    }
}
