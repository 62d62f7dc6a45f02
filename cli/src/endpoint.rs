//! From the port arguments to an open port, and to a worker over it.

mod rails;

use crate::args::{EndpointArgs, NeighbourArg, NeighbourFrom};
use crate::devargs;
use crate::error::Error;
use crate::host::{Host, net, numa};
use crate::kernel::KernelTable;
use crate::observe::{Observation, Prepared, telemetry};
use crate::report::same_file;
use crate::signal::Stop;
use dataplane::buffer::Buffer;
use dataplane::capture::Capture;
use dataplane::group::{Group, Member};
use dataplane::idle::{IdlePolicy, allowed_cores, pin_current_thread};
use dataplane::io::PortIo;
use dataplane::io::dpdk::{DpdkPort, DpdkPortConfig, OpenError};
use dataplane::open::{self, ConnectError, Plan, default_port};
use dataplane::route::PortAddr;
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use dpdk::{Eal, EalConfig, EalError, LogLevel, Rss};
use roce_proto::types::Mtu;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use dataplane::open::{CLIENT_IP, Role, SERVER_IP};
pub use rails::MOST_PORTS;

/// How an endpoint is opened, apart from its arguments.
#[derive(Clone, Debug)]
pub struct OpenConfig {
    /// The side.
    pub role: Role,
    /// The IB MTU asked for; `None` takes the largest that fits the port.
    pub ib_mtu: Option<Mtu>,
    /// Number of `-v`.
    pub verbosity: u8,
    /// How long a memif client tries to reach its server.
    pub peer_wait: Duration,
    /// How long the link may take to come up. A memif server's link comes up when the client connects.
    pub link_wait: Option<Duration>,
    /// Whether figures will be made of what the endpoint does, for which one core is too few.
    pub measures: bool,
    /// Queue pairs to open; with `None` as many as there are workers, and no more than the port has.
    pub queues: Option<u16>,
    /// Workers that share the port.
    pub workers: u16,
    /// Whether there may be several ports.
    pub rails: bool,
}

impl OpenConfig {
    /// A side with the largest IB MTU; a client tries for ten seconds.
    pub fn new(role: Role, verbosity: u8) -> OpenConfig {
        OpenConfig {
            role,
            ib_mtu: None,
            verbosity,
            peer_wait: Duration::from_secs(10),
            link_wait: None,
            measures: true,
            queues: None,
            workers: 1,
            rails: false,
        }
    }
}

/// An open port with what belongs to it; [`Endpoint::into_worker`] makes it run.
pub struct Endpoint {
    /// DPDK.
    pub eal: Eal,
    /// The queue pairs of the port, at least one.
    ports: Vec<DpdkPort>,
    /// How the worker is to use the port.
    pub config: PortConfig,
    /// Further ports, of one queue pair each.
    more: Vec<(DpdkPort, PortConfig)>,
    /// The file of `--pcap`.
    pub capture: Option<CaptureFile>,
    neighbours: Vec<NeighbourArg>,
    /// The interfaces whose tables in the kernel have the others, of each port one.
    kernel_tables: Vec<String>,
    idle: IdlePolicy,
    cores: Vec<usize>,
    prepared: Prepared,
}

/// What outlives a worker: closed in order when the worker is gone.
pub struct Environment {
    /// DPDK.
    pub eal: Eal,
    capture: Option<CaptureFile>,
    observation: Observation,
    /// One for each worker, where neighbours come from the kernel.
    kernel: Vec<KernelTable>,
}

impl Environment {
    /// Completes the capture and closes the ports, so that nothing of theirs is left behind. The worker, its port and their buffers must be
    /// gone. DPDK itself is left to the end of the process: see [`Eal::shutdown`].
    pub fn close(self) {
        drop(self.kernel);
        drop(self.observation);
        if let Some(file) = self.capture {
            file.complete();
        }
        drop(self.eal);
    }
}

