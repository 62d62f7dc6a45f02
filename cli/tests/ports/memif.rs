//! `net_memif`: peers that end and come back, whichever side they are, and what they leave behind.

use crate::run::{LIMIT, json, spraywire};
use rustix::process::Signal;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use testbed_net::{Process, eventually};

/// A socket in a folder of its own.
struct Socket {
    folder: tempfile::TempDir,
}

impl Socket {
    fn new() -> Socket {
        Socket { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("memif.sock")
    }

    fn port(&self, role: &str) -> String {
        format!("net_memif0,role={role},id=0,socket={},socket-abstract=no", self.path().display())
    }

    fn start(&self, role: &str, args: &str) -> Process {
        Process::start(&mut spraywire(&self.port(role), args))
    }

    fn receiver(&self, role: &str) -> Process {
        let mut process = self.start(role, "ud recv -t 50 --ip 10.0.0.1 --qpn 0x20000 --json -v");
        process.wait_for("READY", LIMIT);
        process
    }

    /// Sends ten messages a second until it is killed.
    fn sender(&self, role: &str) -> Process {
        self.start(role, "ud send 10.0.0.1 --ip 10.0.0.2 --qpn 0x20000 -n 1k --interval 20ms --wait 30 -v")
    }
}

/// Messages that a receiver got, once it was told to stop.
fn received(recv: Process) -> u64 {
    recv.signal(Signal::INT);
    json(&recv.end(LIMIT).out)["summary"]["messages"].as_u64().unwrap()
}

/// Waits until messages come in.
fn until_it_receives(recv: &Process) {
    let got = || recv.said().concat().contains(" from 10.0.0.2 qp ");
    assert!(eventually(LIMIT, got), "nothing came: {:?}", recv.said());
}

/// The receiver is killed and started again; the sender goes on. Whichever of the two is the side that listens.
#[test]
fn a_peer_that_is_started_again_is_found_again() {
    for (receiver, sender) in [("server", "client"), ("client", "server")] {
        let socket = Socket::new();
        let (recv, send) = if receiver == "server" {
            let recv = socket.receiver(receiver);
            (recv, socket.sender(sender))
        } else {
            let send = socket.sender(sender);
            (socket.receiver(receiver), send)
        };
        until_it_receives(&recv);
        recv.kill();
        let recv = socket.receiver(receiver);
        until_it_receives(&recv);
        let seen = |text: &str| send.said()[1].contains(text);
        let seen = || seen("the link is down") && seen("the link is up");
        assert!(eventually(LIMIT, seen), "{:?}", send.said());
        send.signal(Signal::INT);
        let ended = send.end(LIMIT);
        assert_eq!(ended.code(), Some(130), "{ended:?}");
        assert!(ended.out.contains("the link was lost 1 time\n"), "{ended:?}");
        assert!(!ended.err.contains("ERROR"), "{}", ended.err);
        assert!(received(recv) > 0);
    }
}

/// The same with the sender, which is killed three times.
#[test]
fn a_receiver_takes_one_sender_after_the_other() {
    for (receiver, sender) in [("server", "client"), ("client", "server")] {
        let socket = Socket::new();
        let mut first = (receiver == "client").then(|| socket.sender(sender));
        let recv = socket.receiver(receiver);
        for (turn, qpn) in (0x30000..0x30003).enumerate() {
            let send = first.take().unwrap_or_else(|| {
                let args = format!("ud send 10.0.0.1 --ip 10.0.0.2 --src-qpn {qpn:#x} --qpn 0x20000 -n 1k --interval 20ms --wait 30");
                socket.start(sender, &args)
            });
            let seen = if qpn == 0x30000 && receiver == "client" {
                "0x010000".to_owned()
            } else {
                format!("{qpn:#08x}")
            };
            let got = || recv.said().concat().contains(&format!(" from 10.0.0.2 qp {seen} "));
            assert!(
                eventually(LIMIT, got),
                "{receiver}: nothing from {seen}: {:?} {:?}",
                recv.said(),
                send.said()
            );
            // Long enough for the receiver to have seen its link.
            let ups = turn + usize::from(receiver == "server");
            let up = || recv.said()[1].matches("the link is up").count() >= ups;
            assert!(eventually(LIMIT, up), "{receiver}: {:?}", recv.said());
            send.kill();
            let lost = || recv.said()[1].matches("the link is down").count() > turn;
            assert!(eventually(LIMIT, lost), "{receiver}: {:?}", recv.said());
        }
        recv.signal(Signal::INT);
        let report = json(&recv.end(LIMIT).out);
        assert_eq!(report["counters"]["link_lost"], 3, "{receiver}: {:#}", report["counters"]);
        assert!(report["counters"]["link_back"].as_u64().unwrap() >= 2);
    }
}

/// A server takes its socket away when it ends, a client leaves it to the server, and whoever is killed leaves it there.
#[test]
fn a_server_takes_its_socket_with_it() {
    let socket = Socket::new();
    let recv = socket.receiver("server");
    assert!(socket.path().exists());
    let send = socket.start("client", "ud send 10.0.0.1 --ip 10.0.0.2 --qpn 0x20000 -n 3 --wait 30");
    send.end(LIMIT).ok();
    assert!(socket.path().exists(), "the server is still there");
    assert_eq!(received(recv), 3);
    assert!(!socket.path().exists(), "after a signal");
    socket.start("server", "ud recv -t 0.1 --ip 10.0.0.1").end(LIMIT).ok();
    assert!(!socket.path().exists(), "after an end in time");
    socket.receiver("server").kill();
    assert!(socket.path().exists(), "a process that is killed can do nothing");
}

/// The driver listens to the peer on a thread of its own, which must not find what the end of the process has freed.
#[test]
fn both_sides_can_end_at_the_same_moment() {
    let socket = Socket::new();
    for _ in 0..8 {
        let recv = socket.receiver("server");
        let send = socket.sender("client");
        until_it_receives(&recv);
        for side in [&recv, &send] {
            side.signal(rustix::process::Signal::TERM);
        }
        for side in [recv, send] {
            let ended = side.end(LIMIT);
            assert_eq!(ended.code(), Some(130), "{ended:?}");
        }
        assert!(!socket.path().exists());
    }
}

#[test]
fn a_socket_left_behind_by_a_dead_server_is_in_nobodys_way() {
    let socket = Socket::new();
    // As a server that was killed leaves it: there is a file, and nobody listens.
    drop(UnixListener::bind(socket.path()).unwrap());
    assert!(socket.path().exists());
    let recv = socket.receiver("server");
    let send = socket.sender("client");
    until_it_receives(&recv);
    recv.kill();
    drop(send);
    assert!(socket.path().exists(), "killed without a chance to remove it");
    let recv = socket.receiver("server");
    let send = socket.sender("client");
    until_it_receives(&recv);
    drop(send);
    assert!(received(recv) > 0);
}

#[test]
fn a_socket_in_use_is_left_alone() {
    let socket = Socket::new();
    let recv = socket.receiver("server");
    let second = socket.start("server", "ud recv -t 1 --ip 10.0.0.1").end(LIMIT);
    assert_eq!(second.code(), Some(2), "{second:?}");
    assert!(second.err.contains("same role, id and socket"), "{}", second.err);
    let send = socket.sender("client");
    until_it_receives(&recv);
    drop(send);
    // A file that is no socket at all is not ours to remove.
    let other = Socket::new();
    std::fs::write(other.path(), "precious").unwrap();
    let refused = other.start("server", "ud recv -t 1 --ip 10.0.0.1").end(LIMIT);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert_eq!(std::fs::read_to_string(other.path()).unwrap(), "precious");
    assert!(Path::new(&socket.path()).exists());
}
