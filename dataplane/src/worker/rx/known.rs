//! Flows that were seen before: packets with a known flow's headers are checked and delivered by the run.

use super::super::core::Core;
use super::{About, Sink, Tally, fail, land, local, place};
use crate::buffer::Buffer;
use crate::counters::{Counters, LocalDrop};
use crate::cq::{Cq, WcStatus};
use crate::io::{BURST, PacketBuf, PacketBurst};
use crate::qp::Qp;
use roce_proto::wire::frame::{Ip, Packet};
use roce_proto::wire::predict::Headers;

/// Headers of packets that were delivered, each with what to do with the next packet that has them.
pub(crate) struct Known {
    slots: Box<[Option<Flow>; KNOWN]>,
    misses: u32,
}

struct Flow {
    headers: Headers,
    epoch: u64,
    about: About,
}

/// The packets at the front of a burst that have a flow's headers: how many, and one bit for each whose ICRC is right.
#[derive(Clone, Copy)]
struct Checked {
    run: usize,
    intact: u64,
}

/// What became of them.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// How many were looked at: all, or up to the one that found too short a receive.
    packets: usize,
    bytes: u64,
    delivered: u64,
    short_buffer: bool,
}

// The loops over a run are functions of their own: as parts of whoever polls they find every register taken, and what they
// need for each packet is then fetched from the stack.
impl Flow {
    /// Checks up to `batch` packets from `from` on, for as long as they have this flow's headers.
    #[inline(never)]
    fn check(&self, burst: &impl PacketBurst, from: usize, batch: usize) -> Checked {
        const { assert!(BURST <= u64::BITS as usize, "one bit for each packet of a burst") };
        let mut checked = Checked { run: 0, intact: 0 };
        while checked.run < batch
            && let Some(frame) = burst.get(from + checked.run).and_then(|buf| buf.contiguous())
            && let Some(ok) = self.headers.verify(frame)
        {
            checked.intact |= u64::from(ok) << checked.run;
            checked.run += 1;
        }
        checked
    }

    /// Delivers them to a sink that wants the completions of their receive queue while it may be passed: what a delivery does
    /// not change is looked up once.
    #[inline(never)]
    fn deliver_to<B: Buffer>(
        &self,
        burst: &impl PacketBurst,
        (from, checked): (usize, Checked),
        qp: &mut Qp<B>,
        counters: &mut Counters,
        sink: &mut impl Sink<B>,
    ) -> Seen {
        let Qp { qpn, recv, counters: of_qp, .. } = qp;
        let mut no_receive = 0;
        let seen = self.deliver_each(burst, (from, checked), counters, |ip, payload| {
            let placed = land(recv, *qpn, &self.about, ip, payload, |done| {
                let again = sink.take(done) && done.status == WcStatus::Success;
                done.buf.take().filter(|_| again)
            });
            no_receive += u64::from(placed == Err(LocalDrop::NoReceive));
            placed
        });
        of_qp.received += seen.delivered;
        of_qp.no_receive += no_receive;
        seen
    }

    /// Delivers them wherever they go.
    #[inline(never)]
    fn deliver<B: Buffer>(
        &self,
        burst: &impl PacketBurst,
        (from, checked): (usize, Checked),
        (qp, cq): (&mut Qp<B>, &mut Cq<B>),
        counters: &mut Counters,
        sink: &mut impl Sink<B>,
    ) -> Seen {
        self.deliver_each(burst, (from, checked), counters, |ip, payload| {
            place(qp, cq, &self.about, ip, payload, sink)
        })
    }

    #[inline(always)]
    fn deliver_each(
        &self,
        burst: &impl PacketBurst,
        (from, checked): (usize, Checked),
        counters: &mut Counters,
        mut place: impl FnMut(Ip<'_>, &[u8]) -> Result<(), LocalDrop>,
    ) -> Seen {
        let mut intact = checked.intact;
        let mut seen = Seen::default();
        while seen.packets < checked.run
            && let Some(frame) = burst.get(from + seen.packets).and_then(|buf| buf.contiguous())
            && let Some((ip, payload)) = self.headers.parts(frame)
        {
            let ok = intact & 1 != 0;
            intact >>= 1;
            seen.packets += 1;
            seen.bytes += frame.len() as u64;
            if !ok {
                counters.drop(local(LocalDrop::Icrc));
                continue;
            }
            match place(ip, payload) {
                Ok(()) => seen.delivered += 1,
                Err(reason) => {
                    counters.drop(local(reason));
                    if reason == LocalDrop::ShortBuffer {
                        seen.short_buffer = true;
                        break;
                    }
                }
            }
        }
        seen
    }
}

/// Flows that are remembered: a busy endpoint has a few at a time.
const KNOWN: usize = 8;

/// Bytes that are checked before they are delivered: a third of a first-level data cache of 48 KiB, half of one of 32.
const CHECKED_BYTES: usize = 16 * 1024;

/// One delivered packet in so many that were not recognised is learnt from, so that traffic from very many peers does not
/// pay for learning what it never uses.
const LEARN_ONE_IN: u32 = 8;

impl Known {
    pub fn new() -> Known {
        Known { slots: Box::new([const { None }; KNOWN]), misses: 0 }
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

    /// Delivers the packets of a burst from `from` on for as long as their headers are those of one known flow; returns how
    /// many they were. Each is counted.
    #[inline]
    pub(super) fn deliver_run<B: Buffer>(
        &self,
        burst: &impl PacketBurst,
        from: usize,
        core: &mut Core<B>,
        counters: &mut Counters,
        tally: &mut Tally,
        sink: &mut impl Sink<B>,
    ) -> usize {
        let frame_at = |i| burst.get(i).and_then(|buf| buf.contiguous());
        let Some(flow) = frame_at(from).and_then(|frame| self.slots[Known::slot(frame)].as_ref()) else {
            return 0;
        };
        if flow.epoch != core.epoch {
            return 0;
        }
        let Some(qp) = core.qps.get_mut(flow.about.key) else { return 0 };
        let Some(cq) = core.cqs.get_mut(qp.recv_cq) else { return 0 };
        // The checks of all packets first, then the deliveries: a CRC is a long chain of dependent steps, and with nothing but
        // the next packet's CRC behind it, a processor works on several of them at once.
        // Only as many as stay in the first-level cache until they are copied: large ones one by one.
        let batch = (CHECKED_BYTES / flow.headers.frame_len()).clamp(1, BURST).min(sink.left());
        let run = (from, flow.check(burst, from, batch));
        let wanted = sink.wants(qp.recv_cq) && cq.may_be_passed() && !sink.takes_packets(qp.recv_cq);
        let seen = if wanted {
            flow.deliver_to(burst, run, qp, counters, sink)
        } else {
            flow.deliver(burst, run, (qp, cq), counters, sink)
        };
        tally.bytes += seen.bytes;
        tally.delivered += seen.delivered;
        tally.delivered_bytes += seen.delivered * flow.headers.payload_len() as u64;
        if seen.short_buffer {
            fail(flow.about.key, core);
        }
        seen.packets
    }

    /// Remembers a packet that passed every check, now and then.
    #[inline]
    pub(super) fn learn(&mut self, frame: &[u8], packet: &Packet<'_>, about: &About, epoch: u64) {
        self.misses = self.misses.wrapping_add(1);
        if self.misses.is_multiple_of(LEARN_ONE_IN)
            && let Some(headers) = Headers::learn(frame, packet)
        {
            self.slots[Known::slot(frame)] = Some(Flow { headers, epoch, about: *about });
        }
    }
}
