//! Answers outside sessions: they cost no memory but a place in a short queue, and there is a limit to their rate.

use super::api::Address;
use super::table::take_first;
use crate::time::Instant;
use crate::wire::shim::{Cookie, Kind};
use core::hash::Hasher;
use core::net::IpAddr;
use core::time::Duration;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::VecDeque;

/// Answers that wait at the most.
const WAITING: usize = 64;
/// Answers of a second.
const RATE: u64 = 10_000;
/// What an answer costs.
const EACH: Duration = Duration::from_nanos(1_000_000_000 / RATE);
/// Answers at once after a time without any.
const BURST: u64 = 64;
/// How long a cookie is made; it is good for the next interval too.
const COOKIE_SECONDS: u64 = 4;
/// The longest: a cookie.
const LONGEST: usize = 32;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// To whom.
    pub to: Address,
    /// What it is.
    pub kind: Kind,
    bytes: [u8; LONGEST],
    len: u8,
}

impl Answer {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The queue and its limit.
#[derive(Debug)]
pub struct Stateless {
    waiting: VecDeque<Answer>,
    /// Answers that may be given, in nanoseconds of the rate.
    credit: Duration,
    counted: Instant,
    /// The path of the next answer.
    turn: u8,
}

impl Stateless {
    pub fn new() -> Stateless {
        Stateless {
            waiting: VecDeque::with_capacity(WAITING),
            credit: EACH * BURST as u32,
            counted: Instant::ZERO,
            turn: 0,
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes an answer up, unless there are too many.
    pub fn push(&mut self, now: Instant, to: Address, kind: Kind, bytes: &[u8]) -> bool {
        self.credit = (self.credit + now.saturating_since(self.counted)).min(EACH * BURST as u32);
        self.counted = now;
        // A packet with many segments of a session that is not known brings one answer, as one with a single segment does.
        if self.waiting.back().is_some_and(|last| last.to == to && last.kind == kind && last.bytes() == bytes)
        {
            return true;
        }
        if self.credit < EACH || self.waiting.len() == WAITING || bytes.len() > LONGEST {
            return false;
        }
        self.credit -= EACH;
        let mut answer = Answer { to, kind, bytes: [0; LONGEST], len: bytes.len() as u8 };
        if let Some(place) = answer.bytes.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.waiting.push_back(answer);
        true
    }

    /// The path that the next answer takes: each another, as one that carries nothing would take the answer to every repetition.
    pub fn path(&mut self, paths: u8) -> u8 {
        let path = self.turn % paths.max(1);
        self.turn = (path + 1) % paths.max(1);
        path
    }

    /// The next to be sent.
    pub fn pop(&mut self) -> Option<Answer> {
        take_first(&mut self.waiting)
    }
}

/// What a cookie is of.
#[derive(Clone, Copy, Debug)]
pub struct CookieOf {
    /// Where the INIT came from.
    pub from: Address,
    /// The initiator's id.
    pub id: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Our id of the session that is open with that address, or 0.
    pub open: u64,
}

/// The cookie of an initiator in one interval.
fn cookie_of(secret: &[u8; 16], of: &CookieOf, interval: u64) -> Cookie {
    let mut hasher = SipHasher24::new_with_key(secret);
    match of.from.ip {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.write_u32(of.from.qpn.get());
    hasher.write_u16(of.from.via);
    for number in [of.id, of.epoch, of.open, interval] {
        hasher.write_u64(number);
    }
    Cookie(hasher.finish128().as_bytes())
}

const fn interval(now: Instant) -> u64 {
    now.as_nanos() / (COOKIE_SECONDS * 1_000_000_000)
}

/// The cookie for an initiator now.
pub fn cookie(secret: &[u8; 16], of: &CookieOf, now: Instant) -> Cookie {
    cookie_of(secret, of, interval(now))
}

/// Whether a cookie is that of this interval or of the one before.
pub fn is_sound(secret: &[u8; 16], of: &CookieOf, now: Instant, cookie: &Cookie) -> bool {
    let at = interval(now);
    *cookie == cookie_of(secret, of, at) || (at > 0 && *cookie == cookie_of(secret, of, at - 1))
}

/// 40 bits that nobody can guess, for the `n`-th session.
pub fn unguessable(secret: &[u8; 16], n: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(b"session");
    hasher.write_u64(n);
    hasher.finish128().h1 & ((1 << 40) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Qpn;
    use core::net::Ipv4Addr;

    fn address(last: u8) -> Address {
        Address::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), Qpn::MAX)
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_cookie_is_good_for_its_owner_and_a_while() {
        let secret = [3; 16];
        let of = CookieOf { from: address(1), id: 7, epoch: 8, open: 0 };
        let c = cookie(&secret, &of, at(5));
        for (seconds, good) in [(5, true), (7, true), (8, true), (11, true), (12, false), (3, false)] {
            assert_eq!(is_sound(&secret, &of, at(seconds), &c), good, "at {seconds}");
        }
        for other in [
            CookieOf { from: address(2), ..of },
            CookieOf { id: 6, ..of },
            CookieOf { epoch: 9, ..of },
            CookieOf { open: 1, ..of },
        ] {
            assert!(!is_sound(&secret, &other, at(5), &c), "{other:?}");
        }
        assert!(!is_sound(&[4; 16], &of, at(5), &c));
    }

    #[test]
    fn answers_are_limited_by_rate_and_number() {
        let mut s = Stateless::new();
        let push =
            |s: &mut Stateless, now, i: u32| s.push(now, address(1), Kind::Reset, &[1 + (i % 9) as u8; 12]);
        let taken = (0..1_000).filter(|i| push(&mut s, at(1), *i)).count();
        // Of those refused, the ninth is always the same as the last that waits.
        assert_eq!((taken - (1_000 - 64) / 9, s.waiting.len()), (64, 64));
        let answer = s.pop().expect("waits");
        assert_eq!((answer.bytes(), answer.to), (&[1; 12][..], address(1)));
        while s.pop().is_some() {}
        let later = at(1) + Duration::from_millis(1);
        (0..1_000).for_each(|i| _ = push(&mut s, later, i));
        assert_eq!(s.waiting.len(), 10, "10,000 a second");
    }

    #[test]
    fn answers_take_the_paths_in_turn() {
        let mut s = Stateless::new();
        let turns: Vec<u8> = (0..5).map(|_| s.path(3)).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
        assert_eq!((s.path(1), s.path(0)), (0, 0));
    }

    #[test]
    fn the_same_answer_waits_once() {
        let mut s = Stateless::new();
        for (to, kind, byte) in [
            (address(1), Kind::Reset, 1),
            (address(1), Kind::Reset, 2),
            (address(2), Kind::Reset, 2),
            (address(2), Kind::Refuse, 2),
        ] {
            for _ in 0..100 {
                assert!(s.push(at(1), to, kind, &[byte; 12]));
            }
        }
        assert_eq!(s.waiting.len(), 4);
    }
}
