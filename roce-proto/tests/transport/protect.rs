//! Forward error correction over a long link: what is repaired, what is sent again, and who pays for it.

use crate::basic::config;
use crate::net::{Net, Weather};
use fec::policy::{Policy, Protection};
use roce_proto::transport::{Algorithm, Config, Drop, Fec, Limits, Operation, PathState, Protect, Status};
use roce_proto::wire::shim::{Common, Data, Kind, Parity, Semantics, Seq};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const ONE_WAY: Duration = Duration::from_millis(12);
const ROUND_TRIP: Duration = Duration::from_millis(24);
/// A gradient that somebody waits for.
const GRADIENT: Semantics = Semantics { class: 1, priority: 8, step: 3, stage: 0, tolerance: 0, sync: false };

fn far() -> Weather {
    Weather { delay: ONE_WAY, ..Weather::default() }
}

/// Two hosts far apart, with a session.
fn pair_of(config: Config) -> Net {
    let mut net = Net::new(5, far(), &[config, config]);
    net.open(0, 1);
    // The first round trip is measured.
    net.pass(ROUND_TRIP * 2);
    net
}

fn pair() -> Net {
    pair_of(config())
}

/// The same, with every message in groups of (32,4) that are not interleaved.
fn pair_by_32() -> Net {
    let protect = Protect::Everything(Protection { data: 32, parity: 4, depth: 1 });
    pair_of(Config { fec: Fec { protect, ..Fec::default() }, ..config() })
}

/// A session with much to repair leaves half of the shards to others, each of which may have some.
#[test]
fn a_session_leaves_shards_to_others() {
    let protect = Protect::Everything(Protection { data: 32, parity: 4, depth: 1 });
    let limits = Limits { shards: 48, ..config().limits };
    let config = Config { fec: Fec { protect, ..Fec::default() }, limits, ..config() };
    let mut net = Net::new(5, far(), &[config; 3]);
    net.open(1, 0);
    net.open(2, 0);
    net.pass(ROUND_TRIP * 2);
    // Five of each group: nothing can be repaired, and all parity is kept.
    net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment % 32 >= 5);
    // Receives are announced first.
    net.receive(0, 1, 5, 480_000);
    net.receive(0, 2, 5, 480_000);
    net.pass(ROUND_TRIP);
    let mut kept = Vec::new();
    for from in [1, 2] {
        net.send_tagged(from, 0, (5, 480_000), GRADIENT);
        net.pass(ONE_WAY + Duration::from_millis(1));
        let used = net.hosts[0].engine.in_use();
        kept.extend(used.iter().find(|(name, _)| *name == "shards").map(|(_, used)| *used));
    }
    assert_eq!(kept, [24, 40], "half of them, then sixteen more");
    assert!(net.hosts[0].engine.counters().dropped(Drop::NoShard) > 0);
    net.filter = |_| true;
    let done = |net: &Net| net.completions(0, Operation::Recv, Status::Success) == 2;
    net.run(Duration::from_secs(5), done);
    assert!(done(&net));
}

/// The data packet, if it is the first transmission of one.
fn fresh(bytes: &[u8]) -> Option<Data> {
    Data::parse(bytes).ok().map(|(data, _)| data).filter(|data| !data.again)
}

/// Sends a message and runs until both sides have ended it; returns how long that took the receiver.
fn exchange(net: &mut Net, len: usize, semantics: Semantics) -> Duration {
    let before = net.completions(1, Operation::Recv, Status::Success);
    let sent = net.completions(0, Operation::Send, Status::Success);
    net.receive(1, 0, 5, len);
    net.pass(ROUND_TRIP);
    let begin = net.now;
    net.send_tagged(0, 1, (5, len), semantics);
    net.run(Duration::from_secs(5), |net| net.completions(1, Operation::Recv, Status::Success) > before);
    let took = net.now.saturating_since(begin);
    net.run(Duration::from_secs(5), |net| net.completions(0, Operation::Send, Status::Success) > sent);
    took
}

