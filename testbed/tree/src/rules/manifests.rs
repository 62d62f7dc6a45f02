//! Every member takes its lints, edition and version from the workspace.

use crate::workspace::Member;
use crate::{Finding, Tree};

/// The keys that a member's manifest inherits: section and key.
const INHERITED: [(&str, &str); 5] = [
    ("lints", "workspace"),
    ("package", "edition.workspace"),
    ("package", "version.workspace"),
    ("package", "rust-version.workspace"),
    ("package", "publish.workspace"),
];

/// The members whose manifests do not inherit what they should.
pub fn check(tree: &Tree, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let path = format!("{}/Cargo.toml", member.folder);
        let text = tree.text(&path).unwrap_or_default();
        for (section, key) in INHERITED {
            if !has(text, section, key) {
                findings
                    .push(Finding::of_file(&path, format!("`{key} = true` is missing under [{section}]")));
            }
        }
    }
    findings
}

fn has(manifest: &str, section: &str, key: &str) -> bool {
    let mut current = "";
    manifest.lines().map(str::trim).any(|line| {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            current = name.trim();
        }
        current == section
            && line.split_once('=').is_some_and(|(k, v)| {
                k.trim() == key && v.split('#').next().is_some_and(|v| v.trim() == "true")
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str) -> usize {
        let member = Member { folder: "a".to_owned(), uses: Vec::new(), roots: Vec::new() };
        check(&Tree::of(&[("a/Cargo.toml", manifest)]), &[member]).len()
    }

    #[test]
    fn each_missing_key_is_found() {
        let package = "[package]\nedition.workspace = true\nversion.workspace = true\n\
                       rust-version.workspace = true\npublish.workspace = true\n";
        assert_eq!(found(&format!("{package}\n[lints]\nworkspace = true # all\n")), 0);
        assert_eq!(found(package), 1);
        assert_eq!(found(&format!("{package}[lints]\nworkspace = false\n")), 1);
        assert_eq!(found(&format!("{package}[lints.rust]\nworkspace = true\n")), 1);
        assert_eq!(found("[lints]\nworkspace = true\n"), 4);
        assert_eq!(found("[package]\nedition = \"2024\"\n"), 5);
    }
}
