//! One end of a throughput test: the messages it sends and those it receives.

use super::drive::{Buf, Drive};
use super::ease::{Ease, leave_alone};
use super::meter::Meter;
use crate::error::Error;
use crate::rendezvous::message::TestSpec;
use dataplane::ah::AhKey;
use dataplane::cq::{Completion, WcOpcode, WcStatus};
use dataplane::io::burst_of;
use dataplane::qp::{GRH_LEN, QpKey, SendWr};
use roce_proto::time::Instant;
use roce_proto::types::{QKey, Qpn};
use roce_proto::wire::ethernet::Header;
use roce_proto::wire::ud::overhead;
use std::time::Duration;

/// Q_Key of the data queue pairs: what perftest uses.
pub const DATA_QKEY: QKey = QKey(0x1111_1111);

/// Completions taken and messages posted in one round at the most: two DPDK bursts, so that neither side starves.
const PER_ROUND: usize = 64;

/// Bytes around a payload over IPv4, roughly those of a frame.
const FRAME: usize = Header::LEN + overhead(false, false);

/// The data queue pairs of one end, numbered consecutively.
#[derive(Clone, Debug)]
pub struct Qps {
    /// Their names.
    pub keys: Vec<QpKey>,
    /// The first one's number.
    pub base: Qpn,
}

/// What an end sends.
pub struct Sending {
    ah: AhKey,
    peer_base: Qpn,
    next_qp: usize,
    left: Option<u64>,
    until: Option<Instant>,
    started: Instant,
    rate: Option<u64>,
    posted: u64,
    /// Message memory; each message goes out from the next one. Empty where the worker has it.
    messages: Vec<Buf>,
    /// Which is next.
    next_message: usize,
    /// How many the worker has: those before the next. They come back in order.
    away: usize,
    done: bool,
}

impl Sending {
    /// Prepares to send as `spec` says to the queue pairs from `peer_base` on.
    pub fn new(spec: &TestSpec, ah: AhKey, peer_base: Qpn, now: Instant) -> Sending {
        let count = (spec.tx_depth as usize).saturating_mul(usize::from(spec.qps)).max(1);
        let size = spec.size as usize;
        let message = |i: usize| (0..size).map(|at| (at + i) as u8).collect();
        Sending {
            ah,
            peer_base,
            next_qp: 0,
            left: spec.iters,
            until: spec.duration_ms.map(|ms| now + Duration::from_millis(ms)),
            started: now,
            rate: spec.rate,
            posted: 0,
            messages: (0..count).map(message).collect(),
            next_message: 0,
            away: 0,
            done: false,
        }
    }

    /// Ends the sending now.
    pub fn end(&mut self) {
        self.done = true;
    }

    /// True when nothing more will be posted.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Messages posted.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// True when every buffer is back.
    pub fn all_back(&self) -> bool {
        self.away == 0
    }

    /// The worker gives a buffer back.
    fn back(&mut self, buf: Buf) {
        let count = self.messages.len();
        let slot = (self.next_message + count - self.away) % count;
        self.messages[slot] = buf;
        self.away = self.away.saturating_sub(1);
    }

    /// Messages that the rate limit and the quota allow at `now`.
    fn allowed(&mut self, now: Instant) -> u64 {
        if self.until.is_some_and(|until| now >= until) {
            self.done = true;
        }
        let mut allowed = PER_ROUND as u64;
        if let Some(left) = self.left {
            self.done |= self.posted >= left;
            allowed = allowed.min(left.saturating_sub(self.posted));
        }
        if let Some(rate) = self.rate {
            let due = now.saturating_since(self.started).as_secs_f64() * rate as f64;
            allowed = allowed.min((due as u64).saturating_sub(self.posted));
        }
        if self.done { 0 } else { allowed }
    }

