//! Which MAC address an on-link IP address has, and when to ask.
//!
//! A state machine without IO: the worker feeds it the ARP and neighbour discovery answers that it received and the
//! time, and sends the requests that it asks for. Only addresses that some address handle uses have an entry, so that
//! unsolicited packets can neither fill nor poison the table; an existing entry is updated by any answer about it, as
//! hosts do when a peer moves.

use roce_proto::time::Instant;
use roce_proto::wire::ethernet::MacAddr;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Between two requests for the same address: the limit of RFC 1122, 2.3.2.1 (ARP) and RETRANS_TIMER of RFC 4861
/// (neighbour discovery), both one second.
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Entries at the most, unless configured otherwise. An entry is about 64 bytes.
pub const DEFAULT_MAX_NEIGHBOURS: usize = 16_384;

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<MacAddr>,
    fixed: bool,
    users: u32,
    asked: u32,
    next_request: Instant,
}

/// The neighbours of one port.
#[derive(Debug)]
pub struct NeighbourTable {
    entries: HashMap<IpAddr, Entry>,
    max: usize,
    /// No request is due before this time.
    next_due: Option<Instant>,
}

/// The table holds its maximum of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

impl NeighbourTable {
    /// An empty table of at most `max` entries.
    pub fn new(max: usize) -> NeighbourTable {
        NeighbourTable { entries: HashMap::new(), max, next_due: None }
    }

    /// Entries, static ones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it knows and asks for nobody.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a static entry, or makes an existing one static: it is never asked for and never changed by a packet.
    pub fn set_static(&mut self, ip: IpAddr, mac: MacAddr) -> Result<(), TableFull> {
        let full = self.entries.len() >= self.max;
        match self.entries.get_mut(&ip) {
            Some(entry) => (entry.mac, entry.fixed) = (Some(mac), true),
            None if full => return Err(TableFull),
            None => {
                let entry =
                    Entry { mac: Some(mac), fixed: true, users: 0, asked: 0, next_request: Instant::ZERO };
                self.entries.insert(ip, entry);
            }
        }
        Ok(())
    }

