//! From what the engine wants sent to packets at the port.

use super::Reliable;
use crate::ah::{AhConfig, AhKey};
use crate::buffer::Buffer;
use crate::io::PortIo;
use crate::qp::{QpKey, SendWr};
use crate::worker::Worker;
use roce_proto::time::Instant;
use roce_proto::transport::{Address, Destination, Transmit, Way};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{Data, MAX_CONTROL_LEN, immediate};

/// Packets that are sent before it is the turn of receiving.
const SENDS: usize = 256;
/// Segments in a packet at the most: as many headers fill half of one of 4 KiB.
pub(super) const MOST: usize = 32;
/// With so many segments a packet leaves at once: the peer works on them while the next are put together.
const FULL: usize = 8;
/// Room for the headers of a packet.
pub(super) const HEADERS: usize = MOST * Data::LEN;
const _: () = assert!(HEADERS >= MAX_CONTROL_LEN);
/// Address handles for answers to strangers.
pub(super) const STRANGERS: usize = 16;
/// Traffic class of our packets: best effort, ECN-capable (ECT(0), RFC 3168).
const ECT: u8 = 2;

impl<B: Buffer> Reliable<B> {
    /// Sends what the engine has; returns how many packets the port took.
    #[inline]
    pub(super) fn transmit<I: PortIo>(&mut self, worker: &mut Worker<I, B>, now: Instant) -> usize {
        let (mut waiting, mut sent) = (false, 0);
        for _ in 0..SENDS {
            let next = match self.stalled.take() {
                Some(stalled) => stalled,
                None => match self.engine.transmit(&mut self.headers) {
                    Some(next) => {
                        self.bundle(&next);
                        next
                    }
                    None => break,
                },
            };
            let Some((ah, dst_qpn, qp)) = self.handle(worker, &next, now) else { continue };
            let wr = SendWr {
                wr_id: 0,
                ah,
                dst_qpn,
                qkey: self.qkey,
                imm: immediate(next.kind),
                solicited: false,
                signaled: false,
            };
            let first = usize::from(next.header_len);
            let posted = match &next.parity {
                None => {
                    let bodies =
                        self.parts.iter().map(|part| part.map_or(0, |s| s.len as usize)).sum::<usize>();
                    let len = first + (self.parts.len() - 1) * Data::LEN + bodies;
                    let (headers, parts, sends) = (&self.headers, &self.parts, &self.sends);
                    worker.post_send_with(qp, &wr, len, |mut place| {
                        let mut headers = &headers[..];
                        for (i, part) in parts.iter().enumerate() {
                            let header = if i == 0 { first } else { Data::LEN };
                            place = put(place, headers.split_off(..header).unwrap_or_default());
                            let Some(s) = part else { continue };
                            // Tokens of sends that have not ended are of buffers that have so many bytes. One that has, while its
                            // packet waited for the port, has arrived; what lies in the packet's memory is nobody's business.
                            place = match sends.bytes(s.token, s.offset, s.len as usize) {
                                Some(body) => put(place, body),
                                None => blank(place, s.len as usize),
                            };
                        }
                    })
                }
                Some(shards) => {
                    let (headers, parity, sends) = (&self.headers, &mut self.parity, &self.sends);
                    worker.post_send_with(qp, &wr, first + shards.len as usize, |place| {
                        let rest = put(place, headers.get(..first).unwrap_or_default());
                        let made = match next.to {
                            Destination::Session(key) => parity.make(key, shards, sends, rest),
                            Destination::Address(_) => false,
                        };
                        if !made {
                            rest.fill(0);
                        }
                    })
                }
            };
            match posted {
                Ok(()) if self.parts.len() >= FULL => {
                    sent += worker.flush().sent;
                    waiting = false;
                }
                Ok(()) => waiting = true,
                // A neighbour that has not answered yet: the packet is lost, and sent again later.
                Err(crate::qp::PostError::AddressUnresolved) => {}
                Err(e) if e.is_back_pressure() => {
                    self.stalled = Some(next);
                    break;
                }
                Err(_) => {}
            }
        }
        if waiting {
            sent += worker.flush().sent;
        }
        sent
    }

