//! `bw --workload`: collectives between ranks in one process and in many, started as launchers start them.
#![cfg(feature = "dpdk")]

use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed_net::{Ended, Namespace, Process, Veth, allowed, veth};

/// No process of these tests lives longer.
const LIMIT: Duration = Duration::from_secs(60);
/// What launchers set: none of it is to come from whoever runs the tests.
const VARIABLES: [&str; 13] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "RUST_LOG",
];

fn prepared(mut command: Command, args: &str, variables: &[(&str, String)]) -> Process {
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.arg("bw").args(args.split_whitespace());
    Process::start(&mut command)
}

fn spraywire(args: &str, variables: &[(&str, String)]) -> Process {
    prepared(Command::new(env!("CARGO_BIN_EXE_spraywire")), args, variables)
}

fn result(ended: Ended) -> Value {
    let report: Value = serde_json::from_str(&ended.ok()).unwrap();
    report["results"][0].clone()
}

/// Hosts at one bridge.
struct Lan {
    hosts: Vec<Namespace>,
    switch: Namespace,
}

impl Lan {
    fn new(count: usize) -> Lan {
        let switch = Namespace::new();
        let hosts: Vec<_> = (0..count).map(|_| Namespace::new()).collect();
        let names: Vec<_> = (0..count).map(|i| format!("h{i}")).collect();
        for (host, name) in hosts.iter().zip(&names) {
            veth((host, "e0"), (&switch, name), Veth { mtu: 4200, ..Veth::default() });
        }
        switch.bridge("br0", 4200, &names.iter().map(String::as_str).collect::<Vec<_>>());
        Lan { hosts, switch }
    }

    /// Starts rank `rank` as mpirun does.
    fn rank(&self, rank: usize, args: &str) -> Process {
        let variables = [
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", self.hosts.len().to_string()),
        ];
        let command = self.hosts[rank].command(env!("CARGO_BIN_EXE_spraywire"));
        let wait = if args.contains("--wait") { "" } else { "--wait 30" };
        let port = format!("--port net_af_packet0,iface=e0 --first-ip 10.0.0.1/24 {wait}");
        prepared(command, &format!("{args} {port}"), &variables)
    }
}

#[test]
fn ranks_of_one_process_need_nothing() {
    let text = spraywire("--workload all-reduce --ranks 4 -s 64k -n 20", &[]).end(LIMIT).ok();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("step p50") && lines[0].contains("bus Gbit/s") && lines.len() == 2, "{text}");
    let cells: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!((cells[..3].to_vec(), cells.last()), (vec!["65536", "4", "20"], Some(&"0")), "{text}");
    let result =
        result(spraywire("--workload all-to-all --ranks 3 -s 96k -n 20 --loss 1% --json", &[]).end(LIMIT));
    assert_eq!(
        (&result["steps"], &result["wrong"], &result["size"]),
        (&20.into(), &0.into(), &98_304.into())
    );
    let (p50, p99) = (&result["step_ns"]["p50"], &result["step_ns"]["p99"]);
    assert!(p50.as_u64() > Some(0) && p50.as_u64() <= p99.as_u64(), "{result:#}");
    let rate = |name: &str| result[name].as_f64().unwrap();
    let bus = rate("algorithm_bits_per_second") * 2.0 / 3.0;
    assert!((rate("bus_bits_per_second") / bus - 1.0).abs() < 1e-9, "{result:#}");
}

/// Two processes with a port and an address each; the rest is by torchrun's variables.
#[test]
fn a_pair_meets_over_memif_by_the_variables_of_torchrun() {
    let socket = format!("spw-steps-{}", std::process::id());
    let rank = |rank: u32, role: &str| {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "192.0.2.1".to_owned()),
        ];
        let port = format!("--port net_memif0,role={role},socket={socket} --ip 192.0.2.{}", rank + 1);
        spraywire(&format!("--workload all-reduce -s 100k -n 50 --json {port}"), &variables)
    };
    let all = [rank(0, "server"), rank(1, "client")].map(|process| result(process.end(LIMIT)));
    for result in all {
        assert_eq!(
            (&result["steps"], &result["wrong"], &result["ranks"]),
            (&50.into(), &0.into(), &2.into())
        );
    }
}

