//! Waiting for the lock of a device.
//!
//! It is held for a round of the endpoint, some microseconds, and taken with every verb: so it is one that spins. A thread that
//! finds it taken gives its processor away, which is enough where all are of the same kind. It is not where the one who waits has a
//! real-time priority and the one who holds the lock has none: to yield gives way to nobody below (sched_yield(2)), and both would
//! wait for each other for ever. So whoever has waited for long sleeps for a moment.

use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::RelaxStrategy;
use std::time::Duration;

/// Looks between two sleeps: longer than anybody holds the lock who is not kept from running.
const LOOKS: u32 = 256;
/// How long a sleep is: the kernel makes at least this of it.
const SLEEP: Duration = Duration::from_micros(50);

/// Takes the lock, whoever has it.
#[inline]
pub fn lock<T, R: RelaxStrategy>(mutex: &SpinMutex<T, R>) -> SpinMutexGuard<'_, T, R> {
    match mutex.try_lock() {
        Some(guard) => guard,
        None => wait(mutex),
    }
}

#[cold]
fn wait<T, R: RelaxStrategy>(mutex: &SpinMutex<T, R>) -> SpinMutexGuard<'_, T, R> {
    let mut taken = None;
    wait_until(|| {
        taken = mutex.try_lock();
        taken.is_some()
    });
    match taken {
        Some(guard) => guard,
        None => unreachable!("it was waited for"),
    }
}

/// Waits for somebody else in the same way.
#[inline]
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    let mut looks = 0u32;
    while !is_so() {
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            std::thread::sleep(SLEEP);
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spin::Yield;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    /// The calling thread runs on CPU 0 only, there with this priority of SCHED_FIFO or with none; false if it may not.
    fn scheduled(priority: i32) -> bool {
        let policy = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
        let param = libc::sched_param { sched_priority: priority };
        // SAFETY: plain structures of the right size, for the calling thread.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0
                && libc::sched_setscheduler(0, policy, &raw const param) == 0
        }
    }

    #[test]
    fn everybody_gets_it_in_turn() {
        let count = SpinMutex::<u32, Yield>::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock(&count) += 1));
            }
        });
        assert_eq!(*lock(&count), 40_000);
    }

    /// Linux lets real-time threads have 95 % of each second by default: who only yields gets the lock after that.
    #[test]
    fn priority_does_not_keep_the_holder_from_letting_go() {
        let mutex = SpinMutex::<(), Yield>::new(());
        let (held, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| {
                if !scheduled(0) {
                    // The waiter has no CPU either, and says so.
                    held.store(true, Ordering::Relaxed);
                    return;
                }
                let guard = lock(&mutex);
                held.store(true, Ordering::Relaxed);
                let mut turns = 0u32;
                // Work, not time: it goes on only while the thread runs.
                while turns < 2_000_000 && !stop.load(Ordering::Relaxed) {
                    turns += std::hint::black_box(1);
                }
                drop(guard);
            });
            let waiter = scope.spawn(|| {
                while !held.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                if !scheduled(1) {
                    return None;
                }
                let start = Instant::now();
                drop(lock(&mutex));
                Some(start.elapsed())
            });
            let waited = waiter.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            waited
        });
        match waited {
            Some(waited) => assert!(waited < Duration::from_millis(500), "{waited:?}"),
            None => eprintln!("not run: this needs the right to use SCHED_FIFO"),
        }
    }
}
