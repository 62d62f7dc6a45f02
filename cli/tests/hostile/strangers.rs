//! Forged messages to a server of tests over raw UD: whoever can send a packet can send it in anybody's name.

use super::{Bridge, LIMIT, SEED};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;
use testbed_hostile::{Target, reliable};

/// Where a server of tests over raw UD is asked.
const QPN: u32 = 0x53_5057;
const QKEY: u32 = 0x5350_5743;

fn frame(to: &Target, from: Ipv4Addr, number: u32, message: &Value) -> Vec<u8> {
    let mut payload = b"SW\x01\x00\x01".to_vec();
    payload.extend(number.to_be_bytes());
    payload.extend(message.to_string().bytes());
    reliable::message(&mut fastrand::Rng::with_seed(SEED + u64::from(number)), to, (from, 0x777), &payload)
}

fn hello(to: &Target, from: Ipv4Addr, number: u32) -> Vec<u8> {
    let spec = json!({"kind": "bw", "size": 64, "qps": 1, "iters": 100, "duration_ms": null, "tx_depth": 16, "rx_depth": 64,
        "bidirectional": false, "rate": null});
    let hello = json!({"t": "hello", "v": 1, "id": number, "test": 1, "qpn": 77, "mtu": 1024, "workers": 1, "spec": spec});
    frame(to, from, number, &hello)
}

#[test]
fn nobody_ends_a_test_of_others_or_a_server_that_waits() {
    let Some(bridge) = Bridge::new("nobody_ends_a_test_of_others_or_a_server_that_waits") else { return };
    let to = Target { qkey: QKEY, ..bridge.target(QPN) };
    // Its own, and such as no host has.
    let odd: Vec<Ipv4Addr> = ["10.9.0.1", "0.0.0.0", "224.0.0.1", "127.0.0.1", "255.255.255.255"]
        .map(|ip| ip.parse().unwrap())
        .into();
    let hellos: Vec<Vec<u8>> = (1..).zip(&odd).map(|(number, from)| hello(&to, *from, number)).collect();
    // More than it remembers ways to, none of whom answers when asked for a MAC address.
    let probes: Vec<Vec<u8>> = (100..250)
        .map(|n| frame(&to, Ipv4Addr::new(10, 9, 0, n as u8), n, &json!({"t": "probe", "id": n})))
        .collect();
    let send = |frames: &[Vec<u8>]| {
        let (open, frames) = (bridge.wire(), frames.to_vec());
        let sender = std::thread::spawn(move || {
            let mut wire = open();
            for frame in &frames {
                assert!(wire.send(frame).unwrap(), "the interface is full");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        sender.join().unwrap();
    };
    for test in ["bw -b --rate 5kpps", "lat", "bw --worker thread --rate 5kpps"] {
        let (kind, worker) = (test.split(' ').next().unwrap(), test.contains("thread"));
        let worker = if worker { " --worker thread" } else { "" };
        let mut server = bridge.spraywire("srv", &format!("{kind} --service ud{worker}"));
        server.wait_for("waiting", LIMIT);
        send(&hellos);
        let report = bridge.folder.path().join("report.json");
        let client = bridge.spraywire(
            "cli",
            &format!("{test} 10.9.0.1 --service ud -s 64 -D 3 --json={}", report.display()),
        );
        std::thread::sleep(Duration::from_millis(1500));
        send(&probes);
        send(&hellos);
        client.end(LIMIT).ok();
        server.end(LIMIT).ok();
        let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
        let result = &report["results"][0];
        if kind == "lat" {
            assert!(result["latency"]["round_trips"].as_u64().unwrap() > 100, "{test}: {result:#}");
        } else {
            let way = &result["client_to_server"];
            let [sent, received] = ["sent", "received"].map(|of| way[of].as_u64().unwrap());
            // Who is that busy with strangers does not always post receives in time.
            assert!(sent > 10_000 && received * 2 > sent, "{test}: {way:#}");
        }
    }
}
