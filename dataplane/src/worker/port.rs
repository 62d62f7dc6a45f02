//! One port of a worker: its IO, what is local to it, and the packets about to leave.

use super::echo::Awaited;
use super::look::Schedule;
use super::rx::Known;
use super::{WorkerConfig, WorkerError};
use crate::ah::AhError;
use crate::announce::{Announcer, Say};
use crate::capture::Capture;
use crate::counters::Counters;
use crate::entropy::EntropyRange;
use crate::feed::Feed;
use crate::group::Asked;
use crate::io::{BURST, BURST_ROOM, PacketBuf, PacketBurst, PortIo, PortState, PortWatch, burst_of};
use crate::neighbour::NeighbourTable;
use crate::qp::{CqKey, QpKey};
use crate::ring::Ring;
use crate::route::{Gateway, NoWay, PortAddr, RouteTable};
use roce_proto::time::Instant;
use roce_proto::types::{Mtu, PKey};
use roce_proto::wire::ethernet::{MacAddr, VlanStack, VlanTag};
use roce_proto::wire::predict::{Headers, Seal};
use roce_proto::wire::{ethernet, ud};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes around a UD payload, from the IP header on, at the most: IPv6 with an immediate. An IB MTU fits a port only if it
/// fits with either address family.
const MAX_OVERHEAD: usize = ud::overhead(true, true);

/// How a worker uses a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its IP addresses, the preferred first. What is sent leaves from one of the next hop's network, else from the first that
    /// is routable.
    pub addrs: Vec<PortAddr>,
    /// Routers to what is not on the link.
    pub gateways: Vec<Gateway>,
    /// The VLAN it is on: all that it sends carries this tag (unless an address handle has another), and what comes with
    /// another VLAN identifier, or without a tag, is dropped. `None` sends untagged and takes every tag.
    pub vlan: Option<VlanTag>,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// The largest raw UD message; `None` takes the largest IB MTU that the port's MTU carries.
    pub ib_mtu: Option<Mtu>,
    /// The UDP source ports of its queue pairs and their paths.
    pub entropy: EntropyRange,
}

impl PortConfig {
    /// One address with everything on its link, the default P_Key, the largest MTU.
    pub fn new(addr: IpAddr) -> PortConfig {
        PortConfig {
            addrs: vec![addr.into()],
            gateways: Vec::new(),
            vlan: None,
            pkeys: vec![PKey::DEFAULT],
            ib_mtu: None,
            entropy: EntropyRange::DEFAULT,
        }
    }
}

/// What is local to a port, apart from its IO.
pub(crate) struct Local {
    pub name: String,
    pub mac: MacAddr,
    pub addrs: Vec<IpAddr>,
    pub routes: RouteTable,
    pub vlan: Option<VlanTag>,
    pub pkeys: Vec<PKey>,
    /// Bytes.
    pub ib_mtu: usize,
    pub entropy: EntropyRange,
    pub neighbours: NeighbourTable,
    /// Whom the workers that share the port have asked for.
    pub asked: Option<Arc<Asked>>,
    pub announcer: Announcer,
    /// Answers to echo requests of our own.
    pub awaited: Awaited,
    /// Which port of the worker it is.
    pub index: usize,
    /// Where neighbours come from instead of the wire.
    pub feed: Option<Feed>,
    /// The time of this round.
    pub now: Instant,
    pub counters: Counters,
}

impl Local {
    #[inline]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.addrs.contains(&ip)
    }

    /// Whether no other worker of the port's said so just now.
    pub fn is_first_to_say(&self, say: Say) -> bool {
        let (Say::Probe(at) | Say::Announce(at)) = say;
        match (&self.asked, self.addrs.get(at)) {
            (Some(asked), Some(ip)) => asked.may_say(self.index, *ip, matches!(say, Say::Probe(_)), self.now),
            _ => true,
        }
    }

    /// Whether a frame with these tags is of the port's VLAN.
    #[inline]
    pub fn in_vlan(&self, tags: impl FnOnce() -> VlanStack) -> bool {
        match self.vlan {
            None => true,
            Some(own) => {
                let tags = tags();
                tags.inner().is_none() && tags.outer().is_some_and(|tag| tag.vid() == own.vid())
            }
        }
    }

    /// The tags of what the port itself has to say.
    pub fn tags(&self) -> VlanStack {
        VlanStack::single(self.vlan)
    }

    /// The source address and the next hop of packets to `dst`.
    pub fn way_to(&self, dst: IpAddr, asked: Option<IpAddr>) -> Result<Way, AhError> {
        if let Some(src) = asked {
            if src.is_ipv4() != dst.is_ipv4() {
                return Err(AhError::FamilyMismatch { src, dst });
            }
            if !self.is_local(src) {
                return Err(AhError::NotLocal { port: self.name.clone(), src });
            }
        }
        let next_hop = self.routes.next_hop(dst).map_err(|e| self.no_way(e, dst))?;
        let src = match asked {
            Some(src) => src,
            None => self.routes.source(dst, next_hop).map_err(|e| self.no_way(e, dst))?,
        };
        Ok(Way { src, next_hop })
    }

    fn no_way(&self, why: NoWay, dst: IpAddr) -> AhError {
        let (port, family) = (self.name.clone(), if dst.is_ipv4() { "IPv4" } else { "IPv6" });
        match why {
            NoWay::Family => AhError::NoSource { port, family, dst },
            NoWay::OnlyLinkLocal => AhError::OnlyLinkLocal { port, family, dst },
            NoWay::NoRoute => AhError::NoRoute { port, dst },
            NoWay::NotAHost => AhError::NotAPeer(dst),
        }
    }
}

