//! Namespaces, links and processes do what they say, and are gone afterwards.

use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed_net::{Namespace, Process, Veth, allowed, eventually, veth};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn packets_cross_a_pair_a_bridge_and_a_router() {
    if !allowed("packets_cross_a_pair_a_bridge_and_a_router") {
        return;
    }
    let [left, middle, right] = [(); 3].map(|()| Namespace::new());
    let mtu = Veth { mtu: 4200, ..Veth::default() };
    veth((&left, "e0"), (&middle, "l0"), mtu);
    veth((&right, "e0"), (&middle, "r0"), mtu);
    // As a bridge, where the largest packet passes whole.
    left.address("e0", "10.1.0.1/24");
    right.address("e0", "10.1.0.2/24");
    let ping = "ping -q -c 1 -W 5 -M do -s 4172 10.1.0.2";
    assert!(!left.command("ping").args(["-q", "-c", "1", "-W", "1", "10.1.0.2"]).status().unwrap().success());
    middle.bridge("br0", 4200, &["l0", "r0"]);
    left.sh(ping);
    assert!(middle.counter("r0", "tx_packets") >= 1);
    // As a router.
    middle.delete("br0");
    right.ip("address flush dev e0");
    right.address("e0", "10.2.0.2/24");
    right.address("e0", "fd02::2/64");
    left.address("e0", "fd01::1/64");
    for (interface, addresses) in
        [("l0", ["10.1.0.9/24", "fd01::9/64"]), ("r0", ["10.2.0.9/24", "fd02::9/64"])]
    {
        for address in addresses {
            middle.address(interface, address);
        }
    }
    middle.forward();
    for (namespace, v4, v6) in [(&left, "10.1.0.9", "fd01::9"), (&right, "10.2.0.9", "fd02::9")] {
        namespace.ip(&format!("route add default via {v4}"));
        namespace.ip(&format!("-6 route add default via {v6}"));
    }
    left.sh("ping -q -c 1 -W 5 10.2.0.2 && ping -q -c 1 -W 5 fd02::2");
    // And not when the link is down.
    right.set_up("e0", false);
    assert!(!left.command("ping").args(["-q", "-c", "1", "-W", "1", "10.2.0.2"]).status().unwrap().success());
}

#[test]
fn what_is_dropped_is_gone() {
    if !allowed("what_is_dropped_is_gone") {
        return;
    }
    let namespace = Namespace::new();
    let file = format!("/run/netns/{}", namespace.name());
    assert!(Path::new(&file).exists());
    veth((&namespace, "left"), (&namespace, "right"), Veth::default());
    assert!(namespace.has("left") && namespace.has("right") && namespace.mac("left").len() == 17);
    namespace.delete("left");
    assert!(!namespace.has("right"));
    let process = Process::start(namespace.command("sleep").arg("100"));
    let id = process.id();
    let there = || Path::new(&format!("/proc/{id}")).exists();
    assert!(there());
    drop(process);
    assert!(!there());
    drop(namespace);
    assert!(!Path::new(&file).exists());
}

#[test]
fn processes_are_heard_while_they_run() {
    let mut process =
        Process::start(Command::new("sh").args(["-c", "echo one; echo two >&2; exec sleep 100"]));
    process.wait_for("one", LIMIT);
    assert!(eventually(LIMIT, || process.said() == ["one\n", "two\n"]));
    assert!(process.runs());
    process.signal(Signal::TERM);
    let ended = process.end(LIMIT);
    assert_eq!((ended.code(), ended.out.as_str(), ended.err.as_str()), (None, "one\n", "two\n"));
    let ended = Process::start(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).end(LIMIT);
    assert_eq!((ended.code(), ended.err.as_str()), (Some(3), "no\n"));
}
