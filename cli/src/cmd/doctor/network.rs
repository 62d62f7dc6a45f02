//! The kernel's side of a port: its binding, its interface, MTU, queues and addresses.

use super::{Ask, Finding, Kind};
use crate::host::Host;
use crate::host::net::{Interface, interface, interfaces, local_addresses};
use crate::host::pci::{self, Binding};
use roce_proto::types::Mtu;
use roce_proto::wire::ud::overhead;

/// Bytes around a payload at the most: IPv6 with an immediate.
const OVERHEAD: usize = overhead(true, true);

pub(super) fn check(host: &Host, ask: &Ask) -> Vec<Finding> {
    let mut findings = match &ask.kind {
        Kind::Pci(address) => pci_device(host, address),
        Kind::Interface(name) => kernel_interface(host, ask, name),
        Kind::Any | Kind::Virtual => Vec::new(),
    };
    if !matches!(ask.kind, Kind::Interface(_)) {
        findings.extend(wanted_mtu(ask));
    }
    findings.extend(addresses(host, ask));
    findings
}

fn pci_device(host: &Host, address: &str) -> Vec<Finding> {
    let Some(device) = pci::device(host, address) else {
        let there: Vec<String> = pci::devices(host).into_iter().map(|d| d.address).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return vec![Finding::problem(
            "binding",
            format!("there is no PCI device {address}"),
            format!("network devices of this machine: {there}; spraywire ports shows more"),
        )];
    };
    let driver = device.driver.clone().unwrap_or_default();
    let bind = format!("modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {}", device.address);
    let mut findings = vec![match device.binding() {
        Binding::UserSpace => Finding::ok("binding", format!("{address} is bound to {driver}")),
        Binding::Shared => {
            Finding::ok("binding", format!("{address} stays with {driver}, beside which DPDK drives it"))
        }
        Binding::Nobody => Finding::problem("binding", format!("{address} is bound to no driver"), bind),
        Binding::Kernel => {
            let what = match device.interfaces.as_slice() {
                [] => String::new(),
                names => format!(", where it is {}; binding takes it away from the kernel", names.join(", ")),
            };
            Finding::problem("binding", format!("the kernel's driver {driver} has {address}{what}"), bind)
        }
    }];
    if device.binding() == Binding::UserSpace && driver == "vfio-pci" {
        findings.push(iommu(host));
    }
    findings
}

fn iommu(host: &Host) -> Finding {
    if !host.list("/sys/kernel/iommu_groups").is_empty() {
        return Finding::ok("iommu", "an IOMMU is at work");
    }
    match host.read("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode").as_deref() {
        Some("Y" | "1") => Finding::note(
            "iommu",
            "VFIO works without an IOMMU: the NIC can write anywhere in memory",
            "where there is one, switch it on: intel_iommu=on iommu=pt on the kernel's command line",
        ),
        _ => Finding::problem(
            "iommu",
            "there is no IOMMU, without which vfio-pci does not work",
            "switch it on in the firmware and with intel_iommu=on iommu=pt on the kernel's command line; in a virtual machine\n\
             without one: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
        ),
    }
}

fn kernel_interface(host: &Host, ask: &Ask, name: &str) -> Vec<Finding> {
    let Some(found) = interface(host, name) else {
        let there: Vec<String> = interfaces(host).into_iter().map(|i| i.name).collect();
        return vec![Finding::problem(
            "interface",
            format!("there is no interface {name} in this network namespace"),
            format!(
                "there are: {}; for one of another namespace: ip netns exec NAME spraywire …",
                there.join(", ")
            ),
        )];
    };
    let mut findings = vec![if !found.up {
        Finding::problem("interface", format!("{name} is down"), format!("ip link set {name} up"))
    } else if found.loopback || !found.ethernet {
        Finding::problem(
            "interface",
            format!("{name} is no Ethernet interface"),
            "take one that is: a NIC, or one end of a veth pair",
        )
    } else {
        Finding::ok("interface", format!("{name} ({}) is up and has MAC address {}", found.driver, found.mac))
    }];
    findings.extend(kernel_mtu(ask, &found));
    findings.push(queues(&found));
    findings
}

/// The MTU that an IB MTU needs.
fn needed(mtu: Mtu) -> usize {
    mtu.bytes() + OVERHEAD
}

