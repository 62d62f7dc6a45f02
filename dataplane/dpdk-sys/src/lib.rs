//! Raw bindings to DPDK, made at build time from the headers that are installed, so that structure layouts are the
//! ones of the library that gets linked. Only what the `dpdk` crate needs is bound: see the lists in `build.rs`.
//!
//! Two things are not taken from bindgen. The fields of `rte_mbuf`, whose enclosing unions are named differently from
//! release to release, are reached through [`mbuf`] by offsets that the C compiler computed. And static inline functions
//! go through the `spw_*` functions of `shim.c`, each called once per burst.

pub mod mbuf;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    unnecessary_transmutes,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
