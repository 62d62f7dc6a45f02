//! Posting sends.
//!
//! A send goes to the worker at once, which copies the message from the application's memory into its packet. Where the worker has
//! no room (the port is busy, the peer's MAC address is being asked for, the completion queue is full) the work request waits in
//! the queue pair, and the message where it lies, as it does with hardware. Rounds of the endpoint offer it again, in order.

use crate::ah::Ah;
use crate::engine::Engine;
use crate::list::{locked, post_list};
use crate::memory::Piece;
use crate::qp::Qp;
use crate::say::refuse;
use crate::sys;
use dataplane::ah::AhState;
use dataplane::cq::WcStatus;
use dataplane::qp::{PostError, QpState, SendWr};
use roce_proto::types::{QKey, Qpn};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::NonNull;

/// Gather elements of a send at the most.
pub const MAX_SGE: usize = 4;
/// Bytes of inline data at the most.
pub const MAX_INLINE: u32 = 512;

/// A send as both interfaces ask for it.
pub struct Request<'a> {
    /// The program's number.
    pub wr_id: u64,
    /// Of `ibv_send_flags`.
    pub flags: u32,
    /// The immediate, in network byte order.
    pub imm: Option<u32>,
    /// Where to.
    pub ah: *const sys::ibv_ah,
    /// The peer's queue pair.
    pub qpn: u32,
    /// The Q_Key to send.
    pub qkey: u32,
    /// What to send.
    pub sges: &'a [sys::ibv_sge],
}

/// A message: where it lies.
#[derive(Clone, Copy)]
struct Message {
    pieces: [Piece; MAX_SGE],
    count: u8,
    len: u32,
}

impl Message {
    fn pieces(&self) -> &[Piece] {
        self.pieces.get(..usize::from(self.count)).unwrap_or_default()
    }

    fn is_valid(&self) -> bool {
        self.pieces().iter().all(Piece::is_valid)
    }

    /// # Safety
    /// The pieces must be readable, and `place` as long as the message.
    #[inline]
    unsafe fn copy(&self, mut place: &mut [u8]) {
        for piece in self.pieces() {
            // SAFETY: by the caller's word.
            place = unsafe { piece.read_to(place) };
        }
    }
}

/// A work request that waits.
struct Held {
    wr: SendWr,
    message: Message,
}

/// The work requests of a queue pair that wait in front of the worker.
pub struct Waiting {
    held: VecDeque<Held>,
    /// Room for the inline data of each.
    inline: Box<[u8]>,
    max_inline: usize,
    /// Work requests held so far, for the place of the next one's inline data.
    next: usize,
    depth: usize,
}

