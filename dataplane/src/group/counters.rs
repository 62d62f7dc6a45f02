//! What passed through each queue of a group, and between its members.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread raises and any may read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Only by the one thread, hence no atomic addition.
    #[inline]
    pub fn add(&self, n: usize) {
        if n > 0 {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
        }
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of one member. On cache lines of its own: its thread writes them with every burst.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub rx: Count,
    pub tx: Count,
    pub steered_in: Count,
    pub steered_out: Count,
    pub steer_full: Count,
    pub news_in: Count,
    pub news_lost: Count,
    pub lent: Count,
}

impl Counts {
    pub fn read(&self, queue: Option<usize>) -> MemberCounters {
        MemberCounters {
            queue,
            rx: self.rx.get(),
            tx: self.tx.get(),
            steered_in: self.steered_in.get(),
            steered_out: self.steered_out.get(),
            steer_full: self.steer_full.get(),
            news_in: self.news_in.get(),
            news_lost: self.news_lost.get(),
            lent: self.lent.get(),
        }
    }
}

/// What a member of a group has moved, in packets.
///
/// While nothing is on its way between members, what a worker received is `rx - steered_out - steer_full + steered_in +
/// news_in`, and over all members `steered_out` equals `steered_in`: so each packet of the port is in exactly one counter of one
/// worker, or in `steer_full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounters {
    /// The queue pair of the port that it polls; `None` if others poll for it.
    pub queue: Option<usize>,
    /// Received from its queue, for whomever they were.
    pub rx: u64,
    /// Taken by the driver from its queue, whoever sent them.
    pub tx: u64,
    /// Received from other members.
    pub steered_in: u64,
    /// Passed on to the members whose they were.
    pub steered_out: u64,
    /// Dropped since the member whose they were took none.
    pub steer_full: u64,
    /// Copies of neighbours' answers that other members received.
    pub news_in: u64,
    /// Copies for others that found no room or no buffer: another answer will come.
    pub news_lost: u64,
    /// Among `tx`, those of members without a queue.
    pub lent: u64,
}

/// One queue takes most of what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uneven {
    /// The queue.
    pub queue: usize,
    /// Packets that it took,
    pub packets: u64,
    /// of so many.
    pub of: u64,
}

/// Fewer packets say nothing about how they are spread.
pub const UNEVEN_LEAST: u64 = 4096;

/// Percent of all packets above which a queue has too many.
pub const UNEVEN_PERCENT: u64 = 80;

/// Judges what each queue took.
pub fn uneven(queues: &[u64]) -> Option<Uneven> {
    let of: u64 = queues.iter().sum();
    if queues.len() < 2 || of < UNEVEN_LEAST {
        return None;
    }
    let (queue, &packets) = queues.iter().enumerate().max_by_key(|(_, n)| **n)?;
    let too_many = u128::from(packets) * 100 > u128::from(of) * u128::from(UNEVEN_PERCENT);
    too_many.then_some(Uneven { queue, packets, of })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_four_fifths_is_uneven() {
        assert_eq!(uneven(&[4000, 1000]), None, "80 % is not more");
        let too_many = |queue, packets, of| Some(Uneven { queue, packets, of });
        assert_eq!(uneven(&[999, 4001]), too_many(1, 4001, 5000));
        assert_eq!(uneven(&[0, 0, 4096, 0]), too_many(2, 4096, 4096));
        assert_eq!(uneven(&[0, 4095]), None, "too few to tell");
        assert_eq!(uneven(&[1_000_000]), None, "there is but one");
        assert_eq!(uneven(&[u64::MAX / 2, 5]), too_many(0, u64::MAX / 2, u64::MAX / 2 + 5));
    }
}
