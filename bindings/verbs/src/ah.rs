//! Address handles: from a GID to a neighbour.

use crate::context::{Context, forget};
use crate::memory::Pd;
use crate::say::{refuse, refuse_null, set_errno};
use crate::sys;
use dataplane::ah::{AhConfig, AhKey, AhState};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a neighbour may take to answer. Linux' own verbs give it a second; here the other process may be starting.
const RESOLVE: Duration = Duration::from_secs(4);

/// The hop limit where the program's is of no use: Linux, too, takes its route's.
const HOP_LIMIT: u8 = 64;

/// An address handle.
#[repr(C)]
pub struct Ah {
    base: sys::ibv_ah,
    key: AhKey,
}

impl Ah {
    /// The handle of a pointer that programs hold.
    ///
    /// # Safety
    /// It is one of ours.
    #[inline]
    pub unsafe fn of<'a>(ah: *const sys::ibv_ah) -> &'a Ah {
        // SAFETY: the base is the first field.
        unsafe { &*ah.cast::<Ah>() }
    }

    /// The worker's.
    #[inline]
    pub fn key(&self) -> AhKey {
        self.key
    }
}

/// The address that a GID stands for: IPv4 as IPv4-mapped IPv6 (IBTA annex A17).
pub fn address(gid: [u8; 16]) -> IpAddr {
    let six = Ipv6Addr::from(gid);
    six.to_ipv4_mapped().map_or(IpAddr::V6(six), IpAddr::V4)
}