    /// Posts what may be posted now; returns how many.
    #[inline(always)]
    fn post<D: Drive>(&mut self, drive: &mut D, qps: &Qps, size: usize, now: Instant) -> Result<u64, Error> {
        let allowed = self.allowed(now);
        let mut left = allowed as usize;
        while left > 0 && self.away < self.messages.len() {
            let index = self.next_qp;
            let dst_qpn = Qpn::new(self.peer_base.get() + index as u32).unwrap_or(Qpn::MAX);
            let wr = SendWr {
                wr_id: 0,
                ah: self.ah,
                dst_qpn,
                qkey: DATA_QKEY,
                imm: None,
                solicited: false,
                signaled: false,
            };
            // One queue pair takes a list; several take turns.
            let several = qps.keys.len() > 1;
            let free = self.messages.len() - self.away;
            let from = self.next_message;
            let count = if several { 1 } else { left.min(free).min(self.messages.len() - from) };
            let list = &mut self.messages[from..from + count];
            let (taken, away, error) = drive.send_list(qps.keys[index], &wr, size, list);
            self.posted += taken as u64;
            self.away += away;
            left -= taken;
            self.next_message = if from + taken == self.messages.len() { 0 } else { from + taken };
            match error {
                Some(e) if e.is_back_pressure() => {
                    leave_alone();
                    return Ok(allowed - left as u64);
                }
                Some(e) => return Err(Error::failed(e)),
                None => self.next_qp = if index + 1 == qps.keys.len() { 0 } else { index + 1 },
            }
        }
        Ok(allowed - left as u64)
    }
}

/// One end of a running test.
pub struct Flow {
    /// Our queue pairs.
    pub qps: Qps,
    size: usize,
    ease: Ease,
    /// What came.
    pub rx: Meter,
    /// What is to be sent.
    pub tx: Option<Sending>,
}

impl Flow {
    /// Posts the receives of `spec` on `qps`.
    pub fn open<D: Drive>(drive: &mut D, qps: Qps, spec: &TestSpec) -> Result<Flow, Error> {
        let size = spec.size as usize;
        for &qp in &qps.keys {
            for _ in 0..spec.rx_depth {
                let mut buf = vec![0; GRH_LEN + size].into_boxed_slice();
                // Behind queues, many receives meet back-pressure.
                loop {
                    match drive.recv(qp, 0, buf) {
                        Ok(()) => break,
                        Err((e, back)) if e.is_back_pressure() => {
                            buf = back;
                            drive.turn(false);
                        }
                        Err((e, _)) => return Err(Error::failed(e)),
                    }
                }
            }
        }
        drive.turn(true);
        let ease = Ease::new(size, burst_of(FRAME + size));
        Ok(Flow { qps, size, ease, rx: Meter::new(), tx: None })
    }

    /// Posts a receive again on the first queue pair.
    pub fn recv_again<D: Drive>(&self, drive: &mut D, buf: Buf) -> Result<(), Error> {
        let qp = *self.qps.keys.first().ok_or_else(|| Error::failed("no queue pair"))?;
        self.post_again(drive, qp, buf)
    }

    #[inline(always)]
    fn post_again<D: Drive>(&self, drive: &mut D, qp: QpKey, mut buf: Buf) -> Result<(), Error> {
        loop {
            match drive.recv(qp, 0, buf) {
                Ok(()) => return Ok(()),
                Err((e, back)) if e.is_back_pressure() => {
                    buf = back;
                    drive.turn(false);
                }
                Err((e, _)) => return Err(Error::failed(e)),
            }
        }
    }

    /// One round: completions, sends, packets. `control` gets the completions first and keeps its own. Returns whether there
    /// was anything to do.
    #[inline]
    pub fn round<D: Drive>(
        &mut self,
        drive: &mut D,
        control: &mut crate::rendezvous::Control,
    ) -> Result<bool, Error> {
        let mut busy = false;
        let sending = self.tx.as_ref().is_some_and(|tx| !tx.is_done());
        if let Some(tx) = self.tx.as_mut() {
            while let Some(buf) = drive.reclaim() {
                tx.back(buf);
            }
            busy |= tx.post(drive, &self.qps, self.size, drive.round_time())? > 0;
        }
        let mut received = 0;
        let mut bad = None;
        let take = |done: &mut Completion<Buf>| match (done.opcode, done.status) {
            (WcOpcode::Recv, WcStatus::Success) => {
                received += 1;
                true
            }
            // Sends are unsignaled; what is flushed is of queue pairs of the test before.
            (WcOpcode::Send, WcStatus::Success) | (_, WcStatus::WorkRequestFlushed) => false,
            (opcode, status) => {
                bad = Some((opcode, status));
                false
            }
        };
        let any = drive.turn_into(busy, PER_ROUND, control.qpn(), take);
        if let Some((opcode, status)) = bad {
            return Err(Error::failed(format_args!("a work request ({opcode:?}) completed with {status:?}")));
        }
        self.rx.add(received, drive.round_time());
        busy |= any;
        while let Some(done) = drive.aside() {
            busy = true;
            control.take_own(drive, done);
        }
        // A sender has its packets to look after, and a worker in a thread of its own its port.
        if D::IS_INLINE && !sending {
            self.ease.after(received);
        }
        Ok(busy)
    }
}
