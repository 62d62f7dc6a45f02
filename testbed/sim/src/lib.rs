//! Many hosts with an engine of the reliable service each, and the network between them, in one process under a virtual clock.
//! Everything follows from one seed, so that whatever happens can be had again.
//!
//! - [`scenario`]: what is simulated, as plain values; [`generate`] draws one from a seed, [`shrink`] makes a failing one smaller;
//! - [`world`]: the event queue and the faults; [`app`] what applications do; [`host`] one endpoint and its driver, which moves real bytes as its
//!   engine says; [`net`] the links and the ways over them;
//! - [`ledger`] and [`watch`]: the checkers. They see what goes in and out of the engines, and nothing inside;
//! - [`report`], [`figures`], [`groups`] and [`trace`]: what came out.
//!
//! ```
//! use testbed_sim::{Scenario, Trace, simulate};
//!
//! let scenario = Scenario::swarm(7);
//! let (report, verdict) = simulate(&scenario, Trace::hash());
//! assert_eq!(verdict, Ok(()));
//! assert_eq!(simulate(&scenario, Trace::hash()).0.trace, report.trace);
//! ```
#![forbid(unsafe_code)]

pub mod app;
pub mod figures;
pub mod generate;
pub mod groups;
pub mod host;
pub mod ledger;
pub mod net;
pub mod report;
pub mod scenario;
pub mod shrink;
pub mod single;
pub mod study;
pub mod trace;
pub mod watch;
mod words;
pub mod world;

pub use report::Report;
pub use scenario::{Fault, HostPlan, MessagePlan, Pattern, Poll, Sabotage, Scenario, Topology};
pub use trace::Trace;
pub use watch::{Check, Violation};

/// Runs a scenario to its end, or to the first violation.
pub fn simulate(scenario: &Scenario, trace: Trace) -> (Report, Result<(), Violation>) {
    match world::World::new(scenario, trace) {
        Ok(world) => world.run(),
        Err(violation) => (Report::default(), Err(violation)),
    }
}
