//! Some engines, and a network between them that loses, delays, doubles and reorders packets under a virtual clock. The driver moves
//! real bytes as the engines say, and compares what arrived with what was sent. Everything follows from one seed.

use fec::Workshop;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Completion, Config, Destination, Engine, Event, Operation, Origin, Place, Received, RecvRequest,
    SendRequest, SessionKey, Shards, Status,
};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{Data, MAX_CONTROL_LEN, Parity, Semantics};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// What the network does to packets. Probabilities are in 1/1000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: u32,
    pub double: u32,
    /// Packets that are held back by up to eight delays.
    pub late: u32,
    pub ce: u32,
    /// One way.
    pub delay: Duration,
}

/// A message that was posted to be sent.
struct Sent {
    bytes: Vec<u8>,
    /// Host, tag and ordinal among those that this session sent with the tag.
    key: (usize, u64, u32),
}

pub struct Host {
    pub engine: Engine,
    pub address: Address,
    pub events: Vec<Event>,
    pub done: Vec<Completion>,
    /// Bytes of sends by token, receives by token.
    sends: BTreeMap<u64, Sent>,
    receives: BTreeMap<u64, (Vec<u8>, (usize, u64))>,
    blocks: BTreeMap<u32, Vec<u8>>,
    shards: BTreeMap<u32, Vec<u8>>,
    workshop: Workshop,
    ordinals: BTreeMap<(usize, u64), u32>,
    /// Messages received, by sending host, tag and ordinal.
    pub received: BTreeMap<(usize, u64, u32), usize>,
}

type Packet = (Address, usize, Vec<u8>, bool);

pub struct Net {
    pub hosts: Vec<Host>,
    pub weather: Weather,
    pub now: Instant,
    pub rng: fastrand::Rng,
    /// Nobody hears anything.
    pub dark: bool,
    /// Nothing comes through from or to such ports.
    pub dark_rail: Option<u8>,
    /// Packets that came through from a port to a port.
    pub rails: BTreeMap<(u8, u8), u64>,
    flight: BinaryHeap<Reverse<(u64, u64)>>,
    packets: BTreeMap<u64, Packet>,
    next_packet: u64,
    next_token: u64,
    /// All messages ever sent, by sending host, receiving host, tag, ordinal.
    messages: BTreeMap<(usize, usize, u64, u32), Vec<u8>>,
    /// Packets that the network carried.
    pub carried: u64,
    /// A host whose packets are tampered with, and whose own messages nobody answers for.
    pub hostile: Option<usize>,
    /// What is done to packets beside the weather: false loses one.
    pub filter: fn(&[u8]) -> bool,
    /// How much longer a packet's way is than others'.
    pub detour: fn(&[u8]) -> Duration,
    /// What is done to packets that come through.
    pub change: fn(&mut Vec<u8>),
}

pub fn address(host: usize) -> Address {
    rail(host, 0)
}

/// Where a host is on one of its ports.
pub fn rail(host: usize, rail: u8) -> Address {
    let (host, rail) = (host as u32, u32::from(rail));
    Address::new(
        IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + host + (rail << 16))),
        Qpn::new(0x100 + host + (rail << 12)).expect("24 bits"),
    )
}

/// The host that has an address, and the port.
fn owner(of: Address) -> Option<(usize, u8)> {
    let IpAddr::V4(ip) = of.ip else { return None };
    let [_, at, _, host] = ip.octets();
    let host = usize::from(host).checked_sub(1)?;
    (rail(host, at) == of).then_some((host, at))
}

fn host(index: usize, config: &Config) -> Host {
    let mut secret = [0x5a; 16];
    secret[0] = index as u8;
    secret[1] = config.epoch as u8;
    Host {
        engine: Engine::new(&Config { secret, ..*config }).expect("a sound configuration"),
        address: address(index),
        events: Vec::new(),
        done: Vec::new(),
        sends: BTreeMap::new(),
        receives: BTreeMap::new(),
        blocks: BTreeMap::new(),
        shards: BTreeMap::new(),
        workshop: Workshop::new(config.segment as usize),
        ordinals: BTreeMap::new(),
        received: BTreeMap::new(),
    }
}

