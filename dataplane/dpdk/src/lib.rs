//! A safe wrapper of the part of DPDK that moves packets: the environment layer, ports, queues, pools and mbufs.
//!
//! # Who owns what
//! - [`Eal`] is a handle on the process-wide environment. Pools, ports, queues and thread registrations each hold one, so
//!   [`Eal::shutdown`] can refuse while anything still stands on DPDK's memory.
//! - A [`Port`] and its queues share one started device. It stops when the last of them is gone, so no queue can poll a
//!   stopped device. A queue is polled through `&mut`, so by one thread at a time.
//! - An [`Mbuf`] is one packet, owned: its whole chain goes back to its pool when it is dropped. A [`Burst`] owns many and
//!   frees them in bulk. `tx_burst` takes from the front of a burst what the driver accepted; the rest stays there.
//! - An mbuf does not keep its pool alive by a count, which would cost an atomic per packet. Instead the memory of a pool
//!   is never given back while a packet could still refer to it: see [`Mempool`].
//!
//! Nothing here allocates after start-up on the paths of bursts, and no function of the data path can panic. This crate
//! and `dpdk-sys` are the only places where `unsafe` stands for DPDK.

mod af_packet;
mod args;
mod burst;
mod capability;
mod control;
mod devargs;
mod eal;
mod error;
mod hint;
mod info;
mod kernel;
mod log;
mod mbuf;
mod memif;
mod mempool;
mod port;
mod queue;
mod queues;
mod stats;
mod stdio;
mod tap;
mod telemetry;

pub use args::{EalConfig, HugePages};
pub use burst::{Burst, Drain};
pub use devargs::{complete_device, driver_of};
pub use eal::{Eal, ThreadGuard};
pub use error::{EalError, MempoolError, PortError};
pub use hint::Needs;
pub use info::{KernelInterface, Link, Mac, PortId, PortInfo, Rss};
pub use kernel::{Interface, InterfaceState};
pub use log::{LogLevel, route_log};
pub use mbuf::{Mbuf, Segments};
pub use memif::memif_device;
pub use mempool::{HEADROOM, Mempool};
pub use port::{Port, PortConfig, frame_room};
pub use queue::{RxQueue, TxQueue};
pub use queues::queues_device;
pub use stats::PortStats;
pub use telemetry::{Numbers, TelemetryError, telemetry_command};
