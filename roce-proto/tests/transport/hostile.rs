//! A peer that tampers with what it sends, its own session id included: nothing breaks but its own session.

use crate::basic::config;
use crate::net::{Net, Weather, address};
use fec::policy::Protection;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Config, Drop, Engine, Fec, Limits, Operation, Origin, Place, Protect, Received, Status,
};
use roce_proto::wire::shim::{Data, Kind, MAX_CONTROL_LEN};
use std::time::Duration;

/// Two hosts exchange messages while a third, with a session to both, sends them whatever it likes.
fn play(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let limits = Limits { blocks: 32, windows: 3, session_channels: 8, ..Limits::SMALL };
    let c = Config { limits, paths: rng.u8(1..4), allowance: 8, ..config() };
    // Parity of half of them, and so what a peer makes of it.
    let protect = match seed % 2 {
        0 => Protect::Nothing,
        _ => {
            Protect::Everything(Protection { data: rng.u8(1..9), parity: rng.u8(1..4), depth: rng.u8(1..4) })
        }
    };
    let c = Config { fec: Fec { protect, ..Fec::default() }, ..c };
    let weather = Weather { loss: 20, late: 50, delay: Duration::from_micros(20), ..Weather::default() };
    let mut net = Net::new(seed, weather, &[c, c, c]);
    net.open(0, 1);
    net.open(2, 0);
    net.open(2, 1);
    net.hostile = Some(2);
    let mut posted = 0;
    for _ in 0..40 {
        let (a, b) = if rng.bool() { (0, 1) } else { (1, 0) };
        let (tag, size) = (rng.u64(..3), rng.usize(..30_000));
        net.send(a, b, tag, size);
        net.receive(b, a, tag, 80_000);
        posted += 1;
        // Its sessions do not live long.
        for victim in [0, 1] {
            if net.session(2, victim).is_some() {
                net.send(2, victim, rng.u64(..10), rng.usize(..70_000));
            }
            if net.session(victim, 2).is_some() {
                if rng.bool() {
                    net.receive(victim, 2, rng.u64(..5), rng.usize(..70_000));
                }
                if rng.bool() {
                    net.send(victim, 2, rng.u64(..5), rng.usize(..70_000));
                }
            } else if net.hosts[2].engine.session_with(address(victim)).is_none() {
                net.connect(2, victim);
            }
        }
        net.pass(Duration::from_micros(rng.u64(..500)));
    }
    let done = |net: &Net, operation| -> usize {
        let with_each_other = |at: usize| {
            let key = net.session(at, 1 - at);
            let of = move |c: &&roce_proto::transport::Completion| {
                Some(c.session) == key && c.operation == operation && c.status == Status::Success
            };
            net.hosts[at].done.iter().filter(of).count()
        };
        with_each_other(0) + with_each_other(1)
    };
    net.run(Duration::from_secs(60), |net| {
        done(net, Operation::Recv) == posted && done(net, Operation::Send) == posted
    });
    for at in [0, 1] {
        let ups = net.hosts[at].events.iter().filter(
            |e| matches!(e, roce_proto::transport::Event::Down { peer, .. } if *peer == address(1 - at)),
        );
        assert_eq!(ups.count(), 0, "the honest session stands");
    }
    // When its sessions are gone, nothing of them is left.
    for at in [0, 1] {
        if let Some(key) = net.hosts[at].engine.session_with(address(2)) {
            net.hosts[at].engine.close(key);
        }
    }
    net.hosts[2] = Net::new(seed, weather, &[c, c, c]).hosts.pop().expect("three");
    net.pass(Duration::from_millis(5));
    for at in [0, 1] {
        for (name, used) in net.hosts[at].engine.in_use() {
            assert!(used == 0 || ["sessions", "channels"].contains(&name), "{name}: {used}");
        }
    }
}

