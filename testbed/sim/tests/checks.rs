//! Each check can fail: a driver that makes one mistake is found out, and by the check that is there for it.

use roce_proto::time::Instant;
use roce_proto::transport::{Config, Destination, Engine, Limits, Transmit};
use roce_proto::wire::shim::{Data, Kind, Semantics, Seq, Ticks};
use std::time::Duration;
use testbed_impair::BlackOut;
use testbed_sim::host::address;
use testbed_sim::shrink::{Cut, shrink};
use testbed_sim::single::Single;
use testbed_sim::watch::Watch;
use testbed_sim::{Check, HostPlan, Sabotage, Scenario, Trace, simulate};

const MS: Duration = Duration::from_millis(1);

fn found(sabotage: Sabotage) -> Vec<Check> {
    // In some runs there is nothing to spoil; in most there is. Few repair anything with the first parity that is kept.
    (0..if sabotage == Sabotage::FlipParity { 60 } else { 12 })
        .filter_map(|seed| {
            let scenario = Scenario { sabotage, ..Scenario::swarm(seed) };
            Some(simulate(&scenario, Trace::hash()).1.err()?.check)
        })
        .collect()
}

#[test]
fn every_mistake_is_found() {
    for (sabotage, check) in [
        (Sabotage::FlipByte, Check::Bytes),
        (Sabotage::SkipPlacement, Check::Bytes),
        (Sabotage::FlipParity, Check::Bytes),
        (Sabotage::LoseCompletion, Check::Progress),
        (Sabotage::RepeatCompletion, Check::Once),
        (Sabotage::LosePacket, Check::Conservation),
        (Sabotage::RepeatFeedback, Check::Feedback),
        (Sabotage::Spin, Check::Deadline),
        (Sabotage::WrongStatus, Check::Agreement),
        (Sabotage::Silence, Check::Conservation),
    ] {
        let found = found(sabotage);
        assert!(found.len() >= 4 && found.contains(&check), "{sabotage:?}: {found:?}");
    }
    assert_eq!(found(Sabotage::None), []);
}

#[test]
fn a_failing_run_is_made_smaller() {
    let scenario = (0..50)
        .map(|seed| Scenario { sabotage: Sabotage::FlipByte, ..Scenario::swarm(seed) })
        .find(|s| s.messages.len() > 20 && s.faults.len() > 1 && simulate(s, Trace::hash()).1.is_err())
        .expect("one of fifty");
    let cut = shrink(&scenario, Check::Bytes, 60);
    let smaller = cut.apply(&scenario);
    assert!(smaller.messages.len() < scenario.messages.len());
    assert!(smaller.faults.is_empty(), "none is needed");
    assert!(simulate(&smaller, Trace::hash()).1.is_err_and(|v| v.check == Check::Bytes));
    assert_eq!(Cut::default().apply(&scenario).messages.len(), scenario.messages.len());
}

/// What an engine would have to send to be found out.
#[test]
fn the_wire_is_watched() {
    let limits = Limits { window: 64, ..Limits::SMALL };
    let config = Config { first: Seq(u32::MAX - 3), limits, paths: 2, allowance: 5, ..Config::default() };
    let plan = HostPlan { config, ..Single::default().scenario().hosts[0] };
    let mut engine = Engine::new(&config).expect("sound");
    let key = engine.connect(address(1)).expect("room");
    // Segments are sent by number, path and path sequence, each counted from the first; returns what is found at the last.
    let found = |packets: &[(u32, u8, u32, bool, bool)]| {
        let mut watch = Watch::new(&config);
        let mut found = None;
        for (seq, path, path_seq, again, granted) in packets.iter().copied() {
            assert_eq!(found, None, "at the last only");
            let data = Data {
                session: 1,
                path,
                path_seq: config.first.add(path_seq),
                seq: config.first.add(seq),
                time: Ticks(0),
                message: Seq(0),
                segment: 0,
                communicator: 0,
                tag: 0,
                ordinal: Seq(0),
                length: 0,
                semantics: Semantics::default(),
                ask: false,
                again,
                void: false,
                granted,
                more: false,
            };
            let to = Destination::Session(key);
            let transmit = Transmit {
                to,
                path,
                kind: Kind::Data,
                header_len: 60,
                source: None,
                parity: None,
                more: false,
            };
            found = watch.sent(key, &transmit, &data.to_bytes(), 1, (1, &plan)).err().map(|(check, _)| check);
        }
        found
    };
    let plain = |n: u32| (0..n).map(|i| (i, 0, i, false, false)).collect::<Vec<_>>();
    let granted = |n: u32| (0..n).map(|i| (i, 0, i, false, true)).collect::<Vec<_>>();
    assert_eq!(found(&plain(64)), None);
    assert_eq!(found(&plain(65)), Some(Check::Window));
    assert_eq!(found(&granted(5)), None);
    assert_eq!(found(&granted(6)), Some(Check::Grant));
    assert_eq!(found(&[(0, 0, 0, false, false), (0, 1, 0, true, false)]), None);
    assert_eq!(found(&[(0, 0, 0, false, false), (1, 1, 0, true, false)]), Some(Check::Window));
    assert_eq!(found(&[(0, 0, 0, false, false), (2, 0, 1, false, false)]), Some(Check::Window));
    assert_eq!(found(&[(0, 0, 0, false, false), (1, 0, 2, false, false)]), Some(Check::PathSequence));
    assert_eq!(found(&[(0, 2, 0, false, false)]), Some(Check::Bounds));
}

#[test]
fn a_session_that_goes_down_is_found() {
    let dark = BlackOut { from: Instant::ZERO + MS, lasting: 20_000 * MS, every: None };
    let link = testbed_impair::Config { black_out: Some(dark), delay: MS, ..Default::default() };
    let single = Single { size: 10_000_000, messages: 2, link, ..Single::default() };
    let violation = simulate(&single.scenario(), Trace::hash()).1.expect_err("longer than a session waits");
    assert_eq!(violation.check, Check::Session);
}
