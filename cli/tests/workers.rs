//! `spraywire bw` with several workers, between two processes over shared memory, as a user runs it.
#![cfg(feature = "dpdk")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// No process of these tests lives longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A side that runs, killed when the test is done with it.
struct Side {
    child: Child,
    said: String,
}

impl Side {
    fn start(role: &str, socket: &str, args: &str) -> Side {
        let ip = if role == "server" { "10.0.0.1" } else { "10.0.0.2" };
        let device = format!("net_memif0,role={role},id=0,socket={socket}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
        command.args(["bw", "--service", "ud", "--port", &device, "--ip", ip]).args(args.split_whitespace());
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut side = Side { child: command.spawn().unwrap(), said: String::new() };
        if role == "server" {
            let mut errors = BufReader::new(side.child.stderr.take().unwrap());
            while !side.said.contains("waiting for a client") {
                assert!(errors.read_line(&mut side.said).unwrap() > 0, "the server ended: {}", side.said);
            }
            side.child.stderr = Some(errors.into_inner());
        }
        side
    }

    fn end(mut self) -> (ExitStatus, String, String) {
        let start = Instant::now();
        let (mut out, mut errors) = (self.child.stdout.take().unwrap(), self.child.stderr.take().unwrap());
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            text
        });
        let mut said = std::mem::take(&mut self.said);
        let said = std::thread::spawn(move || {
            errors.read_to_string(&mut said).unwrap();
            said
        });
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, read.join().unwrap(), said.join().unwrap());
            }
            assert!(start.elapsed() < LIMIT, "a process does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ok(self) -> (String, String) {
        let (status, out, errors) = self.end();
        assert!(status.success(), "{status}: {out}{errors}");
        (out, errors)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pair(server: &str, client: &str) -> (Side, Side) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let socket = format!("spw-workers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let server = Side::start("server", &socket, server);
    (server, Side::start("client", &socket, &format!("10.0.0.1 {client}")))
}

/// Runs both sides; their reports, the server's first.
fn both(server: &str, client: &str) -> [Value; 2] {
    let (server, client) = pair(server, client);
    let client = client.ok().0;
    [server.ok().0, client].map(|text| serde_json::from_str(&text).unwrap())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A column of the table of workers.
fn column(report: &Value, name: &str) -> Vec<u64> {
    report["queues"]["workers"].as_array().unwrap().iter().map(|w| number(&w[name])).collect()
}

#[test]
fn two_workers_over_two_queues_share_the_messages() {
    let [server, client] = both("--json --workers 2", "--json --workers 2 -n 20001 -s 64 -b");
    for report in [&server, &client] {
        let result = &report["results"][0];
        assert_eq!((&result["iters"], report["results"].as_array().unwrap().len()), (&20_001.into(), 1));
        let there = &result["client_to_server"];
        assert_eq!(
            (&there["sent"], &there["received"], &there["lost"]),
            (&20_001.into(), &20_001.into(), &0.into())
        );
        let queues = &report["queues"];
        assert_eq!((&queues["count"], &queues["uneven"]), (&2.into(), &Value::Null));
        assert_eq!(queues["rss"], serde_json::json!({ "ip": false, "udp_ports": false }));
        // Over memif a sender's queue is the receiver's: each worker has its half, and a few control messages.
        for (rx, half) in column(report, "rx_packets").into_iter().zip([10_001, 10_000]) {
            assert!((half..half + 200).contains(&rx), "{queues:#}");
        }
        assert_eq!(column(report, "steered_out"), [0, 0], "{queues:#}");
    }
    assert_eq!(client["results"][0]["server_to_client"]["received"], 20_001);
    // What one side's queue sent, the other's received, but for the last words of who ended first.
    for (tx, rx) in column(&client, "tx_packets").into_iter().zip(column(&server, "rx_packets")) {
        assert!(tx >= rx && tx - rx < 100, "{tx} {rx}");
    }
}

#[test]
fn three_workers_on_one_queue_get_each_message_by_steering() {
    let [server, client] =
        both("--json --workers 3 --queues 1", "--json --workers 3 --queues 1 -n 30000 -s 200 --rate 60kpps");
    let there = &client["results"][0]["client_to_server"];
    let dropped: u64 = there["drops"].as_object().unwrap().values().map(number).sum();
    assert_eq!((number(&there["sent"]), number(&there["lost"])), (30_000, dropped), "{there:#}");
    assert_eq!(client["results"][0]["requested_messages_per_second"], 60_000);
    let queues = &server["queues"];
    let workers = queues["workers"].as_array().unwrap();
    assert_eq!(
        workers.iter().map(|w| &w["queue"]).collect::<Vec<_>>(),
        [&Value::from(0), &Value::Null, &Value::Null]
    );
    let [rx, out, inward, full] =
        ["rx_packets", "steered_out", "steered_in", "steer_full"].map(|name| column(&server, name));
    assert!(rx[0] >= 30_000 && rx[1..] == [0, 0], "{queues:#}");
    assert!(out[0] + full[0] >= 20_000, "two thirds are of workers without a queue: {queues:#}");
    assert_eq!(out[0], inward[1] + inward[2], "{queues:#}");
    let lent = column(&client, "tx_for_others");
    assert!(lent[0] >= 20_000 && column(&client, "tx_packets")[0] >= 30_000, "{:#}", client["queues"]);
}

#[test]
fn the_text_has_a_row_for_each_worker_and_no_warning_of_an_even_spread() {
    let (server, client) = pair("--workers 2", "--workers 2 -n 6000 -s 64 -b --rate 30kpps");
    for (text, errors) in [client.ok(), server.ok()] {
        let share = |line: &str| line.split(" %").next()?.split_whitespace().last()?.parse::<u32>().ok();
        let shares: Vec<u32> = text.lines().filter(|l| l.contains(" %")).filter_map(share).collect();
        // Half of the messages each, and a few words between the sides.
        assert!(shares.len() == 2 && shares.iter().all(|s| (40..=60).contains(s)), "{text}");
        assert!(text.contains("handed over") && text.contains("dropped between"), "{text}");
        assert!(!errors.contains("of what the port receives"), "both queues have half: {errors}");
    }
}

#[test]
fn sides_that_do_not_fit_say_so() {
    let (_server, client) = pair("--workers 2 --queues 1", "-n 10 --wait 20");
    let (status, out, errors) = client.end();
    assert_eq!(status.code(), Some(2), "{out}{errors}");
    assert!(errors.contains("the server has --workers 2, the client 1"), "{errors}");

    let (_server, client) = pair("--workers 2", "--workers 2 --queues 1 -n 10 --wait 2");
    let (status, out, errors) = client.end();
    assert_eq!(status.code(), Some(1), "{out}{errors}");
    assert!(errors.contains("number of queues"), "{errors}");

    for (args, why) in [
        ("--workers 2 --queues 3", "--queues up to --workers"),
        ("--workers 2 --worker thread", "leave --worker out"),
        ("10.0.0.1 --workers 4 -n 3", "-n 4"),
        ("--workers 65", "1..=64"),
        ("--workers 0", "1..=64"),
    ] {
        let (status, _, errors) = Side::start("none", "spw-none", args).end();
        assert_eq!(status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains(why), "{args}: {errors}");
    }
}

#[test]
fn a_signal_ends_all_workers_and_the_report_has_what_was_measured() {
    use rustix::process::{Pid, Signal, kill_process};
    let (server, client) = pair("--json --workers 2", "--json --workers 2 -D 60 -s 64 --rate 20kpps");
    std::thread::sleep(Duration::from_secs(3));
    kill_process(Pid::from_child(&client.child), Signal::INT).unwrap();
    let (status, out, errors) = client.end();
    assert_eq!(status.code(), Some(130), "{out}{errors}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let there = &report["results"][0]["client_to_server"];
    assert_eq!((&report["interrupted"], &there["lost"]), (&true.into(), &0.into()), "{report:#}");
    assert!(number(&there["received"]) > 1000, "{there:#}");
    let server: Value = serde_json::from_str(&server.ok().0).unwrap();
    assert_eq!(server["results"][0]["client_to_server"]["received"], there["received"]);
}
