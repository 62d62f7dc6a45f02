//! The applications of the hosts: they connect, post what the plan says, take completions and events, and connect again.

use crate::host::{Host, Shared, address};
use crate::scenario::Scenario;
use crate::watch::{Check, Violation};
use crate::words::event_line;
use roce_proto::time::Instant;
use roce_proto::transport::{
    ConnectError, DownReason, Event, Operation, PostError, RecvRequest, SendRequest, SessionKey, Status,
};
use roce_proto::wire::shim::Semantics;
use std::time::Duration;

/// An operation that a host still has to post.
#[derive(Clone, Copy, Debug)]
struct Due {
    message: usize,
    operation: Operation,
    at: Instant,
}

/// What the applications of all hosts still want.
pub struct Apps {
    /// By host, in order of time.
    due: Vec<Vec<Due>>,
    /// Whom each host connects to, and when next.
    connects: Vec<Vec<(usize, Instant)>>,
    /// The token of each message's receive, once it is posted.
    receives: Vec<Option<u64>>,
    /// Sessions that went down while nobody wanted that.
    pub downs: u64,
    /// Everything is over: sessions are closed and not begun again.
    pub closing: bool,
    rng: fastrand::Rng,
}

/// How soon an application tries again what there was no room for.
const AGAIN: Duration = Duration::from_millis(1);

fn at(after: Duration) -> Instant {
    Instant::ZERO + after
}

impl Apps {
    /// What a scenario's applications want.
    pub fn new(scenario: &Scenario) -> Apps {
        let mut due = vec![Vec::new(); scenario.hosts.len()];
        for (message, plan) in scenario.messages.iter().enumerate() {
            due[plan.from].push(Due { message, operation: Operation::Send, at: at(plan.send_at) });
            due[plan.to].push(Due { message, operation: Operation::Recv, at: at(plan.recv_at) });
        }
        for list in &mut due {
            list.sort_by_key(|d| (d.at, d.message));
        }
        let mut connects = vec![Vec::new(); scenario.hosts.len()];
        for (from, to, when) in &scenario.connects {
            connects[*from].push((*to, at(*when)));
        }
        Apps {
            due,
            connects,
            receives: vec![None; scenario.messages.len()],
            downs: 0,
            closing: false,
            rng: fastrand::Rng::with_seed(scenario.seed ^ 0xa99),
        }
    }

    /// Operations that have not been posted.
    pub fn unposted(&self) -> usize {
        self.due.iter().map(Vec::len).sum()
    }

    /// When a host's application wants to do something; none if it only waits.
    pub fn next_at(&self, host: usize, now: Instant) -> Option<Instant> {
        if self.closing {
            return None;
        }
        let connect = self.connects[host].iter().map(|(_, at)| *at).filter(|at| *at != Instant::MAX);
        // What is due already waits for a session, for room or for another message: events bring that.
        let post = self.due[host].iter().map(|d| d.at).find(|at| *at > now);
        connect.chain(post).min()
    }

    /// After a round: takes what the engine has to say, and posts what is due. Returns whether anything was done.
    pub fn step(&mut self, host: &mut Host, plan: &Scenario, shared: &mut Shared) -> Result<bool, Violation> {
        let mut busy = self.collect(host, shared)?;
        if !self.closing {
            busy |= self.connect(host, shared.now);
            // A receive may have ended as it was posted, and another waited for that.
            while self.post(host, plan, shared)? {
                busy = true;
                self.collect(host, shared)?;
            }
        }
        Ok(busy)
    }

    fn collect(&mut self, host: &mut Host, shared: &mut Shared) -> Result<bool, Violation> {
        let mut busy = false;
        let mut ended: Vec<SessionKey> = Vec::new();
        while let Some(done) = host.completion(shared)? {
            busy = true;
            if done.status == Status::SessionDown {
                ended.push(done.session);
            }
            shared.trace.note(shared.now, Some(host.index), 3, done.token << 8 | done.status as u64, || {
                format!(
                    "{:?} of message {} ended: {}, {} bytes",
                    done.operation,
                    shared.ledger.message(done.token).unwrap_or_default(),
                    done.status,
                    done.len
                )
            });
        }
        let mut down: Vec<SessionKey> = Vec::new();
        while let Some(event) = host.engine.poll_event() {
            busy = true;
            shared.trace.note(shared.now, Some(host.index), 4, 0, || event_line(&event));
            let Event::Down { session, peer, reason } = event else { continue };
            down.push(session);
            shared.ledger.session_down(host.session(session));
            let expected = self.closing || reason == DownReason::Closed;
            self.downs += u64::from(!expected);
            for (to, when) in &mut self.connects[host.index] {
                if address(*to) == peer {
                    *when = shared.now + Duration::from_micros(self.rng.u64(10..50_000));
                }
            }
        }
        if let Some(key) = ended.iter().find(|key| !down.contains(key)) {
            let what = format!("operations of {key:?} ended with it, and it did not");
            return Err(Violation::new(shared.now, Some(host.index), Check::Agreement, what));
        }
        Ok(busy)
    }

