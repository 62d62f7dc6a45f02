//! One way to drive a worker for the benchmarks, whether it is polled inline or runs in a thread of its own.

use dataplane::buffer::Buffer;
use dataplane::clock::{Clock, RoundClock};
use dataplane::cq::Completion;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::PortIo;
use dataplane::qp::{CqKey, PostError, QpKey, RecvWr, SendWr};
use dataplane::thread::{Endpoint, Stopped};
use dataplane::worker::Worker;
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::collections::VecDeque;

/// Message memory of the benchmarks.
pub type Buf = Box<[u8]>;

/// A worker in either of its two forms.
pub trait Drive {
    /// Its packet IO.
    type Io: PortIo + 'static;

    /// Whether a round here is one of the worker's: otherwise it polls elsewhere.
    const IS_INLINE: bool;

    /// The time.
    fn now(&self) -> Instant;

    /// The time of the last round, or of one not long before: costs nothing.
    fn round_time(&self) -> Instant;

    /// What has been posted sets out now, instead of in the next round.
    fn depart(&mut self);

    /// One round: packets move, or the requests posted so far set out. `busy` says whether the caller found work itself; if
    /// nobody did, it spins, yields or sleeps.
    fn turn(&mut self, busy: bool);

    /// Posts the first `len` bytes of `buf`. The buffer comes back at once if it is free again, otherwise with the
    /// completion.
    fn send(&mut self, qp: QpKey, wr: &SendWr, len: usize, buf: Buf)
    -> Result<Option<Buf>, (PostError, Buf)>;

    /// Posts each message, `len` bytes, all alike. Returns how many were taken, how many of those the worker
    /// keeps until [`Drive::reclaim`] gives them back, in order (an empty buffer stands in their places), and why no more.
    fn send_list(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        messages: &mut [Buf],
    ) -> (usize, usize, Option<PostError>);

    /// The next buffer of a list that the worker kept and is done with.
    fn reclaim(&mut self) -> Option<Buf>;

    /// Posts a receive.
    fn recv(&mut self, qp: QpKey, wr_id: u64, buf: Buf) -> Result<(), (PostError, Buf)>;

    /// A round as [`Drive::turn`] makes, and the completions of it or of an earlier one: each is handed to `take`, whose word it
    /// is whether a buffer is posted as a receive again; up to `max` of those that wait. Completions of the queue pair
    /// `aside` are kept for [`Drive::aside`] instead. Returns whether any were taken.
    fn turn_into(
        &mut self,
        busy: bool,
        max: usize,
        aside: Qpn,
        take: impl FnMut(&mut Completion<Buf>) -> bool,
    ) -> bool;

    /// The next completion that was kept aside.
    fn aside(&mut self) -> Option<Completion<Buf>>;

    /// The next completion of any completion queue.
    fn complete(&mut self) -> Option<Completion<Buf>>;

    /// Runs `f` where the worker lives. Not for the fast path.
    fn with_worker<R: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Worker<Self::Io, Buf>) -> R + Send + 'static,
    ) -> Result<R, Stopped>;
}

/// A worker polled by the benchmark's own loop.
pub struct Inline<I: PortIo> {
    worker: Worker<I, Buf>,
    data_cq: CqKey,
    control_cq: CqKey,
    clock: RoundClock,
    idle: Idle,
}

impl<I: PortIo> Inline<I> {
    /// Drives `worker`, taking completions from the first of `cqs` before those from the second.
    pub fn new(worker: Worker<I, Buf>, cqs: [CqKey; 2], clock: Clock, idle: IdlePolicy) -> Self {
        let [data_cq, control_cq] = cqs;
        Inline { worker, data_cq, control_cq, clock: RoundClock::new(clock), idle: Idle::new(idle) }
    }

    /// The worker, for who polls it by another way.
    pub fn worker(&mut self) -> &mut Worker<I, Buf> {
        &mut self.worker
    }
}

