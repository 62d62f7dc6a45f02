//! `net_af_packet` over interfaces of the kernel.

use crate::run::{LIMIT, Side, bridged, bw, json, messages_arrive};
use std::time::{Duration, Instant};
use testbed_net::{Namespace, Process, Veth, allowed, veth};

const PORT: &str = "net_af_packet0,iface=e0";
const HERE: &[&str] = &["10.9.0.1", "fd77::1"];
const THERE: &[&str] = &["10.9.0.2", "fd77::2"];

/// Two namespaces with a pair of interfaces between them.
fn pair(mtu: u32) -> [Namespace; 2] {
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth { mtu, ..Veth::default() });
    [a, b]
}

fn sides(namespaces: &[Namespace; 2]) -> [Side<'_>; 2] {
    let [a, b] = namespaces;
    [Side { namespace: a, port: PORT, ips: HERE }, Side { namespace: b, port: PORT, ips: THERE }]
}

#[test]
fn over_a_veth_pair() {
    if !allowed("over_a_veth_pair") {
        return;
    }
    let net = pair(1500);
    let [here, there] = sides(&net);
    messages_arrive(&here, &there, 1024, 50);
    let result = bw(&here, &there, "-n 2k -s 1024 --rate 1kpps");
    let way = &result["client_to_server"];
    let counts = [&way["sent"], &way["received"], &way["lost"]];
    assert_eq!(counts, [2000, 2000, 0], "{result:#}");
    assert_eq!(result["link_lost"], 0);
}

#[test]
fn the_largest_messages_cross_a_bridge() {
    if !allowed("the_largest_messages_cross_a_bridge") {
        return;
    }
    let [a, middle, b] = bridged();
    let here = Side { namespace: &a, port: PORT, ips: HERE };
    let there = Side { namespace: &b, port: PORT, ips: THERE };
    for size in [4096, 0, 4093] {
        messages_arrive(&here, &there, size, 20);
    }
    let result = bw(&here, &there, "-n 1k --rate 500pps");
    assert_eq!(
        (&result["size"], &result["client_to_server"]["received"]),
        (&4096.into(), &1000.into()),
        "{result:#}"
    );
    assert!(middle.counter("r0", "tx_packets") >= 1060);
}

/// What the kernel would drop without a word is refused at the start, with the way out.
#[test]
fn an_mtu_that_the_kernel_does_not_have_is_refused() {
    if !allowed("an_mtu_that_the_kernel_does_not_have_is_refused") {
        return;
    }
    let net = pair(1500);
    let [here, there] = sides(&net);
    let refused = here.run("ud recv -t 1 --mtu 4200");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    for words in ["an MTU of 4200", "interface e0 has 1500", "ip link set dev e0 mtu 4200"] {
        assert!(refused.err.contains(words), "{words} in {}", refused.err);
    }
    // It says 1024 of itself, and holds to it.
    let mut recv = here.start("ud recv -t 50 -n 1");
    assert!(recv.wait_for("READY", LIMIT).ends_with(" mtu 1024\n"));
    let refused = there.run("ud send 10.9.0.1 --qpn 0x10000 -s 1025");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.err.contains("1025 bytes"), "{}", refused.err);
    // A smaller one is taken, and the kernel's stays.
    let mut small = there.start("ud recv -t 50 --mtu 700");
    assert!(small.wait_for("READY", LIMIT).ends_with(" mtu 512\n"));
    assert_eq!(there.namespace.sh("cat /sys/class/net/e0/mtu"), "1500\n");
    // Rings that the user made too small.
    let port = "net_af_packet0,iface=e0,framesz=1024,blocksz=4096";
    let refused = Side { port, ..sides(&net)[1] }.run("ud recv -t 1");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.err.contains("framesz="), "{}", refused.err);
}

