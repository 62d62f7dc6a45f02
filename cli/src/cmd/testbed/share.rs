//! What each path carried, by the kernel's counters.

use super::build::TABLE;
use super::plan::{Plan, Side};
use super::tools::{self, Feature};
use crate::error::Error;
use crate::report::numbers::Si;
use crate::report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;

/// What one way of a path carried: to the right, or to the left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCount {
    /// Packets that the router chose the path for.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// Packets that the router before the path lost: by chance, or since the path is dark.
    pub lost: u64,
    /// Packets that found the queue before the path's rate full.
    pub queue_full: u64,
    /// Packets that the router behind the path forwarded.
    pub arrived: u64,
}

impl PathCount {
    fn since(&self, before: &PathCount) -> PathCount {
        PathCount {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
            lost: self.lost.saturating_sub(before.lost),
            queue_full: self.queue_full.saturating_sub(before.queue_full),
            arrived: self.arrived.saturating_sub(before.arrived),
        }
    }
}

/// What every path carried since the testbed is up, to the right and to the left.
///
/// # Errors
/// Counters that cannot be read: parts of the testbed are gone.
pub fn read(plan: &Plan) -> Result<Vec<[PathCount; 2]>, Error> {
    if plan.two_dc {
        return read_leg(plan);
    }
    let [left, right] = [counters(plan, Side::Left)?, counters(plan, Side::Right)?];
    let ways = |number: usize| {
        let way = |near: &Counters, far: &Counters| {
            let (packets, bytes) = near.named(number, "sent");
            PathCount {
                packets,
                bytes,
                lost: near.named(number, "lost").0,
                queue_full: near.dropped.get(&format!("p{number}")).copied().unwrap_or(0),
                arrived: far.named(number, "came").0,
            }
        };
        [way(&left, &right), way(&right, &left)]
    };
    Ok((1..=plan.paths.len()).map(ways).collect())
}

/// What the forwarder between two data centres took and passed on, by the kernel's counters of its interfaces. What it took and has not
/// passed on is lost, or on the way.
fn read_leg(plan: &Plan) -> Result<Vec<[PathCount; 2]>, Error> {
    let mut command = tools::within(&plan.leg(), "ip");
    let text = tools::run(command.args(["-s", "-j", "link", "show"]), "", Feature::Veth)?;
    let links: Value =
        serde_json::from_str(&text).map_err(|e| Error::failed(format_args!("ip -s link: {e}")))?;
    let count = |name: &str, way: &str, what: &str| {
        let link = links.as_array().into_iter().flatten().find(|link| link["ifname"] == name)?;
        link["stats64"][way][what].as_u64()
    };
    let gone = || Error::failed("the forwarder's interfaces are gone");
    let way = |from: &str, to: &str| {
        let packets = count(from, "rx", "packets").ok_or_else(gone)?;
        let arrived = count(to, "tx", "packets").ok_or_else(gone)?;
        let bytes = count(from, "rx", "bytes").ok_or_else(gone)?;
        Ok(PathCount { packets, bytes, lost: packets.saturating_sub(arrived), queue_full: 0, arrived })
    };
    Ok(vec![[way("p1w1", "p1w2")?, way("p1w2", "p1w1")?]])
}

/// What `now` has more than `before`.
pub fn since(now: &[[PathCount; 2]], before: &[[PathCount; 2]]) -> Vec<[PathCount; 2]> {
    let none = [PathCount::default(); 2];
    let way = |i: usize, now: &[PathCount; 2]| {
        let [right, left] = before.get(i).unwrap_or(&none);
        [now[0].since(right), now[1].since(left)]
    };
    now.iter().enumerate().map(|(i, now)| way(i, now)).collect()
}

/// The counters of a leaf router.
struct Counters {
    /// Packets and bytes by name.
    named: HashMap<String, (u64, u64)>,
    /// What queues dropped, by interface.
    dropped: HashMap<String, u64>,
}

impl Counters {
    fn named(&self, path: usize, name: &str) -> (u64, u64) {
        self.named.get(&format!("p{path}_{name}")).copied().unwrap_or_default()
    }
}

fn counters(plan: &Plan, side: Side) -> Result<Counters, Error> {
    let leaf = plan.leaf(side);
    let json = |program: &str, args: &str, feature| -> Result<Value, Error> {
        let mut command = tools::within(&leaf, program);
        let text = tools::run(command.args(args.split(' ')), "", feature)?;
        serde_json::from_str(&text).map_err(|e| Error::failed(format_args!("{program} {args}: {e}")))
    };
    let listed = json("nft", &format!("-j list counters table {TABLE}"), Feature::Numgen)?;
    let entries = listed["nftables"].as_array().cloned().unwrap_or_default();
    let named = entries.iter().map(|entry| &entry["counter"]).filter_map(|counter| {
        let value = |name: &str| counter[name].as_u64();
        Some((counter["name"].as_str()?.to_owned(), (value("packets")?, value("bytes")?)))
    });
    let named = named.collect();
    let mut dropped = HashMap::new();
    if plan.paths.iter().any(|path| path.rate.is_some()) {
        let queues = json("tc", "-s -j qdisc show", Feature::Tbf)?;
        for queue in queues.as_array().into_iter().flatten().filter(|queue| queue["kind"] == "tbf") {
            if let (Some(device), Some(drops)) = (queue["dev"].as_str(), queue["drops"].as_u64()) {
                dropped.insert(device.to_owned(), drops);
            }
        }
    }
    Ok(Counters { named, dropped })
}

/// The share of `part`; none if there is nothing to share.
fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

fn totals(counts: &[[PathCount; 2]]) -> [u64; 2] {
    [0, 1].map(|way| counts.iter().map(|ways| ways[way].packets).sum())
}

/// The counts in a table, a line for each path.
pub fn table(plan: &Plan, counts: &[[PathCount; 2]]) -> Table {
    let columns = [
        "> packets",
        "bytes",
        "share",
        "lost",
        "queue full",
        "< packets",
        "bytes",
        "share",
        "lost",
        "queue full",
    ];
    let columns = columns.map(|name| (name, Align::Right));
    let mut table =
        Table::new([("path", Align::Right)].into_iter().chain(columns).chain([("", Align::Left)]));
    let all = totals(counts);
    for ((number, path), ways) in plan.numbered().zip(counts) {
        let mut row = vec![number.to_string()];
        for (way, all) in ways.iter().zip(all) {
            row.push(way.packets.to_string());
            row.push(Si(way.bytes as f64).to_string());
            row.push(
                share(way.packets, all).map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
            );
            // Of a forwarder's losses the routers know by what does not arrive.
            let gone = way.packets.saturating_sub(way.arrived + way.queue_full);
            row.push(if path.burst.is_some() { gone } else { way.lost }.to_string());
            row.push(way.queue_full.to_string());
        }
        row.push(path.to_string());
        table.row(row);
    }
    table
}

/// The counts as JSON.
pub fn to_json(plan: &Plan, counts: &[[PathCount; 2]]) -> Value {
    let all = totals(counts);
    let way = |count: &PathCount, all: u64| {
        let mut value = json!(count);
        value["share"] = json!(share(count.packets, all));
        value
    };
    let paths = plan.numbered().zip(counts).map(|((number, path), [right, left])| {
        json!({
            "path": number,
            "link": path.link,
            "loss": path.loss,
            "burst": path.burst,
            "rate_bits_per_second": path.rate,
            "delay_ns": path.delay.as_nanos() as u64,
            "to_right": way(right, all[0]),
            "to_left": way(left, all[1]),
        })
    });
    Value::Array(paths.collect())
}
