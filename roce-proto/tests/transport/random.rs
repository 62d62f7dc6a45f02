//! Random networks and loads: whatever happens, each message arrives once and whole, or both sides know why not.

use crate::basic::config;
use crate::net::{Net, Weather};
use roce_proto::transport::{Algorithm, Config, Limits, Operation, Status};
use roce_proto::wire::shim::Seq;
use std::time::Duration;

fn weather(rng: &mut fastrand::Rng) -> Weather {
    let pick = |rng: &mut fastrand::Rng, most: u32| if rng.bool() { rng.u32(..most) } else { 0 };
    Weather {
        loss: pick(rng, 200),
        double: pick(rng, 200),
        late: pick(rng, 500),
        ce: pick(rng, 200),
        delay: Duration::from_nanos(rng.u64(100..2_000_000)),
    }
}

fn random_config(rng: &mut fastrand::Rng, paths: u8) -> Config {
    let limits = Limits {
        blocks: rng.u32(1..64),
        windows: rng.u32(1..4),
        window: 64 << rng.u32(..5),
        segments: rng.u32(64..2_000),
        session_incoming: rng.u32(1..16),
        ..Limits::SMALL
    };
    Config {
        first: Seq(0u32.wrapping_sub(rng.u32(..500))),
        segment: 64 * rng.u32(1..20),
        limits,
        paths,
        allowance: rng.u32(1..64),
        eager: rng.u32(..20_000),
        control: rng.u32(128..1_056),
        congestion: if rng.bool() { Algorithm::DelayEcn } else { Algorithm::Fixed(rng.u64(1..500_000)) },
        ..config()
    }
}

/// One network, load and seed; returns the packets that it took.
fn play(seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let paths = if rng.bool() { 1 } else { rng.u8(2..=8) };
    let hosts = rng.usize(2..4);
    let configs: Vec<Config> = (0..hosts).map(|_| random_config(&mut rng, paths)).collect();
    // Ordinals are told from the receiver's own first value in the driver.
    let first = configs[0].first;
    let configs: Vec<Config> = configs.into_iter().map(|c| Config { first, ..c }).collect();
    let mut net = Net::new(seed, weather(&mut rng), &configs);
    let pairs: Vec<(usize, usize)> =
        (0..hosts).flat_map(|a| (0..hosts).filter(move |b| *b != a).map(move |b| (a, b))).collect();
    for (a, b) in &pairs {
        if net.session(*a, *b).is_none() {
            net.open(*a, *b);
        }
    }
    let mut posted = 0;
    for _ in 0..rng.usize(1..60) {
        let (a, b) = pairs[rng.usize(..pairs.len())];
        let tag = rng.u64(..3);
        let size = match rng.u8(..4) {
            0 => rng.usize(..10),
            1 => rng.usize(..2_000),
            2 => rng.usize(..20_000),
            _ => rng.usize(..150_000),
        };
        // Receives are as large as any message, so that whatever the order, each fits.
        if rng.bool() {
            net.send(a, b, tag, size);
            net.receive(b, a, tag, 150_000);
        } else {
            net.receive(b, a, tag, 150_000);
            net.send(a, b, tag, size);
        }
        posted += 1;
        if rng.u8(..3) == 0 {
            net.pass(Duration::from_micros(rng.u64(..3_000)));
        }
        if rng.u8(..20) == 0 {
            net.dark = true;
            net.pass(Duration::from_millis(rng.u64(..30)));
            net.dark = false;
        }
    }
    let count = |net: &Net, operation| -> usize {
        (0..hosts).map(|at| net.completions(at, operation, Status::Success)).sum()
    };
    net.run(Duration::from_secs(120), |net| {
        count(net, Operation::Recv) == posted && count(net, Operation::Send) == posted
    });
    net.assert_idle();
    net.carried
}

#[test]
fn every_message_arrives_once_and_whole() {
    for seed in 0..150 {
        println!("seed {seed}");
        play(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(play(77), play(77));
}

#[test]
fn a_fresh_seed_too() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    play(seed);
}
