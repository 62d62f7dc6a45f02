//! How long a receiver leaves its port alone that has given it little.
//!
//! Whoever looks into a ring disturbs the other side, which works on the same cache lines; where the kernel is that side, the
//! look is a system call on the socket that it delivers to. A receiver that is faster than its sender therefore waits until
//! whole bursts are there, for throughput only: it is a delay.

/// Turns of the shortest wait: about half a microsecond where a turn takes 30 ns, as on recent processors.
const SHORTEST: u32 = 16;
/// Turns of the longest wait: some ten microseconds. A ring of 128 is full after that at 12 million packets a second, but who sends at
/// a tenth of that ends the wait's growth: then an eighth of a burst comes meanwhile.
const LONGEST: u32 = 256;

/// Messages of at most so many bytes are waited for whenever less than a burst has come: larger ones take longer than the wait.
const SMALL: usize = 512;

/// What a receiver knows of its port's pace.
#[derive(Debug)]
pub struct Ease {
    /// Messages that make a burst.
    burst: u64,
    /// Turns to wait whenever less than a burst has come.
    least: u32,
    turns: u32,
}

impl Ease {
    /// For messages of `size` bytes, of which `burst` come at once at the most.
    pub fn new(size: usize, burst: usize) -> Ease {
        let least = if size <= SMALL { SHORTEST } else { 0 };
        Ease { burst: burst as u64, least, turns: 0 }
    }

    /// The round brought `received` messages: waits longer each time that they are less than an eighth of a burst, and less long
    /// each time that they are half of one.
    #[inline]
    pub fn after(&mut self, received: u64) {
        for _ in 0..self.turns_after(received) {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn turns_after(&mut self, received: u64) -> u32 {
        if received * 8 < self.burst {
            self.turns = (self.turns * 2).clamp(SHORTEST, LONGEST);
        } else if received * 2 >= self.burst {
            self.turns /= 2;
        }
        match received {
            r if r * 2 < self.burst => self.turns.max(self.least),
            r if r < self.burst => self.least,
            _ => 0,
        }
    }
}

/// Leaves the port alone for about as long as the shortest wait: when it has no room.
#[cold]
pub fn leave_alone() {
    for _ in 0..SHORTEST {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_while_little_comes_and_shrink_when_much_does() {
        let mut ease = Ease::new(64, 64);
        let waits: Vec<u32> = [0, 7, 0, 0, 0, 0].map(|n| ease.turns_after(n)).into();
        assert_eq!(waits, [16, 32, 64, 128, 256, 256]);
        assert_eq!(ease.turns_after(8), 256, "neither little nor much");
        let waits: Vec<u32> = [32, 64, 31, 63, 64, 8].map(|n| ease.turns_after(n)).into();
        assert_eq!(waits, [16, 0, 64, 16, 0, 16], "at least the shortest for small messages");
    }

    #[test]
    fn large_messages_are_waited_for_only_while_nearly_none_comes() {
        let mut ease = Ease::new(4096, 16);
        let waits: Vec<u32> = [1, 1, 8, 16, 2, 15].map(|n| ease.turns_after(n)).into();
        assert_eq!(waits, [16, 32, 0, 0, 8, 0]);
        for _ in 0..3 {
            ease.turns_after(16);
        }
        assert_eq!(ease.turns_after(7), 0);
    }
}
