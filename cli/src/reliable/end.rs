//! One end of a test: a worker with a reliable endpoint, polled by the test's own loop.

use super::Message;
use crate::error::Error;
use crate::rendezvous::message::Message as Hail;
use crate::rendezvous::{CONTROL_QPN, Control, Peer};
use crate::signal::Stop;
use crate::tags::TagArgs;
use crate::traffic::drive::{Buf, Drive, Inline};
use dataplane::clock::Clock;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::{PortIo, PortState, PortWatch};
use dataplane::reliable::Reliable;
use dataplane::worker::Worker;
use roce_proto::time::Instant;
use roce_proto::transport::{DownReason, Event, PostError, RecvRequest, SendRequest, SessionKey};
use roce_proto::types::Qpn;
use std::net::IpAddr;
use std::time::Duration;

/// The communicator of the tests' own messages.
pub(super) const CONTROL: u32 = 1;
/// The communicator of the messages that are measured.
pub(super) const DATA: u32 = 2;
/// The longest message of the tests' own: a report with all it can have.
const LONGEST: usize = 16 * 1024;
/// The token of a result's send.
pub(super) const RESULT: u64 = 1;
/// Receives posted for them.
const RECEIVES: usize = 4;
/// Rounds between two looks at who speaks of tests over raw UD.
const ATTEND: u32 = 64;

/// A worker with a reliable endpoint, and what tests over raw UD agree by: so that who wants those is told.
pub(super) struct End<I: PortIo + 'static> {
    drive: Inline<I>,
    pub reliable: Reliable<Buf>,
    /// What this side's messages are.
    pub tags: TagArgs,
    control: Control,
    clock: Clock,
    idle: Idle,
    stop: Stop,
    pub now: Instant,
    ports: Vec<PortWatch>,
    rounds: u32,
    /// Who has said that its tests are over raw UD.
    raw: Option<IpAddr>,
}

