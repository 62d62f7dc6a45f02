//! One end of a latency test: one message in flight, back and forth.

use super::drive::{Buf, Drive};
use super::flow::{DATA_QKEY, Flow};
use crate::error::Error;
use crate::rendezvous::Control;
use dataplane::ah::AhKey;
use dataplane::cq::{WcOpcode, WcStatus};
use dataplane::qp::{GRH_LEN, SendWr};
use hdrhistogram::Histogram;
use roce_proto::types::Qpn;
use std::time::Duration;

/// A message that has not come back for so long is lost: far above any sane round trip, far below patience.
pub const LOST_AFTER: Duration = Duration::from_millis(200);

/// Round trips that are made first and not counted: caches, neighbours and clocks settle.
pub const WARM_UP: u64 = 200;

/// The state of the client's end.
pub struct Pinger {
    /// Round trips in nanoseconds.
    pub rtt: Histogram<u64>,
    /// Messages that did not come back.
    pub lost: u64,
    /// Messages sent, those for warming up included.
    pub sent: u64,
    message: Buf,
    ah: AhKey,
    peer: Qpn,
}

impl Pinger {
    /// Prepares messages of `size` bytes to `peer`.
    pub fn new(ah: AhKey, peer: Qpn, size: usize) -> Result<Pinger, Error> {
        // One nanosecond to an hour, three significant digits.
        let rtt = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).map_err(Error::failed)?;
        let message = (0..size).map(|i| i as u8).collect();
        Ok(Pinger { rtt, lost: 0, sent: 0, message, ah, peer })
    }

    /// One round trip.
    pub fn ping<D: Drive>(
        &mut self,
        drive: &mut D,
        flow: &mut Flow,
        control: &mut Control,
    ) -> Result<(), Error> {
        let sequence = self.sent.to_be_bytes();
        if let Some(head) = self.message.first_chunk_mut() {
            *head = sequence;
        }
        let started = drive.now();
        let message = std::mem::take(&mut self.message);
        let mut message = post(drive, flow, self.ah, self.peer, message)?;
        self.sent += 1;
        loop {
            while let Some(done) = drive.complete() {
                let Some(mut done) = control.take(drive, done) else { continue };
                match (done.opcode, done.status, done.buf.take()) {
                    (WcOpcode::Recv, WcStatus::Success, Some(buf)) => {
                        let now = drive.now();
                        let payload = buf.get(GRH_LEN..done.byte_len as usize).unwrap_or_default();
                        // A late answer to an earlier message is not this one's; below 8 bytes nothing tells them apart.
                        let ours = payload.first_chunk::<8>().is_none_or(|s| *s == sequence);
                        flow.rx.add(1, now);
                        flow.recv_again(drive, buf)?;
                        if ours {
                            if self.sent > WARM_UP {
                                let rtt = now.saturating_since(started).as_nanos() as u64;
                                self.rtt.saturating_record(rtt);
                            }
                            self.message = reclaim(drive, control, flow, message)?;
                            return Ok(());
                        }
                    }
                    (WcOpcode::Send, WcStatus::Success, buf) => message = message.or(buf),
                    (_, WcStatus::WorkRequestFlushed, _) => {}
                    (opcode, status, _) => {
                        return Err(Error::failed(format_args!(
                            "a work request ({opcode:?}) completed with {status:?}"
                        )));
                    }
                }
            }
            drive.turn(false);
            if drive.now().saturating_since(started) > LOST_AFTER {
                self.lost += 1;
                self.message = reclaim(drive, control, flow, message)?;
                return Ok(());
            }
        }
    }
}

/// The message's memory, once the worker has given it back.
fn reclaim<D: Drive>(
    drive: &mut D,
    control: &mut Control,
    flow: &mut Flow,
    mut message: Option<Buf>,
) -> Result<Buf, Error> {
    let deadline = drive.now() + 10 * LOST_AFTER;
    loop {
        if let Some(message) = message {
            return Ok(message);
        }
        match drive.complete() {
            Some(done) => {
                let Some(done) = control.take(drive, done) else { continue };
                match (done.opcode, done.buf) {
                    (WcOpcode::Send, buf) => message = buf,
                    (WcOpcode::Recv, Some(buf)) => flow.recv_again(drive, buf)?,
                    (WcOpcode::Recv, None) => {}
                }
            }
            None => {
                if drive.now() > deadline {
                    return Err(Error::failed("the port takes no packets: is the other side still there?"));
                }
                drive.turn(false);
            }
        }
    }
}

fn post<D: Drive>(
    drive: &mut D,
    flow: &Flow,
    ah: AhKey,
    peer: Qpn,
    message: Buf,
) -> Result<Option<Buf>, Error> {
    let wr =
        SendWr { wr_id: 0, ah, dst_qpn: peer, qkey: DATA_QKEY, imm: None, solicited: false, signaled: false };
    let len = message.len();
    let deadline = drive.now() + 10 * LOST_AFTER;
    let mut message = message;
    loop {
        match drive.send(flow.qps.keys[0], &wr, len, message) {
            Ok(back) => {
                drive.turn(true);
                return Ok(back);
            }
            Err((e, back)) if e.is_back_pressure() => {
                message = back;
                drive.turn(false);
                if drive.now() > deadline {
                    return Err(Error::failed(format_args!("the port takes no packets: {e}"))
                        .hint("is the other side still there, and the link up?"));
                }
            }
            Err((e, _)) => return Err(Error::failed(e)),
        }
    }
}

/// The server's end: sends every message back.
pub struct Echo {
    /// Messages sent back.
    pub answered: u64,
    ah: AhKey,
    peer: Qpn,
    /// Memory to answer from.
    free: Vec<Buf>,
}

impl Echo {
    /// Prepares answers of `size` bytes to `peer`.
    pub fn new(ah: AhKey, peer: Qpn, size: usize) -> Echo {
        Echo { answered: 0, ah, peer, free: (0..4).map(|_| vec![0; size].into_boxed_slice()).collect() }
    }

    /// One round; returns whether there was anything to do.
    pub fn round<D: Drive>(
        &mut self,
        drive: &mut D,
        flow: &mut Flow,
        control: &mut Control,
    ) -> Result<bool, Error> {
        let mut busy = false;
        while let Some(done) = drive.complete() {
            busy = true;
            let Some(mut done) = control.take(drive, done) else { continue };
            match (done.opcode, done.status, done.buf.take()) {
                (WcOpcode::Recv, WcStatus::Success, Some(buf)) => {
                    let now = drive.now();
                    flow.rx.add(1, now);
                    let payload = buf.get(GRH_LEN..done.byte_len as usize).unwrap_or_default();
                    // With every answer still on its way there is nothing to answer from: as good as lost.
                    if let Some(mut answer) = self.free.pop() {
                        let n = payload.len().min(8).min(answer.len());
                        answer[..n].copy_from_slice(&payload[..n]);
                        self.free.extend(post(drive, flow, self.ah, self.peer, answer)?);
                        self.answered += 1;
                    }
                    flow.recv_again(drive, buf)?;
                }
                (WcOpcode::Send, WcStatus::Success, buf) => self.free.extend(buf),
                (_, WcStatus::WorkRequestFlushed, _) => {}
                (opcode, status, _) => {
                    return Err(Error::failed(format_args!(
                        "a work request ({opcode:?}) completed with {status:?}"
                    )));
                }
            }
        }
        drive.turn(busy);
        Ok(busy)
    }
}
