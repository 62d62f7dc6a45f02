//! Which MAC address a next hop has, when to ask, and when to ask again.
//!
//! A state machine without IO after RFC 4861, 7.3, for ARP too: the worker feeds it what packets claim and the time, and
//! sends the requests that it asks for. Only next hops of address handles have an entry, so that packets nobody asked for can
//! neither fill the table nor push an entry out of it; an entry that exists follows what is claimed of it, as hosts do when a
//! peer moves, but at most once a second, so that a flood of claims costs little and a dispute is settled by asking.

#[cfg(test)]
mod tests;
mod timers;

use crate::ah::AhKey;
use roce_proto::time::Instant;
use roce_proto::wire::ethernet::MacAddr;
use slotmap::{SlotMap, new_key_type};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use timers::Timers;

/// Between two requests for the same address: the limit of RFC 1122, 2.3.2.1 (ARP) and RETRANS_TIMER of RFC 4861
/// (neighbour discovery), both one second.
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Requests to everybody before a neighbour counts as failed: MAX_MULTICAST_SOLICIT of RFC 4861, 10.
pub const MAX_REQUESTS: u32 = 3;

/// Requests to a known MAC address, before everybody is asked again: MAX_UNICAST_SOLICIT of RFC 4861, 10.
pub const MAX_PROBES: u32 = 3;

/// Between two requests for a neighbour that failed.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long an answer is believed, on average: REACHABLE_TIME of RFC 4861, 10. Each table draws from half to one and a half of
/// it, so that many endpoints do not ask in step.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);

/// How often it is looked whether an entry that is no longer believed is in use: DELAY_FIRST_PROBE_TIME of RFC 4861, 10.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// For so long after a MAC address was taken, no other is taken for the same neighbour; it is asked for afterwards. Linux
/// does the same for ARP (`locktime`).
pub const LOCK_TIME: Duration = Duration::from_secs(1);

/// Entries at the most, unless configured otherwise. An entry is about 150 bytes.
pub const DEFAULT_MAX_NEIGHBOURS: usize = 16_384;

new_key_type! {
    /// An entry.
    struct Id;
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Asked for, no answer yet.
    Resolving,
    /// It answered not long ago.
    Reachable,
    /// Its address is known, and used, but not confirmed lately.
    Stale,
    /// Its address is known and used, and being confirmed.
    Probing,
    /// It did not answer; it is asked again now and then.
    Failed,
    /// Given, not asked for.
    Static,
}

/// A neighbour, as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its MAC address, if that is known.
    pub mac: Option<MacAddr>,
    /// How well it is known.
    pub state: State,
    /// Requests since its last answer.
    pub asked: u32,
}

/// What a packet says of a neighbour's MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Whose.
    pub ip: IpAddr,
    /// Its MAC address.
    pub mac: MacAddr,
    /// It answers a request, by its form. It is believed to if one is open.
    pub solicited: bool,
    /// It may replace another address: the override flag of RFC 4861, 4.4; always so with ARP.
    pub replaces: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// Ask everybody for this address.
    Ask(IpAddr),
    /// Ask this neighbour itself whether it still has the address.
    Probe(IpAddr, MacAddr),
    /// It no longer answers: nothing may be sent to it until it does.
    Lost(IpAddr),
}

#[derive(Clone, Debug)]
struct Entry {
    ip: IpAddr,
    mac: Option<MacAddr>,
    state: State,
    users: Vec<AhKey>,
    /// Requests since the last answer.
    asked: u32,
    last_asked: Option<Instant>,
    /// When the MAC address was last taken.
    taken: Instant,
    /// When something is to be done; `Instant::MAX` for never.
    due: Instant,
    /// The earliest timer that is set for it.
    timer: Instant,
}

impl Entry {
    fn new(ip: IpAddr, state: State, mac: Option<MacAddr>, due: Instant) -> Entry {
        let (taken, timer) = (Instant::ZERO, Instant::MAX);
        Entry { ip, mac, state, users: Vec::new(), asked: 0, last_asked: None, taken, due, timer }
    }