    fn connect(&mut self, host: &mut Host, now: Instant) -> bool {
        let mut busy = false;
        for (to, when) in &mut self.connects[host.index] {
            if *when > now {
                continue;
            }
            busy = true;
            *when = match host.engine.connect(address(*to)) {
                Ok(_) | Err(ConnectError::Exists(_)) => Instant::MAX,
                Err(ConnectError::Full(_)) => now + 10 * AGAIN,
            };
        }
        busy
    }

    /// A host that was restarted connects to those whom it connected to.
    pub fn restarted(&mut self, host: usize, now: Instant) {
        for (_, when) in &mut self.connects[host] {
            *when = now;
        }
    }

    fn post(&mut self, host: &mut Host, plan: &Scenario, shared: &mut Shared) -> Result<bool, Violation> {
        let mut busy = false;
        let mut list = std::mem::take(&mut self.due[host.index]);
        let mut full = [false; 2];
        let mut kept = Vec::with_capacity(list.len());
        for mut due in list.drain(..) {
            let waits = due.at > shared.now || full[due.operation as usize] || !self.may(&due, plan, shared);
            if waits {
                kept.push(due);
                continue;
            }
            match self.post_one(host, &due, plan, shared)? {
                Ok(()) => busy = true,
                Err(refused) => {
                    if let PostError::Full(_) = refused {
                        full[due.operation as usize] = true;
                    }
                    if let PostError::Channels(_) = refused {
                        // Another session may have ended by then.
                        due.at = shared.now + AGAIN;
                    }
                    kept.push(due);
                }
            }
        }
        self.due[host.index] = kept;
        Ok(busy)
    }

    /// Whether what an operation waits for has ended.
    fn may(&self, due: &Due, plan: &Scenario, shared: &Shared) -> bool {
        let message = &plan.messages[due.message];
        let after = match due.operation {
            Operation::Send => message.send_after,
            Operation::Recv => message.recv_after,
        };
        after.is_none_or(|other| {
            let token = self.receives.get(other).copied().flatten();
            token.is_some_and(|token| shared.ledger.outcome(token).is_some())
        })
    }

    fn post_one(
        &mut self,
        host: &mut Host,
        due: &Due,
        plan: &Scenario,
        shared: &mut Shared,
    ) -> Result<Result<(), PostError>, Violation> {
        let m = &plan.messages[due.message];
        let peer = if due.operation == Operation::Send { m.to } else { m.from };
        let Some(key) = host.engine.session_with(address(peer)) else { return Ok(Err(PostError::NoSession)) };
        let token = shared.ledger.next_token();
        let (len, posted) = match due.operation {
            Operation::Send => {
                let request = SendRequest {
                    token,
                    len: m.size,
                    communicator: m.communicator,
                    tag: m.tag,
                    semantics: Semantics { step: m.step.unwrap_or_default(), sync: m.sync, ..m.semantics },
                };
                (m.size, host.engine.post_send(key, &request))
            }
            Operation::Recv => {
                let request = RecvRequest {
                    token,
                    capacity: m.capacity,
                    communicator: m.communicator,
                    tag: m.tag,
                    step: m.step,
                };
                (m.capacity, host.engine.post_recv(key, &request))
            }
        };
        if let Err(refused) = posted {
            return Ok(Err(refused));
        }
        let what = (due.message, m.communicator, m.tag, len);
        shared.ledger.post(host.session(key), due.operation, what, peer);
        if due.operation == Operation::Recv {
            self.receives[due.message] = Some(token);
            host.moves(shared)?;
        }
        shared.trace.note(shared.now, Some(host.index), 5, token, || {
            format!(
                "posts {:?} {} of {len} bytes with h{peer}, channel {}/{}",
                due.operation, due.message, m.communicator, m.tag
            )
        });
        Ok(Ok(()))
    }

    /// Closes every session of a host.
    pub fn close_all(&self, host: &mut Host, hosts: usize) {
        for peer in 0..hosts {
            if let Some(key) = host.engine.session_with(address(peer)) {
                host.engine.close(key);
            }
        }
    }
}
