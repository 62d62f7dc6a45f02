//! What `bw`, `lat` and `demo` share: opening an end, in either form of worker, and the reports.

use crate::args::{EndpointArgs, OutputArgs};
use crate::endpoint::{Endpoint, OpenConfig, Role};
use crate::error::Error;
use crate::reliable::ServiceArgs;
use crate::rendezvous::message::{RxReport, TestSpec};
use crate::report::numbers::Si;
use crate::signal::Stop;
use crate::traffic::drive::{Drive, Inline, Threaded};
use crate::traffic::session::{Bench, Client, MAX_OUTSTANDING, TestResult, Watch};
use crate::units;
use clap::{Args, ValueEnum};
use dataplane::clock::Clock;
use dataplane::idle::{IdlePolicy, allowed_cores};
use dataplane::thread::{Endpoint as WorkerHandle, ThreadConfig};
use dataplane::worker::WorkerConfig;
use roce_proto::types::Mtu;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerKind {
    /// Polled by the benchmark's own loop
    Inline,
    /// In a poll-mode thread of its own, behind queues
    Thread,
}

/// What `bw` and `lat` have in common.
#[derive(Args, Clone, Debug, Serialize)]
pub struct MeasureArgs {
    /// The server's IP address or name; without it, this side is the server and waits
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// IB MTU of the port: 256, 512, 1024, 2048 or 4096; the largest that fits if not given
    #[arg(short = 'm', long = "ib-mtu", value_name = "BYTES", value_parser = ib_mtu)]
    #[serde(serialize_with = "mtu_bytes")]
    pub ib_mtu: Option<Mtu>,

    /// Where the worker runs
    #[arg(long, value_enum, default_value_t = WorkerKind::Inline)]
    pub worker: WorkerKind,

    /// The service.
    #[command(flatten)]
    #[serde(flatten)]
    pub service: ServiceArgs,

    /// How long the client waits for the server
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = units::duration)]
    #[serde(rename = "wait_s", serialize_with = "units::seconds")]
    pub wait: Duration,

    /// The port.
    #[command(flatten)]
    pub endpoint: EndpointArgs,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

impl MeasureArgs {
    /// Which side this is.
    pub fn role(&self) -> Role {
        if self.host.is_some() { Role::Client } else { Role::Server }
    }
}

/// Parses an IB MTU.
pub fn ib_mtu(text: &str) -> Result<Mtu, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes)
        .ok()
        .and_then(Mtu::from_bytes)
        .ok_or_else(|| format!("`{text}` is no IB MTU: 256, 512, 1024, 2048 or 4096"))
}

fn mtu_bytes<S: serde::Serializer>(mtu: &Option<Mtu>, serializer: S) -> Result<S::Ok, S::Error> {
    mtu.map(|m| m.bytes()).serialize(serializer)
}

/// The address of a host, one that a port can have.
pub fn resolve(host: &str, v6_only: bool) -> Result<IpAddr, Error> {
    if let Ok(ip) = host.parse() {
        return a_peers(host, ip);
    }
    let found = (host, 0u16).to_socket_addrs().map(|mut all| all.find(|a| !v6_only || a.is_ipv6()));
    match found {
        Ok(Some(addr)) => a_peers(host, addr.ip()),
        Ok(None) => Err(Error::usage(format_args!("{host} has no address of the port's family"))),
        Err(e) => Err(Error::usage(format_args!("{host} is neither an IP address nor a known name ({e})"))),
    }
}

/// The other side as `host` names it, before a port is opened: this side's own address is none.
///
/// # Errors
/// As [`resolve`], and an address that this side itself has.
pub fn other_side(host: &str, args: &EndpointArgs) -> Result<IpAddr, Error> {
    let ip = resolve(host, false)?;
    let own = match args.ip.is_empty() && args.ports.is_empty() {
        true => ip == Role::Client.ip(),
        false => args.ip.iter().any(|own| own.addr == ip),
    };
    if own {
        return Err(Error::usage(format_args!("{ip} is this side's own address"))
            .hint("give the other side's: its --ip, or 192.0.2.1 if it was started without --port"));
    }
    Ok(ip)
}

/// Refuses an address that is no single host's on a network.
fn a_peers(host: &str, ip: IpAddr) -> Result<IpAddr, Error> {
    let why = match ip {
        ip if ip.is_loopback() => "a loopback address, which no port can have",
        ip if ip.is_multicast() || ip.is_unspecified() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => {
            "not the address of one host"
        }
        ip => return Ok(ip),
    };
    let named = if host == ip.to_string() { String::new() } else { format!(", of {host},") };
    Err(Error::usage(format_args!("{ip}{named} is {why}"))
        .hint("give the address that the other side's port has: its --ip, or 192.0.2.1 if it was started without --port"))
}

/// What is done with an end, whichever form its worker has.
pub trait Job {
    /// What comes out.
    type Out;
    /// Does it.
    fn run<D: Drive>(self, bench: Bench<D>) -> Result<Self::Out, Error>;
}

/// A number that differs from one run to the next.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    now ^ (u64::from(std::process::id()) << 32)
}

