//! From a received frame to a completion, or to the one counter that says why not.

mod known;

pub(crate) use known::Known;

use super::core::Core;
use super::port::{Local, Port};
use super::{Worker, control};
use crate::buffer::Buffer;
use crate::counters::{DropReason, LocalDrop};
use crate::cq::{Completion, Cq, Family, WcOpcode, WcStatus};
use crate::io::{BURST, PacketBuf, PacketBurst, PortIo, burst_of};
use crate::qp::{CqKey, GRH_LEN, Qp, QpKey, QpState, RecvWr};
use crate::ring::Ring;
use crate::route;
use roce_proto::types::Qpn;
use roce_proto::wire::Reject;
use roce_proto::wire::frame::{self, Frame, Ip, Packet, Verified};

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Receives one burst on port `index`, or goes on with the last one if the sink then had no room for all of it; returns the packets
    /// that were looked at, and how many could have been.
    #[inline]
    pub(super) fn receive(&mut self, index: usize, sink: &mut impl Sink<B>) -> (usize, usize) {
        let Some(port) = self.ports.get_mut(index) else { return (0, 0) };
        let (from, asked) = match port.rx_at {
            0 => (0, port.rx_limit),
            at => (at, port.rx.len() - at),
        };
        let received = if from == 0 { port.io.rx_burst(&mut port.rx, asked) } else { port.rx.len() };
        if received == 0 {
            return (0, asked);
        }
        let mut tally = Tally::default();
        let mut at = from;
        while at < received && sink.left() > 0 {
            if port.capture.is_none() {
                at += port.known.deliver_run(
                    &port.rx,
                    at,
                    &mut self.core,
                    &mut port.local.counters,
                    &mut tally,
                    sink,
                );
            }
            if at < received && sink.left() > 0 {
                port.take(at, index, &mut self.core, &mut tally, sink);
                at += 1;
            }
        }
        let looked_at = at - from;
        let mut asked = asked;
        if at < received {
            port.rx_at = at;
            // Not as many as could have been only since no more were wanted.
            asked = looked_at;
        } else {
            port.rx.clear();
            port.rx_at = 0;
            port.rx_limit = burst_of(tally.bytes as usize / looked_at.max(1));
        }
        let counters = &mut port.local.counters;
        counters.rx_packets += looked_at as u64;
        counters.rx_bytes += tally.bytes;
        counters.delivered += tally.delivered;
        counters.delivered_bytes += tally.delivered_bytes;
        (looked_at, asked)
    }

    /// Whether packets that came with the last round wait for the next one, as its caller had no room for them.
    #[inline]
    pub fn has_packets(&self) -> bool {
        self.ports.iter().any(|port| port.rx_at > 0)
    }

    /// Packets that make a burst of port `index`, of the length of those that came last.
    #[inline]
    pub fn burst(&self, index: usize) -> usize {
        self.ports.get(index).map_or(BURST, |port| port.rx_limit)
    }
}

impl<I: PortIo, B: Buffer> Port<I, B> {
    /// Handles packet `i` of the receive burst.
    #[inline]
    fn take(
        &mut self,
        i: usize,
        index: usize,
        core: &mut Core<B>,
        tally: &mut Tally,
        sink: &mut impl Sink<B>,
    ) {
        let Some(buf) = self.rx.get(i) else { return };
        let len = buf.packet_len();
        tally.bytes += len as u64;
        let frame = match buf.contiguous() {
            Some(frame) => frame,
            None if len <= self.scratch.len() => {
                let copied = buf.linearise(&mut self.scratch);
                &self.scratch[..copied]
            }
            None => return self.local.counters.drop(DropReason::Local(LocalDrop::Oversize)),
        };
        if let Some(capture) = &self.capture {
            capture.frame(frame);
        }
        match handle((frame, buf.verified()), index, &mut self.local, &mut self.known, core, sink) {
            Outcome::Done => {}
            Outcome::Drop(reason) => self.local.counters.drop(reason),
            Outcome::Reply(reply) => {
                let sent = control::send(
                    &mut self.io,
                    &mut self.tx,
                    &mut self.runs,
                    &mut self.unsealed,
                    self.capture.as_ref(),
                    &reply,
                );
                let counters = &mut self.local.counters;
                match (sent, reply.is_echo()) {
                    (true, true) => counters.echo += 1,
                    (true, false) => counters.neighbour += 1,
                    (false, _) => counters.drop(DropReason::Local(LocalDrop::NoReplyRoom)),
                }
            }
        }
    }
}

