//! `net_af_packet` over interfaces of the kernel.

use crate::run::{Side, bw, messages_arrive};
use testbed_net::{Namespace, Veth, allowed, veth};

#[test]
fn over_a_veth_pair() {
    if !allowed("over_a_veth_pair") {
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth::default());
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.9.0.1", "fd77::1"] };
    let there = Side { namespace: &b, port, ips: &["10.9.0.2", "fd77::2"] };
    messages_arrive(&here, &there, 1024, 50);
    let result = bw(&here, &there, "-n 2k -s 1024 --rate 1kpps");
    let way = &result["client_to_server"];
    assert_eq!(
        (&way["sent"], &way["received"], &way["lost"]),
        (&2000.into(), &2000.into(), &0.into()),
        "{result:#}"
    );
}