impl Waiting {
    /// None so far, of a queue pair with that depth.
    pub fn new(depth: u32, max_inline: u32) -> Waiting {
        let (depth, max_inline) = (depth as usize, max_inline as usize);
        Waiting {
            held: VecDeque::with_capacity(depth),
            inline: vec![0; depth * max_inline].into_boxed_slice(),
            max_inline,
            next: 0,
            depth,
        }
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    fn hold(&mut self, wr: SendWr, mut message: Message, inline: bool) {
        if inline {
            let at = self.next % self.depth * self.max_inline;
            let place = self.inline.get_mut(at..at + message.len as usize).unwrap_or_default();
            // SAFETY: readable during the call that posts it, and as long as the place.
            unsafe { message.copy(place) };
            message.pieces = [Piece::NONE; MAX_SGE];
            message.pieces[0] = Piece::of_ours(place.as_mut_ptr(), message.len);
            message.count = 1;
        }
        self.next = self.next.wrapping_add(1);
        self.held.push_back(Held { wr, message });
    }
}

/// Posts one that goes on as the one before did; false, and nothing done, if there is anything about it that is not as it mostly is. Where
/// programs post one by one, nearly every send goes this way, so it must do no more than it has to.
#[inline(always)]
pub fn post_quickly(engine: &mut Engine, qp: &Qp, request: &Request<'_>) -> bool {
    const PLAIN: u32 = sys::IBV_SEND_SOLICITED | sys::IBV_SEND_INLINE;
    let [sge] = request.sges else { return false };
    let Some(dst_qpn) = Qpn::new(request.qpn) else { return false };
    if request.flags & !PLAIN != 0
        || request.ah.is_null()
        || request.imm.is_some()
        || qp.signals_all()
        || !qp.waiting(engine).held.is_empty()
    {
        return false;
    }
    let piece = if request.flags & sys::IBV_SEND_INLINE == 0 {
        engine.keys.piece(qp.pd(), sge, false)
    } else {
        (sge.length <= qp.max_inline()).then(|| Piece::of_ours(sge.addr as *mut u8, sge.length))
    };
    let Some(piece) = piece else { return false };
    let wr = SendWr {
        wr_id: request.wr_id,
        // SAFETY: an address handle of ours, by the contract of the verbs.
        ah: unsafe { Ah::of(request.ah) }.key(),
        dst_qpn,
        qkey: QKey(request.qkey),
        imm: None,
        solicited: request.flags & sys::IBV_SEND_SOLICITED != 0,
        signaled: false,
    };
    let posted = engine.worker.post_send_quickly(
        qp.key(),
        wr,
        piece.len as usize,
        #[inline(always)]
        |place| {
            // SAFETY: the application's memory is there until the send completes, by the contract of the verbs; its region was
            // looked at under the lock that is still held. The place is as long as the message.
            unsafe { piece.read_to(place) };
        },
    );
    engine.posts = engine.posts.wrapping_add(u64::from(posted));
    posted
}

/// Posts one, and if there is `more`, those that it gives, as long as they differ in nothing but their bytes; how many. The number of an
/// error, and nothing posted.
#[inline]
pub fn post<'a>(
    engine: &mut Engine,
    qp: &Qp,
    request: &Request<'_>,
    more: Option<impl FnMut() -> Option<Request<'a>>>,
) -> Result<usize, c_int> {
    let Some(dst_qpn) = Qpn::new(request.qpn).filter(|_| !request.ah.is_null()) else {
        return Err(refuse(libc::EINVAL, "a send without an address handle or to no queue pair number"));
    };
    let wr = SendWr {
        wr_id: request.wr_id,
        // SAFETY: an address handle of ours, by the contract of the verbs.
        ah: unsafe { Ah::of(request.ah) }.key(),
        dst_qpn,
        qkey: QKey(request.qkey),
        imm: request.imm.map(u32::from_be),
        solicited: request.flags & sys::IBV_SEND_SOLICITED != 0,
        signaled: qp.signals_all() || request.flags & sys::IBV_SEND_SIGNALED != 0,
    };
    let inline = request.flags & sys::IBV_SEND_INLINE != 0;
    engine.posts = engine.posts.wrapping_add(1);
    // Nearly every send is of one piece, and finds room.
    if qp.waiting(engine).held.is_empty()
        && let [sge] = request.sges
    {
        let piece = piece(engine, qp, sge, inline)?;
        may_be_sent(engine, qp, u64::from(piece.len), inline)?;
        let posted = engine.worker.post_send_with(qp.key(), &wr, piece.len as usize, |place| {
            // SAFETY: the application's memory is there until the send completes, by the contract of the verbs; its region was
            // looked at under the lock that is still held. The place is as long as the message.
            unsafe { piece.read_to(place) };
        });
        if posted.is_ok() {
            let Some(more) = more.filter(|_| !wr.signaled) else { return Ok(1) };
            return Ok(1 + post_alike(engine, qp, request, &wr, piece.len, more));
        }
    }
    post_otherwise(engine, qp, request, wr, inline).map(|()| 1)
}

