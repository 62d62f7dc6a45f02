//! `bw --workload`: collectives between many ranks, step by step, over the reliable service.
//!
//! - [`launch`]: which rank this is, by flags or by what launchers set;
//! - [`collective`]: the collectives, without IO; [`values`] what is sent, and whether it is right;
//! - [`rank`]: how ranks meet, and go through steps together;
//! - [`switch`]: what joins ranks of one process;
//! - [`tally`]: what came of it.

pub mod collective;
pub mod launch;
mod rank;
mod switch;
mod tally;
#[cfg(test)]
mod tests;
mod values;

use crate::args::IpArg;
use crate::cmd::bw::BwArgs;
use crate::cmd::measure::{Progress, idle_for, resolve, seed};
use crate::endpoint::{Endpoint, OpenConfig, Role, SERVER_IP};
use crate::error::{Error, Exit};
use crate::host::Host;
use crate::reliable::{KEEP_ALIVE, SILENCE, Service, ServiceArgs};
use crate::report::Document;
use crate::signal::Stop;
use crate::traffic::drive::Buf;
use crate::units;
use clap::Args;
use collective::Workload;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::PortIo;
use dataplane::io::memory::MemoryPort;
use dataplane::reliable::{Reliable, ReliableConfig, fresh_secret};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use launch::Place;
use rank::{Failure, Rank, Test, Who};
use roce_proto::transport::{Address, Limits, Times};
use roce_proto::types::Qpn;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use switch::Switch;
use tally::Tally;

/// Ranks of one process, at the most.
const MAX_HERE: u32 = 64;
/// Rank 0's queue pair: this and `MASTER_PORT`, so that jobs with ports of their own do not meet.
const MASTER_QPN: u32 = 0x40_0000;
/// The port of ranks of one process.
const HERE_PORT: u16 = 0;
/// How long a test lasts if nothing else is said.
const DEFAULT_DURATION: Duration = Duration::from_secs(2);

/// What `bw` has for collectives.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Collectives")]
pub struct StepArgs {
    /// Run steps of a collective between ranks instead: the time of each, and whether every value is right
    #[arg(long, value_enum, value_name = "WHAT")]
    #[arg(conflicts_with_all = ["host", "bidirectional", "rate", "qps", "workers", "queues", "peers", "memory", "worker"])]
    pub workload: Option<Workload>,

    /// How many ranks there are: in this process, if neither --rank nor a launcher says which of them this is
    #[arg(long, value_name = "COUNT", requires = "workload")]
    pub ranks: Option<u32>,

    /// Which rank this is, from 0; torchrun, mpirun and srun say it by their variables
    #[arg(long, value_name = "RANK", requires = "workload")]
    pub rank: Option<u32>,

    /// The address of rank 0's port, or its name; the variable MASTER_ADDR if not given
    #[arg(long, value_name = "HOST", requires = "workload")]
    pub master: Option<String>,

    /// The address of rank 0's port, from which the others' count on: rank 3 of 10.0.0.1/24 has 10.0.0.4. Instead of --ip and --master
    #[arg(long, value_name = "ADDR[/LEN]", requires = "workload", conflicts_with_all = ["ip", "master"])]
    pub first_ip: Option<IpArg>,

    /// Share of the packets between ranks of one process that are lost
    #[arg(long, value_name = "SHARE", requires = "workload", value_parser = units::share)]
    pub loss: Option<f64>,
}

impl BwArgs {
    /// The tests of a workload between so many ranks.
    fn step_tests(&self, workload: Workload, ranks: u32) -> Vec<Test> {
        const ALL: u64 = 1 << 20;
        let sizes: Vec<u64> = if self.all {
            (2..).map(|i| 1u64 << i).take_while(|&size| size <= ALL).collect()
        } else {
            vec![self.size.unwrap_or(ALL)]
        };
        let duration = self.duration.or(self.iters.is_none().then_some(DEFAULT_DURATION));
        let test = |size| Test { workload, size: workload.buffer(size, ranks), steps: self.iters, duration };
        let mut tests: Vec<_> = sizes.into_iter().map(test).collect();
        // Small sizes that are one and the same between many ranks.
        tests.dedup();
        tests
    }
}

