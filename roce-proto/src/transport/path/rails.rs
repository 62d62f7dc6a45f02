//! Several ports of an endpoint: rails, on which its paths take turns.
//!
//! Path *p* leaves from the sender's rail *p* modulo their number, and goes to the receiver's rail *p* modulo theirs. So where both sides have as
//! many, rail goes to rail, as networks are built that have one plane for each; and where the numbers differ, every pair that there are paths
//! for is used.

use super::health::TIMEOUT;
use crate::transport::api::{Address, SessionKey, Way};
use crate::transport::engine::Engine;
use crate::wire::shim::Rails;
use core::net::IpAddr;

impl Engine {
    /// Whether a session's peer, or this side, has several ports.
    pub(in crate::transport) fn has_rails(&self, slot: u32) -> bool {
        self.rails.get(slot as usize).is_some_and(|rails| !rails.is_empty())
            || self.config.rails.iter().any(|rails| !rails.is_empty())
    }

    /// The further ports that a session has on this side. Only the first queue pair has some.
    pub(in crate::transport) fn own_rails(&self, slot: u32) -> Rails {
        let peer = &self.sessions[slot].peer;
        let [v4, v6] = self.config.rails;
        match peer.ip {
            _ if peer.via > 0 => Rails::NONE,
            IpAddr::V4(_) => v4,
            IpAddr::V6(_) => v6,
        }
    }

    /// The peer told of its further ports. What goes over others than both first ones is only probed until an answer comes: nobody has shown yet
    /// that there is such a way, or that whoever is there wants anything.
    pub(in crate::transport) fn know_rails(&mut self, slot: u32, rails: &Rails) {
        if !rails.is_empty() && self.rails.len() <= slot as usize {
            // Within the capacity that was reserved.
            self.rails.resize(slot as usize + 1, Rails::NONE);
        }
        // The session that was there before may have had some.
        if let Some(place) = self.rails.get_mut(slot as usize) {
            *place = *rails;
        }
        let (own, theirs) = self.rail_counts(slot);
        for path in 1..self.sessions[slot].paths {
            if path % own > 0 || path % theirs > 0 {
                let tx = &mut self.path_mut(slot, path).tx;
                tx.penalty = TIMEOUT;
                tx.trial = tx.next;
                self.probe_later(slot, path);
            }
        }
    }

    /// How many further ports the peer has.
    fn their_rails(&self, slot: u32) -> u8 {
        self.rails.get(slot as usize).map_or(0, Rails::len)
    }

    /// Whether one of a peer's further ports has an address.
    #[inline(never)]
    pub(in crate::transport) fn is_rail(&self, slot: u32, from: &Address) -> bool {
        self.rails
            .get(slot as usize)
            .is_some_and(|rails| rails.iter().any(|rail| rail == (from.ip, from.qpn)))
    }

    /// A path by which a session begins: from the first port to the first port, by which the sides know each other.
    pub(in crate::transport) fn opening_path(&self, slot: u32) -> u8 {
        let (own, theirs) = self.rail_counts(slot);
        let reply = self.sessions[slot].reply;
        (0..=reply).rev().find(|path| path % own == 0 && path % theirs == 0).unwrap_or(0)
    }

    /// Ports of both sides, the first included.
    fn rail_counts(&self, slot: u32) -> (u8, u8) {
        (self.own_rails(slot).len() + 1, self.their_rails(slot) + 1)
    }

    /// From where to where a path of a session leads; none if the session is gone.
    #[inline]
    pub fn way(&self, session: SessionKey, path: u8) -> Option<Way> {
        let slot = self.slot_of(session)?;
        let s = &self.sessions[slot];
        let Address { ip, qpn, via } = s.peer;
        let first = Way { rail: 0, ip, qpn, via };
        if self.rails.is_empty() && self.config.rails[0].is_empty() && self.config.rails[1].is_empty() {
            return Some(first);
        }
        Some(self.rail_way(slot, path, first))
    }

    #[inline(never)]
    fn rail_way(&self, slot: u32, path: u8, first: Way) -> Way {
        let (own, theirs) = self.rail_counts(slot);
        let rail = path % own;
        let there = (path % theirs).checked_sub(1);
        match there.and_then(|at| self.rails.get(slot as usize)?.get(at)) {
            Some((ip, qpn)) => Way { rail, ip, qpn, ..first },
            None => Way { rail, ..first },
        }
    }
}
