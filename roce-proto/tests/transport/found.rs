//! What the simulator's swarm found, each as small as it can be.

use crate::basic::{calm, config, pair};
use crate::net::{Net, address};
use roce_proto::time::Instant;
use roce_proto::transport::{Config, Drop, Engine, Limits, Operation, Origin, Received, SendRequest, Status};
use roce_proto::wire::shim::{Accept, Common, Data, Init, Kind, MAX_CONTROL_LEN};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// What one side lets the other send, and what that side lets itself, are two numbers: the receive of a message between them is
/// announced.
#[test]
fn a_message_of_more_than_the_allowance_goes_whatever_the_other_side_allows() {
    let small = Config { allowance: 2, ..config() };
    for (a, b) in [(config(), small), (small, config())] {
        let mut net = Net::new(1, calm(), &[a, b]);
        net.open(0, 1);
        for (from, to) in [(0, 1), (1, 0)] {
            net.receive(to, from, 1, 3_000);
            net.send(from, to, 1, 3_000);
        }
        // Before anybody would have to ask.
        let soon = Duration::from_millis(1);
        net.run(soon, |net| (0..2).all(|at| net.completions(at, Operation::Recv, Status::Success) == 1));
    }
}

#[test]
fn a_long_message_whose_receive_is_short_is_told_so() {
    let mut net = pair();
    net.open(0, 1);
    // Short receives are not announced by themselves, and the message waits for its own.
    net.receive(1, 0, 1, 10);
    net.send(0, 1, 1, 200_000);
    net.run(SECOND, |net| {
        net.completions(0, Operation::Send, Status::TooLong) == 1
            && net.completions(1, Operation::Recv, Status::TooLong) == 1
    });
    // Whoever waits asks ever more rarely.
    net.send(0, 1, 2, 200_000);
    let probes = |net: &Net| net.hosts[0].engine.counters().sent(Kind::Probe);
    let before = probes(&net);
    net.pass(Duration::from_secs(10));
    assert!((5..20).contains(&(probes(&net) - before)), "{}", probes(&net) - before);
}

/// A program that waits for one message before it posts the receive of the next, in another order than its peer sends.
#[test]
fn receives_in_another_order_than_the_sends_do_not_wait_for_the_grant() {
    for ahead in [false, true] {
        let mut net = Net::new(1, calm(), &[config(), Config { allowance: 4, ..config() }]);
        net.open(0, 1);
        if ahead {
            net.receive(1, 0, 9, 100);
        }
        for tag in 0..10 {
            net.send(0, 1, tag, 100);
        }
        for (done, tag) in (0..10).rev().enumerate() {
            if !ahead || tag != 9 {
                net.receive(1, 0, tag, 100);
            }
            net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == done + 1);
        }
        net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 10);
        net.assert_idle();
    }
}

/// Two engines whose packets are kept, to be sent again later.
struct Pair {
    engines: [Engine; 2],
    now: Instant,
    kept: Vec<(usize, Vec<u8>)>,
}

impl Pair {
    fn new() -> Pair {
        let engine = |n| Engine::new(&Config { secret: [n; 16], ..config() }).expect("sound");
        let mut pair =
            Pair { engines: [engine(1), engine(2)], now: Instant::from_nanos(1_000_000), kept: vec![] };
        pair.rounds(1);
        pair
    }

    /// Delivers a packet.
    fn deliver(&mut self, from: usize, packet: &[u8]) -> Received {
        self.engines[1 - from].receive(&Origin { from: address(from), ce: false }, packet)
    }

    /// Some rounds of 100 µs; what one side sends, the other gets in the same.
    fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.round(Duration::from_micros(100), |_, _| true);
        }
    }

    /// A round after some time, in which only those packets arrive that `pass`.
    fn round(&mut self, after: Duration, mut pass: impl FnMut(usize, &[u8]) -> bool) {
        let mut buf = [0; MAX_CONTROL_LEN];
        self.now += after;
        let mut sent = Vec::new();
        for (from, engine) in self.engines.iter_mut().enumerate() {
            engine.begin(self.now, after);
            engine.turn();
            while let Some(t) = engine.transmit(&mut buf) {
                let mut packet = buf[..usize::from(t.header_len)].to_vec();
                packet.extend(std::iter::repeat_n(7, t.source.map_or(0, |s| s.len as usize)));
                sent.push((from, packet));
            }
        }
        for (from, packet) in sent {
            if pass(from, &packet) {
                self.deliver(from, &packet);
            }
            self.kept.push((from, packet));
        }
        for engine in &mut self.engines {
            while engine.poll_event().is_some() {}
        }
    }

    fn inits(&self) -> Vec<(usize, Vec<u8>)> {
        self.kept.iter().filter(|(_, p)| Init::parse(p).is_ok()).cloned().collect()
    }
}

