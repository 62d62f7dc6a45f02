//! `spraywire bw` and `lat` between two processes over shared memory, as a user runs them.
#![cfg(feature = "dpdk")]

mod dissector;
mod ends;
mod entropy;
mod rails;
mod reliable;

use ends::{End, alone, both, cpu_seconds, json, next_socket, number, results, run, shared, wait_for_work};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn an_exact_count_arrives_and_both_sides_agree() {
    let _turn = shared();
    let [server, client] = both("bw --json", "bw 10.0.0.1 --json -n 50k -s 64");
    for (report, role) in [(&server, "server"), (&client, "client")] {
        assert_eq!((&report["schema"], &report["command"]), (&"spraywire/1".into(), &"bw".into()));
        assert_eq!((&report["role"], &report["interrupted"]), (&role.into(), &false.into()));
        let result = &results(report)[0];
        assert_eq!((&result["test"], &result["size"]), (&"bw".into(), &64.into()));
        let there = &result["client_to_server"];
        assert_eq!(
            (&there["sent"], &there["received"], &there["lost"]),
            (&50_000.into(), &50_000.into(), &0.into())
        );
        assert_eq!(there["drops"], serde_json::json!({}));
        let rate = number(&there["messages_per_second"]);
        assert!(rate > 0.0 && (number(&there["goodput_bits_per_second"]) / rate - 512.0).abs() < 1e-6);
        let elapsed = number(&there["elapsed_ns"]) / 1e9;
        let after = 50_000.0 - number(&there["first_burst"]);
        assert!(after < 50_000.0 && (rate - after / elapsed).abs() < 1.0, "{there}");
        assert!(result.get("server_to_client").is_none() && result.get("latency").is_none());
    }
    assert_eq!(results(&server)[0]["client_to_server"], results(&client)[0]["client_to_server"]);
    assert_eq!(client["parameters"]["iters"], 50_000);
}

#[test]
fn all_sizes_to_the_mtu_in_both_directions() {
    let _turn = shared();
    let [server, client] = both("bw --json -m 1024", "bw 10.0.0.1 --json -a -b -q 4 -n 1000 -m 1024");
    let sizes: Vec<u64> = results(&client).iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
    assert_eq!(results(&server).len(), 10);
    for result in results(&client) {
        assert_eq!((&result["qps"], &result["bidirectional"]), (&4.into(), &true.into()));
        for direction in ["client_to_server", "server_to_client"] {
            let there = &result[direction];
            assert_eq!((&there["sent"], &there["received"]), (&1000.into(), &1000.into()), "{result:#}");
        }
    }
    // Over raw UD nobody tells the server what came to the client: it says nothing about it.
    for result in results(&server) {
        assert_eq!(result["server_to_client"], serde_json::json!({ "sent": 1000 }), "{result:#}");
    }
}

#[test]
fn behind_queues_nothing_is_lost_without_a_trace() {
    let _turn = shared();
    let [_, client] =
        both("bw --json --worker thread", "bw 10.0.0.1 --json --worker thread -n 20k -s 1k --rate 20kpps");
    let there = &results(&client)[0]["client_to_server"];
    let drops: f64 = there["drops"].as_object().unwrap().values().map(number).sum();
    assert_eq!((&there["sent"], number(&there["lost"])), (&20_000.into(), drops), "{there:#}");
    let [_, client] = both("lat --json --worker thread", "lat 10.0.0.1 --json --worker thread -n 200");
    assert!(number(&results(&client)[0]["latency"]["half_rtt_ns"]["p50"]) > 0.0);
}

#[test]
fn a_report_has_the_requested_and_the_achieved_rate_and_its_intervals() {
    let _turn = alone();
    // A machine that stood still during the last messages has reached less: then once more.
    let mut tries = Vec::new();
    let result = loop {
        let [_, client] = both("bw --json", "bw 10.0.0.1 --json -D 2 -s 500 --rate 40Mbps");
        let result = results(&client)[0].clone();
        let achieved = number(&result["client_to_server"]["messages_per_second"]);
        if (achieved / 10_000.0 - 1.0).abs() < 0.05 {
            break result;
        }
        tries.push(achieved);
        assert!(tries.len() < 3, "{tries:?}");
    };
    // 40 Mbit/s of 4000 bits.
    assert_eq!(result["requested_messages_per_second"], 10_000);
    assert_eq!(result["duration_ms"], 2000);
    let there = &result["client_to_server"];
    let intervals = &there["intervals"];
    let [min, p1, p50] = ["min", "p1", "p50"].map(|p| number(&intervals[format!("messages_per_second_{p}")]));
    assert!(min <= p1 && p1 <= p50 && p50 > 0.0, "{intervals}");
    assert!(number(&intervals["count"]) > 100.0 && number(&intervals["length_ns"]) == 1e7, "{intervals}");
}

