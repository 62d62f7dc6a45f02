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

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_agree_and_time_advances() {
        let a = Clock::new();
        let b = a;
        let first = a.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(b.now().saturating_since(first).as_micros() >= 2000);
    }
}
