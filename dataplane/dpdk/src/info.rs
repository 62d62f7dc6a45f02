//! What ports there are, and what is known of each.

use std::ffi::{CStr, c_char};
use std::fmt;

use dpdk_sys::{rte_device, rte_eth_dev_info, rte_ether_addr, spw_link};

use crate::error::PortError;
use crate::kernel::Interface;
use crate::port::{driver_error, frame_room};

/// Number of a port. It stays valid until the port is detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub(crate) u16);

impl PortId {
    /// DPDK's number.
    pub fn index(self) -> u16 {
        self.0
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads six pairs of hexadecimal digits between colons.
    pub fn parse(text: &str) -> Option<Mac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part =
                parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(Mac(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// State of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Whether packets can flow.
    pub up: bool,
    /// Mbit/s, or none if the driver does not know. Virtual ports say whatever their author chose.
    pub speed_mbps: Option<u32>,
    /// Both directions at once.
    pub full_duplex: bool,
}

/// The parts of a packet that take part in the hash by which a port spreads packets over its receive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rss {
    /// IP addresses.
    pub ip: bool,
    /// UDP ports: what tells the flows between two endpoints apart.
    pub udp: bool,
}

impl Rss {
    /// From `RTE_ETH_RSS_*` bits, such as [`PortInfo::rss`].
    pub fn of(bits: u64) -> Rss {
        // SAFETY: constants of the shim.
        let (ip, udp) = unsafe { (dpdk_sys::SPW_RSS_IP, dpdk_sys::SPW_RSS_UDP) };
        // A hash over the ports has the addresses in it.
        Rss { ip: bits & (ip | udp) != 0, udp: bits & udp != 0 }
    }
}

/// What is known of a port without starting it.
#[derive(Debug, Clone)]
pub struct PortInfo {
    /// Its number.
    pub id: PortId,
    /// Its name, for example `net_memif0` or `0000:03:00.0`.
    pub name: String,
    /// Name of the driver, for example `net_memif`.
    pub driver: String,
    /// Name of the device; several ports may share one.
    pub device: String,
    /// Name of the bus: `vdev`, `pci`, …
    pub bus: String,
    /// Its MAC address.
    pub mac: Mac,
    /// Present MTU in bytes.
    pub mtu: u16,
    /// Smallest MTU in bytes.
    pub min_mtu: u16,
    /// Largest MTU in bytes.
    pub max_mtu: u16,
    /// False for drivers that move frames of any length and have no MTU that could be set: memory ports. There the MTU is
    /// whatever [`crate::PortConfig::mtu`] says.
    pub mtu_enforced: bool,
    /// Receive queues that the device has.
    pub max_rx_queues: u16,
    /// Transmit queues that the device has.
    pub max_tx_queues: u16,
    /// NUMA node, none if it has none.
    pub socket: Option<u32>,
    /// Packet types that the device can spread over receive queues, as `RTE_ETH_RSS_*` bits; 0: it cannot.
    pub rss: u64,
    /// What the device can do with packets that it receives, as `RTE_ETH_RX_OFFLOAD_*` bits.
    pub rx_offloads: u64,
    /// What the device can do with packets that it sends, as `RTE_ETH_TX_OFFLOAD_*` bits.
    pub tx_offloads: u64,
    /// Whether a received frame can be spread over several mbufs.
    pub scatter: bool,
    /// Whether chained mbufs can be sent. To others, only contiguous ones may be given.
    pub multi_segments: bool,
    /// State of the link; none if the driver does not tell.
    pub link: Option<Link>,
    /// The interface of the kernel that the port stands on, if it does.
    pub interface: Option<KernelInterface>,
}

/// An interface of the kernel, as a port's information names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInterface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU in bytes, which is the kernel's and not always the port's.
    pub mtu: u32,
}

impl PortInfo {
    /// Whether `text` means this port: see [`crate::Eal::find`].
    pub fn answers_to(&self, text: &str) -> bool {
        let same_device =
            |text: &str| self.name.eq_ignore_ascii_case(text) || self.device.eq_ignore_ascii_case(text);
        same_device(text)
            || Mac::parse(text).is_some_and(|mac| mac == self.mac)
            || (self.bus == "pci" && same_device(&format!("0000:{text}")))
    }
}

/// MTU of an Ethernet port on which nothing was set (IEEE 802.3).
const ETHERNET_MTU: u16 = 1500;

/// What some drivers do and do not say of themselves.
pub(crate) struct Traits {
    /// Frames of any length pass, and setting an MTU is refused.
    any_mtu: bool,
    /// Long frames arrive as chains whether or not the port was told to spread them.
    chains: bool,
    /// Memory is taken away on the control thread while others poll; see [`crate::control`].
    pub(crate) unmaps: bool,
    /// Chained mbufs are sent wrongly, though the driver says that it can; see [`crate::memif`].
    breaks_chains: bool,
    /// Frames of any length pass that the interface of the kernel lets pass; see [`crate::kernel`].
    pub(crate) kernel_mtu: bool,
}

pub(crate) fn traits(driver: &str) -> Traits {
    let usual =
        Traits { any_mtu: false, chains: false, unmaps: false, breaks_chains: false, kernel_mtu: false };
    match driver {
        "net_memif" => Traits { any_mtu: true, chains: true, unmaps: true, breaks_chains: true, ..usual },
        "net_ring" => Traits { any_mtu: true, chains: true, ..usual },
        "net_null" => Traits { any_mtu: true, ..usual },
        // It says that no frame has more than 1518 bytes, and takes whatever fits its rings.
        "net_af_packet" => Traits { any_mtu: true, kernel_mtu: true, ..usual },
        _ => usual,
    }
}

/// The ports that exist.
pub(crate) fn ids() -> impl Iterator<Item = PortId> {
    let mut next = 0u16;
    std::iter::from_fn(move || {
        // SAFETY: takes any number and returns RTE_MAX_ETHPORTS or more when there is no further port.
        let id = unsafe { dpdk_sys::rte_eth_find_next(next) };
        if u32::from(id) >= dpdk_sys::RTE_MAX_ETHPORTS {
            return None;
        }
        next = id + 1;
        Some(PortId(id))
    })
}

pub(crate) fn raw_info(id: PortId) -> Result<rte_eth_dev_info, PortError> {
    let mut raw = rte_eth_dev_info::default();
    // SAFETY: the structure is the library's own and valid for writing; a bad port is an error.
    let ret = unsafe { dpdk_sys::rte_eth_dev_info_get(id.0, &raw mut raw) };
    if ret != 0 { Err(driver_error(id, "asking what it can do", ret)) } else { Ok(raw) }
}

/// The device of a port.
pub(crate) fn device(id: PortId) -> Result<*mut rte_device, PortError> {
    let device = raw_info(id)?.device;
    if device.is_null() { Err(PortError::Gone(id)) } else { Ok(device) }
}

/// # Safety
/// `text` is null or a zero-terminated string.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub(crate) fn read(id: PortId) -> Result<PortInfo, PortError> {
    let raw = raw_info(id)?;
    let mut name = [0 as c_char; dpdk_sys::RTE_ETH_NAME_MAX_LEN as usize];
    let mut mac = rte_ether_addr::default();
    // SAFETY: the name has the length that DPDK writes at most, the address is the library's own structure.
    let ret = unsafe {
        match dpdk_sys::rte_eth_dev_get_name_by_port(id.0, name.as_mut_ptr()) {
            0 => dpdk_sys::rte_eth_macaddr_get(id.0, &raw mut mac),
            failed => failed,
        }
    };
    if ret != 0 {
        return Err(driver_error(id, "asking for its name and address", ret));
    }
    // SAFETY: DPDK filled the name with a zero-terminated string; strings of drivers and devices live as long as those,
    // and bus and device name are asked for only if there is a device.
    let (name, driver, device, bus, socket) = unsafe {
        let device = raw.device;
        (
            owned(name.as_ptr()),
            owned(raw.driver_name),
            if device.is_null() { String::new() } else { owned(dpdk_sys::rte_dev_name(device)) },
            owned(dpdk_sys::spw_bus_name(device)),
            dpdk_sys::rte_eth_dev_socket_id(id.0),
        )
    };
    let traits = traits(&driver);
    let by_length =
        u16::try_from(raw.max_rx_pktlen.saturating_sub(dpdk_sys::SPW_ETHER_OVERHEAD)).unwrap_or(u16::MAX);
    // Frames must still be countable in 16 bits, as a segment's length is.
    let any = u16::MAX - (frame_room(0) as u16);
    let interface = Interface::by_index(raw.if_index).and_then(|interface| {
        Some(KernelInterface { index: interface.index(), name: interface.name()?, mtu: interface.mtu()? })
    });
    let kernel_mtu = interface
        .as_ref()
        .filter(|_| traits.kernel_mtu)
        .map(|interface| u16::try_from(interface.mtu).map_or(any, |mtu| mtu.min(any)));
    let max_mtu =
        if traits.any_mtu { kernel_mtu.unwrap_or(any) } else { raw.max_mtu.min(by_length.max(ETHERNET_MTU)) };
    // SAFETY: constants of the shim.
    let (scatter_bit, segments_bit) =
        unsafe { (dpdk_sys::SPW_RX_OFFLOAD_SCATTER, dpdk_sys::SPW_TX_OFFLOAD_MULTI_SEGS) };
    Ok(PortInfo {
        id,
        name,
        driver,
        device,
        bus,
        mac: Mac(mac.addr_bytes),
        mtu: kernel_mtu.map_or_else(|| read_mtu(id), Ok)?,
        min_mtu: raw.min_mtu,
        max_mtu,
        mtu_enforced: !traits.any_mtu,
        max_rx_queues: raw.max_rx_queues,
        max_tx_queues: raw.max_tx_queues,
        socket: u32::try_from(socket).ok(),
        rss: raw.flow_type_rss_offloads,
        rx_offloads: raw.rx_offload_capa,
        tx_offloads: raw.tx_offload_capa,
        scatter: traits.chains || raw.rx_offload_capa & scatter_bit != 0,
        multi_segments: !traits.breaks_chains && raw.tx_offload_capa & segments_bit != 0,
        link: link(id).ok(),
        interface,
    })
}

