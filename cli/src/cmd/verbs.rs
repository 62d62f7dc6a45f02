//! `spraywire verbs`: runs a program written for RDMA hardware over an endpoint, by a library preloaded into it.

use crate::args::{EntropyArg, GatewayArg, IpArg, NeighbourArg, PortSpec, VlanArg};
use crate::cmd::measure::ib_mtu;
use crate::error::{Error, Exit};
use crate::units;
use clap::{Args, ValueEnum};
use roce_proto::types::{Mtu, PKey};
use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file.
const LIBRARY: &str = "libspraywire_verbs.so";
/// The variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";

const EXAMPLES: &str = "\
Examples:
  spraywire verbs -- ibv_devinfo -v
  spraywire verbs -- ib_send_bw -c UD                    the first side: a memif server
  spraywire verbs -- ib_send_bw -c UD localhost          the other, which finds it
  spraywire verbs --port net_af_packet0,iface=veth0 --ip 10.9.0.1 -- ib_send_lat -c UD
Several devices: name a file with [[device]] tables in SPRAYWIRE_CONFIG instead of the flags.";

/// Which side of a memif pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// The client if a server waits, else the server
    #[default]
    Auto,
    /// Waits for the other
    Server,
    /// Goes to the other
    Client,
}

/// Who polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PollArg {
    /// The program, as it polls its completion queues; a thread of the library's while it does not
    #[default]
    Inline,
    /// A thread of the library's, all the time
    Thread,
}

/// Run a program written for RDMA hardware over an endpoint, unmodified: perftest, ibv_ud_pingpong, your own. UD queue pairs only
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VerbsArgs {
    /// The port, as of the other commands. Without it: one side of a net_memif pair on this machine
    #[arg(long, value_name = "DEVICE")]
    pub port: Option<PortSpec>,
    /// Which side of the pair, without --port
    #[arg(long, value_enum, default_value_t, value_name = "SIDE")]
    pub role: RoleArg,
    /// An IPv4 or IPv6 address of the port: its GIDs, in this order; may be given several times
    #[arg(long, value_name = "ADDR[/LEN]")]
    pub ip: Vec<IpArg>,
    /// The router to what is not on the link, or to one network behind it; may be given several times
    #[arg(long, value_name = "[NET/LEN=]ADDR")]
    pub gateway: Vec<GatewayArg>,
    /// The VLAN of the port
    #[arg(long, value_name = "VID[:PRIO]")]
    pub vlan: Option<VlanArg>,
    /// MTU of the port in bytes, from the IP header on
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(64..))]
    pub mtu: Option<u16>,
    /// The IB MTU, the largest message: 256 to 4096; without it the largest that fits the port's
    #[arg(long, value_name = "BYTES", value_parser = ib_mtu)]
    pub ib_mtu: Option<Mtu>,
    /// A P_Key of the port; may be given several times
    #[arg(long, value_name = "KEY", value_parser = units::pkey)]
    pub pkey: Vec<PKey>,
    /// UDP source ports to send from: each queue pair has one of them
    #[arg(long, value_name = "LO-HI")]
    pub entropy_range: Option<EntropyArg>,
    /// A neighbour that is not asked for; may be given several times
    #[arg(long, value_name = "IP=MAC")]
    pub neighbour: Vec<NeighbourArg>,
    /// More arguments for DPDK's EAL, as one word
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub eal: Option<String>,
    /// Write every frame that is sent or received to this pcap file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Seconds that a memif client waits for its server
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Who polls the endpoint
    #[arg(long, value_enum, default_value_t, value_name = "WHO")]
    pub poll: PollArg,
    /// The name of the device
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The library, if it is neither beside this program nor in ../lib
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl VerbsArgs {
    /// What the library reads: see `bindings/verbs/src/config.rs`.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut set = Vec::new();
        let mut one = |name, value: Option<String>| set.extend(value.map(|value| (name, value)));
        fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> Option<String> {
            (!items.is_empty()).then(|| items.iter().map(text).collect::<Vec<_>>().join(","))
        }
        fn some(item: Option<&impl Display>) -> Option<String> {
            item.map(ToString::to_string)
        }
        one("SPRAYWIRE_PORT", some(self.port.as_ref()));
        one(
            "SPRAYWIRE_ROLE",
            match self.role {
                RoleArg::Auto => None,
                RoleArg::Server => Some("server".to_owned()),
                RoleArg::Client => Some("client".to_owned()),
            },
        );
        one("SPRAYWIRE_IP", list(&self.ip, plain));
        one("SPRAYWIRE_GATEWAY", list(&self.gateway, plain));
        one("SPRAYWIRE_VLAN", self.vlan.as_ref().map(plain));
        one("SPRAYWIRE_MTU", some(self.mtu.as_ref()));
        one("SPRAYWIRE_IB_MTU", self.ib_mtu.map(|mtu| mtu.bytes().to_string()));
        one("SPRAYWIRE_PKEY", list(&self.pkey, |key| format!("{:#06x}", key.0)));
        one("SPRAYWIRE_ENTROPY_RANGE", some(self.entropy_range.as_ref()));
        one("SPRAYWIRE_NEIGHBOUR", list(&self.neighbour, plain));
        one("SPRAYWIRE_EAL", self.eal.clone());
        one("SPRAYWIRE_PCAP", self.pcap.as_ref().map(|path| path.display().to_string()));
        one("SPRAYWIRE_WAIT", some(self.wait.as_ref()));
        one("SPRAYWIRE_POLL", (self.poll == PollArg::Thread).then(|| "thread".to_owned()));
        one("SPRAYWIRE_NAME", self.name.clone());
        set
    }
}

