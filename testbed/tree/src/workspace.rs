//! What cargo says of the workspace: its members, what they depend on, and the roots of their crates.

use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::Command;

/// One member of the workspace.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its folder, by its path from the root.
    pub folder: String,
    /// The folders of the members that it depends on, and for what.
    pub uses: Vec<(String, Use)>,
    /// The root files of its library and its binaries, by their paths from the root.
    pub roots: Vec<String>,
}

/// For what a member uses another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// In what it builds (build scripts included).
    Build,
    /// In its tests, examples and benchmarks only.
    Test,
}

/// Asks cargo for the members of the workspace at `root`. Works without a network.
///
/// # Errors
/// When cargo cannot be started or refuses the workspace, or its answer is not the expected JSON.
pub fn members(root: &Path) -> io::Result<Vec<Member>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(io::Error::other(format!("cargo metadata: {}", why.trim())));
    }
    parse(&serde_json::from_slice(&out.stdout)?)
        .ok_or_else(|| io::Error::other("cargo metadata: an unexpected shape of answer"))
}

fn parse(metadata: &Value) -> Option<Vec<Member>> {
    let root = format!("{}/", metadata["workspace_root"].as_str()?);
    let from_root = |path: &str| path.strip_prefix(&root).map(str::to_owned);
    let mut members = Vec::new();
    for package in metadata["packages"].as_array()? {
        let manifest = from_root(package["manifest_path"].as_str()?)?;
        let folder = manifest.strip_suffix("/Cargo.toml")?.to_owned();
        let mut uses = Vec::new();
        for dependency in package["dependencies"].as_array()? {
            if let Some(path) = dependency["path"].as_str() {
                let kind = if dependency["kind"] == "dev" { Use::Test } else { Use::Build };
                uses.push((from_root(path)?, kind));
            }
        }
        let mut roots = Vec::new();
        for target in package["targets"].as_array()? {
            let kinds = target["kind"].as_array()?;
            // The kinds of library are many (lib, rlib, cdylib, staticlib, proc-macro…).
            let is_test = |k: &Value| ["test", "bench", "example", "custom-build"].iter().any(|t| k == t);
            if !kinds.iter().any(is_test) {
                roots.push(from_root(target["src_path"].as_str()?)?);
            }
        }
        members.push(Member { folder, uses, roots });
    }
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_from_cargo() {
        let json = serde_json::json!({
            "workspace_root": "/w",
            "packages": [{
                "manifest_path": "/w/a/b/Cargo.toml",
                "dependencies": [
                    { "name": "serde", "kind": null },
                    { "name": "c", "path": "/w/c", "kind": null },
                    { "name": "d", "path": "/w/d", "kind": "dev" },
                ],
                "targets": [
                    { "kind": ["lib"], "src_path": "/w/a/b/src/lib.rs" },
                    { "kind": ["test"], "src_path": "/w/a/b/tests/t.rs" },
                ],
            }],
        });
        let members = parse(&json).unwrap();
        assert_eq!(members.len(), 1);
        assert_eq!(members[0].folder, "a/b");
        assert_eq!(members[0].uses, [("c".to_owned(), Use::Build), ("d".to_owned(), Use::Test)]);
        assert_eq!(members[0].roots, ["a/b/src/lib.rs"]);
    }

    #[test]
    fn another_shape_is_refused() {
        assert!(parse(&serde_json::json!({ "packages": [] })).is_none());
    }
}
