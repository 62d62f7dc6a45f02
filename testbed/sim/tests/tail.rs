//! The tail of collectives: what each mechanism is worth there.

use roce_proto::transport::{Algorithm, Mechanisms};
use std::time::Duration;
use testbed_sim::single::Single;
use testbed_sim::study::ablation::{INTERVALS, Table};
use testbed_sim::study::tail::{Cell, Collective, SWITCHES, Switch, Tail, Variant};
use testbed_sim::{Pattern, Report, Topology, Trace, simulate};

/// Some seeds of a cell, with a switch.
fn run(collective: Collective, size: u64, switch: Switch) -> Vec<Tail> {
    // Needless retransmissions come in few of the runs, so their mean needs more of these.
    let seeds = 1..=if collective == Collective::AllToAll { 12 } else { 4 };
    let run = |seed| {
        let cell = Cell { collective, hosts: 16, size, loss: 0.009, seed };
        let (tail, verdict) = cell.run(Variant::without(switch));
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
    let questions = run(Collective::Ring, 4_000, ("questions", |m| (m.copies, m.tail) = (false, false)));
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
    let steps = |tails: &[Tail]| sum(tails, |t| t.step_p99);
    let all = [&on, &asked, &unasked, &none].map(|t| (slowest(t), steps(t)));
    // Probes come about as soon as questions here: what those are worth shows where no probe is.
    assert!(steps(&questions) * 2 < steps(&none), "{:?} {all:?}", steps(&questions));
    let [on_steps, asked_steps, unasked_steps, none_steps] = all.map(|(_, steps)| steps);
    assert!(on_steps * 2 < asked_steps && on_steps * 2 < unasked_steps, "copies save time: {all:?}");
    assert!(asked_steps.max(unasked_steps) * 2 < none_steps, "so do questions and probes: {all:?}");
    assert!(all[0].0 < Duration::from_micros(75) && all[3].0 > Duration::from_millis(1), "{all:?}");
    for tail in on.iter().chain(&asked) {
        assert_eq!(tail.report.timed_out(), 0.0, "{:?}", tail.report.found);
    }
    assert!(sum(&asked, |t| t.report.found[2]) > 0, "the deadline found some");
}

/// Two segments to each of the others, at once and then as theirs come. A copy is lost too: then the next goes soon, and no message takes as long as a probe and its answer.
#[test]
fn copies_of_copies_in_an_all_to_all() {
    let on = run(Collective::AllToAll, 4_096, ("on", |_| {}));
    let probed = run(Collective::AllToAll, 4_096, ("no copies", |m| m.copies = false));
    let steps = |tails: &[Tail]| sum(tails, |t| t.step_p99);
    assert!(sum(&on, |t| t.report.lost) > 300);
    assert!(steps(&on) * 3 < steps(&probed) * 2, "{:?} {:?}", steps(&on), steps(&probed));
    let slowest = on.iter().filter_map(|t| t.report.quantile(1.0)).max().expect("some");
    assert!(slowest < Duration::from_micros(100), "{slowest:?}");
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

/// 17 segments to the next, of which any can be lost: parity spares the round trip that a gap needs to show; no detector spares that.
#[test]
fn short_messages_of_a_ring() {
    let on = run(Collective::Ring, 65_536, ("on", |_| {}));
    let detected = run(Collective::Ring, 65_536, ("no parity", |m| m.parity = false));
    let again = |tails: &[Tail]| sum(tails, |t| t.report.retransmitted);
    let message = |tails: &[Tail]| sum(tails, |t| t.message);
    assert!(
        again(&detected) > 100 && again(&on) * 5 < again(&detected),
        "{} {}",
        again(&on),
        again(&detected)
    );
    assert!(message(&on).mul_f64(1.15) < message(&detected), "{:?} {:?}", message(&on), message(&detected));
}

/// The oracle knows of losses before anybody could tell it, and the interval when it is over: nothing else finds any.
#[test]
fn the_bounds_of_detection() {
    let cell = Cell { collective: Collective::Ring, hosts: 16, size: 65_536, loss: 0.01, seed: 5 };
    let run = |variant| {
        let (tail, verdict) = cell.run(variant);
        assert_eq!(verdict, Ok(()));
        tail
    };
    // Who has to wait for answers knows a round trip of the empty network after it was sent, and no sooner.
    let answered = run(Variant::answered());
    assert_eq!(answered.report.found, [0; 4]);
    let interval = Duration::from_micros(50);
    let (oracle, fixed) = (run(Variant::oracle()), run(Variant::fixed(interval)));
    assert!(oracle.report.lost > 50 && oracle.report.retransmitted > 50, "{:?}", oracle.report.found);
    assert_eq!(oracle.report.found, [0; 4]);
    assert!(oracle.report.repaired(0.99).expect("losses") < 2.0);
    let trip = oracle.report.round_trip;
    assert!(oracle.report.repairs[0] < trip, "sooner than any answer: {:?}", oracle.report.repairs[0]);
    // Most of the 16 µs of an empty round trip is still to come when a packet is lost.
    let median = |report: &Report| report.repairs[report.repairs.len() / 2];
    let (at_once, known) = (median(&oracle.report), median(&answered.report));
    assert!(known > at_once + Duration::from_micros(6), "{known:?} {at_once:?}");
    let [gap, time, deadline, timeout] = fixed.report.found;
    assert!((gap, time, deadline) == (0, 0, 0) && timeout > 50, "{:?}", fixed.report.found);
    // Half of the way was behind it when it was lost, at the most.
    let soonest = fixed.report.repairs[0];
    assert!(soonest + trip > interval && soonest < interval + trip, "{soonest:?}");
}

/// One small cell of the table, whole: `spraywire sim --study tail` has the others.
#[test]
fn a_cell_of_the_table() {
    let cell = Cell { collective: Collective::Ring, hosts: 16, size: 4_096, loss: 0.01, seed: 1 };
    let told = std::sync::atomic::AtomicUsize::new(0);
    let count = |_: &str| {
        told.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let table = Table::run(cell, 2, 2, &count);
    assert_eq!(table.violations, []);
    let rows = table.switches.len() + 2 + table.fixed.len();
    assert_eq!((told.into_inner(), rows), (2 * rows, SWITCHES.len() + 2 + INTERVALS.len()));
    let [on, none] = [0, SWITCHES.len() - 1].map(|i| &table.switches[i]);
    assert_eq!((on.name.as_str(), none.name.as_str()), ("all on", "time-outs only"));
    for figure in [1, 2] {
        let [on, none] =
            [on, none].map(|row| table.share(row, figure).expect("there is something between them"));
        // Of two seeds only; the whole table has more hosts and seeds.
        assert!(on >= 0.6, "{figure}: {on}");
        assert!(none < 0.0, "{figure}: {none}");
        let best = table.fixed.iter().map(|row| row.means[figure]).fold(f64::MAX, f64::min);
        assert_eq!(table.tuned(figure), best);
    }
    // What is better than the best by nothing closes nothing, and the oracle everything.
    let share = table.share(&table.oracle, 2).expect("as before");
    assert!((share - 1.0).abs() < 1e-9);
}

/// Segments that shared a packet are lost together, and each has its repair.
#[test]
fn repairs_of_what_shared_a_packet() {
    let base = Single::default();
    let loss = testbed_impair::Loss::Random(0.02);
    let link = testbed_impair::Config { delay: Duration::from_micros(20), loss, ..Default::default() };
    let single = Single { messages: 3_000, size: 400, link, ..base };
    let (report, verdict) = simulate(&single.scenario(), Trace::hash());
    assert_eq!(verdict, Ok(()));
    assert!(report.lost > 3, "{}", report.lost);
    assert!(report.repairs.len() as u64 > 3 * report.lost, "{} of {}", report.repairs.len(), report.lost);
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
