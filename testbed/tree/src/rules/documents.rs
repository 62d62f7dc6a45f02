//! Documents speak of what exists: relative links resolve, ARCHITECTURE.md names the folders, and each numbered section has a
//! number of its own.

use crate::workspace::Member;
use crate::{Finding, Tree, extension_of};
use std::collections::BTreeSet;

/// The document that names every folder at the root and every crate.
const MAP: &str = "ARCHITECTURE.md";

/// Links that lead nowhere, folders that the map lacks or invents, and sections that are numbered wrongly.
pub fn check(tree: &Tree, members: &[Member]) -> Vec<Finding> {
    let mut findings = links(tree);
    findings.extend(map(tree, members));
    findings.extend(numbers(tree));
    findings
}

/// One line of a document.
struct Line<'a> {
    number: usize,
    text: &'a str,
    fenced: bool,
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(i, text)| {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        Some(Line { number: i + 1, text, fenced })
    })
}

/// The pieces of a line outside and inside its `code spans`, in turn, the outside first.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`')
}

fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        for line in lines(text).filter(|line| !line.fenced) {
            for target in targets(line.text) {
                if let Some(what) = broken(tree, path, target) {
                    findings.push(Finding::at(path, line.number, what));
                }
            }
        }
    }
    findings
}

/// Where the links of a line lead, images and reference definitions among them.
fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    // Link text may hold code; a target never does.
    for (i, _) in line.match_indices("](") {
        let in_code = line[..i].matches('`').count() % 2 == 1;
        if let Some(end) = line[i + 2..].find(')').filter(|_| !in_code) {
            targets.push(&line[i + 2..i + 2 + end]);
        }
    }
    if let Some((label, target)) = line.trim_start().strip_prefix('[').and_then(|l| l.split_once("]: "))
        && !label.contains(']')
    {
        targets.push(target);
    }
    targets
        .into_iter()
        .filter_map(|t| t.split_whitespace().next())
        .map(|t| t.trim_matches(['<', '>']))
        .collect()
}

fn broken(tree: &Tree, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(f, h)| (f, Some(h)));
    let path = if file.is_empty() { Some(from.to_owned()) } else { resolve(from, file) };
    let Some(path) = path.filter(|p| tree.exists(p)) else {
        return Some(format!("the link leads nowhere: {target}"));
    };
    let heading = heading.filter(|_| extension_of(&path) == Some("md"))?;
    let known = headings(tree.text(&path).unwrap_or_default());
    (!known.contains(heading)).then(|| format!("{path} has no heading #{heading}"))
}

