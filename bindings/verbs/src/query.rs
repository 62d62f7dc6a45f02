//! What a device and its port are.

use crate::ah::gid;
use crate::context::Context;
use crate::cq::MAX_CQE;
use crate::engine::{Facts, MAX_AHS, MAX_QPS};
use crate::memory::MAX_MRS;
use crate::qp::MAX_WR;
use crate::recv::MAX_SGE;
use crate::say::{refuse, set_errno};
use crate::sys;
use std::ffi::c_int;

/// The physical state "link up" and "polling" (IBTA volume 1, 14.2.5.6).
const PHYS_LINK_UP: u8 = 5;
const PHYS_POLLING: u8 = 2;

fn device_attr(context: &Context, facts: &Facts) -> sys::ibv_device_attr {
    let mut attr = sys::ibv_device_attr {
        node_guid: context.device.guid().to_be(),
        sys_image_guid: context.device.guid().to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        // No vendor has been given zero (IEEE, OUI); programs that know vendors' devices take it for none of them.
        vendor_id: 0,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: MAX_QPS as c_int,
        max_qp_wr: MAX_WR as c_int,
        device_cap_flags: sys::IBV_DEVICE_BAD_PKEY_CNTR
            | sys::IBV_DEVICE_BAD_QKEY_CNTR
            | sys::IBV_DEVICE_PORT_ACTIVE_EVENT
            | sys::IBV_DEVICE_SYS_IMAGE_GUID,
        max_sge: MAX_SGE as c_int,
        max_cq: 65_536,
        max_cqe: MAX_CQE as c_int,
        max_mr: MAX_MRS as c_int,
        max_pd: 65_536,
        atomic_cap: sys::IBV_ATOMIC_NONE,
        max_ah: MAX_AHS as c_int,
        max_pkeys: facts.pkeys.len() as u16,
        phys_port_cnt: 1,
        ..sys::ibv_device_attr::default()
    };
    for (to, from) in attr.fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as std::ffi::c_char;
    }
    attr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_device_attr,
) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let context = unsafe { Context::of(context) };
    match context.device.lock() {
        // SAFETY: the caller's own place.
        Ok(engine) => unsafe { attr.write(device_attr(context, &engine.facts)) },
        Err(errno) => return errno,
    }
    0
}

/// `ibv_query_device_ex`.
pub unsafe extern "C" fn query_device_ex(
    context: *mut sys::ibv_context,
    input: *const sys::ibv_query_device_ex_input,
    attr: *mut sys::ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the caller's own input, if there is any.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
        set_errno(libc::EINVAL);
        return libc::EINVAL;
    }
    // SAFETY: an open context of ours, by the contract of the verbs.
    let context = unsafe { Context::of(context) };
    let orig_attr = match context.device.lock() {
        Ok(engine) => device_attr(context, &engine.facts),
        Err(errno) => return errno,
    };
    let known = sys::ibv_device_attr_ex { orig_attr, phys_port_cnt_ex: 1, ..Default::default() };
    // SAFETY: as many bytes as the caller's structure has, of which older programs have fewer and newer ones more.
    unsafe {
        attr.cast::<u8>().write_bytes(0, attr_size);
        let len = attr_size.min(size_of_val(&known));
        std::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), attr.cast::<u8>(), len);
    }
    0
}

fn mtu(bytes: usize) -> sys::ibv_mtu {
    match bytes {
        4096.. => sys::IBV_MTU_4096,
        2048.. => sys::IBV_MTU_2048,
        1024.. => sys::IBV_MTU_1024,
        512.. => sys::IBV_MTU_512,
        _ => sys::IBV_MTU_256,
    }
}

fn port_attr(context: &Context, port_num: u8) -> Result<sys::ibv_port_attr, c_int> {
    if port_num != 1 {
        set_errno(libc::EINVAL);
        return Err(libc::EINVAL);
    }
    let engine = context.device.lock()?;
    let facts = &engine.facts;
    let up = engine.is_active();
    let dropped = |name: &str| {
        let counters = engine.worker.counters(0);
        let found = counters.and_then(|c| c.drops().find(|(reason, _)| reason.name() == name));
        found.map_or(0, |(_, count)| u32::try_from(count).unwrap_or(u32::MAX))
    };
    Ok(sys::ibv_port_attr {
        state: if up { sys::IBV_PORT_ACTIVE } else { sys::IBV_PORT_DOWN },
        phys_state: if up { PHYS_LINK_UP } else { PHYS_POLLING },
        max_mtu: mtu(facts.max_mtu),
        active_mtu: mtu(facts.ib_mtu),
        gid_tbl_len: facts.addrs.len() as c_int,
        port_cap_flags: sys::IBV_PORT_IP_BASED_GIDS,
        // A UD message is one packet.
        max_msg_sz: facts.ib_mtu as u32,
        bad_pkey_cntr: dropped("pkey"),
        qkey_viol_cntr: dropped("qkey"),
        pkey_tbl_len: facts.pkeys.len() as u16,
        max_vl_num: 1,
        // 4X and 25.78 Gbit/s a lane (IBTA volume 1, PortInfo). It is as fast as the processor: a number has to stand here.
        active_width: 2,
        active_speed: 32,
        link_layer: sys::IBV_LINK_LAYER_ETHERNET as u8,
        // IBV_QPF_GRH_REQUIRED: addresses are GIDs.
        flags: 1,
        ..sys::ibv_port_attr::default()
    })
}

