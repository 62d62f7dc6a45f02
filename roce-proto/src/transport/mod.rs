//! CSA-UD, the reliable service: messages of any size between many peers over one queue pair. The protocol is
//! `docs/protocol.md`.
//!
//! # The contract of the round
//!
//! An [`Engine`] does no IO and knows no clock. Its driver runs rounds, each in this order:
//!
//! 1. [`Engine::begin`] with the time, which must not go back, and how long packets may have waited;
//! 2. [`Engine::receive`] for **every** packet that waits, and at once what it answers: a [`Placement`] is carried out before the
//!    next call, and so is what [`Engine::next_repair`] says then;
//! 3. [`Engine::turn`], which decides on feedback and lets timers fire: none fires before what was waiting has been seen;
//! 4. [`Engine::transmit`] until it has nothing more or the driver has no room, and after each of them, if the driver puts several
//!    segments in a packet, [`Engine::follow`] until that has nothing more. What the driver loses after this is a lost packet,
//!    and will be repaired as one.
//!
//! Between rounds the application posts, and takes completions and events. After each [`Engine::post_recv`] the driver carries out
//! the [`Engine::next_move`]s before anything else. [`Engine::next_deadline`] says when the next round is due if nothing happens
//! before.
//!
//! Nothing allocates after [`Engine::new`], whatever packets say.

mod absence;
mod acknowledge;
mod api;
mod bundle;
mod config;
mod congestion;
mod copies;
mod counters;
mod engine;
mod handshake;
mod path;
mod post;
mod protect;
mod receive;
mod recovery;
mod rtt;
mod segments;
mod session;
mod stateless;
mod table;
mod tell;
mod transmit;
mod window;

pub use api::{
    Address, Completion, ConnectError, Destination, DownReason, Drop, Event, Move, Operation, Origin, Place,
    Placement, PostError, Received, RecvRequest, SendRequest, SessionKey, Source, Status, Transmit, Way,
};
pub use config::{Algorithm, Config, ConfigError, Limits, Mechanisms, Times};
pub use counters::{CLASSES, ClassCounters, Counters, Repairs};
pub use engine::Engine;
pub use path::{PathState, PathStats};
pub use protect::{Fec, Protect, Repair, Shards};
pub use recovery::{Protection, after_loss};
pub use segments::State as SegmentState;
pub use session::SessionStats;
