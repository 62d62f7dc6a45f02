//! UDP source ports, by which a network spreads flows: tshark reads them from captures.

use crate::ends::{End, command, json, next_socket, results, run, shared};
use std::collections::BTreeSet;
use std::path::Path;

/// The source ports of what `ip` sent to other hosts, of packets that `filter` lets through.
fn ports(pcap: &Path, ip: &str, filter: &str) -> BTreeSet<u16> {
    let filter = format!("ip.src == {ip} && udp.dstport == 4791 && {filter}");
    let args = ["-n", "-r", pcap.to_str().unwrap(), "-Y", &filter, "-T", "fields", "-e", "udp.srcport"];
    let output = run("tshark", &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|port| port.parse().unwrap()).collect()
}

/// Runs a test in both directions; the ports of both sides, the server's first.
fn ports_of(server: &str, client: &str, filter: &str) -> [BTreeSet<u16>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let [of_server, of_client] = ["server.pcap", "client.pcap"].map(|name| folder.path().join(name));
    let socket = next_socket();
    let server = End::server(socket, &format!("{server} --pcap {}", of_server.display()));
    let client =
        json(&End::client(socket, &format!("{client} -b --json --pcap {}", of_client.display())).ok());
    server.ok();
    assert_eq!(results(&client)[0]["client_to_server"]["lost"], 0);
    // Each side's own capture and the other's say the same.
    let seen = [("10.0.0.1", &of_client, &of_server), ("10.0.0.2", &of_server, &of_client)];
    seen.map(|(ip, there, here)| {
        let ports = ports(here, ip, filter);
        assert_eq!(ports, self::ports(there, ip, filter), "{ip}");
        ports
    })
}

/// Segments of the reliable service, in full: what is said beside the test, by whichever queue pair, is shorter.
const DATA: &str = "infiniband.bth.opcode == 100 && frame.len > 4000";

#[test]
fn each_path_has_a_source_port_of_its_own_in_the_range() {
    let _turn = shared();
    let [server, client] = ports_of(
        "default bw --paths 8 --entropy-range 0x400-0x407",
        "default bw 10.0.0.1 --paths 8 --entropy-range 60000-60099 -n 40 -s 100k",
        DATA,
    );
    assert_eq!(server, (0x400..=0x407).collect(), "as many ports as paths: all of them");
    assert_eq!(client.len(), 8, "{client:?}");
    assert!(client.iter().all(|port| (60_000..=60_099).contains(port)), "{client:?}");
    // And by default those that Linux draws from.
    let [server, client] =
        ports_of("default bw --paths 4", "default bw 10.0.0.1 --paths 4 -n 40 -s 100k", DATA);
    for ports in [server, client] {
        assert_eq!(ports.len(), 4, "{ports:?}");
        assert!(ports.iter().all(|port| *port >= 49_152), "{ports:?}");
    }
}

/// Control packets, what is sent by further queue pairs to further peers, and what only answers.
#[test]
fn no_packet_of_any_kind_leaves_from_outside_the_range() {
    let _turn = shared();
    let [server, client] = ports_of(
        "default bw --paths 2 --entropy-range 9000-9063",
        "default bw 10.0.0.1 --paths 2 --peers 12 --entropy-range 61000-61063 -n 100 -s 20k",
        "udp",
    );
    for (ports, range) in [(server, 9_000..=9_063), (client, 61_000..=61_063)] {
        assert!(ports.iter().all(|port| range.contains(port)), "{ports:?}");
    }
}

#[test]
fn queue_pairs_of_raw_ud_have_source_ports_of_the_range() {
    let _turn = shared();
    let [server, client] = ports_of(
        "bw --entropy-range 5000-5999",
        "bw 10.0.0.1 -q 4 -n 400 -s 64 --rate 10kpps --entropy-range 6000-6000",
        "udp",
    );
    assert!(server.len() >= 4 && server.iter().all(|port| (5_000..=5_999).contains(port)), "{server:?}");
    assert_eq!(client, [6_000].into(), "a range of one is no entropy");
}

#[test]
fn ranges_that_cannot_be_are_refused_before_anything_starts() {
    for (args, why) in [
        ("--entropy-range 60001-60000", "the lower port comes first"),
        ("--entropy-range 0-60000", "port 0"),
        ("--entropy-range 4000-5000", "contains 4791"),
        ("--entropy-range 60000", "write 49152-65535"),
        ("--entropy-range 60000-65536", "write 49152-65535"),
        ("--entropy-range 60000-60002 --paths 4", "4 paths need as many UDP source ports, and there are 3"),
    ] {
        for side in ["default bw", "default lat 10.0.0.1"] {
            let output =
                command("client", next_socket(), ["10.0.0.2", "fd77::2"], &format!("{side} {args}")).output();
            let output = output.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{side} {args}: {errors}");
            assert!(errors.contains(why), "{side} {args}: {errors}");
        }
    }
}
