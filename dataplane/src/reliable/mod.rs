//! Reliable messages of any size, to and from any number of peers, over one UD queue pair of a worker.
//!
//! A [`Reliable`] drives the engine of [`roce_proto::transport`]: it brings it the packets of its queue pair, places
//! segments in the application's buffers, and sends what the engine wants sent. Its owner calls [`Reliable::poll`] in
//! place of [`Worker::poll`]; raw UD queue pairs of the same worker go on beside it.

mod parity;
mod place;
mod rails;
mod send;
mod store;

#[cfg(test)]
mod tests;

use crate::ah::{AhError, AhKey};
use crate::buffer::Buffer;
use crate::cq::{Family, WcStatus};
use crate::entropy::{EntropyError, EntropyRange};
use crate::io::PortIo;
use crate::qp::{CqKey, GRH_LEN, QpConfig, QpError, QpKey, RecvWr};
use crate::worker::{Progress, Worker};
use parity::ParityStore;
use place::{Places, take};
use rails::{Numbers, RailPorts};
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Completion, Config, ConfigError, ConnectError, Engine, Event, Operation, Origin, PostError,
    RecvRequest, SendRequest, SessionKey, SessionStats, Source, Transmit,
};
pub use roce_proto::transport::{ClassCounters, Counters};
use roce_proto::types::{QKey, Qpn};
use roce_proto::wire::frame::Ip;
use roce_proto::wire::shim::{Rails, segment_size};
use send::{HEADERS, MOST, STRANGERS};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use store::{Entry, Store};

/// Bursts that are received before it is the turn of sending.
const BURSTS: usize = 8;

/// How a reliable endpoint is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReliableConfig {
    /// The port it lives on: an index into the worker's ports.
    pub port: usize,
    /// Further ports of the worker that it uses: its paths take turns on all. Peers are told of their addresses; the first of each family
    /// counts, and a port without one of the peer's is not used with it.
    pub rails: [Option<usize>; Rails::MOST],
    /// Number of its queue pair; `None` takes the next free one.
    pub qpn: Option<Qpn>,
    /// The Q_Key that both sides use.
    pub qkey: QKey,
    /// Receives posted for packets that come while another endpoint of the same worker is polled; its own rounds need none.
    pub rx_depth: u32,
    /// Packets handed to the port and not yet taken.
    pub tx_depth: u32,
    /// The engine. Segment and control size are lowered to what the port's IB MTU carries.
    pub engine: Config,
}

impl ReliableConfig {
    /// On the worker's first port with any number, perftest's Q_Key, the largest segments that the port carries, and an engine of this
    /// incarnation and secret.
    pub fn new(epoch: u64, secret: [u8; 16]) -> ReliableConfig {
        ReliableConfig {
            port: 0,
            rails: [None; Rails::MOST],
            qpn: None,
            qkey: QKey(0x1111_1111),
            rx_depth: 8,
            tx_depth: 512,
            engine: Config { epoch, secret, segment: 65_000, ..Config::default() },
        }
    }
}

/// A secret for [`ReliableConfig::new`] from the system's random numbers.
///
/// # Errors
/// If the system gives none.
pub fn fresh_secret() -> std::io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    let mut filled = 0;
    while let Some(rest) = secret.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(secret)
}

/// Why a reliable endpoint was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReliableError {
    /// The engine's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The queue pair.
    #[error(transparent)]
    Qp(#[from] QpError),
    /// Fewer UDP source ports than paths.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
}

