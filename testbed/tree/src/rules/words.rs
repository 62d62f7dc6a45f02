//! Words that must not stand in the tree: unfinished work, paths of one machine, hosts of registries,
//! and compiler flags that tie the build to one processor.

use crate::scan::Scan;
use crate::{Finding, Tree, extension_of};

/// Calls and attributes that mark Rust code as unfinished or a test as switched off.
const UNFINISHED: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
/// The first folders of paths that exist on somebody's machine only.
const MACHINE: [&str; 5] = ["home", "root", "work", "Users", "workspace"];
/// Names in the hosts of package registries: where packages come from is a matter of the tools'
/// configuration, and some readers use a mirror.
const REGISTRIES: [&str; 4] = ["crates", "pypi", "npmjs", "debian"];
/// The flags that ask C compilers and rustc for the building machine's own processor.
const NATIVE: [&str; 2] = ["-march=native", "cpu=native"];

/// Every forbidden word of the tree.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        if extension_of(path) == Some("rs") {
            unfinished(path, text, &mut findings);
        }
        // The lock file is cargo's own and names the registry of every package.
        if path.ends_with("Cargo.lock") {
            continue;
        }
        for (i, line) in text.lines().enumerate() {
            if let Some(folder) = MACHINE.into_iter().find(|folder| has_machine_path(line, folder)) {
                findings.push(Finding::at(path, i + 1, format!("a path below /{folder} of one machine")));
            }
            if has_registry(line) {
                findings.push(Finding::at(path, i + 1, "an address of a package registry"));
            }
            // This very file names them, and documents may say why they are not used.
            let is_prose = extension_of(path) == Some("md") || path.starts_with("testbed/tree/");
            if !is_prose && NATIVE.iter().any(|flag| line.contains(flag)) {
                findings.push(Finding::at(path, i + 1, "code for the building machine's processor only"));
            }
        }
    }
    findings
}

fn unfinished(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let scan = Scan::of(text);
    for (i, line) in scan.code.lines().enumerate() {
        for word in UNFINISHED.into_iter().filter(|word| line.contains(word)) {
            findings.push(Finding::at(path, i + 1, format!("`{word}` must not be committed")));
        }
    }
    for (line, comment) in &scan.comments {
        if ["FIXME", "TODO"].iter().any(|word| comment.contains(word)) {
            findings.push(Finding::at(path, *line, "unfinished work belongs in an issue, not in a comment"));
        }
    }
}

/// Whether an absolute path below `/folder/` begins in the line. Preceded by a letter, a digit, a dot
/// or a closing brace it is the middle of another path.
fn has_machine_path(line: &str, folder: &str) -> bool {
    line.match_indices(&format!("/{folder}/")).any(|(i, _)| {
        let before = line[..i].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}~*$".contains(c))
    })
}

fn has_registry(line: &str) -> bool {
    line.match_indices("://").any(|(i, _)| {
        let host = line[i + 3..].split(['/', ' ', ')', '"', '>']).next().unwrap_or_default();
        REGISTRIES.iter().any(|name| host.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn unfinished_code_is_found_in_code_only() {
        let bang = |word: &str| format!("fn f() {{\n {word}!(1)\n}}\n");
        for word in ["todo", "unimplemented", "dbg"] {
            assert_eq!(found("a.rs", &bang(word)), [2]);
            assert!(found("a.rs", &format!("// {word}!()\nlet s = \"{word}!()\";")).is_empty());
        }
        assert_eq!(found("a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}"), [2]);
        assert_eq!(found("a.rs", &["// FIX", "ME: later"].concat()), [1]);
    }

    #[test]
    fn machine_paths_are_found_wherever_they_begin() {
        for folder in MACHINE {
            let path = format!("/{folder}/x");
            for line in [path.clone(), format!("cd {path}"), format!("\"{path}\""), format!("A={path}")] {
                assert_eq!(found("a.sh", &line), [1], "{line}");
            }
            for line in
                [format!("net{path}"), format!("..{path}"), format!("$D{path}"), format!("/{folder}s/x")]
            {
                assert!(found("a.sh", &line).is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn registries_are_found_by_host() {
        let url = |host: &str| format!("see https://{host}/x");
        for host in [["index.", "crates", ".io"].concat(), ["deb.", "debian", ".org"].concat()] {
            assert_eq!(found("a.md", &url(&host)), [1]);
        }
        assert!(found("a.md", &url("www.rfc-editor.org")).is_empty());
        assert!(found("a.md", "https://example.org/crates").is_empty());
    }

    #[test]
    fn builds_for_one_processor_are_found() {
        for flag in ["CFLAGS=-march=native", "-C target-cpu=native"] {
            assert_eq!(found("build.rs", flag), [1]);
            assert!(found("a.md", flag).is_empty());
        }
        assert!(found("build.rs", "rustc-link-search=native=x").is_empty());
    }
}
