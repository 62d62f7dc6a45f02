//! Starting and stopping a port.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk_sys::rte_eth_conf;

use crate::af_packet;
use crate::control::{self, Gate, Mark};
use crate::eal::Eal;
use crate::error::PortError;
use crate::info::{self, Link, Mac, PortId, PortInfo, Rss};
use crate::kernel::{Interface, InterfaceState};
use crate::log;
use crate::memif;
use crate::mempool::{HEADROOM, Mempool};
use crate::queue::{RxQueue, TxQueue};
use crate::stats::{self, PortStats};
use crate::tap;

/// How to start a port.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Receive queues; with more than one, the device spreads packets by addresses and UDP ports.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of each receive queue; the driver may round it.
    pub rx_desc: u16,
    /// Descriptors of each transmit queue; the driver may round it.
    pub tx_desc: u16,
    /// MTU in bytes: of the Ethernet payload, without header and checksum. The present one if none.
    pub mtu: Option<u16>,
    /// Whether a received frame may be spread over several mbufs, if the driver can. Otherwise the largest frame must fit
    /// one buffer.
    pub scatter: bool,
    /// Receive what is meant for other MAC addresses too.
    pub promiscuous: bool,
    /// Receive every multicast: IPv6 neighbour discovery needs it, unless the port is promiscuous.
    pub all_multicast: bool,
}

impl Default for PortConfig {
    fn default() -> Self {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            rx_desc: 1024,
            tx_desc: 1024,
            mtu: None,
            scatter: false,
            promiscuous: false,
            all_multicast: true,
        }
    }
}

/// Bytes of the largest frame of an MTU: Ethernet header, checksum, and two VLAN tags of 4 bytes (IEEE 802.1ad).
pub const fn frame_room(mtu: u16) -> u32 {
    mtu as u32 + dpdk_sys::SPW_ETHER_OVERHEAD + 2 * 4
}

/// A started port. It stops when it and all its queues are gone.
#[derive(Debug)]
pub struct Port {
    started: Arc<Started>,
}

/// A device that runs, shared by the port and its queues.
pub(crate) struct Started {
    eal: Eal,
    id: PortId,
    mtu: u16,
    mac: Mac,
    /// See [`crate::control`].
    unmaps: bool,
    client: bool,
    /// Shut while the device is started again.
    gate: Arc<Gate>,
    /// The interface of the kernel below, and the name that it had at the start.
    interface: Option<(Interface, String)>,
    /// The device receives into these.
    _pools: Vec<Mempool>,
}

impl Started {
    pub(crate) fn id(&self) -> PortId {
        self.id
    }

    /// A mark for a new queue, if its polls must be waited for.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.unmaps.then(|| Mark::new(&self.gate))
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started")
            .field("id", &self.id)
            .field("mac", &self.mac)
            .field("mtu", &self.mtu)
            .finish()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let id = self.id.index();
        // SAFETY: the last queue is gone, so nothing polls the port.
        let stop = move || unsafe { dpdk_sys::rte_eth_dev_stop(id) };
        let ret = if self.unmaps { control::run(stop) } else { stop() };
        if ret != 0 {
            tracing::warn!(port = %self.id, error = -ret, "the port did not stop");
        }
        self.eal.release(self.id);
    }
}

