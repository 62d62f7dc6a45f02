//! The worker: some ports, their queue pairs, and the round that moves packets.
//!
//! A worker is a value that its caller drives: [`Worker::poll`] in the application's own loop, or in a thread of its own
//! (see [`crate::thread`]). It owns no clock, no thread and no random source; time and the seed are arguments. A round is
//! receive, answers and timers, transmit, in that order, so that nothing times out while its answer lies in the queue.
//!
//! No allocation in a round after the start, no lock, no system call other than the IO's own. Four times a second a round looks
//! at its ports' links, and tries to bring up one that is down: see [`crate::io::PortIo::recover`].

mod control;
mod core;
mod echo;
mod look;
mod port;
mod quick;
mod rx;
mod tx;

#[cfg(test)]
mod tests;

pub use echo::{EchoError, EchoReply};
pub use port::PortConfig;

use crate::ah::{Ah, AhConfig, AhError, AhKey, AhState};
use crate::announce::Conflict;
use crate::buffer::Buffer;
use crate::capture::Capture;
use crate::counters::Counters;
use crate::cq::{Completion, Cq};
use crate::entropy::EntropyRange;
use crate::feed::Feed;
use crate::group::{Asked, MemberCounters, QpnRange};
use crate::io::{PacketBurst, PortInfo, PortIo, PortStats, PortWatch};
use crate::neighbour::{self, Neighbour, TableFull};
use crate::observe::{self, Observed, PortSnapshot, QpSnapshot};
use crate::qp::{CqKey, PostError, QpChange, QpConfig, QpCounters, QpError, QpKey, QpState, RecvWr};
use crate::route::{self, PortAddr, RouteError};
use core::Core;
pub(crate) use core::flushed;
use port::{Port, Way};
use roce_proto::time::Instant;
use roce_proto::types::Qpn;
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::Ip;
use roce_proto::wire::ud::{IpRoute, Route, Template};
use std::net::IpAddr;
use std::sync::Arc;

/// Bounds of one worker. Each table of the worker has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Queue pairs at the most.
    pub max_qps: usize,
    /// Address handles at the most.
    pub max_ahs: usize,
    /// Neighbours per port at the most.
    pub max_neighbours: usize,
    /// First queue pair number that is handed out. Above 16 bits by default, so that a peer which keeps only 16 bits of a
    /// number is found out at once.
    pub first_qpn: Qpn,
    /// Numbers that its queue pairs may have.
    pub qpns: QpnRange,
    /// Seed of the first PSNs.
    pub seed: u64,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        WorkerConfig {
            max_qps: 65_536,
            max_ahs: 65_536,
            max_neighbours: crate::neighbour::DEFAULT_MAX_NEIGHBOURS,
            first_qpn: Qpn::new(0x10000).unwrap_or(Qpn::MAX),
            qpns: QpnRange::ALL,
            seed: 0,
        }
    }
}

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets received.
    pub received: usize,
    /// Packets that the driver took.
    pub sent: usize,
    /// Packets moved for other workers of a group.
    pub relayed: usize,
    /// Packets came, and fewer than were asked for: no more wait at the ports.
    pub drained: bool,
}

impl Progress {
    /// True if the round found anything to do.
    pub fn any(self) -> bool {
        self.received + self.sent + self.relayed > 0
    }
}

/// Some ports with their queue pairs, driven by its caller. `I` is the packet IO, `B` the application's buffers.
pub struct Worker<I: PortIo, B: Buffer> {
    pub(crate) ports: Vec<Port<I, B>>,
    pub(crate) core: Core<B>,
    observed: Option<Observed>,
    /// When to check whether somebody wants to look.
    check_at: Instant,
}