/// Runs a workload.
///
/// # Errors
/// Flags and variables that do not fit together, and a rank that is missing or goes away, which is named.
pub fn run(args: &BwArgs, workload: Workload, verbosity: u8, stop: &Stop) -> Result<Exit, Error> {
    let steps = &args.steps;
    let service = &args.common.service;
    if service.service != Service::Reliable {
        return Err(Error::usage("--workload is of the reliable service: leave --service out"));
    }
    if args.size.is_some_and(|size| size > 1 << 32) {
        return Err(Error::usage("a buffer has at most 4 GiB: -s 4g"));
    }
    if args.iters == Some(0) {
        return Err(Error::usage("a test needs at least one step: -n 1 or more"));
    }
    if args.duration.is_some_and(|time| time < Duration::from_millis(1)) {
        return Err(Error::usage("a test takes at least a millisecond: -D 1ms or more"));
    }
    let target = args.common.output.json();
    target.check()?;
    let place = launch::place(steps.ranks, steps.rank, |name| std::env::var(name).ok())?;
    let (ranks, here_now) = match place {
        Place::Here { ranks } => (ranks, ranks),
        Place::Rank { ranks, .. } => (ranks, 1),
    };
    let tests = args.step_tests(workload, ranks);
    let largest = tests.iter().map(|test| test.size).max().unwrap_or(0);
    let needs = largest.saturating_mul(workload.buffers()).saturating_mul(here_now.into());
    let (rank, ranks, outcome) = match place {
        Place::Here { ranks } => {
            if ranks > MAX_HERE {
                return Err(Error::usage(format_args!(
                    "{ranks} ranks in one process: there can be {MAX_HERE}"
                ))
                .hint("start a process for each, by torchrun, mpirun or srun, or with --rank"));
            }
            Host::here().check_memory(needs).map_err(Error::usage)?;
            (0, ranks, here(args, workload, ranks, stop))
        }
        Place::Rank { rank, ranks, master, port } => {
            if steps.loss.is_some() {
                return Err(Error::usage("--loss is between ranks of one process").hint(
                    "a network that loses, on this machine: spraywire testbed up --loss 1%, or spraywire wan",
                ));
            }
            Host::here().check_memory(needs).map_err(Error::usage)?;
            let end = Joining { rank, ranks, master, port, verbosity };
            (rank, ranks, one(args, workload, &end, stop))
        }
    };
    let (tallies, interrupted) = outcome?;
    let mut out = target.text();
    // One table is enough for all.
    if rank == 0 {
        let rows: Vec<_> =
            tests.iter().map(|test| test.size).zip(&tallies).filter(|(_, t)| t.steps() > 0).collect();
        out.line(tally::table(workload, ranks, &rows))?;
        out.flush()?;
    }
    let mut document = Document::new("bw", args);
    document.set("role", &"rank");
    document.set("rank", &rank);
    document.set("ranks", &ranks);
    document.set("interrupted", &interrupted);
    let results: Vec<_> =
        tests.iter().zip(&tallies).map(|(test, t)| t.to_json(workload, ranks, test.size)).collect();
    document.set("results", &results);
    document.write(&target)?;
    let wrong: u64 = tallies.iter().map(|tally| tally.wrong).sum();
    if wrong > 0 {
        return Err(Error::failed(format_args!("{wrong} values are not what they should be")));
    }
    Ok(if interrupted { Exit::Interrupted } else { Exit::Ok })
}

/// A rank of this process alone, by what the launcher said.
struct Joining {
    rank: u32,
    ranks: u32,
    master: Option<String>,
    port: u16,
    verbosity: u8,
}

impl Joining {
    /// The address of rank 0's port.
    fn master(&self, args: &BwArgs) -> Result<IpAddr, Error> {
        let endpoint = &args.common.endpoint;
        if let Some(first) = args.steps.first_ip {
            return Ok(first.addr);
        }
        if self.rank == 0 && args.steps.master.is_none() {
            // It knows itself.
            return Ok(endpoint.ip.first().map_or(SERVER_IP, |ip| ip.addr));
        }
        match (&args.steps.master, &self.master) {
            (Some(host), _) => resolve(host, false),
            // The pair that needs no argument.
            (None, _) if endpoint.ports.is_empty() && endpoint.ip.is_empty() => Ok(SERVER_IP),
            (None, Some(host)) => resolve(host, false).map_err(|e| {
                e.hint("the variable MASTER_ADDR is no address that a port can have: say rank 0's by --master or --first-ip")
            }),
            (None, None) => Err(Error::usage("where is rank 0?").hint(
                "the address of its port: --master ADDR, the variable MASTER_ADDR, or --first-ip if the addresses of all are in a row",
            )),
        }
    }
}

