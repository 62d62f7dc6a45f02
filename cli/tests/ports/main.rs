//! The real binary on every kind of port, and what it does when a port, a link or a peer goes away.
#![cfg(feature = "dpdk")]

mod af_packet;
mod af_xdp;
mod memif;
mod neighbours;
mod peer;
mod queues;
mod ring_pcap;
mod run;
mod tap;
mod ways;
