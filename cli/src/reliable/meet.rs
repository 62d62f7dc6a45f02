//! How client and server of a test meet and part.

use super::end::{CONTROL, End, lost};
use super::plan::Test;
use super::{Audience, Message, SILENCE, VERSION};
use crate::error::Error;
use dataplane::io::PortIo;
use roce_proto::time::Instant;
use roce_proto::transport::{Address, DownReason, Event, Operation, SessionKey, Status};
use std::time::Duration;

/// Between two questions whether the other side is for raw UD.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// For all sessions of a test to end.
const END: Duration = Duration::from_secs(1);

/// Opens a session with a server, which may not be there yet.
pub(super) fn connect<I: PortIo + 'static>(
    end: &mut End<I>,
    server: Address,
    wait: Duration,
    audience: &mut impl Audience,
) -> Result<SessionKey, Error> {
    let begun = end.now;
    let (mut shown, mut asked) = (None, None::<Instant>);
    loop {
        let (now, (reliable, worker)) = (end.now, end.both());
        let session = reliable.connect(worker, server, now).map_err(Error::failed)?;
        loop {
            end.round(false);
            match end.event() {
                Some(Event::Up { session: up, .. }) if up == session => return Ok(session),
                // It may not be there yet.
                Some(Event::Down { reason: DownReason::Refused(_) | DownReason::NoAnswer(_), .. }) => break,
                Some(Event::Down { reason, .. }) => return Err(lost(reason)),
                _ => {}
            }
            let elapsed = end.now.saturating_since(begun);
            end.check()?;
            if end.is_raw(server.ip) {
                return Err(Error::usage(format_args!("{} runs its tests over raw UD", server.ip))
                    .hint("give --service ud on both sides, or on neither"));
            }
            if elapsed >= wait {
                let error = Error::failed(format_args!("{server} does not answer"));
                return Err(error.hint(match end.has_rails() {
                    false => "start the same command there, without HOST",
                    true => "start the same command there, without HOST; of several ports, HOST is the address of the first",
                }));
            }
            if asked.is_none_or(|at| end.now.saturating_since(at) >= ASK_EVERY) {
                asked = Some(end.now);
                end.ask(server.ip)?;
            }
            if shown != Some(elapsed.as_secs()) {
                shown = Some(elapsed.as_secs());
                audience.waiting(server.ip, elapsed);
            }
        }
    }
}

/// Waits for the server's next word.
pub(super) fn word<I: PortIo + 'static>(end: &mut End<I>, session: SessionKey) -> Result<Message, Error> {
    loop {
        end.round(false);
        while let Some(done) = end.reliable.poll_completion() {
            let c = done.completion;
            if c.session == session && (c.communicator, c.operation) == (CONTROL, Operation::Recv) {
                if c.status != Status::Success {
                    continue;
                }
                let heard = end.hear(done.completion.session, done.completion.len, done.buf)?;
                if matches!(heard, Message::Ready { .. } | Message::Connect {}) {
                    return Ok(heard);
                }
            }
        }
        if let Some(Event::Down { session: down, reason, .. }) = end.event()
            && down == session
        {
            return Err(lost(reason));
        }
        end.check()?;
    }
}

/// Waits for a client that wants something. After a test it says at once what it wants next: `None` if nobody is there for so long
/// that it must have gone.
pub(super) fn hello<I: PortIo + 'static>(
    end: &mut End<I>,
    after_test: bool,
) -> Result<Option<(SessionKey, Test, bool)>, Error> {
    let mut seen = end.now;
    loop {
        end.round(false);
        if end.reliable.engine().sessions() > 0 {
            seen = end.now;
        }
        if after_test && end.now.saturating_since(seen) > SILENCE {
            return Ok(None);
        }
        while let Some(event) = end.event() {
            if let Event::Up { session, .. } = event {
                end.listen(session)?;
            }
        }
        while let Some(done) = end.reliable.poll_completion() {
            let c = done.completion;
            if c.status != Status::Success || (c.communicator, c.operation) != (CONTROL, Operation::Recv) {
                continue;
            }
            // Anybody can say anything: whoever waits for a client goes on waiting.
            let refusal = match end.hear(c.session, c.len, done.buf) {
                Ok(Message::Hello { version: VERSION, spec, peers, memory, mix, last }) => {
                    return Ok(Some((c.session, Test { spec, peers, memory, mix }, last)));
                }
                Ok(Message::Hello { version, .. }) => {
                    format!("the server speaks version {VERSION} of the tests, not {version}")
                }
                Ok(_) => continue,
                Err(why) => why.message().to_owned(),
            };
            tracing::warn!("refused a test: {refusal}");
            // Nor is anything lost with one that takes no answer.
            if end.say(c.session, &Message::Ready { refusal: Some(refusal) }).is_err() {
                end.reliable.close(c.session);
            }
        }
        end.check()?;
    }
}

