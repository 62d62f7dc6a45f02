//! Posting sends and handing packets to the port.

use super::port::{Port, TxMeta};
use super::{Progress, Worker};
use crate::buffer::Buffer;
use crate::cq::{Completion, Cq, Family, WcOpcode, WcStatus};
use crate::io::{PacketBuf, PacketBurst, PortIo};
use crate::qp::{CqKey, PostError, Qp, QpKey, QpState, SendWr};
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
        let port = self.build(qp, wr, payload)?;
        self.transmit_if_full(port);
        Ok(())
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
        match self.build(qp, &wr, buf.bytes(len)) {
            Ok(port) => {
                if let Some(meta) = self.ports.get_mut(port).and_then(|p| p.meta.back_mut()) {
                    meta.buf = Some(buf);
                }
                self.transmit_if_full(port);
                Ok(())
            }
            Err(e) => Err((e, buf)),
        }
    }

    /// Builds the packet of a send and puts it at the end of its port's burst; returns the port.
    #[inline]
    fn build(&mut self, qp_key: QpKey, wr: &SendWr, payload: &[u8]) -> Result<usize, PostError> {
        let core = &mut self.core;
        let qp = core.qps.get_mut(qp_key).ok_or(PostError::NoQp)?;
        if qp.state != QpState::ReadyToSend {
            return Err(PostError::State(qp.state));
        }
        if qp.outstanding >= qp.send_depth {
            return Err(PostError::QueueFull { depth: qp.send_depth });
        }
        let ah = core.ahs.get_mut(wr.ah).filter(|a| a.port == qp.port).ok_or(PostError::NoAh)?;
        if !ah.ready {
            return Err(PostError::AddressUnresolved);
        }
        let port_index = qp.port;
        let port = self.ports.get_mut(port_index).ok_or(PostError::NoQp)?;
        if payload.len() > port.local.ib_mtu {
            return Err(PostError::TooLong { len: payload.len(), max: port.local.ib_mtu });
        }
        let cq = core.cqs.get_mut(qp.send_cq).ok_or(PostError::CqFull)?;
        if wr.signaled && !cq.has_room() {
            return Err(PostError::CqFull);
        }
        if port.tx.is_full() {
            // Settled at the next poll: here the borrow of the queue pair stands in the way, and a driver that just
            // refused would refuse again.
            port.local.counters.tx_busy += 1;
            return Err(PostError::PortBusy);
        }
        let Some(mut buf) = port.io.alloc() else {
            port.local.counters.tx_no_buffer += 1;
            return Err(PostError::NoBuffer);
        };
        if ah.follow_qp && ah.template.src_port() != qp.src_port {
            ah.template.set_src_port(qp.src_port);
        }
        let imm = wr.imm.is_some();
        let (at, frame_len) = (ah.template.header_len(imm), ah.template.frame_len(imm, payload.len()));
        // A pool whose buffers cannot hold the port's MTU is refused at the start, so this has room.
        let frame = buf.append(frame_len).ok_or(PostError::NoBuffer)?;
        frame.get_mut(at..at + payload.len()).ok_or(PostError::NoBuffer)?.copy_from_slice(payload);
        let send = Send {
            dst_qpn: wr.dst_qpn,
            src_qpn: qp.qpn,
            qkey: if wr.qkey.is_controlled() { qp.qkey } else { wr.qkey },
            pkey: qp.pkey,
            psn: qp.psn,
            imm: wr.imm,
            solicited: wr.solicited,
        };
        ah.template.emit(&send, payload.len(), frame).map_err(|_| PostError::NoBuffer)?;
        if let Some(capture) = &port.capture {
            capture.frame(frame);
        }
        port.tx.push(buf).map_err(|_| PostError::PortBusy)?;
        qp.psn = qp.psn.next();
        qp.outstanding += 1;
        if wr.signaled {
            cq.reserve();
        }
        port.meta.push_back(TxMeta {
            qp: Some(qp_key),
            control: false,
            signal: wr.signaled.then_some(qp.send_cq),
            frame_len: frame_len as u32,
            payload_len: payload.len() as u32,
            wr_id: wr.wr_id,
            buf: None,
        });
        Ok(port_index)
    }

    #[inline]
    fn transmit_if_full(&mut self, index: usize) {
        if self.ports.get(index).is_some_and(|p| p.tx.is_full()) {
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
        Progress { received: 0, sent }
    }
}

impl<I: PortIo, B> Port<I, B> {
    fn transmit(&mut self, qps: &mut SlotMap<QpKey, Qp<B>>, cqs: &mut SlotMap<CqKey, Cq<B>>) -> usize {
        let sent = self.io.tx_burst(&mut self.tx);
        let counters = &mut self.local.counters;
        for _ in 0..sent {
            let Some(meta) = self.meta.pop_front() else { break };
            if meta.control {
                counters.tx_control += 1;
                continue;
            }
            counters.tx_packets += 1;
            counters.tx_bytes += u64::from(meta.frame_len);
            let qp = meta.qp.and_then(|key| qps.get_mut(key));
            let cq = meta.signal.and_then(|key| cqs.get_mut(key));
            let qpn = qp.map(|qp| {
                qp.outstanding = qp.outstanding.saturating_sub(1);
                qp.counters.sent += 1;
                qp.qpn
            });
            let Some(cq) = cq else { continue };
            cq.unreserve();
            if let Some(qpn) = qpn {
                cq.push(Completion {
                    wr_id: meta.wr_id,
                    qpn,
                    opcode: WcOpcode::Send,
                    status: WcStatus::Success,
                    byte_len: meta.payload_len,
                    src_qpn: qpn,
                    imm: None,
                    family: Family::V4,
                    solicited: false,
                    buf: meta.buf,
                });
            }
        }
        sent
    }
}
