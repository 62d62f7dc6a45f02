//! Debian's own verbs programs over our endpoints: `spraywire verbs` with two processes on shared memory, and on a pair of
//! interfaces between two network namespaces.
#![cfg(feature = "dpdk")]

#[path = "common/stats.rs"]
mod stats;

use stats::{fates, stats};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testbed_net::{Ended, Namespace, Process, Veth, eventually, veth};

/// Nothing here takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A TCP port that nobody has just now, for what the programs tell each other.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The arguments of a memif port that no other test has.
fn memif(role: &str, socket: u32) -> String {
    format!("net_memif0,role={role},id=0,socket=spw-verbs-{}-{socket}", std::process::id())
}

fn next_socket() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `spraywire verbs` with these flags in front of `--`; it runs wherever `command` makes it run.
fn verbs(mut command: Command, flags: &str, line: &str) -> Process {
    command.arg("verbs").args(flags.split_whitespace()).arg("--").args(line.split_whitespace());
    Process::start(command.env_remove("RUST_LOG").env_remove("SPRAYWIRE_LOG"))
}

fn here() -> Command {
    Command::new(env!("CARGO_BIN_EXE_spraywire"))
}

/// A folder of this user's alone, as sockets of endpoints want it.
fn private() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

/// Two endpoints that reach each other, and how the programs on them do.
struct Pair {
    flags: [String; 2],
    namespaces: Option<[Namespace; 2]>,
    /// The server's address for what the programs tell each other.
    host: &'static str,
}

impl Pair {
    /// Shared memory between two processes.
    fn memif() -> Pair {
        let socket = next_socket();
        let flags = |role, last| {
            let port = memif(role, socket);
            format!("--port {port} --ip 192.0.2.{last} --ip fd77::{last}")
        };
        Pair { flags: [flags("server", 1), flags("client", 2)], namespaces: None, host: "127.0.0.1" }
    }

    /// A pair of interfaces between two namespaces, and another for what the programs tell each other.
    fn af_packet() -> Pair {
        let [a, b] = [Namespace::new(), Namespace::new()];
        veth((&a, "v0"), (&b, "v0"), Veth { mtu: 4200, ..Veth::default() });
        veth((&a, "m0"), (&b, "m0"), Veth::default());
        a.address("m0", "10.77.0.1/24");
        b.address("m0", "10.77.0.2/24");
        let flags = |last| format!("--port net_af_packet0,iface=v0 --ip 192.0.2.{last} --ip fd77::{last}");
        Pair { flags: [flags(1), flags(2)], namespaces: Some([a, b]), host: "10.77.0.1" }
    }

    fn side(&self, side: usize) -> Command {
        match &self.namespaces {
            Some(namespaces) => namespaces[side].command(env!("CARGO_BIN_EXE_spraywire")),
            None => here(),
        }
    }

    /// Runs a program on both sides to its end; what server and client said.
    fn run(&self, line: &str) -> [String; 2] {
        self.run_with(line, "")
    }

    fn run_with(&self, line: &str, client_flags: &str) -> [String; 2] {
        let port = free_port();
        let server = verbs(self.side(0), &self.flags[0], &format!("{line} -p {port}"));
        assert!(eventually(LIMIT, || listens(server.id(), port)), "{line}: {:?}", server.said());
        let flags = format!("{} {client_flags}", self.flags[1]);
        let client = verbs(self.side(1), &flags, &format!("{line} -p {port} {}", self.host));
        let ends = [client, server].map(|process| process.end(LIMIT));
        let [client, server] = ends.map(|end| {
            assert_eq!(end.code(), Some(0), "{line}\n{}\n{}", end.out, end.err);
            assert!(!end.err.contains("spraywire"), "{line}: {}", end.err);
            end.out
        });
        [server, client]
    }
}

/// Whether a process, in whichever namespace, waits for connections at a TCP port.
fn listens(pid: u32, port: u16) -> bool {
    // sl local_address rem_address st …; state 0A of the kernel's <net/tcp_states.h>.
    ["tcp", "tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
        })
    })
}

