//! One worker's part of a port that several workers share.

use super::counters::{Counts, MemberCounters};
use super::owners::Owners;
use crate::io::{PacketBuf, PacketBurst, PortInfo, PortIo, PortState, PortStats};
use crate::link::{Receiver, Sender};
use crossbeam_queue::ArrayQueue;
use roce_proto::wire::peek::{PEEK_LEN, Peek, peek};
use std::sync::Arc;

/// A port whose queues can be fewer than its users.
pub trait Share: PortIo {
    /// What a user without a queue has.
    type Guest: Guest<Buf = Self::Buf>;

    /// Buffers and news of the port, for somebody who sends and receives through others.
    fn guest(&self) -> Self::Guest;
}

/// What a port gives to a user without a queue.
pub trait Guest: Send {
    /// Packet buffers.
    type Buf: PacketBuf;

    /// See [`PortIo::alloc`].
    fn alloc(&mut self) -> Option<Self::Buf>;

    /// See [`PortIo::link_up`].
    fn link_up(&self) -> bool;

    /// See [`PortIo::state`].
    fn state(&self) -> PortState {
        if self.link_up() { PortState::Up } else { PortState::Down }
    }

    /// See [`PortIo::stats`]; all zero where only those who have a queue know.
    fn stats(&self) -> PortStats;
}

/// Copies of neighbours' answers that may wait for a member: they come a few a second unless somebody floods the network,
/// and then what is lost is asked for again.
pub(super) const NEWS: usize = 64;

pub(super) type News<T> = Arc<ArrayQueue<T>>;

/// How a member gets at the port.
pub(super) enum Access<I: Share> {
    /// By a queue pair of its own; what members without one send comes by these.
    Own { io: I, lent: Vec<Receiver<I::Buf>> },
    /// By a member that has one.
    Lent { info: PortInfo, guest: I::Guest, out: Sender<I::Buf> },
}

impl<I: Share> Access<I> {
    fn alloc(&mut self) -> Option<I::Buf> {
        match self {
            Access::Own { io, .. } => io.alloc(),
            Access::Lent { guest, .. } => guest.alloc(),
        }
    }
}

/// Other members, as one of them sees them.
pub(super) struct Other<T> {
    /// What is theirs goes here,
    pub out: Sender<T>,
    /// what they received of ours comes from here,
    pub inward: Receiver<T>,
    /// and here go copies of what neighbours say.
    pub news: News<T>,
}

/// The packet IO of one worker of a group: a queue pair of the port, or none, and what the others pass on.
///
/// Receiving hands over what is this worker's and passes on what is another's. A packet is of the worker whose number range has its
/// destination queue pair; everything that is not RoCEv2 is of whoever receives it, and of a neighbour's answer the others get
/// a copy, as each has a neighbour table of its own.
pub struct Member<I: Share> {
    pub(super) index: usize,
    pub(super) owners: Owners,
    pub(super) access: Access<I>,
    /// By index; none at its own.
    pub(super) others: Vec<Option<Other<I::Buf>>>,
    pub(super) news: News<I::Buf>,
    pub(super) counts: Arc<Counts>,
    /// Who is looked at first: the others or the port, by turns.
    pub(super) others_first: bool,
    /// Packets moved for others since [`PortIo::take_relayed`].
    pub(super) relayed: usize,
    /// What members without a queue send, about to leave.
    pub(super) leaving: I::Burst,
}

impl<I: Share> Member<I> {
    /// Which of the group's workers it is for.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Puts what others passed on at the end of `burst`, at most `max` packets.
    fn take_passed_on(&mut self, burst: &mut I::Burst, max: usize) -> usize {
        let mut came = 0;
        for other in self.others.iter_mut().flatten() {
            while came < max && !burst.is_full() {
                let Some(buf) = other.inward.pop() else { break };
                // There is room.
                let _ = burst.push(buf);
                came += 1;
            }
        }
        self.counts.steered_in.add(came);
        let mut news = 0;
        while came + news < max && !burst.is_full() {
            let Some(buf) = self.news.pop() else { break };
            let _ = burst.push(buf);
            news += 1;
        }
        self.counts.news_in.add(news);
        came + news
    }

    /// Receives from the queue, at most `max` packets, and puts at the end of `burst` what is of this worker.
    fn take_queued(&mut self, burst: &mut I::Burst, max: usize) -> usize {
        let Access::Own { io, .. } = &mut self.access else { return 0 };
        let from = burst.len();
        let came = io.rx_burst(burst, max);
        if came == 0 {
            return 0;
        }
        self.counts.rx.add(came);
        let (me, owners) = (self.index, self.owners);
        let stays = |buf: &I::Buf| match look(buf) {
            Peek::Roce(qpn) => owners.of(qpn) == me,
            Peek::Other => true,
            Peek::Neighbour => false,
        };
        if (from..burst.len()).all(|i| burst.get(i).is_some_and(stays)) {
            return came;
        }
        self.sort_out(burst, from);
        burst.len() - from
    }

