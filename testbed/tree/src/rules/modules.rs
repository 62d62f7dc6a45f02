//! Every source file is part of its crate: a file that no `mod` names is neither compiled nor tested, and
//! nothing else says so.

use crate::scan::Scan;
use crate::workspace::Member;
use crate::{Finding, Tree};

/// The files of the members' `src/` folders that no parent module declares.
pub fn check(tree: &Tree, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let src = format!("{}/src/", member.folder);
        for (path, _) in tree.with_extension("rs").filter(|(path, _)| path.starts_with(&src)) {
            if !member.roots.iter().any(|root| root == path) && !is_declared(tree, path) {
                findings.push(Finding::of_file(path, "no `mod` names this file, so it is never compiled"));
            }
        }
    }
    findings
}

fn is_declared(tree: &Tree, path: &str) -> bool {
    let stem = path.trim_end_matches(".rs");
    let Some((folder, name)) = stem.strip_suffix("/mod").unwrap_or(stem).rsplit_once('/') else {
        return false;
    };
    let parents = ["/mod.rs", "/lib.rs", "/main.rs", ".rs"].map(|end| format!("{folder}{end}"));
    let wanted = format!("mod {name};");
    parents.iter().filter(|parent| *parent != path).filter_map(|parent| tree.text(parent)).any(|text| {
        let code = Scan::of(text).code;
        code.lines().any(|line| line.trim() == wanted || line.trim().ends_with(&format!(" {wanted}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let roots = vec!["a/src/lib.rs".to_owned(), "a/src/main.rs".to_owned()];
        let member = Member { folder: "a".to_owned(), uses: Vec::new(), roots };
        check(&Tree::of(files), &[member]).into_iter().map(|f| f.path).collect()
    }

    #[test]
    fn declared_files_are_part_of_the_crate() {
        let root = ("a/src/lib.rs", "pub mod b;\nmod c;\n#[cfg(test)] mod d;\npub(crate) mod e;\n");
        let files = [
            root,
            ("a/src/b.rs", "mod f;"),
            ("a/src/b/f.rs", ""),
            ("a/src/c/mod.rs", "mod g;"),
            ("a/src/c/g.rs", ""),
            ("a/src/d.rs", ""),
            ("a/src/e.rs", ""),
            ("a/src/main.rs", ""),
            ("a/tests/free.rs", ""),
        ];
        assert!(found(&files).is_empty(), "{:?}", found(&files));
    }

    #[test]
    fn orphans_are_found() {
        let root = ("a/src/lib.rs", "mod b;\n// mod c;\nmod cd;\nmod d { mod inner; }\n");
        assert_eq!(found(&[root, ("a/src/b.rs", ""), ("a/src/b/f.rs", "")]), ["a/src/b/f.rs"]);
        assert_eq!(found(&[root, ("a/src/c.rs", "mod c;")]), ["a/src/c.rs"]);
        assert_eq!(
            found(&[root, ("a/src/b/mod.rs", "mod mod;"), ("a/src/x/mod.rs", "")]),
            ["a/src/x/mod.rs"]
        );
    }
}