impl<I: PortIo + 'static> End<I> {
    /// `listen` takes the well-known number, at which who comes for a test over raw UD asks.
    pub fn new(
        mut worker: Worker<I, Buf>,
        reliable: Reliable<Buf>,
        idle: IdlePolicy,
        stop: Stop,
        listen: bool,
    ) -> Result<End<I>, Error> {
        let clock = Clock::new();
        let now = clock.now();
        let cq = worker.create_cq(256);
        let mut drive = Inline::new(worker, [cq, cq], clock, idle);
        let known = if listen { Qpn::new(CONTROL_QPN) } else { None };
        let mut control = Control::open(&mut drive, cq, known)?;
        control.reliable = true;
        let worker = drive.worker();
        let ports = (0..worker.ports()).filter_map(|port| worker.watch(port)).collect();
        let idle = Idle::new(idle);
        Ok(End {
            drive,
            reliable,
            tags: TagArgs::default(),
            control,
            clock,
            idle,
            stop,
            now,
            ports,
            rounds: 0,
            raw: None,
        })
    }

    /// The time, which is later than that of the round if the system had something else to do meanwhile.
    pub fn moment(&self) -> Instant {
        self.clock.now()
    }

    /// Whether it has several ports.
    pub fn has_rails(&self) -> bool {
        self.ports.len() > 1
    }

    /// The worker.
    pub fn worker(&mut self) -> &mut Worker<I, Buf> {
        self.drive.worker()
    }

    /// The endpoint and its worker.
    pub fn both(&mut self) -> (&mut Reliable<Buf>, &mut Worker<I, Buf>) {
        (&mut self.reliable, self.drive.worker())
    }

    /// One round; `busy` says whether the caller found work itself.
    #[inline]
    pub fn round(&mut self, busy: bool) {
        self.now = self.clock.now();
        let progress = self.reliable.poll(self.drive.worker(), self.now);
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ATTEND) || !progress.any() {
            self.attend();
        }
        if busy || progress.any() {
            self.idle.after_round(true);
            return;
        }
        // Sleeping is for when nothing is due: a deadline near by is waited for awake, but not by keeping the core from who brings the answer.
        let near = self.now + Duration::from_micros(500);
        match self.reliable.next_deadline() {
            Some(at) if at <= near => self.idle.stay_awake(),
            _ => self.idle.after_round(false),
        };
    }

    /// Answers who wants a test over raw UD.
    #[inline]
    fn attend(&mut self) {
        while let Some(done) = self.drive.complete() {
            self.control.take_own(&mut self.drive, done);
            self.answer();
        }
        // Answers may wait for a neighbour; there is nobody to tell if they cannot leave.
        let _ = self.control.pump(&mut self.drive);
    }

    #[cold]
    fn answer(&mut self) {
        while let Some((from, message)) = self.control.next_message() {
            match message {
                Hail::Hello { id, .. } => {
                    let why =
                        "its tests run over the reliable service: give --service to neither side or to both";
                    // It asks again if this does not leave.
                    let _ = self.control.send(&mut self.drive, from, &Hail::Refuse { id, why: why.into() });
                }
                Hail::About { reliable: false, .. } => self.raw = Some(from.ip),
                _ => {}
            }
        }
    }

    /// Asks a server what its tests run over.
    pub fn ask(&mut self, ip: IpAddr) -> Result<(), Error> {
        let server = Peer { ip, qpn: Qpn::new(CONTROL_QPN).unwrap_or_default() };
        self.control.send(&mut self.drive, server, &Hail::Probe { id: u64::from(self.rounds) })
    }

    /// Whether it has said that it is raw UD.
    pub fn is_raw(&self, ip: IpAddr) -> bool {
        self.raw == Some(ip)
    }

    /// Whether a signal asked for a stop.
    pub fn stopped(&self) -> bool {
        self.stop.requested()
    }

    /// An error if a signal asked for a stop, or all ports are gone for good.
    pub fn check(&self) -> Result<(), Error> {
        if self.stopped() {
            return Err(Error::interrupted());
        }
        self.check_port()
    }

    /// An error if all ports are gone for good.
    pub fn check_port(&self) -> Result<(), Error> {
        match self.ports.iter().all(|port| port.state() == PortState::Gone) {
            true => Err(Error::port_gone()),
            false => Ok(()),
        }
    }

    /// Times that a link was lost.
    pub fn link_lost(&self) -> u64 {
        self.ports.iter().map(PortWatch::lost).sum()
    }

    /// Rounds for a while, in which nothing is expected.
    pub fn linger(&mut self, time: Duration) {
        let until = self.clock.now() + time;
        while self.clock.now() < until {
            self.round(false);
            while self.reliable.poll_completion().is_some() {}
            while self.event().is_some() {}
        }
    }

    /// The next event of a session.
    pub fn event(&mut self) -> Option<Event> {
        self.reliable.poll_event(self.drive.worker())
    }

    /// Sends one of the tests' own messages.
    pub fn say(&mut self, session: SessionKey, message: &Message) -> Result<(), Error> {
        let bytes: Buf = serde_json::to_vec(message).map_err(Error::failed)?.into();
        let token = if matches!(message, Message::Result { .. }) { RESULT } else { 0 };
        let len = bytes.len() as u64;
        let request = SendRequest { token, len, communicator: CONTROL, ..SendRequest::default() };
        posted(self.reliable.post_send(session, &request, bytes))
    }

    /// Posts receives for the tests' own messages.
    pub fn listen(&mut self, session: SessionKey) -> Result<(), Error> {
        (0..RECEIVES).try_for_each(|_| self.listen_with(session, vec![0; LONGEST].into()))
    }

    fn listen_with(&mut self, session: SessionKey, buf: Buf) -> Result<(), Error> {
        let request = RecvRequest { communicator: CONTROL, ..RecvRequest::default() };
        posted(self.reliable.post_recv(session, &request, buf))
    }

    /// Reads one of the tests' own messages, and posts its receive again.
    pub fn hear(&mut self, session: SessionKey, len: u64, buf: Buf) -> Result<Message, Error> {
        let bytes = buf.get(..len as usize).unwrap_or_default();
        let message = serde_json::from_slice(bytes)
            .map_err(|e| Error::failed(format_args!("the peer speaks another language: {e}")));
        self.listen_with(session, buf)?;
        message
    }
}

/// What became of a post. A session that is gone is no error here: its event says why it is.
fn posted(outcome: Result<(), (PostError, Buf)>) -> Result<(), Error> {
    match outcome {
        Ok(()) | Err((PostError::NoSession, _)) => Ok(()),
        Err((e, _)) => Err(Error::failed(e)),
    }
}

/// A session that ended before its test did.
pub(super) fn lost(reason: DownReason) -> Error {
    Error::failed(format_args!("the session went down: {reason}"))
}
