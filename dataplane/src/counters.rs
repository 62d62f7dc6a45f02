//! One counter per fate of a packet. Every packet that a port receives ends in exactly one of them.

use roce_proto::wire::RejectReason;
use std::fmt;

macro_rules! local_reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Why the endpoint dropped a well-formed packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum LocalDrop { $($(#[$doc])* $variant,)* }

        impl LocalDrop {
            /// Every reason.
            pub const ALL: &'static [LocalDrop] = &[$(LocalDrop::$variant,)*];

            /// Its name in counters and reports.
            pub fn name(self) -> &'static str {
                match self { $(LocalDrop::$variant => $name,)* }
            }
        }
    };
}

local_reasons! {
    /// Addressed to another station (seen in promiscuous mode or flooded by a bridge).
    ForeignMac => "foreign_mac",
    /// Of another VLAN than the port's, or of none.
    Vlan => "vlan",
    /// It claims one of the port's own IP addresses for another station.
    DuplicateAddress => "duplicate_address",
    /// The destination IP address is not one of the port's.
    ForeignIp => "foreign_ip",
    /// The source IP address is one that no host on a network has: unspecified, loopback, multicast, broadcast, an IPv4 address in IPv6 form
    /// (RFC 1122, 3.2.1.3; RFC 4291, 2.5 and 2.7).
    SourceIp => "source_ip",
    /// The invariant CRC is wrong.
    Icrc => "icrc",
    /// No queue pair has this number on this port.
    UnknownQpn => "unknown_qpn",
    /// The P_Key does not match the queue pair's.
    PKey => "pkey",
    /// The Q_Key is not the queue pair's.
    QKey => "qkey",
    /// The queue pair is not in a state that receives.
    QpState => "qp_state",
    /// No receive was posted.
    NoReceive => "no_receive",
    /// The completion queue had no free place.
    CqFull => "cq_full",
    /// The posted receive buffer was too short; the receive completed in error.
    ShortBuffer => "short_buffer",
    /// An answer (ARP, neighbour discovery, echo) was due and the port had no room for it.
    NoReplyRoom => "no_reply_room",
    /// A chained packet longer than the largest frame that we take.
    Oversize => "oversize",
}

/// A reason for which a received packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is malformed or of a kind that we refuse.
    Wire(RejectReason),
    /// The packet is well-formed, and not deliverable here.
    Local(LocalDrop),
}

impl DropReason {
    /// Every reason there is, malformed packets first.
    pub fn all() -> impl Iterator<Item = DropReason> {
        let wire = RejectReason::ALL.iter().map(|&r| DropReason::Wire(r));
        wire.chain(LocalDrop::ALL.iter().map(|&r| DropReason::Local(r)))
    }

    /// Its name in counters and reports.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Wire(r) => r.name(),
            DropReason::Local(r) => r.name(),
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const WIRE: usize = RejectReason::ALL.len();
const LOCAL: usize = LocalDrop::ALL.len();

/// What one port of one worker did. Plain integers, owned by the worker's thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Packets that the IO handed us.
    pub rx_packets: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// UD messages delivered into a posted receive.
    pub delivered: u64,
    /// Their payload bytes.
    pub delivered_bytes: u64,
    /// ARP and neighbour discovery packets taken note of or answered.
    pub neighbour: u64,
    /// Echo requests answered, and answers to our own.
    pub echo: u64,
    /// Well-formed packets of no concern to us (other protocols and ports).
    pub ignored: u64,
    /// UD packets that the driver took.
    pub tx_packets: u64,
    /// Their bytes, without FCS.
    pub tx_bytes: u64,
    /// ARP, neighbour discovery and echo packets that the driver took.
    pub tx_control: u64,
    /// Posts refused because the port took no more packets.
    pub tx_busy: u64,
    /// Posts refused because the buffer pool was exhausted.
    pub tx_no_buffer: u64,
    /// Times that the link went down, or the port away.
    pub link_lost: u64,
    /// Times that the link came up.
    pub link_back: u64,
    wire: [u64; WIRE],
    local: [u64; LOCAL],
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            rx_packets: 0,
            rx_bytes: 0,
            delivered: 0,
            delivered_bytes: 0,
            neighbour: 0,
            echo: 0,
            ignored: 0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_control: 0,
            tx_busy: 0,
            tx_no_buffer: 0,
            link_lost: 0,
            link_back: 0,
            wire: [0; WIRE],
            local: [0; LOCAL],
        }
    }
}

impl Counters {
    /// Counts a dropped packet.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        match reason {
            DropReason::Wire(r) => self.wire[r as usize] += 1,
            DropReason::Local(r) => self.local[r as usize] += 1,
        }
    }

    /// Packets dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        match reason {
            DropReason::Wire(r) => self.wire[r as usize],
            DropReason::Local(r) => self.local[r as usize],
        }
    }

    /// The reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::all().map(|r| (r, self.dropped(r))).filter(|&(_, n)| n > 0)
    }

    /// Packets dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.wire.iter().chain(&self.local).sum()
    }

    /// Packets whose fate is known. Equals [`Counters::rx_packets`] whenever the worker is between two polls.
    pub fn accounted(&self) -> u64 {
        self.delivered + self.neighbour + self.echo + self.ignored + self.dropped_total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_reason_has_its_own_counter_and_name() {
        let names: HashSet<_> = DropReason::all().map(DropReason::name).collect();
        assert_eq!(names.len(), WIRE + LOCAL, "two reasons share a name");
        let mut counters = Counters::default();
        for (i, reason) in DropReason::all().enumerate() {
            for _ in 0..=i {
                counters.drop(reason);
            }
        }
        for (i, reason) in DropReason::all().enumerate() {
            assert_eq!(counters.dropped(reason), i as u64 + 1, "{reason}");
        }
        let n = (WIRE + LOCAL) as u64;
        assert_eq!(counters.dropped_total(), n * (n + 1) / 2);
        assert_eq!(counters.accounted(), counters.dropped_total());
    }
}
