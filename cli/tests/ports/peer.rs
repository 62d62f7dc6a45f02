//! `doctor --peer`: the way to another host.

use crate::run::{LIMIT, Side, bridged, json};
use rustix::process::Signal;
use serde_json::Value;
use testbed_net::allowed;

const PORT: &str = "net_af_packet0,iface=e0";

/// Level and text of the one finding of a check.
fn finding<'a>(report: &'a Value, check: &str) -> (&'a str, &'a str) {
    let all = report["findings"].as_array().unwrap();
    let found: Vec<_> = all.iter().filter(|f| f["check"] == check).collect();
    assert_eq!(found.len(), 1, "{check}: {report:#}");
    (found[0]["level"].as_str().unwrap(), found[0]["found"].as_str().unwrap())
}

#[test]
fn doctor_measures_the_way_to_a_peer() {
    if !allowed("doctor_measures_the_way_to_a_peer") {
        return;
    }
    let [a, middle, b] = bridged();
    let here = Side { namespace: &a, port: PORT, ips: &["10.9.0.1/24", "fd77::1/64"] };
    let there = Side { namespace: &b, port: PORT, ips: &["10.9.0.2/24", "fd77::2/64"] };
    let doctor = |peer: &str, more: &str| {
        let ended = here.start(&format!("doctor --peer {peer} --json {more}")).end(LIMIT);
        (ended.code(), json(&ended.out))
    };
    // A server of ours, and a wide path.
    let server = there.server("bw --mtu 1500");
    for peer in ["10.9.0.2", "fd77::2"] {
        let (_, report) = doctor(peer, "--mtu 1500");
        assert_eq!(finding(&report, "peer").0, "ok", "{report:#}");
        assert!(finding(&report, "peer").1.contains("an IB MTU of 1024"), "{report:#}");
        assert_eq!(finding(&report, "path").0, "ok", "{report:#}");
    }
    // The port here is wider than that.
    let (code, report) = doctor("10.9.0.2", "");
    assert_eq!(finding(&report, "peer").0, "warning", "{report:#}");
    assert!(finding(&report, "peer").1.contains("IB MTU of 1024, here it is 4096"), "{report:#}");
    assert_eq!((finding(&report, "path").0, code), ("problem", Some(1)), "{report:#}");
    server.signal(Signal::INT);
    server.end(LIMIT);
    // The kernel, behind a bridge one of whose ports is narrow.
    b.address("e0", "10.9.0.2/24");
    middle.ip("link set r0 mtu 2000");
    let (code, report) = doctor("10.9.0.2", "");
    assert_eq!(finding(&report, "peer").0, "note", "{report:#}");
    let (level, found) = finding(&report, "path");
    assert_eq!((level, code), ("problem", Some(1)), "{report:#}");
    let passes: u32 = found.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    // Some kernels leave room for a VLAN tag.
    assert!((2000..=2004).contains(&passes) && found.contains("needs 4172"), "{found}");
    let (code, report) = doctor("10.9.0.77", "");
    assert_eq!((finding(&report, "peer").0, code), ("problem", Some(1)), "{report:#}");
}
