//! Which addresses and routers belong to which of several ports.

use super::{Role, default_port};
use crate::args::{EndpointArgs, PortSpec};
use crate::error::Error;
use dataplane::open::Plan;
use dataplane::route::{self, Gateway, PortAddr, Prefix};
use roce_proto::wire::shim::Rails;

/// Ports of an endpoint at the most: what a session's handshake has room for.
pub const MOST_PORTS: usize = Rails::MOST + 1;

/// A port and what is to be its own.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub spec: PortSpec,
    pub addrs: Vec<PortAddr>,
    pub gateways: Vec<Gateway>,
}

/// The ports of the arguments, at least one, each with its addresses: with several ports, the first address of each family goes to the first port.
///
/// # Errors
/// A port without an address, an address without a port, routers that no port reaches.
pub(super) fn sides(args: &EndpointArgs, role: Role) -> Result<Vec<Side>, Error> {
    let (addrs, gateways) = (args.addrs(), args.gateways());
    let sides = match args.ports.as_slice() {
        [] | [_] => {
            let addrs = match (args.port(), addrs.is_empty()) {
                (_, false) => addrs,
                (None, true) => vec![PortAddr::from(role.ip())],
                (Some(port), true) => {
                    return Err(Error::usage(format_args!("the port {port} has no IP address"))
                        .hint("give it one of your network that nobody else has: --ip 192.0.2.1"));
                }
            };
            let spec = args.port().cloned().unwrap_or_else(|| default_port(role));
            vec![Side { spec, addrs, gateways }]
        }
        ports => several(ports, &addrs, &gateways)?,
    };
    for side in &sides {
        route::check(&side.addrs, &side.gateways).map_err(Error::usage)?;
    }
    Ok(sides)
}

fn several(ports: &[PortSpec], addrs: &[PortAddr], gateways: &[Gateway]) -> Result<Vec<Side>, Error> {
    if ports.len() > MOST_PORTS {
        return Err(Error::usage(format_args!(
            "{} ports: an endpoint has {MOST_PORTS} at the most",
            ports.len()
        )));
    }
    if let Some((nth, twice)) =
        ports.iter().enumerate().find(|(nth, port)| ports.iter().take(*nth).any(|p| p == *port))
    {
        return Err(Error::usage(format_args!("port {} is there twice: {twice}", nth + 1)));
    }
    let mut sides: Vec<Side> = ports
        .iter()
        .map(|spec| Side { spec: spec.clone(), addrs: Vec::new(), gateways: Vec::new() })
        .collect();
    for v4 in [true, false] {
        for (nth, addr) in addrs.iter().filter(|addr| addr.ip.is_ipv4() == v4).enumerate() {
            let side = sides.get_mut(nth).ok_or_else(|| {
                Error::usage(format_args!("{} is one address more than there are ports", addr.ip))
                    .hint("with several ports each has one address of a family: as many --ip as --port, in the same order")
            })?;
            side.addrs.push(*addr);
        }
    }
    if let Some(nth) = sides.iter().position(|side| side.addrs.is_empty()) {
        let spec = ports.get(nth).map(PortSpec::to_string).unwrap_or_default();
        return Err(Error::usage(format_args!("port {}, {spec}, has no IP address", nth + 1)).hint(
            "with several ports each has an address of its own: as many --ip as --port, in the same order",
        ));
    }
    for gateway in gateways {
        let reaches = |addr: &PortAddr| {
            addr.prefix_len
                .and_then(|len| Prefix::new(addr.ip, len))
                .is_some_and(|net| net.contains(gateway.ip))
        };
        let side = sides.iter_mut().find(|side| side.addrs.iter().any(reaches)).ok_or_else(|| {
            Error::usage(format_args!("the router {} is in the network of none of the ports", gateway.ip))
                .hint("with several ports and a router, --ip says how long the prefix of each network is: --ip 10.0.0.1/24")
        })?;
        side.gateways.push(*gateway);
    }
    Ok(sides)
}

/// What DPDK is asked for all of them: with `queues` for each.
pub(super) fn plans(sides: &[Side], mtu: Option<u16>, queues: u16) -> Vec<Plan> {
    sides.iter().map(|side| Plan::of(&side.spec, mtu).with_queues(queues)).collect()
}