/// Posts more like the one that was posted last, of `len` bytes.
fn post_alike<'a>(
    engine: &mut Engine,
    qp: &Qp,
    like: &Request<'_>,
    wr: &SendWr,
    len: u32,
    mut more: impl FnMut() -> Option<Request<'a>>,
) -> usize {
    let Engine { worker, keys, .. } = engine;
    let count = worker.post_send_more(qp.key(), wr, usize::MAX, |place| {
        let Some(next) = more() else { return false };
        let same = std::ptr::eq(next.ah, like.ah)
            && (next.qpn, next.qkey, next.flags, next.imm) == (like.qpn, like.qkey, like.flags, like.imm);
        let [sge] = next.sges else { return false };
        if !same || sge.length != len {
            return false;
        }
        let piece = match next.flags & sys::IBV_SEND_INLINE {
            0 => keys.piece(qp.pd(), sge, false),
            _ => Some(Piece::of_ours(sge.addr as *mut u8, sge.length)),
        };
        // What is wrong with it is said when it is looked at by itself.
        let Some(piece) = piece else { return false };
        // SAFETY: as of the first; the place is as long as that was.
        unsafe { piece.read_to(place) };
        true
    });
    engine.posts = engine.posts.wrapping_add(count as u64);
    count
}

/// Posts one that has several pieces, or is not taken at once.
#[cold]
fn post_otherwise(
    engine: &mut Engine,
    qp: &Qp,
    request: &Request<'_>,
    wr: SendWr,
    inline: bool,
) -> Result<(), c_int> {
    let message = gather(engine, qp, request.sges, inline)?;
    if qp.waiting(engine).held.is_empty() {
        match offer(engine, qp, &wr, &message) {
            Ok(()) => return Ok(()),
            Err(PostError::PortBusy) => {
                // Perhaps it takes them now.
                engine.worker.flush();
                if offer(engine, qp, &wr, &message).is_ok() {
                    return Ok(());
                }
            }
            Err(PostError::State(QpState::Error)) => {}
            Err(e) if e.is_back_pressure() => {}
            Err(e) => return Err(refuse(libc::EINVAL, format_args!("a send was refused: {e}"))),
        }
    }
    let outstanding = engine.worker.outstanding(qp.key()) as usize;
    let waiting = qp.waiting(engine);
    if waiting.held.len() + outstanding >= waiting.depth {
        return Err(libc::ENOMEM);
    }
    waiting.hold(wr, message, inline);
    let me = NonNull::from(qp);
    if !engine.stalled.contains(&me) {
        engine.stalled.push(me);
    }
    Ok(())
}

/// The bytes that a gather element names.
#[inline]
fn piece(engine: &Engine, qp: &Qp, sge: &sys::ibv_sge, inline: bool) -> Result<Piece, c_int> {
    if inline {
        return Ok(Piece::of_ours(sge.addr as *mut u8, sge.length));
    }
    engine.keys.piece(qp.pd(), sge, false).ok_or_else(|| {
        let why =
            "its lkey does not open: not this protection domain's, or not all of it is in the memory region";
        refuse(libc::EINVAL, format_args!("a send was refused: {why}"))
    })
}

/// Whether a message of `len` bytes may be sent.
#[inline]
fn may_be_sent(engine: &Engine, qp: &Qp, len: u64, inline: bool) -> Result<(), c_int> {
    let limit = if inline { qp.max_inline() as usize } else { engine.facts.ib_mtu };
    if len <= limit as u64 {
        return Ok(());
    }
    let what = if inline { "of inline data that the queue pair was made for" } else { "of one UD message" };
    Err(refuse(libc::EINVAL, format_args!("{len} bytes are more than the {limit} {what}")))
}

fn gather(engine: &Engine, qp: &Qp, sges: &[sys::ibv_sge], inline: bool) -> Result<Message, c_int> {
    let mut message = Message { pieces: [Piece::NONE; MAX_SGE], count: sges.len() as u8, len: 0 };
    let mut len = 0u64;
    if sges.len() > MAX_SGE {
        return Err(refuse(libc::EINVAL, format_args!("a send of more than {MAX_SGE} pieces")));
    }
    for (to, sge) in message.pieces.iter_mut().zip(sges) {
        *to = piece(engine, qp, sge, inline)?;
        len += u64::from(sge.length);
    }
    may_be_sent(engine, qp, len, inline)?;
    message.len = len as u32;
    Ok(message)
}

#[inline]
fn offer(engine: &mut Engine, qp: &Qp, wr: &SendWr, message: &Message) -> Result<(), PostError> {
    engine.worker.post_send_with(qp.key(), wr, message.len as usize, |place| {
        // SAFETY: the application's memory is there until the send completes, by the contract of the verbs; its region was
        // looked at under the lock that is still held. The place is as long as the message.
        unsafe { message.copy(place) };
    })
}