/// Why a session was not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is one already, or no room.
    #[error(transparent)]
    Session(#[from] ConnectError),
    /// The peer's address.
    #[error(transparent)]
    Address(#[from] AhError),
}

/// The end of an operation, with its buffer.
#[derive(Debug)]
pub struct Done<B> {
    /// What the engine says of it; the token is the operation's `wr_id`.
    pub completion: Completion,
    /// The buffer, given back.
    pub buf: B,
}

/// A reliable endpoint.
pub struct Reliable<B: Buffer> {
    engine: Engine,
    /// Its queue pairs, with numbers one after the other, from `qpn`.
    qps: Vec<QpKey>,
    cq: CqKey,
    qpn: Qpn,
    port: usize,
    /// Its further ports.
    rails: RailPorts,
    qkey: QKey,
    tx_depth: u32,
    sends: Store<B>,
    receives: Store<B>,
    /// Blocks of unexpected data, one after the other.
    pool: Vec<u8>,
    block: usize,
    parity: ParityStore,
    paths: usize,
    /// Source ports on the first port.
    entropy: EntropyRange,
    /// Address handles by session and path.
    handles: Vec<Option<AhKey>>,
    /// Address handles for answers outside sessions, the oldest first.
    strangers: Vec<((IpAddr, u8, usize), AhKey)>,
    /// A packet that the port had no room for.
    stalled: Option<Transmit>,
    /// The headers of that packet's segments, or the one header of control.
    headers: [u8; HEADERS],
    /// What follows each of the headers.
    parts: Vec<Option<Source>>,
    last: Instant,
}

impl<B: Buffer> Reliable<B> {
    /// An endpoint on `worker`; `make` gives buffers of a length for the packets that it receives.
    ///
    /// # Errors
    /// Numbers that do not fit together, or no such port or queue pair number.
    pub fn new<I: PortIo>(
        worker: &mut Worker<I, B>,
        config: &ReliableConfig,
        mut make: impl FnMut(usize) -> B,
    ) -> Result<Reliable<B>, ReliableError> {
        let ports = std::iter::once(config.port).chain(config.rails.into_iter().flatten());
        if let Some(none) = ports.clone().find(|port| *port >= worker.ports()) {
            return Err(QpError::NoPort(none).into());
        }
        let mtu = ports.clone().map(|port| worker.ib_mtu(port)).min().unwrap_or_default();
        let mut engine_config = config.engine;
        engine_config.segment = engine_config.segment.min(segment_size(mtu) as u32);
        engine_config.control = engine_config.control.min(mtu as u32);
        engine_config.check()?;
        let entropy = worker.entropy(config.port);
        ports.map(|port| worker.entropy(port)).try_for_each(|range| range.check(engine_config.paths))?;
        let cq = worker.create_cq((config.rx_depth + config.tx_depth) as usize);
        let qp = worker.create_qp(&QpConfig {
            port: config.port,
            qpn: config.qpn,
            qkey: config.qkey,
            send_depth: config.tx_depth,
            recv_depth: config.rx_depth,
            ..QpConfig::new(cq)
        });
        let qp = match qp {
            Ok(qp) => qp,
            Err(e) => {
                // Nothing uses the queue.
                let _ = worker.destroy_cq(cq);
                return Err(e.into());
            }
        };
        let rails = match RailPorts::open(worker, config, cq) {
            Ok(rails) => rails,
            Err(e) => {
                let _ = (worker.destroy_qp(qp), worker.destroy_cq(cq));
                return Err(e.into());
            }
        };
        engine_config.rails = rails.offers();
        let engine = Engine::new(&engine_config)?;
        for wr_id in 0..u64::from(config.rx_depth) {
            // As many as the queue takes.
            let _ = worker.post_recv(qp, RecvWr { wr_id, buf: make(GRH_LEN + mtu) });
        }
        let limits = engine_config.limits;
        let paths = usize::from(engine_config.paths);
        let block = engine_config.segment as usize;
        Ok(Reliable {
            engine,
            qps: vec![qp],
            cq,
            qpn: worker.qpn(qp).unwrap_or_default(),
            port: config.port,
            rails,
            qkey: config.qkey,
            tx_depth: config.tx_depth,
            sends: Store::new(limits.sends),
            receives: Store::new(limits.receives),
            pool: vec![0; limits.blocks as usize * block],
            block,
            parity: ParityStore::new(limits.shards, block),
            paths,
            entropy,
            handles: vec![None; limits.sessions as usize * paths],
            strangers: Vec::with_capacity(STRANGERS),
            stalled: None,
            headers: [0; HEADERS],
            parts: Vec::with_capacity(MOST),
            last: Instant::ZERO,
        })
    }

    /// The number of its queue pair, by which peers reach it; of the first if it has several.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Makes it have `count` queue pairs, whose numbers follow that of the first. One is enough for any number of peers; with more, one
    /// peer can have several sessions with this endpoint, each by a queue pair of its own. [`Address::via`] names it.
    ///
    /// # Errors
    /// A number that is taken, or no room for another queue pair; those made until then stay.
    pub fn widen<I: PortIo>(&mut self, worker: &mut Worker<I, B>, count: u16) -> Result<(), QpError> {
        while self.qps.len() < usize::from(count) {
            let number = self.qpn.get() + self.qps.len() as u32;
            let qpn = Qpn::new(number).ok_or(QpError::QpnReserved(number))?;
            let qp = worker.create_qp(&QpConfig {
                port: self.port,
                qpn: Some(qpn),
                qkey: self.qkey,
                send_depth: self.tx_depth,
                recv_depth: 1,
                ..QpConfig::new(self.cq)
            })?;
            self.qps.push(qp);
        }
        Ok(())
    }

    /// Begins a session. Its [`Event::Up`] or [`Event::Down`] follows.
    ///
    /// # Errors
    /// There is one already, no room, or no way to the address.
    pub fn connect<I: PortIo>(
        &mut self,
        worker: &mut Worker<I, B>,
        peer: Address,
        now: Instant,
    ) -> Result<SessionKey, OpenError> {
        if let Some(key) = self.engine.session_with(peer) {
            return Err(ConnectError::Exists(key).into());
        }
        let handle = worker.create_ah(&self.first_way(peer, 0), now)?;
        self.engine.begin(now, Duration::ZERO);
        match self.engine.connect(peer) {
            Ok(key) => {
                if let Some(place) = self.handles.get_mut(key.slot() * self.paths) {
                    *place = Some(handle);
                }
                Ok(key)
            }
            Err(e) => {
                worker.destroy_ah(handle);
                Err(e.into())
            }
        }
    }

    /// Ends a session; [`Event::Down`] follows.
    pub fn close(&mut self, session: SessionKey) {
        self.engine.close(session);
    }

    /// Posts the first `len` bytes of `buf` to be sent, which comes back with the completion. The request's token is the caller's
    /// own number.
    ///
    /// # Errors
    /// Nothing was queued, and the buffer comes back; see [`PostError::is_back_pressure`].
    #[inline]
    pub fn post_send(
        &mut self,
        session: SessionKey,
        request: &SendRequest,
        buf: B,
    ) -> Result<(), (PostError, B)> {
        let (wr_id, len) = (request.token, request.len);
        if len > buf.capacity() as u64 {
            return Err((PostError::TooLong { len, max: buf.capacity() as u64 }, buf));
        }
        match self.engine.post_send(session, &SendRequest { token: self.sends.next(), ..*request }) {
            Ok(()) => {
                self.sends.insert(Entry { wr_id, len, buf });
                Ok(())
            }
            Err(e) => Err((e, buf)),
        }
    }

    /// Posts a receive of messages as long as `buf`, which comes back with the completion. The request's token is the caller's own
    /// number, its capacity is not looked at.
    ///
    /// # Errors
    /// Nothing was queued, and the buffer comes back; see [`PostError::is_back_pressure`].
    #[inline]
    pub fn post_recv(
        &mut self,
        session: SessionKey,
        request: &RecvRequest,
        buf: B,
    ) -> Result<(), (PostError, B)> {
        let (wr_id, capacity) = (request.token, buf.capacity() as u64);
        let token = self.receives.next();
        if let Err(e) = self.engine.post_recv(session, &RecvRequest { token, capacity, ..*request }) {
            return Err((e, buf));
        }
        self.receives.insert(Entry { wr_id, len: capacity, buf });
        while let Some(m) = self.engine.next_move() {
            let from = m.block as usize * self.block;
            if let Some(bytes) = self.pool.get(from..from + m.len as usize) {
                self.receives.write(m.token, m.offset, bytes);
            }
        }
        Ok(())
    }

    /// The next operation that ended.
    // What it returns is large, and hardly anybody needs all of it.
    #[inline(always)]
    pub fn poll_completion(&mut self) -> Option<Done<B>> {
        loop {
            let mut completion = self.engine.poll_completion()?;
            let store = match completion.operation {
                Operation::Send => &mut self.sends,
                Operation::Recv => &mut self.receives,
            };
            // Each token was given once, so there is an entry.
            if let Some(entry) = store.remove(completion.token) {
                completion.token = entry.wr_id;
                return Some(Done { completion, buf: entry.buf });
            }
        }
    }

    /// The next event of a session. With [`Event::Down`] its address handles go too.
    pub fn poll_event<I: PortIo>(&mut self, worker: &mut Worker<I, B>) -> Option<Event> {
        let event = self.engine.poll_event()?;
        if let Event::Down { session, .. } = event {
            let from = session.slot() * self.paths;
            for place in self.handles.get_mut(from..from + self.paths).unwrap_or_default() {
                if let Some(handle) = place.take() {
                    worker.destroy_ah(handle);
                }
            }
        }
        Some(event)
    }

    /// The engine's counters.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// Figures of a session.
    pub fn session_stats(&self, session: SessionKey) -> Option<SessionStats> {
        self.engine.session_stats(session)
    }

    /// The engine, to read.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// When the next round is due if nothing comes in before; `None` if none is. Whoever sleeps between rounds should not
    /// sleep longer.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.stalled.is_some() { Some(self.last) } else { self.engine.next_deadline() }
    }

    /// One round of the worker and this endpoint: receives, feedback and timers, sends.
    #[inline]
    pub fn poll<I: PortIo>(&mut self, worker: &mut Worker<I, B>, now: Instant) -> Progress {
        let waited = now.saturating_since(self.last);
        self.last = now;
        self.engine.begin(now, waited);
        let (mut all, drained) = self.receive(worker, now);
        // No timer fires while something that may be its answer still waits.
        if drained {
            self.engine.turn();
        }
        all.sent += self.transmit(worker, now);
        all
    }

    /// Receives what waits, as far as it is not too much; returns whether that was all.
    #[inline]
    fn receive<I: PortIo>(&mut self, worker: &mut Worker<I, B>, now: Instant) -> (Progress, bool) {
        let mut all = Progress::default();
        let (engine, block, rails) = (&mut self.engine, self.block, &self.rails);
        let all_qps = Numbers { first: self.qpn, count: self.qps.len() as u16, rails };
        let mut to =
            Places { receives: &mut self.receives, pool: &mut self.pool, block, parity: &mut self.parity };
        // What came while others were polled.
        worker.consume(self.cq, usize::MAX, |done| {
            let bytes = done.buf.as_ref().filter(|_| done.status == WcStatus::Success);
            let bytes = bytes.map(|buf| buf.bytes(done.byte_len as usize));
            if let Some((area, payload)) = bytes.and_then(|b| b.split_first_chunk::<GRH_LEN>()) {
                let (ip, ce) = source(area, done.family);
                let via = all_qps.via(done.qpn);
                let origin = Origin { from: Address { ip, qpn: done.src_qpn, via }, ce };
                take(&origin, payload, engine, &mut to);
            }
            true
        });
        for _ in 0..BURSTS {
            let round = worker.poll_packets(now, self.cq, |[ours, qpn], ip, payload| {
                let (ip, ce) = source_of(ip);
                let from = Address { ip, qpn, via: all_qps.via(ours) };
                take(&Origin { from, ce }, payload, engine, &mut to);
            });
            all.received += round.received;
            all.sent += round.sent;
            all.relayed += round.relayed;
            if round.received == 0 || round.drained {
                return (all, true);
            }
        }
        (all, false)
    }
}