impl Host {
    /// Appends a parity shard.
    fn encode(&mut self, shards: &Shards, to: &mut Vec<u8>) {
        let message = &self.sends[&shards.token].bytes;
        let part = |i| {
            let (at, len) = shards.part(i);
            &message[at as usize..][..len]
        };
        let data: Vec<&[u8]> = (0..usize::from(shards.count)).map(part).collect();
        let from = to.len();
        to.resize(from + shards.len as usize, 0);
        if shards.len > 0 {
            self.workshop.encode(shards.index.into(), &data, &mut [&mut to[from..]]).expect("a group");
        }
    }

    /// Recovers what can be recovered.
    fn repair(&mut self) {
        while let Some(r) = self.engine.next_repair() {
            let (buffer, _) = self.receives.get_mut(&r.token).expect("a receive that was posted");
            if r.len == 0 {
                continue;
            }
            let count = usize::from(r.count);
            let part = |i| {
                let (at, len) = r.part(i);
                &buffer[at as usize..][..len]
            };
            let data: Vec<Option<&[u8]>> = (0..count).map(|i| (!r.is_missing(i)).then(|| part(i))).collect();
            let shards: Vec<(usize, &[u8])> = r.shards[..usize::from(r.parity)]
                .iter()
                .map(|(index, block)| (usize::from(*index), self.shards[block].as_slice()))
                .collect();
            let recovered = self.workshop.recover(r.len as usize, &data, &shards).expect("enough");
            let recovered: Vec<Vec<u8>> = recovered.map(<[u8]>::to_vec).collect();
            for (i, bytes) in (0..count).filter(|i| r.is_missing(*i)).zip(recovered) {
                let (at, len) = r.part(i);
                buffer[at as usize..][..len].copy_from_slice(&bytes[..len]);
            }
        }
    }
}

impl Net {
    pub fn new(seed: u64, weather: Weather, configs: &[Config]) -> Net {
        Net {
            hosts: configs.iter().enumerate().map(|(i, c)| host(i, c)).collect(),
            weather,
            now: Instant::from_nanos(1_000),
            rng: fastrand::Rng::with_seed(seed),
            dark: false,
            dark_rail: None,
            rails: BTreeMap::new(),
            flight: BinaryHeap::new(),
            packets: BTreeMap::new(),
            next_packet: 0,
            next_token: 0,
            messages: BTreeMap::new(),
            carried: 0,
            filter: |_| true,
            detour: |_| Duration::ZERO,
            change: |_| {},
            hostile: None,
        }
    }

    /// A host loses all it knew and begins anew.
    pub fn restart(&mut self, index: usize, config: &Config) {
        self.hosts[index] = host(index, config);
        let now = self.now;
        self.hosts[index].engine.begin(now, Duration::ZERO);
        // What it had sent, nobody can expect any more; ordinals begin anew on both sides.
        self.messages.retain(|(from, to, _, _), _| *from != index && *to != index);
        for h in &mut self.hosts {
            h.received.retain(|(from, _, _), _| *from != index);
            h.ordinals.retain(|(to, _), _| *to != index);
        }
    }

    pub fn connect(&mut self, from: usize, to: usize) -> SessionKey {
        let now = self.now;
        let engine = &mut self.hosts[from].engine;
        engine.begin(now, Duration::ZERO);
        engine.connect(address(to)).expect("room")
    }

    /// Opens a session and runs until both sides have it.
    pub fn open(&mut self, from: usize, to: usize) -> (SessionKey, SessionKey) {
        let key = self.connect(from, to);
        self.run(Duration::from_secs(20), |net| {
            net.hosts[from].engine.is_open(key) && net.session(to, from).is_some()
        });
        let other = self.session(to, from).expect("both sides");
        (key, other)
    }

    pub fn session(&self, at: usize, with: usize) -> Option<SessionKey> {
        let engine = &self.hosts[at].engine;
        engine.session_with(address(with)).filter(|key| engine.is_open(*key))
    }

    /// Posts a send of random bytes.
    pub fn send(&mut self, from: usize, to: usize, tag: u64, len: usize) -> u64 {
        self.send_tagged(from, to, (tag, len), Semantics::default())
    }

