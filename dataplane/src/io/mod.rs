//! Packet IO in terms of bursts and capabilities.
//!
//! A [`PortIo`] is one receive queue and one transmit queue of one port, with the buffers that go with them. The
//! worker is generic over it (static dispatch), so the same poll loop runs over a DPDK port and over the in-process
//! [`memory`] port.

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod memory;
mod watch;

pub use watch::{PortState, PortWatch};

use crate::group::MemberCounters;
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::Verified;

/// The most packets that one receive or transmit burst moves: twice what DPDK's own examples take, since what a burst costs
/// beside its packets is a good part of the cost of small ones.
pub const BURST: usize = 64;

/// Places in a transmit burst that sends leave free, for what the port itself has to say: a sender at full rate, whose burst
/// is never empty, must still answer those who ask for its address, or they take it for gone.
pub const CONTROL_ROOM: usize = 4;

/// Packets that a burst holds.
pub const BURST_ROOM: usize = BURST + CONTROL_ROOM;

/// Packets that are worth a burst whatever their length.
pub const LEAST_BURST: usize = 16;

/// Bytes of a burst of larger frames: they stay in the nearer caches from one look at the packets to the next.
const BURST_BYTES: usize = 64 * 1024;

/// Packets of `frame_len` bytes that make a good burst: a power of two, as drivers work in steps of 4, 8 or 32.
#[inline]
pub const fn burst_of(frame_len: usize) -> usize {
    let fit = BURST_BYTES / if frame_len == 0 { 1 } else { frame_len };
    if fit < LEAST_BURST {
        LEAST_BURST
    } else if fit > BURST {
        BURST
    } else {
        1 << fit.ilog2()
    }
}

/// One packet buffer, owned. Dropping it gives it back to where it came from.
pub trait PacketBuf: Send {
    /// Bytes in the packet, over all its segments.
    fn packet_len(&self) -> usize;

    /// The whole packet if it lies in one piece, otherwise `None` (a chained buffer).
    fn contiguous(&self) -> Option<&[u8]>;

    /// Copies the packet, segment by segment, to the front of `out`; returns the bytes copied: the smaller of the
    /// packet's and `out`'s length.
    fn linearise(&self, out: &mut [u8]) -> usize;

    /// Appends `len` bytes to a buffer fresh from [`PortIo::alloc`] and returns them for writing (their content is
    /// whatever was there before). `None` if the buffer has no room for that many.
    fn append(&mut self, len: usize) -> Option<&mut [u8]>;

    /// What was appended so far to a buffer from [`PortIo::alloc`], for writing.
    fn written(&mut self) -> &mut [u8];

    /// The checksums of a received packet that the port has verified and found right.
    #[inline]
    fn verified(&self) -> Verified {
        Verified::default()
    }
}

/// A queue of at most [`BURST_ROOM`] packets, in order.
pub trait PacketBurst: Default + Send {
    /// The buffer type it holds.
    type Buf: PacketBuf;

    /// Packets held.
    fn len(&self) -> usize;

    /// True when it holds no packet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True when no further packet fits.
    fn is_full(&self) -> bool {
        self.len() >= BURST_ROOM
    }

    /// The packet at `index`, counted from the front.
    fn get(&self, index: usize) -> Option<&Self::Buf>;

    /// The same for writing.
    fn get_mut(&mut self, index: usize) -> Option<&mut Self::Buf>;

    /// Appends a packet; gives it back if the burst is full.
    fn push(&mut self, buf: Self::Buf) -> Result<(), Self::Buf>;

    /// Takes the packet at the front.
    fn pop_front(&mut self) -> Option<Self::Buf>;

    /// Frees every packet, in bulk where the IO can.
    fn clear(&mut self);
}

/// What a port is and can do. Fixed while the port is open, except for the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The port's name, as its IO knows it.
    pub name: String,
    /// Name of the driver behind it (`net_memif`, `memory`, …).
    pub driver: String,
    /// The port's own MAC address.
    pub mac: MacAddr,
    /// The largest layer 3 packet that it carries, in bytes, as read back from the driver.
    pub mtu: u16,
}

/// What the port itself counted since it was opened: the driver's figures, not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received, without FCS.
    pub rx_bytes: u64,
    /// Packets that the port dropped because no descriptor was free.
    pub rx_missed: u64,
    /// Packets received in error.
    pub rx_errors: u64,
    /// Receive buffer allocations that failed.
    pub rx_no_mbuf: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent, without FCS.
    pub tx_bytes: u64,
    /// Packets that failed to be sent.
    pub tx_errors: u64,
}

/// One receive and one transmit queue of a port.
pub trait PortIo: Send {
    /// Its packet buffers.
    type Buf: PacketBuf;
    /// Its bursts.
    type Burst: PacketBurst<Buf = Self::Buf>;

    /// What the port is.
    fn info(&self) -> &PortInfo;

    /// Receives up to `max` packets behind those that `burst` holds, as far as it has room; returns how many came.
    fn rx_burst(&mut self, burst: &mut Self::Burst, max: usize) -> usize;

    /// Offers the packets of `burst`, front first, to the port. Those it took are gone from the burst, the others stay
    /// with the caller, in order. Returns how many were taken.
    fn tx_burst(&mut self, burst: &mut Self::Burst) -> usize;

    /// An empty buffer to send from; `None` when the pool is exhausted, which is back-pressure and not an error.
    fn alloc(&mut self) -> Option<Self::Buf>;

    /// Whether the link is up. May cost a call into the driver: not for the fast path.
    fn link_up(&self) -> bool;

    /// The same, where a port can also go away for good.
    fn state(&self) -> PortState {
        if self.link_up() { PortState::Up } else { PortState::Down }
    }

    /// Tries to bring up a link that is down and does not come up by itself; true if that is under way now, so that it should
    /// be given a second. May take some milliseconds.
    fn recover(&mut self) -> bool {
        false
    }

    /// The driver's own counters. Not for the fast path.
    fn stats(&self) -> PortStats;

    /// Packets that it received and dropped, since those whose they were took none. Not for the fast path.
    fn undelivered(&self) -> u64 {
        0
    }

    /// What passed through the queue, where several workers share the port; its driver only counts for all queues together. Not
    /// for the fast path.
    fn queue(&self) -> Option<MemberCounters> {
        None
    }

    /// Packets moved since the last call on behalf of others than the caller: work, though nothing was received or sent.
    #[inline]
    fn take_relayed(&mut self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_as_large_as_the_cache_allows() {
        assert_eq!([0, 64, 1024].map(burst_of), [64; 3]);
        assert_eq!([1090, 2048].map(burst_of), [32; 2]);
        assert_eq!([2049, 4160, 9000].map(burst_of), [16; 3]);
    }
}
