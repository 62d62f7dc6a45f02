//! From a port as the user names it to an open one: which device DPDK is to make for it, with what MTU, and how long to wait
//! for the other side. The same for everything that opens a port: the command and the bindings.

use crate::io::dpdk::{DpdkPort, DpdkPortConfig, OpenError};
use crate::spec::PortSpec;
use dpdk::{Eal, PortError};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use dpdk::{EalConfig, EalError, LogLevel, ThreadGuard, route_log};

/// DPDK's environment: see [`Eal`]. One for the process.
pub type Environment = Eal;

/// MTU of a memif port for which none was asked: the largest IB MTU and 104 bytes. The headers of an IPv6 packet with an
/// immediate take 76; Linux' Soft-RoCE wants 80.
pub const MEMIF_MTU: u16 = 4200;

/// The server's address of a pair that was given none: of the block that RFC 5737 sets aside for documentation, so that it is
/// nobody's.
pub const SERVER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// The client's address of such a pair.
pub const CLIENT_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

/// Which side of a pair this is. It only matters where the port or its addresses are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Waits for the other: the memif server.
    Server,
    /// Goes to the other: the memif client.
    Client,
}

impl Role {
    /// The address of that side where none is given.
    pub fn ip(self) -> IpAddr {
        match self {
            Role::Server => SERVER_IP,
            Role::Client => CLIENT_IP,
        }
    }
}

/// The port where none is given: shared memory between two processes of one user, who meet at an abstract socket (one that
/// leaves no file).
pub fn default_port(role: Role) -> PortSpec {
    PortSpec::Vdev(default_device(role, rustix::process::getuid().as_raw()))
}

fn default_device(role: Role, uid: u32) -> String {
    let role = match role {
        Role::Server => "server",
        Role::Client => "client",
    };
    format!("net_memif0,role={role},id=0,socket={}", default_socket(uid))
}

fn default_socket(uid: u32) -> String {
    format!("spraywire-{uid}")
}

/// What DPDK is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Virtual devices to attach.
    pub vdevs: Vec<String>,
    /// PCI devices to look at.
    pub allow: Vec<String>,
    /// What to find the port by, once these are there.
    pub selector: String,
    /// The MTU to set; `None` keeps the port's own.
    pub mtu: Option<u16>,
}

impl Plan {
    /// What a port needs that is to have this MTU.
    pub fn of(spec: &PortSpec, mtu: Option<u16>) -> Plan {
        let mut plan = Plan { selector: spec.selector().to_owned(), mtu, ..Plan::default() };
        match spec {
            PortSpec::Vdev(device) => {
                // Frames must fit one buffer of the shared memory, whose size both sides must agree on: it follows from
                // the MTU unless the user takes it into his own hands.
                let is_memif = dpdk::driver_of(device) == "net_memif";
                if is_memif && plan.mtu.is_none() && !device.contains(",bsize=") {
                    plan.mtu = Some(MEMIF_MTU);
                }
                // The rings that net_af_packet shares with the kernel must hold what its interface lets pass, as far as
                // anything here is that long.
                if matches!(dpdk::driver_of(device), "net_af_packet" | "eth_af_packet") {
                    let kernel = dpdk::Interface::of_device(device).and_then(|interface| interface.mtu());
                    plan.mtu =
                        plan.mtu.or(kernel.map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX).min(MEMIF_MTU)));
                }
                let mtu = plan.mtu.unwrap_or(MEMIF_MTU);
                plan.vdevs.push(dpdk::complete_device(device, mtu));
            }
            PortSpec::Pci(device) => plan.allow.push(device.clone()),
            PortSpec::Existing(_) => {}
        }
        plan
    }

    /// The same for a port with so many queue pairs.
    #[must_use]
    pub fn with_queues(mut self, queues: u16) -> Plan {
        for device in &mut self.vdevs {
            *device = dpdk::queues_device(device, queues);
        }
        self
    }

    /// How the port is opened.
    pub fn port(&self) -> DpdkPortConfig {
        DpdkPortConfig { mtu: self.mtu, ..DpdkPortConfig::new(&self.selector) }
    }
}

