use super::*;
use crate::config::{BlackOut, Rate, Reorder};
use crate::loss::Loss;
use proptest::prelude::*;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn at(n: u64) -> Instant {
    Instant::ZERO + us(n)
}

const OFFER: Offer = Offer { bytes: 1000, ecn_capable: true };

/// Offers `count` numbered packets, a microsecond apart, and returns what comes out.
fn through(config: Config, seed: u64, count: u64) -> (Vec<Delivery<u64>>, Counters) {
    let mut link = Link::new(config, seed).unwrap();
    for n in 0..count {
        link.offer(at(n), OFFER, n, |n| Some(*n));
    }
    let out = std::iter::from_fn(|| link.pop(Instant::MAX)).collect();
    (out, link.counters())
}

fn numbers(out: &[Delivery<u64>]) -> Vec<u64> {
    out.iter().map(|d| d.packet).collect()
}

#[test]
fn nothing_is_done_unless_asked() {
    let (out, counters) = through(Config::default(), 1, 100);
    let want: Vec<_> =
        (0..100).map(|n| Delivery { packet: n, at: at(n), marked: false, corrupt: None }).collect();
    assert_eq!(out, want);
    assert_eq!(counters, Counters { offered: 100, delivered: 100, ..Counters::default() });
}

#[test]
fn jitter_spreads_the_delay_and_keeps_the_order() {
    let config = Config { delay: us(50), jitter: us(20), ..Config::default() };
    let (out, _) = through(config, 1, 10_000);
    assert!(numbers(&out).is_sorted() && out.len() == 10_000);
    let delays: Vec<u64> =
        out.iter().map(|d| d.at.saturating_since(at(d.packet)).as_nanos() as u64).collect();
    let (least, most) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
    assert!((50_000..56_000).contains(&least), "{least}");
    assert!((69_000..=70_000).contains(&most), "{most}");
}

#[test]
fn a_stall_holds_up_what_would_come_out_in_it() {
    let stall = Some(BlackOut { from: at(100), lasting: us(30), every: Some(us(50)) });
    let (out, counters) = through(Config { delay: us(10), stall, ..Config::default() }, 1, 200);
    assert_eq!((out.len(), counters.dark), (200, 0));
    for d in out {
        let due = d.packet + 10;
        let within = if due < 100 { 50 } else { (due - 100) % 50 };
        assert_eq!(d.at, at(if within < 30 { due - within + 30 } else { due }), "{}", d.packet);
    }
}

#[test]
fn reordering_delays_the_few_not_the_many() {
    let config =
        Config { delay: us(5), reorder: Some(Reorder { share: 0.1, by: us(9) }), ..Config::default() };
    let (out, _) = through(config, 1, 10_000);
    let mut sorted = numbers(&out);
    assert!(!sorted.is_sorted());
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10_000).collect::<Vec<_>>(), "each once");
    let late = out.iter().filter(|d| d.at > at(d.packet) + us(5)).count();
    assert!((800..1200).contains(&late), "{late} of 10000 late");
    assert!(out.iter().all(|d| d.at <= at(d.packet) + us(14)));
}

#[test]
fn duplicates_and_corrupt_packets_come_as_often_as_asked() {
    let (out, counters) = through(Config { duplicate: 0.25, corrupt: 0.1, ..Config::default() }, 1, 10_000);
    assert_eq!(out.len() as u64, 10_000 + counters.duplicated);
    assert!((2300..2700).contains(&counters.duplicated), "{counters:?}");
    let corrupt: Vec<_> = out.iter().filter_map(|d| d.corrupt).collect();
    assert_eq!(corrupt.len() as u64, counters.corrupted);
    assert!((1100..1400).contains(&corrupt.len()), "{counters:?}");
    assert!(corrupt.iter().all(|&bit| bit < 8000));
    // Any bit may be hit.
    assert!(corrupt.iter().any(|&bit| bit < 800) && corrupt.iter().any(|&bit| bit > 7200));
    // Who cannot copy gets one.
    let mut link = Link::new(Config { duplicate: 1.0, ..Config::default() }, 1).unwrap();
    link.offer(at(0), OFFER, (), |()| None);
    assert_eq!((link.under_way(), link.counters().duplicated), (1, 0));
}

#[test]
fn the_bottleneck_delays_marks_and_drops() {
    // A kilobyte takes two microseconds, and comes every one.
    let rate = Rate { bits_per_second: 4_000_000_000, queue: 10_000, mark_from: Some(5_000) };
    let (out, counters) = through(Config { rate: Some(rate), ..Config::default() }, 1, 1000);
    assert!(out.windows(2).all(|d| d[1].at.saturating_since(d[0].at) == us(2)), "it is never idle");
    // When the last one came, 999 µs after the first, 499 were out and ten in the queue.
    assert_eq!((counters.delivered, counters.queue_full), (509, 491));
    assert_eq!(counters.marked, out.iter().filter(|d| d.marked).count() as u64);
    let first = out.iter().position(|d| d.marked).unwrap();
    assert!((9..13).contains(&first) && out[first..].iter().all(|d| d.marked), "{first}");
    // What may not be marked is not.
    let mut link = Link::new(Config { rate: Some(rate), ..Config::default() }, 1).unwrap();
    for n in 0..10 {
        link.offer(at(0), Offer { ecn_capable: n % 2 == 0, ..OFFER }, n, |_| None);
    }
    let marked: Vec<_> =
        std::iter::from_fn(|| link.pop(Instant::MAX)).filter(|d| d.marked).map(|d| d.packet).collect();
    assert_eq!(marked, [6, 8]);
}

