//! One deadline for each of many records: a hierarchical timing wheel (Varghese and Lauck 1987).
//!
//! Three wheels of 256 slots; a slot of the first is 1.024 µs, of the second 262 µs, of the third 67 ms, which makes 17 s. A
//! deadline beyond waits in the last slot that there is and is looked at again then.

use super::chain::{Chain, List};
use crate::time::Instant;

const SLOTS: usize = 256;
const LEVELS: usize = 3;
/// log₂ of the nanoseconds of a tick.
const TICK_BITS: u32 = 10;
/// In no slot.
const OUT: u16 = u16::MAX;

/// Deadlines of the records with numbers below a capacity.
#[derive(Debug)]
pub struct Wheel {
    /// Every deadline at or before this tick has been handed out.
    tick: u64,
    lists: Vec<List>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    chain: Chain,
    /// Deadline in ticks, and slot.
    entries: Vec<(u64, u16)>,
    armed: usize,
}

/// The first occupied slot at or after `from`, without going around.
fn occupied_from(words: &[u64; SLOTS / 64], from: usize) -> Option<usize> {
    let mut at = from / 64;
    let mut word = *words.get(at)? & (u64::MAX << (from % 64));
    while word == 0 {
        at += 1;
        word = *words.get(at)?;
    }
    Some(at * 64 + word.trailing_zeros() as usize)
}

impl Wheel {
    /// For records with numbers below `capacity`; none has a deadline.
    pub fn new(capacity: u32) -> Wheel {
        Wheel {
            tick: 0,
            lists: vec![List::default(); SLOTS * LEVELS],
            occupied: [[0; SLOTS / 64]; LEVELS],
            chain: Chain::new(capacity),
            entries: vec![(0, OUT); capacity as usize],
            armed: 0,
        }
    }

    /// Gives a record a deadline, in place of the one it may have. It is handed out at the first tick after it.
    pub fn set(&mut self, at: u32, deadline: Instant) {
        self.cancel(at);
        let tick = (deadline.as_nanos() >> TICK_BITS).saturating_add(1).max(self.tick + 1);
        self.place(at, tick);
        self.armed += 1;
    }

    fn place(&mut self, at: u32, tick: u64) {
        let ahead = tick - self.tick;
        let slot = if ahead < 1 << 8 {
            tick as usize & 255
        } else if ahead < 1 << 16 {
            256 + (tick as usize >> 8 & 255)
        } else {
            let held = tick.min(self.tick + (255 << 16));
            512 + (held as usize >> 16 & 255)
        };
        self.entries[at as usize] = (tick, slot as u16);
        self.chain.push_back(&mut self.lists[slot], at);
        self.occupied[slot / SLOTS][slot % SLOTS / 64] |= 1 << (slot % 64);
    }

    /// Takes a record's deadline away, if it has one.
    pub fn cancel(&mut self, at: u32) {
        let slot = self.entries[at as usize].1;
        if slot != OUT {
            self.take_out(at, usize::from(slot));
            self.armed -= 1;
        }
    }

    fn take_out(&mut self, at: u32, slot: usize) {
        self.chain.remove(&mut self.lists[slot], at);
        self.entries[at as usize].1 = OUT;
        if self.lists[slot].is_empty() {
            self.occupied[slot / SLOTS][slot % SLOTS / 64] &= !(1 << (slot % 64));
        }
    }