/// The counters that every packet of a burst raises, kept in registers until its end.
#[derive(Default)]
struct Tally {
    bytes: u64,
    delivered: u64,
    delivered_bytes: u64,
}

/// What a frame led to. `Done` means that its counter has been raised.
pub(super) enum Outcome<'a> {
    Done,
    Drop(DropReason),
    Reply(control::Reply<'a>),
}

const fn local(reason: LocalDrop) -> DropReason {
    DropReason::Local(reason)
}

#[inline]
fn handle<'a, B: Buffer>(
    (bytes, verified): (&'a [u8], Verified),
    index: usize,
    at: &mut Local,
    known: &mut Known,
    core: &mut Core<B>,
    sink: &mut impl Sink<B>,
) -> Outcome<'a> {
    match frame::parse_verified(bytes, verified) {
        Ok(Frame::Roce(packet)) => match deliver(bytes, &packet, index, at, known, core, sink) {
            Ok(payload) => {
                at.counters.delivered += 1;
                at.counters.delivered_bytes += payload as u64;
                Outcome::Done
            }
            Err(reason) => Outcome::Drop(reason),
        },
        Ok(other) => control::handle(&other, at, core),
        // What hosts say to routers about groups has such a header (RFC 3810, section 5), and each kernel at the port says it.
        Err(Reject::Ipv6Extension { .. }) if bytes.first().is_some_and(|b| b & 1 != 0) => {
            control::ignored(at)
        }
        Err(reject) => Outcome::Drop(DropReason::Wire(reject.reason())),
    }
}

/// Delivers a RoCEv2 packet into the receive it is for; returns its payload bytes.
///
/// The order of the checks: whose it is, whether it is intact (nothing in it can be believed before), and then the
/// checks of IBTA volume 1, 9.6.1 and 10.2.4: queue pair, P_Key, Q_Key, state, receive queue.
#[inline]
fn deliver<B: Buffer>(
    frame: &[u8],
    packet: &Packet<'_>,
    index: usize,
    at: &mut Local,
    known: &mut Known,
    core: &mut Core<B>,
    sink: &mut impl Sink<B>,
) -> Result<usize, DropReason> {
    if !at.in_vlan(|| packet.link.vlans()) {
        return Err(local(LocalDrop::Vlan));
    }
    if packet.link.dst() != at.mac {
        return Err(local(LocalDrop::ForeignMac));
    }
    if !at.is_local(packet.ip.dst()) {
        return Err(local(LocalDrop::ForeignIp));
    }
    if route::no_host(packet.ip.src()).is_some() {
        return Err(local(LocalDrop::SourceIp));
    }
    if !packet.icrc_ok() {
        return Err(local(LocalDrop::Icrc));
    }
    let ud = packet.ud().map_err(|r| DropReason::Wire(r.reason()))?;
    let key = core.find(packet.dst_qpn()).ok_or(local(LocalDrop::UnknownQpn))?;
    let qp = core.qps.get_mut(key).filter(|q| q.port == index).ok_or(local(LocalDrop::UnknownQpn))?;
    if !packet.pkey().matches(qp.pkey) {
        return Err(local(LocalDrop::PKey));
    }
    if ud.deth.qkey != qp.qkey {
        qp.counters.qkey_violations += 1;
        return Err(local(LocalDrop::QKey));
    }
    if !qp.may_receive() {
        return Err(local(LocalDrop::QpState));
    }
    let about = About { key, src_qpn: ud.deth.src_qpn, imm: ud.imm, solicited: packet.solicited() };
    known.learn(frame, packet, &about, core.epoch);
    let cq = core.cqs.get_mut(qp.recv_cq).ok_or(local(LocalDrop::CqFull))?;
    place(qp, cq, &about, packet.ip, ud.payload, sink).map(|()| ud.payload.len()).map_err(|reason| {
        if reason == LocalDrop::ShortBuffer {
            fail(key, core);
        }
        local(reason)
    })
}

