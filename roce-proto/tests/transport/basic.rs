//! One thing at a time, with numbers worked out by hand.

use crate::net::{Net, Weather, address};
use roce_proto::time::Instant;
use roce_proto::transport::{
    Algorithm, Config, DownReason, Drop, Event, Limits, Operation, PostError, RecvRequest, SendRequest,
    Status,
};
use roce_proto::wire::shim::{Common, Data, Kind, MAX_CONTROL_LEN, Seq};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Case 6: sequences, message numbers, ordinals and the numbers of feedback and announcements wrap in almost every test here.
pub fn config() -> Config {
    Config { limits: Limits::SMALL, segment: 1_000, first: Seq(u32::MAX - 20), ..Config::default() }
}

pub fn calm() -> Weather {
    Weather { delay: Duration::from_micros(10), ..Weather::default() }
}

pub fn pair() -> Net {
    Net::new(1, calm(), &[config(), config()])
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn messages_of_all_sizes_arrive_whole_with_receives_posted_ahead() {
    let mut net = pair();
    net.open(0, 1);
    let sizes = [0, 1, 999, 1_000, 1_001, 65_536, 65_537, 1_000_000];
    for size in sizes {
        net.receive(1, 0, 5, size);
    }
    for size in sizes {
        net.send(0, 1, 5, size);
    }
    net.run(SECOND, |net| {
        net.completions(1, Operation::Recv, Status::Success) == sizes.len()
            && net.completions(0, Operation::Send, Status::Success) == sizes.len()
    });
    net.assert_idle();
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.rtos, c.gap_losses), (0, 0, 0), "nothing was lost");
    let segments = 1 + 1 + 1 + 1 + 2 + 66 + 66 + 1_000;
    assert_eq!(c.sent(Kind::Data), segments);
    assert_eq!(net.hosts[1].engine.counters().placed, segments);
}

#[test]
fn receives_take_the_message_of_their_ordinal_whatever_comes_first() {
    let mut net = Net::new(3, Weather { late: 700, ..calm() }, &[config(), config()]);
    net.open(0, 1);
    for i in 0..100 {
        net.send(0, 1, i % 3, 100 + i as usize);
        net.receive(1, 0, i % 3, 300);
    }
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 100);
    // The driver has compared each with the message of its tag and ordinal.
    assert_eq!(net.hosts[1].received.len(), 100);
}

#[test]
fn what_comes_before_its_receive_waits_in_the_pool_within_the_allowance() {
    let mut net = Net::new(1, calm(), &[config(), Config { allowance: 8, ..config() }]);
    net.open(0, 1);
    for _ in 0..20 {
        net.send(0, 1, 1, 500);
    }
    net.pass(Duration::from_millis(100));
    let blocks = |net: &Net| net.hosts[1].engine.in_use()[5];
    assert_eq!(blocks(&net), ("blocks", 8), "the grant of eight segments is used");
    assert_eq!(net.completions(0, Operation::Send, Status::Success), 8);
    for _ in 0..20 {
        net.receive(1, 0, 1, 500);
    }
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 20);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 20);
    assert_eq!(net.hosts[1].engine.counters().dropped.iter().sum::<u64>(), 0);
    net.assert_idle();
}

#[test]
fn long_messages_wait_until_their_receive_is_announced_and_short_ones_pass_them() {
    let mut net = pair();
    net.open(0, 1);
    net.send(0, 1, 1, 200_000);
    net.send(0, 1, 2, 100);
    net.receive(1, 0, 2, 100);
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 1);
    net.pass(Duration::from_millis(50));
    assert_eq!(net.hosts[0].engine.counters().sent(Kind::Data), 1);
    net.receive(1, 0, 1, 200_000);
    let from = net.now;
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 2);
    assert!(net.now - from < Duration::from_micros(200), "half a round trip later it flows");
}

#[test]
fn lost_announcements_are_repeated() {
    let mut net = pair();
    net.open(0, 1);
    net.send(0, 1, 1, 200_000);
    net.dark = true;
    net.receive(1, 0, 1, 200_000);
    net.pass(Duration::from_micros(500));
    net.dark = false;
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 1);
    assert!(net.hosts[1].engine.counters().sent(Kind::Announce) >= 2);
}