#[test]
fn latency_counts_every_round_trip() {
    let _turn = shared();
    let [server, client] = both("lat --json", "lat 10.0.0.1 --json -n 2000 -s 64");
    let latency = &results(&client)[0]["latency"];
    let (made, lost) = (number(&latency["round_trips"]), number(&latency["unanswered"]));
    assert!(made <= 2000.0 && made + lost >= 2000.0 && lost < 100.0, "{latency}");
    let half = |name: &str| number(&latency["half_rtt_ns"][name]);
    assert!(half("min") > 0.0 && half("p50") > 0.0, "{latency}");
    let ascending = ["min", "p50", "p99", "p99_9", "p99_99"].map(half);
    assert!(ascending.is_sorted() && half("p99_99") <= half("max") * 1.01, "{latency}");
    assert!(half("mean") >= half("min") && half("mean") <= half("max"));
    // 200 more to warm up.
    assert_eq!(results(&server)[0]["client_to_server"]["received"], 2200);
}

#[test]
fn the_server_of_a_latency_test_says_what_it_answered() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "lat");
    let client = End::client(socket, "lat 10.0.0.1 -n 300 -s 64").ok();
    let theirs = server.ok();
    assert!(client.starts_with("    size  round trips  unanswered "), "{client}");
    assert!(theirs.starts_with("    size     answered  unanswered "), "{theirs}");
    let words: Vec<&str> = theirs.lines().nth(1).unwrap().split_whitespace().collect();
    // 200 more to warm up.
    assert_eq!(words, ["64", "500", "-", "-", "-", "-", "-", "-", "-"], "{theirs}");
    let width = |text: &str| text.lines().nth(1).unwrap().chars().count();
    assert_eq!(width(&client), width(&theirs), "{client}{theirs}");
}

#[test]
fn over_ipv6_as_text() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "bw");
    let text = End::client(socket, "bw fd77::1 -n 1000 -s 33").ok();
    let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words[..4], ["33", "1000", "1000", "0"], "{text}");
    assert!(
        text.lines().next().unwrap().contains("msg/s") && text.trim_end().ends_with("to server"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 2, "{text}");
    let theirs = server.ok();
    assert_eq!(theirs.lines().count(), 2, "{theirs}");
}

fn assert_capture_is_right(path: &Path, messages: u64) {
    let path = path.to_str().unwrap();
    let output = run(env!("CARGO_BIN_EXE_spraywire"), &["inspect", "--json", "--summary", path]);
    assert_eq!(output.status.code(), Some(0), "every ICRC is right");
    let summary = &json(&String::from_utf8(output.stdout).unwrap())["summary"];
    assert!(summary["roce"]["icrc_ok"].as_u64().unwrap() >= messages, "{summary:#}");
    assert_eq!(summary["roce"]["icrc_ok"], summary["roce"]["packets"], "{summary:#}");
    // Another implementation sees RoCEv2, and nothing wrong with it.
    let tshark = |filter: &str| {
        let output = run("tshark", &["-r", path, "-Y", filter]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().count() as u64
    };
    // UD SEND only.
    assert!(tshark("infiniband.bth.opcode == 100") >= messages);
    assert_eq!(tshark("_ws.malformed || _ws.expert.severity >= error || ip.checksum.status == 0"), 0);
    assert_eq!(tshark("arp") > 0, tshark("ip") > 0);
}

#[test]
fn captures_hold_every_frame_and_others_can_read_them() {
    let _turn = shared();
    let folder = tempfile::tempdir().unwrap();
    let (theirs, ours) = (folder.path().join("server.pcap"), folder.path().join("client.pcap"));
    both(
        &format!("bw --json --pcap {}", theirs.display()),
        &format!("bw 10.0.0.1 --json -n 300 -s 777 --pcap {}", ours.display()),
    );
    assert_capture_is_right(&theirs, 300);
    assert_capture_is_right(&ours, 300);
}

#[test]
fn a_capture_that_is_not_whole_is_no_success() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "bw");
    let client = End::client(socket, "bw 10.0.0.1 -n 20 -s 64 --pcap /dev/full");
    let (status, out, errors) = client.end();
    assert_eq!(status.code(), Some(1), "{out}{errors}");
    assert!(out.contains("to server"), "the result is shown all the same: {out}");
    assert!(errors.contains("frames are missing from /dev/full: No space left on device"), "{errors}");
    drop(server);
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers() {
    let _turn = shared();
    let refuse = |server: &str, client: &str, code: i32| {
        let socket = next_socket();
        let server = End::server(socket, server);
        let (status, out, errors) = End::client(socket, client).end();
        assert_eq!(status.code(), Some(code), "{client}: {out}{errors}");
        drop(server);
        errors
    };
    let long = refuse("bw", "bw 10.0.0.1 -s 4097", 2);
    assert!(long.contains("4097 bytes do not fit the IB MTU of 4096"), "{long}");
    let small = refuse("bw -m 1024", "bw 10.0.0.1 -s 2000", 2);
    assert!(
        small.contains("refused") && small.contains("2000 bytes do not fit the IB MTU of 1024"),
        "{small}"
    );
    let other = refuse("bw", "lat 10.0.0.1", 2);
    assert!(other.contains("the server runs `spraywire bw`, the client `spraywire lat`"), "{other}");
    let many = refuse("bw", "bw 10.0.0.1 -q 1000 -t 512 -n 1", 2);
    assert!(many.contains("1000 queue pairs") && many.contains("-q, -t or -r"), "{many}");
    let nobody = refuse("bw", "bw 10.0.0.77 --wait 500ms", 1);
    assert!(nobody.contains("10.0.0.77 did not answer within 0.5 s") && nobody.contains("ARP"), "{nobody}");
    let unknown = refuse("bw", "bw no.such.host.invalid", 2);
    assert!(unknown.contains("no.such.host.invalid"), "{unknown}");
}

