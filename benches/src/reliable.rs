//! The figures of the reliable service.

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, Sample, hold};
use crate::peers::reliable::{SEGMENT, Transfer, Wan, bytes_each, goodput, rate};
use crate::peers::{Setup, bare};
use crate::stats::Better;
use serde_json::Value;
use std::time::Duration;

/// Messages of a megabyte reach that share of raw UD's goodput with packets of the same payload.
const LARGE: f64 = 0.80;
/// Messages of 64 bytes reach that share of raw UD's rate, with one peer and with a thousand.
const SMALL: f64 = 0.50;
/// Messages of a thousand and more peers reach that share of the rate to one.
const PEERS: f64 = 0.95;
/// Peers of the figure of scale.
const MANY: u32 = 10_000;
/// Resident bytes of an idle peer at the most.
const IDLE: f64 = 1024.0;
/// Resident bytes of an RC queue pair, computed and no less than this: rdma-core's mlx5 provider gives each a buffer of whole pages for its work queues and
/// a line of the cache for its doorbell record. What the kernel and the device keep of it comes on top.
const RC_QP: f64 = 4096.0 + 64.0;
/// The bottleneck of the figures with losses: what three processes on two processors carry with room to spare.
const LOSSY_RATE: u64 = 300_000_000;
/// The window over it: four bandwidth-delay products, so that a loss that is late to be mended shows.
const LOSSY_WINDOW: usize = 150_000;
/// Messages over it: a rate counts from the end of the first, which takes turns with the next.
const LOSSY_MESSAGE: usize = 128 << 10;
/// Its round trip.
const LOSSY_RTT: Duration = Duration::from_millis(1);
/// Losses, and what is wanted of the goodput without.
const LOSSES: [(&str, f64, f64); 3] =
    [("loss 0.1 %", 0.001, 0.99), ("loss 1 %", 0.01, 0.95), ("loss 5 %", 0.05, 0.85)];
/// The bottleneck of the figures of long round trips.
const LONG_RATE: u64 = 1_000_000_000;
/// Round trips, in the order of contestants after the one without delay.
const ROUND_TRIPS: [(&str, u64); 5] =
    [("0.25 ms", 250), ("1 ms", 1_000), ("10 ms", 10_000), ("100 ms", 100_000), ("300 ms", 300_000)];
/// A window of 1.25 bandwidth-delay products reaches that share of the goodput without delay.
const LONG: f64 = 0.90;
/// Messages over long round trips.
const MESSAGE: usize = 1 << 20;

/// One contest: its event, and who takes part.
struct Contest<'a> {
    event: Event,
    contestants: Vec<Contestant<'a>>,
}

fn event(figure: &'static str, title: String, size: usize, unit: &'static str, better: Better) -> Event {
    Event { figure, title, size, unit, better }
}

type Measure = fn(&Setup, &Transfer, &Stop) -> Result<Sample, Failure>;

fn contestant<'a>(
    name: &'static str,
    wanted: Option<f64>,
    setup: &'a Setup,
    stop: &'a Stop,
    transfer: Transfer,
    measure: Measure,
) -> Contestant<'a> {
    Contestant { name, wanted, run: Box::new(move || measure(setup, &transfer, stop)) }
}

