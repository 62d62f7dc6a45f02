//! The worker's tables: queue pairs, completion queues, address handles. Nothing here is generic over the packet IO.

use super::WorkerConfig;
use crate::ah::{Ah, AhKey};
use crate::cq::{Completion, Cq, Family, WcOpcode, WcStatus};
use crate::entropy::EntropyRange;
use crate::group::QpnRange;
use crate::qp::{CqKey, PostError, Qp, QpChange, QpConfig, QpCounters, QpError, QpKey, QpState, RecvWr};
use crate::ring::Ring;
use roce_proto::types::{PKey, Psn, Qpn};
use roce_proto::wire::ethernet::MacAddr;
use slotmap::SlotMap;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash for 24-bit numbers: one multiplication (Fibonacci hashing). Numbers are ours to hand out, so that a peer cannot
/// choose ones that collide; one that an application chooses hurts only itself.
#[derive(Default)]
pub(crate) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u32(u32::from(b));
        }
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

pub(crate) struct Core<B> {
    pub qps: SlotMap<QpKey, Qp<B>>,
    pub cqs: SlotMap<CqKey, Cq<B>>,
    pub ahs: SlotMap<AhKey, Ah>,
    pub max_ahs: usize,
    max_qps: usize,
    by_qpn: HashMap<u32, QpKey, BuildHasherDefault<QpnHasher>>,
    /// The last queue pair that a packet was for: traffic comes in runs.
    last: Option<(Qpn, QpKey)>,
    next_qpn: u32,
    qpns: QpnRange,
    /// Queue pairs in the error state with receives that still have to complete.
    flushing: Vec<QpKey>,
    rng: fastrand::Rng,
    /// Changes with everything that a remembered packet's fate, or its headers, depended on; see [`Core::touch`].
    pub epoch: u64,
}

impl<B> Core<B> {
    pub fn new(config: &WorkerConfig) -> Core<B> {
        Core {
            qps: SlotMap::with_key(),
            cqs: SlotMap::with_key(),
            ahs: SlotMap::with_key(),
            max_ahs: config.max_ahs,
            max_qps: config.max_qps,
            by_qpn: HashMap::default(),
            last: None,
            next_qpn: config.first_qpn.get().max(config.qpns.first).min(config.qpns.last),
            qpns: config.qpns,
            flushing: Vec::new(),
            rng: fastrand::Rng::with_seed(config.seed),
            epoch: 0,
        }
    }

    /// Queue pairs or address handles changed: what was remembered of packets is no longer true.
    pub fn touch(&mut self) {
        self.epoch += 1;
        self.last = None;
    }

    pub fn create_qp(
        &mut self,
        config: &QpConfig,
        pkeys: &[PKey],
        entropy: EntropyRange,
    ) -> Result<QpKey, QpError> {
        if !self.cqs.contains_key(config.send_cq) || !self.cqs.contains_key(config.recv_cq) {
            return Err(QpError::NoCq);
        }
        if config.send_depth == 0 || config.recv_depth == 0 {
            return Err(QpError::ZeroDepth);
        }
        if self.qps.len() >= self.max_qps {
            return Err(QpError::TooMany(self.max_qps));
        }
        let pkey = *pkeys.get(usize::from(config.pkey_index)).ok_or(QpError::NoPKey(config.pkey_index))?;
        let qpn = match config.qpn {
            Some(qpn) if !QpnRange::ALL.contains(qpn.get()) => return Err(QpError::QpnReserved(qpn.get())),
            Some(qpn) if !self.qpns.contains(qpn.get()) => {
                let QpnRange { first, last } = self.qpns;
                return Err(QpError::QpnOfAnother { qpn: qpn.get(), first, last });
            }
            Some(qpn) if self.by_qpn.contains_key(&qpn.get()) => return Err(QpError::QpnTaken(qpn.get())),
            Some(qpn) => qpn,
            None => self.free_qpn()?,
        };
        let psn = config.psn.unwrap_or_else(|| Psn::from_low_bits(self.rng.u32(..)));
        let key = self.qps.insert(Qp {
            qpn,
            state: QpState::Reset,
            port: config.port,
            qkey: config.qkey,
            pkey,
            psn,
            src_port: entropy.port(qpn, 0),
            send_cq: config.send_cq,
            recv_cq: config.recv_cq,
            send_depth: config.send_depth,
            outstanding: 0,
            recv: Ring::new(config.recv_depth as usize),
            counters: QpCounters::default(),
            last_sent: None,
        });
        self.by_qpn.insert(qpn.get(), key);
        Ok(key)
    }

