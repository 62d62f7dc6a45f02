//! A queue pair of a DPDK port.

use super::{BURST, BURST_ROOM, PacketBuf, PacketBurst, PortInfo, PortIo, PortState, PortStats};
use crate::group::{CROSSING, Guest, Share};
use dpdk::{Burst, Eal, Mbuf, Mempool, MempoolError, Port, PortError, RxQueue, TxQueue};
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::Verified;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// How a port is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkPortConfig {
    /// Name, MAC address or PCI address of a port that DPDK has.
    pub selector: String,
    /// The largest layer 3 packet in bytes; `None` keeps the port's own.
    pub mtu: Option<u16>,
    /// Receive and transmit descriptors.
    pub descriptors: u16,
    /// Packet buffers behind the descriptors. They are taken last in, first out, so that few of them stay hot.
    pub spare_buffers: u32,
    /// Take packets for other stations too.
    pub promiscuous: bool,
}

impl DpdkPortConfig {
    /// The port that `selector` names, with its own MTU and DPDK's usual 1024 descriptors.
    pub fn new(selector: &str) -> DpdkPortConfig {
        DpdkPortConfig {
            selector: selector.to_owned(),
            mtu: None,
            descriptors: 1024,
            spare_buffers: 2048,
            promiscuous: false,
        }
    }
}

/// Why a port was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The port refused.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The buffers could not be had.
    #[error(transparent)]
    Pool(#[from] MempoolError),
    /// No buffer can hold that MTU.
    #[error("an MTU of {0} bytes does not fit one packet buffer: lower it with --mtu")]
    Mtu(u16),
    /// The driver gave no queue.
    #[error("port {0} has no receive or no transmit queue")]
    NoQueue(String),
}

/// Buffers in the per-thread cache of a pool: DPDK's own largest default of 512 halves the trips to the shared ring of 256
/// at no cost in memory worth mentioning.
const CACHE: u32 = 512;

/// One receive and one transmit queue of a DPDK port, with its buffers.
pub struct DpdkPort {
    info: PortInfo,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    /// Buffers taken from the pool in bulk, for [`PortIo::alloc`].
    stash: Burst<BURST>,
    port: Arc<Port>,
    /// [`Port::losses`] at the last look.
    losses: Cell<u64>,
}

impl DpdkPort {
    /// Opens the first queues of a port. The MTU is set, read back, and what the buffers hold.
    ///
    /// # Errors
    /// What the port or its driver refuses, and memory that does not suffice.
    pub fn open(eal: &Eal, config: &DpdkPortConfig) -> Result<DpdkPort, OpenError> {
        let mut queues = DpdkPort::open_queues(eal, config, 1)?;
        match queues.pop() {
            Some(queue) => Ok(queue),
            None => Err(OpenError::NoQueue(config.selector.clone())),
        }
    }

    /// Opens `queues` queue pairs of a port, each with buffers of its own on the port's NUMA node. Where the port can, it spreads
    /// what it receives by IP addresses and UDP ports (see [`Port::rss`]); otherwise its driver or the sender chooses the queue.
    ///
    /// # Errors
    /// More queues than the port has, what the port or its driver refuses, and memory that does not suffice.
    pub fn open_queues(eal: &Eal, config: &DpdkPortConfig, queues: u16) -> Result<Vec<DpdkPort>, OpenError> {
        let id = eal.find(&config.selector)?;
        let found = eal.port(id)?;
        let mtu = config.mtu.unwrap_or(found.mtu);
        let room = Mempool::data_room_for_port(eal, &found, mtu).ok_or(OpenError::Mtu(mtu))?;
        // What lies in the caches of the other queues' threads, and what waits between them.
        let others = u32::from(queues).saturating_sub(1);
        let away = others * (CACHE + CACHE / 2) + others.min(1) * CROSSING as u32;
        let count = 2 * u32::from(config.descriptors) + config.spare_buffers + 2 * CACHE + away;
        let pools: Vec<Mempool> = (0..queues)
            .map(|_| Mempool::new(eal, &found.name, count, CACHE, room, found.socket))
            .collect::<Result<_, _>>()?;
        let port_config = dpdk::PortConfig {
            rx_queues: queues,
            tx_queues: queues,
            rx_desc: config.descriptors,
            tx_desc: config.descriptors,
            mtu: config.mtu,
            promiscuous: config.promiscuous,
            ..dpdk::PortConfig::default()
        };
        let (port, rx, tx) = Port::start(eal, id, &port_config, &pools)?;
        let info = PortInfo { name: found.name, driver: found.driver, mac: mac_of(&port), mtu: port.mtu() };
        let port = Arc::new(port);
        let made = rx.into_iter().zip(tx).zip(pools).map(|((rx, tx), pool)| DpdkPort {
            info: info.clone(),
            rx,
            tx,
            pool,
            stash: Burst::new(),
            losses: Cell::new(port.losses()),
            port: port.clone(),
        });
        Ok(made.collect())
    }

    /// The port below, for its link and its counters.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The pool that sends are built in.
    pub fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Waits until the link is up; an error after `limit`.
    pub fn wait_link(&self, limit: Duration) -> Result<(), PortError> {
        self.port.wait_link(limit).map(drop)
    }
}

