//! Telling the link which addresses the port has, and seeing that another station claims one of them.
//!
//! When the link comes up each address is asked for, as RFC 5227 and RFC 4862 do before they use one, and announced, so that
//! peers follow a port that moved or came back with another MAC address. The address is in use meanwhile: whoever gave it to
//! the port decided so. Another station that claims it is counted, told about and, now and then, answered by announcing again
//! (RFC 5227, 2.4).

use roce_proto::time::Instant;
use roce_proto::wire::ethernet::MacAddr;
use std::net::IpAddr;
use std::time::Duration;

/// Announcements when the link comes up: ANNOUNCE_NUM of RFC 5227, 1.1.
pub const ROUNDS: u8 = 2;

/// Between two announcements: ANNOUNCE_INTERVAL of RFC 5227, 1.1.
pub const INTERVAL: Duration = Duration::from_secs(2);

/// Between two announcements against other claims: DEFEND_INTERVAL of RFC 5227, 1.1. Claims are logged no more often.
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Another station that claims an address of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub ip: IpAddr,
    /// The MAC address of the other station.
    pub mac: MacAddr,
    /// Claims seen so far, of any address of the port.
    pub count: u64,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// Does anybody else have this address?
    Probe(usize),
    /// This address is here.
    Announce(usize),
}

/// What a port says of its addresses, by their index.
#[derive(Debug)]
pub(crate) struct Announcer {
    /// 0 is the first, which also asks.
    round: u8,
    /// How much of the round was said.
    next_say: usize,
    rounds_left: u8,
    due: Instant,
    defended: Option<Instant>,
    /// The last claim of another station.
    pub conflict: Option<Conflict>,
}

impl Announcer {
    /// For a port whose link is up, or not yet.
    pub fn new(link_up: bool) -> Announcer {
        Announcer {
            round: 0,
            next_say: 0,
            rounds_left: ROUNDS,
            due: if link_up { Instant::ZERO } else { Instant::MAX },
            defended: None,
            conflict: None,
        }
    }

    /// The next time at which there is something to do; `Instant::MAX` for never.
    #[inline]
    pub fn next_due(&self) -> Instant {
        self.due
    }

    /// The link has come up: everything is said again.
    pub fn link_up(&mut self, now: Instant) {
        self.start(ROUNDS, 0, now);
    }

    fn start(&mut self, rounds: u8, round: u8, now: Instant) {
        (self.round, self.next_say, self.rounds_left, self.due) = (round, 0, rounds, now);
    }

    /// The next thing to say of one of `addrs` addresses; [`Announcer::said`] moves on. Each is asked for in the first round and
    /// announced in every one.
    pub fn next(&self, now: Instant, addrs: usize) -> Option<Say> {
        if now < self.due {
            return None;
        }
        let probes = if self.round == 0 { addrs } else { 0 };
        match self.next_say.checked_sub(probes) {
            None => Some(Say::Probe(self.next_say)),
            Some(index) => (index < addrs).then_some(Say::Announce(index)),
        }
    }

    /// What [`Announcer::next`] returned was sent, or everything was said.
    pub fn said(&mut self, now: Instant, addrs: usize) {
        self.next_say += 1;
        if self.next(now, addrs).is_some() {
            return;
        }
        self.rounds_left = self.rounds_left.saturating_sub(1);
        (self.round, self.next_say) = (1, 0);
        self.due = if self.rounds_left > 0 && addrs > 0 { now + INTERVAL } else { Instant::MAX };
    }

    /// Notes that the station `mac` claims our address `ip`; true if that is to be told, not having been lately.
    pub fn on_conflict(&mut self, ip: IpAddr, mac: MacAddr, now: Instant) -> bool {
        let count = self.conflict.map_or(0, |c| c.count) + 1;
        self.conflict = Some(Conflict { ip, mac, count });
        if self.defended.is_some_and(|t| now < t + DEFEND_INTERVAL) {
            return false;
        }
        self.defended = Some(now);
        if self.due == Instant::MAX {
            self.start(1, 1, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// All that is said until `end`, with its time in milliseconds.
    fn said(a: &mut Announcer, from: u64, end: u64, addrs: usize) -> Vec<(u64, Say)> {
        let mut all = Vec::new();
        for ms in from..end {
            while let Some(say) = a.next(at(ms), addrs) {
                all.push((ms, say));
                a.said(at(ms), addrs);
            }
        }
        all
    }

    #[test]
    fn each_time_the_link_comes_up_addresses_are_asked_for_and_announced_twice() {
        let once = |t: u64| {
            let first = [Say::Probe(0), Say::Probe(1), Say::Announce(0), Say::Announce(1)].map(|s| (t, s));
            let second = [Say::Announce(0), Say::Announce(1)].map(|s| (t + 2_000, s));
            first.into_iter().chain(second).collect::<Vec<_>>()
        };
        let mut a = Announcer::new(true);
        assert_eq!(said(&mut a, 7, 6_000, 2), once(7));
        let mut a = Announcer::new(false);
        assert_eq!(said(&mut a, 0, 6_000, 2), []);
        a.link_up(at(6_000));
        assert_eq!(said(&mut a, 6_000, 7_000, 2), once(6_000)[..4]);
        a.link_up(at(7_000));
        assert_eq!(said(&mut a, 7_000, 20_000, 2), once(7_000), "all again, as far as it was said before");
        assert!(said(&mut Announcer::new(true), 0, 5_000, 0).is_empty());
    }

    #[test]
    fn claims_are_counted_and_answered_once_in_ten_seconds() {
        let mut a = Announcer::new(true);
        said(&mut a, 0, 3_000, 1);
        let (ip, mac) = ("192.0.2.1".parse().unwrap(), MacAddr([2, 0, 0, 0, 0, 9]));
        let mut told = Vec::new();
        let mut answers = Vec::new();
        for ms in 3_000..24_000 {
            if a.on_conflict(ip, mac, at(ms)) {
                told.push(ms);
            }
            answers.extend(said(&mut a, ms, ms + 1, 1));
        }
        assert_eq!(told, [3_000, 13_000, 23_000]);
        assert_eq!(answers, told.iter().map(|&t| (t, Say::Announce(0))).collect::<Vec<_>>());
        assert_eq!(a.conflict, Some(Conflict { ip, mac, count: 21_000 }));
    }
}
