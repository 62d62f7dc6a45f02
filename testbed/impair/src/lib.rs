//! A direction of a link that loses, delays, disorders, duplicates, corrupts, queues and marks packets.
//!
//! The model is sans-IO: packets go in with the time at which they arrive, and come out at the time at which they are delivered.
//! It owns no clock and no source of randomness but a seed, so that a simulator drives it under a virtual clock and a
//! forwarder between two ports under the real one, and the same seed gives the same fates.
//!
//! ```
//! use roce_proto::time::Instant;
//! use std::time::Duration;
//! use testbed_impair::{Config, Link, Offer};
//!
//! let config = Config { delay: Duration::from_millis(25), ..Config::default() };
//! let mut link = Link::new(config, 1).unwrap();
//! let now = Instant::ZERO;
//! link.offer(now, Offer { bytes: 1000, ecn_capable: true }, "hello", |p| Some(*p));
//! assert_eq!(link.next_at(), Some(now + Duration::from_millis(25)));
//! assert!(link.pop(now + Duration::from_millis(24)).is_none());
//! assert_eq!(link.pop(now + Duration::from_millis(25)).unwrap().packet, "hello");
//! ```
//!
//! A packet meets, in this order: a black-out, loss, duplication, the queue with its bottleneck (each copy for itself),
//! propagation delay and jitter, and corruption. Loss comes before the queue, so what is lost takes none of the rate.

#![forbid(unsafe_code)]

mod config;
mod link;
mod loss;
mod queue;

pub use config::{BlackOut, Config, ConfigError, Rate, Reorder};
pub use link::{Counters, Delivery, Link, Offer};
pub use loss::Loss;
