//! Who was away of late, and for how long: a repair during which a process had no core says nothing of how losses are found.

use crate::time::Instant;

/// Absences that are remembered: with rounds of half a millisecond, those of some ten round trips there.
const REMEMBERED: usize = 32;

/// The latest absences.
#[derive(Debug, Default)]
pub struct Absences {
    /// When each ended, and how long it was, in nanoseconds.
    all: [(u64, u64); REMEMBERED],
    next: u8,
}

impl Absences {
    /// Somebody looked for packets again, after so many nanoseconds.
    pub fn note(&mut self, now: Instant, nanos: u64) {
        let at = usize::from(self.next) % REMEMBERED;
        self.all[at] = (now.as_nanos(), nanos);
        self.next = self.next.wrapping_add(1);
    }

    /// Whether one that was longer than `nanos` ended after `since`.
    pub fn any(&self, since: u64, nanos: u64) -> bool {
        self.all.iter().any(|&(end, took)| end > since && took > nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_with_their_length() {
        let mut absences = Absences::default();
        assert!(!absences.any(0, 0));
        let at = Instant::from_nanos;
        absences.note(at(1_000), 300);
        absences.note(at(2_000), 50);
        assert!(absences.any(0, 299) && !absences.any(0, 300));
        assert!(absences.any(999, 100) && !absences.any(1_000, 100), "it ended before");
        assert!(absences.any(1_000, 49));
        for n in 0..1_000 {
            absences.note(at(3_000 + n), 10);
        }
        assert!(!absences.any(0, 10) && absences.any(3_998, 9) && !absences.any(3_999, 9));
    }
}
