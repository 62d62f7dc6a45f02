//! What a running endpoint answers, and who may ask: tests of the data plane's part, which need a worker that runs.

use super::runtime;
use super::tests::Running;
use dataplane::group::MemberCounters;
use dataplane::observe::document;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

#[test]
fn the_sum_of_fates_is_what_was_received() {
    let running = Running::start("x");
    let value = document::of(&running.probe);
    assert_eq!((value["name"].as_str(), value["pid"].as_u64()), (Some("x"), Some(std::process::id().into())));
    let worker = &value["workers"][0];
    assert_eq!((worker["answers"].as_bool(), worker["qp_count"].as_u64()), (Some(true), Some(1)));
    let port = &worker["ports"][0];
    assert_eq!((port["driver"].as_str(), port["addrs"][0].as_str()), (Some("memory"), Some("192.0.2.1")));
    let counters = &port["counters"];
    assert_eq!((counters["rx_packets"].as_u64(), counters["delivered"].as_u64()), (Some(1), Some(0)));
    let dropped: u64 = counters["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(dropped, 1, "{value:#}");
    assert_eq!(port["driver_counters"]["rx_packets"], 1);
    assert_eq!((&counters["link_lost"], &port["queue"]), (&0.into(), &Value::Null), "{value:#}");
    assert_eq!(
        (worker["qps"][0]["qpn"].as_u64(), worker["qps"][0]["state"].as_str()),
        (Some(0x10000), Some("rts"))
    );
}

#[test]
fn the_queue_of_one_of_several_is_told() {
    let counts = MemberCounters {
        queue: Some(1),
        rx: 5,
        tx: 4,
        steered_in: 3,
        steered_out: 2,
        steer_full: 1,
        ..Default::default()
    };
    let expected = json!({ "index": 1, "rx_packets": 5, "tx_packets": 4, "steered_in": 3, "steered_out": 2, "steer_full": 1 });
    assert_eq!(document::queue(&counts), expected);
    assert_eq!(document::queue(&MemberCounters::default())["index"], Value::Null, "others poll for it");
}

#[test]
fn a_worker_that_does_not_answer_says_nothing_wrong() {
    let mut running = Running::start("x");
    running.end();
    let value = document::of(&running.probe);
    let worker = &value["workers"][0];
    assert_eq!((worker["answers"].as_bool(), &worker["qps"]), (Some(false), &Value::Null));
    assert_eq!(worker["ports"][0].get("counters"), None, "{value:#}");
}

fn private() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

#[test]
fn an_endpoint_answers_while_it_lives_and_leaves_nothing() {
    let folder = private();
    let running = Running::start("here");
    // One that had our number was killed.
    drop(UnixListener::bind(folder.path().join(format!("{}.sock", std::process::id()))).unwrap());
    let socket =
        runtime::Socket::serve(folder.path(), &running.probe, &dataplane::idle::allowed_cores()).unwrap();
    let found = runtime::endpoints(folder.path());
    assert_eq!(found, [(std::process::id(), folder.path().join(format!("{}.sock", std::process::id())))]);
    for _ in 0..3 {
        let value = runtime::ask(&found[0].1).unwrap();
        assert_eq!(
            (value["name"].as_str(), value["workers"][0]["answers"].as_bool()),
            (Some("here"), Some(true))
        );
    }
    drop(socket);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn sockets_of_the_dead_are_removed() {
    let folder = private();
    let path = folder.path().join("4000000.sock");
    drop(UnixListener::bind(&path).unwrap());
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    // Somebody's, though not one of ours: whoever cannot be asked is not dead for that.
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let other = folder.path().join("4000001.sock");
    let alive = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&alive, &SocketAddrUnix::new(&other).unwrap()).unwrap();
    listen(&alive, 1).unwrap();
    assert_eq!(runtime::endpoints(folder.path()), [(4_000_001, other.clone())]);
    assert!(runtime::ask(&other).is_err() && other.exists());
    assert!(!path.exists());
    assert!(folder.path().join("notes.txt").exists(), "not ours to remove");
}

#[test]
fn a_folder_open_to_others_is_refused() {
    let folder = private();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let running = Running::start("x");
    let error = runtime::Socket::serve(folder.path(), &running.probe, &[]).err().unwrap();
    assert!(error.to_string().contains("chmod 700"), "{error}");
    let link = folder.path().join("link");
    let elsewhere = private();
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    assert!(
        runtime::prepare(elsewhere.path()).is_ok() && runtime::prepare(&link).is_err(),
        "a link may lead anywhere"
    );
}

#[test]
fn who_does_not_read_holds_nobody_up() {
    let folder = private();
    let running = Running::start("x");
    let _socket = runtime::Socket::serve(folder.path(), &running.probe, &[]).unwrap();
    let path = &runtime::endpoints(folder.path())[0].1;
    let _silent: Vec<_> = (0..5).map(|_| UnixStream::connect(path).unwrap()).collect();
    assert!(runtime::ask(path).is_ok());
}

#[test]
fn a_crowd_is_answered_in_no_time_and_with_what_is_true() {
    let folder = private();
    let mut running = Running::start("x");
    let _socket = runtime::Socket::serve(folder.path(), &running.probe, &[]).unwrap();
    let path = runtime::endpoints(folder.path())[0].1.clone();
    let start = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(runtime::ask(&path).unwrap()["workers"][0]["answers"], true);
    }
    // A look at a worker takes it twenty milliseconds at the most, and the test's own rounds one.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    running.end();
    std::thread::sleep(2 * runtime::FRESH);
    assert_eq!(
        runtime::ask(&path).unwrap()["workers"][0]["answers"],
        false,
        "what was true before is forgotten"
    );
}
