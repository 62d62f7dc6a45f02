//! UD queue pairs and their work requests.

use crate::ah::AhKey;
use crate::ring::Ring;
use roce_proto::types::{PKey, Psn, QKey, Qpn};
use roce_proto::wire::predict::Headers;
use slotmap::new_key_type;

/// Bytes in front of the payload in every receive buffer: the Global Route Header area of the verbs.
pub const GRH_LEN: usize = 40;

new_key_type! {
    /// Names a completion queue of one worker. Stale after its queue was destroyed.
    pub struct CqKey;
    /// Names a queue pair of one worker. Stale after its queue pair was destroyed.
    pub struct QpKey;
}

/// The queue pair states that a UD service has (IBTA volume 1, 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Takes no work.
    Reset,
    /// Takes receives, processes none.
    Init,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Flushes all work.
    Error,
}

impl QpState {
    /// Whether the specification has the transition from `self` to `to`.
    pub fn may_become(self, to: QpState) -> bool {
        use QpState::*;
        matches!(
            (self, to),
            (_, Reset)
                | (_, Error)
                | (Reset | Init, Init)
                | (Init, ReadyToReceive)
                | (ReadyToReceive | ReadyToSend, ReadyToSend)
        )
    }
}

/// How a queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// The port it lives on: an index into the worker's ports.
    pub port: usize,
    /// Its number; `None` takes the next free one.
    pub qpn: Option<Qpn>,
    /// Incoming packets must carry this Q_Key.
    pub qkey: QKey,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// PSN of its first packet; `None` draws one from the worker's seed.
    pub psn: Option<Psn>,
    /// Where its sends complete.
    pub send_cq: CqKey,
    /// Where its receives complete.
    pub recv_cq: CqKey,
    /// Sends outstanding at the most.
    pub send_depth: u32,
    /// Receives posted at the most.
    pub recv_depth: u32,
}

impl QpConfig {
    /// A queue pair on the worker's first port with both directions on `cq`, any number, Q_Key `0x11111111` (what
    /// perftest and rdma-core's examples use), the default P_Key and queues of 512.
    pub fn new(cq: CqKey) -> QpConfig {
        QpConfig {
            port: 0,
            qpn: None,
            qkey: QKey(0x1111_1111),
            pkey_index: 0,
            psn: None,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 512,
            recv_depth: 512,
        }
    }
}

/// What of a queue pair can be changed after it was made, in any state; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpChange {
    /// Incoming packets must carry this Q_Key from now on.
    pub qkey: Option<QKey>,
    /// Index into the port's P_Key table.
    pub pkey_index: Option<u16>,
    /// PSN of its next packet.
    pub psn: Option<Psn>,
}

/// A send, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The caller's own number, given back in the completion.
    pub wr_id: u64,
    /// Where to.
    pub ah: AhKey,
    /// The peer's queue pair.
    pub dst_qpn: Qpn,
    /// The Q_Key to send; with its high bit set the queue pair's own is sent instead (IBTA volume 1, 10.2.5).
    pub qkey: QKey,
    /// An immediate, in host byte order.
    pub imm: Option<u32>,
    /// Ask for a solicited event at the receiver.
    pub solicited: bool,
    /// Produce a completion.
    pub signaled: bool,
}

/// A receive and the buffer that it fills: 40 bytes of GRH area, then the payload.
#[derive(Debug)]
pub struct RecvWr<B> {
    /// The caller's own number, given back in the completion.
    pub wr_id: u64,
    /// Where to put the message.
    pub buf: B,
}

/// Why a work request was not taken. Nothing was queued; the same request may be tried again where that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send or receive queue of the QP is full: take completions first.
    #[error("the work queue is full ({depth} outstanding): take completions first")]
    QueueFull {
        /// Its depth.
        depth: u32,
    },
    /// The completion queue has no free place for it: take completions first.
    #[error("the completion queue is full: take completions first")]
    CqFull,
    /// The port took no packet and its burst is full: poll and try again.
    #[error("the port takes no more packets for now: poll and try again")]
    PortBusy,
    /// The buffer pool is exhausted: poll and try again.
    #[error("no free packet buffer for now: poll and try again")]
    NoBuffer,
    /// A raw UD message is one packet: it must fit the MTU.
    #[error("{len} bytes do not fit one UD packet: the IB MTU of the port is {max}")]
    TooLong {
        /// The message.
        len: usize,
        /// The IB MTU.
        max: usize,
    },
    /// The peer's MAC address is not known yet: poll and try again.
    #[error("the neighbour has not answered yet: poll and try again")]
    AddressUnresolved,
    /// The QP's state does not allow it.
    #[error("the queue pair is in the state {0:?}")]
    State(QpState),
    /// No such queue pair (any more).
    #[error("no such queue pair")]
    NoQp,
    /// No such address handle (any more), or of another port.
    #[error("no such address handle on the queue pair's port")]
    NoAh,
    /// The worker behind the queues has stopped.
    #[error("the worker has stopped")]
    Stopped,
}