/// # Safety
/// An open context of ours, and a place of `size` bytes.
unsafe fn write_port(context: *mut sys::ibv_context, port_num: u8, attr: *mut u8, size: usize) -> c_int {
    // SAFETY: by the caller's word.
    match port_attr(unsafe { Context::of(context) }, port_num) {
        Ok(known) => {
            // SAFETY: by the caller's word.
            unsafe {
                attr.write_bytes(0, size);
                let len = size.min(size_of_val(&known));
                std::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), attr, len);
            }
            0
        }
        Err(errno) => errno,
    }
}

/// `ibv_query_port`.
pub unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port_num: u8,
    attr: *mut sys::ibv_port_attr,
    attr_size: usize,
) -> c_int {
    // SAFETY: by the contract of the verbs.
    unsafe { write_port(context, port_num, attr.cast(), attr_size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut sys::ibv_context,
    port_num: u8,
    attr: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    // What the structure had before it grew.
    let size = std::mem::offset_of!(sys::ibv_port_attr, port_cap_flags2);
    // SAFETY: by the contract of the verbs; programs of old have that many bytes.
    unsafe { write_port(context, port_num, attr.cast(), size) }
}

/// The GID at an index, or why there is none.
fn gid_at(context: &Context, port_num: u32, index: usize) -> Result<[u8; 16], c_int> {
    let engine = context.device.lock()?;
    match engine.facts.addrs.get(index) {
        Some(addr) if port_num == 1 => Ok(gid(*addr)),
        _ => {
            set_errno(libc::EINVAL);
            Err(libc::EINVAL)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut sys::ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut sys::ibv_gid,
) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let context = unsafe { Context::of(context) };
    match gid_at(context, port_num.into(), usize::try_from(index).unwrap_or(usize::MAX)) {
        Ok(raw) => {
            // SAFETY: the caller's own place.
            unsafe { gid.write(sys::ibv_gid { raw }) };
            0
        }
        Err(_) => -1,
    }
}

fn entry(raw: [u8; 16], index: u32) -> sys::ibv_gid_entry {
    let gid = sys::ibv_gid { raw };
    let gid_type = sys::IBV_GID_TYPE_ROCE_V2;
    // No interface of the kernel's.
    sys::ibv_gid_entry { gid, gid_index: index, port_num: 1, gid_type, ndev_ifindex: 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut sys::ibv_context,
    port_num: u32,
    index: u32,
    gid: *mut sys::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size < size_of::<sys::ibv_gid_entry>() {
        return libc::EINVAL;
    }
    // SAFETY: an open context of ours, by the contract of the verbs.
    match gid_at(unsafe { Context::of(context) }, port_num, index as usize) {
        Ok(raw) => {
            // SAFETY: the caller's own place.
            unsafe { gid.write(entry(raw, index)) };
            0
        }
        // What the original says of an index without a GID.
        Err(_) => libc::ENODATA,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut sys::ibv_context,
    entries: *mut sys::ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || size < size_of::<sys::ibv_gid_entry>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: an open context of ours, by the contract of the verbs.
    let addrs = match unsafe { Context::of(context) }.device.lock() {
        Ok(engine) => engine.facts.addrs.clone(),
        Err(errno) => return -(errno as isize),
    };
    for (at, addr) in addrs.iter().take(max).enumerate() {
        // SAFETY: the caller has places for `max` entries of `size` bytes.
        unsafe { entries.byte_add(at * size).write(entry(gid(*addr), at as u32)) };
    }
    addrs.len().min(max) as isize
}

/// The private function by which rdma-core's own programs ask for the type of a GID: 0 is RoCE v1 and InfiniBand, 1 is RoCE v2
/// (`ibv_gid_type_sysfs` of rdma-core).
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut sys::ibv_context,
    port_num: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    match gid_at(unsafe { Context::of(context) }, port_num.into(), index as usize) {
        Ok(_) => {
            // SAFETY: the caller's own place.
            unsafe { kind.write(1) };
            0
        }
        Err(_) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut sys::ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let Ok(engine) = unsafe { Context::of(context) }.device.lock() else { return -1 };
    let found = usize::try_from(index).ok().and_then(|index| engine.facts.pkeys.get(index));
    match found.filter(|_| port_num == 1) {
        Some(key) => {
            // SAFETY: the caller's own place.
            unsafe { pkey.write(key.0.to_be()) };
            0
        }
        None => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut sys::ibv_context, port_num: u8, pkey: u16) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let Ok(engine) = unsafe { Context::of(context) }.device.lock() else { return -1 };
    let found = engine.facts.pkeys.iter().position(|key| key.0.to_be() == pkey);
    found.filter(|_| port_num == 1).map_or(-1, |at| at as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _: *mut sys::ibv_context,
    _: *mut sys::ibv_ah_attr,
    _: *mut u8,
    _: *mut u16,
) -> c_int {
    refuse(libc::EOPNOTSUPP, "MAC addresses of neighbours are the endpoint's own business")
}
