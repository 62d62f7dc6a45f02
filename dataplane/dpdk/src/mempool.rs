//! Pools of packet buffers.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::rte_mempool;

use crate::burst::Burst;
use crate::eal::{Eal, errno};
use crate::error::MempoolError;
use crate::info::PortInfo;
use crate::mbuf::Mbuf;
use crate::memif;
use crate::port;

/// Bytes left free before the data of a fresh mbuf, for headers that are put in front.
pub const HEADROOM: u16 = dpdk_sys::SPW_HEADROOM as u16;

/// A pool of mbufs, shared by cloning.
///
/// # When its memory goes
/// Packets may outlive the last handle. When that goes, the memory is given back only if every mbuf is home and no other
/// thread can be in the middle of returning one; otherwise the pool is set aside, and a later pool of the same shape takes
/// it over. So an mbuf never outlives its memory, and opening and closing over and over does not grow.
#[derive(Clone)]
pub struct Mempool(Arc<Inner>);

struct Inner {
    eal: Eal,
    raw: Raw,
    name: String,
}

/// A pool as DPDK knows it. Valid as long as it is listed in [`Pools`].
#[derive(Clone, Copy, PartialEq)]
struct Raw {
    pool: NonNull<rte_mempool>,
    shape: Shape,
}

// SAFETY: DPDK's pools may be used by any number of threads; the pointer itself is plain data.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    count: u32,
    cache: u32,
    data_room: u16,
    socket: i32,
}

impl Raw {
    fn available(&self) -> u32 {
        // SAFETY: the pool is listed, so its memory is there.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    fn is_full(&self) -> bool {
        self.available() == self.shape.count
    }

    /// # Safety
    /// Every mbuf is home, no handle is left, and no thread is in the middle of returning one.
    unsafe fn free(self) {
        // SAFETY: the caller vouches for it.
        unsafe { dpdk_sys::rte_mempool_free(self.pool.as_ptr()) }
    }
}

/// Every pool of the process.
#[derive(Default)]
pub(crate) struct Pools {
    live: Vec<Raw>,
    /// Pools without a handle whose memory could not be given back yet.
    parked: Vec<Raw>,
    made: u64,
    /// Threads, besides the main one, that have per-thread caches. Changed only under the lock around this.
    pub(crate) registered: usize,
}

impl Pools {
    /// Mbufs that are not home, over all pools.
    pub(crate) fn outstanding(&self) -> u32 {
        self.live.iter().chain(&self.parked).map(|raw| raw.shape.count.saturating_sub(raw.available())).sum()
    }

    /// Empties the calling thread's caches.
    pub(crate) fn flush_thread(&self) {
        for raw in self.live.iter().chain(&self.parked) {
            // SAFETY: the pool is listed, and the cache belongs to this thread.
            unsafe { dpdk_sys::spw_pool_flush(raw.pool.as_ptr()) }
        }
    }

    /// Whether a full pool is certain to be left alone. A return into a thread's cache counts before it is finished, so a
    /// full pool may be one that another thread is still writing to; without other threads that have caches it is not: a
    /// return by a thread without a cache counts when it is finished, and the main thread is the one that asks.
    fn quiet(&self, eal: &Eal) -> bool {
        self.registered == 0 && eal.is_main()
    }

    fn give_back_parked(&mut self, eal: &Eal) {
        if !self.quiet(eal) {
            return;
        }
        self.parked.retain(|raw| {
            let full = raw.is_full();
            if full {
                // SAFETY: parked pools have no handle; all mbufs are home and nobody is in the middle of a return.
                unsafe { raw.free() };
            }
            !full
        });
    }
}

impl Mempool {
    /// Makes a pool of `count` mbufs with `data_room` bytes each, [`HEADROOM`] included; a power of two minus one wastes
    /// the least memory. Each thread that has an lcore id keeps up to `cache` of them at hand. `socket` is the NUMA node,
    /// none for any. `name` is for messages.
    ///
    /// # Errors
    /// If the sizes make no sense, or memory does not suffice.
    pub fn new(
        eal: &Eal,
        name: &str,
        count: u32,
        cache: u32,
        data_room: u16,
        socket: Option<u32>,
    ) -> Result<Mempool, MempoolError> {
        if count == 0 || data_room <= HEADROOM {
            return Err(MempoolError::Empty { data_room, headroom: HEADROOM });
        }
        // DPDK wants one and a half caches to fit the pool.
        let max = dpdk_sys::SPW_POOL_CACHE_MAX.min(count / 3 * 2);
        if cache > max {
            return Err(MempoolError::Cache { cache, count, max });
        }
        let socket = socket.and_then(|socket| i32::try_from(socket).ok()).unwrap_or(-1);
        let shape = Shape { count, cache, data_room, socket };
        let mut pools = eal.pools();
        let parked = pools.parked.iter().position(|raw| raw.shape == shape && raw.is_full());
        let raw = match parked {
            Some(at) => pools.parked.swap_remove(at),
            None => {
                pools.give_back_parked(eal);
                pools.made += 1;
                create(shape, pools.made)?
            }
        };
        pools.live.push(raw);
        drop(pools);
        Ok(Mempool(Arc::new(Inner { eal: eal.clone(), raw, name: name.to_owned() })))
    }