#[test]
fn more_than_32_channels_are_announced_one_packet_after_the_other() {
    let mut net = pair();
    net.open(0, 1);
    for tag in 0..50 {
        net.receive(1, 0, tag, 100_000);
    }
    for tag in 0..50 {
        net.send(0, 1, tag, 100_000);
    }
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 50);
    assert_eq!(net.completions(1, Operation::Recv, Status::Success), 50);
    net.assert_idle();
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides_and_the_window_moves_on() {
    let mut net = pair();
    net.open(0, 1);
    net.receive(1, 0, 1, 70_000);
    net.receive(1, 0, 1, 10);
    net.receive(1, 0, 1, 100);
    net.send(0, 1, 1, 90_000);
    net.send(0, 1, 1, 20);
    net.send(0, 1, 1, 100);
    net.run(SECOND, |net| {
        net.completions(0, Operation::Send, Status::TooLong) == 2
            && net.completions(1, Operation::Recv, Status::TooLong) == 2
            && net.completions(1, Operation::Recv, Status::Success) == 1
            && net.completions(0, Operation::Send, Status::Success) == 1
    });
    net.pass(Duration::from_millis(10));
    net.assert_idle();
    net.receive(1, 0, 2, 70_000);
    net.send(0, 1, 2, 70_000);
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 2);
}

#[test]
fn a_short_receive_posted_late_fails_alone() {
    let mut net = pair();
    net.open(0, 1);
    net.send(0, 1, 1, 5_000);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    net.receive(1, 0, 1, 4_999);
    assert_eq!(net.completions(1, Operation::Recv, Status::TooLong), 1);
    net.pass(Duration::from_millis(1));
    net.assert_idle();
}

/// Case 26: a lost last packet is repaired within about two round trips.
#[test]
fn a_lost_tail_is_repaired_by_a_probe_and_not_by_the_time_out() {
    let rtt = Duration::from_millis(5);
    let mut net = Net::new(1, Weather { delay: rtt / 2, ..Weather::default() }, &[config(), config()]);
    net.open(0, 1);
    // Some traffic, so that the round trip is known.
    for _ in 0..30 {
        net.receive(1, 0, 1, 100);
        net.send(0, 1, 1, 100);
        net.pass(3 * rtt);
    }
    net.receive(1, 0, 2, 20_000);
    net.send(0, 1, 2, 20_000);
    // The last three segments of the message never come the first time.
    net.filter = |bytes| match Data::parse(bytes) {
        Ok((data, _)) => data.again || data.segment < 17,
        Err(_) => true,
    };
    let from = net.now;
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 31);
    let took = net.now - from;
    assert!(
        took < 3 * rtt,
        "{took:?}: one way, the probe after a round trip, its answer, the segments again"
    );
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.gap_losses, c.rto_losses), (3, 3, 0));
    assert!(c.sent(Kind::Probe) >= 1);
}

/// A burst of losses lasts for packets rather than for a time, and a single probe after each wait, twice as long as the one before, would outlast a long one after seconds only.
#[test]
fn a_burst_that_takes_the_tail_takes_few_waits() {
    static LEFT: AtomicU32 = AtomicU32::new(0);
    let rtt = Duration::from_millis(5);
    let mut net = Net::new(1, Weather { delay: rtt / 2, ..Weather::default() }, &[config(), config()]);
    net.open(0, 1);
    for _ in 0..30 {
        net.receive(1, 0, 1, 100);
        net.send(0, 1, 1, 100);
        net.pass(3 * rtt);
    }
    net.receive(1, 0, 2, 20_000);
    net.send(0, 1, 2, 20_000);
    // The last three segments, and the next twenty packets that go this way.
    LEFT.store(23, Relaxed);
    net.filter = |bytes| match (Data::parse(bytes), Common::parse(bytes)) {
        (Ok((data, _)), _) if data.segment < 17 => true,
        (Ok(_), _) => LEFT.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err(),
        (_, Ok(common)) if common.kind == Kind::Probe => {
            LEFT.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err()
        }
        _ => true,
    };
    let from = net.now;
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 31);
    let took = net.now - from;
    // The waits: a round trip and a half, then 1, 2 and 4 round trips and a half.
    assert!(took < 20 * rtt, "{took:?}");
    assert_eq!(LEFT.load(Relaxed), 0);
}

#[test]
fn the_oldest_gap_is_sent_again_first() {
    let mut net = pair();
    net.open(0, 1);
    net.receive(1, 0, 1, 100_000);
    net.send(0, 1, 1, 100_000);
    // Sequences wrap after 20, so the order is that of the segments only if the wrap is understood.
    net.filter = |bytes| match Data::parse(bytes) {
        Ok((data, _)) => data.again || ![5, 30, 31, 60].contains(&data.segment),
        Err(_) => true,
    };
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.spurious, c.gap_losses), (4, 0, 4));
    let done = net.hosts[0].done.last().expect("completed");
    assert_eq!(done.retransmitted, 4);
    assert!(done.recovery > Duration::ZERO && done.recovery < Duration::from_millis(1));
}