/// As it is written on the command line, which is how it is reported.
fn plain(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// Becomes the program.
pub fn run(args: &VerbsArgs, verbosity: u8) -> Result<Exit, Error> {
    let library = match &args.library {
        Some(path) => path.clone(),
        None => find()?,
    };
    let library = preloadable(&library)?;
    let named_before = std::env::var_os("SPRAYWIRE_IP").is_some_and(|ip| !ip.is_empty());
    if args.port.is_some() && args.ip.is_empty() && !named_before {
        return Err(Error::usage("the port has no IP address")
            .hint("give it one of your network that nobody else has: --ip 192.0.2.1"));
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Error::usage("there is no command to run"));
    };
    let mut preload = OsString::from(&library);
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command.args(rest).env(PRELOAD, preload).envs(args.variables());
    let log = match verbosity {
        0 => None,
        1 => Some("info"),
        _ => Some("debug"),
    };
    command.envs(log.map(|level| ("SPRAYWIRE_LOG", level)));
    let error = command.exec();
    Err(Error::usage(format_args!("cannot run {}: {error}", program.display())))
}

/// The library as the dynamic linker is to be told it: whole, since a bare name is looked for in the system's folders, and one
/// that begins here is another wherever the program goes.
fn preloadable(library: &Path) -> Result<PathBuf, Error> {
    if !library.is_file() {
        return Err(Error::usage(format_args!("there is no library {}", library.display())));
    }
    let whole = library.canonicalize().map_err(Error::failed)?;
    // ld.so(8): the list is separated by spaces or colons, and nothing can quote them.
    if whole.as_os_str().as_bytes().iter().any(|b| b": \t\n".contains(b)) {
        return Err(Error::usage(format_args!("{PRELOAD} cannot name {}", whole.display())).hint(
            "it must lie where no folder's name has a space or a colon: copy it, and name it by --library",
        ));
    }
    Ok(whole)
}

/// Finds the library by where this program lies.
fn find() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(Error::failed)?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places =
        [folder.join(LIBRARY), folder.join("deps").join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        Error::usage(format_args!("{LIBRARY} is neither beside this program nor in ../lib"))
            .hint("build it: cargo build --release -p spraywire-verbs; or name it by --library")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: VerbsArgs,
    }

    fn args(line: &str) -> VerbsArgs {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).args
    }

    #[test]
    fn flags_become_variables() {
        let args = args(
            "--port net_af_packet0,iface=v0 --ip 10.0.0.1/24 --ip fd77::1 --gateway 10.2.0.0/16=10.0.0.9 --vlan 7:3 \
             --mtu 4200 --ib-mtu 2048 --pkey 0x8001 --neighbour 10.0.0.2=02:00:00:00:00:02 --role client --wait 3 \
             --entropy-range 50000-50015 --poll thread --name x0 -- ib_send_bw -c UD --port 5",
        );
        assert_eq!(args.command, ["ib_send_bw", "-c", "UD", "--port", "5"]);
        let variables = args.variables();
        let value = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == format!("SPRAYWIRE_{name}"));
            found.map_or("-", |(_, value)| value.as_str())
        };
        for (name, want) in [
            ("PORT", "net_af_packet0,iface=v0"),
            ("IP", "10.0.0.1/24,fd77::1"),
            ("GATEWAY", "10.2.0.0/16=10.0.0.9"),
            ("VLAN", "7:3"),
            ("MTU", "4200"),
            ("IB_MTU", "2048"),
            ("PKEY", "0x8001"),
            ("ENTROPY_RANGE", "50000-50015"),
            ("NEIGHBOUR", "10.0.0.2=02:00:00:00:00:02"),
            ("ROLE", "client"),
            ("WAIT", "3"),
            ("POLL", "thread"),
            ("NAME", "x0"),
            ("PCAP", "-"),
        ] {
            assert_eq!(value(name), want, "{name}");
        }
    }

    #[test]
    fn the_linker_gets_a_whole_path_without_spaces() {
        let folder = std::env::temp_dir().join(format!("spraywire-preload-{}", std::process::id()));
        let spaced = folder.join("a b");
        std::fs::create_dir_all(&spaced).unwrap();
        let (plain, bad) = (folder.join("lib.so"), spaced.join("lib.so"));
        for path in [&plain, &bad] {
            std::fs::write(path, "").unwrap();
        }
        let roundabout = spaced.join("..").join("lib.so");
        assert_eq!(preloadable(&roundabout).unwrap(), plain.canonicalize().unwrap());
        assert!(preloadable(&bad).unwrap_err().to_string().contains("LD_PRELOAD"));
        assert!(preloadable(&folder).is_err(), "a folder");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_given_sets_nothing() {
        assert!(args("-- true").variables().is_empty());
    }
}