    /// The `data_room` that holds any frame of `mtu` bytes in one buffer, with room for two VLAN tags: at least the usual
    /// 2048 bytes behind the headroom, in whole cache lines; none if no buffer can be that large.
    pub fn data_room_for_mtu(mtu: u16) -> Option<u16> {
        u16::try_from(memif::buffer_for_mtu(mtu) + u32::from(HEADROOM)).ok()
    }

    /// The same for a port, whose driver may want more than its MTU does.
    pub fn data_room_for_port(eal: &Eal, info: &PortInfo, mtu: u16) -> Option<u16> {
        port::data_room(eal, info, mtu)
    }

    /// The name given at creation.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Mbufs in the pool.
    pub fn count(&self) -> u32 {
        self.0.raw.shape.count
    }

    /// Bytes of a buffer, headroom included.
    pub fn data_room(&self) -> u16 {
        self.0.raw.shape.data_room
    }

    /// Mbufs at home, those in the caches of threads included. Walks over all caches: for tests and statistics. Exact only
    /// while no other thread uses the pool.
    pub fn available(&self) -> u32 {
        self.0.raw.available()
    }

    /// Mbufs that applications and drivers hold; as exact as [`Mempool::available`].
    pub fn in_use(&self) -> u32 {
        self.count().saturating_sub(self.available())
    }

    /// One empty mbuf, or none if the pool is exhausted.
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut one = Burst::<1>::new();
        self.alloc_bulk(&mut one, 1);
        one.pop_front()
    }

    /// Adds `n` empty mbufs to `burst`: all of them, or none if the burst lacks the room or the pool the mbufs. A false is
    /// back-pressure: mbufs come back as they are sent and dropped.
    #[inline]
    pub fn alloc_bulk<const N: usize>(&self, burst: &mut Burst<N>, n: usize) -> bool {
        let (slots, room) = burst.spare();
        if n > room {
            return false;
        }
        // SAFETY: `slots` has room for `n`, which fits 16 bits since a burst has no more slots; the pool is alive.
        let ret = unsafe { dpdk_sys::spw_alloc_bulk(self.as_ptr(), slots, n as u16) };
        if ret != 0 {
            return false;
        }
        // SAFETY: on success DPDK wrote `n` mbufs, each owned by nobody else.
        unsafe { burst.add_len(n) };
        true
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut rte_mempool {
        self.0.raw.pool.as_ptr()
    }
}

impl std::fmt::Debug for Mempool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { count, cache, data_room, socket } = self.0.raw.shape;
        f.debug_struct("Mempool")
            .field("name", &self.0.name)
            .field("count", &count)
            .field("cache", &cache)
            .field("data_room", &data_room)
            .field("socket", &socket)
            .finish()
    }
}

fn create(shape: Shape, serial: u64) -> Result<Raw, MempoolError> {
    let Shape { count, cache, data_room, socket } = shape;
    let fail = |errno| {
        let bytes = u64::from(count) * (u64::from(data_room) + u64::from(dpdk_sys::SPW_MBUF_SIZE));
        MempoolError::Create {
            count,
            data_room,
            mib: bytes.div_ceil(1 << 20),
            node: u32::try_from(socket).ok(),
            errno,
        }
    };
    // DPDK's names are short, unique and outlive our handles, so they are serial numbers.
    let name = CString::new(format!("spw{serial}")).map_err(|_| fail(libc::EINVAL))?;
    // SAFETY: the environment is started, since the caller has a handle; the name is copied.
    let pool =
        unsafe { dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), count, cache, 0, data_room, socket) };
    match NonNull::new(pool) {
        Some(pool) => Ok(Raw { pool, shape }),
        None => Err(fail(errno())),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut pools = self.eal.pools();
        if let Some(at) = pools.live.iter().position(|raw| *raw == self.raw) {
            pools.live.swap_remove(at);
        }
        pools.parked.push(self.raw);
        pools.give_back_parked(&self.eal);
    }
}