/// Source address by an IP header, and whether it carries Congestion Experienced.
#[inline]
fn source_of(ip: Ip<'_>) -> (IpAddr, bool) {
    (ip.src(), ip.traffic_class() & 3 == 3)
}

/// The same by the GRH area, in whose end an IPv4 header stands.
fn source(area: &[u8; GRH_LEN], family: Family) -> (IpAddr, bool) {
    match family {
        Family::V4 => match area.last_chunk::<20>() {
            Some(header) => source_of(Ip::V4(header)),
            None => (Ipv4Addr::UNSPECIFIED.into(), false),
        },
        Family::V6 => source_of(Ip::V6(area)),
    }
}

#[cfg(test)]
mod address_tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn source_and_mark_by_both_headers() {
        let mut area = [0u8; GRH_LEN];
        area[20 + 1] = 3;
        area[20 + 12..20 + 16].copy_from_slice(&[192, 0, 2, 9]);
        assert_eq!(source(&area, Family::V4), ("192.0.2.9".parse().unwrap(), true));
        area[20 + 1] = 2;
        assert!(!source(&area, Family::V4).1);
        let mut area = [0u8; GRH_LEN];
        area[..2].copy_from_slice(&[0x60, 0x30]);
        area[8..24].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        assert_eq!(source(&area, Family::V6), ("::1".parse().unwrap(), true));
    }
}