impl Port {
    /// Configures and starts a port. `pools` feed the receive queues: one for all of them, or one for each.
    ///
    /// The MTU is set and read back, except on drivers that have none ([`PortInfo::mtu_enforced`]).
    ///
    /// # Errors
    /// If the port is in use, cannot have what is asked for, or its driver fails. The numbers are in the error.
    pub fn start(
        eal: &Eal,
        id: PortId,
        config: &PortConfig,
        pools: &[Mempool],
    ) -> Result<(Port, Vec<RxQueue>, Vec<TxQueue>), PortError> {
        let info = info::read(id)?;
        if config.rx_queues > info.max_rx_queues || config.tx_queues > info.max_tx_queues {
            return Err(PortError::Queues {
                port: id,
                rx: config.rx_queues,
                tx: config.tx_queues,
                max_rx: info.max_rx_queues,
                max_tx: info.max_tx_queues,
            });
        }
        if config.rx_queues > 0 && pools.len() != 1 && pools.len() != usize::from(config.rx_queues) {
            return Err(PortError::Pools { pools: pools.len(), queues: config.rx_queues });
        }
        let mtu = config.mtu.unwrap_or(info.mtu);
        check_kernel(eal, &info, mtu)?;
        if mtu < info.min_mtu || mtu > info.max_mtu {
            return Err(PortError::Mtu { port: id, mtu, min: info.min_mtu, max: info.max_mtu });
        }
        let scatter = check_room(&info, mtu, config, pools)?;
        check_memif(eal, &info, mtu)?;
        if !eal.claim(id) {
            return Err(PortError::Busy(id));
        }
        log::clear_errors();
        let bring_up = || bring_up(&info, mtu, scatter, config, pools);
        let up = if tap::is_tap(&info.driver) { tap::without_signals(bring_up) } else { bring_up() };
        if let Err(error) = up {
            eal.release(id);
            return Err(error);
        }
        let started = Arc::new(Started {
            eal: eal.clone(),
            id,
            mtu,
            mac: info.mac,
            unmaps: info::traits(&info.driver).unmaps,
            client: memif::is_client(&devargs(eal, &info)),
            gate: Arc::new(Gate::new(id)),
            interface: info
                .interface
                .and_then(|interface| Some((Interface::by_index(interface.index)?, interface.name))),
            _pools: pools.to_vec(),
        });
        let rx = (0..config.rx_queues).map(|queue| RxQueue::new(&started, queue)).collect();
        let tx = (0..config.tx_queues).map(|queue| TxQueue::new(&started, queue)).collect();
        Ok((Port { started }, rx, tx))
    }

    /// Its number.
    pub fn id(&self) -> PortId {
        self.started.id
    }

    /// Its MAC address.
    pub fn mac(&self) -> Mac {
        self.started.mac
    }

    /// Its MTU in bytes, as read back from the driver.
    pub fn mtu(&self) -> u16 {
        self.started.mtu
    }

    /// Whether it is the side of a memif pair that connects. It does so when it starts, and at no other time: a link that
    /// does not come up by itself within moments, because the server was not ready or refused, needs the port to be
    /// started again.
    pub fn is_memif_client(&self) -> bool {
        self.started.client
    }

