//! The extended interface of sends: work requests that are put together by calls between a start and a completion.
//!
//! Inline data is copied when it is set, since the program may use its memory for something else before the end; such messages
//! of up to [`MAX_INLINE`] bytes are copied twice altogether.

use crate::qp::Qp;
use crate::send::{MAX_INLINE, MAX_SGE, Request, post, post_quickly};
use crate::sys;
use std::ffi::c_int;
use std::ops::Range;

/// Work requests that are being put together.
#[derive(Default)]
pub struct Builder {
    /// The last that was begun, if any was: mostly the only one.
    last: Option<Built>,
    /// Those before it.
    built: Vec<Built>,
    sges: Vec<sys::ibv_sge>,
    inline: Vec<u8>,
    /// The first error, which the end returns.
    error: c_int,
}

struct Built {
    wr_id: u64,
    flags: u32,
    imm: Option<u32>,
    ah: *const sys::ibv_ah,
    qpn: u32,
    qkey: u32,
    data: Data,
}

/// What a request is to send.
enum Data {
    /// One piece.
    One(sys::ibv_sge),
    /// A list of them.
    List(Range<usize>),
    /// Bytes that were copied.
    Inline(Range<usize>),
}

impl Builder {
    fn clear(&mut self) {
        // What was allocated stays for the next time.
        self.last = None;
        self.built.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = 0;
    }

    /// Request number `at`, if it is of one piece.
    fn plain(&self, at: usize) -> Option<Request<'_>> {
        let one = match self.built.get(at) {
            Some(one) => one,
            None => self.last.as_ref().filter(|_| at == self.built.len())?,
        };
        let Data::One(sge) = &one.data else { return None };
        let Built { wr_id, flags, imm, ah, qpn, qkey, .. } = *one;
        Some(Request { wr_id, flags, imm, ah, qpn, qkey, sges: std::slice::from_ref(sge) })
    }

    /// Request number `at`, as it is posted. `inline` is a place for what it may refer to.
    fn request<'a>(&'a self, at: usize, inline: &'a mut sys::ibv_sge) -> Option<Request<'a>> {
        let one = match self.built.get(at) {
            Some(one) => one,
            None => self.last.as_ref().filter(|_| at == self.built.len())?,
        };
        let (sges, flag) = match &one.data {
            Data::One(sge) => (std::slice::from_ref(sge), 0),
            Data::List(range) => (self.sges.get(range.clone()).unwrap_or_default(), 0),
            Data::Inline(range) => {
                let bytes = self.inline.get(range.clone()).unwrap_or_default();
                *inline = sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
                (std::slice::from_ref(&*inline), sys::IBV_SEND_INLINE)
            }
        };
        let Built { wr_id, imm, ah, qpn, qkey, .. } = *one;
        Some(Request { wr_id, flags: one.flags | flag, imm, ah, qpn, qkey, sges })
    }
}

/// The structure of a queue pair, with these operations if it is to have them.
pub fn with_operations(qp_base: sys::ibv_qp, extended: bool) -> sys::ibv_qp_ex {
    if !extended {
        return sys::ibv_qp_ex { qp_base, ..sys::ibv_qp_ex::default() };
    }
    sys::ibv_qp_ex {
        qp_base,
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        ..sys::ibv_qp_ex::default()
    }
}

/// # Safety
/// The queue pair is one of ours, and the calling thread the one that builds, by the contract of the verbs.
unsafe fn builder<'a>(qp: *mut sys::ibv_qp_ex) -> &'a mut Builder {
    // SAFETY: by the caller's word.
    unsafe { Qp::of(qp.cast()).builder() }
}

unsafe extern "C" fn wr_start(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: by the contract of the verbs.
    unsafe { builder(qp) }.clear();
}

/// # Safety
/// As [`builder`].
unsafe fn begin(qp: *mut sys::ibv_qp_ex, imm: Option<u32>) {
    // SAFETY: by the caller's word; the fields that programs set before.
    let (builder, wr_id, flags) = unsafe { (builder(qp), (*qp).wr_id, (*qp).wr_flags) };
    let built = Built {
        wr_id,
        // Where the data is inline, setting it says so.
        flags: flags & !sys::IBV_SEND_INLINE,
        imm,
        ah: std::ptr::null(),
        qpn: 0,
        qkey: 0,
        data: Data::List(0..0),
    };
    if let Some(before) = builder.last.replace(built) {
        builder.built.push(before);
    }
}