#[test]
fn a_transfer_outlives_a_link_that_goes_down_and_up() {
    if !allowed("a_transfer_outlives_a_link_that_goes_down_and_up") {
        return;
    }
    let net = pair(1500);
    let [here, there] = sides(&net);
    let recv = here.receiver("-t 50 --json --qpn 0x20000 -v");
    let mut send =
        there.start("ud send 10.9.0.1 --qpn 0x20000 -n 4k --rate 1kpps -s 256 --json -v --wait 20");
    send.wait_for("has MAC address", LIMIT);
    std::thread::sleep(Duration::from_millis(800));
    here.namespace.set_up("e0", false);
    std::thread::sleep(Duration::from_millis(800));
    here.namespace.set_up("e0", true);
    let sent = send.end(LIMIT);
    assert!(sent.err.contains("the link is down") && sent.err.contains("the link is up"), "{}", sent.err);
    let sent = json(&sent.ok());
    recv.signal(rustix::process::Signal::INT);
    let received = json(&recv.end(LIMIT).out);
    for (side, report) in [("sender", &sent), ("receiver", &received)] {
        let counters = &report["counters"];
        assert_eq!(
            (&counters["link_lost"], &counters["link_back"]),
            (&1.into(), &1.into()),
            "{side}: {report:#}"
        );
    }
    let arrived = received["summary"]["messages"].as_u64().unwrap();
    // Some may be lost while it was down (the kernel keeps what its ring holds); before and after, nothing is.
    assert!((2000..=4000).contains(&arrived), "{arrived}");
    let last = received["results"].as_array().unwrap().last().unwrap()["time_ns"].as_u64().unwrap();
    assert!(last > 3_000_000_000, "none after the link was back: {last}");
}

#[test]
fn an_interface_that_is_removed_ends_the_command() {
    if !allowed("an_interface_that_is_removed_ends_the_command") {
        return;
    }
    for command in ["bw", "lat --service ud --worker thread", "ud recv", "send", "bw client"] {
        let net = pair(1500);
        let [here, there] = sides(&net);
        let process = match command {
            "ud recv" => here.receiver(""),
            "send" => {
                let mut send =
                    here.start("ud send 10.9.0.2 --dmac 02:00:00:00:00:01 --qpn 2 -n 1M --rate 1kpps -v");
                send.wait_for("has MAC address", LIMIT);
                send
            }
            "bw client" => {
                let server = there.server("bw");
                let mut client = here.start("bw 10.9.0.2 -D 30 --rate 1kpps -vv");
                client.wait_for("port", LIMIT);
                std::thread::sleep(Duration::from_secs(1));
                drop(server);
                client
            }
            server => here.server(server),
        };
        std::thread::sleep(Duration::from_millis(500));
        here.namespace.delete("e0");
        let start = Instant::now();
        let ended = process.end(LIMIT);
        assert!(start.elapsed() < Duration::from_secs(10), "{command}: {:?}", start.elapsed());
        assert_eq!(ended.code(), Some(1), "{command}: {ended:?}");
        assert!(ended.err.contains("the port is gone"), "{command}: {ended:?}");
    }
}

#[test]
fn an_interface_that_is_down_is_said_to_be() {
    if !allowed("an_interface_that_is_down_is_said_to_be") {
        return;
    }
    let net = pair(1500);
    let [here, _] = sides(&net);
    here.namespace.set_up("e0", false);
    let failed = here.run("ud send 10.9.0.2 --qpn 2 --wait 500ms");
    assert_eq!(failed.code(), Some(1), "{failed:?}");
    assert!(failed.err.contains("ip link set dev e0 up"), "{}", failed.err);
}

/// The driver's fanout group has a number made of process and interface, which the port of another process may have.
#[test]
fn two_ports_whose_fanout_groups_have_one_number_are_told_what_to_do() {
    if !allowed("two_ports_whose_fanout_groups_have_one_number_are_told_what_to_do") {
        return;
    }
    let net = pair(1500);
    let [here, _] = sides(&net);
    let recv = here.receiver("-t 50");
    // One that starts when it has the interface which, with its own process id, makes the same number.
    let mut waits = here.namespace.command("sh");
    waits.args(["-c", "until ip link show up 2>&1 | grep -q late; do sleep 0.1; done; exec \"$@\"", "sh"]);
    waits.args([env!("CARGO_BIN_EXE_spraywire"), "ud", "recv", "-t", "1", "--ip", "10.9.0.3"]);
    let waits = Process::start(waits.args(["--port", "net_af_packet0,iface=late"]).env_remove("RUST_LOG"));
    let e0 = here.namespace.sh("cat /sys/class/net/e0/ifindex").trim().parse::<u32>().unwrap();
    let index = (recv.id() ^ e0 ^ waits.id()) & 0xffff | 0x1_0000;
    here.namespace.ip(&format!("link add name late index {index} type veth peer name peer"));
    here.namespace.set_up("late", true);
    let refused = waits.end(LIMIT);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    for words in ["Invalid argument", "another process", "start this one again", "ip link set dev late netns"]
    {
        assert!(refused.err.contains(words), "{words} in {}", refused.err);
    }
    assert!(!refused.err.contains("not permitted"), "{}", refused.err);
}