/// Who gets receive completions before they are queued.
pub(super) trait Sink<B> {
    /// Whether it gets those of this queue.
    fn wants(&self, cq: CqKey) -> bool;
    /// Packets that it had better get at once, at the most. What a burst has beyond them waits for the next round: to ask the driver has
    /// its price, however few are wanted.
    #[inline(always)]
    fn left(&self) -> usize {
        usize::MAX
    }

    /// Gives it one; true posts the buffer as a receive again.
    fn take(&mut self, done: &mut Completion<B>) -> bool;

    /// Whether it takes the packets of queue pairs with this receive queue as they lie in the port's buffers, without a receive.
    #[inline(always)]
    fn takes_packets(&self, _: CqKey) -> bool {
        false
    }

    /// Gives it one of those: destination and source queue pair, IP header, payload.
    #[inline(always)]
    fn packet(&mut self, _: [Qpn; 2], _: Ip<'_>, _: &[u8]) {}
}

/// Nobody: all are queued.
pub(super) struct Queue;

impl<B> Sink<B> for Queue {
    #[inline(always)]
    fn wants(&self, _: CqKey) -> bool {
        false
    }

    #[inline(always)]
    fn take(&mut self, _: &mut Completion<B>) -> bool {
        false
    }
}

/// A function of the caller's, for one completion queue.
pub(super) struct Into<F> {
    pub cq: CqKey,
    pub take: F,
}

impl<B, F: FnMut(&mut Completion<B>) -> bool> Sink<B> for Into<F> {
    #[inline(always)]
    fn wants(&self, cq: CqKey) -> bool {
        cq == self.cq
    }

    #[inline(always)]
    fn take(&mut self, done: &mut Completion<B>) -> bool {
        (self.take)(done)
    }
}

/// A function of the caller's that keeps every completion, for so many of them.
pub(super) struct Give<F> {
    /// Of this queue only, if of one.
    pub cq: Option<CqKey>,
    pub room: usize,
    /// There was no room to begin with: all are queued.
    pub queues: bool,
    pub give: F,
}

impl<B, F: FnMut(&mut Completion<B>)> Sink<B> for Give<F> {
    #[inline(always)]
    fn wants(&self, cq: CqKey) -> bool {
        self.room > 0 && self.cq.is_none_or(|only| only == cq)
    }

    #[inline(always)]
    fn left(&self) -> usize {
        if self.queues { usize::MAX } else { self.room }
    }