/// Empty rounds before the first yield where every polling thread has a core of its own: about a millisecond, longer than
/// any round trip worth measuring, so that a measurement never pays for a system call.
const SPINS_ALONE: u32 = 30_000;
/// The same where threads share a core: just long enough to see a burst that is on its way.
const SPINS_SHARED: u32 = 4;

/// The idle policy for `threads` polling threads in this process and as many on the other side of the machine, unless one was
/// asked for.
pub fn idle_for(asked: IdlePolicy, is_default: bool, threads: usize) -> IdlePolicy {
    match asked {
        IdlePolicy::BackOff { yields, max_sleep, .. } if is_default => {
            let alone = allowed_cores().len() >= 2 && threads == 1;
            let spins = if alone { SPINS_ALONE } else { SPINS_SHARED };
            IdlePolicy::BackOff { spins, yields, max_sleep }
        }
        other => other,
    }
}

/// How the end of `args` is opened.
pub fn open_config(args: &MeasureArgs, verbosity: u8) -> OpenConfig {
    OpenConfig { ib_mtu: args.ib_mtu, peer_wait: args.wait, ..OpenConfig::new(args.role(), verbosity) }
}

/// Opens an end and does `job` with it; closes everything again.
pub fn with_bench<J: Job>(
    args: &MeasureArgs,
    config: &OpenConfig,
    stop: &Stop,
    job: J,
) -> Result<J::Out, Error> {
    let role = args.role();
    let endpoint = Endpoint::open(&args.endpoint, config, stop)?;
    let cores = [endpoint.core(0), endpoint.core(1)];
    let threads = if args.worker == WorkerKind::Thread { 2 } else { 1 };
    // With one core named for two threads, they share it.
    let policy = endpoint.idle();
    let idle = idle_for(policy, policy == IdlePolicy::default(), threads);
    let worker_config = WorkerConfig { seed: seed(), ..WorkerConfig::default() };
    let clock = Clock::new();
    let (mut worker, environment) = endpoint.into_worker(&worker_config)?;
    let data_cq = worker.create_cq(MAX_OUTSTANDING);
    let control_cq = worker.create_cq(256);
    let listen = role == Role::Server;
    let out = match args.worker {
        WorkerKind::Inline => {
            if let Some(core) = cores[0] {
                dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
            }
            let drive = Inline::new(worker, [data_cq, control_cq], clock, idle);
            Bench::new(drive, data_cq, control_cq, listen, stop.flag()).and_then(|bench| job.run(bench))
        }
        WorkerKind::Thread => {
            let thread = ThreadConfig { core: cores[0], idle, ..ThreadConfig::default() };
            let eal = environment.eal.clone();
            let enter = move || eal.register_thread().map_err(|e| e.to_string());
            let handle = WorkerHandle::start(worker, vec![data_cq, control_cq], &thread, clock, enter)
                .map_err(Error::usage)?;
            if let Some(core) = cores[1].or(cores[0]) {
                dataplane::idle::pin_current_thread(core).map_err(Error::usage)?;
            }
            let drive = Threaded::new(handle, clock, idle);
            Bench::new(drive, data_cq, control_cq, listen, stop.flag()).and_then(|bench| job.run(bench))
        }
    };
    environment.close();
    out
}

/// Runs tests one after the other as a client, handing each result to `each`.
pub fn run_client<D: Drive>(
    bench: Bench<D>,
    host: IpAddr,
    wait: Duration,
    specs: &[TestSpec],
    watch: &mut impl Watch,
    mut each: impl FnMut(&TestResult) -> Result<(), Error>,
) -> Result<bool, Error> {
    let mut client = Client::new(bench, host, seed(), wait);
    let mut interrupted = false;
    let mut outcome = Ok(());
    for spec in specs {
        outcome = client.run(spec, watch).and_then(|result| {
            interrupted = result.interrupted;
            each(&result)?;
            result.whole().map(drop)
        });
        if outcome.is_err() || interrupted {
            break;
        }
    }
    // The server is told in any case, so that it does not have to wait for our silence.
    let bye = client.bye();
    outcome.and(bye).map(|()| interrupted)
}

/// A progress line on standard error: drawn over itself on a terminal, now and then elsewhere.
pub struct Progress {
    terminal: bool,
    shown: bool,
    prefix: String,
}

impl Progress {
    /// Shows nothing yet.
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), shown: false, prefix: String::new() }
    }

    /// What stands in front of every line.
    pub fn prefix(&mut self, text: impl Into<String>) {
        self.prefix = text.into();
    }

    /// Shows a line in place of the one before. Not on a terminal, only if `always`.
    pub fn show(&mut self, text: &str, always: bool) {
        let mut err = std::io::stderr().lock();
        // Nobody is left to tell if standard error is closed.
        let _ = if self.terminal {
            self.shown = true;
            write!(err, "\r\x1b[K{}{text}", self.prefix).and_then(|()| err.flush())
        } else if always {
            writeln!(err, "{}{text}", self.prefix)
        } else {
            Ok(())
        };
    }

    /// Takes the line away, so that a result can stand in its place.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

