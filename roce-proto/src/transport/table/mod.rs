//! Tables of fixed size: everything the engine keeps lies in one of them, and none grows after the start.

mod chain;
mod index;
mod slab;
mod wheel;

pub use chain::{Chain, List};
pub use index::{Index, Mixer};
pub use slab::Slab;
pub use wheel::Wheel;

use std::collections::VecDeque;

/// Takes the first element out. A queue that is empty then begins at its front again, so that one that is never long stays in the few
/// lines of the cache that it has, and does not walk through all the memory that was reserved for it.
#[inline]
pub fn take_first<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_queue_stays_where_it_is() {
        let mut queue = VecDeque::with_capacity(1000);
        let place = |queue: &VecDeque<u32>| std::ptr::from_ref(&queue[0]);
        queue.push_back(0);
        let first = place(&queue);
        for n in 0..10 {
            assert_eq!(take_first(&mut queue), Some(n));
            queue.push_back(n + 1);
            assert_eq!(place(&queue), first);
        }
        queue.push_back(99);
        assert_eq!(
            (take_first(&mut queue), take_first(&mut queue), take_first(&mut queue)),
            (Some(10), Some(99), None)
        );
    }
}
