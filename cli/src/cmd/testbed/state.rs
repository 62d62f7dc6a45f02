//! What is kept of a testbed between commands: a folder of its name in the run folder.

use super::plan::Plan;
use super::share::PathCount;
use crate::error::Error;
use crate::observe::runtime;
use crate::signal::Stop;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A testbed that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// What it is.
    pub plan: Plan,
    /// When it was made, in seconds of Unix time.
    pub since: u64,
    /// The counters when they were last set back.
    pub baseline: Vec<[PathCount; 2]>,
}

/// The run folder, held by this process: no other makes, changes or removes a testbed meanwhile.
pub struct Held {
    folder: PathBuf,
    _lock: File,
}

impl Held {
    /// Waits for the run folder.
    ///
    /// # Errors
    /// A folder that cannot be used; [`Error::interrupted`] if a signal came first.
    pub fn wait(stop: &Stop) -> Result<Held, Error> {
        let folder = runtime::folder();
        let cannot = |e: io::Error| {
            Error::failed(format_args!("the run folder {}: {e}", folder.display()))
                .hint("SPRAYWIRE_RUNTIME_DIR names another")
        };
        runtime::prepare(&folder).map_err(cannot)?;
        let lock = File::open(&folder).map_err(cannot)?;
        while let Err(e) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if e != rustix::io::Errno::WOULDBLOCK {
                return Err(cannot(e.into()));
            }
            if stop.requested() {
                return Err(Error::interrupted());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Held { folder, _lock: lock })
    }

    /// The folder of a testbed.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(format!("testbed-{name}"))
    }

    /// The testbed of that name, if it is up. One whose making was cut short is not.
    pub fn state(&self, name: &str) -> Option<State> {
        let text = fs::read(self.folder(name).join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The names of all that have a folder.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            entry.file_name().to_str().and_then(|name| name.strip_prefix("testbed-")).map(str::to_owned)
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Makes the folder of a testbed.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.folder(name);
        fs::create_dir_all(&folder).map_err(|e| written(&folder, &e))?;
        Ok(folder)
    }

    /// Writes a testbed's state down.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        let folder = self.folder(&state.plan.name);
        let text = serde_json::to_vec_pretty(state).map_err(Error::failed)?;
        // Whole, or as it was.
        let new = folder.join("state.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, folder.join(FILE)))
            .map_err(|e| written(&folder, &e))
    }

    /// Removes what is kept of a testbed; whether there was anything.
    ///
    /// # Errors
    /// The system's.
    pub fn forget(&self, name: &str) -> Result<bool, Error> {
        let folder = self.folder(name);
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(written(&folder, &e)),
        }
    }
}

const FILE: &str = "state.json";

fn written(path: &Path, error: &io::Error) -> Error {
    Error::failed(format_args!("{}: {error}", path.display()))
}