/// Goodput and rate beside raw UD's.
fn beside_raw<'a>(setup: &'a Setup, stop: &'a Stop) -> [Contest<'a>; 2] {
    let raw = |size| Transfer { raw: true, ..Transfer::new(setup, size) };
    let large = Contest {
        event: event("reliable", "reliable goodput, 1 MiB messages".into(), 0, "bit/s", Better::Higher),
        contestants: vec![
            contestant("raw UD, a segment each", None, setup, stop, raw(SEGMENT), goodput),
            contestant("reliable", Some(LARGE), setup, stop, Transfer::new(setup, 1 << 20), goodput),
        ],
    };
    let one = Transfer::new(setup, 64);
    let thousand = Transfer { peers: 1_000, rx_depth: 8, ..one.clone() };
    // What a message and its feedback come to, if both are raw UD.
    let answered = Transfer { both_ways: true, ..raw(64) };
    let small = Contest {
        event: event("reliable", "reliable rate, 64 B messages".into(), 64, "msg/s", Better::Higher),
        contestants: vec![
            contestant("raw UD", None, setup, stop, raw(64), rate),
            contestant("one peer", Some(SMALL), setup, stop, one, rate),
            contestant("1,000 peers", Some(SMALL), setup, stop, thousand, rate),
            contestant("raw UD, each answered", None, setup, stop, answered, rate),
            contestant("one peer, a packet each", None, setup, stop, apart(Transfer::new(setup, 64)), rate),
        ],
    };
    [large, small]
}

/// Each message in a packet of its own, as messages to different peers are.
fn apart(transfer: Transfer) -> Transfer {
    Transfer { both: vec!["--no-bundle".into()], ..transfer }
}

/// Random peers of very many beside one, with receives over the same memory.
fn scale<'a>(setup: &'a Setup, stop: &'a Stop, size: usize) -> Contest<'a> {
    let each = 2;
    let receives = MANY as usize * each;
    let one = Transfer { rx_depth: receives, memory: receives * size, ..Transfer::new(setup, size) };
    let many = Transfer { peers: MANY, rx_depth: each, ..one.clone() };
    let packets = apart(one.clone());
    // Both packets of a message, its feedback as long as it: of small ones only, a bound.
    let answered =
        (size == 64).then(|| Transfer { both_ways: true, raw: true, ..Transfer::new(setup, size) });
    let bound =
        answered.map(|answered| contestant("raw UD, each answered", None, setup, stop, answered, rate));
    Contest {
        event: event(
            "peers",
            format!("reliable rate to random peers, {size} B messages"),
            size,
            "msg/s",
            Better::Higher,
        ),
        contestants: vec![
            contestant("one peer", None, setup, stop, one, rate),
            contestant("10,000 peers", Some(PEERS), setup, stop, many, rate),
            contestant("one peer, a packet each", None, setup, stop, packets, rate),
        ]
        .into_iter()
        .chain(bound)
        .collect(),
    }
}

/// A number that is not measured.
fn given<'a>(name: &'static str, value: f64) -> Contestant<'a> {
    Contestant { name, wanted: None, run: Box::new(move || Ok(Sample { value, detail: Value::Null })) }
}

/// What a peer costs at rest.
fn idle<'a>(setup: &'a Setup, stop: &'a Stop) -> Contest<'a> {
    Contest {
        event: event("peers", "resident bytes of an idle peer".into(), 0, "B", Better::Lower),
        contestants: vec![
            given("1 KiB", IDLE),
            Contestant {
                name: "a session",
                wanted: Some(1.0),
                run: Box::new(|| bytes_each(setup, MANY, "client", stop)),
            },
            Contestant {
                name: "a session and a queue pair",
                wanted: None,
                run: Box::new(|| bytes_each(setup, MANY, "server", stop)),
            },
            given("an RC queue pair, computed", RC_QP),
        ],
    }
}

/// Losses of a network that has room for what is sent.
fn losses<'a>(setup: &'a Setup, stop: &'a Stop) -> Contest<'a> {
    let with = |loss| Transfer {
        wan: Some(Wan::new(LOSSY_RATE, LOSSY_RTT, loss)),
        window: LOSSY_WINDOW,
        time: Duration::from_secs_f64(2.0 * setup.seconds.max(0.5)),
        ..Transfer::new(setup, LOSSY_MESSAGE)
    };
    let mut contestants = vec![contestant("no loss", None, setup, stop, with(0.0), goodput)];
    contestants.extend(
        LOSSES.map(|(name, loss, wanted)| contestant(name, Some(wanted), setup, stop, with(loss), goodput)),
    );
    let title = format!("reliable goodput over {} Mbit/s and 1 ms, 128 KiB messages", LOSSY_RATE / 1_000_000);
    Contest { event: event("loss", title, 0, "bit/s", Better::Higher), contestants }
}

