//! Reliable messages behind the handle.

use crate::endpoint::{Endpoint, Failure, Memory};
use crate::{done, error, event, message, reliable_config, session_figures};
use dataplane::io::dpdk::DpdkPort;
use dataplane::reliable::{Reliable, ReliableConfig, fresh_secret};
use dataplane::worker::{Progress, Worker};
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Algorithm, Event, Operation, PostError, RecvRequest, SendRequest, SessionKey, Status,
};
use roce_proto::types::{QKey, Qpn};
use roce_proto::wire::shim::Semantics;
use std::collections::HashMap;
use std::ffi::c_char;
use std::net::IpAddr;

/// The reliable endpoint of an endpoint.
pub struct Messages {
    reliable: Reliable<Memory>,
    /// Sessions by the number that the program knows.
    sessions: HashMap<u64, SessionKey>,
    /// The number of the session in each slot.
    numbers: Vec<u64>,
    next: u64,
}

impl Messages {
    fn number(&mut self, session: SessionKey) -> u64 {
        let known = self.numbers.get(session.slot()).copied().unwrap_or(0);
        if known != 0 && self.sessions.get(&known) == Some(&session) {
            return known;
        }
        let number = self.next;
        self.next += 1;
        self.sessions.insert(number, session);
        if self.numbers.len() <= session.slot() {
            self.numbers.resize(session.slot() + 1, 0);
        }
        if let Some(place) = self.numbers.get_mut(session.slot()) {
            *place = number;
        }
        number
    }

    fn session(&self, number: u64) -> Result<SessionKey, Failure> {
        let found = self.sessions.get(&number).copied();
        found.ok_or_else(|| Failure::new(error::State, format_args!("there is no session {number}")))
    }

    /// One round of it and its worker.
    pub fn round(&mut self, worker: &mut Worker<DpdkPort, Memory>, now: Instant) -> Progress {
        self.reliable.poll(worker, now)
    }
}

fn not_started() -> Failure {
    Failure::new(error::State, "call spw_reliable_start() first")
}

fn wrong(text: &str) -> Failure {
    Failure::new(error::Argument, text)
}

fn refused(e: PostError) -> Failure {
    let number = match e {
        PostError::NoSession => error::State,
        PostError::TooLong { .. } | PostError::Channels(_) => error::Argument,
        PostError::Full(_) | PostError::NotOpen => error::Again,
    };
    Failure::new(number, e)
}

/// What a program says of a message.
fn semantics(message: &message) -> Result<Semantics, Failure> {
    let (class, priority) = (message.traffic_class, message.priority);
    if class > 3 || priority > 15 {
        return Err(wrong(&format!("class {class}, priority {priority}: they are 0 to 3, and 0 to 15")));
    }
    let (stage, tolerance) = (message.stage, message.tolerance);
    Ok(match class {
        0 => Semantics::default(),
        _ => Semantics { class, priority, stage, tolerance, ..Semantics::default() },
    })
}

