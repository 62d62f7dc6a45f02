//! The subcommands: one module each, with its arguments and a function that returns an error instead of exiting.

#[cfg(feature = "dpdk")]
pub mod bw;
#[cfg(feature = "dpdk")]
pub mod demo;
#[cfg(feature = "dpdk")]
pub mod doctor;
pub mod inspect;
#[cfg(feature = "dpdk")]
pub mod lanes;
#[cfg(feature = "dpdk")]
pub mod lat;
#[cfg(feature = "dpdk")]
pub mod measure;
#[cfg(feature = "dpdk")]
pub mod ports;
pub mod report;
pub mod sim;
pub mod stats;
#[cfg(feature = "dpdk")]
pub mod testbed;
#[cfg(feature = "dpdk")]
pub mod ud;
#[cfg(feature = "dpdk")]
pub mod verbs;
#[cfg(feature = "dpdk")]
pub mod wan;
