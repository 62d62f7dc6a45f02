//! Pairs of `spraywire bw` over the reliable service, beside each other or with a network in between, and over raw UD to compare with.

use super::spraywire::{WAITING, number, run};
use super::{END, IPS, START, Setup};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of a segment over an IB MTU of 4096.
pub const SEGMENT: usize = 4008;

/// A network between the two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wan {
    /// The bottleneck, bits per second.
    pub rate: u64,
    /// Round trip.
    pub round_trip: Duration,
    /// Share of frames lost each way.
    pub loss: f64,
    /// Losses in a row, on average, if they come in bursts.
    pub burst: Option<f64>,
    /// Of what happens by chance.
    pub seed: u64,
    /// It has the sender's processor to itself and spins, and the two sides share the receiver's: so none of the two waits for it to get a processor.
    pub apart: bool,
}

impl Wan {
    /// One whose losses are independent.
    pub const fn new(rate: u64, round_trip: Duration, loss: f64) -> Wan {
        Wan { rate, round_trip, loss, burst: None, seed: 1, apart: false }
    }
}

/// A transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Over raw UD.
    pub raw: bool,
    /// The server sends as much as the client.
    pub both_ways: bool,
    /// Bytes of a message.
    pub size: usize,
    /// Peers of the client.
    pub peers: u32,
    /// Messages that are sent at a time.
    pub tx_depth: usize,
    /// Receives of each peer.
    pub rx_depth: usize,
    /// Bytes of all receives, and of all sends.
    pub memory: usize,
    /// Bytes in flight of a session.
    pub window: usize,
    /// What is in between, if anything.
    pub wan: Option<Wan>,
    /// How long it sends.
    pub time: Duration,
    /// How many messages it sends instead.
    pub count: Option<u64>,
    /// What else both sides are told.
    pub both: Vec<String>,
}

impl Transfer {
    /// Over the reliable service, to one peer, with nothing in between.
    pub fn new(setup: &Setup, size: usize) -> Transfer {
        Transfer {
            raw: false,
            both_ways: false,
            size,
            peers: 1,
            tx_depth: setup.tx_depth,
            rx_depth: setup.rx_depth,
            memory: 4 << 20,
            window: 1 << 20,
            wan: None,
            time: Duration::from_secs_f64(setup.warmup + setup.seconds),
            count: None,
            both: Vec::new(),
        }
    }

    /// What both sides have, and what the client adds.
    fn options(&self) -> [Vec<String>; 2] {
        let mut both = vec![format!("--service={}", if self.raw { "ud" } else { "reliable" })];
        both.extend(self.both.iter().cloned());
        let how_much = match self.count {
            Some(count) => format!("--iters={count}"),
            None => format!("--duration={}ms", self.time.as_millis()),
        };
        let mut client = vec![
            format!("--size={}", self.size),
            how_much,
            format!("--tx-depth={}", self.tx_depth),
            format!("--rx-depth={}", self.rx_depth),
        ];
        if self.both_ways {
            client.push("--bidirectional".to_owned());
        }
        if !self.raw {
            both.push(format!("--window={}", self.window));
            client.extend([format!("--peers={}", self.peers), format!("--memory={}", self.memory)]);
        }
        [both, client]
    }
}

fn commands(setup: &Setup, transfer: &Transfer, devices: &[String; 2]) -> [Vec<OsString>; 2] {
    let [both, client] = transfer.options();
    [0, 1].map(|side| {
        let mut line: Vec<OsString> = vec![(&setup.spraywire).into(), "bw".into()];
        line.extend(both.iter().map(Into::into));
        if side == 1 {
            line.push(IPS[0].into());
            line.extend(client.iter().map(Into::into));
        }
        line.extend(
            ["--port", &devices[side], "--ip", IPS[side], "--mtu", &setup.mtu.to_string()].map(Into::into),
        );
        let core = core(setup, transfer.wan.as_ref(), side).to_string();
        line.extend(["--cores", &core, "--json", "--wait", "20"].map(Into::into));
        // With a third process that polls, the two cores are shared.
        let idle = if transfer.wan.is_some() { "backoff" } else { "spin" };
        line.extend(["--idle", idle].map(Into::into));
        line
    })
}

/// The processor of a side.
pub(super) fn core(setup: &Setup, wan: Option<&Wan>, side: usize) -> usize {
    let shared = wan.is_some_and(|wan| wan.apart);
    setup.cores[if shared { 0 } else { side }]
}

