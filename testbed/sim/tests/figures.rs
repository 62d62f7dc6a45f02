//! Figures that the protocol promises, in the simulator.

use roce_proto::transport::{Algorithm, Config, Limits};
use roce_proto::wire::shim::{Kind, Seq};
use std::time::Duration;
use testbed_sim::single::Single;
use testbed_sim::{Pattern, Report, Trace, simulate};

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

/// Control packets are at most a twentieth of all, for messages of 64 segments and more.
#[test]
fn control_is_a_twentieth_at_most() {
    for segments in [64, 100, 1_000] {
        for rtt in [20, 1_000, 100_000].map(micros) {
            let link = testbed_impair::Config { delay: rtt / 2, ..Default::default() };
            let size = segments * u64::from(Config::default().segment);
            let single = Single { messages: 30, size, link, ..Single::default() };
            let report = run(&single);
            assert!(report.sent[Kind::Feedback as usize] > 0);
            assert!(report.control_share() <= 0.05, "{segments} {rtt:?}: {}", report.control_share());
        }
    }
}

/// Many to one over a bottleneck: everything arrives, and the queue is not filled again and again.
#[test]
fn many_to_one_shares_a_bottleneck() {
    let rate =
        testbed_impair::Rate { bits_per_second: 10_000_000_000, queue: 1 << 20, mark_from: Some(100_000) };
    let link = testbed_impair::Config { delay: micros(5), rate: Some(rate), ..Default::default() };
    let config = Config { congestion: Algorithm::DelayEcn, limits: Limits::SMALL, ..Config::default() };
    let single = Single {
        hosts: 9,
        pattern: Pattern::ManyToOne,
        messages: 64,
        size: 500_000,
        link,
        config,
        ..Single::default()
    };
    let report = run(&single);
    let least = 64.0 * 500_000.0 * 8.0 / 10e9;
    assert!(report.time.as_secs_f64() < 2.0 * least, "{:?} of {least} s", report.time);
    assert!(report.retransmitted * 20 < report.sent[Kind::Data as usize], "{report:?}");
}
