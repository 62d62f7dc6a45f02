//! The ways that most posts take where an application posts one by one: as little as can be done for each. What is not as it mostly is,
//! takes the way of the other functions, which also say why something is refused.

use super::Worker;
use crate::buffer::Buffer;
use crate::io::{PacketBuf, PortIo};
use crate::qp::{QpKey, RecvWr, SendWr};

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Posts a send as [`Worker::post_send_with`] does, if it is unsignaled, like the one before, and goes on with a burst that this has
    /// begun or gone on with. False, and nothing done, in all other cases, whatever the reason.
    #[inline(always)]
    pub fn post_send_quickly(
        &mut self,
        qp_key: QpKey,
        wr: SendWr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let core = &mut self.core;
        let Some(qp) = core.qps.get_mut(qp_key) else { return false };
        let Some(last) = qp.last_sent.as_deref() else { return false };
        if wr.signaled || qp.outstanding >= qp.send_depth || !last.fits(&wr, len, core.epoch) {
            return false;
        }
        let index = qp.port;
        let Some(port) = self.ports.get_mut(index) else { return false };
        let frame_len = last.headers.frame_len();
        if !port.goes_on(qp_key, frame_len) {
            return false;
        }
        let Some(mut buf) = port.io.alloc() else { return false };
        let at = last.headers.len();
        let Some(frame) = buf.append(frame_len) else { return false };
        let Some(place) = frame.get_mut(at..at + len) else { return false };
        fill(place);
        if last.headers.fill(qp.psn, frame).is_err() {
            return false;
        }
        qp.psn = qp.psn.next();
        qp.outstanding += 1;
        if port.go_on(buf) {
            self.transmit(index);
        }
        true
    }

    /// Posts a receive as [`Worker::post_recv`] does, if its queue pair can receive and has room. False, and nothing done, in all other
    /// cases. `buf` is called only if it is taken.
    #[inline(always)]
    pub fn post_recv_quickly(&mut self, qp: QpKey, wr_id: u64, buf: impl FnOnce() -> B) -> bool {
        match self.core.qps.get_mut(qp) {
            Some(qp) if qp.may_receive() && !qp.recv.is_full() => {
                qp.recv.push(RecvWr { wr_id, buf: buf() }).is_ok()
            }
            _ => false,
        }
    }
}
