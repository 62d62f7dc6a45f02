//! Drivers whose rounds are as long as a round trip: a window is sent at one time, and what is put off, is put off by a round.

use crate::basic::config;
use crate::net::address;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Config, Counters, Engine, Mechanisms, Origin, RecvRequest, Repairs, SendRequest, SessionKey,
};
use roce_proto::wire::shim::{Data, MAX_CONTROL_LEN, Semantics};
use std::time::Duration;

/// From one round of a side to its next.
const ROUND: Duration = Duration::from_micros(600);

/// Two engines. The second has its rounds right after those of the first, or after every so many of these.
struct Pair {
    engines: [Engine; 2],
    keys: [SessionKey; 2],
    now: Instant,
    /// What waits for each.
    queues: [Vec<Vec<u8>>; 2],
    /// What the first one's driver says of the time since it last looked.
    apart: Duration,
    /// Rounds of the first for one of the second.
    rounds: u32,
}

impl Pair {
    fn new(config: Config) -> Pair {
        let engine = |n| Engine::new(&Config { secret: [n; 16], ..config }).expect("sound");
        let (mut engines, now) = ([engine(1), engine(2)], Instant::from_nanos(1_000_000));
        engines[0].begin(now, Duration::ZERO);
        let key = engines[0].connect(address(1)).expect("room");
        let mut pair =
            Pair { engines, keys: [key; 2], now, queues: [vec![], vec![]], apart: ROUND, rounds: 1 };
        for _ in 0..10 {
            pair.round(|_| true);
        }
        pair.keys[1] = pair.engines[1].session_with(address(0)).expect("open");
        pair
    }

    /// A round of the second, and of the first so many as go with that. Packets come through that `pass`.
    fn round(&mut self, mut pass: impl FnMut(&[u8]) -> bool) {
        for _ in 0..self.rounds {
            self.now += ROUND / self.rounds;
            self.step(0, self.apart, &mut pass);
        }
        self.step(1, ROUND, &mut pass);
    }

    /// A round of one of them.
    fn step(&mut self, side: usize, apart: Duration, pass: &mut impl FnMut(&[u8]) -> bool) {
        let engine = &mut self.engines[side];
        engine.begin(self.now, apart);
        for packet in std::mem::take(&mut self.queues[side]) {
            engine.receive(&Origin { from: address(1 - side), ce: false }, &packet);
        }
        engine.turn();
        let mut buf = [0; MAX_CONTROL_LEN];
        while let Some(t) = engine.transmit(&mut buf) {
            let mut packet = buf[..usize::from(t.header_len)].to_vec();
            packet.extend(std::iter::repeat_n(7, t.source.map_or(0, |s| s.len as usize)));
            if pass(&packet) {
                self.queues[1 - side].push(packet);
            }
        }
        while engine.poll_completion().is_some() || engine.poll_event().is_some() {}
    }

    /// A message of so many segments, which leave with the next round.
    fn send(&mut self, segments: u64) {
        self.send_tagged(segments, Semantics::default());
    }

    fn send_tagged(&mut self, segments: u64, semantics: Semantics) {
        let len = 1_000 * segments;
        let receive = RecvRequest { capacity: len, ..RecvRequest::default() };
        self.engines[1].post_recv(self.keys[1], &receive).expect("room");
        let send = SendRequest { len, semantics, ..SendRequest::default() };
        self.engines[0].post_send(self.keys[0], &send).expect("room");
    }

    fn counters(&self) -> Counters {
        self.engines[0].counters().clone()
    }

    /// Sends a message one segment of which is lost. Returns how many segments have been sent again when the first answer has been read, and two rounds later: of these the clock may stand still in one.
    fn lose(&mut self, segments: u64, lost: u32) -> [u64; 2] {
        let before = self.counters().retransmitted;
        self.send(segments);
        self.round(|bytes| !is(bytes, lost));
        [1, 2].map(|rounds| {
            (0..rounds).for_each(|_| self.round(|_| true));
            self.counters().retransmitted - before
        })
    }
}

/// Whether it is such a segment, sent for the first time.
fn is(bytes: &[u8], segment: u32) -> bool {
    Data::parse(bytes).is_ok_and(|(data, _)| data.segment == segment && !data.again)
}

/// To watch a gap for two microseconds would be to watch it for a round.
#[test]
fn a_gap_is_a_loss_at_once() {
    let mut pair = Pair::new(config());
    assert_eq!(pair.lose(10, 4), [1, 1]);
    assert_eq!(pair.counters().gap_losses, 1);
    // Who polls all the time has two microseconds.
    pair.apart = Duration::from_micros(1);
    assert_eq!(pair.lose(10, 4), [0, 1]);
    assert_eq!(pair.counters().spurious, 0);
}