/// The file of `--pcap`.
pub struct CaptureFile {
    capture: Capture,
    path: PathBuf,
}

/// Set when a capture has not all that it should have.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Whether a capture of this process is incomplete: then it does not end with success, whatever else it has done.
pub fn capture_is_incomplete() -> bool {
    INCOMPLETE.load(Ordering::Relaxed)
}

impl CaptureFile {
    fn create(path: &Path) -> Result<CaptureFile, Error> {
        let cannot = |e| Error::usage(format_args!("cannot write {}: {e}", path.display()));
        Ok(CaptureFile { capture: Capture::create(path).map_err(cannot)?, path: path.to_owned() })
    }

    /// Writes what is left. A failure is said and kept for the end of the process: results are not held back for it.
    fn complete(self) {
        if let Err(e) = self.capture.flush() {
            INCOMPLETE.store(true, Ordering::Relaxed);
            let error = Error::failed(format_args!("frames are missing from {}: {e}", self.path.display()));
            error.hint("make room there, or let --pcap name a file elsewhere").print();
        }
    }
}

impl Endpoint {
    /// Starts DPDK and opens the port. Once per process.
    ///
    /// # Errors
    /// Whatever DPDK, the driver or the arguments do not allow, with what to do about it; [`Error::interrupted`] if `stop`
    /// is requested while the other side is waited for.
    pub fn open(args: &EndpointArgs, config: &OpenConfig, stop: &Stop) -> Result<Endpoint, Error> {
        if config.measures {
            warn_of_few_cores();
        }
        if args.ports.len() > 1 && !config.rails {
            return Err(Error::usage(format_args!("{} ports: this takes one", args.ports.len()))
                .hint("several are for the reliable service of bw and lat: leave --service ud out, or give one --port"));
        }
        let sides = rails::sides(args, config.role)?;
        check_neighbours(&args.neighbour)?;
        let kernel_tables = kernel_tables(args)?;
        check_cores(args.cores.as_ref().map_or(&[], |cores| &cores.0))?;
        let plans = rails::plans(&sides, args.mtu, config.queues.unwrap_or(config.workers));
        let plan = rails::together(&plans);
        // Before anything is started: a file that cannot be written, or an address that is taken, should not cost a wait for the
        // other side.
        let prepared = Prepared::new(&args.observe)?;
        if let Some(path) = &args.pcap {
            check_capture(path, &plan.vdevs)?;
        }
        let capture = match &args.pcap {
            Some(path) => Some(CaptureFile::create(path)?),
            None => None,
        };
        let _opening = Opening::begin();
        let eal = start(&plan, args, config.verbosity)?;
        let ports = connect(&eal, &plan.port(), config, stop)?;
        let Some(port) = ports.first() else {
            return Err(Error::usage(OpenError::NoQueue(plan.selector)));
        };
        let mut more = Vec::with_capacity(plans.len());
        for plan in plans.iter().skip(1) {
            more.extend(connect(&eal, &plan.port(), config, stop)?.into_iter().next());
        }
        if let Some(limit) = config.link_wait {
            for port in std::iter::once(port).chain(&more) {
                port.wait_link(limit).map_err(Error::failed)?;
            }
        }
        let info = port.info();
        let port_info = eal.find(&plan.selector).and_then(|id| eal.port(id)).map_err(Error::usage)?;
        if let Some(node) = node_of(&Host::here(), &port_info) {
            numa::say_if_far(&Host::here(), node, args.cores.as_ref().map(|cores| cores.0.as_slice()));
        }
        for (info, side) in std::iter::once(info).chain(more.iter().map(DpdkPort::info)).zip(&sides) {
            tracing::info!(
                "port {} ({}) has MAC address {}, MTU {} and the addresses {}",
                info.name,
                info.driver,
                info.mac,
                info.mtu,
                side.addrs.iter().map(PortAddr::to_string).collect::<Vec<_>>().join(" ")
            );
        }
        let mut configs = sides.into_iter().map(|side| PortConfig {
            addrs: side.addrs,
            gateways: side.gateways,
            vlan: args.vlan.map(|v| v.0),
            pkeys: vec![args.pkey],
            ib_mtu: config.ib_mtu,
            entropy: args.entropy_range.0,
        });
        let Some(first) = configs.next() else {
            return Err(Error::usage(OpenError::NoQueue(plan.selector)));
        };
        Ok(Endpoint {
            eal,
            ports,
            config: first,
            more: more.into_iter().zip(configs).collect(),
            capture,
            neighbours: args.neighbour.clone(),
            kernel_tables,
            idle: args.idle.policy(),
            cores: args.cores.clone().unwrap_or_default().0,
            prepared,
        })
    }

