//! Neighbours from the kernel's table.

use crate::run::{LIMIT, Side, messages_arrive};
use testbed_net::{Namespace, Veth, allowed, veth};

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
