//! `spraywire wan` between two endpoints, over shared memory: no root, no network.
#![cfg(feature = "dpdk")]

use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testbed_net::Process;

/// No process of these tests lives longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A network of two sockets that no other test uses, with a forwarder between them.
struct Wan {
    forwarder: Process,
    sockets: [String; 2],
}

fn spraywire(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    command
}

impl Wan {
    fn start(args: &str) -> Wan {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let sockets = ["left", "right"].map(|side| format!("spw-wan-{}-{n}-{side}", std::process::id()));
        let ports = [0, 1].map(|i| format!("--port net_memif{i},role=server,socket={}", sockets[i]));
        let mut forwarder = Process::start(&mut spraywire(&format!("wan {} {} {args}", ports[0], ports[1])));
        let ready = forwarder.wait_for("READY", LIMIT);
        assert!(ready.contains("net_memif0 <-> net_memif1: delay"), "{ready}");
        Wan { forwarder, sockets }
    }

    /// Starts a command at one side.
    fn at(&self, side: usize, args: &str) -> Process {
        let port = format!("--port net_memif0,role=client,socket={}", self.sockets[side]);
        Process::start(&mut spraywire(&format!("{args} {port} --ip 192.0.2.{}", side + 1)))
    }

    /// Runs `test` from the second side to the first; the client's report.
    fn run(&self, test: &str, args: &str) -> Value {
        let server = self.at(0, test);
        let report = self.at(1, &format!("{test} {args} --json 192.0.2.1")).end(LIMIT).ok();
        server.end(LIMIT).ok();
        serde_json::from_str(&report).unwrap()
    }

    /// Stops the forwarder; what it says of the way to the first side.
    fn end(self) -> Value {
        self.forwarder.signal(Signal::INT);
        let report: Value = serde_json::from_str(&self.forwarder.end(LIMIT).ok()).unwrap();
        assert_eq!(report["command"], "wan");
        let ways = report["results"].as_array().unwrap();
        let number = |way: &Value, name: &str| way[name].as_u64().unwrap();
        for way in ways {
            // Every frame has one fate.
            let fates: u64 = ["lost", "black_out", "queue_full", "no_room", "sent", "under_way"]
                .iter()
                .map(|f| number(way, f))
                .sum();
            assert_eq!(number(way, "received") + number(way, "duplicated"), fates, "{way:#}");
        }
        ways[1].clone()
    }
}

#[test]
fn the_round_trip_is_as_long_as_asked() {
    // There is time for at most 100 round trips, fewer than tests by count make before they measure.
    for test in ["lat --service ud", "lat"] {
        let wan = Wan::start("--delay 5ms --json=/dev/null");
        let report = wan.run(test, "-s 64 -D 1");
        let latency = &report["results"][0]["latency"];
        let half = |name: &str| latency["half_rtt_ns"][name].as_f64().expect("a time");
        // What others do on the machine makes single trips longer, and none shorter.
        assert!((5e6..10e6).contains(&half("min")), "{test}: {latency}");
        assert!(half("p50") < 30e6, "{test}: {latency}");
        // A tenth of the time goes to warming up.
        let trips = latency["round_trips"].as_u64().unwrap();
        assert!((1..=91).contains(&trips), "{test}: {latency}");
    }
}

#[test]
fn as_many_are_lost_as_asked_and_all_are_accounted_for() {
    let wan = Wan::start("--loss 10% --json");
    // The two sides agree by messages that are lost too, and repeat them.
    let report = wan.run("bw --service ud", "-s 512 -n 4000 --rate 4kpps");
    let way = &report["results"][0]["client_to_server"];
    let (sent, received) = (way["sent"].as_u64().unwrap(), way["received"].as_u64().unwrap());
    assert_eq!(sent, 4000);
    // Six standard deviations of 4000 draws at 10 %.
    assert!((3600 - 114..=3600 + 114).contains(&received), "{received} of 4000");
    let fates = wan.end();
    assert!(fates["lost"].as_u64().unwrap() >= 4000 - received, "{fates:#}");
}

#[test]
fn a_bent_bit_is_found_by_the_receiver() {
    let wan = Wan::start("--corrupt 20% --one-way --json");
    // From the first port to the second only: the server's side sends little that way, so turn the test around.
    let server = wan.at(1, "bw --service ud");
    let client = wan.at(0, "bw 192.0.2.2 --service ud -s 1024 -n 2000 --rate 2kpps --json");
    let report: Value = serde_json::from_str(&client.end(LIMIT).ok()).unwrap();
    server.end(LIMIT).ok();
    let way = &report["results"][0]["client_to_server"];
    let received = way["received"].as_u64().unwrap();
    assert!((1600 - 108..=1600 + 108).contains(&received), "{received} of 2000: {way:#}");
    let icrc = way["drops"]["icrc"].as_u64().unwrap_or_default();
    // Most bits are the payload's; some are of addresses and ports.
    assert!(icrc > 200, "{way:#}");
}

#[test]
fn the_bottleneck_is_as_narrow_as_asked() {
    let wan = Wan::start("--rate 100Mbit --queue 200KB --json");
    let report = wan.run("bw --service ud", "-s 1024 -D 2 --rate 300M");
    let way = &report["results"][0]["client_to_server"];
    let goodput = way["goodput_bits_per_second"].as_f64().unwrap();
    // 1024 of 1086 bytes of each frame are payload.
    let most = 1e8 * 1024.0 / 1086.0;
    assert!(goodput < most * 1.05 && goodput > most * 0.5, "{goodput} of {most}");
    let fates = wan.end();
    assert!(fates["queue_full"].as_u64().unwrap() > 1000, "{fates:#}");
}

#[test]
fn what_is_no_pair_of_ports_is_refused() {
    for (args, words) in [
        ("wan --port net_memif0", "1 port given"),
        ("wan --port net_memif0 --port net_memif0,role=client", "both ports are net_memif0"),
        ("wan --port net_memif0 --port net_memif1 --loss 10% --burst 0.5", "bursts of 0.5"),
        ("wan --port net_memif0 --port net_nosuch1", "net_nosuch1"),
    ] {
        let ended = Process::start(&mut spraywire(args)).end(LIMIT);
        assert_eq!(ended.code(), Some(2), "{args}: {ended:?}");
        assert!(ended.err.contains(words), "{words} in {}", ended.err);
    }
}