    /// The idle policy asked for.
    pub fn idle(&self) -> IdlePolicy {
        self.idle
    }

    /// The core for the polling thread number `index`; `None` leaves it to the system.
    pub fn core(&self, index: usize) -> Option<usize> {
        self.cores.get(index).copied()
    }

    /// Pins the calling thread to the first core of `--cores`, if there are any.
    ///
    /// # Errors
    /// A core that does not exist or may not be used.
    pub fn pin(&self) -> Result<(), Error> {
        match self.core(0) {
            Some(core) => pin_current_thread(core).map_err(Error::usage),
            None => Ok(()),
        }
    }

    /// The worker of this port, with its static neighbours and its capture, and what to close after it.
    ///
    /// # Errors
    /// An MTU or addresses that cannot be.
    pub fn into_worker<B: Buffer>(
        self,
        config: &WorkerConfig,
    ) -> Result<(Worker<DpdkPort, B>, Environment), Error> {
        let ports = self.ports.into_iter().take(1).map(|port| (port, self.config.clone())).chain(self.more);
        let mut worker = Worker::new(config, ports.collect()).map_err(Error::usage)?;
        for port in 0..worker.ports() {
            for NeighbourArg { ip, mac } in &self.neighbours {
                worker.add_neighbour(port, *ip, *mac).map_err(Error::usage)?;
            }
        }
        let mut kernel = Vec::new();
        for (port, interface) in self.kernel_tables.iter().enumerate() {
            let (table, feed) = KernelTable::start(interface)?;
            worker.set_neighbour_feed(port, feed);
            kernel.push(table);
        }
        worker.set_capture(self.capture.as_ref().map(|file| file.capture.clone()));
        let observation = self.prepared.start(std::slice::from_mut(&mut worker))?;
        Ok((worker, Environment { eal: self.eal, capture: self.capture, observation, kernel }))
    }
}

/// What [`Endpoint::into_group`] makes of an endpoint.
pub struct Crew<B: Buffer> {
    /// What the workers have in common.
    pub group: Group,
    /// The workers.
    pub workers: Vec<Worker<Member<DpdkPort>, B>>,
    /// How the port spreads what it receives over its queues.
    pub rss: Rss,
    /// What to close after the workers.
    pub environment: Environment,
}

impl Endpoint {
    /// The `workers` of this port, each with its static neighbours and its capture.
    ///
    /// # Errors
    /// As [`Endpoint::into_worker`], and a number of workers that cannot share its queues.
    pub fn into_group<B: Buffer>(self, workers: u16, config: &WorkerConfig) -> Result<Crew<B>, Error> {
        let rss = self.ports.first().map(|port| port.port().rss()).unwrap_or_default();
        let (group, members) = Group::new(self.ports, usize::from(workers)).map_err(Error::usage)?;
        let mut crew = Vec::with_capacity(members.len());
        let mut kernel = Vec::new();
        for member in members {
            let mut worker = group.worker(member, self.config.clone(), config).map_err(Error::usage)?;
            for &NeighbourArg { ip, mac } in &self.neighbours {
                worker.add_neighbour(0, ip, mac).map_err(Error::usage)?;
            }
            if let Some(interface) = self.kernel_tables.first() {
                let (table, feed) = KernelTable::start(interface)?;
                worker.set_neighbour_feed(0, feed);
                kernel.push(table);
            }
            worker.set_capture(self.capture.as_ref().map(|file| file.capture.clone()));
            crew.push(worker);
        }
        let observation = self.prepared.start(&mut crew)?;
        let environment = Environment { eal: self.eal, capture: self.capture, observation, kernel };
        Ok(Crew { group, workers: crew, rss, environment })
    }
}

