//! What is simulated: plain values, from which everything follows.

use roce_proto::transport::Config;
use roce_proto::wire::shim::Semantics;
use std::time::Duration;
use testbed_impair as impair;

/// A simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all chance comes from.
    pub seed: u64,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// How they are joined.
    pub topology: Topology,
    /// What each link is like, in the order of [`Topology::links`].
    pub links: Vec<impair::Config>,
    /// What they send to each other.
    pub messages: Vec<MessagePlan>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// From then on the network only delays, and everything has to come to an end; if not given, it stays as it is.
    pub calm_at: Option<Duration>,
    /// Who connects: the first to the second, at that time. Both may.
    pub connects: Vec<(usize, usize, Duration)>,
    /// No session may go down before the end, and every message must arrive.
    pub strict: bool,
    /// Whoever sent a packet that a link loses is told so, in that moment or so long after it was sent if that is later: what no detector can do better.
    pub oracle: Option<Duration>,
    /// What the driver does wrong, to see that the checkers say so.
    pub sabotage: Sabotage,
}

impl Scenario {
    /// When the last fault has ended and the last operation may be posted.
    pub fn last_at(&self) -> Duration {
        let posts = self.messages.iter().map(|m| m.send_at.max(m.recv_at));
        self.faults.iter().map(Fault::end).chain(posts).chain(self.calm_at).max().unwrap_or_default()
    }

    /// How long it may take after the last fault until everything has ended, generously: a dead peer is noticed, each session sends two
    /// segments in a round trip, and the narrowest link carries everything several times.
    pub fn patience(&self) -> Duration {
        let delay = self.links.iter().map(|l| l.delay).max().unwrap_or_default();
        let gap = |h: &HostPlan| match h.poll {
            Poll::OnEvent => h.spacing,
            Poll::Every(gap) => gap.max(h.spacing),
        };
        let round = self.hosts.iter().map(gap).max().unwrap_or_default();
        let rtt = 8 * delay + 8 * round + Duration::from_millis(1);
        let segment = self.hosts.iter().map(|h| h.config.segment).min().unwrap_or(64);
        let bytes: u64 = self.messages.iter().map(|m| m.size).sum();
        let segments = bytes / u64::from(segment) + self.messages.len() as u64;
        let slowest = self.links.iter().filter_map(|l| l.rate).map(|r| r.bits_per_second).min();
        let on_wire = (bytes + 200 * segments) * 8;
        let carried = slowest.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(10.0 * on_wire as f64 / rate.max(1) as f64)
        });
        let trips = u32::try_from(segments + 8 * self.messages.len() as u64 + 20).unwrap_or(u32::MAX);
        Duration::from_secs(40) + carried + rtt * trips
    }
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// Its engine; the secret is drawn from the seed.
    pub config: Config,
    /// Least time between the beginnings of two rounds.
    pub spacing: Duration,
    /// Ports, of which paths take turns; 1 to 4.
    pub ports: u8,
    /// When rounds are.
    pub poll: Poll,
    /// Packets that its NIC holds between two rounds.
    pub ring: usize,
    /// Packets that it sends in a round at the most.
    pub burst: usize,
    /// What its NIC takes before it has sent it, as the time that this takes; more waits in the engine, as with a ring of a driver.
    /// Where a host has one link for all; none is no limit.
    pub backlog: Option<Duration>,
    /// What its clock shows at the beginning, nanoseconds.
    pub clock: u64,
}

/// When a host has rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// When a packet comes or a deadline passes.
    OnEvent,
    /// The same, but only at multiples of this time: its packets wait.
    Every(Duration),
}

/// How hosts are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A link from each to each, or several in parallel (lanes) that paths are spread over.
    Mesh {
        /// Links in parallel.
        lanes: usize,
    },
    /// One switch; each host has a link to it and one from it.
    Star,
    /// Two switches, even hosts at the first and odd ones at the second, and some links between these.
    Dumbbell {
        /// Links in parallel between the switches, each way.
        lanes: usize,
    },
    /// Two tiers: hosts at leaves, as many at each as there is room for, and every leaf joined with every spine. A leaf chooses the spine by a
    /// hash of addresses and UDP ports (ECMP).
    LeafSpine {
        /// Switches that hosts are at.
        leaves: usize,
        /// Switches between these.
        spines: usize,
    },
}

