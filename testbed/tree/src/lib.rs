//! Rules that the source tree itself obeys, as functions from its text to what breaks them.
//!
//! The compiler and clippy judge one crate at a time; what stands here is about the whole: which crate
//! may use which, where unsafe code may stand, how long a file or a function may grow, that a folder
//! named in a document exists. `tests/tree.rs` applies every rule to the real tree; each rule's own
//! tests show it a small tree that it must refuse.

#![forbid(unsafe_code)]

pub mod ratchet;
pub mod rules;
pub mod scan;
pub mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

/// The files of the repository: those that git tracks, and new ones that it would not ignore.
#[derive(Debug, Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    paths: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl Tree {
    /// Reads the tree below `root`. Files that are not UTF-8 are known by name only.
    ///
    /// # Errors
    /// When git cannot list the files, or a listed file cannot be read for another reason than that it
    /// has been deleted and the deletion is not committed yet.
    pub fn read(root: &Path) -> io::Result<Self> {
        // The owner of a fresh clone may be another user; listing names is harmless all the same.
        let out = Command::new("git")
            .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            return Err(io::Error::other(format!("git ls-files: {}", why.trim())));
        }
        let mut tree = Self::default();
        for path in String::from_utf8_lossy(&out.stdout).split('\0').filter(|p| !p.is_empty()) {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => tree.insert(path, bytes),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(io::Error::new(e.kind(), format!("{path}: {e}"))),
            }
        }
        Ok(tree)
    }

    /// A tree of the given (path, text) pairs, for the rules' own tests.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert(path, text.as_bytes().to_vec());
        }
        tree
    }

    fn insert(&mut self, path: &str, bytes: Vec<u8>) {
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            self.folders.insert(parent.to_owned());
            folder = parent;
        }
        self.paths.insert(path.to_owned());
        if let Ok(text) = String::from_utf8(bytes) {
            self.texts.insert(path.to_owned(), text);
        }
    }

    /// Every UTF-8 file: its path from the root and its text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The UTF-8 files whose name has this extension (without the dot).
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| extension_of(path) == Some(extension))
    }

    /// The text of one file, by its path from the root.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether a file or a folder stands at this path.
    pub fn exists(&self, path: &str) -> bool {
        self.paths.contains(path) || self.is_folder(path)
    }

    /// Whether a folder that holds at least one file stands at this path.
    pub fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.folders.contains(path)
    }

    /// The folders at the root.
    pub fn top_folders(&self) -> impl Iterator<Item = &str> {
        self.folders.iter().map(String::as_str).filter(|f| !f.contains('/'))
    }
}

/// The extension of a path's last component, without the dot; none for names like `.gitignore`.
pub fn extension_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, extension)| extension)
}

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, by its path from the root.
    pub path: String,
    /// The line, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong, and what mends it.
    pub what: String,
}

impl Finding {
    /// A breach at one line of a file.
    pub fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }

    /// A breach by a file as a whole.
    pub fn of_file(path: &str, what: impl Into<String>) -> Self {
        Self::at(path, 0, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_on_the_way_to_a_file() {
        let tree = Tree::of(&[("a/b/c.rs", ""), ("top.md", "")]);
        assert!(tree.is_folder("a") && tree.is_folder("a/b") && !tree.is_folder("top.md"));
        assert!(tree.exists("a/b/c.rs") && tree.exists("a/b") && !tree.exists("a/c"));
        assert_eq!(tree.top_folders().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn extensions() {
        assert_eq!(extension_of("a/b.rs"), Some("rs"));
        assert_eq!(extension_of("a.d/Makefile"), None);
        assert_eq!(extension_of(".gitignore"), None);
    }
}
