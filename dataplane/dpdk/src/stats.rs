//! What a port counted.

use dpdk_sys::{rte_eth_stats, rte_eth_xstat, rte_eth_xstat_name};

use crate::error::PortError;
use crate::info::PortId;
use crate::port::driver_error;

/// Counters of a port since it was started or they were reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortStats {
    /// Packets received and handed out.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the device dropped because no descriptor was free: the application polled too slowly.
    pub rx_missed: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Times that the pool had no mbuf for a packet to receive.
    pub rx_no_mbuf: u64,
}

pub(crate) fn read(id: PortId) -> Result<PortStats, PortError> {
    let mut raw = rte_eth_stats::default();
    // SAFETY: the structure is the library's own and valid for writing; a bad port is an error.
    let ret = unsafe { dpdk_sys::rte_eth_stats_get(id.0, &raw mut raw) };
    if ret != 0 {
        return Err(driver_error(id, "reading its counters", ret));
    }
    Ok(PortStats {
        rx_packets: raw.ipackets,
        tx_packets: raw.opackets,
        rx_bytes: raw.ibytes,
        tx_bytes: raw.obytes,
        rx_missed: raw.imissed,
        rx_errors: raw.ierrors,
        tx_errors: raw.oerrors,
        rx_no_mbuf: raw.rx_nombuf,
    })
}

pub(crate) fn reset(id: PortId) -> Result<(), PortError> {
    // SAFETY: takes any port number; a bad one is an error.
    let (basic, extended) =
        unsafe { (dpdk_sys::rte_eth_stats_reset(id.0), dpdk_sys::rte_eth_xstats_reset(id.0)) };
    for ret in [basic, extended] {
        if ret != 0 && ret != -libc::ENOTSUP {
            return Err(driver_error(id, "resetting its counters", ret));
        }
    }
    Ok(())
}

/// Every counter that the driver has, by its name.
pub(crate) fn extended(id: PortId) -> Result<Vec<(String, u64)>, PortError> {
    let failed = |ret| driver_error(id, "reading its extended counters", ret);
    // SAFETY: a null array of no entries asks for the number of them.
    let count = unsafe { dpdk_sys::rte_eth_xstats_get_names(id.0, std::ptr::null_mut(), 0) };
    let Ok(count) = u32::try_from(count) else { return Err(failed(count)) };
    let mut names = vec![rte_eth_xstat_name::default(); count as usize];
    let mut values = vec![rte_eth_xstat::default(); count as usize];
    // SAFETY: both arrays have `count` entries.
    let (named, valued) = unsafe {
        (
            dpdk_sys::rte_eth_xstats_get_names(id.0, names.as_mut_ptr(), count),
            dpdk_sys::rte_eth_xstats_get(id.0, values.as_mut_ptr(), count),
        )
    };
    let got = named.min(valued);
    let Ok(got) = usize::try_from(got) else { return Err(failed(got)) };
    let entries = values.iter().take(got.min(count as usize)).filter_map(|value| {
        let name = names.get(usize::try_from(value.id).ok()?)?;
        let bytes: Vec<u8> = name.name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        Some((String::from_utf8_lossy(&bytes).into_owned(), value.value))
    });
    Ok(entries.collect())
}