/// Runs one rank over a port of DPDK's.
fn one(args: &BwArgs, workload: Workload, end: &Joining, stop: &Stop) -> Result<(Vec<Tally>, bool), Error> {
    let Joining { rank, ranks, .. } = *end;
    let master = end.master(args)?;
    let mut endpoint_args = args.common.endpoint.clone();
    if let Some(first) = args.steps.first_ip {
        endpoint_args.ip = vec![nth_address(first, rank)?];
    }
    if endpoint_args.ports.is_empty() && ranks > 2 {
        return Err(Error::usage(format_args!("{ranks} ranks, and no --port: net_memif, which is there without one, joins two")).hint(
            "give each rank a port on a network of all, as --port net_af_packet0,iface=eth1 --first-ip 10.0.0.1/24; or leave rank and variables \
             out, and --ranks runs all of them in this process",
        ));
    }
    let role = if rank == 0 { Role::Server } else { Role::Client };
    let config = OpenConfig {
        ib_mtu: args.common.ib_mtu,
        peer_wait: args.common.wait,
        rails: true,
        ..OpenConfig::new(role, end.verbosity)
    };
    let endpoint = Endpoint::open(&endpoint_args, &config, stop)?;
    endpoint.pin()?;
    let idle = idle_for(endpoint.idle(), endpoint.idle() == IdlePolicy::default(), 1);
    let worker_config = WorkerConfig { seed: seed(), ..WorkerConfig::default() };
    let (mut worker, environment) = endpoint.into_worker(&worker_config)?;
    let qpn = MASTER_QPN + u32::from(end.port);
    let reliable = open(&mut worker, &args.common.service, ranks, (rank == 0).then_some(qpn))?;
    let who = who(args, rank, ranks);
    let master = Address::new(master, Qpn::new(qpn).unwrap_or_default());
    let mut this = Rank::new(worker, reliable, who, master, args.step_tests(workload, ranks))?;
    let mut idle = Idle::new(idle);
    let mut progress = Progress::new();
    let mut shown = Instant::now();
    let outcome = loop {
        match this.round() {
            Ok(_) if this.is_over() => break Ok(()),
            Ok(busy) => {
                idle.after_round(busy || this.is_due());
            }
            Err(failure) => break Err(failure),
        }
        if stop.requested() {
            break Err(Failure { rank, why: "was interrupted".to_owned() });
        }
        show(&mut progress, &mut shown, &this);
    };
    progress.clear();
    let result = match outcome {
        Ok(()) => {
            this.close();
            Ok((std::mem::take(&mut this.tallies), false))
        }
        Err(failure) => {
            this.abort(&failure);
            ended(&mut this, &failure, stop)
        }
    };
    drop(this);
    environment.close();
    result
}

/// What a run that did not come to its end leaves: what was measured, if it was this process that was interrupted.
fn ended<I: PortIo + 'static>(
    this: &mut Rank<I>,
    failure: &Failure,
    stop: &Stop,
) -> Result<(Vec<Tally>, bool), Error> {
    if stop.requested() {
        return if this.steps() > 0 {
            Ok((std::mem::take(&mut this.tallies), true))
        } else {
            Err(Error::interrupted())
        };
    }
    let at = this.address(failure.rank).map_or(String::new(), |ip| format!(" ({ip})"));
    Err(Error::failed(format_args!("rank {}{at}: {}", failure.rank, failure.why)))
}

/// Who is waited for, and how far it is.
fn show<I: PortIo + 'static>(progress: &mut Progress, shown: &mut Instant, this: &Rank<I>) {
    if shown.elapsed() < Duration::from_secs(1) {
        return;
    }
    *shown = Instant::now();
    let missing = this.missing();
    if missing.is_empty() {
        progress.show(&format!("{} steps", this.steps()), false);
    } else {
        let names: Vec<_> = missing.iter().take(8).map(u32::to_string).collect();
        let more = if missing.len() > names.len() { ", …" } else { "" };
        progress.show(&format!("waiting for rank {}{more}", names.join(", ")), true);
    }
}

