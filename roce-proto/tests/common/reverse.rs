//! From a packet back to what it was built of. Used by the tests and by the fuzz target.

use roce_proto::wire::frame::Packet;
use roce_proto::wire::ud::{IpRoute, Route, Send};
use std::net::IpAddr;

/// What our builder needs to make a UD packet again: its route and its datagram.
pub fn reverse(packet: &Packet<'_>) -> Option<(Route, Send)> {
    let ud = packet.ud().ok()?;
    let ip = match (packet.ip.src(), packet.ip.dst()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            IpRoute::V4 { src, dst, ident: packet.ip.ident().expect("IPv4") }
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            IpRoute::V6 { src, dst, flow_label: packet.ip.flow_label().expect("IPv6") }
        }
        mixed => panic!("{mixed:?}"),
    };
    let route = Route {
        src_mac: packet.link.src(),
        dst_mac: packet.link.dst(),
        vlan: packet.link.vlans().outer(),
        ip,
        dscp: packet.ip.dscp(),
        ecn: packet.ip.ecn(),
        hop_limit: packet.ip.hop_limit(),
        src_port: packet.src_port(),
    };
    let send = Send {
        dst_qpn: packet.bth().dst_qpn,
        src_qpn: ud.deth.src_qpn,
        qkey: ud.deth.qkey,
        pkey: packet.bth().pkey,
        psn: packet.bth().psn,
        imm: ud.imm,
        solicited: packet.bth().solicited,
    };
    Some((route, send))
}
