//! What is done for messages that others wait for, and what a lost handshake must not do.

use crate::basic::{calm, config};
use crate::net::{Net, Weather};
use roce_proto::transport::{Config, Mechanisms, Operation, Status};
use roce_proto::wire::shim::{Data, Kind, Semantics};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const SYNC: Semantics = Semantics { step: 0, class: 0, priority: 0, stage: 0, tolerance: 0, sync: true };

fn is(bytes: &[u8], kind: Kind) -> bool {
    bytes.first().is_some_and(|b| b & 0x0f == kind as u8)
}

/// A message of the first host to each of some others, at once; when all sends are over.
fn to_each(net: &mut Net, others: &[usize], segments: usize) {
    let before = net.completions(0, Operation::Send, Status::Success);
    for to in others {
        net.receive(*to, 0, 7, 1_000 * segments);
        net.send_tagged(0, *to, (7, 1_000 * segments), SYNC);
    }
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == before + others.len());
}

/// The second INIT is answered as itself: with the time of the first, ten milliseconds would be a round trip, and every wait as long.
#[test]
fn a_handshake_that_was_repeated_is_no_long_round_trip() {
    static ACCEPTS: AtomicU32 = AtomicU32::new(0);
    let mut net = Net::new(1, calm(), &[config(), config()]);
    net.filter = |bytes| !is(bytes, Kind::Accept) || ACCEPTS.fetch_add(1, Relaxed) > 0;
    let (key, _) = net.open(0, 1);
    assert!(ACCEPTS.load(Relaxed) > 1, "the first was lost");
    let trip = net.hosts[0].engine.round_trip(key).expect("measured");
    assert!(trip < 4 * net.weather.delay, "{trip:?}");
}

/// What the copies would take is parity, which repairs whichever of the segments are lost, at once.
#[test]
fn parity_repairs_what_others_wait_for() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    for (segments, parity) in [(2, 0), (3, 2), (17, 2), (33, 4), (64, 4), (65, 0)] {
        SEEN.store(0, Relaxed);
        let mut net = Net::new(2, calm(), &[config(), config()]);
        net.open(0, 1);
        // The second of them is lost, in each message.
        net.filter = |bytes| Data::parse(bytes).is_err() || SEEN.fetch_add(1, Relaxed) != 1;
        to_each(&mut net, &[1], segments);
        let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
        assert_eq!(c.sent[Kind::Parity as usize], parity, "{segments} segments");
        let copies = if parity == 0 { 2 } else { 0 };
        assert_eq!(c.copies, copies, "{segments} segments");
        let again = u64::from(segments > 64);
        assert_eq!((c.retransmitted, r.repaired), (again, u64::from(parity > 0)), "{segments} segments");
    }
}

/// Where nothing is lost, parity is for nothing: after a while there are copies instead, which go when there is room.
#[test]
fn parity_ends_where_nothing_is_lost() {
    let mut net = Net::new(3, calm(), &[config(), config()]);
    net.open(0, 1);
    let parity = |net: &Net| net.hosts[0].engine.counters().sent[Kind::Parity as usize];
    to_each(&mut net, &[1], 10);
    assert_eq!(parity(&net), 2);
    for _ in 0..400 {
        to_each(&mut net, &[1], 10);
    }
    let before = parity(&net);
    assert!(before < 600, "{before}");
    to_each(&mut net, &[1], 10);
    assert_eq!(parity(&net), before);
    // Losses bring it back.
    net.weather.loss = 50;
    for _ in 0..10 {
        to_each(&mut net, &[1], 60);
        to_each(&mut net, &[1], 10);
    }
    assert!(parity(&net) > before);
}

/// Copies do not delay what other sessions have to send; and if the answer is late, they go after two round trips.
#[test]
fn copies_come_after_everything_else() {
    static LOSE: AtomicU32 = AtomicU32::new(0);
    let config = Config { mechanisms: Mechanisms { parity: false, ..Mechanisms::default() }, ..config() };
    let weather = Weather { delay: Duration::from_micros(100), ..Weather::default() };
    let mut net = Net::new(4, weather, &[config, config, config, config]);
    let others = [1, 2, 3];
    for to in others {
        net.open(0, to);
    }
    let copies = |net: &Net| net.hosts[0].engine.counters().copies;
    to_each(&mut net, &[1], 5);
    assert_eq!(copies(&net), 2, "there was nothing else");
    to_each(&mut net, &others, 5);
    assert_eq!(copies(&net), 4, "only the last of them had nothing else beside it");
    // The last segment to the first of them is lost, which is told of by nothing else.
    LOSE.store(1, Relaxed);
    net.filter = |bytes| {
        Data::parse(bytes).map_or(true, |(d, _)| d.again || d.segment != 4 || LOSE.swap(0, Relaxed) == 0)
    };
    let begin = net.now;
    to_each(&mut net, &others, 5);
    let took = net.now.saturating_since(begin);
    assert_eq!((copies(&net), net.hosts[0].engine.counters().retransmitted), (8 - 1, 0));
    // Two round trips until the copy, one for it and its answer.
    assert!(took < Duration::from_micros(680), "{took:?}");
}
