//! `spraywire ud` between two processes over shared memory, as a user runs it: no root, no NIC, no hugepages.
#![cfg(feature = "dpdk")]

mod common;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The program where another user can run it. Every test begins with it.
struct Program(Arc<common::Copied>);

impl Program {
    fn new() -> Program {
        Program(common::copied())
    }

    /// The program, as nobody if the test runs as root.
    fn unprivileged(&self) -> Command {
        let is_root = rustix::process::getuid().is_root();
        let mut command = if is_root {
            let mut setpriv = Command::new("setpriv");
            setpriv
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
                .arg(&self.0.path);
            setpriv
        } else {
            Command::new(&self.0.path)
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
        command
    }
}

/// A socket that no other test uses.
fn device(role: &str, socket: u32) -> String {
    format!("net_memif0,role={role},id=0,socket=spw-ud-{}-{socket}", std::process::id())
}

fn next_socket() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A receiver that has said READY; killed if a test fails.
struct Receiver {
    child: Child,
    lines: BufReader<ChildStdout>,
    ready: String,
}

impl Receiver {
    fn start(program: &Program, socket: u32, args: &str) -> Receiver {
        let mut child = program
            .unprivileged()
            .args(["ud", "recv", "--ip", "10.0.0.1", "--ip", "fd77::1", "--port", &device("server", socket)])
            .args(args.split_whitespace())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        lines.read_line(&mut ready).unwrap();
        if !ready.starts_with("READY ") {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{ready}{error}");
        }
        Receiver { child, lines, ready }
    }

    /// The exit code and the rest of the output, within a minute.
    fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the receiver does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        (status.code(), rest)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(program: &Program, socket: u32, args: &str) -> Output {
    let mut command = program.unprivileged();
    command
        .args(["ud", "send", "--ip", "10.0.0.2", "--ip", "fd77::2", "--port", &device("client", socket)])
        .args(args.split_whitespace());
    command.output().unwrap()
}

fn ok(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{error}");
    assert_eq!(error, "", "nothing to say on standard error");
    out.into_owned()
}

#[test]
fn messages_cross_with_every_field() {
    let program = Program::new();
    let socket = next_socket();
    let receiver = Receiver::start(&program, socket, "--qpn 0xabcdef -n 100 -t 50 --verify incr");
    assert!(
        receiver
            .ready
            .starts_with("READY qpn 0xabcdef qkey 0x11111111 pkey 0xffff addr 10.0.0.1,fd77::1 mac "),
        "{}",
        receiver.ready
    );
    assert!(receiver.ready.ends_with(" mtu 4096\n"), "{}", receiver.ready);
    let sent = send(&program, socket, "10.0.0.1 --qpn 0xabcdef -n 100 -s 4096 --imm 7 -e --src-qpn 0x10001");
    assert_eq!(ok(&sent), "100 messages of 4096 bytes sent to 10.0.0.1 qp 0xabcdef from qp 0x010001\n");
    let (code, text) = receiver.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("    1 from 10.0.0.2 qp 0x010001 len 4096 imm 0x00000007 solicited ok\n"),
        "{text}"
    );
    assert!(text.ends_with("100 messages received, 409600 bytes, 0 not as expected\n"), "{text}");
}

#[test]
fn over_ipv6_with_captures_that_inspect_agrees_with() {
    let program = Program::new();
    let socket = next_socket();
    let folder = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let pcap = |name: &str| folder.path().join(name).display().to_string();
    let receiver =
        Receiver::start(&program, socket, &format!("-n 7 -t 50 --qkey 0x80000005 --pcap {}", pcap("recv")));
    let args =
        format!("fd77::1 --qpn 0x10000 -n 7 -s 33 -k 0x80000005 --psn 0xfffffe --pcap {}", pcap("send"));
    ok(&send(&program, socket, &args));
    let (code, text) = receiver.end();
    assert_eq!(code, Some(0), "{text}");
    for side in ["recv", "send"] {
        let output = Command::new(env!("CARGO_BIN_EXE_spraywire"))
            .args(["inspect", "--json", &pcap(side)])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{side}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["summary"]["roce"]["icrc_ok"], 7, "{side}: {report:#}");
        // Solicitation and advertisement, at least.
        assert!(report["summary"]["other"]["icmpv6"].as_u64().unwrap() >= 2, "{side}: {report:#}");
        let psns: Vec<u64> =
            report["results"].as_array().unwrap().iter().map(|r| r["psn"].as_u64().unwrap()).collect();
        assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0, 1, 2, 3, 4], "{side}");
        let first = &report["results"][0];
        assert_eq!(first["extensions"]["deth"]["qkey"], 0x8000_0005u32, "{side}");
        assert_eq!((&first["payload_len"], &first["pad"]), (&33.into(), &3.into()), "{side}");
    }
}

#[test]
fn what_is_dropped_is_told_and_the_wait_ends() {
    let program = Program::new();
    let socket = next_socket();
    let receiver = Receiver::start(&program, socket, "-n 2 -t 5 --qpn 0x20");
    ok(&send(&program, socket, "10.0.0.1 --qpn 0x21 -n 3"));
    let (code, text) = receiver.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("0 messages received, 0 bytes, 2 missing\n"), "{text}");
    assert!(text.contains("dropped: unknown_qpn 3\n"), "{text}");
}

#[test]
fn a_sender_without_a_receiver_says_so() {
    let program = Program::new();
    let output = send(&program, next_socket(), "10.0.0.1 --qpn 2 --wait 300ms");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with("spraywire: error: ") && error.contains("role=server"), "{error}");
}

