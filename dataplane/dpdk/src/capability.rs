//! Names of what a port can do, from the bits that its driver states.

use std::ffi::{CStr, c_char};

use crate::info::PortInfo;

/// Bits of `RTE_ETH_RSS_*` and what they stand for; DPDK has no function that names them.
const RSS: [(u32, &str); 19] = [
    (2, "ipv4"),
    (3, "ipv4-frag"),
    (4, "ipv4-tcp"),
    (5, "ipv4-udp"),
    (6, "ipv4-sctp"),
    (7, "ipv4-other"),
    (8, "ipv6"),
    (9, "ipv6-frag"),
    (10, "ipv6-tcp"),
    (11, "ipv6-udp"),
    (12, "ipv6-sctp"),
    (13, "ipv6-other"),
    (14, "l2-payload"),
    (15, "ipv6-ex"),
    (16, "ipv6-tcp-ex"),
    (17, "ipv6-udp-ex"),
    (18, "port"),
    (19, "vxlan"),
    (20, "geneve"),
];

impl PortInfo {
    /// Names of the packet types that the device can spread over receive queues. Types of later releases than the oldest
    /// that is supported are left out.
    pub fn rss_names(&self) -> Vec<&'static str> {
        RSS.iter().filter(|(bit, _)| self.rss & (1 << bit) != 0).map(|(_, name)| *name).collect()
    }

    /// Whether receive queues can be chosen by UDP ports, without which all packets between two hosts share one queue.
    pub fn rss_by_udp_port(&self) -> bool {
        self.rss & ((1 << 5) | (1 << 11)) != 0
    }

    /// DPDK's names of what the device can do with packets that it receives: `UDP_CKSUM`, `SCATTER`, …
    pub fn rx_offload_names(&self) -> Vec<String> {
        // SAFETY: takes any value; what it returns is a static string.
        bits(self.rx_offloads)
            .map(|bit| name(unsafe { dpdk_sys::rte_eth_dev_rx_offload_name(bit) }))
            .collect()
    }

    /// DPDK's names of what the device can do with packets that it sends: `IPV4_CKSUM`, `MULTI_SEGS`, …
    pub fn tx_offload_names(&self) -> Vec<String> {
        // SAFETY: takes any value; what it returns is a static string.
        bits(self.tx_offloads)
            .map(|bit| name(unsafe { dpdk_sys::rte_eth_dev_tx_offload_name(bit) }))
            .collect()
    }
}

/// The set bits of a mask, one by one.
fn bits(mask: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|n| 1 << n).filter(move |bit| mask & bit != 0)
}

fn name(text: *const c_char) -> String {
    if text.is_null() {
        return "UNKNOWN".to_owned();
    }
    // SAFETY: called with static, zero-terminated strings of DPDK only.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_named() {
        assert_eq!(bits(0b1010).collect::<Vec<_>>(), [2, 8]);
        // SAFETY: as above.
        let udp = name(unsafe { dpdk_sys::rte_eth_dev_rx_offload_name(1 << 2) });
        assert_eq!(udp, "UDP_CKSUM");
        let nothing = name(std::ptr::null());
        assert_eq!(nothing, "UNKNOWN");
    }
}