/// Opens as many queue pairs of the port as are asked for, or as it has for the workers.
fn open(eal: &Eal, port: &DpdkPortConfig, config: &OpenConfig) -> Result<Vec<DpdkPort>, OpenError> {
    let queues = match config.queues {
        Some(queues) => queues,
        None if config.workers < 2 => 1,
        None => {
            let info = eal.find(&port.selector).and_then(|id| eal.port(id))?;
            config.workers.min(info.max_rx_queues).min(info.max_tx_queues).max(1)
        }
    };
    DpdkPort::open_queues(eal, port, queues)
}

/// Starts DPDK with the devices of the arguments attached and no port started, to look at what there is. Once per process.
///
/// # Errors
/// Whatever DPDK or the driver does not allow, with what to do about it.
pub fn look(args: &EndpointArgs, role: Role, verbosity: u8) -> Result<(Eal, String), Error> {
    let plan = plan(args, role);
    let _opening = Opening::begin();
    let eal = start(&plan, args, verbosity)?;
    Ok((eal, plan.selector))
}

/// Refuses to write frames to a file that a port reads or writes itself.
fn check_capture(path: &Path, devices: &[String]) -> Result<(), Error> {
    let files = devices.iter().flat_map(|device| device.split(',')).filter_map(|arg| {
        let (key, file) = arg.split_once('=')?;
        ["rx_pcap", "tx_pcap"].contains(&key).then(|| Path::new(file))
    });
    match files.into_iter().find(|file| *file == path || same_file(file, path)) {
        None => Ok(()),
        Some(file) => Err(Error::usage(format_args!(
            "--pcap={} would overwrite {}, which the port has",
            path.display(),
            file.display()
        ))
        .hint("name another file for the capture")),
    }
}

/// Refuses one neighbour with two MAC addresses: which is meant?
fn check_neighbours(given: &[NeighbourArg]) -> Result<(), Error> {
    for (at, one) in given.iter().enumerate() {
        if given.iter().take(at).any(|other| other.ip == one.ip) {
            return Err(Error::usage(format_args!("--neighbour is given twice for {}", one.ip)));
        }
    }
    Ok(())
}

/// Starts DPDK with the devices of `plan`, for a command that is no endpoint. Once per process.
///
/// # Errors
/// Cores that there are not, and whatever DPDK or the driver does not allow, with what to do about it.
pub fn start_for(
    plan: &Plan,
    cores: Option<Vec<usize>>,
    extra: Vec<String>,
    verbosity: u8,
) -> Result<Eal, Error> {
    check_cores(cores.as_deref().unwrap_or_default())?;
    let _opening = Opening::begin();
    let config = EalConfig { cores, extra, ..plan_config(plan, verbosity) };
    init(&config).map_err(Error::usage)
}

/// Opens the port; a memif client waits for its server.
fn connect(
    eal: &Eal,
    port: &DpdkPortConfig,
    config: &OpenConfig,
    stop: &Stop,
) -> Result<Vec<DpdkPort>, Error> {
    connect_for(config.peer_wait, stop, || open(eal, port, config))
}

