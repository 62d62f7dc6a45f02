//! Figures that the protocol promises, in the simulator.

use roce_proto::time::Instant;
use roce_proto::transport::{Algorithm, Config};
use roce_proto::wire::shim::{Kind, Seq};
use std::time::Duration;
use testbed_impair::{BlackOut, Rate};
use testbed_sim::single::Single;
use testbed_sim::{Pattern, Report, Topology, Trace, simulate};

fn run(single: &Single) -> Report {
    let (report, verdict) = simulate(&single.scenario(), Trace::hash());
    assert_eq!(verdict, Ok(()));
    report
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Nothing is sent again where nothing is lost, from a rack to twice around the earth, whatever the congestion control, one way and all to
/// all.
#[test]
fn no_retransmission_without_loss() {
    for rtt in [250, 1_000, 10_000, 100_000, 300_000].map(micros) {
        for congestion in [Algorithm::DelayEcn, Algorithm::Fixed(512 * 1024)] {
            for (pattern, hosts) in [(Pattern::Pair, 2), (Pattern::AllToAll, 4), (Pattern::PingPong, 2)] {
                let link = testbed_impair::Config { delay: rtt / 2, ..Default::default() };
                let config = Config { congestion, first: Seq(u32::MAX - 100), ..Single::default().config };
                let single =
                    Single { hosts, pattern, messages: 24, size: 300_000, link, config, ..Single::default() };
                let report = run(&single);
                let what = (rtt, congestion, pattern);
                assert_eq!((report.retransmitted, report.spurious, report.lost), (0, 0, 0), "{what:?}");
                assert_eq!(report.succeeded, 48, "{what:?}");
            }
        }
    }
}

/// Control packets are at most a twentieth of all, for messages of 64 segments and more, and that does not slow the repair of losses.
#[test]
fn control_is_a_twentieth_at_most() {
    for congestion in [Algorithm::Fixed(512 * 1024), Algorithm::DelayEcn] {
        for segments in [64, 100, 1_000] {
            for rtt in [20, 1_000, 100_000].map(micros) {
                let size = segments * u64::from(Config::default().segment);
                let config = Config { congestion, ..Single::default().config };
                let with_loss = |loss| {
                    let link = testbed_impair::Config {
                        delay: rtt / 2,
                        loss: testbed_impair::Loss::Random(loss),
                        ..Default::default()
                    };
                    run(&Single { messages: 40, size, link, config, ..Single::default() })
                };
                let (sound, lossy) = (with_loss(0.0), with_loss(0.01));
                for report in [&sound, &lossy] {
                    let what = (congestion, segments, rtt, report.lost);
                    assert!(report.sent[Kind::Feedback as usize] > 0);
                    assert!(report.control_share() <= 0.05, "{what:?}: {}", report.control_share());
                }
                if segments == 1_000 && congestion != Algorithm::DelayEcn {
                    assert!(lossy.retransmitted > 200 && lossy.spurious == 0, "{lossy:?}");
                    assert!(lossy.time < sound.time.mul_f64(1.05), "{:?} {:?}", lossy.time, sound.time);
                }
            }
        }
    }
}

/// A window of a quarter more than the bandwidth-delay product keeps a link of 1 Gbit/s busy, however short the way: feedback is asked for as often as that
/// takes. Nor do packets stay together that were held up together, as by a forwarder that waits for its core. Where the window has room for it, there is no
/// more control than else.
#[test]
fn a_window_of_a_quarter_more_than_the_product_is_enough() {
    for (rtt, most) in [(250, 0.51), (1_000, 0.2), (10_000, 0.05)] {
        let window = 1_250_000_000 * rtt / 8_000_000;
        let run = |delay, stall| {
            let rate = Some(Rate { bits_per_second: 1_000_000_000, queue: 8 << 20, mark_from: None });
            let link = testbed_impair::Config { delay: micros(delay), rate, stall, ..Default::default() };
            let config = Config { congestion: Algorithm::Fixed(window), ..Single::default().config };
            run(&Single { messages: 32, size: 1 << 20, link, config, ..Single::default() })
        };
        // Each 40 ms, everything waits for a millisecond.
        let stall = BlackOut {
            from: Instant::from_nanos(5_000_000),
            lasting: micros(1_000),
            every: Some(micros(40_000)),
        };
        let near = run(0, None);
        for (stall, share) in [(None, 0.9), (Some(stall), 0.85)] {
            let far = run(rtt / 2, stall);
            let what = (rtt, stall);
            assert_eq!((far.retransmitted, far.lost), (0, 0), "{what:?}");
            assert!(far.control_share() <= most, "{what:?}: {}", far.control_share());
            // But for the beginning and the end, when the link is not busy.
            let time = far.time.saturating_sub(micros(4 * rtt));
            assert!(time.mul_f64(share) < near.time, "{what:?}: {:?} {:?}", far.time, near.time);
        }
    }
}

/// Some to one over its link of `gigabits` a second, which marks what finds 100 kB in the queue.
fn bottleneck(congestion: Algorithm, senders: usize, gigabits: u64) -> (Report, f64) {
    let rate = testbed_impair::Rate {
        bits_per_second: gigabits * 1_000_000_000,
        queue: 1 << 20,
        mark_from: Some(100_000),
    };
    let link = testbed_impair::Config { delay: micros(2), rate: Some(rate), ..Default::default() };
    let (messages, size) = (128, 500_000);
    let report = run(&Single {
        hosts: senders + 1,
        topology: Topology::Star,
        pattern: Pattern::ManyToOne,
        messages,
        size,
        link,
        config: Config { congestion, ..Single::default().config },
        ..Single::default()
    });
    let least = messages as f64 * size as f64 * 8.0 / (gigabits as f64 * 1e9);
    let used = least / report.time.as_secs_f64();
    (report, used)
}

/// A queue that marks all its packets gets no more feedback than another.
#[test]
fn marks_do_not_bring_control() {
    for (senders, gigabits) in [(1, 1), (1, 10), (2, 10), (2, 40)] {
        let (report, used) = bottleneck(Algorithm::Fixed(512 * 1024), senders, gigabits);
        let what = (senders, gigabits);
        assert!(report.control_share() <= 0.05, "{what:?}: {}", report.control_share());
        assert!(used > 0.95, "{what:?}: {used}");
    }
}

/// Many to one over a bottleneck: it is used, and its queue is not filled again and again. Congestion control leaves some senders fewer
/// than 20 segments, of which each window needs an answer.
#[test]
fn many_to_one_shares_a_bottleneck() {
    for (senders, gigabits, most) in
        [(1, 10, 0.05), (2, 40, 0.05), (2, 10, 0.08), (8, 10, 0.20), (8, 40, 0.08)]
    {
        let (report, used) = bottleneck(Algorithm::DelayEcn, senders, gigabits);
        let what = (senders, gigabits);
        assert!(report.control_share() <= most, "{what:?}: {}", report.control_share());
        assert!(used > 0.95, "{what:?}: {used}");
        assert!(report.retransmitted * 12 < report.sent[Kind::Data as usize], "{what:?}: {report:?}");
    }
}
