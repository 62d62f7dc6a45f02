//! The links between hosts, and the ways over them.

use crate::figures::{Carried, Figures, Traffic};
use crate::groups::Groups;
use crate::scenario::Topology;
use crate::watch::{Check, Violation};
use roce_proto::time::Instant;
use roce_proto::wire::shim::Kind;
use testbed_impair::{Config, Counters, Delivery, Link, Offer};

/// Bytes of a frame beside what an engine writes: Ethernet, IPv4, UDP, BTH, DETH, ICRC.
pub const OVERHEAD: usize = 14 + 20 + 8 + 12 + 8 + 4;

/// A packet under way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Who sent it.
    pub from: usize,
    /// Whom it is for.
    pub to: usize,
    /// The port of its host that it leaves from, and the one it goes to.
    pub ports: (u8, u8),
    /// What its UDP source port is drawn from, which decides about links in parallel.
    pub entropy: u16,
    /// When it was sent.
    pub sent: Instant,
    /// It carries Congestion Experienced.
    pub ce: bool,
    /// A bit of it was inverted: its ICRC is wrong.
    pub corrupt: bool,
    /// What follows the DETH.
    pub bytes: Vec<u8>,
    hop: usize,
}

impl Packet {
    /// A packet that has not been sent.
    pub const fn new(from: usize, to: usize, entropy: u16, bytes: Vec<u8>) -> Packet {
        Packet {
            from,
            to,
            ports: (0, 0),
            entropy,
            sent: Instant::ZERO,
            ce: false,
            corrupt: false,
            bytes,
            hop: 0,
        }
    }

    /// Whether it carries a segment: the type stands in the low half of the first byte.
    fn is_data(&self) -> bool {
        self.bytes.first().is_some_and(|b| b & 0x0f == Kind::Data as u8)
    }
}

/// What a link made of a packet at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is under way on this link.
    UnderWay(usize),
    /// It was lost on this link.
    Lost(usize),
    /// Its port sends nothing.
    Dark,
    /// It has arrived.
    Arrived,
}

/// All links.
#[derive(Debug)]
pub struct Net {
    topology: Topology,
    hosts: usize,
    links: Vec<Link<Packet>>,
    base: Vec<Config>,
    /// Salt of the switches' hash.
    salt: u64,
    /// What each link carried.
    pub carried: Vec<Carried>,
    /// What became of segments.
    pub figures: Figures,
    /// What hosts sent.
    pub traffic: Traffic,
    /// What of that had parity.
    pub groups: Groups,
    /// Packets that links lost since this was last emptied, if somebody wants to know.
    pub dropped: Option<Vec<Packet>>,
    /// Links that took a packet since this was last emptied.
    pub touched: Vec<usize>,
    /// Ports that are dark, and how often over.
    dark: Vec<(usize, u8)>,
    /// Packets that dark ports did not send.
    pub unsent: u64,
    /// Packets that dark ports did not take.
    pub untaken: u64,
    /// Packets between ports that are not both the first.
    pub on_rails: u64,
    /// Packets handed to a first link, or to a dark port.
    pub sent: u64,
    /// Packets that came out of a last link.
    pub arrived: u64,
}

impl Net {
    /// Links like these.
    pub fn new(topology: Topology, hosts: usize, configs: &[Config], seed: u64) -> Result<Net, Violation> {
        let wanted = topology.links(hosts);
        if configs.len() != wanted {
            let what = format!("{} links given, {wanted} needed", configs.len());
            return Err(Violation::new(Instant::ZERO, None, Check::Scenario, what));
        }
        let link = |(i, config): (usize, &Config)| Link::new(config.clone(), seed ^ (i as u64) << 32);
        let links: Result<Vec<_>, _> = configs.iter().enumerate().map(link).collect();
        let links = links.map_err(|e| Violation::new(Instant::ZERO, None, Check::Scenario, e.to_string()))?;
        Ok(Net {
            topology,
            hosts,
            carried: vec![Carried::default(); links.len()],
            links,
            base: configs.to_vec(),
            salt: seed,
            figures: Figures::default(),
            traffic: Traffic::default(),
            groups: Groups::default(),
            dropped: None,
            touched: Vec::new(),
            dark: Vec::new(),
            unsent: 0,
            untaken: 0,
            on_rails: 0,
            sent: 0,
            arrived: 0,
        })
    }

    /// A host sends a packet.
    pub fn send(&mut self, now: Instant, mut packet: Packet) -> Fate {
        self.sent += 1;
        self.traffic.sent(now, &packet.bytes, packet.bytes.len() + OVERHEAD);
        self.groups.sent(&packet.bytes);
        packet.sent = now;
        self.on_rails += u64::from(packet.ports != (0, 0));
        if self.is_dark(packet.from, packet.ports.0) {
            self.unsent += 1;
            self.note_lost(now, packet);
            return Fate::Dark;
        }
        self.enter(now, packet)
    }

