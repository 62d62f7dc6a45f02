//! DPDK's control thread, on which drivers hear of peers and links, and how the threads that poll get along with it.
//!
//! `net_memif` hears of a peer's end on that thread and takes the rings out of memory there and then, whether or not
//! another thread is in the middle of polling them, and whether or not another thread is stopping the port at the same
//! moment. Two rules keep both from being fatal:
//! - Every queue of such a port has a [`Busy`] mark, up while it is polled. Before the driver unmaps anything, the control
//!   thread waits until each mark has been down; by then the driver has marked the port as not connected, so a poll that
//!   begins later leaves the rings alone. Marks cost two plain stores a burst: the expensive half of the ordering is on the
//!   control thread's side, as `membarrier(2)`.
//! - Such a port is stopped and removed on the control thread, by [`run`], so that only one of the two does it.
//!
//! And one mend: a process that connects to a memif server and is gone before the server's first message made the driver
//! close a socket that the control thread still watched, upon which that thread aborted the process. [`guard`] lets such a
//! message pass as sent, so that the driver goes the way of any connection that ends.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use crate::info::PortId;

/// Up while a queue is polled. On a cache line of its own, since it is written for every burst.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Busy(AtomicBool);

impl Busy {
    /// Polls with the mark up.
    #[inline]
    pub(crate) fn during<T>(&self, poll: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        // The processor may still let the poll's loads overtake the store; `settle` makes it finish the store.
        compiler_fence(Ordering::SeqCst);
        let result = poll();
        self.0.store(false, Ordering::Release);
        result
    }
}

/// The marks of all queues that need one.
static MARKS: Mutex<Vec<Arc<Busy>>> = Mutex::new(Vec::new());

/// A queue's mark, listed as long as the queue exists.
#[derive(Debug)]
pub(crate) struct Mark(Arc<Busy>);

impl Mark {
    pub(crate) fn new() -> Mark {
        let busy = Arc::<Busy>::default();
        MARKS.lock().unwrap_or_else(PoisonError::into_inner).push(busy.clone());
        Mark(busy)
    }

    #[inline]
    pub(crate) fn busy(&self) -> &Busy {
        &self.0
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        MARKS.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, &self.0));
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

/// Returns when every poll that had begun before has ended. Called by the driver, before it unmaps memory.
unsafe extern "C" fn settle() {
    /// Much longer than a processor keeps a store to itself, where the kernel cannot make it finish.
    const WITHOUT_HELP: Duration = Duration::from_millis(20);
    /// A poll takes microseconds, unless its thread was preempted.
    const PAUSE: Duration = Duration::from_micros(20);
    if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        thread::sleep(WITHOUT_HELP);
    }
    let marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    for mark in marks.iter() {
        while mark.0.load(Ordering::Acquire) {
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
