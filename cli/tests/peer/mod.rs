//! A Linux Soft-RoCE guest on a bridge in a network namespace of its own, and our endpoint on the same bridge. The namespace,
//! the guest and what runs in them are gone when the value is dropped.

use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use testbed_net::{Namespace, Process};

/// The guest's addresses.
pub const GUEST: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// Our addresses.
pub const OURS: [&str; 2] = ["10.77.0.9", "fd77::9"];
/// Our port: a veth whose other end is on the bridge.
pub const IFACE: &str = "ep0";
/// A second such port, for frames that neither side sends by itself.
pub const INJECT: &str = "inj0";
/// What anything may take that usually takes a second: the guest's CPU is emulated, and the machine shared.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The namespace with its guest.
pub struct Peer {
    ns: Namespace,
    folder: tempfile::TempDir,
}

/// The folder of the testbed.
fn testbed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed")
}

/// Standard output of a command that must end well.
fn good(what: &str, output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{out}{error}", output.status);
    out
}

impl Peer {
    /// Builds the guest if that was not done yet, boots it, and makes ports for us. `None` without root.
    pub fn start(test: &str) -> Option<Peer> {
        if !testbed_net::allowed(test) {
            return None;
        }
        let build = Command::new(testbed().join("rxe-peer/build.sh")).stdin(Stdio::null()).output().unwrap();
        good("building the guest", &build);
        let peer = Peer { ns: Namespace::new(), folder: tempfile::tempdir().unwrap() };
        let ns = peer.ns.name();
        peer.script(&["net-up", "--ns", ns, "--mtu", "9000"]);
        peer.script(&["port", IFACE, "--ns", ns, "--mtu", "9000", "--mac", "02:00:00:00:00:09"]);
        peer.script(&["port", INJECT, "--ns", ns, "--mtu", "9000"]);
        let [v4, v6] = GUEST.map(|addr| format!("{addr}/{}", if addr.contains(':') { 64 } else { 24 }));
        let started = ["start", "g", "--ns", ns, "--ip4", &v4, "--ip6", &v6, "--mtu", "9000"];
        peer.script(&[&started[..], &["--timeout", &limit()]].concat());
        Some(peer)
    }

    /// A file in this peer's own folder.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn rxe_peer(&self, args: &[&str]) -> Output {
        let mut command = Command::new(testbed().join("rxe-peer/rxe-peer"));
        command.args(args).env("RXE_STATE", self.folder.path()).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn script(&self, args: &[&str]) -> String {
        good(&format!("rxe-peer {args:?}"), &self.rxe_peer(args))
    }

    /// Runs a shell line in the guest.
    pub fn guest(&self, line: &str) -> String {
        self.script(&["exec", "g", "--timeout", &limit(), "--", line])
    }

    /// Sets the guest's MTU, from which its IB MTU follows.
    pub fn guest_mtu(&self, mtu: u16, ib_mtu: u16) {
        self.guest(&format!("ip link set eth0 mtu {mtu}"));
        let info = self.guest("ibv_devinfo | grep active_mtu");
        assert!(info.split_whitespace().any(|word| word == ib_mtu.to_string()), "{info}");
        // Setting an MTU below IPv6's and back loses its address; here it only has to be told the new MTU.
        self.guest("ip route flush cache; ip -6 route flush cache; ip neigh flush dev eth0; true");
    }

    /// Starts a verbs program in the guest that says READY; its job number, and its queue pair's.
    pub fn background(&self, line: &str) -> (String, u32) {
        let out = self.script(&["bg", "g", "--until", "READY", "--timeout", &limit(), "--", line]);
        let (job, ready) = out.split_once('\n').unwrap();
        let qpn = fields(ready).get("qpn").copied().unwrap_or_default();
        (job.to_owned(), u32::from_str_radix(qpn.trim_start_matches("0x"), 16).unwrap())
    }

    /// Starts a program in the guest that listens at a TCP port; its job number.
    pub fn server(&self, line: &str, port: u16) -> String {
        let out = self.script(&["bg", "g", "--timeout", &limit(), "--", line]);
        let job = out.lines().next().unwrap_or_default().to_owned();
        let listens = || self.guest("ss -ltn").contains(&format!(":{port} "));
        assert!(testbed_net::eventually(PATIENCE, listens), "{line}: {}", self.end(&job));
        job
    }

    /// The index of the guest's GID that stands for an address.
    pub fn gid_index(&self, addr: &str) -> u32 {
        let out = self.guest("ibv_devinfo -v | grep GID");
        let line = out
            .lines()
            .find(|line| line.split([' ', ',', '\t']).any(|word| word.trim_start_matches("::ffff:") == addr));
        let index = line.and_then(|line| line.split(['[', ']']).nth(1)?.trim().parse().ok());
        index.unwrap_or_else(|| panic!("no GID of {addr}: {out}"))
    }

    /// Gives the kernel of the namespace an address on the bridge.
    pub fn kernel_address(&self, addr: &str) {
        self.ns.address("br0", &format!("{addr}/24"));
    }

