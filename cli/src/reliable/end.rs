//! One end of a test: a worker with a reliable endpoint, polled by the test's own loop.

use super::Message;
use crate::error::Error;
use crate::signal::Stop;
use crate::traffic::drive::Buf;
use dataplane::clock::Clock;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::PortIo;
use dataplane::reliable::{Done, Reliable};
use dataplane::worker::Worker;
use roce_proto::time::Instant;
use roce_proto::transport::{DownReason, Event, RecvRequest, SendRequest, SessionKey};
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

/// A worker with a reliable endpoint.
pub(super) struct End<I: PortIo> {
    pub worker: Worker<I, Buf>,
    pub reliable: Reliable<Buf>,
    clock: Clock,
    idle: Idle,
    stop: Stop,
    pub now: Instant,
}

impl<I: PortIo> End<I> {
    pub fn new(
        worker: Worker<I, Buf>,
        reliable: Reliable<Buf>,
        clock: Clock,
        idle: IdlePolicy,
        stop: Stop,
    ) -> End<I> {
        let now = clock.now();
        End { worker, reliable, clock, idle: Idle::new(idle), stop, now }
    }

    /// One round; `busy` says whether the caller found work itself.
    #[inline]
    pub fn round(&mut self, busy: bool) {
        self.now = self.clock.now();
        let progress = self.reliable.poll(&mut self.worker, self.now);
        // Sleeping is for when nothing is due: a deadline near by is waited for awake.
        let near = self.now + Duration::from_micros(500);
        let due = self.reliable.next_deadline().is_some_and(|at| at <= near);
        self.idle.after_round(busy || due || progress.any());
    }

    /// Whether a signal asked for a stop.
    pub fn stopped(&self) -> bool {
        self.stop.requested()
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
        self.reliable.poll_event(&mut self.worker)
    }

    /// Sends one of the tests' own messages.
    pub fn say(&mut self, session: SessionKey, message: &Message) -> Result<(), Error> {
        let bytes: Buf = serde_json::to_vec(message).map_err(Error::failed)?.into();
        let token = if matches!(message, Message::Result { .. }) { RESULT } else { 0 };
        let len = bytes.len() as u64;
        let request = SendRequest { token, len, communicator: CONTROL, ..SendRequest::default() };
        self.reliable.post_send(session, &request, bytes).map_err(|(e, _)| Error::failed(e))
    }

    /// Posts receives for the tests' own messages.
    pub fn listen(&mut self, session: SessionKey) -> Result<(), Error> {
        (0..RECEIVES).try_for_each(|_| self.listen_with(session, vec![0; LONGEST].into()))
    }

    fn listen_with(&mut self, session: SessionKey, buf: Buf) -> Result<(), Error> {
        let request = RecvRequest { communicator: CONTROL, ..RecvRequest::default() };
        self.reliable.post_recv(session, &request, buf).map_err(|(e, _)| Error::failed(e))
    }

    /// Reads one of the tests' own messages, and posts its receive again.
    pub fn hear(&mut self, done: Done<Buf>) -> Result<Message, Error> {
        let bytes = done.buf.get(..done.completion.len as usize).unwrap_or_default();
        let message = serde_json::from_slice(bytes)
            .map_err(|e| Error::failed(format_args!("the peer speaks another language: {e}")));
        self.listen_with(done.completion.session, done.buf)?;
        message
    }
}

/// A session that ended before its test did.
pub(super) fn lost(reason: DownReason) -> Error {
    Error::failed(format_args!("the session went down: {reason}"))
}
