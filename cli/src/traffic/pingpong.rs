//! One end of a latency test: one message in flight, back and forth.

use super::drive::{Buf, Drive};
use super::flow::{DATA_QKEY, Flow};
use crate::error::Error;
use crate::rendezvous::Control;
use crate::rendezvous::message::TestSpec;
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

/// Whether a round trip counts that begins after `made` others and so long after the test: a test of a given duration warms up for
/// a tenth of it at the most, or it would measure nothing over a long way.
pub fn is_warm(spec: &TestSpec, made: u64, elapsed: Duration) -> bool {
    let tenth = spec.duration_ms.map(|ms| Duration::from_millis(ms) / 10);
    made >= WARM_UP || tenth.is_some_and(|tenth| elapsed >= tenth)
}

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

    /// One round trip, which counts or not.
    pub fn ping<D: Drive>(
        &mut self,
        drive: &mut D,
        flow: &mut Flow,
        control: &mut Control,
        counts: bool,
    ) -> Result<(), Error> {
        let mark = Mark::of(self.sent, self.message.len());
        self.message.iter_mut().zip(mark.bytes()).for_each(|(byte, of)| *byte = *of);
        let started = drive.now();
        let message = std::mem::take(&mut self.message);
        let mut message = post(drive, flow, self.ah, self.peer, message)?;
        self.sent += 1;
        loop {
            let (mut received, mut ours) = (0, false);
            let turn = turn(drive, control, |payload| {
                received += 1;
                // A late answer to an earlier message is not this one's.
                ours |= payload.starts_with(mark.bytes());
            })?;
            message = message.or(turn.returned);
            if received > 0 {
                let now = drive.now();
                flow.rx.add(received, now);
                if ours {
                    if counts {
                        let rtt = now.saturating_since(started).as_nanos() as u64;
                        self.rtt.saturating_record(rtt);
                    }
                    self.message = reclaim(drive, control, flow, message)?;
                    return Ok(());
                }
            }
            if drive.round_time().saturating_since(started) > LOST_AFTER {
                self.lost += 1;
                self.message = reclaim(drive, control, flow, message)?;
                return Ok(());
            }
        }
    }
}

/// What tells a message from those before it: its number, as much of it as the message has room for. Only empty messages are all alike.
struct Mark {
    bytes: [u8; 8],
    len: usize,
}

impl Mark {
    /// That of a message of `size` bytes.
    fn of(number: u64, size: usize) -> Mark {
        // The low bytes first: of a short message they are all there is.
        Mark { bytes: number.to_le_bytes(), len: size.min(8) }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What one round brought beside messages.
struct Turn {
    busy: bool,
    /// A message's memory that the worker is done with.
    returned: Option<Buf>,
}

/// One round; `take` gets the payload of every message that came.
#[inline(always)]
fn turn<D: Drive>(drive: &mut D, control: &mut Control, mut take: impl FnMut(&[u8])) -> Result<Turn, Error> {
    /// There is one message in flight; more are late ones.
    const AT_ONCE: usize = 8;
    let (mut returned, mut bad) = (None, None);
    let busy = drive.turn_into(false, AT_ONCE, control.qpn(), |done| match (done.opcode, done.status) {
        (WcOpcode::Recv, WcStatus::Success) => {
            let bytes = done.buf.as_deref().and_then(|buf| buf.get(GRH_LEN..done.byte_len as usize));
            take(bytes.unwrap_or_default());
            true
        }
        (WcOpcode::Send, WcStatus::Success) => {
            returned = done.buf.take();
            false
        }
        (_, WcStatus::WorkRequestFlushed) => false,
        other => {
            bad = Some(other);
            false
        }
    });
    while let Some(done) = drive.aside() {
        control.take_own(drive, done);
    }
    match bad {
        None => Ok(Turn { busy, returned }),
        Some((opcode, status)) => {
            Err(Error::failed(format_args!("a work request ({opcode:?}) completed with {status:?}")))
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
    if let Some(message) = message {
        return Ok(message);
    }
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
    let mut deadline = None;
    let mut message = message;
    loop {
        match drive.send(flow.qps.keys[0], &wr, len, message) {
            Ok(back) => {
                drive.depart();
                return Ok(back);
            }
            Err((e, back)) if e.is_back_pressure() => {
                message = back;
                drive.turn(false);
                let now = drive.now();
                if now > *deadline.get_or_insert(now + 10 * LOST_AFTER) {
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
    /// The first bytes of messages to be answered, which tell them apart.
    heads: Vec<[u8; 8]>,
}

impl Echo {
    /// Prepares answers of `size` bytes to `peer`.
    pub fn new(ah: AhKey, peer: Qpn, size: usize) -> Echo {
        let free = (0..4).map(|_| vec![0; size].into_boxed_slice()).collect();
        Echo { answered: 0, ah, peer, free, heads: Vec::new() }
    }

    /// One round; returns whether there was anything to do.
    pub fn round<D: Drive>(
        &mut self,
        drive: &mut D,
        flow: &mut Flow,
        control: &mut Control,
    ) -> Result<bool, Error> {
        let heads = &mut self.heads;
        let turn = turn(drive, control, |payload| {
            let mut head = [0; 8];
            let n = payload.len().min(head.len());
            head[..n].copy_from_slice(&payload[..n]);
            heads.push(head);
        })?;
        self.free.extend(turn.returned);
        let received = self.heads.len() as u64;
        while let Some(head) = self.heads.pop() {
            // With every answer still on its way there is nothing to answer from: as good as lost.
            if let Some(mut answer) = self.free.pop() {
                let n = head.len().min(answer.len());
                answer[..n].copy_from_slice(&head[..n]);
                self.free.extend(post(drive, flow, self.ah, self.peer, answer)?);
                self.answered += 1;
            }
        }
        flow.rx.add(received, drive.round_time());
        Ok(turn.busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::message::TestKind;

    fn spec(iters: Option<u64>, duration_ms: Option<u64>) -> TestSpec {
        TestSpec {
            kind: TestKind::Lat,
            size: 64,
            qps: 1,
            iters,
            duration_ms,
            tx_depth: 64,
            rx_depth: 64,
            bidirectional: false,
            rate: None,
        }
    }

    #[test]
    fn warming_up_ends_with_enough_round_trips_or_a_tenth_of_the_time() {
        let ms = Duration::from_millis;
        let (lasting, counted) = (spec(None, Some(1000)), spec(Some(10), None));
        for (made, elapsed, warm) in
            [(0, ms(0), false), (199, ms(99), false), (200, ms(0), true), (0, ms(100), true)]
        {
            assert_eq!(is_warm(&lasting, made, elapsed), warm, "{made} in {elapsed:?}");
        }
        assert!(!is_warm(&counted, 199, ms(100_000)), "no time was given");
        assert!(is_warm(&counted, 200, ms(0)));
    }

    #[test]
    fn answers_to_earlier_messages_are_told_apart_however_short() {
        for size in [1, 2, 3, 7, 8, 64] {
            let message = |number| {
                let mut message = vec![0xee; size];
                message.iter_mut().zip(Mark::of(number, size).bytes()).for_each(|(byte, of)| *byte = *of);
                message
            };
            for number in [1, 255, 256, 300, 65_536] {
                assert!(message(number).starts_with(Mark::of(number, size).bytes()));
                assert!(!message(number - 1).starts_with(Mark::of(number, size).bytes()), "{size}: {number}");
            }
        }
        assert!(Mark::of(7, 0).bytes().is_empty());
    }
}