/// Port and kernel must both let the largest frame through: each cuts or drops what is beyond its own MTU.
fn kernel_mtu(ask: &Ask, found: &Interface) -> Vec<Finding> {
    let Interface { name, mtu: kernel, .. } = found;
    let set = |mtu: usize| {
        format!("ip link set {name} mtu {mtu}, on every interface and switch up to the other side")
    };
    let mut findings = Vec::new();
    if let Some(mtu) = ask.mtu
        && u32::from(mtu) > *kernel
    {
        findings.push(Finding::problem(
            "mtu",
            format!("--mtu is {mtu}, but the kernel's {name} has {kernel}: larger frames are lost"),
            set(mtu.into()),
        ));
    }
    let both = ask.mtu.map_or(*kernel, |mtu| kernel.to_owned().min(mtu.into())) as usize;
    let fits = Mtu::fitting(both, OVERHEAD);
    findings.push(match (ask.ib_mtu, fits) {
        (Some(asked), _) if needed(asked) > both => Finding::problem(
            "mtu",
            format!("an IB MTU of {} needs an MTU of {}, {name} has {both}", asked.bytes(), needed(asked)),
            set(needed(asked)),
        ),
        (None, None) => Finding::problem(
            "mtu",
            format!("an MTU of {both} bytes on {name} is too small for RoCEv2"),
            set(needed(Mtu::B1024)),
        ),
        (None, Some(ib)) if ib != Mtu::B4096 => Finding::note(
            "mtu",
            format!("an MTU of {both} bytes on {name} carries an IB MTU of {}", ib.bytes()),
            format!("for 4096: {}, and --mtu", set(needed(Mtu::B4096))),
        ),
        _ => Finding::ok("mtu", format!("{name} has {kernel} bytes, enough for what was asked")),
    });
    findings
}

/// Without an interface to compare with, the port's own MTU must carry the IB MTU.
fn wanted_mtu(ask: &Ask) -> Option<Finding> {
    let (mtu, ib) = (usize::from(ask.mtu?), ask.ib_mtu?);
    (needed(ib) > mtu).then(|| {
        Finding::problem(
            "mtu",
            format!("an IB MTU of {} needs a port MTU of {}, --mtu is {mtu}", ib.bytes(), needed(ib)),
            format!("--mtu {} or -m {}", needed(ib), Mtu::fitting(mtu, OVERHEAD).map_or(256, |m| m.bytes())),
        )
    })
}

fn queues(found: &Interface) -> Finding {
    let Interface { name, rx_queues, tx_queues, .. } = found;
    Finding::ok(
        "queues",
        format!("the kernel's {name} has {rx_queues} receive and {tx_queues} transmit queues"),
    )
}

