//! The classes of a test's messages: which class the next one is of, and what became of those of each.

use crate::report::Table;
use crate::report::numbers::{Si, Time};
use crate::report::quantiles::Quantiles;
use crate::report::table::Align::{Left, Right};
use crate::tags::{ClassArg, Mix, TagArgs};
use dataplane::reliable::{ClassCounters, Counters};
use hdrhistogram::Histogram;
use roce_proto::wire::shim::Semantics;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Of messages below this size, one in [`SAMPLE`] is timed: recording each would be felt.
const TIMED: u32 = 16 * 1024;
const SAMPLE: u64 = 64;
/// The longest time that is told apart, nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// What one side did for a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ClassFigures {
    /// Messages that it sent and that arrived.
    sent: u64,
    /// Messages that it received, where they say their class.
    received: u64,
    /// What the engine counted.
    protected: u64,
    repaired: u64,
    retransmitted: u64,
    residual: u64,
    parity: u64,
    parity_bytes: u64,
    /// Time from the post of a send until all of it is known to have arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    completion_ns: Option<Quantiles>,
}

impl ClassFigures {
    fn of(counted: &ClassCounters) -> ClassFigures {
        ClassFigures {
            protected: counted.protected,
            repaired: counted.repaired,
            retransmitted: counted.retransmitted,
            residual: counted.residual,
            parity: counted.parity,
            parity_bytes: counted.parity_bytes,
            ..ClassFigures::default()
        }
    }
}

/// By the class's name.
pub(super) type ByClass = BTreeMap<String, ClassFigures>;

/// One side's classes in a test.
pub(super) struct Classes {
    mix: Option<Mix>,
    own: ClassArg,
    semantics: [Semantics; 4],
    sample: u64,
    sent: [u64; 4],
    received: [u64; 4],
    times: [Option<Histogram<u64>>; 4],
}

impl Classes {
    /// Of messages of so many bytes.
    pub fn new(tags: &TagArgs, mix: Option<Mix>, size: u32) -> Classes {
        Classes {
            mix,
            own: tags.class,
            semantics: ClassArg::ALL.map(|class| tags.semantics_of(class)),
            sample: if size < TIMED { SAMPLE } else { 1 },
            sent: [0; 4],
            received: [0; 4],
            times: [const { None }; 4],
        }
    }

    /// The tags of messages: with several classes, the number of each on the wire, so that the receiver knows it.
    pub fn tags(&self) -> Vec<u64> {
        match self.mix {
            None => vec![0],
            Some(mix) => mix.classes().map(|class| class.to_wire().into()).collect(),
        }
    }

    /// The next message: its tag, and what is said of it.
    #[inline]
    pub fn next(&self, rng: &mut fastrand::Rng) -> (u64, Semantics) {
        let (class, tag) = match self.mix {
            None => (self.own, 0),
            Some(mix) => {
                let class = mix.at(rng.u32(0..mix.total().max(1)));
                (class, class.to_wire().into())
            }
        };
        (tag, self.semantics.get(usize::from(class.to_wire())).copied().unwrap_or_default())
    }

    #[inline]
    fn slot(&self, tag: u64) -> usize {
        if self.mix.is_some() { tag as usize % 4 } else { self.own.to_wire().into() }
    }

    /// A send has ended.
    #[inline]
    pub fn ended(&mut self, tag: u64, took: Duration) {
        let slot = self.slot(tag);
        let Some(sent) = self.sent.get_mut(slot) else { return };
        *sent += 1;
        if sent.is_multiple_of(self.sample) {
            self.time(slot, took);
        }
    }

    fn time(&mut self, slot: usize, took: Duration) {
        let Some(place) = self.times.get_mut(slot) else { return };
        if place.is_none() {
            *place = Histogram::new_with_bounds(1, LONGEST, 3).ok();
        }
        if let Some(times) = place {
            times.saturating_record(took.as_nanos() as u64);
        }
    }

    /// A message has come.
    #[inline]
    pub fn came(&mut self, tag: u64) {
        if self.mix.is_some()
            && let Some(received) = self.received.get_mut(tag as usize % 4)
        {
            *received += 1;
        }
    }