#[test]
fn a_hostile_peer_breaks_nothing_but_its_own_session() {
    for seed in 0..60 {
        println!("seed {seed}");
        play(seed);
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    play(seed);
}

/// What strangers send touches nothing: no table grows, and each packet has its counter.
#[test]
fn forged_packets_touch_nothing() {
    let mut net = Net::new(1, Weather::default(), &[config(), config()]);
    let (_, key) = net.open(0, 1);
    net.receive(1, 0, 1, 10_000);
    let engine = &mut net.hosts[1].engine;
    let used = engine.in_use();
    let mut rng = fastrand::Rng::with_seed(9);
    let (mut now, mut answers) = (net.now, 0u64);
    let mut buf = [0; MAX_CONTROL_LEN];
    for round in 0..10_000u64 {
        now += Duration::from_micros(10);
        engine.begin(now, Duration::ZERO);
        for _ in 0..10 {
            // Mostly of the length of its type, so that it gets as far as it can.
            let kind = rng.u8(..12);
            let len = [60 + rng.usize(..100), 32, 24, 16, 96, 32, 64, 16, 12, 12, 24, 72 + rng.usize(..100)]
                [usize::from(kind)];
            let mut packet = vec![0; if rng.u8(..4) == 0 { rng.usize(..200) } else { len }];
            rng.fill(&mut packet);
            for (byte, value) in packet.iter_mut().zip([0x10 | kind, 0, 0, rng.u8(..2)]) {
                *byte = value;
            }
            let from = address(if rng.bool() { 0 } else { 2 + round as usize });
            let received = engine.receive(&Origin { from, ce: rng.bool() }, &packet);
            assert!(!matches!(received, Received::Place(_)));
        }
        engine.turn();
        while let Some(t) = engine.transmit(&mut buf) {
            answers += u64::from(matches!(t.kind, Kind::Reset | Kind::Cookie | Kind::Refuse));
        }
    }
    assert_eq!(engine.in_use(), used);
    assert_eq!(engine.counters().accounted(), engine.counters().received);
    assert!(engine.counters().dropped(Drop::UnknownSession) > 1_000);
    assert!(answers <= 64 + 1_000, "{answers} answers in 100 ms: 10,000 a second and 64");
    assert!(engine.is_open(key));
    net.send(0, 1, 1, 10_000);
    net.run(Duration::from_secs(1), |net| net.completions(1, Operation::Recv, Status::Success) == 1);
}

/// Right session id, wrong source: refused. Right source, replayed: a duplicate.
#[test]
fn replays_and_wrong_sources_are_refused() {
    let secret = |n| Config { secret: [n; 16], ..config() };
    let (mut a, mut b) = (Engine::new(&secret(1)).expect("sound"), Engine::new(&secret(2)).expect("sound"));
    let mut now = Instant::from_nanos(1_000_000);
    a.begin(now, Duration::ZERO);
    b.begin(now, Duration::ZERO);
    let key = a.connect(address(1)).expect("room");
    let mut buf = [0; MAX_CONTROL_LEN];
    let mut last_data = Vec::new();
    let mut posted = false;
    for _ in 0..20 {
        now += Duration::from_micros(100);
        for (from, at) in [(0, 1), (1, 0)] {
            let (x, y) = if from == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            x.begin(now, Duration::ZERO);
            y.begin(now, Duration::ZERO);
            x.turn();
            while let Some(t) = x.transmit(&mut buf) {
                let mut packet = buf[..usize::from(t.header_len)].to_vec();
                packet.extend(std::iter::repeat_n(7, t.source.map_or(0, |s| s.len as usize)));
                if t.kind == Kind::Data {
                    last_data = packet.clone();
                    let forged = y.receive(&Origin { from: address(5), ce: false }, &packet);
                    assert_eq!(forged, Received::Dropped(Drop::ForeignSource));
                }
                let received = y.receive(&Origin { from: address(from), ce: false }, &packet);
                if t.kind == Kind::Data {
                    assert!(
                        matches!(received, Received::Place(p) if p.to == Place::Block(0)),
                        "{received:?} at {at}"
                    );
                }
            }
        }
        if a.is_open(key) && !posted {
            posted = true;
            let request = roce_proto::transport::SendRequest { len: 100, ..Default::default() };
            a.post_send(key, &request).expect("room");
        }
    }
    assert_eq!(last_data.len(), Data::LEN + 100);
    for _ in 0..1_000 {
        let again = b.receive(&Origin { from: address(0), ce: false }, &last_data);
        assert_eq!(again, Received::Dropped(Drop::Duplicate));
    }
    assert_eq!(b.in_use()[5], ("blocks", 1));
}