#[test]
fn a_loss_is_repaired_and_not_sent_again() {
    let mut net = pair_by_32();
    // Of each group of 32, four: as many as it has parity.
    net.filter = |bytes| fresh(bytes).is_none_or(|d| ![3, 9, 30, 31].contains(&(d.segment % 32)));
    let took = exchange(&mut net, 100_000, GRADIENT);
    let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
    // Segments 0..32, 32..64, 64..96 and 96..100, of which 99 is lost.
    assert_eq!((r.repaired, c.retransmitted, c.spurious), (13, 0, 0), "{c:?}");
    // Each is told of once: by the verdict, or by the repair.
    assert_eq!(c.awaited + c.unseen, 13, "{c:?}");
    assert_eq!((c.sent(Kind::Data), c.sent(Kind::Parity)), (100, 16));
    assert_eq!(c.protected, 100);
    assert!(took < ONE_WAY + Duration::from_millis(1), "{took:?}: no round trip was waited for");
    net.assert_idle();
}

#[test]
fn losses_whose_repair_comes_before_the_verdict_are_not_sent_again() {
    /// Parity of the last of thirty messages.
    fn parity(net: &mut Net) -> u64 {
        let sent = |net: &Net| net.hosts[0].engine.counters().sent(Kind::Parity);
        for _ in 0..29 {
            exchange(net, 96_000, GRADIENT);
        }
        let before = sent(net);
        exchange(net, 96_000, GRADIENT);
        sent(net) - before
    }
    let (mut net, mut sound) = (pair(), pair());
    net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment != 7);
    let (lossy, lossless) = (parity(&mut net), parity(&mut sound));
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.rto_losses), (0, 0));
    // The repair was there before the first feedback, as the parity comes right behind: no verdict.
    assert_eq!((c.gap_losses, c.awaited), (0, 0));
    assert_eq!(net.hosts[1].engine.counters().repaired, 30);
    // The sender is told all the same, and protects as a loss of one in a hundred asks for.
    assert_eq!((c.unseen, c.parity_lost), (30, 0));
    assert!(lossy == 12 && lossless <= 8, "{lossy} shards of three groups, without losses {lossless}");
    assert_eq!(sound.hosts[0].engine.counters().unseen, 0);
}

/// Parity takes a longer way, so that a loss is known of before it is repaired: it is told once, by the verdict.
#[test]
fn a_loss_that_is_known_of_is_not_told_again_when_it_is_repaired() {
    let mut net = pair_by_32();
    net.filter = |bytes| fresh(bytes).is_none_or(|d| ![3, 9, 40].contains(&d.segment));
    net.detour = |bytes| Duration::from_millis(u64::from(Parity::parse(bytes).is_ok()));
    // Too short for a probe behind it, which would tell of the parity before it comes.
    exchange(&mut net, 60_000, GRADIENT);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.awaited, c.unseen, c.unrepaired, c.retransmitted), (3, 0, 0, 0), "{c:?}");
    assert_eq!(net.hosts[1].engine.counters().repaired, 3);
}

/// Losses of data that a detector finds are not told again as what the peer says was skipped.
#[test]
fn what_is_sent_again_is_no_lost_parity() {
    let mut net = pair_by_8();
    // What the first feedback says was skipped is where counting begins.
    exchange(&mut net, 60_000, GRADIENT);
    net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment >= 12);
    exchange(&mut net, 60_000, GRADIENT);
    net.filter = |_| true;
    (0..3).for_each(|_| _ = exchange(&mut net, 60_000, GRADIENT));
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted >= 4, c.parity_lost), (true, 0), "{c:?}");
}

/// Congestion control heeds losses of parity: the window does not grow as it does without.
#[test]
fn lost_parity_slows_the_sender_down() {
    static LOST: AtomicU32 = AtomicU32::new(0);
    let took = |lossy: bool| {
        let mut net = pair_of(Config { congestion: Algorithm::DelayEcn, ..config() });
        exchange(&mut net, 15_000, GRADIENT);
        let told = |net: &Net| net.hosts[0].engine.counters().parity_lost;
        if lossy {
            net.filter = |bytes| {
                let lost = Parity::parse(bytes).is_ok_and(|(parity, _)| parity.index == 0);
                LOST.fetch_add(lost.into(), Relaxed);
                !lost
            };
        }
        (0..20).for_each(|_| _ = exchange(&mut net, 15_000, GRADIENT));
        net.filter = |_| true;
        let lost = if lossy { u64::from(LOST.load(Relaxed)) } else { 0 };
        assert_eq!(lost >= 20, lossy);
        // What a feedback tells is believed with the next.
        assert!(told(&net) <= lost && told(&net) * 10 >= lost * 9, "{} of {lost}", told(&net));
        assert_eq!(net.hosts[0].engine.counters().unseen, 0);
        let took = exchange(&mut net, 200_000, GRADIENT);
        assert_eq!((told(&net), net.hosts[0].engine.counters().retransmitted), (lost, 0));
        took
    };
    let (lossy, sound) = (took(true), took(false));
    assert!(lossy > sound + ROUND_TRIP / 2, "{lossy:?}, without losses {sound:?}");
}

