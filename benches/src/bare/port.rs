//! A port opened as the worker opens its own, without the worker.

use super::PEER;
use dpdk::{Eal, EalConfig, Mempool, Port, PortConfig, PortError, RxQueue, TxQueue, memif_device};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// Receive and transmit descriptors, and packet buffers beyond them: what the worker's port takes too.
const DESCRIPTORS: u16 = 1024;
const SPARE_BUFFERS: u32 = 2048;
const CACHE: u32 = 512;
/// Between attempts to reach the peer.
const RETRY: Duration = Duration::from_millis(20);

/// One receive and one transmit queue with their buffers.
pub struct Bare {
    pub rx: RxQueue,
    pub tx: TxQueue,
    pub pool: Mempool,
    pub port: Port,
    memif: bool,
}

/// Pins the calling thread to one processor.
pub fn pin(core: usize) -> Result<(), Box<dyn Error>> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(format!("there is no processor {core}").into());
    }
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("pinning to processor {core}: {e}"))?;
    Ok(())
}

impl Bare {
    /// Starts DPDK and opens the device. The calling thread is pinned to `core` afterwards, so that DPDK's own threads
    /// may run elsewhere.
    pub fn open(device: &str, mtu: u16, core: Option<usize>) -> Result<Bare, Box<dyn Error>> {
        let device = memif_device(device, mtu);
        let config =
            EalConfig { program: "spraywire-benches".into(), vdevs: vec![device], ..EalConfig::default() };
        let eal = Eal::init(&config)?;
        let found = eal.require_ports()?.into_iter().next().ok_or("DPDK found no port")?;
        let room =
            Mempool::data_room_for_port(&eal, &found, mtu).ok_or("no packet buffer can hold that MTU")?;
        let count = 2 * u32::from(DESCRIPTORS) + SPARE_BUFFERS + 2 * CACHE;
        let pool = Mempool::new(&eal, "bare", count, CACHE, room, found.socket)?;
        let config = PortConfig {
            rx_desc: DESCRIPTORS,
            tx_desc: DESCRIPTORS,
            mtu: Some(mtu),
            promiscuous: true,
            ..PortConfig::default()
        };
        let start = Instant::now();
        let (port, rx, tx) = loop {
            match Port::start(&eal, found.id, &config, std::slice::from_ref(&pool)) {
                // A memif client that came before its server.
                Err(PortError::NoPeer { .. }) if start.elapsed() < PEER => thread::sleep(RETRY),
                started => break started?,
            }
        };
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return Err("the port has no queue".into());
        };
        core.map_or(Ok(()), pin)?;
        Ok(Bare { rx, tx, pool, port, memif: found.driver.contains("memif") })
    }

    /// Waits for the peer.
    pub fn wait(&self, limit: Duration) -> Result<(), Box<dyn Error>> {
        self.port.wait_link(limit)?;
        Ok(())
    }

    /// Whether the link is up only while the peer is there: so it is with shared memory.
    pub fn link_follows_peer(&self) -> bool {
        self.memif
    }

    /// Whether the peer is still there.
    pub fn link_up(&self) -> bool {
        self.port.link().is_ok_and(|link| link.up)
    }
}
