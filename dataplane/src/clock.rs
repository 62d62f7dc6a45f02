//! The real clock, for those who drive a worker: the worker itself takes the time as an argument.

use roce_proto::time::Instant;

/// Monotonic nanoseconds since the clock was made. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that starts at zero now.
    pub fn new() -> Clock {
        Clock { origin: std::time::Instant::now() }
    }

    /// The time. About 20 ns; wraps after 584 years.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}

/// The time of a poll loop's rounds, read once in [`RoundClock::ROUNDS`] of them: what a worker does by time, it does by
/// milliseconds and more, while reading the clock costs as much as handling a small packet.
#[derive(Clone, Copy, Debug)]
pub struct RoundClock {
    clock: Clock,
    time: Instant,
    left: u32,
}

impl RoundClock {
    /// Rounds for which one reading serves: a round takes from a tenth of a microsecond to some tens, so that the time is late
    /// by less than a millisecond.
    pub const ROUNDS: u32 = 16;

    /// Reads `clock`.
    pub fn new(clock: Clock) -> RoundClock {
        RoundClock { clock, time: clock.now(), left: 0 }
    }

    /// The time for a round that begins. Never goes back.
    #[inline]
    pub fn round(&mut self) -> Instant {
        if self.left == 0 {
            self.left = Self::ROUNDS;
            self.time = self.clock.now();
        }
        self.left -= 1;
        self.time
    }

    /// The time of the last round.
    #[inline]
    pub fn last(&self) -> Instant {
        self.time
    }

    /// The thread has slept or given its core away: the next round reads the clock.
    #[inline]
    pub fn paused(&mut self) {
        self.left = 0;
    }

    /// The clock that is read.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_share_a_reading_until_the_thread_pauses() {
        let mut clock = RoundClock::new(Clock::new());
        let first = clock.round();
        std::thread::sleep(std::time::Duration::from_millis(2));
        for _ in 1..RoundClock::ROUNDS {
            assert_eq!(clock.round(), first);
        }
        let second = clock.round();
        assert!(second.saturating_since(first).as_micros() >= 2000);
        assert_eq!(clock.round(), second);
        std::thread::sleep(std::time::Duration::from_millis(2));
        clock.paused();
        assert!(clock.round().saturating_since(second).as_micros() >= 2000);
        assert_eq!(clock.last(), clock.round());
    }

    #[test]
    fn copies_agree_and_time_advances() {
        let a = Clock::new();
        let b = a;
        let first = a.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(b.now().saturating_since(first).as_micros() >= 2000);
    }
}
