//! A pair of Debian's perftest over our endpoints, by the preloaded verbs library.

use super::{END, IPS, START, Setup, on_path};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::json;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
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

/// How perftest posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// One send and one receive a call, its habit.
    One,
    /// Lists of [`LIST`], as many as our own command posts at once.
    Lists,
}

/// Work requests of a list: half of what `spraywire bw` posts in a round at most, so that the default depth of 128 holds four.
const LIST: usize = 32;

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
    run_both(setup, test, None, stop).map(|[server, _]| server)
}

/// Runs both sides, with a library in front of ours or none; returns their last lines of numbers.
fn run_both(
    setup: &Setup,
    test: &[String],
    in_front: Option<&Path>,
    stop: &Stop,
) -> Result<[Vec<f64>; 2], Failure> {
    let cannot = |e: std::io::Error| Failure::Said(format!("no TCP port for perftest: {e}"));
    // Nobody has it now, and nobody asks for one meanwhile.
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).map_err(cannot)?.port();
    let devices = setup.place.devices();
    let test: Vec<String> = match in_front {
        None => test.to_vec(),
        // The command puts our library in front of all others: here another one comes first.
        Some(first) => {
            let ours = setup.spraywire.with_file_name(LIBRARY);
            let both = format!("LD_PRELOAD={}:{}", first.display(), ours.display());
            ["env".to_owned(), both].into_iter().chain(test.iter().cloned()).collect()
        }
    };
    let start =
        |name, which: usize| Child::start(name, &mut side(setup, which, &devices[which], port, &test), stop);
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
    let client = client.finish(START + END)?;
    let server = server.finish(END)?;
    let numbers = |output: String| {
        numbers(&output).ok_or_else(|| Failure::Said(format!("perftest's output holds no numbers: {output}")))
    };
    Ok([numbers(server)?, numbers(client)?])
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

/// The arguments of a test of throughput.
fn bandwidth(setup: &Setup, size: usize, posting: Posting) -> Vec<String> {
    // It takes whole seconds, and leaves a quarter of them out at either end.
    let seconds = (setup.warmup + setup.seconds).ceil().max(1.0);
    let mut test = vec![
        BANDWIDTH.to_owned(),
        format!("--size={size}"),
        format!("--duration={seconds}"),
        format!("--tx-depth={}", setup.tx_depth),
        format!("--rx-depth={}", setup.rx_depth),
    ];
    if posting == Posting::Lists {
        test.extend([format!("--post_list={LIST}"), format!("--recv_post_list={LIST}")]);
    }
    test
}

/// Messages per second, as the receiver completed them.
pub fn throughput(setup: &Setup, size: usize, posting: Posting, stop: &Stop) -> Result<Sample, Failure> {
    let test = bandwidth(setup, size, posting);
    match run(setup, &test, stop)?.as_slice() {
        // Bytes, messages, peak, average, and millions of messages a second.
        [_, messages, _, _, rate] if *rate > 0.0 => {
            Ok(Sample { value: rate * 1e6, detail: json!({ "received": messages }) })
        }
        other => Err(Failure::Said(format!("perftest received nothing: {other:?}"))),
    }
}

/// What makes posts and polls return at once, compiled; gone when this is dropped.
pub struct Idle(PathBuf);

impl Idle {
    /// Compiles it; why it cannot be, if it cannot.
    pub fn build() -> Result<Idle, String> {
        let (source, library) = (idle_file("c"), idle_file("so"));
        let cannot = |e: std::io::Error| format!("no bound of perftest's own loop: {e}");
        std::fs::write(&source, include_str!("idle.c")).map_err(cannot)?;
        let mut cc = Command::new("cc");
        let built = cc.args(["-O2", "-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").output();
        let _ = std::fs::remove_file(&source);
        match built.map_err(cannot)? {
            built if built.status.success() => Ok(Idle(library)),
            built => {
                Err(format!("no bound of perftest's own loop: {}", String::from_utf8_lossy(&built.stderr)))
            }
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn idle_file(extension: &str) -> PathBuf {
    std::env::temp_dir().join(format!("spraywire-benches-idle-{}.{extension}", std::process::id()))
}

/// Messages per second of perftest alone, on the side that takes less time for one: posts and polls return at once, nothing is sent.
pub fn alone(setup: &Setup, size: usize, idle: &Idle, stop: &Stop) -> Result<f64, Failure> {
    let test = bandwidth(setup, size, Posting::One);
    let [server, client] = run_both(setup, &test, Some(&idle.0), stop)?;
    match (server.as_slice(), client.as_slice()) {
        ([_, _, _, _, a], [_, _, _, _, b]) if *a > 0.0 && *b > 0.0 => Ok(a.max(*b) * 1e6),
        other => Err(Failure::Said(format!("perftest alone measured nothing: {other:?}"))),
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
    fn what_stands_in_for_the_library_compiles_and_goes() {
        let idle = Idle::build().unwrap();
        let path = idle.0.clone();
        assert!(path.is_file());
        drop(idle);
        assert!(!path.exists());
    }

    #[test]
    fn lists_are_of_a_size_that_the_depth_holds() {
        let setup = test_setup();
        let one = bandwidth(&setup, 64, Posting::One);
        let lists = bandwidth(&setup, 64, Posting::Lists);
        assert_eq!(lists[..one.len()], one);
        assert_eq!(lists[one.len()..], ["--post_list=32", "--recv_post_list=32"]);
        assert!(setup.tx_depth.is_multiple_of(LIST) && setup.rx_depth.is_multiple_of(LIST));
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
