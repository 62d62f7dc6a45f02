//! Network devices on the PCI bus, and what has to be done before DPDK can drive one.

use super::Host;
use serde::Serialize;

/// A network device on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its address: domain, bus, device, function.
    pub address: String,
    /// Vendor and device number in hex: `15b3:1019`.
    pub id: String,
    /// Driver that has it now.
    pub driver: Option<String>,
    /// The kernel's interfaces on it.
    pub interfaces: Vec<String>,
    /// NUMA node.
    pub numa: Option<u32>,
}

/// Who has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A driver that hands it to user space.
    UserSpace,
    /// The kernel keeps it, and DPDK drives it beside the kernel.
    Shared,
    /// The kernel alone.
    Kernel,
    /// Nobody.
    Nobody,
}

/// Drivers of the kernel that hand a device to a process.
const USER_SPACE: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];
/// Drivers of the kernel beside which DPDK's own works: "bifurcated drivers" in DPDK's guide for Linux.
const SHARED: [&str; 3] = ["mlx5_core", "mlx4_core", "mana"];

impl Device {
    /// Who has it.
    pub fn binding(&self) -> Binding {
        match self.driver.as_deref() {
            None => Binding::Nobody,
            Some(driver) if USER_SPACE.contains(&driver) => Binding::UserSpace,
            Some(driver) if SHARED.contains(&driver) => Binding::Shared,
            Some(_) => Binding::Kernel,
        }
    }
}

/// Every network device: PCI class 2.
pub fn devices(host: &Host) -> Vec<Device> {
    let addresses = host.list("/sys/bus/pci/devices");
    let is_network = |address: &&String| {
        host.read(&format!("/sys/bus/pci/devices/{address}/class")).is_some_and(|c| c.starts_with("0x02"))
    };
    addresses.iter().filter(is_network).filter_map(|address| device(host, address)).collect()
}

/// The device at an address, with or without the domain.
pub fn device(host: &Host, address: &str) -> Option<Device> {
    if address.contains('/') {
        return None;
    }
    let address = match address.matches(':').count() {
        1 => format!("0000:{address}"),
        _ => address.to_owned(),
    };
    let of = |file: &str| format!("/sys/bus/pci/devices/{address}/{file}");
    let id = |file: &str| host.read(&of(file)).map(|text| text.trim_start_matches("0x").to_owned());
    let id = format!("{}:{}", id("vendor")?, id("device")?);
    let mut interfaces = host.list(&of("net"));
    // Devices of virtual machines have a bus of their own in between.
    for between in host.list(&of("")).iter().filter(|name| name.starts_with("virtio")) {
        interfaces.extend(host.list(&of(&format!("{between}/net"))));
    }
    Some(Device {
        driver: host.target(&of("driver")),
        numa: host.number(&of("numa_node")).and_then(|n| u32::try_from(n).ok()),
        id,
        interfaces,
        address,
    })
}

/// The PCI address of the device behind an interface.
pub fn of_interface(host: &Host, name: &str) -> Option<String> {
    devices(host).into_iter().find(|d| d.interfaces.iter().any(|i| i == name)).map(|d| d.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn devices_and_who_has_them() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        machine.file("/sys/bus/pci/devices/0000:00:1f.0/class", "0x060100\n");
        machine.file("/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
        machine.file("/sys/bus/pci/devices/0000:00:1f.0/device", "0x7a86\n");
        machine.file("/sys/bus/pci/devices/0000:04:00.0/class", "0x020000\n");
        machine.file("/sys/bus/pci/devices/0000:04:00.0/vendor", "0x8086\n");
        machine.file("/sys/bus/pci/devices/0000:04:00.0/device", "0x1592\n");
        machine.file("/sys/bus/pci/devices/0000:04:00.0/numa_node", "-1\n");
        let found = devices(&machine.host);
        let addresses: Vec<_> = found.iter().map(|d| d.address.as_str()).collect();
        assert_eq!(addresses, ["0000:03:00.0", "0000:04:00.0"]);
        assert_eq!((found[0].id.as_str(), found[0].numa), ("15b3:1019", Some(1)));
        assert_eq!((found[1].binding(), found[1].numa), (Binding::Nobody, None));
        let bound = |driver: &str| Device { driver: Some(driver.into()), ..found[1].clone() }.binding();
        assert_eq!(bound("ice"), Binding::Kernel);
        assert_eq!(bound("mlx5_core"), Binding::Shared);
        assert_eq!(bound("vfio-pci"), Binding::UserSpace);
        assert_eq!(device(&machine.host, "03:00.0"), Some(found[0].clone()));
        assert_eq!(device(&machine.host, "05:00.0"), None);
        assert_eq!(device(&machine.host, "../devices/0000:03:00.0"), None, "an address is no path");
    }

    #[test]
    fn interfaces_behind_a_bus_of_their_own_are_found() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        machine.folder("/sys/bus/pci/devices/0000:03:00.0/virtio2/net/eth9");
        assert_eq!(of_interface(&machine.host, "eth9").as_deref(), Some("0000:03:00.0"));
    }
}
