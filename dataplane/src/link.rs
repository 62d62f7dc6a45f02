//! A bounded queue between two threads that moves items in bursts.
//!
//! The items travel in batches through a lock-free queue, and the emptied batches travel back through a second one: one
//! atomic exchange for up to [`BATCH`] items, and no allocation after the start. A full queue refuses: back-pressure.

use crate::ring::Ring;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Items in one batch at the most.
pub const BATCH: usize = 64;

type Batches<T> = Arc<ArrayQueue<Ring<T>>>;

/// The end that puts items in.
#[derive(Debug)]
pub struct Sender<T> {
    filled: Batches<T>,
    emptied: Batches<T>,
    filling: Option<Ring<T>>,
}

/// The end that takes items out.
#[derive(Debug)]
pub struct Receiver<T> {
    filled: Batches<T>,
    emptied: Batches<T>,
    draining: Option<Ring<T>>,
}

/// A queue of about `capacity` items, rounded up to whole batches; at least four batches, so that one can be filled,
/// one be drained and two be on the way.
pub fn link<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let batches = capacity.div_ceil(BATCH).max(4);
    let filled = Arc::new(ArrayQueue::new(batches));
    let emptied = Arc::new(ArrayQueue::new(batches));
    for _ in 0..batches {
        // As many as the queue holds, so there is room.
        let _ = emptied.push(Ring::new(BATCH));
    }
    (
        Sender { filled: filled.clone(), emptied: emptied.clone(), filling: None },
        Receiver { filled, emptied, draining: None },
    )
}

impl<T> Sender<T> {
    /// Adds an item to the batch being filled, and sends the batch when it is full. Gives the item back if every batch
    /// is on its way.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        let batch = match &mut self.filling {
            Some(batch) => batch,
            none => match self.emptied.pop() {
                Some(batch) => none.insert(batch),
                None => return Err(item),
            },
        };
        batch.push(item)?;
        if batch.is_full() {
            self.flush();
        }
        Ok(())
    }

    /// Items that can be pushed for sure.
    #[inline]
    pub fn room(&self) -> usize {
        let filling = self.filling.as_ref().map_or(0, |batch| batch.capacity() - batch.len());
        filling + self.emptied.len() * BATCH
    }

    /// Sends the batch being filled, however full it is.
    #[inline]
    pub fn flush(&mut self) {
        if let Some(batch) = self.filling.take()
            && let Err(batch) = self.filled.push(batch)
        {
            // Cannot be: there are as many batches as places. Kept rather than lost all the same.
            self.filling = Some(batch);
        }
    }

    /// Sends the batch being filled, unless half of all batches wait at the other end already: then the next items travel in
    /// the same one. So small batches do not use up the queue while the other end does not look; as soon as it does, the next
    /// call sends what was held back.
    #[inline]
    pub fn flush_unless_crowded(&mut self) {
        if self.filling.is_some() && self.filled.len() * 2 < self.filled.capacity() {
            self.flush();
        }
    }

    /// True when the other end is gone.
    pub fn is_closed(&self) -> bool {
        Arc::strong_count(&self.filled) < 2
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest item that was sent.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        loop {
            if let Some(batch) = &mut self.draining {
                if let Some(item) = batch.pop() {
                    return Some(item);
                }
                if let Some(batch) = self.draining.take() {
                    let _ = self.emptied.push(batch);
                }
            }
            self.draining = Some(self.filled.pop()?);
        }
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.draining.as_ref().is_none_or(Ring::is_empty) && self.filled.is_empty()
    }

    /// True when the other end is gone; items sent before may still wait.
    pub fn is_closed(&self) -> bool {
        Arc::strong_count(&self.filled) < 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_full_queue_refuses_and_recovers() {
        let (mut tx, mut rx) = link(1);
        let mut sent = 0u32;
        assert_eq!(tx.room(), 4 * BATCH);
        while tx.push(sent).is_ok() {
            sent += 1;
            assert_eq!(tx.room(), 4 * BATCH - sent as usize);
        }
        assert_eq!(sent as usize, 4 * BATCH);
        assert_eq!(tx.push(sent), Err(sent));
        for want in 0..=BATCH as u32 {
            assert_eq!(rx.pop(), Some(want));
        }
        assert!(tx.push(sent).is_ok(), "an emptied batch came back");
    }

    #[test]
    fn nothing_is_lost_when_the_sender_goes() {
        let (mut tx, mut rx) = link(100);
        tx.push(1).unwrap();
        assert_eq!(rx.pop(), None, "not flushed yet");
        assert!(!rx.is_closed());
        drop(tx);
        assert!(rx.is_closed());
        assert_eq!(rx.pop(), Some(1));
        assert_eq!(rx.pop(), None);
    }

    #[test]
    fn two_threads_agree_on_a_million_items() {
        let (mut tx, mut rx) = link(1000);
        const N: u64 = 1_000_000;
        let sender = std::thread::spawn(move || {
            for mut i in 0..N {
                while let Err(back) = tx.push(i) {
                    i = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < N {
            match rx.pop() {
                Some(i) => {
                    assert_eq!(i, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert!(rx.is_empty());
    }

    proptest! {
        #[test]
        fn behaves_as_a_bounded_fifo(ops in proptest::collection::vec(0u8..3, 1..2000)) {
            let (mut tx, mut rx) = link::<u32>(256);
            let (mut staged, mut sent) = (VecDeque::new(), VecDeque::new());
            let mut next = 0;
            for op in ops {
                match op {
                    0 => {
                        let refused = tx.push(next).is_err();
                        if refused {
                            prop_assert!(staged.is_empty() && sent.len() >= 3, "refused with room");
                        } else {
                            staged.push_back(next);
                        }
                        next += 1;
                        if staged.len() == BATCH { sent.append(&mut staged); }
                    }
                    1 => { tx.flush(); sent.append(&mut staged); }
                    _ => prop_assert_eq!(rx.pop(), sent.pop_front()),
                }
            }
        }
    }
}
