//! Queues: where bursts come from and go to.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::burst::Burst;
use crate::control::Mark;
use crate::info::PortId;
use crate::port::Started;

/// A receive queue of a started port. It can move to another thread, and is polled by one at a time.
pub struct RxQueue {
    port: u16,
    queue: u16,
    /// Keeps the port started, and with it the pool that packets are received into.
    started: Arc<Started>,
    /// For drivers that take memory away while it is polled.
    mark: Option<Mark>,
    /// Not Sync: a queue belongs to whoever polls it.
    alone: PhantomData<Cell<()>>,
}

/// A transmit queue of a started port. It can move to another thread, and is used by one at a time.
pub struct TxQueue {
    port: u16,
    queue: u16,
    started: Arc<Started>,
    mark: Option<Mark>,
    alone: PhantomData<Cell<()>>,
}

impl RxQueue {
    pub(crate) fn new(started: &Arc<Started>, queue: u16) -> RxQueue {
        RxQueue {
            port: started.id().0,
            queue,
            started: started.clone(),
            mark: started.mark(),
            alone: PhantomData,
        }
    }

    /// Adds to `burst` the packets that wait, as many as it has room for, and returns how many came. Drivers work in
    /// steps of up to 32, so an empty burst of 32 or 64 serves best.
    #[inline]
    pub fn rx_burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        self.rx_burst_of(burst, N)
    }

    /// The same for at most `max` packets.
    #[inline]
    pub fn rx_burst_of<const N: usize>(&mut self, burst: &mut Burst<N>, max: usize) -> usize {
        let (slots, room) = burst.spare();
        let room = room.min(max);
        // SAFETY: the port is started as long as this queue exists, the queue was set up and nobody else polls it;
        // `slots` has `room` entries, which fit 16 bits.
        let poll = || unsafe { dpdk_sys::spw_rx_burst(self.port, self.queue, slots, room as u16) } as usize;
        let n = match &self.mark {
            None => poll(),
            Some(mark) => mark.during(poll),
        };
        // SAFETY: the driver filled the first `n` slots with packets that it has let go of.
        unsafe { burst.add_len(n.min(room)) };
        n.min(room)
    }

    /// The port.
    pub fn port(&self) -> PortId {
        self.started.id()
    }

    /// Number of the queue within its port.
    pub fn index(&self) -> u16 {
        self.queue
    }
}

impl TxQueue {
    pub(crate) fn new(started: &Arc<Started>, queue: u16) -> TxQueue {
        TxQueue {
            port: started.id().0,
            queue,
            started: started.clone(),
            mark: started.mark(),
            alone: PhantomData,
        }
    }

    /// Gives the packets of `burst` to the driver, from the front, and returns how many it took. The others stay in the
    /// burst, in order: call again, or drop them.
    #[inline]
    pub fn tx_burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let offered = burst.len();
        if offered == 0 {
            return 0;
        }
        let front = burst.front();
        // SAFETY: the port is started as long as this queue exists, the queue was set up and nobody else uses it;
        // the burst owns the `offered` packets at its front, and the number fits 16 bits.
        let send =
            || unsafe { dpdk_sys::spw_tx_burst(self.port, self.queue, front, offered as u16) } as usize;
        let sent = match &self.mark {
            None => send(),
            Some(mark) => mark.during(send),
        };
        burst.take_front(sent);
        sent
    }

    /// The port.
    pub fn port(&self) -> PortId {
        self.started.id()
    }

    /// Number of the queue within its port.
    pub fn index(&self) -> u16 {
        self.queue
    }
}

impl std::fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RxQueue({}.{})", self.port, self.queue)
    }
}

impl std::fmt::Debug for TxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TxQueue({}.{})", self.port, self.queue)
    }
}
