//! Several ends side by side, each with a worker of its own, that run the same tests together.

use super::Bench;
use crate::error::Error;
use crate::rendezvous::CONTROL_QPN;
use crate::traffic::drive::Drive;
use crate::traffic::flow::Flow;
use dataplane::group::Owners;
use roce_proto::types::Qpn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the ends of one side wait for each other.
#[derive(Debug)]
pub struct Meeting {
    lanes: usize,
    /// How often an end came to a meeting, over all of them.
    arrived: AtomicUsize,
    ended: AtomicUsize,
}

/// The place of an end among those of its side.
#[derive(Clone, Debug)]
pub struct Lane {
    index: usize,
    workers: u16,
    control: Qpn,
    meeting: Option<Arc<Meeting>>,
    /// Meetings that this end has come to.
    met: usize,
}

impl Lane {
    /// The only end of its side.
    pub fn alone() -> Lane {
        let control = Qpn::new(CONTROL_QPN).unwrap_or(Qpn::MAX);
        Lane { index: 0, workers: 1, control, meeting: None, met: 0 }
    }

    /// The lanes of a side with the workers of `owners`, each with the index of its worker. The first one's control queue pair is
    /// the well-known one, so that sides with different numbers of workers can tell each other.
    pub fn side_by_side(owners: Owners) -> Vec<(usize, Lane)> {
        let workers = owners.workers();
        let known = Qpn::new(CONTROL_QPN).unwrap_or(Qpn::MAX);
        let first = owners.of(known);
        let offset = CONTROL_QPN - owners.range(first).first;
        let meeting =
            Arc::new(Meeting { lanes: workers, arrived: AtomicUsize::new(0), ended: AtomicUsize::new(0) });
        let lane = |index: usize| {
            let worker = (first + index) % workers;
            let range = owners.range(worker);
            let control = Qpn::new((range.first + offset).min(range.last)).unwrap_or(Qpn::MAX);
            let meeting = Some(meeting.clone());
            (worker, Lane { index, workers: workers as u16, control, meeting, met: 0 })
        };
        (0..workers).map(lane).collect()
    }

    /// The number of the control queue pair on the server's side.
    pub fn control(&self) -> Qpn {
        self.control
    }

    /// Whether it is the one that speaks for all.
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Workers of a side.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// Counts this end as ended when dropped, however it ends.
    pub fn ending(&self) -> Ending {
        Ending(self.meeting.clone())
    }

    /// Whether every end has ended.
    fn all_ended(&self) -> bool {
        self.meeting.as_ref().is_none_or(|m| m.ended.load(Ordering::Acquire) >= m.lanes)
    }
}

/// See [`Lane::ending`].
#[derive(Debug)]
pub struct Ending(Option<Arc<Meeting>>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(meeting) = &self.0 {
            meeting.ended.fetch_add(1, Ordering::Release);
        }
    }
}

impl<D: Drive> Bench<D> {
    /// Waits until all ends of this side are here; rounds go on meanwhile, those of `flow` if a test runs.
    pub fn meet(&mut self, mut flow: Option<&mut Flow>) -> Result<(), Error> {
        let Some(meeting) = self.lane.meeting.clone() else { return Ok(()) };
        self.lane.met += 1;
        let all = self.lane.met * meeting.lanes;
        meeting.arrived.fetch_add(1, Ordering::Release);
        while meeting.arrived.load(Ordering::Acquire) < all {
            if self.stopped() {
                return Err(Error::interrupted());
            }
            match flow.as_deref_mut() {
                Some(flow) => drop(flow.round(&mut self.drive, &mut self.control)?),
                None => self.idle_round(),
            }
            self.control.pump(&mut self.drive)?;
        }
        let now = self.drive.now();
        (self.last_heard, self.last_look) = (now, now);
        Ok(())
    }

    /// After this end's last word: others may still need what only this one can pass on, until all have ended.
    pub fn stay_for_others(&mut self, ending: Ending) {
        drop(ending);
        while !self.lane.all_ended() {
            self.idle_round();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lane_has_the_well_known_number_and_each_its_own_workers() {
        for workers in 1..=64 {
            let owners = Owners::new(workers);
            let lanes = Lane::side_by_side(owners);
            assert_eq!(lanes[0].1.control.get(), CONTROL_QPN, "{workers}");
            let mut seen = vec![false; workers];
            for (worker, lane) in &lanes {
                assert_eq!(owners.of(lane.control), *worker, "{workers}");
                assert!(!std::mem::replace(&mut seen[*worker], true));
            }
        }
    }
}