    /// The same of a message of which the application says something.
    pub fn send_tagged(
        &mut self,
        from: usize,
        to: usize,
        (tag, len): (u64, usize),
        semantics: Semantics,
    ) -> u64 {
        let key = self.session(from, to).expect("open");
        let token = self.next_token;
        self.next_token += 1;
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        let h = &mut self.hosts[from];
        let request = SendRequest { token, len: len as u64, communicator: 7, tag, semantics };
        if let Err(refused) = h.engine.post_send(key, &request) {
            assert!([from, to].map(Some).contains(&self.hostile), "{refused}");
            return token;
        }
        let ordinal = h.ordinals.entry((to, tag)).or_default();
        h.sends.insert(token, Sent { bytes: bytes.clone(), key: (to, tag, *ordinal) });
        self.messages.insert((from, to, tag, *ordinal), bytes);
        *ordinal += 1;
        token
    }

    /// Posts a receive, and moves what had come already.
    pub fn receive(&mut self, at: usize, from: usize, tag: u64, capacity: usize) -> u64 {
        let key = self.session(at, from).expect("open");
        let token = self.next_token;
        self.next_token += 1;
        let h = &mut self.hosts[at];
        let request = RecvRequest { token, capacity: capacity as u64, communicator: 7, tag, step: None };
        h.receives.insert(token, (vec![0xee; capacity], (from, tag)));
        if let Err(refused) = h.engine.post_recv(key, &request) {
            assert!([from, at].map(Some).contains(&self.hostile), "{refused}");
            h.receives.remove(&token);
            return token;
        }
        while let Some(m) = h.engine.next_move() {
            let block = h.blocks.remove(&m.block).expect("a block that was filled");
            let (bytes, _) = h.receives.get_mut(&m.token).expect("a receive that was posted");
            bytes[m.offset as usize..][..m.len as usize].copy_from_slice(&block[..m.len as usize]);
        }
        self.collect(at);
        token
    }

    /// Changes some bytes, mostly of the headers, or the length; what comes out is as often as not still taken for a packet
    /// of the session.
    fn tamper(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.rng.usize(..4) {
            match self.rng.u8(..10) {
                0 => bytes.truncate(self.rng.usize(..=bytes.len())),
                1 => bytes.extend(std::iter::repeat_n(0xaa, self.rng.usize(..40))),
                2..=5 => {
                    // A field set to an end of its range, near it, or to a small number; in a header behind the first, sometimes.
                    let nth = if self.rng.u8(..3) == 0 { self.rng.usize(..8) } else { 0 };
                    let at = 12 + 4 * self.rng.usize(..16) + nth * Data::LEN;
                    let values =
                        [0, 1, 2, u32::MAX, u32::MAX - 1, 1 << 31, self.rng.u32(..300), self.rng.u32(..)];
                    let value = values[self.rng.usize(..values.len())];
                    if let Some(field) = bytes.get_mut(at..at + 4) {
                        field.copy_from_slice(&value.to_be_bytes());
                    }
                }
                // The flag that another segment follows, and what is said of a group of parity.
                6 => {
                    if let Some(flags) = bytes.get_mut(1) {
                        *flags ^= 0x80;
                    }
                }
                7 if bytes.first() == Some(&0x1b) => {
                    let at = self.rng.usize(60..66);
                    let values = [0, 1, 2, 16, 17, 64, 65, 255, self.rng.u8(..)];
                    if let Some(field) = bytes.get_mut(at) {
                        *field = values[self.rng.usize(..values.len())];
                    }
                }
                _ => {
                    let most = bytes.len().min(Parity::LEN);
                    if most > 0 {
                        let at = self.rng.usize(..most);
                        bytes[at] ^= 1 << self.rng.u8(..8);
                    }
                }
            }
        }
    }