/// The lines of numbers that perftest ends with: bytes, iterations, and what it measured.
fn numbers(out: &str) -> Vec<Vec<f64>> {
    let after = out.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let number = |line: &str| line.split_whitespace().map(|w| w.parse().ok()).collect::<Option<Vec<f64>>>();
    after.filter_map(number).filter(|n| !n.is_empty()).collect()
}

/// Throughput of every size; both sides say a rate, or the receiver only.
fn bandwidth(pair: &Pair, args: &str) {
    for (side, out) in pair.run(&format!("ib_send_bw -F -c UD {args}")).iter().enumerate() {
        let lines = numbers(out);
        assert!(!lines.is_empty(), "{args}: {out}");
        for line in &lines {
            assert!(line[1] > 0.0 && line[3] > 0.0, "{args}: side {side}: {line:?}");
        }
        if args.contains("-a") {
            // perftest's own doubling from 2 bytes to the IB MTU.
            let sizes: Vec<f64> = lines.iter().map(|line| line[0]).collect();
            assert_eq!(sizes, (1..=12).map(|n| f64::from(1 << n)).collect::<Vec<_>>(), "{out}");
        }
    }
}

fn latency(pair: &Pair, args: &str) {
    for out in pair.run(&format!("ib_send_lat -F -c UD {args}")) {
        let lines = numbers(&out);
        assert!(!lines.is_empty(), "{args}: {out}");
        // With -D: bytes, iterations, average; otherwise bytes, iterations, least, …
        assert!(lines.iter().all(|line| line[1] > 0.0 && line[2] > 0.0), "{args}: {out}");
    }
}

#[test]
fn a_device_is_listed_and_described() {
    let flags = format!(
        "--port {} --ip 192.0.2.1 --ip fd77::1 --pkey 0x8001 --pkey 0xffff --name mine --ib-mtu 2048",
        memif("server", next_socket())
    );
    let list = verbs(here(), &flags, "ibv_devices").end(LIMIT).ok();
    let last = list.lines().last().unwrap_or_default();
    assert_eq!(last.split_whitespace().next(), Some("mine"), "{list}");
    let guid = last.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let info = verbs(here(), &flags, "ibv_devinfo -v").end(LIMIT).ok();
    let squeezed: Vec<String> =
        info.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for want in [
        "hca_id: mine",
        "transport: InfiniBand (0)",
        "phys_port_cnt: 1",
        "max_sge: 4",
        "max_pkeys: 2",
        "state: PORT_ACTIVE (4)",
        "max_mtu: 4096 (5)",
        "active_mtu: 2048 (4)",
        "link_layer: Ethernet",
        "pkey_tbl_len: 2",
        "GID[ 0]: ::ffff:192.0.2.1, RoCE v2",
        "GID[ 1]: fd77::1, RoCE v2",
    ] {
        assert!(squeezed.iter().any(|line| line == want), "no {want:?} in:\n{info}");
    }
    let node = squeezed.iter().find_map(|line| line.strip_prefix("node_guid: ")).unwrap();
    assert_eq!(node.replace(':', ""), guid);
}

#[test]
fn a_program_that_opens_no_device_starts_none() {
    // A port that cannot be: whoever opened it would hear of that.
    let flags = "--port net_nosuch0 --ip 192.0.2.1";
    let quiet = verbs(here(), flags, "ibv_devices").end(LIMIT);
    assert_eq!((quiet.code(), quiet.err.as_str()), (Some(0), ""));
    let opened = verbs(here(), flags, "ibv_devinfo").end(LIMIT);
    assert!(opened.code().is_some_and(|code| code != 0), "{opened:?}");
    assert!(opened.err.contains("spw0 cannot be opened") && opened.err.contains("net_nosuch0"), "{opened:?}");
}

#[test]
fn pingpong_over_memif() {
    let pair = Pair::memif();
    for args in ["-g 0 -n 500", "-g 1 -n 500 -s 1024", "-g 0 -e -n 200"] {
        for out in pair.run(&format!("ibv_ud_pingpong {args}")) {
            assert!(out.contains("iters in"), "{args}: {out}");
        }
    }
}

