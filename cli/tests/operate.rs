//! Running endpoints as their operators see them: `stats`, metrics, configuration files, and ending without loss.
#![cfg(feature = "dpdk")]

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(60);

/// A user's folder for sockets, and the sockets of memif.
struct Site {
    runtime: tempfile::TempDir,
    socket: String,
}

impl Site {
    fn new() -> Site {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let private = fs::Permissions::from_mode(0o700);
        let runtime = tempfile::Builder::new().permissions(private).tempdir().unwrap();
        Site { runtime, socket: format!("spw-op-{}-{number}", std::process::id()) }
    }

    fn spraywire(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
        command.env("SPRAYWIRE_RUNTIME_DIR", self.runtime.path()).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn port(&self, role: &str) -> String {
        format!("net_memif0,role={role},id=0,socket={}", self.socket)
    }

    /// A receiver that has said READY.
    fn receiver(&self, args: &[&str]) -> Receiver {
        let mut command = self.spraywire();
        command.args(["ud", "recv", "--port", &self.port("server"), "--ip", "10.0.0.1"]).args(args);
        let mut child = command.spawn().unwrap();
        // With JSON on standard output, the text is on standard error.
        let from: Box<dyn Read + Send> = if args.contains(&"--json") {
            Box::new(child.stderr.take().unwrap())
        } else {
            Box::new(child.stdout.take().unwrap())
        };
        let mut lines = BufReader::new(from);
        let mut line = String::new();
        while !line.starts_with("READY ") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "no READY");
        }
        Receiver { child, _lines: lines }
    }

    fn sender(&self, args: &str) -> Command {
        let mut command = self.spraywire();
        command.args([
            "ud",
            "send",
            "10.0.0.1",
            "--qpn",
            "0x10000",
            "--ip",
            "10.0.0.2",
            "--port",
            &self.port("client"),
        ]);
        command.args(args.split_whitespace());
        command
    }

    fn stats(&self, args: &[&str]) -> Output {
        self.spraywire().arg("stats").args(args).output().unwrap()
    }
}

struct Receiver {
    child: Child,
    /// Kept open, or it would end for want of a reader.
    _lines: BufReader<Box<dyn Read + Send>>,
}

