//! What stands for time where that is too coarse: the second detector goes by when segments were sent, and a driver whose round takes as long as a round trip sends all of a window
//! at the same time of its clock. Their order is known all the same. It is Linux' and RFC 6675's measure, with a distance that follows what the network does (in the manner of RFC 4653)
//! instead of three packets: a segment is lost if one that was sent so many later has arrived, and hardly any has come from so far behind of late.

use crate::time::Instant;
use crate::wire::shim::Seq;

/// Segments beyond twice what was seen.
const MARGIN: u32 = 4;
/// What a time-out is waited for takes no longer, microseconds.
const LONGEST: i32 = 60_000_000;

/// How the segments of a session come in that were sent once.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The highest that has arrived.
    top: Seq,
    /// The same before the feedback at hand.
    known: Seq,
    /// How far behind what was known one has been that arrived all the same, at the worst of late.
    behind: u32,
    /// Until then, duplicates may be of what was sent again because of a time-out: a microsecond, modulo 73 minutes; 0 is over. There are as many as sessions, so it is short.
    blind: u32,
}

impl Order {
    /// The largest window: as nothing is known yet, nothing is lost by its place.
    const MOST: u32 = 65_536;

    /// Nothing has arrived before `first`.
    pub const fn new(first: Seq) -> Order {
        Order { top: first, known: first, behind: Order::MOST, blind: 0 }
    }

    /// A segment has arrived that was sent once.
    #[inline]
    pub fn came(&mut self, seq: Seq) {
        if self.top.before(seq) {
            self.top = seq;
        }
        if seq.before(self.known) {
            self.behind = self.behind.max(seq.until(self.known)).min(Order::MOST);
        }
    }

    /// A feedback is over. What was seen counts less with each: a third of it is left after about 70.
    #[inline]
    pub fn told(&mut self) {
        self.known = self.top;
        self.behind -= self.behind.div_ceil(64);
    }

    /// A segment is sent again because of a time-out; what tells of it comes before `until`.
    pub fn sent_blindly(&mut self, until: Instant) {
        let until = micros(until);
        if self.blind == 0 || is_after(until, self.blind) {
            self.blind = until;
        }
    }

    /// Whether the duplicates that a feedback tells of say anything of detectors: what a time-out gives up was often only held up.
    pub fn tells(&mut self, now: Instant) -> bool {
        // It is at most some round trips ahead. What looks further ahead than this is long over.
        let left = self.blind.wrapping_sub(micros(now)).cast_signed();
        if self.blind != 0 && !(1..=LONGEST).contains(&left) {
            self.blind = 0;
        }
        self.blind == 0
    }

    /// A verdict was wrong.
    pub fn wrong(&mut self) {
        self.behind = (2 * self.behind).clamp(MARGIN, Order::MOST);
    }

    /// Whether a segment that was sent once, and has not arrived, is too far behind to come.
    #[inline]
    pub fn is_lost(&self, seq: Seq) -> bool {
        seq.before(self.top) && seq.until(self.top) > 2 * self.behind + MARGIN
    }
}

/// Never 0.
fn micros(at: Instant) -> u32 {
    ((at.as_nanos() >> 10) as u32).max(1)
}

fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_time_out_tells_nothing_for_a_while() {
        assert!(size_of::<Order>() <= 16);
        let at = |micros: u64| Instant::from_nanos(micros << 10);
        for begin in [1_000, (1 << 32) - 50, 1 << 32] {
            let mut order = Order::new(Seq(0));
            assert!(order.tells(at(begin)));
            order.sent_blindly(at(begin + 100));
            order.sent_blindly(at(begin + 40));
            assert!(!order.tells(at(begin)) && !order.tells(at(begin + 99)), "{begin}");
            assert!(order.tells(at(begin + 101)) && order.tells(at(begin)), "{begin}: it is over for good");
            // Nor is it after an hour in which nobody asked.
            order.sent_blindly(at(begin + 100));
            assert!(order.tells(at(begin + 3_600_000_000)), "{begin}");
        }
    }

    #[test]
    fn the_distance_follows_what_comes() {
        let first = Seq(u32::MAX - 100);
        let at = |n: u32| first.add(n);
        let mut order = Order::new(first);
        order.came(at(60_000));
        order.told();
        assert!(!order.is_lost(at(0)), "nothing is known yet");
        // All in order for a while.
        for n in 60_001..61_000 {
            order.came(at(n));
            order.told();
        }
        assert!(order.is_lost(at(60_999 - MARGIN - 1)) && !order.is_lost(at(60_999 - MARGIN)));
        // What the same feedback tells of is in no order.
        order.came(at(61_100));
        order.came(at(61_000));
        order.told();
        assert!(order.is_lost(at(61_100 - MARGIN - 1)));
        // One came from behind what was known before.
        order.came(at(61_050));
        assert!(!order.is_lost(at(61_100 - 100 - MARGIN)) && order.is_lost(at(61_100 - 101 - MARGIN)));
        for _ in 0..10 {
            order.told();
        }
        assert!(order.is_lost(at(61_100 - 80 - MARGIN - 1)) && !order.is_lost(at(61_100 - 80 - MARGIN)));
        // It was wrong.
        order.wrong();
        assert!(!order.is_lost(at(61_100 - 160 - MARGIN)));
        for _ in 0..1_000 {
            order.told();
        }
        order.wrong();
        assert!(order.is_lost(at(61_100 - 3 * MARGIN - 1)) && !order.is_lost(at(61_100 - 3 * MARGIN)));
        // Wrong ever again, it is as when nothing was known, and no more: a third is left after 70 feedbacks, and nothing after a thousand.
        for _ in 0..100 {
            order.wrong();
        }
        order.came(at(200_000));
        assert!(!order.is_lost(at(200_000 - 2 * Order::MOST - MARGIN)));
        assert!(order.is_lost(at(200_000 - 2 * Order::MOST - MARGIN - 1)));
        for _ in 0..1_000 {
            order.told();
        }
        assert!(order.is_lost(at(200_000 - MARGIN - 1)) && !order.is_lost(at(200_000 - MARGIN)));
        // One that came from further behind than any window reaches counts as far as that.
        order.came(at(100_000));
        assert!(order.is_lost(at(200_000 - 2 * Order::MOST - MARGIN - 1)));
    }
}