    /// The first time at or after `now` at which it may be asked for.
    fn may_ask(&self, now: Instant) -> Instant {
        self.last_asked.map_or(now, |t| now.max(t + REQUEST_INTERVAL))
    }
}

/// The neighbours of one port.
#[derive(Debug)]
pub struct NeighbourTable {
    entries: SlotMap<Id, Entry>,
    by_ip: HashMap<IpAddr, Id>,
    timers: Timers<Id>,
    max: usize,
    reachable_time: Duration,
    /// What is due comes from somebody else, who also keeps it up to date.
    fed: bool,
}

/// The table holds its maximum of entries, and all of them are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

impl NeighbourTable {
    /// An empty table of at most `max` entries; `seed` decides how long it believes an answer.
    pub fn new(max: usize, seed: u64) -> NeighbourTable {
        let factor = fastrand::Rng::with_seed(seed).u32(500..1500);
        NeighbourTable {
            entries: SlotMap::with_key(),
            by_ip: HashMap::new(),
            timers: Timers::new(),
            max,
            reachable_time: REACHABLE_TIME * factor / 1000,
            fed: false,
        }
    }

    /// Another source than the wire resolves addresses from now on (see [`NeighbourTable::feed`]): claims of packets are
    /// ignored, and what was resolved is not asked for again.
    pub fn set_fed(&mut self) {
        self.fed = true;
    }

    /// Entries: static ones, and those that no longer have a user and have not yet been removed, included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it knows and asks for nobody.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The next time at which something may be due; `Instant::MAX` for never.
    #[inline]
    pub fn next_due(&self) -> Instant {
        self.timers.next()
    }