impl Qp {
    /// Offers the worker what waits, in order; whether some still does.
    pub fn send_waiting(&self, engine: &mut Engine) -> bool {
        loop {
            let Some(Held { wr, message }) = self.waiting(engine).held.front().map(|h| Held { ..*h }) else {
                return false;
            };
            let tried = match message.is_valid() {
                true => offer(engine, self, &wr, &message),
                false => Err(PostError::NoAh),
            };
            let settled = match tried {
                Ok(()) => Ok(()),
                // A neighbour that is gone takes nothing, as with every UD peer that is gone: the send is done, and lost.
                Err(PostError::AddressUnresolved)
                    if matches!(engine.worker.ah_state(wr.ah), Some(AhState::Failed { .. })) =>
                {
                    if wr.signaled {
                        engine.worker.fail_send(self.key(), wr.wr_id, WcStatus::Success)
                    } else {
                        Ok(())
                    }
                }
                Err(e) if e.is_back_pressure() => return true,
                Err(PostError::State(_)) => {
                    engine.worker.fail_send(self.key(), wr.wr_id, WcStatus::WorkRequestFlushed)
                }
                Err(_) => engine.worker.fail_send(self.key(), wr.wr_id, WcStatus::LocalQpOperationError),
            };
            if settled == Err(PostError::CqFull) {
                return true;
            }
            self.waiting(engine).held.pop_front();
        }
    }
}

/// `ibv_post_send`.
pub unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad_wr: *mut *mut sys::ibv_send_wr,
) -> c_int {
    let post = |engine: &mut Engine, queue: &Qp| {
        // SAFETY: a list of work requests, by the contract of the verbs; mostly there is one in it.
        unsafe {
            if let Some(one) = wr.as_ref()
                && one.next.is_null()
                && one.opcode == sys::IBV_WR_SEND
                && let Ok(request) = request(one)
                && post_quickly(engine, queue, &request)
            {
                return 0;
            }
            post_all(engine, queue, wr, bad_wr)
        }
    };
    // SAFETY: a queue pair of ours, by the contract of the verbs.
    unsafe { locked(qp, wr, bad_wr, post) }
}

/// # Safety
/// As of [`post_send`].
#[inline(never)]
unsafe fn post_all(
    engine: &mut Engine,
    queue: &Qp,
    first: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        post_list(
            engine,
            first,
            bad,
            |one| one.next,
            |engine, one| {
                let mut at = one.next;
                let more = || {
                    let next = at.as_ref()?;
                    at = next.next;
                    // A wrong one is refused when its turn comes.
                    (next.opcode == sys::IBV_WR_SEND).then(|| request(next).ok()).flatten()
                };
                post(engine, queue, &request(one)?, (!one.next.is_null()).then_some(more))
            },
        )
    }
}

#[cold]
fn no_such(opcode: sys::ibv_wr_opcode) -> c_int {
    refuse(libc::EINVAL, format_args!("a UD queue pair has sends only, no operation {opcode}"))
}

/// What a work request of the list asks for.
///
/// # Safety
/// Its unions hold what its opcode says, and its list of pieces has as many as it says, for as long as it is there.
#[inline(always)]
unsafe fn request(one: &sys::ibv_send_wr) -> Result<Request<'_>, c_int> {
    let imm = match one.opcode {
        sys::IBV_WR_SEND => None,
        // SAFETY: by this function's contract.
        sys::IBV_WR_SEND_WITH_IMM => Some(unsafe { one.__bindgen_anon_1.imm_data }),
        other => {
            return Err(no_such(other));
        }
    };
    let count = usize::try_from(one.num_sge).unwrap_or(0);
    // SAFETY: by this function's contract.
    let sges = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(one.sg_list, count) } };
    // SAFETY: by this function's contract: only sends of UD come here.
    let ud = unsafe { &one.wr.ud };
    Ok(Request {
        wr_id: one.wr_id,
        flags: one.send_flags,
        imm,
        ah: ud.ah,
        qpn: ud.remote_qpn,
        qkey: ud.remote_qkey,
        sges,
    })
}
