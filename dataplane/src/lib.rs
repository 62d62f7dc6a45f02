//! Ports, workers and the endpoint API of Spraywire.
//!
//! - [`io`]: bursts of packets from and to a port: DPDK ports, or ports within the process, with one API;
//! - [`worker`]: queue pairs, completion queues, address handles over some ports, driven by the caller;
//! - [`reliable`]: messages of any size, reliably, between many peers over one queue pair;
//! - [`group`]: several workers over the queues of one port;
//! - [`thread`]: a worker in a poll-mode thread, reached through lock-free queues;
//! - [`counters`]: the one counter in which each received packet ends;
//! - [`observe`]: a look at a running worker from another thread.
//!
//! The other service is raw UD with the semantics of the verbs: one packet per message, unreliable, unordered only where the
//! network reorders.
#![forbid(unsafe_code)]

pub mod ah;
pub mod announce;
pub mod buffer;
pub mod capture;
pub mod clock;
mod completions;
pub mod counters;
pub mod cq;
pub mod entropy;
pub mod feed;
pub mod group;
pub mod idle;
pub mod io;
pub mod link;
pub mod neighbour;
pub mod observe;
#[cfg(feature = "dpdk")]
pub mod open;
pub mod parcel;
pub mod qp;
pub mod reliable;
mod ring;
pub mod route;
pub mod spec;
pub mod thread;
pub mod worker;