/// Case 27: the error names the peer, the path, how long ago it was heard, and the likely cause.
#[test]
fn a_black_out_is_survived_and_a_dead_peer_is_named() {
    let mut net = pair();
    net.open(0, 1);
    net.receive(1, 0, 1, 1_000_000);
    net.send(0, 1, 1, 1_000_000);
    net.pass(Duration::from_micros(100));
    net.dark = true;
    net.pass(Duration::from_secs(3));
    net.dark = false;
    net.run(Duration::from_secs(3), |net| net.completions(1, Operation::Recv, Status::Success) == 1);
    net.run(Duration::from_secs(3), |net| net.completions(0, Operation::Send, Status::Success) == 1);
    net.dark = true;
    net.send(0, 1, 2, 10);
    net.run(Duration::from_secs(20), |net| net.hosts[0].events.len() == 2);
    assert_eq!(net.completions(0, Operation::Send, Status::SessionDown), 1);
    let Some(Event::Down { peer, reason: DownReason::Silence { silent, unacknowledged, path }, .. }) =
        net.hosts[0].events.last()
    else {
        panic!("{:?}", net.hosts[0].events);
    };
    assert_eq!((*peer, *unacknowledged, *path), (address(1), 1, 0));
    assert!((15.0..16.5).contains(&silent.as_secs_f64()), "{silent:?}");
    let text = net.hosts[0].events.last().map(|e| match e {
        Event::Down { reason, .. } => reason.to_string(),
        Event::Up { .. } => String::new(),
    });
    let says = ["nothing heard for 15.", "1 segments unacknowledged", "on path 0", "the peer stopped"];
    assert!(text.is_some_and(|t| says.iter().all(|part| t.contains(part))));
}

#[test]
fn idle_sessions_stay_alive() {
    let mut net = pair();
    net.open(0, 1);
    net.pass(Duration::from_secs(60));
    assert!(net.session(0, 1).is_some() && net.session(1, 0).is_some());
    let probes =
        net.hosts[0].engine.counters().sent(Kind::Probe) + net.hosts[1].engine.counters().sent(Kind::Probe);
    assert!((10..30).contains(&probes), "{probes} in a minute");
}

#[test]
fn both_may_connect_at_once() {
    let mut net = pair();
    net.connect(0, 1);
    net.connect(1, 0);
    net.run(SECOND, |net| net.session(0, 1).is_some() && net.session(1, 0).is_some());
    net.pass(Duration::from_millis(100));
    for at in [0, 1] {
        assert_eq!(net.hosts[at].engine.sessions(), 1);
        assert!(matches!(net.hosts[at].events[..], [Event::Up { accepted: false, .. }]));
    }
    net.receive(1, 0, 1, 100_000);
    net.receive(0, 1, 1, 100_000);
    net.send(0, 1, 1, 100_000);
    net.send(1, 0, 1, 100_000);
    net.run(SECOND, |net| (0..2).all(|at| net.completions(at, Operation::Recv, Status::Success) == 1));
}

#[test]
fn a_restarted_peer_is_noticed_and_old_packets_are_refused() {
    let mut net = pair();
    net.open(0, 1);
    net.receive(0, 1, 9, 10);
    net.send(0, 1, 1, 100);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    net.restart(1, &Config { epoch: 2, ..config() });
    net.send(0, 1, 1, 100);
    net.run(SECOND, |net| net.hosts[0].events.len() == 2);
    assert!(
        matches!(net.hosts[0].events[1], Event::Down { reason: DownReason::Forgotten, .. }),
        "{}",
        net.describe()
    );
    assert_eq!(net.completions(0, Operation::Send, Status::SessionDown), 1);
    assert_eq!(net.completions(0, Operation::Recv, Status::SessionDown), 1);
    assert_eq!(net.hosts[1].engine.counters().dropped(Drop::UnknownSession), 1);
    net.open(0, 1);
    // The other way round: the one that restarts connects first.
    net.restart(1, &Config { epoch: 3, ..config() });
    net.open(1, 0);
    net.pass(Duration::from_millis(1));
    assert!(
        net.hosts[0].events.iter().any(|e| matches!(e, Event::Down { reason: DownReason::Restarted, .. }))
    );
    assert_eq!(net.hosts[0].engine.sessions(), 1);
}

