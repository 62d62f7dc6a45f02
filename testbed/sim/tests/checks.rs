//! Each check can fail: a driver that makes one mistake is found out, and by the check that is there for it.

use testbed_sim::shrink::{Cut, shrink};
use testbed_sim::{Check, Sabotage, Scenario, Trace, simulate};

fn found(sabotage: Sabotage) -> Vec<Check> {
    // In some runs there is nothing to spoil; in most there is.
    (0..12)
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
