//! The extended interface of sends: work requests that are put together by calls between a start and a completion.
//!
//! Inline data is copied when it is set, since the program may use its memory for something else before the end; such messages
//! of up to [`MAX_INLINE`] bytes are copied twice altogether.

use crate::qp::Qp;
use crate::send::{MAX_INLINE, MAX_SGE, Request, post};
use crate::sys;
use std::ffi::c_int;
use std::ops::Range;

/// Work requests that are being put together.
#[derive(Default)]
pub struct Builder {
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
    sges: Range<usize>,
    /// Inline data, instead.
    inline: Option<Range<usize>>,
}

impl Builder {
    fn clear(&mut self) {
        // What was allocated stays for the next time.
        self.built.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = 0;
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
    let at = builder.sges.len();
    builder.built.push(Built {
        wr_id,
        // Where the data is inline, setting it says so.
        flags: flags & !sys::IBV_SEND_INLINE,
        imm,
        ah: std::ptr::null(),
        qpn: 0,
        qkey: 0,
        sges: at..at,
        inline: None,
    });
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
    if let Some(last) = unsafe { builder(qp) }.built.last_mut() {
        (last.ah, last.qpn, last.qkey) = (ah, qpn, qkey);
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut sys::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = sys::ibv_sge { addr, length, lkey };
    // SAFETY: by the contract of the verbs; a list of one.
    unsafe { wr_set_sge_list(qp, 1, &raw const sge) };
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
    if let Some(last) = builder.built.last_mut() {
        (last.sges, last.inline) = (at..at + count, None);
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
    if let Some(last) = builder.built.last_mut() {
        last.inline = Some(at..end);
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
                for one in &builder.built {
                    let inline = one.inline.as_ref().map(|range| {
                        let bytes = builder.inline.get(range.clone()).unwrap_or_default();
                        sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
                    });
                    let (sges, flag) = match &inline {
                        Some(sge) => (std::slice::from_ref(sge), sys::IBV_SEND_INLINE),
                        None => (builder.sges.get(one.sges.clone()).unwrap_or_default(), 0),
                    };
                    let Built { wr_id, imm, ah, qpn, qkey, .. } = *one;
                    let request = Request { wr_id, flags: one.flags | flag, imm, ah, qpn, qkey, sges };
                    if let Err(errno) = post(&mut engine, queue, &request) {
                        error = errno;
                        break;
                    }
                }
            }
        }
    }
    builder.clear();
    error
}