#[test]
fn bad_arguments_are_told() {
    let _turn = shared();
    for (args, expected) in [
        (&["bw", "-s", "x"][..], "`x` is no size"),
        (&["bw", "-n", "5", "-D", "1"], "--duration"),
        (&["bw", "-a", "-s", "5"], "--size"),
        (&["bw", "--rate", "fast"], "fast"),
        (&["bw", "192.0.2.1", "-n", "0"], "at least one message"),
        (&["bw", "192.0.2.1", "-s", "4294967296"], "use -s 4294967295 or less"),
        (&["lat", "192.0.2.1", "-s", "5G"], "too large"),
        (&["demo", "-s", "64,5G"], "too large"),
        (&["lat", "192.0.2.1", "-r", "0"], "at least 1"),
        (&["bw", "--port", "net_memif0,rolle=client", "--ip", "10.0.0.1"], "`rolle`"),
        (&["bw", "192.0.2.1", "-D", "1us"], "at least a millisecond"),
        (&["bw", "192.0.2.1", "-D", "4294967296"], "more than a hundred years"),
        (&["bw", "192.0.2.1", "-t", "0x100000000"], "--tx-depth"),
        (&["bw", "192.0.2.1", "--json=/"], "it is a folder"),
        (&["ud", "recv", "--json=/dev"], "it is a folder"),
        (&["lat", "192.0.2.1", "--json=/tmp/both.x", "--pcap", "/tmp/both.x"], "--json and --pcap both name"),
        (
            &["ud", "send", "192.0.2.1", "--qpn", "2", "--json=x", "--pcap", "x"],
            "--json and --pcap both name",
        ),
        // The client's own address; the server's is 192.0.2.1.
        (&["bw", "192.0.2.2"], "192.0.2.2 is this side's own address"),
        (&["lat", "10.0.0.2", "--port", "net_null0", "--ip", "10.0.0.2/24"], "10.0.0.2 is this side's own"),
        (&["bw", "10.0.0.2", "--port", "nonsense0", "--ip", "10.0.0.1"], "none called \"nonsense0\""),
        (&["bw", "192.0.2.1", "--service", "ud", "-q", "0"], "at least 1"),
        (&["bw", "192.0.2.1", "-q", "2"], "one queue pair for all its peers"),
        (&["bw", "192.0.2.1", "--workers", "2"], "--service ud"),
        (&["bw", "--worker", "thread"], "--service ud"),
        (&["bw", "192.0.2.1", "--service", "ud", "--peers", "2"], "--peers is of the reliable service"),
        (&["bw", "192.0.2.1", "--peers", "10001"], "10000"),
        (&["bw", "--service", "ud", "--class", "dp"], "--class is of the reliable service"),
        (&["bw", "192.0.2.1", "--service", "ud", "--fec", "off"], "--fec is of the reliable service"),
        (&["bw", "192.0.2.1", "--service", "ud", "--paths", "4"], "--paths is of the reliable service"),
        (&["bw", "--service", "ud", "--no-bundle"], "--no-bundle is of the reliable service"),
        (&["lat", "--service", "ud", "--cc", "delay-ecn"], "--cc is of the reliable service"),
        (&["lat", "192.0.2.1", "--service", "ud", "--stage", "3"], "--stage is of the reliable service"),
        (&["lat", "192.0.2.1", "--service", "ud", "-s", "5000"], "5000 bytes do not fit the IB MTU of 4096"),
        (&["lat", "--json=/nonexistent/x.json"], "/nonexistent/x.json"),
        (&["lat", "-m", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["lat", "--worker", "many"], "inline, thread"),
        (&["bw", "--cores", "9999", "--port", "net_null0", "--ip", "10.0.0.1"], "9999"),
    ] {
        let output = run(env!("CARGO_BIN_EXE_spraywire"), args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    // DPDK's own usage is no result, with JSON or without.
    for args in [&["ports", "--json", "--eal", "--nonsense"][..], &["lat", "--eal", "--nonsense=1"]] {
        let output = run(env!("CARGO_BIN_EXE_spraywire"), args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {error}");
        assert!(error.contains("--nonsense") && error.contains("EAL common options"), "{args:?}: {error}");
    }
}

#[test]
fn depths_are_counts_in_any_form() {
    let _turn = shared();
    let [_, client] = both("bw --json", "bw 10.0.0.1 --json -n 5k -t 0x40 -r 1k -q 0x2 -s 64");
    let result = &results(&client)[0];
    assert_eq!(
        ["iters", "tx_depth", "rx_depth", "qps"].map(|name| result[name].as_u64()),
        [5000, 64, 1000, 2].map(Some),
        "{client:#}"
    );
    // Times among the parameters are in seconds.
    assert_eq!(
        (&client["parameters"]["wait_s"], &client["parameters"]["duration_s"]),
        (&10.0.into(), &serde_json::Value::Null)
    );
}

#[test]
fn a_waiting_server_costs_next_to_nothing_and_ends_at_a_signal() {
    let _turn = alone();
    for args in ["bw", "default bw", "lat --worker thread"] {
        let server = End::server(next_socket(), args);
        std::thread::sleep(Duration::from_millis(500));
        let (before, start) = (cpu_seconds(&server.child), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let share = (cpu_seconds(&server.child) - before) / start.elapsed().as_secs_f64();
        assert!(share < 0.05, "{args}: {share}");
        let start = Instant::now();
        server.signal(Signal::INT);
        let (status, out, errors) = server.end();
        assert_eq!(status.code(), Some(130), "{out}{errors}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_signal_to_the_client_gives_the_results_so_far() {
    let _turn = shared();
    for service in ["", "default "] {
        let socket = next_socket();
        let server = End::server(socket, &format!("{service}bw --json"));
        let client = End::client(socket, &format!("{service}bw 10.0.0.1 --json -D 50 -s 64"));
        wait_for_work(&client);
        client.signal(Signal::INT);
        let (status, out, errors) = client.end();
        assert_eq!(status.code(), Some(130), "{out}{errors}");
        let report = json(&out);
        let there = &results(&report)[0]["client_to_server"];
        let marks = [&report["interrupted"], &results(&report)[0]["interrupted"]];
        assert!(marks.iter().all(|mark| **mark == true), "{out}");
        assert!(number(&there["received"]) > 0.0 && there["lost"] == 0, "{there}");
        assert_eq!(results(&json(&server.ok()))[0]["client_to_server"], *there);
    }
}

#[test]
fn a_killed_server_is_missed_and_so_is_a_killed_client() {
    let _turn = shared();
    let start = |test: &str| {
        let socket = next_socket();
        let server = End::server(socket, test);
        let client = End::client(socket, &format!("{test} 10.0.0.1 -s 64 -D 50"));
        wait_for_work(&client);
        (server, client)
    };
    // One after the other, and all are waited for at once.
    let servers_die = ["bw", "lat"].map(|test| {
        let (server, client) = start(test);
        server.signal(Signal::KILL);
        (client, test, Instant::now())
    });
    let (server, client) = start("bw");
    client.signal(Signal::KILL);
    for (client, test, killed) in servers_die {
        let (status, out, errors) = client.end();
        assert_eq!(status.code(), Some(1), "{test}: {out}{errors}");
        assert!(errors.contains("spraywire: error: "), "{test}: {errors}");
        assert!(out.lines().count() >= 2, "what it knows is told: {out}");
        assert!(killed.elapsed() < Duration::from_secs(30), "{test}: {:?}", killed.elapsed());
    }
    let (status, out, errors) = server.end();
    assert_eq!(status.code(), Some(1), "{out}{errors}");
    assert!(errors.contains("10.0.0.2 has been silent for 5 seconds, after "), "{errors}");
    let words: Vec<&str> = out.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!((words[1], words[3]), ("-", "-"), "{out}");
    assert_ne!(words[2], "0", "{out}");
}
