//! Where unsafe code may stand, and that each block of it gives its reason.

use crate::scan::{Scan, find_word};
use crate::workspace::Member;
use crate::{Finding, Tree};

/// The folders whose code may be unsafe: what wraps DPDK, and what meets another language.
const FOLDERS: [&str; 3] = ["dataplane/dpdk-sys/", "dataplane/dpdk/", "bindings/"];
/// Single files that may: what enters SIMD kernels, each beside a readable engine that it is tested against.
const FILES: [&str; 2] = ["fec/src/kernel/dispatch.rs", "fec/src/kernel/isal.rs"];
/// How far above an unsafe block its reason may begin, in lines.
const REACH: usize = 16;

fn may_be_unsafe(path: &str) -> bool {
    FOLDERS.iter().any(|folder| path.starts_with(folder)) || FILES.contains(&path)
}

/// Unsafe code where there must be none, unsafe blocks without a reason, and crates that neither may
/// hold unsafe code nor forbid it.
pub fn check(tree: &Tree, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("rs") {
        let scan = Scan::of(text);
        for line in scan.lines_with_word("unsafe") {
            if !may_be_unsafe(path) {
                findings.push(Finding::at(path, line, "unsafe code outside the folders that may hold it"));
            } else if needs_reason(&scan, line) && !has_reason(&scan, line) {
                findings.push(Finding::at(path, line, "unsafe without a `// SAFETY:` reason above it"));
            }
        }
    }
    for root in members.iter().flat_map(|m| &m.roots) {
        // A crate with one kernel file in the list cannot forbid: it denies, and the file allows.
        let holds_kernel = FILES.iter().any(|f: &&str| f.starts_with(folder_of(root)));
        if may_be_unsafe(root) || holds_kernel {
            continue;
        }
        let code: String = Scan::of(tree.text(root).unwrap_or_default()).code.split_whitespace().collect();
        if !code.contains("#![forbid(unsafe_code)]") {
            findings.push(Finding::of_file(root, "the crate's root lacks #![forbid(unsafe_code)]"));
        }
    }
    findings
}

fn folder_of(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| &path[..=slash])
}

/// A block or an `unsafe impl`; an `unsafe fn` or `unsafe extern` makes demands and meets none.
fn needs_reason(scan: &Scan, line: usize) -> bool {
    let text: Vec<&str> = scan.code.lines().skip(line - 1).take(2).collect();
    let joined = text.join(" ");
    let mut from = 0;
    while let Some(start) = find_word(&joined, "unsafe", from) {
        if start >= text[0].len() {
            return false;
        }
        from = start + "unsafe".len();
        let after = joined[from..].trim_start();
        if after.starts_with('{') || find_word(after, "impl", 0) == Some(0) {
            return true;
        }
    }
    false
}

/// Looks upwards from the line, through its own statement and attributes, for the comment.
fn has_reason(scan: &Scan, line: usize) -> bool {
    let code: Vec<&str> = scan.code.lines().collect();
    let says = |n: usize| scan.comments.iter().any(|(l, text)| *l == n && text.contains("SAFETY:"));
    let has_comment = |n: usize| scan.comments.iter().any(|(l, _)| *l == n);
    if says(line) {
        return true;
    }
    for n in (1..line).rev().take(REACH) {
        if says(n) {
            return true;
        }
        let text = code[n - 1].trim();
        let of_the_statement = if text.is_empty() {
            has_comment(n)
        } else {
            text.starts_with("#[") || !text.ends_with([';', '{', '}', ','])
        };
        if !of_the_statement {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)]), &[]).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn unsafe_code_stays_in_its_folders() {
        let block = "fn f() {\n    // SAFETY: x is valid.\n    unsafe { g() }\n}\n";
        assert_eq!(found("roce-proto/src/a.rs", block), [3]);
        assert_eq!(found("dataplane/src/a.rs", block), [3]);
        assert!(found("dataplane/dpdk/src/a.rs", block).is_empty());
        assert!(found("bindings/c/src/a.rs", block).is_empty());
        assert_eq!(found("cli/src/a.rs", "#[unsafe(no_mangle)]\nfn f() {}"), [1]);
    }

    #[test]
    fn comments_strings_and_lint_names_are_not_code() {
        assert!(found("cli/src/a.rs", "#![forbid(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";").is_empty());
    }

    #[test]
    fn every_block_has_its_reason() {
        let path = "dataplane/dpdk/src/a.rs";
        assert_eq!(found(path, "let a = 1;\nlet b = unsafe { f() };"), [2]);
        assert_eq!(found(path, "// SAFETY: for a.\nlet a = unsafe { f() };\nlet b = unsafe { f() };"), [3]);
        assert_eq!(found(path, "// SAFETY: far away.\n\nunsafe { f() }"), [3]);
        assert_eq!(found(path, "// A remark.\nunsafe impl Send for T {}"), [2]);
        assert!(
            found(path, "// SAFETY: long,\n// and longer.\n#[inline]\nunsafe impl Send for T {}").is_empty()
        );
        assert!(found(path, "// SAFETY: the statement's.\nlet a =\n    unsafe { f() };").is_empty());
        assert!(
            found(path, "/// # Safety\n/// p is valid.\nunsafe fn f() {}\nunsafe extern \"C\" {}").is_empty()
        );
    }

    #[test]
    fn other_crates_forbid_it_at_their_root() {
        let member = |root: &str| {
            let roots = vec![root.to_owned()];
            [Member { folder: "x".to_owned(), uses: Vec::new(), roots }]
        };
        let check_root = |root: &str, text: &str| check(&Tree::of(&[(root, text)]), &member(root)).len();
        assert_eq!(check_root("cli/src/main.rs", "fn main() {}"), 1);
        assert_eq!(check_root("cli/src/main.rs", "// #![forbid(unsafe_code)]\nfn main() {}"), 1);
        assert_eq!(check_root("cli/src/main.rs", "#![forbid(unsafe_code)]\nfn main() {}"), 0);
        assert_eq!(check_root("dataplane/dpdk/src/lib.rs", ""), 0);
    }
}
