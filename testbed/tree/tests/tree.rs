//! Every rule, applied to the repository that this crate stands in.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use tree_test::workspace::{self, Member};
use tree_test::{Finding, Tree, ratchet, rules};

/// The repository's root. Cargo's word at run time comes first: two clones that share one target folder
/// share the binary, and each wants its own tree judged.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).join("../..").canonicalize().expect("the root")
}

fn tree() -> Tree {
    let tree = Tree::read(&root()).expect("the files of the repository");
    // A listing that missed most files would let everything pass.
    for known in ["Cargo.toml", "Makefile", "testbed/tree/src/lib.rs"] {
        assert!(tree.exists(known), "{known} is not in the listing");
    }
    tree
}

fn members() -> Vec<Member> {
    let members = workspace::members(&root()).expect("the workspace");
    assert!(members.iter().any(|m| m.folder == "testbed/tree"), "this crate is no member: {members:?}");
    members
}

fn none(mut findings: Vec<Finding>) {
    findings.sort();
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings:\n{}\n", findings.len(), lines.join("\n"));
}

#[test]
fn crates_use_only_the_layers_below_them() {
    none(rules::layers::check(&members()));
}

#[test]
fn manifests_inherit_from_the_workspace() {
    none(rules::manifests::check(&tree(), &members()));
}

#[test]
fn every_source_file_is_compiled() {
    none(rules::modules::check(&tree(), &members()));
}

#[test]
fn unsafe_code_stands_only_where_it_may_and_gives_its_reason() {
    none(rules::unsafety::check(&tree(), &members()));
}

#[test]
fn protocol_crates_do_no_io() {
    none(rules::sans_io::check(&tree()));
}

#[test]
fn files_and_functions_keep_within_their_lengths() {
    none(ratchet::check(&tree()));
}

#[test]
fn no_unfinished_work_no_machine_paths_no_registries() {
    none(rules::words::check(&tree()));
}

#[test]
fn documents_name_what_exists() {
    none(rules::documents::check(&tree(), &members()));
}
