//! One network for each promise about many paths.

use super::wire;
use crate::figures::jain;
use crate::scenario::{Pattern, Topology};
use crate::single::Single;
use crate::{Report, Trace, Violation, simulate};
use roce_proto::time::Instant;
use roce_proto::transport::{Algorithm, Config, Limits};
use std::time::Duration;
use testbed_impair::{BlackOut, Loss};

/// A promise, and the network that tries it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What is simulated.
    pub single: Single,
    /// A link that is dark for a while, and when it is not any more.
    pub dark: Option<(usize, Instant)>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's figures.
    pub report: Report,
    /// Segments sent again that had arrived, as a share of all segments.
    pub spurious: f64,
    /// From a dark link's return to the next segment on it.
    pub back: Option<Duration>,
    /// Jain's index of the flows' rates.
    pub fairness: f64,
    /// Bytes of messages a second.
    pub goodput: f64,
}

impl Case {
    /// Runs it.
    pub fn run(&self) -> (Outcome, Result<(), Violation>) {
        let (report, verdict) = simulate(&self.single.scenario(), Trace::hash());
        let segments = report.sent[0] - report.retransmitted.min(report.sent[0]);
        let rates: Vec<f64> = report.times.iter().map(|t| 1.0 / t.as_secs_f64().max(1e-9)).collect();
        let back = self.dark.map(|(link, until)| {
            let carried = report.carried.get(link).filter(|c| c.last.is_some_and(|last| last > until));
            carried.map_or(Duration::MAX, |c| c.pause.1.saturating_since(until))
        });
        let seconds = report.time.saturating_sub(self.single.at).as_secs_f64();
        let outcome = Outcome {
            spurious: report.spurious as f64 / segments.max(1) as f64,
            back,
            fairness: jain(&rates),
            goodput: report.bytes as f64 / seconds.max(1e-9),
            report,
        };
        (outcome, verdict)
    }
}

const fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Two hosts with parallel links of 10 Gb/s and a round trip of 50 µs.
fn pair(seed: u64, lanes: usize, paths: u8) -> Single {
    let base = Single::default();
    Single {
        seed,
        topology: Topology::Mesh { lanes },
        messages: 40,
        size: 1_000_000,
        at: micros(1_000),
        link: wire(micros(25), 10, 1_000_000, Some(100_000)),
        config: Config { paths, ..base.config },
        ..base
    }
}

/// The links of a pair's lane, there and back.
fn lane(single: &Single, number: usize) -> [usize; 2] {
    let of = |from, to| single.topology.link(2, from, to, number as u16, 0, 0).unwrap_or_default();
    [of(0, 1), of(1, 0)]
}

/// 16 hosts at four leaves and eight spines, each sends to another one over 32 paths; nothing is lost.
pub fn sound(seed: u64) -> Case {
    let base = Single::default();
    let single = Single {
        seed,
        hosts: 16,
        pattern: Pattern::Permutation,
        messages: 64,
        size: 2_000_000,
        at: micros(1_000),
        topology: Topology::LeafSpine { leaves: 4, spines: 8 },
        link: wire(micros(1), 100, 2_000_000, Some(50_000)),
        config: Config { paths: 32, ..base.config },
        backlog: Some(micros(1)),
        ..base
    };
    Case { name: "32 paths, no loss", single, dark: None }
}

/// Four paths whose delays differ by up to 10 ms.
pub fn skewed(seed: u64) -> Case {
    let mut single = pair(seed, 4, 4);
    for (i, delay) in [50, 3_350, 6_700, 10_050].map(micros).into_iter().enumerate() {
        for link in lane(&single, i) {
            single.odd.push((link, wire(delay, 10, 1_000_000, Some(100_000))));
        }
    }
    single.messages = 200;
    Case { name: "4 paths, 10 ms of skew", single, dark: None }
}

/// 16 hosts at four leaves and eight spines with 100 Gb/s and 10 µs on every link, eight paths; every switch loses a share of what it forwards,
/// and each packet passes up to three.
pub fn lossy(seed: u64, share: f64) -> Case {
    let base = Single::default();
    let mut link = wire(micros(10), 100, 1_000_000, Some(100_000));
    let own = link.clone();
    link.loss = Loss::Random(share);
    let single = Single {
        seed,
        hosts: 16,
        pattern: Pattern::Permutation,
        messages: 160,
        size: 1_000_000,
        // Handshakes that were lost have been repeated by then.
        at: micros(100_000),
        topology: Topology::LeafSpine { leaves: 4, spines: 8 },
        link,
        odd: (0..16).map(|host| (host, own.clone())).collect(),
        config: Config { paths: 8, ..base.config },
        backlog: Some(micros(1)),
        ..base
    };
    Case {
        name: if share < 0.001 { "8 paths, switches lose 0.03 %" } else { "8 paths, switches lose 0.3 %" },
        single,
        dark: None,
    }
}

