//! `spraywire doctor`: what of this machine stands in the way, each with its mend.

mod cpu;
mod memory;
mod network;
mod opened;
mod peer;
mod rights;
mod stale;

use crate::args::{EndpointArgs, OutputArgs, PortSpec};
use crate::cmd::measure::ib_mtu;
use crate::error::{Error, Exit};
use crate::host::Host;
use crate::host::use_of_files::Held;
use crate::report::numbers::plural;
use crate::report::{Document, Out};
use clap::Args;
use roce_proto::types::Mtu;
use serde::Serialize;
use std::net::IpAddr;

const AFTER: &str = "\
Looks at the machine, and with --port at what this port needs; the port itself is opened, and started only with --peer. Takes the arguments of \
the command that is to work, and changes nothing. Each finding is ok, a note (good to know), a warning (will be slow or lossy) or a \
problem (will not work); what is not ok says what to do. Exit code 1 if there is a problem.

Examples:
  spraywire doctor
  spraywire doctor --port net_af_packet0,iface=eth1 --ip 10.0.0.1 --mtu 4200
  spraywire doctor --port 0000:01:00.0 --ip 10.0.0.1 --cores 2,3
  spraywire doctor --port net_af_packet0,iface=eth1 --ip 10.0.0.1 --peer 10.0.0.2
  spraywire doctor --json";

/// Arguments of `doctor`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct DoctorArgs {
    /// IB MTU that is to work: 256, 512, 1024, 2048 or 4096
    #[arg(short = 'm', long = "ib-mtu", value_name = "BYTES", value_parser = ib_mtu)]
    #[serde(skip)]
    pub ib_mtu: Option<Mtu>,

    /// Start the port and look at the way to this host: its MAC address, the largest packet that gets there and back, and its
    /// IB MTU if spraywire bw or lat serves there
    #[arg(long, value_name = "HOST")]
    pub peer: Option<String>,

    /// The port.
    #[command(flatten)]
    pub endpoint: EndpointArgs,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Will be slow, or lose packets.
    Warning,
    /// Will not work.
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word.
    pub check: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub mend: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, level: Level::Ok, found: found.into(), mend: None }
    }

    fn bad(check: &'static str, level: Level, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { check, level, found: found.into(), mend: Some(mend.into()) }
    }

    fn note(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding::bad(check, Level::Note, found, mend)
    }

    fn warning(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding::bad(check, Level::Warning, found, mend)
    }

    fn problem(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding::bad(check, Level::Problem, found, mend)
    }
}

/// What kind of port is to work.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// None was named.
    Any,
    /// A device on the PCI bus.
    Pci(String),
    /// An interface of the kernel, shared with it.
    Interface(String),
    /// Something that exists within DPDK only.
    Virtual,
}

/// What is to work.
struct Ask {
    /// The port in DPDK's syntax.
    device: Option<String>,
    kind: Kind,
    mtu: Option<u16>,
    ib_mtu: Option<Mtu>,
    addrs: Vec<IpAddr>,
    cores: Vec<usize>,
}

impl Ask {
    fn of(args: &DoctorArgs) -> Ask {
        let port = args.endpoint.port();
        Ask {
            device: port.map(PortSpec::to_string),
            kind: port.map_or(Kind::Any, kind),
            mtu: args.endpoint.mtu,
            ib_mtu: args.ib_mtu,
            addrs: args.endpoint.ip.iter().map(|ip| ip.addr).collect(),
            cores: args.endpoint.cores.clone().unwrap_or_default().0,
        }
    }

    /// Whether it is about figures of a NIC, for which the processor has to be set up.
    fn is_nic(&self) -> bool {
        matches!(self.kind, Kind::Pci(_))
    }

    /// The NUMA node of the port's device.
    fn numa(&self, host: &Host) -> Option<u32> {
        match &self.kind {
            Kind::Pci(address) => crate::host::pci::device(host, address)?.numa,
            Kind::Interface(name) => crate::host::net::interface(host, name)?.numa,
            Kind::Any | Kind::Virtual => None,
        }
    }
}