/// Congestion control heeds losses that were repaired before any verdict: the window does not grow as it does without.
#[test]
fn repaired_losses_slow_the_sender_down() {
    let took = |lossy: bool| {
        let mut net = pair_of(Config { congestion: Algorithm::DelayEcn, ..config() });
        if lossy {
            net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment != 3);
        }
        for _ in 0..20 {
            exchange(&mut net, 15_000, GRADIENT);
        }
        assert_eq!(net.hosts[0].engine.counters().retransmitted, 0);
        assert_eq!(net.hosts[0].engine.counters().unseen > 0, lossy);
        net.filter = |_| true;
        exchange(&mut net, 200_000, GRADIENT)
    };
    let (lossy, sound) = (took(true), took(false));
    assert!(lossy > sound + ROUND_TRIP / 2, "{lossy:?}, without losses {sound:?}");
}

#[test]
fn more_losses_than_parity_are_sent_again_at_once_and_others_are_still_repaired() {
    let mut net = pair_by_32();
    // Five of the first group, one of the second.
    net.filter = |bytes| fresh(bytes).is_none_or(|d| !(d.segment < 5 || d.segment == 40));
    let took = exchange(&mut net, 64_000, GRADIENT);
    let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
    assert_eq!(c.unrepaired + c.gap_losses - c.awaited, 5, "{c:?}");
    // One that comes again makes the others repairable.
    assert!(c.retransmitted == 5 && r.repaired >= 1 && c.rtos == 0, "{c:?} {r:?}");
    assert!(took < ROUND_TRIP * 2, "{took:?}: no time was lost by waiting");
    net.assert_idle();
}

#[test]
fn without_its_parity_a_loss_is_sent_again_after_a_round_trip() {
    let mut net = pair();
    net.filter = |bytes| Parity::parse(bytes).is_err() && fresh(bytes).is_none_or(|d| d.segment != 40);
    let took = exchange(&mut net, 64_000, GRADIENT);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.awaited, c.unrepaired, c.retransmitted), (1, 1, 1), "{c:?}");
    assert!(took > ROUND_TRIP && took < ROUND_TRIP * 2, "{took:?}");
    net.assert_idle();
}

#[test]
fn the_end_of_a_message_and_short_messages_are_repaired_too() {
    for len in [1, 999, 1_000, 1_001, 5_500, 33_333] {
        let mut net = pair();
        net.filter = |bytes| fresh(bytes).is_none_or(|d| u64::from(d.segment + 1) * 1_000 < d.length);
        let took = exchange(&mut net, len, Semantics { class: 3, ..GRADIENT });
        let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
        assert_eq!((r.repaired, c.retransmitted), (1, 0), "{len}: {c:?}");
        assert!(took < ROUND_TRIP, "{len}: {took:?}");
        net.assert_idle();
    }
}

#[test]
fn untagged_and_low_priority_messages_have_no_parity() {
    let mut net = pair();
    exchange(&mut net, 100_000, Semantics::default());
    exchange(&mut net, 100_000, Semantics { priority: 7, ..GRADIENT });
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.sent(Kind::Parity), c.protected), (0, 0));
    // The class of an unknown number is none.
    exchange(&mut net, 10_000, Semantics { class: 9, ..GRADIENT });
    assert_eq!(net.hosts[0].engine.counters().sent(Kind::Parity), 0);
    // Near by, sending again is as fast.
    let mut near = Net::new(5, Weather { delay: Duration::from_micros(20), ..far() }, &[config(), config()]);
    near.open(0, 1);
    near.pass(ROUND_TRIP);
    exchange(&mut near, 100_000, GRADIENT);
    assert_eq!(near.hosts[0].engine.counters().sent(Kind::Parity), 0);
}

