//! `spraywire ud send` and `ud recv`: single datagrams with every field under control, to talk to any RoCEv2 endpoint.

pub mod pattern;
pub mod recv;
pub mod send;
pub mod sizes;

use crate::args::{EndpointArgs, OutputArgs};
use crate::endpoint::{Endpoint, OpenConfig};
use crate::error::{Error, Exit};
use crate::report::numbers::plural;
use crate::signal::Stop;
use clap::Subcommand;
use dataplane::clock::Clock;
use dataplane::counters::Counters;
use dataplane::io::PortIo;
use dataplane::io::dpdk::DpdkPort;
use dataplane::worker::{Worker, WorkerConfig};
use serde_json::{Value, json};

/// The two directions.
#[derive(Subcommand, Debug)]
pub enum UdCommand {
    /// Send UD messages to any RoCEv2 endpoint
    Send(send::SendArgs),
    /// Receive UD messages from any RoCEv2 endpoint, and say of each where it came from
    Recv(recv::RecvArgs),
}

/// Runs the command.
pub fn run(command: &UdCommand, verbosity: u8) -> Result<Exit, Error> {
    match command {
        UdCommand::Send(args) => send::run(args, verbosity),
        UdCommand::Recv(args) => recv::run(args, verbosity),
    }
}

/// A worker whose receive buffers are vectors: what both directions drive.
type UdWorker<I> = Worker<I, Vec<u8>>;

/// Opens the port and runs `job` over its worker, polled in this thread.
fn with_worker<T>(
    args: &EndpointArgs,
    config: &OpenConfig,
    stop: &Stop,
    job: impl FnOnce(&mut UdWorker<DpdkPort>) -> Result<T, Error>,
) -> Result<T, Error> {
    let endpoint = Endpoint::open(args, config, stop)?;
    endpoint.pin()?;
    // Sequence numbers should not begin at the same place in each run.
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let config = WorkerConfig { seed: seed.as_nanos() as u64, ..WorkerConfig::default() };
    let (mut worker, environment) = endpoint.into_worker(&config)?;
    let done = job(&mut worker);
    drop(worker);
    environment.close();
    done
}

/// The clock that a worker is driven with, and when it started.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    clock: Clock,
}

impl Time {
    /// Time since the clock was made.
    fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.clock.now().as_nanos())
    }
}

/// Why packets were dropped, in words: `qkey 3, unknown_qpn 1`.
fn drops(counters: &Counters) -> Option<String> {
    let list: Vec<String> = counters.drops().map(|(reason, n)| format!("{reason} {n}")).collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// Says how often the link was lost, if it was.
fn link_line<I: PortIo>(worker: &UdWorker<I>, out: &mut crate::report::Out) -> Result<(), Error> {
    match worker.counters(0).map_or(0, |c| c.link_lost) {
        0 => Ok(()),
        n => out.line(format_args!("the link was lost {}", plural(n, "time"))),
    }
}

/// What the worker counted, as the reports have it.
fn counters_json<I: PortIo>(worker: &UdWorker<I>) -> Value {
    let Some(c) = worker.counters(0) else { return Value::Null };
    let drops: serde_json::Map<String, Value> =
        c.drops().map(|(reason, n)| (reason.name().to_owned(), n.into())).collect();
    json!({
        "rx_packets": c.rx_packets,
        "delivered": c.delivered,
        "neighbour": c.neighbour,
        "echo": c.echo,
        "ignored": c.ignored,
        "dropped": drops,
        "tx_packets": c.tx_packets,
        "tx_control": c.tx_control,
        "link_lost": c.link_lost,
        "link_back": c.link_back,
    })
}

/// Where text for people goes: beside JSON on standard output, to standard error, since others wait for its lines.
fn text(output: &OutputArgs) -> crate::report::Out {
    if output.json().is_stdout() {
        crate::report::Out::stderr()
    } else {
        crate::report::Out::stdout().unbuffered()
    }
}

#[cfg(test)]
mod tests;
