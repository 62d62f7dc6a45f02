//! Two engines, what is under way between them, and calls in any order.

use fastrand::Rng;
use fec::policy::{Policy, Protection};
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Algorithm, Config, Destination, Engine, Event, Fec, Limits, Operation, Origin, Place, Protect,
    Received, RecvRequest, SendRequest, SessionKey, Status,
};
use roce_proto::wire::shim::{Data, MAX_CONTROL_LEN, Seq};
use std::collections::HashMap;
use std::time::Duration;
use testbed_sim::host::address;

/// A call. Numbers choose among what there is, modulo how much that is.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Connect(usize, usize),
    Close(usize, usize),
    Send(usize, usize, u64, u64),
    Recv(usize, usize, u64, u64),
    /// A packet under way arrives; it stays under way if the last is true.
    Deliver(usize, bool),
    DeliverAll,
    Lose(usize),
    /// A packet under way arrives with a field or its length changed.
    Tamper(usize, u64),
    /// Something that nobody sent.
    Garbage(usize, u64),
    Wait(u64),
    /// A round begins, maybe in the past.
    Begin(usize, u64),
    Turn(usize),
    Transmit(usize, usize),
    Completions(usize, usize),
    Events(usize, usize),
    Restart(usize),
    /// Some rounds as they should be.
    Rounds(usize),
}

/// A call by numbers of some source, each below a bound.
pub fn draw(below: &mut impl FnMut(u64) -> u64) -> Op {
    let host = below(2) as usize;
    let any = below(1 << 20) as usize;
    let size = match below(8) {
        0 => 0,
        1 => [u64::MAX, 1 << 48, (1 << 48) - 1, u64::from(u32::MAX)][any % 4],
        2 => below(64),
        _ => below(3_000),
    };
    match below(64) {
        0..=2 => Op::Connect(host, if any.is_multiple_of(8) { 5 } else { 1 - host }),
        3 => Op::Close(host, any),
        4..=11 => Op::Send(host, any, size, below(4)),
        12..=19 => Op::Recv(host, any, size, below(4)),
        20..=25 => Op::Deliver(any, below(2) == 1),
        26..=28 => Op::DeliverAll,
        29..=31 => Op::Rounds(1 + any % 6),
        32 => Op::Lose(any),
        33 => Op::Tamper(any, below(u64::MAX)),
        34 => Op::Garbage(host, below(u64::MAX)),
        35..=40 => Op::Wait(1 << below(35)),
        41..=46 => Op::Begin(host, if any.is_multiple_of(16) { 1 << 30 } else { 0 }),
        47..=50 => Op::Turn(host),
        51..=58 => Op::Transmit(host, if below(2) == 1 { 1_000 } else { any % 4 }),
        59..=60 => Op::Completions(host, 1 + any % 16),
        61..=62 => Op::Events(host, 1 + any % 4),
        _ if any.is_multiple_of(8) => Op::Restart(host),
        _ => Op::Turn(host),
    }
}

/// What was posted.
struct Posted {
    host: usize,
    operation: Operation,
    len: u64,
    placed: u64,
    /// The first byte that the message would have, by those that came.
    base: Option<u8>,
    ended: bool,
}

struct Side {
    engine: Engine,
    config: Config,
    keys: Vec<SessionKey>,
    /// First byte of the message that a block has a part of.
    blocks: HashMap<u32, u8>,
    /// Whose parity lies in a place.
    shards: HashMap<u32, u8>,
}

struct Rig {
    sides: [Side; 2],
    now: Instant,
    flight: Vec<(usize, Address, Vec<u8>)>,
    posted: Vec<Posted>,
    /// Something was changed on the way, so a peer may lie about anything.
    tampered: bool,
    /// Sends and receives that ended well.
    succeeded: usize,
}

