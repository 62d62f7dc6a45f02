//! The event queue under a virtual clock: links deliver, hosts have rounds, faults begin and end, and the run comes to its end.

use crate::app::Apps;
use crate::host::{Host, Shared, address};
use crate::ledger::Ledger;
use crate::net::{Fate, Net, Packet};
use crate::report::Report;
use crate::scenario::{Fault, Poll, Sabotage, Scenario};
use crate::trace::Trace;
use crate::watch::{Check, Violation};
use roce_proto::time::Instant;
use roce_proto::transport::PathStats;
use roce_proto::wire::shim::Kind;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What happens at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Link(usize),
    Host(usize),
    Begin(usize),
    End(usize),
    Calm,
    Look,
    Tell,
}

/// Time between two looks at whether everything is done, or nothing goes on.
const LOOK: Duration = Duration::from_millis(20);
/// Without progress for so long, while no fault is active, nothing goes on. A time-out is a second at most, a dead peer is noticed
/// within seven seconds if it answers and sixteen if it does not.
const STALLED: Duration = Duration::from_secs(25);
/// After the end, what is left of sessions goes within so long.
const CLOSED: Duration = Duration::from_secs(40);

/// Events of a run, more than any sound one has.
const EVENTS: u64 = 100_000_000;

/// A simulation under way.
pub struct World<'a> {
    scenario: &'a Scenario,
    now: Instant,
    /// By time, then in the order of coming.
    queue: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    serial: u64,
    hosts: Vec<Host>,
    net: Net,
    /// When each link's event is; [`Instant::MAX`] if it has none.
    links: Vec<Instant>,
    apps: Apps,
    ledger: Ledger,
    trace: Trace,
    sabotage: Sabotage,
    /// No fault is active from then on.
    clear: Instant,
    calm: bool,
    progress: (u64, Instant),
    /// At the last look, nothing was left that has to end by itself.
    settled: bool,
    /// When all that was planned was over.
    played: Instant,
    events: u64,
    /// Losses that an oracle tells of later.
    untold: Vec<Packet>,
}

impl<'a> World<'a> {
    /// A simulation that has not begun.
    pub fn new(scenario: &'a Scenario, trace: Trace) -> Result<World<'a>, Violation> {
        let n = scenario.hosts.len();
        let hosts = scenario.hosts.iter().enumerate();
        let hosts: Result<Vec<Host>, Violation> =
            hosts.map(|(i, plan)| Host::new(i, plan, scenario.seed)).collect();
        let mut net = Net::new(scenario.topology, n, &scenario.links, scenario.seed)?;
        net.dropped = scenario.oracle.map(|_| Vec::new());
        let mut world = World {
            scenario,
            now: Instant::ZERO,
            queue: BinaryHeap::new(),
            serial: 0,
            hosts: hosts?,
            links: vec![Instant::MAX; net.len()],
            net,
            apps: Apps::new(scenario),
            ledger: Ledger::new(scenario.seed),
            trace,
            sabotage: scenario.sabotage,
            clear: Instant::ZERO,
            calm: scenario.calm_at.is_none(),
            progress: (0, Instant::ZERO),
            settled: false,
            played: Instant::ZERO,
            events: 0,
            untold: Vec::new(),
        };
        for (i, fault) in scenario.faults.iter().enumerate() {
            let from = match fault {
                Fault::Weather { from, .. } | Fault::Port { from, .. } | Fault::Pause { from, .. } => *from,
                Fault::Restart { at, .. } | Fault::Close { at, .. } => *at,
            };
            world.push(Instant::ZERO + from, Event::Begin(i));
            world.push(Instant::ZERO + fault.end(), Event::End(i));
        }
        if let Some(calm_at) = scenario.calm_at {
            world.push(Instant::ZERO + calm_at, Event::Calm);
        }
        world.push(Instant::ZERO + LOOK, Event::Look);
        for i in 0..n {
            world.wake(i, Instant::ZERO);
        }
        Ok(world)
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((at.max(self.now), self.serial, event)));
    }

    /// A host wants a round at `at`: it gets one as soon as it can after that.
    fn wake(&mut self, host: usize, at: Instant) {
        let h = &self.hosts[host];
        if h.away {
            return;
        }
        let mut at = at.max(self.now).max(h.paused);
        if h.rounds() > 0 {
            at = at.max(h.last_round + h.plan.spacing);
        }
        if let Poll::Every(gap) = h.plan.poll {
            let gap = gap.as_nanos().max(1) as u64;
            at = Instant::from_nanos(at.as_nanos().div_ceil(gap) * gap);
        }
        if at < h.wake {
            self.hosts[host].wake = at;
            self.push(at, Event::Host(host));
        }
    }

