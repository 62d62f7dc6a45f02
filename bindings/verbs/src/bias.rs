//! The lock of a device, which costs the thread that uses it alone next to nothing.
//!
//! An atomic exchange waits until all that was written before has left the processor's store buffer. Taken with every verb, that is
//! a tenth of what a message costs. So the lock is biased: a thread that has taken it many times in a row, with nobody in between, owns
//! the bias, and from then on says with two plain stores when it is inside. Whoever else wants the lock takes the bias
//! away first: it makes all running threads of the process pass a barrier (membarrier(2)), after which either the owner has seen that
//! it is no longer the owner, or has been seen inside, and is waited for. That costs microseconds, and is rare by the length of the row.
//!
//! (After Dice, Moir and Scherer, "Quickly reacquirable locks", 2003.)

use crate::patience;
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*, compiler_fence};
use std::time::{Duration, Instant};

/// Times in a row after which a thread owns the bias: to take it away costs as much as some hundred times of taking the lock.
const ROW: u32 = 1024;

/// Nobody: no thread has this number.
const NOBODY: usize = 0;

/// A value that one thread at a time uses.
pub struct Lock<T> {
    /// Held by everybody but the owner of the bias.
    row: SpinMutex<Row, Yield>,
    /// The owner; set by itself, and taken away by others, with `row` held.
    owner: AtomicUsize,
    /// The owner is inside; only it writes this.
    inside: AtomicBool,
    /// Who is to own the bias once whoever holds `row` lets go: the holder or nobody. Only the holder uses it.
    heir: AtomicUsize,
    value: UnsafeCell<T>,
}

/// Who took the lock last, and how many times in a row before.
#[derive(Default)]
struct Row {
    last: usize,
    count: u32,
    /// No thread is to own the bias.
    even: bool,
}

// SAFETY: one thread at a time gets at the value, which may be in any.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The calling thread's number.
#[inline(always)]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let number: usize;
        // A call saved with every verb.
        // SAFETY: the first word that the register points to is its own address (System V ABI for thread-local storage, x86-64),
        // which no other thread has. It only reads.
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) number, options(nostack, preserves_flags, readonly, pure));
        }
        number
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    // SAFETY: no precondition.
    unsafe {
        libc::pthread_self() as usize
    }
}

impl<T> Lock<T> {
    /// Nobody has it.
    pub fn new(value: T) -> Lock<T> {
        Lock {
            row: SpinMutex::new(Row::default()),
            owner: AtomicUsize::new(NOBODY),
            inside: AtomicBool::new(false),
            heir: AtomicUsize::new(NOBODY),
            value: UnsafeCell::new(value),
        }
    }

    /// Several threads will use it all the time: nobody is to own the bias. Not to be called by who holds it.
    pub fn keep_even(&self) {
        patience::lock(&self.row).even = true;
    }

    /// Takes it, whoever has it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.lock_as_owner() {
            Some(guard) => guard,
            None => self.lock_slowly(this_thread()),
        }
    }

    /// Takes it if the calling thread owns the bias.
    #[inline(always)]
    pub fn lock_as_owner(&self) -> Option<Guard<'_, T>> {
        let me = this_thread();
        // Who is inside already, as a signal's handler might find itself, waits for ever like at any lock.
        if self.owner.load(Relaxed) == me && !self.inside.load(Relaxed) {
            self.inside.store(true, Relaxed);
            // Keeps the compiler from asking first; the processor is kept from it by who takes the bias away.
            compiler_fence(SeqCst);
            if self.owner.load(Relaxed) == me {
                return Some(Guard { lock: self, is_owners: true, value: PhantomData });
            }
            self.inside.store(false, Release);
        }
        None
    }

    #[cold]
    fn lock_slowly(&self, me: usize) -> Guard<'_, T> {
        let mut row = patience::lock(&self.row);
        self.take_bias();
        patience::wait_until(|| !self.inside.load(Acquire));
        row.count = if row.last == me { row.count.saturating_add(1) } else { 0 };
        row.last = me;
        let heir = if row.count >= ROW && !row.even && has_barrier() { me } else { NOBODY };
        self.held(row, heir)
    }

    /// Takes it if nobody has it for longer than `limit`. Such a thread does not count in anybody's row.
    pub fn try_lock(&self, limit: Duration) -> Option<Guard<'_, T>> {
        let start = Instant::now();
        let row = loop {
            match self.row.try_lock() {
                Some(row) => break row,
                None if start.elapsed() >= limit => return None,
                None => std::thread::yield_now(),
            }
        };
        self.take_bias();
        while self.inside.load(Acquire) {
            if start.elapsed() >= limit {
                return None;
            }
            std::thread::yield_now();
        }
        Some(self.held(row, NOBODY))
    }

    fn held(&self, row: SpinMutexGuard<'_, Row, Yield>, heir: usize) -> Guard<'_, T> {
        self.heir.store(heir, Relaxed);
        // Given back by `let_go`: the guard is as small as the owner's, so that it travels in registers.
        std::mem::forget(row);
        Guard { lock: self, is_owners: false, value: PhantomData }
    }

    /// # Safety
    /// For the guard that `held` made, once.
    #[cold]
    unsafe fn let_go(&self) {
        let heir = self.heir.load(Relaxed);
        if heir != NOBODY {
            // Not before: a signal's handler would find itself the owner, with nobody inside.
            self.owner.store(heir, Relaxed);
        }
        // SAFETY: taken by the thread that made the guard, which is no more after this.
        unsafe { self.row.force_unlock() };
    }

    /// Nobody is the owner from now on, though he who was may still be inside. `row` is held.
    fn take_bias(&self) {
        if self.owner.load(Relaxed) != NOBODY {
            self.owner.store(NOBODY, Relaxed);
            barrier();
        }
    }
}

