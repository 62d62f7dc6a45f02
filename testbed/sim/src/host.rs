//! One endpoint: its engine, and the driver that moves bytes and packets as the engine says.

use crate::ledger::{Ledger, Session};
use crate::net::{Fate, Net, Packet};
use crate::scenario::{HostPlan, Poll, Sabotage};
use crate::trace::Trace;
use crate::watch::{Check, Told, Violation, Watch};
use crate::words::{packet_line, received_line};
use fec::Workshop;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Completion, Config, Counters, Destination, Engine, Origin, Place, Received, Repair, SessionKey,
    Shards, Transmit,
};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{Accept, Data, Kind, MAX_CONTROL_LEN, Parity, Rails, Seq};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Where a host is: its first port. Every third has an IPv6 address.
pub fn address(host: usize) -> Address {
    port(host, 0)
}

/// One of its ports, from 0, each of which is in a network of its own.
pub fn port(host: usize, at: u8) -> Address {
    let (n, at) = (host as u32 + 1, u32::from(at));
    let ip = match host % 3 {
        2 => IpAddr::V6(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(at) << 64 | u128::from(n))),
        _ => IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + (at << 16) + n)),
    };
    Address::new(ip, Qpn::new(0x00ff_ff00 - (at << 12) - n).unwrap_or_default())
}

/// Whose port this is, and which.
fn owner(of: Address, hosts: usize) -> Option<(usize, u8)> {
    let all = (0..hosts).flat_map(|host| (0..=Rails::MOST as u8).map(move |at| (host, at)));
    all.into_iter().find(|(host, at)| port(*host, *at) == of)
}

/// What a round has to do with beside its host.
pub struct Shared<'a> {
    /// Every host's plan.
    pub plans: &'a [HostPlan],
    /// The checker of messages.
    pub ledger: &'a mut Ledger,
    /// The links.
    pub net: &'a mut Net,
    /// What happened.
    pub trace: &'a mut Trace,
    /// A mistake that is still to be made.
    pub sabotage: &'a mut Sabotage,
    /// Virtual time.
    pub now: Instant,
}

/// An endpoint.
pub struct Host {
    /// Its number.
    pub index: usize,
    /// What it was made from.
    pub plan: HostPlan,
    /// Its engine.
    pub engine: Engine,
    /// How often it was restarted.
    pub incarnation: u32,
    /// What its clock is ahead of virtual time.
    offset: u64,
    inbox: VecDeque<Packet>,
    blocks: Vec<Vec<u8>>,
    shards: Vec<Vec<u8>>,
    workshop: Workshop,
    watch: Watch,
    rounds: u64,
    /// When the last round began.
    pub last_round: Instant,
    /// When the next is due; [`Instant::MAX`] if none is.
    pub wake: Instant,
    /// Its NIC takes nothing more before.
    pub full_until: Option<Instant>,
    /// It does not run before.
    pub paused: Instant,
    /// It is not there.
    pub away: bool,
    /// Counters of former incarnations, which began anew with each.
    pub before: Vec<Counters>,
    /// Packets that its NIC had no room for, or that came while it was away.
    pub missed: u64,
    /// Packets whose ICRC was wrong.
    pub corrupt: u64,
    /// Segments that came behind another in its packet, which the engine counts as packets.
    pub joined: u64,
}

/// The configuration of a host's engine in one of its incarnations.
fn config_of(plan: &HostPlan, index: usize, incarnation: u32, seed: u64) -> Config {
    let mut rng = fastrand::Rng::with_seed(seed ^ (index as u64) << 40 ^ u64::from(incarnation) << 20);
    let mut secret = [0; 16];
    rng.fill(&mut secret);
    let mut rails = Rails::NONE;
    for at in 1..plan.ports {
        rails.push(port(index, at).ip, port(index, at).qpn);
    }
    Config {
        secret,
        rails: [rails; 2],
        epoch: plan.config.epoch.wrapping_add(u64::from(incarnation)),
        ..plan.config
    }
}

