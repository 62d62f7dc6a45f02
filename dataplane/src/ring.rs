//! A first-in, first-out queue of fixed capacity, for the paths that every packet takes.
//!
//! `VecDeque` can grow, and pays for that with a call that is not inlined. This one cannot: a push is a store, a mask and
//! an addition.

/// A queue of at most [`Ring::capacity`] items.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    slots: Box<[Option<T>]>,
    /// Positions count up and wrap; masked, they are indices.
    head: usize,
    tail: usize,
    limit: usize,
}

impl<T> Ring<T> {
    /// An empty queue of exactly `capacity` items.
    pub fn new(capacity: usize) -> Ring<T> {
        Ring::starting_at(capacity, 0)
    }

    /// The same, with its positions anywhere: they wrap, and a test may start just before that.
    fn starting_at(capacity: usize, position: usize) -> Ring<T> {
        let slots = std::iter::repeat_with(|| None).take(capacity.max(1).next_power_of_two()).collect();
        Ring { slots, head: position, tail: position, limit: capacity }
    }

    #[inline]
    pub fn capacity(&self) -> usize {
        self.limit
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Adds an item at the end; gives it back if there is no room.
    #[inline(always)]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        if self.is_empty() {
            // Starts over, so that a queue which is emptied often stays within a few cache lines however deep it is.
            self.head = 0;
            self.tail = 0;
        }
        let mask = self.slots.len() - 1;
        // The place is free: there is nothing to drop, and no need to look.
        std::mem::forget(self.slots[self.tail & mask].replace(item));
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Takes the oldest item.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let item = self.slots[self.head & mask].take();
        self.head = self.head.wrapping_add(1);
        item
    }

    /// Takes the oldest item and hands it to `handle`; what that returns becomes the newest. Returns false if there was none.
    ///
    /// In a full queue the oldest and the newest place are the same, and nothing moves.
    #[inline(always)]
    pub fn cycle(&mut self, handle: impl FnOnce(T) -> Option<T>) -> bool {
        let mask = self.slots.len() - 1;
        let (from, to) = (self.head & mask, self.tail & mask);
        if self.is_empty() {
            return false;
        }
        let Some(slot) = self.slots.get_mut(from) else { return false };
        let Some(item) = slot.take() else { return false };
        self.head = self.head.wrapping_add(1);
        if let Some(item) = handle(item) {
            self.tail = self.tail.wrapping_add(1);
            if from == to {
                // The place is free: there is nothing to drop, and no need to look.
                std::mem::forget(slot.replace(item));
            } else if let Some(slot) = self.slots.get_mut(to) {
                std::mem::forget(slot.replace(item));
            }
        }
        true
    }

    /// The oldest item.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        let mask = self.slots.len() - 1;
        if self.is_empty() { None } else { self.slots[self.head & mask].as_mut() }
    }

    /// The newest item.
    #[inline(always)]
    pub fn back_mut(&mut self) -> Option<&mut T> {
        let mask = self.slots.len() - 1;
        if self.is_empty() { None } else { self.slots[self.tail.wrapping_sub(1) & mask].as_mut() }
    }

    /// Every item, oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let mask = self.slots.len() - 1;
        let (from, len) = (self.head & mask, self.len());
        let (wrapped, first) = self.slots.split_at_mut(from);
        first.iter_mut().chain(wrapped).take(len).flatten()
    }

    /// Keeps the items for which `keep` is true, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for _ in 0..self.len() {
            if let Some(item) = self.pop()
                && keep(&item)
            {
                // One was just taken, so there is room.
                let _ = self.push(item);
            }
        }
    }

    /// Drops every item.
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u32),
        Pop,
        Retain(u32),
        Bump,
        Clear,
        /// The oldest comes back changed, or not at all.
        Cycle(bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => any::<u32>().prop_map(Op::Push),
            4 => Just(Op::Pop),
            1 => (2u32..5).prop_map(Op::Retain),
            1 => Just(Op::Bump),
            1 => Just(Op::Clear),
            3 => any::<bool>().prop_map(Op::Cycle),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_bounded_deque_across_the_wrap(
            capacity in 1usize..20, before_wrap in 0usize..10, ops in proptest::collection::vec(op(), 0..300))
        {
            let mut ring = Ring::starting_at(capacity, usize::MAX - before_wrap);
            let mut model = VecDeque::new();
            for op in ops {
                match op {
                    Op::Push(n) if model.len() < capacity => {
                        prop_assert_eq!(ring.push(n), Ok(()));
                        model.push_back(n);
                    }
                    Op::Push(n) => prop_assert_eq!(ring.push(n), Err(n)),
                    Op::Pop => prop_assert_eq!(ring.pop(), model.pop_front()),
                    Op::Retain(k) => {
                        ring.retain(|n| n % k != 0);
                        model.retain(|n| n % k != 0);
                    }
                    Op::Bump => {
                        for n in ring.iter_mut() { *n = n.wrapping_add(1); }
                        for n in &mut model { *n = n.wrapping_add(1); }
                    }
                    Op::Clear => { ring.clear(); model.clear(); }
                    Op::Cycle(back) => {
                        let oldest = model.pop_front();
                        let mut seen = None;
                        let found = ring.cycle(|item| {
                            seen = Some(item);
                            back.then_some(item.wrapping_add(1))
                        });
                        prop_assert_eq!((found, seen), (oldest.is_some(), oldest));
                        model.extend(oldest.filter(|_| back).map(|item| item.wrapping_add(1)));
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(ring.is_full(), model.len() == capacity);
                prop_assert_eq!(ring.front_mut().copied(), model.front().copied());
                prop_assert_eq!(ring.back_mut().copied(), model.back().copied());
            }
        }
    }
}
