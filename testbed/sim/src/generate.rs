//! Scenarios from a seed: hosts, links, loads and faults of all kinds, as harsh as the protocol has to bear.

use crate::scenario::{Fault, HostPlan, MessagePlan, Poll, Sabotage, Scenario, Topology};
use fastrand::Rng;
use fec::policy::Protection;
use roce_proto::transport::{Algorithm, Config, Limits, Mechanisms, Protect};
use roce_proto::wire::shim::{Semantics, Seq};
use std::time::Duration;
use testbed_impair::{BlackOut, Config as Link, Loss, Rate, Reorder};

/// From `least` to `most`, each order of magnitude as likely as another.
fn spread(rng: &mut Rng, least: u64, most: u64) -> u64 {
    let (low, high) = ((least.max(1) as f64).ln(), (most.max(1) as f64).ln());
    ((low + rng.f64() * (high - low)).exp() as u64).clamp(least, most)
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}

/// What a whole scenario is like.
struct Mood {
    /// Round trip of the shortest ways, about.
    rtt: Duration,
    /// When the last message may be posted.
    span: Duration,
    /// Bytes of all messages.
    budget: u64,
    strict: bool,
    paths: u8,
}

impl Scenario {
    /// A scenario of the swarm.
    pub fn swarm(seed: u64) -> Scenario {
        let mut rng = Rng::with_seed(seed);
        let n = match rng.u8(..20) {
            0..11 => 2,
            11..16 => rng.usize(3..=4),
            16..19 => rng.usize(5..=9),
            _ => rng.usize(10..=32),
        };
        let rtt = Duration::from_nanos(spread(&mut rng, 2_000, 200_000_000));
        let mood = Mood {
            rtt,
            span: rtt * rng.u32(1..60) + micros(rng.u64(..20_000)),
            budget: spread(&mut rng, 10_000, 6_000_000),
            strict: chance(&mut rng, 65),
            paths: if rng.bool() { 1 } else { rng.u8(2..=8) },
        };
        let topology = match rng.u8(..4) {
            0 => Topology::Mesh { lanes: rng.usize(1..=usize::from(mood.paths)) },
            1 => Topology::Star,
            2 => Topology::LeafSpine { leaves: rng.usize(2..=4), spines: rng.usize(1..=4) },
            _ => Topology::Dumbbell { lanes: rng.usize(1..=usize::from(mood.paths)) },
        };
        let links = links(&mut rng, &topology, n, &mood);
        let messages = load(&mut rng, n, &mood);
        let hosts = (0..n).map(|_| host(&mut rng, n, messages.len(), &mood)).collect();
        let faults = faults(&mut rng, n, &topology, &links, &mood);
        let connects = connects(&mut rng, &messages, &mood);
        let last = faults.iter().map(Fault::end).max().unwrap_or_default();
        let calm_at = last.max(mood.span) + mood.rtt * rng.u32(..20);
        let strict = mood.strict;
        let mut scenario = Scenario {
            seed,
            hosts,
            topology,
            links,
            messages,
            faults,
            calm_at: Some(calm_at),
            connects,
            strict,
            oracle: None,
            sabotage: Sabotage::None,
        };
        protect(&mut scenario);
        rails(&mut scenario, mood.span);
        scenario
    }
}

/// Half the scenarios have messages with tags, and hosts that protect them, or everything, or nothing. Drawn apart, so that what else is
/// drawn does not depend on it.
fn protect(scenario: &mut Scenario) {
    let mut rng = Rng::with_seed(scenario.seed ^ 0x05ec_0000_0000);
    if rng.bool() {
        return;
    }
    for m in &mut scenario.messages {
        m.semantics = Semantics {
            class: rng.u8(..5),
            priority: rng.u8(..16),
            stage: rng.u8(..8),
            tolerance: if rng.u8(..4) == 0 { rng.u8(..) } else { 0 },
            ..Semantics::default()
        };
    }
    for host in &mut scenario.hosts {
        let c = &mut host.config;
        c.fec.protect = match rng.u8(..6) {
            0 => Protect::Nothing,
            1 | 2 => {
                let (data, parity, depth) = (rng.u8(1..=64), rng.u8(1..=16), rng.u8(1..=32));
                Protect::Everything(Protection { data, parity, depth })
            }
            _ => Protect::ByTag,
        };
        if rng.u8(..4) > 0 {
            c.fec.policy.short_round_trip = 0;
        }
        c.fec.policy.block = spread(&mut rng, 1, 300) as u32;
        c.limits.shards = spread(&mut rng, 1, 300) as u32;
    }
}

