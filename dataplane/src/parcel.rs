//! Lists of sends on their way to a worker thread, and the buffers on their way back.
//!
//! A parcel is one request header and up to [`PARCEL`] buffers. It crosses to the worker, which copies the buffers into
//! packets; the same parcel brings them back. One atomic exchange each way for the whole list, and no allocation after the
//! start: a bounded number of parcels goes round.

use crate::qp::{QpKey, SendWr};
use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Buffers in one parcel at the most: two bursts.
pub const PARCEL: usize = 64;

/// What a parcel asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub qp: QpKey,
    pub wr: SendWr,
    /// Bytes of each message.
    pub len: usize,
}

/// One request for each of the buffers.
#[derive(Debug)]
pub(crate) struct Parcel<B> {
    pub label: Option<Label>,
    pub bufs: ArrayVec<B, PARCEL>,
    /// Buffers already sent.
    pub done: usize,
}

type Parcels<B> = Arc<ArrayQueue<Box<Parcel<B>>>>;

/// The application's end.
pub(crate) struct Sender<B> {
    out: Parcels<B>,
    back: Parcels<B>,
    /// Parcels that are here and empty.
    empty: Vec<Box<Parcel<B>>>,
    /// The one whose buffers are being given out.
    unpacking: Option<Box<Parcel<B>>>,
}

/// The worker's end.
pub(crate) struct Receiver<B> {
    out: Parcels<B>,
    back: Parcels<B>,
}

/// A round of parcels that hold about `capacity` buffers; at least four.
pub(crate) fn parcels<B>(capacity: usize) -> (Sender<B>, Receiver<B>) {
    let count = capacity.div_ceil(PARCEL).max(4);
    let (out, back) = (Arc::new(ArrayQueue::new(count)), Arc::new(ArrayQueue::new(count)));
    let empty =
        (0..count).map(|_| Box::new(Parcel { label: None, bufs: ArrayVec::new(), done: 0 })).collect();
    (Sender { out: out.clone(), back: back.clone(), empty, unpacking: None }, Receiver { out, back })
}

impl<B> Sender<B> {
    /// Takes buffers from `bufs`, at most [`PARCEL`], and sends them on their way. Returns how many; 0 if every parcel is
    /// away. Those not taken stay in the iterator.
    #[inline]
    pub fn send(&mut self, label: Label, bufs: &mut impl Iterator<Item = B>) -> usize {
        let Some(mut parcel) = self.empty.pop() else { return 0 };
        parcel.label = Some(label);
        parcel.done = 0;
        parcel.bufs.extend(bufs.take(PARCEL));
        let count = parcel.bufs.len();
        if count == 0 {
            self.empty.push(parcel);
            return 0;
        }
        if let Err(mut parcel) = self.out.push(parcel) {
            // Cannot be: there are as many places as parcels. The buffers come back as if they had been sent.
            parcel.done = count;
            let _ = self.back.push(parcel);
        }
        count
    }

    /// The next buffer that came back, in the order in which they were sent.
    #[inline]
    pub fn reclaim(&mut self) -> Option<B> {
        loop {
            if let Some(parcel) = &mut self.unpacking {
                // They were reversed when they came, so that the first is the last.
                if let Some(buf) = parcel.bufs.pop() {
                    return Some(buf);
                }
                self.empty.extend(self.unpacking.take());
            }
            let mut parcel = self.back.pop()?;
            parcel.bufs.reverse();
            self.unpacking = Some(parcel);
        }
    }
}

impl<B> Receiver<B> {
    /// The next parcel.
    #[inline]
    pub fn next(&mut self) -> Option<Box<Parcel<B>>> {
        self.out.pop()
    }

    /// Sends a parcel back.
    #[inline]
    pub fn give_back(&mut self, parcel: Box<Parcel<B>>) {
        // As many places as parcels.
        let _ = self.back.push(parcel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ah::AhKey;
    use roce_proto::types::{QKey, Qpn};

    fn label() -> Label {
        let wr = SendWr {
            wr_id: 0,
            ah: AhKey::default(),
            dst_qpn: Qpn::MAX,
            qkey: QKey(0),
            imm: None,
            solicited: false,
            signaled: false,
        };
        Label { qp: QpKey::default(), wr, len: 0 }
    }

    #[test]
    fn buffers_go_round_in_order_and_none_is_lost() {
        let (mut app, mut worker) = parcels::<u32>(100);
        let mut given = 0..1000u32;
        let mut came = Vec::new();
        while came.len() < 1000 {
            while app.send(label(), &mut given) > 0 {}
            while let Some(parcel) = worker.next() {
                assert!(parcel.bufs.len() <= PARCEL);
                worker.give_back(parcel);
            }
            came.extend(std::iter::from_fn(|| app.reclaim()));
        }
        assert_eq!(came, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn with_every_parcel_away_nothing_is_taken() {
        let (mut app, mut worker) = parcels::<u32>(1);
        let mut given = 0..1000u32;
        let mut sent = 0;
        while let n @ 1.. = app.send(label(), &mut given) {
            sent += n;
        }
        assert_eq!(sent, 4 * PARCEL);
        assert_eq!(given.len(), 1000 - sent, "the rest stays where it was");
        assert_eq!(app.reclaim(), None);
        let parcel = worker.next().unwrap();
        worker.give_back(parcel);
        assert_eq!(app.reclaim(), Some(0));
        assert_eq!(app.send(label(), &mut given), 0, "the parcel is not empty yet");
        assert_eq!(std::iter::from_fn(|| app.reclaim()).count(), PARCEL - 1);
        assert_eq!(app.send(label(), &mut given), PARCEL);
        assert_eq!(app.send(label(), &mut std::iter::empty()), 0);
    }
}
