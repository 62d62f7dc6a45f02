//! A random permutation on a two-tier network: 64 hosts, 8 leaves and 8 spines, 100 Gb/s and 1 µs on every link, MTU 4096, a flow of 2 MB from each
//! host to another one, all at once.
//!
//! The same was run in htsim (Broadcom's csg-htsim) with EQDS and packet trimming, and with RoCE, PFC and adaptive routing; its figures stand beside
//! ours. What bounds all of them is serialization: 2 MB at 100 Gb/s are 160 µs, with the headers of this protocol (4008 of 4134 bytes on the wire) 165,
//! and the last packet takes 5.3 µs to its receiver, its feedback 4.3 µs back.

use super::wire;
use crate::scenario::{Pattern, Topology};
use crate::single::Single;
use roce_proto::transport::Config;
use std::time::Duration;

/// Flow completion times elsewhere, in microseconds: name, p50, p99.
pub const ELSEWHERE: [(&str, f64, f64); 2] =
    [("EQDS, trimming (htsim)", 186.0, 197.0), ("RoCE, PFC, adaptive routing (htsim)", 324.0, 511.0)];

/// Hosts.
pub const HOSTS: usize = 64;
/// When all flows begin: sessions are open by then.
const AT: Duration = Duration::from_millis(1);

/// The scenario. Switches mark from 12 segments on and drop beyond 484, about as much as a buffer of 2 MB for each port holds; a NIC is given
/// a microsecond of packets ahead.
pub fn scenario(seed: u64, paths: u8) -> Single {
    let micro = Duration::from_micros(1);
    let base = Single::default();
    Single {
        seed,
        hosts: HOSTS,
        pattern: Pattern::Permutation,
        messages: HOSTS,
        size: 2_000_000,
        at: AT,
        topology: Topology::LeafSpine { leaves: 8, spines: 8 },
        link: wire(micro, 100, 2_000_000, Some(50_000)),
        config: Config { paths, ..base.config },
        backlog: Some(micro),
        ..base
    }
}