    /// Registers a user of `ip` and returns its MAC address if that is known. Otherwise a request is due at once, or
    /// when the running interval ends.
    pub fn acquire(&mut self, ip: IpAddr, now: Instant) -> Result<Option<MacAddr>, TableFull> {
        let full = self.entries.len() >= self.max;
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.users += 1;
            return Ok(entry.mac);
        }
        if full {
            return Err(TableFull);
        }
        self.entries.insert(ip, Entry { mac: None, fixed: false, users: 1, asked: 0, next_request: now });
        self.due_by(now);
        Ok(None)
    }

    /// Ends one [`NeighbourTable::acquire`]; the last one removes an entry that is not static.
    pub fn release(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.users = entry.users.saturating_sub(1);
            if entry.users == 0 && !entry.fixed {
                self.entries.remove(&ip);
            }
        }
    }

    /// Takes what a packet says of `ip`; true if that changed what is known. Addresses nobody asked for are ignored.
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddr) -> bool {
        if mac.is_zero() || mac.is_multicast() {
            return false;
        }
        match self.entries.get_mut(&ip) {
            Some(entry) if !entry.fixed && entry.mac != Some(mac) => {
                entry.mac = Some(mac);
                true
            }
            _ => false,
        }
    }

    /// Asks for every address again that was learnt, at once. Who uses a MAC address keeps it until an answer says another.
    pub fn ask_anew(&mut self, now: Instant) {
        for entry in self.entries.values_mut().filter(|entry| !entry.fixed) {
            *entry = Entry { mac: None, asked: 0, next_request: now, ..*entry };
        }
        self.due_by(now);
    }

    /// How often `ip` was asked for, without an answer so far.
    pub fn asked(&self, ip: IpAddr) -> u32 {
        self.entries.get(&ip).map_or(0, |e| e.asked)
    }

    /// The next address to ask for at `now`, if any is due. Each call counts as a request sent.
    pub fn next_request(&mut self, now: Instant) -> Option<IpAddr> {
        if self.next_due.is_none_or(|due| now < due) {
            return None;
        }
        let mut found = None;
        let mut next_due: Option<Instant> = None;
        for (ip, entry) in self.entries.iter_mut().filter(|(_, e)| e.mac.is_none()) {
            if found.is_none() && entry.next_request <= now {
                entry.asked = entry.asked.saturating_add(1);
                entry.next_request = now + REQUEST_INTERVAL;
                found = Some(*ip);
            }
            next_due = Some(next_due.map_or(entry.next_request, |d| d.min(entry.next_request)));
        }
        self.next_due = next_due;
        found
    }

    /// Takes back the last request for `ip`: it could not be sent, and is due again at once.
    pub fn not_sent(&mut self, ip: IpAddr, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.asked = entry.asked.saturating_sub(1);
            entry.next_request = now;
            self.due_by(now);
        }
    }

    fn due_by(&mut self, when: Instant) {
        self.next_due = Some(self.next_due.map_or(when, |d| d.min(when)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn ip(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn at_most_one_request_a_second_whatever_the_poll_rate() {
        let mut table = NeighbourTable::new(8);
        assert_eq!(table.acquire(ip(1), at(0)).unwrap(), None);
        let mut sent = Vec::new();
        for us in 0..3_500_000u64 / 50 {
            let now = Instant::ZERO + Duration::from_micros(us * 50);
            while let Some(who) = table.next_request(now) {
                sent.push((who, now));
            }
        }
        assert_eq!(sent.iter().map(|s| s.0).collect::<Vec<_>>(), [ip(1); 4]);
        assert!(sent.windows(2).all(|w| w[1].1 >= w[0].1 + REQUEST_INTERVAL));
        assert_eq!(table.asked(ip(1)), 4);
    }

    #[test]
    fn every_unresolved_neighbour_is_asked_in_the_same_round() {
        let mut table = NeighbourTable::new(8);
        for last in 1..=5 {
            table.acquire(ip(last), at(0)).unwrap();
        }
        let mut asked: Vec<_> = std::iter::from_fn(|| table.next_request(at(0))).collect();
        asked.sort();
        assert_eq!(asked, (1..=5).map(ip).collect::<Vec<_>>());
    }

    #[test]
    fn an_answer_ends_the_asking_and_unsolicited_ones_are_ignored() {
        let mut table = NeighbourTable::new(8);
        assert!(!table.learn(ip(1), MAC));
        assert!(table.is_empty());
        table.acquire(ip(1), at(0)).unwrap();
        assert!(!table.learn(ip(1), MacAddr([0; 6])), "never a zero MAC");
        assert!(!table.learn(ip(1), MacAddr([0xff; 6])), "never a group MAC");
        assert!(table.learn(ip(1), MAC));
        assert!(!table.learn(ip(1), MAC));
        assert_eq!(table.next_request(at(5_000)), None);
        assert_eq!(table.acquire(ip(1), at(0)).unwrap(), Some(MAC));
    }

    #[test]
    fn a_request_that_was_not_sent_stays_due() {
        let mut table = NeighbourTable::new(8);
        table.acquire(ip(1), at(0)).unwrap();
        assert_eq!(table.next_request(at(0)), Some(ip(1)));
        table.not_sent(ip(1), at(0));
        assert_eq!(table.asked(ip(1)), 0);
        assert_eq!(table.next_request(at(1)), Some(ip(1)));
        assert_eq!(table.next_request(at(2)), None);
    }

    #[test]
    fn after_a_new_start_of_the_link_everybody_is_asked_again() {
        let mut t = NeighbourTable::new(4);
        let (mac, other) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        t.set_static(ip(9), mac).unwrap();
        t.acquire(ip(1), at(0)).unwrap();
        assert_eq!(t.next_request(at(0)), Some(ip(1)));
        assert!(t.learn(ip(1), mac));
        assert_eq!(t.next_request(at(5000)), None);
        t.ask_anew(at(5000));
        assert_eq!(t.next_request(at(5000)), Some(ip(1)));
        assert_eq!(t.next_request(at(5999)), None);
        assert_eq!(t.asked(ip(1)), 1);
        // The answer counts, whether it is the old one or a new one.
        assert!(t.learn(ip(1), mac) && t.learn(ip(1), other) && !t.learn(ip(1), other));
        assert_eq!(t.next_request(at(9000)), None);
    }

    #[test]
    fn static_entries_are_neither_asked_for_nor_changed() {
        let mut table = NeighbourTable::new(8);
        table.set_static(ip(1), MAC).unwrap();
        assert_eq!(table.acquire(ip(1), at(0)).unwrap(), Some(MAC));
        assert_eq!(table.next_request(at(0)), None);
        assert!(!table.learn(ip(1), MacAddr([2, 0, 0, 0, 0, 1])));
        table.release(ip(1));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn the_table_is_bounded_and_returns_to_empty() {
        let mut table = NeighbourTable::new(2);
        table.acquire(ip(1), at(0)).unwrap();
        table.acquire(ip(1), at(0)).unwrap();
        table.acquire(ip(2), at(0)).unwrap();
        assert_eq!(table.acquire(ip(3), at(0)), Err(TableFull));
        table.release(ip(1));
        assert_eq!(table.len(), 2);
        table.release(ip(1));
        table.release(ip(2));
        assert!(table.is_empty());
        assert_eq!(table.next_request(at(10_000)), None);
    }
}