unsafe extern "C" fn wr_send(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: by the contract of the verbs.
    unsafe { begin(qp, None) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut sys::ibv_qp_ex, imm: u32) {
    // SAFETY: by the contract of the verbs.
    unsafe { begin(qp, Some(imm)) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut sys::ibv_qp_ex, ah: *mut sys::ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: by the contract of the verbs.
    if let Some(last) = unsafe { builder(qp) }.last.as_mut() {
        (last.ah, last.qpn, last.qkey) = (ah, qpn, qkey);
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by the contract of the verbs.
    if let Some(last) = unsafe { builder(qp) }.last.as_mut() {
        last.data = Data::One(sys::ibv_sge { addr, length, lkey });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut sys::ibv_qp_ex, count: usize, list: *const sys::ibv_sge) {
    // SAFETY: by the contract of the verbs.
    let builder = unsafe { builder(qp) };
    if count > MAX_SGE {
        builder.error = libc::EINVAL;
        return;
    }
    let at = builder.sges.len();
    if count > 0 {
        // SAFETY: a list of that many, by the contract of the verbs.
        builder.sges.extend_from_slice(unsafe { std::slice::from_raw_parts(list, count) });
    }
    if let Some(last) = builder.last.as_mut() {
        last.data = Data::List(at..at + count);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut sys::ibv_qp_ex, addr: *mut std::ffi::c_void, length: usize) {
    let one = sys::ibv_data_buf { addr, length };
    // SAFETY: by the contract of the verbs; a list of one.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut sys::ibv_qp_ex,
    count: usize,
    list: *const sys::ibv_data_buf,
) {
    // SAFETY: by the contract of the verbs.
    let builder = unsafe { builder(qp) };
    let at = builder.inline.len();
    // SAFETY: a list of that many, by the contract of the verbs.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    for data in list.iter().filter(|data| data.length > 0) {
        // Never a sum: the length may be anything.
        if data.length > (MAX_INLINE as usize).saturating_sub(builder.inline.len() - at) {
            builder.error = libc::EINVAL;
            return;
        }
        // SAFETY: that many bytes, readable now, by the contract of the verbs.
        let bytes = unsafe { std::slice::from_raw_parts(data.addr.cast::<u8>(), data.length) };
        builder.inline.extend_from_slice(bytes);
    }
    let end = builder.inline.len();
    if let Some(last) = builder.last.as_mut() {
        last.data = Data::Inline(at..end);
    }
}

unsafe extern "C" fn wr_abort(qp: *mut sys::ibv_qp_ex) {
    // SAFETY: by the contract of the verbs.
    unsafe { builder(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut sys::ibv_qp_ex) -> c_int {
    // SAFETY: by the contract of the verbs.
    let (queue, builder) = unsafe { (Qp::of(qp.cast()), builder(qp)) };
    let mut error = builder.error;
    if error == 0 {
        match queue.device().lock() {
            Err(errno) => error = errno,
            Ok(mut engine) => {
                // Mostly there is one, and one like the last.
                if builder.built.is_empty()
                    && let Some(request) = builder.plain(0)
                    && post_quickly(&mut engine, queue, &request)
                {
                    builder.clear();
                    return 0;
                }
                let mut at = 0;
                let mut place = sys::ibv_sge::default();
                while let Some(request) = builder.request(at, &mut place) {
                    let mut next = at;
                    // Inline data lies in the builder: its requests go one by one.
                    let more = || {
                        next += 1;
                        builder.plain(next)
                    };
                    let more = (at < builder.built.len()).then_some(more);
                    match post(&mut engine, queue, &request, more) {
                        Ok(count) => at += count,
                        Err(errno) => {
                            error = errno;
                            break;
                        }
                    }
                }
            }
        }
    }
    builder.clear();
    error
}