#[test]
fn nothing_passes_in_a_black_out() {
    let black_out = Some(BlackOut { from: at(10), lasting: us(5), every: None });
    let (out, counters) = through(Config { delay: us(100), black_out, ..Config::default() }, 1, 20);
    assert_eq!(numbers(&out), (0..10).chain(15..20).collect::<Vec<_>>());
    assert_eq!(counters.dark, 5);
}

#[test]
fn what_is_held_is_bounded() {
    let (out, counters) = through(Config { delay: us(1000), capacity: 7, ..Config::default() }, 1, 100);
    assert_eq!((numbers(&out), counters.too_many), ((0..7).collect(), 93));
}

/// A link may change while packets are under way: a path that gets worse.
#[test]
fn another_configuration_holds_from_now_on() {
    let mut link = Link::new(Config { delay: us(10), ..Config::default() }, 1).unwrap();
    link.offer(at(0), OFFER, 0, |_| None);
    link.reconfigure(Config { loss: Loss::Random(1.0), ..Config::default() }).unwrap();
    link.offer(at(1), OFFER, 1, |_| None);
    assert!(link.reconfigure(Config { duplicate: 2.0, ..Config::default() }).is_err());
    link.reconfigure(Config::default()).unwrap();
    link.offer(at(2), OFFER, 2, |_| None);
    let out: Vec<_> = std::iter::from_fn(|| link.pop(Instant::MAX)).map(|d| (d.packet, d.at)).collect();
    assert_eq!(out, [(0, at(10)), (2, at(10))], "without reordering the order is kept all the same");
}

fn any_config() -> impl Strategy<Value = Config> {
    let share = || prop_oneof![Just(0.0), 0.0..=1.0f64];
    let time = || (0u64..200).prop_map(us);
    let loss = prop_oneof![
        Just(Loss::None),
        share().prop_map(Loss::Random),
        (share(), share(), share(), share())
            .prop_map(|(worsen, recover, good, bad)| { Loss::GilbertElliott { worsen, recover, good, bad } }),
    ];
    let rate = proptest::option::of((1u64..10_000_000_000, 0u64..20_000, proptest::option::of(0u64..20_000)));
    let black_out = proptest::option::of((0u64..50, time(), proptest::option::of(time())));
    let reorder = proptest::option::of((share(), time()));
    let dark = |(from, lasting, every)| BlackOut { from: at(from), lasting, every };
    (loss, (time(), time()), reorder, (share(), share()), rate, (black_out.clone(), black_out), 1usize..50)
        .prop_map(
            move |(
                loss,
                (delay, jitter),
                reorder,
                (duplicate, corrupt),
                rate,
                (black_out, stall),
                capacity,
            )| Config {
                loss,
                delay,
                jitter,
                reorder: reorder.map(|(share, by)| Reorder { share, by }),
                duplicate,
                corrupt,
                rate: rate.map(|(bits_per_second, queue, mark_from)| Rate {
                    bits_per_second,
                    queue,
                    mark_from,
                }),
                black_out: black_out.map(dark),
                stall: stall.map(dark),
                capacity,
            },
        )
}

proptest! {
    /// Whatever it is told to do: nothing is lost from the count, nothing comes before its time or out of turn, and the same seed
    /// has it all happen again.
    #[test]
    fn every_packet_has_one_fate(
        config in any_config(),
        seed: u64,
        ops in proptest::collection::vec((0u64..100, 0usize..3000, any::<bool>()), 0..200),
    ) {
        let run = || {
            let mut link = Link::new(config.clone(), seed).unwrap();
            let (mut now, mut out) = (Instant::ZERO, Vec::new());
            for (n, &(gap, bytes, ecn_capable)) in ops.iter().enumerate() {
                now += us(gap);
                while let Some(d) = link.pop(now) {
                    out.push((now, d));
                }
                link.offer(now, Offer { bytes, ecn_capable }, (n, now), |p| Some(*p));
                let c = link.counters();
                let fates = c.delivered + c.lost + c.dark + c.queue_full + c.too_many;
                assert_eq!(c.offered + c.duplicated, fates + link.under_way() as u64);
                assert!(link.under_way() <= config.capacity);
            }
            while let Some(d) = link.pop(Instant::MAX) {
                out.push((Instant::MAX, d));
            }
            (out, link.counters())
        };
        let (out, counters) = run();
        prop_assert!(out.windows(2).all(|w| w[0].1.at <= w[1].1.at), "out of turn");
        for (popped, d) in &out {
            let (n, offered) = d.packet;
            prop_assert!(d.at <= *popped && d.at >= offered + config.delay);
            prop_assert!(!d.marked || (ops[n].2 && config.rate.is_some()));
            prop_assert!(d.corrupt.is_none_or(|bit| bit < ops[n].1 * 8));
        }
        if config.reorder.is_none() {
            prop_assert!(out.windows(2).all(|w| w[0].1.packet.0 <= w[1].1.packet.0), "out of order");
        }
        prop_assert_eq!(run(), (out, counters));
    }
}