/// The network of these: short ones wait for nobody else's turn.
fn way(round_trip: Duration) -> Wan {
    Wan { apart: true, ..Wan::new(LONG_RATE, round_trip, 0.0) }
}

/// Long round trips, each beside the same transfer without delay.
fn long<'a>(setup: &'a Setup, stop: &'a Stop) -> [Contest<'a>; 5] {
    ROUND_TRIPS.map(|(name, micros)| {
        let round_trip = Duration::from_micros(micros);
        let product = LONG_RATE as f64 / 8.0 * round_trip.as_secs_f64();
        let window = (1.25 * product) as usize;
        let over = |round_trip| Transfer {
            wan: Some(way(round_trip)),
            window,
            memory: (2 * window).max(16 << 20),
            time: Duration::from_secs_f64(2.0 * setup.seconds.max(0.5)) + 10 * Duration::from_micros(micros),
            ..Transfer::new(setup, MESSAGE)
        };
        Contest {
            event: event(
                "long",
                format!("reliable goodput over 1 Gbit/s and {name}, window {window} B, 1 MiB messages"),
                0,
                "bit/s",
                Better::Higher,
            ),
            contestants: vec![
                contestant("no delay", None, setup, stop, over(Duration::ZERO), goodput),
                contestant(name, Some(LONG), setup, stop, over(round_trip), goodput),
                Contestant {
                    name: "bare loop of that window",
                    wanted: None,
                    run: Box::new(move || bare::window(setup, &way(round_trip), window, stop)),
                },
            ],
        }
    })
}

/// Which of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Goodput and rate beside raw UD.
    Raw,
    /// Very many peers.
    Peers,
    /// Losses.
    Loss,
    /// Long round trips.
    Long,
}

impl Part {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Part; 4] = [Part::Raw, Part::Peers, Part::Loss, Part::Long];
}

/// Measures one part; `each` gets every outcome as it comes.
pub fn measure(
    part: Part,
    setup: &Setup,
    rounds: usize,
    stop: &Stop,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), Failure> {
    let contests: Vec<Contest<'_>> = match part {
        Part::Raw => beside_raw(setup, stop).into(),
        Part::Peers => vec![scale(setup, stop, 64), scale(setup, stop, 4096), idle(setup, stop)],
        Part::Loss => vec![losses(setup, stop)],
        Part::Long => long(setup, stop).into(),
    };
    for Contest { event, contestants } in contests {
        each(hold(event, contestants, rounds, stop, &mut |text| eprintln!("{text}"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::test_setup;

    #[test]
    fn windows_are_a_quarter_more_than_the_product() {
        let setup = test_setup();
        let stop = Stop::never();
        let titles: Vec<String> = long(&setup, &stop).into_iter().map(|c| c.event.title).collect();
        // 1 Gbit/s times 300 ms are 37.5 MB.
        assert!(titles[4].contains("300 ms, window 46875000 B"), "{titles:?}");
        assert!(titles[0].contains("0.25 ms, window 39062 B"), "{titles:?}");
    }

    #[test]
    fn figures_have_a_baseline_and_something_wanted() {
        let setup = test_setup();
        let stop = Stop::never();
        let all = beside_raw(&setup, &stop).into_iter().chain(long(&setup, &stop));
        for contest in all.chain([scale(&setup, &stop, 64), idle(&setup, &stop), losses(&setup, &stop)]) {
            assert_eq!(contest.contestants[0].wanted, None, "{}", contest.event.title);
            assert!(contest.contestants[1].wanted.is_some(), "{}", contest.event.title);
        }
    }
}
