//! `spraywire sim`: what it prints, and what it ends with. It needs no port.

use serde_json::Value;
use std::process::{Command, Output};

fn sim(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    command.arg("sim").args(args.split_whitespace()).env_remove("RUST_LOG").output().expect("it runs")
}

fn json(args: &str) -> Value {
    let output = sim(&format!("{args} --json"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn one_scenario_adds_up() {
    let report = json("--delay 1ms --loss 1% -s 300k -n 40 --seed 3");
    let result = &report["results"][0];
    assert_eq!(result["succeeded"], 80, "a send and a receive each");
    assert_eq!(result["bytes"], 40 * 300 * 1024);
    let number = |name: &str| result[name].as_u64().expect("a number");
    // 77 segments a message; of those lost, each was sent again, and hardly any other.
    assert_eq!(number("data"), 40 * 77 + number("retransmitted"));
    assert!((10..100).contains(&number("lost")), "{result:#}");
    assert!(number("retransmitted") >= 10 && number("spurious") < 10, "{result:#}");
    assert!(result["completion_ns"]["min"].as_u64() >= Some(1_000_000), "{result:#}");
    assert_eq!((&report["ok"], &result["violation"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(json("--delay 1ms --loss 1% -s 300k -n 40 --seed 3")["results"], report["results"]);
    assert_ne!(json("--delay 1ms --loss 1% -s 300k -n 40 --seed 4")["results"], report["results"]);
}

#[test]
fn a_check_that_fails_is_exit_code_1() {
    // Longer than a session waits for its peer.
    let output = sim("--black-out 1ms --lasting 20 --delay 1ms -s 10MB -n 2");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("VIOLATION") && text.contains("went down"), "{text}");
}

#[test]
fn a_swarm_prints_its_seeds_and_the_same_ones_give_the_same() {
    let report = json("--swarm --seed 20 --runs 8");
    assert_eq!((&report["first_seed"], &report["runs"]), (&20.into(), &8.into()));
    assert_eq!(report["results"], Value::Array(Vec::new()));
    assert_eq!(json("--swarm --seed 20 --runs 8")["summary"], report["summary"]);
    let fresh = sim("--swarm --runs 1");
    assert!(String::from_utf8_lossy(&fresh.stdout).starts_with("seeds from "), "{fresh:?}");
}

#[test]
fn a_trace_says_when_where_and_what() {
    let output = sim("--trace -n 1 -s 5000 --delay 10us");
    let text = String::from_utf8_lossy(&output.stdout);
    for words in [
        "h0   -> h1 init",
        "h1   session up",
        "h0   posts Send 0",
        "placed Receive",
        "Send of message 0 ended: success",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let times = text.lines().filter_map(|l| l.split_once('s')?.0.parse::<f64>().ok());
    assert!(times.collect::<Vec<_>>().is_sorted(), "in order of time");
    let small = sim("--swarm --seed 20 --runs 1 --trace --first-messages 1 --without-faults 0,1,2");
    assert_eq!(small.status.code(), Some(0));
    assert!(small.stdout.len() > 1_000);
}

#[test]
fn what_cannot_be_is_refused() {
    for args in [
        "--swarm --hosts 3",
        "--runs 3",
        "--hosts 1",
        "--loss 2",
        "--pattern star",
        "--trace --first-messages 2",
    ] {
        let output = sim(args);
        assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
    }
}

#[test]
fn a_network_of_two_tiers_and_a_permutation() {
    let flags =
        "--hosts 8 --pattern permutation --topology leaf-spine --leaves 2 --spines 4 --rate 10g --delay 1us";
    let time = |paths: u8| {
        let report = json(&format!("{flags} --paths {paths} -s 1MB -n 8"));
        assert_eq!(report["results"][0]["succeeded"], 16, "{report:#}");
        report["results"][0]["virtual_time_ns"].as_u64().expect("a number")
    };
    // With one path each, two flows share a link; a megabyte takes 840 us alone.
    let (one, many) = (time(1), time(16));
    assert!(many < one && many > 840_000, "{many} {one}");
}

#[test]
fn a_study_prints_ours_beside_what_was_published() {
    let report = json("--study permutation");
    let p99 = |name: &str| -> Vec<f64> {
        let results = report["results"].as_array().expect("a list").iter();
        results.filter(|r| r["flows"] == name).filter_map(|r| r["completion_us"]["p99"].as_f64()).collect()
    };
    let (ours, theirs) = (p99("32 paths by health"), p99("EQDS, trimming (htsim)"));
    assert_eq!((ours.len(), theirs.as_slice()), (3, [197.0].as_slice()));
    assert!(ours.iter().all(|us| *us > 165.0 && *us <= 1.10 * theirs[0]), "{ours:?}");
    assert_eq!((&report["ok"], &report["violations"]), (&Value::Bool(true), &Value::Array(Vec::new())));
}

/// A policy file is heeded, and one that is wrong is refused with its line.
#[test]
fn a_policy_says_how_strongly_a_class_is_protected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let run = |text: &str, more: &str| {
        std::fs::write(&file, text).unwrap();
        format!("--pattern ping-pong --delay 10ms -s 128k -n 6 --class pp --policy {} {more}", file.display())
    };
    let parity = |args: String| json(&args)["results"][0]["parity"].as_u64().unwrap();
    // 128 KiB are 33 segments: three groups of eleven, with two each.
    assert_eq!(parity(run("[pp]\ndata = 11\nparity = 2\nfixed-depth = 1", "")), 6 * 3 * 2);
    assert_eq!(parity(run("[pp]\nparity = 0", "")), 0);
    assert_eq!(parity(run("short-round-trip = \"50ms\"", "")), 0, "20 ms are short then");
    // From priority 5 on: the file says 4, a flag more.
    let low = "[pp]\nfrom-priority = 5\npriority = 4\ndata = 33\nparity = 1\nfixed-depth = 1";
    assert_eq!(parity(run(low, "")), 0);
    assert_eq!(parity(run(low, "--priority 5")), 6);
    let refused = sim(&run("[pp]\ndata = 11\nparity = 17", ""));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("line 3") && said.contains("17 is not from 0 to 16"), "{said}");
}

/// What `--json` wrote, `report` makes a page of.
#[test]
fn results_become_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (name, fec) in [("with.json", "tags"), ("without.json", "off")] {
        let args = format!("--delay 5ms --loss 1% -s 256k -n 30 --class pp --fec {fec} --json={}", at(name));
        assert_eq!(sim(&args).status.code(), Some(0));
    }
    let report = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_spraywire")).arg("report").args(args).output().unwrap()
    };
    let made = report(&[&at("with.json"), &at("without.json"), "-o", &at("page.html"), "--title", "A & B"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let page = std::fs::read_to_string(at("page.html")).unwrap();
    for words in
        ["<h1>A &amp; B</h1>", "without: sends", "<dt>fec</dt><dd>tags</dd>", "percentile of messages"]
    {
        assert!(page.contains(words), "{words}");
    }
    // Three pictures: each file's, and both in one.
    assert_eq!(page.matches("<svg ").count(), 3);
    let printed = report(&[&at("with.json")]);
    assert!(String::from_utf8_lossy(&printed.stdout).starts_with("<!doctype html>"), "{printed:?}");
    let refused = report(&[&at("page.html")]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(2) && said.contains("it is no JSON") && said.contains("--json=FILE"),
        "{said}"
    );
}
