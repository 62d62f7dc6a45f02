//! What the library says: an error number to the program, and one line to its user.

use std::ffi::c_int;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lines at the most: a program that asks for the impossible in a loop need not be told every time.
const MAX_LINES: u32 = 64;

/// Sets `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library's own address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Says why, on standard error, and returns the error number.
pub fn refuse(errno: c_int, why: impl Display) -> c_int {
    static SAID: AtomicU32 = AtomicU32::new(0);
    if SAID.fetch_add(1, Ordering::Relaxed) < MAX_LINES {
        eprintln!("spraywire verbs: {why}");
    }
    set_errno(errno);
    errno
}

/// The same for what returns a pointer.
pub fn refuse_null<T>(errno: c_int, why: impl Display) -> *mut T {
    refuse(errno, why);
    std::ptr::null_mut()
}

/// Lets the log of what lies below go to standard error, as far as `SPRAYWIRE_LOG` says: warnings if it says nothing.
pub fn open_log() {
    use tracing_subscriber::EnvFilter;
    let filter = std::env::var("SPRAYWIRE_LOG").unwrap_or_else(|_| "warn".to_owned());
    // Whoever has set a log up before keeps it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_target(false)
        .try_init();
}