/// Runs all ranks, joined by a switch.
fn here(args: &BwArgs, workload: Workload, ranks: u32, stop: &Stop) -> Result<(Vec<Tally>, bool), Error> {
    let endpoint = &args.common.endpoint;
    if !endpoint.ports.is_empty() || !endpoint.ip.is_empty() || args.steps.first_ip.is_some() {
        return Err(Error::usage("ranks of one process are joined by a switch within it, and have no port").hint(
            "leave --port and addresses out; or say which rank this process is: by --rank, or by starting it with torchrun, mpirun or srun",
        ));
    }
    let tests = args.step_tests(workload, ranks);
    let (mut switch, ports) = Switch::new(ranks, switch::BUFFERS, args.steps.loss.unwrap_or(0.0), seed());
    let mut all = Vec::with_capacity(ports.len());
    for (rank, port) in (0..).zip(ports) {
        all.push(rank_here(args, rank, ranks, port, tests.clone())?);
    }
    let mut idle =
        Idle::new(idle_for(endpoint.idle.policy(), endpoint.idle.policy() == IdlePolicy::default(), 1));
    let mut progress = Progress::new();
    let mut shown = Instant::now();
    let outcome = 'run: loop {
        let mut busy = switch.round();
        for rank in &mut all {
            match rank.round() {
                Ok(moved) => busy |= moved,
                Err(failure) => break 'run Err(failure),
            }
        }
        let Some(first) = all.first() else { break Ok(()) };
        if first.is_over() {
            break Ok(());
        }
        if stop.requested() {
            break Err(Failure { rank: 0, why: "was interrupted".to_owned() });
        }
        show(&mut progress, &mut shown, first);
        let due = !busy && all.iter().any(Rank::is_due);
        idle.after_round(busy || due);
    };
    progress.clear();
    tracing::info!("the switch lost {} frames, and had no room for {}", switch.lost, switch.full);
    let Some(first) = all.first_mut() else { return Err(Error::failed("there is no rank")) };
    match outcome {
        Ok(()) => Ok((std::mem::take(&mut first.tallies), false)),
        Err(failure) => ended(first, &failure, stop),
    }
}

/// A rank at a port of the switch.
fn rank_here(
    args: &BwArgs,
    rank: u32,
    ranks: u32,
    port: MemoryPort,
    tests: Vec<Test>,
) -> Result<Rank<MemoryPort>, Error> {
    let ip = |rank: u32| IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + rank));
    let config = PortConfig { ib_mtu: args.common.ib_mtu, ..PortConfig::new(ip(rank)) };
    let worker_config = WorkerConfig { seed: seed() ^ u64::from(rank), ..WorkerConfig::default() };
    let mut worker = Worker::new(&worker_config, vec![(port, config)]).map_err(Error::usage)?;
    let qpn = MASTER_QPN + u32::from(HERE_PORT);
    let reliable = open(&mut worker, &args.common.service, ranks, (rank == 0).then_some(qpn))?;
    let who = who(args, rank, ranks);
    Rank::new(worker, reliable, who, Address::new(ip(0), Qpn::new(qpn).unwrap_or_default()), tests)
}

/// A rank of so many.
fn who(args: &BwArgs, rank: u32, ranks: u32) -> Who {
    Who { rank, ranks, wait: args.common.wait, semantics: args.common.service.tags.semantics() }
}

/// The endpoint of a rank.
fn open<I: PortIo + 'static>(
    worker: &mut Worker<I, Buf>,
    service: &ServiceArgs,
    ranks: u32,
    qpn: Option<u32>,
) -> Result<Reliable<Buf>, Error> {
    let secret =
        fresh_secret().map_err(|e| Error::failed(format_args!("the system gives no random numbers: {e}")))?;
    let mut config = ReliableConfig::new(seed(), secret);
    config.qpn = qpn.and_then(Qpn::new);
    // Room for strangers, and for ranks that begin anew.
    let sessions = 2 * ranks + 16;
    config.engine.limits = Limits {
        sessions,
        channels: 8 * sessions,
        sends: 16_384,
        receives: 16_384,
        segments: 65_536,
        windows: sessions,
        ..Limits::default()
    };
    config.engine.times = Times { keep_alive: KEEP_ALIVE, silence: SILENCE, ..Times::default() };
    service.engine(&mut config.engine);
    service.over(worker.ports(), &mut config);
    Reliable::new(worker, &config, |len| vec![0; len].into()).map_err(Error::usage)
}

/// The address so many places after another, in the same network.
fn nth_address(first: IpArg, n: u32) -> Result<IpArg, Error> {
    let out = || Error::usage(format_args!("there is no address {n} places after {}", first.addr));
    let addr = match first.addr {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from(u32::from(ip).checked_add(n).ok_or_else(out)?)),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip).checked_add(n.into()).ok_or_else(out)?)),
    };
    Ok(IpArg { addr, prefix: first.prefix })
}
