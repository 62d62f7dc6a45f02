//! Polls that find nothing while messages stream in.
//!
//! A program that polls faster than its peer sends looks into the port all the time, and disturbs the peer, which works on the same
//! cache lines. Where polls have brought many completions, those that bring hardly any therefore take a moment longer. A program
//! that gets its messages one at a time, as in a ping-pong, or that sends itself, never waits; one whose sends find no room does, with
//! each poll.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Completions of one poll that show a stream.
const MANY: usize = 8;
/// Turns of the first wait, of about half a microsecond where a turn takes 30 ns.
const FIRST: u32 = 16;
/// Turns of the last: if no more comes meanwhile, the stream has ended.
const LAST: u32 = 128;

/// The pace of a completion queue. Several threads may poll one, and none of them needs to see what the others just did.
#[derive(Default)]
pub struct Pace {
    turns: AtomicU32,
    posts: AtomicU64,
}

impl Pace {
    /// A poll brought so many completions; the device has been given so many sends so far, and holds some that its port has no
    /// room for.
    #[inline]
    pub fn after(&self, completions: usize, posts: u64, stalled: bool) {
        let turns = if stalled { FIRST } else { self.turns_after(completions, posts) };
        for _ in 0..turns {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn turns_after(&self, completions: usize, posts: u64) -> u32 {
        if completions >= MANY {
            self.turns.store(FIRST, Relaxed);
            return 0;
        }
        let turns = self.turns.load(Relaxed);
        if turns == 0 || completions > 1 {
            return 0;
        }
        if self.posts.load(Relaxed) != posts {
            self.posts.store(posts, Relaxed);
            return 0;
        }
        self.turns.store(if turns >= LAST { 0 } else { turns * 2 }, Relaxed);
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_is_waited_for_and_its_end_is_noticed() {
        let pace = Pace::default();
        let turns = |counts: &[usize]| counts.iter().map(|&n| pace.turns_after(n, 0)).collect::<Vec<_>>();
        assert_eq!(turns(&[0, 1, 0, 1, 7, 0]), [0; 6], "a ping-pong");
        assert_eq!(turns(&[8, 0, 16, 0, 0, 5, 1]), [0, 16, 0, 16, 32, 0, 64]);
        assert_eq!(turns(&[0, 0, 0, 1, 0]), [128, 0, 0, 0, 0], "it has ended");
    }

    #[test]
    fn who_sends_does_not_wait() {
        let pace = Pace::default();
        pace.turns_after(8, 1);
        assert_eq!([2, 3, 4].map(|posts| pace.turns_after(0, posts)), [0; 3]);
        assert_eq!(pace.turns_after(0, 4), 16);
    }
}
