//! The whole command: its subcommands, and from arguments to exit code.

use crate::cmd;
use crate::error::{Error, Exit};
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `--help` ends with.
const AFTER: &str = "\
Exit codes:
  0    done, and right
  1    what was measured or inspected is wrong or failed
  2    cannot be done as it was asked for: arguments, files, ports
  130  interrupted by a signal; what was done until then is reported
  141  standard output was closed before the end

Logs go to standard error (-v, or the environment variable RUST_LOG), results to standard output.

Sizes: 64, 4k (4096), 1MB. Counts: 1000, 10k. Rates: 10g, 1Mpps. Durations: 10 (seconds), 500ms. \
Keys and numbers of the protocol: decimal, or hex with 0x.";

/// A software RoCEv2 endpoint on DPDK: runs, measures, and looks at captures.
#[derive(Parser, Debug)]
#[command(name = "spraywire", version, after_help = AFTER, disable_help_subcommand = true)]
#[command(propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// Say more on standard error: -v what is done, -vv details, -vvv everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,

    /// Take arguments from this TOML file too: keys are the long names of flags, for one command in a table called like it
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run two endpoints on this machine and say how fast they are, with nothing prepared
    #[cfg(feature = "dpdk")]
    Demo(cmd::demo::DemoArgs),
    /// The other process of `demo`
    #[cfg(feature = "dpdk")]
    #[command(hide = true)]
    DemoServer(cmd::demo::server::DemoServerArgs),
    /// Measure throughput between two endpoints
    #[cfg(feature = "dpdk")]
    Bw(cmd::bw::BwArgs),
    /// Measure latency between two endpoints
    #[cfg(feature = "dpdk")]
    Lat(cmd::lat::LatArgs),
    /// Send and receive single UD messages, with every field under control
    #[cfg(feature = "dpdk")]
    #[command(subcommand)]
    Ud(cmd::ud::UdCommand),
    /// Forward between two ports as a long, narrow or bad network would
    #[cfg(feature = "dpdk")]
    Wan(cmd::wan::WanArgs),
    /// A network of many paths on this machine, for `bw` and `lat` to run across
    #[cfg(feature = "dpdk")]
    #[command(subcommand)]
    Testbed(cmd::testbed::TestbedCommand),
    /// Run a program written for RDMA hardware over an endpoint, unmodified: perftest, ibv_ud_pingpong, your own
    #[cfg(feature = "dpdk")]
    Verbs(cmd::verbs::VerbsArgs),
    /// Show what could be a port here: NICs, interfaces, drivers, and what an opened port can do
    #[cfg(feature = "dpdk")]
    Ports(cmd::ports::PortsArgs),
    /// Look for what stands in the way on this machine, each finding with its mend
    #[cfg(feature = "dpdk")]
    Doctor(cmd::doctor::DoctorArgs),
    /// Simulate reliable endpoints and the network between them, one scenario or a swarm of random ones
    Sim(Box<cmd::sim::SimArgs>),
    /// Show what running endpoints have done so far
    Stats(cmd::stats::StatsArgs),
    /// Make a page of tables and curves of result files
    Report(cmd::report::ReportArgs),
    /// Needs DPDK, which this build does not have
    #[cfg(not(feature = "dpdk"))]
    #[command(visible_aliases = ["bw", "lat", "ud", "wan", "testbed", "verbs", "ports", "doctor"])]
    Demo(NoDpdk),
    /// Decode the RoCEv2 packets of capture files and check the ICRC of each
    Inspect(cmd::inspect::InspectArgs),
}

