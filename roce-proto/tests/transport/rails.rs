//! Several ports on a side.

use crate::basic::{calm, config};
use crate::net::{Net, address, rail};
use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Config, Drop, Engine, Operation, Origin, PathState, Received, SessionKey, Status,
};
use roce_proto::wire::shim::{Accept, Data, Kind, MAX_CONTROL_LEN, Rails, Reset};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A host with so many ports.
fn with(host: usize, ports: u8, paths: u8) -> Config {
    let mut rails = Rails::NONE;
    (1..ports).for_each(|at| rails.push(rail(host, at).ip, rail(host, at).qpn));
    Config { rails: [rails, Rails::NONE], paths, ..config() }
}

fn net(ports: [u8; 2], paths: u8) -> (Net, SessionKey, SessionKey) {
    let mut net = Net::new(7, calm(), &[with(0, ports[0], paths), with(1, ports[1], paths)]);
    let (a, b) = net.open(0, 1);
    (net, a, b)
}

fn exchange(net: &mut Net, count: usize, len: usize) {
    for (from, to) in [(0, 1), (1, 0)] {
        for _ in 0..count {
            net.receive(to, from, 5, len);
            net.send(from, to, 5, len);
        }
    }
    let before = [0, 1].map(|at| net.completions(at, Operation::Send, Status::Success));
    net.run(20 * SECOND, |net| {
        (0..2).all(|at| net.completions(at, Operation::Send, Status::Success) == before[at] + count)
    });
}

#[test]
fn paths_take_turns_on_the_ports_of_both_sides() {
    // With three and two ports, path p goes from port p % 3 to port p % 2, and back from p % 2 to p % 3.
    for (ports, pairs) in [([1, 1], 1), ([2, 2], 2), ([2, 1], 2), ([1, 3], 3), ([3, 2], 6), ([4, 4], 4)] {
        let (mut net, ..) = net(ports, 12);
        exchange(&mut net, 20, 50_000);
        let (own, theirs) = (ports[0], ports[1]);
        let mut wanted: Vec<_> =
            (0..12).flat_map(|p| [(p % own, p % theirs), (p % theirs, p % own)]).collect();
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(net.rails.keys().copied().collect::<Vec<_>>(), wanted, "{ports:?}");
        let data = 2 * 20 * 50;
        for (way, count) in &net.rails {
            assert!(*count as usize > data / pairs / 3, "{ports:?}: {count} packets on {way:?}");
        }
    }
}

#[test]
fn a_port_that_goes_dark_is_left_and_taken_again() {
    let (mut net, a, _) = net([2, 2], 4);
    exchange(&mut net, 10, 50_000);
    net.dark_rail = Some(1);
    exchange(&mut net, 20, 50_000);
    let states: Vec<_> = (0..4).map(|path| net.hosts[0].engine.path_stats(a, path).unwrap().state).collect();
    assert_eq!((states[1], states[3]), (PathState::Bad, PathState::Bad), "{states:?}");
    net.dark_rail = None;
    net.run(2 * SECOND, |net| {
        (0..4).all(|path| net.hosts[0].engine.path_stats(a, path).unwrap().state != PathState::Bad)
    });
    let before = net.rails[&(1, 1)];
    exchange(&mut net, 20, 50_000);
    assert!(net.rails[&(1, 1)] > before + 200, "{:?}", net.rails);
}

#[test]
fn the_first_port_going_dark_ends_nothing_either() {
    let (mut net, ..) = net([2, 2], 4);
    exchange(&mut net, 10, 50_000);
    net.dark_rail = Some(0);
    exchange(&mut net, 20, 50_000);
}

#[test]
fn a_port_that_was_named_wrong_costs_no_message() {
    // Nobody has that address: what is sent there is lost, and nothing but probes is.
    let mut one = with(0, 2, 4);
    one.rails[0] = Rails::NONE;
    one.rails[0].push(rail(9, 1).ip, rail(9, 1).qpn);
    for ports in [1, 2] {
        let mut net = Net::new(7, calm(), &[one, with(1, ports, 4)]);
        let (_, b) = net.open(0, 1);
        exchange(&mut net, 20, 50_000);
        for path in [1, 3] {
            let stats = net.hosts[1].engine.path_stats(b, path).unwrap();
            assert_eq!((stats.state, stats.sent), (PathState::Bad, 0));
        }
    }
}