/// Case 33.
#[test]
fn parity_of_an_unknown_code_is_refused_and_counted() {
    let changes: [fn(&mut Vec<u8>); 3] = [
        |b| b[60] = if b[0] == 0x1b { 2 } else { b[60] },
        |b| b[60] = if b[0] == 0x1b { 0 } else { b[60] },
        |b| b[61] = if b[0] == 0x1b { 2 } else { b[61] },
    ];
    for change in changes {
        let mut net = pair();
        net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment != 3);
        // Data and parity are long enough for that, and nothing else is sent in this time.
        net.receive(1, 0, 5, 20_000);
        net.pass(ROUND_TRIP);
        net.change = change;
        net.send_tagged(0, 1, (5, 20_000), GRADIENT);
        net.pass(ONE_WAY / 2);
        net.change = |_| {};
        net.run(Duration::from_secs(5), |net| net.completions(1, Operation::Recv, Status::Success) == 1);
        let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
        assert!(c.sent(Kind::Parity) > 0);
        assert_eq!((r.dropped(Drop::UnknownCodec), r.repaired), (c.sent(Kind::Parity), 0));
        assert_eq!(c.retransmitted, 1);
    }
}

/// Case 33: a message of more segments than a code allows shards is many groups.
#[test]
fn long_messages_are_split_into_groups() {
    let protect = Protect::Everything(Protection { data: 255, parity: 3, depth: 1 });
    let mut net = pair_of(Config { fec: Fec { protect, ..Fec::default() }, ..config() });
    net.filter = |bytes| fresh(bytes).is_none_or(|d| d.segment % 100 != 50);
    exchange(&mut net, 1_000_000, Semantics::default());
    let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
    assert_eq!((c.retransmitted, r.repaired), (0, 10));
    assert_eq!(c.sent(Kind::Parity), 16 * 3, "a group has 64 segments at the most");
}

#[test]
fn bursts_are_repaired_where_groups_are_interleaved() {
    let protect = Protect::Everything(Protection { data: 8, parity: 2, depth: 16 });
    let mut net = pair_of(Config { fec: Fec { protect, ..Fec::default() }, ..config() });
    // 32 in a row.
    net.filter = |bytes| fresh(bytes).is_none_or(|d| !(50..82).contains(&d.segment));
    exchange(&mut net, 200_000, Semantics::default());
    let (c, r) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
    assert_eq!((c.retransmitted, r.repaired), (0, 32));
}

#[test]
fn parity_goes_on_other_paths_than_its_data() {
    let mut net = pair_of(Config { paths: 4, ..config() });
    // A path loses everything: which one is told by what is lost of a group.
    net.filter = |bytes| match Parity::parse(bytes) {
        Ok((parity, _)) => {
            assert_eq!(parity.first.path, 3);
            true
        }
        Err(_) => fresh(bytes).is_none_or(|d| {
            assert!(d.path < 3);
            d.segment != 5
        }),
    };
    exchange(&mut net, 50_000, GRADIENT);
    assert_eq!(net.hosts[1].engine.counters().repaired, 1);
    // What is not protected uses all.
    static USED: AtomicU32 = AtomicU32::new(0);
    net.filter = |bytes| {
        fresh(bytes).inspect(|d| _ = USED.fetch_or(1 << d.path, Relaxed));
        true
    };
    exchange(&mut net, 50_000, Semantics::default());
    assert_eq!(USED.load(Relaxed), 0b1111);
}

