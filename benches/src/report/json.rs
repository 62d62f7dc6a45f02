//! Outcomes as JSON: every single run, and under which circumstances.

use crate::contest::Outcome;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Name and version of the form. A new field keeps it; any other change raises the number.
const SCHEMA: &str = "spraywire-benches/1";

/// A session of measurements.
#[derive(Serialize)]
pub struct Session<'a, P: Serialize> {
    schema: &'static str,
    version: &'static str,
    machine: Machine,
    /// What was asked for.
    pub parameters: &'a P,
    /// What came of it.
    pub outcomes: &'a [Outcome],
}

/// What the figures depend on and the parameters do not say.
#[derive(Serialize)]
struct Machine {
    processor: Option<String>,
    processors: usize,
    kernel: Option<String>,
    dpdk: String,
}

impl Machine {
    fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).ok();
        let processor = read("/proc/cpuinfo").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Machine {
            processor,
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            dpdk: dpdk::Eal::version(),
        }
    }
}

impl<'a, P: Serialize> Session<'a, P> {
    /// One on this machine.
    pub fn new(parameters: &'a P, outcomes: &'a [Outcome]) -> Self {
        Session {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            parameters,
            outcomes,
        }
    }
}

/// Writes a session to a file, or to standard output without one. A file that was there stays as it was until the new one
/// is whole.
pub fn write(session: &impl Serialize, file: Option<&Path>) -> io::Result<()> {
    let text = serde_json::to_string_pretty(session)?;
    match file {
        None => writeln!(io::stdout().lock(), "{text}"),
        Some(path) => {
            let mut partial = path.as_os_str().to_owned();
            partial.push(".partial");
            fs::write(&partial, text + "\n")?;
            fs::rename(&partial, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Entry, Event};
    use crate::stats::Better;
    use serde_json::Value;

    #[test]
    fn a_file_holds_every_run() {
        let event = Event { figure: "lat", title: "t".into(), size: 64, unit: "ns", better: Better::Lower };
        let entry = Entry { runs: vec![Some(1.5), None], ..Entry::new("bare loop", None) };
        let outcomes = [Outcome { event, entries: vec![entry] }];
        let path = std::env::temp_dir().join(format!("spraywire-benches-{}.json", std::process::id()));
        write(&Session::new(&vec![1], &outcomes), Some(&path)).unwrap();
        let read: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(read["schema"], "spraywire-benches/1");
        assert_eq!(read["parameters"], serde_json::json!([1]));
        let outcome = &read["outcomes"][0];
        assert_eq!((&outcome["figure"], &outcome["better"]), (&"lat".into(), &"lower".into()));
        assert_eq!(outcome["entries"][0]["runs"], serde_json::json!([1.5, null]));
        assert!(read["machine"]["processors"].as_u64().unwrap() >= 1);
    }
}