#[test]
fn four_processes_on_a_network_and_the_same_command_for_all() {
    if !allowed("four_processes_on_a_network_and_the_same_command_for_all") {
        return;
    }
    let lan = Lan::new(4);
    for workload in ["all-reduce", "all-to-all"] {
        let args = format!("--workload {workload} -s 128k -n 20 --json");
        let all: Vec<_> = (0..4).rev().map(|rank| lan.rank(rank, &args)).collect();
        for process in all {
            let result = result(process.end(LIMIT));
            assert_eq!((&result["steps"], &result["wrong"]), (&20.into(), &0.into()), "{result:#}");
            assert_eq!((&result["workload"], &result["ranks"]), (&workload.into(), &4.into()));
        }
    }
}

/// The launcher itself: each rank finds its namespace by its number, and all else by what Open MPI says.
#[test]
fn mpirun_starts_the_ranks() {
    if !allowed("mpirun_starts_the_ranks") {
        return;
    }
    let lan = Lan::new(4);
    let folder = tempfile::tempdir().unwrap();
    let hosts: Vec<_> = lan.hosts.iter().map(Namespace::name).collect();
    let reports = folder.path().display();
    let script = format!(
        "set -- {}; shift $OMPI_COMM_WORLD_RANK; exec ip netns exec $1 {} bw --workload all-reduce -s 128k -n 20 --wait 30 \
         --port net_af_packet0,iface=e0 --first-ip 10.0.0.1/24 --json={reports}/$OMPI_COMM_WORLD_RANK",
        hosts.join(" "),
        env!("CARGO_BIN_EXE_spraywire")
    );
    let mut command = Command::new("mpirun");
    command.args("--allow-run-as-root --oversubscribe -n 4 sh -c".split(' ')).arg(script);
    VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    Process::start(&mut command).end(LIMIT).ok();
    for rank in 0..4 {
        let report = std::fs::read(folder.path().join(rank.to_string())).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let result = &report["results"][0];
        assert_eq!(
            (&result["steps"], &result["wrong"], &result["ranks"]),
            (&20.into(), &0.into(), &4.into()),
            "{result:#}"
        );
    }
}

/// Across routers that lose.
#[test]
fn ranks_at_both_ends_of_a_testbed_that_loses() {
    if !allowed("ranks_at_both_ends_of_a_testbed_that_loses") {
        return;
    }
    let name = format!("s{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let testbed = |args: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
        command.arg("testbed").args(args.split_whitespace()).args(["--name", &name]);
        command.env("SPRAYWIRE_RUNTIME_DIR", folder.path().join("run")).env_remove("RUST_LOG");
        Process::start(&mut command).end(LIMIT)
    };
    testbed("up --paths 4 --hosts 2 --loss 1%").ok();
    let ranks = [("left1", 101), ("right1", 201), ("left2", 102)].into_iter().enumerate();
    let all: Vec<_> = ranks
        .map(|(rank, (host, network))| {
            let variables = [("SLURM_PROCID", rank.to_string()), ("SLURM_NTASKS", "3".to_owned())];
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &format!("spwtb-{name}-{host}"), env!("CARGO_BIN_EXE_spraywire")]);
            let port = "--port net_af_packet0,iface=e0 --master 10.78.101.1 --wait 30 --paths 8";
            let ip = format!("--ip 10.78.{network}.1/24 --gateway 10.78.{network}.254");
            prepared(command, &format!("--workload all-reduce -s 256k -n 20 --json {port} {ip}"), &variables)
        })
        .collect();
    let results: Vec<_> = all.into_iter().map(|process| process.end(LIMIT)).collect();
    let status: Value = serde_json::from_str(&testbed("status --json").ok()).unwrap();
    testbed("down").ok();
    for ended in results {
        let result = result(ended);
        assert_eq!((&result["steps"], &result["wrong"]), (&20.into(), &0.into()), "{result:#}");
    }
    let lost: u64 =
        status["results"].as_array().unwrap().iter().filter_map(|p| p["to_right"]["lost"].as_u64()).sum();
    assert!(lost > 0, "{status:#}");
}

