//! Standard output while DPDK starts: its usage is no result of the program's.

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};

/// Does `work`; whatever is printed to standard output meanwhile goes to standard error. That of other threads does too, so this is for
/// a program that has none that print.
pub(crate) fn to_stderr<T>(work: impl FnOnce() -> T) -> T {
    let _ = std::io::stdout().flush();
    flush();
    let kept = keep();
    // SAFETY: both are numbers; if either is closed, the call fails and changes nothing.
    let moved = kept.is_some() && unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } >= 0;
    let result = work();
    // What C has buffered until now is of `work`.
    flush();
    if let (Some(kept), true) = (kept, moved) {
        use std::os::fd::AsRawFd;
        // SAFETY: `kept` is open.
        unsafe { libc::dup2(kept.as_raw_fd(), libc::STDOUT_FILENO) };
    }
    result
}

/// Another descriptor of what standard output is, not for programs that this one starts.
fn keep() -> Option<OwnedFd> {
    // SAFETY: a number; the call fails if it is closed.
    let fd = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: just made, and nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Writes what C's own streams have buffered.
fn flush() {
    // SAFETY: null stands for all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}