    #[inline(always)]
    fn take(&mut self, done: &mut Completion<B>) -> bool {
        self.room -= 1;
        (self.give)(done);
        false
    }
}

/// A function of the caller's, for the packets of all queue pairs with one receive queue.
pub(super) struct Packets<F> {
    pub cq: CqKey,
    pub take: F,
}

impl<B, F: FnMut([Qpn; 2], Ip<'_>, &[u8])> Sink<B> for Packets<F> {
    #[inline(always)]
    fn wants(&self, _: CqKey) -> bool {
        false
    }

    #[inline(always)]
    fn take(&mut self, _: &mut Completion<B>) -> bool {
        false
    }

    #[inline(always)]
    fn takes_packets(&self, cq: CqKey) -> bool {
        cq == self.cq
    }

    #[inline(always)]
    fn packet(&mut self, qpns: [Qpn; 2], ip: Ip<'_>, payload: &[u8]) {
        (self.take)(qpns, ip, payload);
    }
}

/// What a completion says of a packet beside its bytes.
#[derive(Clone, Copy, Debug)]
struct About {
    key: QpKey,
    src_qpn: Qpn,
    imm: Option<u32>,
    solicited: bool,
}

/// Puts the payload of a packet that has passed every check into the next receive. After a [`LocalDrop::ShortBuffer`] the
/// caller has to [`fail`] the queue pair.
#[inline(always)]
fn place<B: Buffer>(
    qp: &mut Qp<B>,
    cq: &mut Cq<B>,
    about: &About,
    ip: Ip<'_>,
    payload: &[u8],
    sink: &mut impl Sink<B>,
) -> Result<(), LocalDrop> {
    if sink.takes_packets(qp.recv_cq) {
        sink.packet([qp.qpn, about.src_qpn], ip, payload);
        qp.counters.received += 1;
        return Ok(());
    }
    let direct = sink.wants(qp.recv_cq) && cq.may_be_passed();
    if !direct && !cq.has_room() && !qp.recv.is_empty() {
        return Err(LocalDrop::CqFull);
    }
    let placed = land(&mut qp.recv, qp.qpn, about, ip, payload, |done| {
        if !direct {
            cq.push(done.take());
            return None;
        }
        let again = sink.take(done) && done.status == WcStatus::Success;
        done.buf.take().filter(|_| again)
    });
    match placed {
        Ok(()) => qp.counters.received += 1,
        Err(LocalDrop::NoReceive) => qp.counters.no_receive += 1,
        Err(_) => {}
    }
    placed
}

/// Puts the payload into the oldest receive and hands the completion to `then`; the buffer that this returns is posted again.
#[inline(always)]
fn land<B: Buffer>(
    recv: &mut Ring<RecvWr<B>>,
    qpn: Qpn,
    about: &About,
    ip: Ip<'_>,
    payload: &[u8],
    then: impl FnOnce(&mut Completion<B>) -> Option<B>,
) -> Result<(), LocalDrop> {
    let byte_len = GRH_LEN + payload.len();
    let mut fits = false;
    let found = recv.cycle(
        #[inline(always)]
        |wr| {
            // The buffer goes to its place in the completion first and is used there: moved after it has been taken apart, it is
            // written in halves and read as a whole, for which a processor waits until the halves have reached its cache.
            let mut done = Completion {
                wr_id: wr.wr_id,
                qpn,
                opcode: WcOpcode::Recv,
                status: WcStatus::LocalLengthError,
                byte_len: byte_len as u32,
                src_qpn: about.src_qpn,
                imm: about.imm,
                family: if ip.is_ipv6() { Family::V6 } else { Family::V4 },
                solicited: about.solicited,
                buf: Some(wr.buf),
            };
            if let Some(buf) = done.buf.as_mut().filter(|buf| buf.capacity() >= byte_len) {
                fill(buf, ip, payload);
                done.status = WcStatus::Success;
                fits = true;
            }
            then(&mut done).map(|buf| RecvWr { wr_id: done.wr_id, buf })
        },
    );
    match (found, fits) {
        (true, true) => Ok(()),
        (true, false) => Err(LocalDrop::ShortBuffer),
        (false, _) => Err(LocalDrop::NoReceive),
    }
}

/// Writes what a verbs user expects in a buffer that has room for it.
#[inline(always)]
fn fill<B: Buffer>(buf: &mut B, ip: Ip<'_>, payload: &[u8]) {
    // The GRH area as roce_proto::wire::grh has it, without putting it together elsewhere first.
    match ip {
        Ip::V4(header) => {
            buf.write(0, &[0; GRH_LEN - 20]);
            buf.write(GRH_LEN - 20, header);
        }
        Ip::V6(header) => buf.write(0, header),
    }
    buf.write(GRH_LEN, payload);
}

/// A receive completed in error, so its queue pair does too (IBTA volume 1, 10.10.2.2).
#[cold]
fn fail<B>(key: QpKey, core: &mut Core<B>) {
    if let Some(qp) = core.qps.get_mut(key) {
        qp.state = QpState::Error;
    }
    core.touch();
    core.start_flush(key);
}