impl<I: PortIo + 'static> Drive for Inline<I> {
    type Io = I;
    const IS_INLINE: bool = true;

    #[inline]
    fn now(&self) -> Instant {
        self.clock.clock().now()
    }

    #[inline]
    fn round_time(&self) -> Instant {
        self.clock.last()
    }

    #[inline]
    fn depart(&mut self) {
        self.worker.flush();
    }

    #[inline]
    fn turn(&mut self, busy: bool) {
        let progress = self.worker.poll(self.clock.round());
        if self.idle.after_round(busy || progress.any()) {
            self.clock.paused();
        }
    }

    #[inline]
    fn send(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        buf: Buf,
    ) -> Result<Option<Buf>, (PostError, Buf)> {
        match self.worker.post_send(qp, wr, buf.bytes(len)) {
            Ok(()) => Ok(Some(buf)),
            Err(e) => Err((e, buf)),
        }
    }

    #[inline(always)]
    fn send_list(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        _len: usize,
        messages: &mut [Buf],
    ) -> (usize, usize, Option<PostError>) {
        let (taken, error) = self.worker.post_send_list(qp, wr, messages);
        (taken, 0, error)
    }

    #[inline]
    fn reclaim(&mut self) -> Option<Buf> {
        None
    }

    #[inline(always)]
    fn recv(&mut self, qp: QpKey, wr_id: u64, buf: Buf) -> Result<(), (PostError, Buf)> {
        self.worker.post_recv(qp, RecvWr { wr_id, buf }).map_err(|(e, wr)| (e, wr.buf))
    }

    #[inline(always)]
    fn turn_into(
        &mut self,
        busy: bool,
        max: usize,
        _aside: Qpn,
        take: impl FnMut(&mut Completion<Buf>) -> bool,
    ) -> bool {
        // What is kept aside has a completion queue of its own.
        let (progress, consumed) = self.worker.poll_into(self.clock.round(), self.data_cq, max, take);
        let any = progress.received + consumed > 0;
        if self.idle.after_round(busy || any || progress.any()) {
            self.clock.paused();
        }
        any
    }

    #[inline]
    fn aside(&mut self) -> Option<Completion<Buf>> {
        self.worker.cq(self.control_cq).and_then(|cq| cq.pop())
    }

    #[inline(always)]
    fn complete(&mut self) -> Option<Completion<Buf>> {
        if let Some(cq) = self.worker.cq(self.data_cq)
            && let Some(completion) = cq.pop()
        {
            return Some(completion);
        }
        self.worker.cq(self.control_cq).and_then(|cq| cq.pop())
    }

    fn with_worker<R: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Worker<I, Buf>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        Ok(f(&mut self.worker))
    }
}

/// A worker in its own thread, behind queues.
pub struct Threaded<I: PortIo + 'static> {
    endpoint: Endpoint<I, Buf>,
    clock: RoundClock,
    idle: Idle,
    /// Completions kept aside.
    kept: VecDeque<Completion<Buf>>,
}

impl<I: PortIo> Threaded<I> {
    /// Drives the worker behind `endpoint`; `idle` is this side's policy, the worker has its own.
    pub fn new(endpoint: Endpoint<I, Buf>, clock: Clock, idle: IdlePolicy) -> Self {
        Threaded { endpoint, clock: RoundClock::new(clock), idle: Idle::new(idle), kept: VecDeque::new() }
    }
}

impl<I: PortIo + 'static> Drive for Threaded<I> {
    type Io = I;
    const IS_INLINE: bool = false;

    #[inline]
    fn now(&self) -> Instant {
        self.clock.clock().now()
    }

    #[inline]
    fn round_time(&self) -> Instant {
        self.clock.last()
    }

    #[inline]
    fn depart(&mut self) {
        self.endpoint.flush();
    }

    #[inline]
    fn turn(&mut self, busy: bool) {
        self.clock.round();
        self.endpoint.flush();
        if self.idle.after_round(busy) {
            self.clock.paused();
        }
    }

    #[inline]
    fn send(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        buf: Buf,
    ) -> Result<Option<Buf>, (PostError, Buf)> {
        self.endpoint.post_send(qp, wr, len, buf).map(|()| None)
    }

    #[inline]
    fn send_list(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        messages: &mut [Buf],
    ) -> (usize, usize, Option<PostError>) {
        let mut bufs = messages.iter_mut().map(std::mem::take);
        let mut taken = 0;
        while let n @ 1.. = self.endpoint.post_send_list(qp, wr, len, &mut bufs) {
            taken += n;
        }
        let error = (taken < messages.len()).then_some(PostError::PortBusy);
        (taken, taken, error)
    }

    #[inline]
    fn reclaim(&mut self) -> Option<Buf> {
        self.endpoint.reclaim()
    }

    #[inline]
    fn recv(&mut self, qp: QpKey, wr_id: u64, buf: Buf) -> Result<(), (PostError, Buf)> {
        self.endpoint.post_recv(qp, RecvWr { wr_id, buf })
    }

    #[inline]
    fn turn_into(
        &mut self,
        busy: bool,
        max: usize,
        aside: Qpn,
        mut take: impl FnMut(&mut Completion<Buf>) -> bool,
    ) -> bool {
        let kept = &mut self.kept;
        let taken = self.endpoint.consume(max, |done| {
            if done.qpn == aside {
                kept.push_back(done.take());
                return false;
            }
            take(done)
        });
        self.turn(busy || taken > 0);
        taken > 0
    }

    #[inline]
    fn aside(&mut self) -> Option<Completion<Buf>> {
        self.kept.pop_front()
    }

    #[inline]
    fn complete(&mut self) -> Option<Completion<Buf>> {
        self.kept.pop_front().or_else(|| self.endpoint.poll_cq())
    }

    fn with_worker<R: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Worker<I, Buf>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.endpoint.flush();
        self.endpoint.call(f)
    }
}
