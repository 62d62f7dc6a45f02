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

use std::path::Path;

/// Whether two names are of one file that is there.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}