/// What to start DPDK with for all plans.
pub(super) fn together(plans: &[Plan]) -> Plan {
    let mut all = plans.first().cloned().unwrap_or_default();
    for plan in plans.iter().skip(1) {
        all.vdevs.extend(plan.vdevs.iter().cloned());
        all.allow.extend(plan.allow.iter().cloned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        endpoint: EndpointArgs,
    }

    fn of(args: &str) -> Result<Vec<(String, String)>, String> {
        let words = std::iter::once("x").chain(args.split_whitespace());
        let args = Command::try_parse_from(words).unwrap().endpoint;
        let text = |side: Side| {
            let addrs = side.addrs.iter().map(|addr| addr.ip.to_string());
            let routers = side.gateways.iter().map(|g| format!("via {}", g.ip));
            (side.spec.to_string(), addrs.chain(routers).collect::<Vec<_>>().join(" "))
        };
        let sides = sides(&args, Role::Client).map_err(|e| e.to_string())?;
        Ok(sides.into_iter().map(text).collect())
    }

    fn pairs(of: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        Ok(of.iter().map(|(port, addrs)| ((*port).to_owned(), (*addrs).to_owned())).collect())
    }

    #[test]
    fn one_port_has_all_addresses_and_none_its_own() {
        assert_eq!(
            of("--port net_null0 --ip 10.0.0.1 --ip 10.0.0.2 --ip fd00::1"),
            pairs(&[("net_null0", "10.0.0.1 10.0.0.2 fd00::1")])
        );
        assert_eq!(of("").map(|sides| sides[0].1.clone()), Ok("192.0.2.2".to_owned()));
        assert_eq!(
            of("--ip fd77::1 --ip 10.0.0.1/24").map(|sides| sides[0].1.clone()),
            Ok("fd77::1 10.0.0.1".to_owned())
        );
        assert!(of("--port net_null0").unwrap_err().contains("net_null0 has no IP address"));
    }

    #[test]
    fn several_ports_have_addresses_in_order_by_family() {
        let wanted = pairs(&[("net_null0", "10.0.0.1 fd00::1"), ("net_null1", "10.1.0.1 fd01::1")]);
        assert_eq!(
            of("--port net_null0 --ip 10.0.0.1 --ip fd00::1 --port net_null1 --ip 10.1.0.1 --ip fd01::1"),
            wanted
        );
        assert_eq!(
            of("--ip fd00::1 --ip fd01::1 --ip 10.0.0.1 --ip 10.1.0.1 --port net_null0 --port net_null1"),
            wanted
        );
        assert_eq!(
            of("--port net_null0 --port net_null1 --ip 10.0.0.1 --ip 10.1.0.1 --ip fd00::1"),
            pairs(&[("net_null0", "10.0.0.1 fd00::1"), ("net_null1", "10.1.0.1")])
        );
    }

    #[test]
    fn a_router_belongs_to_the_port_whose_network_it_is_in() {
        let ports = "--port net_null0 --ip 10.0.0.1/24 --port net_null1 --ip 10.1.0.1/24";
        assert_eq!(
            of(&format!("{ports} --gateway 10.1.0.254 --gateway 10.9.0.0/16=10.0.0.254")),
            pairs(&[("net_null0", "10.0.0.1 via 10.0.0.254"), ("net_null1", "10.1.0.1 via 10.1.0.254")])
        );
        assert!(
            of(&format!("{ports} --gateway 10.2.0.254"))
                .unwrap_err()
                .contains("10.2.0.254 is in the network of none")
        );
        let open = "--port net_null0 --ip 10.0.0.1 --port net_null1 --ip 10.1.0.1 --gateway 10.1.0.254";
        assert!(of(open).is_err());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let ports =
            |n: usize| (0..n).map(|i| format!("--port net_null{i} --ip 10.{i}.0.1 ")).collect::<String>();
        assert_eq!(of(&ports(4)).map(|sides| sides.len()), Ok(4));
        assert!(of(&ports(5)).unwrap_err().contains("5 ports"));
        assert!(
            of(&format!("{} --ip 10.7.0.1", ports(2))).unwrap_err().contains("10.7.0.1 is one address more")
        );
        assert!(
            of(&format!("{} --port net_null7", ports(2))).unwrap_err().contains("port 3, net_null7, has no")
        );
        assert!(
            of(&format!("{} --port net_null1 --ip 10.7.0.1", ports(2)))
                .unwrap_err()
                .contains("port 3 is there twice")
        );
    }
}
