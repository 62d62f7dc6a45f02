//! Completions and the bounded queues that hold them.

use crate::ring::Ring;
use roce_proto::types::Qpn;

/// What a completed work request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A send.
    Send,
    /// A receive.
    Recv,
}

/// How a work request ended; the names are the verbs' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// It was done.
    Success,
    /// The posted receive buffer was too short for the GRH area and the payload; the QP is now in the error state.
    LocalLengthError,
    /// The request could not be processed: no such queue pair or address handle, a wrong state, a message over the MTU, or an
    /// address that is not resolved. Only a worker behind queues reports this; an inline one refuses the post itself.
    LocalQpOperationError,
    /// The QP went to the error state, or was destroyed, before the request was done.
    WorkRequestFlushed,
}

/// Address family of the packet that completed a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4: the last 20 bytes of the GRH area are the IPv4 header.
    V4,
    /// IPv6: the 40 bytes of the GRH area are the IPv6 header.
    V6,
}

/// One finished work request.
#[derive(Debug)]
pub struct Completion<B> {
    /// The caller's own number.
    pub wr_id: u64,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Send or receive.
    pub opcode: WcOpcode,
    /// How it ended. With anything but success only `wr_id`, `qpn`, `opcode` and `buf` mean something.
    pub status: WcStatus,
    /// Receives: bytes written to the buffer, the 40-byte GRH area included, pad and ICRC not. Sends: payload bytes.
    pub byte_len: u32,
    /// Receives: the sender's queue pair.
    pub src_qpn: Qpn,
    /// Receives: the immediate, in host byte order, if the packet had one.
    pub imm: Option<u32>,
    /// Receives: the packet's address family.
    pub family: Family,
    /// Receives: the sender asked for a solicited event.
    pub solicited: bool,
    /// The buffer, given back. `None` for a send whose bytes were copied when it was posted.
    pub buf: Option<B>,
}

impl<B> Completion<B> {
    /// The same with the buffer, which is no longer here.
    #[inline(always)]
    pub fn take(&mut self) -> Completion<B> {
        Completion { buf: self.buf.take(), ..*self }
    }

    /// Bytes of the message itself: `byte_len` without the GRH area of a receive.
    pub fn payload_len(&self) -> usize {
        match self.opcode {
            WcOpcode::Send => self.byte_len as usize,
            WcOpcode::Recv => (self.byte_len as usize).saturating_sub(crate::qp::GRH_LEN),
        }
    }
}

/// What arms an event on a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion of any kind.
    Next,
    /// The next receive that its sender marked as solicited, or the next that failed.
    Solicited,
}

/// A bounded queue of completions.
///
/// It cannot overrun: a signaled send reserves its place when it is posted, and a packet that finds no free place is
/// dropped and counted before it takes a receive.
#[derive(Debug)]
pub struct Cq<B> {
    entries: Ring<Completion<B>>,
    reserved: usize,
    armed: Option<Arm>,
    event: bool,
}

impl<B> Cq<B> {
    pub(crate) fn new(depth: usize) -> Cq<B> {
        Cq { entries: Ring::new(depth), reserved: 0, armed: None, event: false }
    }

    /// Takes the oldest completion.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Completion<B>> {
        self.entries.pop()
    }

    /// Completions that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many it holds at the most.
    pub fn depth(&self) -> usize {
        self.entries.capacity()
    }

    /// Asks for one event; a later call replaces an earlier one, except that `Solicited` never weakens `Next`.
    pub fn arm(&mut self, arm: Arm) {
        if !(self.armed == Some(Arm::Next) && arm == Arm::Solicited) {
            self.armed = Some(arm);
        }
    }

    /// True once after an armed completion came in.
    pub fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.event)
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() + self.reserved < self.entries.capacity()
    }

    /// Whether a completion may be handed over without standing in the queue: none waits before it, and no event is asked for.
    #[inline]
    pub(crate) fn may_be_passed(&self) -> bool {
        self.entries.is_empty() && self.armed.is_none()
    }

    /// Keeps a place for a completion to come; false if there is none.
    #[inline]
    pub(crate) fn reserve(&mut self) -> bool {
        let room = self.has_room();
        self.reserved += usize::from(room);
        room
    }

    /// Gives back a place kept by [`Cq::reserve`], or just before the push that it was kept for.
    #[inline]
    pub(crate) fn unreserve(&mut self) {
        debug_assert!(self.reserved > 0);
        self.reserved = self.reserved.saturating_sub(1);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, completion: Completion<B>) {
        if let Some(arm) = self.armed {
            // Not the completion itself: lent to a function, it would have to be in memory for the sake of a rare case.
            self.raise(arm, completion.status != WcStatus::Success, completion.solicited);
        }
        let pushed = self.entries.push(completion);
        debug_assert!(pushed.is_ok(), "a completion without a place");
    }

    #[cold]
    fn raise(&mut self, arm: Arm, failed: bool, solicited: bool) {
        if arm == Arm::Next || solicited || failed {
            self.armed = None;
            self.event = true;
        }
    }

    /// Drops the completions of a QP that is being destroyed, as `ibv_destroy_qp` does.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) {
        self.entries.retain(|c| c.qpn != qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(wr_id: u64, status: WcStatus, solicited: bool) -> Completion<()> {
        let qpn = Qpn::new(0x10).unwrap();
        Completion {
            wr_id,
            qpn,
            opcode: WcOpcode::Recv,
            status,
            byte_len: 40,
            src_qpn: qpn,
            imm: None,
            family: Family::V4,
            solicited,
            buf: None,
        }
    }

    #[test]
    fn reservations_and_entries_share_the_depth() {
        let mut cq = Cq::new(2);
        assert!(cq.reserve());
        cq.push(completion(1, WcStatus::Success, false));
        assert!(!cq.has_room());
        assert!(!cq.reserve());
        cq.unreserve();
        assert!(cq.has_room());
        assert_eq!(cq.pop().unwrap().wr_id, 1);
        assert!(cq.pop().is_none());
    }

    #[test]
    fn a_solicited_arm_waits_for_a_solicited_or_failed_completion() {
        let mut cq = Cq::new(8);
        cq.arm(Arm::Solicited);
        cq.push(completion(1, WcStatus::Success, false));
        assert!(!cq.take_event());
        cq.push(completion(2, WcStatus::Success, true));
        assert!(cq.take_event());
        assert!(!cq.take_event(), "one event for one arm");
        cq.arm(Arm::Solicited);
        cq.push(completion(3, WcStatus::LocalLengthError, false));
        assert!(cq.take_event());
    }

    #[test]
    fn the_stronger_arm_stays() {
        let mut cq = Cq::new(8);
        cq.arm(Arm::Next);
        cq.arm(Arm::Solicited);
        cq.push(completion(1, WcStatus::Success, false));
        assert!(cq.take_event());
    }
}
