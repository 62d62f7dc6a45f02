//! Records at numbers that stay the same as long as they live.

use core::ops::{Index, IndexMut};

/// At most so many records. Memory is reserved at the start and touched as it is used; numbers given back are used again
/// first, since they are in the cache.
#[derive(Debug)]
pub struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
    capacity: u32,
}

impl<T> Slab<T> {
    /// Room for `capacity` records.
    pub fn new(capacity: u32) -> Slab<T> {
        let n = capacity as usize;
        Slab { items: Vec::with_capacity(n), free: Vec::with_capacity(n), capacity }
    }

    /// Puts a record in; `None` if there is no room.
    #[inline]
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            self.items[at as usize] = value;
            return Some(at);
        }
        let at = self.items.len() as u32;
        if at == self.capacity {
            return None;
        }
        self.items.push(value);
        Some(at)
    }

    /// Frees a record, which must be in use.
    #[inline]
    pub fn remove(&mut self, at: u32) {
        #[cfg(test)]
        assert!(!self.free.contains(&at), "freed twice");
        self.free.push(at);
    }

    /// Records in use.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// Whether another record has room.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.items.len() < self.capacity as usize
    }

    /// The record, in use or not, if there ever was one at this number: for numbers that come from a packet.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        self.items.get(at as usize)
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.items[at as usize]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.items[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_the_bound_holds() {
        let mut slab = Slab::new(2);
        assert_eq!((slab.insert('a'), slab.insert('b'), slab.insert('c')), (Some(0), Some(1), None));
        assert!(!slab.has_room());
        slab.remove(0);
        assert!(slab.has_room());
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.insert('d'), Some(0));
        assert_eq!((slab[0], slab[1], slab.len()), ('d', 'b', 2));
        assert_eq!(slab.get(2), None);
    }
}
