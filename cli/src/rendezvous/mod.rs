//! How the two sides of a benchmark find each other: in-band, over UD, so that it works on a port that DPDK owns alone.
//!
//! The server has a queue pair with a well-known number; the client asks there, from a queue pair of its own.

pub mod fragment;
pub mod message;

use crate::error::Error;
use crate::traffic::drive::{Buf, Drive};
use dataplane::ah::{AhConfig, AhKey, AhState};
use dataplane::cq::{Completion, Family, WcOpcode, WcStatus};
use dataplane::qp::{CqKey, GRH_LEN, QpConfig, QpKey, SendWr};
use fragment::{Assembler, Bad};
use message::Message;
use roce_proto::types::{QKey, Qpn};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The server's control queue pair.
pub const CONTROL_QPN: u32 = 0x53_5057;

/// Q_Key of control queue pairs.
pub const CONTROL_QKEY: QKey = QKey(0x5350_5743);

/// Depth of the control queues.
const DEPTH: usize = 64;

/// Peers that a server remembers how to reach; the oldest gives way.
const MAX_PEERS: usize = 64;

/// Pieces that may wait for a neighbour to answer or for room.
const MAX_QUEUED: usize = 256;

/// A control queue pair somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its number.
    pub qpn: Qpn,
}

struct Route {
    ah: AhKey,
    ready: bool,
}

/// One end's control queue pair.
pub struct Control {
    qp: QpKey,
    qpn: Qpn,
    mtu: usize,
    routes: HashMap<IpAddr, Route>,
    /// Whose way is never given up for another's.
    held: Option<IpAddr>,
    assembler: Assembler<Peer>,
    number: u32,
    queued: VecDeque<(Peer, Buf)>,
    /// Receives that found no room when they were posted again; at most as many as the queue is deep.
    unposted: Vec<Buf>,
    /// Messages that came, until somebody asks.
    inbox: VecDeque<(Peer, Message)>,
    warned: bool,
    /// What it tells of the service that tests run over.
    pub reliable: bool,
}

impl Control {
    /// Creates the queue pair, with the number `known` if there is one, and its receives posted.
    pub fn open<D: Drive>(drive: &mut D, cq: CqKey, known: Option<Qpn>) -> Result<Control, Error> {
        let config = QpConfig {
            qpn: known,
            qkey: CONTROL_QKEY,
            send_depth: DEPTH as u32,
            recv_depth: DEPTH as u32,
            ..QpConfig::new(cq)
        };
        let (qp, qpn, mtu) = drive
            .with_worker(move |w| {
                let qp = w.create_qp(&config)?;
                Ok::<_, dataplane::qp::QpError>((qp, w.qpn(qp), w.ib_mtu(0)))
            })
            .map_err(Error::failed)?
            .map_err(Error::failed)?;
        let qpn = qpn.ok_or_else(|| Error::failed("the control queue pair has no number"))?;
        for _ in 0..DEPTH {
            let buf = vec![0; GRH_LEN + mtu].into_boxed_slice();
            drive.recv(qp, 0, buf).map_err(|(e, _)| Error::failed(e))?;
        }
        Ok(Control {
            qp,
            qpn,
            mtu,
            routes: HashMap::new(),
            held: None,
            assembler: Assembler::new(),
            number: 0,
            queued: VecDeque::new(),
            unposted: Vec::with_capacity(DEPTH),
            inbox: VecDeque::new(),
            warned: false,
            reliable: false,
        })
    }

    /// Number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The address handle for the other side of a test, resolved or not. It stays, whoever else asks for anything.
    pub fn hold<D: Drive>(&mut self, drive: &mut D, ip: IpAddr) -> Result<(AhKey, bool), Error> {
        self.held = Some(ip);
        self.route(drive, ip)
    }

    /// The address handle for `ip`, resolved or not.
    pub fn route<D: Drive>(&mut self, drive: &mut D, ip: IpAddr) -> Result<(AhKey, bool), Error> {
        if !self.routes.contains_key(&ip) {
            if self.routes.len() >= MAX_PEERS {
                let held = self.held;
                let others = self.routes.extract_if(|ip, _| Some(*ip) != held);
                let gone: Vec<AhKey> = others.map(|(_, route)| route.ah).collect();
                let forget = drive.with_worker(move |w| {
                    for ah in gone {
                        w.destroy_ah(ah);
                    }
                });
                forget.map_err(Error::failed)?;
            }
            let now = drive.now();
            let ah = drive
                .with_worker(move |w| w.create_ah(&AhConfig::new(ip), now))
                .map_err(Error::failed)?
                .map_err(Error::usage)?;
            self.routes.insert(ip, Route { ah, ready: false });
        }
        let Some(route) = self.routes.get_mut(&ip) else { return Err(Error::failed("no route")) };
        if !route.ready {
            let ah = route.ah;
            let state = drive.with_worker(move |w| w.ah_state(ah)).map_err(Error::failed)?;
            route.ready = state == Some(AhState::Ready);
        }
        Ok((route.ah, route.ready))
    }

    /// Queues a message; it leaves with this or a later [`Control::pump`].
    ///
    /// # Errors
    /// A peer that there is no way to: then nothing is queued.
    pub fn send<D: Drive>(&mut self, drive: &mut D, to: Peer, message: &Message) -> Result<(), Error> {
        self.route(drive, to.ip)?;
        self.number = self.number.wrapping_add(1);
        let pieces = fragment::split(message, self.number, self.mtu)
            .ok_or_else(|| Error::failed("a control message is too long for the MTU"))?;
        for piece in pieces {
            if self.queued.len() >= MAX_QUEUED {
                self.queued.pop_front();
            }
            self.queued.push_back((to, piece.into_boxed_slice()));
        }
        self.pump(drive)
    }

