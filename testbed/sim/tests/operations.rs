//! The engine under sequences of calls in any order, sensible or not: on sessions that are over, with sizes that cannot be, with packets
//! from nowhere, old ones and broken ones. Nothing panics, every bound holds, every operation ends once, and in the end nothing is left.
//! A sequence that fails is made shorter before it is printed.

#[path = "operations/rig.rs"]
mod rig;

use fastrand::Rng;
use rig::{Op, draw, run};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How many operations ended well; none if something is wrong.
fn holds(seed: u64, ops: &[Op]) -> Option<usize> {
    catch_unwind(AssertUnwindSafe(|| run(seed, ops))).ok()
}

/// The operations of a failing sequence that it takes to fail.
fn shortened(mut ops: Vec<Op>, fails: impl Fn(&[Op]) -> bool) -> Vec<Op> {
    let mut part = ops.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + part).min(ops.len()));
            if fails(&fewer) { ops = fewer } else { at += part }
        }
        part /= 2;
    }
    ops
}

fn play(seed: u64, length: usize) -> usize {
    let mut rng = Rng::with_seed(seed);
    // Every other sequence is of honest hosts, whose bytes can be compared.
    let honest = seed.is_multiple_of(2);
    let ops = std::iter::repeat_with(|| draw(&mut |n| rng.u64(..n)))
        .filter(|op| !honest || !matches!(op, Op::Tamper(..)));
    let ops: Vec<Op> = ops.take(length).collect();
    holds(seed, &ops).unwrap_or_else(|| {
        let short = shortened(ops, |ops| holds(seed, ops).is_none());
        panic!("seed {seed} fails with these {} operations: {short:?}", short.len());
    })
}

#[test]
fn any_sequence_of_calls_is_borne() {
    let succeeded: usize = (0..300).map(|seed| play(seed, 600)).sum();
    // They would be of little use if no message ever came through.
    assert!(succeeded > 1_000, "{succeeded}");
    let fresh = fastrand::u64(..);
    println!("fresh seeds from {fresh} on");
    for seed in 0..100 {
        play(fresh.wrapping_add(seed), 600);
    }
}

#[test]
fn a_failing_sequence_is_made_short() {
    let mut rng = Rng::with_seed(1);
    let ops: Vec<Op> = (0..500).map(|_| draw(&mut |n| rng.u64(..n))).collect();
    // As if two closes were too many.
    let fails = |ops: &[Op]| ops.iter().filter(|op| matches!(op, Op::Close(..))).count() >= 2;
    assert!(fails(&ops));
    assert!(matches!(shortened(ops, fails)[..], [Op::Close(..), Op::Close(..)]));
}
