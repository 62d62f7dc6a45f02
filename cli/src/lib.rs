//! The `spraywire` command: its arguments, its reports, and one module per subcommand.
//!
//! - [`cli`]: the arguments of the whole command; [`args`] those that the port commands share; [`units`] how they are
//!   written;
//! - [`config`]: the same arguments from a file;
//! - [`cmd`]: the subcommands, each a clap struct and a function that returns an error instead of exiting;
//! - [`report`]: results on standard output, for people and as JSON; [`logging`] is what goes to standard error;
//! - [`host`]: what the machine tells of itself, for `ports` and `doctor`;
//! - [`impair`]: what a bad network does, for `wan` and `sim`;
//! - [`tags`]: what an application says of its messages, and [`policy`] how strongly they are protected;
//! - `reliable`: tests over the reliable service; `steps` collectives over it;
//! - [`observe`]: a running endpoint as its operators see it;
//! - [`capture`]: capture files, read with distrust.
#![forbid(unsafe_code)]

pub mod args;
pub mod capture;
pub mod cli;
pub mod cmd;
pub mod config;
#[cfg(feature = "dpdk")]
mod devargs;
#[cfg(feature = "dpdk")]
pub mod endpoint;
pub mod error;
pub mod host;
pub mod impair;
#[cfg(feature = "dpdk")]
mod kernel;
pub mod logging;
pub mod observe;
pub mod policy;
#[cfg(feature = "dpdk")]
pub mod reliable;
pub mod rendezvous;
pub mod report;
pub mod signal;
#[cfg(feature = "dpdk")]
pub mod steps;
pub mod tags;
pub mod traffic;
pub mod units;

pub use cli::main;
