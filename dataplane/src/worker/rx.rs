//! From a received frame to a completion, or to the one counter that says why not.

use super::core::Core;
use super::port::{Local, Port};
use super::{Worker, control};
use crate::buffer::Buffer;
use crate::counters::{DropReason, LocalDrop};
use crate::cq::{Completion, Family, WcOpcode, WcStatus};
use crate::io::{PacketBuf, PacketBurst, PortIo};
use crate::qp::{GRH_LEN, QpKey, QpState};
use roce_proto::types::Qpn;
use roce_proto::wire::frame::{self, Frame, Ip, Packet};
use roce_proto::wire::predict::Headers;

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Receives one burst on port `index`; returns the packets that came.
    #[inline]
    pub(super) fn receive(&mut self, index: usize) -> usize {
        let Some(port) = self.ports.get_mut(index) else { return 0 };
        let received = port.io.rx_burst(&mut port.rx);
        if received == 0 {
            return 0;
        }
        let mut tally = Tally::default();
        for i in 0..received {
            port.take(i, index, &mut self.core, &mut tally);
        }
        port.rx.clear();
        let counters = &mut port.local.counters;
        counters.rx_packets += received as u64;
        counters.rx_bytes += tally.bytes;
        counters.delivered += tally.delivered;
        counters.delivered_bytes += tally.delivered_bytes;
        received
    }
}

impl<I: PortIo, B: Buffer> Port<I, B> {
    /// Handles packet `i` of the receive burst.
    #[inline]
    fn take(&mut self, i: usize, index: usize, core: &mut Core<B>, tally: &mut Tally) {
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
        if let Some(fate) = self.known.deliver(frame, core) {
            match fate {
                Ok(payload) => {
                    tally.delivered += 1;
                    tally.delivered_bytes += payload as u64;
                }
                Err(reason) => self.local.counters.drop(reason),
            }
            return;
        }
        match handle(frame, index, &mut self.local, &mut self.known, core) {
            Outcome::Done => {}
            Outcome::Drop(reason) => self.local.counters.drop(reason),
            Outcome::Reply(reply) => {
                let sent =
                    control::send(&mut self.io, &mut self.tx, &mut self.runs, self.capture.as_ref(), &reply);
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
    bytes: &'a [u8],
    index: usize,
    at: &mut Local,
    known: &mut Known,
    core: &mut Core<B>,
) -> Outcome<'a> {
    match frame::parse(bytes) {
        Ok(Frame::Roce(packet)) => match deliver(bytes, &packet, index, at, known, core) {
            Ok(payload) => {
                at.counters.delivered += 1;
                at.counters.delivered_bytes += payload as u64;
                Outcome::Done
            }
            Err(reason) => Outcome::Drop(reason),
        },
        Ok(other) => control::handle(&other, index, at, core),
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
) -> Result<usize, DropReason> {
    if packet.link.dst() != at.mac {
        return Err(local(LocalDrop::ForeignMac));
    }
    if !at.is_local(packet.ip.dst()) {
        return Err(local(LocalDrop::ForeignIp));
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
    place(&about, packet.ip, ud.payload, core)
}

/// What a completion says of a packet beside its bytes.
#[derive(Clone, Copy, Debug)]
struct About {
    key: QpKey,
    src_qpn: Qpn,
    imm: Option<u32>,
    solicited: bool,
}

/// Puts the payload of a packet that has passed every check into the next receive; returns its bytes.
#[inline(always)]
fn place<B: Buffer>(
    about: &About,
    ip: Ip<'_>,
    payload: &[u8],
    core: &mut Core<B>,
) -> Result<usize, DropReason> {
    let qp = core.qps.get_mut(about.key).ok_or(local(LocalDrop::UnknownQpn))?;
    let cq = core.cqs.get_mut(qp.recv_cq).ok_or(local(LocalDrop::CqFull))?;
    if qp.recv.is_empty() {
        qp.counters.no_receive += 1;
        return Err(local(LocalDrop::NoReceive));
    }
    if !cq.has_room() {
        return Err(local(LocalDrop::CqFull));
    }
    let Some(mut wr) = qp.recv.pop() else { return Err(local(LocalDrop::NoReceive)) };
    let byte_len = GRH_LEN + payload.len();
    let fits = wr.buf.capacity() >= byte_len;
    if fits {
        // The GRH area as roce_proto::wire::grh has it, without putting it together elsewhere first.
        match ip {
            Ip::V4(header) => {
                wr.buf.write(0, &[0; GRH_LEN - 20]);
                wr.buf.write(GRH_LEN - 20, header);
            }
            Ip::V6(header) => wr.buf.write(0, header),
        }
        wr.buf.write(GRH_LEN, payload);
        qp.counters.received += 1;
    }
    cq.push(Completion {
        wr_id: wr.wr_id,
        qpn: qp.qpn,
        opcode: WcOpcode::Recv,
        status: if fits { WcStatus::Success } else { WcStatus::LocalLengthError },
        byte_len: byte_len as u32,
        src_qpn: about.src_qpn,
        imm: about.imm,
        family: if ip.is_ipv6() { Family::V6 } else { Family::V4 },
        solicited: about.solicited,
        buf: Some(wr.buf),
    });
    if fits {
        return Ok(payload.len());
    }
    fail(about.key, core);
    Err(local(LocalDrop::ShortBuffer))
}

/// Headers of packets that were delivered, each with what to do with the next packet that has them.
pub(crate) struct Known {
    slots: Box<[Option<Flow>; KNOWN]>,
    misses: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    headers: Headers,
    epoch: u64,
    about: About,
}

/// Flows that are remembered: a busy endpoint has a few at a time.
const KNOWN: usize = 8;

/// One delivered packet in so many that were not recognised is learnt from, so that traffic from very many peers does not
/// pay for learning what it never uses.
const LEARN_ONE_IN: u32 = 8;

impl Known {
    pub fn new() -> Known {
        Known { slots: Box::new([None; KNOWN]), misses: 0 }
    }

    /// Flows known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Where a frame's flow may be: by header bytes that differ between flows; over IPv4, the low bytes of UDP source port
    /// and destination queue pair.
    #[inline]
    fn slot(frame: &[u8]) -> usize {
        match frame.first_chunk::<50>() {
            Some(head) => usize::from(head[35] ^ head[49]) % KNOWN,
            None => 0,
        }
    }

    /// Delivers a frame whose headers are known; `None` if they are not.
    #[inline(always)]
    fn deliver<B: Buffer>(&self, frame: &[u8], core: &mut Core<B>) -> Option<Result<usize, DropReason>> {
        let flow = self.slots[Known::slot(frame)].as_ref()?;
        if flow.epoch != core.epoch {
            return None;
        }
        let packet = flow.headers.recognise(frame)?;
        if !flow.headers.icrc_ok(&packet) {
            return Some(Err(local(LocalDrop::Icrc)));
        }
        Some(place(&flow.about, packet.ip, packet.payload, core))
    }

    /// Remembers a packet that passed every check, now and then.
    #[inline]
    fn learn(&mut self, frame: &[u8], packet: &Packet<'_>, about: &About, epoch: u64) {
        self.misses = self.misses.wrapping_add(1);
        if self.misses.is_multiple_of(LEARN_ONE_IN)
            && let Some(headers) = Headers::learn(frame, packet)
        {
            self.slots[Known::slot(frame)] = Some(Flow { headers, epoch, about: *about });
        }
    }
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