fn side(host: usize, epoch: u64, seed: u64) -> Side {
    let mut rng = Rng::with_seed(seed ^ host as u64);
    let limits = Limits {
        sessions: 2,
        channels: rng.u32(2..8),
        session_channels: 3,
        sends: rng.u32(1..10),
        receives: rng.u32(1..10),
        session_incoming: rng.u32(1..4),
        blocks: rng.u32(1..6),
        segments: 64,
        steps: 4,
        shards: rng.u32(1..20),
        windows: 1,
        window: 64,
    };
    let config = Config {
        epoch,
        secret: [host as u8 + 2 * epoch as u8; 16],
        first: Seq(0u32.wrapping_sub(rng.u32(..20))),
        segment: 64,
        control: 128,
        paths: rng.u8(1..4),
        limits,
        eager: rng.u32(..600),
        allowance: rng.u32(1..8),
        congestion: if rng.bool() { Algorithm::DelayEcn } else { Algorithm::Fixed(rng.u64(1..9_000)) },
        fec: Fec {
            protect: match rng.u8(..3) {
                0 => Protect::ByTag,
                _ => Protect::Everything(Protection {
                    data: rng.u8(1..9),
                    parity: rng.u8(1..4),
                    depth: rng.u8(1..4),
                }),
            },
            policy: Policy { short_round_trip: 0, block: rng.u32(1..40), ..Policy::default() },
        },
        ..Config::default()
    };
    let engine = Engine::new(&config).expect("sound");
    Side { engine, config, keys: Vec::new(), blocks: HashMap::new(), shards: HashMap::new() }
}

