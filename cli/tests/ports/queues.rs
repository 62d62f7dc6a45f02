//! Several workers over the queues of a port whose packets the kernel spreads.

use crate::run::{LIMIT, Side, json};
use rustix::process::Signal;
use serde_json::Value;
use testbed_net::{Namespace, Veth, allowed, veth};

fn sum(report: &Value, column: &str) -> u64 {
    let workers = report["queues"]["workers"].as_array().unwrap();
    workers.iter().map(|worker| worker[column].as_u64().unwrap()).sum()
}

/// The kernel's hash knows nothing of queue pairs: about half of what a queue brings is another worker's.
#[test]
fn a_fanout_of_packet_sockets_feeds_two_workers() {
    if !allowed("a_fanout_of_packet_sockets_feeds_two_workers") {
        return;
    }
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth { mtu: 1500, ..Veth::default() });
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.9.0.1", "fd77::1"] };
    let there = Side { namespace: &b, port, ips: &["10.9.0.2", "fd77::2"] };
    for host in ["10.9.0.1", "fd77::1"] {
        let server = here.server("bw --service ud --workers 2 --json");
        let text = there
            .run(&format!(
                "bw {host} --service ud --workers 2 --json -q 16 -n 6001 -s 300 -b --rate 2kpps --wait 30"
            ))
            .ok();
        let (client, server) = (json(&text), json(&server.end(LIMIT).ok()));
        for direction in ["client_to_server", "server_to_client"] {
            let way = &client["results"][0][direction];
            assert_eq!((&way["sent"], &way["received"]), (&6001.into(), &6001.into()), "{client:#}");
        }
        for report in [&client, &server] {
            assert_eq!(report["queues"]["count"], 2, "{report:#}");
            let (out, inward) = (sum(report, "steered_out"), sum(report, "steered_in"));
            assert!(out == inward && sum(report, "steer_full") == 0, "{report:#}");
            // With 32 flows, that all fall on their own worker's queue is as likely as 32 heads in a row.
            assert!(out > 0 && sum(report, "rx_packets") >= 6001, "{report:#}");
        }
    }
}

/// The kernel spreads by a hash of addresses and ports. With one UDP source port for all flows one queue takes them all, which is said
/// while they come; with one for each queue pair they are spread, and nothing is said.
#[test]
fn a_queue_that_takes_nearly_all_is_warned_of_while_it_does() {
    if !allowed("a_queue_that_takes_nearly_all_is_warned_of_while_it_does") {
        return;
    }
    const WARNING: &str = "of what the port receives";
    let [a, b] = [(); 2].map(|()| Namespace::new());
    veth((&a, "e0"), (&b, "e0"), Veth { mtu: 1500, ..Veth::default() });
    let port = "net_af_packet0,iface=e0";
    let here = Side { namespace: &a, port, ips: &["10.9.0.1"] };
    let there = Side { namespace: &b, port, ips: &["10.9.0.2"] };
    let client = "bw 10.9.0.1 --service ud --workers 2 -q 32 -s 64 --rate 8kpps --wait 30";
    let mut server = here.server("bw --service ud --workers 2 --json");
    let mut running = there.start(&format!("{client} --entropy-range 6000-6000 -D 30"));
    let said = server.wait_for(WARNING, LIMIT);
    assert!(running.runs(), "it came at the end only");
    assert!(said.contains("WARN") && said.contains("UDP source ports"), "{said}");
    running.signal(Signal::INT);
    assert_eq!(running.end(LIMIT).code(), Some(130));
    let ended = server.end(LIMIT);
    assert_eq!(ended.err.matches(WARNING).count(), 1, "once is enough: {}", ended.err);
    let queues = json(&ended.ok())["queues"].take();
    let [first, second] = [0, 1].map(|at| queues["workers"][at]["rx_packets"].as_u64().unwrap());
    let most = u64::from(second > first);
    assert!(first.max(second) * 5 > (first + second) * 4 && queues["uneven"] == most, "{queues:#}");

    // Of 64 flows, more than 51 in one queue are as likely as twenty heads in a row.
    let server = here.server("bw --service ud --workers 2 --json");
    there.run(&format!("{client} -n 9k")).ok();
    let ended = server.end(LIMIT);
    assert!(!ended.err.contains(WARNING), "{}", ended.err);
    let queues = json(&ended.ok())["queues"].take();
    assert_eq!(queues["uneven"], Value::Null, "{queues:#}");
}
