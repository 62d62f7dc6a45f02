//! How much may be in flight to a peer.

mod delay_ecn;
mod fixed;
mod pace;
mod share;

pub use delay_ecn::DelayEcn;
pub use fixed::Fixed;
pub use share::Intake;

use super::config::Algorithm;
use crate::time::Instant;
use core::time::Duration;

/// What a feedback said, as far as congestion control goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// The present.
    pub now: Instant,
    /// Bytes acknowledged anew.
    pub bytes: u64,
    /// A sample of the round trip, if there was one.
    pub rtt: Option<RoundTrip>,
    /// Packets that carried Congestion Experienced.
    pub ce: u32,
    /// Whether the window was what held sending back.
    pub limited: bool,
}

/// What the paths of a feedback took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// The least round trip of the one that was the shortest.
    pub least: Duration,
    /// What they took more than their least, on average.
    pub delay: Duration,
    /// The same of the shortest that each had in its last round trips: what waits in a queue that stands.
    pub standing: Duration,
}

/// A window in bytes of segments in flight.
pub trait Congestion {
    /// A feedback came.
    fn on_acked(&mut self, acked: &Acked);
    /// Segments were lost, whether or not something repairs them.
    fn on_lost(&mut self, now: Instant, bytes: u64);
    /// A retransmission time-out.
    fn on_timeout(&mut self);
    /// The peer's word on how many bytes should be in flight at the most; 0 if it has none.
    fn on_share(&mut self, _bytes: u32) {}
    /// The window in bytes.
    fn window(&self) -> u64;
    /// So many bytes were sent.
    fn on_sent(&mut self, _now: Instant, _bytes: u32) {}
    /// Whether the next segment has to wait, although the window has room: see [`look_at`](Congestion::look_at).
    fn is_early(&self, _now: Instant) -> bool {
        false
    }
    /// When it need not wait any more.
    fn look_at(&self) -> Instant {
        Instant::ZERO
    }
}

/// The congestion control of a session, chosen when it begins.
#[derive(Clone, Copy, Debug)]
pub enum Controller {
    /// A fixed window.
    Fixed(Fixed),
    /// A window by delay and ECN.
    DelayEcn(DelayEcn),
}

impl Controller {
    /// A new one, for segments of so many bytes, which may have a `pace`.
    pub fn new(algorithm: Algorithm, segment: u32, paced: bool) -> Controller {
        match algorithm {
            Algorithm::Fixed(bytes) => Controller::Fixed(Fixed::new(bytes, segment)),
            Algorithm::DelayEcn => Controller::DelayEcn(DelayEcn::new(segment, paced)),
        }
    }
}

impl Congestion for Controller {
    #[inline]
    fn on_acked(&mut self, acked: &Acked) {
        match self {
            Controller::Fixed(c) => c.on_acked(acked),
            Controller::DelayEcn(c) => c.on_acked(acked),
        }
    }

    #[inline]
    fn on_lost(&mut self, now: Instant, bytes: u64) {
        match self {
            Controller::Fixed(c) => c.on_lost(now, bytes),
            Controller::DelayEcn(c) => c.on_lost(now, bytes),
        }
    }

    #[inline]
    fn on_share(&mut self, bytes: u32) {
        match self {
            Controller::Fixed(c) => c.on_share(bytes),
            Controller::DelayEcn(c) => c.on_share(bytes),
        }
    }

    fn on_timeout(&mut self) {
        match self {
            Controller::Fixed(c) => c.on_timeout(),
            Controller::DelayEcn(c) => c.on_timeout(),
        }
    }

    #[inline]
    fn window(&self) -> u64 {
        match self {
            Controller::Fixed(c) => c.window(),
            Controller::DelayEcn(c) => c.window(),
        }
    }
    #[inline]
    fn on_sent(&mut self, now: Instant, bytes: u32) {
        match self {
            Controller::Fixed(c) => c.on_sent(now, bytes),
            Controller::DelayEcn(c) => c.on_sent(now, bytes),
        }
    }

    #[inline]
    fn is_early(&self, now: Instant) -> bool {
        match self {
            Controller::Fixed(c) => c.is_early(now),
            Controller::DelayEcn(c) => c.is_early(now),
        }
    }

    fn look_at(&self) -> Instant {
        match self {
            Controller::Fixed(c) => c.look_at(),
            Controller::DelayEcn(c) => c.look_at(),
        }
    }
}