/// A third of the scenarios have hosts with several ports, each of which may be dark for a while. Drawn apart too.
fn rails(scenario: &mut Scenario, span: Duration) {
    let mut rng = Rng::with_seed(scenario.seed ^ 0x0a11_5000_0000);
    if rng.u8(..3) > 0 {
        return;
    }
    for host in &mut scenario.hosts {
        host.ports = rng.u8(1..=4);
        if rng.u8(..4) > 0 {
            host.config.paths = host.config.paths.max(rng.u8(2..=8));
        }
    }
    let span = span.as_nanos() as u64 * 2 + 1_000_000;
    for _ in 0..rng.usize(..5) {
        let host = rng.usize(..scenario.hosts.len());
        let port = rng.u8(..scenario.hosts[host].ports);
        let from = Duration::from_nanos(rng.u64(..span));
        let lasting = Duration::from_nanos(spread(&mut rng, 10_000, 3_000_000_000));
        scenario.faults.push(Fault::Port { host, port, from, lasting });
    }
    let last = scenario.faults.iter().map(Fault::end).max().unwrap_or_default();
    scenario.calm_at = scenario.calm_at.map(|at| at.max(last));
}

/// A weather that may stay for the whole run.
fn weather(rng: &mut Rng, base: &Link, worst_loss: f64) -> Link {
    let mut link = base.clone();
    let share = |rng: &mut Rng, most: f64| most * rng.f64() * rng.f64();
    if chance(rng, 60) {
        let rate = share(rng, worst_loss);
        link.loss = match rng.u8(..3) {
            0 => Loss::bursts(rate, 1.0 + 20.0 * rng.f64() * rng.f64()).unwrap_or(Loss::Random(rate)),
            _ => Loss::Random(rate),
        };
    }
    if chance(rng, 30) {
        link.duplicate = share(rng, 0.3);
    }
    if chance(rng, 30) {
        link.corrupt = share(rng, worst_loss / 2.0);
    }
    if chance(rng, 40) {
        let by = Duration::from_nanos(spread(rng, 100, 2 * base.delay.as_nanos() as u64 + 50_000));
        link.reorder = Some(Reorder { share: share(rng, 0.8), by });
    }
    if chance(rng, 30) {
        link.jitter = Duration::from_nanos(spread(rng, 100, base.delay.as_nanos() as u64 + 20_000));
    }
    link
}

fn links(rng: &mut Rng, topology: &Topology, hosts: usize, mood: &Mood) -> Vec<Link> {
    let hops = if *topology == Topology::Star { 2 } else { 1 };
    let rate = chance(rng, 70).then(|| {
        let bits_per_second = spread(rng, 20_000_000, 100_000_000_000);
        let queue = spread(rng, 20_000, 4_000_000);
        let mark_from = rng.bool().then(|| spread(rng, 5_000, queue));
        Rate { bits_per_second, queue, mark_from }
    });
    let same = rng.bool();
    let bad = chance(rng, 55);
    let usual = Link { delay: mood.rtt / (2 * hops), rate, ..Link::default() };
    let common = if bad { weather(rng, &usual, 0.1) } else { usual.clone() };
    (0..topology.links(hosts))
        .map(|_| {
            if same {
                return common.clone();
            }
            let delay = usual.delay.mul_f64(0.2 + 1.6 * rng.f64());
            let rate = rate.map(|r| Rate { bits_per_second: r.bits_per_second / rng.u64(1..4), ..r });
            let one = Link { delay, rate, ..usual.clone() };
            if bad { weather(rng, &one, 0.1) } else { one }
        })
        .collect()
}

