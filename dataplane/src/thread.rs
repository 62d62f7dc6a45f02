//! A worker in a poll-mode thread of its own, and the handle that the application's thread holds.
//!
//! Work requests and completions cross in bursts through bounded lock-free queues ([`crate::link`]); a full queue is
//! back-pressure. Everything else (queue pairs, address handles, counters) is a closure that runs on the worker's thread
//! between two rounds: [`Endpoint::call`].

use crate::buffer::Buffer;
use crate::clock::{Clock, RoundClock};
use crate::completions;
use crate::cq::{Completion, WcOpcode, WcStatus};
use crate::idle::{Idle, IdlePolicy, PinError, pin_current_thread};
use crate::io::PortIo;
use crate::link::{Receiver, Sender, link};
use crate::parcel::{self, Label, Parcel};
use crate::qp::{CqKey, PostError, QpKey, RecvWr, SendWr};
use crate::worker::{Worker, flushed as flush};
use crossbeam_queue::ArrayQueue;
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a worker thread runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadConfig {
    /// The CPU to pin to.
    pub core: Option<usize>,
    /// What to do in rounds without work.
    pub idle: IdlePolicy,
    /// Work requests and completions that may be on their way in each direction.
    pub queue: usize,
}

impl Default for ThreadConfig {
    fn default() -> Self {
        ThreadConfig { core: None, idle: IdlePolicy::default(), queue: 4096 }
    }
}

/// Why a worker thread did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refused the thread.
    #[error("cannot start a worker thread: {0}")]
    Spawn(std::io::Error),
    /// The thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The IO refused the thread.
    #[error("cannot use this thread for packet IO: {0}")]
    Io(String),
    /// The thread ended before it was ready.
    #[error("the worker thread ended before it was ready")]
    Died,
}

/// The worker has stopped; its last words are in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has stopped")]
pub struct Stopped;

/// A send from a buffer that comes back with its completion.
struct SendOne<B> {
    qp: QpKey,
    wr: SendWr,
    len: u32,
    buf: B,
}

type Call<I, B> = Box<dyn FnOnce(&mut Worker<I, B>) + Send>;

/// What a stopped worker thread leaves.
pub struct Remains<I: PortIo, B: Buffer> {
    /// The worker, with what its tables hold.
    pub worker: Worker<I, B>,
    /// Completions that were on their way, and one with [`WcStatus::WorkRequestFlushed`] for each request that was not carried
    /// out.
    pub completions: Vec<Completion<B>>,
    /// Buffers of lists: of those sent and of those that the port no longer took.
    pub buffers: Vec<B>,
}

/// What the thread itself hands over at its end.
type Ended<I, B> = (Worker<I, B>, Vec<Completion<B>>);

/// Closures that may wait for the worker at once.
const CALLS: usize = 16;

/// The application's end of a worker thread. Dropping it stops the worker.
pub struct Endpoint<I: PortIo + 'static, B: Buffer> {
    sends: Sender<SendOne<B>>,
    recvs: Sender<(QpKey, RecvWr<B>)>,
    lists: parcel::Sender<B>,
    completions: completions::Receiver<B>,
    calls: Arc<ArrayQueue<Call<I, B>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Ended<I, B>>>,
}

