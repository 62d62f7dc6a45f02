//! What forward error correction is worth over a long link: a round trip of 25 ms, 1 or 100 Gb/s, and losses of 0.1 % by themselves or in bursts.

use crate::figures::Sent;
use crate::scenario::{Fault, MessagePlan, Scenario};
use crate::single::Single;
use crate::{Report, Trace, Violation, simulate};
use fec::policy::{Policy, Protection, group_failure};
use roce_proto::transport::{Algorithm, Config, Fec, Limits, Mechanisms, Protect, Times};
use roce_proto::wire::shim::Semantics;
use std::time::Duration;
use testbed_impair::Loss;

/// The round trip of the link.
pub const ROUND_TRIP: Duration = Duration::from_millis(25);
/// What a slow link carries, Gb/s.
pub const SLOW: u64 = 1;
/// What a fast one carries, Gb/s.
pub const FAST: u64 = 100;
/// The share of packets that is lost.
pub const LOSS: f64 = 1e-3;
/// The mean length of bursts.
pub const BURST: f64 = 8.0;
/// Sizes of messages in bytes, and how many are sent of each: enough for the 99th percentile to be of several.
pub const SIZES: [(u64, usize); 4] = [(256 << 10, 1_000), (1 << 20, 600), (4 << 20, 300), (16 << 20, 120)];
/// When the first message is sent: the session is open by then.
const AT: Duration = Duration::from_millis(200);

/// Gradients of high priority.
pub const GRADIENT: Semantics =
    Semantics { class: 1, priority: 8, step: 0, stage: 0, tolerance: 0, sync: false };
/// Gradients that can wait.
pub const BULK: Semantics = Semantics { priority: 0, ..GRADIENT };
/// Activations of an early stage.
pub const ACTIVATION: Semantics = Semantics { class: 2, ..GRADIENT };
/// Control.
pub const CONTROL: Semantics = Semantics { class: 3, ..GRADIENT };

/// Independent losses, and losses in bursts.
pub fn losses() -> [(&'static str, Loss); 2] {
    let bursts = Loss::bursts(LOSS, BURST).unwrap_or(Loss::Random(LOSS));
    [("each by itself", Loss::Random(LOSS)), ("in bursts of 8", bursts)]
}

/// How losses are repaired.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What has parity.
    pub protect: Protect,
    /// Segments of a block at the most.
    pub block: u32,
    /// Paths.
    pub paths: u8,
    /// The last two segments go twice.
    pub sync: bool,
    /// Nothing but a time-out finds losses.
    pub time_out: Option<Duration>,
}

/// Protection as tags ask for it.
pub const BY_TAG: Setting =
    Setting { name: "by tags", protect: Protect::ByTag, block: 1_024, paths: 1, sync: false, time_out: None };

/// Everything is sent again, in each way that we have.
pub const SENT_AGAIN: [Setting; 4] = {
    let plain = Setting { name: "sent again, 1 path", protect: Protect::Nothing, ..BY_TAG };
    [
        plain,
        Setting { name: "sent again, 1 path, SYNC", sync: true, ..plain },
        Setting { name: "sent again, 8 paths", paths: 8, ..plain },
        Setting { name: "sent again, 8 paths, SYNC", paths: 8, sync: true, ..plain },
    ]
};

/// Losses are found by a time-out of three round trips.
pub const TIME_OUT: Setting = Setting {
    name: "time-out of 3 round trips",
    time_out: Some(ROUND_TRIP.saturating_mul(3)),
    ..SENT_AGAIN[0]
};

/// Everything alike, interleaved so deep.
pub const fn alike(name: &'static str, data: u8, parity: u8, depth: u8) -> Setting {
    let protection = Protection { data, parity, depth };
    // As large as such a block is, so that it is interleaved as deep as said.
    Setting { name, protect: Protect::Everything(protection), block: protection.block(), ..BY_TAG }
}

/// Messages of one kind, each sent when the one before has come, by turns there and back.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    /// What the application says of them.
    pub semantics: Semantics,
    /// Bytes of each.
    pub size: u64,
    /// How many.
    pub messages: usize,
}

/// Chains at the same time over one link.
#[derive(Clone, Debug)]
pub struct Load {
    /// The chains.
    pub chains: Vec<Chain>,
    /// What the link carries, Gb/s.
    pub rate: u64,
    /// What the link loses.
    pub loss: Loss,
    /// Where all chance comes from.
    pub seed: u64,
}