    /// Puts behind a packet what may share it.
    #[inline]
    fn bundle(&mut self, first: &Transmit) {
        self.parts.clear();
        self.parts.push(first.source);
        let mut last = *first;
        let mut used = usize::from(first.header_len) + first.source.map_or(0, |s| s.len as usize);
        let mut from = 0;
        while last.more && self.parts.len() < MOST {
            let Some((header, rest)) =
                self.headers.get_mut(from..).and_then(|h| h.split_at_mut_checked(Data::LEN))
            else {
                return;
            };
            let Some(next) = self.engine.follow(&last, used, rest) else { return };
            Data::set_more(header);
            self.parts.push(next.source);
            used += Data::LEN + next.source.map_or(0, |s| s.len as usize);
            from += Data::LEN;
            last = next;
        }
    }

    /// The address handle of a packet, its destination, and the queue pair that it leaves from.
    #[inline]
    fn handle<I: PortIo>(
        &mut self,
        worker: &mut Worker<I, B>,
        next: &Transmit,
        now: Instant,
    ) -> Option<(AhKey, Qpn, QpKey)> {
        match next.to {
            Destination::Session(key) => {
                let way = self.engine.way(key, next.path)?;
                let qp = match way.rail {
                    0 => *self.qps.get(usize::from(way.via))?,
                    rail => self.rails.of(rail, way.ip)?.qp,
                };
                let at = key.slot() * self.paths + usize::from(next.path);
                if let Some(handle) = *self.handles.get(at)? {
                    return Some((handle, way.qpn, qp));
                }
                // A way that there is not, or no more address handles: the packet is lost. The first path is the session's own, without
                // which there is none.
                let Ok(handle) = worker.create_ah(&self.way(way, next.path), now) else {
                    if next.path > 0 {
                        self.engine.deny_path(key, next.path);
                    }
                    return None;
                };
                *self.handles.get_mut(at)? = Some(handle);
                Some((handle, way.qpn, qp))
            }
            Destination::Address(to) => {
                // It goes out where the packet came in that it answers.
                let (port, qp) = match self.rails.by_via(to.via) {
                    Some(rail) => (rail.port, rail.qp),
                    None => (self.port, *self.qps.get(usize::from(to.via))?),
                };
                let to_find = (to.ip, next.path, port);
                if let Some((_, handle)) = self.strangers.iter().find(|(known, _)| *known == to_find) {
                    return Some((*handle, to.qpn, qp));
                }
                if self.strangers.len() == STRANGERS {
                    let (_, oldest) = self.strangers.remove(0);
                    worker.destroy_ah(oldest);
                }
                let way = AhConfig { port, ..self.first_way(to, next.path) };
                let handle = worker.create_ah(&way, now).ok()?;
                self.strangers.push((to_find, handle));
                Some((handle, to.qpn, qp))
            }
        }
    }

    /// The way to a peer from the first port on a path: path 0 has the source port of the queue pair that reaches the peer, the others have others.
    pub(super) fn first_way(&self, peer: Address, path: u8) -> AhConfig {
        let via = Qpn::new(self.qpn.get() + u32::from(peer.via)).unwrap_or(self.qpn);
        let src_port = (path > 0).then(|| self.entropy.port(via, path));
        AhConfig { port: self.port, traffic_class: ECT, src_port, ..AhConfig::new(peer.ip) }
    }

    /// The way on a path of a session.
    fn way(&self, way: Way, path: u8) -> AhConfig {
        match self.rails.of(way.rail, way.ip) {
            Some(rail) => AhConfig {
                port: rail.port,
                traffic_class: ECT,
                src_port: Some(rail.entropy.port(rail.qpn, path)),
                ..AhConfig::new(way.ip)
            },
            None => self.first_way(Address { ip: way.ip, qpn: way.qpn, via: way.via }, path),
        }
    }
}

/// Zeros at the begin of a place; returns the rest of it.
#[cold]
fn blank(place: &mut [u8], len: usize) -> &mut [u8] {
    let (here, rest) = place.split_at_mut(len.min(place.len()));
    here.fill(0);
    rest
}

/// Copies bytes to the begin of a place; returns the rest of it.
#[inline]
fn put<'a>(place: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (here, rest) = place.split_at_mut(bytes.len().min(place.len()));
    here.copy_from_slice(&bytes[..here.len()]);
    rest
}
