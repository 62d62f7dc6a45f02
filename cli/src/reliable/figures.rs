//! What the transport did during a test, as the two sides tell each other and as reports have it.

use super::classes::{self, ByClass};
use super::peers::Cost;
use crate::cmd::measure::direction;
use crate::report::numbers::Time;
use crate::traffic::session::{Side, TestResult};
use dataplane::reliable::Counters;
use hdrhistogram::Histogram;
use roce_proto::transport::Drop;
use roce_proto::wire::shim::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What the transport of one side did during a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Segments sent, those sent again included.
    segments: u64,
    /// Segments that shared the packet of the one before them.
    #[serde(default)]
    bundled: u64,
    /// Segments sent again.
    retransmitted: u64,
    /// Of them, those that the peer did not have.
    needed: u64,
    /// Of them, those that the peer had.
    spurious: u64,
    /// Verdicts of loss by mechanism: a gap on their path; a time-out.
    losses: BTreeMap<String, u64>,
    /// Expiries of a retransmission time-out.
    timeouts: u64,
    /// From the first transmission of segments that were sent again to their arrival, in round trips as they were then.
    #[serde(default)]
    repairs: Repairs,
    /// The same of those during which neither side was away for as long as a round trip.
    #[serde(default)]
    steady_repairs: Repairs,
    /// Of all of them, those that only a time-out had given up.
    #[serde(default)]
    timeout_repairs: u64,
    /// Forward error correction: parity sent, segments that it protects, and what became of losses.
    #[serde(default)]
    fec: FecFigures,
    /// Packets that carried neither a segment nor parity.
    control: u64,
    /// Packets sent by kind, each segment counted as one.
    sent: BTreeMap<String, u64>,
    /// Packets of the service that were dropped, by reason.
    dropped: BTreeMap<String, u64>,
    /// Rounds that came so late that the deadlines moved.
    held_up: u64,
    /// Time from the first loss of a message to its last acknowledgement, of the messages that lost something.
    recovery_ns: Recovery,
    /// What became of each class's messages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: ByClass,
    /// What went over each port, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortShare>,
    /// What the sessions cost, where there are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Packets of one of several ports during a test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortShare {
    /// DPDK's name of it.
    pub name: String,
    /// Packets that it took to send.
    pub sent: u64,
    /// Packets that came.
    pub received: u64,
}

/// Quantiles of the recovery latency, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Recovery {
    messages: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

/// Quantiles of repairs, in round trips: upper bounds, an eighth of one apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Repairs {
    segments: u64,
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Repairs {
    fn of(now: &[u64], before: &[u64]) -> Repairs {
        let counts: Vec<u64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
        let segments: u64 = counts.iter().sum();
        let quantile = |q: f64| {
            let mut left = (segments as f64 * q).ceil() as u64;
            let place = counts.iter().position(|&count| {
                left = left.saturating_sub(count);
                left == 0
            });
            if segments == 0 { 0.0 } else { (place.unwrap_or(counts.len()) + 1) as f64 / 8.0 }
        };
        Repairs { segments, p50: quantile(0.5), p95: quantile(0.95), p99: quantile(0.99) }
    }
}

/// What forward error correction did at one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FecFigures {
    /// Segments sent of messages that are protected, without those sent again.
    protected: u64,
    /// Parity packets sent.
    parity: u64,
    /// Segments that did not come and were recovered from parity here.
    repaired: u64,
    /// Segments of which this side learned that they were lost before it learned that they were recovered.
    awaited: u64,
    /// Of them, those that were sent again.
    unrepaired: u64,
}

impl Figures {
    /// What one endpoint counted since `before`.
    pub fn of(now: &Counters, before: &Counters, recovery: &Histogram<u64>) -> Figures {
        let sent = |kind| now.sent(kind) - before.sent(kind);
        let all: u64 = Kind::ALL.iter().map(|&kind| sent(kind)).sum();
        let retransmitted = now.retransmitted - before.retransmitted;
        let spurious = now.spurious - before.spurious;
        let some = |list: &[(&str, u64)]| {
            list.iter().filter(|(_, n)| *n > 0).map(|&(name, n)| (name.to_owned(), n)).collect()
        };
        let losses = [
            ("gap", now.gap_losses - before.gap_losses),
            ("time", now.time_losses - before.time_losses),
            ("timeout", now.rto_losses - before.rto_losses),
        ];
        let kinds = Kind::ALL.map(|kind| (kind.name(), sent(kind)));
        let drops = now.dropped.iter().zip(before.dropped).map(|(now, before)| now - before);
        let drops: Vec<(&str, u64)> = Drop::NAMES.into_iter().zip(drops).collect();
        Figures {
            segments: sent(Kind::Data),
            bundled: now.bundled - before.bundled,
            retransmitted,
            // A duplicate is told of after it was sent, and so may belong to what was sent before.
            needed: retransmitted.saturating_sub(spurious),
            spurious,
            losses: losses.map(|(name, n)| (name.to_owned(), n)).into(),
            timeouts: now.rtos - before.rtos,
            repairs: Repairs::of(&now.repairs.0, &before.repairs.0),
            timeout_repairs: now.timeout_repairs - before.timeout_repairs,
            steady_repairs: Repairs::of(&now.steady_repairs.0, &before.steady_repairs.0),
            fec: FecFigures {
                protected: now.protected - before.protected,
                parity: sent(Kind::Parity),
                repaired: now.repaired - before.repaired,
                awaited: now.awaited - before.awaited,
                unrepaired: now.unrepaired - before.unrepaired,
            },
            control: all - sent(Kind::Data) - sent(Kind::Parity),
            sent: some(&kinds),
            dropped: some(&drops),
            held_up: now.held_up - before.held_up,
            recovery_ns: Recovery {
                messages: recovery.len(),
                p50: recovery.value_at_quantile(0.5),
                p99: recovery.value_at_quantile(0.99),
                max: recovery.max(),
            },
            classes: ByClass::new(),
            ports: Vec::new(),
            cost: None,
        }
    }
}

