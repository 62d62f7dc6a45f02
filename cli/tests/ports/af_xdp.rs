//! `net_af_xdp`, where the kernel has it.

use crate::run::{LIMIT, Side, bw, messages_arrive};
use rustix::process::Signal;
use testbed_net::{Namespace, Process, Veth, allowed, veth};

/// Whether the kernel makes sockets of that family at all (`AF_XDP` is 44): not every one is built with it.
fn kernel_has_it() -> bool {
    let script = "import socket; socket.socket(44, socket.SOCK_RAW, 0)";
    let asked = Process::start(std::process::Command::new("python3").args(["-c", script]));
    asked.end(crate::run::LIMIT).status.success()
}

#[test]
fn over_a_veth_pair_in_both_directions() {
    if !allowed("af_xdp") {
        return;
    }
    if !kernel_has_it() {
        eprintln!("not run: this kernel has no AF_XDP sockets");
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth::default());
    let here = Side { namespace: &a, port: "net_af_xdp0,iface=e0", ips: &["10.9.0.1", "fd77::1"] };
    let there = Side { namespace: &b, port: "net_af_packet0,iface=e0", ips: &["10.9.0.2", "fd77::2"] };
    messages_arrive(&there, &here, 1024, 20);
    messages_arrive(&here, &there, 1021, 20);
    let result = bw(&there, &here, "-n 1k -s 64 --rate 1kpps");
    assert_eq!(result["client_to_server"]["received"], 1000, "{result:#}");
    // Whether a signal ends it or its work is done, the interface is as it was. The driver puts a program there that outlives it.
    let program = || a.ip("link show e0").contains("prog/xdp");
    let recv = here.receiver("-t 50");
    assert!(program(), "it has one while it runs");
    recv.signal(Signal::TERM);
    assert_eq!(recv.end(LIMIT).code(), Some(130));
    assert!(!program(), "after a signal");
    here.run("ud recv -t 0.1").ok();
    assert!(!program(), "after an end in time");
    here.run_bare("doctor --port net_af_xdp0,iface=e0 --ip 10.9.0.1");
    assert!(!program(), "after a look");
}
