//! The checker of what an engine says and asks for: windows, grants, path sequences, feedback, tables, deadlines. It reads packets as they
//! stand on the wire and knows nothing of how the engine decides.

use crate::scenario::HostPlan;
use roce_proto::time::Instant;
use roce_proto::transport::{Config, Engine, Protect, SessionKey, Transmit};
use roce_proto::wire::shim::{Accept, Common, Data, Feedback, Init, Kind, Parity, Probe, Seq};
use std::fmt;
use std::time::Duration;

/// Which check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// The scenario itself cannot be.
    Scenario,
    /// A message arrived with other bytes.
    Bytes,
    /// Something ended twice, or was delivered twice.
    Once,
    /// Two sides believe different things, and neither has an error.
    Agreement,
    /// A completion says something else than was posted.
    Metadata,
    /// A table holds more than it may.
    Bounds,
    /// More is in flight than the peer accepts.
    Window,
    /// More came unexpected than was granted.
    Grant,
    /// Parity of what nobody asked to protect, or of segments that were not sent.
    Parity,
    /// Path sequences are not consecutive.
    PathSequence,
    /// More than one feedback for a session in a round.
    Feedback,
    /// An engine asks for rounds in which nothing happens.
    Deadline,
    /// Counters do not add up.
    Counters,
    /// Packets are missing that nobody has lost.
    Conservation,
    /// Nothing goes on although the network lets packets pass.
    Progress,
    /// Something did not come to an end.
    Completion,
    /// Something is left in a table when everything is over.
    Leak,
    /// A session went down that had no reason to.
    Session,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in virtual time.
    pub at: Instant,
    /// The host, if it is one's.
    pub host: Option<usize>,
    /// Which check.
    pub check: Check,
    /// What was found.
    pub what: String,
}

