//! What an endpoint tells of itself, as JSON: see `cli/json.md`.

use super::{PortIdentity, Probe};
use dataplane::counters::Counters;
use dataplane::group::MemberCounters;
use dataplane::io::PortStats;
use dataplane::observe::{PortSnapshot, QpSnapshot, Snapshot};
use dataplane::qp::QpState;
use serde_json::{Map, Value, json};

/// The endpoint at this moment.
pub fn of(probe: &Probe) -> Value {
    let identity = probe.identity();
    let looked = probe.look();
    let workers: Vec<Value> = identity
        .workers
        .iter()
        .zip(&looked)
        .map(|(ports, snapshot)| worker(ports, snapshot.as_ref()))
        .collect();
    json!({
        "pid": identity.pid,
        "name": identity.name,
        "command_line": identity.command_line,
        "version": identity.version,
        "uptime_s": probe.uptime().as_secs_f64(),
        "workers": workers,
    })
}

fn worker(ports: &[PortIdentity], snapshot: Option<&Snapshot>) -> Value {
    let ports: Vec<Value> = ports
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
fn queue(q: &MemberCounters) -> Value {
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

#[cfg(test)]
mod tests {
    use super::super::tests::Running;
    use super::*;

    #[test]
    fn the_sum_of_fates_is_what_was_received() {
        let running = Running::start("x");
        let value = of(&running.probe);
        assert_eq!(
            (value["name"].as_str(), value["pid"].as_u64()),
            (Some("x"), Some(std::process::id().into()))
        );
        let worker = &value["workers"][0];
        assert_eq!((worker["answers"].as_bool(), worker["qp_count"].as_u64()), (Some(true), Some(1)));
        let port = &worker["ports"][0];
        assert_eq!((port["driver"].as_str(), port["addrs"][0].as_str()), (Some("memory"), Some("192.0.2.1")));
        let counters = &port["counters"];
        assert_eq!((counters["rx_packets"].as_u64(), counters["delivered"].as_u64()), (Some(1), Some(0)));
        let dropped: u64 = counters["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(dropped, 1, "{value:#}");
        assert_eq!(port["driver_counters"]["rx_packets"], 1);
        assert_eq!((&counters["link_lost"], &port["queue"]), (&0.into(), &Value::Null), "{value:#}");
        assert_eq!(
            (worker["qps"][0]["qpn"].as_u64(), worker["qps"][0]["state"].as_str()),
            (Some(0x10000), Some("rts"))
        );
    }

    #[test]
    fn the_queue_of_one_of_several_is_told() {
        let counts = MemberCounters {
            queue: Some(1),
            rx: 5,
            tx: 4,
            steered_in: 3,
            steered_out: 2,
            steer_full: 1,
            ..Default::default()
        };
        let expected = json!({ "index": 1, "rx_packets": 5, "tx_packets": 4, "steered_in": 3, "steered_out": 2, "steer_full": 1 });
        assert_eq!(queue(&counts), expected);
        assert_eq!(queue(&MemberCounters::default())["index"], Value::Null, "others poll for it");
    }

    #[test]
    fn a_worker_that_does_not_answer_says_nothing_wrong() {
        let mut running = Running::start("x");
        running.end();
        let value = of(&running.probe);
        let worker = &value["workers"][0];
        assert_eq!((worker["answers"].as_bool(), &worker["qps"]), (Some(false), &Value::Null));
        assert_eq!(worker["ports"][0].get("counters"), None, "{value:#}");
    }
}