    /// Links that took a packet have events.
    fn schedule_links(&mut self) {
        while let Some(link) = self.net.touched.pop() {
            if let Some(at) = self.net.next_at(link)
                && at < self.links[link]
            {
                self.links[link] = at;
                self.push(at, Event::Link(link));
            }
        }
    }

    /// Runs to the end, or to the first violation.
    pub fn run(mut self) -> (Report, Result<(), Violation>) {
        let verdict = self.play().and_then(|()| self.finish());
        if let Err(violation) = &verdict {
            self.trace.note(violation.at, None, 9, 0, || format!("VIOLATION {violation}"));
        }
        (self.report(), verdict)
    }

    /// The same, and what the first host's engine says of the paths of its first session when everything that was planned is over.
    pub fn run_and_look(mut self) -> (Report, Result<(), Violation>, Vec<PathStats>) {
        let played = self.play();
        let host = &self.hosts[0];
        let sessions = (0..self.hosts.len()).filter_map(|peer| host.engine.session_with(address(peer)));
        let paths =
            sessions.take(1).flat_map(|key| (0..32).map_while(move |path| host.engine.path_stats(key, path)));
        let paths = paths.collect();
        let verdict = played.and_then(|()| self.finish());
        (self.report(), verdict, paths)
    }

    /// Until everything that was planned has come to its end.
    fn play(&mut self) -> Result<(), Violation> {
        let limit = Instant::ZERO + self.scenario.last_at() + self.scenario.patience();
        while !self.done() {
            if self.now > limit || self.events > EVENTS {
                return Err(self.unfinished());
            }
            self.step()?;
        }
        self.played = self.now;
        self.check_strict()
    }

