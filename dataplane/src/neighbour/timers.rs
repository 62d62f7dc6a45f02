//! Timers by their time. One that is no longer meant stays until its time, and its owner does not know it then.

use roce_proto::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Timers of entries that are named by a key.
#[derive(Debug)]
pub(super) struct Timers<K: Ord> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
    /// The time of the first, apart from the heap for whoever polls.
    next: Instant,
}

impl<K: Ord + Copy> Timers<K> {
    pub fn new() -> Timers<K> {
        Timers { heap: BinaryHeap::new(), next: Instant::MAX }
    }

    /// Timers set, those no longer meant included.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// When the first is due; `Instant::MAX` for never.
    #[inline]
    pub fn next(&self) -> Instant {
        self.next
    }

    pub fn set(&mut self, key: K, at: Instant) {
        self.heap.push(Reverse((at, key)));
        self.next = self.next.min(at);
    }

    /// The first timer, if it is due at `now`.
    pub fn expired(&mut self, now: Instant) -> Option<(K, Instant)> {
        if now < self.next {
            return None;
        }
        let first = self.heap.pop().map(|Reverse((at, key))| (key, at));
        self.look();
        first
    }

    pub fn retain(&mut self, mut meant: impl FnMut(K, Instant) -> bool) {
        self.heap.retain(|Reverse((at, key))| meant(*key, *at));
        self.look();
    }

    fn look(&mut self) {
        self.next = self.heap.peek().map_or(Instant::MAX, |Reverse((at, _))| *at);
    }
}
