//! Lists of work requests, as the fast path takes them.

use crate::engine::Engine;
use crate::qp::Qp;
use crate::sys;
use std::ffi::c_int;

/// Hands the requests of a list to `post` under the device's lock; it says how many it has posted, from the one that it was given on. The
/// first that is refused ends it and is what `bad` then points to; those before it are posted.
///
/// # Safety
/// `qp` is one of ours, `first` begins a list that `next` goes on with, and `bad` is null or the caller's own place.
#[inline]
pub unsafe fn post_list<W>(
    qp: *mut sys::ibv_qp,
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&mut Engine, &Qp, &W) -> Result<usize, c_int>,
) -> c_int {
    // SAFETY: by this function's contract.
    let queue = unsafe { Qp::of(qp) };
    let fail = |at, errno| {
        if !bad.is_null() {
            // SAFETY: by this function's contract.
            unsafe { bad.write(at) };
        }
        errno
    };
    let mut engine = match queue.device().lock() {
        Ok(engine) => engine,
        Err(errno) => return fail(first, errno),
    };
    let mut at = first;
    // SAFETY: by this function's contract.
    while let Some(one) = unsafe { at.as_ref() } {
        match post(&mut engine, queue, one) {
            Err(errno) => return fail(at, errno),
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
