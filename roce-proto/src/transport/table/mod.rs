//! Tables of fixed size: everything the engine keeps lies in one of them, and none grows after the start.

mod chain;
mod index;
mod slab;
mod wheel;

pub use chain::{Chain, List};
pub use index::{Index, Mixer};
pub use slab::Slab;
pub use wheel::Wheel;
