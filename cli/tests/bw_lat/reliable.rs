//! Tests over the reliable service.

use crate::ends::{End, both, json, next_socket, number, results, shared, wait_for_work};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The reliable service: any size, everything arrives, both ways, and what the transport did is told.
#[test]
fn reliable_messages_of_any_size_arrive_both_ways() {
    let _turn = shared();
    let [server, client] =
        both("default bw --json", "default bw 10.0.0.1 --json -b -n 40 -s 300000 --paths 2 --cc delay-ecn");
    for (report, own) in [(&server, "server"), (&client, "client")] {
        let result = &results(report)[0];
        for direction in ["client_to_server", "server_to_client"] {
            let there = &result[direction];
            assert_eq!(
                (&there["sent"], &there["received"], &there["lost"]),
                (&40.into(), &40.into(), &0.into())
            );
        }
        let reliable = &result["reliable"];
        assert_eq!(reliable["messages"], 80);
        // 300,000 bytes are 75 segments of 4008 bytes; 40 messages and a few of the test's own.
        let segments = number(&reliable[own]["segments"]) - number(&reliable[own]["retransmitted"]);
        assert!((3_000.0..3_010.0).contains(&segments), "{own}: {reliable}");
        assert!(number(&reliable["control_share"]) < 0.5, "{reliable}");
    }
}

#[test]
fn reliable_latency_and_many_sizes() {
    let _turn = shared();
    let [server, client] = both("default lat --json", "default lat 10.0.0.1 --json -n 30 -a");
    let sizes: Vec<u64> = results(&client).iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=20).map(|i| 1 << i).collect::<Vec<u64>>());
    for result in results(&client) {
        assert_eq!(
            (&result["latency"]["round_trips"], &result["latency"]["unanswered"]),
            (&30.into(), &0.into())
        );
    }
    assert_eq!(results(&server).len(), 20);
}

/// Each message goes to one of many peers, each of which has a session of its own, both ways.
#[test]
fn many_peers_get_each_message_and_cost_little() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "default bw --json");
    let client = End::client(socket, "default bw 10.0.0.1 --json --peers 300 -b -n 20k -s 64 -r 8");
    let client = json(&client.ok());
    let server = json(&server.ok());
    assert_eq!(client["parameters"]["peers"], 300);
    for report in [&client, &server] {
        let result = &results(report)[0];
        for direction in ["client_to_server", "server_to_client"] {
            let there = &result[direction];
            assert_eq!((&there["sent"], &there["received"]), (&20_000.into(), &20_000.into()), "{there}");
        }
        let reliable = &result["reliable"];
        // An INIT with a cookie and one without for each, and an answer to each.
        assert!(number(&reliable["server"]["sent"]["feedback"]) >= 300.0, "{reliable}");
        let peers = &reliable["peers"];
        assert_eq!(peers["count"], 300);
        for side in ["client", "server"] {
            let bytes = number(&peers[side]["bytes_each"]);
            assert!(bytes > 0.0 && bytes < 16_384.0, "{side}: {peers}");
            assert!(number(&peers[side]["setup_ns"]) < 10e9, "{peers}");
        }
    }
}

/// A client that a signal ends while more of its tests were to come leaves no server waiting.
#[test]
fn a_server_does_not_wait_for_tests_of_a_client_that_ended() {
    let _turn = shared();
    for test in ["bw", "lat"] {
        let socket = next_socket();
        let server = End::server(socket, &format!("default {test}"));
        let client = End::client(socket, &format!("default {test} 10.0.0.1 -a -D 20"));
        wait_for_work(&client);
        client.signal(Signal::INT);
        assert_eq!(client.end().0.code(), Some(130), "{test}");
        let ended = Instant::now();
        let (status, out, errors) = server.end();
        assert!(status.success(), "{test}: {status}: {out}{errors}");
        assert!(ended.elapsed() < Duration::from_secs(15), "{test}: {:?}", ended.elapsed());
    }
}