#[test]
fn a_session_takes_packets_from_the_ports_that_were_told_of_only() {
    static ID: AtomicU64 = AtomicU64::new(0);
    let mut net = Net::new(7, calm(), &[with(0, 2, 4), with(1, 2, 4)]);
    net.filter = |bytes| {
        if let Ok(accept) = Accept::parse(bytes) {
            ID.store(accept.offer.id, Ordering::Relaxed);
        }
        true
    };
    let (_, b) = net.open(0, 1);
    exchange(&mut net, 1, 100);
    let session = ID.load(Ordering::Relaxed);
    let mut give = |from, bytes: &[u8]| net.hosts[1].engine.receive(&Origin { from, ce: false }, bytes);
    let data = Data { session, path: 1, ..Data::default() }.to_bytes();
    let [first, second, none, other, mixed] =
        [rail(0, 0), rail(0, 1), rail(0, 2), address(5), Address::new(rail(0, 1).ip, rail(0, 0).qpn)]
            .map(|from| give(from, &data));
    let foreign = Received::Dropped(Drop::ForeignSource);
    assert_eq!((none, other, mixed), (foreign, foreign, foreign));
    assert!(first != foreign && second != foreign, "{first:?} {second:?}");
    // A session is ended from the first port only.
    let reset = Reset { session }.to_bytes();
    assert_eq!(give(rail(0, 1), &reset), Received::Dropped(Drop::UnknownSession));
    assert!(net.hosts[1].engine.is_open(b));
}

#[test]
fn a_session_begins_from_the_first_port_however_often_it_asks() {
    let mut engine = Engine::new(&with(0, 2, 4)).unwrap();
    let (mut now, mut buf, mut paths) = (Instant::from_nanos(1_000), [0; MAX_CONTROL_LEN], Vec::new());
    engine.begin(now, Duration::ZERO);
    let key = engine.connect(address(1)).unwrap();
    while paths.len() < 6 {
        engine.begin(now, Duration::ZERO);
        engine.turn();
        while let Some(t) = engine.transmit(&mut buf) {
            assert_eq!(t.kind, Kind::Init);
            paths.push((t.path, engine.way(key, t.path).unwrap().rail));
        }
        now += Duration::from_millis(1);
    }
    // They take turns all the same.
    assert_eq!(paths, [(0, 0), (0, 0), (2, 0), (2, 0), (0, 0), (0, 0)]);
}

#[test]
fn only_the_first_queue_pair_has_rails() {
    let mut engine = Engine::new(&with(0, 2, 4)).unwrap();
    engine.begin(Instant::from_nanos(1_000), Duration::ZERO);
    let rails = [0, 1].map(|via| {
        let key = engine.connect(Address { via, ..address(1) }).unwrap();
        [0, 1, 2, 3].map(|path| engine.way(key, path).unwrap().rail)
    });
    assert_eq!(rails, [[0, 1, 0, 1], [0; 4]]);
}

#[test]
fn sessions_that_follow_in_a_place_have_ports_of_their_own() {
    let mut net = Net::new(7, calm(), &[with(0, 2, 4), with(1, 2, 4), with(2, 1, 4)]);
    let (a, _) = net.open(0, 1);
    net.hosts[0].engine.close(a);
    net.run(SECOND, |net| net.hosts[0].engine.sessions() == 0 && net.hosts[1].engine.sessions() == 0);
    let (c, _) = net.open(0, 2);
    assert_eq!(c.slot(), a.slot());
    let ways: Vec<_> = (0..4).map(|path| net.hosts[0].engine.way(c, path).unwrap()).collect();
    assert!(ways.iter().all(|way| way.ip == address(2).ip), "{ways:?}");
    assert_eq!(ways.iter().map(|way| way.rail).collect::<Vec<_>>(), [0, 1, 0, 1]);
}
