//! Posting sends and handing packets to the port.

use super::port::{Port, Signal};
use super::{Progress, Worker, flushed};
use crate::ah::Ah;
use crate::buffer::Buffer;
use crate::cq::{Completion, Cq, Family, WcOpcode, WcStatus};
use crate::io::{PacketBuf, PacketBurst, PortIo};
use crate::qp::{CqKey, LastSent, PostError, Qp, QpKey, QpState, SendWr};
use roce_proto::types::Qpn;
use roce_proto::wire::predict::Headers;
use roce_proto::wire::ud::Send;
use slotmap::SlotMap;

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Posts a send of `payload`, which is copied into a packet at once: the memory is free again when this returns. The
    /// packet leaves with the burst it fills, or with the next [`Worker::poll`]; a signaled send completes when the driver
    /// took it.
    ///
    /// # Errors
    /// Nothing was queued; see [`PostError::is_back_pressure`] for those worth trying again after a poll.
    #[inline]
    pub fn post_send(&mut self, qp: QpKey, wr: &SendWr, payload: &[u8]) -> Result<(), PostError> {
        let port = self.build(qp, wr, payload.len(), |place| place.copy_from_slice(payload))?;
        self.transmit_if_full(port);
        Ok(())
    }

    /// Posts a send of `len` bytes that `fill` writes to their place in the packet: for a message that lies in pieces, or in
    /// memory that is no slice. `fill` is called once, with exactly `len` bytes of any content, and only if the send is taken.
    ///
    /// # Errors
    /// As [`Worker::post_send`].
    #[inline]
    pub fn post_send_with(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PostError> {
        let port = self.build(qp, wr, len, fill)?;
        self.transmit_if_full(port);
        Ok(())
    }

    /// Completes a send that was never posted: for a caller that keeps sends of its own in front of the queue pair's, and has
    /// to give them up. It always completes, as what fails does.
    ///
    /// # Errors
    /// [`PostError::CqFull`] is back-pressure; a queue pair or completion queue that is gone.
    pub fn fail_send(&mut self, qp: QpKey, wr_id: u64, status: WcStatus) -> Result<(), PostError> {
        let qp = self.core.qps.get(qp).ok_or(PostError::NoQp)?;
        let cq = self.core.cqs.get_mut(qp.send_cq).filter(|cq| cq.has_room()).ok_or(PostError::CqFull)?;
        cq.push(Completion { status, ..flushed(qp.qpn, WcOpcode::Send, wr_id, None) });
        Ok(())
    }

    /// Posts a list of sends that differ in nothing but their payloads, as a list of work requests does in the verbs; each as
    /// [`Worker::post_send`] does it, at less cost: what they have in common is checked and looked up once a burst. Returns
    /// how many were taken, and why no more.
    #[inline]
    pub fn post_send_list<P: AsRef<[u8]>>(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        payloads: &[P],
    ) -> (usize, Option<PostError>) {
        self.post_each(qp, wr, payloads, P::as_ref)
    }

    /// The same for the first `len` bytes of buffers, each of which has that many.
    pub(crate) fn post_send_bufs(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        bufs: &[B],
    ) -> (usize, Option<PostError>) {
        self.post_each(qp, wr, bufs, |buf| buf.bytes(len))
    }

    #[inline(always)]
    fn post_each<P>(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        payloads: &[P],
        bytes: impl Fn(&P) -> &[u8],
    ) -> (usize, Option<PostError>) {
        let mut rest = payloads;
        while let Some((first, others)) = rest.split_first() {
            let first = bytes(first);
            let port = match self.build(qp, wr, first.len(), |place| place.copy_from_slice(first)) {
                Ok(port) => port,
                Err(e) => return (payloads.len() - rest.len(), Some(e)),
            };
            let mut payloads = others.iter().map(&bytes);
            let more = self.build_more(qp, wr, others.len(), |place| match payloads.next() {
                Some(payload) if payload.len() == place.len() => {
                    place.copy_from_slice(payload);
                    true
                }
                _ => false,
            });
            rest = others.get(more..).unwrap_or_default();
            self.transmit_if_full(port);
        }
        (payloads.len(), None)
    }

    /// Posts more sends that differ from the one that was posted last in nothing but their payloads, `wr` being what it was: up to `max`, as
    /// far as there is room. `fill` writes each to its place in the packet, which is as long as the last one's; if it
    /// returns false, that one is not sent, and none after it. Returns how many were posted.
    ///
    /// For lists of work requests whose payloads are no slices: what they have in common is looked up once. Whatever stands in the way
    /// of the next one, [`Worker::post_send_with`] says.
    #[inline]
    pub fn post_send_more(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        max: usize,
        fill: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        let built = self.build_more(qp, wr, max, fill);
        if built > 0
            && let Some(port) = self.core.qps.get(qp).map(|qp| qp.port)
        {
            self.transmit_if_full(port);
        }
        built
    }

    /// Builds packets like the one that was built last, up to `max`, as many as `fill` takes and as there is room for.
    ///
    /// A function of its own: as part of whoever posts, the loop finds every register taken.
    #[inline(never)]
    fn build_more(
        &mut self,
        qp_key: QpKey,
        wr: &SendWr,
        max: usize,
        mut fill: impl FnMut(&mut [u8]) -> bool,
    ) -> usize {
        if wr.signaled {
            return 0;
        }
        let core = &mut self.core;
        let Some(qp) = core.qps.get_mut(qp_key) else { return 0 };
        let Some(port) = self.ports.get_mut(qp.port) else { return 0 };
        let Some(last) = qp.last_sent.as_deref() else { return 0 };
        if !last.fits(wr, last.headers.payload_len(), core.epoch) {
            return 0;
        }
        let (at, len, frame_len) = (last.headers.len(), last.headers.payload_len(), last.headers.frame_len());
        let room = port.tx_room(frame_len);
        let room = (qp.send_depth - qp.outstanding).min(room as u32) as usize;
        let mut psn = qp.psn;
        let mut built = 0;
        while built < room.min(max) {
            let Some(mut buf) = port.io.alloc() else { break };
            let Some(frame) = buf.append(frame_len) else { break };
            let Some(place) = frame.get_mut(at..at + len) else { break };
            if !fill(place) || last.headers.fill(psn, frame).is_err() {
                break;
            }
            if port.push_unsealed(qp_key, &last.headers, buf).is_err() {
                break;
            }
            psn = psn.next();
            built += 1;
        }
        qp.psn = psn;
        qp.outstanding += built as u32;
        port.runs.note_more(Some(qp_key), frame_len, built as u32);
        built
    }

    /// Posts a send from a buffer that comes back with the completion, which therefore is always produced.
    pub(crate) fn post_send_owned(
        &mut self,
        qp: QpKey,
        wr: &SendWr,
        len: usize,
        buf: B,
    ) -> Result<(), (PostError, B)> {
        let wr = SendWr { signaled: true, ..*wr };
        if len > buf.capacity() {
            return Err((PostError::TooLong { len, max: buf.capacity() }, buf));
        }
        match self.build(qp, &wr, len, |place| place.copy_from_slice(buf.bytes(len))) {
            Ok(port) => {
                let last = self.ports.get_mut(port).and_then(|p| p.runs.back_mut());
                if let Some(signal) = last.and_then(|run| run.signal.as_mut()) {
                    signal.buf = Some(buf);
                }
                self.transmit_if_full(port);
                Ok(())
            }
            Err(e) => Err((e, buf)),
        }
    }

    /// Builds the packet of a send and puts it at the end of its port's burst; returns the port.
    #[inline]
    fn build(
        &mut self,
        qp_key: QpKey,
        wr: &SendWr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<usize, PostError> {
        let core = &mut self.core;
        let qp = core.qps.get_mut(qp_key).ok_or(PostError::NoQp)?;
        let like_last = qp.last_sent.as_deref().is_some_and(|last| last.fits(wr, len, core.epoch));
        // A send like the last one passes the checks that the last one passed: what they depend on changes the epoch.
        if !like_last {
            if qp.state != QpState::ReadyToSend {
                return Err(PostError::State(qp.state));
            }
            let ah = core.ahs.get(wr.ah).filter(|a| usize::from(a.port) == qp.port).ok_or(PostError::NoAh)?;
            if !ah.ready {
                return Err(PostError::AddressUnresolved);
            }
        }
        if qp.outstanding >= qp.send_depth {
            return Err(PostError::QueueFull { depth: qp.send_depth });
        }
        let port_index = qp.port;
        let port = self.ports.get_mut(port_index).ok_or(PostError::NoQp)?;
        if len > port.local.ib_mtu {
            return Err(PostError::TooLong { len, max: port.local.ib_mtu });
        }
        if wr.signaled && !core.cqs.get(qp.send_cq).is_some_and(|cq| cq.has_room()) {
            return Err(PostError::CqFull);
        }
        if port.tx_is_full() {
            // Settled at the next poll: here the borrow of the queue pair stands in the way, and a driver that just
            // refused would refuse again.
            port.local.counters.tx_busy += 1;
            return Err(PostError::PortBusy);
        }
        let Some(mut buf) = port.io.alloc() else {
            port.local.counters.tx_no_buffer += 1;
            return Err(PostError::NoBuffer);
        };
        // Once a burst is enough for those who look after neighbours.
        if (!like_last || port.tx.is_empty())
            && let Some(ah) = core.ahs.get_mut(wr.ah)
        {
            ah.used = true;
        }
        let frame_len = match qp.last_sent.as_deref().filter(|_| like_last) {
            Some(last) => {
                let frame_len = last.headers.frame_len();
                // A pool whose buffers cannot hold the port's MTU is refused at the start, so this has room.
                let frame = buf.append(frame_len).ok_or(PostError::NoBuffer)?;
                let at = last.headers.len();
                fill(frame.get_mut(at..at + len).ok_or(PostError::NoBuffer)?);
                last.headers.fill(qp.psn, frame).map_err(|_| PostError::NoBuffer)?;
                port.push_unsealed(qp_key, &last.headers, buf).map_err(|_| PostError::PortBusy)?;
                frame_len
            }
            None => {
                let ah = core.ahs.get_mut(wr.ah).ok_or(PostError::NoAh)?;
                let frame_len = build_whole(qp, ah, wr, len, fill, &mut buf, core.epoch)?;
                // A capture has them in the order in which they leave.
                port.seal();
                if let Some(capture) = &port.capture {
                    capture.frame(buf.contiguous().unwrap_or_default());
                }
                port.tx.push(buf).map_err(|_| PostError::PortBusy)?;
                frame_len
            }
        };
        qp.psn = qp.psn.next();
        qp.outstanding += 1;
        port.tx_room(frame_len);
        let signal = wr.signaled.then(|| Signal {
            cq: qp.send_cq,
            wr_id: wr.wr_id,
            payload_len: len as u32,
            buf: None,
        });
        if let Some(signal) = &signal
            && let Some(cq) = core.cqs.get_mut(signal.cq)
        {
            cq.reserve();
        }
        port.runs.note(Some(qp_key), false, frame_len, signal);
        Ok(port_index)
    }

    #[inline]
    fn transmit_if_full(&mut self, index: usize) {
        if self.ports.get(index).is_some_and(|p| p.tx_is_full()) {
            self.transmit(index);
        }
    }

    /// Offers what waits on port `index` to its driver.
    #[inline]
    pub(super) fn transmit(&mut self, index: usize) -> usize {
        match self.ports.get_mut(index) {
            Some(port) if !port.tx.is_empty() => port.transmit(&mut self.core.qps, &mut self.core.cqs),
            _ => 0,
        }
    }

    /// Hands everything that waits to the ports now instead of at the next poll. Returns what they took.
    pub fn flush(&mut self) -> Progress {
        let sent = (0..self.ports.len()).map(|i| self.transmit(i)).sum();
        Progress { sent, ..Progress::default() }
    }
}

impl<I: PortIo, B> Port<I, B> {
    fn transmit(&mut self, qps: &mut SlotMap<QpKey, Qp<B>>, cqs: &mut SlotMap<CqKey, Cq<B>>) -> usize {
        self.seal();
        let sent = self.io.tx_burst(&mut self.tx);
        let mut left = sent as u32;
        while left > 0 {
            let Some(run) = self.runs.front_mut() else { break };
            let taken = run.count.min(left);
            left -= taken;
            run.count -= taken;
            let counters = &mut self.local.counters;
            if run.control {
                counters.tx_control += u64::from(taken);
            } else {
                counters.tx_packets += u64::from(taken);
                counters.tx_bytes += u64::from(taken) * u64::from(run.frame_len);
            }
            let qpn = run.qp.and_then(|key| qps.get_mut(key)).map(|qp| {
                qp.outstanding = qp.outstanding.saturating_sub(taken);
                qp.counters.sent += u64::from(taken);
                qp.qpn
            });
            if run.count == 0
                && let Some(signal) = self.runs.pop().and_then(|run| run.signal)
            {
                complete(signal, qpn, cqs);
            }
        }
        sent
    }
}

/// Builds a packet from its address handle's template, and remembers its headers for the next of its kind. Returns the
/// length of the frame.
fn build_whole<B>(
    qp: &mut Qp<B>,
    ah: &mut Ah,
    wr: &SendWr,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
    buf: &mut impl PacketBuf,
    epoch: u64,
) -> Result<usize, PostError> {
    if ah.follow_qp && ah.template.src_port() != qp.src_port {
        ah.template.set_src_port(qp.src_port);
    }
    let imm = wr.imm.is_some();
    let (at, frame_len) = (ah.template.header_len(imm), ah.template.frame_len(imm, len));
    let frame = buf.append(frame_len).ok_or(PostError::NoBuffer)?;
    fill(frame.get_mut(at..at + len).ok_or(PostError::NoBuffer)?);
    let send = Send {
        dst_qpn: wr.dst_qpn,
        src_qpn: qp.qpn,
        qkey: if wr.qkey.is_controlled() { qp.qkey } else { wr.qkey },
        pkey: qp.pkey,
        psn: qp.psn,
        imm: wr.imm,
        solicited: wr.solicited,
    };
    ah.template.emit(&send, len, frame).map_err(|_| PostError::NoBuffer)?;
    let predictable = !imm && !ah.template.is_tagged();
    let headers = predictable.then(|| Headers::of_emitted(frame, ah.template.is_ipv6(), len)).flatten();
    let remember = |headers| LastSent {
        epoch,
        ah: wr.ah,
        dst_qpn: wr.dst_qpn,
        qkey: wr.qkey,
        solicited: wr.solicited,
        headers,
    };
    match (headers, &mut qp.last_sent) {
        // In place: the box is made once per queue pair.
        (Some(headers), Some(last)) => **last = remember(headers),
        (Some(headers), none) => *none = Some(Box::new(remember(headers))),
        (None, _) => {}
    }
    Ok(frame_len)
}

/// A signaled send was taken by the driver.
fn complete<B>(signal: Signal<B>, qpn: Option<Qpn>, cqs: &mut SlotMap<CqKey, Cq<B>>) {
    let Some(cq) = cqs.get_mut(signal.cq) else { return };
    cq.unreserve();
    // No completion of a queue pair that is gone.
    let Some(qpn) = qpn else { return };
    cq.push(Completion {
        wr_id: signal.wr_id,
        qpn,
        opcode: WcOpcode::Send,
        status: WcStatus::Success,
        byte_len: signal.payload_len,
        src_qpn: qpn,
        imm: None,
        family: Family::V4,
        solicited: false,
        buf: signal.buf,
    });
}