/// Two sides that mean different services say so.
#[test]
fn sides_of_different_services_are_told() {
    let _turn = shared();
    for (server, client, words) in [
        ("bw", "default bw 10.0.0.1 -n 10", "10.0.0.1 runs its tests over raw UD"),
        ("default bw", "bw 10.0.0.1 -n 10", "its tests run over the reliable service"),
    ] {
        let socket = next_socket();
        let server = End::server(socket, server);
        let start = Instant::now();
        let (status, out, errors) = End::client(socket, client).end();
        assert_eq!(status.code(), Some(2), "{client}: {out}{errors}");
        assert!(errors.contains(words) && errors.contains("--service"), "{client}: {errors}");
        assert!(start.elapsed() < Duration::from_secs(8), "{client}: {:?}", start.elapsed());
        drop(server);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "default bw");
    let (status, out, errors) = End::client(socket, "default lat 10.0.0.1").end();
    assert_eq!(status.code(), Some(2), "{out}{errors}");
    assert!(errors.contains("the server runs `spraywire bw`, the client `spraywire lat`"), "{errors}");
    // Over shared memory one client comes to a server. This one has said why, and waits on.
    std::thread::sleep(Duration::from_millis(500));
    server.signal(Signal::INT);
    let (status, _, errors) = server.end();
    assert_eq!(status.code(), Some(130), "{errors}");
    assert!(errors.contains("refused a test: the server runs `spraywire bw`"), "{errors}");
    let (status, _, errors) = End::client(next_socket(), "default bw 10.0.0.77 --wait 500ms").end();
    assert_eq!(status.code(), Some(1), "{errors}");
}

/// While memory is made, a signal is heard at once and the other side does not wait.
#[test]
fn making_large_messages_stops_at_a_signal() {
    let _turn = shared();
    let socket = next_socket();
    let server = End::server(socket, "default bw");
    let client = End::client(socket, "default bw 10.0.0.1 -s 400M -D 50");
    std::thread::sleep(Duration::from_millis(1500));
    client.signal(Signal::INT);
    let asked = Instant::now();
    assert_eq!(client.end().0.code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    drop(server);
}

/// A server that is asked to end says what came, and its client what it sent, both at once.
#[test]
fn a_signal_to_the_server_ends_both_with_what_there_is() {
    let _turn = shared();
    for service in ["default bw", "bw"] {
        let socket = next_socket();
        let server = End::server(socket, &format!("{service} --json"));
        let client = End::client(socket, &format!("{service} 10.0.0.1 -s 64 -D 50 --json"));
        wait_for_work(&client);
        server.signal(Signal::TERM);
        let asked = Instant::now();
        let (status, out, errors) = client.end();
        assert!(asked.elapsed() < Duration::from_secs(4), "{service}: {:?}", asked.elapsed());
        assert_eq!(status.code(), Some(1), "{service}: {out}{errors}");
        let report = json(&out);
        let ours = &results(&report)[0];
        assert!(number(&ours["client_to_server"]["sent"]) > 0.0, "{ours:#}");
        assert!(ours["client_to_server"].get("received").is_none() && ours["error"].is_string(), "{ours:#}");
        let (status, out, errors) = server.end();
        assert_eq!(status.code(), Some(130), "{service}: {out}{errors}");
        let report = json(&out);
        let there = &results(&report)[0]["client_to_server"];
        assert_eq!(
            (&report["interrupted"], &there["sent"], &there["lost"]),
            (&true.into(), &Value::Null, &Value::Null)
        );
        assert!(number(&there["received"]) > 0.0, "{there}");
    }
}

/// A side that is gone is missed within seconds, and what was measured until a signal is told.
#[test]
fn an_end_is_noticed() {
    let _turn = shared();
    let start = |test: &str| {
        let socket = next_socket();
        let server = End::server(socket, &format!("default {test} --json"));
        let client = End::client(socket, &format!("default {test} 10.0.0.1 -s 64 -D 50 --json"));
        wait_for_work(&client);
        (server, client)
    };
    let (server, orphan) = start("bw");
    server.signal(Signal::KILL);
    let killed = Instant::now();
    let (server, client) = start("lat");
    client.signal(Signal::INT);
    let (status, out, errors) = client.end();
    assert_eq!(status.code(), Some(130), "{out}{errors}");
    let report: Value = json(&out);
    assert_eq!((&report["interrupted"], &results(&report)[0]["interrupted"]), (&true.into(), &true.into()));
    assert!(number(&results(&report)[0]["client_to_server"]["sent"]) > 0.0, "{report:#}");
    // The server hears of the end, and has a result or says why not.
    let (_, out, errors) = server.end();
    assert!(out.contains("\"results\"") || errors.contains("closed by the peer"), "{out}{errors}");
    let (status, out, errors) = orphan.end();
    assert_eq!(status.code(), Some(1), "{out}{errors}");
    assert!(errors.contains("the session went down: nothing heard for"), "{errors}");
    assert!(killed.elapsed() < Duration::from_secs(30), "{:?}", killed.elapsed());
}
