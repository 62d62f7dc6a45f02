//! The verbs of libibverbs over Spraywire endpoints: preloaded, it lets programs written for RDMA hardware run unmodified, with no
//! kernel module, over any port that DPDK drives.
//!
//! The setup verbs are exported under their own names, so that the dynamic linker finds them here first; what it does not find
//! (names of states, rates) comes from libibverbs as ever. The fast path is inlined by the header and comes through the table
//! of operations of a context: [`context`]. Structures are those of the installed header: [`sys`].
//!
//! - [`config`]: which devices there are; [`device`] their list, and [`engine`] the endpoint of one, opened with the first context;
//! - [`qp`], [`cq`], [`ah`], [`memory`]: the objects; [`channel`] events; [`query`] what there is; [`refused`] what there is not;
//! - [`send`], [`recv`]: work requests; [`wr`] and [`cq_ex`] the extended interface;
//! - [`stats`]: the answer to `spraywire stats`;
//! - [`tick`]: the thread that polls while the program does not.
//!
//! # Threads
//! One lock for each device guards its endpoint and everything on it. A program polls inline: whoever calls `ibv_poll_cq` and finds
//! no completion makes a round of the endpoint. A thread that is alone with its device pays hardly anything for the lock: [`bias`].
//!
//! # Why unsafe
//! Each function is called by a program in C with pointers whose validity is the contract of the verbs; we hold to what can be
//! checked (keys of memory, states, bounds) and take the rest by that contract. A pointer to a public structure is one to the
//! whole of ours, whose first field it is.
#![allow(clippy::missing_safety_doc, reason = "the contract of each is that of the verb of its name")]

mod ah;
mod bias;
mod channel;
mod config;
mod context;
mod cq;
mod cq_ex;
mod device;
mod engine;
mod list;
mod memory;
mod pace;
mod patience;
mod qp;
mod query;
mod recv;
mod refused;
mod say;
mod send;
mod stats;
mod sys;
mod tick;
mod wr;
