//! Pairs of bare loops: this program again.

use super::reliable::{SEGMENT, Wan, core, start_forwarder};
use super::{END, START, Setup};
use crate::bare::{PingResult, READY, StreamResult};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// Bytes of the reliable service's header.
const HEADER: usize = 60;

fn side(setup: &Setup, which: usize, role: &str, device: &str, size: usize) -> Command {
    let mut command = setup.place.command(which, &setup.benches);
    command.args(["bare", role, "--port", device, "--mtu", &setup.mtu.to_string()]);
    command.args(["--core", &setup.cores[which].to_string(), "--size", &size.to_string()]);
    if let Some(peer) = setup.place.peer(which) {
        command.args(["--peer", &peer]);
    }
    command
}

fn stream(command: &mut Command, setup: &Setup) {
    command.args(["--tx-depth", &setup.tx_depth.to_string(), "--rx-depth", &setup.rx_depth.to_string()]);
    command.args(["--warmup", &setup.warmup.to_string(), "--seconds", &setup.seconds.to_string()]);
}

/// The result in the last line of the output.
fn parse<T: DeserializeOwned>(output: &str) -> Result<T, Failure> {
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| Failure::Said(format!("the bare loop reported {line:?}: {e}")))
}

/// Messages per second, as received.
pub fn throughput(setup: &Setup, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    let [server, client] = setup.place.devices();
    let mut command = side(setup, 0, "rx", &server, size);
    stream(&mut command, setup);
    let mut rx = Child::start("the bare receiver", &mut command, stop)?;
    rx.expect(READY, START)?;
    let mut command = side(setup, 1, "tx", &client, size);
    stream(&mut command, setup);
    let tx = Child::start("the bare sender", &mut command, stop)?;
    setup.place.join(stop)?;
    let window = Duration::from_secs_f64(setup.warmup + setup.seconds);
    let result = rx.finish(START + window + END).and_then(|output| parse::<StreamResult>(&output))?;
    tx.finish(END)?;
    if result.broken > 0 {
        return Err(Failure::Said(format!("{} messages arrived broken", result.broken)));
    }
    let value = result.messages as f64 / result.seconds;
    Ok(Sample { value, detail: json!({ "messages": result.messages, "seconds": result.seconds }) })
}

/// Payload bits per second of segments, through a network, with a window of that many bytes and nothing but an answer to each burst.
pub fn window(setup: &Setup, wan: &Wan, window: usize, stop: &Stop) -> Result<Sample, Failure> {
    let (_between, [server, client]) = start_forwarder(setup, wan, stop)?;
    let (size, messages) = within(window);
    let cores = [0, 1].map(|which| core(setup, Some(wan), which));
    let setup = &Setup { cores, ..setup.clone() };
    let command = |which, role, device: &str| {
        let mut command = side(setup, which, role, device, size);
        command.args(["--window", &messages.to_string()]);
        command
    };
    let mut answers = Child::start("the bare receiver", &mut command(0, "answer", &server), stop)?;
    answers.expect(READY, START)?;
    let (warmup, seconds) = (setup.warmup + 5.0 * wan.round_trip.as_secs_f64(), setup.seconds);
    let mut command = command(1, "window", &client);
    command.args(["--warmup", &warmup.to_string(), "--seconds", &seconds.to_string()]);
    let sender = Child::start("the bare sender", &mut command, stop)?;
    let time = Duration::from_secs_f64(warmup + seconds);
    let result = sender.finish(START + time + END).and_then(|output| parse::<StreamResult>(&output))?;
    answers.finish(END)?;
    let value = result.messages as f64 * SEGMENT as f64 * 8.0 / result.seconds;
    Ok(Sample { value, detail: json!({ "window": messages, "messages": result.messages }) })
}

/// Bytes of a packet's payload that is a segment of the reliable service with its header, and how many of them a window has.
fn within(window: usize) -> (usize, usize) {
    let size = SEGMENT + HEADER;
    (size, (window / size).max(1))
}

/// Nanoseconds of the median round trip.
pub fn latency(setup: &Setup, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    let [server, client] = setup.place.devices();
    let mut echo = Child::start("the bare echo", &mut side(setup, 0, "echo", &server, size), stop)?;
    echo.expect(READY, START)?;
    let mut command = side(setup, 1, "ping", &client, size);
    command.args(["--iters", &setup.round_trips.to_string()]);
    command.args(["--warmup", &(setup.round_trips / 10).to_string()]);
    let ping = Child::start("the bare ping", &mut command, stop)?;
    let result = ping.finish(START + END).and_then(|output| parse::<PingResult>(&output))?;
    echo.finish(END)?;
    Ok(Sample {
        value: result.p50_ns as f64,
        detail: json!({ "min_ns": result.min_ns, "p99_ns": result.p99_ns, "round_trips": result.iters }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_the_reliable_service_counts_them() {
        // 1.25 times 250 µs of 1 Gbit/s are 9.6 segments with their headers.
        assert_eq!(within(39_062), (4_068, 9));
        assert_eq!(within(1), (4_068, 1), "one is always under way");
    }

    #[test]
    fn reports_are_read_back() {
        let written = StreamResult { messages: 7, broken: 0, seconds: 0.5 };
        let text = format!("something\n{}\n", serde_json::to_string(&written).unwrap());
        assert_eq!(parse::<StreamResult>(&text).unwrap(), written);
        let failed = parse::<PingResult>(&text).unwrap_err().to_string();
        assert!(failed.contains("iters"), "{failed}");
        assert!(parse::<StreamResult>("").is_err());
    }
}