/// Four paths of 1 Gb/s, one of which is dark from 100 to 400 ms.
pub fn dark(seed: u64) -> Case {
    let mut single = pair(seed, 4, 4);
    let link = wire(micros(25), 1, 1_000_000, Some(100_000));
    let lasting = Duration::from_millis(300);
    let from = Instant::ZERO + Duration::from_millis(100);
    let [there, back] = lane(&single, 1);
    let black_out = Some(BlackOut { from, lasting, every: None });
    let odd = testbed_impair::Config { black_out, ..link.clone() };
    single.odd = vec![(there, odd.clone()), (back, odd)];
    single.link = link;
    single.messages = 400;
    Case { name: "4 paths, one dark for 300 ms", single, dark: Some((there, from + lasting)) }
}

/// Lanes that are dark from the first packet on, there and back: the session begins all the same.
pub fn dark_from_the_start(seed: u64, there: usize, back: usize) -> Case {
    let mut single = pair(seed, 4, 4);
    let black_out = Some(BlackOut { from: Instant::ZERO, lasting: Duration::from_secs(60), every: None });
    let odd = testbed_impair::Config { black_out, ..single.link.clone() };
    single.odd = vec![(lane(&single, there)[0], odd.clone()), (lane(&single, back)[1], odd)];
    Case { name: "4 paths, one dark from the start", single, dark: None }
}

/// Eight paths over four lanes of 1 ms, whose forwarders wait for their cores half of the time: nothing is congested.
pub fn stalled(seed: u64, congestion: Algorithm) -> Case {
    let mut single = pair(seed, 4, 8);
    for i in 0..4 {
        for (way, link) in lane(&single, i).into_iter().enumerate() {
            let micros_of = |base: usize, step: usize| micros((base + step * (2 * i + way)) as u64);
            let stall = Some(BlackOut {
                from: Instant::ZERO + micros_of(0, 700),
                lasting: micros_of(2_500, 100),
                every: Some(micros_of(5_000, 330)),
            });
            single
                .odd
                .push((link, testbed_impair::Config { stall, ..wire(micros(1_000), 10, 8_000_000, None) }));
        }
    }
    single.messages = 100;
    single.config.congestion = congestion;
    Case { name: "8 paths that stall", single, dark: None }
}

/// Eight paths, one of which loses a share of its packets.
pub fn one_bad(seed: u64, share: f64) -> Case {
    let mut single = pair(seed, 8, 8);
    let mut odd = single.link.clone();
    odd.loss = Loss::Random(share);
    single.odd = vec![(lane(&single, 3)[0], odd)];
    single.messages = 200;
    single.config.congestion = Algorithm::DelayEcn;
    Case {
        name: if share > 0.0 { "8 paths, one loses 10 %" } else { "8 paths, the same without" },
        single,
        dark: None,
    }
}

/// 100 hosts send to one.
pub fn incast(seed: u64) -> Case {
    let base = Single::default();
    let limits = Limits { sessions: 128, ..base.config.limits };
    let single = Single {
        seed,
        hosts: 101,
        pattern: Pattern::ManyToOne,
        messages: 100,
        size: 500_000,
        at: micros(1_000),
        topology: Topology::LeafSpine { leaves: 8, spines: 8 },
        link: wire(micros(1), 100, 2_000_000, Some(100_000)),
        config: Config { paths: 8, congestion: Algorithm::DelayEcn, limits, ..base.config },
        backlog: Some(micros(1)),
        ..base
    };
    Case { name: "incast, 100 to 1", single, dark: None }
}

/// All of them.
pub fn cases(seed: u64) -> Vec<Case> {
    vec![
        sound(seed),
        skewed(seed),
        lossy(seed, 0.000_3),
        lossy(seed, 0.003),
        dark(seed),
        dark_from_the_start(seed, 0, 0),
        stalled(seed, Algorithm::DelayEcn),
        one_bad(seed, 0.0),
        one_bad(seed, 0.1),
        incast(seed),
    ]
}