/// Why a worker could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// It was given no port.
    #[error("a worker needs at least one port")]
    NoPort,
    /// The port's MTU is too small for any IB MTU.
    #[error("port {port} has an MTU of {mtu} bytes; RoCEv2 needs at least {need}: raise it with --mtu")]
    MtuTooSmall {
        /// The port's name.
        port: String,
        /// Its MTU.
        mtu: u16,
        /// What the smallest IB MTU needs.
        need: usize,
    },
    /// The IB MTU asked for does not fit the port's MTU.
    #[error(
        "an IB MTU of {asked} needs a port MTU of {need} bytes, port {port} has {mtu}: \
         raise the port's with --mtu or lower the IB MTU with -m"
    )]
    IbMtuTooLarge {
        /// The port's name.
        port: String,
        /// The IB MTU asked for.
        asked: usize,
        /// What it needs.
        need: usize,
        /// What the port has.
        mtu: u16,
    },
    /// Two ports were given the same IP address.
    #[error("{0} cannot be an address of port {1}: another port of this worker has it")]
    TwoPorts(IpAddr, String),
    /// Addresses or gateways that cannot be those of a port.
    #[error("port {port}: {error}")]
    Routes {
        /// The port's name.
        port: String,
        /// What is wrong with them.
        error: RouteError,
    },
    /// An empty P_Key table.
    #[error("the P_Key table of port {0} is empty")]
    NoPKey(String),
}

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// A worker over `ports`.
    pub fn new(config: &WorkerConfig, ports: Vec<(I, PortConfig)>) -> Result<Self, WorkerError> {
        if ports.is_empty() {
            return Err(WorkerError::NoPort);
        }
        let mut made: Vec<Port<I, B>> = Vec::with_capacity(ports.len());
        for (io, port_config) in ports {
            let taken = |a: &&PortAddr| made.iter().any(|p| p.local.is_local(a.ip));
            if let Some(addr) = port_config.addrs.iter().find(taken) {
                return Err(WorkerError::TwoPorts(addr.ip, io.info().name.clone()));
            }
            made.push(Port::new(made.len(), io, port_config, config)?);
        }
        Ok(Worker { ports: made, core: Core::new(config), observed: None, check_at: Instant::MAX })
    }

    /// One round over all ports at the time `now`, which must not go back.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Progress {
        self.round(now, &mut rx::Queue)
    }

    /// The same round for a receiver that is done with a message once it has looked at it, at the least cost: what would be
    /// queued in `cq` goes through `take` instead, with the meaning that it has in [`Worker::consume`]. What is there already is
    /// consumed first, at most `max` completions; receives come directly only while the queue is empty and not armed.
    /// Returns the number of completions consumed from the queue beside the round's progress.
    #[inline(always)]
    pub fn poll_into(
        &mut self,
        now: Instant,
        cq: CqKey,
        max: usize,
        mut take: impl FnMut(&mut Completion<B>) -> bool,
    ) -> (Progress, usize) {
        let consumed = self.core.consume(cq, max, &mut take);
        (self.round(now, &mut rx::Into { cq, take }), consumed)
    }

    /// The same round for a caller who takes completions as they come: up to `room` receives that would be queued in `cq` are given to
    /// `give` instead, as long as that queue is empty and not armed, so that their order stays. What is queued all the same, sends
    /// among it, is there to be popped afterwards. Packets that came with those, beyond `room`, are looked at in the next round.
    #[inline(always)]
    pub fn poll_handing(
        &mut self,
        now: Instant,
        cq: CqKey,
        room: usize,
        give: impl FnMut(&mut Completion<B>),
    ) -> Progress {
        self.round(now, &mut rx::Give { cq: Some(cq), room, queues: room == 0, give })
    }

    /// The same round, with up to `room` receive completions of any queue given to `give` instead of being queued, as far as
    /// none waits in their queue before them.
    #[inline]
    pub(crate) fn poll_giving(
        &mut self,
        now: Instant,
        room: usize,
        give: impl FnMut(&mut Completion<B>),
    ) -> Progress {
        self.round(now, &mut rx::Give { cq: None, room, queues: room == 0, give })
    }

    /// The same round, in which the packets of all queue pairs with one receive queue go to `take` as they lie in the port's buffers,
    /// without a receive being posted: for services that place payloads themselves. It gets destination and source queue pair.
    #[inline]
    pub(crate) fn poll_packets(
        &mut self,
        now: Instant,
        cq: CqKey,
        take: impl FnMut([Qpn; 2], Ip<'_>, &[u8]),
    ) -> Progress {
        self.round(now, &mut rx::Packets { cq, take })
    }

    #[inline(always)]
    fn round(&mut self, now: Instant, sink: &mut impl rx::Sink<B>) -> Progress {
        let mut progress = Progress::default();
        // A port from which no more was asked for than it gave may have more.
        let mut more = false;
        for index in 0..self.ports.len() {
            let mut goes_on = false;
            if let Some(port) = self.ports.get_mut(index) {
                port.local.now = now;
                goes_on = port.rx_at > 0;
            }
            let (received, asked) = self.receive(index, sink);
            progress.received += received;
            more |= received > 0 && received >= asked;
            // A burst that is taken in several rounds is one burst: what there is to do after each is done after its first.
            if goes_on && self.ports.get(index).is_some_and(|port| port.tx.is_empty()) {
                continue;
            }
            self.neighbour_timers(index, now);
            progress.sent += self.transmit(index);
            progress.relayed += self.ports.get_mut(index).map_or(0, |port| port.io.take_relayed());
            self.look_after(index, now);
        }
        progress.drained = progress.received > 0 && !more;
        if self.core.any_flushing() {
            self.core.flush_some();
        }
        if now >= self.check_at {
            self.be_looked_at(now);
        }
        progress
    }

    /// Fills the sheet of somebody who wants to look.
    #[cold]
    fn be_looked_at(&mut self, now: Instant) {
        self.check_at = now + observe::CHECK_EVERY;
        let Some(observed) = &self.observed else { return };
        let Some(mut sheet) = observed.asked() else { return };
        sheet.at = now;
        sheet.qp_count = self.core.qps.len();
        sheet.ah_count = self.core.ahs.len();
        // No further than the sheet has room: it must not grow here.
        let room = sheet.ports.capacity();
        sheet.ports.extend(self.ports.iter().take(room).map(|p| PortSnapshot {
            counters: p.local.counters.clone(),
            driver: p.io.stats(),
            queue: p.io.queue(),
            link_up: p.io.link_up(),
        }));
        let room = sheet.qps.capacity().min(observe::MAX_QPS);
        sheet.qps.extend(self.core.qps.values().take(room).map(|q| QpSnapshot {
            qpn: q.qpn,
            port: q.port,
            state: q.state,
            counters: q.counters,
            outstanding: q.outstanding,
            receives: q.recv.len(),
        }));
        observed.answer(sheet);
    }

    /// Lets somebody look at the worker from another thread; see [`crate::observe`].
    pub fn set_observed(&mut self, observed: Option<Observed>) {
        self.check_at = if observed.is_some() { Instant::ZERO } else { Instant::MAX };
        self.observed = observed;
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// What port `index` is.
    pub fn port_info(&self, index: usize) -> Option<&PortInfo> {
        self.ports.get(index).map(|p| p.io.info())
    }

    /// What passed through the queue of port `index`; `None` if the worker has the port to itself.
    pub fn queue_counters(&self, index: usize) -> Option<MemberCounters> {
        self.ports.get(index)?.io.queue()
    }

    /// What the driver of port `index` counted.
    pub fn port_stats(&self, index: usize) -> Option<PortStats> {
        self.ports.get(index).map(|p| p.io.stats())
    }

    /// The state of port `index`: a view that stays true while the worker is polled, for any thread.
    pub fn watch(&self, index: usize) -> Option<PortWatch> {
        self.ports.get(index).map(|p| p.watch.clone())
    }

    /// Whether the link of port `index` is up, as its driver says now.
    pub fn link_up(&self, index: usize) -> bool {
        self.ports.get(index).is_some_and(|p| p.io.link_up())
    }

    /// The IO of port `index`.
    pub fn io_mut(&mut self, index: usize) -> Option<&mut I> {
        self.ports.get_mut(index).map(|p| &mut p.io)
    }

    /// What the worker counted on port `index`.
    pub fn counters(&self, index: usize) -> Option<&Counters> {
        self.ports.get(index).map(|p| &p.local.counters)
    }

    /// The largest raw UD message on port `index`, in bytes.
    pub fn ib_mtu(&self, index: usize) -> usize {
        self.ports.get(index).map_or(0, |p| p.local.ib_mtu)
    }

    /// The UDP source ports of a port's queue pairs and their paths.
    pub fn entropy(&self, index: usize) -> EntropyRange {
        self.ports.get(index).map_or(EntropyRange::DEFAULT, |p| p.local.entropy)
    }

    /// The local addresses of port `index`.
    pub fn addrs(&self, index: usize) -> &[IpAddr] {
        self.ports.get(index).map_or(&[], |p| &p.local.addrs)
    }

    /// Writes every frame that the worker receives or sends from now on to `capture`.
    pub fn set_capture(&mut self, capture: Option<Capture>) {
        for port in &mut self.ports {
            // What was posted before belongs to the capture before.
            port.seal();
            port.capture = capture.clone();
        }
    }

    /// Asks for neighbours only if nobody else who has `asked` did so just now; their answers reach this worker too.
    pub(crate) fn ask_together(&mut self, asked: Arc<Asked>) {
        for port in &mut self.ports {
            port.local.asked = Some(asked.clone());
        }
    }

    /// Adds a static neighbour to port `index`.
    pub fn add_neighbour(&mut self, index: usize, ip: IpAddr, mac: MacAddr) -> Result<(), AhError> {
        let port = self.ports.get_mut(index).ok_or(AhError::NoPort(index))?;
        if mac.is_zero() || mac.is_multicast() {
            return Err(AhError::BadMac(mac));
        }
        if route::no_host(ip).is_some() || port.local.is_local(ip) {
            return Err(AhError::NotAPeer(ip));
        }
        let table = &mut port.local.neighbours;
        table.set_static(ip, mac).map_err(|TableFull| AhError::TooManyNeighbours(table.len()))?;
        self.core.neighbour_changed(table.users(ip), Some(mac));
        Ok(())
    }

    /// Neighbours of port `index` come from `feed` from now on, not from the wire; false if there is no such port. What packets
    /// claim of them is ignored then. To be called before address handles are made.
    pub fn set_neighbour_feed(&mut self, index: usize, feed: Feed) -> bool {
        let Some(port) = self.ports.get_mut(index) else { return false };
        port.local.neighbours.set_fed();
        port.local.feed = Some(feed);
        true
    }

    /// The neighbours of port `index`, in no order.
    pub fn neighbours(&self, index: usize) -> impl Iterator<Item = Neighbour> + '_ {
        self.ports.get(index).into_iter().flat_map(|p| p.local.neighbours.iter())
    }

    /// The last station that claimed an address of port `index` for itself, if any did.
    pub fn conflict(&self, index: usize) -> Option<Conflict> {
        self.ports.get(index)?.local.announcer.conflict
    }

    /// A completion queue of `depth` places.
    pub fn create_cq(&mut self, depth: usize) -> CqKey {
        self.core.cqs.insert(Cq::new(depth.max(1)))
    }

    /// The completion queue, to take from or to arm.
    #[inline]
    pub fn cq(&mut self, cq: CqKey) -> Option<&mut Cq<B>> {
        self.core.cqs.get_mut(cq)
    }

    /// Whether completions wait in some queue.
    pub fn has_completions(&self) -> bool {
        self.core.cqs.values().any(|cq| !cq.is_empty())
    }

    /// Takes up to `max` completions, oldest first, and hands each to `take`. Where that returns true, the completion's buffer is
    /// posted as a receive of the same queue pair again, with the same `wr_id`: what a receiver does that is done with a
    /// message once it has looked at it, at the least cost. `take` may keep the buffer by taking it out. A buffer that cannot be
    /// posted, because the queue pair is gone, in error, or full by receives posted otherwise, is dropped. Returns the number
    /// of completions taken.
    #[inline(always)]
    pub fn consume(&mut self, cq: CqKey, max: usize, take: impl FnMut(&mut Completion<B>) -> bool) -> usize {
        self.core.consume(cq, max, take)
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqKey) -> Result<(), QpError> {
        if self.core.qps.values().any(|q| q.send_cq == cq || q.recv_cq == cq) {
            return Err(QpError::CqInUse);
        }
        self.core.cqs.remove(cq).map(drop).ok_or(QpError::NoCq)
    }

    /// A queue pair in the reset state.
    pub fn create_qp_in_reset(&mut self, config: &QpConfig) -> Result<QpKey, QpError> {
        let port = self.ports.get(config.port).ok_or(QpError::NoPort(config.port))?;
        self.core.create_qp(config, &port.local.pkeys, port.local.entropy)
    }

    /// A queue pair that is ready to send and receive.
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<QpKey, QpError> {
        let qp = self.create_qp_in_reset(config)?;
        for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
            self.modify_qp(qp, state)?;
        }
        Ok(qp)
    }

    /// Moves a queue pair to another state. To the error state: its receives flush. To reset: its work and completions are
    /// forgotten, except that sends already handed to the port still leave.
    pub fn modify_qp(&mut self, qp: QpKey, state: QpState) -> Result<(), QpError> {
        self.core.modify_qp(qp, state)?;
        if state == QpState::Reset {
            for port in &mut self.ports {
                port.disown(qp);
            }
        }
        Ok(())
    }

    /// Changes what a queue pair was made with, all of it or nothing.
    pub fn change_qp(&mut self, qp: QpKey, change: QpChange) -> Result<(), QpError> {
        let port = self.core.qps.get(qp).ok_or(QpError::NoQp)?.port;
        let pkeys = self.ports.get(port).map_or(&[][..], |port| &port.local.pkeys);
        self.core.change_qp(qp, change, pkeys)
    }

    /// Destroys a queue pair with its completions. Packets already handed to the port still leave.
    pub fn destroy_qp(&mut self, qp: QpKey) -> Result<(), QpError> {
        self.core.destroy_qp(qp)?;
        for port in &mut self.ports {
            port.disown(qp);
        }
        Ok(())
    }

    /// The number of a queue pair.
    pub fn qpn(&self, qp: QpKey) -> Option<Qpn> {
        self.core.qps.get(qp).map(|q| q.qpn)
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qp: QpKey) -> Option<QpState> {
        self.core.qps.get(qp).map(|q| q.state)
    }

    /// What a queue pair has done.
    pub fn qp_counters(&self, qp: QpKey) -> Option<QpCounters> {
        self.core.qps.get(qp).map(|q| q.counters)
    }

    /// Sends of a queue pair that the driver has not taken yet.
    pub fn outstanding(&self, qp: QpKey) -> u32 {
        self.core.qps.get(qp).map_or(0, |q| q.outstanding)
    }

    /// Receives that can still be posted to a queue pair.
    pub fn recv_room(&self, qp: QpKey) -> usize {
        self.core.qps.get(qp).map_or(0, |q| q.recv.capacity() - q.recv.len())
    }

    /// An address handle. Until the neighbour answers (see [`Worker::ah_state`]) sends by it are refused with
    /// [`PostError::AddressUnresolved`]; the worker asks once a second, and more rarely once that has been in vain.
    pub fn create_ah(&mut self, config: &AhConfig, now: Instant) -> Result<AhKey, AhError> {
        let none = AhError::NoPort(config.port);
        let Ok(index) = u16::try_from(config.port) else { return Err(none) };
        let port = self.ports.get_mut(config.port).ok_or(none)?;
        if self.core.ahs.len() >= self.core.max_ahs {
            return Err(AhError::TooMany(self.core.max_ahs));
        }
        let local = &mut port.local;
        let dst = config.dst;
        if route::no_host(dst).is_some() || local.is_local(dst) {
            return Err(AhError::NotAPeer(dst));
        }
        let Way { src, next_hop } = local.way_to(dst, config.src)?;
        if let Some(mac) = config.dst_mac.filter(|m| m.is_zero() || m.is_multicast()) {
            return Err(AhError::BadMac(mac));
        }
        let route = Route {
            src_mac: local.mac,
            dst_mac: config.dst_mac.unwrap_or(MacAddr::ZERO),
            vlan: config.vlan.or(local.vlan),
            ip: match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => IpRoute::V4 { src, dst, ident: 0 },
                (IpAddr::V6(src), IpAddr::V6(dst)) => IpRoute::V6 { src, dst, flow_label: config.flow_label },
                (src, dst) => return Err(AhError::FamilyMismatch { src, dst }),
            },
            dscp: config.traffic_class >> 2,
            ecn: config.traffic_class & 3,
            hop_limit: config.hop_limit,
            src_port: config.src_port.unwrap_or_default(),
        };
        tracing::info!(
            "port {}: {dst} is reached from {src}{}",
            local.name,
            if next_hop == dst { String::new() } else { format!(" by way of {next_hop}") }
        );
        let key = self.core.ahs.insert(Ah {
            port: index,
            next_hop,
            follow_qp: config.src_port.is_none(),
            tracked: config.dst_mac.is_none(),
            ready: config.dst_mac.is_some(),
            used: false,
            template: Template::new(&route),
        });
        if config.dst_mac.is_none() {
            let table = &mut local.neighbours;
            match table.acquire(next_hop, key, now) {
                Ok(None) => {}
                Ok(mac) => self.core.neighbour_changed(&[key], mac),
                Err(TableFull) => {
                    self.core.ahs.remove(key);
                    return Err(AhError::TooManyNeighbours(table.len()));
                }
            }
        }
        Ok(key)
    }

    /// Whether an address handle is ready; `None` if there is no such handle.
    pub fn ah_state(&self, ah: AhKey) -> Option<AhState> {
        let ah = self.core.ahs.get(ah)?;
        if ah.ready {
            return Some(AhState::Ready);
        }
        let known = self.ports.get(usize::from(ah.port)).and_then(|p| p.local.neighbours.get(ah.next_hop));
        let asked = known.map_or(0, |n| n.asked);
        Some(match known.map(|n| n.state) {
            Some(neighbour::State::Failed) => AhState::Failed { asked },
            _ => AhState::Resolving { asked },
        })
    }

    /// Destroys an address handle; false if there is no such handle.
    pub fn destroy_ah(&mut self, key: AhKey) -> bool {
        let Some(ah) = self.core.ahs.remove(key) else { return false };
        self.core.touch();
        if ah.tracked
            && let Some(port) = self.ports.get_mut(usize::from(ah.port))
        {
            port.local.neighbours.release(ah.next_hop, key);
        }
        true
    }

    /// Posts a receive. On refusal the request comes back.
    #[inline]
    pub fn post_recv(&mut self, qp: QpKey, wr: RecvWr<B>) -> Result<(), (PostError, RecvWr<B>)> {
        self.core.post_recv(qp, wr)
    }
}