/// The GID of an address.
pub fn gid(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

/// The UDP source port that a flow label asks for, as Linux has it (`ibv_flow_label_to_udp_sport` of the header); none if it asks
/// for nothing.
fn source_port(flow_label: u32) -> Option<u16> {
    let label = flow_label & 0xf_ffff;
    (label != 0).then_some(0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut sys::ibv_pd, attr: *mut sys::ibv_ah_attr) -> *mut sys::ibv_ah {
    // SAFETY: a protection domain of ours and the caller's own attributes, by the contract of the verbs.
    let (context, attr) = unsafe { ((*pd).context, &*attr) };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(context) };
    if attr.port_num != 1 || attr.is_global == 0 {
        return refuse_null(libc::EINVAL, "RoCE addresses are GIDs: is_global = 1, and the only port is 1");
    }
    let Ok(mut engine) = owner.device.lock() else { return std::ptr::null_mut() };
    let Some(src) = engine.facts.addrs.get(usize::from(attr.grh.sgid_index)).copied() else {
        let (index, count) = (attr.grh.sgid_index, engine.facts.addrs.len());
        return refuse_null(libc::EINVAL, format_args!("there is no GID {index}: the port has {count}"));
    };
    // SAFETY: both alternatives are plain bytes.
    let dst = address(unsafe { attr.grh.dgid.raw });
    if dst.is_multicast() {
        return refuse_null(libc::EOPNOTSUPP, format_args!("{dst} is a group: there is no multicast"));
    }
    let config = AhConfig {
        src: Some(src),
        traffic_class: attr.grh.traffic_class,
        hop_limit: if attr.grh.hop_limit > 1 { attr.grh.hop_limit } else { HOP_LIMIT },
        flow_label: attr.grh.flow_label & 0xf_ffff,
        src_port: source_port(attr.grh.flow_label),
        ..AhConfig::new(dst)
    };
    let now = engine.now();
    let key = match engine.worker.create_ah(&config, now) {
        Ok(key) => key,
        Err(e) => return refuse_null(libc::EINVAL, e),
    };
    let start = Instant::now();
    loop {
        engine.round();
        match engine.worker.ah_state(key) {
            Some(AhState::Ready) => break,
            _ if start.elapsed() < RESOLVE => {
                drop(engine);
                std::thread::sleep(Duration::from_micros(200));
                match owner.device.lock() {
                    Ok(again) => engine = again,
                    Err(_) => return std::ptr::null_mut(),
                }
            }
            _ => {
                engine.worker.destroy_ah(key);
                return refuse_null(
                    libc::ETIMEDOUT,
                    format_args!(
                        "nobody answers for {dst}: is its endpoint running, and reached from {src}?"
                    ),
                );
            }
        }
    }
    owner.owned(&mut engine).ahs.push(key);
    drop(engine);
    // SAFETY: a protection domain of ours.
    unsafe { Pd::enter(pd) };
    Box::into_raw(Box::new(Ah { base: sys::ibv_ah { context, pd, handle: 0 }, key })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut sys::ibv_ah) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let handle = unsafe { Ah::of(ah) };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(handle.base.context) };
    let mut engine = match owner.device.lock() {
        Ok(engine) => engine,
        Err(errno) => return errno,
    };
    engine.worker.destroy_ah(handle.key);
    forget(&mut owner.owned(&mut engine).ahs, &handle.key);
    drop(engine);
    // SAFETY: a protection domain of ours, which this handle has used until now.
    unsafe { Pd::leave(handle.base.pd) };
    // SAFETY: made by `ibv_create_ah`, and nobody's any more.
    drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut sys::ibv_context,
    port_num: u8,
    wc: *mut sys::ibv_wc,
    grh: *mut sys::ibv_grh,
    ah_attr: *mut sys::ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's own completion and the first 40 bytes of its receive, by the contract of the verbs.
    let (wc, area) = unsafe { (&*wc, &*grh.cast::<[u8; 40]>()) };
    if wc.wc_flags & sys::IBV_WC_GRH == 0 || port_num != 1 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let four =
        |at: usize| area.get(at..).and_then(|b| b.first_chunk::<4>()).map(|b| IpAddr::V4(Ipv4Addr::from(*b)));
    let six = |at: usize| {
        area.get(at..).and_then(|b| b.first_chunk::<16>()).map(|b| IpAddr::V6(Ipv6Addr::from(*b)))
    };
    // An IPv6 header, or 20 bytes of nothing and an IPv4 header (IBTA annex A17).
    let (src, dst, class) = if area[0] >> 4 == 6 {
        (six(8), six(24), (area[0] << 4) | (area[1] >> 4))
    } else {
        (four(32), four(36), area[21])
    };
    // SAFETY: an open context of ours.
    let addrs = match unsafe { Context::of(context) }.device.lock() {
        Ok(engine) => engine.facts.addrs.clone(),
        Err(_) => return -1,
    };
    let index = dst.and_then(|dst| addrs.iter().position(|a| *a == dst));
    let (Some(src), Some(index)) = (src, index) else {
        refuse(libc::EINVAL, "the 40 bytes are not those of a packet to this port");
        return -1;
    };
    let mut attr = sys::ibv_ah_attr { is_global: 1, port_num, ..sys::ibv_ah_attr::default() };
    attr.grh.dgid.raw = gid(src);
    attr.grh.sgid_index = index as u8;
    attr.grh.hop_limit = HOP_LIMIT;
    attr.grh.traffic_class = class;
    // SAFETY: the caller's own place.
    unsafe { ah_attr.write(attr) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut sys::ibv_pd,
    wc: *mut sys::ibv_wc,
    grh: *mut sys::ibv_grh,
    port_num: u8,
) -> *mut sys::ibv_ah {
    let mut attr = sys::ibv_ah_attr::default();
    // SAFETY: by the contract of the verbs, which is the caller's; a protection domain of ours.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port_num, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_addresses_of_both_families() {
        for text in ["192.0.2.7", "fd77::1", "2001:db8::ffff:102:304"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(address(gid(addr)), addr);
        }
        assert_eq!(gid("1.2.3.4".parse().unwrap()), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]);
    }

    #[test]
    fn flow_labels_become_ports_as_linux_has_it() {
        assert_eq!(source_port(0), None);
        assert_eq!(source_port(1), Some(0xc001));
        assert_eq!(source_port(0x4000), Some(0xc001), "the upper six bits are folded in");
        assert_eq!(source_port(0xf_ffff), Some(0xc000 | (0x3fff ^ 0x3f)));
    }
}