fn host(rng: &mut Rng, hosts: usize, messages: usize, mood: &Mood) -> HostPlan {
    let m = messages as u32 + 1;
    let limits = Limits {
        sessions: if rng.bool() { hosts as u32 + 2 } else { 64 },
        channels: 16 * hosts as u32 + 64,
        session_channels: 16,
        sends: m,
        receives: m,
        session_incoming: spread(rng, 1, 64) as u32,
        blocks: spread(rng, 1, 200) as u32,
        segments: spread(rng, 64, 20_000) as u32,
        steps: if chance(rng, 20) { 1 } else { 64 },
        windows: spread(rng, 1, 16) as u32,
        shards: 128,
        window: 64 << rng.u32(..7),
    };
    let first = match rng.u8(..4) {
        0 => Seq(rng.u32(..)),
        1 => Seq((1u32 << 31).wrapping_sub(rng.u32(..400))),
        _ => Seq(0u32.wrapping_sub(rng.u32(..400))),
    };
    let config = Config {
        epoch: u64::MAX.wrapping_sub(rng.u64(..3)),
        first,
        segment: 8 * spread(rng, 8, 501) as u32,
        control: rng.u32(128..=1_056),
        limits,
        paths: if rng.bool() { mood.paths } else { rng.u8(1..=mood.paths) },
        allowance: spread(rng, 1, 100) as u32,
        eager: spread(rng, 1, 70_000) as u32 - 1,
        congestion: match rng.u8(..4) {
            0 => Algorithm::Fixed(spread(rng, 1, 2_000_000)),
            1 => Algorithm::Fixed(512 * 1024),
            _ => Algorithm::DelayEcn,
        },
        // One of four has each segment in a packet of its own.
        mechanisms: Mechanisms {
            bundle: !first.0.is_multiple_of(4),
            share: !first.0.is_multiple_of(8),
            pace: !first.0.is_multiple_of(3),
            ..Mechanisms::default()
        },
        ..Config::default()
    };
    let poll = match rng.u8(..6) {
        0 => Poll::Every(Duration::from_nanos(spread(rng, 500, 40_000))),
        1 => Poll::Every(Duration::from_nanos(spread(rng, 40_000, 5_000_000))),
        _ => Poll::OnEvent,
    };
    // The clock in packets wraps every 68.7 s: begin before that, or anywhere.
    let turn = Duration::from_nanos(16).as_nanos() as u64 * (1 << 32);
    let clock = match rng.u8(..3) {
        0 => 1_000,
        1 => turn * rng.u64(1..100) - rng.u64(..2 * mood.span.as_nanos() as u64 + 1_000),
        _ => rng.u64(..1 << 50),
    };
    HostPlan {
        ports: 1,
        config,
        spacing: Duration::from_nanos(spread(rng, 100, 10_000)),
        poll,
        ring: if chance(rng, 20) { rng.usize(8..128) } else { 4_096 },
        burst: if rng.bool() { usize::MAX } else { rng.usize(1..64) },
        backlog: None,
        clock,
    }
}

fn size(rng: &mut Rng, left: u64) -> u64 {
    let size = match rng.u8(..8) {
        0 => 0,
        1 => rng.u64(..10),
        2 | 3 => rng.u64(..2_000),
        4 | 5 => rng.u64(..20_000),
        6 => rng.u64(..150_000),
        _ => spread(rng, 1, 4_000_000),
    };
    size.min(left)
}

/// Who sends to whom, in which order.
fn pairs(rng: &mut Rng, hosts: usize, count: usize) -> (Vec<(usize, usize)>, u8) {
    let kind = rng.u8(..6);
    let pair = |rng: &mut Rng, i: usize| match kind {
        0 => (0, 1),
        1 => (1 + i % (hosts - 1), 0),
        2 => {
            let from = i % hosts;
            (from, (from + 1 + (i / hosts) % (hosts - 1)) % hosts)
        }
        3 => (i % hosts, (i + 1) % hosts),
        4 => (i % 2, 1 - i % 2),
        _ => {
            let from = rng.usize(..hosts);
            (from, (from + rng.usize(1..hosts)) % hosts)
        }
    };
    ((0..count).map(|i| pair(rng, i)).collect(), kind)
}

fn load(rng: &mut Rng, hosts: usize, mood: &Mood) -> Vec<MessagePlan> {
    let count = spread(rng, 1, 250) as usize;
    let (pairs, kind) = pairs(rng, hosts, count);
    let mut left = mood.budget;
    let channels = spread(rng, 1, 12);
    let short = mood.strict && chance(rng, 15);
    // A receive is posted once the one before it has ended, whatever its peers send first: as a blocking program does.
    let blocking = mood.strict && chance(rng, 25);
    let chained = mood.strict && (kind == 3 || kind == 4) && rng.bool();
    let late = rng.u8(..3);
    let steps = chance(rng, 40).then(|| spread(rng, 1, 40) as u32);
    let sync = chance(rng, 20);
    let span = mood.span.as_nanos() as u64 + 1;
    let mut messages: Vec<MessagePlan> = Vec::with_capacity(count);
    for (i, (from, to)) in pairs.into_iter().enumerate() {
        let size = size(rng, left);
        left -= size;
        let tag = rng.u64(..channels);
        let at = |rng: &mut Rng| Duration::from_nanos(if rng.bool() { 0 } else { rng.u64(..span) });
        let (mut send_at, mut recv_at) = (at(rng), at(rng));
        match late {
            0 => recv_at = recv_at.min(send_at),
            1 => recv_at = recv_at.max(send_at),
            _ => {}
        }
        if chained {
            // Else a channel's receives are in another order than its sends have to be.
            (send_at, recv_at) = (Duration::ZERO, Duration::ZERO);
        }
        let last = messages.iter().rposition(|m| m.to == from).filter(|_| chained);
        messages.push(MessagePlan {
            from,
            to,
            communicator: (tag % 3) as u32,
            tag: tag.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            size,
            // Often those that are posted at about the same time.
            step: steps.map(|n| i as u32 / n),
            sync,
            semantics: Semantics::default(),
            capacity: if short && rng.u8(..4) == 0 { rng.u64(..=size) } else { 0 },
            send_at,
            recv_at,
            send_after: last,
            recv_after: None,
        });
        debug_assert_eq!(messages.len(), i + 1);
    }
    // Posted in whatever order, each receive takes what comes to it, unless it was meant to be short.
    let most = messages.iter().map(|m| m.size).max().unwrap_or(0);
    for m in &mut messages {
        if m.capacity == 0 {
            m.capacity = most;
        }
    }
    if blocking && !chained {
        block(rng, &mut messages, hosts);
    }
    messages
}