impl<I: PortIo + 'static, B: Buffer> Endpoint<I, B> {
    /// Moves `worker` into a thread of its own. `enter` runs there first; what it returns lives as long as the thread
    /// (DPDK's registration of a thread is such a thing).
    pub fn start<G, F>(
        worker: Worker<I, B>,
        cqs: Vec<CqKey>,
        config: &ThreadConfig,
        clock: Clock,
        enter: F,
    ) -> Result<Self, StartError>
    where
        F: FnOnce() -> Result<G, String> + Send + 'static,
    {
        let (side, mut endpoint) = halves(worker, cqs, config, clock);
        let (ready_tx, ready_rx) = mpsc::channel();
        let core = config.core;
        let thread = std::thread::Builder::new()
            .name("spraywire-worker".to_owned())
            .spawn(move || {
                let entered = match core.map_or(Ok(()), pin_current_thread) {
                    Ok(()) => enter().map_err(StartError::Io),
                    Err(e) => Err(StartError::Pin(e)),
                };
                match entered {
                    Ok(_guard) => {
                        let _ = ready_tx.send(Ok(()));
                        side.run()
                    }
                    Err(e) => {
                        let _ = ready_tx.send(Err(e));
                        (side.worker, Vec::new())
                    }
                }
            })
            .map_err(StartError::Spawn)?;
        match ready_rx.recv() {
            Ok(Ok(())) => {
                endpoint.thread = Some(thread);
                Ok(endpoint)
            }
            Ok(Err(e)) => Err(e),
            Err(mpsc::RecvError) => Err(StartError::Died),
        }
    }

    /// Runs `f` on the worker's thread, between two rounds, and returns what it returns. Takes up to the worker's longest
    /// sleep.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Worker<I, B>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (tx, rx) = mpsc::sync_channel(1);
        let mut call: Call<I, B> = Box::new(move |worker| {
            let _ = tx.send(f(worker));
        });
        while let Err(back) = self.calls.push(call) {
            if self.is_stopped() {
                return Err(Stopped);
            }
            call = back;
            std::thread::yield_now();
        }
        loop {
            match rx.recv_timeout(Duration::from_millis(100)) {
                Ok(result) => return Ok(result),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.is_stopped() => {}
                Err(_) => return Err(Stopped),
            }
        }
    }

    /// Posts the first `len` bytes of `buf`. The buffer comes back with the completion, which is always produced. Requests
    /// travel in batches: [`Endpoint::flush`] sends an incomplete one.
    #[inline]
    pub fn post_send(&mut self, qp: QpKey, wr: &SendWr, len: usize, buf: B) -> Result<(), (PostError, B)> {
        let Ok(len) = u32::try_from(len) else {
            return Err((PostError::TooLong { len, max: buf.capacity() }, buf));
        };
        let one = SendOne { qp, wr: *wr, len, buf };
        self.sends.push(one).map_err(|back| (self.refusal(), back.buf))
    }

    /// Posts unsignaled sends of the first `len` bytes of buffers from `bufs`, at most [`parcel::PARCEL`] of them; returns how
    /// many. Those not taken stay in the iterator. The buffers come back by [`Endpoint::reclaim`], in order, as soon as they
    /// were copied. A request that cannot be carried out completes with an error.
    ///
    /// The cheapest way to send from here. Lists keep their order among each other, not with [`Endpoint::post_send`].
    #[inline]
    pub fn post_send_list(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        bufs: &mut impl Iterator<Item = B>,
    ) -> usize {
        let wr = SendWr { signaled: false, ..*wr };
        self.lists.send(parcel::Label { qp, wr, len }, bufs)
    }

    /// The next buffer that [`Endpoint::post_send_list`] took and the worker is done with.
    #[inline]
    pub fn reclaim(&mut self) -> Option<B> {
        self.lists.reclaim()
    }

    /// Posts a receive.
    #[inline]
    pub fn post_recv(&mut self, qp: QpKey, wr: RecvWr<B>) -> Result<(), (PostError, B)> {
        self.recvs.push((qp, wr)).map_err(|(_, back)| (self.refusal(), back.buf))
    }

    #[cold]
    fn refusal(&self) -> PostError {
        if self.is_stopped() { PostError::Stopped } else { PostError::PortBusy }
    }

    /// Sends the work requests posted so far on their way.
    #[inline]
    pub fn flush(&mut self) {
        self.sends.flush();
        self.recvs.flush();
    }

    /// The next completion of any of the worker's completion queues.
    #[inline]
    pub fn poll_cq(&mut self) -> Option<Completion<B>> {
        self.completions.pop()
    }

    /// Takes up to `max` completions of any of the worker's completion queues, oldest first, and hands each to `take`. Where that
    /// returns true for a receive, its buffer is posted again on the same queue pair, with the same `wr_id`: what
    /// a receiver does that is done with a message once it has looked at it, at the least cost. `take` may keep the buffer
    /// by taking it out; one that is left there and not posted is dropped. A buffer that cannot be posted, because the queue pair is
    /// gone, in error, or full by receives posted otherwise, is dropped too. Returns the number of completions taken.
    #[inline(always)]
    pub fn consume(&mut self, max: usize, take: impl FnMut(&mut Completion<B>) -> bool) -> usize {
        self.completions.consume(max, take)
    }

    /// True when the worker's thread has ended.
    pub fn is_stopped(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the worker and gives it back, with what its tables hold, and with every completion that was on its way.
    ///
    /// Requests posted before are carried out first, as far as the port takes them.
    pub fn stop(mut self) -> Result<Remains<I, B>, Stopped> {
        self.flush();
        let mut rest = Vec::new();
        let thread = self.wind_down(|completion| rest.push(completion)).ok_or(Stopped)?;
        let (worker, flushed) = thread.join().map_err(|_| Stopped)?;
        rest.extend(flushed);
        rest.extend(self.completions.leftovers());
        let buffers = std::iter::from_fn(|| self.lists.reclaim()).collect();
        Ok(Remains { worker, completions: rest, buffers })
    }

    /// Lets the thread end, taking completions meanwhile: it does not end before they are gone from its hands.
    fn wind_down(&mut self, mut take: impl FnMut(Completion<B>)) -> Option<JoinHandle<Ended<I, B>>> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Release);
        while !thread.is_finished() {
            while let Some(completion) = self.completions.pop() {
                take(completion);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        while let Some(completion) = self.completions.pop() {
            take(completion);
        }
        Some(thread)
    }
}

