//! Pairs of `spraywire` endpoints, with the worker polled inline or in a thread of its own.

use super::{END, IPS, START, Setup};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::time::Duration;

/// Where the worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Polled in the application's own loop.
    Inline,
    /// In a thread of its own, behind queues, on the application's processor: a side has one.
    Thread,
    /// Two of them, each in a thread and with a queue pair of the port of its own, which takes turns on both processors with
    /// those of the other side.
    Two,
}

/// What the server says when its port is there.
pub(super) const WAITING: &str = "waiting for a client";

/// The command lines of server and client.
fn commands(setup: &Setup, what: &str, worker: Worker, options: &[String]) -> [Vec<OsString>; 2] {
    let devices = setup.place.devices();
    [0, 1].map(|side| {
        let mut line: Vec<OsString> = vec![(&setup.spraywire).into(), what.into(), "--service=ud".into()];
        if side == 1 {
            line.push(IPS[0].into());
            line.extend(options.iter().map(Into::into));
        }
        let port =
            ["--port", &devices[side], "--ip", IPS[side], "--mtu", &setup.mtu.to_string()].map(Into::into);
        line.extend(port);
        let cores = match worker {
            Worker::Inline | Worker::Thread => setup.cores[side].to_string(),
            Worker::Two => setup.cores.map(|core| core.to_string()).join(","),
        };
        line.extend(["--cores", &cores, "--json"].map(Into::into));
        match worker {
            Worker::Inline => line.extend(["--idle", "spin"].map(Into::into)),
            Worker::Thread => line.extend(["--worker", "thread"].map(Into::into)),
            Worker::Two => line.extend(["--workers", "2", "--queues", "2"].map(Into::into)),
        }
        line
    })
}

/// Runs both sides; returns the client's report.
pub(super) fn run(
    setup: &Setup,
    [server, client]: [Vec<OsString>; 2],
    busy: Duration,
    stop: &Stop,
) -> Result<Value, Failure> {
    let start = |name, side, line: Vec<OsString>| {
        Child::start(name, setup.place.command(side, &line[0]).args(&line[1..]), stop)
    };
    let mut server = start("the spraywire server", 0, server)?;
    server.await_error(WAITING, START)?;
    let client = start("the spraywire client", 1, client)?;
    setup.place.join(stop)?;
    let output = client.finish(START + busy + END)?;
    server.finish(END)?;
    serde_json::from_str(&output).map_err(|e| Failure::Said(format!("spraywire's JSON cannot be read: {e}")))
}

pub(super) fn number(value: &Value, pointer: &str) -> Result<f64, Failure> {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .ok_or_else(|| Failure::Said(format!("spraywire's JSON has no number at {pointer}")))
}

/// Messages per second, as received.
pub fn throughput(setup: &Setup, size: usize, worker: Worker, stop: &Stop) -> Result<Sample, Failure> {
    // It measures from the first message on, so that the warm-up is part of it.
    let window = Duration::from_secs_f64(setup.warmup + setup.seconds);
    // Where the application and its worker take turns on one processor, deeper queues make for fewer turns.
    let (tx_depth, rx_depth) = match worker {
        Worker::Thread => (setup.tx_depth.saturating_mul(4), setup.rx_depth.saturating_mul(2)),
        Worker::Inline | Worker::Two => (setup.tx_depth, setup.rx_depth),
    };
    let options = [
        format!("--size={size}"),
        format!("--duration={}ms", window.as_millis()),
        format!("--tx-depth={tx_depth}"),
        format!("--rx-depth={rx_depth}"),
    ];
    stream_sample(&run(setup, commands(setup, "bw", worker, &options), window, stop)?)
}

fn stream_sample(report: &Value) -> Result<Sample, Failure> {
    let at = "/results/0/client_to_server";
    let value = number(report, &format!("{at}/messages_per_second"))?;
    let received = number(report, &format!("{at}/received"))?;
    if received == 0.0 {
        return Err(Failure::Said("no message arrived".into()));
    }
    let direction = report.pointer(at).cloned().unwrap_or_default();
    let kept = ["sent", "received", "lost", "elapsed_ns", "drops"]
        .map(|field| (field.to_owned(), direction.get(field).cloned().unwrap_or_default()));
    Ok(Sample { value, detail: Value::Object(kept.into_iter().collect()) })
}

/// Nanoseconds of the median round trip.
pub fn latency(setup: &Setup, size: usize, worker: Worker, stop: &Stop) -> Result<Sample, Failure> {
    let options = [format!("--size={size}"), format!("--iters={}", setup.round_trips)];
    latency_sample(&run(setup, commands(setup, "lat", worker, &options), START, stop)?)
}

fn latency_sample(report: &Value) -> Result<Sample, Failure> {
    // It reports one way, perftest's habit: half of the round trip.
    let at = "/results/0/latency";
    let value = 2.0 * number(report, &format!("{at}/half_rtt_ns/p50"))?;
    let detail = json!({
        "min_ns": 2.0 * number(report, &format!("{at}/half_rtt_ns/min"))?,
        "p99_ns": 2.0 * number(report, &format!("{at}/half_rtt_ns/p99"))?,
        "round_trips": number(report, &format!("{at}/round_trips"))?,
    });
    Ok(Sample { value, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{test_setup, text};

    #[test]
    fn command_lines() {
        let [server, client] = commands(&test_setup(), "bw", Worker::Inline, &["--size=64".into()]);
        let (server, client) = (text(&server), text(&client));
        assert!(
            server.starts_with("spraywire bw --service=ud --port net_memif0,role=server,id=0,socket="),
            "{server}"
        );
        assert!(server.ends_with(" --ip 192.0.2.1 --mtu 4200 --cores 2 --json --idle spin"), "{server}");
        assert!(
            client.starts_with("spraywire bw --service=ud 192.0.2.1 --size=64 --port net_memif0,role=client"),
            "{client}"
        );
        let [server, _] = commands(&test_setup(), "bw", Worker::Two, &[]);
        assert!(text(&server).ends_with("--cores 2,3 --json --workers 2 --queues 2"), "{server:?}");
        let [_, client] = commands(&test_setup(), "bw", Worker::Thread, &[]);
        assert!(text(&client).ends_with("--cores 3 --json --worker thread"), "{client:?}");
    }

    #[test]
    fn throughput_is_what_the_receiver_got() {
        let report = json!({"results": [{"client_to_server": {
            "sent": 12, "received": 10, "lost": 2, "elapsed_ns": 5, "messages_per_second": 2.5e6,
            "drops": {"no_receive": 2}, "goodput_bits_per_second": 1.0}}]});
        let sample = stream_sample(&report).unwrap();
        assert_eq!(sample.value, 2.5e6);
        assert_eq!(
            sample.detail,
            json!({"sent": 12, "received": 10, "lost": 2, "elapsed_ns": 5, "drops": {"no_receive": 2}})
        );
        let failed = stream_sample(&json!({"results": []})).unwrap_err().to_string();
        assert!(failed.contains("/results/0/client_to_server/messages_per_second"), "{failed}");
    }

    #[test]
    fn latency_is_the_whole_round_trip() {
        let report = json!({"results": [{"latency": {
            "round_trips": 100, "half_rtt_ns": {"min": 500.0, "p50": 600.5, "p99": 900.0}}}]});
        let sample = latency_sample(&report).unwrap();
        assert_eq!(sample.value, 1201.0);
        assert_eq!(sample.detail, json!({"min_ns": 1000.0, "p99_ns": 1800.0, "round_trips": 100.0}));
    }
}
