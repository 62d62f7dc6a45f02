//! A nanosecond instant that its user supplies: the protocol never asks a clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the caller chooses (start of the process, of the simulation…).
///
/// All arithmetic saturates: 64 bits of nanoseconds are 584 years, so saturation means a mistake in the caller, and a
/// late timer is a milder consequence than a panic in a poll loop.
///
/// ```
/// use core::time::Duration;
/// use roce_proto::time::Instant;
///
/// let start = Instant::from_nanos(1_000);
/// let later = start + Duration::from_micros(5);
/// assert_eq!(later.as_nanos(), 6_000);
/// assert_eq!(later - start, Duration::from_micros(5));
/// assert_eq!(start - later, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// The latest instant that can be told; serves as "never" for a deadline.
    pub const MAX: Instant = Instant(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is in fact later.
    #[inline]
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved back by `by`, not beyond the origin.
    #[inline]
    pub fn saturating_sub(self, by: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(by)))
    }
}

/// Whole nanoseconds of a duration, capped at what 64 bits hold.
#[inline]
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, by: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(by)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn sub(self, by: Duration) -> Instant {
        self.saturating_sub(by)
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Seconds and nanoseconds since the origin, as `12.000000345s`.
impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_exact_and_saturates_at_both_ends() {
        let t = Instant::from_nanos(1_500);
        assert_eq!((t + Duration::from_nanos(1)).as_nanos(), 1_501);
        assert_eq!((t - Duration::from_nanos(2_000)), Instant::ZERO);
        assert_eq!(Instant::MAX + Duration::from_nanos(1), Instant::MAX);
        assert_eq!(t + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::MAX - Duration::MAX, Instant::ZERO);
        assert_eq!(Instant::ZERO - t, Duration::ZERO);
        assert_eq!(t - Instant::from_nanos(500), Duration::from_micros(1));
        let mut u = t;
        u += Duration::from_secs(2);
        assert_eq!(u.as_nanos(), 2_000_001_500);
    }

    #[test]
    fn display_keeps_every_nanosecond() {
        assert_eq!(Instant::from_nanos(12_000_000_345).to_string(), "12.000000345s");
    }
}