/// The forwarder's command, and the devices of the two sides.
fn forwarder(setup: &Setup, wan: &Wan) -> (Vec<String>, [String; 2]) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let sockets = ["left", "right"].map(|side| format!("spraywire-benches-wan-{pid}-{n}-{side}"));
    let mut line = vec!["wan".to_owned()];
    for (i, socket) in sockets.iter().enumerate() {
        line.extend(["--port".to_owned(), format!("net_memif{i},role=server,socket={socket}")]);
    }
    line.extend([
        format!("--mtu={}", setup.mtu),
        format!("--rate={}", wan.rate),
        format!("--delay={}us", wan.round_trip.as_micros() / 2),
        format!("--loss={}", wan.loss),
        format!("--seed={}", wan.seed),
    ]);
    line.extend(wan.burst.map(|burst| format!("--burst={burst}")));
    if wan.apart {
        line.extend([format!("--cores={}", setup.cores[1]), "--idle=spin".to_owned()]);
    }
    line.extend([
        // As many frames as there are in flight at the most.
        "--capacity=32768".to_owned(),
        "--queue=64MB".to_owned(),
        "--json=/dev/null".to_owned(),
    ]);
    (line, sockets.map(|socket| format!("net_memif0,role=client,socket={socket}")))
}

/// A forwarder that is ready and ends when it is dropped, and the devices of the two sides.
pub(super) fn start_forwarder(
    setup: &Setup,
    wan: &Wan,
    stop: &Stop,
) -> Result<(Child, [String; 2]), Failure> {
    let (line, devices) = forwarder(setup, wan);
    let mut between =
        Child::start("spraywire wan", std::process::Command::new(&setup.spraywire).args(&line), stop)?;
    between.expect("READY", START)?;
    Ok((between, devices))
}

/// Runs a transfer; payload bits per second as received.
pub fn goodput(setup: &Setup, transfer: &Transfer, stop: &Stop) -> Result<Sample, Failure> {
    sample(&report(setup, transfer, stop)?, "goodput_bits_per_second")
}

/// The same in messages per second.
pub fn rate(setup: &Setup, transfer: &Transfer, stop: &Stop) -> Result<Sample, Failure> {
    sample(&report(setup, transfer, stop)?, "messages_per_second")
}

/// The time in which 99 of 100 messages have arrived, nanoseconds: a sender learns that of one on the way back later, which `back` takes.
pub fn completion(
    setup: &Setup,
    transfer: &Transfer,
    back: Duration,
    stop: &Stop,
) -> Result<Sample, Failure> {
    let report = report(setup, transfer, stop)?;
    let back = back.as_nanos() as f64;
    let classes = "/results/0/reliable/classes/client_to_server";
    let value = number(&report, &format!("{classes}/0/completion_ns/p99"))? - back;
    let mut detail = report.pointer(&format!("{classes}/0")).cloned().unwrap_or_default();
    let points = detail["completion_ns"]["quantiles"].as_array().cloned().unwrap_or_default();
    let arrived = points.iter().filter_map(|point| Some(json!([point[0], point[1].as_f64()? - back])));
    detail["quantiles"] = arrived.collect::<Vec<_>>().into();
    detail["transport"] = report.pointer("/results/0/reliable/client").cloned().unwrap_or_default();
    Ok(Sample { value, detail })
}

/// What an idle peer costs: resident bytes more at the client, or, with a queue pair for each, at the server.
pub fn bytes_each(setup: &Setup, peers: u32, side: &str, stop: &Stop) -> Result<Sample, Failure> {
    let transfer =
        Transfer { peers, time: Duration::from_millis(20), rx_depth: 2, ..Transfer::new(setup, 64) };
    let report = report(setup, &transfer, stop)?;
    let value = number(&report, &format!("/results/0/reliable/peers/{side}/bytes_each"))?;
    let detail = report.pointer("/results/0/reliable/peers").cloned().unwrap_or_default();
    Ok(Sample { value, detail })
}