pub(crate) fn read_mtu(id: PortId) -> Result<u16, PortError> {
    let mut mtu = 0;
    // SAFETY: the number is valid for writing; a bad port is an error.
    let ret = unsafe { dpdk_sys::rte_eth_dev_get_mtu(id.0, &raw mut mtu) };
    if ret != 0 { Err(driver_error(id, "reading the MTU", ret)) } else { Ok(mtu) }
}

pub(crate) fn link(id: PortId) -> Result<Link, PortError> {
    let mut raw = spw_link::default();
    // SAFETY: the structure is valid for writing; a bad port is an error.
    let ret = unsafe { dpdk_sys::spw_link_get(id.0, &raw mut raw) };
    if ret != 0 {
        return Err(driver_error(id, "reading the link", ret));
    }
    let known = raw.speed_mbps != 0 && raw.speed_mbps != u32::MAX;
    Ok(Link {
        up: raw.up != 0,
        speed_mbps: known.then_some(raw.speed_mbps),
        full_duplex: raw.full_duplex != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses() {
        let mac = Mac::parse("02:00:0a:FF:00:01").unwrap();
        assert_eq!(mac.0, [2, 0, 10, 255, 0, 1]);
        assert_eq!(mac.to_string(), "02:00:0a:ff:00:01");
        for bad in
            ["", "02:00:0a:ff:00", "02:00:0a:ff:00:01:02", "2:0:a:f:0:1", "02:00:0a:ff:00:+1", "0000:03:00.0"]
        {
            assert_eq!(Mac::parse(bad), None, "{bad}");
        }
    }
}
