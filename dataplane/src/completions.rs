//! Completions on their way from a worker thread, and the receive buffers that come back with them.
//!
//! A batch carries up to [`BATCH`] completions. The application says of each whether its buffer is to be posted as a receive
//! again: such a buffer stays where it is, and the batch, read to its end, takes it back. One atomic exchange each way for
//! the whole batch, nothing is moved twice, and no allocation after the start: a bounded number of batches goes round.

use crate::cq::{Completion, WcOpcode};
use crate::qp::RecvWr;
use crate::worker::flushed;
use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use roce_proto::types::Qpn;
use std::sync::Arc;

/// Completions in one batch at the most.
pub(crate) const BATCH: usize = 64;

type Batch<B> = Box<ArrayVec<Completion<B>, BATCH>>;
type Batches<B> = Arc<ArrayQueue<Batch<B>>>;

/// The worker's end.
pub(crate) struct Sender<B> {
    out: Batches<B>,
    back: Batches<B>,
    filling: Option<Batch<B>>,
    empty: Vec<Batch<B>>,
    /// The batch whose buffers are being posted again, and the next of them.
    unpacking: Option<Batch<B>>,
    at: usize,
}

/// The application's end.
pub(crate) struct Receiver<B> {
    out: Batches<B>,
    back: Batches<B>,
    /// The batch being read, and the next completion in it.
    reading: Option<Batch<B>>,
    at: usize,
}

/// A round of batches that hold about `capacity` completions; at least four, so that one can be filled, one be read and two be
/// on the way.
pub(crate) fn completions<B>(capacity: usize) -> (Sender<B>, Receiver<B>) {
    let count = capacity.div_ceil(BATCH).max(4);
    let (out, back) = (Arc::new(ArrayQueue::new(count)), Arc::new(ArrayQueue::new(count)));
    let empty = (0..count).map(|_| Box::new(ArrayVec::new())).collect();
    (
        Sender { out: out.clone(), back: back.clone(), filling: None, empty, unpacking: None, at: 0 },
        Receiver { out, back, reading: None, at: 0 },
    )
}

impl<B> Sender<B> {
    /// Adds a completion to the batch being filled, and sends the batch when it is full. Gives the completion back if every batch
    /// is away.
    #[inline]
    pub fn push(&mut self, done: Completion<B>) -> Result<(), Completion<B>> {
        let batch = match &mut self.filling {
            Some(batch) => batch,
            none => match self.empty.pop() {
                Some(batch) => none.insert(batch),
                None => return Err(done),
            },
        };
        batch.try_push(done).map_err(|full| full.element())?;
        if batch.is_full() {
            self.flush();
        }
        Ok(())
    }

    /// Completions that can be pushed for sure.
    #[inline]
    pub fn room(&self) -> usize {
        let filling = self.filling.as_ref().map_or(0, |batch| batch.remaining_capacity());
        filling + self.empty.len() * BATCH
    }

    /// Sends the batch being filled, however full it is.
    #[inline]
    pub fn flush(&mut self) {
        if let Some(batch) = self.filling.take()
            && let Err(batch) = self.out.push(batch)
        {
            // Cannot be: there are as many batches as places. Kept rather than lost all the same.
            self.filling = Some(batch);
        }
    }

    /// The next receive to be posted again, and the number of its queue pair.
    #[inline]
    pub fn next_again(&mut self) -> Option<(Qpn, RecvWr<B>)> {
        loop {
            if let Some(batch) = &mut self.unpacking {
                while let Some(done) = batch.get_mut(self.at) {
                    self.at += 1;
                    if let Some(buf) = done.buf.take() {
                        return Some((done.qpn, RecvWr { wr_id: done.wr_id, buf }));
                    }
                }
                batch.clear();
                self.empty.extend(self.unpacking.take());
            }
            self.at = 0;
            self.unpacking = Some(self.back.pop()?);
        }
    }
}

impl<B> Receiver<B> {
    /// The next completion.
    #[inline]
    fn next(&mut self) -> Option<&mut Completion<B>> {
        if self.reading.is_none() {
            self.at = 0;
            // None is empty: only a push puts a batch there.
            self.reading = Some(self.out.pop()?);
        }
        self.reading.as_mut()?.get_mut(self.at)
    }