impl PostError {
    /// True for back-pressure: the same request can succeed after polling.
    pub fn is_back_pressure(self) -> bool {
        matches!(
            self,
            PostError::QueueFull { .. }
                | PostError::CqFull
                | PostError::PortBusy
                | PostError::NoBuffer
                | PostError::AddressUnresolved
        )
    }
}

/// Why a queue pair could not be made or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// The port index is out of range.
    #[error("the worker has no port {0}")]
    NoPort(usize),
    /// One of the completion queues does not exist.
    #[error("no such completion queue")]
    NoCq,
    /// A completion queue is still in use.
    #[error("the completion queue is in use by a queue pair")]
    CqInUse,
    /// The number is taken.
    #[error("queue pair number {0:#x} is taken")]
    QpnTaken(u32),
    /// Numbers 0 and 1 (management) and 0xFFFFFF (multicast) are not for applications.
    #[error("queue pair number {0:#x} is reserved: use 0x2 to 0xfffffe")]
    QpnReserved(u32),
    /// The number is of another worker's range.
    #[error("queue pair number {qpn:#x} is another worker's: this one has {first:#x} to {last:#x}")]
    QpnOfAnother {
        /// The number asked for.
        qpn: u32,
        /// The worker's lowest.
        first: u32,
        /// Its highest.
        last: u32,
    },
    /// The worker's bound is reached.
    #[error("the worker already has its {0} queue pairs")]
    TooMany(usize),
    /// The P_Key index is out of range.
    #[error("the port's P_Key table has no index {0}")]
    NoPKey(u16),
    /// A depth of zero.
    #[error("a queue needs a depth of at least 1")]
    ZeroDepth,
    /// The specification has no such transition.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// From this state
        from: QpState,
        /// to that.
        to: QpState,
    },
    /// No such queue pair (any more).
    #[error("no such queue pair")]
    NoQp,
}

/// What one queue pair has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets that the driver took.
    pub sent: u64,
    /// Messages delivered into receive buffers.
    pub received: u64,
    /// Packets dropped for a wrong Q_Key.
    pub qkey_violations: u64,
    /// Packets dropped because no receive was posted.
    pub no_receive: u64,
}

#[derive(Debug)]
pub(crate) struct Qp<B> {
    pub qpn: Qpn,
    pub state: QpState,
    pub port: usize,
    pub qkey: QKey,
    pub pkey: PKey,
    pub psn: Psn,
    pub src_port: u16,
    pub send_cq: CqKey,
    pub recv_cq: CqKey,
    pub send_depth: u32,
    /// Sends posted and not yet taken by the driver.
    pub outstanding: u32,
    pub recv: Ring<RecvWr<B>>,
    pub counters: QpCounters,
    /// What the last send looked like, to make the next one like it by header prediction.
    pub last_sent: Option<Box<LastSent>>,
}

/// A send, and the headers that it had.
#[derive(Debug)]
pub(crate) struct LastSent {
    pub epoch: u64,
    pub ah: AhKey,
    pub dst_qpn: Qpn,
    pub qkey: QKey,
    pub solicited: bool,
    pub headers: Headers,
}

impl LastSent {
    /// Whether a send of `len` bytes has the same headers.
    #[inline(always)]
    pub fn fits(&self, wr: &SendWr, len: usize, epoch: u64) -> bool {
        self.epoch == epoch
            && self.ah == wr.ah
            && self.dst_qpn == wr.dst_qpn
            && self.qkey == wr.qkey
            && self.solicited == wr.solicited
            && wr.imm.is_none()
            && self.headers.payload_len() == len
    }
}

impl<B> Qp<B> {
    pub fn may_receive(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_those_of_the_specification() {
        use QpState::*;
        let all = [Reset, Init, ReadyToReceive, ReadyToSend, Error];
        let legal: Vec<_> = all
            .iter()
            .flat_map(|&a| all.iter().map(move |&b| (a, b)))
            .filter(|(a, b)| a.may_become(*b))
            .collect();
        assert_eq!(legal.len(), 15, "{legal:?}");
        assert!(!Reset.may_become(ReadyToSend));
        assert!(!Error.may_become(ReadyToSend));
        assert!(Error.may_become(Reset));
    }
}