    fn carry(&mut self, from: usize, source: Address, to: Address, mut bytes: Vec<u8>) {
        self.carried += 1;
        if self.hostile == Some(from) {
            // As it is, and changed.
            let copies = self.rng.usize(..3);
            for _ in 0..copies {
                let mut changed = bytes.clone();
                self.tamper(&mut changed);
                let id = self.next_packet;
                self.next_packet += 1;
                if let Some((to, _)) = owner(to).filter(|(to, _)| *to < self.hosts.len()) {
                    self.packets.insert(id, (source, to, changed, false));
                    self.flight.push(Reverse((self.now.as_nanos() + self.rng.u64(500..50_000), id)));
                }
            }
            if self.rng.u8(..4) == 0 {
                self.tamper(&mut bytes);
            }
        }
        let Some((to, rail)) = owner(to).filter(|(to, _)| *to < self.hosts.len()) else { return };
        let rails = (owner(source).expect("one of ours").1, rail);
        if self.dark_rail.is_some_and(|dark| dark == rails.0 || dark == rails.1) {
            return;
        }
        let w = self.weather;
        if self.dark || !(self.filter)(&bytes) || self.rng.u32(..1000) < w.loss {
            return;
        }
        *self.rails.entry(rails).or_default() += 1;
        (self.change)(&mut bytes);
        let copies = 1 + u32::from(self.rng.u32(..1000) < w.double);
        for _ in 0..copies {
            let mut delay = (w.delay + (self.detour)(&bytes)).as_nanos() as u64 + 500;
            if self.rng.u32(..1000) < w.late {
                delay += self.rng.u64(..=8 * delay);
            }
            let ce = self.rng.u32(..1000) < w.ce;
            let id = self.next_packet;
            self.next_packet += 1;
            self.packets.insert(id, (source, to, bytes.clone(), ce));
            self.flight.push(Reverse((self.now.as_nanos() + delay, id)));
        }
    }

    /// One round of a host: what has come, timers, what is to be sent.
    fn round(&mut self, at: usize, arrived: Vec<Packet>) {
        let now = self.now;
        self.hosts[at].engine.begin(now, Duration::ZERO);
        for (from, _, bytes, ce) in arrived {
            let h = &mut self.hosts[at];
            let mut left = Some(&bytes[..]);
            while let Some(bytes) = left {
                left = Data::following(bytes);
                let received = h.engine.receive(&Origin { from, ce }, bytes);
                let Received::Place(p) = received else { continue };
                let header = if matches!(p.to, Place::Shard(_)) { Parity::LEN } else { Data::LEN };
                let payload = &bytes[header..][..p.len as usize];
                assert_eq!(payload.len(), p.len as usize, "the whole segment is placed");
                match p.to {
                    Place::Receive { token, offset } => {
                        let (buffer, _) = h.receives.get_mut(&token).expect("a receive that was posted");
                        assert!(offset as usize + payload.len() <= buffer.len(), "within the receive");
                        buffer[offset as usize..][..payload.len()].copy_from_slice(payload);
                    }
                    Place::Block(block) => {
                        // One that was thrown away with its message may be used again.
                        h.blocks.insert(block, payload.to_vec());
                    }
                    Place::Shard(block) => {
                        h.shards.insert(block, payload.to_vec());
                    }
                }
            }
            h.repair();
            assert_eq!(h.engine.counters().accounted(), h.engine.counters().received);
        }
        self.hosts[at].engine.turn();
        let mut buf = [0; MAX_CONTROL_LEN];
        while let Some(t) = self.hosts[at].engine.transmit(&mut buf) {
            let (mut bytes, mut begin, mut part) = (Vec::new(), 0, t);
            loop {
                bytes.extend(&buf[..usize::from(part.header_len)]);
                if let Some(source) = part.source {
                    let sent = &self.hosts[at].sends[&source.token];
                    bytes.extend(&sent.bytes[source.offset as usize..][..source.len as usize]);
                }
                let Some(next) = self.hosts[at].engine.follow(&part, bytes.len(), &mut buf) else { break };
                Data::set_more(&mut bytes[begin..]);
                (begin, part) = (bytes.len(), next);
            }
            if let Some(shards) = t.parity {
                self.hosts[at].encode(&shards, &mut bytes);
            }
            let (source, to) = match t.to {
                Destination::Session(key) => {
                    let way = self.hosts[at].engine.way(key, t.path).expect("a session with somebody");
                    (rail(at, way.rail), Address::new(way.ip, way.qpn))
                }
                Destination::Address(to) => (address(at), to),
            };
            self.carry(at, source, to, bytes);
        }
        self.collect(at);
    }