/// Both sides' figures as JSON.
pub fn to_json(result: &TestResult, client: &Figures, server: &Figures) -> Value {
    let control = client.control + server.control;
    let parity = client.fec.parity + server.fec.parity;
    let all = control + parity + client.segments - client.bundled + server.segments - server.bundled;
    // Told by direction, as each side knows the half of it.
    let rest = |figures: &Figures| Figures { classes: ByClass::new(), ..figures.clone() };
    let spec = &result.spec;
    let there = direction(Some(&result.server), result.sent(Side::Client), spec.size);
    let mut classes =
        json!({ "client_to_server": classes::to_json(&client.classes, &server.classes, &there) });
    if spec.bidirectional {
        let back = direction(Some(&result.client), result.sent(Side::Server), spec.size);
        classes["server_to_client"] = classes::to_json(&server.classes, &client.classes, &back);
    }
    json!({
        "client": rest(client),
        "server": rest(server),
        "classes": classes,
        "control_share": if all == 0 { 0.0 } else { control as f64 / all as f64 },
        "messages": result.server.messages + result.client.messages,
    })
}

/// Segments of both sides that were sent again, and of them those that the peer had; and the share of control.
pub fn again(figures: &Value) -> (u64, u64, f64) {
    let sum = |name| sides(figures).filter_map(|side| side[name].as_u64()).sum();
    (sum("retransmitted"), sum("spurious"), figures["control_share"].as_f64().unwrap_or_default())
}

fn sides(figures: &Value) -> impl Iterator<Item = &Value> {
    [&figures["client"], &figures["server"]].into_iter()
}

/// The figures in a line or two.
pub fn text(figures: &Value) -> String {
    let sum = |pointer: &str| -> u64 {
        sides(figures).filter_map(|side| side.pointer(pointer).and_then(Value::as_u64)).sum()
    };
    let most = |pointer: &str| {
        sides(figures).filter_map(|side| side.pointer(pointer).and_then(Value::as_u64)).max().unwrap_or(0)
    };
    let (again, spurious, control) = again(figures);
    let mut text = format!(
        "  segments {} in {} packets, sent again {again} ({spurious} of them needlessly), control {:.1} % of packets",
        sum("/segments"),
        sum("/segments") - sum("/bundled"),
        100.0 * control
    );
    if sum("/fec/parity") > 0 {
        text.push_str(&format!(
            "\n  protected {} segments by {} parity packets; recovered {}, sent again after waiting {}",
            sum("/fec/protected"),
            sum("/fec/parity"),
            sum("/fec/repaired"),
            sum("/fec/unrepaired"),
        ));
    }
    if again > 0 {
        text.push_str(&format!(
            "\n  lost by a gap {}, across paths {}, by a time-out {} ({} expired), probes {}",
            sum("/losses/gap"),
            sum("/losses/time"),
            sum("/losses/timeout"),
            sum("/timeouts"),
            sum("/sent/probe"),
        ));
        // What only the test's own words lost is of no message of it.
        let messages = sum("/recovery_ns/messages");
        if messages > 0 {
            text.push_str(&format!(
                "; recovery p50 {}, p99 {} of {messages} messages",
                // Of the side that lost more, or that lost at all.
                Time::nanos(most("/recovery_ns/p50")),
                Time::nanos(most("/recovery_ns/p99")),
            ));
        }
    }
    for side in ["client", "server"] {
        if let Some(ports) = ports(&figures[side]["ports"]) {
            text.push_str(&format!("\n  ports of the {side}: {ports}"));
        }
    }
    if let Some(table) = classes::table(&figures["classes"]) {
        text.push_str(&format!("\n{table}"));
    }
    for (side, peers) in ["client", "server"].iter().map(|side| (side, &figures["peers"][side])) {
        if let (Some(bytes), Some(setup)) = (peers["bytes_each"].as_f64(), peers["setup_ns"].as_u64()) {
            text.push_str(&format!(
                "\n  {} peers: {bytes:.0} bytes each at the {side}, set up in {}",
                figures["peers"]["count"],
                Time::nanos(setup)
            ));
        }
    }
    text
}