/// Case 30, for the engine.
/// Case 30.
#[test]
fn ten_thousand_openings_leave_the_tables_flat() {
    let mut net = pair();
    for i in 0..10_000u32 {
        let (key, _) = net.open((i % 2) as usize, 1 - (i % 2) as usize);
        if i % 100 == 0 {
            net.send(0, 1, u64::from(i), 100);
        }
        net.hosts[(i % 2) as usize].engine.close(key);
        net.pass(Duration::from_millis(1));
        for h in &mut net.hosts {
            assert!(h.engine.in_use().iter().all(|(_, n)| *n == 0), "{:?}", h.engine.in_use());
            h.events.clear();
        }
    }
}

#[test]
fn who_does_not_listen_refuses_and_nobody_answers_is_told() {
    let mut net = Net::new(1, calm(), &[config(), Config { listen: false, ..config() }]);
    net.connect(0, 1);
    net.run(SECOND, |net| !net.hosts[0].events.is_empty());
    let Event::Down { reason, .. } = net.hosts[0].events[0] else { panic!("up") };
    assert_eq!(reason.to_string(), "refused by the peer: it does not listen");
    net.dark = true;
    net.connect(0, 1);
    net.run(Duration::from_secs(20), |net| net.hosts[0].events.len() == 2);
    assert!(matches!(net.hosts[0].events[1], Event::Down { reason: DownReason::NoAnswer(_), .. }));
}

/// Case 17, for segments.
/// Case 17.
#[test]
fn the_smaller_segment_size_is_agreed_on() {
    let mut net = Net::new(1, calm(), &[Config { segment: 4_008, ..config() }, config()]);
    let (a, b) = net.open(0, 1);
    assert_eq!(net.hosts[0].engine.segment(a), Some(1_000));
    assert_eq!(net.hosts[1].engine.segment(b), Some(1_000));
}

#[test]
fn tables_that_are_full_push_back() {
    let limits = Limits { sends: 4, receives: 4, session_channels: 2, ..Limits::SMALL };
    let mut net = Net::new(1, calm(), &[Config { limits, ..config() }, config()]);
    let (key, _) = net.open(0, 1);
    let engine = &mut net.hosts[0].engine;
    let send = SendRequest { len: 1 << 20, ..SendRequest::default() };
    for _ in 0..4 {
        assert_eq!(engine.post_send(key, &send), Ok(()));
        assert_eq!(engine.post_recv(key, &RecvRequest::default()), Ok(()));
    }
    assert_eq!(engine.post_send(key, &send), Err(PostError::Full(4)));
    assert_eq!(engine.post_recv(key, &RecvRequest::default()), Err(PostError::Full(4)));
    engine.close(key);
    assert_eq!(engine.post_send(key, &send), Err(PostError::NoSession));
    let mut limits = Limits::SMALL;
    limits.session_channels = 2;
    let mut net = Net::new(1, calm(), &[Config { limits, ..config() }, config()]);
    let (key, _) = net.open(0, 1);
    let engine = &mut net.hosts[0].engine;
    for tag in 0..2 {
        assert_eq!(engine.post_send(key, &SendRequest { tag, ..SendRequest::default() }), Ok(()));
    }
    let refused = engine.post_send(key, &SendRequest { tag: 2, ..SendRequest::default() });
    assert_eq!(refused, Err(PostError::Channels(2)));
}

/// Case 31, for the reliable service: no room is counted, and recovered from.
#[test]
fn what_finds_the_pool_full_is_postponed_and_holds_nothing_else_up() {
    let limits = Limits { blocks: 4, ..Limits::SMALL };
    let mut net = Net::new(1, calm(), &[config(), Config { limits, ..config() }]);
    net.open(0, 1);
    for _ in 0..10 {
        net.send(0, 1, 1, 100);
    }
    net.pass(Duration::from_millis(20));
    assert!(net.hosts[1].engine.counters().dropped(Drop::NoBlock) > 0);
    let sent = net.hosts[0].engine.counters().sent(Kind::Data);
    net.pass(Duration::from_millis(20));
    assert_eq!(net.hosts[0].engine.counters().sent(Kind::Data), sent, "nothing is tried in vain");
    // More than the window, while what was postponed still waits.
    net.receive(1, 0, 2, 3_000_000);
    net.send(0, 1, 2, 3_000_000);
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 1);
    // Four lie in the pool, and of those that wait the first comes first.
    for _ in 0..5 {
        net.receive(1, 0, 1, 100);
    }
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 6);
    for _ in 0..5 {
        net.receive(1, 0, 1, 100);
    }
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 11);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 11);
    net.assert_idle();
}

