//! The programs that make a network: `ip`, `nft` and `tc`, in namespaces of the testbed's own.

use crate::error::Error;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A program that the testbed runs, with the Debian package that has it.
const PACKAGES: [(&str, &str); 3] = [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")];

/// Root, and the programs.
///
/// # Errors
/// What is missing, with what to do about it.
pub fn check() -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::usage("a testbed is made of network namespaces, which need root")
            .hint("run it as root: sudo spraywire testbed …; without root, `spraywire sim` simulates networks of many paths"));
    }
    let there = |program: &str| {
        let version = if program == "nft" { "-v" } else { "-V" };
        Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let missing: Vec<_> = PACKAGES.iter().filter(|(program, _)| !there(program)).collect();
    let Some((_, package)) = missing.first() else { return Ok(()) };
    let names = missing.iter().map(|(program, _)| format!("`{program}`")).collect::<Vec<_>>().join(" and ");
    Err(Error::usage(format_args!("there is no {names} here"))
        .hint(format_args!("install it: apt install {package} (Debian's name)")))
}

/// What a feature of the kernel is called, for who lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Network namespaces.
    Namespaces,
    /// Pairs of interfaces.
    Veth,
    /// Routes over several paths.
    Multipath,
    /// Losses.
    Numgen,
    /// Rates.
    Tbf,
}

impl Feature {
    fn hint(self) -> &'static str {
        match self {
            Feature::Namespaces => {
                "this kernel, or the container around this process, lets nobody make network namespaces (CONFIG_NET_NS; \
                 in a container: --privileged)"
            }
            Feature::Veth => "the kernel needs pairs of interfaces: modprobe veth (CONFIG_VETH)",
            Feature::Multipath => {
                "the kernel needs routes over several paths that are chosen by ports: Linux 4.12 or later with \
                 CONFIG_IP_ROUTE_MULTIPATH"
            }
            Feature::Numgen => {
                "the kernel needs nftables: modprobe nf_tables nft_numgen (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, \
                 CONFIG_NFT_NUMGEN)"
            }
            Feature::Tbf => {
                "the kernel needs the token bucket filter: modprobe sch_tbf (CONFIG_NET_SCH_TBF); or leave --rate out"
            }
        }
    }
}

/// A command in a namespace.
pub fn within(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]);
    command
}

/// Runs a command to its end, with `input` for it to read.
///
/// # Errors
/// What it said, and what the kernel lacks if that is why.
pub fn run(command: &mut Command, input: &str, feature: Feature) -> Result<String, Error> {
    let line = format!("{command:?}").replace('"', "");
    let failed = |what: &str| Error::failed(format_args!("{line}: {what}"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read all says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(|e| failed(&e.to_string()))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    let said = said.trim().lines().collect::<Vec<_>>().join("; ");
    Err(failed(if said.is_empty() { "failed" } else { &said }).hint(feature.hint()))
}

/// Runs lines of `ip`, in a namespace.
///
/// # Errors
/// What `ip` said of the first that failed.
pub fn ip(namespace: &str, lines: &[String], feature: Feature) -> Result<(), Error> {
    let mut command = Command::new("ip");
    run(command.args(["-n", namespace, "-batch", "-"]), &(lines.join("\n") + "\n"), feature).map(drop)
}

/// Runs lines of `nft`, as one transaction.
///
/// # Errors
/// What `nft` said.
pub fn nft(namespace: &str, lines: &str) -> Result<(), Error> {
    run(within(namespace, "nft").args(["-f", "-"]), lines, Feature::Numgen).map(drop)
}

/// Sets variables below `/proc/sys`.
///
/// # Errors
/// One that the kernel does not have.
pub fn sysctl(namespace: &str, variables: &[(&str, &str)]) -> Result<(), Error> {
    let lines: String = variables
        .iter()
        .map(|(name, value)| format!("echo {value} > /proc/sys/net/{name} || exit\n"))
        .collect();
    run(&mut within(namespace, "sh"), &lines, Feature::Multipath).map(drop)
}

/// The namespaces there are whose names begin so.
pub fn namespaces(prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// The processes in a namespace.
pub fn processes(namespace: &str) -> Vec<i32> {
    let mut command = Command::new("ip");
    let output = command.args(["netns", "pids", namespace]).stdin(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