    /// What is known of it.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn info(&self) -> Result<PortInfo, PortError> {
        info::read(self.started.id)
    }

    /// State of the link, without waiting. On an interface of the kernel it is up only if that is.
    ///
    /// # Errors
    /// [`PortError::InterfaceGone`] if the interface of the kernel is no more; or if the driver does not tell.
    pub fn link(&self) -> Result<Link, PortError> {
        let link = info::link(self.started.id)?;
        match self.interface_state() {
            None | Some((InterfaceState::Up, _)) => Ok(link),
            Some((InterfaceState::Down | InterfaceState::NoCarrier, _)) => Ok(Link { up: false, ..link }),
            Some((InterfaceState::Gone, name)) => {
                Err(PortError::InterfaceGone { port: self.started.id, interface: name.to_owned() })
            }
        }
    }

    /// A number that grows whenever the other side goes away, where the driver tells: how a look at the link finds out that
    /// somebody else is there since the last one. Elsewhere it stays 0.
    pub fn losses(&self) -> u64 {
        self.started.gate.losses()
    }

    fn interface_state(&self) -> Option<(InterfaceState, &str)> {
        let (interface, name) = self.started.interface.as_ref()?;
        Some((interface.state(), name))
    }

    /// Tries to bring a link up again that does not come up by itself: the client of a memif pair connects when it is
    /// started, so it is started again. Queues that are polled meanwhile, by whomever, find nothing and take nothing. On
    /// other ports there is nothing to do.
    ///
    /// Success means that the other side was there; the link comes up moments later, or not at all if it refuses. Takes a
    /// millisecond or a few, not to be called more often than a few times a second, nor on DPDK's control thread.
    ///
    /// # Errors
    /// [`PortError::NoPeer`] if the other side is not there.
    pub fn reconnect(&self) -> Result<(), PortError> {
        let Started { id, client, gate, .. } = &*self.started;
        if !client {
            return Ok(());
        }
        let shut = gate.shut();
        log::clear_errors();
        let port = id.0;
        // SAFETY: the gate is shut and every poll that was under way has ended; queues stay set up over a stop.
        let ret = unsafe {
            let stopped = control::run(move || dpdk_sys::rte_eth_dev_stop(port));
            if stopped == 0 { log::attempt(|| dpdk_sys::rte_eth_dev_start(port)) } else { stopped }
        };
        if ret != 0 {
            // Not to be polled before it is started.
            shut.stay();
            return Err(PortError::NoPeer { port: *id, said: log::errors() });
        }
        Ok(())
    }

    /// Waits until the link is up, at most `limit`.
    ///
    /// # Errors
    /// [`PortError::LinkDown`] if it did not come up in time.
    pub fn wait_link(&self, limit: Duration) -> Result<Link, PortError> {
        /// Links come up after milliseconds (a peer process) or seconds (a cable).
        const PAUSE: Duration = Duration::from_millis(5);
        let start = Instant::now();
        loop {
            let link = self.link()?;
            if link.up {
                return Ok(link);
            }
            let waited = start.elapsed();
            if waited >= limit {
                let down = self.interface_state().filter(|(state, _)| *state == InterfaceState::Down);
                let interface = down.map(|(_, name)| name.to_owned());
                return Err(PortError::LinkDown { port: self.started.id, waited: limit, interface });
            }
            std::thread::sleep(PAUSE.min(limit - waited));
        }
    }

    /// By which parts of a packet the port spreads what it receives over its queues, as read back from the driver.
    ///
    /// Nothing does not mean that all packets come by one queue: without a hash of its own, a virtual port's driver or peer chooses
    /// the queue.
    pub fn rss(&self) -> Rss {
        let mut conf = dpdk_sys::rte_eth_rss_conf::default();
        // SAFETY: the structure is the library's own and valid for writing; its key is null, so that none is written.
        let ret = unsafe { dpdk_sys::rte_eth_dev_rss_hash_conf_get(self.started.id.0, &raw mut conf) };
        if ret == 0 { Rss::of(conf.rss_hf) } else { Rss::default() }
    }

    /// What it counted.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn stats(&self) -> Result<PortStats, PortError> {
        stats::read(self.started.id)
    }

    /// Every counter that the driver has, by name.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn xstats(&self) -> Result<Vec<(String, u64)>, PortError> {
        stats::extended(self.started.id)
    }

    /// Sets the counters to zero.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn reset_stats(&self) -> Result<(), PortError> {
        stats::reset(self.started.id)
    }
}

/// Whether frames must be spread over several buffers; an error if they would have to and may not.
fn check_room(info: &PortInfo, mtu: u16, config: &PortConfig, pools: &[Mempool]) -> Result<bool, PortError> {
    let need = frame_room(mtu);
    let room = pools.iter().map(|pool| u32::from(pool.data_room() - HEADROOM)).min().unwrap_or(u32::MAX);
    if need <= room || config.rx_queues == 0 {
        return Ok(false);
    }
    if config.scatter && info.scatter {
        return Ok(true);
    }
    Err(PortError::Room { mtu, need, room, can_scatter: info.scatter })
}