/// What a switch makes of addresses and ports: SplitMix64's finalizer, which spreads as well as any hash of a switch does.
const fn hash(from: usize, to: usize, entropy: u16, salt: u64) -> u64 {
    let mut z =
        salt ^ ((from as u64) << 40 | (to as u64) << 16 | entropy as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Topology {
    /// Links that it has, with so many hosts.
    pub const fn links(&self, hosts: usize) -> usize {
        match self {
            Topology::Mesh { lanes } => hosts * hosts * *lanes,
            Topology::Star => 2 * hosts,
            Topology::Dumbbell { lanes } => 2 * hosts + 2 * *lanes,
            Topology::LeafSpine { leaves, spines } => 2 * hosts + 2 * *leaves * *spines,
        }
    }

    /// The link that a packet takes after `hop` others; none if it has arrived. `entropy` is what its UDP source port is drawn from, `salt`
    /// that of the switches' hash.
    pub const fn link(
        &self,
        hosts: usize,
        from: usize,
        to: usize,
        entropy: u16,
        salt: u64,
        hop: usize,
    ) -> Option<usize> {
        match self {
            Topology::Mesh { lanes } => match hop {
                0 => Some((from * hosts + to) * *lanes + (entropy as usize + from + to) % *lanes),
                _ => None,
            },
            Topology::Star => match hop {
                0 => Some(from),
                1 => Some(hosts + to),
                _ => None,
            },
            Topology::Dumbbell { lanes } => {
                let (near, far) = (from % 2, to % 2);
                match (hop, near == far) {
                    (0, _) => Some(from),
                    (1, false) => Some(2 * hosts + near * *lanes + (entropy as usize + from + to) % *lanes),
                    (1, true) | (2, false) => Some(hosts + to),
                    _ => None,
                }
            }
            Topology::LeafSpine { leaves, spines } => {
                let room = hosts.div_ceil(*leaves);
                let (near, far) = (from / room, to / room);
                let spine = (hash(from, to, entropy, salt) % *spines as u64) as usize;
                match (hop, near == far) {
                    (0, _) => Some(from),
                    (1, false) => Some(2 * hosts + near * *spines + spine),
                    (2, false) => Some(2 * hosts + *leaves * *spines + spine * *leaves + far),
                    (1, true) | (3, false) => Some(hosts + to),
                    _ => None,
                }
            }
        }
    }
}

/// A message, and when its two sides post it.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    /// Who sends it.
    pub from: usize,
    /// Who receives it.
    pub to: usize,
    /// Communicator.
    pub communicator: u32,
    /// Tag.
    pub tag: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that the receive takes.
    pub capacity: u64,
    /// The step that its two sides say it belongs to.
    pub step: Option<u32>,
    /// It is tagged SYNC.
    pub sync: bool,
    /// What the application says of it.
    pub semantics: Semantics,
    /// When the send is posted at the earliest.
    pub send_at: Duration,
    /// When the receive is posted at the earliest.
    pub recv_at: Duration,
    /// A message of a smaller number, whose receive must have ended before this send is posted.
    pub send_after: Option<usize>,
    /// A message of a smaller number, whose receive must have ended before this receive is posted.
    pub recv_after: Option<usize>,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Some links are worse for a while.
    Weather {
        /// The links.
        links: Vec<usize>,
        /// From when on.
        from: Duration,
        /// For how long.
        lasting: Duration,
        /// What they are like.
        config: Box<impair::Config>,
    },
    /// A port of a host takes and gives nothing for a while.
    Port {
        /// The host.
        host: usize,
        /// Which of its ports, from 0.
        port: u8,
        /// From when on.
        from: Duration,
        /// For how long.
        lasting: Duration,
    },
    /// A host does not run for a while: no rounds, its NIC's ring fills.
    Pause {
        /// The host.
        host: usize,
        /// From when on.
        from: Duration,
        /// For how long.
        lasting: Duration,
    },
    /// A host loses all it knew, and begins anew as another incarnation.
    Restart {
        /// The host.
        host: usize,
        /// When it ends.
        at: Duration,
        /// How long it is away.
        away: Duration,
    },
    /// An application closes a session, if it has one.
    Close {
        /// The host.
        host: usize,
        /// The session's peer.
        peer: usize,
        /// When.
        at: Duration,
    },
}

impl Fault {
    /// When it is over.
    pub fn end(&self) -> Duration {
        match self {
            Fault::Weather { from, lasting, .. }
            | Fault::Port { from, lasting, .. }
            | Fault::Pause { from, lasting, .. } => *from + *lasting,
            Fault::Restart { at, away, .. } => *at + *away,
            Fault::Close { at, .. } => *at,
        }
    }
}

/// A mistake of the driver's, made once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// A byte that is placed is another.
    FlipByte,
    /// A byte of a parity shard that is kept is another.
    FlipParity,
    /// A segment is not placed.
    SkipPlacement,
    /// A completion is not told.
    LoseCompletion,
    /// A completion is told twice.
    RepeatCompletion,
    /// A packet goes to nowhere, and no link has it.
    LosePacket,
    /// A feedback is sent twice.
    RepeatFeedback,
    /// A host is woken again and again for nothing.
    Spin,
    /// A receive's success is told as a failure.
    WrongStatus,
    /// Nothing is sent any more, and no link is to blame.
    Silence,
}

/// A load, for who draws one by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pattern {
    /// From the first host to the second.
    #[default]
    Pair,
    /// From all to the first.
    ManyToOne,
    /// From each to each.
    AllToAll,
    /// From each to the next, the next message once the last one's has come.
    Ring,
    /// There and back, one after the other.
    PingPong,
    /// From each to another one, drawn from the seed, so that each receives from one.
    Permutation,
}
