//! The arguments that several commands share: the port and its addresses, captures, reports.

use crate::observe::ObserveArgs;
use crate::report::JsonTarget;
use crate::units;
use clap::{Args, ValueEnum};
use dataplane::idle::IdlePolicy;
use dataplane::route::{Gateway, PortAddr};
use roce_proto::types::PKey;
use roce_proto::wire::ethernet::{EtherType, MacAddr, VlanTag};
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How the port's poll loop treats a round without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Never give up the core: lowest latency, 100 % CPU
    Spin,
    /// Give the core to whoever else wants it, never sleep
    Yield,
    /// Spin, then yield, then sleep: below 5 % CPU after a moment
    Backoff,
}

impl Idle {
    /// The worker's policy.
    pub fn policy(self) -> IdlePolicy {
        match self {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Yield => IdlePolicy::BackOff { spins: 64, yields: u32::MAX, max_sleep: Duration::ZERO },
            Idle::Backoff => IdlePolicy::default(),
        }
    }
}

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

impl Serialize for PortSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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

/// A local address, with the length of its network's prefix if everything is not on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpArg {
    /// The address.
    pub addr: IpAddr,
    /// Length of the prefix, if one was given.
    pub prefix: Option<u8>,
}

impl FromStr for IpArg {
    type Err = String;

    fn from_str(text: &str) -> Result<IpArg, String> {
        let expected = || format!("`{text}` is no address: write 192.0.2.1, 192.0.2.1/24 or 2001:db8::1");
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (text, None),
        };
        let addr: IpAddr = addr.trim().parse().map_err(|_| expected())?;
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(p) => Some(p.parse().ok().filter(|n| *n <= longest).ok_or_else(expected)?),
            None => None,
        };
        if addr.is_unspecified() || addr.is_multicast() {
            return Err(format!("`{text}` is not the address of one host"));
        }
        Ok(IpArg { addr, prefix })
    }
}

impl Serialize for IpArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.prefix {
            Some(prefix) => serializer.collect_str(&format_args!("{}/{prefix}", self.addr)),
            None => serializer.collect_str(&self.addr),
        }
    }
}

/// A router: `ADDR`, or `NETWORK/LEN=ADDR` for some destinations only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayArg(pub Gateway);

impl FromStr for GatewayArg {
    type Err = String;

    fn from_str(text: &str) -> Result<GatewayArg, String> {
        let expected = || {
            format!("`{text}` is no gateway: write 192.0.2.254, or 10.2.0.0/16=192.0.2.254 for one network")
        };
        Ok(GatewayArg(match text.split_once('=') {
            None => Gateway::default_by(text.trim().parse().map_err(|_| expected())?),
            Some((to, ip)) => {
                let to = to.trim().parse().map_err(|_| expected())?;
                Gateway { to, ip: ip.trim().parse().map_err(|_| expected())? }
            }
        }))
    }
}

impl Serialize for GatewayArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Gateway { to, ip } = self.0;
        match to.bits() {
            0 => serializer.collect_str(&ip),
            _ => serializer.collect_str(&format_args!("{to}={ip}")),
        }
    }
}

/// The VLAN of a port: `VID`, or `VID:PRIORITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanArg(pub VlanTag);

impl FromStr for VlanArg {
    type Err = String;

    fn from_str(text: &str) -> Result<VlanArg, String> {
        let expected = || {
            format!(
                "`{text}` is no VLAN: write its identifier, 1 to 4094, or 100:5 with a priority from 0 to 7"
            )
        };
        let (vid, pcp) = text.split_once(':').unwrap_or((text, "0"));
        let vid = units::word(vid).ok().filter(|vid| (1..=4094).contains(vid)).ok_or_else(expected)?;
        let pcp = pcp.parse().map_err(|_| expected())?;
        VlanTag::new(EtherType::VLAN, pcp, false, vid).map(VlanArg).ok_or_else(expected)
    }
}

impl Serialize for VlanArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.pcp() {
            0 => serializer.collect_str(&self.0.vid()),
            pcp => serializer.collect_str(&format_args!("{}:{pcp}", self.0.vid())),
        }
    }
}

/// A neighbour that need not be asked: `IP=MAC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourArg {
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address.
    pub mac: MacAddr,
}

impl FromStr for NeighbourArg {
    type Err = String;

    fn from_str(text: &str) -> Result<NeighbourArg, String> {
        let expected = || format!("`{text}` is no neighbour: write 192.0.2.2=52:54:00:12:34:56");
        let (ip, mac) = text.split_once('=').ok_or_else(expected)?;
        let (ip, mac) = (ip.trim().parse(), mac.trim().parse());
        Ok(NeighbourArg { ip: ip.map_err(|_| expected())?, mac: mac.map_err(|_| expected())? })
    }
}

impl Serialize for NeighbourArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}={}", self.ip, self.mac))
    }
}

/// Who knows the MAC addresses of neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NeighbourFrom {
    /// The neighbours themselves, by ARP and neighbour discovery
    #[default]
    Wire,
    /// The kernel, for a port that is one of its interfaces; it needs an address there, and CAP_NET_ADMIN to be asked
    Kernel,
}

/// The words of `--eal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct EalArg(pub Vec<String>);

impl FromStr for EalArg {
    type Err = String;

    fn from_str(text: &str) -> Result<EalArg, String> {
        units::words(text).map(EalArg)
    }
}

/// A list of cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CoresArg(pub Vec<usize>);

impl FromStr for CoresArg {
    type Err = String;

    fn from_str(text: &str) -> Result<CoresArg, String> {
        units::cores(text).map(CoresArg)
    }
}

