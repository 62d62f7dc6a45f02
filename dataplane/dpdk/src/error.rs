//! What can go wrong while setting up, each with what to do about it.

use std::ffi::CStr;
use std::time::Duration;

use crate::info::PortId;

/// DPDK's text for an error number.
pub(crate) fn strerror(errno: i32) -> String {
    // SAFETY: rte_strerror takes any number and returns a string that stays valid until the thread's next call.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) }.to_string_lossy().into_owned()
}

/// What an error number means; nothing where DPDK left none.
fn numbered(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(": {} (error {errno})", strerror(errno)) }
}

/// Why the environment did not start or stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EalError {
    /// DPDK starts once per process, even after a failed attempt or a shutdown.
    #[error(
        "DPDK was already started in this process, and it starts only once: keep the first handle and clone it, or start another process"
    )]
    AlreadyInitialised,
    /// An argument holds a zero byte.
    #[error("the EAL argument {0:?} holds a zero byte")]
    Argument(String),
    /// Hugepages were demanded and cannot be had.
    #[error(
        "hugepages were asked for, but {0}. Reserve some (as root: echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages), or run without them"
    )]
    HugePages(String),
    /// `rte_eal_init` failed.
    #[error("DPDK did not start{}{}. Arguments: {args}. {hint}", numbered(*.errno), dpdk_said(.said))]
    Init {
        /// `rte_errno` after the call.
        errno: i32,
        /// The error lines of DPDK's log, empty if there were none.
        said: String,
        /// The arguments that were passed, joined by blanks.
        args: String,
        /// What to try.
        hint: String,
    },
    /// A device that the configuration names could not be attached.
    #[error(transparent)]
    Device(#[from] PortError),
    /// Pools, ports, queues, thread registrations or other handles still exist.
    #[error(
        "DPDK cannot shut down: {0} other handles (pools, ports, queues, registered threads) still exist"
    )]
    InUse(usize),
    /// Only the thread that started DPDK can be sure that no packet is being freed meanwhile.
    #[error("DPDK must be shut down by the thread that started it")]
    WrongThread,
    /// Packets are still held by the application.
    #[error("DPDK cannot shut down: {0} mbufs are still held; drop every Mbuf and Burst first")]
    MbufsOut(u32),
    /// `rte_thread_register` failed.
    #[error("no free lcore id for this thread: {text} (error {0}); DPDK has a fixed number of them", text = strerror(*.0))]
    ThreadRegister(i32),
    /// `rte_eal_cleanup` failed.
    #[error("DPDK did not shut down cleanly: {text} (error {0})", text = strerror(*.0))]
    Cleanup(i32),
}