    /// Sends what waits, as far as neighbours are known and queues have room; posts the receives that found none before.
    pub fn pump<D: Drive>(&mut self, drive: &mut D) -> Result<(), Error> {
        for _ in 0..self.unposted.len() {
            let Some(buf) = self.unposted.pop() else { break };
            if !self.post_again(drive, buf) {
                break;
            }
        }
        self.look_for_neighbours(drive)?;
        for _ in 0..self.queued.len() {
            let Some((peer, piece)) = self.queued.pop_front() else { break };
            let (ah, ready) = match self.routes.get(&peer.ip) {
                Some(route) => (route.ah, route.ready),
                None => self.route(drive, peer.ip)?,
            };
            let wr = SendWr {
                wr_id: 0,
                ah,
                dst_qpn: peer.qpn,
                qkey: CONTROL_QKEY,
                imm: None,
                solicited: false,
                signaled: false,
            };
            let len = piece.len();
            if !ready {
                self.queued.push_back((peer, piece));
                continue;
            }
            match drive.send(self.qp, &wr, len, piece) {
                Ok(_) => {}
                Err((e, piece)) if e.is_back_pressure() => self.queued.push_back((peer, piece)),
                Err((e, _)) => return Err(Error::failed(e)),
            }
        }
        Ok(())
    }

    /// Asks once, whoever is waited for, which neighbours have answered; what was to be said to one that does not answer is given up:
    /// anybody can ask in the name of anybody, and who is there asks again.
    fn look_for_neighbours<D: Drive>(&mut self, drive: &mut D) -> Result<(), Error> {
        if self.queued.is_empty() {
            return Ok(());
        }
        let waiting = self.routes.iter().filter(|(_, route)| !route.ready);
        let waiting: Vec<(IpAddr, AhKey)> = waiting.map(|(ip, route)| (*ip, route.ah)).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let states = drive
            .with_worker(move |w| {
                waiting.into_iter().map(|(ip, ah)| (ip, w.ah_state(ah))).collect::<Vec<_>>()
            })
            .map_err(Error::failed)?;
        for (ip, state) in states {
            match state {
                Some(AhState::Ready) => {
                    if let Some(route) = self.routes.get_mut(&ip) {
                        route.ready = true;
                    }
                }
                Some(AhState::Failed { .. }) => self.queued.retain(|(peer, _)| peer.ip != ip),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a completion is of this queue pair.
    #[inline]
    pub fn owns(&self, done: &Completion<Buf>) -> bool {
        done.qpn == self.qpn
    }

    /// Takes a completion if it is of this queue pair, and gives it back otherwise.
    #[inline]
    pub fn take<D: Drive>(&mut self, drive: &mut D, done: Completion<Buf>) -> Option<Completion<Buf>> {
        if !self.owns(&done) {
            return Some(done);
        }
        self.take_own(drive, done);
        None
    }

    /// Takes a completion of this queue pair.
    #[cold]
    pub fn take_own<D: Drive>(&mut self, drive: &mut D, done: Completion<Buf>) {
        if done.opcode != WcOpcode::Recv {
            return;
        }
        let (len, family) = (done.byte_len as usize, done.family);
        let Some(buf) = done.buf else { return };
        if done.status == WcStatus::Success
            && let Some(bytes) = buf.get(GRH_LEN..len)
            && let Some(ip) = source(&buf, family)
        {
            let peer = Peer { ip, qpn: done.src_qpn };
            match self.assembler.take(peer, bytes) {
                Ok(Some(Message::Probe { id })) => self.tell(drive, peer, id),
                Ok(Some(message)) if self.inbox.len() < MAX_QUEUED => self.inbox.push_back((peer, message)),
                Ok(_) => {}
                Err(Bad::Version(v)) if !self.warned => {
                    self.warned = true;
                    tracing::warn!(
                        "{ip} speaks version {v} of the benchmark's messages, this is version {}: use the same release on \
                         both sides",
                        message::VERSION
                    );
                }
                Err(bad) => tracing::debug!("ignored a control packet from {ip}: {bad:?}"),
            }
        }
        self.post_again(drive, buf);
    }

    /// Answers who asks what is here.
    fn tell<D: Drive>(&mut self, drive: &mut D, peer: Peer, id: u64) {
        let mtu = u32::try_from(self.mtu).unwrap_or(u32::MAX);
        let about = Message::About { id, mtu, reliable: self.reliable };
        if let Err(error) = self.send(drive, peer, &about) {
            tracing::debug!("{} was not answered: {error}", peer.ip);
        }
    }

    /// Posts a receive, or keeps it for later; returns whether there was room.
    fn post_again<D: Drive>(&mut self, drive: &mut D, buf: Buf) -> bool {
        match drive.recv(self.qp, 0, buf) {
            Ok(()) => true,
            // The queue to a worker in its own thread may be full for a moment.
            Err((e, buf)) if e.is_back_pressure() => {
                self.unposted.push(buf);
                false
            }
            Err((e, _)) => {
                tracing::debug!("a control receive was not posted again: {e}");
                true
            }
        }
    }

    /// The next message that came.
    pub fn next_message(&mut self) -> Option<(Peer, Message)> {
        self.inbox.pop_front()
    }
}

/// The sender's address in a GRH area.
pub fn source(buf: &[u8], family: Family) -> Option<IpAddr> {
    Some(match family {
        Family::V4 => {
            let octets: [u8; 4] = buf.get(32..36)?.try_into().ok()?;
            IpAddr::V4(Ipv4Addr::from(octets))
        }
        Family::V6 => {
            let octets: [u8; 16] = buf.get(8..24)?.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    })
}

#[cfg(test)]
mod tests;
