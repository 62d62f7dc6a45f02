//! Ports, and what belongs to them, as people write them.

use crate::entropy::EntropyRange;
use crate::route::{Gateway, PortAddr};
use roce_proto::types::PKey;
use roce_proto::wire::ethernet::{EtherType, MacAddr, VlanTag};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A port as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A virtual device that DPDK is to make: `net_memif0,role=client,id=0`.
    Vdev(String),
    /// A PCI device, with its driver's arguments: `0000:01:00.0`.
    Pci(String),
    /// A port that is there already, by MAC address or name.
    Existing(String),
}

/// How the names of DPDK's virtual network devices begin.
const VDEV_PREFIXES: [&str; 2] = ["net_", "eth_"];

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PortSpec, String> {
        let text = text.trim();
        let name = text.split(',').next().unwrap_or_default();
        if name.is_empty() || text.contains(char::is_whitespace) {
            return Err(format!(
                "`{text}` names no port: write a virtual device (net_memif0,role=client), a PCI address (0000:01:00.0), \
                 or the MAC address or name of a port that DPDK has"
            ));
        }
        Ok(if VDEV_PREFIXES.iter().any(|p| name.starts_with(p)) {
            PortSpec::Vdev(text.to_owned())
        } else if is_pci(name) {
            PortSpec::Pci(text.to_owned())
        } else {
            PortSpec::Existing(text.to_owned())
        })
    }
}

impl PortSpec {
    /// The interface of the kernel that the port is, or makes.
    pub fn kernel_interface(&self) -> Option<&str> {
        let PortSpec::Vdev(device) = self else { return None };
        let (driver, args) = device.split_once(',').unwrap_or((device, ""));
        let is = |name: &str| {
            VDEV_PREFIXES.iter().any(|p| driver.strip_prefix(p).is_some_and(|rest| rest.starts_with(name)))
        };
        let named = args.split(',').find_map(|arg| arg.strip_prefix("iface="));
        match named {
            Some(name) if ["af_packet", "af_xdp", "tap"].iter().any(|d| is(d)) => Some(name),
            // DPDK's own name for the first one.
            None if is("tap") => Some("dtap0"),
            _ => None,
        }
    }

    /// What to find the port by once DPDK runs: the device's name without its arguments, the PCI address, or as written.
    pub fn selector(&self) -> &str {
        match self {
            PortSpec::Vdev(s) | PortSpec::Pci(s) => s.split(',').next().unwrap_or_default(),
            PortSpec::Existing(s) => s,
        }
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::Vdev(s) | PortSpec::Pci(s) | PortSpec::Existing(s) => f.write_str(s),
        }
    }
}

/// `[DDDD:]BB:DD.F`, all hex.
fn is_pci(name: &str) -> bool {
    let hex = |s: &str, len| s.len() == len && s.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = name.split(':').collect();
    let (bus, device) = match parts.as_slice() {
        [bus, device] => (*bus, *device),
        [domain, bus, device] if (4..=8).contains(&domain.len()) && hex(domain, domain.len()) => {
            (*bus, *device)
        }
        _ => return false,
    };
    hex(bus, 2) && device.split_once('.').is_some_and(|(d, f)| hex(d, 2) && hex(f, 1))
}

/// An address of a port, with the length of its network's prefix if not everything is on the link: `192.0.2.1`, `192.0.2.1/24`.
///
/// # Errors
/// What it should look like.
pub fn addr(text: &str) -> Result<PortAddr, String> {
    let expected = || format!("`{text}` is no address: write 192.0.2.1, 192.0.2.1/24 or 2001:db8::1");
    let (addr, prefix) = match text.split_once('/') {
        Some((addr, prefix)) => (addr, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = addr.trim().parse().map_err(|_| expected())?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let prefix_len = match prefix {
        Some(p) => Some(p.parse().ok().filter(|n| *n <= longest).ok_or_else(expected)?),
        None => None,
    };
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!("`{text}` is not the address of one host"));
    }
    Ok(PortAddr { ip, prefix_len })
}

/// A router: `192.0.2.254`, or `10.2.0.0/16=192.0.2.254` for one network.
///
/// # Errors
/// What it should look like.
pub fn gateway(text: &str) -> Result<Gateway, String> {
    let expected =
        || format!("`{text}` is no gateway: write 192.0.2.254, or 10.2.0.0/16=192.0.2.254 for one network");
    match text.split_once('=') {
        None => Ok(Gateway::default_by(text.trim().parse().map_err(|_| expected())?)),
        Some((to, ip)) => {
            let to = to.trim().parse().map_err(|_| expected())?;
            Ok(Gateway { to, ip: ip.trim().parse().map_err(|_| expected())? })
        }
    }
}