    /// Done with the one that was next. A batch that has been read to its end goes back at once.
    #[inline]
    fn advance(&mut self) {
        self.at += 1;
        if let Some(batch) = self.reading.take_if(|batch| self.at >= batch.len()) {
            // As many places as batches.
            let _ = self.back.push(batch);
        }
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion<B>> {
        let done = self.next()?.take();
        self.advance();
        Some(done)
    }

    /// Hands up to `max` completions, oldest first, to `take`; where that returns true, a receive's buffer goes back to be posted
    /// again. Returns how many there were.
    #[inline(always)]
    pub fn consume(&mut self, max: usize, mut take: impl FnMut(&mut Completion<B>) -> bool) -> usize {
        for taken in 0..max {
            let Some(done) = self.next() else { return taken };
            let again = take(done) && done.opcode == WcOpcode::Recv;
            if !again {
                done.buf = None;
            }
            self.advance();
        }
        max
    }

    /// Once the worker is gone: the receives that were to be posted again and will not be, as flushed.
    pub fn leftovers(&mut self) -> Vec<Completion<B>> {
        let read = self.reading.take();
        let batches = std::iter::from_fn(|| self.back.pop()).chain(read);
        let flush = |mut done: Completion<B>| {
            done.buf.take().map(|buf| flushed(done.qpn, WcOpcode::Recv, done.wr_id, Some(buf)))
        };
        batches.flat_map(|batch| *batch).filter_map(flush).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const QPN: Qpn = Qpn::MAX;

    /// Number `n`, of a receive with the buffer `n`.
    fn received(n: u32) -> Completion<u32> {
        flushed(QPN, WcOpcode::Recv, n.into(), Some(n))
    }

    #[test]
    fn with_every_batch_away_nothing_is_taken() {
        let (mut worker, mut app) = completions(1);
        let mut count = 0;
        while worker.room() > 0 {
            assert!(worker.push(received(count)).is_ok());
            count += 1;
        }
        assert_eq!(count as usize, 4 * BATCH);
        assert_eq!(worker.push(received(count)).unwrap_err().buf, Some(count), "it comes back");
        assert_eq!(app.consume(BATCH - 1, |_| true), BATCH - 1);
        assert!(worker.next_again().is_none() && worker.room() == 0, "the batch is not read to its end");
        assert_eq!(app.consume(1, |_| true), 1);
        let again: Vec<_> = std::iter::from_fn(|| worker.next_again()).map(|(_, wr)| wr.buf).collect();
        assert_eq!(again, (0..BATCH as u32).collect::<Vec<_>>());
        assert_eq!(worker.room(), BATCH);
    }

    #[test]
    fn only_receives_go_back() {
        let (mut worker, mut app) = completions(1);
        worker.push(flushed(QPN, WcOpcode::Send, 1, Some(1))).unwrap();
        worker.push(received(2)).unwrap();
        worker.flush();
        assert_eq!(app.consume(9, |_| true), 2);
        assert_eq!(worker.next_again().map(|(qpn, wr)| (qpn, wr.wr_id, wr.buf)), Some((QPN, 2, 2)));
        assert!(worker.next_again().is_none());
    }

    #[test]
    fn what_the_worker_did_not_take_any_more_is_there_in_the_end() {
        let (mut worker, mut app) = completions(1);
        for n in 0..70 {
            worker.push(received(n)).unwrap();
        }
        worker.flush();
        // A whole batch and a part of the next; one buffer was kept.
        assert_eq!(app.consume(66, |done| done.wr_id != 65), 66);
        assert_eq!(worker.next_again().map(|(_, wr)| wr.buf), Some(0));
        let mut rest: Vec<_> = std::iter::from_fn(|| worker.next_again()).map(|(_, wr)| wr.buf).collect();
        drop(worker);
        let taken: Vec<_> = std::iter::from_fn(|| app.pop()).map(|done| done.wr_id).collect();
        assert_eq!(taken, [66, 67, 68, 69]);
        rest.extend(app.leftovers().into_iter().filter_map(|done| {
            assert_eq!((done.opcode, done.qpn), (WcOpcode::Recv, QPN));
            done.buf
        }));
        assert_eq!(rest, (1..65).collect::<Vec<_>>());
    }

    proptest! {
        /// Against two plain queues: completions in order to the application, receives in order back, none lost.
        #[test]
        fn behaves_as_two_queues(ops in proptest::collection::vec((0u8..5, 1usize..100), 1..500)) {
            let (mut worker, mut app) = completions::<u32>(256);
            let (mut staged, mut out, mut back) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            let mut next = 0;
            for (op, amount) in ops {
                match op {
                    0 => for _ in 0..amount.min(worker.room()) {
                        prop_assert!(worker.push(received(next)).is_ok());
                        staged.push_back(next);
                        next += 1;
                        if staged.len() == BATCH { out.append(&mut staged); }
                    },
                    1 => { worker.flush(); out.append(&mut staged); }
                    2 => {
                        let mut seen = Vec::new();
                        let took = app.consume(amount, |done| {
                            seen.push(done.buf.unwrap());
                            !done.wr_id.is_multiple_of(3)
                        });
                        let want: Vec<u32> = out.drain(..amount.min(out.len())).collect();
                        prop_assert_eq!(took, want.len());
                        prop_assert_eq!(&seen, &want);
                        back.extend(want.into_iter().filter(|n| !n.is_multiple_of(3)));
                    }
                    3 => {
                        let done = app.pop();
                        prop_assert_eq!(done.and_then(|done| done.buf), out.pop_front());
                    }
                    _ => for _ in 0..amount {
                        // Some wait in a batch that is not read to its end.
                        let Some((_, wr)) = worker.next_again() else { break };
                        prop_assert_eq!(Some(wr.buf), back.pop_front());
                    },
                }
            }
            worker.flush();
            while app.consume(1000, |_| false) > 0 {}
            let rest: Vec<u32> = std::iter::from_fn(|| worker.next_again()).map(|(_, wr)| wr.buf).collect();
            prop_assert_eq!(rest, Vec::from(back));
        }
    }
}