#[test]
fn an_init_that_comes_late_ends_no_session() {
    let mut pair = Pair::new();
    let old = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    assert!(pair.engines[0].is_open(old));
    let inits = pair.inits();
    pair.engines[0].close(old);
    pair.rounds(3);
    let new = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    let other = pair.engines[1].session_with(address(0)).expect("open");
    let (from, with_cookie) = inits.last().expect("two were sent");
    assert_eq!(pair.deliver(*from, with_cookie), Received::Dropped(Drop::BadCookie));
    pair.rounds(10);
    assert!(pair.engines[0].is_open(new) && pair.engines[1].is_open(other));
    // One that is sent now is of a peer that has lost the session, or ended it.
    pair.engines[0].close(new);
    pair.kept.clear();
    let mut buf = [0; MAX_CONTROL_LEN];
    while pair.engines[0].transmit(&mut buf).is_some() {}
    let third = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    assert!(pair.engines[0].is_open(third) && !pair.engines[1].is_open(other));
}

/// The same of an initiator that restarted meanwhile, so that its epoch is another. Which of two epochs is newer, nobody can tell.
#[test]
fn an_init_of_an_earlier_epoch_ends_no_session() {
    let mut pair = Pair::new();
    let old = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    assert!(pair.engines[0].is_open(old));
    let (from, late) = pair.inits().pop().expect("sent");
    let restarted = Config { secret: [3; 16], epoch: 77, ..config() };
    pair.engines[0] = Engine::new(&restarted).expect("sound");
    pair.rounds(1);
    let new = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    let other = pair.engines[1].session_with(address(0)).expect("open");
    assert!(pair.engines[0].is_open(new));
    assert_eq!(pair.deliver(from, &late), Received::Dropped(Drop::BadCookie));
    pair.rounds(10);
    assert!(pair.engines[0].is_open(new) && pair.engines[1].is_open(other));
}

/// Receives for which the peer has no room in its table of channels do not hold up those that come after them; and are told of
/// again when there is room.
#[test]
fn an_announcement_without_room_holds_nothing_up() {
    // The second has two channels in all; the first posts receives on many.
    let few = Config { limits: Limits { channels: 2, ..config().limits }, ..config() };
    let mut net = Net::new(1, calm(), &[config(), few, config()]);
    net.open(0, 1);
    for tag in 0..3 {
        net.receive(0, 1, tag, 100_000);
    }
    net.pass(Duration::from_millis(1));
    assert!(net.hosts[1].engine.counters().no_channel > 0, "there was no room for one");
    let announces = |net: &Net| net.hosts[0].engine.counters().sent(Kind::Announce);
    let before = announces(&net);
    net.pass(Duration::from_secs(3));
    assert_eq!(announces(&net), before, "it is not repeated");
    // Those that found room.
    net.receive(0, 1, 0, 100_000);
    net.send(1, 0, 0, 100_000);
    net.send(1, 0, 0, 100_000);
    net.run(Duration::from_millis(1), |net| net.completions(0, Operation::Recv, Status::Success) == 2);
}

/// The same where there is room later, since another session has ended.
#[test]
fn what_was_forgotten_is_announced_again() {
    let few = Config { limits: Limits { channels: 2, ..config().limits }, ..config() };
    let mut net = Net::new(1, calm(), &[config(), few, config()]);
    let (_, third) = net.open(2, 1);
    net.receive(2, 1, 7, 100_000);
    net.receive(2, 1, 8, 100_000);
    net.pass(Duration::from_millis(1));
    net.open(0, 1);
    net.receive(0, 1, 1, 100_000);
    net.pass(Duration::from_millis(1));
    assert!(net.hosts[1].engine.counters().no_channel > 0);
    net.hosts[1].engine.close(third);
    net.pass(Duration::from_millis(1));
    net.send(1, 0, 1, 100_000);
    net.run(Duration::from_millis(50), |net| net.completions(0, Operation::Recv, Status::Success) == 1);
}

