//! Plans, their pictures, and what arguments become.

use super::plan::{self, Link};
use super::share::{self, PathCount};
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: TestbedCommand,
}

fn parse(line: &str) -> Result<TestbedCommand, clap::Error> {
    Line::try_parse_from(std::iter::once("testbed").chain(line.split_whitespace())).map(|line| line.command)
}

fn plan(line: &str) -> Result<Plan, Error> {
    match parse(&format!("up {line}")).unwrap() {
        TestbedCommand::Up(args) => Plan::of(&args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_path_can_differ_from_all_in_any_order() {
    let plan = plan("--paths 3 --loss 2=10% --loss 1% --rate 1g --delay 3=2ms --skew 4ms --burst 3").unwrap();
    let losses: Vec<_> = plan.paths.iter().map(|path| path.loss).collect();
    assert_eq!(losses, [0.01, 0.1, 0.01]);
    assert!(plan.paths.iter().all(|path| path.rate == Some(1_000_000_000) && path.burst == Some(3.0)));
    let delays: Vec<_> = plan.paths.iter().map(|path| path.delay.as_millis()).collect();
    assert_eq!(delays, [0, 2, 6]);
    assert_eq!(plan.paths[1].to_string(), "loss 10 %, in bursts of 3, 1.00 Gbit/s, delay 2.00 ms");
}

#[test]
fn what_cannot_be_is_refused() {
    for (line, words) in [
        ("--paths 3 --loss 4=1%", "there is no path 4: they are 1 to 3"),
        ("--burst 4", "give --loss"),
        ("--loss 10% --burst 0.5", "bursts of 0.5"),
    ] {
        let error = plan(line).unwrap_err();
        assert!(error.to_string().contains(words) && error.exit == Exit::Usage, "{line}: {error}");
    }
    for line in [
        "up --paths 1",
        "up --paths 17",
        "up --hosts 0",
        "up --loss 0=1%",
        "up --loss x=1%",
        "up --loss 2",
        "up --rate 1Mpps",
        "up --rate 10",
        "up --name a-b",
        "up --name 12345678901234567",
        "up --mtu 1000",
        "path 0",
        "path 1 --link sideways",
        "down --all --name x",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn the_picture_has_every_host_and_path() {
    let mut plan = plan("--paths 3 --hosts 2 --loss 2=10%").unwrap();
    plan.paths[2].link = Link::Dark;
    let picture = plan::picture(&plan);
    let expected = "  \
left1   10.78.101.1  ──│       │── path 1  ───────────────│       │── right1  10.78.201.1
  left2   10.78.102.1  ──│ leaf1 │── path 2  ── loss 10 % ──│ leaf2 │── right2  10.78.202.1
                         │       │── path 3  ── dark ───────│       │";
    assert_eq!(picture, expected, "\n{picture}");
}

#[test]
fn commands_name_the_host_and_its_router() {
    let plan = plan("--name x7").unwrap();
    let [server, client] = commands(&plan);
    assert!(server.starts_with("ip netns exec spwtb-x7-right1 /"), "{server}");
    let end = " bw --port net_af_packet0,iface=e0 --ip 10.78.201.1/24 --gateway 10.78.201.254 --ip fd78:201::1/64 --gateway fd78:201::fe --paths 32";
    assert!(server.ends_with(end), "{server}");
    assert!(client.contains(" --ip fd78:101::1/64 --gateway fd78:101::fe "), "{client}");
    assert!(client.ends_with(" --paths 32 10.78.201.1"), "{client}");
}

#[test]
fn shares_are_of_a_way_and_counted_since_the_last_reset() {
    let plan = plan("--paths 2 --loss 2=10%").unwrap();
    let count = |packets, lost| PathCount {
        packets,
        bytes: packets * 1000,
        lost,
        arrived: packets - lost,
        queue_full: 0,
    };
    let now = [[count(110, 0), count(0, 0)], [count(400, 30), count(0, 0)]];
    let before = [[count(10, 0), count(0, 0)], [count(100, 10), count(0, 0)]];
    let counts = share::since(&now, &before);
    let json = share::to_json(&plan, &counts);
    assert_eq!((&json[0]["to_right"]["share"], &json[1]["to_right"]["share"]), (&json!(0.25), &json!(0.75)));
    assert_eq!((&json[1]["to_right"]["lost"], &json[1]["loss"]), (&json!(20), &json!(0.1)));
    assert_eq!(json[0]["to_left"]["share"], Value::Null);
    let table = share::table(&plan, &counts).to_string();
    let row = table.lines().last().unwrap();
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>()[..7],
        ["2", "300", "300", "k", "75.0", "%", "20"],
        "{table}"
    );
}

#[test]
fn two_data_centres_are_two_hosts_and_a_forwarder() {
    let two = plan("--two-dc --loss 0.1% --burst 8 --rate 1g --name x7").unwrap();
    assert_eq!(two.namespaces(), ["spwtb-x7-left1", "spwtb-x7-right1", "spwtb-x7-wan"]);
    assert_eq!(
        plan::picture(&two),
        "  left1  10.78.101.1  ──── wan: loss 0.1 %, in bursts of 8, 1.00 Gbit/s, delay 12.5 ms, each way ────  right1  10.78.201.1"
    );
    let [server, client] = commands(&two);
    assert!(server.ends_with(" --ip 10.78.201.1/16 --ip fd78:201::1/16 --window 3907kB"), "{server}");
    assert!(client.ends_with(" --window 3907kB -s 256k --mix dp:70,pp:25,control:5 10.78.201.1"), "{client}");
    let described = described(&two);
    assert_eq!((&described["leaves"], &described["hosts"][0]["gateways"]), (&json!([]), &json!([])));
    // A delay that is given is the delay; and 100 ms at 1 Gbit/s are more frames than a short link's.
    let far = plan("--two-dc --delay 100ms --rate 1g").unwrap();
    assert_eq!(
        (far.paths[0].delay.as_millis(), far.paths[0].frames(), two.paths[0].frames()),
        (100, 36_621, 8_192)
    );
    let refused = plan("--two-dc --delay 101ms").unwrap_err();
    assert!(refused.what_to_do().is_some_and(|hint| hint.contains("each way")), "{refused}");
    assert!(plan("--two-dc --loss 2=1%").unwrap_err().to_string().contains("no path 2"));
    for line in ["up --two-dc --paths 3", "up --two-dc --hosts 2", "up --two-dc --skew 1ms"] {
        assert!(parse(line).is_err(), "{line}");
    }
}
