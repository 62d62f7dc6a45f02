//! The `spraywire` command: its arguments, its reports, and one module per subcommand.
//!
//! - [`cli`]: the arguments of the whole command; [`args`] those that the port commands share; [`units`] how they are
//!   written;
//! - [`cmd`]: the subcommands, each a clap struct and a function that returns an error instead of exiting;
//! - [`report`]: results on standard output, for people and as JSON; [`logging`] is what goes to standard error;
//! - [`host`]: what the machine tells of itself, for `ports` and `doctor`;
//! - [`capture`]: capture files, read with distrust.
#![forbid(unsafe_code)]

pub mod args;
pub mod capture;
pub mod cli;
pub mod cmd;
#[cfg(feature = "dpdk")]
pub mod endpoint;
pub mod error;
pub mod host;
pub mod logging;
pub mod rendezvous;
pub mod report;
pub mod signal;
pub mod traffic;
pub mod units;

pub use cli::main;