/// A driver that was held up: its deadlines move, and the answers that wait are seen first.
#[test]
fn a_round_that_comes_late_sends_nothing_again() {
    let mut net = pair();
    net.open(0, 1);
    net.receive(1, 0, 1, 1_000);
    net.run(SECOND, |net| net.next_is_quiet());
    net.send(0, 1, 1, 1_000);
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 1);
    // Host 0 does not run while its answer lies there, for much longer than any of its timers.
    net.now += Duration::from_millis(500);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.held_up, c.retransmitted, c.rtos), (1, 0, 0), "{}", net.describe());
}

/// The same without an answer: a driver that was away gets some time to find one before a timer fires.
#[test]
fn a_late_round_lets_no_timer_fire_at_once() {
    let mut net = pair();
    let (key, _) = net.open(0, 1);
    net.run(SECOND, |net| net.next_is_quiet());
    net.dark = true;
    net.send(0, 1, 1, 1_000);
    let mut now = net.now;
    let engine = &mut net.hosts[0].engine;
    let mut buf = [0; MAX_CONTROL_LEN];
    let mut round = |now: Instant| {
        engine.begin(now, Duration::ZERO);
        engine.turn();
        let mut kinds = Vec::new();
        while let Some(t) = engine.transmit(&mut buf) {
            kinds.push(t.kind);
        }
        kinds
    };
    assert_eq!(round(now), [Kind::Data]);
    now += Duration::from_millis(10);
    assert_eq!(round(now), [], "its probe was due long ago, and so was the driver");
    now += Duration::from_micros(60);
    assert_eq!(round(now), [Kind::Probe]);
    assert!(net.hosts[0].engine.is_open(key));
}

/// A feedback that has no room for all that arrived says so, and nothing is concluded about the rest.
#[test]
fn what_a_short_feedback_leaves_out_is_not_taken_for_lost() {
    let c = Config { control: 128, congestion: Algorithm::Fixed(4 << 20), ..config() };
    let mut net = Net::new(1, calm(), &[c, c]);
    net.open(0, 1);
    net.receive(1, 0, 1, 1_000_000);
    net.send(0, 1, 1, 1_000_000);
    // 20 words reach 640 segments beyond the hole.
    net.filter = |bytes| Data::parse(bytes).map_or(true, |(data, _)| data.again || data.segment != 0);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.spurious), (1, 0), "{}", net.describe());
}

#[test]
fn short_messages_with_receives_posted_ahead_are_not_held_to_the_grant() {
    let weather = Weather { delay: Duration::from_millis(1), ..Weather::default() };
    let mut net = Net::new(1, weather, &[config(), config()]);
    net.open(0, 1);
    for _ in 0..1_000 {
        net.receive(1, 0, 1, 100);
    }
    net.pass(Duration::from_millis(5));
    for _ in 0..1_000 {
        net.send(0, 1, 1, 100);
    }
    let from = net.now;
    net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == 1_000);
    // With 64 for each round trip of 2 ms it would be 31 ms.
    assert!(net.now - from < Duration::from_millis(5), "{:?}", net.now - from);
    assert!(net.hosts[1].engine.counters().sent(Kind::Announce) < 20);
}

#[test]
fn feedback_keeps_below_its_share() {
    for (size, share) in [(64 * 1_000, 0.05), (1_000_000, 0.05)] {
        let mut net = pair();
        net.open(0, 1);
        for _ in 0..50 {
            net.receive(1, 0, 1, size.max(70_000));
            net.send(0, 1, 1, size);
        }
        net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 50);
        let (a, b) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
        let sent: u64 = a.sent.iter().chain(&b.sent).sum();
        let control = sent - a.sent(Kind::Data);
        let found = control as f64 / sent as f64;
        assert!(found <= share, "{control} of {sent} packets for messages of {size} bytes");
        assert!(b.sent(Kind::Feedback) > 0);
    }
}

#[test]
fn the_delay_window_fills_a_path_and_survives_marks() {
    let c = Config { congestion: Algorithm::DelayEcn, ..config() };
    let mut net = Net::new(5, Weather { ce: 50, loss: 2, ..calm() }, &[c, c]);
    net.open(0, 1);
    net.receive(1, 0, 1, 2_000_000);
    net.send(0, 1, 1, 2_000_000);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
}

#[test]
fn no_packet_of_ours_is_refused_as_malformed() {
    let mut net = Net::new(2, Weather { loss: 100, late: 200, ..calm() }, &[config(), config()]);
    net.filter = |bytes| {
        assert!(Common::parse(bytes).is_ok());
        true
    };
    net.open(0, 1);
    net.receive(1, 0, 1, 500_000);
    net.send(0, 1, 1, 500_000);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let c = net.hosts[1].engine.counters();
    assert_eq!(c.dropped[0], 0);
    assert!(net.now > Instant::ZERO);
}