    fn free_qpn(&mut self) -> Result<Qpn, QpError> {
        // max_qps bounds how many can be taken, so this ends after at most that many steps.
        for _ in 0..=self.qps.len() {
            let candidate = self.next_qpn;
            self.next_qpn = if candidate >= self.qpns.last { self.qpns.first } else { candidate + 1 };
            if !self.by_qpn.contains_key(&candidate) {
                return Qpn::new(candidate).ok_or(QpError::QpnReserved(candidate));
            }
        }
        Err(QpError::TooMany(self.qps.len()))
    }

    pub fn destroy_qp(&mut self, key: QpKey) -> Result<(), QpError> {
        self.forget_work(key)?;
        let qp = self.qps.remove(key).ok_or(QpError::NoQp)?;
        self.by_qpn.remove(&qp.qpn.get());
        self.touch();
        Ok(())
    }

    fn forget_work(&mut self, key: QpKey) -> Result<(), QpError> {
        let qp = self.qps.get_mut(key).ok_or(QpError::NoQp)?;
        qp.recv.clear();
        qp.outstanding = 0;
        self.flushing.retain(|k| *k != key);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.remove_qp(qp.qpn);
            }
        }
        Ok(())
    }

    pub fn modify_qp(&mut self, key: QpKey, to: QpState) -> Result<(), QpError> {
        let qp = self.qps.get_mut(key).ok_or(QpError::NoQp)?;
        let from = qp.state;
        if !from.may_become(to) {
            return Err(QpError::Transition { from, to });
        }
        qp.state = to;
        self.touch();
        match to {
            QpState::Error => self.start_flush(key),
            QpState::Reset => self.forget_work(key)?,
            _ => {}
        }
        Ok(())
    }

    pub fn change_qp(&mut self, key: QpKey, change: QpChange, pkeys: &[PKey]) -> Result<(), QpError> {
        let qp = self.qps.get_mut(key).ok_or(QpError::NoQp)?;
        if let Some(index) = change.pkey_index {
            qp.pkey = *pkeys.get(usize::from(index)).ok_or(QpError::NoPKey(index))?;
        }
        qp.qkey = change.qkey.unwrap_or(qp.qkey);
        qp.psn = change.psn.unwrap_or(qp.psn);
        self.touch();
        Ok(())
    }

    /// Finds the queue pair with a number.
    #[inline(always)]
    pub fn find(&mut self, qpn: Qpn) -> Option<QpKey> {
        if let Some((last, key)) = self.last
            && last == qpn
        {
            return Some(key);
        }
        let key = *self.by_qpn.get(&qpn.get())?;
        self.last = Some((qpn, key));
        Some(key)
    }

    #[inline(always)]
    pub fn post_recv(&mut self, key: QpKey, wr: RecvWr<B>) -> Result<(), (PostError, RecvWr<B>)> {
        let Some(qp) = self.qps.get_mut(key) else { return Err((PostError::NoQp, wr)) };
        if qp.state == QpState::Reset {
            return Err((PostError::State(qp.state), wr));
        }
        let depth = qp.recv.capacity() as u32;
        qp.recv.push(wr).map_err(|wr| (PostError::QueueFull { depth }, wr))?;
        if qp.state == QpState::Error {
            self.start_flush(key);
        }
        Ok(())
    }

    /// Whether every queue pair has receives for at least half of its depth, of not too many to look at.
    pub fn receives_are_plentiful(&self) -> bool {
        const FEW: usize = 8;
        self.qps.len() <= FEW && self.qps.values().all(|qp| qp.recv.len() > qp.recv.capacity() / 2)
    }

    /// Posts receives until `next` has no more; returns how many, and the one that was refused, which ends it too. Runs for the
    /// same queue pair look it up once.
    pub fn post_recvs(
        &mut self,
        mut next: impl FnMut() -> Option<(QpKey, RecvWr<B>)>,
    ) -> (usize, Option<(QpKey, RecvWr<B>)>) {
        let mut posted = 0;
        let mut waiting = next();
        while let Some((key, wr)) = waiting.take() {
            let Some(qp) = self.qps.get_mut(key).filter(|qp| qp.may_receive()) else {
                // Slowly, and with every reason that there may be.
                if let Err((_, wr)) = self.post_recv(key, wr) {
                    return (posted, Some((key, wr)));
                }
                posted += 1;
                waiting = next();
                continue;
            };
            let mut wr = wr;
            loop {
                if let Err(wr) = qp.recv.push(wr) {
                    return (posted, Some((key, wr)));
                }
                posted += 1;
                match next() {
                    Some((other, more)) if other == key => wr = more,
                    more => {
                        waiting = more;
                        break;
                    }
                }
            }
        }
        (posted, None)
    }

    /// See [`super::Worker::consume`].
    #[inline(always)]
    pub fn consume(
        &mut self,
        cq: CqKey,
        max: usize,
        mut take: impl FnMut(&mut Completion<B>) -> bool,
    ) -> usize {
        let Some(cq) = self.cqs.get_mut(cq) else { return 0 };
        let mut taken = 0;
        let next = || {
            while taken < max {
                let mut done = cq.pop()?;
                taken += 1;
                if take(&mut done)
                    && let Some(buf) = done.buf
                {
                    return Some((done.qpn, RecvWr { wr_id: done.wr_id, buf }));
                }
            }
            None
        };
        post_again(&mut self.qps, &self.by_qpn, next);
        taken
    }

    /// Posts receives that have completed once more, each on the queue pair with its number, until `next` has no more. One that
    /// cannot be posted is dropped, as [`super::Worker::consume`] says.
    #[inline(always)]
    pub fn post_again(&mut self, next: impl FnMut() -> Option<(Qpn, RecvWr<B>)>) {
        post_again(&mut self.qps, &self.by_qpn, next);
    }

    /// The queue pair's receives are to complete as flushed, as fast as its completion queue has room.
    pub fn start_flush(&mut self, key: QpKey) {
        if !self.flushing.contains(&key) {
            self.flushing.push(key);
        }
    }

    #[inline]
    pub fn any_flushing(&self) -> bool {
        !self.flushing.is_empty()
    }

    pub fn flush_some(&mut self) {
        let (qps, cqs) = (&mut self.qps, &mut self.cqs);
        self.flushing.retain(|key| {
            let Some(qp) = qps.get_mut(*key) else { return false };
            let Some(cq) = cqs.get_mut(qp.recv_cq) else { return false };
            while !qp.recv.is_empty() {
                if !cq.has_room() {
                    return true;
                }
                if let Some(wr) = qp.recv.pop() {
                    cq.push(flushed(qp.qpn, WcOpcode::Recv, wr.wr_id, Some(wr.buf)));
                }
            }
            false
        });
    }

    /// The address handles `users` get the new MAC address of their next hop; with `None` they wait for one again.
    #[cold]
    pub fn neighbour_changed(&mut self, users: &[AhKey], mac: Option<MacAddr>) {
        self.touch();
        for key in users {
            let Some(ah) = self.ahs.get_mut(*key) else { continue };
            ah.ready = mac.is_some();
            if let Some(mac) = mac {
                ah.template.set_dst_mac(mac);
            }
        }
    }
}