/// Why a port did not come to be open.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// DPDK, the driver or its arguments do not allow it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A memif client found nobody who listens.
    #[error(transparent)]
    NoPeer(PortError),
    /// The memif server is there, and turned the client away until the time was over.
    #[error(
        "{0}: the memif server is there and refuses: it was started with another --mtu or number of queues \
         (--workers, --queues), has another secret= or id=, or has a client already"
    )]
    Refused(PortError),
    /// The caller gave up.
    #[error("interrupted")]
    Interrupted,
}

/// Opens a port by `open`; a memif client whose server is not there, or not ready, tries again until `peer_wait` is over or
/// `give_up` says so.
///
/// # Errors
/// See [`ConnectError`].
pub fn connect(
    peer_wait: Duration,
    mut open: impl FnMut() -> Result<Vec<DpdkPort>, OpenError>,
    mut give_up: impl FnMut() -> bool,
) -> Result<Vec<DpdkPort>, ConnectError> {
    /// From connecting to the link takes milliseconds, unless the machine is busy.
    const HANDSHAKE: Duration = Duration::from_secs(1);
    let start = Instant::now();
    let mut said = false;
    loop {
        let missing = match open() {
            Ok(ports) => match ports.first().filter(|port| port.port().is_memif_client()) {
                None => return Ok(ports),
                Some(first) => match first.wait_link(HANDSHAKE) {
                    Ok(()) => return Ok(ports),
                    // Its server listens before it is ready, and turns away who comes too early; or it refuses for good.
                    Err(e) => e,
                },
            },
            Err(OpenError::Port(e @ PortError::NoPeer { .. })) => e,
            Err(e) => return Err(ConnectError::Open(e)),
        };
        if start.elapsed() >= peer_wait {
            return Err(match missing {
                PortError::LinkDown { .. } => ConnectError::Refused(missing),
                _ => ConnectError::NoPeer(missing),
            });
        }
        if !said {
            tracing::info!("no memif server yet; trying for {peer_wait:?}");
            said = true;
        }
        std::thread::sleep(Duration::from_millis(100));
        if give_up() {
            return Err(ConnectError::Interrupted);
        }
    }
}

/// Why there is no port to use.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// DPDK does not start.
    #[error(transparent)]
    Environment(#[from] EalError),
    /// DPDK did not start when it was asked for the first time.
    #[error(
        "DPDK is started once in a process, and did not start: mend that and run the program again. It said: {0}"
    )]
    NotAgain(String),
    /// The device cannot be attached.
    #[error(transparent)]
    Attach(#[from] PortError),
    /// The port cannot be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The port has no queue.
    #[error("port {0} has no receive or no transmit queue")]
    NoQueue(String),
}

/// DPDK's environment for a library that is used by a program which knows nothing of DPDK: started with the first call, and the
/// same for all later ones. `ports` are those that will be opened, as far as they are known; `extra` are more arguments.
///
/// # Errors
/// DPDK does not start; then it cannot be tried again in this process.
pub fn environment(ports: &[PortSpec], extra: &[String]) -> Result<Environment, StartError> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*started {
        Some(Started { environment: Ok(environment), .. }) => return Ok(environment.clone()),
        Some(Started { environment: Err(said), .. }) => return Err(StartError::NotAgain(said.clone())),
        None => {}
    }
    let plans: Vec<Plan> = ports.iter().map(|port| Plan::of(port, None)).collect();
    let mut config = EalConfig {
        allow: plans.iter().flat_map(|plan| plan.allow.clone()).collect(),
        extra: extra.to_vec(),
        ..EalConfig::default()
    };
    // Devices are attached as they are opened; without this, DPDK would look for others.
    if !plans.is_empty() && plans.iter().all(|plan| !plan.vdevs.is_empty()) {
        config.extra.push("--no-pci".to_owned());
    }
    route_log(log);
    let pid = std::process::id();
    match Environment::init(&config) {
        Ok(environment) => {
            *started = Some(Started { environment: Ok(environment.clone()), pid });
            Ok(environment)
        }
        Err(e @ EalError::Init { .. }) => {
            *started = Some(Started { environment: Err(e.to_string()), pid });
            Err(e.into())
        }
        // It was not tried.
        Err(e) => Err(e.into()),
    }
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// DPDK as it was started, if it has, or what it said.
struct Started {
    environment: Result<Environment, String>,
    /// The process that did so: a fork has a copy of the handle and no environment.
    pid: u32,
}

