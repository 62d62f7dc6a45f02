//! Both ends of a test, as processes of a user's.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// No process of these tests lives longer.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What measures time has the machine for itself, as far as these tests are concerned; the others run side by side.
static MACHINE: RwLock<()> = RwLock::new(());

pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

pub fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A socket that no other test uses.
pub fn next_socket() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub fn device(role: &str, socket: u32) -> String {
    format!("net_memif0,role={role},id=0,socket=spw-bw-{}-{socket}", std::process::id())
}

/// The tests are of raw UD unless their arguments name another service, or `default`.
pub fn command(role: &str, socket: u32, ips: [&str; 2], args: &str) -> Command {
    let args = match args.strip_prefix("default ") {
        Some(args) => args.to_owned(),
        None if args.contains("--service") => args.to_owned(),
        None => format!("{args} --service ud"),
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    let (test, rest) = args.split_once(' ').unwrap_or((&args, ""));
    command.args([test, "--port", &device(role, socket), "--ip", ips[0], "--ip", ips[1]]);
    command.args(rest.split_whitespace()).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is killed when a test is done with it.
pub struct End {
    pub child: Child,
    errors: Option<BufReader<ChildStderr>>,
    said: String,
}

impl End {
    pub fn start(mut command: Command) -> End {
        let mut child = command.spawn().unwrap();
        let errors = child.stderr.take().map(BufReader::new);
        End { child, errors, said: String::new() }
    }

    /// A server that waits for its client.
    pub fn server(socket: u32, args: &str) -> End {
        End::serving(command("server", socket, ["10.0.0.1", "fd77::1"], args))
    }

    /// The same by a command.
    pub fn serving(command: Command) -> End {
        let mut end = End::start(command);
        let errors = end.errors.as_mut().unwrap();
        while !end.said.contains("waiting for a client") {
            assert!(errors.read_line(&mut end.said).unwrap() > 0, "the server ended: {}", end.said);
        }
        end
    }

    pub fn client(socket: u32, args: &str) -> End {
        End::start(command("client", socket, ["10.0.0.2", "fd77::2"], args))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; its exit status, output and errors.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let start = Instant::now();
        let mut out = self.child.stdout.take().unwrap();
        // A long report must not fill the pipe.
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            text
        });
        let mut errors = self.errors.take().unwrap();
        let mut said = std::mem::take(&mut self.said);
        let errors = std::thread::spawn(move || {
            errors.read_to_string(&mut said).unwrap();
            said
        });
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LIMIT, "a process does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        (status, reader.join().unwrap(), errors.join().unwrap())
    }

    pub fn ok(self) -> String {
        let (status, out, errors) = self.end();
        assert!(status.success(), "{status}: {out}{errors}");
        out
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Runs both sides; their reports, the server's first.
pub fn both(server: &str, client: &str) -> [Value; 2] {
    let socket = next_socket();
    let server = End::server(socket, server);
    let client = End::client(socket, client).ok();
    [json(&server.ok()), json(&client)]
}

pub fn results(report: &Value) -> &Vec<Value> {
    report["results"].as_array().unwrap()
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// User and system time so far, in seconds: ticks of a hundredth.
pub fn cpu_seconds(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Waits until traffic flows: until the process has worked for a while.
pub fn wait_for_work(end: &End) {
    let start = Instant::now();
    let before = cpu_seconds(&end.child);
    while cpu_seconds(&end.child) < before + 0.3 {
        assert!(start.elapsed() < LIMIT, "nothing happens");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
}

pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}
