//! `hostile`: sends hostile frames from a network interface and says what an endpoint must have counted.
#![forbid(unsafe_code)]

use clap::Parser;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use testbed_hostile::{Fate, Generator, Pace, Target, Wire, kinds::KINDS};

/// Send malformed and hostile frames from a network interface, and say in which counters an endpoint must have them.
///
/// For networks of your own only. Needs CAP_NET_RAW.
#[derive(Parser)]
struct Args {
    /// The interface to send from
    #[arg(long)]
    iface: String,
    /// MAC address of the endpoint's port, as `ud recv` prints it
    #[arg(long, value_parser = mac)]
    mac: [u8; 6],
    /// IPv4 address of the endpoint
    #[arg(long, default_value = "192.0.2.1")]
    ip4: Ipv4Addr,
    /// IPv6 address of the endpoint
    #[arg(long, default_value = "2001:db8::1")]
    ip6: Ipv6Addr,
    /// Number of a queue pair of the endpoint
    #[arg(long, default_value = "0x10000", value_parser = number)]
    qpn: u32,
    /// Its Q_Key
    #[arg(long, default_value = "0x11111111", value_parser = number)]
    qkey: u32,
    /// The same seed makes the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of frames
    #[arg(short = 'n', long, default_value_t = 10_000)]
    count: u64,
    /// Frames per second; as many as the interface takes if not given
    #[arg(long)]
    rate: Option<f64>,
    /// Only this kind of frame; may be given several times
    #[arg(long, value_parser = kind)]
    only: Vec<String>,
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    bytes
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| format!("`{text}` is no MAC address: 52:54:00:12:34:56"))
}

fn number(text: &str) -> Result<u32, String> {
    let hex = text.strip_prefix("0x");
    hex.map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16)).map_err(|e| format!("`{text}`: {e}"))
}

fn kind(text: &str) -> Result<String, String> {
    if KINDS.iter().any(|(name, _)| *name == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
    Err(format!("there is no kind `{text}`, only {}", names.join(", ")))
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hostile: {}: {e}", args.iface);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> std::io::Result<()> {
    let target = Target { mac: args.mac, v4: args.ip4, v6: args.ip6, qpn: args.qpn, qkey: args.qkey };
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut generator = Generator::new(args.seed, target, wanted);
    let mut wire = Wire::open(&args.iface)?;
    let mut pace = Pace::new(args.rate);
    let mut sent = BTreeMap::<&str, u64>::new();
    for hostile in generator.by_ref().take(usize::try_from(args.count).unwrap_or(usize::MAX)) {
        pace.wait();
        while !wire.send(&hostile.frame)? {
            std::thread::yield_now();
        }
        let counter = match hostile.fate {
            Fate::Counted(name) => name,
            Fate::Any => "(any)",
        };
        *sent.entry(counter).or_default() += 1;
    }
    for (counter, frames) in sent {
        println!("{counter:<24} {frames:>10}");
    }
    Ok(())
}