/// Whether the kernel lets frames of the MTU pass, and whether they fit the rings shared with it.
fn check_kernel(eal: &Eal, info: &PortInfo, mtu: u16) -> Result<(), PortError> {
    if let Some(interface) = info.interface.as_ref().filter(|_| info::traits(&info.driver).kernel_mtu)
        && u32::from(mtu) > interface.mtu
    {
        let interface = interface.clone();
        return Err(PortError::KernelMtu {
            port: info.id,
            mtu,
            interface: interface.name,
            kernel: interface.mtu,
        });
    }
    let args = devargs(eal, info);
    let (need, have) = (frame_room(mtu), af_packet::largest_frame(&args));
    if af_packet::is_af_packet(&args) && need > have {
        return Err(PortError::RingFrame { port: info.id, mtu, need, have });
    }
    Ok(())
}

/// Bytes that a packet buffer of a pool for a port of that MTU must have, headroom included; none if none can have so many.
pub(crate) fn data_room(eal: &Eal, info: &PortInfo, mtu: u16) -> Option<u16> {
    let args = devargs(eal, info);
    let least = if af_packet::is_af_packet(&args) { af_packet::buffer_size(&args) } else { 0 };
    let room = memif::buffer_for_mtu(mtu).max(least.next_multiple_of(memif::LINE));
    u16::try_from(room + u32::from(HEADROOM)).ok()
}

/// Whether frames fit memif's buffers; see [`crate::memif`].
fn check_memif(eal: &Eal, info: &PortInfo, mtu: u16) -> Result<(), PortError> {
    if info.driver != "net_memif" {
        return Ok(());
    }
    let have = memif::buffer_size(&devargs(eal, info));
    let need = frame_room(mtu);
    if need > have { Err(PortError::MemifBuffer { port: info.id, mtu, need, have }) } else { Ok(()) }
}

/// The arguments that a device was made with; empty if it was not made by us.
fn devargs(eal: &Eal, info: &PortInfo) -> String {
    // The last of that name: a port may have been detached and attached anew.
    let made = |vdev: &String| vdev.split(',').next() == Some(&info.device);
    eal.vdevs().into_iter().rfind(made).unwrap_or_default()
}

fn bring_up(
    info: &PortInfo,
    mtu: u16,
    scatter: bool,
    config: &PortConfig,
    pools: &[Mempool],
) -> Result<(), PortError> {
    let id = info.id;
    let check = |step, ret: i32| if ret == 0 { Ok(()) } else { Err(driver_error(id, step, ret)) };
    let raw = info::raw_info(id)?;

    let mut conf = rte_eth_conf::default();
    if info.mtu_enforced {
        conf.rxmode.mtu = u32::from(mtu);
    }
    // SAFETY: constants of the shim.
    let (scatter_bit, sums, segments_bit, ip, udp) = unsafe {
        (
            dpdk_sys::SPW_RX_OFFLOAD_SCATTER,
            dpdk_sys::SPW_RX_OFFLOAD_CHECKSUM,
            dpdk_sys::SPW_TX_OFFLOAD_MULTI_SEGS,
            dpdk_sys::SPW_RSS_IP,
            dpdk_sys::SPW_RSS_UDP,
        )
    };
    if scatter {
        conf.rxmode.offloads |= raw.rx_offload_capa & scatter_bit;
    }
    // What it then says of a packet is believed if it is good, and looked at again if it is bad.
    conf.rxmode.offloads |= raw.rx_offload_capa & sums;
    conf.txmode.offloads |= raw.tx_offload_capa & segments_bit;
    if config.rx_queues > 1 && info.rss != 0 {
        conf.rxmode.mq_mode = dpdk_sys::RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = info.rss & (ip | udp);
    }
    // SAFETY: the port is stopped and claimed by us; the configuration is copied.
    let ret =
        unsafe { dpdk_sys::rte_eth_dev_configure(id.0, config.rx_queues, config.tx_queues, &raw const conf) };
    check("configuration", ret)?;
    if info.mtu_enforced {
        set_mtu(id, mtu)?;
    }

    let (mut rx_desc, mut tx_desc) = (config.rx_desc, config.tx_desc);
    // SAFETY: both numbers are valid for writing.
    let ret = unsafe { dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(id.0, &raw mut rx_desc, &raw mut tx_desc) };
    check("choosing the ring sizes", ret)?;
    let socket = info.socket.unwrap_or(u32::MAX); // SOCKET_ID_ANY
    for queue in 0..config.rx_queues {
        let pool = pools.get(usize::from(queue)).or(pools.first());
        let Some(pool) = pool else { break };
        // SAFETY: the queue is below the number configured; the pool lives as long as the port is started and, since pools
        // with mbufs out are kept, as long as the driver holds any. A null configuration means the driver's default.
        let ret = unsafe {
            dpdk_sys::rte_eth_rx_queue_setup(id.0, queue, rx_desc, socket, ptr::null(), pool.as_ptr())
        };
        check("receive queue set-up", ret)?;
    }
    for queue in 0..config.tx_queues {
        // SAFETY: the queue is below the number configured; a null configuration means the driver's default.
        let ret = unsafe { dpdk_sys::rte_eth_tx_queue_setup(id.0, queue, tx_desc, socket, ptr::null()) };
        check("transmit queue set-up", ret)?;
    }
    // SAFETY: every queue is set up.
    let ret = unsafe { dpdk_sys::rte_eth_dev_start(id.0) };
    if ret != 0 && info.driver == "net_memif" {
        // The driver returns a bare -1, which would read as a missing permission.
        return Err(PortError::NoPeer { port: id, said: log::errors() });
    }
    check("start", ret)?;
    if info::traits(&info.driver).unmaps {
        control::guard(id);
    }
    filters(id, config);
    Ok(())
}