/// Why a port could not be found, attached, or started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// There is no port at all.
    #[error(
        "DPDK has no port{}. Drivers are loaded from {drivers}; virtual devices asked for: {vdevs}. Name one, for example net_memif0,role=server,id=0, or bind a NIC to vfio-pci (dpdk-devbind.py) and give its PCI address",
        none_called(.wanted.as_deref())
    )]
    NoPorts {
        /// What was looked for, if one was.
        wanted: Option<String>,
        /// The folder of shared drivers, or that they are linked in.
        drivers: String,
        /// The virtual devices of the configuration, or "none".
        vdevs: String,
    },
    /// No port has this name, MAC address or PCI address.
    #[error("no port is called {wanted:?}; there are: {have}")]
    NotFound {
        /// What was looked for.
        wanted: String,
        /// Names and MAC addresses of the ports that exist.
        have: String,
    },
    /// A device could not be attached.
    #[error("the device {devargs:?} could not be attached: {} (error {errno}){}. {hint}", strerror(*.errno), dpdk_said(.said))]
    Attach {
        /// The device, in DPDK's syntax.
        devargs: String,
        /// Positive error number.
        errno: i32,
        /// The error lines of DPDK's log, empty if there were none.
        said: String,
        /// What to try.
        hint: String,
    },
    /// The device was attached and brought no Ethernet port.
    #[error("the device {0:?} was attached but has no Ethernet port")]
    NotEthernet(String),
    /// The port is started already, or is to be removed while started.
    #[error("port {0} is in use: drop its Port and its queues first")]
    Busy(PortId),
    /// The port went away.
    #[error("port {0} does not exist any more")]
    Gone(PortId),
    /// More queues than the device has.
    #[error(
        "port {port} has at most {max_rx} receive and {max_tx} transmit queues; {rx} and {tx} were asked for"
    )]
    Queues {
        /// The port.
        port: PortId,
        /// Receive queues asked for.
        rx: u16,
        /// Transmit queues asked for.
        tx: u16,
        /// Receive queues of the device.
        max_rx: u16,
        /// Transmit queues of the device.
        max_tx: u16,
    },
    /// One pool for all receive queues, or one for each.
    #[error("{pools} pools were given for {queues} receive queues; give one, or one for each")]
    Pools {
        /// Pools given.
        pools: usize,
        /// Receive queues asked for.
        queues: u16,
    },
    /// The MTU is out of the device's range.
    #[error("port {port} cannot have an MTU of {mtu}: its driver allows {min} to {max}")]
    Mtu {
        /// The port.
        port: PortId,
        /// Bytes asked for.
        mtu: u16,
        /// Smallest MTU in bytes.
        min: u16,
        /// Largest MTU in bytes.
        max: u16,
    },
    /// The driver took the MTU and reports another.
    #[error("port {port} was given an MTU of {asked} and reports {got}: set the one it reports")]
    MtuReadBack {
        /// The port.
        port: PortId,
        /// Bytes asked for.
        asked: u16,
        /// Bytes that the driver reports.
        got: u16,
    },
    /// The largest frame does not fit one buffer.
    #[error(
        "an MTU of {mtu} needs buffers of {need} bytes, but those of the pool have {room} after the headroom{}: make the pool with data_room_for_mtu({mtu}), or lower the MTU to {}",
        scatter(*.can_scatter), room.saturating_sub(*.need - u32::from(*.mtu))
    )]
    Room {
        /// Bytes asked for.
        mtu: u16,
        /// Bytes that a frame may have: the MTU, the Ethernet header, two VLAN tags and the checksum.
        need: u32,
        /// Bytes of a buffer behind the headroom.
        room: u32,
        /// Whether the driver could spread a frame over several buffers if the configuration allowed it.
        can_scatter: bool,
    },
    /// The largest frame does not fit one of memif's shared buffers.
    #[error(
        "an MTU of {mtu} needs memif buffers of {need} bytes, but port {port} has {have}: add bsize={need} to the device on both sides, or lower the MTU"
    )]
    MemifBuffer {
        /// The port.
        port: PortId,
        /// Bytes asked for.
        mtu: u16,
        /// Bytes that a frame may have.
        need: u32,
        /// Bytes of a shared buffer.
        have: u32,
    },
    /// The interface of the kernel has a smaller MTU.
    #[error(
        "port {port} cannot have an MTU of {mtu}: the kernel's interface {interface} has {kernel}. Raise it there, and on every interface on the way (ip link set dev {interface} mtu {mtu}), or lower --mtu"
    )]
    KernelMtu {
        /// The port.
        port: PortId,
        /// Bytes asked for.
        mtu: u16,
        /// Name of the interface.
        interface: String,
        /// Its MTU in bytes.
        kernel: u32,
    },
    /// The largest frame does not fit a place in the rings that `net_af_packet` shares with the kernel.
    #[error(
        "an MTU of {mtu} needs frames of {need} bytes, but port {port} has room for {have}: leave framesz= and blocksz= out of the device, or raise framesz= (a power of two, and at most blocksz=)"
    )]
    RingFrame {
        /// The port.
        port: PortId,
        /// Bytes asked for.
        mtu: u16,
        /// Bytes that a frame may have.
        need: u32,
        /// Bytes that fit.
        have: u32,
    },
    /// A memif client found no server: it connects when it starts, and at no other time.
    #[error("port {port} found no memif server{}: start the other side, with role=server and the same id and socket, then try again", dpdk_said(.said))]
    NoPeer {
        /// The port.
        port: PortId,
        /// The error lines of DPDK's log, empty if there were none.
        said: String,
    },
    /// A call into the driver failed.
    #[error("port {port}: {step} failed: {} (error {errno}){}. {hint}", strerror(*.errno), dpdk_said(.said))]
    Driver {
        /// The port.
        port: PortId,
        /// What was being done.
        step: &'static str,
        /// Positive error number.
        errno: i32,
        /// The error lines of DPDK's log, empty if there were none.
        said: String,
        /// What to try.
        hint: String,
    },
    /// The link did not come up in time.
    #[error(
        "the link of port {port} is still down after {waited:?}: {}", down_hint(.interface.as_deref())
    )]
    LinkDown {
        /// The port.
        port: PortId,
        /// Time waited.
        waited: Duration,
        /// Name of the kernel's interface that was set down, if that is why.
        interface: Option<String>,
    },
    /// The interface of the kernel below the port was removed, or moved to another network namespace.
    #[error("the interface {interface} of port {port} is gone: make it anew and start again")]
    InterfaceGone {
        /// The port.
        port: PortId,
        /// The name that it had.
        interface: String,
    },
}