/// Each port's share of what its side sent.
fn ports(figures: &Value) -> Option<String> {
    let ports = figures.as_array()?;
    let all: u64 = ports.iter().filter_map(|port| port["sent"].as_u64()).sum();
    let one = |port: &Value| {
        let share = 100.0 * port["sent"].as_f64().unwrap_or_default() / all.max(1) as f64;
        format!("{} sent {share:.1} %", port["name"].as_str().unwrap_or_default())
    };
    Some(ports.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[u64]) -> Histogram<u64> {
        let mut h = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        values.iter().for_each(|v| h.record(*v).unwrap());
        h
    }

    #[test]
    fn a_test_has_what_was_counted_in_it() {
        let before = Counters { retransmitted: 3, spurious: 1, gap_losses: 3, ..Counters::default() };
        let mut now = Counters { retransmitted: 13, spurious: 3, gap_losses: 10, ..before.clone() };
        now.rto_losses = 4;
        now.time_losses = 6;
        now.rtos = 2;
        now.sent[Kind::Data as usize] = 100;
        now.sent[Kind::Feedback as usize] = 24;
        now.sent[Kind::Probe as usize] = 1;
        now.dropped[Drop::Duplicate.index()] = 5;
        let figures = Figures::of(&now, &before, &histogram(&[1_000, 1_000, 9_000]));
        assert_eq!((figures.segments, figures.control), (100, 25));
        assert_eq!((figures.retransmitted, figures.needed, figures.spurious), (10, 8, 2));
        assert_eq!((figures.losses["gap"], figures.losses["time"]), (7, 6));
        assert_eq!((figures.losses["timeout"], figures.timeouts), (4, 2));
        assert_eq!(
            figures.sent,
            [("data", 100), ("feedback", 24), ("probe", 1)].map(|(k, n)| (k.into(), n)).into()
        );
        assert_eq!(figures.dropped, [("duplicate".to_owned(), 5)].into());
        assert_eq!((figures.recovery_ns.messages, figures.recovery_ns.p50), (3, 1_000));
        let quiet = Figures::of(&before, &before, &histogram(&[]));
        assert_eq!((quiet.recovery_ns, quiet.sent.len()), (Recovery::default(), 0));
    }

    #[test]
    fn repairs_are_told_by_the_upper_ends_of_their_places() {
        let mut before = Counters::default();
        before.repairs.0[3] = 5;
        let mut now = before.clone();
        now.repairs.0[8] += 90;
        now.repairs.0[15] += 8;
        now.repairs.0[127] += 2;
        before.steady_repairs.0[0] = 7;
        now.steady_repairs.0[0] = 9;
        before.timeout_repairs = 3;
        now.timeout_repairs = 5;
        let figures = Figures::of(&now, &before, &histogram(&[]));
        let steady = Repairs { segments: 2, p50: 0.125, p95: 0.125, p99: 0.125 };
        assert_eq!((figures.steady_repairs, figures.timeout_repairs), (steady, 2));
        let told = figures.repairs;
        assert_eq!(told, Repairs { segments: 100, p50: 1.125, p95: 2.0, p99: 16.0 });
        assert_eq!(Figures::of(&now, &now, &histogram(&[])).repairs, Repairs::default());
    }

    #[test]
    fn parity_is_no_control_and_is_told_where_there_is_some() {
        let mut now =
            Counters { protected: 64, repaired: 3, awaited: 2, unrepaired: 1, ..Counters::default() };
        now.sent[Kind::Data as usize] = 64;
        now.sent[Kind::Parity as usize] = 8;
        now.sent[Kind::Feedback as usize] = 8;
        let figures = Figures::of(&now, &Counters::default(), &histogram(&[]));
        assert_eq!(figures.control, 8);
        let json = json!({ "client": figures, "server": Figures::default(), "control_share": 0.1 });
        assert_eq!(
            text(&json).lines().nth(1),
            Some("  protected 64 segments by 8 parity packets; recovered 3, sent again after waiting 1")
        );
    }

    #[test]
    fn the_text_names_losses_only_where_there_were_some() {
        let mut now = Counters::default();
        now.sent[Kind::Data as usize] = 50;
        now.bundled = 20;
        now.sent[Kind::Feedback as usize] = 10;
        let quiet = Figures::of(&now, &Counters::default(), &histogram(&[]));
        let json = |f: &Figures| json!({ "client": f, "server": Figures::default(), "control_share": 0.25 });
        assert_eq!(
            text(&json(&quiet)),
            "  segments 50 in 30 packets, sent again 0 (0 of them needlessly), control 25.0 % of packets"
        );
        now.retransmitted = 4;
        now.gap_losses = 4;
        let lossy = text(&json(&Figures::of(&now, &Counters::default(), &histogram(&[2_000]))));
        let second = lossy.lines().nth(1).unwrap();
        assert!(
            second.starts_with(
                "  lost by a gap 4, across paths 0, by a time-out 0 (0 expired), probes 0; recovery p50 2.00 µs"
            ),
            "{lossy}"
        );
        // No message of the test is behind it.
        let own = text(&json(&Figures::of(&now, &Counters::default(), &histogram(&[]))));
        assert!(own.ends_with("(0 expired), probes 0"), "{own}");
    }
}
