//! DPDK's control thread, on which drivers hear of peers and links, and how the threads that poll get along with it.
//!
//! `net_memif` hears of a peer's end on that thread and takes the rings out of memory there and then, whether or not
//! another thread is in the middle of polling them, and whether or not another thread is stopping the port at the same
//! moment. Two rules keep both from being fatal:
//! - Every queue of such a port has a [`Mark`], up while it is polled. Before the driver unmaps anything, the control
//!   thread waits until each mark has been down; by then the driver has marked the port as not connected, so a poll that
//!   begins later leaves the rings alone. Marks cost two plain stores a burst: the expensive half of the ordering is on the
//!   control thread's side, as `membarrier(2)`.
//! - Such a port is stopped and removed on the control thread, by [`run`], so that only one of the two does it. While it is
//!   stopped and started again, a [`Gate`] keeps its queues from being polled.
//!
//! And one mend: a process that connects to a memif server and is gone before the server's first message made the driver
//! close a socket that the control thread still watched, upon which that thread aborted the process. [`guard`] lets such a
//! message pass as sent, so that the driver goes the way of any connection that ends.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use crate::info::PortId;

/// Up while a queue is polled. On a cache line of its own, since it is written for every burst.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Busy(AtomicBool);

/// Whether a port's queues may be polled. They may not while it is stopped and started again.
#[derive(Debug)]
pub(crate) struct Gate {
    port: PortId,
    shut: AtomicBool,
    /// Times that the other side went away, at the least: what happened between two looks at the link.
    losses: AtomicU64,
    /// Held by the one who shut it.
    owner: Mutex<()>,
}

impl Gate {
    /// An open one.
    pub(crate) fn new(port: PortId) -> Gate {
        Gate { port, shut: AtomicBool::new(false), losses: AtomicU64::new(0), owner: Mutex::new(()) }
    }

    /// A number that grows whenever the other side goes away.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Shuts it, and returns when every poll that had begun has ended. It opens when the result is dropped.
    pub(crate) fn shut(&self) -> ShutGate<'_> {
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        self.shut.store(true, Ordering::SeqCst);
        settle_polls();
        ShutGate { gate: self, opens: true, _owner: owner }
    }
}

/// Keeps a gate shut.
pub(crate) struct ShutGate<'a> {
    gate: &'a Gate,
    opens: bool,
    _owner: MutexGuard<'a, ()>,
}

impl ShutGate<'_> {
    /// Leaves it shut until the next who shuts it opens it.
    pub(crate) fn stay(mut self) {
        self.opens = false;
    }
}

impl Drop for ShutGate<'_> {
    fn drop(&mut self) {
        if self.opens {
            self.gate.shut.store(false, Ordering::Release);
        }
    }
}

/// The marks of all queues that need one.
static MARKS: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    busy: Arc<Busy>,
    gate: Arc<Gate>,
}

/// A queue's mark, listed as long as the queue exists.
#[derive(Debug)]
pub(crate) struct Mark {
    busy: Arc<Busy>,
    gate: Arc<Gate>,
}

impl Mark {
    pub(crate) fn new(gate: &Arc<Gate>) -> Mark {
        let busy = Arc::<Busy>::default();
        let listed = Listed { busy: busy.clone(), gate: gate.clone() };
        MARKS.lock().unwrap_or_else(PoisonError::into_inner).push(listed);
        Mark { busy, gate: gate.clone() }
    }

    /// Polls with the mark up; no packets while the gate is shut.
    #[inline]
    pub(crate) fn during(&self, poll: impl FnOnce() -> usize) -> usize {
        self.busy.0.store(true, Ordering::Relaxed);
        // The processor may still let loads overtake the store, the gate's and the poll's; `settle` makes it finish the store.
        compiler_fence(Ordering::SeqCst);
        let packets = if self.gate.shut.load(Ordering::Acquire) { 0 } else { poll() };
        self.busy.0.store(false, Ordering::Release);
        packets
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        MARKS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|other| !Arc::ptr_eq(&other.busy, &self.busy));
    }
}

/// Makes the memif driver of a started port wait for polls before it unmaps memory, and survive peers that hang up early.
pub(crate) fn guard(port: PortId) {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    });
    // SAFETY: the port is started, and `settle` lives as long as the process.
    let ret = unsafe { dpdk_sys::spw_guard_memif(port.index(), Some(settle)) };
    if ret != 0 {
        tracing::warn!(port = %port, error = -ret, "a peer that ends while this port is polled may crash this process");
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Called by the driver, before it unmaps memory.
unsafe extern "C" fn settle() {
    let marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    for mark in marks.iter() {
        // It is about to unmap the memory of some port, whose link it has set down before.
        if crate::info::link(mark.gate.port).is_ok_and(|link| !link.up) {
            mark.gate.losses.fetch_add(1, Ordering::AcqRel);
        }
    }
    drop(marks);
    settle_polls();
}

/// Returns when every poll that had begun before has ended.
fn settle_polls() {
    /// Much longer than a processor keeps a store to itself, where the kernel cannot make it finish.
    const WITHOUT_HELP: Duration = Duration::from_millis(20);
    /// A poll takes microseconds, unless its thread was preempted.
    const PAUSE: Duration = Duration::from_micros(20);
    if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        thread::sleep(WITHOUT_HELP);
    }
    let marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    for mark in marks.iter() {
        while mark.busy.0.load(Ordering::Acquire) {
            thread::sleep(PAUSE);
        }
    }
}

/// Stops the control thread for good. It works on memory that `rte_eal_cleanup` gives back, and that does not wait for it.
pub(crate) fn park() {
    // SAFETY: the environment is still up.
    let ret = unsafe { dpdk_sys::spw_park_control() };
    if ret != 0 {
        tracing::warn!(error = -ret, "DPDK's control thread goes on while DPDK shuts down");
    }
}

struct Job<F> {
    work: Mutex<Option<F>>,
    result: Mutex<Option<i32>>,
    done: Condvar,
}

/// Runs `work` on the control thread and returns what it returns. Not to be called on that thread.
pub(crate) fn run<F: FnOnce() -> i32 + Send + 'static>(work: F) -> i32 {
    let job = Arc::new(Job { work: Mutex::new(Some(work)), result: Mutex::new(None), done: Condvar::new() });
    let shared = Arc::into_raw(job.clone());
    // SAFETY: `call` gets the pointer once and takes over its count.
    let ret = unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(call::<F>), shared.cast_mut().cast()) };
    if ret != 0 {
        // SAFETY: the alarm was not set, so the count is still ours.
        drop(unsafe { Arc::from_raw(shared) });
        job.finish();
    }
    let mut result = job.result.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match *result {
            Some(value) => return value,
            None => result = job.done.wait(result).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<F: FnOnce() -> i32> Job<F> {
    fn finish(&self) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).take();
        let value = work.map_or(0, |work| work());
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.done.notify_all();
    }
}

unsafe extern "C" fn call<F: FnOnce() -> i32>(job: *mut c_void) {
    // SAFETY: `run` passed the pointer of an `Arc` and its count.
    let job = unsafe { Arc::from_raw(job.cast_const().cast::<Job<F>>()) };
    job.finish();
}
