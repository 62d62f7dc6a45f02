//! The pairs of ports that a forwarder joins: one on the command line, others in a file.

use crate::error::Error;
use crate::impair::ImpairArgs;
use crate::report::numbers::plural;
use clap::{Args, Parser};
use dataplane::open::Plan;
use dataplane::spec::PortSpec;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use testbed_impair::{Config, Link};

/// A file of pairs is read whole; this is a hundred times what DPDK's ports need.
const MAX_BYTES: u64 = 1 << 20;

/// A pair of ports, and what happens between them.
#[derive(Args, Clone, Debug, Serialize)]
pub struct PairArgs {
    /// A port, in DPDK's own syntax; to be given twice
    #[arg(long, value_name = "DEVICE", required_unless_present = "pairs")]
    #[serde(serialize_with = "port_texts")]
    pub port: Vec<PortSpec>,

    /// MTU of both ports in bytes, from the IP header on
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(64..))]
    pub mtu: Option<u16>,

    /// What happens on the way.
    #[command(flatten)]
    #[serde(flatten)]
    pub impair: ImpairArgs,

    /// Impair the way from the first port to the second only; back, frames pass at once
    #[arg(long)]
    pub one_way: bool,

    /// Seed of all that happens by chance; the same seed and traffic at the same times have the same fates
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

fn port_texts<S: serde::Serializer>(ports: &[PortSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ports.iter().map(PortSpec::to_string))
}

/// A line of the file.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    pair: PairArgs,
    /// No file names another.
    #[arg(long, hide = true)]
    pairs: Option<String>,
}

/// A pair that can be.
#[derive(Clone, Debug)]
pub struct Pair {
    /// As it was asked for.
    pub args: PairArgs,
    ports: [PortSpec; 2],
    config: Config,
}

impl Pair {
    fn of(args: PairArgs) -> Result<Pair, Error> {
        let [first, second] = args.port.as_slice() else {
            return Err(Error::usage(format_args!("{} given", plural(args.port.len() as u64, "port")))
                .hint("a forwarder stands between two: --port A --port B"));
        };
        let ports = [first.clone(), second.clone()];
        let config = args.impair.config()?;
        Ok(Pair { args, ports, config })
    }

    /// What its ports need.
    pub fn plans(&self) -> [Plan; 2] {
        self.ports.each_ref().map(|spec| Plan::of(spec, self.args.mtu))
    }

    /// The way from the first port to the second, and that back.
    ///
    /// # Errors
    /// What cannot be.
    pub fn links<P>(&self) -> Result<[Link<P>; 2], Error> {
        let config = self.config.clone();
        let back = if self.args.one_way {
            Config { capacity: config.capacity, ..Config::default() }
        } else {
            config.clone()
        };
        let link = |config, seed| Link::new(config, seed).map_err(Error::usage);
        Ok([link(config, self.args.seed)?, link(back, self.args.seed ^ u64::MAX)?])
    }
}

/// The pair of the command line, if one is given, and those of the file.
///
/// # Errors
/// What is no pair of ports, a port that is in two places, no pair at all, and a file that cannot be read.
pub fn read(args: &PairArgs, file: Option<&Path>) -> Result<Vec<Pair>, Error> {
    let mut pairs = Vec::new();
    if file.is_none() || !args.port.is_empty() {
        pairs.push(Pair::of(args.clone())?);
    }
    if let Some(file) = file {
        let cannot = |e: std::io::Error| Error::usage(format_args!("cannot read {}: {e}", file.display()));
        let mut text = String::new();
        File::open(file).and_then(|f| f.take(MAX_BYTES).read_to_string(&mut text)).map_err(cannot)?;
        for (number, line) in text.lines().enumerate() {
            let words = line.split('#').next().unwrap_or_default().split_whitespace();
            if words.clone().next().is_none() {
                continue;
            }
            let wrong = |e: &dyn std::fmt::Display| {
                let text = e.to_string();
                let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
                Error::usage(format_args!("{}, line {}: {first}", file.display(), number + 1))
            };
            let line = Line::try_parse_from(words).map_err(|e| wrong(&e))?;
            if line.pairs.is_some() {
                return Err(wrong(&"--pairs stands on the command line only"));
            }
            pairs.push(Pair::of(line.pair).map_err(|e| wrong(&e.message()))?);
        }
        if pairs.is_empty() {
            return Err(Error::usage(format_args!("{}: there is no pair of ports", file.display())));
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    for pair in &pairs {
        for port in &pair.ports {
            if seen.contains(&port.selector()) {
                let both = if pairs.len() == 1 { "both ports are" } else { "two ports are" };
                return Err(Error::usage(format_args!("{both} {}", port.selector()))
                    .hint("give virtual devices different numbers, such as net_memif0 and net_memif1"));
            }
            seen.push(port.selector());
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn args(line: &str) -> PairArgs {
        Line::try_parse_from(line.split_whitespace()).unwrap().pair
    }

    #[test]
    fn pairs_come_from_both_places_and_each_has_its_own_network() {
        let first = args("--port net_memif0 --port net_memif1 --delay 1ms");
        let file = file(
            "# two more\n\n--port net_memif2 --port net_memif3 --delay 2ms --one-way # there\n--port net_memif4 --port net_memif5 --seed 7",
        );
        let pairs = read(&first, Some(file.path())).unwrap();
        let told: Vec<_> =
            pairs.iter().map(|p| (p.ports[1].selector(), p.config.delay, p.args.seed)).collect();
        let ms = Duration::from_millis;
        assert_eq!(told, [("net_memif1", ms(1), 1), ("net_memif3", ms(2), 1), ("net_memif5", ms(0), 7)]);
        assert!(pairs[1].args.one_way && !pairs[0].args.one_way);
        // Without any on the command line.
        let none = PairArgs { port: Vec::new(), ..first };
        assert_eq!(read(&none, Some(file.path())).unwrap().len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let first = args("--port net_memif0 --port net_memif1");
        for (text, words) in [
            ("\n--port net_memif2", "line 2: 1 port given"),
            ("--port net_memif2 --port net_memif1", "two ports are net_memif1"),
            ("--port net_memif2 --port net_memif3 --nonsense 1", "line 1: unexpected argument '--nonsense'"),
            (
                "--port net_memif2 --port net_memif3 --pairs x",
                "line 1: --pairs stands on the command line only",
            ),
            ("--port net_memif2 --port net_memif3 --loss 10% --burst 0.5", "line 1: bursts of 0.5"),
        ] {
            let file = file(text);
            let error = read(&first, Some(file.path())).unwrap_err();
            assert!(error.message().contains(words), "{words} in {}", error.message());
        }
        let none = PairArgs { port: Vec::new(), ..first };
        let empty = file("# nothing\n");
        assert!(read(&none, Some(empty.path())).unwrap_err().message().contains("no pair of ports"));
        let error = read(&none, Some(Path::new("/no/such"))).unwrap_err();
        assert!(error.message().contains("cannot read /no/such"), "{}", error.message());
    }
}