    /// The next event.
    fn step(&mut self) -> Result<(), Violation> {
        let Some(Reverse((at, _, event))) = self.queue.pop() else { return Ok(()) };
        self.now = at;
        self.events += 1;
        match event {
            Event::Link(link) => {
                if self.links[link] == at {
                    self.links[link] = Instant::MAX;
                    self.deliver(link);
                }
            }
            Event::Host(host) => {
                if self.hosts[host].wake == at {
                    self.hosts[host].wake = Instant::MAX;
                    self.round(host)?;
                }
            }
            Event::Begin(fault) => self.begin(fault)?,
            Event::End(fault) => self.end(fault)?,
            Event::Calm => {
                self.calm = true;
                self.clear = self.clear.max(at);
                self.net.calm();
                self.trace.note(at, None, 6, 0, || "calm from now on");
            }
            Event::Tell => self.tell_late(),
            Event::Look => {
                self.look()?;
                // In a long run, seldom.
                self.push(at + LOOK.max(at.saturating_since(Instant::ZERO) / 100), Event::Look);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, link: usize) {
        while let Some(out) = self.net.pop(self.now, link) {
            match out {
                Ok(packet) => {
                    let to = packet.to;
                    if self.net.is_dark(to, packet.ports.1) {
                        self.hosts[to].missed += 1;
                        self.net.untaken += 1;
                        continue;
                    }
                    self.hosts[to].take(packet);
                    self.wake(to, self.now);
                }
                Err(Fate::Lost(next)) => {
                    self.trace
                        .note(self.now, None, 7, next as u64, || format!("a packet is lost on link {next}"));
                }
                Err(_) => {}
            }
        }
        self.net.touched.push(link);
        self.schedule_links();
        self.tell_losses();
    }

    /// Hosts hear of what links have lost of theirs, if this network has an oracle.
    fn tell_losses(&mut self) {
        let lost = self.net.dropped.as_mut().map(std::mem::take).unwrap_or_default();
        for packet in lost {
            let at = self.scenario.oracle.map_or(self.now, |after| packet.sent + after);
            if at > self.now {
                self.untold.push(packet);
                self.push(at, Event::Tell);
            } else {
                self.tell(&packet);
            }
        }
    }

    /// Hosts hear of losses that were kept from them.
    fn tell_late(&mut self) {
        let (now, after) = (self.now, self.scenario.oracle.unwrap_or_default());
        let untold = std::mem::take(&mut self.untold);
        let (told, untold): (Vec<_>, Vec<_>) = untold.into_iter().partition(|p| p.sent + after <= now);
        self.untold = untold;
        told.iter().for_each(|packet| self.tell(packet));
    }

    fn tell(&mut self, packet: &Packet) {
        let engine = &mut self.hosts[packet.from].engine;
        if let Some(key) = engine.session_with(address(packet.to)) {
            engine.lost(key, &packet.bytes);
            self.wake(packet.from, self.now);
        }
    }

    fn round(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let host = &mut self.hosts[at];
        if host.away || host.paused > now {
            return Ok(());
        }
        let mut shared = Shared {
            plans: &self.scenario.hosts,
            ledger: &mut self.ledger,
            net: &mut self.net,
            trace: &mut self.trace,
            sabotage: &mut self.sabotage,
            now,
        };
        let packets = host.round(&mut shared)?;
        let acted = self.apps.step(host, self.scenario, &mut shared)?;
        let spins = self.sabotage == Sabotage::Spin && self.calm;
        host.asked(now, packets > 0 || acted)?;
        let deadline = host.engine.next_deadline().map(|at| host.virtual_time(at));
        // What could not be sent is sent when the NIC has room.
        let deadline = match host.full_until {
            Some(until) if deadline.is_some_and(|at| at <= now) => Some(until),
            _ => deadline,
        };
        let next = deadline.into_iter().chain(self.apps.next_at(at, now)).chain(spins.then_some(now)).min();
        if let Some(next) = next {
            self.wake(at, next);
        }
        self.schedule_links();
        self.tell_losses();
        Ok(())
    }

    fn begin(&mut self, fault: usize) -> Result<(), Violation> {
        let fault = &self.scenario.faults[fault];
        self.trace.note(self.now, None, 8, 0, || format!("{fault:?}"));
        self.clear = self.clear.max(Instant::ZERO + fault.end());
        match fault {
            Fault::Weather { links, config, .. } if !self.calm || self.scenario.calm_at.is_none() => {
                for link in links {
                    let changed = self.net.change(*link, config);
                    changed.map_err(|e| Violation::new(self.now, None, Check::Scenario, e.to_string()))?;
                }
            }
            Fault::Port { host, port, .. } if !self.calm || self.scenario.calm_at.is_none() => {
                self.net.darken(*host, *port, true);
            }
            Fault::Weather { .. } | Fault::Port { .. } => {}
            Fault::Pause { host, .. } => {
                let host = &mut self.hosts[*host];
                host.paused = host.paused.max(Instant::ZERO + fault.end());
                host.wake = Instant::MAX;
            }
            Fault::Restart { host, .. } => {
                // What it had going is over, and nobody there will hear of it.
                self.ledger.host_down(*host, self.hosts[*host].incarnation);
                let host = &mut self.hosts[*host];
                host.restart(self.scenario.seed)?;
                host.away = true;
                host.wake = Instant::MAX;
            }
            Fault::Close { host, peer, .. } => {
                let engine = &mut self.hosts[*host].engine;
                if let Some(key) = engine.session_with(address(*peer)) {
                    engine.close(key);
                    self.wake(*host, self.now);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, fault: usize) -> Result<(), Violation> {
        match &self.scenario.faults[fault] {
            Fault::Weather { links, .. } => links.iter().for_each(|link| self.net.restore(*link)),
            Fault::Port { host, port, .. } => self.net.darken(*host, *port, false),
            Fault::Pause { host, .. } => self.wake(*host, self.now),
            Fault::Restart { host, .. } => {
                self.hosts[*host].away = false;
                self.apps.restarted(*host, self.now);
                self.wake(*host, self.now);
            }
            Fault::Close { .. } => {}
        }
        Ok(())
    }

    /// Whether something goes on, and what was sent is somewhere.
    fn look(&mut self) -> Result<(), Violation> {
        if self.ledger.progress != self.progress.0 {
            self.progress = (self.ledger.progress, self.now);
        }
        self.settled = self.ledger.unsettled().next().is_none();
        let quiet = self.now.saturating_since(self.progress.1.max(self.clear));
        if quiet > STALLED && !self.settled {
            let what = format!("nothing goes on since {}: {}", self.progress.1, self.open());
            return Err(Violation::new(self.now, None, Check::Progress, what));
        }
        self.conserved()
    }

    /// Every packet is accounted for.
    fn conserved(&self) -> Result<(), Violation> {
        let sent: u64 = self.hosts.iter().map(|h| h.sum(|c| c.sent.iter().sum::<u64>() - c.bundled)).sum();
        let links = if sent == self.net.sent {
            self.net.conserved()
        } else {
            Err(format!("engines sent {sent} packets, the network has seen {}", self.net.sent))
        };
        let received =
            |h: &Host| h.sum(|c| c.received) - h.joined + h.missed + h.corrupt + h.waiting() as u64;
        let received: u64 = self.hosts.iter().map(received).sum();
        links
            .and_then(|()| {
                if received == self.net.arrived {
                    Ok(())
                } else {
                    Err(format!("{} packets arrived, hosts account for {received}", self.net.arrived))
                }
            })
            .map_err(|what| Violation::new(self.now, None, Check::Conservation, what))
    }

    /// Whether all that was planned is over.
    fn done(&self) -> bool {
        if self.apps.unposted() > 0 || self.now < self.clear || !self.calm {
            return false;
        }
        self.ledger.open() == 0 || (!self.scenario.strict && self.settled)
    }

    /// What has not ended, for people.
    fn open(&self) -> String {
        let line = |op: &crate::ledger::Op| format!("{:?} of message {}", op.operation, op.message);
        let lines: Vec<String> = self.ledger.unsettled().take(5).map(line).collect();
        let such_as =
            if lines.is_empty() { String::new() } else { format!(", such as {}", lines.join(", ")) };
        format!("{} operations are open and {} not posted{such_as}", self.ledger.open(), self.apps.unposted())
    }

    fn unfinished(&self) -> Violation {
        Violation::new(
            self.now,
            None,
            Check::Completion,
            format!("long after the last fault {}", self.open()),
        )
    }

    fn check_strict(&self) -> Result<(), Violation> {
        if self.scenario.strict && self.apps.downs > 0 {
            let what = format!("{} sessions went down for nothing", self.apps.downs);
            return Err(Violation::new(self.now, None, Check::Session, what));
        }
        Ok(())
    }

    /// Closes what is open, and sees that nothing is left of it.
    fn finish(&mut self) -> Result<(), Violation> {
        self.apps.closing = true;
        let n = self.hosts.len();
        for at in 0..n {
            self.apps.close_all(&mut self.hosts[at], n);
            self.wake(at, self.now);
        }
        let limit = self.now + CLOSED;
        let empty = |h: &Host| h.engine.in_use().iter().all(|(_, used)| *used == 0);
        while !self.hosts.iter().all(empty) {
            if self.now > limit {
                let left: Vec<_> = self.hosts.iter().map(|h| h.engine.in_use()).collect();
                return Err(Violation::new(self.now, None, Check::Leak, format!("{left:?}")));
            }
            self.step()?;
        }
        self.conserved()?;
        self.ledger.verdict().map_err(|(check, what)| Violation::new(self.now, None, check, what))
    }

    fn report(mut self) -> Report {
        let sum = |f: fn(&roce_proto::transport::Counters) -> u64| self.hosts.iter().map(|h| h.sum(f)).sum();
        let mut sent = [0; Kind::ALL.len()];
        for (i, kind) in sent.iter_mut().enumerate() {
            *kind = self.hosts.iter().map(|h| h.sum(|c| c.sent[i])).sum();
        }
        // Segments that shared a packet are one.
        sent[Kind::Data as usize] -= sum(|c| c.bundled);
        let counters = self.net.counters().0;
        let retransmitted = sum(|c| c.retransmitted);
        let spurious = sum(|c| c.spurious);
        let found = [
            sum(|c| c.gap_losses),
            sum(|c| c.time_losses),
            sum(|c| c.deadline_losses),
            sum(|c| c.rto_losses),
        ];
        let repaired = sum(|c| c.repaired);
        self.ledger.times.sort_unstable();
        let mut repairs = std::mem::take(&mut self.net.figures.repairs);
        repairs.sort_unstable();
        Report {
            found,
            repairs,
            spans: std::mem::take(&mut self.ledger.spans),
            round_trip: self.net.figures.round_trip(),
            stall: self.net.figures.stall,
            carried: std::mem::take(&mut self.net.carried),
            traffic: std::mem::take(&mut self.net.traffic),
            groups: std::mem::take(&mut self.net.groups),
            time: if self.played > Instant::ZERO { self.played } else { self.now }
                .saturating_since(Instant::ZERO),
            trace: self.trace.value(),
            packet_events: counters.offered + counters.delivered,
            rounds: self.hosts.iter().map(Host::rounds).sum(),
            sent,
            lost: self.net.lost(),
            missed: self.hosts.iter().map(|h| h.missed).sum(),
            corrupt: self.hosts.iter().map(|h| h.corrupt).sum(),
            rails: [self.net.on_rails, self.net.unsent + self.net.untaken],
            duplicated: counters.duplicated,
            repaired,
            retransmitted,
            spurious,
            succeeded: self.ledger.ended[0],
            too_long: self.ledger.ended[1],
            failed: self.ledger.ended[2],
            downs: self.apps.downs,
            bytes: self.ledger.bytes,
            times: self.ledger.times,
        }
    }
}
