//! Lists of work requests, as the fast path takes them.

use crate::engine::Engine;
use crate::qp::Qp;
use crate::sys;
use std::ffi::c_int;

/// Posts something to a queue pair under its device's lock; where that cannot be had, the first request is the one that is refused.
///
/// # Safety
/// `qp` is one of ours, and `bad` is null or the caller's own place.
#[inline(always)]
pub unsafe fn locked<W>(
    qp: *mut sys::ibv_qp,
    first: *mut W,
    bad: *mut *mut W,
    post: impl FnOnce(&mut Engine, &Qp) -> c_int,
) -> c_int {
    // SAFETY: by this function's contract.
    let queue = unsafe { Qp::of(qp) };
    match queue.device().lock() {
        Ok(mut engine) => post(&mut engine, queue),
        // SAFETY: by this function's contract.
        Err(errno) => unsafe { refused(first, bad, errno) },
    }
}

/// Hands the requests of a list to `post`; it says how many it has posted, from the one that it was given on. The
/// first that is refused ends it and is what `bad` then points to; those before it are posted.
///
/// # Safety
/// `first` begins a list that `next` goes on with, and `bad` is null or the caller's own place.
#[inline]
pub unsafe fn post_list<W>(
    engine: &mut Engine,
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&mut Engine, &W) -> Result<usize, c_int>,
) -> c_int {
    let mut at = first;
    // SAFETY: by this function's contract.
    while let Some(one) = unsafe { at.as_ref() } {
        match post(engine, one) {
            // SAFETY: by this function's contract.
            Err(errno) => return unsafe { refused(at, bad, errno) },
            Ok(1) => at = next(one),
            Ok(count) => {
                for _ in 0..count {
                    // SAFETY: so many of the list were posted, so they are there.
                    at = next(unsafe { &*at });
                }
            }
        }
    }
    0
}

/// The request at `at` is refused with that error number.
///
/// # Safety
/// `bad` is null or the caller's own place.
#[cold]
unsafe fn refused<W>(at: *mut W, bad: *mut *mut W, errno: c_int) -> c_int {
    if !bad.is_null() {
        // SAFETY: by this function's contract.
        unsafe { bad.write(at) };
    }
    errno
}
