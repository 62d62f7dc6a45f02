//! The further ports of an endpoint, each with a queue pair of its own.

use super::ReliableConfig;
use crate::buffer::Buffer;
use crate::entropy::EntropyRange;
use crate::io::PortIo;
use crate::qp::{CqKey, QpConfig, QpError, QpKey};
use crate::worker::Worker;
use roce_proto::types::Qpn;
use roce_proto::wire::shim::Rails;
use std::net::IpAddr;

/// From here on a number in [`Address::via`](roce_proto::transport::Address::via) is of a further port.
const VIA: u16 = 0x8000;

/// A further port.
pub(super) struct RailPort {
    pub port: usize,
    pub qp: QpKey,
    pub qpn: Qpn,
    /// Its source ports.
    pub entropy: EntropyRange,
}

/// The further ports.
#[derive(Default)]
pub(super) struct RailPorts {
    ports: Vec<RailPort>,
    offers: [Rails; 2],
    /// Which port each offer is of.
    places: [[u8; Rails::MOST]; 2],
}

impl RailPorts {
    /// Makes their queue pairs, which complete to `cq`.
    ///
    /// # Errors
    /// No such port; what was made is gone again.
    pub fn open<I: PortIo, B: Buffer>(
        worker: &mut Worker<I, B>,
        config: &ReliableConfig,
        cq: CqKey,
    ) -> Result<RailPorts, QpError> {
        let mut rails = RailPorts::default();
        for port in config.rails.into_iter().flatten() {
            let made = worker.create_qp(&QpConfig {
                port,
                qkey: config.qkey,
                send_depth: config.tx_depth,
                recv_depth: 1,
                ..QpConfig::new(cq)
            });
            match made {
                Ok(qp) => rails.add(worker, port, qp),
                Err(e) => {
                    for made in rails.ports {
                        // Nothing uses it yet.
                        let _ = worker.destroy_qp(made.qp);
                    }
                    return Err(e);
                }
            }
        }
        Ok(rails)
    }

    fn add<I: PortIo, B: Buffer>(&mut self, worker: &Worker<I, B>, port: usize, qp: QpKey) {
        let qpn = worker.qpn(qp).unwrap_or_default();
        let of = |v4: bool| worker.addrs(port).iter().find(|ip| ip.is_ipv4() == v4 && !is_link_local(ip));
        for (family, ip) in [of(true), of(false)].into_iter().enumerate() {
            let (Some(ip), Some(offers), Some(places)) =
                (ip, self.offers.get_mut(family), self.places.get_mut(family))
            else {
                continue;
            };
            if let Some(place) = places.get_mut(usize::from(offers.len())) {
                *place = self.ports.len() as u8;
                offers.push(*ip, qpn);
            }
        }
        self.ports.push(RailPort { port, qp, qpn, entropy: worker.entropy(port) });
    }

    /// What peers of IPv4 and of IPv6 are told.
    pub fn offers(&self) -> [Rails; 2] {
        self.offers
    }

    /// The further port that the engine calls `rail`, from 1, with peers of the address's family.
    pub fn of(&self, rail: u8, peer: IpAddr) -> Option<&RailPort> {
        let places = self.places.get(usize::from(peer.is_ipv6()))?;
        self.ports.get(usize::from(*places.get(usize::from(rail.checked_sub(1)?))?))
    }

    /// The further port by whose queue pair a packet came.
    pub fn by_via(&self, via: u16) -> Option<&RailPort> {
        self.ports.get(usize::from(via.checked_sub(VIA)?))
    }
}

/// Addresses that mean something on their own link only.
fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The numbers of an endpoint's queue pairs.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    /// The first of those on the first port, which follow one another.
    pub first: Qpn,
    /// How many these are.
    pub count: u16,
    pub rails: &'a RailPorts,
}

impl Numbers<'_> {
    /// Which of the endpoint's queue pairs has a number.
    #[inline]
    pub fn via(self, qpn: Qpn) -> u16 {
        let via = qpn.get().wrapping_sub(self.first.get());
        if via < u32::from(self.count) { via as u16 } else { self.other(qpn) }
    }

    fn other(self, qpn: Qpn) -> u16 {
        let at = self.rails.ports.iter().position(|rail| rail.qpn == qpn);
        at.map_or(u16::MAX, |at| VIA + at as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_far_from_the_first_are_no_queue_pair_of_ours() {
        let rails = RailPorts::default();
        let numbers = Numbers { first: Qpn::new(0x100).unwrap(), count: 2, rails: &rails };
        let via = [0x100, 0x101, 0x102, 0xff, 0x1_0100].map(|qpn| numbers.via(Qpn::new(qpn).unwrap()));
        assert_eq!(via, [0, 1, u16::MAX, u16::MAX, u16::MAX]);
    }
}
