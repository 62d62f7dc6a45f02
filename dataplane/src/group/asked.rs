//! Who was asked for lately: the workers of a group ask for a neighbour once between them.

use roce_proto::time::Instant;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses remembered; two that fall on one place forget each other, at the price of a question too many.
const PLACES: usize = 1024;

/// When addresses were asked for last, whoever of a group asked. Shared; no lock.
#[derive(Debug)]
pub struct Asked {
    /// 32 bits of the address' hash, 32 of the time in milliseconds; 0 where nothing was asked for.
    places: Box<[AtomicU64]>,
}

impl Asked {
    /// Nobody was asked for.
    pub fn new() -> Asked {
        Asked { places: std::iter::repeat_with(|| AtomicU64::new(0)).take(PLACES).collect() }
    }

    /// Whether to ask for `ip` on port `port` now: nobody did within the last [`crate::neighbour::REQUEST_INTERVAL`]. A yes
    /// counts as asked.
    pub fn may_ask(&self, port: usize, ip: IpAddr, now: Instant) -> bool {
        self.is_first((port, ip), now)
    }

    /// The same for asking whether another station has an address of our own, and for announcing it.
    pub(crate) fn may_say(&self, port: usize, ip: IpAddr, probe: bool, now: Instant) -> bool {
        self.is_first((port, ip, probe), now)
    }

    fn is_first(&self, what: impl Hash, now: Instant) -> bool {
        let (place, tag) = self.place(what);
        let Some(place) = place else { return true };
        let ms = (now.as_nanos() / 1_000_000) as u32;
        let limit = crate::neighbour::REQUEST_INTERVAL.as_millis() as u32;
        let asked = u64::from(tag) << 32 | u64::from(ms);
        place
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |was| {
                let recent = (was >> 32) as u32 == tag && ms.wrapping_sub(was as u32) < limit;
                (!recent).then_some(asked)
            })
            .is_ok()
    }
}

impl Asked {
    /// `ip` answered on port `port`: somebody who has not heard it may ask at once.
    pub fn answered(&self, port: usize, ip: IpAddr) {
        let (place, tag) = self.place((port, ip));
        if let Some(place) = place
            && (place.load(Ordering::Relaxed) >> 32) as u32 == tag
        {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// Where an address is remembered, and its hash there: never 0, so that an empty place is nobody's.
    fn place(&self, what: impl Hash) -> (Option<&AtomicU64>, u32) {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let hash = hasher.finish();
        (self.places.get(hash as usize % PLACES), (hash >> 32) as u32 | 1)
    }
}

impl Default for Asked {
    fn default() -> Self {
        Asked::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(n)
    }

    #[test]
    fn once_a_second_whoever_asks() {
        let asked = Asked::new();
        let (a, b) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        assert!(asked.may_ask(0, a, ms(0)));
        assert!(asked.may_ask(0, b, ms(0)) && asked.may_ask(1, a, ms(0)), "another address or port");
        assert!(asked.may_say(0, a, true, ms(0)) && asked.may_say(0, a, false, ms(0)));
        assert!(!asked.may_say(0, a, true, ms(999)));
        assert!(!asked.may_ask(0, a, ms(0)) && !asked.may_ask(0, a, ms(999)));
        assert!(asked.may_ask(0, a, ms(1000)));
        assert!(!asked.may_ask(0, a, ms(1999)));
        asked.answered(0, b);
        assert!(!asked.may_ask(0, a, ms(1999)));
        asked.answered(0, a);
        assert!(asked.may_ask(0, a, ms(1999)), "whoever missed the answer asks at once");
    }

    #[test]
    fn milliseconds_wrap() {
        let (asked, wrap) = (Asked::new(), 1u64 << 32);
        let a = "192.0.2.1".parse().unwrap();
        assert!(asked.may_ask(0, a, ms(wrap - 500)));
        assert!(!asked.may_ask(0, a, ms(wrap + 499)));
        assert!(asked.may_ask(0, a, ms(wrap + 500)));
    }
}