    /// A record whose deadline is not after `now`; it has none then. To be called until there is none.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        let to = now.as_nanos() >> TICK_BITS;
        if self.armed == 0 {
            self.tick = self.tick.max(to);
            return None;
        }
        loop {
            let found = occupied_from(&self.occupied[0], self.tick as usize & 255);
            let due = found.map(|slot| self.tick & !255 | slot as u64);
            match due {
                Some(tick) if tick > to => {
                    self.tick = self.tick.max(to);
                    return None;
                }
                Some(tick) => {
                    self.tick = tick;
                    let at = self.lists[tick as usize & 255].head()?;
                    self.take_out(at, tick as usize & 255);
                    self.armed -= 1;
                    return Some(at);
                }
                None => {}
            }
            let boundary = (self.tick | 255) + 1;
            if boundary > to {
                self.tick = self.tick.max(to);
                return None;
            }
            self.tick = boundary;
            if boundary & 0xffff == 0 {
                self.cascade(512 + (boundary as usize >> 16 & 255));
            }
            self.cascade(256 + (boundary as usize >> 8 & 255));
        }
    }

    /// Spreads a slot over the wheel below.
    fn cascade(&mut self, slot: usize) {
        let mut list = core::mem::take(&mut self.lists[slot]);
        self.occupied[slot / SLOTS][slot % SLOTS / 64] &= !(1 << (slot % 64));
        while let Some(at) = self.chain.pop_front(&mut list) {
            let tick = self.entries[at as usize].0.max(self.tick);
            self.place(at, tick);
        }
    }

    /// No deadline expires before this instant; `None` if there is none at all.
    pub fn next(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        let mut least = u64::MAX;
        for (level, words) in self.occupied.iter().enumerate() {
            let shift = 8 * level as u32;
            let now = self.tick >> shift;
            // The slot of the present holds, in the upper wheels, what is a whole turn ahead.
            let from = (now as usize & 255) + usize::from(level > 0);
            let ahead = occupied_from(words, from).map(|slot| now & !255 | slot as u64);
            let around = || occupied_from(words, 0).map(|slot| (now & !255) + 256 + slot as u64);
            if let Some(tick) = ahead.or_else(around) {
                least = least.min(tick << shift);
            }
        }
        (least != u64::MAX).then(|| Instant::from_nanos(least << TICK_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn nanos() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..4_000, 0u64..2_000_000, 0u64..200_000_000, 0u64..40_000_000_000]
    }

    proptest! {
        /// Nothing comes early, nothing later than a tick, and `next` never promises too much.
        #[test]
        fn behaves_like_an_ordered_map(
            start in prop_oneof![Just(0u64), any::<u32>().prop_map(u64::from), (0u64..1 << 20).prop_map(|x| (1 << 34) - x)],
            ops in prop::collection::vec((0u8..4, 0u32..8, nanos()), 1..60),
        ) {
            let mut wheel = Wheel::new(8);
            let mut now = start;
            prop_assert_eq!(wheel.expire(Instant::from_nanos(now)), None);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (op, at, nanos) in ops {
                match op {
                    0 | 1 => {
                        wheel.set(at, Instant::from_nanos(now + nanos));
                        model.insert(at, now + nanos);
                    }
                    2 => {
                        wheel.cancel(at);
                        model.remove(&at);
                    }
                    _ => {
                        now += nanos;
                        while let Some(at) = wheel.expire(Instant::from_nanos(now)) {
                            let due = model.remove(&at);
                            prop_assert!(due.is_some_and(|d| d <= now), "{} at {}: {:?}", at, now, due);
                        }
                        for due in model.values() {
                            prop_assert!(due + 1024 > now, "due at {}, not handed out at {}", due, now);
                        }
                    }
                }
                let next = wheel.next().map(Instant::as_nanos);
                prop_assert_eq!(next.is_some(), !model.is_empty());
                if let (Some(next), Some(due)) = (next, model.values().min()) {
                    prop_assert!(next <= due + 1024, "next {} after {}", next, due);
                }
            }
        }
    }

    #[test]
    fn sleeping_until_next_arrives_at_a_far_deadline_in_few_steps() {
        let mut wheel = Wheel::new(1);
        let due = Instant::from_nanos(30_000_000_000);
        wheel.set(0, due);
        let mut steps = 0;
        let mut now = Instant::ZERO;
        while wheel.expire(now).is_none() {
            let next = wheel.next().expect("armed");
            assert!(next > now, "time goes on");
            now = next;
            steps += 1;
        }
        assert!(now >= due && now.as_nanos() < due.as_nanos() + 2048);
        assert!(steps < 10, "{steps} steps");
    }
}
