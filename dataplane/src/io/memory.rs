//! Ports within the process: two ends of a cable made of two bounded lock-free queues.
//!
//! It has the API and the refusals of a real port (a full queue leaves packets with the caller, an exhausted pool
//! gives none, a peer that is gone takes the link down), needs no privilege and no DPDK, and so carries the tests that
//! must run anywhere. It stands beside the DPDK IO, never in place of it.

use super::{BURST_ROOM, PacketBuf, PacketBurst, PortInfo, PortIo, PortStats};
use crate::group::{Guest, Share};
use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::Verified;
use std::sync::{Arc, Weak};

/// How a pair of memory ports is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The largest layer 3 packet in bytes.
    pub mtu: u16,
    /// Packets that fit on the way in each direction.
    pub ring: usize,
    /// Buffers of each port.
    pub buffers: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig { mtu: 9000, ring: 1024, buffers: 4096 }
    }
}

type Storage = Box<[u8]>;
type Pool = Arc<ArrayQueue<Storage>>;

/// A buffer of a memory port; goes back to its pool when dropped.
#[derive(Debug)]
pub struct MemoryBuf {
    storage: Option<Storage>,
    len: usize,
    pool: Pool,
    verified: Verified,
}

impl MemoryBuf {
    fn bytes(&self) -> &[u8] {
        self.storage.as_deref().map_or(&[], |s| &s[..self.len])
    }
}

impl Drop for MemoryBuf {
    fn drop(&mut self) {
        if let Some(storage) = self.storage.take() {
            // Every storage came from this pool, so there is room for it.
            let _ = self.pool.push(storage);
        }
    }
}

impl PacketBuf for MemoryBuf {
    fn packet_len(&self) -> usize {
        self.len
    }

    fn contiguous(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }

    fn linearise(&self, out: &mut [u8]) -> usize {
        let n = self.len.min(out.len());
        out[..n].copy_from_slice(&self.bytes()[..n]);
        n
    }

    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let from = self.len;
        let to = from.checked_add(len)?;
        let room = self.storage.as_deref_mut()?.get_mut(from..to)?;
        self.len = to;
        Some(room)
    }

    fn written(&mut self) -> &mut [u8] {
        let len = self.len;
        self.storage.as_deref_mut().and_then(|s| s.get_mut(..len)).unwrap_or_default()
    }

    fn verified(&self) -> Verified {
        self.verified
    }
}

/// A burst of memory buffers.
#[derive(Debug, Default)]
pub struct MemoryBurst(ArrayVec<MemoryBuf, BURST_ROOM>);

impl PacketBurst for MemoryBurst {
    type Buf = MemoryBuf;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Option<&MemoryBuf> {
        self.0.get(index)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut MemoryBuf> {
        self.0.get_mut(index)
    }

    fn push(&mut self, buf: MemoryBuf) -> Result<(), MemoryBuf> {
        self.0.try_push(buf).map_err(|e| e.element())
    }

    fn pop_front(&mut self) -> Option<MemoryBuf> {
        self.0.pop_at(0)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// One end of a cable within the process. The other end's drop takes the link down.
#[derive(Debug)]
pub struct MemoryPort {
    info: PortInfo,
    pool: Pool,
    rx: Arc<ArrayQueue<MemoryBuf>>,
    tx: Arc<ArrayQueue<MemoryBuf>>,
    stats: PortStats,
}

impl MemoryPort {
    /// Two ports joined back to back. Their MAC addresses are locally administered and differ in the last byte.
    ///
    /// Room in a buffer is the MTU and the largest Ethernet header with two VLAN tags.
    pub fn pair(config: &MemoryConfig) -> (MemoryPort, MemoryPort) {
        let a_to_b = Arc::new(ArrayQueue::new(config.ring.max(1)));
        let b_to_a = Arc::new(ArrayQueue::new(config.ring.max(1)));
        (
            MemoryPort::new(config, 0, b_to_a.clone(), a_to_b.clone()),
            MemoryPort::new(config, 1, a_to_b, b_to_a),
        )
    }

    fn new(
        config: &MemoryConfig,
        index: u8,
        rx: Arc<ArrayQueue<MemoryBuf>>,
        tx: Arc<ArrayQueue<MemoryBuf>>,
    ) -> MemoryPort {
        const ETHERNET_WITH_QINQ: usize = 14 + 4 + 4;
        let room = usize::from(config.mtu) + ETHERNET_WITH_QINQ;
        let pool: Pool = Arc::new(ArrayQueue::new(config.buffers.max(1)));
        while pool.push(vec![0; room].into_boxed_slice()).is_ok() {}
        let info = PortInfo {
            name: format!("memory{index}"),
            driver: "memory".to_owned(),
            mac: MacAddr([0x02, 0x53, 0x57, 0, 0, index + 1]),
            mtu: config.mtu,
        };
        MemoryPort { info, pool, rx, tx, stats: PortStats::default() }
    }

    /// The port with another MAC address, for where more than two meet. To be given before a worker has it.
    #[must_use]
    pub fn with_mac(mut self, mac: MacAddr) -> MemoryPort {
        self.info.mac = mac;
        self
    }

    /// Puts a raw frame on the wire towards the other end, as a test or a packet generator does. False if the ring or
    /// the pool is full or the frame does not fit a buffer.
    pub fn inject(&mut self, frame: &[u8]) -> bool {
        self.inject_verified(frame, Verified::default())
    }

    /// The same with a frame whose checksums the port says it has verified, as a NIC does.
    pub fn inject_verified(&mut self, frame: &[u8], verified: Verified) -> bool {
        let Some(mut buf) = self.alloc() else { return false };
        let Some(room) = buf.append(frame.len()) else { return false };
        room.copy_from_slice(frame);
        buf.verified = verified;
        self.tx.push(buf).is_ok()
    }

    /// Takes the next raw frame that the other end sent, past any worker.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.rx.pop().map(|b| b.bytes().to_vec())
    }

    /// Buffers free in this port's pool.
    pub fn free_buffers(&self) -> usize {
        self.pool.len()
    }
}

impl PortIo for MemoryPort {
    type Buf = MemoryBuf;
    type Burst = MemoryBurst;

    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, burst: &mut MemoryBurst, max: usize) -> usize {
        let mut n = 0;
        while n < max && !burst.0.is_full() {
            let Some(buf) = self.rx.pop() else { break };
            self.stats.rx_packets += 1;
            self.stats.rx_bytes += buf.len as u64;
            burst.0.push(buf);
            n += 1;
        }
        n
    }

    fn tx_burst(&mut self, burst: &mut MemoryBurst) -> usize {
        if !self.link_up() {
            return 0;
        }
        let mut held = std::mem::take(&mut burst.0).into_iter();
        let mut taken = 0;
        while let Some(buf) = held.next() {
            let len = buf.len as u64;
            if let Err(buf) = self.tx.push(buf) {
                burst.0.push(buf);
                burst.0.extend(held);
                break;
            }
            self.stats.tx_packets += 1;
            self.stats.tx_bytes += len;
            taken += 1;
        }
        taken
    }

    fn alloc(&mut self) -> Option<MemoryBuf> {
        let storage = self.pool.pop()?;
        Some(MemoryBuf {
            storage: Some(storage),
            len: 0,
            pool: self.pool.clone(),
            verified: Verified::default(),
        })
    }

    fn link_up(&self) -> bool {
        // The peer holds the other reference to each of the two queues.
        Arc::strong_count(&self.tx) > 1
    }

    fn stats(&self) -> PortStats {
        self.stats
    }
}

/// A user of a memory port without a queue of its own.
#[derive(Debug)]
pub struct MemoryGuest {
    pool: Pool,
    tx: Weak<ArrayQueue<MemoryBuf>>,
}

impl Share for MemoryPort {
    type Guest = MemoryGuest;

