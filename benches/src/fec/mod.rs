//! The erasure code beside others: what a group takes to encode, and to decode after so many losses.

mod coders;

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, Sample, hold};
use crate::stats::Better;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Data and parity shards of the groups.
const CODES: [(usize, usize); 4] = [(8, 2), (16, 4), (32, 4), (32, 8)];
/// Bytes of a shard.
const SIZES: [usize; 2] = [1024, 4096];
/// Lost data shards of a group, where its parity reaches for them.
const LOSSES: [usize; 4] = [1, 2, 4, 8];
/// The default kernel encodes at least so fast, as a share of ISA-L's rate.
const ENCODE: f64 = 0.9;
/// Decoding `l` losses takes the work of `l` parity shards out of `r`; so much of that rate is wanted.
const DECODE: f64 = 0.9;
/// How long one run lasts, about.
const RUN: Duration = Duration::from_millis(4);

/// Measures all codes and sizes, and hands each outcome to `done`.
pub fn measure(rounds: usize, stop: &Stop, done: &mut dyn FnMut(Outcome)) -> Result<(), Failure> {
    if !coders::with_isal() {
        eprintln!(
            "built without ISA-L, so it is not compared with (--features isal, Debian's package: libisal-dev)"
        );
    }
    for (data, parity) in CODES {
        for size in SIZES {
            done(encode(data, parity, size, rounds, stop)?);
            for lost in LOSSES.into_iter().filter(|lost| *lost <= parity) {
                done(decode(data, parity, size, lost, rounds, stop)?);
            }
        }
    }
    Ok(())
}

fn event(what: &str, data: usize, parity: usize, size: usize) -> Event {
    Event {
        figure: "fec",
        title: format!("{what} ({data},{parity}), shards of {size} B"),
        size: data * size,
        unit: "group/s",
        better: Better::Higher,
    }
}

fn encode(data: usize, parity: usize, size: usize, rounds: usize, stop: &Stop) -> Result<Outcome, Failure> {
    let contestants = coders::all(data, parity, size)
        .into_iter()
        .map(|mut coder| {
            let wanted = (coder.is_default() && coders::with_isal()).then_some(ENCODE);
            contestant(coder.name(), wanted, move |times| coder.encode(times))
        })
        .collect();
    hold(event("encode", data, parity, size), contestants, rounds, stop, &mut |_| {})
}

fn decode(
    data: usize,
    parity: usize,
    size: usize,
    lost: usize,
    rounds: usize,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let mut own = coders::default(data, parity, size);
    let mut contestants = vec![contestant("encode, default kernel", None, move |times| own.encode(times))];
    for mut coder in coders::all(data, parity, size) {
        let wanted = coder.is_default().then_some(DECODE * parity as f64 / lost as f64);
        coder.lose(lost).map_err(Failure::Said)?;
        contestants.push(contestant(coder.name(), wanted, move |times| coder.decode(times)));
    }
    if lost == 1 {
        contestants.push(contestant("bound: XOR of k shards", None, coders::bound(data, size)));
    }
    let what = format!("decode {lost} lost of");
    hold(event(&what, data, parity, size), contestants, rounds, stop, &mut |_| {})
}

/// Seconds that our default kernel takes to encode a group.
pub fn encoding_time(data: usize, parity: usize, size: usize) -> f64 {
    let mut coder = coders::default(data, parity, size);
    let (start, mut groups) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        coder.encode(1);
        groups += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(groups)
}

fn contestant<'a>(name: &'static str, wanted: Option<f64>, mut work: impl FnMut(u32) + 'a) -> Contestant<'a> {
    // Enough for a run, found once.
    let mut batch = 0u32;
    let run = move || {
        if batch == 0 {
            work(1);
            let start = Instant::now();
            while start.elapsed() < RUN {
                work(1);
                batch += 1;
            }
        }
        let start = Instant::now();
        work(batch);
        Ok(Sample { value: f64::from(batch) / start.elapsed().as_secs_f64(), detail: Value::Null })
    };
    Contestant { name, wanted, run: Box::new(run) }
}
