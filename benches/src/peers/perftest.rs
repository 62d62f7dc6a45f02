//! A pair of Debian's perftest over our endpoints, by the preloaded verbs library.

use super::{END, IPS, START, Setup, on_path};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::json;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

/// The programs, and the one that says on which processor they run.
const BANDWIDTH: &str = "ib_send_bw";
const LATENCY: &str = "ib_send_lat";
const PIN: &str = "taskset";

/// The library's file, beside the command.
const LIBRARY: &str = "libspraywire_verbs.so";

/// What keeps this figure from being measured, if anything does.
pub fn obstacle(setup: &Setup) -> Option<String> {
    if !on_path(&[BANDWIDTH, LATENCY, PIN]) {
        return Some("the figures of verbs programs need perftest and taskset (Debian's packages: perftest, util-linux)".into());
    }
    let library = setup.spraywire.with_file_name(LIBRARY);
    (!library.is_file()).then(|| format!("the figures of verbs programs need {}", library.display()))
}

/// The command of one side. perftest's own connection goes over the loopback, to `port`.
fn side(setup: &Setup, side: usize, device: &str, port: u16, test: &[String]) -> Command {
    let mut command = setup.place.command(side, PIN);
    command.args(["-c", &setup.cores[side].to_string()]).arg(&setup.spraywire).arg("verbs");
    command.args(["--port", device, "--ip", IPS[side], "--mtu", &setup.mtu.to_string(), "--"]);
    command.args(test).args(["-F", "-c", "UD", "-p", &port.to_string()]);
    if side == 1 {
        command.arg("127.0.0.1");
    }
    command
}

/// Runs both sides; returns the server's last line of numbers.
fn run(setup: &Setup, test: &[String], stop: &Stop) -> Result<Vec<f64>, Failure> {
    let cannot = |e: std::io::Error| Failure::Said(format!("no TCP port for perftest: {e}"));
    // Nobody has it now, and nobody asks for one meanwhile.
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).map_err(cannot)?.port();
    let devices = setup.place.devices();
    let start =
        |name, which: usize| Child::start(name, &mut side(setup, which, &devices[which], port, test), stop);
    let server = start("the perftest server", 0)?;
    // It says nothing before its end, but listens when its device is open.
    let until = Instant::now() + START;
    while !listens(port) {
        if Instant::now() > until {
            return Err(Failure::Said("the perftest server does not listen".into()));
        }
        stop.sleep(Duration::from_millis(20))?;
    }
    let client = start("the perftest client", 1)?;
    client.finish(START + END)?;
    let output = server.finish(END)?;
    numbers(&output).ok_or_else(|| Failure::Said(format!("perftest's output holds no numbers: {output}")))
}

/// Whether somebody waits for connections at a TCP port of this machine: state 0A of the kernel's `net/tcp_states.h`.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A "))
    })
}

fn numbers(output: &str) -> Option<Vec<f64>> {
    let lines = output.lines().rev();
    lines
        .map(|line| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>())
        .find_map(|line| line.filter(|numbers| numbers.len() >= 3))
}

/// Messages per second, as the receiver completed them.
pub fn throughput(setup: &Setup, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    // It takes whole seconds, and leaves a quarter of them out at either end.
    let seconds = (setup.warmup + setup.seconds).ceil().max(1.0);
    let test = [
        BANDWIDTH.to_owned(),
        format!("--size={size}"),
        format!("--duration={seconds}"),
        format!("--tx-depth={}", setup.tx_depth),
        format!("--rx-depth={}", setup.rx_depth),
    ];
    match run(setup, &test, stop)?.as_slice() {
        // Bytes, messages, peak, average, and millions of messages a second.
        [_, messages, _, _, rate] if *rate > 0.0 => {
            Ok(Sample { value: rate * 1e6, detail: json!({ "received": messages }) })
        }
        other => Err(Failure::Said(format!("perftest received nothing: {other:?}"))),
    }
}

/// Nanoseconds of the median round trip.
pub fn latency(setup: &Setup, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    let test = [LATENCY.to_owned(), format!("--size={size}"), format!("--iters={}", setup.round_trips)];
    match run(setup, &test, stop)?.as_slice() {
        // Bytes, round trips, and of half a round trip in microseconds: least, most, typical, average, …
        [_, count, least, _, typical, ..] => Ok(Sample {
            value: 2000.0 * typical,
            detail: json!({ "min_ns": 2000.0 * least, "round_trips": count }),
        }),
        other => Err(Failure::Said(format!("perftest measured nothing: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::test_setup;

    #[test]
    fn the_last_numbers_are_read() {
        let output = "#bytes #iterations BW\n 64   2635200   0.00   80.32    1.315941\n-----\n";
        assert_eq!(numbers(output), Some(vec![64.0, 2_635_200.0, 0.0, 80.32, 1.315_941]));
        assert_eq!(numbers("no\n-----\n"), None);
    }

    #[test]
    fn the_command_line_runs_it_on_its_processor() {
        let test = ["ib_send_bw".to_owned(), "--size=64".to_owned()];
        let line = format!("{:?}", side(&test_setup(), 1, "net_memif0,role=client,id=0,socket=x", 77, &test));
        let line = line.replace('"', "");
        let want = "taskset -c 3 spraywire verbs --port net_memif0,role=client,id=0,socket=x --ip 192.0.2.2 --mtu 4200 -- \
                    ib_send_bw --size=64 -F -c UD -p 77 127.0.0.1";
        assert_eq!(line, want);
    }
}
