//! The paths of a session: what was sent on each, and what came. [`health`] says which are used.

mod health;
mod rails;

pub(super) use health::BAD;
pub use health::{PathState, PathStats};

use super::rtt::Rtt;
use super::table::List;
use crate::time::Instant;
use crate::wire::shim::{Seq, Ticks};

/// One path, both ways.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Path {
    /// What was sent.
    pub tx: PathTx,
    /// What came.
    pub rx: PathRx,
}

/// The sender's side of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathTx {
    /// The next path sequence.
    pub next: Seq,
    /// Its segments in flight, in the order of their path sequences.
    pub in_flight: List,
    /// What was sent before this is suspect…
    pub suspect: Seq,
    /// …since then; zero if nothing is.
    pub since: Instant,
    /// How long a gap is watched before it is a loss, beyond the configured age: nanoseconds.
    pub patience: u32,
    /// Verdicts since the patience changed.
    pub verdicts: u16,
    /// The highest path sequence that the peer told of.
    pub told: Seq,
    /// The peer's count of Congestion Experienced.
    pub ce: u16,
    /// Turns that it is to be passed over, see [`health`].
    pub penalty: u8,
    /// Losses since the peer last told of it that nothing later on it showed.
    pub silent: u8,
    /// Probes sent since it was last found sound for a while.
    pub tries: u8,
    /// While it is bad, what was sent from here on shows that it carries again; then, that it has done so for a while.
    pub trial: Seq,
    /// While it is bad, when to probe it.
    pub probe_at: Instant,
    /// Segments sent on it, those sent again included.
    pub sent: u64,
    /// Of them, those that arrived while it was the path they were sent on last.
    pub echoed: u64,
    /// Of them, those that were found lost.
    pub lost: u64,
    /// Packets of it that carried Congestion Experienced.
    pub marks: u64,
    /// Its round trip.
    pub rtt: Rtt,
}

/// The receiver's side of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathRx {
    /// The highest path sequence that came.
    pub highest: Seq,
    /// The time in that packet.
    pub time: Ticks,
    /// When it came.
    pub arrived: Instant,
    /// How long it may have waited to be received, nanoseconds.
    pub waited: u32,
    /// Packets that carried Congestion Experienced.
    pub ce: u16,
    /// Something came that no feedback has told of.
    pub fresh: bool,
}

impl PathRx {
    /// Takes note of a packet. Returns how far it is ahead of the highest before it: 1 if it is the next.
    #[inline]
    pub fn note(&mut self, seq: Seq, time: Ticks, ce: bool, now: Instant, waited: u32) -> i32 {
        let ahead = self.highest.distance(seq);
        if self.highest.before(seq) {
            self.highest = seq;
            self.time = time;
            self.arrived = now;
            self.waited = waited;
        }
        self.ce = self.ce.wrapping_add(u16::from(ce));
        self.fresh = true;
        ahead
    }
}
