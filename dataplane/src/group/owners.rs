//! Whose a queue pair number is: each worker of a group hands out numbers of a range of its own.

use roce_proto::types::Qpn;

/// Workers of a group at the most: as many queues as the larger NICs have cores to serve.
pub const MAX_WORKERS: usize = 64;

/// The numbers that there are, 24 bits (IBTA volume 1, 3.5.3).
const NUMBERS: u64 = 1 << 24;

/// Numbers of queue pairs that one worker may have: `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpnRange {
    /// The lowest.
    pub first: u32,
    /// The highest.
    pub last: u32,
}

impl QpnRange {
    /// All that applications can have: 0 and 1 are for management, 0xFFFFFF for multicast (IBTA volume 1, 3.5.3).
    pub const ALL: QpnRange = QpnRange { first: 2, last: 0xFF_FFFE };

    /// Whether a number is among them.
    pub fn contains(self, qpn: u32) -> bool {
        (self.first..=self.last).contains(&qpn)
    }
}

/// The 24 bits in as many ranges of equal length as there are workers.
///
/// Ranges and not remainders, so that numbers that follow one another stay with one worker, as tools expect that ask for
/// several queue pairs in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    workers: u32,
}

impl Owners {
    /// Among `workers`, at least one and at most [`MAX_WORKERS`].
    pub fn new(workers: usize) -> Owners {
        Owners { workers: workers.clamp(1, MAX_WORKERS) as u32 }
    }

    /// How many workers there are.
    pub fn workers(self) -> usize {
        self.workers as usize
    }

    /// The worker whose number it is, below [`Owners::workers`].
    #[inline]
    pub fn of(self, qpn: Qpn) -> usize {
        ((u64::from(qpn.get()) * u64::from(self.workers)) >> 24) as usize
    }

    /// The numbers of a worker, without those that are nobody's.
    pub fn range(self, worker: usize) -> QpnRange {
        let start = |i: u64| (i * NUMBERS).div_ceil(u64::from(self.workers)) as u32;
        let worker = worker.min(self.workers() - 1) as u64;
        let all = QpnRange::ALL;
        QpnRange { first: start(worker).max(all.first), last: (start(worker + 1) - 1).min(all.last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_owner_and_every_range_its_numbers() {
        for workers in 1..=MAX_WORKERS {
            let owners = Owners::new(workers);
            let mut next = QpnRange::ALL.first;
            for worker in 0..workers {
                let range = owners.range(worker);
                assert_eq!(range.first, next, "{workers}");
                next = range.last + 1;
                for qpn in [range.first, range.first + 1, range.last - 1, range.last] {
                    assert_eq!(owners.of(Qpn::new(qpn).unwrap()), worker, "{workers}: {qpn:#x}");
                }
                assert!(u64::from(range.last - range.first) + 4 >= NUMBERS / workers as u64, "{workers}");
            }
            assert_eq!(next, 0xFF_FFFF, "{workers}");
            assert_eq!(owners.of(Qpn::SMI), 0);
            assert_eq!(owners.of(Qpn::MULTICAST), workers - 1);
        }
    }

    #[test]
    fn one_worker_has_them_all() {
        assert_eq!(Owners::new(1).range(0), QpnRange::ALL);
        assert_eq!((Owners::new(0).workers(), Owners::new(1000).workers()), (1, 64));
    }
}
