//! Logs: `tracing`, on standard error, so that standard output has nothing but results.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging for the process. Warnings always; `-v` adds what is being done (info), `-vv` details (debug), `-vvv`
/// everything (trace). The environment variable `RUST_LOG` wins over all of them. Colours only on a terminal, and not
/// where `NO_COLOR` is set.
pub fn init(verbosity: u8) {
    let filter = match EnvFilter::try_from_default_env() {
        Ok(filter) => filter,
        Err(_) => EnvFilter::new(level(verbosity)),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // A second call, as from tests in one process, finds logging started already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(verbosity > 1)
        .without_time()
        .try_init();
}

/// The level of a number of `-v`.
fn level(verbosity: u8) -> &'static str {
    match verbosity {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_v_is_a_level() {
        assert_eq!([0, 1, 2, 3, 200].map(level), ["warn", "info", "debug", "trace", "trace"]);
    }
}