/// Whatever was meant for a command that this build does not have.
#[cfg(not(feature = "dpdk"))]
#[derive(clap::Args, Debug)]
pub struct NoDpdk {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<std::ffi::OsString>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // Clap prints help, version and errors itself; its code for errors is our 2.
    let expanded = match crate::config::expand(&Cli::command(), std::env::args_os().collect()) {
        Ok(expanded) => expanded,
        Err(error) => {
            error.print();
            return error.exit.into();
        }
    };
    let cli = match Cli::try_parse_from(&expanded.args) {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            if let Some(file) = expanded.file.filter(|_| e.use_stderr()) {
                let _ = writeln!(std::io::stderr(), "(some of the arguments come from {})", file.display());
            }
            return if e.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    crate::logging::init(cli.verbose);
    match run(&cli) {
        #[cfg(feature = "dpdk")]
        Ok(Exit::Ok) if crate::endpoint::capture_is_incomplete() => Exit::Failed.into(),
        Ok(exit) => exit.into(),
        Err(error) => {
            error.print();
            error.exit.into()
        }
    }
}

fn run(cli: &Cli) -> Result<Exit, Error> {
    match &cli.command {
        #[cfg(feature = "dpdk")]
        Command::Demo(args) => cmd::demo::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::DemoServer(args) => cmd::demo::server::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Bw(args) => cmd::bw::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Lat(args) => cmd::lat::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Ud(command) => cmd::ud::run(command, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Wan(args) => cmd::wan::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Testbed(command) => cmd::testbed::run(command),
        #[cfg(feature = "dpdk")]
        Command::Verbs(args) => cmd::verbs::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Ports(args) => cmd::ports::run(args, cli.verbose),
        #[cfg(feature = "dpdk")]
        Command::Doctor(args) => cmd::doctor::run(args, cli.verbose),
        #[cfg(not(feature = "dpdk"))]
        Command::Demo(_) => Err(Error::usage("demo, bw, lat, ud, wan, testbed, verbs, ports and doctor need DPDK, which this build does not have").hint(
            "install it (Debian, Ubuntu: apt install libdpdk-dev libclang-dev pkg-config gcc) and build with the default \
             features: cargo build --release -p spraywire",
        )),
        Command::Sim(args) => cmd::sim::run(args),
        Command::Stats(args) => cmd::stats::run(args),
        Command::Report(args) => cmd::report::run(args),
        Command::Inspect(args) => cmd::inspect::run(args, cli.verbose),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command with its subcommands, those that are hidden left out.
    fn shown(command: &clap::Command, all: &mut Vec<clap::Command>) {
        for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            all.push(sub.clone());
            shown(sub, all);
        }
    }

    #[test]
    fn help_is_not_broken_twice() {
        let mut commands = vec![Cli::command()];
        shown(&Cli::command(), &mut commands);
        assert!(commands.len() > 4);
        for command in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                // A paragraph is one line, which the terminal's width breaks; an example keeps its form at 100 columns.
                assert!(!(prose(line) && prose(next)), "{}: {line:?} {next:?}", command.get_name());
                assert!(prose(line) || line.chars().count() <= 100, "{}: {line:?}", command.get_name());
            }
        }
    }

    #[cfg(not(feature = "dpdk"))]
    #[test]
    fn commands_that_need_dpdk_say_so() {
        for line in ["demo", "bw 192.0.2.1 -s 64", "lat --json", "ud send 192.0.2.1 --qpn 2 -h"] {
            let words = std::iter::once("spraywire").chain(line.split_whitespace());
            let error = run(&Cli::try_parse_from(words).unwrap()).unwrap_err();
            assert_eq!(error.exit, Exit::Usage);
            assert!(error.to_string().contains("libdpdk-dev"), "{error}");
        }
    }

    #[test]
    fn the_arguments_are_consistent_and_every_command_has_examples() {
        Cli::command().debug_assert();
        let with_port = cfg!(feature = "dpdk");
        let shown = |c: &&clap::Command| {
            !c.is_hide_set() && (with_port || ["inspect", "report", "sim", "stats"].contains(&c.get_name()))
        };
        for command in Cli::command().get_subcommands().filter(shown) {
            let help = command.get_after_help().map(|h| h.to_string()).unwrap_or_default();
            assert!(
                help.contains("Examples:") || command.get_subcommands().next().is_some(),
                "{} has no examples in its help",
                command.get_name()
            );
        }
    }
}
