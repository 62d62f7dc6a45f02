//! Spraywire's figures. See the crate's README for what each means.

#![forbid(unsafe_code)]

mod bare;
mod child;
mod contest;
mod far;
mod fec;
mod figures;
mod headers;
mod parity;
mod paths;
mod peers;
mod reliable;
mod report;
mod stats;

use clap::{Parser, Subcommand};
use figures::{Figure, Options};
use reliable::Part;
use std::error::Error;
use std::process::ExitCode;

const AFTER: &str = "\
Without a command, every figure is measured. The two processors should have nothing else to do.

Examples:
  spraywire-benches                                 every figure, fifteen runs of each contestant
  spraywire-benches ud --sizes 64 --runs 5          throughput at 64 bytes, quickly
  spraywire-benches lat --check                     exit code 1 unless what is wanted is reached
  spraywire-benches all --json=figures.json         every single run, as JSON";

#[derive(Parser)]
#[command(version, about = "Spraywire's figures, each interleaved with what bounds it", after_help = AFTER)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Every figure
    All(Options),
    /// Raw UD throughput against the bare loop
    Ud(Options),
    /// Ping-pong latency against the bare echo
    Lat(Options),
    /// Header build and parse against the bare CRC
    Headers(Options),
    /// The erasure code beside others: no port, no processes
    Fec(Options),
    /// Raw UD throughput of two workers on two queues beside one
    Workers(Options),
    /// Throughput and latency of perftest over the preloaded verbs library, beside our own commands
    Verbs(Options),
    /// Raw UD throughput against testpmd's over ports that have the kernel at their other end; needs root
    Ports(Options),
    /// The reliable service over many paths of a testbed beside one; needs root
    Paths(Options),
    /// The reliable service: beside raw UD, by peers, by losses and by round trips
    Reliable(Options),
    /// The reliable service's goodput and rate beside raw UD's
    ReliableUd(Options),
    /// The reliable service with 10,000 peers
    ReliablePeers(Options),
    /// The reliable service over a network with losses
    ReliableLoss(Options),
    /// The reliable service over long round trips
    ReliableLong(Options),
    /// Protected messages between two data centres, beside those that are sent again; --sizes 262144,… chooses some of them, 1 is the goodput
    FecWan(Options),
    /// Protected goodput over shared memory, beside what a segment and the encoding of a group cost when measured alone
    FecMemif(Options),
    /// One side of a bare loop, to run by hand
    #[command(subcommand)]
    Bare(bare::Command),
    /// Do an operation on headers so many times: what valgrind watches
    #[command(hide = true)]
    Repeat {
        /// Which
        op: headers::Op,
        /// Payload in bytes
        size: usize,
        /// How many times
        iters: u64,
    },
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("spraywire-benches: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Box<dyn Error>> {
    let (options, wanted) = match &cli.command {
        None => (&cli.options, Figure::ALL.as_slice()),
        Some(Command::All(options)) => (options, Figure::ALL.as_slice()),
        Some(Command::Ud(options)) => (options, [Figure::Ud].as_slice()),
        Some(Command::Lat(options)) => (options, [Figure::Lat].as_slice()),
        Some(Command::Headers(options)) => (options, [Figure::Headers].as_slice()),
        Some(Command::Fec(options)) => (options, [Figure::Fec].as_slice()),
        Some(Command::Workers(options)) => (options, [Figure::Workers].as_slice()),
        Some(Command::Verbs(options)) => (options, [Figure::VerbsLat, Figure::Verbs].as_slice()),
        Some(Command::Ports(options)) => (options, [Figure::Ports].as_slice()),
        Some(Command::Paths(options)) => (options, [Figure::Paths].as_slice()),
        Some(Command::Reliable(options)) => (options, Figure::RELIABLE.as_slice()),
        Some(Command::ReliableUd(options)) => (options, [Figure::Reliable(Part::Raw)].as_slice()),
        Some(Command::ReliablePeers(options)) => (options, [Figure::Reliable(Part::Peers)].as_slice()),
        Some(Command::ReliableLoss(options)) => (options, [Figure::Reliable(Part::Loss)].as_slice()),
        Some(Command::ReliableLong(options)) => (options, [Figure::Reliable(Part::Long)].as_slice()),
        Some(Command::FecWan(options)) => (options, [Figure::Far].as_slice()),
        Some(Command::FecMemif(options)) => (options, [Figure::Parity].as_slice()),
        Some(Command::Bare(side)) => return bare::run(side).map(|()| ExitCode::SUCCESS),
        Some(Command::Repeat { op, size, iters }) => {
            let well = headers::Work::new(*size).run(*op, *iters);
            return Ok(if well == *iters { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    };
    figures::measure(options, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["x", "--runs", "3"]).unwrap();
        assert!(cli.command.is_none() && cli.options.runs == 3);
        let cli = Cli::try_parse_from(["x", "ud", "--sizes", "64,256", "--json"]).unwrap();
        let Some(Command::Ud(options)) = cli.command else { panic!("not ud") };
        assert_eq!((options.sizes.as_slice(), options.json), ([64, 256].as_slice(), Some(None)));
    }
}
