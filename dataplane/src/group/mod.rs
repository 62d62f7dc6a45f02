//! Several workers over one port: each has a thread of its own and a queue pair of the port, or none.
//!
//! [`Group::new`] takes the queue pairs of a port and makes a [`Member`] for each worker, which is the worker's packet IO. Each
//! worker hands out queue pair numbers of a range of its own ([`Owners`]), so that whoever receives a packet knows whose it is and
//! passes it on through a bounded lock-free queue. So any spreading of packets over the queues is right, be it the port's
//! hash, the sender's choice of a queue, or no spreading at all on a port that has one queue only; a good one saves the
//! crossing.
//!
//! Nothing in a worker is shared: tables, neighbours and counters are its own. Neighbours' answers are copied to all, and a
//! neighbour is asked for once in a second by all together ([`Asked`]).
//!
//! Every worker must be polled all the time, also when it has nothing to do of its own: it may hold what others wait for.

mod asked;
mod counters;
mod member;
mod owners;

#[cfg(test)]
mod tests;

pub use asked::Asked;
pub use counters::{MemberCounters, UNEVEN_LEAST, UNEVEN_PERCENT, Uneven, uneven};
pub use member::{Guest, Member, Share};
pub use owners::{MAX_WORKERS, Owners, QpnRange};

use crate::buffer::Buffer;
use crate::link::link;
use crate::worker::{PortConfig, Worker, WorkerConfig, WorkerError};
use counters::Counts;
use crossbeam_queue::ArrayQueue;
use member::{Access, NEWS, Other};
use roce_proto::types::Qpn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Packets that may wait between two members at the most, unless bursts are small. What a port brings in while a thread that
/// shares its core is not running, for a millisecond at two million packets a second.
pub const CROSSING: usize = 2048;

/// Why a group cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No queue pair.
    #[error("a group of workers needs a port with at least one queue pair")]
    NoQueue,
    /// A queue that nobody would poll.
    #[error("{queues} queues need as many workers, there are {workers}: use fewer queues or more workers")]
    IdleQueue {
        /// Queue pairs.
        queues: usize,
        /// Workers.
        workers: usize,
    },
    /// More than a group can have.
    #[error("{0} workers are too many: a group has at most {MAX_WORKERS}")]
    TooMany(usize),
}

/// What the workers of a port have in common, readable by any thread.
#[derive(Clone, Debug)]
pub struct Group {
    owners: Owners,
    queues: usize,
    counts: Arc<[Arc<Counts>]>,
    asked: Arc<Asked>,
    warned: Arc<AtomicBool>,
}

impl Group {
    /// Shares the queue pairs `ports` of one port among `workers`. The first ones have a queue each, the others send and receive
    /// through them.
    ///
    /// # Errors
    /// No queue, more queues than workers, more workers than [`MAX_WORKERS`].
    pub fn new<I: Share>(ports: Vec<I>, workers: usize) -> Result<(Group, Vec<Member<I>>), GroupError> {
        let queues = ports.len();
        if workers > MAX_WORKERS {
            return Err(GroupError::TooMany(workers));
        }
        if queues > workers {
            return Err(GroupError::IdleQueue { queues, workers });
        }
        let Some(first) = ports.first() else { return Err(GroupError::NoQueue) };
        let info = first.info().clone();
        let mut access: Vec<Access<I>> = Vec::with_capacity(workers);
        let mut guests: Vec<_> = (queues..workers)
            .filter_map(|i| Some((i % queues, ports.get(i % queues)?.guest(), link(CROSSING))))
            .collect();
        for (queue, io) in ports.into_iter().enumerate() {
            access.push(Access::Own { io, lent: Vec::new() });
            debug_assert_eq!(access.len(), queue + 1);
        }
        for (lender, guest, (out, lent_in)) in guests.drain(..) {
            if let Some(Access::Own { lent, .. }) = access.get_mut(lender) {
                lent.push(lent_in);
            }
            access.push(Access::Lent { info: info.clone(), guest, out });
        }
        let counts: Arc<[Arc<Counts>]> = (0..workers).map(|_| Arc::default()).collect();
        let owners = Owners::new(workers);
        let group = Group {
            owners,
            queues,
            counts: counts.clone(),
            asked: Arc::new(Asked::new()),
            warned: Arc::new(AtomicBool::new(false)),
        };
        let members = access.into_iter().zip(introduce(workers)).zip(counts.iter()).enumerate();
        let members = members.map(|(index, ((access, (others, news)), counts))| Member {
            index,
            owners,
            access,
            others,
            news,
            counts: counts.clone(),
            others_first: false,
            relayed: 0,
            leaving: I::Burst::default(),
        });
        Ok((group, members.collect()))
    }