/// The kernel must not have the endpoint's addresses, or it answers and refuses what is meant for the endpoint.
fn addresses(host: &Host, ask: &Ask) -> Vec<Finding> {
    // What exists within DPDK only shares no network with the kernel; of a tap the kernel has the other end.
    let tap = ask.device.as_deref().is_some_and(|device| device.starts_with("net_tap"));
    if ask.kind == Kind::Virtual && !tap {
        return Vec::new();
    }
    let taken = local_addresses(host);
    let is_taken = |ip: &&std::net::IpAddr| taken.contains(ip);
    let clash = ask.addrs.iter().filter(is_taken).map(|ip| {
        Finding::problem(
            "address",
            format!("the kernel has {ip} too: it answers for it and sends ICMP errors to peers"),
            "give the endpoint an address that nobody else has",
        )
    });
    clash.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::tests::{ask, only};
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn a_nic_must_be_bound() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        let level = |line| only(&check(&machine.host, &ask(line)), "binding").level;
        assert_eq!(level("--port 0000:03:00.0"), Level::Ok, "mlx5 shares");
        assert_eq!(level("--port 0000:04:00.0"), Level::Problem);
        let link = machine.host.path("/sys/bus/pci/devices/0000:03:00.0/driver");
        let rebind = |driver: &str| {
            std::fs::remove_file(&link).unwrap();
            machine.link("/sys/bus/pci/devices/0000:03:00.0/driver", driver);
            check(&machine.host, &ask("--port 03:00.0"))
        };
        let found = rebind("ice");
        let finding = only(&found, "binding");
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.found.contains("eth1"), "{finding:?}");
        assert!(finding.mend.as_ref().unwrap().ends_with("--bind=vfio-pci 0000:03:00.0"), "{finding:?}");
        let found = rebind("vfio-pci");
        assert_eq!((only(&found, "binding").level, only(&found, "iommu").level), (Level::Ok, Level::Problem));
        machine.folder("/sys/kernel/iommu_groups/0");
        assert_eq!(only(&rebind("vfio-pci"), "iommu").level, Level::Ok);
    }

    #[test]
    fn the_mtu_of_the_kernel_is_compared_with_the_ports() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        let check =
            |line: &str| check(&machine.host, &ask(&format!("--port net_af_packet0,iface=eth1 {line}")));
        let found = check("");
        assert_eq!(only(&found, "mtu").level, Level::Note);
        assert!(only(&found, "mtu").found.contains("IB MTU of 1024"), "{found:?}");
        assert_eq!(only(&check("-m 1024"), "mtu").level, Level::Ok);
        let found = check("-m 4096");
        assert_eq!(only(&found, "mtu").level, Level::Problem);
        // 4096 bytes, 40 of IPv6, 8 of UDP, 12 of BTH, 8 of DETH, 4 of the immediate, 4 of the ICRC.
        assert!(
            only(&found, "mtu").mend.as_ref().unwrap().starts_with("ip link set eth1 mtu 4172"),
            "{found:?}"
        );
        let found = check("--mtu 4200 -m 1024");
        assert_eq!(
            found.iter().filter(|f| f.check == "mtu" && f.level == Level::Problem).count(),
            1,
            "{found:?}"
        );
        machine.nic("eth2", 9000, "0000:05:00.0");
        let found = super::check(&machine.host, &ask("--port net_af_packet0,iface=eth2 --mtu 4200"));
        assert_eq!(only(&found, "mtu").level, Level::Ok);
        machine.nic("eth3", 300, "0000:06:00.0");
        let found = super::check(&machine.host, &ask("--port net_af_packet0,iface=eth3"));
        assert_eq!(only(&found, "mtu").level, Level::Problem);
    }

    #[test]
    fn without_an_interface_the_arguments_must_agree() {
        let machine = Machine::new();
        let found = check(&machine.host, &ask("--port net_memif0 --mtu 1500 -m 4096"));
        assert_eq!(only(&found, "mtu").mend.as_deref(), Some("--mtu 4172 or -m 1024"));
        assert!(check(&machine.host, &ask("--port net_memif0 --mtu 4172 -m 4096")).is_empty());
    }

    #[test]
    fn an_interface_must_exist_and_be_up() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        let level = || only(&check(&machine.host, &ask("--port net_af_xdp0,iface=eth1")), "interface").level;
        assert_eq!(level(), Level::Ok);
        machine.file("/sys/class/net/eth1/operstate", "down\n").file("/sys/class/net/eth1/carrier", "1\n");
        assert_eq!(level(), Level::Ok, "the carrier is there before the kernel says so");
        machine.file("/sys/class/net/eth1/carrier", "0\n");
        assert_eq!(level(), Level::Problem);
        machine.file("/sys/class/net/eth1/operstate", "up\n").file("/sys/class/net/eth1/type", "772\n");
        assert_eq!(level(), Level::Problem);
        let found = check(&machine.host, &ask("--port net_af_packet0,iface=eth7"));
        assert!(only(&found, "interface").mend.as_ref().unwrap().contains("eth1"), "{found:?}");
    }

    #[test]
    fn an_address_that_the_kernel_has_is_found() {
        let machine = Machine::new();
        machine.file("/proc/net/if_inet6", "fd770000000000000000000000000001 04 40 00 80 eth0\n");
        let line = "--port net_tap0 --ip fd77::1 --ip fd77::2";
        let found = check(&machine.host, &ask(line));
        assert!(only(&found, "address").found.contains("fd77::1 "), "{found:?}");
        for device in ["net_memif0", "net_ring0", "net_null0"] {
            let found = check(&machine.host, &ask(&format!("--port {device} --ip fd77::1")));
            assert!(found.iter().all(|f| f.check != "address"), "{device}: {found:?}");
        }
    }
}