/// The path for parity goes dark, and nothing but parity is on it: it is found, parity takes another, and comes back when the path does.
#[test]
fn parity_leaves_a_dark_path_and_returns() {
    static DARK: AtomicU32 = AtomicU32::new(0);
    static ON: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
    let mut net = pair_of(Config { paths: 4, ..config() });
    let key = net.session(0, 1).unwrap();
    net.filter = |bytes| match (Parity::parse(bytes), Common::parse(bytes)) {
        (Ok((parity, _)), _) => {
            ON[usize::from(parity.first.path)].fetch_add(1, Relaxed);
            parity.first.path != 3 || DARK.load(Relaxed) == 0
        }
        (_, Ok(common)) if common.kind == Kind::Probe => common.path != 3 || DARK.load(Relaxed) == 0,
        _ => true,
    };
    let state = |net: &Net| net.hosts[0].engine.path_stats(key, 3).unwrap().state;
    let send = |net: &mut Net, messages: usize| {
        ON.iter().for_each(|on| on.store(0, Relaxed));
        (0..messages).for_each(|_| _ = exchange(net, 50_000, GRADIENT));
        [0, 1, 2, 3].map(|path| ON[path].load(Relaxed))
    };
    let on = send(&mut net, 4);
    assert!(on[3] >= 4 && on[..3] == [0; 3], "{on:?}");
    DARK.store(1, Relaxed);
    send(&mut net, 6);
    assert_eq!(state(&net), PathState::Bad);
    let on = send(&mut net, 4);
    assert!(on[3] == 0 && on.iter().sum::<u32>() >= 4, "{on:?}");
    DARK.store(0, Relaxed);
    net.pass(Duration::from_secs(1));
    assert_eq!(state(&net), PathState::Good);
    let on = send(&mut net, 4);
    assert!(on[3] >= 4 && on[..3] == [0; 3], "{on:?}");
    assert_eq!(net.hosts[0].engine.counters().retransmitted, 0);
}

/// Whatever the weather: every message once, whole, and nothing left over. Protected messages, unprotected ones, late receives,
/// restarts.
#[test]
fn through_any_weather() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let protect = match seed % 3 {
            0 => Protect::ByTag,
            _ => Protect::Everything(Protection {
                data: rng.u8(1..40),
                parity: rng.u8(1..6),
                depth: rng.u8(1..10),
            }),
        };
        let config = Config {
            fec: Fec {
                protect,
                policy: Policy { short_round_trip: 0, block: rng.u32(1..200), ..Policy::default() },
            },
            paths: rng.u8(1..6),
            first: Seq(u32::MAX - rng.u32(0..100)),
            ..config()
        };
        let weather = Weather {
            loss: rng.u32(0..150),
            double: rng.u32(0..50),
            late: rng.u32(0..300),
            ce: 0,
            delay: Duration::from_micros(rng.u64(10..3_000)),
        };
        let mut net = Net::new(seed, weather, &[config, config]);
        net.open(0, 1);
        let messages = 40;
        for i in 0..messages {
            let longest = 1 << rng.u32(1..17);
            let len = rng.usize(0..longest);
            let (from, to) = if rng.bool() { (0, 1) } else { (1, 0) };
            let semantics =
                Semantics { class: rng.u8(0..4), priority: rng.u8(0..16), stage: rng.u8(0..8), ..GRADIENT };
            if rng.u8(0..3) == 0 {
                net.send_tagged(from, to, (i % 5, len), semantics);
                net.pass(Duration::from_micros(rng.u64(0..3_000)));
                net.receive(to, from, i % 5, 70_000 << 1);
            } else {
                net.receive(to, from, i % 5, 70_000 << 1);
                net.send_tagged(from, to, (i % 5, len), semantics);
            }
        }
        let ended = |net: &Net, operation| {
            (0..2).map(|at| net.completions(at, operation, Status::Success)).sum::<usize>()
        };
        net.run(Duration::from_secs(60), |net| {
            ended(net, Operation::Recv) == messages as usize
                && ended(net, Operation::Send) == messages as usize
        });
        net.pass(Duration::from_millis(200));
        net.assert_idle();
    }
}

/// Groups of (8,2), four interleaved, of whose parity nothing comes.
fn pair_by_8() -> Net {
    let protect = Protect::Everything(Protection { data: 8, parity: 2, depth: 4 });
    pair_of(Config { fec: Fec { protect, ..Fec::default() }, ..config() })
}

