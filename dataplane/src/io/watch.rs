//! What becomes of a port while it is open, for whoever wants to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// Packets can flow.
    Up,
    /// The link is down and may come up again.
    Down,
    /// What the port stands on is no more, and does not come back: to go on, open a new one.
    Gone,
}

impl PortState {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Up => "up",
            PortState::Down => "down",
            PortState::Gone => "gone",
        }
    }
}

/// A port's state as its worker saw it last, a quarter of a second ago at the most. Reading it costs nothing; it can be
/// read by any thread, and outlives the worker.
#[derive(Clone, Debug)]
pub struct PortWatch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    lost: AtomicU64,
}

impl PortWatch {
    pub(crate) fn new(state: PortState) -> PortWatch {
        PortWatch(Arc::new(Shared { state: AtomicU8::new(state as u8), lost: AtomicU64::new(0) }))
    }

    /// The state.
    pub fn state(&self) -> PortState {
        match self.0.state.load(Ordering::Acquire) {
            0 => PortState::Up,
            1 => PortState::Down,
            _ => PortState::Gone,
        }
    }

    /// How often the link went down, or the port away.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Acquire)
    }

    /// Notes a state; returns the one before if it is another.
    pub(crate) fn note(&self, state: PortState) -> Option<PortState> {
        let before = self.state();
        if before == state {
            return None;
        }
        if before == PortState::Up {
            self.0.lost.fetch_add(1, Ordering::AcqRel);
        }
        self.0.state.store(state as u8, Ordering::Release);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noted_once_and_losses_counted() {
        use PortState::{Down, Gone, Up};
        let watch = PortWatch::new(Down);
        let other = watch.clone();
        let noted = [Down, Up, Up, Down, Up, Gone, Gone].map(|state| watch.note(state));
        assert_eq!(noted, [None, Some(Down), None, Some(Up), Some(Down), Some(Up), None]);
        assert_eq!((other.state(), other.lost()), (Gone, 2));
    }
}