/// Writes as much of a text as fits, with a zero at its end.
fn write_text(place: &mut [c_char], text: &str) {
    let Some(room) = place.len().checked_sub(1) else { return };
    let cut = (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let bytes = text.as_bytes().iter().take(cut).map(|&byte| byte as c_char);
    place.iter_mut().zip(bytes.chain(std::iter::repeat(0))).for_each(|(to, byte)| *to = byte);
}

impl Endpoint {
    fn messages(&mut self) -> Result<&mut Messages, Failure> {
        self.messages.as_mut().ok_or_else(not_started)
    }

    pub fn start_reliable(&mut self, config: &reliable_config) -> Result<u32, Failure> {
        if self.messages.is_some() {
            return Err(Failure::new(error::State, "the endpoint has its reliable service already"));
        }
        let secret = fresh_secret().map_err(|e| Failure::new(error::Internal, e))?;
        let epoch = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64);
        let mut wanted = ReliableConfig::new(epoch, secret);
        if config.qpn != 0 {
            wanted.qpn = Some(Qpn::new(config.qpn).ok_or_else(|| wrong("a queue pair number has 24 bits"))?);
        }
        if config.qkey != 0 {
            wanted.qkey = QKey(config.qkey);
        }
        wanted.engine.listen = config.listen != 0;
        if config.paths != 0 {
            wanted.engine.paths = config.paths;
        }
        if config.sessions != 0 {
            wanted.engine.limits.sessions = config.sessions;
        }
        wanted.engine.congestion = match (config.congestion, config.window) {
            (0, 0) => wanted.engine.congestion,
            (0, window) => Algorithm::Fixed(window),
            (1, _) => Algorithm::DelayEcn,
            (other, _) => return Err(wrong(&format!("there is no congestion control {other}"))),
        };
        let make = |len| Memory::Own(vec![0; len].into());
        let reliable = Reliable::new(&mut self.worker, &wanted, make).map_err(|e| wrong(&e.to_string()))?;
        let qpn = reliable.qpn().get();
        self.messages = Some(Messages { reliable, sessions: HashMap::new(), numbers: Vec::new(), next: 1 });
        Ok(qpn)
    }

    pub fn connect(&mut self, address: &str, qpn: u32) -> Result<u64, Failure> {
        let ip: IpAddr = address.parse().map_err(|_| wrong(&format!("`{address}` is no IP address")))?;
        let qpn = Qpn::new(qpn).ok_or_else(|| wrong("a queue pair number has 24 bits"))?;
        let now = self.clock.now();
        let messages = self.messages.as_mut().ok_or_else(not_started)?;
        let key = messages.reliable.connect(&mut self.worker, Address::new(ip, qpn), now);
        let key = key.map_err(|e| Failure::new(error::State, e))?;
        Ok(messages.number(key))
    }

    pub fn disconnect(&mut self, session: u64) -> Result<(), Failure> {
        let messages = self.messages()?;
        let key = messages.session(session)?;
        messages.reliable.close(key);
        Ok(())
    }

    /// # Safety
    /// `len` bytes at `start` must be readable, and not be written to, until the send completes or the endpoint is gone.
    pub unsafe fn send_message(
        &mut self,
        message: &message,
        start: *const u8,
        len: usize,
    ) -> Result<(), Failure> {
        let messages = self.messages()?;
        let session = messages.session(message.session)?;
        let request = SendRequest {
            token: message.wr_id,
            len: len as u64,
            communicator: message.communicator,
            tag: message.tag,
            semantics: semantics(message)?,
        };
        let posted = messages.reliable.post_send(session, &request, Memory::Read { start, len });
        posted.map_err(|(e, _)| refused(e))
    }

    /// # Safety
    /// `len` bytes at `start` must be the endpoint's until the receive completes or the endpoint is gone.
    pub unsafe fn recv_message(
        &mut self,
        message: &message,
        start: *mut u8,
        len: usize,
    ) -> Result<(), Failure> {
        let messages = self.messages()?;
        let session = messages.session(message.session)?;
        let request = RecvRequest {
            token: message.wr_id,
            capacity: len as u64,
            communicator: message.communicator,
            tag: message.tag,
            step: None,
        };
        let posted = messages.reliable.post_recv(session, &request, Memory::Filled { start, len });
        posted.map_err(|(e, _)| refused(e))
    }

    /// Moves packets and takes completions.
    pub fn poll_messages(&mut self, max: usize, mut give: impl FnMut(done)) -> Result<usize, Failure> {
        self.messages()?;
        self.round();
        let messages = self.messages()?;
        let mut taken = 0;
        while taken < max
            && let Some(finished) = messages.reliable.poll_completion()
        {
            let c = finished.completion;
            give(done {
                wr_id: c.token,
                session: messages.number(c.session),
                communicator: c.communicator,
                tag: c.tag,
                len: c.len,
                retransmitted: c.retransmitted,
                status: match c.status {
                    Status::Success => 0,
                    Status::TooLong => 1,
                    Status::SessionDown => 2,
                },
                is_receive: u8::from(c.operation == Operation::Recv),
            });
            taken += 1;
        }
        Ok(taken)
    }

    /// The next event of a session.
    pub fn session_event(&mut self) -> Result<Option<event>, Failure> {
        let messages = self.messages.as_mut().ok_or_else(not_started)?;
        // Messages of a session that is gone still name it.
        if messages.reliable.engine().in_use().iter().any(|(name, n)| *name == "completions" && *n > 0) {
            return Ok(None);
        }
        let Some(happened) = messages.reliable.poll_event(&mut self.worker) else { return Ok(None) };
        let (Event::Up { session, peer, .. } | Event::Down { session, peer, .. }) = happened;
        let number = messages.number(session);
        let mut told = event {
            session: number,
            peer_qpn: peer.qpn.get(),
            is_up: 0,
            accepted: 0,
            peer: [0; 48],
            reason: [0; 256],
        };
        write_text(&mut told.peer, &peer.ip.to_string());
        match happened {
            Event::Up { accepted, .. } => (told.is_up, told.accepted) = (1, accepted.into()),
            Event::Down { reason, .. } => {
                messages.sessions.remove(&number);
                write_text(&mut told.reason, &reason.to_string());
            }
        }
        Ok(Some(told))
    }

    pub fn stats(&mut self, session: u64) -> Result<session_figures, Failure> {
        let messages = self.messages()?;
        let key = messages.session(session)?;
        let gone = || Failure::new(error::State, format_args!("session {session} is over"));
        let s = messages.reliable.session_stats(key).ok_or_else(gone)?;
        let rtt = messages.reliable.engine().round_trip(key).unwrap_or_default();
        Ok(session_figures {
            segments_sent: s.segments_sent,
            retransmitted: s.retransmitted,
            spurious: s.spurious,
            segments_received: s.segments_received,
            duplicates: s.duplicates,
            bytes_sent: s.bytes_sent,
            bytes_received: s.bytes_received,
            round_trip_ns: u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(traffic_class: u8, priority: u8) -> message {
        message {
            wr_id: 1,
            session: 1,
            tag: 0,
            communicator: 0,
            traffic_class,
            priority,
            stage: 3,
            tolerance: 7,
        }
    }

    #[test]
    fn what_a_program_says_of_a_message_travels_with_a_class_only() {
        let said = |class, priority| semantics(&message(class, priority)).ok();
        assert_eq!(said(0, 9), Some(Semantics::default()));
        let tagged = Semantics { class: 2, priority: 15, stage: 3, tolerance: 7, ..Semantics::default() };
        assert_eq!(said(2, 15), Some(tagged));
        assert_eq!((said(4, 0), said(1, 16)), (None, None));
    }
}
