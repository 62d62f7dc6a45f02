//! Length limits with a list of exceptions that can only shrink.
//!
//! The list is `testbed/tree/ratchet.txt`, one exception a line: `file PATH LINES` or
//! `fn PATH NAME LINES`; `#` begins a comment. An exception that is no longer needed, or that allows
//! more than its subject has, is itself a finding: so a file that was made shorter stays so.

use crate::scan::Scan;
use crate::{Finding, Tree, extension_of};
use std::collections::BTreeMap;

/// The longest that a file may be, in lines.
pub const FILE_LINES: usize = 600;
/// The longest that a function may be, in lines from its `fn` to its closing brace.
pub const FUNCTION_LINES: usize = 100;
/// Where the exceptions are listed.
pub const LIST: &str = "testbed/tree/ratchet.txt";

/// What has a length: a file, or a function of a file.
type Subject = (String, Option<String>);

/// The source files and functions that are too long, and the exceptions that have outlived their need.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let listed = parse_list(tree.text(LIST).unwrap_or_default(), &mut findings);
    let lengths = measure(tree);
    for (subject, length) in &lengths {
        let limit = if subject.1.is_some() { FUNCTION_LINES } else { FILE_LINES };
        let what = describe(subject);
        let allowed = listed.get(subject).copied();
        let finding = match allowed {
            None if *length > limit => format!("{what} has {length} lines; {limit} are allowed: split it"),
            Some(most) if *length > most => {
                format!("{what} has {length} lines and its exception allows {most}: split it")
            }
            Some(_) if *length <= limit => {
                format!("{what} has {length} lines, which needs no exception: remove its line from {LIST}")
            }
            Some(most) if *length < most => {
                format!("{what} has {length} lines now: lower the entry of {most} in {LIST}")
            }
            _ => continue,
        };
        findings.push(Finding::of_file(&subject.0, finding));
    }
    for subject in listed.keys().filter(|s| !lengths.contains_key(s)) {
        let what = format!("{} is gone: remove its line from {LIST}", describe(subject));
        findings.push(Finding::of_file(&subject.0, what));
    }
    findings
}

fn describe((_, function): &Subject) -> String {
    match function {
        Some(name) => format!("function {name}"),
        None => "the file".to_owned(),
    }
}

fn parse_list(text: &str, findings: &mut Vec<Finding>) -> BTreeMap<Subject, usize> {
    let mut listed = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let entry = match words.as_slice() {
            [] => continue,
            ["file", path, lines] => lines.parse().ok().map(|n| ((path.to_string(), None), n)),
            ["fn", path, name, lines] => {
                lines.parse().ok().map(|n| ((path.to_string(), Some(name.to_string())), n))
            }
            _ => None,
        };
        match entry {
            Some((subject, lines)) => {
                listed.insert(subject, lines);
            }
            None => {
                findings.push(Finding::at(LIST, i + 1, "neither `file PATH LINES` nor `fn PATH NAME LINES`"))
            }
        }
    }
    listed
}

/// Source files are those in a language that the project is written in, scripts without extension too.
fn is_source(path: &str, text: &str) -> bool {
    match extension_of(path) {
        Some(extension) => ["rs", "c", "h", "py", "sh"].contains(&extension),
        None => text.starts_with("#!"),
    }
}

fn measure(tree: &Tree) -> BTreeMap<Subject, usize> {
    let mut lengths = BTreeMap::new();
    for (path, text) in tree.texts().filter(|(path, text)| is_source(path, text)) {
        lengths.insert((path.to_owned(), None), text.lines().count());
        if extension_of(path) == Some("rs") {
            for function in Scan::of(text).functions() {
                // Of several functions with one name the longest counts.
                let longest = lengths.entry((path.to_owned(), Some(function.name))).or_default();
                *longest = function.lines.max(*longest);
            }
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: usize) -> String {
        "// x\n".repeat(lines)
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "x();\n".repeat(lines - 2))
    }

    fn found(source: &str, list: &str) -> Vec<String> {
        check(&Tree::of(&[("a.rs", source), (LIST, list)])).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn the_limits_are_inclusive() {
        assert!(found(&file(600), "").is_empty());
        assert!(found(&file(601), "")[0].contains("601 lines; 600 are allowed"));
        assert!(found(&function(100), "").is_empty());
        assert!(found(&function(101), "")[0].contains("function f has 101 lines; 100 are allowed"));
    }

    #[test]
    fn an_exception_allows_exactly_its_length() {
        assert!(found(&file(700), "file a.rs 700").is_empty());
        assert!(found(&file(701), "file a.rs 700")[0].contains("its exception allows 700"));
        assert!(found(&file(699), "file a.rs 700")[0].contains("lower the entry of 700"));
        assert!(found(&file(600), "file a.rs 700")[0].contains("needs no exception"));
        assert!(found(&function(120), "fn a.rs f 120 # why").is_empty());
        assert!(found(&function(119), "fn a.rs f 120")[0].contains("lower the entry"));
    }

    #[test]
    fn exceptions_for_what_is_gone_and_malformed_lines_are_found() {
        assert!(found("", "file b.rs 700")[0].contains("is gone"));
        assert!(found("", "fn a.rs g 120")[0].contains("function g is gone"));
        assert_eq!(found("", "# comment\n\nfile a.rs many").len(), 1);
    }

    #[test]
    fn scripts_without_extension_count_and_documents_do_not() {
        let long = format!("#!/bin/sh\n{}", "x\n".repeat(600));
        assert_eq!(check(&Tree::of(&[("run", &long)])).len(), 1);
        assert!(check(&Tree::of(&[("a.md", &file(900)), ("LICENSE", &file(900))])).is_empty());
    }
}