#[test]
fn a_sender_that_is_first_waits_for_its_receiver() {
    let program = Program::new();
    let socket = next_socket();
    let early = program
        .unprivileged()
        .args(["ud", "send", "10.0.0.1", "--qpn", "0x10000", "--wait", "40", "--ip", "10.0.0.2"])
        .args(["--port", &device("client", socket)])
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let receiver = Receiver::start(&program, socket, "-t 50 -n 1");
    ok(&early.wait_with_output().unwrap());
    let (code, text) = receiver.end();
    assert_eq!(code, Some(0), "{text}");
}

/// A memif server listens before it is ready, and turns away who comes in between.
#[test]
fn a_sender_that_is_turned_away_tries_again() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use rustix::net::{accept, bind, listen, socket_with};
    let program = Program::new();
    let number = next_socket();
    let name = format!("spw-ud-{}-{number}", std::process::id());
    // Not for the children to hold on to.
    let flags = SocketFlags::CLOEXEC;
    let server = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&server, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&server, 1).unwrap();
    let early = program
        .unprivileged()
        .args(["ud", "send", "10.0.0.1", "--qpn", "0x10000", "--wait", "40", "--ip", "10.0.0.2"])
        .args(["--port", &device("client", number)])
        .spawn()
        .unwrap();
    drop(accept(&server).unwrap());
    drop(server);
    let receiver = Receiver::start(&program, number, "-t 50 -n 1");
    ok(&early.wait_with_output().unwrap());
    let (code, text) = receiver.end();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_server_that_refuses_is_told_from_none() {
    let program = Program::new();
    let socket = next_socket();
    let _receiver = Receiver::start(&program, socket, "-t 50 -n 1 --mtu 1500");
    let refused = send(&program, socket, "10.0.0.1 --qpn 0x10000 --wait 1");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(error.contains("another --mtu") && error.contains("has a client already"), "{error}");
    let missing = send(&program, next_socket(), "10.0.0.1 --qpn 0x10000 --wait 1");
    let error = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{error}");
    assert!(error.contains("found no memif server") && !error.contains("another --mtu"), "{error}");
}

#[test]
fn refusals_name_the_mend() {
    let program = Program::new();
    let run = |args: &str| {
        let output = program.unprivileged().arg("ud").args(args.split_whitespace()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        error
    };
    let long = run("send 10.0.0.1 --qpn 2 -s 4097");
    assert!(long.contains("4097 bytes do not fit one UD packet") && long.contains("is 4096"), "{long}");
    let small = run("send 10.0.0.1 --qpn 2 -s 513 -m 512");
    assert!(small.contains("513 bytes") && small.contains("-m"), "{small}");
    assert!(run("recv --port net_null0").contains("--ip"));
    assert!(run("recv --port net_nosuch0 --ip 10.0.0.1").contains("net_nosuch0"));
    // No port at all: where drivers were looked for, what was asked for, what to do.
    let none = run("recv --port 52:54:00:00:00:99 --ip 10.0.0.1");
    assert!(none.contains("Drivers are loaded from /") && none.contains("asked for: none"), "{none}");
    assert!(none.contains("net_memif0,role=server"), "{none}");
    let raw = run("recv --port net_af_packet0,iface=lo --ip 10.0.0.1");
    assert!(raw.contains("CAP_NET_RAW") && raw.contains("net_memif"), "{raw}");
    assert!(run("recv --port net_null0 --ip 10.0.0.1 --qpn 0xffffff").contains("0xffffff"));
    assert!(run("recv --port net_null0 --ip 10.0.0.1 --mtu 1500 -m 4096").contains("--mtu"));
    assert!(
        run("recv --port net_null0 --ip 10.0.0.1 --pcap /nonexistent/x.pcap").contains("/nonexistent/x.pcap")
    );
    assert!(run("send 10.0.0.1 --qpn 0x1000000").contains("0xffffff"));
    assert!(run("send 10.0.0.1 --qpn 2 -n 0").contains("-n 1 or more"));
}

#[test]
fn a_signal_ends_it_with_a_report() {
    let program = Program::new();
    let receiver = Receiver::start(&program, next_socket(), "-t 50 -n 5");
    let pid = rustix::process::Pid::from_child(&receiver.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (code, text) = receiver.end();
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("0 messages received, 0 bytes, 5 missing"), "{text}");
}

#[test]
fn idle_costs_next_to_nothing_unless_asked_to_spin() {
    let program = Program::new();
    let seconds = |receiver: &Receiver| {
        // User and system time, in ticks of a hundredth of a second.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", receiver.child.id())).unwrap();
        let after = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    };
    let share = |args: &str| {
        let receiver = Receiver::start(&program, next_socket(), args);
        std::thread::sleep(Duration::from_millis(500));
        let (before, start) = (seconds(&receiver), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        (seconds(&receiver) - before) / start.elapsed().as_secs_f64()
    };
    let idle = share("-t 50");
    assert!(idle < 0.05, "{idle}");
    // Of whatever the other tests leave of the machine, which now and then is next to nothing.
    let shares: Vec<f64> =
        (0..5).map(|_| share("-t 50 --idle spin")).take_while(|share| *share <= 0.15).collect();
    assert!(shares.len() < 5, "{shares:?}, idle {idle}");
}

#[test]
fn one_core_is_enough_and_measuring_on_it_is_warned_of() {
    let program = Program::new();
    let core = dataplane::idle::allowed_cores()[0].to_string();
    let socket = next_socket();
    let mut child = Command::new("timeout")
        .args(["60", "taskset", "-c", &core])
        .arg(&program.0.path)
        .args(["bw", "--ip", "10.0.0.1", "--port", &device("server", socket)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove("RUST_LOG")
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let warning = said.next().unwrap().unwrap();
    let waits = said.next().unwrap().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(warning.contains("WARN only 1 core:"), "{warning}");
    assert!(waits.contains("waiting for a client at 10.0.0.1"), "{waits}");
}