/// How packets leave for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub src: IpAddr,
    pub next_hop: IpAddr,
}

/// Packets handed to the port, one after the other and alike, to be settled when the driver takes them.
pub(crate) struct TxRun<B> {
    /// How many.
    pub count: u32,
    /// Bytes of each.
    pub frame_len: u32,
    /// `None` for control packets and for those whose queue pair is gone.
    pub qp: Option<QpKey>,
    pub control: bool,
    /// What a signaled send completes with; such a send is a run of its own.
    pub signal: Option<Signal<B>>,
}

/// The completion to come of a signaled send. Its place is reserved in the completion queue.
pub(crate) struct Signal<B> {
    pub cq: CqKey,
    pub wr_id: u64,
    pub payload_len: u32,
    pub buf: Option<B>,
}

/// The runs of what waits in a burst, in the same order.
pub(crate) type TxRuns<B> = Ring<TxRun<B>>;

impl<B> TxRuns<B> {
    /// Notes one packet. There is always room: no more runs than packets, and no more packets than a burst holds.
    #[inline]
    pub fn note(&mut self, qp: Option<QpKey>, control: bool, frame_len: usize, signal: Option<Signal<B>>) {
        let frame_len = frame_len as u32;
        if let Some(last) = self.back_mut()
            && last.qp == qp
            && last.frame_len == frame_len
            && last.control == control
            && last.signal.is_none()
            && signal.is_none()
        {
            last.count += 1;
            return;
        }
        let pushed = self.push(TxRun { count: 1, frame_len, qp, control, signal });
        debug_assert!(pushed.is_ok(), "more runs than packets");
    }

    /// Notes so many unsignaled packets of a queue pair.
    #[inline]
    pub fn note_more(&mut self, qp: Option<QpKey>, frame_len: usize, count: u32) {
        if count > 0 {
            self.note(qp, false, frame_len, None);
            if let Some(last) = self.back_mut() {
                last.count += count - 1;
            }
        }
    }
}

/// Packets of a transmit burst, one after the other and of one flow, that have everything but their ICRC: it is made for all of
/// them at once, when what was written has left the processor's store buffer.
#[derive(Default)]
pub(crate) struct Unsealed {
    qp: Option<QpKey>,
    from: usize,
    count: usize,
    seal: Option<Seal>,
}

impl Unsealed {
    /// Seals the packets that lie in `tx`.
    #[inline]
    pub fn seal(&mut self, tx: &mut impl PacketBurst, capture: Option<&Capture>) {
        let Unsealed { from, count, seal, .. } = std::mem::take(self);
        let Some(seal) = seal else { return };
        for at in from..from + count {
            let Some(buf) = tx.get_mut(at) else { break };
            let frame = buf.written();
            seal.close(frame);
            if let Some(capture) = capture {
                capture.frame(frame);
            }
        }
    }
}

/// Bytes that wait for their ICRC at the most: a third of a first-level data cache of 48 KiB, half of one of 32.
const SEALED_BYTES: usize = 16 * 1024;

pub(crate) struct Port<I: PortIo, B> {
    pub io: I,
    pub rx: I::Burst,
    /// The first packet of `rx` that was not looked at yet; 0 if there is none.
    pub rx_at: usize,
    pub tx: I::Burst,
    /// Packets to ask for: as many of the length of the last as make a good burst.
    pub rx_limit: usize,
    /// Packets in `tx` that make a good burst, and the length of frames for which that is so.
    tx_limit: usize,
    tx_frame_len: usize,
    /// Which of the packets in `tx` lack their ICRC.
    pub unsealed: Unsealed,
    /// What the packets in `tx` are.
    pub runs: TxRuns<B>,
    pub local: Local,
    pub watch: PortWatch,
    pub schedule: Schedule,
    /// What the receive path remembers.
    pub known: Known,
    pub capture: Option<Capture>,
    /// Room to put a chained packet into one piece.
    pub scratch: Box<[u8]>,
}

