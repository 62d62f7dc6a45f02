//! One scenario drawn by hand: some hosts that are alike, over links that are alike.

use crate::scenario::{Fault, HostPlan, MessagePlan, Pattern, Poll, Sabotage, Scenario, Topology};
use roce_proto::transport::{Config, Limits};
use roce_proto::wire::shim::Semantics;
use std::time::Duration;
use testbed_impair as impair;

/// What a scenario drawn by hand is like.
#[derive(Clone, Debug)]
pub struct Single {
    /// Where all chance comes from.
    pub seed: u64,
    /// Hosts.
    pub hosts: usize,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Messages in all.
    pub messages: usize,
    /// Bytes of each.
    pub size: u64,
    /// When the first message is sent: later than zero, its session is open by then.
    pub at: Duration,
    /// Messages name their step: as many as there are hosts are one.
    pub steps: bool,
    /// Messages are tagged SYNC.
    pub sync: bool,
    /// What the applications say of them.
    pub semantics: Semantics,
    /// How long a receive is posted after its send; all of a host are posted at once.
    pub late: Duration,
    /// How hosts are joined.
    pub topology: Topology,
    /// What each link is like.
    pub link: impair::Config,
    /// Links that are different, by their number.
    pub odd: Vec<(usize, impair::Config)>,
    /// Each host's engine.
    pub config: Config,
    /// When hosts have rounds.
    pub poll: Poll,
    /// What a host's NIC takes ahead, see [`HostPlan::backlog`].
    pub backlog: Option<Duration>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl Default for Single {
    /// Two hosts with a link that does nothing, and receives posted ahead.
    fn default() -> Single {
        let limits =
            Limits { sends: 4_096, receives: 4_096, window: 4_096, segments: 65_536, ..Limits::SMALL };
        Single {
            seed: 1,
            hosts: 2,
            pattern: Pattern::Pair,
            messages: 100,
            size: 65_536,
            at: Duration::ZERO,
            steps: false,
            sync: false,
            semantics: Semantics::default(),
            late: Duration::ZERO,
            topology: Topology::Mesh { lanes: 1 },
            link: impair::Config { delay: Duration::from_micros(5), ..impair::Config::default() },
            odd: Vec::new(),
            config: Config { limits, ..Config::default() },
            poll: Poll::OnEvent,
            backlog: None,
            faults: Vec::new(),
        }
    }
}

impl Single {
    /// The scenario. What the link does to packets it does to the end: there is no calm.
    pub fn scenario(&self) -> Scenario {
        let n = self.hosts.max(2);
        let partners = partners(n, self.seed);
        let messages: Vec<MessagePlan> = (0..self.messages).map(|i| self.message(i, n, &partners)).collect();
        let mut pairs: Vec<(usize, usize)> =
            messages.iter().map(|m| (m.from.min(m.to), m.from.max(m.to))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let operations = self.config.limits.sends.max(self.messages as u32 + 1).min(1 << 24);
        let limits = Limits {
            sends: operations,
            receives: operations,
            sessions: self.config.limits.sessions.max(n as u32),
            ..self.config.limits
        };
        let host = HostPlan {
            config: Config { limits, ..self.config },
            spacing: Duration::from_micros(1),
            ports: 1,
            poll: self.poll,
            ring: 4_096,
            burst: 64,
            backlog: self.backlog,
            clock: 1_000,
        };
        let mut links = vec![self.link.clone(); self.topology.links(n)];
        for (at, config) in &self.odd {
            if let Some(link) = links.get_mut(*at) {
                *link = config.clone();
            }
        }
        Scenario {
            seed: self.seed,
            hosts: vec![host; n],
            topology: self.topology,
            links,
            messages,
            faults: self.faults.clone(),
            calm_at: None,
            connects: pairs.into_iter().map(|(a, b)| (a, b, Duration::ZERO)).collect(),
            strict: self
                .faults
                .iter()
                .all(|f| matches!(f, Fault::Weather { .. } | Fault::Port { .. } | Fault::Pause { .. })),
            oracle: None,
            sabotage: Sabotage::None,
        }
    }

    fn message(&self, i: usize, n: usize, partners: &[usize]) -> MessagePlan {
        let round = i / n;
        let (from, to, after) = match self.pattern {
            Pattern::Pair => (0, 1, None),
            Pattern::ManyToOne => (1 + i % (n - 1), 0, None),
            Pattern::AllToAll => (i % n, (i % n + 1 + round % (n - 1)) % n, None),
            Pattern::Ring => (i % n, (i + 1) % n, i.checked_sub(1)),
            Pattern::Permutation => (i % n, partners[i % n], None),
            Pattern::PingPong => (i % 2, 1 - i % 2, i.checked_sub(1)),
        };
        MessagePlan {
            from,
            to,
            communicator: 1,
            tag: 0,
            size: self.size,
            capacity: self.size,
            step: self.steps.then_some(round as u32),
            sync: self.sync,
            semantics: self.semantics,
            send_at: self.at,
            recv_at: self.late,
            send_after: after,
            recv_after: None,
        }
    }
}

/// A permutation without a fixed point: the hosts in a circle of random order, each sends to the next.
fn partners(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    fastrand::Rng::with_seed(seed ^ 0x7e57).shuffle(&mut order);
    let mut partners = vec![0; n];
    for (i, from) in order.iter().enumerate() {
        partners[*from] = order[(i + 1) % n];
    }
    partners
}
