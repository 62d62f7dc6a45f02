//! The kernel's network interfaces.

use super::Host;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};

/// An interface of the kernel in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// MAC address, as the kernel writes it.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether frames can flow; interfaces that do not know are taken to be up.
    pub up: bool,
    /// Whether it is the loopback.
    pub loopback: bool,
    /// Whether its frames are Ethernet's.
    pub ethernet: bool,
    /// Driver of the device behind it; what kind of virtual interface it is if there is none.
    pub driver: String,
    /// PCI address of the device behind it.
    pub pci: Option<String>,
    /// Receive queues.
    pub rx_queues: usize,
    /// Transmit queues.
    pub tx_queues: usize,
    /// NUMA node of the device.
    pub numa: Option<u32>,
}

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK` of Linux' `if_arp.h`.
const ETHERNET: i64 = 1;
const LOOPBACK: i64 = 772;

/// Every interface.
pub fn interfaces(host: &Host) -> Vec<Interface> {
    let names = host.list("/sys/class/net");
    names.iter().filter_map(|name| interface(host, name)).collect()
}

/// One interface; none if there is none of that name.
pub fn interface(host: &Host, name: &str) -> Option<Interface> {
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let of = |file: &str| format!("/sys/class/net/{name}/{file}");
    let mtu = u32::try_from(host.number(&of("mtu"))?).ok()?;
    let kind = host.number(&of("type")).unwrap_or(ETHERNET);
    let queues = |direction: &str| {
        let names = host.list(&of("queues"));
        names.iter().filter(|n| n.starts_with(direction)).count()
    };
    let uevent = host.read(&of("uevent")).unwrap_or_default();
    let virtual_kind = || {
        if host.exists(&of("tun_flags")) {
            return "tap".to_owned();
        }
        let declared = uevent.lines().find_map(|l| l.strip_prefix("DEVTYPE="));
        declared.unwrap_or(if kind == LOOPBACK { "loopback" } else { "virtual" }).to_owned()
    };
    Some(Interface {
        name: name.to_owned(),
        mac: host.read(&of("address")).unwrap_or_default(),
        mtu,
        // The kernel takes up to a second until its word follows the carrier, which can be read only while the interface is up.
        up: host.number(&of("carrier")) == Some(1)
            || host.read(&of("operstate")).is_none_or(|s| s == "up" || s == "unknown"),
        loopback: kind == LOOPBACK,
        ethernet: kind == ETHERNET,
        driver: host.target(&of("device/driver")).unwrap_or_else(virtual_kind),
        pci: super::pci::of_interface(host, name),
        rx_queues: queues("rx-"),
        tx_queues: queues("tx-"),
        numa: host.number(&of("device/numa_node")).and_then(|n| u32::try_from(n).ok()),
    })
}

/// Every address that the kernel answers to in this network namespace.
pub fn local_addresses(host: &Host) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let trie = host.read("/proc/net/fib_trie").unwrap_or_default();
    // A leaf names an address, and the lines behind it what the address is to the kernel.
    let mut leaf: Option<Ipv4Addr> = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.ends_with("host LOCAL")
            && let Some(address) = leaf
            && !found.contains(&address.into())
        {
            found.push(address.into());
        }
    }
    let v6 = host.read("/proc/net/if_inet6").unwrap_or_default();
    let hex = v6.lines().filter_map(|line| line.split_whitespace().next());
    found.extend(hex.filter_map(|h| u128::from_str_radix(h, 16).ok()).map(|n| IpAddr::V6(n.into())));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn an_interface_is_read_from_sysfs() {
        let machine = Machine::new();
        machine.nic("eth1", 9000, "0000:03:00.0");
        let found = interface(&machine.host, "eth1").unwrap();
        let expected = Interface {
            name: "eth1".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: 9000,
            up: true,
            loopback: false,
            ethernet: true,
            driver: "mlx5_core".into(),
            pci: Some("0000:03:00.0".into()),
            rx_queues: 1,
            tx_queues: 1,
            numa: Some(1),
        };
        assert_eq!(found, expected);
        assert_eq!(interfaces(&machine.host), [expected]);
        assert_eq!(interface(&machine.host, "eth2"), None);
        machine.file("/sys/class/net/eth1/device/numa_node", "-1\n");
        assert_eq!(interface(&machine.host, "eth1").unwrap().numa, None, "the kernel knows of none");
        assert_eq!(interface(&machine.host, "../net/eth1"), None);
    }

    #[test]
    fn interfaces_without_a_device_are_called_by_their_kind() {
        let machine = Machine::new();
        let make = |name: &str, kind: u32, uevent: &str| {
            let of = |file: &str| format!("/sys/class/net/{name}/{file}");
            machine.file(&of("mtu"), "1500\n").file(&of("type"), &format!("{kind}\n"));
            machine.file(&of("uevent"), &format!("{uevent}INTERFACE={name}\n"));
        };
        make("lo", 772, "");
        make("br0", 1, "DEVTYPE=bridge\n");
        make("veth0", 1, "");
        make("dt0", 1, "");
        machine.file("/sys/class/net/dt0/tun_flags", "0x1002\n");
        let of =
            |name: &str| interface(&machine.host, name).map(|i| (i.driver, i.loopback, i.ethernet)).unwrap();
        assert_eq!(of("lo"), ("loopback".to_owned(), true, false));
        for (name, driver) in [("br0", "bridge"), ("veth0", "virtual"), ("dt0", "tap")] {
            assert_eq!(of(name), (driver.to_owned(), false, true), "{name}");
        }
    }

    #[test]
    fn addresses_of_the_kernel() {
        let machine = Machine::new();
        machine.file(
            "/proc/net/fib_trie",
            "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n     |-- 192.0.2.7\n        /32 host LOCAL\n\
             Local:\n     |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n",
        );
        machine.file("/proc/net/if_inet6", "fd000000000000000000000000000002 04 40 00 82     eth0\n");
        let expected: Vec<IpAddr> = vec!["192.0.2.7".parse().unwrap(), "fd00::2".parse().unwrap()];
        assert_eq!(local_addresses(&machine.host), expected);
    }
}