    fn guest(&self) -> MemoryGuest {
        MemoryGuest { pool: self.pool.clone(), tx: Arc::downgrade(&self.tx) }
    }
}

impl Guest for MemoryGuest {
    type Buf = MemoryBuf;

    fn alloc(&mut self) -> Option<MemoryBuf> {
        let storage = self.pool.pop()?;
        Some(MemoryBuf {
            storage: Some(storage),
            len: 0,
            pool: self.pool.clone(),
            verified: Verified::default(),
        })
    }

    fn link_up(&self) -> bool {
        self.tx.strong_count() > 1
    }

    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (MemoryPort, MemoryPort) {
        MemoryPort::pair(&MemoryConfig { mtu: 100, ring: 2, buffers: 4 })
    }

    fn filled(port: &mut MemoryPort, tag: u8) -> MemoryBuf {
        let mut buf = port.alloc().unwrap();
        buf.append(1).unwrap()[0] = tag;
        buf
    }

    #[test]
    fn a_full_ring_leaves_the_rest_with_the_caller_in_order() {
        let (mut a, mut b) = small();
        let mut burst = MemoryBurst::default();
        for tag in 0..4 {
            burst.push(filled(&mut a, tag)).unwrap();
        }
        assert_eq!(a.tx_burst(&mut burst), 2);
        let left: Vec<u8> = (0..burst.len()).map(|i| burst.get(i).unwrap().bytes()[0]).collect();
        assert_eq!(left, [2, 3]);
        assert_eq!(b.take().unwrap(), [0]);
        assert_eq!(b.take().unwrap(), [1]);
        assert_eq!(a.stats().tx_packets, 2, "sent counts only what the ring took");
    }

    #[test]
    fn an_exhausted_pool_gives_none_and_recovers_when_buffers_return() {
        let (mut a, _b) = small();
        let held: Vec<_> = std::iter::from_fn(|| a.alloc()).collect();
        assert_eq!(held.len(), 4);
        assert!(a.alloc().is_none());
        drop(held);
        assert_eq!(a.free_buffers(), 4);
    }

    #[test]
    fn no_room_is_refused_without_a_change() {
        let (mut a, _b) = small();
        let mut buf = a.alloc().unwrap();
        assert!(buf.append(123).is_none());
        assert!(buf.append(usize::MAX).is_none());
        assert_eq!(buf.append(122).unwrap().len(), 122);
        assert_eq!(buf.packet_len(), 122);
    }

    #[test]
    fn the_link_goes_down_with_the_peer_and_packets_stay() {
        let (mut a, b) = small();
        assert!(a.link_up());
        let mut burst = MemoryBurst::default();
        burst.push(filled(&mut a, 7)).unwrap();
        drop(b);
        assert!(!a.link_up());
        assert_eq!(a.tx_burst(&mut burst), 0);
        assert_eq!(burst.len(), 1);
    }

    #[test]
    fn buffers_of_a_dropped_peer_are_not_leaked() {
        let (mut a, mut b) = small();
        assert!(b.inject(&[1, 2, 3]));
        let mut burst = MemoryBurst::default();
        assert_eq!(a.rx_burst(&mut burst, BURST_ROOM), 1);
        drop(b);
        assert_eq!(burst.get(0).unwrap().bytes(), [1, 2, 3]);
        burst.clear();
        assert!(burst.is_empty());
    }
}