impl<I: PortIo + 'static, B: Buffer> Drop for Endpoint<I, B> {
    fn drop(&mut self) {
        if let Some(thread) = self.wind_down(drop) {
            // A panic in the worker has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

/// How long a stop waits for a port that takes nothing: a peer on a busy machine is without its core for some tens of milliseconds.
const STUCK: Duration = Duration::from_millis(100);

/// Whether a refused send can succeed later without anybody's doing. An address that is not resolved may never be.
fn waits(error: PostError) -> bool {
    error.is_back_pressure() && error != PostError::AddressUnresolved
}

/// The two ends of the queues, before there is a thread.
fn halves<I: PortIo + 'static, B: Buffer>(
    worker: Worker<I, B>,
    cqs: Vec<CqKey>,
    config: &ThreadConfig,
    clock: Clock,
) -> (WorkerSide<I, B>, Endpoint<I, B>) {
    let (sends, sends_rx) = link(config.queue);
    let (recvs, recvs_rx) = link(config.queue);
    let (lists, lists_rx) = parcel::parcels(config.queue);
    let (completions_tx, completions) = completions::completions(config.queue);
    let calls = Arc::new(ArrayQueue::new(CALLS));
    let stop = Arc::new(AtomicBool::new(false));
    let side = WorkerSide {
        worker,
        cqs,
        sends: sends_rx,
        held_send: None,
        recvs: recvs_rx,
        held_recv: None,
        lists: lists_rx,
        held_list: None,
        completions: completions_tx,
        held_completion: None,
        calls: calls.clone(),
        stop: stop.clone(),
        idle: Idle::new(config.idle),
        shares_core: !matches!(config.idle, IdlePolicy::Spin),
        since_yield: 0,
        yield_at: YIELD_AFTER,
        stuck_since: None,
        clock: RoundClock::new(clock),
    };
    (side, Endpoint { sends, recvs, lists, completions, calls, stop, thread: None })
}

struct WorkerSide<I: PortIo, B: Buffer> {
    worker: Worker<I, B>,
    cqs: Vec<CqKey>,
    // What met back-pressure is held, and comes first in the next round.
    sends: Receiver<SendOne<B>>,
    held_send: Option<SendOne<B>>,
    recvs: Receiver<(QpKey, RecvWr<B>)>,
    held_recv: Option<(QpKey, RecvWr<B>)>,
    lists: parcel::Receiver<B>,
    held_list: Option<Box<Parcel<B>>>,
    completions: completions::Sender<B>,
    held_completion: Option<Completion<B>>,
    calls: Arc<ArrayQueue<Call<I, B>>>,
    stop: Arc<AtomicBool>,
    idle: Idle,
    /// The policy lets others have the core, so perhaps the application's thread runs on it.
    shares_core: bool,
    /// Work done since the core was last given away.
    since_yield: usize,
    /// How much of it is enough.
    yield_at: usize,
    /// When asked to stop: since when the port has taken nothing of what is left.
    stuck_since: Option<Instant>,
    clock: RoundClock,
}

/// Requests and completions after which a worker that may share its core gives it away, busy or not, unless receives are
/// plentiful: the application could otherwise neither take completions nor post receives, and what arrives meanwhile would be
/// dropped. A switch costs a microsecond or two, so this is ten nanoseconds a message.
const YIELD_AFTER: usize = 512;

/// The same where receives are plentiful. A received message counts twice, as a completion and as a receive posted again, so this is a
/// fifth of a millisecond at a hundred nanoseconds a message.
const YIELD_AT_LAST: usize = 4096;

/// While a worker's turn goes on, how often it looks whether receives are still plentiful.
const LOOK_EVERY: usize = 128;

/// Commands taken in one round: bounds the time until the next receive.
const COMMANDS_PER_ROUND: usize = 256;

impl<I: PortIo, B: Buffer> WorkerSide<I, B> {
    fn run(mut self) -> Ended<I, B> {
        loop {
            // Before anything is taken: what was posted before the stop is then among what this round takes.
            let stopping = self.stop.load(Ordering::Acquire);
            while let Some(call) = self.calls.pop() {
                call(&mut self.worker);
            }
            let commands = self.take_again() + self.take_recvs() + self.take_sends() + self.take_lists();
            let mut completed = self.give_held();
            let room = if self.held_completion.is_some() { 0 } else { self.completions.room() };
            let (completions, lost) = (&mut self.completions, &mut self.held_completion);
            let progress = self.worker.poll_giving(self.clock.round(), room, |done| {
                completed += 1;
                // There is room for it: it was counted before.
                if let Err(done) = completions.push(done.take()) {
                    *lost = Some(done);
                }
            });
            completed += self.give_completions();
            let moved = commands + completed + progress.sent > 0;
            if stopping && self.may_end(moved) {
                let flushed = self.flush_requests();
                return (self.worker, flushed);
            }
            if self.idle.after_round(commands + completed > 0 || progress.any()) {
                self.clock.paused();
            }
            self.since_yield += commands + completed;
            if self.shares_core && self.since_yield >= self.yield_at {
                self.end_turn();
            }
        }
    }

    /// Gives the core away, unless this can wait a little.
    fn end_turn(&mut self) {
        if self.since_yield < YIELD_AT_LAST && self.worker.core.receives_are_plentiful() {
            self.yield_at = self.since_yield + LOOK_EVERY;
            return;
        }
        self.since_yield = 0;
        self.yield_at = YIELD_AFTER;
        std::thread::yield_now();
    }

    /// When asked to stop: nothing is left to do, or the port has taken nothing of what is left for a while.
    fn may_end(&mut self, moved: bool) -> bool {
        if moved || self.held_completion.is_some() {
            self.stuck_since = None;
            return false;
        }
        if self.held_send.is_none() && self.held_list.is_none() {
            return true;
        }
        let now = self.clock.clock().now();
        now.saturating_since(*self.stuck_since.get_or_insert(now)) > STUCK
    }

    /// Ends the requests that were not carried out; their buffers go back.
    fn flush_requests(&mut self) -> Vec<Completion<B>> {
        let mut flushed = Vec::new();
        let worker = &self.worker;
        let qpn = |qp| worker.qpn(qp).unwrap_or(Qpn::SMI);
        while let Some((qpn, wr)) = self.completions.next_again() {
            flushed.push(flush(qpn, WcOpcode::Recv, wr.wr_id, Some(wr.buf)));
        }
        while let Some((qp, wr)) = self.held_recv.take().or_else(|| self.recvs.pop()) {
            flushed.push(flush(qpn(qp), WcOpcode::Recv, wr.wr_id, Some(wr.buf)));
        }
        while let Some(one) = self.held_send.take().or_else(|| self.sends.pop()) {
            let (qpn, wr_id) = (qpn(one.qp), one.wr.wr_id);
            flushed.push(flush(qpn, WcOpcode::Send, wr_id, Some(one.buf)));
        }
        while let Some(parcel) = self.held_list.take().or_else(|| self.lists.next()) {
            if let Some(label) = parcel.label {
                let (qpn, wr_id) = (qpn(label.qp), label.wr.wr_id);
                for _ in parcel.done..parcel.bufs.len() {
                    flushed.push(flush(qpn, WcOpcode::Send, wr_id, None));
                }
            }
            self.lists.give_back(parcel);
        }
        flushed
    }

    /// Posts the receives again that came back with their completions.
    fn take_again(&mut self) -> usize {
        let mut taken = 0;
        let completions = &mut self.completions;
        self.worker.core.post_again(|| {
            // Asked before the next is taken: what was taken has to be posted.
            let next = (taken < COMMANDS_PER_ROUND).then(|| completions.next_again())??;
            taken += 1;
            Some(next)
        });
        taken
    }

    fn take_recvs(&mut self) -> usize {
        let mut taken = 0;
        while taken < COMMANDS_PER_ROUND {
            let (recvs, held) = (&mut self.recvs, &mut self.held_recv);
            let mut left = COMMANDS_PER_ROUND - taken;
            let next = || {
                left = left.checked_sub(1)?;
                held.take().or_else(|| recvs.pop())
            };
            let (posted, refused) = self.worker.core.post_recvs(next);
            taken += posted;
            let Some((qp, wr)) = refused else { return taken };
            // A full receive queue is the poster's own doing. To wait for it would hold up every other queue pair.
            if self.held_completion.is_some() {
                self.held_recv = Some((qp, wr));
                return taken;
            }
            taken += 1;
            self.give_failure(qp, WcOpcode::Recv, wr.wr_id, Some(wr.buf));
        }
        taken
    }

    fn take_sends(&mut self) -> usize {
        for taken in 0..COMMANDS_PER_ROUND {
            let Some(one) = self.held_send.take().or_else(|| self.sends.pop()) else { return taken };
            let SendOne { qp, wr, len, buf } = one;
            if let Err((error, buf)) = self.worker.post_send_owned(qp, &wr, len as usize, buf) {
                if waits(error) || self.held_completion.is_some() {
                    self.held_send = Some(SendOne { qp, wr, len, buf });
                    return taken;
                }
                self.give_failure(qp, WcOpcode::Send, wr.wr_id, Some(buf));
            }
        }
        COMMANDS_PER_ROUND
    }

    fn take_lists(&mut self) -> usize {
        let mut taken = 0;
        while taken < COMMANDS_PER_ROUND {
            let Some(mut parcel) = self.held_list.take().or_else(|| self.lists.next()) else { return taken };
            let before = parcel.done;
            let whole = self.send_parcel(&mut parcel);
            taken += parcel.done - before;
            if !whole {
                self.held_list = Some(parcel);
                return taken;
            }
            self.lists.give_back(parcel);
        }
        taken
    }

    /// Sends what a parcel still has; false if something is left for want of room.
    fn send_parcel(&mut self, parcel: &mut Parcel<B>) -> bool {
        let Some(Label { qp, wr, len }) = parcel.label else { return true };
        while let Some(bufs) = parcel.bufs.get(parcel.done..)
            && !bufs.is_empty()
        {
            let too_short = bufs.iter().position(|buf| buf.capacity() < len);
            let good = too_short.map_or(bufs, |n| &bufs[..n]);
            let (sent, error) = self.worker.post_send_bufs(qp, &wr, len, good);
            parcel.done += sent;
            let failed = error.is_some_and(|e| !waits(e)) || (error.is_none() && too_short.is_some());
            if failed && self.held_completion.is_none() {
                self.give_failure(qp, WcOpcode::Send, wr.wr_id, None);
                parcel.done += 1;
            } else if failed || error.is_some() {
                return false;
            }
        }
        true
    }

    /// Tells the application of a request that cannot be carried out. Called only while no completion is held.
    #[cold]
    fn give_failure(&mut self, qp: QpKey, opcode: WcOpcode, wr_id: u64, buf: Option<B>) {
        let qpn = self.worker.qpn(qp).unwrap_or(Qpn::SMI);
        let status = WcStatus::LocalQpOperationError;
        self.give(Completion { status, ..flush(qpn, opcode, wr_id, buf) });
    }

    /// Puts a completion on its way, or holds it. Called only while none is held.
    fn give(&mut self, completion: Completion<B>) -> bool {
        match self.completions.push(completion) {
            Ok(()) => true,
            Err(back) => {
                self.held_completion = Some(back);
                false
            }
        }
    }

    fn give_held(&mut self) -> usize {
        match self.held_completion.take() {
            Some(held) => usize::from(self.give(held)),
            None => 0,
        }
    }

    fn give_completions(&mut self) -> usize {
        if self.held_completion.is_some() {
            return 0;
        }
        let mut given = 0;
        for i in 0..self.cqs.len() {
            let cq = self.cqs[i];
            while let Some(completion) = self.worker.cq(cq).and_then(|cq| cq.pop()) {
                if !self.give(completion) {
                    return given;
                }
                given += 1;
            }
        }
        self.completions.flush();
        given
    }
}

#[cfg(test)]
mod tests;
