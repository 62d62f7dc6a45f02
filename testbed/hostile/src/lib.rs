//! Frames that no endpoint should have to see, and what it must make of each: see [`kinds`].
//!
//! The frames are put together here, byte by byte, without the code that is tested with them. The same seed gives the same
//! frames. [`Wire`] sends them from a network interface, whose driver the kernel has; it needs `CAP_NET_RAW`.
#![forbid(unsafe_code)]

mod frame;
pub mod kinds;
pub mod reliable;
mod wire;

pub use frame::Target;
pub use kinds::{Fate, Generator, Hostile};
pub use wire::{Pace, Wire, listen};