impl Load {
    /// Runs it.
    pub fn run(&self, setting: &Setting) -> (Report, Result<(), Violation>) {
        simulate(&self.scenario(setting), Trace::hash())
    }

    /// What is run.
    pub fn scenario(&self, setting: &Setting) -> Scenario {
        let mut messages = Vec::new();
        for (number, chain) in self.chains.iter().enumerate() {
            let begin = messages.len();
            messages.extend((0..chain.messages).map(|i| MessagePlan {
                from: i % 2,
                to: 1 - i % 2,
                communicator: number as u32 + 1,
                tag: 0,
                size: chain.size,
                capacity: chain.size,
                step: None,
                sync: setting.sync,
                semantics: chain.semantics,
                send_at: AT,
                recv_at: Duration::ZERO,
                send_after: (i > 0).then(|| begin + i - 1),
                recv_after: None,
            }));
        }
        let wire = super::wire(ROUND_TRIP / 2, self.rate, 64_000_000, None);
        let link = testbed_impair::Config { loss: self.loss, ..wire };
        let base = Single::default().config;
        let mechanisms = match setting.time_out {
            Some(_) => {
                let off = Mechanisms::default();
                Mechanisms { gap: false, time: false, deadline: false, tail: false, copies: false, ..off }
            }
            None => Mechanisms::default(),
        };
        let times = Times { min_rto: setting.time_out.unwrap_or(base.times.min_rto), ..base.times };
        let config = Config {
            congestion: Algorithm::Fixed(32 << 20),
            fec: Fec { protect: setting.protect, policy: Policy { block: setting.block, ..base.fec.policy } },
            limits: Limits { window: 8_192, shards: 1_024, ..base.limits },
            paths: setting.paths,
            mechanisms,
            times,
            ..base
        };
        let single = Single { seed: self.seed, messages: messages.len(), link, config, ..Single::default() };
        let mut scenario = single.scenario();
        scenario.messages = messages;
        scenario.connects = vec![(0, 1, Duration::ZERO)];
        scenario
    }

    /// The time that 99 of 100 messages of a chain did not exceed.
    pub fn p99(&self, report: &Report, chain: usize) -> Duration {
        let before = |n: usize| self.chains.iter().take(n).map(|c| c.messages).sum::<usize>();
        let own = before(chain)..before(chain + 1);
        let spans = report.spans.iter().filter(|(message, ..)| own.contains(message));
        let mut times: Vec<Duration> = spans.map(|(_, from, to)| to.saturating_sub(*from)).collect();
        times.sort_unstable();
        crate::report::quantile(&times, 0.99).unwrap_or_default()
    }
}

/// Messages of one size, one after the other: lossless, protected, and not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completion {
    /// The 99th percentile without losses.
    pub lossless: Duration,
    /// The same with losses, protected as tags ask for it.
    pub protected: Duration,
    /// The best of [`SENT_AGAIN`], and its name.
    pub sent_again: (Duration, &'static str),
    /// With [`TIME_OUT`].
    pub time_out: Duration,
    /// Parity packets for each segment of the protected run.
    pub cost: f64,
    /// Segments recovered in that run, and sent again.
    pub repaired: (u64, u64),
}

impl Completion {
    /// Runs messages of a size over a link of so many Gb/s with these losses, in every way.
    pub fn run(
        rate: u64,
        (size, messages): (u64, usize),
        loss: Loss,
        seed: u64,
    ) -> (Completion, Result<(), Violation>) {
        let mut verdict = Ok(());
        let mut run = |loss, setting: &Setting| {
            let load = Load { chains: vec![Chain { semantics: GRADIENT, size, messages }], rate, loss, seed };
            let (report, sound) = load.run(setting);
            if verdict.is_ok() {
                verdict = sound;
            }
            (load.p99(&report, 0), report)
        };
        let lossless = run(Loss::None, &SENT_AGAIN[0]).0;
        let (protected, report) = run(loss, &BY_TAG);
        let ways = SENT_AGAIN.map(|setting| (run(loss, &setting).0, setting.name));
        let sent_again = ways.into_iter().min().unwrap_or_default();
        let time_out = run(loss, &TIME_OUT).0;
        let cost = sent(&report, GRADIENT.class).cost();
        let repaired = (report.repaired, report.retransmitted);
        (Completion { lossless, protected, sent_again, time_out, cost, repaired }, verdict)
    }

