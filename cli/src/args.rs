//! The arguments that several commands share: the port and its addresses, captures, reports.

use crate::observe::ObserveArgs;
use crate::report::JsonTarget;
use crate::units;
use clap::{Args, ValueEnum};
use dataplane::entropy::EntropyRange;
use dataplane::idle::IdlePolicy;
use dataplane::route::{Gateway, PortAddr};
use dataplane::spec;
pub use dataplane::spec::PortSpec;
use roce_proto::types::PKey;
use roce_proto::wire::ethernet::{MacAddr, VlanTag};
use serde::Serialize;
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
        spec::addr(text).map(|PortAddr { ip, prefix_len }| IpArg { addr: ip, prefix: prefix_len })
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
        spec::gateway(text).map(GatewayArg)
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
        spec::vlan(text).map(VlanArg)
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
        spec::neighbour(text).map(|(ip, mac)| NeighbourArg { ip, mac })
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

/// A range of UDP source ports: `49152-65535`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntropyArg(pub EntropyRange);

impl FromStr for EntropyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<EntropyArg, String> {
        spec::entropy(text).map(EntropyArg)
    }
}

impl std::fmt::Display for EntropyArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for EntropyArg {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
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
    /// port that DPDK has. Without it: a net_memif port that meets the other side's on this machine. The reliable service takes up to
    /// four, as rails on which its paths take turns
    #[arg(long = "port", value_name = "DEVICE")]
    #[serde(rename = "port", serialize_with = "port_text")]
    pub ports: Vec<PortSpec>,

    /// An IPv4 or IPv6 address of the port, with the prefix length of its network; without one everything is on the link. May
    /// be given several times; with several ports the first address of a family is the first port's, the second the second's
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

    /// UDP source ports to send from: each queue pair and each path has one of them, by which networks spread flows
    #[arg(long, value_name = "LO-HI", default_value_t)]
    pub entropy_range: EntropyArg,

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
    /// The port; the first if there are several.
    pub fn port(&self) -> Option<&PortSpec> {
        self.ports.first()
    }

    /// The port's addresses.
    pub fn addrs(&self) -> Vec<PortAddr> {
        self.ip.iter().map(|ip| PortAddr { ip: ip.addr, prefix_len: ip.prefix }).collect()
    }

    /// The port's gateways.
    pub fn gateways(&self) -> Vec<Gateway> {
        self.gateway.iter().map(|g| g.0).collect()
    }
}

/// One as text, none as nothing, several as a list.
fn port_text<S: serde::Serializer>(ports: &[PortSpec], serializer: S) -> Result<S::Ok, S::Error> {
    match ports {
        [] | [_] => ports.first().map(PortSpec::to_string).serialize(serializer),
        _ => serializer.collect_seq(ports.iter().map(PortSpec::to_string)),
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
    fn ranges_of_source_ports() {
        let text = |range: &str| range.parse::<EntropyArg>().map(|r| r.to_string());
        assert_eq!(text("49152-65535"), Ok(EntropyRange::DEFAULT.to_string()));
        assert_eq!(text(" 0xC000 - 0xc003"), Ok("49152-49155".to_owned()));
        assert_eq!(text("7-7"), Ok("7-7".to_owned()));
        for bad in ["", "-", "1", "1-", "-1", "1-2-3", "1-65536", "-1-2", "a-b", "1..2", "0x-0x1"] {
            let error = text(bad).unwrap_err();
            assert!(error.contains("write 49152-65535"), "{bad}: {error}");
        }
        for (bad, why) in [("9-8", "the lower port comes first"), ("0-8", "port 0"), ("1-65535", "4791")] {
            let error = text(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
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
