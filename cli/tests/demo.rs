//! `spraywire demo`, as a user runs it: no root, no NIC, no hugepages, nothing prepared.
#![cfg(feature = "dpdk")]

mod common;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No process of these tests lives longer.
const LIMIT: &str = "60";

/// The program where another user can run it, and a folder where it may write. Every test begins with it.
struct Program {
    folder: tempfile::TempDir,
    copied: Arc<common::Copied>,
}

impl Program {
    fn new() -> Program {
        use std::os::unix::fs::PermissionsExt;
        let copied = common::copied();
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Program { folder, copied }
    }

    /// The demo, as nobody if the test runs as root; `under` goes in front.
    fn demo(&self, under: &[&str], args: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT]).args(under);
        if rustix::process::getuid().is_root() {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        }
        command
            .arg(&self.copied.path)
            .arg("demo")
            .args(args.split_whitespace())
            .current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
        // Where the sockets of `spraywire stats` are for a user without a session: in a folder that no other test has made.
        command
            .env("TMPDIR", self.folder.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("SPRAYWIRE_RUNTIME_DIR");
        command
    }

    fn run(&self, args: &str) -> Output {
        self.demo(&[], args).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Files of this program or of DPDK where either might leave some.
fn traces(program: &Program) -> BTreeSet<String> {
    let folders = [
        program.folder.path(),
        "/tmp".as_ref(),
        "/run/dpdk".as_ref(),
        "/dev/shm".as_ref(),
        "/dev/hugepages".as_ref(),
    ];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let names = files.map(|file| file.path().display().to_string());
    names.filter(|name| ["spraywire", "dpdk", "rte", "memif"].iter().any(|n| name.contains(n))).collect()
}

#[test]
fn a_table_of_every_size_and_nothing_left_behind() {
    let program = Program::new();
    let before = traces(&program);
    let output = program.run("-D 200ms");
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{errors}");
    assert_eq!(traces(&program), before);
    let lines: Vec<&str> = out.lines().collect();
    for heading in [
        "size",
        "msg/s",
        "Gbit/s",
        "p50",
        "p99",
        "p99.9",
        "lost",
        "drops",
        "ICRC errors",
        "sent again",
        "needlessly",
        "control",
    ] {
        assert!(lines[0].contains(heading), "{out}");
    }
    for (line, size) in lines[1..].iter().zip(["64 B", "4 KiB", "64 KiB", "1 MiB"]) {
        assert!(line.trim_start().starts_with(size), "{out}");
        assert!(line.ends_with(" %"), "the share of control: {out}");
    }
    let last = lines.last().unwrap();
    for part in ["net_memif", "IB MTU 4096", "workers inline on core", "DPDK 2", "half of the round trip"] {
        assert!(last.contains(part), "{part}: {last}");
    }
    assert!(errors.contains("[1/8] throughput of 64 B for 200 ms\n"), "{errors}");
    // Nothing is lost over memory: what is received is what was sent.
    let lost = |line: &str| line.split_whitespace().rev().nth(6).map(str::to_owned);
    assert!(lines[1..5].iter().all(|line| lost(line).as_deref() == Some("0")), "{out}");
    assert!(errors.contains("[8/8] latency of 1 MiB for 200 ms\n"), "{errors}");
}

#[test]
fn json_has_every_figure_and_the_capture_is_right() {
    let program = Program::new();
    let output =
        program.run("--service ud -D 100ms -s 64,1k -m 1024 --worker thread --json --pcap demo.pcap");
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!((&report["schema"], &report["command"]), (&"spraywire/1".into(), &"demo".into()));
    assert_eq!((&report["ok"], &report["interrupted"]), (&true.into(), &false.into()));
    let environment = &report["environment"];
    assert_eq!((&environment["driver"], &environment["worker"]), (&"net_memif".into(), &"thread".into()));
    assert!(environment["dpdk"].as_str().unwrap().starts_with("DPDK 2"), "{environment}");
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let mut messages = 0.0;
    for (result, size) in results.iter().zip([64.0, 1024.0]) {
        assert_eq!(number(&result["size"]), size);
        let there = &result["throughput"];
        let [sent, received, lost] = ["sent", "received", "lost"].map(|name| number(&there[name]));
        assert!(received > 0.0 && sent == received + lost, "{there}");
        let rate = number(&there["messages_per_second"]);
        assert!((number(&there["goodput_bits_per_second"]) / (rate * size * 8.0) - 1.0).abs() < 1e-6);
        let drops: f64 = result["drops"].as_object().unwrap().values().map(number).sum();
        assert!(lost <= drops, "every loss is a drop that was counted: {result:#}");
        assert_eq!((&result["icrc_errors"], &result["unexplained"]), (&0.into(), &0.into()));
        let half = &result["latency"]["half_rtt_ns"];
        assert!(number(&half["p50"]) > 0.0 && number(&half["p50"]) <= number(&half["p99_9"]), "{half}");
        messages += sent;
    }
    let pcap = program.folder.path().join("demo.pcap");
    let inspect = Command::new(&program.copied.path)
        .args(["inspect", "--json", "--summary"])
        .arg(pcap)
        .output()
        .unwrap();
    let summary = &json(&inspect)["summary"]["roce"];
    assert_eq!(inspect.status.code(), Some(0));
    assert!(
        number(&summary["icrc_ok"]) > messages && summary["icrc_ok"] == summary["packets"],
        "{summary:#}"
    );
}

#[test]
fn one_core_is_enough() {
    let program = Program::new();
    let core = dataplane::idle::allowed_cores()[0].to_string();
    let output = program.demo(&["taskset", "-c", &core], "-D 200ms -s 64 --json").output().unwrap();
    let (report, errors) = (json(&output), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("WARN only 1 core:"), "{errors}");
    assert_eq!(report["environment"]["client_cores"], report["environment"]["server_cores"]);
    assert!(number(&report["results"][0]["throughput"]["received"]) > 0.0);
}

#[test]
fn what_cannot_be_is_refused() {
    let program = Program::new();
    for (args, expected) in [
        ("--service ud -s 8192", "8192 bytes do not fit the IB MTU of 4096"),
        ("--service ud -s 2k -m 1024", "2048 bytes do not fit the IB MTU of 1024"),
        ("-s x", "`x` is no size"),
        ("-D 0", "at least a millisecond"),
        ("--cores 9999", "9999"),
        ("--pcap /nonexistent/x.pcap", "/nonexistent/x.pcap"),
        ("--eal=--no-such-option", "--no-such-option"),
    ] {
        let output = program.run(args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {errors}");
        assert!(errors.contains("spraywire: error: ") || errors.starts_with("error: "), "{args}: {errors}");
        assert!(errors.contains(expected), "{args}: {errors}");
    }
}

/// A demo in the middle of its tests, and its server process; killed if a test fails.
struct Running {
    child: Child,
    server: Pid,
    errors: BufReader<std::process::ChildStderr>,
    said: String,
}

impl Running {
    /// Starts one whose first tests are short, and waits for the third.
    fn start(program: &Program, args: &str) -> Running {
        // Without a wrapper, so that signals reach the demo itself.
        let mut command = Command::new(&program.copied.path);
        command.arg("demo").args(args.split_whitespace()).env_remove("RUST_LOG");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("[3/") {
            assert!(errors.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let server: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Running { child, server: Pid::from_raw(server).unwrap(), errors, said }
    }

    fn end(mut self) -> (Option<i32>, String, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(50), "the demo does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let mut said = std::mem::take(&mut self.said);
        self.errors.read_to_string(&mut said).unwrap();
        assert!(!is_alive(self.server), "the server outlives the demo");
        (status.code(), out, said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process whose parent is gone may stay as a zombie where nobody collects it: that one has ended.
fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn a_signal_gives_the_rows_so_far() {
    let program = Program::new();
    let demo = Running::start(&program, "-D 1 -s 64,256,1k,4k");
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&demo.child), Signal::INT).unwrap();
    let (code, out, said) = demo.end();
    assert_eq!(code, Some(130), "{out}{said}");
    let rows: Vec<&str> = out.lines().filter(|line| line.contains(" B  ")).collect();
    assert_eq!(rows.len(), 2, "the first size, and what there is of the second: {out}{said}");
    assert!(!said.contains("error"), "{said}");
}

#[test]
fn a_server_that_dies_is_named() {
    let program = Program::new();
    let demo = Running::start(&program, "-D 2 -s 64,256");
    let server = demo.server;
    kill_process(server, Signal::KILL).unwrap();
    let (code, out, said) = demo.end();
    assert_eq!(code, Some(1), "{out}{said}");
    let named = format!("the server process {} was killed by signal 9", server.as_raw_nonzero());
    assert!(said.contains(&named), "{said}");
    assert!(out.lines().nth(1).unwrap_or_default().starts_with(" 64 B") || out.contains("64 B"), "{out}");
}

#[test]
fn a_server_does_not_outlive_its_parent() {
    let program = Program::new();
    let mut demo = Running::start(&program, "-D 1 -s 64,256");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    let start = Instant::now();
    while is_alive(demo.server) {
        assert!(start.elapsed() < Duration::from_secs(20), "the server stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_closed_output_is_no_failure_of_the_demo() {
    let program = Program::new();
    let mut child = program.demo(&[], "-D 50ms -s 64 --json=demo.json").spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("error"), "{}", text(&output.stderr));
    let report = std::fs::read(program.folder.path().join("demo.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["ok"], true, "the file is there all the same");
}
