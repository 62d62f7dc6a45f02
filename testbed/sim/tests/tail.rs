//! The tail of collectives: what each mechanism is worth there.

use roce_proto::transport::{Algorithm, Mechanisms};
use std::time::Duration;
use testbed_sim::single::Single;
use testbed_sim::study::tail::{Cell, Collective, Switch, Tail};
use testbed_sim::{Pattern, Report, Topology, Trace, simulate};

/// Some seeds of a cell, with a switch.
fn run(collective: Collective, size: u64, switch: Switch) -> Vec<Tail> {
    // Needless retransmissions come in few of the runs, so their mean needs more of these.
    let seeds = 1..=if collective == Collective::AllToAll { 12 } else { 4 };
    let run = |seed| {
        let cell = Cell { collective, hosts: 16, size, loss: 0.003, seed };
        let (tail, verdict) = cell.run(switch);
        assert_eq!(verdict, Ok(()), "{cell:?}");
        tail
    };
    seeds.map(run).collect()
}

fn sum<T: std::iter::Sum<T>>(tails: &[Tail], figure: impl Fn(&Tail) -> T) -> T {
    tails.iter().map(figure).sum()
}

/// A lost message of one segment: nothing follows that could leave a gap. Its copy is there at once; without one the receiver asks, sooner than the sender can know.
#[test]
fn single_segments_of_a_ring() {
    let on = run(Collective::Ring, 4_000, ("on", |_| {}));
    let asked = run(Collective::Ring, 4_000, ("no copies", |m| m.copies = false));
    let unasked = run(Collective::Ring, 4_000, ("neither", |m| (m.copies, m.deadline) = (false, false)));
    let none = run(
        Collective::Ring,
        4_000,
        ("time-outs", |m| {
            *m = Mechanisms { gap: false, time: false, deadline: false, tail: false, copies: false, ..*m };
        }),
    );
    let lost = sum(&asked, |t| t.report.lost);
    assert!(lost >= 10, "{lost}");
    let slowest = |tails: &[Tail]| tails.iter().map(|t| t.step_p99).max().expect("some");
    let whole = |tails: &[Tail]| sum(tails, |t| t.whole);
    let all = [&on, &asked, &unasked, &none].map(|t| (slowest(t), whole(t)));
    for pair in all.windows(2) {
        assert!(pair[0].1 < pair[1].1, "each mechanism saves time: {all:?}");
    }
    assert!(all[0].0 < Duration::from_micros(40) && all[3].0 > Duration::from_millis(1), "{all:?}");
    for tail in on.iter().chain(&asked) {
        assert_eq!(tail.report.timed_out(), 0.0, "{:?}", tail.report.found);
    }
    assert!(sum(&asked, |t| t.report.found[2]) > 0, "the deadline found some");
}

/// Steps that overlap in all queues bring no false verdicts, as silence of a step counts and not of one peer.
#[test]
fn an_all_to_all_is_not_mistaken_for_losses() {
    let tails = run(Collective::AllToAll, 64_000, ("on", |_| {}));
    let segments = sum(&tails, |t| t.report.sent[0]);
    let spurious = sum(&tails, |t| t.report.spurious);
    assert!(segments > 40_000 && spurious * 200 < segments, "{spurious} of {segments}");
    for tail in &tails {
        assert_eq!(tail.report.timed_out(), 0.0, "{:?}", tail.report.found);
    }
}

fn bursts(switch: fn(&mut Mechanisms)) -> Report {
    let base = Single::default();
    let link = testbed_impair::Config {
        delay: Duration::from_micros(50),
        loss: testbed_impair::Loss::Random(0.01),
        ..Default::default()
    };
    let mut config = base.config;
    config.congestion = Algorithm::Fixed(4 << 20);
    switch(&mut config.mechanisms);
    let single = Single {
        hosts: 2,
        pattern: Pattern::PingPong,
        topology: Topology::Mesh { lanes: 1 },
        messages: 400,
        size: 100 * 4_008,
        link,
        config,
        ..base
    };
    let (report, verdict) = simulate(&single.scenario(), Trace::hash());
    assert_eq!(verdict, Ok(()));
    report
}

/// Case 26: a lost last packet of a long burst is repaired in about two round trips, as the probe behind it shows the gap, and not by the time-out.
#[test]
fn a_probe_follows_a_long_burst() {
    let (on, off) = (bursts(|_| {}), bursts(|m| m.tail = false));
    // With a probe that is lost too, and the next, a time-out is left.
    assert!(on.repairs.len() > 200 && on.timed_out() < 0.01, "{:?}", on.found);
    assert!(on.control_share() <= 0.05, "{}", on.control_share());
    let slow = |report: &Report| report.repairs.iter().filter(|d| **d > Duration::from_micros(280)).count();
    // A round trip is 100 µs; what is lost twice takes longer in both.
    assert!(2 * slow(&on) < slow(&off), "{} against {}", slow(&on), slow(&off));
}
