//! Address handles: where a datagram goes, with its headers precomputed.

use roce_proto::wire::ethernet::{MacAddr, VlanTag};
use roce_proto::wire::ud::Template;
use slotmap::new_key_type;
use std::net::IpAddr;

new_key_type! {
    /// Names an address handle of one worker. Stale after it was destroyed.
    pub struct AhKey;
}

/// How an address handle is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhConfig {
    /// The port to send from: an index into the worker's ports.
    pub port: usize,
    /// The peer.
    pub dst: IpAddr,
    /// Our own address; `None` takes one of the next hop's network, else the port's first routable one of the family.
    pub src: Option<IpAddr>,
    /// The peer's MAC address, or the router's; `None` asks with ARP or neighbour discovery.
    pub dst_mac: Option<MacAddr>,
    /// A VLAN tag; `None` takes the port's, if that has one.
    pub vlan: Option<VlanTag>,
    /// The eight bits of ToS (IPv4) or traffic class (IPv6): DSCP and ECN, as `ibv_ah_attr.grh.traffic_class`.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label (20 bits); not used over IPv4.
    pub flow_label: u32,
    /// UDP source port; `None` takes the one that stands for the sending queue pair.
    pub src_port: Option<u16>,
}

impl AhConfig {
    /// To `dst` from the worker's first port, best effort, hop limit 64.
    pub fn new(dst: IpAddr) -> AhConfig {
        AhConfig {
            port: 0,
            dst,
            src: None,
            dst_mac: None,
            vlan: None,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: None,
        }
    }
}

/// Whether packets can leave by an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AhState {
    /// The next hop (the peer or the router) has not answered yet.
    Resolving {
        /// Requests sent so far.
        asked: u32,
    },
    /// The next hop does not answer, or no longer. It is asked again now and then, and the handle becomes ready when it does.
    Failed {
        /// Requests sent since its last answer.
        asked: u32,
    },
    /// Ready to send.
    Ready,
}

/// Why an address handle was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhError {
    /// The port index is out of range.
    #[error("the worker has no port {0}")]
    NoPort(usize),
    /// The port has no address of the destination's family.
    #[error("port {port} has no {family} address to reach {dst} from: give it one with --ip")]
    NoSource {
        /// The port's name.
        port: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The destination.
        dst: IpAddr,
    },
    /// All addresses of the port of that family are good for their own link only.
    #[error(
        "port {port} has only link-local {family} addresses, {dst} is not on the link: give it a routable one with --ip"
    )]
    OnlyLinkLocal {
        /// The port's name.
        port: String,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The destination.
        dst: IpAddr,
    },
    /// The destination is not on the port's link, and no gateway leads there.
    #[error(
        "port {port} has no route to {dst}: none of its networks has it; give the router there with --gateway"
    )]
    NoRoute {
        /// The port's name.
        port: String,
        /// The destination.
        dst: IpAddr,
    },
    /// The source asked for is not one of the port's.
    #[error("{src} is not an address of port {port}")]
    NotLocal {
        /// The port's name.
        port: String,
        /// The source asked for.
        src: IpAddr,
    },
    /// Source and destination are of different families.
    #[error("source {src} and destination {dst} are of different address families")]
    FamilyMismatch {
        /// The source asked for.
        src: IpAddr,
        /// The destination.
        dst: IpAddr,
    },
    /// The destination cannot be a peer.
    #[error("{0} is not the address of a peer: give a unicast address of another host")]
    NotAPeer(IpAddr),
    /// A zero or group MAC address was given for the destination.
    #[error("{0} is not the MAC address of a peer")]
    BadMac(MacAddr),
    /// The port already tracks as many neighbours as it may.
    #[error("the neighbour table of the port is full ({0} entries)")]
    TooManyNeighbours(usize),
    /// The worker's bound is reached.
    #[error("the worker already has its {0} address handles")]
    TooMany(usize),
}

#[derive(Debug)]
pub(crate) struct Ah {
    /// Index of the worker's port; narrow, as thousands of peers have a handle each.
    pub port: u16,
    /// Whose MAC address it sends to: the peer, or a router.
    pub next_hop: IpAddr,
    /// True when UDP source ports follow the sending queue pair.
    pub follow_qp: bool,
    /// True when it holds a place in the neighbour table.
    pub tracked: bool,
    pub ready: bool,
    /// Something was sent by it since the neighbour table last looked.
    pub used: bool,
    pub template: Template,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_small_enough_to_have_one_for_each_peer() {
        assert!(size_of::<Ah>() <= 100, "{}", size_of::<Ah>());
    }
}