#[test]
fn a_group_that_cannot_be_repaired_is_sent_again_at_once_and_others_wait() {
    let mut net = pair_by_8();
    // Three of the first group, which has parity for two, and two of the second.
    net.filter = |bytes| {
        Parity::parse(bytes).is_err() && fresh(bytes).is_none_or(|d| ![0, 4, 8, 1, 5].contains(&d.segment))
    };
    net.receive(1, 0, 5, 32_000);
    net.pass(ROUND_TRIP);
    net.send_tagged(0, 1, (5, 32_000), Semantics::default());
    net.run(Duration::from_secs(1), |net| net.hosts[0].engine.counters().gap_losses == 5);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.awaited, c.unrepaired), (4, 2), "{c:?}");
    net.run(Duration::from_secs(1), |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.unrepaired, c.retransmitted, c.spurious), (4, 5, 0), "{c:?}");
}

#[test]
fn what_was_sent_again_and_is_lost_waits_for_no_repair() {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    let mut net = pair_by_8();
    net.filter = |bytes| {
        let lost = Data::parse(bytes).is_ok_and(|(d, _)| d.segment == 3) && TIMES.fetch_add(1, Relaxed) < 2;
        Parity::parse(bytes).is_err() && !lost
    };
    exchange(&mut net, 32_000, Semantics::default());
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.awaited, c.unrepaired, c.retransmitted), (1, 1, 2), "{c:?}");
}

#[test]
fn parity_of_a_group_is_spread_and_a_repair_is_told_at_once() {
    static ORDER: Mutex<Vec<(u32, u8)>> = Mutex::new(Vec::new());
    let mut net = pair_by_8();
    net.filter = |bytes| {
        if let Ok((parity, _)) = Parity::parse(bytes) {
            ORDER.lock().unwrap().push((parity.first.segment, parity.index));
        }
        // The last of the message too, whose coming would be told of anyhow.
        fresh(bytes).is_none_or(|d| ![7, 31].contains(&d.segment))
    };
    net.receive(1, 0, 5, 32_000);
    net.pass(ROUND_TRIP);
    let begin = net.now;
    net.send_tagged(0, 1, (5, 32_000), Semantics::default());
    net.run(Duration::from_secs(1), |net| net.completions(0, Operation::Send, Status::Success) == 1);
    let took = net.now.saturating_since(begin);
    assert!(took < ROUND_TRIP + Duration::from_micros(200), "{took:?}");
    let order = ORDER.lock().unwrap();
    assert_eq!(*order, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 1)]);
}

/// Each class has counters of its own, at the side where a thing happens.
#[test]
fn classes_are_counted_by_themselves() {
    let mut net = pair_by_32();
    let tagged = |class| Semantics { class, ..GRADIENT };
    // Of gradients one is lost of each group, of activations more than can be repaired, of the others none.
    net.filter = |bytes| {
        fresh(bytes).is_none_or(|d| match d.semantics.class {
            1 => d.segment % 32 != 3,
            2 => d.segment >= 5,
            _ => true,
        })
    };
    for (class, len) in [(1, 100_000), (2, 32_000), (3, 2_500), (9, 1_000), (0, 1_000)] {
        exchange(&mut net, len, tagged(class));
    }
    let (sent, came) = (net.hosts[0].engine.counters(), net.hosts[1].engine.counters());
    let of = |class: usize| {
        let (s, r) = (sent.classes[class], came.classes[class]);
        (s.messages, s.protected, s.parity, s.parity_bytes, r.repaired, s.retransmitted, s.residual)
    };
    assert_eq!(of(1), (1, 100, 16, 16_000, 4, 0, 0));
    let (messages, protected, parity, bytes, repaired, again, residual) = of(2);
    assert_eq!((messages, protected, parity, bytes), (1, 32, 4, 4_000));
    // One that comes again makes the others repairable.
    assert!(again == 5 && residual == 5 && repaired <= 4, "{again} {residual} {repaired}");
    assert_eq!(of(3), (1, 3, 4, 4_000, 0, 0, 0));
    // A class without a name is none.
    assert_eq!(of(0), (2, 2, 8, 8_000, 0, 0, 0));
    assert_eq!(sent.classes.iter().map(|c| c.protected).sum::<u64>(), sent.protected);
    assert_eq!(sent.classes.iter().map(|c| c.parity).sum::<u64>(), sent.sent(Kind::Parity));
    assert_eq!(came.classes.iter().map(|c| c.repaired).sum::<u64>(), came.repaired);
    assert_eq!(sent.classes.iter().map(|c| c.retransmitted).sum::<u64>(), sent.retransmitted);
}