impl Violation {
    /// One that was found now.
    pub fn new(at: Instant, host: Option<usize>, check: Check, what: impl Into<String>) -> Violation {
        Violation { at, host, check, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.at, self.check)?;
        if let Some(host) = self.host {
            write!(f, " at host {host}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Rounds in which nothing happened, that an engine may ask for in a millisecond. What waits for room looks again every 25 µs, which
/// are 40, and a session has some timers.
const IDLE_ROUNDS: u32 = 400;

/// What was seen of a session.
#[derive(Clone, Debug)]
struct Seen {
    key: SessionKey,
    peer: usize,
    /// Every sequence before it is known to have arrived.
    next: Seq,
    /// The next one to be sent for the first time.
    fresh: Seq,
    granted: u32,
    grant: Seq,
    paths: [Seq; 32],
    /// The round of its last feedback.
    fed: u64,
}

/// What was seen of a host's engine in this incarnation.
#[derive(Debug)]
pub struct Watch {
    config: Config,
    sessions: Vec<Option<Seen>>,
    idle: u32,
    idle_since: Instant,
}

/// What a packet tells the ledger about which session talks to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The session is reached by this id.
    Own(u64),
    /// The session's peer is reached by this id.
    Peer(u64),
}

impl Watch {
    /// Nothing was seen.
    pub fn new(config: &Config) -> Watch {
        Watch {
            config: *config,
            sessions: vec![None; config.limits.sessions as usize],
            idle: 0,
            idle_since: Instant::ZERO,
        }
    }

    fn seen(&mut self, key: SessionKey, peer: usize, peer_config: &Config) -> Option<&mut Seen> {
        let first = self.config.first;
        let place = self.sessions.get_mut(key.slot())?;
        if place.as_ref().is_none_or(|s| s.key != key) {
            let grant = first.add(peer_config.allowance);
            let paths = [first; 32];
            *place = Some(Seen { key, peer, next: first, fresh: first, granted: 0, grant, paths, fed: 0 });
        }
        place.as_mut()
    }

    /// An engine sends a packet of a session. Returns what it tells of who talks to whom.
    pub fn sent(
        &mut self,
        key: SessionKey,
        transmit: &Transmit,
        bytes: &[u8],
        round: u64,
        (peer, plan): (usize, &HostPlan),
    ) -> Result<[Option<Told>; 2], (Check, String)> {
        let (first, protect) = (self.config.first, self.config.fec.protect);
        let peer_config = &plan.config;
        let paths = self.config.paths.min(peer_config.paths);
        let malformed = |e| (Check::Counters, format!("it sends what it would not take: {e}"));
        let common = Common::parse(bytes).map_err(malformed)?;
        if common.kind == Kind::Init {
            let own = Init::parse(bytes).map_err(malformed)?.offer.id;
            return Ok([Some(Told::Own(own)), None]);
        }
        let Some(seen) = self.seen(key, peer, peer_config) else {
            return Err((Check::Bounds, format!("session slot {} is none", key.slot())));
        };
        if seen.peer != peer {
            return Err((Check::Agreement, format!("a session with {} sends to {peer}", seen.peer)));
        }
        if transmit.path >= paths {
            return Err((Check::Bounds, format!("path {} of {paths}", transmit.path)));
        }
        let mut step = |path: u8, seq: Seq| {
            let expected = &mut seen.paths[usize::from(path)];
            if seq != *expected {
                return Err((Check::PathSequence, format!("{seq} on path {path} after {expected}")));
            }
            *expected = expected.next();
            Ok(())
        };
        let mut told = [Some(Told::Peer(common.session)), None];
        match common.kind {
            Kind::Data => {
                let (data, _) = Data::parse(bytes).map_err(malformed)?;
                step(data.path, data.path_seq)?;
                seen.data(&data, peer_config, first)?;
            }
            Kind::Parity => {
                let (parity, _) = Parity::parse(bytes).map_err(malformed)?;
                step(parity.first.path, parity.first.path_seq)?;
                seen.parity(&parity, protect)?;
            }
            Kind::Probe => {
                let probe = Probe::parse(bytes).map_err(malformed)?;
                step(probe.path, probe.path_seq)?;
            }
            Kind::Feedback => {
                if seen.fed == round {
                    return Err((
                        Check::Feedback,
                        format!("two feedbacks for a session with {peer} in a round"),
                    ));
                }
                seen.fed = round;
            }
            Kind::Accept => told[1] = Some(Told::Own(Accept::parse(bytes).map_err(malformed)?.offer.id)),
            _ => {}
        }
        Ok(told)
    }

    /// An engine took a feedback.
    pub fn fed(&mut self, key: SessionKey, peer: usize, peer_config: &Config, bytes: &[u8]) {
        let Ok(feedback) = Feedback::parse(bytes) else { return };
        let Some(seen) = self.seen(key, peer, peer_config) else { return };
        let head = feedback.head;
        if seen.next.before(head.next) {
            seen.next = head.next;
        }
        if seen.grant.before(head.grant) {
            seen.grant = head.grant;
        }
    }

    /// A round is over: whether its tables keep within their bounds and its counters add up.
    pub fn tables(&self, engine: &Engine) -> Result<(), (Check, String)> {
        let l = &self.config.limits;
        let incoming = l.sessions as usize * l.session_incoming as usize + l.blocks as usize + 1_024;
        let operations = l.sends as usize + l.receives as usize;
        let bounds = [
            ("sessions", l.sessions as usize),
            ("channels", l.channels as usize),
            ("sends", l.sends as usize),
            ("receives", l.receives as usize),
            ("incoming", incoming),
            ("blocks", l.blocks as usize),
            ("completions", operations),
            ("steps", l.steps as usize),
            ("shards", l.shards as usize),
        ];
        for ((name, used), (known, most)) in engine.in_use().into_iter().zip(bounds) {
            if name != known || used > most {
                return Err((Check::Bounds, format!("{used} {name}, {most} {known} at the most")));
            }
        }
        let c = engine.counters();
        if c.accounted() != c.received {
            let what = format!("{} packets received, {} accounted for", c.received, c.accounted());
            return Err((Check::Counters, what));
        }
        Ok(())
    }

    /// A round was asked for by a deadline, and `useful` says whether anything happened in it.
    pub fn asked(&mut self, now: Instant, useful: bool) -> Result<(), (Check, String)> {
        if useful || now.saturating_since(self.idle_since) > Duration::from_millis(1) {
            self.idle = 0;
            self.idle_since = now;
        }
        self.idle += u32::from(!useful);
        if self.idle > IDLE_ROUNDS {
            let what = format!("{} rounds for nothing since {}", self.idle, self.idle_since);
            return Err((Check::Deadline, what));
        }
        Ok(())
    }
}

impl Seen {
    /// Parity is of segments that were all sent, and of a message whose tags ask for it or that others wait for.
    fn parity(&self, parity: &Parity, protect: Protect) -> Result<(), (Check, String)> {
        let wanted = match protect {
            Protect::Nothing => false,
            Protect::ByTag => (1..4).contains(&parity.first.semantics.class) || parity.first.semantics.sync,
            Protect::Everything(_) => true,
        };
        let last = u32::from(parity.segments.saturating_sub(1)) * u32::from(parity.stride);
        let sent = parity.first.seq.add(last).before(self.fresh);
        if wanted && sent && parity.segments > 0 && parity.index < parity.shards {
            return Ok(());
        }
        Err((Check::Parity, format!("{parity:?}, protecting {protect:?}, sent before {}", self.fresh)))
    }

    fn data(&mut self, data: &Data, peer: &Config, first: Seq) -> Result<(), (Check, String)> {
        let window = peer.limits.window;
        if data.again {
            if !data.seq.before(self.fresh) {
                return Err((Check::Window, format!("{} is sent again and never was", data.seq)));
            }
        } else {
            if data.seq != self.fresh {
                return Err((Check::Window, format!("{} is sent after {}", data.seq, self.fresh.back(1))));
            }
            self.fresh = self.fresh.next();
            self.granted += u32::from(data.granted);
        }
        let ahead = self.next.until(data.seq);
        // What the peer is known to have is sent again only if the sender has not heard of it, which it has.
        if ahead >= window {
            return Err((Check::Window, format!("{ahead} beyond what has arrived, {window} fit")));
        }
        if self.grant.before(first.add(self.granted)) {
            let most = first.until(self.grant);
            return Err((Check::Grant, format!("{} segments came unexpected, {most} may", self.granted)));
        }
        Ok(())
    }
}