impl Receiver {
    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Asks it to end, as systemd does, and waits for that.
    fn terminate(&mut self) -> Option<i32> {
        terminate(&self.child);
        wait(&mut self.child)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(start.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", stderr(output)))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asks until `is` says that it is so.
fn until<T>(mut ask: impl FnMut() -> T, is: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let answer = ask();
        if is(&answer) || start.elapsed() > LIMIT {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn stats_tell_what_an_endpoint_received() {
    let site = Site::new();
    let output = site.stats(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no endpoint runs"), "{}", stderr(&output));

    let mut receiver = site.receiver(&["--name", "sink"]);
    assert!(site.sender("-n 5 --pattern text:hello").output().unwrap().status.success());
    let counters = |report: &Value| report["endpoints"][0]["workers"][0]["ports"][0]["counters"].clone();
    let report = until(|| json(&site.stats(&["sink", "--json"])), |r| counters(r)["delivered"] == 5);
    let counted = counters(&report);
    assert_eq!(
        (counted["delivered"].as_u64(), counted["delivered_bytes"].as_u64()),
        (Some(5), Some(25)),
        "{report:#}"
    );
    let dropped: u64 = counted["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    let sum = ["delivered", "neighbour", "echo", "ignored"]
        .map(|f| counted[f].as_u64().unwrap())
        .iter()
        .sum::<u64>();
    assert_eq!(counted["rx_packets"].as_u64(), Some(sum + dropped), "{report:#}");
    let endpoint = &report["endpoints"][0];
    assert_eq!(endpoint["pid"].as_u64(), Some(receiver.child.id().into()));
    let qp = &endpoint["workers"][0]["qps"][0];
    assert_eq!(
        (qp["qpn"].as_u64(), qp["received"].as_u64(), qp["state"].as_str()),
        (Some(0x10000), Some(5), Some("rts"))
    );
    // Those of net_memif begin anew with each connection, so only that there are any can be said.
    assert!(endpoint["workers"][0]["ports"][0]["driver_counters"]["rx_packets"].is_u64(), "{report:#}");

    // By its number, and for people.
    let output = site.stats(&[&receiver.pid()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("sink, since") && text.contains("delivered 5,"),
        "{text}"
    );
    let output = site.stats(&["other"]);
    assert!(stderr(&output).contains("(sink)"), "it says who there is: {}", stderr(&output));

    assert_eq!(receiver.terminate(), Some(130));
    assert_eq!(fs::read_dir(site.runtime.path()).unwrap().count(), 0, "its socket is gone with it");
}

#[test]
fn stats_of_a_worker_in_a_thread_of_its_own() {
    let site = Site::new();
    let mut server = site.spraywire();
    server.args([
        "bw",
        "--service",
        "ud",
        "--worker",
        "thread",
        "--port",
        &site.port("server"),
        "--ip",
        "10.0.0.1",
    ]);
    let mut server = server.spawn().unwrap();
    // It can be asked a moment before it has its queue pair.
    let has_its_own = |output: &Output| {
        output.status.success() && json(output)["endpoints"][0]["workers"][0]["qp_count"] == 1
    };
    let report = until(|| site.stats(&["--json"]), has_its_own);
    terminate(&server);
    assert_eq!(wait(&mut server), Some(130));
    let worker = &json(&report)["endpoints"][0]["workers"][0];
    assert_eq!(
        (worker["answers"].as_bool(), worker["qp_count"].as_u64()),
        (Some(true), Some(1)),
        "{worker:#}"
    );
}

#[test]
fn sockets_of_killed_processes_are_cleared_away() {
    let site = Site::new();
    let mut receiver = site.receiver(&[]);
    let socket = site.runtime.path().join(format!("{}.sock", receiver.pid()));
    assert!(socket.exists());
    receiver.child.kill().unwrap();
    receiver.child.wait().unwrap();
    assert!(socket.exists(), "it had no time to remove it");
    assert_eq!(site.stats(&[]).status.code(), Some(1));
    assert!(!socket.exists());
}

/// A port that is free now.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn metrics_are_served_on_the_loopback() {
    let site = Site::new();
    let addr = free();
    let mut receiver = site.receiver(&[&format!("--metrics={addr}")]);
    assert!(site.sender("-n 3").output().unwrap().status.success());
    let scrape = || {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let delivered = "spraywire_rx_packets_total{worker=\"0\",port=\"net_memif0\",fate=\"delivered\"} 3\n";
    let text = until(scrape, |text| text.contains(delivered));
    assert!(text.contains(delivered) && text.ends_with("# EOF\n"), "{text}");
    assert_eq!(receiver.terminate(), Some(130));

    let mut public = site.spraywire();
    public.args(["ud", "recv", "--port", "net_null0", "--ip", "10.0.0.1", "--metrics=0.0.0.0:0"]);
    let output = public.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--metrics-public"), "{}", stderr(&output));
}

/// A signal between receiving and reporting loses nothing: what the worker delivered is what the report has.
#[test]
fn an_end_by_a_signal_loses_no_completion() {
    let site = Site::new();
    let mut receiver = site.receiver(&["--json", "--quiet"]);
    let mut sender = site.sender("-n 100000000 -s 64 --json").spawn().unwrap();
    // Whatever it reads must be read, or it would wait for us.
    let out = receiver.child.stdout.take().unwrap();
    let report =
        std::thread::spawn(move || serde_json::from_reader::<_, Value>(BufReader::new(out)).unwrap());
    std::thread::sleep(Duration::from_millis(700));
    terminate(&receiver.child);
    assert_eq!(wait(&mut receiver.child), Some(130));
    terminate(&sender);
    let report = report.join().unwrap();
    let messages = report["summary"]["messages"].as_u64().unwrap();
    assert!(messages > 0, "{}", report["summary"]);
    assert_eq!(report["counters"]["delivered"].as_u64(), Some(messages));
    assert_eq!(report["results"].as_array().unwrap().len() as u64, messages);
    assert_eq!(report["interrupted"], true);

    // The sender reports what the port took, no more and no less.
    let mut text = String::new();
    sender.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(wait(&mut sender), Some(130));
    let sent: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(sent["counters"]["tx_packets"], sent["results"][0]["messages"], "{sent:#}");
    assert!(sent["results"][0]["messages"].as_u64().unwrap() >= messages, "{sent:#}");
}

/// What DPDK's telemetry socket answers to a command: a message each way, after one that introduces DPDK.
fn telemetry(socket: &Path, command: &str) -> Option<Value> {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
    let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket).unwrap()).ok()?;
    let mut buf = vec![0; 1 << 16];
    rustix::net::recv(&fd, &mut buf[..], RecvFlags::empty()).ok()?;
    rustix::net::send(&fd, command.as_bytes(), SendFlags::empty()).ok()?;
    let (n, _) = rustix::net::recv(&fd, &mut buf[..], RecvFlags::empty()).ok()?;
    serde_json::from_slice(&buf[..n]).ok()
}

#[test]
fn dpdks_telemetry_has_our_commands() {
    let site = Site::new();
    let name = format!("op-{}", site.socket);
    let runtime = if rustix::process::getuid().is_root() {
        Path::new("/var/run/dpdk").to_owned()
    } else {
        site.runtime.path().join("dpdk")
    };
    let mut command = site.spraywire();
    command.env("XDG_RUNTIME_DIR", site.runtime.path());
    command.args([
        "ud",
        "recv",
        "--telemetry",
        "--name",
        &name,
        "--port",
        &site.port("server"),
        "--ip",
        "10.0.0.1",
    ]);
    let mut receiver = command.spawn().unwrap();
    let socket = runtime.join(&name).join("dpdk_telemetry.v2");
    let ask = |command: &str| until(|| telemetry(&socket, command), Option::is_some).unwrap();
    let commands =
        until(|| ask("/"), |all| all["/"].as_array().is_some_and(|a| a.contains(&"/spraywire/port".into())));
    assert!(commands["/"].as_array().unwrap().contains(&"/spraywire/qp".into()), "{commands}");
    assert!(site.sender("-n 4").output().unwrap().status.success());
    let port = until(|| ask("/spraywire/port"), |a| a["/spraywire/port"]["delivered"] == 4);
    assert_eq!(port["/spraywire/port"]["delivered"], 4, "{port}");
    assert_eq!(port["/spraywire/port"]["dropped/icrc"], 0, "{port}");
    assert_eq!(ask("/spraywire/qp,0")["/spraywire/qp"]["received"], 4);
    assert_eq!(ask("/spraywire/qp,9")["/spraywire/qp"], Value::Null, "there is one");
    terminate(&receiver);
    assert_eq!(wait(&mut receiver), Some(130));
    assert!(!runtime.join(&name).exists(), "nothing is left behind");
}

/// Two with one name would take each other's socket away; one that was killed has left it, and hinders nobody.
#[test]
fn a_name_of_telemetry_is_one_endpoints_at_a_time() {
    let site = Site::new();
    let name = format!("twice-{}", site.socket);
    let start = || {
        let mut command = site.spraywire();
        command.env("XDG_RUNTIME_DIR", site.runtime.path());
        command.args([
            "ud",
            "recv",
            "--telemetry",
            "--name",
            &name,
            "--port",
            "net_ring0",
            "--ip",
            "10.0.0.1",
        ]);
        command.spawn().unwrap()
    };
    let runtime = if rustix::process::getuid().is_root() {
        Path::new("/var/run/dpdk").to_owned()
    } else {
        site.runtime.path().join("dpdk")
    };
    let socket = runtime.join(&name).join("dpdk_telemetry.v2");
    let answers =
        || until(|| telemetry(&socket, "/spraywire/qp"), |a| a.as_ref().is_some_and(|a| a.is_object()));
    let mut first = start();
    assert!(answers().is_some(), "the first");
    let second = start().wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(stderr(&second).contains(&name) && stderr(&second).contains("--name"), "{}", stderr(&second));
    assert!(telemetry(&socket, "/spraywire/qp").is_some(), "the first goes on");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(telemetry(&socket, "/spraywire/qp").is_none());
    let mut third = start();
    assert!(answers().is_some(), "the third");
    terminate(&third);
    assert_eq!(wait(&mut third), Some(130));
    assert!(!runtime.join(&name).exists(), "nothing is left behind");
}

/// Clients of the metrics that are slow, endless or many cost the endpoint nothing, and keep nobody out.
#[test]
fn rude_clients_of_the_metrics_hurt_nobody() {
    let site = Site::new();
    let addr = free();
    let mut receiver = site.receiver(&[&format!("--metrics={addr}")]);
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", receiver.pid())).unwrap();
        let of = |what: &str| {
            status
                .lines()
                .find_map(|l| l.strip_prefix(what)?.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap()
        };
        (of("VmRSS:"), of("Threads:"))
    };
    let (before, threads) = resident();
    let connect = || {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut endless = connect();
    endless.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let sent = (0..1_000).take_while(|_| endless.write_all(&b"a: b\r\n".repeat(10_000)).is_ok()).count();
    assert!(sent < 1_000, "60 megabytes of headers were taken");
    let slow: Vec<TcpStream> = (0..400).map(|_| connect()).collect();
    let mut greedy = connect();
    let asked =
        (0..100_000).take_while(|_| greedy.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").is_ok()).count();
    assert!(asked < 100_000, "a connection has one answer");
    let mut honest = connect();
    let start = Instant::now();
    honest.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    honest.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("# EOF\n") && start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let (after, threads_after) = resident();
    assert!(after < before + 16 * 1024, "{before} KiB became {after}");
    assert_eq!(threads_after, threads);
    drop(slow);
    assert_eq!(receiver.terminate(), Some(130));
}

fn config(site: &Site, text: &str) -> String {
    let path = site.runtime.path().join("x.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_says_what_flags_would() {
    let site = Site::new();
    let text = format!(
        "mtu = 2200\n[ud.recv]\nport = \"{}\"\nip = [\"10.0.0.1\", \"fd77::1\"]\ncount = 1\nquiet = true\n[ud.send]\nport = \"{}\"\nip = \"10.0.0.2\"\nqpn = 0x10000\n",
        site.port("server"),
        site.port("client")
    );
    let file = config(&site, &text);
    let mut receiver = site.spraywire().args(["ud", "recv", "--config", &file]).spawn().unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap());
    let mut ready = String::new();
    lines.read_line(&mut ready).unwrap();
    assert!(ready.contains("addr 10.0.0.1,fd77::1 ") && ready.contains("mtu 2048"), "{ready}");
    let output = site.spraywire().args(["ud", "send", "10.0.0.1", "--config", &file]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(wait(&mut receiver), Some(0), "one message, as the file asks");
}

#[test]
fn a_slip_in_a_file_ends_the_command_before_it_began() {
    let site = Site::new();
    let run = |text: &str| {
        let file = config(&site, text);
        let output = site.spraywire().args(["bw", "--config", &file]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let error = run("[bw]\nrates = \"10g\"\n");
    assert!(
        error.contains("unknown key `rates` in [bw]") && error.contains("did you mean `rate`?"),
        "{error}"
    );
    // A value is judged as that of the flag is.
    let error = run("mtu = \"large\"\n");
    assert!(error.contains("'large'") && error.contains("come from") && error.contains("x.toml"), "{error}");
}

/// systemd finds nothing to say about the unit, where it is there to be asked.
#[test]
fn systemd_takes_the_unit() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/spraywire.service");
    let text = fs::read_to_string(unit).unwrap();
    let site = Site::new();
    let verify = |text: &str| {
        let path = site.runtime.path().join("spraywire.service");
        fs::write(&path, text.replace("/usr/local/bin/spraywire", env!("CARGO_BIN_EXE_spraywire"))).unwrap();
        Command::new("systemd-analyze").arg("verify").arg(&path).output()
    };
    let Ok(output) = verify(&text) else {
        eprintln!("systemd_takes_the_unit did not run: there is no systemd-analyze");
        return;
    };
    let said = stderr(&output);
    assert!(output.status.success() && !said.contains("spraywire.service"), "{said}");
    // It would say so.
    let said = stderr(&verify(&text.replace("RestartSec=", "RestartSecs=")).unwrap());
    assert!(said.contains("RestartSecs"), "{said}");
}

/// The unit that comes with the program starts a command that there is, with a configuration that it takes.
#[test]
fn the_systemd_unit_starts_what_there_is() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let unit = fs::read_to_string(docs.join("spraywire.service")).unwrap();
    let line = unit.lines().find_map(|l| l.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<String> = line.split_whitespace().skip(1).map(str::to_owned).collect();
    let place = words.iter().position(|w| w == "--config").unwrap() + 1;
    assert!(words[place].starts_with("/etc/spraywire/"), "{line}");
    let site = Site::new();
    let mut words = words.clone();
    // The example's port, but one that is there without privileges.
    let text = fs::read_to_string(docs.join("spraywire.toml")).unwrap();
    let port = text.lines().find(|l| l.starts_with("port = ")).unwrap();
    let metrics = text.lines().find(|l| l.starts_with("metrics = ")).unwrap();
    let text =
        text.replace(port, "port = \"net_null0\"").replace(metrics, &format!("metrics = \"{}\"", free()));
    words[place] = config(&site, &text);
    let mut child = site.spraywire().args(&words).args(["-t", "100ms"]).spawn().unwrap();
    let code = wait(&mut child);
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(code, Some(0), "{error}");
}