    /// What became of each class, as far as this side knows.
    pub fn figures(&self, now: &Counters, before: &Counters) -> ByClass {
        let mut all = ByClass::new();
        for (i, class) in ClassArg::ALL.into_iter().enumerate() {
            let figures = ClassFigures {
                sent: self.sent[i],
                received: self.received[i],
                completion_ns: self.times[i].as_ref().and_then(Quantiles::of),
                ..ClassFigures::of(&now.classes[i].since(&before.classes[i]))
            };
            // The test's own words have no class, and are no messages of it.
            if figures.sent + figures.received > 0 || (class != ClassArg::None && figures.repaired > 0) {
                all.insert(class.name().to_owned(), figures);
            }
        }
        all
    }
}

/// A direction's classes as JSON: what its sender knows, and what its receiver does. `direction` is that of all its messages.
pub(super) fn to_json(sender: &ByClass, receiver: &ByClass, direction: &Value) -> Value {
    let mut all = Vec::new();
    for class in ClassArg::ALL.into_iter().map(ClassArg::name) {
        let (from, to) = (sender.get(class), receiver.get(class));
        if from.is_none_or(|f| f.sent == 0) && to.is_none_or(|t| t.received + t.repaired == 0) {
            continue;
        }
        let received = match to {
            Some(to) if to.received > 0 => to.received,
            // Messages that do not say their class are all of one.
            _ => direction["received"].as_u64().unwrap_or(0),
        };
        let share = received as f64 / direction["received"].as_f64().unwrap_or(0.0).max(1.0);
        let goodput = direction["goodput_bits_per_second"].as_f64();
        let known = |value: fn(&ClassFigures) -> u64| from.map(value);
        all.push(json!({
            "class": class,
            "sent": known(|f| f.sent),
            "received": received,
            "goodput_bits_per_second": goodput.map(|all| all * share),
            "completion_ns": from.and_then(|f| f.completion_ns.as_ref()),
            "protected": known(|f| f.protected),
            "repaired": to.map_or(0, |to| to.repaired),
            "retransmitted": known(|f| f.retransmitted),
            "residual": known(|f| f.residual),
            "parity": known(|f| f.parity),
            "parity_bytes": known(|f| f.parity_bytes),
        }));
    }
    all.into()
}

/// Whether there is anything to tell of classes: some message has one.
fn told(classes: &Value) -> bool {
    classes.as_array().is_some_and(|all| all.iter().any(|c| c["class"] != ClassArg::None.name()))
}

