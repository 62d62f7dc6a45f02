//! Running the program in namespaces.

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use testbed_net::{Ended, Namespace, Process, Veth, veth};

/// No process of these tests takes longer for a step.
pub const LIMIT: Duration = Duration::from_secs(60);

/// `spraywire ARGS` with a port, outside of any namespace. `ud send` and `ud recv` are two words.
pub fn spraywire(port: &str, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    add_arguments(&mut command, port, &[], args);
    command
}

fn add_arguments(command: &mut Command, port: &str, ips: &[&str], args: &str) {
    let mut words = args.split_whitespace();
    let test = words.next().unwrap();
    command.arg(test).args((test == "ud").then(|| words.next().unwrap()));
    command.args(["--port", port]).args(ips.iter().flat_map(|ip| ["--ip", ip]));
    command.args(words).env_remove("RUST_LOG");
}

/// Two namespaces with an interface `e0` each, and between them one whose interfaces `l0` and `r0` are the other ends. For frames
/// of an IB MTU of 4096.
pub fn in_a_row() -> [Namespace; 3] {
    let [a, middle, b] = [(); 3].map(|()| Namespace::new());
    let mtu = Veth { mtu: 4200, ..Veth::default() };
    veth((&a, "e0"), (&middle, "l0"), mtu);
    veth((&b, "e0"), (&middle, "r0"), mtu);
    [a, middle, b]
}

/// The same, the middle a bridge `br0`.
pub fn bridged() -> [Namespace; 3] {
    let all = in_a_row();
    all[1].bridge("br0", 4200, &["l0", "r0"]);
    all
}

/// An end of a network: a namespace, the port in it, and the addresses of that port.
pub struct Side<'a> {
    pub namespace: &'a Namespace,
    pub port: &'a str,
    pub ips: &'a [&'a str],
}

impl Side<'_> {
    /// Starts `spraywire` on this side; `args` are the command and what comes behind the port.
    pub fn start(&self, args: &str) -> Process {
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_spraywire"));
        add_arguments(&mut command, self.port, self.ips, args);
        Process::start(&mut command)
    }

    /// Starts `ud recv` and waits until it is ready.
    pub fn receiver(&self, args: &str) -> Process {
        let mut process = self.start(&format!("ud recv {args}"));
        process.wait_for("READY", LIMIT);
        process
    }

    /// Starts `bw` or `lat` as a server and waits until it is ready.
    pub fn server(&self, args: &str) -> Process {
        let mut process = self.start(args);
        process.wait_for("waiting for a client", LIMIT);
        process
    }

    /// Runs the program without a port.
    pub fn run_bare(&self, args: &str) -> Ended {
        let mut command = self.namespace.command(env!("CARGO_BIN_EXE_spraywire"));
        command.args(args.split_whitespace()).env_remove("RUST_LOG");
        Process::start(&mut command).end(LIMIT)
    }

    /// Runs to the end.
    pub fn run(&self, args: &str) -> Ended {
        self.start(args).end(LIMIT)
    }
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Sends `count` messages of `size` bytes with every byte checked, to the first address of each family that `to` has.
pub fn messages_arrive(from: &Side, to: &Side, size: usize, count: usize) {
    for ip in to.ips {
        let recv = to.receiver(&format!("-t 50 -n {count} --verify incr --qpn 0x123456"));
        let ip = ip.split('/').next().unwrap();
        let sent = from
            .run(&format!("ud send {ip} --qpn 0x123456 -s {size} -n {count} --rate 2kpps --linger 200ms"));
        assert!(sent.ok().starts_with(&format!("{count} messages of {size} bytes sent to {ip} ")));
        let text = recv.end(LIMIT).ok();
        let sum = format!("{count} messages received, {} bytes, 0 not as expected\n", size * count);
        assert!(text.ends_with(&sum), "{text}");
    }
}

/// Runs `bw` with `args` from one side to the other and returns the client's only result.
pub fn bw(from: &Side, to: &Side, args: &str) -> Value {
    let server = to.server("bw --service ud");
    let ip = to.ips[0].split('/').next().unwrap();
    let text = from.run(&format!("bw {ip} --service ud --json {args}")).ok();
    server.end(LIMIT).ok();
    json(&text)["results"][0].take()
}
