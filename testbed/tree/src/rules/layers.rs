//! Which member of the workspace may use which: `fec ← roce-proto ← {testbed, dataplane} ← cli`.
//!
//! The transport stays free of IO because nothing that does IO is within its reach, and DPDK stays
//! replaceable because of the layers only the data plane can name it. Programs start its environment.

use crate::Finding;
use crate::workspace::{Member, Use};

/// A member, the members that what it builds may use, and those that its tests may use besides.
struct Layer {
    folder: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
}

const fn layer(
    folder: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
) -> Layer {
    Layer { folder, uses, tests_use }
}

/// Every layer that there is or is planned; a member that stands in none of them is refused, so that a
/// new crate's place is decided and not found out.
const LAYERS: &[Layer] = &[
    layer("fec", &[], &[]),
    layer("roce-proto", &["fec"], &[]),
    layer("testbed", &["fec", "roce-proto"], &[]),
    layer("testbed/tree", &[], &[]),
    layer("testbed/net", &[], &[]),
    layer("testbed/hostile", &[], &[]),
    layer("testbed/impair", &["roce-proto"], &[]),
    layer("testbed/sim", &["fec", "roce-proto", "testbed/impair"], &[]),
    layer("dataplane/dpdk-sys", &[], &[]),
    layer("dataplane/dpdk", &["dataplane/dpdk-sys"], &[]),
    layer("dataplane", &["fec", "roce-proto", "dataplane/dpdk"], &["testbed"]),
    // The command starts DPDK's environment, which is one for the process and so the business of whoever
    // has `main`; packets it moves through the data plane only.
    layer(
        "cli",
        &["fec", "roce-proto", "testbed", "testbed/impair", "testbed/sim", "dataplane", "dataplane/dpdk"],
        // The command runs programs with the verbs library preloaded: its tests need that built.
        &["testbed/net", "testbed/hostile", "bindings/verbs"],
    ),
    // The bare loops that our figures are held against use the port without our layers.
    layer(
        "benches",
        &["fec", "roce-proto", "testbed", "testbed/net", "dataplane", "dataplane/dpdk", "dataplane/dpdk-sys"],
        &["cli"],
    ),
];
/// Language bindings: each is a thin layer over the endpoint.
const BINDING: Layer = layer("bindings/", &["roce-proto", "dataplane"], &["testbed", "testbed/net"]);

/// The uses that no layer allows, and the members without a layer.
pub fn check(members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let manifest = format!("{}/Cargo.toml", member.folder);
        let Some(layer) = layer_of(&member.folder) else {
            let what =
                "no layer is known for this crate: decide its place in testbed/tree/src/rules/layers.rs";
            findings.push(Finding::of_file(&manifest, what));
            continue;
        };
        for (used, kind) in &member.uses {
            let used = used.as_str();
            let allowed = layer.uses.contains(&used)
                || (*kind == Use::Test && layer.tests_use.contains(&used))
                || used == member.folder;
            if !allowed {
                let how = if *kind == Use::Test { "its tests use" } else { "it uses" };
                findings.push(Finding::of_file(&manifest, format!("{how} {used}, against the layering")));
            }
        }
    }
    findings
}

fn layer_of(folder: &str) -> Option<&'static Layer> {
    if folder.starts_with(BINDING.folder) {
        return Some(&BINDING);
    }
    LAYERS.iter().find(|layer| layer.folder == folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folder: &str, used: &str, kind: Use) -> Vec<String> {
        let uses = vec![(used.to_owned(), kind)];
        let member = Member { folder: folder.to_owned(), uses, roots: Vec::new() };
        check(&[member]).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn the_direction_is_kept() {
        for (user, used) in [
            ("roce-proto", "fec"),
            ("dataplane", "roce-proto"),
            ("cli", "dataplane"),
            ("bindings/c", "dataplane"),
        ] {
            assert!(found(user, used, Use::Build).is_empty(), "{user} uses {used}");
            assert_eq!(found(used, user, Use::Build).len(), 1, "{used} uses {user}");
        }
    }

    #[test]
    fn of_the_layers_only_the_data_plane_knows_dpdk() {
        for user in ["roce-proto", "fec", "testbed", "bindings/c"] {
            for used in ["dataplane/dpdk", "dataplane/dpdk-sys"] {
                assert_eq!(found(user, used, Use::Build).len(), 1, "{user} uses {used}");
                assert_eq!(found(user, used, Use::Test).len(), 1, "{user} tests {used}");
            }
        }
        for user in ["dataplane", "cli"] {
            assert!(found(user, "dataplane/dpdk", Use::Build).is_empty(), "{user}");
            assert_eq!(found(user, "dataplane/dpdk-sys", Use::Build).len(), 1, "{user}");
        }
    }

    #[test]
    fn what_tests_may_use_the_build_may_not() {
        assert!(found("dataplane", "testbed", Use::Test).is_empty());
        let build = found("dataplane", "testbed", Use::Build);
        assert_eq!(build, ["dataplane/Cargo.toml: it uses testbed, against the layering"]);
    }

    #[test]
    fn a_crate_without_a_layer_is_refused() {
        assert!(found("util", "fec", Use::Build)[0].contains("no layer is known"));
    }
}