fn report(setup: &Setup, transfer: &Transfer, stop: &Stop) -> Result<Value, Failure> {
    // Ten thousand sessions take some seconds.
    let time = match (transfer.count, &transfer.wan) {
        // The slowest way to mend a loss takes some round trips with each message, and a message what it takes at half the rate.
        (Some(count), Some(wan)) => {
            let each =
                20 * wan.round_trip.as_nanos() as u64 + 16_000_000_000 * transfer.size as u64 / wan.rate;
            Duration::from_nanos(each * count)
        }
        _ => transfer.time,
    };
    let busy = time + Duration::from_millis(u64::from(transfer.peers));
    let Some(wan) = &transfer.wan else {
        return run(setup, commands(setup, transfer, &setup.place.devices()), busy, stop);
    };
    let (_between, devices) = start_forwarder(setup, wan, stop)?;
    let [server, client] = commands(setup, transfer, &devices);
    let start = |name, line: Vec<OsString>| {
        Child::start(name, std::process::Command::new(&line[0]).args(&line[1..]), stop)
    };
    let mut server = start("the spraywire server", server)?;
    server.await_error(WAITING, START)?;
    let output = start("the spraywire client", client)?.finish(START + busy + END + 20 * wan.round_trip)?;
    server.finish(END)?;
    serde_json::from_str(&output).map_err(|e| Failure::Said(format!("spraywire's JSON cannot be read: {e}")))
}

/// A figure of the client's report, with what explains it.
pub(super) fn sample(report: &Value, what: &str) -> Result<Sample, Failure> {
    let at = "/results/0/client_to_server";
    let value = number(report, &format!("{at}/{what}"))?;
    if number(report, &format!("{at}/received"))? == 0.0 {
        return Err(Failure::Said("no message arrived".into()));
    }
    let get = |pointer: &str| report.pointer(pointer).cloned().unwrap_or_default();
    let detail = json!({
        "sent": get(&format!("{at}/sent")),
        "received": get(&format!("{at}/received")),
        "client": get("/results/0/reliable/client"),
        "server": get("/results/0/reliable/server"),
        "control_share": get("/results/0/reliable/control_share"),
        "peers": get("/results/0/reliable/peers"),
    });
    Ok(Sample { value, detail })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{test_setup, text};

    #[test]
    fn command_lines() {
        let setup = test_setup();
        let many = Transfer { peers: 1000, memory: 5 << 20, ..Transfer::new(&setup, 64) };
        let devices = ["a".to_owned(), "b".to_owned()];
        let [server, client] = commands(&setup, &many, &devices).map(|line| text(&line));
        assert_eq!(
            server,
            "spraywire bw --service=reliable --window=1048576 --port a --ip 192.0.2.1 --mtu 4200 --cores 2 --json --wait 20 --idle spin"
        );
        assert!(client.contains(" 192.0.2.1 --size=64 --duration=900ms --tx-depth=128 --rx-depth=512 --peers=1000 --memory=5242880 --port b"), "{client}");
        let raw = Transfer { raw: true, ..many };
        let [_, client] = commands(&setup, &raw, &devices).map(|line| text(&line));
        assert!(client.contains("--service=ud") && !client.contains("--peers"), "{client}");
        let answered = Transfer { both_ways: true, ..Transfer::new(&setup, 64) };
        let [server, client] = commands(&setup, &answered, &devices).map(|line| text(&line));
        assert!(client.contains(" --bidirectional ") && !server.contains("--bidirectional"), "{client}");
        let wan =
            Wan { seed: 7, burst: Some(8.0), ..Wan::new(1_000_000_000, Duration::from_millis(10), 0.05) };
        let (line, [left, right]) = forwarder(&setup, &wan);
        let line = line.join(" ");
        assert!(
            line.contains("--rate=1000000000 --delay=5000us --loss=0.05 --seed=7 --burst=8 --capacity"),
            "{line}"
        );
        assert!(!line.contains("--idle"), "it floats: {line}");
        let apart = Wan { apart: true, ..wan };
        let alone = forwarder(&setup, &apart).0.join(" ");
        assert!(alone.contains(" --cores=3 --idle=spin "), "{alone}");
        let cores = |wan: &Wan| [0, 1].map(|side| core(&setup, Some(wan), side));
        assert_eq!((cores(&wan), cores(&apart)), ([2, 3], [2, 2]));
        let socket = left.strip_prefix("net_memif0,role=client,socket=").unwrap();
        assert!(
            line.contains(&format!("net_memif0,role=server,socket={socket} ")) && left != right,
            "{line}"
        );
    }

    #[test]
    fn samples_keep_what_the_transport_did() {
        let report = json!({"results": [{
            "client_to_server": {"sent": 5, "received": 5, "goodput_bits_per_second": 7.5e9, "messages_per_second": 3.0},
            "reliable": {"control_share": 0.05, "client": {"retransmitted": 2}}}]});
        let one = sample(&report, "goodput_bits_per_second").unwrap();
        assert_eq!((one.value, &one.detail["client"]["retransmitted"]), (7.5e9, &json!(2)));
        assert_eq!(sample(&report, "messages_per_second").unwrap().value, 3.0);
        assert!(sample(&json!({}), "messages_per_second").is_err());
    }
}