    /// Whether something in the namespace waits for connections at a TCP port.
    pub fn listens(&self, port: u16) -> bool {
        // State 0A of the kernel's <net/tcp_states.h>.
        let table = self.ns.sh("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null");
        table.lines().any(|line| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A "))
    }

    /// The end of a job: what it printed.
    pub fn end(&self, job: &str) -> String {
        let output = self.rxe_peer(&["out", "g", job, "--wait", "--timeout", &limit()]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The guest's counters, by name.
    pub fn counters(&self) -> HashMap<String, u64> {
        const PROBE: &str = "cd /sys/class/infiniband/rxe0/ports/1/hw_counters; \
             for f in *; do echo $f $(cat $f); done; \
             ibv_devinfo -v | sed -n 's/.*\\(bad_pkey_cntr\\|qkey_viol_cntr\\):\\s*/\\1 /p'; \
             set -- $(sed -n 's/^Udp: //p' /proc/net/snmp | tail -n 1); echo udp $1; \
             echo udp6 $(sed -n 's/^Udp6InDatagrams *//p' /proc/net/snmp6)";
        let parse = |value: &str| match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        };
        let out = self.guest(PROBE);
        out.lines()
            .filter_map(|l| l.split_once(' '))
            .filter_map(|(k, v)| Some((k.to_owned(), parse(v)?)))
            .collect()
    }

    /// Starts `spraywire` in the namespace with our addresses.
    pub fn spraywire(&self, args: &str) -> Process {
        self.command(&format!("{args} {}", OURS.map(|addr| format!("--ip {addr}")).join(" ")))
    }

    /// Starts `spraywire` in the namespace with exactly these arguments.
    pub fn command(&self, args: &str) -> Process {
        let mut command = self.ns.command(env!("CARGO_BIN_EXE_spraywire"));
        Process::start(command.args(args.split_whitespace()).env_remove("RUST_LOG"))
    }

    /// Puts the tap device `dt0`, once the program has made it, on the bridge. A bridge takes the MAC address of its port's
    /// kernel interface for its own and would keep what is sent to it; so that interface gets another one.
    pub fn attach_tap(&self) {
        // The last thing done to a port that is opened; its start sets the MAC address once more.
        let all_multicast = || {
            let flags = self.ns.sh("cat /sys/class/net/dt0/flags 2>/dev/null || echo 0x0");
            u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).is_ok_and(|f| f & 0x200 != 0)
        };
        assert!(testbed_net::eventually(PATIENCE, all_multicast), "the program made no tap device dt0");
        self.ns.ip("link set dt0 address 02:00:00:00:00:0a");
        self.ns.ip("link set dt0 master br0 mtu 9000 up");
    }

    /// Sends a packet of a capture again, with a bit turned that only the ICRC covers.
    pub fn replay_flipped(&self, times: u32, to: u32, pcap: &str) {
        let script = testbed().join("rxe-peer/replay.py");
        let mut command = self.ns.command("python3");
        command.arg(script).args(["--flip", "-n", &times.to_string(), "--to", &to.to_string(), INJECT, pcap]);
        good("replay.py", &command.output().unwrap());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.rxe_peer(&["stop", "g"]).status.success() {
            eprintln!("could not stop the guest in namespace {}", self.ns.name());
        }
    }
}

/// [`PATIENCE`] in seconds.
fn limit() -> String {
    PATIENCE.as_secs().to_string()
}

/// The `key=value` fields of a line.
pub fn fields(line: &str) -> HashMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

/// Our receiver, once it has said READY.
pub struct Receiver {
    process: Process,
    report: String,
}

impl Receiver {
    /// Starts `spraywire ud recv` with `args` and a report; `meanwhile` runs while it starts.
    pub fn start(peer: &Peer, args: &str, meanwhile: impl FnOnce()) -> Receiver {
        let report = peer.file("recv.json");
        let _ = std::fs::remove_file(&report);
        let mut process = peer.spraywire(&format!("ud recv {args} --json={report}"));
        meanwhile();
        process.wait_for("READY ", PATIENCE);
        Receiver { process, report }
    }

    /// Waits for the end, and has its exit code and its report.
    pub fn end(self) -> (Option<i32>, Value) {
        let ended = self.process.end(PATIENCE);
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        let report = serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
        (ended.code(), report)
    }

    /// Asks it to end, and has its report.
    pub fn stop(self) -> Value {
        self.process.signal(rustix::process::Signal::TERM);
        self.end().1
    }
}

/// A packet of a capture, as the independent decoder of the testbed has it.
pub struct Packet {
    fields: Value,
}

impl Packet {
    /// A number of it.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.fields[key].as_u64()
    }

    /// Its payload.
    pub fn payload(&self) -> Vec<u8> {
        let hex = self.fields["payload"].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }
}

/// The RoCEv2 packets of a capture. The independent decoder has checked the ICRC of each, and Wireshark's has found neither
/// a packet of them that it does not know nor a malformed one.
pub fn judged(pcap: &str) -> Vec<Packet> {
    let out =
        Command::new("python3").arg(testbed().join("icrc_check.py")).args(["-j", pcap]).output().unwrap();
    let text = good("icrc_check.py", &out);
    let packets: Vec<Packet> =
        text.lines().map(|l| Packet { fields: serde_json::from_str(l).unwrap() }).collect();
    assert!(packets.iter().all(|p| p.fields["ok"] == true), "{pcap}");

    let tshark = |filter: &str| {
        // A payload that begins like some protocol's is no packet of that protocol.
        let quiet = ["--disable-protocol", "infiniband.eoib"];
        let fields = ["-T", "fields", "-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.col.Info"];
        let mut command = Command::new("tshark");
        command.args(["-n", "-r", pcap, "-Y", filter]).args(quiet).args(fields).stdin(Stdio::null());
        good("tshark", &command.output().unwrap()).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let known = tshark("infiniband && udp.dstport == 4791");
    assert_eq!(known.len(), packets.len(), "{pcap}: RoCEv2 packets by tshark and by ours");
    // RoCEv2 sends no UDP checksum, which tshark holds against any packet over IPv6.
    let bad = tshark(
        "_ws.malformed || _ws.short || (_ws.expert.severity == error && !(udp.checksum == 0)) || \
         ip.checksum.status == \"Bad\"",
    );
    assert!(bad.is_empty(), "{pcap}: tshark finds fault with {} frames, first {:?}", bad.len(), bad[0]);
    packets
}
