//! The protocol crates own no clock, socket, thread, file or environment: those are their callers'.

use crate::scan::{Scan, find_word};
use crate::{Finding, Tree};

/// The sources that are free of IO.
const FOLDERS: [&str; 2] = ["roce-proto/src/", "fec/src/"];
/// What they must not name outside their tests. `std::net` is absent: its address types are values.
const FORBIDDEN: [&str; 11] = [
    "std::time::Instant",
    "SystemTime",
    "Instant::now",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "UdpSocket",
    "TcpStream",
    "thread_rng",
];

/// The places where a protocol crate reaches for the outside world.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs").filter(|(p, _)| FOLDERS.iter().any(|f| p.starts_with(f))) {
        let code = Scan::of(text).code_without_tests();
        for (i, line) in code.lines().enumerate() {
            for word in FORBIDDEN.into_iter().filter(|word| find_word(line, word, 0).is_some()) {
                let what = format!("`{word}` in a crate without IO: let the caller pass what it gives");
                findings.push(Finding::at(path, i + 1, what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn clocks_files_and_threads_are_found() {
        assert_eq!(found("roce-proto/src/a.rs", "use std::fs;\nlet t = Instant::now();\n"), [1, 2]);
        assert_eq!(found("fec/src/a.rs", "std::thread::spawn(f);"), [1]);
    }

    #[test]
    fn tests_comments_and_other_crates_are_free() {
        assert!(found("roce-proto/src/a.rs", "// std::fs\n#[cfg(test)]\nmod t { use std::fs; }").is_empty());
        assert!(found("roce-proto/tests/a.rs", "use std::fs;").is_empty());
        assert!(found("cli/src/a.rs", "use std::fs;").is_empty());
        assert!(found("roce-proto/src/a.rs", "use std::net::Ipv4Addr; use crate::time::Instant;").is_empty());
    }
}