#[inline(always)]
fn post_again<B>(
    qps: &mut SlotMap<QpKey, Qp<B>>,
    by_qpn: &HashMap<u32, QpKey, BuildHasherDefault<QpnHasher>>,
    mut next: impl FnMut() -> Option<(Qpn, RecvWr<B>)>,
) {
    let mut current: Option<(Qpn, &mut Qp<B>)> = None;
    while let Some((qpn, wr)) = next() {
        if current.as_ref().is_none_or(|(last, _)| *last != qpn) {
            let key = by_qpn.get(&qpn.get());
            current = key.and_then(|key| qps.get_mut(*key)).map(|qp| (qpn, qp));
        }
        // A receive of this queue pair has just completed, so there is room, unless it was made smaller use of since: then,
        // or if the queue pair is gone, the buffer goes too.
        if let Some((_, qp)) = &mut current
            && qp.may_receive()
        {
            let _ = qp.recv.push(wr);
        }
    }
}

/// The completion of a request that was not done.
pub(crate) fn flushed<B>(qpn: Qpn, opcode: WcOpcode, wr_id: u64, buf: Option<B>) -> Completion<B> {
    Completion {
        wr_id,
        qpn,
        opcode,
        status: WcStatus::WorkRequestFlushed,
        byte_len: 0,
        src_qpn: qpn,
        imm: None,
        family: Family::V4,
        solicited: false,
        buf,
    }
}
