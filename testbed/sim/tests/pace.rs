//! What is sent after a while with nothing to send, over a long way to a narrow place: at a pace, or all at once.

use roce_proto::transport::{Algorithm, Config};
use std::time::Duration;
use testbed_impair as impair;
use testbed_sim::single::Single;
use testbed_sim::{Report, Topology, Trace, simulate};

const MESSAGES: u32 = 30;

/// A message of two thirds of what is under way in every eight round trips of so many microseconds, through 1 Gb/s with a queue of a quarter.
fn steps(rtt: u32, pace: bool) -> Report {
    through(rtt, pace, (MESSAGES, u64::from(rtt) * 125 * 2 / 3), 8)
}

/// So many messages of so many bytes, one in every so many round trips.
fn through(rtt: u32, pace: bool, (count, size): (u32, u64), every: u32) -> Report {
    let base = Single::default();
    let under_way = u64::from(rtt) * 125;
    let wire = |rate: u64, queue: u64, delay: Duration| impair::Config {
        rate: Some(impair::Rate { bits_per_second: rate, queue, mark_from: None }),
        delay,
        capacity: 100_000,
        ..impair::Config::default()
    };
    let narrow = wire(1_000_000_000, under_way / 4, Duration::from_micros(u64::from(rtt) / 2));
    let mut single = Single {
        messages: count as usize,
        size,
        topology: Topology::Dumbbell { lanes: 1 },
        link: wire(25_000_000_000, 1 << 30, Duration::ZERO),
        // Two hosts have four links; then come those between the switches.
        odd: vec![(4, narrow.clone()), (5, narrow)],
        config: Config { congestion: Algorithm::DelayEcn, ..base.config },
        backlog: Some(Duration::from_micros(1)),
        ..base
    };
    single.config.mechanisms.pace = pace;
    let mut scenario = single.scenario();
    for (nth, message) in (0..).zip(&mut scenario.messages) {
        message.send_at = Duration::from_micros(u64::from(rtt)) * (every * nth);
    }
    let (report, verdict) = simulate(&scenario, Trace::hash());
    assert_eq!((verdict, report.succeeded), (Ok(()), 2 * u64::from(count)));
    report
}

#[test]
fn a_window_after_a_pause_overflows_no_queue() {
    for rtt in [10_000, 25_000, 100_000] {
        let (with, without) = (steps(rtt, true), steps(rtt, false));
        let [p50, alone] = [&with, &without].map(|r| r.quantile(0.5).expect("messages"));
        assert!(with.lost * 6 < without.lost, "{rtt}: {} {}", with.lost, without.lost);
        assert!(p50 < alone.mul_f64(0.8), "{rtt}: {p50:?} {alone:?}");
        // A round trip, and two thirds of one for the bottleneck.
        let least = Duration::from_micros((rtt * 5 / 3).into());
        assert!(p50 < least.mul_f64(1.4), "{rtt}: {p50:?} {least:?}");
    }
}

/// Who sends all the time is no slower for it.
#[test]
fn a_stream_is_as_fast_as_without() {
    let [with, without] = [true, false].map(|pace| through(25_000, pace, (20, 20_000_000), 0));
    assert!(with.time < without.time.mul_f64(1.02), "{:?} {:?}", with.time, without.time);
    assert!(with.retransmitted <= without.retransmitted, "{} {}", with.retransmitted, without.retransmitted);
}

/// Over a short way nothing is paced: a window goes when there is something to send.
#[test]
fn a_short_way_has_no_pace() {
    let [with, without] = [true, false].map(|pace| steps(800, pace));
    assert_eq!(with.trace, without.trace);
}