/// A user of a DPDK port without a queue of its own.
pub struct DpdkGuest {
    pool: Mempool,
    stash: Burst<BURST>,
    port: Arc<Port>,
}

impl Share for DpdkPort {
    type Guest = DpdkGuest;

    fn guest(&self) -> DpdkGuest {
        DpdkGuest { pool: self.pool.clone(), stash: Burst::new(), port: self.port.clone() }
    }
}

impl Guest for DpdkGuest {
    type Buf = Mbuf;

    #[inline]
    fn alloc(&mut self) -> Option<Mbuf> {
        take_one(&mut self.stash, &self.pool)
    }

    fn link_up(&self) -> bool {
        link_of(&self.port)
    }

    fn state(&self) -> PortState {
        state_of(&self.port)
    }

    fn stats(&self) -> PortStats {
        stats_of(&self.port)
    }
}

/// A buffer from `stash`, which is filled from `pool` in bulk.
#[inline(always)]
fn take_one(stash: &mut Burst<BURST>, pool: &Mempool) -> Option<Mbuf> {
    if stash.is_empty() {
        pool.alloc_bulk(stash, BURST);
    }
    stash.pop_back()
}

fn link_of(port: &Port) -> bool {
    port.link().is_ok_and(|link| link.up)
}

fn state_of(port: &Port) -> PortState {
    match port.link() {
        Ok(link) if link.up => PortState::Up,
        Err(PortError::InterfaceGone { .. } | PortError::Gone(_)) => PortState::Gone,
        Ok(_) | Err(_) => PortState::Down,
    }
}

fn stats_of(port: &Port) -> PortStats {
    let Ok(s) = port.stats() else { return PortStats::default() };
    PortStats {
        rx_packets: s.rx_packets,
        rx_bytes: s.rx_bytes,
        rx_missed: s.rx_missed,
        rx_errors: s.rx_errors,
        rx_no_mbuf: s.rx_no_mbuf,
        tx_packets: s.tx_packets,
        tx_bytes: s.tx_bytes,
        tx_errors: s.tx_errors,
    }
}

/// The port's MAC address. Ports of memory may have none (`net_ring`), and everybody refuses to talk to address zero: those get
/// a locally administered one that tells them apart within the process.
fn mac_of(port: &Port) -> MacAddr {
    let mac = MacAddr(port.mac().0);
    let [high, low] = port.id().index().to_be_bytes();
    if mac.is_zero() { MacAddr([0x02, b's', b'p', b'w', high, low]) } else { mac }
}

impl PacketBuf for Mbuf {
    #[inline]
    fn packet_len(&self) -> usize {
        self.pkt_len()
    }

    #[inline]
    fn contiguous(&self) -> Option<&[u8]> {
        self.is_contiguous().then(|| self.data())
    }

    fn linearise(&self, out: &mut [u8]) -> usize {
        self.copy_to_slice(0, out)
    }

    #[inline(always)]
    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        Mbuf::append(self, len)
    }

    #[inline]
    fn written(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    #[inline]
    fn verified(&self) -> Verified {
        let (ip, udp) = self.good_checksums();
        Verified { ip, udp }
    }
}

impl PacketBurst for Burst<BURST_ROOM> {
    type Buf = Mbuf;

    #[inline]
    fn len(&self) -> usize {
        Burst::len(self)
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&Mbuf> {
        self.as_slice().get(index)
    }

    #[inline]
    fn get_mut(&mut self, index: usize) -> Option<&mut Mbuf> {
        self.as_mut_slice().get_mut(index)
    }

    #[inline(always)]
    fn push(&mut self, buf: Mbuf) -> Result<(), Mbuf> {
        Burst::push(self, buf)
    }

    #[inline]
    fn pop_front(&mut self) -> Option<Mbuf> {
        Burst::pop_front(self)
    }

    #[inline]
    fn clear(&mut self) {
        Burst::clear(self);
    }
}

impl PortIo for DpdkPort {
    type Buf = Mbuf;
    type Burst = Burst<BURST_ROOM>;

    fn info(&self) -> &PortInfo {
        &self.info
    }

    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<BURST_ROOM>, max: usize) -> usize {
        self.rx.rx_burst_of(burst, max)
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<BURST_ROOM>) -> usize {
        self.tx.tx_burst(burst)
    }

    #[inline(always)]
    fn alloc(&mut self) -> Option<Mbuf> {
        take_one(&mut self.stash, &self.pool)
    }

    fn link_up(&self) -> bool {
        link_of(&self.port)
    }

    fn state(&self) -> PortState {
        let losses = self.port.losses();
        // A link that went down and came up between two looks is seen as down in one of them.
        let lost = self.losses.replace(losses) != losses;
        match state_of(&self.port) {
            PortState::Up if lost => PortState::Down,
            state => state,
        }
    }

    fn recover(&mut self) -> bool {
        // Of the workers on one port, one.
        if self.rx.index() != 0 {
            return false;
        }
        match self.port.reconnect() {
            Ok(()) => self.port.is_memif_client(),
            Err(e) => {
                tracing::debug!("{e}");
                false
            }
        }
    }

    fn stats(&self) -> PortStats {
        stats_of(&self.port)
    }
}
