//! The swarm: networks, loads and faults from seeds, those that found something once among them.

use std::time::{Duration, Instant};
use testbed_sim::{Scenario, Trace, simulate};

fn play(seed: u64) -> testbed_sim::Report {
    let (report, verdict) = simulate(&Scenario::swarm(seed), Trace::hash());
    if let Err(violation) = verdict {
        panic!("seed {seed}: {violation}\n  spraywire sim --swarm --seed {seed} --runs 1 --trace");
    }
    report
}

#[test]
fn seeds_that_found_something_once() {
    // What they found: a message between two allowances, a short receive of a long message, receives in another order than
    // the sends (before and after the grant was used up), two sessions with one id, a queue that time-outs kept full, a
    // time-out that was not begun anew, a repair that was waited for while its block waited for what the segment held.
    for seed in [76, 72, 24, 46, 2659, 3895, 5706, 7152, 109142, 199430878408062] {
        play(seed);
    }
}

#[test]
fn fixed_seeds() {
    let mut sum = testbed_sim::Report::default();
    for seed in 0..150 {
        sum.add(&play(seed));
    }
    // They are of use only if everything happens in them.
    for (what, count) in [
        ("lost", sum.lost),
        ("missed", sum.missed),
        ("on rails", sum.rails[0]),
        ("at dark ports", sum.rails[1]),
        ("corrupt", sum.corrupt),
        ("duplicated", sum.duplicated),
        ("retransmitted", sum.retransmitted),
        ("too long", sum.too_long),
        ("failed", sum.failed),
        ("down", sum.downs),
    ] {
        assert!(count > 10, "{count} {what}");
    }
    assert!(sum.succeeded > 5_000, "{}", sum.succeeded);
}

#[test]
fn fresh_seeds() {
    let first = fastrand::u64(..) >> 16;
    println!("seeds from {first} on");
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(6) && runs < 150 {
        play(first + runs);
        runs += 1;
    }
    println!("{runs} runs");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 11, 5706] {
        assert_eq!(play(seed), play(seed));
        assert_ne!(play(seed).trace, play(seed + 1).trace);
    }
}
