//! The addresses of a port, what is on its link, and which router leads to the rest.
//!
//! One table for each port, made once. It answers two questions of a destination: who is the next hop, and which of the
//! port's addresses is the source.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses: those that begin with the first `len` bits of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    ip: IpAddr,
    len: u8,
}

impl Prefix {
    /// The block of `ip`, whose further bits do not matter. `None` if `len` is above 32 (IPv4) or 128 (IPv6).
    pub fn new(ip: IpAddr, len: u8) -> Option<Prefix> {
        if len > width(ip) {
            return None;
        }
        // A shift by the width of the type is not defined: no bits at all are a case of their own.
        let ip = match ip {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Some(Prefix { ip, len })
    }

    /// Every address of the family of `ip`.
    pub fn all_like(ip: IpAddr) -> Prefix {
        let ip = match ip {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Prefix { ip, len: 0 }
    }

    /// Its first address: the others' bits are zero.
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// How many bits its addresses have in common.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Whether `ip` is one of its addresses.
    pub fn contains(self, ip: IpAddr) -> bool {
        Prefix::new(ip, self.len).is_some_and(|of| of == self)
    }

    /// The address to all hosts of an IPv4 network, where it has one: not with prefixes of 31 bits (RFC 3021) and more, nor
    /// with none.
    fn broadcast(self) -> Option<IpAddr> {
        match self.ip {
            IpAddr::V4(v4) if (1..31).contains(&self.len) => {
                Some(IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() | u32::MAX >> self.len)))
            }
            _ => None,
        }
    }

    /// Whether `ip` names the network or all of its hosts, and so no host.
    fn is_no_host(self, ip: IpAddr) -> bool {
        self.broadcast().is_some_and(|all| ip == all || ip == self.ip)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (ip, len) = text.split_once('/').ok_or(PrefixError)?;
        let (ip, len) = (ip.parse().map_err(|_| PrefixError)?, len.parse().map_err(|_| PrefixError)?);
        Prefix::new(ip, len).ok_or(PrefixError)
    }
}

/// Text that is no block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a block of addresses, such as 10.2.0.0/16 or 2001:db8::/32")]
pub struct PrefixError;

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortAddr {
    /// The address.
    pub ip: IpAddr,
    /// How many of its bits the hosts on the link have in common with it; `None` takes everything of its family to be on the
    /// link.
    pub prefix_len: Option<u8>,
}

impl PortAddr {
    /// What is on the link by this address.
    fn on_link(self) -> Prefix {
        self.prefix_len.and_then(|len| Prefix::new(self.ip, len)).unwrap_or_else(|| Prefix::all_like(self.ip))
    }
}

impl From<IpAddr> for PortAddr {
    fn from(ip: IpAddr) -> PortAddr {
        PortAddr { ip, prefix_len: None }
    }
}

impl fmt::Display for PortAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_len {
            Some(len) => write!(f, "{}/{len}", self.ip),
            None => write!(f, "{}", self.ip),
        }
    }
}

/// A router, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// The destinations that go by it; the longest prefix decides.
    pub to: Prefix,
    /// Its address, on the link.
    pub ip: IpAddr,
}

impl Gateway {
    /// A router to everywhere.
    pub fn default_by(ip: IpAddr) -> Gateway {
        Gateway { to: Prefix::all_like(ip), ip }
    }
}

/// Addresses and gateways that cannot be those of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No host can have this address on a network.
    #[error("{0} cannot be the address of a port: it is {1}")]
    NotAHost(IpAddr, &'static str),
    /// A prefix longer than the address.
    #[error("{0} has a prefix length above {1}")]
    PrefixLen(PortAddr, u8),
    /// The same address twice.
    #[error("{0} is given twice")]
    Duplicate(IpAddr),
    /// A gateway of one family for destinations of the other.
    #[error("the gateway {ip} cannot lead to {to}: that is another address family")]
    Family {
        /// The destinations.
        to: Prefix,
        /// The gateway.
        ip: IpAddr,
    },
    /// A gateway that cannot be reached without a gateway.
    #[error(
        "the gateway {0} is not on the link: none of the port's own networks has it (give addresses with their prefix \
         length, as in 192.0.2.1/24)"
    )]
    GatewayOffLink(IpAddr),
    /// A gateway that is the port itself, or no host.
    #[error("{0} cannot be a gateway: it is not the address of another host")]
    NotAGateway(IpAddr),
    /// Two gateways to the same destinations.
    #[error("two gateways are given for {0}")]
    TwoGateways(Prefix),
    /// Nothing is left for the gateway to do.
    #[error(
        "the gateway {gateway} would never be used: {addr} has no prefix length, so that everything is taken to be on the \
         link; write {addr}/24 or what it is"
    )]
    EverythingOnLink {
        /// The gateway.
        gateway: IpAddr,
        /// The address.
        addr: IpAddr,
    },
}

