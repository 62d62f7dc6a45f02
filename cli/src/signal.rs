//! SIGINT and SIGTERM: the first asks for a clean stop, the second ends the process at once.

use crate::error::{Error, Exit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Whether a stop was asked for. Clones share the answer.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether a signal, or [`request`](Stop::request), came.
    #[inline]
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks for a stop, as the signal does.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for code that polls one.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

/// Takes SIGINT and SIGTERM over, once for the process; every call returns the same flag.
///
/// A second signal ends the process with exit code 130 without further ado.
pub fn install() -> Result<Stop, Error> {
    static STOP: OnceLock<Stop> = OnceLock::new();
    if let Some(stop) = STOP.get() {
        return Ok(stop.clone());
    }
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag down and raises it, the second finds it up and exits.
        let code = Exit::Interrupted as i32;
        signal_hook::flag::register_conditional_shutdown(signal, code, stop.flag())
            .and_then(|_| signal_hook::flag::register(signal, stop.flag()))
            .map_err(|e| Error::failed(format_args!("cannot take signal {signal} over: {e}")))?;
    }
    Ok(STOP.get_or_init(|| stop).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_signal_asks_for_a_stop() {
        let stop = install().unwrap();
        let again = install().unwrap();
        assert!(!stop.requested());
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.requested() && again.requested());
    }
}
