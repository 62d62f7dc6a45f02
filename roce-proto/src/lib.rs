//! The protocol of Spraywire without any I/O: RoCEv2 wire formats as plain values and byte slices.
//!
//! Nothing here owns a clock, a socket, a thread or a source of randomness. Time comes in as a [`time::Instant`],
//! packets come in and go out as `&[u8]`, and no function allocates or panics on what it is given.
//!
//! * [`wire::frame::parse`] takes a received Ethernet frame apart, [`wire::ud::Template`] builds one to send.
//! * [`wire::icrc`] is the invariant CRC that covers a RoCEv2 packet from end to end.
//! * [`types`] holds the numbers that the whole project shares: queue pair numbers, keys, sequence numbers.
#![forbid(unsafe_code)]

pub mod time;
pub mod transport;
pub mod types;
pub mod wire;
