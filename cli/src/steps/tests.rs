//! Ranks of one process, without DPDK.

use super::rank::WARM_UP;
use super::*;
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: BwArgs,
}

fn args(line: &str) -> BwArgs {
    Line::parse_from(std::iter::once("bw").chain(line.split_whitespace())).args
}

/// Runs ranks here; what each test came to.
fn run(workload: Workload, ranks: u32, line: &str) -> Vec<Tally> {
    let args = args(&format!("--workload {} --ranks {ranks} {line}", workload.name()));
    // One that waits for ever is interrupted, which is an error.
    let stop = Stop::default();
    let limit = stop.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        limit.request();
    });
    let (tallies, interrupted) = here(&args, workload, ranks, &stop).unwrap();
    assert!(!interrupted);
    tallies
}

#[test]
fn every_step_of_every_size_is_right() {
    for workload in [Workload::AllReduce, Workload::AllToAll] {
        for ranks in [2, 3, 5] {
            for tally in run(workload, ranks, "-a -n 4") {
                assert_eq!((tally.steps(), tally.wrong), (4, 0), "{workload:?} of {ranks}");
            }
        }
    }
}

#[test]
fn losses_change_no_value() {
    for workload in [Workload::AllReduce, Workload::AllToAll] {
        // Steps of single packets lose one rarely.
        for (size, steps) in [("64", 300), ("20k", 30), ("300k", 30)] {
            let tallies = run(workload, 3, &format!("-s {size} -n {steps} --loss 2% --paths 4"));
            assert_eq!((tallies[0].steps(), tallies[0].wrong), (steps, 0), "{workload:?} of {size}");
            let json = tallies[0].to_json(workload, 3, 1);
            assert!(json["retransmitted"].as_u64() > Some(0), "{json:#}");
        }
    }
}

/// What is said of the messages and of their protection is heeded: over a round trip this short, tags alone ask for none.
#[test]
fn steps_are_protected_as_asked() {
    let parity = |line: &str| {
        let tally = &run(Workload::AllToAll, 3, &format!("-s 96k -n 5 {line}"))[0];
        assert_eq!((tally.steps(), tally.wrong), (5, 0), "{line}");
        tally.to_json(Workload::AllToAll, 3, 1)["parity"].as_u64().unwrap()
    };
    // Six messages of 32 KiB in a step, each of nine segments in two groups; and words, of a group each.
    let steps = 5 + WARM_UP;
    assert!(parity("--fec 8,2") >= steps * 6 * 4);
    assert_eq!(parity("--class pp --fec off"), 0);
    let who = who(&args("--class pp --priority 3 --stage 2"), 1, 2);
    assert_eq!((who.semantics.class, who.semantics.priority, who.semantics.stage), (2, 3, 2));
}

#[test]
fn a_test_lasts_as_many_steps_or_as_long_as_asked() {
    let tallies = run(Workload::AllReduce, 2, "-s 4k -D 100ms");
    let total = tallies[0].total();
    assert!(total >= Duration::from_millis(100) && tallies[0].steps() > 5, "{total:?}");
    // Every rank has sent every segment of its steps, those before the first that counts included.
    let segments =
        run(Workload::AllToAll, 4, "-s 64 -n 10")[0].to_json(Workload::AllToAll, 4, 64)["segments"].clone();
    assert!(segments.as_u64() >= Some((10 + WARM_UP) * 4 * 3), "{segments}");
}

#[test]
fn sizes_are_whole_elements_and_none_twice() {
    let sizes = |workload, ranks, line: &str| -> Vec<u64> {
        args(line).step_tests(workload, ranks).iter().map(|test| test.size).collect()
    };
    assert_eq!(sizes(Workload::AllReduce, 4, "-s 1001"), [1004]);
    assert_eq!(sizes(Workload::AllReduce, 4, ""), [1 << 20]);
    let all = sizes(Workload::AllToAll, 64, "-a");
    assert_eq!((all.first(), all.last(), all.len()), (Some(&256), Some(&(1 << 20)), 13));
}

#[test]
fn addresses_count_on_from_the_first() {
    let first = |text: &str| text.parse::<IpArg>().unwrap();
    let nth = |text: &str, n| nth_address(first(text), n).map(|ip| json!(ip));
    assert_eq!(nth("10.0.0.254/16", 3), Ok(json!("10.0.1.1/16")));
    assert_eq!(nth("fd00::ffff", 1), Ok(json!("fd00::1:0")));
    assert!(nth("255.255.255.254", 5).unwrap_err().to_string().contains("no address 5 places after"));
}

#[test]
fn rank_0_is_found_by_what_there_is() {
    let joining = |rank, master: Option<&str>| Joining {
        rank,
        ranks: 4,
        master: master.map(str::to_owned),
        port: 1,
        verbosity: 0,
    };
    let found = |line: &str, rank, master| {
        joining(rank, master).master(&args(line)).map(|ip| ip.to_string()).map_err(|e| e.to_string())
    };
    let port = "--port net_ring0 --ip 10.0.0.9";
    assert_eq!(
        found(&format!("{port} --workload all-reduce --master 10.0.0.1"), 1, Some("10.0.0.2")).as_deref(),
        Ok("10.0.0.1")
    );
    assert_eq!(found(port, 1, Some("10.0.0.2")).as_deref(), Ok("10.0.0.2"));
    assert_eq!(found(port, 0, Some("10.0.0.2")).as_deref(), Ok("10.0.0.9"), "it knows itself");
    assert_eq!(
        found("--port net_ring0 --workload all-reduce --first-ip 10.0.0.5", 2, None).as_deref(),
        Ok("10.0.0.5")
    );
    assert_eq!(found("", 1, Some("localhost")).as_deref(), Ok("192.0.2.1"), "a pair");
    let error = found(port, 1, None).unwrap_err();
    assert!(error.contains("where is rank 0") && error.contains("MASTER_ADDR"), "{error}");
    let error = found(port, 1, Some("localhost")).unwrap_err();
    assert!(error.contains("loopback") && error.contains("--first-ip"), "{error}");
}
