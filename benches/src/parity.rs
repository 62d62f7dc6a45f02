//! What parity costs over shared memory, beside what its parts cost when each is measured alone.

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Entry, Event, Outcome, hold};
use crate::fec::encoding_time;
use crate::peers::Setup;
use crate::peers::reliable::{Transfer, goodput};
use crate::stats::Better;
use serde_json::json;

/// The codes, and the options that protect every message by them.
const CODES: [((usize, usize), &str); 2] = [((32, 4), "--fec=32,4"), ((16, 4), "--fec=16,4")];
/// Bytes of a segment over an IB MTU of 4096, and so of a shard.
const SEGMENT: usize = 4008;
/// A message: whole groups of each code, so that none has the parity of 32 segments for a rest.
const MESSAGE: usize = 256 * SEGMENT;
/// What protected messages reach of what the costs come to.
const WANTED: f64 = 0.9;

/// Measures; `each` gets the goodputs, and how each code's stands to what is predicted.
pub fn measure(
    setup: &Setup,
    rounds: usize,
    stop: &Stop,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), Failure> {
    let with = |how: &str| Transfer { both: vec![how.to_owned()], ..Transfer::new(setup, MESSAGE) };
    let bare = with("--fec=off");
    let nothing = || {
        let mut sample = goodput(setup, &bare, stop)?;
        // In the same round, and alone.
        let encoding = CODES.map(|((k, r), _)| encoding_time(k, r, SEGMENT));
        sample.detail["seconds_to_encode_a_group"] = json!(encoding);
        Ok(sample)
    };
    let mut contestants = vec![Contestant { name: "nothing", wanted: None, run: Box::new(nothing) }];
    for (_, how) in CODES {
        let transfer = with(how);
        let run = Box::new(move || goodput(setup, &transfer, stop));
        contestants.push(Contestant { name: how, wanted: None, run });
    }
    let event = Event {
        figure: "fec-memif",
        title: format!("protected goodput over shared memory, messages of {MESSAGE} B"),
        size: MESSAGE,
        unit: "bit/s",
        better: Better::Higher,
    };
    let outcome = hold(event, contestants, rounds, stop, &mut |text| eprintln!("{text}"))?;
    let conclusions = (0..CODES.len()).map(|code| conclusion(&outcome, code)).collect::<Vec<_>>();
    each(outcome);
    conclusions.into_iter().for_each(each);
    Ok(())
}

/// How a code's goodput stands to what its parts come to: for each segment the time that one takes without parity, for itself and its
/// share of the parity shards, and its share of the time to encode a group.
fn conclusion(outcome: &Outcome, code: usize) -> Outcome {
    let ((k, r), name) = CODES[code];
    let [nothing, protected] = [&outcome.entries[0], &outcome.entries[1 + code]];
    let predicted = nothing.runs.iter().zip(&nothing.details).map(|(goodput, detail)| {
        let encoding = detail["seconds_to_encode_a_group"][code].as_f64()?;
        let bits = 8.0 * SEGMENT as f64;
        let segment = bits / (*goodput)?;
        Some(bits / (segment * (k + r) as f64 / k as f64 + encoding / k as f64))
    });
    let entries = vec![
        Entry::of("predicted", None, predicted.collect()),
        Entry::of("measured", Some(WANTED), protected.runs.clone()),
    ];
    let title = format!("{name} beside what its parts cost, {}", outcome.event.title);
    Outcome::of(Event { title, ..outcome.event.clone() }, entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_protected_segment_add_up() {
        // 4 µs for a segment; a group of 32 takes 16 µs to encode: 4.5 µs and 0.5 µs. One of 16 takes 32 µs: 5 µs and 2 µs.
        let bits = 8.0 * SEGMENT as f64;
        let entry = |name, micros: f64| Entry {
            details: vec![json!({"seconds_to_encode_a_group": [16e-6, 32e-6]})],
            ..Entry::of(name, None, vec![Some(bits / (micros * 1e-6))])
        };
        let event =
            Event { figure: "fec-memif", title: "t".into(), size: 1, unit: "bit/s", better: Better::Higher };
        let entries = vec![entry("nothing", 4.0), entry("--fec=32,4", 5.2), entry("--fec=16,4", 8.0)];
        let outcome = Outcome::of(event, entries);
        for (code, ratio, passed) in [(0, 5.0 / 5.2, true), (1, 7.0 / 8.0, false)] {
            let concluded = conclusion(&outcome, code);
            assert!((concluded.entries[1].comparison.unwrap().ratio - ratio).abs() < 1e-9, "{concluded:?}");
            assert_eq!(concluded.passed(), passed);
        }
    }
}
