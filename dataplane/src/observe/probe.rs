//! What an endpoint knows of itself, for those who ask.

use super::{Observer, Snapshot, pair};
use crate::buffer::Buffer;
use crate::io::PortIo;
use crate::worker::Worker;
use serde::Serialize;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long a worker has to answer: the longest sleep of an idle one and a scheduler's worst, many times over.
const PATIENCE: Duration = Duration::from_millis(500);

/// The name of an endpoint: up to 64 letters, digits, dots, dashes and underscores, not all of them digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// It in letters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let sound = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        if text.len() > 64 || is_number || !text.bytes().all(sound) {
            return Err(
                "a name has up to 64 letters, digits, dots, dashes and underscores, not digits alone"
                    .to_owned(),
            );
        }
        Ok(Name(text.to_owned()))
    }
}

/// What does not change about an endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// Its process.
    pub pid: u32,
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// The command line.
    pub command_line: String,
    /// Version of the program.
    pub version: &'static str,
    /// Seconds since 1970 at which it started.
    pub started: f64,
}

/// What does not change about a port.
#[derive(Clone, Debug, Serialize)]
pub struct PortIdentity {
    /// Its name.
    pub name: String,
    /// Its driver's name.
    pub driver: String,
    /// Its MAC address.
    pub mac: String,
    /// Its addresses.
    pub addrs: Vec<String>,
    /// Its MTU in bytes.
    pub mtu: u16,
    /// Its IB MTU in bytes.
    pub ib_mtu: usize,
}

/// A worker that was looked at.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Its ports.
    pub ports: Arc<[PortIdentity]>,
    /// What it is now; `None` if it does not answer.
    pub now: Option<Snapshot>,
}

/// Looks at the workers of this process.
pub struct Probe {
    identity: Identity,
    workers: Mutex<Vec<(Arc<[PortIdentity]>, Observer)>>,
    started: Instant,
}

impl Probe {
    /// Looks at nothing yet.
    pub fn new(name: Option<&Name>) -> Probe {
        let words: Vec<_> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let identity = Identity {
            pid: std::process::id(),
            name: name.map(|n| n.0.clone()),
            command_line: words.join(" "),
            version: env!("CARGO_PKG_VERSION"),
            started: since_1970.as_secs_f64(),
        };
        Probe { identity, workers: Mutex::default(), started: Instant::now() }
    }

    /// Lets itself be told by `worker` too.
    pub fn attach<I: PortIo, B: Buffer>(&self, worker: &mut Worker<I, B>) {
        let (observed, observer) = pair();
        worker.set_observed(Some(observed));
        let port = |index: usize| {
            let info = worker.port_info(index)?;
            Some(PortIdentity {
                name: info.name.clone(),
                driver: info.driver.clone(),
                mac: info.mac.to_string(),
                addrs: worker.addrs(index).iter().map(ToString::to_string).collect(),
                mtu: info.mtu,
                ib_mtu: worker.ib_mtu(index),
            })
        };
        let ports = (0..worker.ports()).filter_map(port).collect();
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push((ports, observer));
    }

    /// What does not change.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Since the probe was made.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// What each worker is now.
    pub fn look(&self) -> Vec<Looked> {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let look = |(ports, observer): &mut (Arc<[PortIdentity]>, Observer)| Looked {
            ports: ports.clone(),
            now: observer.look(PATIENCE).cloned(),
        };
        workers.iter_mut().map(look).collect()
    }
}
