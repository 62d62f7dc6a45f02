//! The benchmarks' traffic: what both ends of a test do, over any worker.
//!
//! - [`drive`]: a worker polled inline or in its own thread, behind one trait;
//! - [`session`]: hello, test, report, bye, as client and as server;
//! - [`flow`]: the streams of one throughput test; [`pingpong`]: the exchanges of one latency test;
//! - [`meter`]: counts over time.

pub mod drive;
mod ease;
pub mod flow;
pub mod merge;
pub mod meter;
pub mod pingpong;
pub mod session;