/// Waits until the client has closed the session.
pub(super) fn down<I: PortIo + 'static>(end: &mut End<I>, session: SessionKey) -> Result<(), Error> {
    loop {
        end.round(false);
        while end.reliable.poll_completion().is_some() {}
        while let Some(event) = end.event() {
            match event {
                Event::Down { session: down, .. } if down == session => return Ok(()),
                Event::Up { session, .. } => end.listen(session)?,
                Event::Down { .. } => {}
            }
        }
        end.check()?;
    }
}

/// Closes the sessions of a test, and lets their peers know. The first goes last: its end says that this was all.
pub(super) fn close<I: PortIo + 'static>(end: &mut End<I>, sessions: &[SessionKey]) {
    let until = end.now + END;
    for session in sessions.iter().rev() {
        end.reliable.close(*session);
    }
    while end.reliable.engine().sessions() > 0 && end.now < until {
        end.round(true);
        while end.reliable.poll_completion().is_some() {}
        while end.event().is_some() {}
    }
    end.linger(Duration::from_millis(5));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reliable::SERVER_QPN;
    use crate::rendezvous::message::{TestKind, TestSpec};
    use crate::signal::Stop;
    use crate::traffic::drive::Buf;
    use crate::traffic::session::{TestResult, Watch};
    use dataplane::idle::IdlePolicy;
    use dataplane::io::memory::{MemoryConfig, MemoryPort};
    use dataplane::reliable::{Reliable, ReliableConfig};
    use dataplane::worker::{PortConfig, Worker, WorkerConfig};
    use roce_proto::transport::SendRequest;
    use roce_proto::types::Qpn;
    use std::sync::mpsc::channel;

    const SERVER: &str = "192.0.2.1";

    struct Nobody;
    impl Watch for Nobody {}
    impl Audience for Nobody {
        fn result(&mut self, _: TestResult) -> Result<(), Error> {
            Ok(())
        }
    }

    fn end(port: MemoryPort, ip: &str) -> End<MemoryPort> {
        let config = PortConfig::new(ip.parse().unwrap());
        let mut worker: Worker<MemoryPort, Buf> =
            Worker::new(&WorkerConfig::default(), vec![(port, config)]).unwrap();
        let listen = ip == SERVER;
        let mut config = ReliableConfig::new(1, [7; 16]);
        config.qpn = listen.then(|| Qpn::new(SERVER_QPN)).flatten();
        config.engine.listen = listen;
        let reliable = Reliable::new(&mut worker, &config, |len| vec![0; len].into()).unwrap();
        let idle = IdlePolicy::BackOff { spins: 4, yields: 2000, max_sleep: Duration::from_millis(1) };
        End::new(worker, reliable, idle, Stop::default(), listen).unwrap()
    }

    /// Whoever says what is no hello, takes no answers and says it again and again, ends no server that waits.
    #[test]
    fn what_is_no_hello_is_refused_and_waited_past() {
        let (a, b) = MemoryPort::pair(&MemoryConfig { mtu: 4200, ..MemoryConfig::default() });
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let mut server = end(a, SERVER);
            let heard = hello(&mut server, false);
            let _ = tell.send(heard.map(|found| found.map(|(_, test, last)| (test.peers, last))));
            server.linger(Duration::from_millis(100));
        });
        let mut client = end(b, "192.0.2.2");
        let to = Address::new(SERVER.parse().unwrap(), Qpn::new(SERVER_QPN).unwrap());
        let wait = Duration::from_secs(30);
        for nonsense in [&b"{"[..], b"", b"[1]", &[0xff; 4000], br#"{"t":"ready","refusal":null}"#] {
            let session = connect(&mut client, to, wait, &mut Nobody).unwrap();
            let request =
                SendRequest { len: nonsense.len() as u64, communicator: CONTROL, ..SendRequest::default() };
            for _ in 0..2_000 {
                // What does not fit any more does not matter.
                let _ = client.reliable.post_send(session, &request, nonsense.to_vec().into());
                client.round(true);
                while client.reliable.poll_completion().is_some() {}
            }
            client.linger(Duration::from_millis(20));
            client.reliable.close(session);
            client.linger(Duration::from_millis(20));
            assert!(told.try_recv().is_err(), "the server ended at {nonsense:?}");
        }
        // One that can be read, and is answered: of another version, then the right one.
        let session = connect(&mut client, to, wait, &mut Nobody).unwrap();
        client.listen(session).unwrap();
        let spec = TestSpec {
            kind: TestKind::Bw,
            size: 64,
            qps: 1,
            iters: Some(1),
            duration_ms: None,
            tx_depth: 1,
            rx_depth: 1,
            bidirectional: false,
            rate: None,
        };
        let of = |version| Message::Hello {
            version,
            spec: spec.clone(),
            peers: 3,
            memory: 0,
            mix: None,
            last: true,
        };
        client.say(session, &of(VERSION + 1)).unwrap();
        let Message::Ready { refusal: Some(why) } = word(&mut client, session).unwrap() else {
            panic!("another answer")
        };
        assert!(why.contains(&format!("version {VERSION}")), "{why}");
        client.say(session, &of(VERSION)).unwrap();
        client.linger(Duration::from_millis(50));
        let found = told.recv_timeout(Duration::from_secs(30)).expect("the server ended").unwrap();
        assert_eq!(found, Some((3, true)));
    }
}
