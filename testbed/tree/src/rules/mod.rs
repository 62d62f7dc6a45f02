//! The rules, one file each. Every one is a function from the tree to its [findings](crate::Finding).

pub mod documents;
pub mod layers;
pub mod manifests;
pub mod modules;
pub mod sans_io;
pub mod unsafety;
pub mod words;
