//! What becomes of segments in flight: one file for each detector. A detector only gives a verdict; what follows from it is
//! [`segment`].

mod deadline;
mod gap;
mod interval;
mod order;
mod segment;
mod tail;
mod time;
mod told;

pub(super) use deadline::Step;
pub use order::Order;
pub use segment::{Protection, after_loss};

/// What a verdict comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A gap on the path.
    Gap,
    /// Later packets on other paths arrived, and it is older than its path explains.
    Time,
    /// The receiver misses it.
    Deadline,
    /// A retransmission time-out.
    Timeout,
    /// The driver was told.
    Told,
    /// The message was rejected: no loss.
    Rejected,
}
