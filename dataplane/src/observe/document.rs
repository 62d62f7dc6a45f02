//! What an endpoint tells of itself, as JSON: see `cli/json.md`.

use super::{Looked, PortSnapshot, Probe, QpSnapshot};
use crate::counters::Counters;
use crate::group::MemberCounters;
use crate::io::PortStats;
use crate::qp::QpState;
use serde_json::{Map, Value, json};

/// The endpoint at this moment.
pub fn of(probe: &Probe) -> Value {
    let identity = probe.identity();
    let workers: Vec<Value> = probe.look().iter().map(worker).collect();
    json!({
        "pid": identity.pid,
        "name": identity.name,
        "command_line": identity.command_line,
        "version": identity.version,
        "uptime_s": probe.uptime().as_secs_f64(),
        "workers": workers,
    })
}

fn worker(looked: &Looked) -> Value {
    let snapshot = looked.now.as_ref();
    let ports: Vec<Value> = looked
        .ports
        .iter()
        .enumerate()
        .map(|(i, identity)| {
            let mut value = json!(identity);
            if let Some(port) = snapshot.and_then(|s| s.ports.get(i)) {
                fill(&mut value, port);
            }
            value
        })
        .collect();
    json!({
        "answers": snapshot.is_some(),
        "ports": ports,
        "qps": snapshot.map(|s| s.qps.iter().map(qp).collect::<Vec<_>>()),
        "qp_count": snapshot.map(|s| s.qp_count),
        "ah_count": snapshot.map(|s| s.ah_count),
    })
}

fn fill(value: &mut Value, port: &PortSnapshot) {
    value["link_up"] = port.link_up.into();
    value["counters"] = counters(&port.counters);
    value["driver_counters"] = driver(&port.driver);
    value["queue"] = port.queue.as_ref().map(queue).into();
}

/// What a worker counted on a port. The received packets are the sum of those delivered, answered, ignored and dropped.
fn counters(c: &Counters) -> Value {
    let drops: Map<String, Value> =
        c.drops().map(|(reason, n)| (reason.name().to_owned(), n.into())).collect();
    json!({
        "rx_packets": c.rx_packets,
        "rx_bytes": c.rx_bytes,
        "delivered": c.delivered,
        "delivered_bytes": c.delivered_bytes,
        "neighbour": c.neighbour,
        "echo": c.echo,
        "ignored": c.ignored,
        "dropped": drops,
        "tx_packets": c.tx_packets,
        "tx_bytes": c.tx_bytes,
        "tx_control": c.tx_control,
        "tx_busy": c.tx_busy,
        "tx_no_buffer": c.tx_no_buffer,
        "link_lost": c.link_lost,
        "link_back": c.link_back,
    })
}

/// What passed through the queue of one of several workers, and between them.
pub fn queue(q: &MemberCounters) -> Value {
    json!({
        "index": q.queue,
        "rx_packets": q.rx,
        "tx_packets": q.tx,
        "steered_in": q.steered_in,
        "steered_out": q.steered_out,
        "steer_full": q.steer_full,
    })
}

fn driver(s: &PortStats) -> Value {
    json!({
        "rx_packets": s.rx_packets,
        "rx_bytes": s.rx_bytes,
        "rx_missed": s.rx_missed,
        "rx_errors": s.rx_errors,
        "rx_no_mbuf": s.rx_no_mbuf,
        "tx_packets": s.tx_packets,
        "tx_bytes": s.tx_bytes,
        "tx_errors": s.tx_errors,
    })
}

fn qp(q: &QpSnapshot) -> Value {
    json!({
        "qpn": q.qpn.get(),
        "port": q.port,
        "state": state(q.state),
        "sent": q.counters.sent,
        "received": q.counters.received,
        "qkey_violations": q.counters.qkey_violations,
        "no_receive": q.counters.no_receive,
        "outstanding": q.outstanding,
        "receives": q.receives,
    })
}

/// The short names of the verbs.
fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "reset",
        QpState::Init => "init",
        QpState::ReadyToReceive => "rtr",
        QpState::ReadyToSend => "rts",
        QpState::Error => "error",
    }
}