/// The VLAN of a port: `100`, or `100:5` with a priority.
///
/// # Errors
/// What it should look like.
pub fn vlan(text: &str) -> Result<VlanTag, String> {
    let expected = || {
        format!("`{text}` is no VLAN: write its identifier, 1 to 4094, or 100:5 with a priority from 0 to 7")
    };
    let (vid, pcp) = text.split_once(':').unwrap_or((text, "0"));
    let vid = word(vid).filter(|vid| (1..=4094).contains(vid)).ok_or_else(expected)?;
    let pcp = pcp.parse().map_err(|_| expected())?;
    VlanTag::new(EtherType::VLAN, pcp, false, vid).ok_or_else(expected)
}

/// A neighbour that need not be asked: `192.0.2.2=52:54:00:12:34:56`.
///
/// # Errors
/// What it should look like.
pub fn neighbour(text: &str) -> Result<(IpAddr, MacAddr), String> {
    let expected = || format!("`{text}` is no neighbour: write 192.0.2.2=52:54:00:12:34:56");
    let (ip, mac) = text.split_once('=').ok_or_else(expected)?;
    Ok((ip.trim().parse().map_err(|_| expected())?, mac.trim().parse().map_err(|_| expected())?))
}

/// A P_Key: `0xffff`. Partition 0 is invalid (IBTA volume 1, 10.9.1).
///
/// # Errors
/// What it should look like.
pub fn pkey(text: &str) -> Result<PKey, String> {
    match word(text).map(PKey) {
        None => Err(format!("`{text}` is no P_Key: write 0xffff")),
        Some(key) if key.partition() == 0 => {
            Err(format!("`{text}` is a P_Key of partition 0, which is invalid: the default is 0xffff"))
        }
        Some(key) => Ok(key),
    }
}

/// A range of UDP source ports: `49152-65535`, `0xc000-0xc00f`.
///
/// # Errors
/// What it should look like, or why those ports cannot be.
pub fn entropy(text: &str) -> Result<EntropyRange, String> {
    let expected = || format!("`{text}` is no range of UDP source ports: write 49152-65535");
    let (first, last) = text.split_once('-').ok_or_else(expected)?;
    let port = |text| word(text).ok_or_else(expected);
    EntropyRange::new(port(first)?, port(last)?).map_err(|e| e.to_string())
}

/// A number of 16 bits, decimal or hex with 0x.
fn word(text: &str) -> Option<u16> {
    let text = text.trim();
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> PortSpec {
        text.parse().unwrap()
    }

    #[test]
    fn ports_are_told_apart_by_their_form() {
        let memif = port("net_memif0,role=client,id=0,socket=/run/x.sock");
        assert_eq!(memif, PortSpec::Vdev("net_memif0,role=client,id=0,socket=/run/x.sock".into()));
        assert_eq!(memif.selector(), "net_memif0");
        assert_eq!(port("eth_af_packet0,iface=veth0").selector(), "eth_af_packet0");
        for (spec, interface) in [
            ("eth_af_packet0,qpairs=1,iface=veth0", Some("veth0")),
            ("net_af_xdp1,iface=e1,start_queue=0", Some("e1")),
            ("net_tap0,iface=tap7", Some("tap7")),
            ("net_tap0", Some("dtap0")),
            ("net_memif0,iface=x", None),
            ("net_af_packet0", None),
            ("0000:01:00.0", None),
        ] {
            assert_eq!(port(spec).kernel_interface(), interface, "{spec}");
        }
        for pci in ["0000:01:00.0", "01:00.0", "0000:01:00.0,dv_flow_en=1", "10000:01:00.1"] {
            assert!(matches!(port(pci), PortSpec::Pci(_)), "{pci}");
        }
        assert_eq!(port("0000:01:00.0,a=b").selector(), "0000:01:00.0");
        for existing in ["52:54:00:12:34:56", "00000000:01:00:0", "0000:01:00", "memif0", "0000:01:000.0"] {
            assert!(matches!(port(existing), PortSpec::Existing(_)), "{existing}");
        }
        for bad in ["", "  ", ",x", "net_null0 net_null1"] {
            assert!(bad.parse::<PortSpec>().is_err(), "{bad}");
        }
    }
}