/// The path from the root that `target` means in the document `from`; none when it leaves the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchors that the usual renderers give a document's headings.
fn headings(text: &str) -> BTreeSet<String> {
    lines(text)
        .filter(|line| !line.fenced && line.text.starts_with('#'))
        .map(|line| {
            let title = line.text.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|&c| c.is_alphanumeric() || "-_ ".contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Headings of the second level, such as `## 3. Sessions`, that do not count: what refers to a section by its number would find another.
fn numbers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension("md") {
        let mut next = 1;
        for line in lines(text).filter(|line| !line.fenced) {
            let number = line.text.strip_prefix("## ").and_then(|title| title.split_once(". "));
            let Some(Ok(number)) = number.map(|(number, _)| number.parse::<u32>()) else { continue };
            if number != next {
                findings.push(Finding::at(
                    path,
                    line.number,
                    format!("section {number} stands where {next} is due"),
                ));
            }
            next = number + 1;
        }
    }
    findings
}

fn map(tree: &Tree, members: &[Member]) -> Vec<Finding> {
    let Some(text) = tree.text(MAP) else {
        return vec![Finding::of_file(MAP, "is missing: a newcomer reads it first")];
    };
    let named = named_paths(text);
    let mut findings = Vec::new();
    for (line, path) in &named {
        if !tree.exists(path.trim_end_matches('/')) {
            findings.push(Finding::at(MAP, *line, format!("names {path}, which does not exist")));
        }
    }
    let folders = tree.top_folders().chain(members.iter().map(|m| m.folder.as_str()));
    for folder in folders.collect::<BTreeSet<_>>() {
        if !named.iter().any(|(_, path)| path.trim_end_matches('/') == folder) {
            findings.push(Finding::of_file(MAP, format!("does not name the folder {folder}/")));
        }
    }
    findings
}

/// The folders and files that a document names by their paths from the root: `code spans` that end in
/// a slash or look like a source file in a folder, and the entries of an indented listing in a fence.
fn named_paths(text: &str) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    let mut open: Vec<(usize, &str)> = Vec::new(); // the folders that a listing is inside of
    for line in lines(text) {
        if !line.fenced {
            open.clear();
            let inside = spans(line.text).skip(1).step_by(2);
            named.extend(inside.filter(|s| is_path(s)).map(|s| (line.number, s.to_owned())));
            continue;
        }
        let entry = line.text.trim_start_matches([' ', '│', '├', '└', '─']);
        let indent = line.text.chars().count() - entry.chars().count();
        let word = entry.split_whitespace().next().unwrap_or_default();
        if is_path(word) && word.ends_with('/') {
            open.retain(|(outer, _)| *outer < indent);
            open.push((indent, word));
            named.push((line.number, open.iter().map(|(_, folder)| *folder).collect()));
        }
    }
    named
}

fn is_path(text: &str) -> bool {
    let relative = text.len() > 1 && !text.starts_with(['/', '-']) && text.contains('/');
    let plain = text.chars().all(|c| c.is_alphanumeric() || "._-/".contains(c));
    let source = extension_of(text).is_some_and(|e| ["rs", "c", "h", "py", "sh", "md", "toml"].contains(&e));
    relative && plain && (text.ends_with('/') || source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        links(&Tree::of(files)).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn links_resolve_from_their_own_folder() {
        let target = ("b/c.md", "# The One `x`: two\n");
        for good in ["b/c.md", "./b", "b/c.md#the-one-x-two", "https://example.org/x", "#here"] {
            let doc = format!("# Here\n[`a`]({good} \"title\")\n");
            assert!(found(&[("a.md", &doc), target]).is_empty(), "{good}");
        }
        for bad in ["c.md", "../b/c.md", "b/c.md#the-two", "#there", "/b/c.md.bak"] {
            let doc = format!("# Here\n[a]({bad})\n");
            assert_eq!(found(&[("a.md", &doc), target]).len(), 1, "{bad}");
        }
        assert!(found(&[("b/d.md", "[up](../a.md) [down](c.md)"), target, ("a.md", "")]).is_empty());
        assert_eq!(found(&[("a.md", "[x]: gone.md")]), ["a.md:1: the link leads nowhere: gone.md"]);
    }

    #[test]
    fn code_holds_no_links() {
        assert!(found(&[("a.md", "`[a](gone.md)`\n```\n[a](gone.md)\n```\n")]).is_empty());
    }

    #[test]
    fn numbered_sections_count() {
        let numbers = |text| numbers(&Tree::of(&[("a.md", text)])).len();
        assert_eq!(
            numbers("## 1. A\n## Between\n## 2. B\n```\n## 9. no heading\n```\n### 7. C\n## 3. D\n"),
            0
        );
        assert_eq!(numbers("## 1. A\n## 2. B\n## 2. C\n"), 1);
        assert_eq!(numbers("## 1. A\n## 3. B\n## 4. C\n"), 1);
        assert_eq!(numbers("## 2. A\n"), 1);
    }

    fn mapped(document: &str) -> Vec<String> {
        let tree = Tree::of(&[(MAP, document), ("a/b/c.rs", ""), ("d/e.rs", "")]);
        let member = Member { folder: "a/b".to_owned(), uses: Vec::new(), roots: Vec::new() };
        map(&tree, &[member]).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn the_map_names_what_there_is() {
        assert!(mapped("`a/` and `a/b/`, then `d/` with `d/e.rs`").is_empty());
        assert!(mapped("```text\na/      x\n  b/    y\nd/\n```").is_empty());
        assert!(mapped("```\na/\n├── b/ y\nd/\n```").is_empty());
        assert_eq!(mapped("`a/`, `a/b/`"), ["ARCHITECTURE.md: does not name the folder d/"]);
        assert_eq!(mapped("`a/`, `d/`"), ["ARCHITECTURE.md: does not name the folder a/b/"]);
        assert_eq!(mapped("`a/` `a/b/` `d/` `f/`"), ["ARCHITECTURE.md:1: names f/, which does not exist"]);
        assert_eq!(mapped("`a/` `a/b/` `d/` `d/f.rs`").len(), 1);
        assert_eq!(mapped("```\na/\n  b/\n  d/\n```").len(), 2);
    }

    #[test]
    fn a_missing_map_is_found() {
        assert_eq!(map(&Tree::of(&[("a/b.rs", "")]), &[]).len(), 1);
    }
}
