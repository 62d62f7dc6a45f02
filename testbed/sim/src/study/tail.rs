//! The tail of collectives: ring all-reduce and all-to-all of hosts at a two-tier network whose switches lose packets, with one mechanism of recovery switched off at a
//! time; beside them an oracle, which no detector can be better than, and a fixed interval for detection, which is what others have.

use super::wire;
use crate::scenario::{HostPlan, MessagePlan, Scenario, Topology};
use crate::single::Single;
use crate::{Report, Trace, Violation, simulate};
use roce_proto::transport::{Algorithm, Config, Limits, Mechanisms};
use std::time::Duration;
use testbed_impair::Loss;

/// Who sends to whom in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Each to the next, what came from the last one in the step before: 2(n − 1) steps, or 8 of large messages.
    Ring,
    /// Each to each, when that one's message of the step before has come: four steps. Of large messages one, to 16 of the others that are far from each other.
    AllToAll,
}

/// What is switched off, and its name.
pub type Switch = (&'static str, fn(&mut Mechanisms));

/// Every variant of the table.
pub const SWITCHES: [Switch; 11] = [
    ("all on", |_| {}),
    ("no gap", |m| m.gap = false),
    ("no time", |m| m.time = false),
    ("no deadline", |m| m.deadline = false),
    ("no tail probe", |m| m.tail = false),
    ("no copies", |m| m.copies = false),
    ("no parity", |m| m.parity = false),
    ("neither", |m| (m.copies, m.parity) = (false, false)),
    ("nor deadline", |m| (m.copies, m.parity, m.deadline) = (false, false, false)),
    ("no health", |m| m.health = false),
    ("time-outs only", |m| *m = without_repair()),
];

/// How losses are found in a run.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// What is switched on.
    pub mechanisms: Mechanisms,
    /// Senders are told of each loss as it happens, or so long after the packet was sent if that is later.
    pub oracle: Option<Duration>,
}

impl Variant {
    /// Everything but what a switch takes away.
    pub fn without(switch: Switch) -> Variant {
        let mut mechanisms = Mechanisms::default();
        switch.1(&mut mechanisms);
        Variant { mechanisms, oracle: None }
    }

    /// No detectors and nothing sent for the case: whatever is lost, its sender knows it at once, and sends it again.
    pub fn oracle() -> Variant {
        Variant { mechanisms: without_repair(), oracle: Some(Duration::ZERO) }
    }

    /// The same with what the best answer could tell: each loss is known when one to its packet could have come over an empty network. It bounds whoever sends nothing twice before he knows.
    pub fn answered() -> Variant {
        Variant { oracle: Some(ROUND_TRIP), ..Variant::oracle() }
    }

    /// One interval for all losses, and nothing else.
    pub fn fixed(interval: Duration) -> Variant {
        Variant { mechanisms: Mechanisms { interval: Some(interval), ..without_repair() }, oracle: None }
    }
}

