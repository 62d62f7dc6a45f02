//! The real binary on every kind of port, and what it does when a port, a link or a peer goes away.
#![cfg(feature = "dpdk")]

mod af_packet;
mod run;