/// Why there is no way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// The port has no address of that family.
    Family,
    /// It has, but all of them are good for their own link only.
    OnlyLinkLocal,
    /// It is on none of the port's networks and no gateway leads there.
    NoRoute,
    /// It is a network's own or broadcast address.
    NotAHost,
}

/// Whether a port can have these addresses and gateways; [`crate::worker::Worker::new`] refuses what cannot be, too.
///
/// # Errors
/// The first thing that is wrong with them.
pub fn check(addrs: &[PortAddr], gateways: &[Gateway]) -> Result<(), RouteError> {
    RouteTable::new(addrs.to_vec(), gateways.to_vec()).map(drop)
}

/// The addresses and routes of one port.
#[derive(Clone, Debug)]
pub(crate) struct RouteTable {
    addrs: Vec<PortAddr>,
    gateways: Vec<Gateway>,
}

impl RouteTable {
    /// A table of these addresses, the preferred first, and gateways.
    pub fn new(addrs: Vec<PortAddr>, gateways: Vec<Gateway>) -> Result<RouteTable, RouteError> {
        for (i, addr) in addrs.iter().enumerate() {
            let longest = width(addr.ip);
            if addr.prefix_len.is_some_and(|len| len > longest) {
                return Err(RouteError::PrefixLen(*addr, longest));
            }
            if let Some(why) = no_host(addr.ip) {
                return Err(RouteError::NotAHost(addr.ip, why));
            }
            if addr.on_link().is_no_host(addr.ip) {
                return Err(RouteError::NotAHost(addr.ip, "its network's own or broadcast address"));
            }
            if addrs.iter().take(i).any(|other| other.ip == addr.ip) {
                return Err(RouteError::Duplicate(addr.ip));
            }
        }
        let mut table = RouteTable { addrs, gateways: Vec::new() };
        for gateway in gateways {
            table.add_gateway(gateway)?;
        }
        Ok(table)
    }

    fn add_gateway(&mut self, gateway: Gateway) -> Result<(), RouteError> {
        let Gateway { to, ip } = gateway;
        if to.ip().is_ipv4() != ip.is_ipv4() {
            return Err(RouteError::Family { to, ip });
        }
        if no_host(ip).is_some() || self.addrs.iter().any(|a| a.ip == ip || a.on_link().is_no_host(ip)) {
            return Err(RouteError::NotAGateway(ip));
        }
        if self.on_link(ip).is_none() {
            return Err(RouteError::GatewayOffLink(ip));
        }
        if self.gateways.iter().any(|other| other.to == to) {
            return Err(RouteError::TwoGateways(to));
        }
        let everything =
            self.addrs.iter().find(|a| a.ip.is_ipv4() == ip.is_ipv4() && a.on_link().bits() == 0);
        if to.bits() == 0
            && let Some(addr) = everything
        {
            return Err(RouteError::EverythingOnLink { gateway: ip, addr: addr.ip });
        }
        self.gateways.push(gateway);
        Ok(())
    }

    /// The network of the port that `ip` is on, by the longest prefix.
    fn on_link(&self, ip: IpAddr) -> Option<Prefix> {
        let of_family = |a: &&PortAddr| a.ip.is_ipv4() == ip.is_ipv4();
        if is_link_local(ip) {
            // On the link by what it is (RFC 4291, 2.5.6; RFC 3927, 2.6.2).
            return self.addrs.iter().any(|a| of_family(&a)).then(|| link_local_like(ip));
        }
        let networks = self.addrs.iter().map(|a| a.on_link());
        networks.filter(|p| p.contains(ip)).max_by_key(|p| p.bits())
    }