/// The byte of a message at a place, if its first is `base`.
fn byte(base: u8, at: u64) -> u8 {
    base.wrapping_add((at % 251) as u8)
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sides = [side(0, 1, seed), side(1, 1, seed)];
        let now = Instant::from_nanos(1_000_000);
        Rig { sides, now, flight: Vec::new(), posted: Vec::new(), tampered: false, succeeded: 0 }
    }

    /// Bytes come to a receive.
    fn place(&mut self, host: usize, token: u64, offset: u64, len: u64, base: u8) {
        let posted = self.posted.get_mut(token as usize).expect("a receive that was posted");
        assert!(posted.operation == Operation::Recv && posted.host == host && !posted.ended);
        assert!(offset + len <= posted.len, "{len} bytes from {offset} in {}", posted.len);
        posted.placed += len;
        if len > 0 && !self.tampered {
            assert_eq!(*posted.base.get_or_insert(base), base, "bytes of two messages");
        }
    }

    fn receive(&mut self, to: usize, from: Address, packet: &[u8]) {
        let mut left = Some(packet);
        while let Some(packet) = left {
            left = Data::following(packet);
            self.receive_one(to, from, packet);
        }
    }

    fn receive_one(&mut self, to: usize, from: Address, packet: &[u8]) {
        let side = &mut self.sides[to];
        let Received::Place(placement) =
            side.engine.receive(&Origin { from, ce: packet.len().is_multiple_of(7) }, packet)
        else {
            return;
        };
        if let Place::Shard(block) = placement.to {
            assert!(block < side.config.limits.shards);
            assert_eq!(packet.len() - 72, placement.len as usize);
            side.shards.insert(block, packet.get(72).copied().unwrap_or_default());
            return self.repairs(to);
        }
        let (data, payload) = Data::parse(packet).expect("placed");
        assert_eq!(payload.len(), placement.len as usize);
        let at = u64::from(data.segment) * 64;
        let base = payload.first().map_or(0, |b| b.wrapping_sub((at % 251) as u8));
        if !self.tampered {
            assert!(payload.iter().enumerate().all(|(i, b)| *b == byte(base, at + i as u64)));
        }
        match placement.to {
            Place::Receive { token, offset } => {
                assert!(self.tampered || offset == at);
                self.place(to, token, offset, payload.len() as u64, base);
            }
            Place::Block(block) => {
                assert!(block < side.config.limits.blocks);
                side.blocks.insert(block, base);
            }
            Place::Shard(_) => {}
        }
        self.repairs(to);
    }

    /// What is recovered counts as placed; bytes are not made here.
    fn repairs(&mut self, to: usize) {
        while let Some(r) = self.sides[to].engine.next_repair() {
            assert!(
                r.count <= 64 && r.missing.count_ones() <= u32::from(r.parity) && r.missing != 0,
                "{r:?}"
            );
            assert!(
                r.shards[..r.parity.into()].iter().all(|(_, b)| *b < self.sides[to].config.limits.shards)
            );
            for i in (0..usize::from(r.count)).filter(|i| r.is_missing(*i)) {
                let (at, len) = r.part(i);
                let base = self.sides[to].shards[&r.shards[0].1];
                self.place(to, r.token, at, len as u64, base);
            }
        }
    }

    fn transmit(&mut self, host: usize, most: usize) {
        let mut buf = [0; MAX_CONTROL_LEN];
        for _ in 0..most {
            let Some(t) = self.sides[host].engine.transmit(&mut buf) else { break };
            let (mut packet, mut begin, mut part) = (Vec::new(), 0, t);
            loop {
                packet.extend(&buf[..usize::from(part.header_len)]);
                if let Some(source) = part.source {
                    let posted = &self.posted[source.token as usize];
                    assert!(posted.operation == Operation::Send && posted.host == host && !posted.ended);
                    assert!(source.offset + u64::from(source.len) <= posted.len);
                    let base = source.token as u8;
                    packet.extend((0..u64::from(source.len)).map(|i| byte(base, source.offset + i)));
                }
                let Some(next) = self.sides[host].engine.follow(&part, packet.len(), &mut buf) else { break };
                Data::set_more(&mut packet[begin..]);
                (begin, part) = (packet.len(), next);
            }
            if let Some(of) = t.parity {
                let posted = &self.posted[of.token as usize];
                assert!(posted.operation == Operation::Send && posted.host == host && !posted.ended);
                let ends = |i| {
                    let (at, len) = of.part(i);
                    at + len as u64
                };
                assert!((0..usize::from(of.count)).all(|i| ends(i) <= posted.len), "{of:?}");
                // It says whose it is.
                packet.resize(packet.len() + of.len as usize, of.token as u8);
            }
            let to = match t.to {
                Destination::Session(key) => {
                    self.sides[host].engine.peer(key).expect("a session with a peer")
                }
                Destination::Address(to) => to,
            };
            if let Some(to) = (0..2).find(|h| address(*h) == to) {
                self.flight.push((to, address(host), packet));
            }
        }
        // What nobody takes is lost.
        let surplus = self.flight.len().saturating_sub(400);
        self.flight.drain(..surplus);
    }

    fn completions(&mut self, host: usize, most: usize) {
        for _ in 0..most {
            let Some(done) = self.sides[host].engine.poll_completion() else { return };
            let posted = &mut self.posted[done.token as usize];
            assert!(posted.host == host && posted.operation == done.operation);
            assert!(!posted.ended, "{done:?} a second time");
            posted.ended = true;
            self.succeeded += usize::from(done.status == Status::Success);
            if done.status == Status::Success && done.operation == Operation::Recv {
                assert_eq!(posted.placed, done.len, "{done:?}");
            }
        }
    }

    fn events(&mut self, host: usize, most: usize) {
        for _ in 0..most {
            match self.sides[host].engine.poll_event() {
                Some(Event::Up { session, .. }) => self.sides[host].keys.push(session),
                Some(Event::Down { .. }) => {}
                None => return,
            }
        }
    }

    fn post(&mut self, host: usize, key: usize, len: u64, tag: u64, operation: Operation) {
        let keys = &self.sides[host].keys;
        // Mostly the latest, which may be open.
        let at = if key.is_multiple_of(4) { key / 4 % keys.len().max(1) } else { keys.len().wrapping_sub(1) };
        let Some(key) = keys.get(at).copied() else { return };
        let (token, engine) = (self.posted.len() as u64, &mut self.sides[host].engine);
        let posted = match operation {
            Operation::Send => {
                engine.post_send(key, &SendRequest { token, len, tag, ..SendRequest::default() })
            }
            Operation::Recv => {
                let step = (!len.is_multiple_of(3)).then_some(len as u32 % 5);
                let request = RecvRequest { token, capacity: len, tag, step, ..RecvRequest::default() };
                engine.post_recv(key, &request)
            }
        };
        if posted.is_err() {
            return;
        }
        self.posted.push(Posted { host, operation, len, placed: 0, base: None, ended: false });
        while let Some(m) = self.sides[host].engine.next_move() {
            let base = self.sides[host].blocks[&m.block];
            self.place(host, m.token, m.offset, u64::from(m.len), base);
        }
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Connect(host, peer) => {
                if let Ok(key) = self.sides[host].engine.connect(address(peer)) {
                    self.sides[host].keys.push(key);
                }
            }
            Op::Close(host, key) => {
                let keys = &self.sides[host].keys;
                if let Some(key) = keys.get(key % keys.len().max(1)).copied() {
                    self.sides[host].engine.close(key);
                }
            }
            Op::Send(host, key, len, tag) => self.post(host, key, len, tag, Operation::Send),
            Op::Recv(host, key, len, tag) => self.post(host, key, len, tag, Operation::Recv),
            Op::Deliver(at, stays) if !self.flight.is_empty() => {
                let at = at % self.flight.len();
                let (to, from, packet) = self.flight[at].clone();
                if !stays {
                    self.flight.remove(at);
                }
                self.receive(to, from, &packet);
            }
            Op::Lose(at) if !self.flight.is_empty() => drop(self.flight.swap_remove(at % self.flight.len())),
            Op::Tamper(at, seed) if !self.flight.is_empty() => {
                let (to, from, mut packet) = self.flight[at % self.flight.len()].clone();
                let mut rng = Rng::with_seed(seed);
                let at = rng.usize(..packet.len());
                match rng.u8(..3) {
                    0 => packet.truncate(at),
                    1 => packet[at] ^= 1 << rng.u8(..8),
                    _ => packet.extend([7; 9]),
                }
                self.tampered = true;
                self.receive(to, from, &packet);
            }
            Op::Deliver(..) | Op::Lose(_) | Op::Tamper(..) => {}
            Op::DeliverAll => {
                for (to, from, packet) in std::mem::take(&mut self.flight) {
                    self.receive(to, from, &packet);
                }
            }
            Op::Garbage(host, seed) => {
                let mut rng = Rng::with_seed(seed);
                let mut packet = vec![0; rng.usize(..130)];
                rng.fill(&mut packet);
                if let Some(first) = packet.first_mut() {
                    *first = 0x10 | rng.u8(..12);
                }
                self.receive(host, address(if rng.bool() { 1 - host } else { 9 }), &packet);
            }
            Op::Wait(nanos) => self.now += Duration::from_nanos(nanos),
            Op::Begin(host, back) => {
                let at = self.now - Duration::from_nanos(back);
                self.sides[host].engine.begin(at, Duration::from_nanos(back / 7));
            }
            Op::Rounds(rounds) => (0..rounds).for_each(|_| self.round(Duration::from_micros(30))),
            Op::Turn(host) => self.sides[host].engine.turn(),
            Op::Transmit(host, most) => self.transmit(host, most),
            Op::Completions(host, most) => self.completions(host, most),
            Op::Events(host, most) => self.events(host, most),
            Op::Restart(host) => {
                let epoch = self.sides[host].config.epoch + 1;
                self.sides[host] = side(host, epoch, self.now.as_nanos());
                self.posted.iter_mut().filter(|p| p.host == host).for_each(|p| p.ended = true);
            }
        }
        for side in &self.sides {
            let l = side.config.limits;
            let incoming = l.sessions * l.session_incoming + l.blocks + 1_024;
            let most =
                [l.sessions, l.channels, l.sends, l.receives, incoming, l.blocks, l.sends + l.receives];
            for ((name, used), most) in side.engine.in_use().into_iter().zip(most) {
                assert!(used <= most as usize, "{used} {name}");
            }
            let c = side.engine.counters();
            assert_eq!(c.accounted(), c.received);
        }
    }

    /// A round of both, as the contract has it.
    fn round(&mut self, after: Duration) {
        self.now += after;
        for host in 0..2 {
            self.sides[host].engine.begin(self.now, Duration::ZERO);
        }
        for (to, from, packet) in std::mem::take(&mut self.flight) {
            self.receive(to, from, &packet);
        }
        for host in 0..2 {
            self.sides[host].engine.turn();
            self.transmit(host, 1_000);
            self.completions(host, usize::MAX);
            self.events(host, usize::MAX);
        }
    }

    /// In the end all sessions are closed, and time passes as it should.
    fn end(&mut self) {
        for host in 0..2 {
            for key in self.sides[host].keys.clone() {
                self.sides[host].engine.close(key);
            }
        }
        (0..2_000).for_each(|_| self.round(Duration::from_millis(20)));
        for side in &self.sides {
            assert!(side.engine.in_use().iter().all(|(_, used)| *used == 0), "{:?}", side.engine.in_use());
        }
        assert!(self.posted.iter().all(|p| p.ended), "an operation never ended");
    }
}

/// Plays a sequence of calls, and panics if something is wrong; returns how many operations ended well.
pub fn run(seed: u64, ops: &[Op]) -> usize {
    let mut rig = Rig::new(seed);
    ops.iter().for_each(|op| rig.act(*op));
    rig.end();
    rig.succeeded
}