#[test]
fn the_others_name_a_rank_that_is_killed() {
    if !allowed("the_others_name_a_rank_that_is_killed") {
        return;
    }
    let lan = Lan::new(3);
    let start = |rank| lan.rank(rank, "--workload all-reduce -s 64k -D 60");
    let [zero, one, two] = [start(0), start(1), start(2)];
    let moving = || lan.switch.counter("h0", "rx_packets");
    assert!(testbed_net::eventually(LIMIT, || moving() > 3_000), "they never began");
    two.kill();
    let begun = Instant::now();
    for survivor in [zero, one] {
        let ended = survivor.end(LIMIT);
        assert_eq!(ended.code(), Some(1), "{ended:?}");
        assert!(ended.err.contains("rank 2 (10.0.0.3): nothing heard for"), "{}", ended.err);
    }
    // Five seconds of silence, and what a busy machine adds.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn a_rank_that_is_interrupted_lets_the_others_know_at_once() {
    if !allowed("a_rank_that_is_interrupted_lets_the_others_know_at_once") {
        return;
    }
    let lan = Lan::new(2);
    let [zero, one] = [0, 1].map(|rank| lan.rank(rank, "--workload all-to-all -s 64k -D 60"));
    assert!(testbed_net::eventually(LIMIT, || lan.switch.counter("h0", "rx_packets") > 3_000));
    one.signal(Signal::INT);
    assert_eq!(one.end(LIMIT).code(), Some(130));
    let begun = Instant::now();
    let ended = zero.end(LIMIT);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.err.contains("rank 1 (10.0.0.2): was interrupted"), "{}", ended.err);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn ranks_that_do_not_come_or_want_something_else_are_named() {
    if !allowed("ranks_that_do_not_come_or_want_something_else_are_named") {
        return;
    }
    let lan = Lan::new(2);
    let alone = lan.rank(0, "--workload all-reduce -n 5 --wait 1").end(LIMIT);
    assert_eq!(alone.code(), Some(1), "{alone:?}");
    assert!(alone.err.contains("rank 1: did not come within 1s"), "{}", alone.err);
    let [zero, one] = [(0, "64k"), (1, "32k")]
        .map(|(rank, size)| lan.rank(rank, &format!("--workload all-reduce -n 5 -s {size}")));
    for ended in [zero.end(LIMIT), one.end(LIMIT)] {
        assert_eq!(ended.code(), Some(1), "{ended:?}");
        assert!(
            ended.err.contains("rank 1") && ended.err.contains("other tests than rank 0"),
            "{}",
            ended.err
        );
    }
}

#[test]
fn arguments_and_variables_that_do_not_fit_say_so() {
    let reduce = "--workload all-reduce";
    for (args, variables, words) in [
        (reduce.to_owned(), vec![], "how many ranks"),
        (reduce.to_owned(), vec![("RANK", "1")], "WORLD_SIZE is not"),
        (reduce.to_owned(), vec![("RANK", "one"), ("WORLD_SIZE", "2")], "RANK is `one`"),
        (
            reduce.to_owned(),
            vec![("PMIX_RANK", "2"), ("SLURM_NTASKS", "2")],
            "there are 2: they count from 0",
        ),
        (
            reduce.to_owned(),
            vec![("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "10.0.0.1")],
            "net_memif",
        ),
        (
            format!("{reduce} --port net_ring0 --ip 10.0.0.2"),
            vec![("RANK", "1"), ("WORLD_SIZE", "3")],
            "where is rank 0",
        ),
        (format!("{reduce} --ranks 4 --port net_ring0"), vec![], "have no port"),
        (format!("{reduce} --ranks 100"), vec![], "there can be 64"),
        (format!("{reduce} --rank 1"), vec![], "give --ranks"),
        (format!("{reduce} --ranks 2 --service ud"), vec![], "reliable service"),
        (format!("{reduce} --ranks 2 192.0.2.1"), vec![], "cannot be used with"),
        (format!("{reduce} --ranks 2 -n 0"), vec![], "-n 1 or more"),
        (format!("{reduce} --ranks 2 -D 1us"), vec![], "-D 1ms or more"),
        ("--ranks 2".to_owned(), vec![], "--workload"),
    ] {
        let variables: Vec<_> = variables.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        let refused = spraywire(&args, &variables).end(LIMIT);
        assert_eq!(refused.code(), Some(2), "{args} {variables:?}: {refused:?}");
        assert!(refused.err.contains(words), "{words} in {}", refused.err);
    }
}