    /// The protected 99th percentile as a share of the lossless one.
    pub fn ratio(&self) -> f64 {
        self.protected.as_secs_f64() / self.lossless.as_secs_f64().max(1e-9)
    }

    /// What sending again exceeds the lossless time by, for each that protection exceeds it by; none where losses hit fewer than one message in a
    /// hundred, so that nothing is to be gained.
    pub fn gain(&self) -> Option<f64> {
        let excess = |time: Duration| time.saturating_sub(self.lossless).as_secs_f64();
        let again = excess(self.sent_again.0);
        // A microsecond is the resolution of rounds.
        (again > 0.01 * self.lossless.as_secs_f64()).then(|| again / excess(self.protected).max(1e-6))
    }

    /// Whether it is as promised: within 1.15 of lossless, the excess a fifth of that of sending again, and half the time of the time-out's way.
    pub fn is_met(&self) -> bool {
        let late = self.gain().is_some();
        self.ratio() <= 1.15
            && self.gain().is_none_or(|gain| gain >= 5.0)
            && (!late || self.time_out >= 2 * self.protected)
    }
}

/// A mix of classes, protected by tags or alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixed {
    /// How.
    pub name: &'static str,
    /// The 99th percentiles of [`mix`]'s chains: gradients that can wait, those that cannot, activations, control.
    pub p99: [Duration; 4],
    /// Bytes of parity packets.
    pub parity_bytes: u64,
}

impl Mixed {
    /// Runs the mix by tags, and alike with (32,8) and (8,2), interleaved as deep as bursts ask for.
    pub fn run(loss: Loss, seed: u64, scale: usize) -> ([Mixed; 3], Result<(), Violation>) {
        let depth = if let Loss::GilbertElliott { .. } = loss { 2 * BURST as u8 } else { 1 };
        let load = mix(loss, seed, scale);
        let mut verdict = Ok(());
        let settings = [BY_TAG, alike("(32,8) on all", 32, 8, depth), alike("(8,2) on all", 8, 2, depth)];
        let all = settings.map(|setting| {
            let (report, sound) = load.run(&setting);
            if verdict.is_ok() {
                verdict = sound;
            }
            let p99 = std::array::from_fn(|chain| load.p99(&report, chain));
            let parity_bytes = (0..4).map(|class| sent(&report, class).parity_bytes).sum();
            Mixed { name: setting.name, p99, parity_bytes }
        });
        (all, verdict)
    }

    /// Whether the protected classes are no later than with uniform protection, and the parity at most half of it. Chains of messages drift past each other, and whose
    /// packets wait for whose in the link's queue is chance: a hundredth is not later.
    pub fn is_met(&self, alike: &Mixed) -> bool {
        let no_later = |chain: usize| self.p99[chain] <= alike.p99[chain] + alike.p99[chain] / 100;
        (1..4).all(no_later) && 2 * self.parity_bytes <= alike.parity_bytes
    }
}

/// All that was sent of a class.
pub fn sent(report: &Report, class: u8) -> Sent {
    report.traffic.of(class.into(), Duration::ZERO, Duration::MAX)
}

/// A mix: gradients that can wait and those that cannot, activations, control.
pub fn mix(loss: Loss, seed: u64, scale: usize) -> Load {
    let chain = |semantics, size, messages| Chain { semantics, size, messages: messages * scale };
    let chains = vec![
        chain(BULK, 4 << 20, 100),
        chain(GRADIENT, 1 << 20, 100),
        chain(ACTIVATION, 1 << 20, 100),
        chain(CONTROL, 16 << 10, 100),
    ];
    Load { chains, rate: FAST, loss, seed }
}

/// A stream over a link of 1 Gb/s that is the bottleneck, in messages of a megabyte.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// What has parity.
    pub protect: Protect,
    /// What the link loses.
    pub loss: Loss,
    /// From when to when it loses something else.
    pub worse: Option<(Duration, Duration, f64)>,
    /// Messages.
    pub messages: usize,
    /// What the application says of them.
    pub semantics: Semantics,
    /// Where all chance comes from.
    pub seed: u64,
}