fn kind(port: &PortSpec) -> Kind {
    match port {
        PortSpec::Pci(_) => Kind::Pci(port.selector().to_owned()),
        PortSpec::Existing(_) => Kind::Virtual,
        PortSpec::Vdev(device) => {
            let mut words = device.split(',');
            let driver = words.next().unwrap_or_default();
            let of_the_kernel = ["net_af_packet", "eth_af_packet", "net_af_xdp", "net_pcap", "eth_pcap"];
            let interface = words.find_map(|word| word.strip_prefix("iface="));
            match interface.filter(|_| of_the_kernel.iter().any(|d| driver.starts_with(d))) {
                Some(name) => Kind::Interface(name.to_owned()),
                None => Kind::Virtual,
            }
        }
    }
}

/// What the files of a machine tell, without opening anything.
fn examine(host: &Host, ask: &Ask) -> Vec<Finding> {
    let held = Held::now(host);
    let mut findings = Vec::new();
    findings.extend(rights::check(host, ask));
    findings.extend(memory::check(host, ask));
    findings.extend(network::check(host, ask));
    findings.extend(cpu::check(host, ask));
    findings.extend(stale::check(host, &held, ask));
    findings
}

/// Runs the command.
pub fn run(args: &DoctorArgs, verbosity: u8) -> Result<Exit, Error> {
    let json = args.output.json();
    json.check()?;
    let mut findings = opened::installed();
    findings.extend(examine(&Host::here(), &Ask::of(args)));
    if let Some(peer) = &args.peer {
        findings.extend(peer::check(args, peer, verbosity)?);
    } else if args.endpoint.port().is_some() {
        findings.extend(opened::check(args, verbosity));
    }
    print(&mut json.text(), &findings)?;
    let problems = count(&findings, Level::Problem);
    let mut document = Document::new("doctor", args);
    document.set("findings", &findings);
    document.set("ok", &(problems == 0));
    document.write(&json)?;
    Ok(if problems == 0 { Exit::Ok } else { Exit::Failed })
}

fn count(findings: &[Finding], level: Level) -> u64 {
    findings.iter().filter(|f| f.level == level).count() as u64
}

fn print(out: &mut Out, findings: &[Finding]) -> Result<(), Error> {
    for finding in findings {
        out.line(format_args!("{:<8} {:<11} {}", finding.level.name(), finding.check, finding.found))?;
        for line in finding.mend.iter().flat_map(|mend| mend.lines()) {
            out.line(format_args!("{:21}-> {line}", ""))?;
        }
    }
    let [problems, warnings, notes] =
        [Level::Problem, Level::Warning, Level::Note].map(|l| count(findings, l));
    out.line(format_args!(
        "{}, {}, {}",
        plural(problems, "problem"),
        plural(warnings, "warning"),
        plural(notes, "note")
    ))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DoctorArgs,
    }

    /// What is to work, from a command line.
    pub(super) fn ask(line: &str) -> Ask {
        Ask::of(&Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).args)
    }

    /// The one finding of that check.
    pub(super) fn only<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        let found: Vec<_> = findings.iter().filter(|f| f.check == check).collect();
        assert_eq!(found.len(), 1, "{check} in {findings:#?}");
        found[0]
    }

    #[test]
    fn ports_are_of_a_kind() {
        assert_eq!(ask("").kind, Kind::Any);
        assert_eq!(ask("--port 0000:03:00.0,a=b").kind, Kind::Pci("0000:03:00.0".into()));
        assert_eq!(
            ask("--port net_af_packet0,blocksz=4096,iface=veth0").kind,
            Kind::Interface("veth0".into())
        );
        assert_eq!(ask("--port net_tap0,iface=dtap0").kind, Kind::Virtual, "a tap makes its own interface");
        assert_eq!(ask("--port net_memif0,role=client").kind, Kind::Virtual);
    }

    #[test]
    fn a_machine_of_which_nothing_is_known_has_no_problem() {
        let machine = Machine::new();
        let findings = examine(&machine.host, &ask(""));
        assert!(findings.iter().all(|f| f.level < Level::Problem), "{findings:#?}");
    }

    #[test]
    fn whatever_is_not_ok_says_what_to_do() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0").process(1000, 0, "0").folder("/var/run/dpdk/x");
        for line in ["", "--port 0000:03:00.0 --cores 0,9", "--port net_af_packet0,iface=eth1 --mtu 9000"] {
            for finding in examine(&machine.host, &ask(line)) {
                assert_eq!(finding.mend.is_none(), finding.level == Level::Ok, "{finding:?}");
            }
        }
    }
}
