//! The subcommands: one module each, with its arguments and a function that returns an error instead of exiting.

pub mod inspect;
