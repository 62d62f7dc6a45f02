//! The tail of collectives: ring all-reduce and all-to-all of hosts at a two-tier network whose switches lose packets, with one mechanism of recovery switched off at a
//! time.

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
    /// Each to the next, what came from the last one in the step before: 2(n − 1) steps.
    Ring,
    /// Each to each, when that one's message of the step before has come: four steps.
    AllToAll,
}

/// What is switched off, and its name.
pub type Switch = (&'static str, fn(&mut Mechanisms));

/// Every variant of the table.
pub const SWITCHES: [Switch; 9] = [
    ("all on", |_| {}),
    ("no gap", |m| m.gap = false),
    ("no time", |m| m.time = false),
    ("no deadline", |m| m.deadline = false),
    ("no tail probe", |m| m.tail = false),
    ("no copies", |m| m.copies = false),
    ("no copies, no deadline", |m| (m.copies, m.deadline) = (false, false)),
    ("no health", |m| m.health = false),
    ("time-outs only", |m| {
        (m.gap, m.time, m.deadline, m.tail, m.copies) = (false, false, false, false, false);
    }),
];

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The collective.
    pub collective: Collective,
    /// Hosts.
    pub hosts: usize,
    /// Bytes of a message.
    pub size: u64,
    /// Share of packets that each switch loses; most packets pass three.
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

impl Cell {
    /// The scenario: leaves of eight hosts, as many spines as leaves, 100 Gb/s and 2 µs on every link, eight paths.
    pub fn scenario(&self, switch: Switch) -> Scenario {
        let n = self.hosts;
        let delay = Duration::from_micros(2);
        let mut link = wire(delay, 100, 2_000_000, Some(100_000));
        let own = link.clone();
        link.loss = Loss::Random(self.loss);
        let leaves = n.div_ceil(8);
        let topology = Topology::LeafSpine { leaves, spines: leaves.max(2) };
        let mut links = vec![link; topology.links(n)];
        links[..n].fill(own);
        let base = Single::default().config;
        let limits = Limits { sessions: n as u32 + 1, segments: 16_384, ..base.limits };
        let mut config = Config { paths: 8, limits, congestion: Algorithm::DelayEcn, ..base };
        switch.1(&mut config.mechanisms);
        let host = HostPlan {
            config,
            spacing: Duration::from_micros(1),
            poll: crate::Poll::OnEvent,
            ring: 4_096,
            burst: 64,
            backlog: Some(delay),
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
            sabotage: crate::Sabotage::None,
        }
    }

    fn messages(&self) -> Vec<MessagePlan> {
        let n = self.hosts;
        let (steps, each) = match self.collective {
            Collective::Ring => (2 * (n - 1), 1),
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
                        Collective::Ring => ((from + 1) % n, before((from + n - 1) % n, 1)),
                        Collective::AllToAll => ((from + k) % n, before((from + k) % n, n - k)),
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
    pub fn run(&self, switch: Switch) -> (Tail, Result<(), Violation>) {
        let scenario = self.scenario(switch);
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