    /// Takes completions and events, and checks what arrived.
    fn collect(&mut self, at: usize) {
        let h = &mut self.hosts[at];
        while let Some(done) = h.engine.poll_completion() {
            match done.operation {
                Operation::Send => {
                    let sent = h.sends.remove(&done.token).expect("completes once");
                    assert_eq!(done.tag, sent.key.1);
                }
                Operation::Recv => {
                    let (bytes, (from, tag)) = h.receives.remove(&done.token).expect("completes once");
                    let honest = self.hostile != Some(from) && self.hostile != Some(at);
                    if done.status == Status::Success && honest {
                        let ordinal = done.ordinal.0.wrapping_sub(h.engine.config().first.0);
                        let message = &self.messages[&(from, at, tag, ordinal)];
                        assert_eq!(done.len as usize, message.len());
                        assert!(bytes[..message.len()] == message[..], "message {tag}/{ordinal} differs");
                        assert!(bytes[message.len()..].iter().all(|b| *b == 0xee), "nothing beyond its end");
                        let times = h.received.entry((from, tag, ordinal)).or_default();
                        *times += 1;
                        assert_eq!(*times, 1, "message {tag}/{ordinal} came twice");
                    }
                }
            }
            h.done.push(done);
        }
        while let Some(event) = h.engine.poll_event() {
            h.events.push(event);
        }
    }

    /// The next instant at which anything happens.
    fn next(&self) -> Option<Instant> {
        let flight = self.flight.peek().map(|Reverse((at, _))| Instant::from_nanos(*at));
        let engines = self.hosts.iter().filter_map(|h| h.engine.next_deadline());
        engines.chain(flight).min().map(|at| at.max(self.now))
    }

    /// Whether nothing is under way or due within a millisecond.
    pub fn next_is_quiet(&self) -> bool {
        self.next().is_none_or(|at| at > self.now + Duration::from_millis(1))
    }

    /// Runs until `done`; false if that is not so after `limit`.
    pub fn try_run(&mut self, limit: Duration, mut done: impl FnMut(&Net) -> bool) -> bool {
        let end = self.now + limit;
        let mut rounds_at_once = 0;
        while !done(self) {
            let Some(next) = self.next() else { return false };
            if next > end {
                self.now = end;
                return false;
            }
            rounds_at_once = if next == self.now { rounds_at_once + 1 } else { 0 };
            assert!(rounds_at_once < 10_000, "time stands still at {next}");
            self.now = next;
            let mut arrived: BTreeMap<usize, Vec<Packet>> = BTreeMap::new();
            while let Some(Reverse((at, id))) = self.flight.peek().copied()
                && at <= self.now.as_nanos()
            {
                self.flight.pop();
                let packet = self.packets.remove(&id).expect("in flight");
                if !self.dark {
                    arrived.entry(packet.1).or_default().push(packet);
                }
            }
            for at in 0..self.hosts.len() {
                let packets = arrived.remove(&at).unwrap_or_default();
                let due = self.hosts[at].engine.next_deadline().is_some_and(|d| d <= self.now);
                if due || !packets.is_empty() {
                    self.round(at, packets);
                }
            }
        }
        true
    }

    /// Runs until `done`.
    pub fn run(&mut self, limit: Duration, done: impl FnMut(&Net) -> bool) {
        let from = self.now;
        assert!(self.try_run(limit, done), "not done {:?} after {from}: {}", limit, self.describe());
    }

    /// Runs for a while.
    pub fn pass(&mut self, time: Duration) {
        assert!(!self.try_run(time, |_| false));
    }

    pub fn completions(&self, at: usize, operation: Operation, status: Status) -> usize {
        self.hosts[at].done.iter().filter(|c| c.operation == operation && c.status == status).count()
    }

    pub fn describe(&self) -> String {
        let one = |h: &Host| {
            let c = h.engine.counters();
            format!("\n{} in use {:?}\n{c:?}\nevents {:?}", h.address, h.engine.in_use(), h.events)
        };
        self.hosts.iter().map(one).collect()
    }

    /// No host holds anything but its sessions and channels.
    pub fn assert_idle(&self) {
        for h in &self.hosts {
            for (name, used) in h.engine.in_use() {
                assert!(
                    used == 0 || ["sessions", "channels"].contains(&name),
                    "{name} {used}: {}",
                    self.describe()
                );
            }
            assert!(h.sends.is_empty() && h.receives.is_empty());
        }
    }
}
