//! The demo's results: one row for each size.

use crate::cmd::lat;
use crate::cmd::measure::{direction, goodput_cell, rate_cell};
use crate::reliable;
use crate::rendezvous::message::RxReport;
use crate::report::Table;
use crate::report::numbers::{Bytes, Si, Time};
use crate::report::table::Align::Right;
use crate::traffic::session::{Side, TestResult};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Both tests of one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// Throughput.
    pub bw: TestResult,
    /// Latency, unless the run was interrupted before.
    pub lat: Option<TestResult>,
}

impl Row {
    fn tests(&self) -> impl Iterator<Item = &TestResult> {
        std::iter::once(&self.bw).chain(&self.lat)
    }

    /// Messages that did not arrive, and of the latency test those that did not come back in time.
    fn lost(&self) -> u64 {
        self.bw.client.sent.saturating_sub(self.bw.server.messages)
            + self.lat.as_ref().map_or(0, |lat| lat.unanswered)
    }

    /// Packets dropped by reason, on both sides.
    fn drops(&self) -> BTreeMap<&str, u64> {
        let mut drops = BTreeMap::new();
        for (reason, n) in self.tests().flat_map(|t| t.server.drops.iter().chain(&t.client.drops)) {
            *drops.entry(reason.as_str()).or_default() += n;
        }
        drops
    }

    /// Packets with a wrong ICRC.
    pub fn icrc_errors(&self) -> u64 {
        self.drops().get("icrc").copied().unwrap_or(0)
    }

    /// Messages to the server that neither arrived nor were counted as dropped.
    pub fn unexplained(&self) -> u64 {
        let dropped = |rx: &RxReport| rx.drops.iter().map(|(_, n)| n).sum::<u64>();
        self.tests()
            .map(|t| t.client.sent.saturating_sub(t.server.messages).saturating_sub(dropped(&t.server)))
            .sum()
    }

    /// Segments that were sent again, and those of them needlessly; nothing over raw UD.
    fn again(&self) -> Option<(u64, u64)> {
        let figures: Vec<_> = self.tests().filter_map(|t| t.reliable.as_ref()).map(reliable::again).collect();
        let sum = |of: fn(&(u64, u64, f64)) -> u64| figures.iter().map(of).sum();
        (!figures.is_empty()).then(|| (sum(|f| f.0), sum(|f| f.1)))
    }

    /// The reasons, if anything was dropped.
    pub fn drops_text(&self) -> Option<String> {
        let drops = self.drops();
        let list: Vec<String> = drops.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        let size = Bytes(self.bw.spec.size.into());
        (!list.is_empty()).then(|| format!("dropped of {size}: {}", list.join(", ")))
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let bw = &self.bw;
        json!({
            "size": bw.spec.size,
            "throughput": direction(bw.known(Side::Server), bw.sent(Side::Client), bw.spec.size),
            "latency": self.lat.as_ref().and_then(|l| Some(lat::to_json(l.rtt.as_ref()?, l.unanswered))),
            "drops": self.drops(),
            "reliable": {
                "throughput": bw.reliable,
                "latency": self.lat.as_ref().and_then(|l| l.reliable.as_ref()),
            },
            "icrc_errors": self.icrc_errors(),
            "unexplained": self.unexplained(),
            "interrupted": self.tests().any(|t| t.interrupted),
        })
    }
}

/// All rows.
pub fn table(rows: &[Row]) -> Table {
    let mut headings =
        vec!["size", "msg/s", "Gbit/s", "p50", "p99", "p99.9", "received", "lost", "drops", "ICRC errors"];
    let reliable = rows.iter().any(|row| row.again().is_some());
    if reliable {
        headings.extend(["sent again", "needlessly", "control"]);
    }
    let mut table = Table::new(headings.into_iter().map(|name| (name, Right)));
    for row in rows {
        let rtt = row.lat.as_ref().and_then(|lat| lat.rtt.as_ref()).filter(|rtt| !rtt.is_empty());
        let time = |p: f64| {
            rtt.map_or("-".to_owned(), |rtt| Time::nanos(rtt.value_at_percentile(p) / 2).to_string())
        };
        let bw = &row.bw;
        let mut cells = vec![
            Bytes(bw.spec.size.into()).to_string(),
            rate_cell(&bw.server),
            goodput_cell(&bw.server, bw.spec.size),
            time(50.0),
            time(99.0),
            time(99.9),
            Si(bw.server.messages as f64).to_string(),
            row.lost().to_string(),
            row.drops().values().sum::<u64>().to_string(),
            row.icrc_errors().to_string(),
        ];
        if reliable {
            let (again, needlessly) = row.again().unwrap_or_default();
            let control = bw.reliable.as_ref().map_or(0.0, |figures| reliable::again(figures).2);
            cells.extend([again.to_string(), needlessly.to_string(), format!("{:.1} %", 100.0 * control)]);
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::message::{TestKind, TestSpec};
    use hdrhistogram::Histogram;

    fn result(kind: TestKind, sent: u64, received: u64, drops: &[(&str, u64)]) -> TestResult {
        let spec = TestSpec {
            kind,
            size: 1024,
            qps: 1,
            iters: None,
            duration_ms: Some(1000),
            tx_depth: 1,
            rx_depth: 1,
            bidirectional: false,
            rate: None,
        };
        let drops = drops.iter().map(|&(reason, n)| (reason.to_owned(), n)).collect();
        let server = RxReport { messages: received, elapsed_ns: 1_000_000_000, drops, ..RxReport::default() };
        let client = RxReport { sent, ..RxReport::default() };
        let rtt = (kind == TestKind::Lat).then(|| {
            let mut rtt = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
            rtt.record_n(2000, 990).unwrap();
            rtt.record_n(8000, 10).unwrap();
            rtt
        });
        TestResult {
            spec,
            server,
            client,
            rtt,
            unanswered: 3,
            untold: None,
            unsaid: None,
            interrupted: false,
            failure: None,
            link_lost: 0,
            reliable: None,
        }
    }

    #[test]
    fn losses_are_explained_by_drops_or_not() {
        let bw = result(TestKind::Bw, 1_000_101, 1_000_001, &[("no_receive", 90), ("icrc", 7)]);
        let row = Row { bw, lat: None };
        assert_eq!((row.lost(), row.icrc_errors(), row.unexplained()), (100, 7, 3));
        assert_eq!(row.drops_text().unwrap(), "dropped of 1 KiB: icrc 7, no_receive 90");
        assert_eq!(row.json()["latency"], Value::Null);
        let lat = result(TestKind::Lat, 1200, 1200, &[("no_receive", 1)]);
        let row = Row { lat: Some(lat), ..row };
        assert_eq!((row.lost(), row.unexplained()), (103, 3));
        assert_eq!(row.json()["drops"]["no_receive"], 91);
        let text = table(&[row]).to_string();
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        let line = "1 KiB 1.00 M 8.192 1.00 µs 1.00 µs 4.00 µs 1.00 M 103 98 7";
        assert_eq!(words.join(" "), line);
    }
}