    /// Everybody it knows or asks for, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.values().map(|e| Neighbour { ip: e.ip, mac: e.mac, state: e.state, asked: e.asked })
    }

    /// What is known of `ip`.
    pub fn get(&self, ip: IpAddr) -> Option<Neighbour> {
        let e = self.entries.get(*self.by_ip.get(&ip)?)?;
        Some(Neighbour { ip, mac: e.mac, state: e.state, asked: e.asked })
    }

    /// The address handles that use `ip`.
    pub fn users(&self, ip: IpAddr) -> &[AhKey] {
        self.by_ip.get(&ip).and_then(|id| self.entries.get(*id)).map_or(&[], |e| &e.users)
    }

    /// Adds a static entry, or makes an existing one static: it is never asked for and never changed by a packet.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn set_static(&mut self, ip: IpAddr, mac: MacAddr) -> Result<(), TableFull> {
        if let Some(entry) = self.entry(ip) {
            (entry.mac, entry.state, entry.asked, entry.due) = (Some(mac), State::Static, 0, Instant::MAX);
            return Ok(());
        }
        self.make_room()?;
        self.insert(Entry::new(ip, State::Static, Some(mac), Instant::MAX));
        Ok(())
    }

    /// Registers a user of `ip` and returns its MAC address if that is known. Otherwise a request is due at once, or as soon as
    /// the interval since the last one allows.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn acquire(&mut self, ip: IpAddr, user: AhKey, now: Instant) -> Result<Option<MacAddr>, TableFull> {
        if let Some(&id) = self.by_ip.get(&ip)
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.users.push(user);
            if entry.mac.is_none() {
                (entry.state, entry.asked) = (State::Resolving, 0);
                let due = entry.may_ask(now);
                self.schedule(id, due);
            }
            return Ok(self.entries.get(id).and_then(|e| e.mac));
        }
        self.make_room()?;
        let mut entry = Entry::new(ip, State::Resolving, None, now);
        entry.users.push(user);
        self.insert(entry);
        Ok(None)
    }

    /// Ends one [`NeighbourTable::acquire`]. An entry without a user stays until its next timer, so that handles made and
    /// destroyed in a loop do not ask more often than others.
    pub fn release(&mut self, ip: IpAddr, user: AhKey) {
        if let Some(entry) = self.entry(ip)
            && let Some(at) = entry.users.iter().position(|u| *u == user)
        {
            entry.users.swap_remove(at);
        }
    }

    /// Takes what a packet says of a neighbour; true if its users have another MAC address now.
    pub fn claim(&mut self, claim: &Claim, now: Instant) -> bool {
        if self.fed || claim.mac.is_zero() || claim.mac.is_multicast() {
            return false;
        }
        let reachable_until = now + self.reachable_time;
        let Some(&id) = self.by_ip.get(&claim.ip) else { return false };
        let Some(entry) = self.entries.get_mut(id).filter(|e| e.state != State::Static) else { return false };
        let answers = claim.solicited && entry.asked > 0;
        let changes = entry.mac != Some(claim.mac);
        if changes && entry.mac.is_some() {
            if !claim.replaces {
                // RFC 4861, 7.2.5: a doubt, to be settled by asking.
                if entry.state == State::Reachable {
                    entry.state = State::Stale;
                    let due = entry.may_ask(now);
                    self.schedule(id, due);
                }
                return false;
            }
            if now < entry.taken + LOCK_TIME {
                if entry.state != State::Probing {
                    (entry.state, entry.asked) = (State::Probing, MAX_PROBES);
                    let due = entry.may_ask(entry.taken + LOCK_TIME);
                    self.schedule(id, due);
                }
                return false;
            }
        }
        if changes {
            (entry.mac, entry.taken) = (Some(claim.mac), now);
        }
        if answers {
            (entry.state, entry.asked) = (State::Reachable, 0);
            self.schedule(id, reachable_until);
        } else if changes {
            (entry.state, entry.asked) = (State::Stale, 0);
            self.schedule(id, now + LOOK_INTERVAL);
        }
        changes
    }

    /// Takes what another source than the wire knows of `ip`; true if its users have another MAC address now, or none.
    pub fn feed(&mut self, ip: IpAddr, mac: Option<MacAddr>, now: Instant) -> bool {
        let mac = mac.filter(|m| !m.is_zero() && !m.is_multicast());
        let Some(&id) = self.by_ip.get(&ip) else { return false };
        let Some(entry) = self.entries.get_mut(id).filter(|e| e.state != State::Static) else { return false };
        let changes = entry.mac != mac;
        entry.mac = mac;
        match mac {
            Some(_) => {
                (entry.state, entry.asked, entry.taken) = (State::Reachable, 0, now);
                self.schedule(id, now + REACHABLE_TIME);
            }
            None if changes => {
                entry.state = State::Resolving;
                let due = entry.may_ask(now);
                self.schedule(id, due);
            }
            None => {}
        }
        changes
    }

    /// The next thing due at `now`, if any. A request counts as sent. `in_use` says whether a handle has sent since it was
    /// last asked about.
    pub fn next(&mut self, now: Instant, mut in_use: impl FnMut(AhKey) -> bool) -> Option<Due> {
        while let Some((id, at)) = self.timers.expired(now) {
            let Some(entry) = self.entries.get_mut(id).filter(|e| e.timer == at) else { continue };
            entry.timer = Instant::MAX;
            if entry.due > now {
                let due = entry.due;
                self.schedule(id, due);
                continue;
            }
            if entry.users.is_empty() && entry.state != State::Static {
                self.remove(id);
                continue;
            }
            if let Some(due) = self.on_timer(id, now, &mut in_use) {
                return Some(due);
            }
        }
        None
    }

    /// What the timer of an entry with users brings.
    fn on_timer(&mut self, id: Id, now: Instant, in_use: &mut impl FnMut(AhKey) -> bool) -> Option<Due> {
        let entry = self.entries.get_mut(id)?;
        if matches!(entry.state, State::Reachable | State::Stale) && self.fed {
            self.schedule(id, now + REACHABLE_TIME);
            return None;
        }
        let used = |entry: &Entry, in_use: &mut dyn FnMut(AhKey) -> bool| {
            // All of them are asked, so that none remembers an old use.
            entry.users.iter().fold(false, |any, user| in_use(*user) | any)
        };
        let ip = entry.ip;
        let (due, what) = match (entry.state, entry.mac) {
            (State::Static, _) => (Instant::MAX, None),
            (State::Resolving, _) if entry.asked >= MAX_REQUESTS => {
                entry.state = State::Failed;
                (now + RETRY_INTERVAL, None)
            }
            (State::Resolving, _) => (now + REQUEST_INTERVAL, Some(Due::Ask(ip))),
            (State::Failed, _) => (now + RETRY_INTERVAL, Some(Due::Ask(ip))),
            (State::Reachable | State::Stale, _) if !used(entry, in_use) => {
                entry.state = State::Stale;
                (now + LOOK_INTERVAL, None)
            }
            (State::Reachable | State::Stale, Some(mac)) => {
                entry.state = State::Probing;
                (now + REQUEST_INTERVAL, Some(Due::Probe(ip, mac)))
            }
            (State::Probing, Some(mac)) if entry.asked < MAX_PROBES => {
                (now + REQUEST_INTERVAL, Some(Due::Probe(ip, mac)))
            }
            (State::Probing, Some(_)) if entry.asked < MAX_PROBES + MAX_REQUESTS => {
                (now + REQUEST_INTERVAL, Some(Due::Ask(ip)))
            }
            (State::Reachable | State::Stale | State::Probing, _) => {
                (entry.state, entry.mac) = (State::Failed, None);
                (now + RETRY_INTERVAL, Some(Due::Lost(ip)))
            }
        };
        if let Some(Due::Ask(_) | Due::Probe(..)) = what {
            entry.asked = entry.asked.saturating_add(1);
            entry.last_asked = Some(now);
        }
        self.schedule(id, due);
        what
    }

    /// Asks for every address again that was learnt, as soon as the interval allows. Who uses a MAC address keeps it meanwhile.
    pub fn ask_anew(&mut self, now: Instant) {
        if self.fed {
            return;
        }
        let ids: Vec<Id> = self.entries.keys().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(id).filter(|e| e.state != State::Static) else { continue };
            // Everybody is asked at once: whoever has the address now may be another station.
            (entry.state, entry.asked) = match entry.mac {
                Some(_) => (State::Probing, MAX_PROBES),
                None => (State::Resolving, 0),
            };
            let due = entry.may_ask(now);
            self.schedule(id, due);
        }
    }

    /// Takes back the last request for `ip`: it could not be sent, and is due again at once.
    pub fn not_sent(&mut self, ip: IpAddr, now: Instant) {
        if let Some(&id) = self.by_ip.get(&ip)
            && let Some(entry) = self.entries.get_mut(id)
        {
            (entry.asked, entry.last_asked) = (entry.asked.saturating_sub(1), None);
            self.schedule(id, now);
        }
    }

    fn entry(&mut self, ip: IpAddr) -> Option<&mut Entry> {
        self.entries.get_mut(*self.by_ip.get(&ip)?)
    }

    fn insert(&mut self, entry: Entry) {
        let (ip, due) = (entry.ip, entry.due);
        let id = self.entries.insert(entry);
        self.by_ip.insert(ip, id);
        self.schedule(id, due);
    }

    fn remove(&mut self, id: Id) {
        if let Some(entry) = self.entries.remove(id) {
            self.by_ip.remove(&entry.ip);
        }
    }

    /// Room for one more, if need be in place of one that nobody uses.
    fn make_room(&mut self) -> Result<(), TableFull> {
        if self.entries.len() < self.max {
            return Ok(());
        }
        // The one that was asked for longest ago: so soon after a request nobody should have to ask again.
        let unused = self.entries.iter().filter(|(_, e)| e.users.is_empty() && e.state != State::Static);
        let id = unused.min_by_key(|(_, e)| e.last_asked).map(|(id, _)| id).ok_or(TableFull)?;
        self.remove(id);
        Ok(())
    }

    fn schedule(&mut self, id: Id, due: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.due = due;
        if due < entry.timer {
            entry.timer = due;
            self.timers.set(id, due);
            if self.timers.len() > 4 * self.entries.len() + 64 {
                let entries = &self.entries;
                self.timers.retain(|id, at| entries.get(id).is_some_and(|e| e.timer == at));
            }
        }
    }
}