impl Watch for Progress {
    fn waiting(&mut self, host: IpAddr, elapsed: Duration) {
        let first = elapsed < Duration::from_secs(2);
        self.show(&format!("waiting for {host} ({} s)", elapsed.as_secs()), first);
    }

    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        let rate = messages as f64 / elapsed.as_secs_f64();
        let text = format!(
            "{} of {} B: {} messages, {}msg/s, {:.1} s",
            spec.kind.name(),
            spec.size,
            Si(messages as f64),
            Si(rate),
            elapsed.as_secs_f64()
        );
        self.show(&text, false);
    }
}

/// Messages per second of what one end received: the messages after the first burst, over the time since it. Nobody can say where
/// all came at once.
pub fn rate_of(rx: &RxReport) -> Option<f64> {
    let after = rx.messages.saturating_sub(rx.first_burst.max(1));
    (after > 0 && rx.elapsed_ns > 0).then(|| after as f64 / (rx.elapsed_ns as f64 / 1e9))
}

/// Payload bits per second.
pub fn goodput_of(rx: &RxReport, size: u32) -> Option<f64> {
    rate_of(rx).map(|rate| rate * f64::from(size) * 8.0)
}

/// [`rate_of`] as a table has it.
pub fn rate_cell(rx: &RxReport) -> String {
    rate_of(rx).map_or("-".to_owned(), |rate| Si(rate).to_string())
}

/// [`goodput_of`] as a table has it, in Gbit/s.
pub fn goodput_cell(rx: &RxReport, size: u32) -> String {
    goodput_of(rx, size).map_or("-".to_owned(), |bits| format!("{:.3}", bits / 1e9))
}

/// Messages that were sent and not received, where it is known how many were sent.
pub fn lost_of(rx: &RxReport, sent: Option<u64>) -> Option<u64> {
    sent.map(|sent| sent.saturating_sub(rx.messages))
}

/// One direction as JSON; null is what is not known.
pub fn direction(rx: Option<&RxReport>, sent: Option<u64>, size: u32) -> Value {
    let Some(rx) = rx else { return json!({ "sent": sent }) };
    json!({
        "sent": sent,
        "received": rx.messages,
        "lost": lost_of(rx, sent),
        "first_burst": rx.first_burst,
        "elapsed_ns": rx.elapsed_ns,
        "longest_pause_ns": rx.longest_pause_ns,
        "messages_per_second": rate_of(rx),
        "goodput_bits_per_second": goodput_of(rx, size),
        "intervals": {
            "count": rx.intervals,
            "length_ns": rx.interval_ns,
            "messages_per_second_min": rx.interval_min,
            "messages_per_second_p1": rx.interval_p1,
            "messages_per_second_p50": rx.interval_p50,
        },
        "drops": rx.drops.iter().cloned().collect::<std::collections::BTreeMap<String, u64>>(),
    })
}

/// The drops as text: `no_receive 12, icrc 1`, or `none`.
pub fn drops_text(rx: &RxReport) -> String {
    if rx.drops.is_empty() {
        return "none".to_owned();
    }
    rx.drops.iter().map(|(reason, n)| format!("{reason} {n}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_messages_after_the_first_burst() {
        let rx = RxReport { messages: 11, first_burst: 1, elapsed_ns: 1_000_000_000, ..RxReport::default() };
        assert_eq!(rate_of(&rx), Some(10.0));
        assert_eq!(goodput_of(&rx, 100), Some(8000.0));
        assert_eq!(rate_of(&RxReport { first_burst: 7, ..rx.clone() }), Some(4.0));
        for none in [
            RxReport { messages: 0, first_burst: 0, ..rx.clone() },
            RxReport { messages: 1, ..rx.clone() },
            RxReport { first_burst: 11, elapsed_ns: 0, ..rx },
        ] {
            assert_eq!(rate_of(&none), None, "{none:?}");
            let json = direction(Some(&none), Some(11), 64);
            assert_eq!(
                (&json["messages_per_second"], &json["goodput_bits_per_second"]),
                (&Value::Null, &Value::Null)
            );
        }
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        assert_eq!(resolve("192.0.2.1", false).unwrap().to_string(), "192.0.2.1");
        assert_eq!(resolve("2001:db8::1", false).unwrap().to_string(), "2001:db8::1");
        for (host, why) in [
            ("localhost", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "one host"),
            ("ff02::1", "one host"),
            ("0.0.0.0", "one host"),
            ("255.255.255.255", "one host"),
        ] {
            let error = resolve(host, false).unwrap_err();
            assert!(error.message().contains(why) && error.what_to_do().is_some(), "{error}");
        }
        let error = resolve("no.such.host.invalid", false).unwrap_err();
        assert!(error.to_string().contains("no.such.host.invalid"), "{error}");
    }

    #[test]
    fn only_ib_mtus_are_ib_mtus() {
        assert_eq!(ib_mtu("4k").unwrap().bytes(), 4096);
        assert!(ib_mtu("1500").unwrap_err().contains("4096"));
    }
}