/// The process is about to end: closes the ports that [`open`] has attached and nobody uses any more, so that nothing of theirs is
/// left behind. For libraries, whose program does not know that there is something to close.
pub fn end() {
    // Whoever ends the process may have interrupted somebody who has the lock, and waits for nothing.
    let Ok(started) = STARTED.try_lock() else { return };
    if let Some(Started { environment: Ok(environment), pid }) = &*started
        && *pid == std::process::id()
    {
        environment.end();
    }
}

/// A line of DPDK's log. What goes wrong while a port is opened comes back as an error that quotes it, so all of it is detail.
fn log(level: LogLevel, line: &str) {
    match level {
        LogLevel::Error | LogLevel::Warning | LogLevel::Notice => tracing::info!(target: "dpdk", "{line}"),
        _ => tracing::debug!(target: "dpdk", "{line}"),
    }
}

/// Attaches and opens a port with one queue pair; a memif client waits for its server, at most for `peer_wait`. A port that
/// cannot be opened is detached again.
///
/// # Errors
/// See [`StartError`].
pub fn open(
    environment: &Environment,
    spec: &PortSpec,
    mtu: Option<u16>,
    peer_wait: Duration,
) -> Result<DpdkPort, StartError> {
    let plan = Plan::of(spec, mtu);
    for device in &plan.vdevs {
        environment.attach(device)?;
    }
    let opened = connect(peer_wait, || DpdkPort::open_queues(environment, &plan.port(), 1), || false);
    let failed = match opened.map(|ports| ports.into_iter().next()) {
        Ok(Some(port)) => return Ok(port),
        Ok(None) => StartError::NoQueue(plan.selector.clone()),
        Err(e) => e.into(),
    };
    if !plan.vdevs.is_empty() {
        // So that another try can attach it again.
        let _ = environment.find(&plan.selector).and_then(|id| environment.detach(id));
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(spec: &str, mtu: Option<u16>) -> Plan {
        Plan::of(&spec.parse().unwrap(), mtu)
    }

    #[test]
    fn nothing_given_is_a_memif_pair() {
        let plan = Plan::of(&default_port(Role::Server), None);
        assert_eq!((plan.selector.as_str(), plan.mtu), ("net_memif0", Some(4200)));
        let device = default_device(Role::Client, 1000);
        assert_eq!(device, "net_memif0,role=client,id=0,socket=spraywire-1000");
        assert!(plan.vdevs[0].starts_with("net_memif0,role=server,id=0,socket=spraywire-"), "{plan:?}");
        assert!(plan.vdevs[0].contains(",bsize=4288"), "{plan:?}");
    }

    #[test]
    fn each_kind_of_port_goes_its_way() {
        let pci = plan("0000:01:00.0,a=b", Some(1500));
        assert_eq!((pci.allow.as_slice(), pci.vdevs.len()), (["0000:01:00.0,a=b".to_owned()].as_slice(), 0));
        assert_eq!((pci.selector.as_str(), pci.mtu), ("0000:01:00.0", Some(1500)));
        let veth = plan("net_af_packet0,iface=veth0", None);
        assert_eq!(veth.vdevs, ["net_af_packet0,iface=veth0,blocksz=65536,framesz=8192,framecnt=1024"]);
        assert_eq!(veth.mtu, None, "the port's own, since there is no such interface");
        let lo = plan("net_af_packet0,iface=lo", None);
        assert_eq!(lo.mtu, Some(4200), "loopback's is larger than anything here needs");
        let lo = plan("net_af_packet0,iface=lo", Some(1500));
        assert_eq!(lo.vdevs, ["net_af_packet0,iface=lo,blocksz=65536,framesz=2048,framecnt=4096"]);
        let memif = plan("net_memif3,role=client,bsize=9216,rsize=9", None);
        assert_eq!(memif.vdevs, ["net_memif3,role=client,bsize=9216,rsize=9"]);
        assert_eq!(memif.mtu, None);
        let there = plan("52:54:00:12:34:56", None);
        assert_eq!((there.vdevs.len(), there.allow.len()), (0, 0));
        assert_eq!(there.selector, "52:54:00:12:34:56");
    }
}