impl Stream {
    /// Runs it.
    pub fn run(&self) -> (Report, Result<(), Violation>) {
        let link =
            testbed_impair::Config { loss: self.loss, ..super::wire(ROUND_TRIP / 2, 1, 16_000_000, None) };
        let base = Single::default().config;
        let config = Config {
            // 3.1 MB are under way in a round trip; the rest waits before the link, which is so never idle.
            congestion: Algorithm::Fixed(4 << 20),
            fec: Fec { protect: self.protect, ..base.fec },
            limits: Limits { shards: 1_024, ..base.limits },
            ..base
        };
        let faults = self.worse.map(|(from, to, loss)| {
            let config = testbed_impair::Config { loss: Loss::Random(loss), ..link.clone() };
            let links = (0..4).collect();
            Fault::Weather { links, from, lasting: to.saturating_sub(from), config: Box::new(config) }
        });
        let single = Single {
            seed: self.seed,
            messages: self.messages,
            size: 1_000_000,
            at: AT,
            semantics: self.semantics,
            faults: faults.into_iter().collect(),
            link,
            config,
            ..Single::default()
        };
        simulate(&single.scenario(), Trace::hash())
    }

    /// Bytes of messages a second, from the first that was acknowledged to the last.
    pub fn goodput(report: &Report) -> f64 {
        let ends = || report.spans.iter().map(|s| s.2);
        let (first, last) = (ends().min().unwrap_or_default(), ends().max().unwrap_or_default());
        let share = 1.0 - 1.0 / report.spans.len().max(1) as f64;
        report.bytes as f64 * share / last.saturating_sub(first).as_secs_f64().max(1e-9)
    }
}

/// The codes whose goodput is measured.
pub const CODES: [(u8, u8); 4] = [(8, 2), (16, 4), (32, 4), (32, 8)];

/// Goodputs of a stream over the narrow link, protected alike with losses of 0.1 %, as shares of what is had without parity and losses; less what parity takes,
/// they are 1.
pub fn goodputs(messages: usize, seed: u64) -> (Vec<f64>, Result<(), Violation>) {
    let bare = Stream {
        protect: Protect::Nothing,
        loss: Loss::None,
        worse: None,
        messages,
        semantics: GRADIENT,
        seed,
    };
    let (report, mut verdict) = bare.run();
    let whole = Stream::goodput(&report);
    let shares = CODES.map(|(data, parity)| {
        let protect = Protect::Everything(Protection { data, parity, depth: 1 });
        let (report, sound) = Stream { protect, loss: Loss::Random(LOSS), ..bare }.run();
        if verdict.is_ok() {
            verdict = sound;
        }
        let left = f64::from(data) / f64::from(data + parity);
        Stream::goodput(&report) / whole / left
    });
    (shares.to_vec(), verdict)
}

/// A stream whose losses rise from 0.01 to 1 % for a second, and fall again.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Parity packets for each segment in the round trips before the step.
    pub before: f64,
    /// In the last ten of it.
    pub during: f64,
    /// In round trips 90 to 100 after it.
    pub after: f64,
    /// Segments sent for the first time between the tenth round trip of the step and its end, and sent again.
    pub settled: (u64, u64),
    /// The share of groups that are not repaired with the strength that was chosen, as computed for a loss of 1 %, and what its class bears.
    pub residual: (f64, f64),
}

impl Step {
    /// Runs it with messages of a class.
    pub fn run(semantics: Semantics, residual: f64, data: u8, seed: u64) -> (Step, Result<(), Violation>) {
        let (from, to) = (AT + ROUND_TRIP * 72, AT + ROUND_TRIP * 112);
        let stream = Stream {
            protect: Protect::ByTag,
            loss: Loss::Random(1e-4),
            worse: Some((from, to, 1e-2)),
            messages: 660,
            semantics,
            seed,
        };
        let (report, verdict) = stream.run();
        let of = |from, to| report.traffic.of(semantics.class.into(), from, to);
        let settled = of(from + ROUND_TRIP * 10, to);
        let during = of(to - ROUND_TRIP * 10, to).cost();
        // As many parity shards of a group as the parity sent says, rounded down.
        let parity = (during * f64::from(data)) as u32;
        let step = Step {
            before: of(from - ROUND_TRIP * 20, from).cost(),
            during,
            after: of(to + ROUND_TRIP * 90, to + ROUND_TRIP * 100).cost(),
            settled: (settled.fresh, settled.again),
            residual: (group_failure(data.into(), parity, 1e-2, 1.0, 1), residual),
        };
        (step, verdict)
    }

    /// Whether the residual is within its bound, and parity is back.
    pub fn is_met(&self) -> bool {
        self.residual.0 <= self.residual.1 && self.settled.1 == 0 && self.after <= 1.25 * self.before
    }
}