    /// Whose MAC address packets to `dst` go to: its own, or that of the router with the longest prefix.
    pub fn next_hop(&self, dst: IpAddr) -> Result<IpAddr, NoWay> {
        if !self.addrs.iter().any(|a| a.ip.is_ipv4() == dst.is_ipv4()) {
            return Err(NoWay::Family);
        }
        let link = self.on_link(dst);
        if link.is_some_and(|p| p.is_no_host(dst)) {
            return Err(NoWay::NotAHost);
        }
        let by = self.gateways.iter().filter(|g| g.to.contains(dst)).max_by_key(|g| g.to.bits());
        match (link, by) {
            (Some(link), Some(by)) if by.to.bits() > link.bits() => Ok(by.ip),
            (Some(_), _) => Ok(dst),
            (None, Some(by)) => Ok(by.ip),
            (None, None) => Err(NoWay::NoRoute),
        }
    }

    /// The port's own address to send from to `dst` by `next_hop`: of the same network first, then a routable one; one that is
    /// good for its own link only is never the source of what leaves it. Among equals the one that was given first.
    pub fn source(&self, dst: IpAddr, next_hop: IpAddr) -> Result<IpAddr, NoWay> {
        let mut of_family = false;
        let mut best: Option<((bool, u8, bool), IpAddr)> = None;
        for addr in self.addrs.iter().filter(|a| a.ip.is_ipv4() == dst.is_ipv4()) {
            of_family = true;
            let local = is_link_local(addr.ip);
            if local && !is_link_local(dst) {
                continue;
            }
            let network = if local { link_local_like(addr.ip) } else { addr.on_link() };
            let near = network.contains(next_hop);
            let rank = (near, if near { network.bits() } else { 0 }, is_private(addr.ip) == is_private(dst));
            if best.is_none_or(|(other, _)| rank > other) {
                best = Some((rank, addr.ip));
            }
        }
        match best {
            Some((_, ip)) => Ok(ip),
            None if of_family => Err(NoWay::OnlyLinkLocal),
            None => Err(NoWay::Family),
        }
    }
}

/// Whether `ip` is good for its own link only: 169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291).
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn link_local_like(ip: IpAddr) -> Prefix {
    match ip {
        IpAddr::V4(_) => Prefix { ip: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), len: 16 },
        IpAddr::V6(_) => Prefix { ip: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), len: 10 },
    }
}