/// Receives of a host one after the other, in an order of its own; within a channel in the order of the sends, which are all posted at
/// once.
fn block(rng: &mut Rng, messages: &mut [MessagePlan], hosts: usize) {
    for m in messages.iter_mut() {
        (m.send_at, m.recv_at) = (Duration::ZERO, Duration::ZERO);
    }
    for host in 0..hosts {
        let mut order: Vec<usize> = (0..messages.len()).filter(|i| messages[*i].to == host).collect();
        rng.shuffle(&mut order);
        for pair in order.windows(2) {
            messages[pair[1]].recv_after = Some(pair[0]);
        }
    }
}

fn connects(rng: &mut Rng, messages: &[MessagePlan], mood: &Mood) -> Vec<(usize, usize, Duration)> {
    let mut pairs: Vec<(usize, usize)> =
        messages.iter().map(|m| (m.from.min(m.to), m.from.max(m.to))).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let both = rng.u8(..3);
    let mut connects = Vec::new();
    for (a, b) in pairs {
        let at = |rng: &mut Rng| if rng.bool() { Duration::ZERO } else { mood.rtt.mul_f64(2.0 * rng.f64()) };
        let first = rng.bool();
        if first || both == 0 {
            connects.push((a, b, at(rng)));
        }
        if !first || both == 0 {
            connects.push((b, a, at(rng)));
        }
    }
    connects
}

fn faults(rng: &mut Rng, hosts: usize, topology: &Topology, links: &[Link], mood: &Mood) -> Vec<Fault> {
    let mut faults = Vec::new();
    if chance(rng, 40) {
        return faults;
    }
    let count = rng.usize(1..=6);
    let span = mood.span.as_nanos() as u64 * 2 + 1_000_000;
    let lanes = match topology {
        Topology::Mesh { lanes } | Topology::Dumbbell { lanes } => *lanes,
        Topology::Star => 1,
        Topology::LeafSpine { spines, .. } => *spines,
    };
    for _ in 0..count {
        let from = Duration::from_nanos(rng.u64(..span));
        let lasting = Duration::from_nanos(spread(rng, 10_000, 3_000_000_000));
        let host = rng.usize(..hosts);
        let kind = if mood.strict { rng.u8(..5) } else { rng.u8(..8) };
        faults.push(match kind {
            // One path of many is dark.
            0 if lanes > 1 => {
                let lane = rng.usize(..lanes);
                let first = if matches!(topology, Topology::Mesh { .. }) { 0 } else { 2 * hosts };
                let links: Vec<usize> =
                    (first..links.len()).filter(|l| (l - first) % lanes == lane).collect();
                Fault::Weather { links, from, lasting, config: Box::new(dark()) }
            }
            0 | 1 => {
                let links: Vec<usize> = (0..links.len()).filter(|_| rng.bool()).collect();
                Fault::Weather { links, from, lasting, config: Box::new(dark()) }
            }
            2 | 3 => {
                let which: Vec<usize> = (0..links.len()).filter(|_| rng.bool()).collect();
                let config = weather(rng, &links[0], 0.6);
                Fault::Weather { links: which, from, lasting, config: Box::new(config) }
            }
            4 => Fault::Pause { host, from, lasting },
            5 => Fault::Close { host, peer: rng.usize(..hosts), at: from },
            6 => Fault::Weather {
                links: (0..links.len()).filter(|_| rng.bool()).collect(),
                from,
                // Longer than a session waits for its peer.
                lasting: Duration::from_secs(rng.u64(10..25)),
                config: Box::new(dark()),
            },
            _ => Fault::Restart {
                host,
                at: from,
                away: Duration::from_nanos(spread(rng, 1_000, 2_000_000_000)),
            },
        });
    }
    faults
}

fn dark() -> Link {
    let black_out = BlackOut {
        from: roce_proto::time::Instant::ZERO,
        lasting: Duration::from_secs(1 << 32),
        every: None,
    };
    Link { black_out: Some(black_out), ..Link::default() }
}