    /// Passes on what lies in `burst` from `from` on and is not of this worker.
    fn sort_out(&mut self, burst: &mut I::Burst, from: usize) {
        let mut all = std::mem::take(burst);
        let (mut at, mut out, mut full) = (0, 0, 0);
        while let Some(buf) = all.pop_front() {
            at += 1;
            if at <= from {
                let _ = burst.push(buf);
                continue;
            }
            let owner = match look(&buf) {
                Peek::Roce(qpn) => self.owners.of(qpn),
                Peek::Other => self.index,
                Peek::Neighbour => {
                    self.tell(&buf);
                    self.index
                }
            };
            let other = self.others.get_mut(owner).and_then(Option::as_mut);
            match other.map(|other| &mut other.out) {
                None => {
                    let _ = burst.push(buf);
                }
                Some(link) => match link.push(buf) {
                    Ok(()) => out += 1,
                    Err(_dropped) => full += 1,
                },
            }
        }
        self.counts.steered_out.add(out);
        self.counts.steer_full.add(full);
        self.relayed += out + full;
    }

    /// Gives every other member a copy.
    #[cold]
    fn tell(&mut self, buf: &I::Buf) {
        let mut lost = 0;
        for other in self.others.iter().flatten() {
            // Nothing is taken from the pool for a queue that is full.
            let copy = (!other.news.is_full()).then(|| copy_of(buf, self.access.alloc()?)).flatten();
            let told = copy.is_some_and(|copy| other.news.push(copy).is_ok());
            lost += usize::from(!told);
        }
        self.counts.news_lost.add(lost);
    }

    /// Lets packets of members without a queue leave by this one's.
    fn relay(&mut self) {
        let Access::Own { io, lent } = &mut self.access else { return };
        if lent.is_empty() {
            return;
        }
        for from in lent {
            while !self.leaving.is_full() {
                let Some(buf) = from.pop() else { break };
                let _ = self.leaving.push(buf);
            }
        }
        if !self.leaving.is_empty() {
            let sent = io.tx_burst(&mut self.leaving);
            self.counts.tx.add(sent);
            self.counts.lent.add(sent);
            self.relayed += sent;
        }
    }
}

/// What a frame looks like, also if its headers lie in several pieces.
#[inline]
fn look(buf: &impl PacketBuf) -> Peek {
    match buf.contiguous() {
        Some(frame) => peek(frame),
        None => {
            let mut head = [0; PEEK_LEN];
            let len = buf.linearise(&mut head);
            peek(head.get(..len).unwrap_or_default())
        }
    }
}

fn copy_of<T: PacketBuf>(buf: &T, mut copy: T) -> Option<T> {
    let room = copy.append(buf.packet_len())?;
    buf.linearise(room);
    Some(copy)
}

impl<I: Share> PortIo for Member<I> {
    type Buf = I::Buf;
    type Burst = I::Burst;

    fn info(&self) -> &PortInfo {
        match &self.access {
            Access::Own { io, .. } => io.info(),
            Access::Lent { info, .. } => info,
        }
    }

    fn rx_burst(&mut self, burst: &mut I::Burst, max: usize) -> usize {
        self.relay();
        // By turns, so that neither can starve the other.
        self.others_first = !self.others_first;
        let mut came = 0;
        if self.others_first {
            came += self.take_passed_on(burst, max);
        }
        came += self.take_queued(burst, max - came);
        if !self.others_first {
            came += self.take_passed_on(burst, max - came);
        }
        for other in self.others.iter_mut().flatten() {
            other.out.flush_unless_crowded();
        }
        came
    }

    fn tx_burst(&mut self, burst: &mut I::Burst) -> usize {
        match &mut self.access {
            Access::Own { io, .. } => {
                let sent = io.tx_burst(burst);
                self.counts.tx.add(sent);
                sent
            }
            Access::Lent { out, .. } => {
                let taken = burst.len().min(out.room());
                for _ in 0..taken {
                    if let Some(buf) = burst.pop_front() {
                        // There is room.
                        let _ = out.push(buf);
                    }
                }
                out.flush();
                taken
            }
        }
    }

    fn alloc(&mut self) -> Option<I::Buf> {
        self.access.alloc()
    }

    fn link_up(&self) -> bool {
        match &self.access {
            Access::Own { io, .. } => io.link_up(),
            Access::Lent { guest, .. } => guest.link_up(),
        }
    }

    fn state(&self) -> PortState {
        match &self.access {
            Access::Own { io, .. } => io.state(),
            Access::Lent { guest, .. } => guest.state(),
        }
    }

    fn recover(&mut self) -> bool {
        match &mut self.access {
            Access::Own { io, .. } => io.recover(),
            Access::Lent { .. } => false,
        }
    }

    fn stats(&self) -> PortStats {
        match &self.access {
            Access::Own { io, .. } => io.stats(),
            Access::Lent { guest, .. } => guest.stats(),
        }
    }

    fn queue(&self) -> Option<MemberCounters> {
        let own = matches!(self.access, Access::Own { .. });
        Some(self.counts.read(own.then_some(self.index)))
    }

    fn undelivered(&self) -> u64 {
        self.counts.steer_full.get()
    }

    fn take_relayed(&mut self) -> usize {
        std::mem::take(&mut self.relayed)
    }
}
