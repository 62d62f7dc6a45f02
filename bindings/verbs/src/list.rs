//! Lists of work requests, as the fast path takes them.

use crate::engine::Engine;
use crate::qp::Qp;
use crate::sys;
use std::ffi::c_int;

/// Hands the requests of a list to `post`, one after the other, under the device's lock. The first that is refused ends it and is what
/// `bad` then points to; those before it are posted.
///
/// # Safety
/// `qp` is one of ours, `first` begins a list that `next` goes on with, and `bad` is null or the caller's own place.
#[inline]
pub unsafe fn post_list<W>(
    qp: *mut sys::ibv_qp,
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&mut Engine, &Qp, &W) -> Result<(), c_int>,
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
        if let Err(errno) = post(&mut engine, queue, one) {
            return fail(at, errno);
        }
        at = next(one);
    }
    0
}
