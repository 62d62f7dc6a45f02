//! Numbers that wrap: sequences, and the sender's clock as it stands in packets.

use core::fmt;
use core::time::Duration;

use crate::time::Instant;

/// A 32-bit number that counts on past its wrap: sequences, ordinals, message numbers (RFC 1982 with 32 bits).
///
/// It has no `Ord`: which of two comes first is a question about their [`distance`](Seq::distance).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The number after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Seq {
        self.add(1)
    }

    /// The number `n` steps on.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// The number `n` steps back.
    #[inline]
    #[must_use]
    pub const fn back(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }

    /// Signed steps from `self` to `to`; positive if `to` comes after.
    #[inline]
    pub const fn distance(self, to: Seq) -> i32 {
        to.0.wrapping_sub(self.0) as i32
    }

    /// Steps from `self` to `to`, for who knows that `to` does not come before.
    #[inline]
    pub const fn until(self, to: Seq) -> u32 {
        to.0.wrapping_sub(self.0)
    }

    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn before(self, other: Seq) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The sender's clock in ticks of 16 ns, modulo 2³²: 68 s before it wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ticks(pub u32);

impl Ticks {
    /// Nanoseconds of a tick.
    pub const NANOS: u64 = 16;

    /// The instant as it stands in a packet.
    #[inline]
    pub const fn of(now: Instant) -> Ticks {
        Ticks((now.as_nanos() / Ticks::NANOS) as u32)
    }

    /// A time span, at most what 32 bits tell.
    #[inline]
    pub fn span(d: Duration) -> Ticks {
        let ticks = d.as_nanos() / u128::from(Ticks::NANOS);
        Ticks(u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// The time span of so many ticks.
    #[inline]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0 as u64 * Ticks::NANOS)
    }

    /// Time from the instant that `self` stands for to `now`, less than one wrap of the clock.
    #[inline]
    pub const fn age(self, now: Instant) -> Duration {
        Ticks(Ticks::of(now).0.wrapping_sub(self.0)).duration()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let last = Seq(u32::MAX);
        assert_eq!(last.next(), Seq(0));
        assert!(last.before(Seq(0)) && !Seq(0).before(last) && !last.before(last));
        assert_eq!(Seq(2).distance(last.back(1)), -4);
        assert_eq!(last.back(1).until(Seq(2)), 4);
    }

    #[test]
    fn ticks_tell_ages_across_the_wrap() {
        let wrap = 16u64 << 32;
        let then = Instant::from_nanos(wrap - 160);
        assert_eq!(Ticks::of(then), Ticks(u32::MAX - 9));
        assert_eq!(Ticks::of(then).age(Instant::from_nanos(wrap + 1600)), Duration::from_nanos(1760));
        assert_eq!(Ticks::span(Duration::from_micros(1)).duration(), Duration::from_nanos(992));
        assert_eq!(Ticks::span(Duration::from_secs(1_000)), Ticks(u32::MAX));
    }
}