/// Time-outs only.
fn without_repair() -> Mechanisms {
    Mechanisms {
        gap: false,
        time: false,
        deadline: false,
        tail: false,
        copies: false,
        parity: false,
        ..Mechanisms::default()
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The collective.
    pub collective: Collective,
    /// Hosts, a multiple of eight.
    pub hosts: usize,
    /// Bytes of a message.
    pub size: u64,
    /// Share of packets that are lost between hosts at different leaves, by the three switches that they pass.
    pub loss: f64,
    /// Where all chance comes from.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Tail {
    /// The time that 99 of 100 sends did not exceed, from post to acknowledgement.
    pub message: Duration,
    /// The median step, from the first post to the last acknowledgement.
    pub step_p50: Duration,
    /// The step that 99 of 100 did not exceed.
    pub step_p99: Duration,
    /// All steps together.
    pub whole: Duration,
    /// The run's figures.
    pub report: Report,
}

/// When the first step begins.
const AT: Duration = Duration::from_millis(100);
/// Each link, one way; and four there and four back, without the time that packets take.
const DELAY: Duration = Duration::from_micros(2);
const ROUND_TRIP: Duration = Duration::from_micros(16);

impl Cell {
    /// The scenario: leaves of eight hosts, as many spines as leaves, 100 Gb/s and 2 µs on every link, eight paths.
    pub fn scenario(&self, variant: Variant) -> Scenario {
        let n = self.hosts;
        let mut link = wire(DELAY, 100, 2_000_000, Some(100_000));
        let own = link.clone();
        link.loss = Loss::Random(1.0 - (1.0 - self.loss).cbrt());
        let leaves = self.leaves();
        let topology = Topology::LeafSpine { leaves, spines: leaves.max(2) };
        let mut links = vec![link; topology.links(n)];
        links[..n].fill(own);
        let base = Single::default().config;
        let sessions = n as u32 + 1;
        let limits = Limits { sessions, windows: sessions, segments: 16_384, ..base.limits };
        let mechanisms = variant.mechanisms;
        let config = Config { paths: 8, limits, congestion: Algorithm::DelayEcn, mechanisms, ..base };
        let host = HostPlan {
            ports: 1,
            config,
            spacing: Duration::from_micros(1),
            poll: crate::Poll::OnEvent,
            ring: 4_096,
            burst: 64,
            backlog: Some(DELAY),
            clock: 1_000,
        };
        let messages = self.messages();
        let mut connects: Vec<(usize, usize, Duration)> =
            messages.iter().map(|m| (m.from.min(m.to), m.from.max(m.to), Duration::ZERO)).collect();
        connects.sort_unstable();
        connects.dedup();
        Scenario {
            seed: self.seed,
            hosts: vec![host; n],
            topology,
            links,
            messages,
            faults: Vec::new(),
            calm_at: None,
            connects,
            strict: true,
            oracle: variant.oracle,
            sabotage: crate::Sabotage::None,
        }
    }

    const fn leaves(&self) -> usize {
        self.hosts.div_ceil(8)
    }

    /// Where the host is that follows one in the ring: at another leaf, so that each message passes three switches. With a whole number of leaves' hosts the ring is one.
    const fn next(&self, host: usize) -> usize {
        let at = host + 8;
        if at < self.hosts { at } else { (at % 8 + 1) % 8 }
    }

    /// Where the host is that one follows.
    const fn last(&self, host: usize) -> usize {
        if host >= 8 { host - 8 } else { self.hosts - 8 + (host + 7) % 8 }
    }

    fn messages(&self) -> Vec<MessagePlan> {
        let n = self.hosts;
        // The steps are alike, and a run of all of them would take long.
        let large = self.size >= 1 << 20;
        let (steps, each) = match self.collective {
            Collective::Ring if large => ((2 * (n - 1)).min(8), 1),
            Collective::Ring => (2 * (n - 1), 1),
            Collective::AllToAll if large => (1, (n - 1).min(16)),
            Collective::AllToAll => (4, n - 1),
        };
        let mut messages = Vec::with_capacity(steps * each * n);
        for step in 0..steps {
            for k in 1..=each {
                for from in 0..n {
                    // The number of the message of the step before that the sender waits for: it came from the one that the next goes to, or in a ring from the last.
                    let before = |other: usize, k: usize| {
                        step.checked_sub(1).map(|s| s * each * n + (k - 1) * n + other)
                    };
                    let (to, after) = match self.collective {
                        Collective::Ring => (self.next(from), before(self.last(from), 1)),
                        Collective::AllToAll => {
                            let to = (from + k * (n - 1) / each) % n;
                            (to, before(to, n - k))
                        }
                    };
                    messages.push(MessagePlan {
                        from,
                        to,
                        communicator: 1,
                        tag: 0,
                        size: self.size,
                        capacity: self.size,
                        semantics: roce_proto::wire::shim::Semantics::default(),
                        step: Some(step as u32),
                        sync: true,
                        send_at: AT,
                        recv_at: Duration::ZERO,
                        send_after: after,
                        recv_after: None,
                    });
                }
            }
        }
        messages
    }

    /// Runs it.
    pub fn run(&self, variant: Variant) -> (Tail, Result<(), Violation>) {
        let scenario = self.scenario(variant);
        let (report, verdict) = simulate(&scenario, Trace::hash());
        let mut steps: Vec<(Duration, Duration)> = Vec::new();
        for (message, posted, done) in &report.spans {
            let Some(step) = scenario.messages.get(*message).and_then(|m| m.step) else { continue };
            if steps.len() <= step as usize {
                steps.resize(step as usize + 1, (Duration::MAX, Duration::ZERO));
            }
            let span = &mut steps[step as usize];
            *span = (span.0.min(*posted), span.1.max(*done));
        }
        let begin = steps.iter().map(|s| s.0).min().unwrap_or_default();
        let end = steps.iter().map(|s| s.1).max().unwrap_or_default();
        let mut times: Vec<Duration> = steps.iter().map(|s| s.1.saturating_sub(s.0)).collect();
        times.sort_unstable();
        let at = |q| crate::report::quantile(&times, q).unwrap_or_default();
        let tail = Tail {
            message: report.quantile(0.99).unwrap_or_default(),
            step_p50: at(0.5),
            step_p99: at(0.99),
            whole: end.saturating_sub(begin),
            report,
        };
        (tail, verdict)
    }
}
