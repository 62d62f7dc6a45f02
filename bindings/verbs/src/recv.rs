//! Posting receives.

use crate::engine::Engine;
use crate::list::{locked, post_list};
use crate::memory::{AppBuf, Piece};
use crate::qp::Qp;
use crate::say::refuse;
use crate::sys;
use dataplane::qp::{PostError, RecvWr};
use std::ffi::c_int;

/// Scatter elements of a receive at the most.
pub const MAX_SGE: usize = 4;

/// Lists of scatter elements, for queue pairs whose receives have more than one: a ring, as receives are used in the order in
/// which they were posted.
pub struct Scatter {
    pieces: Box<[Piece]>,
    each: usize,
    next: usize,
}

impl Scatter {
    /// Room for so many receives of so many pieces.
    pub fn new(depth: u32, each: u32) -> Scatter {
        let (depth, each) = if each > 1 { (depth as usize, each as usize) } else { (0, 1) };
        Scatter { pieces: vec![Piece::NONE; depth * each].into_boxed_slice(), each, next: 0 }
    }

    fn place(&mut self) -> Option<&mut [Piece]> {
        let at = self.next;
        self.next = if at + 2 * self.each > self.pieces.len() { 0 } else { at + self.each };
        self.pieces.get_mut(at..at + self.each)
    }
}

fn buffer(engine: &mut Engine, qp: &Qp, sges: &[sys::ibv_sge]) -> Result<AppBuf, c_int> {
    let check = |engine: &Engine, sge: &sys::ibv_sge| {
        engine.keys.piece(qp.pd(), sge, true).ok_or_else(|| {
            let why = "its lkey does not open for writing, in this protection domain, all of that memory";
            refuse(libc::EINVAL, format_args!("a receive was refused: {why}"))
        })
    };
    match sges {
        [] => {
            // SAFETY: no bytes.
            Ok(unsafe { AppBuf::one(Piece::NONE) })
        }
        [sge] => {
            let piece = check(engine, sge)?;
            // SAFETY: the application keeps it until the receive completes, by the contract of the verbs.
            Ok(unsafe { AppBuf::one(piece) })
        }
        several => {
            let mut pieces = [Piece::NONE; MAX_SGE];
            if several.len() > qp.max_recv_sge() as usize {
                let most = qp.max_recv_sge();
                return Err(refuse(libc::EINVAL, format_args!("a receive of more than {most} pieces")));
            }
            for (piece, sge) in pieces.iter_mut().zip(several) {
                *piece = check(engine, sge)?;
            }
            if engine.worker.recv_room(qp.key()) == 0 {
                return Err(libc::ENOMEM);
            }
            let Some(list) = qp.scatter(engine).place() else { return Err(libc::ENOMEM) };
            let used = several.len().min(list.len());
            let list = &mut list[..used];
            list.copy_from_slice(&pieces[..used]);
            // SAFETY: as above; the list is this receive's own until as many others have been posted, for which it must have
            // completed.
            Ok(unsafe { AppBuf::many(list) })
        }
    }
}

/// The pieces of a request.
///
/// # Safety
/// Its list has as many as it says.
#[inline(always)]
unsafe fn pieces(wr: &sys::ibv_recv_wr) -> &[sys::ibv_sge] {
    match usize::try_from(wr.num_sge).unwrap_or(0) {
        0 => &[],
        // SAFETY: by this function's contract.
        count => unsafe { std::slice::from_raw_parts(wr.sg_list, count) },
    }
}

/// Posts one, if it is of one piece and there is nothing about it that is not as it mostly is; whether it was posted.
#[inline(always)]
fn post_quickly(engine: &mut Engine, qp: &Qp, wr: &sys::ibv_recv_wr) -> bool {
    // SAFETY: by the contract of the verbs.
    let [sge] = (unsafe { pieces(wr) }) else { return false };
    let Engine { worker, keys, .. } = engine;
    let Some(piece) = keys.piece(qp.pd(), sge, true) else { return false };
    // SAFETY: the application keeps it until the receive completes, by the contract of the verbs.
    worker.post_recv_quickly(qp.key(), wr.wr_id, || unsafe { AppBuf::one(piece) })
}

#[cold]
fn post_slowly(engine: &mut Engine, qp: &Qp, wr: &sys::ibv_recv_wr) -> Result<usize, c_int> {
    // SAFETY: by the contract of the verbs.
    let buf = buffer(engine, qp, unsafe { pieces(wr) })?;
    match engine.worker.post_recv(qp.key(), RecvWr { wr_id: wr.wr_id, buf }) {
        Ok(()) => Ok(1),
        Err((PostError::QueueFull { .. }, _)) => Err(libc::ENOMEM),
        Err((e, _)) => Err(refuse(libc::EINVAL, format_args!("a receive was refused: {e}"))),
    }
}

/// `ibv_post_recv`.
pub unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad_wr: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    let post = |engine: &mut Engine, queue: &Qp| {
        let one = |engine: &mut Engine, one: &sys::ibv_recv_wr| {
            if post_quickly(engine, queue, one) { Ok(1) } else { post_slowly(engine, queue, one) }
        };
        // SAFETY: a list of work requests, by the contract of the verbs.
        unsafe { post_list(engine, wr, bad_wr, |one| one.next, one) }
    };
    // SAFETY: a queue pair of ours, by the contract of the verbs.
    unsafe { locked(qp, wr, bad_wr, post) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_pieces_lie_in_a_ring_and_share_nothing_with_those_before() {
        let mut ring = Scatter::new(3, 2);
        let start = ring.pieces.as_ptr() as usize;
        let mut next = || {
            let place = ring.place().unwrap();
            (place.as_ptr() as usize - start, place.len())
        };
        let piece = size_of::<Piece>();
        let want = [0, 2, 4, 0, 2, 4, 0].map(|at| (at * piece, 2));
        assert_eq!(want.map(|_| next()), want);
        assert!(Scatter::new(3, 1).place().is_none(), "one piece needs no list");
    }
}