/// The lock, held.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Held by the owner of the bias, without `row`.
    is_owners: bool,
    /// It is as good as this, to other threads too.
    value: PhantomData<&'a mut T>,
}

impl<T> Guard<'_, T> {
    /// Whether the thread is the one that had the lock before.
    #[inline]
    pub fn is_owners(&self) -> bool {
        self.is_owners
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_owners {
            self.lock.inside.store(false, Release);
        } else {
            // SAFETY: not the owner's, so `held` made it.
            unsafe { self.lock.let_go() };
        }
    }
}

// Commands of membarrier(2), from <linux/membarrier.h>.
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: a system call without memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process can make its threads pass a barrier: since Linux 4.14, unless a filter forbids it.
fn has_barrier() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Every thread of the process that runs passes a full barrier before this returns, and so does the caller.
fn barrier() {
    let passed = membarrier(PRIVATE_EXPEDITED);
    // It was registered before anybody owned a bias, and has no other way to fail.
    assert!(passed, "membarrier was there and is not any more");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calling thread owns the bias.
    fn own(lock: &Lock<u64>) {
        (0..ROW + 2).for_each(|_| *lock.lock() += 1);
        assert_eq!(lock.lock().is_owners(), has_barrier());
    }

    #[test]
    fn who_is_alone_for_long_owns_the_bias() {
        let lock = Lock::new(0u64);
        (0..=ROW).for_each(|_| assert!(!lock.lock().is_owners()));
        own(&lock);
        // Another thread takes it away, and must itself be alone for long.
        std::thread::scope(|s| s.spawn(|| assert!(!lock.lock().is_owners())).join().unwrap());
        assert!(!lock.lock().is_owners());
        own(&lock);
        // Not so who only tries: the row goes on.
        std::thread::scope(|s| s.spawn(|| assert!(lock.try_lock(Duration::ZERO).is_some())).join().unwrap());
        assert!(!lock.lock().is_owners());
        assert_eq!(lock.lock().is_owners(), has_barrier());
        lock.keep_even();
        std::thread::scope(|s| s.spawn(|| drop(lock.lock())).join().unwrap());
        (0..3 * ROW).for_each(|_| assert!(!lock.lock().is_owners()));
    }

    #[test]
    fn who_has_it_keeps_others_out_owner_or_not() {
        for owns in [false, true] {
            let lock = Lock::new(0u64);
            if owns {
                own(&lock);
            }
            let mut held = lock.lock();
            std::thread::scope(|s| {
                let tried = s.spawn(|| lock.try_lock(Duration::from_millis(5)).is_none());
                assert!(tried.join().unwrap(), "{owns}");
                let waits = s.spawn(|| *lock.lock());
                std::thread::sleep(Duration::from_millis(20));
                *held = 77;
                drop(held);
                assert_eq!(waits.join().unwrap(), 77, "{owns}");
            });
        }
    }

    /// Owners lose the bias in the middle of their rows, again and again, and nothing that anybody added is lost.
    #[test]
    fn rows_that_are_broken_lose_nothing() {
        const ROUNDS: u64 = 300_000;
        let lock = Lock::new(0u64);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let broke = s.spawn(|| {
                let mut count = 0;
                while !stop.load(Relaxed) {
                    *lock.lock() += 1;
                    count += 1;
                    // Long enough for the other to own the bias again, and of all lengths.
                    (0..count * 97 % 60_000).for_each(|_| std::hint::spin_loop());
                }
                count
            });
            (0..ROUNDS).for_each(|_| *lock.lock() += 1);
            stop.store(true, Relaxed);
            let count = broke.join().unwrap();
            assert_eq!(*lock.lock(), ROUNDS + count);
        });
    }
}