#[test]
fn perftest_over_memif() {
    let pair = Pair::memif();
    bandwidth(&pair, "-a");
    bandwidth(&pair, "-s 2 -b -q 4 -D 2 -x 1");
    bandwidth(&pair, "-s 64 -I 64 -D 1 --use_old_post_send");
    bandwidth(&pair, "-s 4096 -e -n 2000");
    latency(&pair, "-a -n 200");
    latency(&pair, "-s 32 -I 32 -x 1 -D 1");
}

/// The UDP source port of a line of `inspect`: `1 0.000000 192.0.2.2:50000 > 192.0.2.1 UD SEND_ONLY …`.
fn source_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(2);
    let port = words.next()?.rsplit_once(':')?.1.parse().ok()?;
    (words.next() == Some(">")).then_some(port)
}

/// A thread of the library's polls all the time, and a list of work requests takes one call.
#[test]
fn perftest_with_a_polling_thread_and_lists() {
    let mut pair = Pair::memif();
    bandwidth(&pair, "-s 64 -D 1 --post_list=32 --recv_post_list=32");
    pair.flags = pair.flags.map(|flags| flags + " --poll thread");
    bandwidth(&pair, "-s 64 -D 1");
    latency(&pair, "-s 64 -n 200");
}

/// The port of a device goes down and comes up, which a program that waits for its asynchronous events hears.
#[test]
fn events_of_the_port_are_told() {
    if !testbed_net::allowed("events_of_the_port_are_told") {
        return;
    }
    let pair = Pair::af_packet();
    // A pipe would be written to when there is a page full.
    let watch = verbs(pair.side(0), &pair.flags[0], "stdbuf -oL ibv_asyncwatch -d spw0");
    let far = &pair.namespaces.as_ref().unwrap()[1];
    assert!(eventually(LIMIT, || watch.said()[0].contains("spw0")), "{:?}", watch.said());
    // The worker looks at the link four times a second, and has to have seen it once.
    std::thread::sleep(Duration::from_millis(600));
    for (state, event) in [("down", "IBV_EVENT_PORT_ERR"), ("up", "IBV_EVENT_PORT_ACTIVE")] {
        far.ip(&format!("link set v0 {state}"));
        assert!(eventually(LIMIT, || watch.said()[0].contains(event)), "{state}: {:?}", watch.said());
    }
    watch.kill();
}

#[test]
fn what_perftest_sends_is_right_on_the_wire() {
    let pair = Pair::memif();
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("sent.pcap");
    let path = pcap.display().to_string();
    pair.run_with("ib_send_bw -F -c UD -s 777 -n 500", &format!("--pcap {path} --entropy-range 50000-50003"));
    let end: Ended = Process::start(here().args(["inspect", "--json", &path])).end(LIMIT);
    let report: serde_json::Value = serde_json::from_str(&end.ok()).unwrap();
    let text = report.to_string();
    assert!(text.contains("UD SEND_ONLY"), "{text}");
    let lines = Process::start(here().args(["inspect", &path])).end(LIMIT).ok();
    let ports: Vec<u16> = lines.lines().filter_map(source_port).collect();
    assert!(ports.len() == 500 && ports.iter().all(|port| (50_000..=50_003).contains(port)), "{ports:?}");
    let bad = Process::start(here().args(["inspect", "--bad", &path])).end(LIMIT).ok();
    let sends = bad.lines().find(|line| line.starts_with("UD SEND_ONLY")).unwrap_or_default();
    let columns: Vec<&str> = sends.split_whitespace().skip(2).collect();
    // Packets, bytes, ICRC right, wrong, cut.
    assert_eq!(columns.first(), columns.get(2), "{bad}");
    assert_eq!(
        (columns.first(), columns.get(3), columns.get(4)),
        (Some(&"500"), Some(&"0"), Some(&"0")),
        "{bad}"
    );
}

