//! `net_tap`, with the kernel at the other end.

use crate::run::{LIMIT, Side, json};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use testbed_hostile::{Generator, Target, Wire};
use testbed_net::{Namespace, allowed, eventually};

/// The realtime signals that a process has a handler for, as bits.
fn realtime_signals_caught(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // The lowest bit is signal 1; glibc keeps 32 and 33 for itself.
    u64::from_str_radix(caught.trim(), 16).unwrap() & !((1 << 33) - 1)
}

#[test]
fn the_kernel_pings_us_and_a_neighbour_behind_it_talks_to_us() {
    if !allowed("the_kernel_pings_us_and_a_neighbour_behind_it_talks_to_us") {
        return;
    }
    let namespace = Namespace::new();
    let ours = Side { namespace: &namespace, port: "net_tap0,iface=dt0", ips: &["10.9.0.1", "fd77::1"] };
    let recv = ours.receiver("-t 60 -n 20 --verify incr --qpn 0x22222");
    assert!(eventually(LIMIT, || namespace.has("dt0")));
    assert_eq!(realtime_signals_caught(recv.id()), 0, "a signal for each packet costs more than the packet");
    // The driver gives the kernel's end the port's own address. They must differ to tell the two apart.
    namespace.ip("link set dt0 address 02:00:00:00:00:77 up");
    namespace.address("dt0", "10.9.0.9/24");
    namespace.address("dt0", "fd77::9/64");
    namespace.sh("ping -q -c 3 -i 0.2 -W 10 -s 1000 10.9.0.1");
    namespace.sh("ping -q -c 3 -i 0.2 -W 10 -s 1000 fd77::1");
    // The kernel's interface is another port's, whose frames come out of the tap.
    let other =
        Side { namespace: &namespace, port: "net_af_packet0,iface=dt0", ips: &["10.9.0.2", "fd77::2"] };
    for ip in ["10.9.0.1", "fd77::1"] {
        other.run(&format!("ud send {ip} --qpn 0x22222 -s 1024 -n 10 --rate 1kpps --wait 20")).ok();
    }
    let text = recv.end(LIMIT).ok();
    assert!(text.contains("20 messages received, 20480 bytes, 0 not as expected\n"), "{text}");
    assert!(eventually(LIMIT, || !namespace.has("dt0")), "the interface goes with its port");
}

/// Our port sends to one that stands on the kernel's end; its interface is then removed under the first.
#[test]
fn what_we_send_comes_out_at_the_kernels_end_until_it_is_removed() {
    if !allowed("what_we_send_comes_out_at_the_kernels_end_until_it_is_removed") {
        return;
    }
    let namespace = Namespace::new();
    let ours = Side { namespace: &namespace, port: "net_tap0,iface=dt0", ips: &["10.9.0.1"] };
    let send = ours.start("ud send 10.9.0.2 --qpn 0x33333 -s 1024 -n 1M --interval 10ms --wait 50");
    assert!(eventually(LIMIT, || namespace.has("dt0")));
    namespace.ip("link set dt0 address 02:00:00:00:00:77 up");
    let other = Side { namespace: &namespace, port: "net_af_packet0,iface=dt0", ips: &["10.9.0.2"] };
    other.run("ud recv -t 60 -n 30 --verify incr --qpn 0x33333").ok();
    namespace.delete("dt0");
    let ended = send.end(LIMIT);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("the port is gone"), "{ended:?}");
}

/// This driver verifies checksums and tells of it. What it finds wrong is refused and counted, and nothing else.
#[test]
fn wrong_checksums_are_counted_where_the_port_verifies_them() {
    const COUNT: usize = 40;
    if !allowed("wrong_checksums_are_counted_where_the_port_verifies_them") {
        return;
    }
    let namespace = Namespace::new();
    let ours = Side { namespace: &namespace, port: "net_tap0,iface=dt0", ips: &["10.9.0.1", "fd77::1"] };
    let recv = ours.receiver("-t 60 -n 10 --verify incr --qpn 0x22222 --json");
    assert!(eventually(LIMIT, || namespace.has("dt0")));
    let mac: Vec<u8> = namespace.mac("dt0").split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
    let (v4, v6) = ("10.9.0.1".parse().unwrap(), "fd77::1".parse().unwrap());
    let target = Target { mac: mac.try_into().unwrap(), v4, v6, qpn: 0x22222, qkey: 0x1111_1111 };
    namespace.ip("link set dt0 address 02:00:00:00:00:77 up");
    let name = namespace.name().to_owned();
    let sent = std::thread::spawn(move || {
        let ns = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
        move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let mut wire = Wire::open("dt0").unwrap();
        let wrong = Generator::new(1, target, |kind| matches!(kind, "ipv4_checksum" | "udp_checksum"));
        wrong.take(COUNT).map(|hostile| usize::from(wire.send(&hostile.frame).unwrap())).sum::<usize>()
    });
    assert_eq!(sent.join().unwrap(), COUNT);
    let other = Side { namespace: &namespace, port: "net_af_packet0,iface=dt0", ips: &["10.9.0.2"] };
    other.run("ud send 10.9.0.1 --qpn 0x22222 -s 1024 -n 10 --rate 1kpps --wait 20").ok();
    let report = json(&recv.end(LIMIT).ok());
    let counters = &report["counters"];
    assert_eq!(counters["delivered"], 10, "{counters:#}");
    for reason in ["ipv4_checksum", "udp_checksum"] {
        assert_eq!(counters["dropped"][reason], COUNT / 2, "{counters:#}");
    }
}
