//! The engine between hosts: real bytes over a network that misbehaves, under a virtual clock, from a seed.

mod basic;
mod bundle;
mod found;
mod hostile;
mod lies;
mod mechanisms;
mod net;
mod paths;
mod protect;
mod rails;
mod random;
mod slow;
mod sparse;