impl Host {
    /// A host that has just been started.
    pub fn new(index: usize, plan: &HostPlan, seed: u64) -> Result<Host, Violation> {
        let config = config_of(plan, index, 0, seed);
        let engine = Engine::new(&config);
        let engine =
            engine.map_err(|e| Violation::new(Instant::ZERO, Some(index), Check::Scenario, e.to_string()))?;
        Ok(Host {
            index,
            plan: *plan,
            engine,
            incarnation: 0,
            offset: plan.clock,
            inbox: VecDeque::new(),
            blocks: vec![Vec::new(); config.limits.blocks as usize],
            shards: vec![Vec::new(); config.limits.shards as usize],
            workshop: Workshop::new(config.segment as usize),
            watch: Watch::new(&config),
            rounds: 0,
            last_round: Instant::ZERO,
            wake: Instant::MAX,
            full_until: None,
            paused: Instant::ZERO,
            away: false,
            before: Vec::new(),
            missed: 0,
            corrupt: 0,
            joined: 0,
        })
    }

    /// It forgets everything, and has another clock.
    pub fn restart(&mut self, seed: u64) -> Result<(), Violation> {
        self.incarnation += 1;
        let config = config_of(&self.plan, self.index, self.incarnation, seed);
        let engine =
            Engine::new(&config).map_err(|e| self.fail(Instant::ZERO, (Check::Scenario, e.to_string())))?;
        self.before.push(std::mem::replace(&mut self.engine, engine).counters().clone());
        self.watch = Watch::new(&config);
        self.offset = self.offset.wrapping_mul(3) % (1 << 50);
        // What lay in the NIC's ring is lost with it.
        self.missed += self.inbox.len() as u64;
        self.inbox.clear();
        Ok(())
    }

