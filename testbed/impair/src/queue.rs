//! A bottleneck and the queue before it.

use crate::config::Rate;
use roce_proto::time::Instant;
use std::collections::VecDeque;

/// Picoseconds of a second: at 100 Gbit/s a byte takes 80 of them, so nanoseconds would be too coarse.
const PICOS: u128 = 1_000_000_000_000;

/// A queue that drops at its tail. Only lengths and times: the packets are elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// When the last packet will have been sent, in picoseconds.
    busy_until: u128,
    /// What is being sent or waits: when it will have been sent, and its bytes.
    waiting: VecDeque<(u128, u64)>,
    /// Their sum.
    bytes: u64,
}

/// A packet that the queue took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// When its last bit is out.
    pub at: Instant,
    /// The queue was long enough to mark it.
    pub long: bool,
}

impl Queue {
    /// When everything that it holds will have been sent.
    pub fn empty_at(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.busy_until.div_ceil(1000)).unwrap_or(u64::MAX))
    }

    /// Takes a packet of `bytes` bytes at `now`; none if there is no room for it.
    pub fn take(&mut self, rate: &Rate, now: Instant, bytes: u64) -> Option<Taken> {
        let now = u128::from(now.as_nanos()) * 1000;
        while let Some(&(until, sent)) = self.waiting.front()
            && until <= now
        {
            self.bytes -= sent;
            self.waiting.pop_front();
        }
        if self.bytes.saturating_add(bytes) > rate.queue {
            return None;
        }
        let long = rate.mark_from.is_some_and(|from| self.bytes >= from);
        let takes = u128::from(bytes) * 8 * PICOS / u128::from(rate.bits_per_second);
        self.busy_until = self.busy_until.max(now) + takes;
        self.waiting.push_back((self.busy_until, bytes));
        self.bytes += bytes;
        let nanos = u64::try_from(self.busy_until.div_ceil(1000)).unwrap_or(u64::MAX);
        Some(Taken { at: Instant::from_nanos(nanos), long })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_the_queue_is_finite() {
        // 8 Gbit/s: a nanosecond a byte.
        let rate = Rate { bits_per_second: 8_000_000_000, queue: 3000, mark_from: Some(2000) };
        let mut queue = Queue::default();
        let at = Instant::from_nanos;
        let taken = |ns, long| Some(Taken { at: at(ns), long });
        assert_eq!(queue.take(&rate, at(100), 1000), taken(1100, false));
        assert_eq!(queue.take(&rate, at(100), 1000), taken(2100, false));
        assert_eq!(queue.take(&rate, at(100), 1000), taken(3100, true), "two thousand bytes were there");
        assert_eq!(queue.take(&rate, at(100), 1), None);
        assert_eq!(queue.take(&rate, at(1099), 1), None, "the first is not out yet");
        assert_eq!(queue.take(&rate, at(1100), 1000), taken(4100, true));
        assert_eq!(queue.take(&rate, at(9000), 500), taken(9500, false), "idle since");
        assert_eq!(queue.empty_at(), at(9500));
    }

    #[test]
    fn many_small_packets_take_their_exact_time() {
        // 100 Gbit/s: a packet of 64 bytes takes 5.12 ns.
        let rate = Rate { bits_per_second: 100_000_000_000, queue: u64::MAX, mark_from: None };
        let mut queue = Queue::default();
        let last = (0..100_000).map(|_| queue.take(&rate, Instant::ZERO, 64).unwrap()).last().unwrap();
        assert_eq!(last.at.as_nanos(), 512_000);
    }
}