#[test]
fn the_id_of_an_init_that_was_given_up_names_no_session() {
    let mut pair = Pair::new();
    let a = pair.engines[0].connect(address(1)).expect("room");
    let b = pair.engines[1].connect(address(0)).expect("room");
    pair.rounds(20);
    assert!(pair.engines[0].is_open(a) && pair.engines[1].is_open(b));
    let accepts = pair.kept.iter().filter_map(|(from, p)| Some((*from, Accept::parse(p).ok()?)));
    let [(responder, accept)] = accepts.collect::<Vec<_>>()[..] else { panic!("one side accepts") };
    let mut offered = pair.inits().into_iter().filter(|(from, _)| *from == responder);
    assert!(offered.all(|(_, p)| Init::parse(&p).is_ok_and(|i| i.offer.id != accept.offer.id)));
    // Whichever comes again: both sessions stand.
    for (from, init) in pair.inits() {
        pair.deliver(from, &init);
        pair.rounds(5);
        assert!(pair.engines[0].is_open(a) && pair.engines[1].is_open(b));
    }
}

/// Who accepted a session that its peer has given up is told so at once.
#[test]
fn an_accept_for_nobody_is_answered() {
    let mut pair = Pair::new();
    let key = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    let (from, init) = pair.inits().pop().expect("sent");
    pair.engines[0].close(key);
    pair.rounds(3);
    assert_eq!(pair.engines[1].sessions(), 0);
    assert_eq!(pair.deliver(from, &init), Received::Taken(Kind::Init));
    assert_eq!(pair.engines[1].sessions(), 1);
    pair.rounds(5);
    assert_eq!(pair.engines[1].sessions(), 0, "the other side has answered");
}

/// A gap's verdict and the end of the wait in one round: whatever is lost again after that is sent again.
#[test]
fn what_is_lost_twice_is_sent_a_third_time_however_slow_the_rounds() {
    for step in (50..3_000).step_by(50).map(Duration::from_micros) {
        for lost in 1..5 {
            let mut pair = Pair::new();
            let key = pair.engines[0].connect(address(1)).expect("room");
            pair.rounds(10);
            pair.engines[0]
                .post_send(key, &SendRequest { len: 100, ..SendRequest::default() })
                .expect("room");
            let (mut left, mut rounds) = (lost, 0);
            while pair.engines[0].poll_completion().is_none() {
                pair.round(step, |from, packet| {
                    let data = from == 0 && Data::parse(packet).is_ok();
                    left -= u32::from(data && left > 0);
                    !data || left == 0
                });
                rounds += 1;
                assert!(rounds * step < 10 * SECOND, "lost {lost} times, a round each {step:?}");
            }
        }
    }
}

/// What was under way when the peer closed the session was answered with a RESET, which went before the CLOSE and said less.
#[test]
fn a_peer_that_closes_in_the_middle_is_not_taken_for_one_that_forgot() {
    let mut pair = Pair::new();
    let key = pair.engines[0].connect(address(1)).expect("room");
    pair.rounds(10);
    let theirs = pair.engines[1].session_with(address(0)).expect("open");
    pair.engines[0].post_send(key, &SendRequest { len: 100, ..SendRequest::default() }).expect("room");
    pair.kept.clear();
    pair.round(Duration::from_micros(100), |_, _| false);
    pair.engines[1].close(theirs);
    let (from, data) = pair.kept.iter().find(|(_, p)| Data::parse(p).is_ok()).cloned().expect("sent");
    assert_eq!(pair.deliver(from, &data), Received::Dropped(Drop::UnknownSession));
    let mut answers = Vec::new();
    pair.round(Duration::from_micros(100), |from, packet| {
        answers.extend((from == 1).then(|| Common::parse(packet).map(|common| common.kind)));
        true
    });
    assert_eq!(answers, [Ok(Kind::Close)]);
    assert!(!pair.engines[0].is_open(key));
    // Once that is sent, a RESET is the answer, as the CLOSE may be lost.
    pair.deliver(from, &data);
    let mut answers = Vec::new();
    pair.round(Duration::from_micros(100), |_, packet| {
        answers.push(Common::parse(packet).map(|common| common.kind));
        true
    });
    assert_eq!(answers, [Ok(Kind::Reset)]);
}