/// Opens a port by `open`; a memif client waits for its server, as long as `peer_wait` says.
///
/// # Errors
/// What `open` says, and a server that is not there.
pub fn connect_for(
    peer_wait: Duration,
    stop: &Stop,
    open: impl FnMut() -> Result<Vec<DpdkPort>, OpenError>,
) -> Result<Vec<DpdkPort>, Error> {
    let _opening = Opening::begin();
    open::connect(peer_wait, open, || stop.requested()).map_err(|e| match e {
        ConnectError::Open(e) => Error::usage(e),
        ConnectError::Interrupted => Error::interrupted(),
        e @ ConnectError::NoPeer(_) => Error::failed(e).hint(
            "the other side comes first, as the same user: the same command without the host, or `spraywire ud recv`",
        ),
        e @ ConnectError::Refused(_) => Error::failed(e),
    })
}

/// An error of starting DPDK; where it was left to choose the port, what most often stands in the way.
fn refusal(error: impl std::fmt::Display, args: &EndpointArgs) -> Error {
    let error = Error::usage(error);
    if !args.ports.is_empty() || !error.message().contains("Address already in use") {
        return error;
    }
    error.hint(
        "if another spraywire of yours waits for a client already, end it, or give both sides a port of their own: \
         --port net_memif0,role=server,socket=other and, with role=client, on the other side (and --ip on both)",
    )
}

/// True while a port is being opened.
static OPENING: AtomicBool = AtomicBool::new(false);

/// Marks the time in which DPDK's log is only detail: whatever goes wrong then comes back as an error that quotes it.
struct Opening;

impl Opening {
    fn begin() -> Opening {
        OPENING.store(true, Ordering::Relaxed);
        dpdk::route_log(log);
        Opening
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.store(false, Ordering::Relaxed);
    }
}

/// A line of DPDK's log.
fn log(level: LogLevel, line: &str) {
    match level {
        LogLevel::Error if !OPENING.load(Ordering::Relaxed) => tracing::error!(target: "dpdk", "{line}"),
        LogLevel::Warning if !OPENING.load(Ordering::Relaxed) => tracing::warn!(target: "dpdk", "{line}"),
        LogLevel::Notice => tracing::info!(target: "dpdk", "{line}"),
        _ => tracing::debug!(target: "dpdk", "{line}"),
    }
}

/// Cores that there are not, before DPDK answers them with its usage.
fn check_cores(asked: &[usize]) -> Result<(), Error> {
    let allowed = allowed_cores();
    match asked.iter().find(|core| !allowed.contains(core)) {
        None => Ok(()),
        Some(core) => Err(Error::usage(format_args!("there is no core {core} for this process"))
            .hint(format_args!("--cores takes some of {allowed:?}"))),
    }
}

/// The interfaces whose neighbours the kernel is to tell, one for each port; none if it is not asked at all.
fn kernel_tables(args: &EndpointArgs) -> Result<Vec<String>, Error> {
    if args.neighbour_from == NeighbourFrom::Wire {
        return Ok(Vec::new());
    }
    let interfaces = args.ports.iter().map(|port| port.kernel_interface().map(str::to_owned));
    match interfaces.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()) {
        Some(interfaces) => Ok(interfaces),
        None => Err(Error::usage("the kernel knows no neighbours of this port: it is not one of its interfaces").hint(
            "--neighbour-from kernel goes with net_af_packet, net_af_xdp and net_tap; leave it out to ask the wire",
        )),
    }
}

/// Poll loops want a core each.
fn warn_of_few_cores() {
    let cores = allowed_cores().len();
    if cores <= 2 {
        let s = if cores == 1 { "" } else { "s" };
        tracing::warn!(
            "only {cores} core{s}: both sides and everything else here share them, and figures will vary"
        );
    }
}

/// The NUMA node of a port: of the device that the kernel's interface stands on, or of the port itself.
fn node_of(host: &Host, port: &dpdk::PortInfo) -> Option<u32> {
    match &port.interface {
        Some(interface) => net::interface(host, &interface.name)?.numa,
        None => port.socket,
    }
}

