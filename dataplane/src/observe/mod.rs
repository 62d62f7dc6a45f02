//! A look at a running worker from another thread, for operators: no lock, and nothing to do for the worker while nobody
//! looks.
//!
//! Who looks hands an empty sheet over; the worker, which checks for one a few dozen times a second, fills it in between
//! two rounds and hands it back. The sheet's memory is the looker's, so the worker allocates nothing.
//!
//! [`Probe`] looks at all workers of a process, [`document`] puts that into words, [`socket`] answers those who ask.

pub mod document;
mod probe;
pub mod socket;

pub use probe::{Identity, Looked, Name, PortIdentity, Probe};

use crate::counters::Counters;
use crate::group::MemberCounters;
use crate::io::PortStats;
use crate::qp::{QpCounters, QpState};
use crossbeam_queue::ArrayQueue;
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use std::sync::Arc;
use std::time::Duration;

/// Queue pairs that a snapshot tells of; those beyond are only counted.
pub const MAX_QPS: usize = 256;

/// Ports that a snapshot tells of.
const MAX_PORTS: usize = 64;

/// How often a worker checks whether somebody wants to look: rarely enough to cost nothing, often enough for a person.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(20);

/// What a worker was at one moment, between two rounds.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The moment, on the worker's clock.
    pub at: Instant,
    /// Its ports, in the worker's order.
    pub ports: Vec<PortSnapshot>,
    /// Its queue pairs, the first [`MAX_QPS`] of them.
    pub qps: Vec<QpSnapshot>,
    /// Queue pairs that there are.
    pub qp_count: usize,
    /// Address handles that there are.
    pub ah_count: usize,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot {
            at: Instant::ZERO,
            ports: Vec::with_capacity(MAX_PORTS),
            qps: Vec::with_capacity(MAX_QPS),
            qp_count: 0,
            ah_count: 0,
        }
    }
}

/// One port of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSnapshot {
    /// What the worker counted.
    pub counters: Counters,
    /// What the port's driver counted, over all queues of the port.
    pub driver: PortStats,
    /// What passed through the worker's own queue, and between it and others; `None` if it has the port to itself.
    pub queue: Option<MemberCounters>,
    /// Whether the link was up.
    pub link_up: bool,
}

/// One queue pair of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Its number.
    pub qpn: Qpn,
    /// Index of its port among the worker's.
    pub port: usize,
    /// Its state.
    pub state: QpState,
    /// What it has done.
    pub counters: QpCounters,
    /// Sends that the driver has not taken yet.
    pub outstanding: u32,
    /// Receives posted.
    pub receives: usize,
}

/// A pair: one end for a worker, see [`crate::worker::Worker::set_observed`], one for who looks.
pub fn pair() -> (Observed, Observer) {
    let (empty, full) = (Arc::new(ArrayQueue::new(1)), Arc::new(ArrayQueue::new(1)));
    let observed = Observed { empty: empty.clone(), full: full.clone() };
    (observed, Observer { empty, full, sheet: Some(Box::default()) })
}

/// The worker's end.
#[derive(Debug)]
pub struct Observed {
    empty: Arc<ArrayQueue<Box<Snapshot>>>,
    full: Arc<ArrayQueue<Box<Snapshot>>>,
}

impl Observed {
    /// The sheet of somebody who waits for it.
    pub(crate) fn asked(&self) -> Option<Box<Snapshot>> {
        let mut sheet = self.empty.pop()?;
        sheet.ports.clear();
        sheet.qps.clear();
        Some(sheet)
    }

    /// Hands a sheet back. There is one sheet, so there is room for it.
    pub(crate) fn answer(&self, sheet: Box<Snapshot>) {
        let _ = self.full.push(sheet);
    }
}

/// The looker's end. It may be in any thread.
#[derive(Debug)]
pub struct Observer {
    empty: Arc<ArrayQueue<Box<Snapshot>>>,
    full: Arc<ArrayQueue<Box<Snapshot>>>,
    /// Ours at the moment.
    sheet: Option<Box<Snapshot>>,
}

impl Observer {
    /// What the worker is now. `None` if it does not answer within `wait`: it is gone, or does not poll. Blocks the calling
    /// thread, usually for less than 20 milliseconds.
    pub fn look(&mut self, wait: Duration) -> Option<&Snapshot> {
        /// Between two looks for the answer.
        const PAUSE: Duration = Duration::from_millis(1);
        if let Some(sheet) = self.sheet.take() {
            let _ = self.empty.push(sheet);
        }
        let start = std::time::Instant::now();
        loop {
            if let Some(sheet) = self.full.pop() {
                return Some(self.sheet.insert(sheet));
            }
            if start.elapsed() >= wait {
                // Not taken yet: ours again. Otherwise the answer is on its way, and for the next look.
                self.sheet = self.empty.pop();
                return None;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_goes_there_and_back() {
        let (observed, mut observer) = pair();
        assert!(observed.asked().is_none(), "nobody looks");
        assert!(observer.look(Duration::ZERO).is_none(), "nobody answers");
        assert!(observed.asked().is_none(), "who gave up wants nothing any more");
        let worker = std::thread::spawn(move || {
            for n in 1..=3 {
                let mut sheet = loop {
                    match observed.asked() {
                        Some(sheet) => break sheet,
                        None => std::thread::yield_now(),
                    }
                };
                assert!(sheet.qps.is_empty() && sheet.qps.capacity() >= MAX_QPS);
                sheet.qp_count = n;
                observed.answer(sheet);
            }
        });
        for n in 1..=3 {
            assert_eq!(observer.look(Duration::from_secs(30)).unwrap().qp_count, n);
        }
        worker.join().unwrap();
    }

    #[test]
    fn an_answer_that_came_too_late_is_not_lost() {
        let (observed, mut observer) = pair();
        let _ = observer.empty.push(observer.sheet.take().unwrap());
        let sheet = observed.asked().unwrap();
        assert!(observer.look(Duration::ZERO).is_none());
        observed.answer(sheet);
        assert!(observer.look(Duration::ZERO).is_some());
    }
}
