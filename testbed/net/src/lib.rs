//! Networks for end-to-end tests: namespaces of the kernel with links, bridges and routers between them, and processes that
//! run inside.
//!
//! Everything is made by `ip` (iproute2) and lives in namespaces of this crate's making, so the machine's own interfaces are
//! never touched, and it is gone when its owner is dropped. Names within a namespace need to be unique there only, so tests
//! may call their interfaces `e0` and run side by side. A failure panics with what `ip` said: this is code for tests.
//!
//! Namespaces need root. A test begins with [`allowed`], which says why it does not run where it cannot; in continuous
//! integration (`CI` is set) that is a failure, since there nothing may be skipped.
#![forbid(unsafe_code)]

mod link;
mod namespace;
mod process;

pub use link::{Veth, veth};
pub use namespace::Namespace;
pub use process::{Ended, Process};

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether `test` can have namespaces. Where it cannot, standard error says why it does not run.
///
/// # Panics
/// In continuous integration, if it cannot.
pub fn allowed(test: &str) -> bool {
    let Some(reason) = obstacle() else { return true };
    assert!(std::env::var_os("CI").is_none(), "{test} cannot run here, and CI skips nothing: {reason}");
    eprintln!("{test} did not run: {reason}");
    false
}

/// Why there can be no namespaces here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    let found = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        return Some("there is no `ip` (package iproute2)".to_owned());
    }
    None
}

/// Looks every 10 ms whether `done` holds, for at most `limit`; whether it came to hold.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
