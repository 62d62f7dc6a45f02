//! Neighbours from the kernel's table.

use crate::run::{LIMIT, Side, json, messages_arrive};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use testbed_net::{Namespace, Veth, allowed, eventually, veth};

#[test]
fn the_kernel_resolves_neighbours_where_that_is_asked_for() {
    if !allowed("the_kernel_resolves_neighbours_where_that_is_asked_for") {
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth::default());
    // The kernel asks from an address of its own.
    a.address("e0", "10.9.0.10/24");
    a.address("e0", "fd77::10/64");
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.9.0.1/24", "fd77::1/64"] };
    let there = Side { namespace: &b, port, ips: &["10.9.0.2/24", "fd77::2/64"] };
    let from_kernel = |side: &Side, ip: &str, more: &str| {
        side.start(&format!("ud send {ip} --qpn 0x123456 -n 3 --neighbour-from kernel {more}")).end(LIMIT)
    };
    for ip in ["10.9.0.2", "fd77::2"] {
        let recv = there.receiver("-t 50 -n 3 --qpn 0x123456");
        from_kernel(&here, ip, "").ok();
        recv.end(LIMIT).ok();
        let known = a.ip(&format!("neigh show to {ip} dev e0"));
        assert!(known.contains(&b.mac("e0")), "{known}");
    }
    // What stands in the table counts, not what is on the wire. Not earlier: as the port starts, DPDK sets the MAC address of
    // the interface to what it is, upon which the kernel forgets the neighbours there.
    let mut send = here.start("ud send 10.9.0.7 --qpn 2 -n 3 --neighbour-from kernel --wait 20 -v");
    send.wait_for("10.9.0.7 is reached from 10.9.0.1", LIMIT);
    a.ip("neigh replace 10.9.0.7 lladdr 02:00:00:00:00:07 dev e0 nud permanent");
    send.end(LIMIT).ok();
    assert!(a.ip("neigh show to 10.9.0.7 dev e0").contains("PERMANENT"), "it is left as it was");
    let silent = from_kernel(&here, "10.9.0.8", "--wait 1500ms");
    assert_eq!(silent.code(), Some(1));
    // And without the flag, the wire does.
    messages_arrive(&here, &there, 64, 3);
}

/// Two stations with one address: each is told, and so is whoever looks at the counters.
#[test]
fn an_address_that_another_station_has_is_told_to_both() {
    if !allowed("an_address_that_another_station_has_is_told_to_both") {
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth::default());
    let port = "net_af_packet0,iface=e0";
    let first = Side { namespace: &a, port, ips: &["10.9.0.1", "fd77::1"] }.receiver("-t 60 --json");
    let mut second =
        Side { namespace: &b, port, ips: &["10.9.0.1", "fd77::2"] }.start("ud recv -t 60 --json");
    let warning = second.wait_for("claims 10.9.0.1", LIMIT);
    assert!(warning.contains("WARN") && warning.contains(&a.mac("e0")), "{warning}");
    let told = || first.said()[1].contains(&format!("{} claims 10.9.0.1", b.mac("e0")));
    assert!(eventually(LIMIT, told), "{:?}", first.said());
    for end in [first, second] {
        end.signal(Signal::INT);
        let report = json(&end.end(LIMIT).out);
        let dropped = report["counters"]["dropped"]["duplicate_address"].as_u64();
        assert!(dropped.is_some_and(|n| (1..20).contains(&n)), "{report:#}");
    }
}

/// A station that comes back with another MAC address says so, and who sends to it follows at once: long before it would ask again.
#[test]
fn a_peer_that_comes_back_with_another_mac_address_is_followed() {
    if !allowed("a_peer_that_comes_back_with_another_mac_address_is_followed") {
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth::default());
    let port = "net_af_packet0,iface=e0";
    for (ours, theirs) in [("10.9.0.1", "10.9.0.2"), ("fd77::1", "fd77::2")] {
        let send = Side { namespace: &a, port, ips: &[ours] }
            .start(&format!("ud send {theirs} --qpn 0x31313 -n 100k --interval 5ms --wait 60"));
        let there = Side { namespace: &b, port, ips: &[theirs] };
        there.run("ud recv -t 60 -n 10 --qpn 0x31313").ok();
        let moved = if ours.contains(':') { "02:00:00:00:00:66" } else { "02:00:00:00:00:44" };
        b.ip(&format!("link set dev e0 address {moved}"));
        let mut recv = there.start("ud recv -t 60 -n 10 --qpn 0x31313");
        assert!(recv.wait_for("READY", LIMIT).contains(moved));
        let start = Instant::now();
        recv.end(LIMIT).ok();
        // What is known of a neighbour is not doubted for fifteen seconds at least (RFC 4861, 10).
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        send.signal(Signal::INT);
        assert_eq!(send.end(LIMIT).code(), Some(130));
    }
}