#[test]
fn tools_over_af_packet() {
    if !testbed_net::allowed("tools_over_af_packet") {
        return;
    }
    let pair = Pair::af_packet();
    for args in ["-g 0 -n 200", "-g 1 -n 200 -e"] {
        for out in pair.run(&format!("ibv_ud_pingpong {args}")) {
            assert!(out.contains("iters in"), "{args}: {out}");
        }
    }
    bandwidth(&pair, "-s 2 -D 1 -q 4");
    bandwidth(&pair, "-s 4096 -b -D 1 -x 1");
    latency(&pair, "-s 64 -D 1 -x 1");
    latency(&pair, "-s 64 -I 64 -D 1 --use_old_post_send");
}

#[test]
fn what_there_is_not_is_refused_with_a_reason() {
    let pair = Pair::memif();
    for (line, why) in [
        ("ibv_rc_pingpong -g 0", "no RC queue pairs"),
        ("ibv_uc_pingpong -g 0", "no UC queue pairs"),
        ("ibv_srq_pingpong -g 0", "no shared receive queues"),
        ("ibv_xsrq_pingpong -g 0", "no XRC"),
        ("rping -s", "no connection manager"),
        ("ib_send_bw -F -c UD -R", "no connection manager"),
    ] {
        let end = verbs(here(), &pair.flags[0], line).end(LIMIT);
        assert!(end.code().is_some_and(|code| code != 0), "{line}: {end:?}");
        assert!(end.err.contains(why), "{line}: {end:?}");
    }
}

#[test]
fn a_missing_library_is_named() {
    let end = Process::start(here().args(["verbs", "--library", "/no/such.so", "--", "true"])).end(LIMIT);
    assert_eq!(end.code(), Some(2));
    assert!(end.err.contains("/no/such.so"), "{}", end.err);
    assert!(!Path::new("/no/such.so").exists());
}

/// A preloaded program is an endpoint like any other to those who ask.
#[test]
fn stats_find_a_program_and_show_its_counters() {
    let (pair, port, folder) = (Pair::memif(), free_port(), private());
    let line = format!("ib_send_bw -F -c UD -s 64 -D 3 -p {port}");
    let side = |side: usize, flags: &str, line: &str| {
        let mut command = here();
        command.env("SPRAYWIRE_RUNTIME_DIR", folder.path());
        verbs(command, &format!("{} {flags}", pair.flags[side]), line)
    };
    let server = side(0, "--name rx", &line);
    assert!(eventually(LIMIT, || listens(server.id(), port)), "{:?}", server.said());
    let client = side(1, "", &format!("{line} 127.0.0.1"));
    let mut last = serde_json::Value::Null;
    let received = eventually(LIMIT, || {
        last = stats(folder.path(), "rx");
        last["workers"][0]["qps"][0]["received"].as_u64() > Some(1000)
    });
    assert!(received, "{last:#}");
    assert_eq!((last["name"].as_str(), last["pid"].as_u64()), (Some("rx"), Some(server.id().into())));
    assert!(last["command_line"].as_str().unwrap().starts_with("ib_send_bw -F"), "{last:#}");
    let port = &last["workers"][0]["ports"][0];
    assert_eq!(port["addrs"], serde_json::json!(["192.0.2.1", "fd77::1"]));
    assert!(port["counters"]["delivered"].as_u64() > Some(1000), "{port:#}");
    assert_eq!(fates(port), port["counters"]["rx_packets"].as_u64().unwrap(), "{port:#}");
    for process in [client, server] {
        let end = process.end(LIMIT);
        assert_eq!((end.code(), end.err.as_str()), (Some(0), ""), "{}", end.out);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the sockets went with the processes");
}

/// Whether a program closes its device or just ends.
#[test]
fn the_end_of_a_program_leaves_nothing_behind() {
    let folder = private();
    let path = folder.path().join("memif.sock");
    let flags = format!(
        "--port net_memif0,role=server,id=0,socket={},socket-abstract=no --ip 192.0.2.1",
        path.display()
    );
    for (line, code) in [("ibv_devinfo", 0), ("ibv_rc_pingpong -g 0", 1)] {
        let mut command = here();
        command.env("SPRAYWIRE_RUNTIME_DIR", folder.path());
        let end = verbs(command, &flags, line).end(LIMIT);
        assert_eq!(end.code(), Some(code), "{end:?}");
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{line}: {left:?}");
    }
}