    /// A packet is lost, wherever.
    fn note_lost(&mut self, now: Instant, packet: Packet) {
        self.figures.lost(now, &packet.bytes);
        self.groups.lost(&packet.bytes);
        if let Some(all) = &mut self.dropped {
            all.push(packet);
        }
    }

    /// A port of a host is dark from now on, once more or once less.
    pub fn darken(&mut self, host: usize, port: u8, dark: bool) {
        match self.dark.iter().position(|at| *at == (host, port)).filter(|_| !dark) {
            Some(at) => drop(self.dark.swap_remove(at)),
            None if dark => self.dark.push((host, port)),
            None => {}
        }
    }

    /// Whether a port is dark.
    pub fn is_dark(&self, host: usize, port: u8) -> bool {
        self.dark.contains(&(host, port))
    }

    /// The link that a packet takes next.
    fn way(&self, packet: &Packet) -> Option<usize> {
        self.topology.link(self.hosts, packet.from, packet.to, packet.entropy, self.salt, packet.hop)
    }

    fn enter(&mut self, now: Instant, packet: Packet) -> Fate {
        let Some(at) = self.way(&packet) else { return Fate::Arrived };
        let link = &mut self.links[at];
        let offer = Offer { bytes: packet.bytes.len() + OVERHEAD, ecn_capable: true };
        if let Some(lost) = link.offer(now, offer, packet, |p| Some(p.clone())) {
            self.note_lost(now, lost);
            return Fate::Lost(at);
        }
        self.touched.push(at);
        Fate::UnderWay(at)
    }

    /// When a host's own link will have sent what was handed to it; none if it has not one link for all.
    pub fn sent_at(&self, host: usize) -> Option<Instant> {
        match self.topology {
            Topology::Mesh { .. } => None,
            _ => self.links.get(host).map(Link::empty_at),
        }
    }

    /// When the next packet comes out of a link.
    pub fn next_at(&self, link: usize) -> Option<Instant> {
        self.links[link].next_at()
    }

    /// The next packet that comes out of a link now: one that has arrived, or what became of it on its next link.
    pub fn pop(&mut self, now: Instant, link: usize) -> Option<Result<Packet, Fate>> {
        let Delivery { mut packet, marked, corrupt, .. } = self.links[link].pop(now)?;
        packet.ce |= marked;
        packet.corrupt |= corrupt.is_some();
        packet.hop += 1;
        if packet.is_data() {
            self.carried[link].note(now);
        }
        if self.way(&packet).is_none() {
            self.arrived += 1;
            self.figures.came(now, packet.sent, packet.is_data());
            return Some(Ok(packet));
        }
        Some(Err(self.enter(now, packet)))
    }

    /// A link is different from now on.
    pub fn change(&mut self, link: usize, config: &Config) -> Result<(), testbed_impair::ConfigError> {
        self.links[link].reconfigure(config.clone())
    }

    /// A link is again as it was.
    pub fn restore(&mut self, link: usize) {
        // It was accepted at the start.
        let _ = self.links[link].reconfigure(self.base[link].clone());
    }

    /// From now on all links only delay, at their rates.
    pub fn calm(&mut self) {
        self.dark.clear();
        for (base, link) in self.base.iter_mut().zip(&mut self.links) {
            *base = Config {
                delay: base.delay,
                rate: base.rate,
                capacity: base.capacity.max(1 << 16),
                ..Config::default()
            };
            let _ = link.reconfigure(base.clone());
        }
    }

    /// Links.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// What all links counted together, and packets under way.
    pub fn counters(&self) -> (Counters, u64) {
        let mut sum = Counters::default();
        let mut under_way = 0;
        for link in &self.links {
            let c = link.counters();
            under_way += link.under_way() as u64;
            for (sum, more) in [
                (&mut sum.offered, c.offered),
                (&mut sum.duplicated, c.duplicated),
                (&mut sum.delivered, c.delivered),
                (&mut sum.lost, c.lost),
                (&mut sum.dark, c.dark),
                (&mut sum.queue_full, c.queue_full),
                (&mut sum.too_many, c.too_many),
                (&mut sum.marked, c.marked),
                (&mut sum.corrupted, c.corrupted),
            ] {
                *sum += more;
            }
        }
        (sum, under_way)
    }

    /// Packets that links have lost.
    pub fn lost(&self) -> u64 {
        let c = self.counters().0;
        c.lost + c.dark + c.queue_full + c.too_many + self.unsent
    }

    /// Every packet that was sent, and every copy, has arrived, is under way, or was lost by a link that counted it.
    pub fn conserved(&self) -> Result<(), String> {
        let (c, under_way) = self.counters();
        let into = c.offered + c.duplicated;
        let out = c.delivered + c.lost + c.dark + c.queue_full + c.too_many + under_way;
        if into != out {
            return Err(format!("links took {into} packets and account for {out}"));
        }
        // What one link delivers and has not arrived was offered to the next.
        let first = c.offered - (c.delivered - self.arrived);
        if first + self.unsent != self.sent {
            return Err(format!("hosts sent {} packets, links took {first} from them", self.sent));
        }
        Ok(())
    }
}