/// Why a pool could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MempoolError {
    /// The cache of each thread is limited by DPDK and by the size of the pool.
    #[error("a per-thread cache of {cache} is too large for {count} mbufs: at most {max}")]
    Cache {
        /// Objects in each thread's cache.
        cache: u32,
        /// Mbufs in the pool.
        count: u32,
        /// The most that is possible.
        max: u32,
    },
    /// A pool must hold something.
    #[error(
        "a pool of no mbufs, or whose buffers of {data_room} bytes do not hold the headroom of {headroom}, is of no use"
    )]
    Empty {
        /// Bytes of each buffer, headroom included.
        data_room: u16,
        /// Bytes of headroom.
        headroom: u16,
    },
    /// DPDK could not make it.
    #[error(
        "a pool of {count} mbufs of {data_room} bytes (about {mib} MiB) could not be made{}: {} (error {errno}). Give DPDK more memory, or make the pool smaller", on_node(*.node), strerror(*.errno)
    )]
    Create {
        /// Mbufs asked for.
        count: u32,
        /// Bytes of each buffer, headroom included.
        data_room: u16,
        /// Memory that the pool would take, in MiB.
        mib: u64,
        /// NUMA node that the memory was to be of, if of any.
        node: Option<u32>,
        /// `rte_errno` after the call.
        errno: i32,
    },
}

fn on_node(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}

fn dpdk_said(line: &str) -> String {
    // A sentence goes on after it.
    let line = line.trim_end_matches(['.', ' ']);
    if line.is_empty() { String::new() } else { format!("; DPDK said: {line}") }
}

fn none_called(wanted: Option<&str>) -> String {
    wanted.map_or_else(String::new, |wanted| format!(", and so none called {wanted:?}"))
}

impl PortError {
    /// Adds the name that was looked for where there is no port at all.
    pub(crate) fn looked_for(self, name: &str) -> PortError {
        match self {
            PortError::NoPorts { drivers, vdevs, .. } => {
                PortError::NoPorts { wanted: Some(name.to_owned()), drivers, vdevs }
            }
            other => other,
        }
    }
}

fn down_hint(interface: Option<&str>) -> String {
    match interface {
        Some(name) => format!("bring its interface up (ip link set dev {name} up)"),
        None => "is the cable in, or the other side running?".to_owned(),
    }
}

fn scatter(possible: bool) -> &'static str {
    if possible {
        ", and spreading a frame over several was not allowed"
    } else {
        ", and the driver cannot spread a frame over several"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_number_claims_no_success() {
        let error = |errno| EalError::Init {
            errno,
            said: String::new(),
            args: "--no-pci".into(),
            hint: "Try again.".into(),
        };
        assert_eq!(error(0).to_string(), "DPDK did not start. Arguments: --no-pci. Try again.");
        let said =
            EalError::Init { errno: 0, said: "EAL: no.".into(), args: "-x".into(), hint: "Try.".into() };
        assert_eq!(said.to_string(), "DPDK did not start; DPDK said: EAL: no. Arguments: -x. Try.");
        let with = error(13).to_string();
        assert!(with.starts_with("DPDK did not start: ") && with.contains("(error 13)."), "{with}");
    }
}
