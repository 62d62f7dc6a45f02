//! DPDK's log, line by line, to where the program's own log goes.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// How serious a line is, as in `rte_log.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Also the more serious levels that DPDK knows: critical, alert, emergency.
    Error,
    /// Something to look at.
    Warning,
    /// Normal and worth knowing; the default of most of DPDK's parts.
    Notice,
    /// Detail.
    Info,
    /// Everything.
    Debug,
}

impl LogLevel {
    pub(crate) fn from_dpdk(level: u32) -> LogLevel {
        match level {
            0..=4 => LogLevel::Error,
            5 => LogLevel::Warning,
            6 => LogLevel::Notice,
            7 => LogLevel::Info,
            _ => LogLevel::Debug,
        }
    }

    /// The word that `--log-level` takes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Notice => "notice",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Longest line kept together, in bytes; a longer one is cut into several.
const LINE: usize = 4096;

struct State {
    sink: fn(LogLevel, &str),
    partial: Vec<u8>,
    errors: String,
}

static STATE: Mutex<State> =
    Mutex::new(State { sink: to_tracing, partial: Vec::new(), errors: String::new() });

/// Sends every line of DPDK's log, without its line end, to `sink`, from now on and for the whole process. Works before
/// DPDK starts. Until it is called, the lines go to `tracing`, with the target `dpdk`. `sink` runs on whatever thread
/// DPDK logs from.
pub fn route_log(sink: fn(LogLevel, &str)) {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).sink = sink;
    open();
}

/// Makes the stream. Called again it is harmless.
pub(crate) fn open() {
    // SAFETY: `write` has the type that the shim calls, and lives as long as the process.
    let ret = unsafe { dpdk_sys::spw_log_open(Some(write)) };
    if ret != 0 {
        tracing::warn!(error = -ret, "DPDK's log cannot be routed and goes to stderr");
    }
}

/// Forgets past errors, so that the next ones belong to what is tried next.
pub(crate) fn clear_errors() {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).errors.clear();
}

/// The error lines since [`clear_errors`]: the first names the cause, the others what failed because of it.
pub(crate) fn errors() -> String {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).errors.clone()
}

fn to_tracing(level: LogLevel, line: &str) {
    match level {
        LogLevel::Error => tracing::error!(target: "dpdk", "{line}"),
        LogLevel::Warning => tracing::warn!(target: "dpdk", "{line}"),
        LogLevel::Notice => tracing::info!(target: "dpdk", "{line}"),
        LogLevel::Info => tracing::debug!(target: "dpdk", "{line}"),
        LogLevel::Debug => tracing::trace!(target: "dpdk", "{line}"),
    }
}

/// Called by DPDK's stdio stream.
unsafe extern "C" fn write(level: u32, text: *const c_char, len: usize) {
    // SAFETY: the shim passes stdio's buffer and its length, valid for this call.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    // A panic in the sink must not unwind into C; the line is lost then.
    let _ = std::panic::catch_unwind(|| take(LogLevel::from_dpdk(level), bytes));
}

/// How net_memif complains when it is probed without DPDK's shared configuration (`--in-memory`, `--no-shconf`): only
/// secondary processes would need what it registers there, and without that configuration there are none. Any other error at
/// this place stays a warning.
const NO_SECONDARIES: &str = "Failed to register mp action callback: Operation not supported";

thread_local! {
    /// Whether what this thread tries may well fail, and whoever tries hears of it by other means.
    static ATTEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `attempt` with what it makes DPDK log on this thread being detail. Its errors are still remembered for [`errors`].
pub(crate) fn attempt<T>(attempt: impl FnOnce() -> T) -> T {
    let before = ATTEMPT.replace(true);
    let result = attempt();
    ATTEMPT.set(before);
    result
}

/// The level of a line for us.
fn judge(level: LogLevel, line: &str) -> LogLevel {
    let expected = level == LogLevel::Warning && line.ends_with(NO_SECONDARIES);
    if expected || ATTEMPT.get() { LogLevel::Debug } else { level }
}

fn take(level: LogLevel, bytes: &[u8]) {
    let (sink, lines) = {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = split(&mut state.partial, bytes);
        if level == LogLevel::Error {
            for line in &lines {
                remember(&mut state.errors, line);
            }
        }
        (state.sink, lines)
    };
    // Outside the lock: the sink may itself call something that logs.
    for line in &lines {
        sink(judge(level, line), line);
    }
}

/// Adds a line to the errors, as long as there are not too many to show.
fn remember(errors: &mut String, line: &str) {
    /// Longest text in bytes; the cause comes first, so the end may be missing.
    const MOST: usize = 400;
    if errors.len() + line.len() > MOST && !errors.is_empty() {
        return;
    }
    if !errors.is_empty() {
        errors.push_str("; ");
    }
    errors.push_str(line);
}

/// Adds `bytes` to what is left of the line before, and takes the complete lines out.
fn split(partial: &mut Vec<u8>, bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    for &byte in bytes {
        if byte != b'\n' {
            partial.push(byte);
        }
        if byte == b'\n' || partial.len() >= LINE {
            let line = String::from_utf8_lossy(partial).trim_end().to_owned();
            partial.clear();
            if !line.is_empty() {
                lines.push(line);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_split() {
        let mut partial = Vec::new();
        assert_eq!(split(&mut partial, b"EAL: one"), Vec::<String>::new());
        assert_eq!(split(&mut partial, b" line\nEAL: two\n\nEAL: thr"), ["EAL: one line", "EAL: two"]);
        assert_eq!(split(&mut partial, b"ee\r\n"), ["EAL: three"]);
        assert!(partial.is_empty());
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut partial = Vec::new();
        let lines = split(&mut partial, &[b'x'; LINE + 1]);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), LINE);
        assert_eq!(partial, b"x");
    }

    #[test]
    fn a_complaint_about_missing_secondaries_is_detail() {
        let line = |reason| format!("rte_pmd_memif_probe(): Failed to register mp action callback: {reason}");
        let usual = line("Operation not supported");
        assert_eq!(judge(LogLevel::Warning, &usual), LogLevel::Debug);
        assert_eq!(judge(LogLevel::Error, &usual), LogLevel::Error);
        assert_eq!(judge(LogLevel::Warning, &line("No space left on device")), LogLevel::Warning);
        assert_eq!(judge(LogLevel::Notice, "EAL: ready"), LogLevel::Notice);
    }

    #[test]
    fn levels_of_dpdk() {
        assert_eq!(LogLevel::from_dpdk(1), LogLevel::Error);
        assert_eq!(LogLevel::from_dpdk(4), LogLevel::Error);
        assert_eq!(LogLevel::from_dpdk(5), LogLevel::Warning);
        assert_eq!(LogLevel::from_dpdk(8), LogLevel::Debug);
    }
}
