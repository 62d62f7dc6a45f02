//! The reliable service over several ports.

use crate::ends::{End, LIMIT, json, next_socket, number, results, shared};
use serde_json::Value;
use std::process::{Command, Stdio};
use testbed_net::{Namespace, Veth, veth};

/// `spraywire` with so many memif ports, of which the nth has addresses in networks of its own.
fn with(role: &str, socket: u32, ports: usize, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    let host = if role == "server" { 1 } else { 2 };
    for port in 0..ports {
        let socket = format!("spw-rail-{}-{socket}-{port}", std::process::id());
        command.args(["--port", &format!("net_memif{port},role={role},id=0,socket={socket}")]);
        command.args(["--ip", &format!("10.{port}.0.{host}"), "--ip", &format!("fd7{port}::{host}")]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Both reports of a test over so many ports.
fn both(ports: usize, server: &str, client: &str) -> [Value; 2] {
    let socket = next_socket();
    let server = End::serving(with("server", socket, ports, server));
    let client = End::start(with("client", socket, ports, client)).ok();
    [json(&server.ok()), json(&client)]
}

#[test]
fn messages_go_over_all_ports_and_the_report_says_so() {
    let _turn = shared();
    for (ip, ports) in [("10.0.0.1", 2), ("fd70::1", 3)] {
        let client = format!("bw {ip} --json -b -D 1500ms -s 400000 --paths 6");
        let reports = both(ports, "bw --json --paths 6", &client);
        for report in &reports {
            let result = &results(report)[0];
            for way in ["client_to_server", "server_to_client"] {
                let way = &result[way];
                assert_eq!((&way["received"], &way["lost"]), (&way["sent"], &0.into()), "{way}");
            }
            for side in ["client", "server"] {
                let shares = result["reliable"][side]["ports"].as_array().unwrap();
                let sent: Vec<f64> = shares.iter().map(|port| number(&port["sent"])).collect();
                let all: f64 = sent.iter().sum();
                assert_eq!(shares.len(), ports);
                // Feedback keeps to one path, so to one port.
                assert!(sent.iter().all(|sent| *sent > 0.3 / ports as f64 * all), "{side}: {shares:?}");
            }
        }
    }
}

#[test]
fn each_port_has_a_path_even_if_none_are_asked_for() {
    let _turn = shared();
    let [_, client] = both(2, "bw --json", "bw 10.0.0.1 --json -D 1500ms -s 100000");
    let shares = &results(&client)[0]["reliable"]["client"]["ports"];
    assert!(number(&shares[1]["sent"]) > 5_000.0, "{shares}");
    // In words too.
    let socket = next_socket();
    let server = End::serving(with("server", socket, 2, "bw"));
    let text = End::start(with("client", socket, 2, "bw 10.0.0.1 -D 200ms -s 100000")).ok();
    server.ok();
    assert!(text.contains("ports of the client: net_memif0 sent"), "{text}");
}

#[test]
fn what_several_ports_do_not_go_with_is_said() {
    let _turn = shared();
    for (args, words) in [
        ("bw 10.0.0.1 --service ud", "2 ports: this takes one"),
        ("ud recv", "2 ports: this takes one"),
        ("bw 10.0.0.1 --ip 10.9.0.2", "10.1.0.2 is one address more than there are ports"),
        ("bw 10.0.0.1 --gateway 10.7.0.1", "10.7.0.1 is in the network of none of the ports"),
        ("bw 10.0.0.1 --port net_null0", "port 3, net_memif1,role=client"),
    ] {
        let (status, out, errors) = End::start(with("client", next_socket(), 2, args)).end();
        assert_eq!(status.code(), Some(2), "{args}: {out}{errors}");
        assert!(errors.contains(words), "{args}: {errors}");
    }
}

/// Two interfaces of the kernel on each side; one goes down in the middle, and comes back.
#[test]
fn an_interface_that_goes_down_costs_no_message() {
    let test = "an_interface_that_goes_down_costs_no_message";
    if !testbed_net::allowed(test) {
        return;
    }
    let _turn = shared();
    let (server, client) = (Namespace::new(), Namespace::new());
    for port in 0..2 {
        let name = format!("rail{port}");
        veth((&server, &name), (&client, &name), Veth::default());
    }
    let start = |ns: &Namespace, host: u8, args: &str| {
        let mut command = ns.command(env!("CARGO_BIN_EXE_spraywire"));
        command.args(args.split_whitespace()).env_remove("RUST_LOG");
        for port in 0..2 {
            command.args(["--port", &format!("net_af_packet{port},iface=rail{port}")]);
            command.args(["--ip", &format!("10.{port}.0.{host}")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let serving = End::serving(start(&server, 1, "bw --json --paths 4"));
    let mut bw = End::start(start(&client, 2, "bw 10.0.0.1 --json --paths 4 -s 64k -D 5 --rate 2000pps"));
    std::thread::sleep(std::time::Duration::from_millis(2_000));
    client.sh("ip link set rail1 down");
    std::thread::sleep(std::time::Duration::from_millis(1_000));
    client.sh("ip link set rail1 up");
    assert!(bw.child.try_wait().unwrap().is_none(), "within {LIMIT:?}, and not over yet");
    let report = json(&bw.ok());
    serving.ok();
    let result = &results(&report)[0];
    let way = &result["client_to_server"];
    assert_eq!((&way["received"], &way["lost"]), (&way["sent"], &0.into()), "{result}");
    assert!(number(&way["sent"]) > 500.0, "{way}");
    let shares = &result["reliable"]["client"]["ports"];
    // It carried half before and after, a third of all or so.
    let sent = [0, 1].map(|port| number(&shares[port]["sent"]));
    assert!(sent[1] > 0.25 * sent[0] && sent[1] < 0.95 * sent[0], "{shares} {:#}", result["reliable"]);
}