    /// A time of its clock.
    pub fn clock(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos().saturating_add(self.offset))
    }

    /// The virtual time of one of its clock's.
    pub fn virtual_time(&self, at: Instant) -> Instant {
        Instant::from_nanos(at.as_nanos().saturating_sub(self.offset))
    }

    /// The name of a session of this incarnation.
    pub const fn session(&self, key: SessionKey) -> Session {
        (self.index, self.incarnation, key)
    }

    /// A packet has come to its NIC.
    pub fn take(&mut self, packet: Packet) {
        if self.away || self.inbox.len() >= self.plan.ring {
            self.missed += 1;
        } else {
            self.inbox.push_back(packet);
        }
    }

    /// Packets that wait for the next round.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    fn fail(&self, now: Instant, (check, what): (Check, String)) -> Violation {
        Violation::new(now, Some(self.index), check, what)
    }

    /// One round: what has come, timers, what is to be sent. Returns how many packets came and went.
    pub fn round(&mut self, shared: &mut Shared) -> Result<usize, Violation> {
        let now = shared.now;
        self.rounds += 1;
        self.last_round = now;
        let waited = match self.plan.poll {
            Poll::OnEvent => Duration::ZERO,
            Poll::Every(gap) => gap,
        };
        self.engine.begin(self.clock(now), waited);
        let came = self.inbox.len();
        while let Some(packet) = self.inbox.pop_front() {
            self.receive(&packet, shared).map_err(|e| self.fail(now, e))?;
        }
        self.engine.turn();
        let mut buf = [0; MAX_CONTROL_LEN];
        let mut went = 0;
        self.full_until = None;
        while went < self.plan.burst
            && !self.is_full(shared)
            && let Some(transmit) = self.engine.transmit(&mut buf)
        {
            went += 1;
            let bytes = self.gather(transmit, &mut buf, shared).map_err(|e| self.fail(now, e))?;
            self.send(&transmit, bytes, shared).map_err(|e| self.fail(now, e))?;
        }
        self.watch.tables(&self.engine).map_err(|e| self.fail(now, e))?;
        Ok(came + went)
    }

    /// Whether the NIC takes nothing more for now.
    fn is_full(&mut self, shared: &Shared) -> bool {
        if let (Some(most), Some(sent)) = (self.plan.backlog, shared.net.sent_at(self.index))
            && sent.saturating_since(shared.now) > most
        {
            self.full_until = Some(shared.now + (sent.saturating_since(shared.now) - most));
        }
        self.full_until.is_some()
    }

    /// Whether a round was of any use; to be told after each that only a deadline asked for.
    pub fn asked(&mut self, now: Instant, useful: bool) -> Result<(), Violation> {
        self.watch.asked(now, useful).map_err(|e| self.fail(now, e))
    }

    fn receive(&mut self, packet: &Packet, shared: &mut Shared) -> Result<(), (Check, String)> {
        if packet.corrupt {
            self.corrupt += 1;
            return Ok(());
        }
        let mut left = Some(&packet.bytes[..]);
        while let Some(bytes) = left {
            left = Data::following(bytes);
            self.joined += u64::from(left.is_some());
            self.receive_one(packet, bytes, shared)?;
        }
        Ok(())
    }

    /// A packet, or one of the segments in it.
    fn receive_one(
        &mut self,
        packet: &Packet,
        bytes: &[u8],
        shared: &mut Shared,
    ) -> Result<(), (Check, String)> {
        let from = port(packet.from, packet.ports.0);
        let origin = Origin { from, ce: packet.ce };
        let received = self.engine.receive(&origin, bytes);
        let number = match received {
            Received::Taken(kind) => kind as u64,
            Received::Place(_) => 64,
            Received::Dropped(why) => 128 + why.index() as u64,
        };
        shared.trace.note(shared.now, Some(self.index), 2, number, || {
            let ce = if packet.ce { " CE" } else { "" };
            format!("<- h{} {}{ce}: {}", packet.from, packet_line(bytes), received_line(&received))
        });
        let peer = &shared.plans[packet.from].config;
        match received {
            Received::Place(placement) if matches!(placement.to, Place::Shard(_)) => {
                let payload = bytes.get(Parity::LEN..).unwrap_or_default();
                self.place(placement.to, payload, shared)?;
            }
            Received::Place(placement) => {
                let (data, payload) = Data::parse(bytes).map_err(|e| (Check::Counters, e.to_string()))?;
                if payload.len() != placement.len as usize {
                    let what = format!("{} of {} bytes are placed", placement.len, payload.len());
                    return Err((Check::Bytes, what));
                }
                let key = self.engine.session_with(address(packet.from));
                let key = key.ok_or_else(|| (Check::Agreement, "placed without a session".to_owned()))?;
                let token = match placement.to {
                    Place::Receive { token, .. } => Some(token),
                    Place::Block(_) | Place::Shard(_) => None,
                };
                shared.net.figures.placed(shared.now, &data);
                shared.ledger.arrived(self.session(key), &data, placement.len, peer.first, token)?;
                self.place(placement.to, payload, shared)?;
            }
            Received::Taken(Kind::Feedback) => {
                if let Some(key) = self.engine.session_with(address(packet.from)) {
                    self.watch.fed(key, packet.from, peer, bytes);
                }
            }
            Received::Taken(Kind::Accept) => {
                if let (Some(key), Ok(accept)) =
                    (self.engine.session_with(address(packet.from)), Accept::parse(bytes))
                {
                    shared.ledger.told(self.session(key), Told::Peer(accept.offer.id))?;
                }
            }
            _ => {}
        }
        while let Some(repair) = self.engine.next_repair() {
            shared.trace.note(shared.now, Some(self.index), 6, repair.missing, || {
                format!(
                    "repairs {:b} of {} from {} of a message",
                    repair.missing, repair.count, repair.offset
                )
            });
            self.repair(&repair, shared)?;
        }
        Ok(())
    }

    /// Recovers segments in their place.
    fn repair(&mut self, r: &Repair, shared: &mut Shared) -> Result<(), (Check, String)> {
        let count = usize::from(r.count);
        let mut there: Vec<Option<Vec<u8>>> = Vec::with_capacity(count);
        for i in 0..count {
            let (at, len) = r.part(i);
            let bytes = shared.ledger.placed(r.token, at, len);
            there.push(if r.is_missing(i) { None } else { Some(bytes?) });
        }
        let data: Vec<Option<&[u8]>> = there.iter().map(Option::as_deref).collect();
        let shard = |(index, block): &(u8, u32)| {
            let bytes = self.shards.get(*block as usize).map(Vec::as_slice).unwrap_or_default();
            (usize::from(*index), bytes)
        };
        let parity: Vec<(usize, &[u8])> = r.shards.iter().take(r.parity.into()).map(shard).collect();
        let mut recovered = vec![Vec::new(); r.missing.count_ones() as usize];
        if r.len > 0 {
            let bytes = self.workshop.recover(r.len as usize, &data, &parity);
            let bytes = bytes.map_err(|e| (Check::Bytes, format!("{r:?}: {e}")))?;
            recovered = bytes.map(<[u8]>::to_vec).collect();
        }
        for (i, bytes) in (0..count).filter(|i| r.is_missing(*i)).zip(recovered) {
            let (at, len) = r.part(i);
            shared.ledger.repaired(r.token, len as u64)?;
            shared.ledger.write(r.token, at, bytes.get(..len).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Appends a parity shard.
    fn encode(&mut self, of: &Shards, shared: &mut Shared, to: &mut Vec<u8>) -> Result<(), (Check, String)> {
        let mut data = vec![Vec::new(); usize::from(of.count)];
        for (i, bytes) in data.iter_mut().enumerate() {
            let (at, len) = of.part(i);
            shared.ledger.read(of.token, at, len as u32, bytes)?;
        }
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let from = to.len();
        to.resize(from + of.len as usize, 0);
        if of.len > 0 {
            let made =
                self.workshop.encode(of.index.into(), &data, &mut [to.get_mut(from..).unwrap_or_default()]);
            made.map_err(|e| (Check::Bytes, format!("{of:?}: {e}")))?;
        }
        Ok(())
    }

    fn place(&mut self, to: Place, payload: &[u8], shared: &mut Shared) -> Result<(), (Check, String)> {
        let mut bytes = payload.to_vec();
        match (*shared.sabotage, bytes.first_mut()) {
            (Sabotage::FlipParity, Some(first)) if matches!(to, Place::Shard(_)) => {
                *first ^= 1;
                *shared.sabotage = Sabotage::None;
            }
            (Sabotage::FlipByte, Some(first)) => {
                *first ^= 1;
                *shared.sabotage = Sabotage::None;
            }
            (Sabotage::SkipPlacement, Some(_)) => {
                *shared.sabotage = Sabotage::None;
                return Ok(());
            }
            _ => {}
        }
        match to {
            Place::Shard(block) => match self.shards.get_mut(block as usize) {
                Some(place) => {
                    *place = bytes;
                    Ok(())
                }
                None => Err((Check::Bounds, format!("shard {block} of {}", self.shards.len()))),
            },
            Place::Receive { token, offset } => shared.ledger.write(token, offset, &bytes),
            Place::Block(block) => match self.blocks.get_mut(block as usize) {
                // One that was thrown away with its message may be used again.
                Some(place) => {
                    *place = bytes;
                    Ok(())
                }
                None => Err((Check::Bounds, format!("block {block} of {}", self.blocks.len()))),
            },
        }
    }

    /// Carries out what [`Engine::next_move`] says, after a receive was posted.
    pub fn moves(&mut self, shared: &mut Shared) -> Result<(), Violation> {
        while let Some(m) = self.engine.next_move() {
            let bytes = self.blocks.get(m.block as usize).and_then(|b| b.get(..m.len as usize));
            let moved = match bytes {
                Some(bytes) => shared.ledger.write(m.token, m.offset, bytes),
                None => Err((Check::Bytes, format!("{m:?} of a block that has not so much"))),
            };
            moved.map_err(|e| self.fail(shared.now, e))?;
        }
        Ok(())
    }

    /// A packet's bytes: its header, which is in `buf`, and its segment, and whatever else goes into the same packet.
    fn gather(
        &mut self,
        first: Transmit,
        buf: &mut [u8],
        shared: &mut Shared,
    ) -> Result<Vec<u8>, (Check, String)> {
        let (mut bytes, mut begin, mut part) = (Vec::new(), 0, first);
        loop {
            bytes.extend_from_slice(buf.get(..usize::from(part.header_len)).unwrap_or_default());
            if let Some(source) = part.source {
                shared.ledger.read(source.token, source.offset, source.len, &mut bytes)?;
            }
            self.note_sent(&part, bytes.get(begin..).unwrap_or_default(), shared)?;
            if let Some(shards) = &part.parity {
                self.encode(shards, shared, &mut bytes)?;
            }
            let Some(next) = self.engine.follow(&part, bytes.len(), buf) else { return Ok(bytes) };
            if next.path != first.path || next.to != first.to {
                return Err((Check::Agreement, format!("{next:?} is to share a packet with {first:?}")));
            }
            Data::set_more(bytes.get_mut(begin..).unwrap_or_default());
            (begin, part) = (bytes.len(), next);
        }
    }

    /// The host that a packet goes to, the port that it leaves from, and the one it goes to.
    fn receiver(&self, transmit: &Transmit, shared: &Shared) -> Result<(usize, (u8, u8)), (Check, String)> {
        let way = match transmit.to {
            Destination::Session(key) => {
                let way = self.engine.way(key, transmit.path);
                way.map(|way| (way.rail, Address::new(way.ip, way.qpn)))
            }
            Destination::Address(to) => Some((0, to)),
        };
        let to =
            way.and_then(|(from, to)| owner(to, shared.plans.len()).map(|(host, port)| (host, (from, port))));
        let to = to.filter(|(host, ports)| {
            ports.0 < self.plan.ports && shared.plans.get(*host).is_some_and(|plan| ports.1 < plan.ports)
        });
        to.ok_or_else(|| (Check::Agreement, format!("{transmit:?} goes to nobody")))
    }

    /// The checker sees a packet, or one of the segments in it.
    fn note_sent(
        &mut self,
        transmit: &Transmit,
        bytes: &[u8],
        shared: &mut Shared,
    ) -> Result<(), (Check, String)> {
        let Destination::Session(key) = transmit.to else { return Ok(()) };
        let (to, round, session) = (self.receiver(transmit, shared)?.0, self.rounds, self.session(key));
        let told = self.watch.sent(key, transmit, bytes, round, (to, &shared.plans[to]))?;
        for told in told.into_iter().flatten() {
            shared.ledger.told(session, told)?;
        }
        if transmit.kind == Kind::Feedback && *shared.sabotage == Sabotage::RepeatFeedback {
            *shared.sabotage = Sabotage::None;
            self.watch.sent(key, transmit, bytes, round, (to, &shared.plans[to]))?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        transmit: &Transmit,
        bytes: Vec<u8>,
        shared: &mut Shared,
    ) -> Result<(), (Check, String)> {
        let (to, ports) = self.receiver(transmit, shared)?;
        let lost = match (*shared.sabotage, transmit.kind) {
            (Sabotage::LosePacket, Kind::Data) => {
                *shared.sabotage = Sabotage::None;
                true
            }
            _ => false,
        };
        let mut line = None;
        if !lost && *shared.sabotage != Sabotage::Silence {
            let text = if shared.trace.has_lines() { packet_line(&bytes) } else { String::new() };
            let mut packet = Packet::new(self.index, to, u16::from(transmit.path), bytes);
            packet.ports = ports;
            line = Some((shared.net.send(shared.now, packet), text));
        }
        let number = (transmit.kind as u64) << 32 | u64::from(transmit.source.map_or(0, |s| s.len));
        shared.trace.note(shared.now, Some(self.index), 1, number, || match line {
            Some((Fate::Lost(link), text)) => format!("-> h{to} {text}: lost on link {link}"),
            Some((Fate::Dark, text)) => format!("-> h{to} {text}: the port is dark"),
            Some((_, text)) => format!("-> h{to} {text}"),
            None => format!("-> h{to} nowhere"),
        });
        Ok(())
    }

    /// The next completion, as the ledger has to know it.
    pub fn completion(&mut self, shared: &mut Shared) -> Result<Option<Completion>, Violation> {
        let Some(mut done) = self.engine.poll_completion() else { return Ok(None) };
        let times = match *shared.sabotage {
            Sabotage::LoseCompletion => 0,
            Sabotage::RepeatCompletion => 2,
            Sabotage::WrongStatus if done.operation == roce_proto::transport::Operation::Recv => {
                done.status = roce_proto::transport::Status::SessionDown;
                1
            }
            _ => 1,
        };
        if times != 1 || done.status == roce_proto::transport::Status::SessionDown {
            *shared.sabotage = match *shared.sabotage {
                Sabotage::LoseCompletion | Sabotage::RepeatCompletion | Sabotage::WrongStatus => {
                    Sabotage::None
                }
                other => other,
            };
        }
        let session = self.session(done.session);
        let first = match done.operation {
            roce_proto::transport::Operation::Send => self.plan.config.first,
            roce_proto::transport::Operation::Recv => self.first_of_peer(shared, &done),
        };
        for _ in 0..times {
            shared.ledger.complete(session, &done, first).map_err(|e| self.fail(shared.now, e))?;
        }
        Ok(Some(done))
    }

    fn first_of_peer(&self, shared: &Shared, done: &Completion) -> Seq {
        // The session may be over, so its peer is what was planned.
        shared.ledger.peer_host(done.token).map_or(Seq(0), |peer| shared.plans[peer].config.first)
    }

    /// What the engine of this incarnation and those before counted, for one figure.
    pub fn sum(&self, figure: impl Fn(&Counters) -> u64) -> u64 {
        self.before.iter().chain([self.engine.counters()]).map(figure).sum()
    }

    /// Rounds that it had.
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }
}