/// What DPDK is asked for.
fn plan(args: &EndpointArgs, role: Role) -> Plan {
    match args.ports.as_slice() {
        [] => Plan::of(&default_port(role), args.mtu),
        specs => rails::together(&specs.iter().map(|spec| Plan::of(spec, args.mtu)).collect::<Vec<_>>()),
    }
}

fn start(plan: &Plan, args: &EndpointArgs, verbosity: u8) -> Result<Eal, Error> {
    plan.vdevs.iter().try_for_each(|device| devargs::check(device))?;
    init(&eal_config(plan, args, verbosity)).map_err(|e| refusal(e, args))
}

fn init(config: &EalConfig) -> Result<Eal, EalError> {
    let eal = Eal::init(config)?;
    tracing::info!("{} started with {}", Eal::version(), eal.args()[1..].join(" "));
    Ok(eal)
}

fn eal_config(plan: &Plan, args: &EndpointArgs, verbosity: u8) -> EalConfig {
    EalConfig {
        cores: args.cores.clone().map(|c| c.0),
        telemetry: args.observe.telemetry.then(|| telemetry::prefix(args.observe.name.as_ref())),
        extra: args.eal.clone().unwrap_or_default().0,
        ..plan_config(plan, verbosity)
    }
}

/// What every command starts DPDK with.
fn plan_config(plan: &Plan, verbosity: u8) -> EalConfig {
    EalConfig {
        program: "spraywire".to_owned(),
        vdevs: plan.vdevs.clone(),
        allow: plan.allow.clone(),
        usage_to_stderr: true,
        log_level: match verbosity {
            0 | 1 => None,
            2 => Some(LogLevel::Info),
            _ => Some(LogLevel::Debug),
        },
        ..EalConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: EndpointArgs,
    }

    fn args(line: &str) -> EndpointArgs {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).args
    }

    #[test]
    fn a_pair_has_its_own_port_and_addresses() {
        assert_eq!(plan(&args(""), Role::Client), Plan::of(&default_port(Role::Client), None));
        let plan = plan(&args("--port 52:54:00:12:34:56 --eal --vdev=net_null0"), Role::Server);
        assert_eq!((plan.vdevs.len(), plan.allow.len()), (0, 0));
    }

    #[test]
    fn cores_that_are_not_there_are_named() {
        let allowed = allowed_cores();
        assert!(check_cores(&allowed).is_ok() && check_cores(&[]).is_ok());
        let error = check_cores(&[allowed[0], 100_000]).unwrap_err().to_string();
        assert!(error.contains("100000") && error.contains(&format!("{allowed:?}")), "{error}");
    }

    #[test]
    fn what_a_port_reads_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("a.pcap");
        std::fs::write(&there, "frames").unwrap();
        let device = format!("net_pcap0,rx_pcap={},tx_pcap=b.pcap", there.display());
        let devices = ["net_null0".to_owned(), device];
        let again = folder.path().join(".").join("a.pcap");
        for path in [there.clone(), again, "b.pcap".into()] {
            let error = check_capture(&path, &devices).unwrap_err().to_string();
            assert!(error.contains("would overwrite"), "{error}");
        }
        assert!(check_capture(&folder.path().join("c.pcap"), &devices).is_ok());
    }

    #[test]
    fn a_neighbour_has_one_mac_address() {
        let line = |n: &str| check_neighbours(&args(n).neighbour);
        let one = "--neighbour 192.0.2.7=02:00:00:00:00:07";
        assert!(line("").is_ok() && line(one).is_ok());
        assert!(line(&format!("{one} --neighbour fd77::7=02:00:00:00:00:07")).is_ok());
        let error = line(&format!("{one} --neighbour 192.0.2.7=02:00:00:00:00:08")).unwrap_err().to_string();
        assert!(error.contains("twice for 192.0.2.7"), "{error}");
    }
}