/// What every command has that opens a port.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Port")]
pub struct EndpointArgs {
    /// The port, in DPDK's own syntax: a virtual device with its arguments, a PCI address, or the MAC address or name of a
    /// port that DPDK has. Without it: a net_memif port that meets the other side's on this machine
    #[arg(long, value_name = "DEVICE")]
    pub port: Option<PortSpec>,

    /// An IPv4 or IPv6 address of the port, with the prefix length of its network; without one everything is on the link. May
    /// be given several times
    #[arg(long, value_name = "ADDR[/LEN]")]
    pub ip: Vec<IpArg>,

    /// The router to what is not on the link, or to one network behind it; may be given several times
    #[arg(long, value_name = "[NET/LEN=]ADDR")]
    pub gateway: Vec<GatewayArg>,

    /// The VLAN of the port: what it sends carries this 802.1Q tag, what comes without it is dropped
    #[arg(long, value_name = "VID[:PRIO]")]
    pub vlan: Option<VlanArg>,

    /// MTU of the port in bytes, from the IP header on; it is set and read back
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(64..))]
    pub mtu: Option<u16>,

    /// P_Key of the port
    #[arg(long, value_name = "KEY", default_value = "0xffff", value_parser = units::pkey)]
    #[serde(serialize_with = "pkey_text")]
    pub pkey: PKey,

    /// A neighbour that is not asked for by ARP or neighbour discovery; may be given several times
    #[arg(long, value_name = "IP=MAC")]
    pub neighbour: Vec<NeighbourArg>,

    /// Where the MAC addresses of the other neighbours come from. Opening a net_af_packet port empties the kernel's table of the
    /// interface, permanent entries included (DPDK sets its MAC address anew): give those by --neighbour
    #[arg(long, value_enum, default_value_t = NeighbourFrom::Wire, value_name = "WHERE")]
    pub neighbour_from: NeighbourFrom,

    /// Cores to run on, such as 0,2-3: each thread that polls takes one, in this order
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoresArg>,

    /// What the poll loop does in rounds without work
    #[arg(long, value_enum, default_value_t = Idle::Backoff, value_name = "HOW")]
    pub idle: Idle,

    /// More arguments for DPDK's EAL, as one word: --eal "--log-level=8 --no-pci"
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub eal: Option<EalArg>,

    /// Write every frame that is sent or received to this pcap file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// How its operators see it.
    #[command(flatten)]
    #[serde(flatten)]
    pub observe: ObserveArgs,
}

impl EndpointArgs {
    /// The port's addresses.
    pub fn addrs(&self) -> Vec<PortAddr> {
        self.ip.iter().map(|ip| PortAddr { ip: ip.addr, prefix_len: ip.prefix }).collect()
    }

    /// The port's gateways.
    pub fn gateways(&self) -> Vec<Gateway> {
        self.gateway.iter().map(|g| g.0).collect()
    }
}

fn pkey_text<S: serde::Serializer>(pkey: &PKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(pkey)
}

/// Where results go.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print the report as JSON and nothing else on standard output; with a file, write it there beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub json: Option<Option<PathBuf>>,
}

impl OutputArgs {
    /// Where JSON goes.
    pub fn json(&self) -> JsonTarget {
        JsonTarget::from_arg(self.json.as_ref())
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

    #[test]
    fn gateways_and_vlans() {
        let text = |g: &str| serde_json::to_value(g.parse::<GatewayArg>().unwrap()).unwrap();
        assert_eq!(text("192.0.2.254"), "192.0.2.254");
        assert_eq!(text("10.2.3.4/16=192.0.2.254"), "10.2.0.0/16=192.0.2.254");
        assert_eq!("fe80::1".parse::<GatewayArg>().unwrap().0.to, "::/0".parse().unwrap());
        for bad in ["", "192.0.2", "10.2.0.0=192.0.2.254", "10.2.0.0/33=192.0.2.254", "10.2.0.0/16="] {
            assert!(bad.parse::<GatewayArg>().is_err(), "{bad}");
        }
        let vlan = |text: &str| text.parse::<VlanArg>().map(|v| v.0.to_bytes());
        assert_eq!(vlan("42"), Ok([0x81, 0, 0, 42]));
        assert_eq!(vlan("4094:7"), Ok([0x81, 0, 0xef, 0xfe]));
        for bad in ["", "0", "4095", "1:8", "1:", "x", "-1"] {
            assert!(bad.parse::<VlanArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_and_neighbours() {
        let ip: IpArg = "192.0.2.1/24".parse().unwrap();
        assert_eq!((ip.addr, ip.prefix), ("192.0.2.1".parse().unwrap(), Some(24)));
        assert_eq!("2001:db8::1".parse::<IpArg>().unwrap().prefix, None);
        for bad in [
            "192.0.2.1/33",
            "192.0.2",
            "0.0.0.0",
            "::",
            "ff02::1",
            "224.0.0.1",
            "2001:db8::1/129",
            "1.2.3.4/",
        ] {
            assert!(bad.parse::<IpArg>().is_err(), "{bad}");
        }
        let n: NeighbourArg = "fd77::2=52:54:00:00:00:02".parse().unwrap();
        assert_eq!((n.ip.is_ipv6(), n.mac.to_string().as_str()), (true, "52:54:00:00:00:02"));
        for bad in ["fd77::2", "fd77::2=", "=52:54:00:00:00:02", "fd77::2=52:54:00:00:00"] {
            assert!(bad.parse::<NeighbourArg>().is_err(), "{bad}");
        }
    }
}
