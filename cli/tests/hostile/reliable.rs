//! Forged packets of the reliable service at full rate, and replays of its own, while it carries a transfer.

use super::{Bridge, LIMIT, SEED, USUAL_QKEY, memory_of, number};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testbed_hostile::reliable::{Known, forged, known};
use testbed_hostile::{Target, listen};

/// Where `bw` serves the reliable service.
const QPN: u32 = 0x53_5058;
/// Frames that are sent over and over.
const FRAMES: usize = 6_000;

/// What one transfer came to.
struct Transfer {
    /// Frames that were sent beside it.
    flood: u64,
    /// KiB that the server grew by in a second and a half of the flood.
    grown: u64,
    /// The client's report of it.
    result: Value,
}

/// Forged packets, and among them some of the session's own, as they were sent.
fn hostile(to: &Target, session: &Known, captured: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    (0..FRAMES as u64)
        .map(|n| match n % 4 {
            3 => captured[n as usize / 4 % captured.len()].clone(),
            _ => forged(&mut rng, to, session, n - n / 4),
        })
        .collect()
}

/// A transfer of some seconds beside frames at full rate: hostile ones, or as many that nobody looks into.
fn transfer(bridge: &Bridge, harmful: bool) -> Transfer {
    let sent = bridge.folder.path().join("client.json");
    let mut server = bridge.spraywire("srv", "bw");
    server.wait_for("waiting", LIMIT);
    let to = Target { qkey: USUAL_QKEY, ..bridge.target(QPN) };
    let (open, stop, count) = (bridge.wire(), AtomicBool::new(false), AtomicU64::new(0));
    let name = bridge.ns.name().to_owned();
    let mut grown = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wire = open();
            let (mut captured, mut session) = (Vec::new(), None);
            listen("cli.b", LIMIT, |frame| {
                let of = known(frame, &to);
                if of.is_some() {
                    session = of;
                    captured.push(frame.to_vec());
                }
                captured.len() < 100
            })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
            let session = session.expect("a session was seen");
            assert_eq!(session.peer, Ipv4Addr::new(10, 9, 0, 2));
            let mut frames = hostile(&to, &session, &captured);
            if !harmful {
                // The UDP port beside ours: the kernel, which looks at each frame before us, has as much work with it.
                frames.iter_mut().for_each(|frame| frame[36..38].copy_from_slice(&4790u16.to_be_bytes()));
            }
            for frame in frames.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                count.fetch_add(u64::from(wire.send(frame).unwrap()), Ordering::Relaxed);
            }
        });
        let args = format!("bw 10.9.0.1 -s 64k -D 2400ms --json={}", sent.display());
        let client = bridge.spraywire("cli", &args);
        std::thread::sleep(Duration::from_millis(500));
        let memory = memory_of(&server);
        std::thread::sleep(Duration::from_millis(1500));
        grown = memory_of(&server).saturating_sub(memory);
        let ended = client.end(LIMIT);
        stop.store(true, Ordering::Relaxed);
        ended.ok();
    });
    server.end(LIMIT).ok();
    let report: Value = serde_json::from_str(&std::fs::read_to_string(sent).unwrap()).unwrap();
    Transfer { flood: count.into_inner(), grown, result: report["results"][0].clone() }
}

impl Transfer {
    fn goodput(&self) -> f64 {
        self.result["client_to_server"]["goodput_bits_per_second"].as_f64().unwrap()
    }

    /// What the server's engine dropped for a reason.
    fn dropped(&self, reason: &str) -> u64 {
        self.result["reliable"]["server"]["dropped"][reason].as_u64().unwrap_or(0)
    }
}

/// Whether everything is as it must be beside hostile frames, whatever the speed.
fn check(transfer: &Transfer) {
    let result = &transfer.result;
    let way = &result["client_to_server"];
    assert!(number(&way["received"]) > 0);
    assert_eq!((&way["received"], &way["lost"]), (&way["sent"], &Value::from(0)), "{result:#}");
    for reason in ["malformed", "unknown_session", "foreign_source", "duplicate", "bad_cookie"] {
        assert!(transfer.dropped(reason) > 100, "{reason}: {result:#}");
    }
    // Answers to strangers are limited to 10,000 a second and 64.
    let sent = &result["reliable"]["server"]["sent"];
    let answers: u64 = ["cookie", "reset", "refuse"].iter().filter_map(|kind| sent[kind].as_u64()).sum();
    let seconds = number(&way["elapsed_ns"]) as f64 / 1e9 + 1.0;
    assert!((answers as f64) < 10_000.0 * seconds + 64.0, "{answers} answers in {seconds} s");
    // The first use of buffers and of tables' places makes it grow by some MiB in all and in the end, with and without hostile frames.
    // There are 150,000 of them or more in that time: 64 bytes kept of each would be more than this.
    assert!(transfer.grown < 8192, "{} KiB more memory", transfer.grown);
}

#[test]
fn a_reliable_transfer_keeps_what_the_port_leaves_it() {
    const PAIRS: usize = 3;
    let Some(bridge) = Bridge::new("a_reliable_transfer_keeps_what_the_port_leaves_it") else { return };
    let kept = || {
        let pair = |number: usize| {
            // Each goes first in turn: a machine that grows faster or slower meanwhile favours neither.
            let first = transfer(&bridge, number.is_multiple_of(2));
            let second = transfer(&bridge, !number.is_multiple_of(2));
            let (bad, good) = if number.is_multiple_of(2) { (first, second) } else { (second, first) };
            check(&bad);
            let ratio = bad.goodput() / good.goodput();
            let [bad_rate, good_rate] = [&bad, &good].map(|t| t.goodput() / 1e6);
            eprintln!(
                "{bad_rate:.0} beside {} hostile, {good_rate:.0} Mb/s beside {} others",
                bad.flood, good.flood
            );
            ratio
        };
        let mut ratios: Vec<f64> = (0..PAIRS).map(pair).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[PAIRS / 2]
    };
    // Whoever else computes on this machine is in the ratio too: what is too slow is so in each of three measurements.
    assert!(
        (0..3).any(|_| kept() >= 0.9),
        "hostile packets cost more than the port leaves in each measurement"
    );
}
