//! Ways through a network: a routed hop, and VLANs.

use crate::run::{LIMIT, Side, bridged, bw, in_a_row, json, messages_arrive};
use testbed_net::allowed;

#[test]
fn the_largest_messages_cross_a_routed_hop() {
    if !allowed("the_largest_messages_cross_a_routed_hop") {
        return;
    }
    let [a, router, b] = in_a_row();
    for (interface, addresses) in
        [("l0", ["10.1.0.254/24", "fd01::fe/64"]), ("r0", ["10.2.0.254/24", "fd02::fe/64"])]
    {
        for address in addresses {
            router.address(interface, address);
        }
    }
    router.forward();
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.1.0.1/24", "fd01::1/64"] };
    let there = Side { namespace: &b, port, ips: &["10.2.0.2/24", "fd02::2/64"] };
    let (left, right) =
        ("--gateway 10.1.0.254 --gateway fd01::fe", "--gateway 10.2.0.254 --gateway fd02::fe");
    for ip in ["10.2.0.2", "fd02::2"] {
        let recv = there.receiver(&format!("{right} --qpn 0x44444 -n 20 -t 50 --verify incr"));
        here.run(&format!("ud send {ip} {left} --qpn 0x44444 -s 4096 -n 20 --rate 1kpps --linger 200ms"))
            .ok();
        let text = recv.end(LIMIT).ok();
        assert!(text.contains("20 messages received, 81920 bytes, 0 not as expected\n"), "{text}");
    }
    // The router checked every IP checksum, and forwarded them all.
    assert!(router.counter("r0", "tx_packets") >= 40);
    let server = there.server(&format!("bw --service ud {right}"));
    let report = json(&here.run(&format!("bw 10.2.0.2 --service ud {left} -n 1k --rate 500pps --json")).ok());
    server.end(LIMIT).ok();
    let way = &report["results"][0]["client_to_server"];
    assert_eq!((&report["results"][0]["size"], &way["received"]), (&4096.into(), &1000.into()), "{report:#}");
    // Without a way there, it says so.
    let lost = here.run("ud send 10.2.0.2 --qpn 2");
    assert_ne!(lost.code(), Some(0));
    assert!(lost.err.contains("--gateway"), "{}", lost.err);
}

#[test]
fn a_vlan_is_seen_by_its_own_members_only() {
    if !allowed("a_vlan_is_seen_by_its_own_members_only") {
        return;
    }
    let [a, _bridge, b] = bridged();
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.9.0.1", "fd77::1"] };
    let there = Side { namespace: &b, port, ips: &["10.9.0.2", "fd77::2"] };
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("tagged.pcap");
    for ip in ["10.9.0.2", "fd77::2"] {
        let recv = there.receiver("--vlan 42 --qpn 0x55555 -n 10 -t 50 --verify incr");
        let args = format!(
            "ud send {ip} --vlan 42 --qpn 0x55555 -s 4096 -n 10 --rate 1kpps --pcap {}",
            pcap.display()
        );
        here.run(&args).ok();
        let text = recv.end(LIMIT).ok();
        assert!(text.contains("10 messages received, 40960 bytes, 0 not as expected\n"), "{text}");
        let report = json(&here.run_bare(&format!("inspect --json {}", pcap.display())).ok());
        for packet in report["results"].as_array().unwrap() {
            assert_eq!(packet["vlans"][0]["vid"], 42, "{packet:#}");
            assert_eq!(packet["icrc"]["status"], "ok", "{packet:#}");
        }
        assert_eq!(report["results"].as_array().unwrap().len(), 10);
    }
    // Another VLAN, and none: nobody answers, and what comes is counted.
    for other in ["--vlan 43", ""] {
        let recv = there.receiver("--vlan 42 --qpn 0x55555 -n 1 -t 4 --json");
        here.run(&format!("ud send 10.9.0.2 {other} --dmac {} --qpn 0x55555 -n 5", b.mac("e0"))).ok();
        let report = json(&recv.end(LIMIT).out);
        // The sender also asks for and announces its two addresses, and announces them again if it runs for two seconds.
        let dropped = report["counters"]["dropped"]["vlan"].as_u64().unwrap();
        assert!(matches!(dropped, 9 | 11), "{other}: {:#}", report["counters"]);
        assert_eq!(report["counters"]["rx_packets"], dropped);
    }
    // Without a VLAN of its own a port takes every tag, and its answers carry it.
    messages_arrive(&here, &there, 1024, 5);
    let result = bw(&here, &there, "-n 100 --rate 500pps");
    assert_eq!(result["client_to_server"]["received"], 100, "{result:#}");
}