/// Opens the receive filters. A memory port has none and says so, which is as good.
fn filters(id: PortId, config: &PortConfig) {
    let open = |what, enable: unsafe extern "C" fn(u16) -> i32| {
        // SAFETY: both functions take a valid port, which this is.
        let ret = unsafe { enable(id.0) };
        if ret != 0 {
            tracing::debug!(port = %id, error = -ret, "the driver has no {what} mode");
        }
    };
    if config.promiscuous {
        open("promiscuous", dpdk_sys::rte_eth_promiscuous_enable);
    }
    if config.all_multicast {
        open("all-multicast", dpdk_sys::rte_eth_allmulticast_enable);
    }
}

fn set_mtu(id: PortId, mtu: u16) -> Result<(), PortError> {
    // SAFETY: takes any port number; a bad one is an error.
    let ret = unsafe { dpdk_sys::rte_eth_dev_set_mtu(id.0, mtu) };
    // Drivers without the operation took the MTU with the configuration, or did not: reading back tells.
    if ret != 0 && ret != -libc::ENOTSUP {
        return Err(driver_error(id, "setting the MTU", ret));
    }
    let got = info::read_mtu(id)?;
    if got == mtu { Ok(()) } else { Err(PortError::MtuReadBack { port: id, asked: mtu, got }) }
}

/// An error of the driver, with what it logged. `ret` is a negative errno.
pub(crate) fn driver_error(id: PortId, step: &'static str, ret: i32) -> PortError {
    let errno = -ret;
    if errno == libc::ENODEV {
        return PortError::Gone(id);
    }
    let hint = match errno {
        libc::ENOMEM => "Give DPDK more memory, or use fewer and smaller queues and pools",
        libc::EINVAL => {
            "The driver refuses this configuration: try fewer queues, other ring sizes or another MTU"
        }
        libc::EPERM | libc::EACCES => {
            "The process may not do this: run as root or with the capability it needs"
        }
        _ => "DPDK's log at debug level says more",
    };
    PortError::Driver { port: id, step, errno, said: log::errors(), hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_of_a_frame() {
        // 14 bytes of header, 4 of checksum, 8 of tags.
        assert_eq!(frame_room(1500), 1526);
        assert_eq!(frame_room(u16::MAX), 65561);
    }
}
