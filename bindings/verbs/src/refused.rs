//! What the endpoint has not, each refused with one line that says so.

use crate::say::{refuse, refuse_null};
use crate::sys;
use std::ffi::{c_char, c_int, c_uint, c_void};

const NO_SRQ: &str = "there are no shared receive queues";
const NO_WINDOWS: &str = "there are no memory windows";
const NO_MULTICAST: &str = "there is no multicast";

pub unsafe extern "C" fn alloc_mw(_: *mut sys::ibv_pd, _: sys::ibv_mw_type) -> *mut sys::ibv_mw {
    refuse_null(libc::EOPNOTSUPP, NO_WINDOWS)
}

pub unsafe extern "C" fn bind_mw(
    _: *mut sys::ibv_qp,
    _: *mut sys::ibv_mw,
    _: *mut sys::ibv_mw_bind,
) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_WINDOWS)
}

pub unsafe extern "C" fn dealloc_mw(_: *mut sys::ibv_mw) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_WINDOWS)
}

pub unsafe extern "C" fn post_srq_recv(
    _: *mut sys::ibv_srq,
    _: *mut sys::ibv_recv_wr,
    _: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_SRQ)
}

pub unsafe extern "C" fn create_srq_ex(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_srq_init_attr_ex,
) -> *mut sys::ibv_srq {
    refuse_null(libc::EOPNOTSUPP, NO_SRQ)
}

pub unsafe extern "C" fn open_xrcd(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_xrcd_init_attr,
) -> *mut sys::ibv_xrcd {
    refuse_null(libc::EOPNOTSUPP, "there is no XRC, only UD queue pairs")
}

pub unsafe extern "C" fn open_qp(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_qp_open_attr,
) -> *mut sys::ibv_qp {
    refuse_null(libc::EOPNOTSUPP, "there is no XRC, only UD queue pairs")
}

pub unsafe extern "C" fn create_flow(_: *mut sys::ibv_qp, _: *mut sys::ibv_flow_attr) -> *mut sys::ibv_flow {
    refuse_null(libc::EOPNOTSUPP, "there are no flow rules: each queue pair gets what is for its number")
}

pub unsafe extern "C" fn create_wq(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_wq_init_attr,
) -> *mut sys::ibv_wq {
    refuse_null(libc::EOPNOTSUPP, "there are no work queues apart from queue pairs")
}

pub unsafe extern "C" fn alloc_dm(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_alloc_dm_attr,
) -> *mut sys::ibv_dm {
    refuse_null(libc::EOPNOTSUPP, "there is no device memory")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    _: *mut sys::ibv_pd,
    _: *mut sys::ibv_srq_init_attr,
) -> *mut sys::ibv_srq {
    refuse_null(libc::EOPNOTSUPP, NO_SRQ)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(_: *mut sys::ibv_srq, _: *mut sys::ibv_srq_attr, _: c_int) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_SRQ)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(_: *mut sys::ibv_srq, _: *mut sys::ibv_srq_attr) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_SRQ)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(_: *mut sys::ibv_srq) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_SRQ)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(_: *mut sys::ibv_qp, _: *const sys::ibv_gid, _: u16) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_MULTICAST)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(_: *mut sys::ibv_qp, _: *const sys::ibv_gid, _: u16) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_MULTICAST)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(_: c_int) -> *mut sys::ibv_context {
    refuse_null(libc::EOPNOTSUPP, "a device cannot be shared with another process")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(_: *mut sys::ibv_context, _: u32) -> *mut sys::ibv_pd {
    refuse_null(libc::EOPNOTSUPP, "a protection domain cannot be shared with another process")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(_: *mut sys::ibv_pd, _: u32) -> *mut sys::ibv_mr {
    refuse_null(libc::EOPNOTSUPP, "a memory region cannot be shared with another process")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut sys::ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut sys::ibv_mr {
    refuse_null(libc::EOPNOTSUPP, "memory of other devices cannot be registered")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_: *mut sys::ibv_qp, _: *mut sys::ibv_ece) -> c_int {
    // No options; nothing was asked for that would need a line.
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_: *mut sys::ibv_qp, _: *mut sys::ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut sys::ibv_qp, _: u32, _: u32) -> c_int {
    0
}

const NO_CM: &str = "there is no connection manager: librdmacm needs the kernel's. Use programs that exchange addresses \
                     themselves (perftest without -R)";

/// The entry of librdmacm. Without this it would look for the kernel's devices, and say only that there is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut c_void {
    refuse_null(libc::EOPNOTSUPP, NO_CM)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(_: *mut c_void, _: *mut *mut c_void, _: *mut c_void, _: c_uint) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_CM);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    _: *mut *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_CM);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    _: *const c_char,
    _: *const c_char,
    _: *const c_void,
    _: *mut *mut c_void,
) -> c_int {
    refuse(libc::EOPNOTSUPP, NO_CM);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(_: *mut c_int) -> *mut *mut sys::ibv_context {
    refuse_null(libc::EOPNOTSUPP, NO_CM)
}
