//! The extended interface of completion queues: one completion at a time, looked at field by field.

use crate::cq::{Cq, WC_FLAGS, take_one};
use crate::say::refuse_null;
use crate::sys;
use std::ffi::{c_int, c_uint};

/// `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    // SAFETY: the caller's own attributes.
    let attr = unsafe { &*attr };
    if attr.wc_flags & !u64::from(WC_FLAGS) != 0 {
        return refuse_null(
            libc::EOPNOTSUPP,
            "completions have no time stamps, VLAN tags, flow tags and tag matching",
        );
    }
    if attr.comp_mask & !(sys::IBV_CQ_INIT_ATTR_MASK_FLAGS | sys::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return refuse_null(libc::EINVAL, "an attribute of a completion queue that is not known here");
    }
    // SAFETY: by the contract of the verbs, which is the caller's.
    let made = unsafe { Cq::create(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector) };
    let Some(cq) = made else { return std::ptr::null_mut() };
    let ex = cq.as_ptr().cast::<sys::ibv_cq_ex>();
    // SAFETY: the structure that it begins with; nobody else knows of it yet.
    unsafe {
        (*ex).start_poll = Some(start_poll);
        (*ex).next_poll = Some(next_poll);
        (*ex).end_poll = Some(end_poll);
        (*ex).read_opcode = Some(read_opcode);
        (*ex).read_vendor_err = Some(read_vendor_err);
        (*ex).read_byte_len = Some(read_byte_len);
        (*ex).read_imm_data = Some(read_imm_data);
        (*ex).read_qp_num = Some(read_qp_num);
        (*ex).read_src_qp = Some(read_src_qp);
        (*ex).read_wc_flags = Some(read_wc_flags);
        (*ex).read_slid = Some(read_slid);
        (*ex).read_sl = Some(read_sl);
        (*ex).read_dlid_path_bits = Some(read_dlid_path_bits);
    }
    ex
}

unsafe extern "C" fn start_poll(cq: *mut sys::ibv_cq_ex, _: *mut sys::ibv_poll_cq_attr) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut sys::ibv_cq_ex) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Cq::of(cq.cast()) };
    match take_one(queue) {
        Ok(Some(wc)) => {
            // SAFETY: the fields that programs read without a call.
            unsafe {
                (*cq).status = wc.status;
                (*cq).wr_id = wc.wr_id;
            }
            queue.current.set(Some(wc));
            0
        }
        Ok(None) => libc::ENOENT,
        Err(errno) => errno,
    }
}

unsafe extern "C" fn end_poll(cq: *mut sys::ibv_cq_ex) {
    // SAFETY: one of ours, by the contract of the verbs.
    unsafe { Cq::of(cq.cast()) }.current.set(None);
}

fn current(cq: *mut sys::ibv_cq_ex) -> sys::ibv_wc {
    // SAFETY: one of ours, by the contract of the verbs.
    unsafe { Cq::of(cq.cast()) }.current.get().unwrap_or_default()
}

unsafe extern "C" fn read_opcode(cq: *mut sys::ibv_cq_ex) -> sys::ibv_wc_opcode {
    current(cq).opcode
}

unsafe extern "C" fn read_vendor_err(cq: *mut sys::ibv_cq_ex) -> u32 {
    current(cq).vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut sys::ibv_cq_ex) -> u32 {
    current(cq).byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut sys::ibv_cq_ex) -> u32 {
    // SAFETY: both alternatives are plain numbers of the same size.
    unsafe { current(cq).__bindgen_anon_1.imm_data }
}

unsafe extern "C" fn read_qp_num(cq: *mut sys::ibv_cq_ex) -> u32 {
    current(cq).qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut sys::ibv_cq_ex) -> u32 {
    current(cq).src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut sys::ibv_cq_ex) -> c_uint {
    current(cq).wc_flags
}

unsafe extern "C" fn read_slid(cq: *mut sys::ibv_cq_ex) -> u32 {
    u32::from(current(cq).slid)
}

unsafe extern "C" fn read_sl(cq: *mut sys::ibv_cq_ex) -> u8 {
    current(cq).sl
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut sys::ibv_cq_ex) -> u8 {
    current(cq).dlid_path_bits
}