    /// The worker of a member: with numbers of its range, and asking for neighbours together with the others.
    ///
    /// # Errors
    /// What [`Worker::new`] refuses.
    pub fn worker<I: Share, B: Buffer>(
        &self,
        member: Member<I>,
        port: PortConfig,
        config: &WorkerConfig,
    ) -> Result<Worker<Member<I>, B>, WorkerError> {
        let qpns = self.owners.range(member.index());
        let offset = config.first_qpn.get().saturating_sub(QpnRange::ALL.first);
        let first = qpns.first.saturating_add(offset).min(qpns.last);
        let config = WorkerConfig {
            qpns,
            first_qpn: Qpn::new(first).unwrap_or(Qpn::MAX),
            seed: config.seed.wrapping_add(member.index() as u64),
            ..*config
        };
        let mut worker = Worker::new(&config, vec![(member, port)])?;
        worker.ask_together(self.asked.clone());
        Ok(worker)
    }

    /// Whose a number is.
    pub fn owners(&self) -> Owners {
        self.owners
    }

    /// Queue pairs of the port that are in use.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// What each member counted so far. The numbers of a running group are of slightly different moments.
    pub fn counters(&self) -> Vec<MemberCounters> {
        let queue = |i: usize| (i < self.queues).then_some(i);
        self.counts.iter().enumerate().map(|(i, counts)| counts.read(queue(i))).collect()
    }

    /// Whether one queue takes more than [`UNEVEN_PERCENT`] of what the port receives.
    pub fn uneven(&self) -> Option<Uneven> {
        let rx: Vec<u64> = self.counts.iter().take(self.queues).map(|counts| counts.rx.get()).collect();
        uneven(&rx)
    }

    /// Says so in the log, the first time that it is so.
    pub fn warn_if_uneven(&self) -> Option<Uneven> {
        let uneven = self.uneven()?;
        if !self.warned.swap(true, Ordering::Relaxed) {
            let Uneven { queue, packets, of } = uneven;
            tracing::warn!(
                "queue {queue} takes {} % of what the port receives ({packets} of {of} packets): the others help little. The \
                 sender should use more queue pairs, hence UDP source ports, or the port spread by them",
                packets * 100 / of.max(1)
            );
        }
        Some(uneven)
    }
}

type Introduced<T> = (Vec<Option<Other<T>>>, member::News<T>);

/// Joins each member with every other.
fn introduce<T>(members: usize) -> Vec<Introduced<T>> {
    let news: Vec<member::News<T>> = (0..members).map(|_| Arc::new(ArrayQueue::new(NEWS))).collect();
    let mut outs: Vec<Vec<Option<_>>> = Vec::with_capacity(members);
    // By receiver: what comes from each member.
    let mut inwards: Vec<Vec<Option<_>>> = (0..members).map(|_| Vec::with_capacity(members)).collect();
    for from in 0..members {
        let mut out = Vec::with_capacity(members);
        for (to, inward) in inwards.iter_mut().enumerate() {
            let (sender, receiver) = if from == to { (None, None) } else { split(link(2 * CROSSING)) };
            out.push(sender);
            inward.push(receiver);
        }
        outs.push(out);
    }
    outs.into_iter()
        .zip(inwards)
        .zip(&news)
        .map(|((outs, inwards), own)| {
            let others =
                outs.into_iter().zip(inwards).zip(&news).map(|((out, inward), news)| {
                    Some(Other { out: out?, inward: inward?, news: news.clone() })
                });
            (others.collect(), own.clone())
        })
        .collect()
}

fn split<A, B>(pair: (A, B)) -> (Option<A>, Option<B>) {
    (Some(pair.0), Some(pair.1))
}