/// On a path that is known to disorder packets, a gap is watched all the same.
#[test]
fn a_path_out_of_order_is_given_time() {
    let mut pair = Pair::new(config());
    let mut late = None;
    pair.send(10);
    pair.round(|bytes| {
        let held_up = is(bytes, 4);
        late = late.take().or(held_up.then(|| bytes.to_vec()));
        !held_up
    });
    pair.round(|_| true);
    assert_eq!(pair.counters().retransmitted, 1);
    pair.queues[1].extend(late);
    pair.round(|_| true);
    pair.round(|_| true);
    assert_eq!(pair.counters().spurious, 1);
    assert_eq!(pair.lose(10, 4), [0, 1]);
}

/// What a time-out gave up, and was only held up, says nothing of a path's order.
#[test]
fn a_peer_that_was_away_does_not_make_gaps_wait() {
    let mut pair = Pair::new(config());
    let mut late = Vec::new();
    pair.send(10);
    pair.round(|bytes| {
        late.push(bytes.to_vec());
        false
    });
    while pair.counters().rto_losses == 0 {
        pair.round(|bytes| Data::parse(bytes).is_ok_and(|(data, _)| data.again));
    }
    pair.queues[1].extend(late);
    for _ in 0..20 {
        pair.round(|_| true);
    }
    let c = pair.counters();
    assert!(c.spurious > 0 && c.gap_losses == 0, "{} {}", c.spurious, c.gap_losses);
    assert_eq!(pair.lose(10, 4), [1, 1]);
}

/// The last segment on its path leaves no gap there, and as all were sent at one time, time tells nothing before the next window's have arrived: their order does.
#[test]
fn order_tells_what_time_does_not() {
    for time in [true, false] {
        let mechanisms = Mechanisms { time, ..Mechanisms::default() };
        let mut pair = Pair::new(Config { paths: 8, mechanisms, ..config() });
        // Until it is known that everything comes in order.
        for _ in 0..700 {
            pair.send(60);
            pair.round(|_| true);
        }
        pair.round(|_| true);
        assert_eq!(pair.counters().retransmitted, 0);
        assert_eq!(pair.lose(60, 53)[0], u64::from(time));
        assert_eq!(pair.counters().time_losses, u64::from(time));
        for _ in 0..10 {
            pair.round(|_| true);
        }
        // Of what is so near to the end, something could still come.
        assert_eq!(pair.lose(60, 57)[0], 0);
    }
}

/// The engine's clock stands still while its driver is held up. Who waits for a segment does not.
#[test]
fn repairs_are_counted_by_the_time_they_take() {
    let mut pair = Pair::new(config());
    let away = Duration::from_millis(3);
    pair.send(10);
    pair.round(|bytes| !is(bytes, 4));
    pair.now += away;
    pair.round(|_| true);
    // What the last answer tells of the round trip counts after what it acknowledges.
    let trip = pair.engines[0].round_trip(pair.keys[0]).expect("measured");
    pair.round(|_| true);
    assert!(pair.counters().held_up > 0);
    // It was sent, found when the driver was back, and acknowledged with the next answer; less half of a round trip.
    let took = away + 2 * ROUND - trip / 2;
    let place = ((8 * took).as_nanos() / trip.as_nanos()).min(127) as usize;
    let found = pair.counters().repairs.0.iter().position(|n| *n > 0).expect("one");
    // How far the clock is behind is known in parts of 65,536 ns.
    let coarse = 1 + (8 * 65_536 / trip.as_nanos()) as usize;
    assert!(found.abs_diff(place) <= coarse, "{found} {place} {trip:?}");
    // The driver was away for longer than a round trip.
    let c = pair.counters();
    assert_eq!((c.steady_repairs, c.timeout_repairs), (Repairs::default(), 0), "{trip:?}");
}

/// Copies are copied again when an answer could have come. Where the peer has a round now and then, that is not when a round trip is over.
#[test]
fn copies_wait_for_the_round_of_a_slow_peer() {
    let mut pair = Pair::new(config());
    (pair.rounds, pair.apart) = (12, ROUND / 12);
    let sync = Semantics { sync: true, ..Semantics::default() };
    // As they leave right before the peer's round, round trips are found to be short.
    for _ in 0..60 {
        pair.rounds = 11;
        pair.round(|_| true);
        pair.queues[0].clear();
        pair.send(1);
        pair.now += ROUND / 12;
        pair.step(0, ROUND / 12, &mut |_| true);
        pair.step(1, ROUND, &mut |_| true);
    }
    pair.rounds = 12;
    pair.round(|_| true);
    let trip = pair.engines[0].round_trip(pair.keys[0]).expect("measured");
    assert!(trip < ROUND / 4, "{trip:?}");
    // One that leaves right after it.
    pair.send_tagged(1, sync);
    pair.round(|_| true);
    pair.round(|_| true);
    assert_eq!(pair.counters().copies, 1);
    // It is lost, and so is its copy.
    pair.send_tagged(1, sync);
    pair.round(|bytes| Data::parse(bytes).is_err());
    pair.round(|_| true);
    assert_eq!(pair.counters().copies, 3);
    // Where nothing comes through, copies end: what is left is for time-outs, which leave no room for the fourth here.
    pair.send_tagged(1, sync);
    (0..20).for_each(|_| pair.round(|_| false));
    assert_eq!(pair.counters().copies, 6);
}