impl<I: PortIo, B> Port<I, B> {
    pub fn new(index: usize, io: I, config: PortConfig, worker: &WorkerConfig) -> Result<Self, WorkerError> {
        let info = io.info().clone();
        let mtu = usize::from(info.mtu);
        let Some(largest) = Mtu::fitting(mtu, MAX_OVERHEAD) else {
            let need = Mtu::B256.bytes() + MAX_OVERHEAD;
            return Err(WorkerError::MtuTooSmall { port: info.name, mtu: info.mtu, need });
        };
        let ib_mtu = config.ib_mtu.unwrap_or(largest);
        if ib_mtu > largest {
            return Err(WorkerError::IbMtuTooLarge {
                port: info.name,
                asked: ib_mtu.bytes(),
                need: ib_mtu.bytes() + MAX_OVERHEAD,
                mtu: info.mtu,
            });
        }
        let addrs = config.addrs.iter().map(|a| a.ip).collect();
        let routes = RouteTable::new(config.addrs, config.gateways)
            .map_err(|error| WorkerError::Routes { port: info.name.clone(), error })?;
        if config.pkeys.is_empty() {
            return Err(WorkerError::NoPKey(info.name));
        }
        let local = Local {
            name: info.name,
            mac: info.mac,
            addrs,
            routes,
            vlan: config.vlan,
            pkeys: config.pkeys,
            ib_mtu: ib_mtu.bytes(),
            entropy: config.entropy,
            asked: None,
            neighbours: NeighbourTable::new(worker.max_neighbours, worker.seed),
            announcer: Announcer::new(io.state() == PortState::Up),
            awaited: Awaited::default(),
            index,
            feed: None,
            now: Instant::ZERO,
            counters: Counters::default(),
        };
        let watch = PortWatch::new(io.state());
        Ok(Port {
            io,
            rx: I::Burst::default(),
            rx_at: 0,
            tx: I::Burst::default(),
            rx_limit: BURST,
            tx_limit: BURST,
            tx_frame_len: 0,
            unsealed: Unsealed::default(),
            runs: Ring::new(BURST_ROOM),
            local,
            watch,
            schedule: Schedule::default(),
            known: Known::new(),
            capture: None,
            scratch: vec![0; mtu + ethernet::Header::MAX_LEN].into_boxed_slice(),
        })
    }

    /// Whether the packets about to leave make a burst: they are to be offered to the port before more are built.
    #[inline]
    pub fn tx_is_full(&self) -> bool {
        self.tx.len() >= self.tx_limit
    }

    /// Frames of that length come next: how many more make a burst.
    #[inline]
    pub fn tx_room(&mut self, frame_len: usize) -> usize {
        if frame_len != self.tx_frame_len {
            self.tx_frame_len = frame_len;
            self.tx_limit = burst_of(frame_len);
        }
        self.tx_limit.saturating_sub(self.tx.len())
    }

    /// Puts a packet of a queue pair at the end of the burst that has all but its ICRC; it gets that together with those that come
    /// with the same headers after it. Gives it back if there is no place.
    #[inline(always)]
    pub fn push_unsealed(&mut self, qp: QpKey, headers: &Headers, buf: I::Buf) -> Result<(), I::Buf> {
        let at = self.tx.len();
        let same = self.unsealed.qp == Some(qp) && self.unsealed.from + self.unsealed.count == at;
        if !same || self.unsealed.count * headers.frame_len() >= SEALED_BYTES {
            self.seal();
            self.unsealed = Unsealed { qp: Some(qp), from: at, count: 0, seal: Some(headers.seal()) };
        }
        self.tx.push(buf)?;
        self.unsealed.count += 1;
        Ok(())
    }

    /// Whether a packet of that length and of the same headers as the queue pair's last goes on with what is about to leave: it is not the
    /// first of its burst, or of those that get their ICRC together, and the one before it completes nothing.
    #[inline(always)]
    pub fn goes_on(&mut self, qp: QpKey, frame_len: usize) -> bool {
        let at = self.tx.len();
        let Unsealed { from, count, .. } = self.unsealed;
        self.unsealed.qp == Some(qp)
            && from + count == at
            && count * frame_len < SEALED_BYTES
            && at < self.tx_limit
            && frame_len == self.tx_frame_len
            && self.runs.back_mut().is_some_and(|run| run.signal.is_none())
    }

    /// Adds that packet, which lacks its ICRC; true if that makes a burst.
    #[inline(always)]
    pub fn go_on(&mut self, buf: I::Buf) -> bool {
        // There is a place, as the limit of a burst is not reached.
        if self.tx.push(buf).is_ok() {
            self.unsealed.count += 1;
            if let Some(run) = self.runs.back_mut() {
                run.count += 1;
            }
        }
        self.tx_is_full()
    }

    /// Gives the packets that lack it their ICRC: before the driver sees them, and before their queue pair's headers change.
    #[inline]
    pub fn seal(&mut self) {
        self.unsealed.seal(&mut self.tx, self.capture.as_ref());
    }

    /// Packets about to leave no longer belong to a queue pair.
    pub fn disown(&mut self, qp: QpKey) {
        for run in self.runs.iter_mut().filter(|run| run.qp == Some(qp)) {
            run.qp = None;
            if let Some(signal) = &mut run.signal {
                signal.buf = None;
            }
        }
    }
}