/// Whether `ip` is routable within an organisation only (RFC 1918, RFC 4193): such a source reaches such destinations best,
/// and others only through translation.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// What `ip` is if it can be the address of no host on a network.
pub(crate) fn no_host(ip: IpAddr) -> Option<&'static str> {
    let ip = match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => return Some("an IPv4 address in IPv6 form"),
        ip => ip,
    };
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    match ip {
        _ if ip.is_unspecified() => Some("no address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        _ if ip.is_loopback() => Some("a loopback address"),
        _ if broadcast => Some("the broadcast address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => {
            Some("of 0.0.0.0/8, which only names the sender's own network")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn addr(text: &str) -> PortAddr {
        match text.split_once('/') {
            Some((a, len)) => PortAddr { ip: ip(a), prefix_len: Some(len.parse().unwrap()) },
            None => PortAddr::from(ip(text)),
        }
    }

    fn gateway(text: &str) -> Gateway {
        match text.split_once('=') {
            Some((to, by)) => Gateway { to: to.parse().unwrap(), ip: ip(by) },
            None => Gateway::default_by(ip(text)),
        }
    }

    fn try_table(addrs: &str, gateways: &str) -> Result<RouteTable, RouteError> {
        let addrs = addrs.split_whitespace().map(addr).collect();
        RouteTable::new(addrs, gateways.split_whitespace().map(gateway).collect())
    }

    fn table(addrs: &str, gateways: &str) -> RouteTable {
        try_table(addrs, gateways).unwrap()
    }

    fn way(table: &RouteTable, dst: &str) -> Result<(String, String), NoWay> {
        let hop = table.next_hop(ip(dst))?;
        Ok((hop.to_string(), table.source(ip(dst), hop)?.to_string()))
    }

    fn via(hop: &str, src: &str) -> Result<(String, String), NoWay> {
        Ok((hop.to_owned(), src.to_owned()))
    }

    #[test]
    fn prefixes_contain_what_begins_with_them() {
        let p = |text: &str| text.parse::<Prefix>().unwrap();
        for (prefix, inside, outside) in [
            ("10.1.2.3/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.128/25", "192.0.2.255", "192.0.2.127"),
            ("192.0.2.1/32", "192.0.2.1", "192.0.2.0"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::", "2001:db9::"),
            ("fd00::1/128", "fd00::1", "fd00::"),
            ("::/0", "ffff::", "1.2.3.4"),
        ] {
            assert!(p(prefix).contains(ip(inside)) && !p(prefix).contains(ip(outside)), "{prefix}");
        }
        assert_eq!(p("10.1.2.3/8").to_string(), "10.0.0.0/8");
        for bad in ["10.0.0.0/33", "::/129", "10.0.0.0", "10.0.0/8", "x/1", "1.2.3.4/-1"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_link_first_then_the_gateway_of_the_longest_prefix() {
        let t = table(
            "10.1.0.5/24 2001:db8:1::5/64",
            "10.1.0.254 10.7.0.0/16=10.1.0.253 10.7.7.0/24=10.1.0.252 10.1.0.64/26=10.1.0.251 fe80::9",
        );
        assert_eq!(way(&t, "10.1.0.9"), via("10.1.0.9", "10.1.0.5"));
        assert_eq!(way(&t, "8.8.8.8"), via("10.1.0.254", "10.1.0.5"));
        assert_eq!(way(&t, "10.7.1.1"), via("10.1.0.253", "10.1.0.5"));
        assert_eq!(way(&t, "10.7.7.1"), via("10.1.0.252", "10.1.0.5"));
        assert_eq!(way(&t, "10.1.0.70"), via("10.1.0.251", "10.1.0.5"), "more exact than the link");
        assert_eq!(way(&t, "2001:db8:1::9"), via("2001:db8:1::9", "2001:db8:1::5"));
        assert_eq!(way(&t, "2001:db8:2::9"), via("fe80::9", "2001:db8:1::5"));
    }

    #[test]
    fn without_a_prefix_length_everything_is_on_the_link() {
        let t = table("192.0.2.1 10.0.0.1/8", "10.9.0.0/16=10.0.0.9");
        assert_eq!(way(&t, "198.51.100.7"), via("198.51.100.7", "192.0.2.1"));
        assert_eq!(way(&t, "10.3.3.3"), via("10.3.3.3", "10.0.0.1"));
        assert_eq!(way(&t, "10.9.3.3"), via("10.0.0.9", "10.0.0.1"));
        assert_eq!(way(&t, "2001:db8::1"), Err(NoWay::Family));
    }

    #[test]
    fn off_the_link_without_a_gateway_there_is_no_way() {
        let t = table("192.0.2.1/24", "");
        assert_eq!(way(&t, "198.51.100.7"), Err(NoWay::NoRoute));
        assert_eq!(way(&t, "192.0.2.255"), Err(NoWay::NotAHost));
        assert_eq!(way(&t, "192.0.2.0"), Err(NoWay::NotAHost));
        assert_eq!(way(&table("192.0.2.0/31", ""), "192.0.2.1"), via("192.0.2.1", "192.0.2.0"));
    }

    #[test]
    fn sources_are_near_or_routable_and_never_link_local_across_subnets() {
        let t = table(
            "169.254.1.1/16 198.51.100.4/24 10.0.0.4/24 10.0.1.4/24 fe80::4/64 2001:db8::4/64 fd00::4/64",
            "198.51.100.254 10.0.0.0/8=10.0.0.254 fe80::254",
        );
        for (dst, src) in [
            ("10.0.1.9", "10.0.1.4"),
            ("10.200.0.1", "10.0.0.4"),
            ("203.0.113.5", "198.51.100.4"),
            ("169.254.7.7", "169.254.1.1"),
            ("fe80::77", "fe80::4"),
            ("fd00::9", "fd00::4"),
            ("2001:db8::9", "2001:db8::4"),
            ("2001:db8:ffff::9", "2001:db8::4"),
            ("fd00:1::9", "fd00::4"),
        ] {
            assert_eq!(way(&t, dst).map(|w| w.1), Ok(src.to_owned()), "{dst}");
        }
        let t = table("fe80::4 169.254.1.1", "");
        assert_eq!(way(&t, "2001:db8::1"), Err(NoWay::OnlyLinkLocal));
        assert_eq!(way(&t, "8.8.8.8"), Err(NoWay::OnlyLinkLocal));
        assert_eq!(way(&t, "fe80::5"), via("fe80::5", "fe80::4"));
        assert_eq!(way(&table("2001:db8::4/64", ""), "fe80::5"), via("fe80::5", "2001:db8::4"));
    }

    /// The longest prefix decides wherever it stands, and what was given first only between equals.
    #[test]
    fn the_order_in_which_they_are_given_decides_between_equals_only() {
        for [first, second] in [["10.0.0.4/8", "10.0.1.4/24"], ["10.0.1.4/24", "10.0.0.4/8"]] {
            let t = table(&format!("{first} {second}"), "10.0.1.0/25=10.0.0.7 10.0.0.0/16=10.0.0.9");
            assert_eq!(
                way(&t, "10.0.1.200"),
                via("10.0.1.200", "10.0.1.4"),
                "the link by /24 before a route by /16"
            );
            assert_eq!(
                way(&t, "10.0.7.1"),
                via("10.0.0.9", "10.0.0.4"),
                "a route by /16 before the link by /8"
            );
        }
        for [first, second] in [["10.1.0.4/24", "10.1.0.5/24"], ["10.1.0.5/24", "10.1.0.4/24"]] {
            let t = table(&format!("{first} {second}"), "");
            assert_eq!(
                way(&t, "10.1.0.9").map(|w| Some(w.1)),
                Ok(first.split('/').next().map(str::to_owned))
            );
        }
        let (wide, narrow) = ("10.7.0.0/16=10.1.0.253", "10.7.7.0/24=10.1.0.252");
        for gateways in [format!("{wide} {narrow}"), format!("{narrow} {wide}")] {
            let t = table("10.1.0.5/24", &gateways);
            assert_eq!(way(&t, "10.7.7.1"), via("10.1.0.252", "10.1.0.5"), "{gateways}");
        }
        let t = table("10.1.0.5/24", "10.1.0.0/24=10.1.0.254");
        assert_eq!(way(&t, "10.1.0.9"), via("10.1.0.9", "10.1.0.5"), "no router between neighbours");
        // Link-local addresses are on one link whatever length they were given.
        for addrs in ["fd00::1 fe80::1/64", "fe80::1/64 fd00::1"] {
            assert_eq!(way(&table(addrs, ""), "fe80:0:0:5::9"), via("fe80:0:0:5::9", "fe80::1"), "{addrs}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |addrs: &str, gateways: &str| try_table(addrs, gateways).unwrap_err();
        for bad in [
            "0.0.0.0",
            "127.0.0.1",
            "::1",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "0.1.2.3",
            "::ffff:10.0.0.1",
            "10.0.0.0/24",
            "10.0.0.255/24",
        ] {
            assert!(matches!(refused(bad, ""), RouteError::NotAHost(..)), "{bad}");
        }
        assert_eq!(refused("10.0.0.1/24 10.0.0.1/16", ""), RouteError::Duplicate(ip("10.0.0.1")));
        assert!(matches!(refused("10.0.0.1/33", ""), RouteError::PrefixLen(_, 32)));
        assert_eq!(refused("10.0.0.1/24", "10.0.1.1"), RouteError::GatewayOffLink(ip("10.0.1.1")));
        assert_eq!(refused("10.0.0.1/24", "fe80::1"), RouteError::GatewayOffLink(ip("fe80::1")));
        for own in ["10.0.0.1", "10.0.0.255", "127.0.0.1"] {
            assert_eq!(refused("10.0.0.1/24", own), RouteError::NotAGateway(ip(own)));
        }
        let twice = refused("10.0.0.1/24", "10.0.0.2 10.0.0.3");
        assert_eq!(twice, RouteError::TwoGateways("0.0.0.0/0".parse().unwrap()));
        let idle = refused("10.0.0.1", "10.0.0.2");
        assert!(matches!(idle, RouteError::EverythingOnLink { .. }), "{idle}");
        assert!(try_table("10.0.0.1 fd00::1/64", "fd00::2").is_ok(), "everything of the other family is");
        assert!(matches!(refused("10.0.0.1/24", "2001::/16=10.0.0.2"), RouteError::Family { .. }));
        for error in [idle, twice] {
            assert!(error.to_string().len() > 20);
        }
    }
}
