//! Results: tables and numbers for people, one versioned schema of JSON for programs.

pub mod hexdump;
pub mod json;
pub mod numbers;
pub mod out;
pub mod quantiles;
pub mod table;

pub use json::{Document, JsonTarget};
pub use out::Out;
pub use table::Table;
