//! How long a receiver leaves its port alone while messages stream in.
//!
//! A program that polls faster than its peer sends looks into the port all the time, and disturbs the peer, which works on the same
//! cache lines. Where messages come in bursts, looks that bring little therefore come a moment later, as `spraywire bw` has it. A program
//! that gets its messages one at a time, as in a ping-pong, or that sends itself, never waits; one whose sends find no room does, with
//! each poll. Nobody waits with completions in his hands: what a poll brought is returned at once, and the next poll begins later.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Completions between two looks that show a stream: an eighth of a burst of the port's.
const MANY: u32 = 8;
/// Turns of the shortest wait, of about half a microsecond where a turn takes 30 ns.
const SHORTEST: u32 = 16;
/// Turns of the longest: if nothing comes meanwhile, the stream has ended.
const LONGEST: u32 = 128;

/// The pace of a completion queue. Several threads may poll one, and none of them needs to see what the others just did.
#[derive(Default)]
pub struct Pace {
    /// Of the last wait; 0 while there is no stream.
    turns: AtomicU32,
    /// Completions since the last look into the port.
    count: AtomicU32,
    /// What the next poll waits.
    owed: AtomicU32,
    posts: AtomicU64,
}

impl Pace {
    /// A poll begins.
    #[inline]
    pub fn before(&self) {
        let owed = self.owed.load(Relaxed);
        if owed > 0 {
            self.owed.store(0, Relaxed);
            wait(owed);
        }
    }

    /// A poll brought so many completions, and has left some over or not; packets that make a burst of the port; the device has been
    /// given so many sends so far, and holds some that its port has no room for.
    #[inline]
    pub fn after(&self, completions: usize, over: bool, burst: usize, posts: u64, stalled: bool) {
        let count = self.count.load(Relaxed).saturating_add(completions as u32);
        // What is left over costs no look.
        if over && !stalled {
            self.count.store(count, Relaxed);
            return;
        }
        self.count.store(0, Relaxed);
        let turns = if stalled { SHORTEST } else { self.turns_after(count, burst as u32, posts) };
        match completions {
            0 => wait(turns),
            _ => self.owed.store(turns, Relaxed),
        }
    }

    #[inline]
    fn turns_after(&self, count: u32, burst: u32, posts: u64) -> u32 {
        let turns = self.turns.load(Relaxed);
        if turns == 0 && count < MANY {
            return 0;
        }
        if self.posts.load(Relaxed) != posts {
            self.posts.store(posts, Relaxed);
            return 0;
        }
        let (next, wait) = match count {
            0 if turns >= LONGEST => (0, 0),
            // The next look is not too soon: there may be more already.
            enough if enough >= burst => ((turns / 2).max(SHORTEST), 0),
            MANY.. => ((turns / 2).max(SHORTEST), SHORTEST),
            _ => ((turns * 2).min(LONGEST), (turns * 2).min(LONGEST)),
        };
        self.turns.store(next, Relaxed);
        wait
    }
}

fn wait(turns: u32) {
    for _ in 0..turns {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_is_waited_for_and_its_end_is_noticed() {
        let pace = Pace::default();
        let turns = |counts: &[u32]| counts.iter().map(|&n| pace.turns_after(n, 64, 0)).collect::<Vec<_>>();
        assert_eq!(turns(&[0, 1, 0, 1, 7, 0]), [0; 6], "a ping-pong");
        assert_eq!(turns(&[8, 0, 16, 0, 1, 5, 64, 63]), [16, 32, 16, 32, 64, 128, 0, 16]);
        assert_eq!(turns(&[0, 0, 0, 0, 1, 0]), [64, 128, 0, 0, 0, 0], "it has ended");
    }

    #[test]
    fn who_sends_does_not_wait() {
        let pace = Pace::default();
        pace.turns_after(8, 64, 0);
        assert_eq!([2, 3, 4].map(|posts| pace.turns_after(0, 64, posts)), [0; 3]);
        assert_eq!(pace.turns_after(0, 64, 4), 32);
    }

    #[test]
    fn large_messages_make_a_burst_when_they_are_few() {
        let pace = Pace::default();
        pace.turns_after(8, 64, 0);
        let turns = [4, 3, 0, 4].map(|count| pace.turns_after(count, 4, 0));
        assert_eq!(turns, [0, 32, 64, 0]);
    }

    #[test]
    fn completions_are_counted_from_look_to_look_and_returned_at_once() {
        let pace = Pace::default();
        let owed = || pace.owed.load(Relaxed);
        // Three polls of one burst of forty, one of ten, and four that take a whole burst.
        for (completions, over, count, want) in [
            (16, true, 16, 0),
            (16, true, 32, 0),
            (8, false, 0, SHORTEST),
            (10, false, 0, SHORTEST),
            (48, true, 48, SHORTEST),
            (16, false, 0, 0),
            (10, false, 0, SHORTEST),
        ] {
            pace.after(completions, over, 64, 0, false);
            assert_eq!((pace.count.load(Relaxed), owed()), (count, want), "{completions}");
        }
        pace.before();
        assert_eq!(owed(), 0);
        // Polls for one of nine.
        (0..9).for_each(|_| pace.after(1, true, 64, 0, false));
        assert_eq!((pace.count.load(Relaxed), owed()), (9, 0));
        // Whose sends find no room waits, whatever came.
        pace.after(16, true, 64, 0, true);
        assert_eq!((pace.count.load(Relaxed), owed()), (0, SHORTEST));
    }
}