/// The classes of both directions as a table; nothing where no message has one.
pub(super) fn table(classes: &Value) -> Option<Table> {
    let directions = ["client_to_server", "server_to_client"];
    if !directions.iter().any(|direction| told(&classes[direction])) {
        return None;
    }
    let columns = [
        ("  class", Left),
        ("received", Right),
        ("Gbit/s", Right),
        ("p50", Right),
        ("p99", Right),
        ("protected", Right),
        ("repaired", Right),
        ("sent again", Right),
        ("residual", Right),
        ("parity bytes", Right),
        ("direction", Left),
    ];
    let mut table = Table::new(columns);
    for direction in directions {
        for class in classes[direction].as_array().into_iter().flatten() {
            let number = |value: &Value| value.as_u64().map_or("-".to_owned(), |n| n.to_string());
            let time = |value: &Value| value.as_u64().map_or("-".to_owned(), |n| Time::nanos(n).to_string());
            let bytes = class["parity_bytes"].as_u64().map_or("-".to_owned(), |n| Si(n as f64).to_string());
            table.row([
                format!("  {}", class["class"].as_str().unwrap_or_default()),
                number(&class["received"]),
                format!("{:.3}", class["goodput_bits_per_second"].as_f64().unwrap_or(0.0) / 1e9),
                time(&class["completion_ns"]["p50"]),
                time(&class["completion_ns"]["p99"]),
                number(&class["protected"]),
                number(&class["repaired"]),
                number(&class["retransmitted"]),
                number(&class["residual"]),
                bytes,
                direction.replace("client_to_server", "to server").replace("server_to_client", "to client"),
            ]);
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags;

    fn counters(class: usize, counted: ClassCounters) -> Counters {
        let mut all = Counters::default();
        all.classes[class] = counted;
        all
    }

    #[test]
    fn a_mix_is_drawn_by_its_weights_and_tells_the_class_by_the_tag() {
        let mix = tags::mix("dp:3,control:1").unwrap();
        let tags = TagArgs { stage: 2, ..TagArgs::default() };
        let classes = Classes::new(&tags, Some(mix), 1 << 20);
        assert_eq!(classes.tags(), [1, 3]);
        let mut rng = fastrand::Rng::with_seed(7);
        let mut counts = [0; 4];
        for _ in 0..4_000 {
            let (tag, semantics) = classes.next(&mut rng);
            assert_eq!((u64::from(semantics.class), semantics.stage), (tag, 2));
            counts[tag as usize] += 1;
        }
        // Six standard deviations of 4,000 draws at a quarter.
        assert!(counts[0] + counts[2] == 0 && (1_000i32 - counts[3]).abs() < 165, "{counts:?}");
        let one = Classes::new(&TagArgs { class: ClassArg::Pp, ..tags }, None, 1);
        assert_eq!((one.tags(), one.next(&mut rng).0, one.next(&mut rng).1.class), (vec![0], 0, 2));
    }

    #[test]
    fn each_class_has_its_own_figures_from_the_side_that_knows_them() {
        let mix = tags::mix("dp,pp").unwrap();
        let new = || Classes::new(&TagArgs::default(), Some(mix), 1 << 20);
        let (mut sender, mut receiver) = (new(), new());
        for ms in 1..=4 {
            sender.ended(2, Duration::from_millis(ms));
            receiver.came(2);
        }
        sender.ended(1, Duration::from_millis(50));
        receiver.came(1);
        let counted = ClassCounters {
            protected: 9,
            retransmitted: 3,
            residual: 2,
            parity: 5,
            parity_bytes: 50,
            ..ClassCounters::default()
        };
        let sent = sender.figures(&counters(2, counted), &Counters::default());
        let repaired = ClassCounters { repaired: 7, ..ClassCounters::default() };
        let came = receiver.figures(&counters(2, repaired), &Counters::default());
        let json = to_json(&sent, &came, &json!({"received": 5, "goodput_bits_per_second": 10e9}));
        let [dp, pp] = json.as_array().unwrap().as_slice() else { panic!("{json:#}") };
        assert_eq!(
            (&dp["class"], &dp["sent"], &dp["received"], &dp["repaired"]),
            (&json!("dp"), &json!(1), &json!(1), &json!(0))
        );
        assert_eq!(pp["goodput_bits_per_second"], 8e9);
        let counts =
            ["received", "protected", "repaired", "retransmitted", "residual", "parity", "parity_bytes"];
        assert_eq!(counts.map(|name| pp[name].as_u64().unwrap()), [4, 9, 7, 3, 2, 5, 50]);
        let p50 = pp["completion_ns"]["p50"].as_f64().unwrap();
        assert!((p50 - 2e6).abs() < 2e4, "{p50}");
        let text = table(&json!({ "client_to_server": json })).unwrap().to_string();
        let words: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..3], ["pp", "4", "8.000"], "{text}");
        assert_eq!(words[7..], ["9", "7", "3", "2", "50", "to", "server"], "{text}");
    }

    #[test]
    fn untagged_messages_alone_have_no_table_and_small_ones_are_sampled() {
        let mut classes = Classes::new(&TagArgs::default(), None, 64);
        (0..640).for_each(|_| classes.ended(0, Duration::from_micros(3)));
        let figures = classes.figures(&Counters::default(), &Counters::default());
        let none = &figures["none"];
        assert_eq!((none.sent, none.completion_ns.as_ref().unwrap().count), (640, 10));
        let json =
            to_json(&figures, &ByClass::new(), &json!({"received": 640, "goodput_bits_per_second": 1.0}));
        assert_eq!(json[0]["received"], 640);
        assert!(table(&json!({ "client_to_server": json })).is_none());
    }
}
