//! Hostile frames on a real port: each ends in the one counter that it must end in, none is delivered, and at full rate
//! they cost a transfer no more than as many harmless ones do.
//!
//! Needs root, for the network namespace.
#![cfg(feature = "dpdk")]

#[path = "hostile/reliable.rs"]
mod reliable;
#[path = "common/stats.rs"]
mod stats;
#[path = "hostile/strangers.rs"]
mod strangers;
#[path = "hostile/verbs.rs"]
mod verbs;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testbed_hostile::kinds::KINDS;
use testbed_hostile::{Fate, Generator, Hostile, Pace, Target, Wire};
use testbed_net::{Namespace, Process, Veth, veth};

/// What a step may take that usually takes a second.
const LIMIT: Duration = Duration::from_secs(120);
const SEED: u64 = 0x5eed_0bad;
/// The kind that an af_packet port never hands over: the kernel takes fragments for itself, to put them together again, since
/// the driver asks for that with PACKET_FANOUT_FLAG_DEFRAG.
const KEPT: &str = "ipv4_fragment";
const QPN: u32 = 0xab_cdef;
const QKEY: u32 = 0x1ee7_a11c;
/// The Q_Key of the reliable service, and of rdma-core's examples.
const USUAL_QKEY: u32 = 0x1111_1111;

/// Three ports on a bridge: `srv` and `cli` for two endpoints, `bad` for the frames.
struct Bridge {
    /// That of the bridge, of `srv` and of `bad`.
    ns: Namespace,
    /// That of `cli`. The driver's fanout groups have numbers made of process and interface, of which two in one namespace may
    /// be the same.
    cli: Namespace,
    folder: tempfile::TempDir,
    /// One flood at a time: they would measure each other.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Bridge {
    fn new(test: &str) -> Option<Bridge> {
        if !testbed_net::allowed(test) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (ns, cli) = (Namespace::new(), Namespace::new());
        for (owner, port) in [(&ns, "srv"), (&cli, "cli"), (&ns, "bad")] {
            veth((owner, port), (&ns, &format!("{port}.b")), Veth::default());
        }
        ns.bridge("br0", 1500, &["srv.b", "cli.b", "bad.b"]);
        // A bridge that filters IP for the kernel's tables would keep from us what is wrong with a header.
        ns.sh("for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done");
        // The bridge shall not learn the addresses that the frames claim to come from: there is no end of them.
        ns.sh("echo 0 > /sys/class/net/bad.b/brport/learning");
        Some(Bridge { ns, cli, folder: tempfile::tempdir().unwrap(), _alone: alone })
    }

    fn target(&self, qpn: u32) -> Target {
        let mac: Vec<u8> =
            self.ns.mac("srv").split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
        let mac = mac.try_into().unwrap();
        Target { mac, v4: "10.9.0.1".parse().unwrap(), v6: "fd09::1".parse().unwrap(), qpn, qkey: QKEY }
    }

    /// Starts `spraywire` on `srv` or `cli`.
    fn spraywire(&self, port: &str, args: &str) -> Process {
        let (ns, host) = if port == "srv" { (&self.ns, 1) } else { (&self.cli, 2) };
        let mut command = ns.command(env!("CARGO_BIN_EXE_spraywire"));
        command.args(args.split_whitespace()).env_remove("RUST_LOG");
        command.args(["--ip", &format!("10.9.0.{host}"), "--ip", &format!("fd09::{host}")]);
        command.args(["--port", &format!("net_af_packet0,iface={port}")]);
        Process::start(&mut command)
    }

    /// Starts a receiver that takes messages of one content only, with a report.
    fn receiver(&self) -> Receiver {
        let report = self.folder.path().join("report.json");
        let args = format!("ud recv -q -r 4096 --qpn {QPN} --qkey {QKEY} --verify random:7");
        let mut process = self.spraywire("srv", &format!("{args} --json={}", report.display()));
        process.wait_for("READY", LIMIT);
        Receiver { process, report }
    }

    /// Sends messages to the receiver, whose MAC address it is told: nobody asks for anything.
    fn send(&self, args: &str) -> Process {
        let mac = self.ns.mac("srv");
        let to = format!("10.9.0.1 --dmac {mac} --qpn {QPN} --qkey {QKEY} --pattern random:7 -s 100");
        self.spraywire("cli", &format!("ud send {to} {args}"))
    }

    fn messages(&self, count: u32) -> Process {
        self.send(&format!("-n {count} --rate 5kpps"))
    }

    /// As many as the port takes, until it is asked to end.
    fn endless_messages(&self) -> Process {
        self.send("-n 1G")
    }

    /// Sends frames at a rate that leaves nobody behind.
    fn send_frames(&self, frames: &[Hostile]) {
        let (open, frames) = (self.wire(), frames.to_vec());
        let sender = std::thread::spawn(move || {
            let (mut wire, mut pace) = (open(), Pace::new(Some(4000.0)));
            for frame in &frames {
                pace.wait();
                let sent = wire.send(&frame.frame).unwrap_or_else(|e| panic!("{}: {e}", frame.kind));
                assert!(sent, "the interface is full at this rate");
            }
        });
        sender.join().unwrap();
    }

    /// A thread's way onto the bridge.
    fn wire(&self) -> impl FnOnce() -> Wire + Send + 'static {
        let name = self.ns.name().to_owned();
        move || {
            let ns = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            Wire::open("bad").unwrap()
        }
    }
}

/// Resident memory of a process in KiB.
fn memory_of(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

struct Receiver {
    process: Process,
    report: std::path::PathBuf,
}

impl Receiver {
    /// Resident memory in KiB.
    fn memory(&self) -> u64 {
        memory_of(&self.process)
    }

    /// Its report once it has ended.
    fn stop(self) -> Value {
        serde_json::from_str(&self.stop_with_text()).unwrap()
    }

    fn stop_with_text(self) -> String {
        self.process.signal(rustix::process::Signal::TERM);
        let ended = self.process.end(LIMIT);
        assert_eq!(ended.code(), Some(130), "{ended:?}");
        std::fs::read_to_string(self.report).unwrap()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Every packet of a report is in one counter, by name; those of drops among the others.
fn counters(report: &Value) -> BTreeMap<String, u64> {
    let all = &report["counters"];
    let own = ["delivered", "neighbour", "echo", "ignored"].map(|n| (n.to_owned(), number(&all[n])));
    let dropped = all["dropped"].as_object().unwrap().iter().map(|(n, v)| (n.clone(), number(v)));
    let counters: BTreeMap<String, u64> = own.into_iter().chain(dropped).filter(|(_, n)| *n > 0).collect();
    assert_eq!(counters.values().sum::<u64>(), number(&all["rx_packets"]), "{all:#}");
    counters
}

/// Only what was sent to be delivered was delivered, and that intact.
fn nothing_misdelivered(report: &Value, sent: u64) {
    assert_eq!(report["summary"]["mismatches"], 0);
    assert_eq!(report["summary"]["messages"], report["counters"]["delivered"]);
    assert!(number(&report["summary"]["messages"]) <= sent);
    for message in report["results"].as_array().unwrap() {
        assert_eq!((&message["src"], &message["len"]), (&json!("10.9.0.2"), &json!(100)), "{message}");
    }
}

#[test]
fn each_kind_ends_in_its_counter() {
    /// Of each kind: as many as there are opcodes that are none of UD's.
    const EACH: usize = 254;
    const MESSAGES: u32 = 50;
    let Some(bridge) = Bridge::new("each_kind_ends_in_its_counter") else { return };
    let target = bridge.target(QPN);
    let decided = |kind: &str| !matches!(kind, "noise" | "bits_turned");
    let kinds = KINDS.iter().filter(|(kind, _)| decided(kind)).count();
    let frames: Vec<Hostile> = Generator::new(SEED, target, decided).take(EACH * kinds).collect();
    let mut want = BTreeMap::from([("delivered".to_owned(), u64::from(MESSAGES))]);
    for frame in frames.iter().filter(|frame| frame.kind != KEPT) {
        let Fate::Counted(counter) = frame.fate else { panic!("{frame:?}") };
        *want.entry(counter.to_owned()).or_default() += 1;
    }
    let run = || {
        let receiver = bridge.receiver();
        let before = bridge.ns.counter("srv", "rx_packets");
        bridge.send_frames(&frames);
        bridge.messages(MESSAGES).end(LIMIT).ok();
        std::thread::sleep(Duration::from_millis(500));
        let arrived = bridge.ns.counter("srv", "rx_packets") - before;
        let report = receiver.stop();
        eprintln!("{arrived} packets to the port, {} from it", report["counters"]["rx_packets"]);
        (report, arrived)
    };
    // A busy machine may leave the port unattended until its ring overflows; that is not what is looked at here.
    let (report, _) = (0..3)
        .map(|_| run())
        .find(|(report, arrived)| report["counters"]["rx_packets"] == arrived - EACH as u64)
        .expect("the port lost frames in each of three runs");
    nothing_misdelivered(&report, MESSAGES.into());
    let mut got = counters(&report);
    // The sender also asks for and announces its two addresses, and announces them again if it runs for two seconds.
    let announced = got["neighbour"] - want["neighbour"];
    assert!(matches!(announced, 4 | 6), "{announced} announcements");
    got.insert("neighbour".to_owned(), want["neighbour"]);
    assert_eq!(got, want, "seed {SEED:#x}");
}

/// A thread that sends the same frames over and over, as fast as the interface takes them.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(bridge: &Bridge, frames: &Arc<Vec<Hostile>>) -> Flood {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (open, frames) = (bridge.wire(), frames.clone());
        let shared = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            let (stop, sent) = shared;
            let mut wire = open();
            for frame in frames.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if wire.send(&frame.frame).unwrap_or_else(|e| panic!("{}: {e}", frame.kind)) {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Flood { stop, sent, thread: Some(thread) }
    }

    /// Ends it; the frames that were sent.
    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn frames(target: Target, wanted: impl Fn(&str) -> bool) -> Arc<Vec<Hostile>> {
    Arc::new(Generator::new(SEED, target, wanted).take(100 * KINDS.len()).collect())
}

#[test]
fn a_flood_is_counted_and_leaves_memory_and_messages_alone() {
    const MESSAGES: u32 = 20_000;
    let Some(bridge) = Bridge::new("a_flood_is_counted_and_leaves_memory_and_messages_alone") else { return };
    let receiver = bridge.receiver();
    let before = bridge.ns.counter("srv", "rx_packets");
    let flood = Flood::start(&bridge, &frames(bridge.target(QPN), |_| true));
    let messages = bridge.messages(MESSAGES);
    std::thread::sleep(Duration::from_secs(1));
    let memory = receiver.memory();
    messages.end(LIMIT).ok();
    let grown = receiver.memory().saturating_sub(memory);
    let sent = flood.end();
    std::thread::sleep(Duration::from_millis(500));
    let arrived = bridge.ns.counter("srv", "rx_packets") - before;
    let report = receiver.stop();
    let counters = counters(&report);
    nothing_misdelivered(&report, MESSAGES.into());
    let received = number(&report["counters"]["rx_packets"]);
    eprintln!(
        "{sent} hostile frames, {arrived} packets to the port, {received} from it: {counters:?}; {grown} KiB grown"
    );
    // What the ring of the port has no room for, the kernel drops before the driver sees it.
    assert!(received <= arrived && sent > 10_000, "{received} of {arrived}, {sent} sent");
    // As many kinds of counters as the frames have, and messages among them.
    let fates: std::collections::BTreeSet<&str> = frames(bridge.target(QPN), |_| true)
        .iter()
        .filter(|f| f.kind != KEPT)
        .filter_map(|f| if let Fate::Counted(name) = f.fate { Some(name) } else { None })
        .collect();
    for fate in fates.into_iter().chain(["delivered"]) {
        assert!(counters.contains_key(fate), "{fate}: {counters:?}");
    }
    assert!(grown < 1024, "{grown} KiB more memory after {received} packets");
}

/// What is needed of a report with very many messages.
#[derive(serde::Deserialize)]
struct Arrivals {
    results: Vec<Arrival>,
}

#[derive(serde::Deserialize)]
struct Arrival {
    time_ns: u64,
}

#[test]
fn a_transfer_keeps_what_the_port_leaves_it() {
    let Some(bridge) = Bridge::new("a_transfer_keeps_what_the_port_leaves_it") else { return };
    let hostile = frames(bridge.target(QPN), |_| true);
    // What the port leaves: the same frames by number, length and station, which the port has to hand over too, for the UDP port beside
    // ours; the kernel, which looks at each before us, has as much work with them. Those that are no UDP are of a protocol that no
    // endpoint looks into (an EtherType for experiments, of IEEE 802).
    let harmless = hostile.iter().cloned().map(|mut hostile| {
        let frame = &mut hostile.frame;
        let port = match (frame.get(12..14), frame.get(23), frame.get(20)) {
            (Some([0x08, 0x00]), Some(17), _) => 36..38,
            (Some([0x86, 0xdd]), _, Some(17)) => 56..58,
            _ => 0..0,
        };
        match frame.get_mut(port).filter(|place| place.len() == 2) {
            Some(place) => place.copy_from_slice(&4790u16.to_be_bytes()),
            None => frame[12..14].copy_from_slice(&[0x88, 0xb5]),
        }
        hostile
    });
    let harmless = Arc::new(harmless.collect());
    // Whoever else computes on this machine is in the ratio too: what is too slow is so in each of three measurements.
    let enough = (0..3).any(|_| kept(&bridge, &hostile, &harmless) >= 0.9);
    assert!(enough, "hostile frames cost more than the port leaves in each measurement");
}

/// Messages that arrive beside hostile frames at full rate, for each that arrives beside as many harmless ones: the median of
/// slices of one transfer, in pairs.
fn kept(bridge: &Bridge, hostile: &Arc<Vec<Hostile>>, harmless: &Arc<Vec<Hostile>>) -> f64 {
    const PAIRS: usize = 30;
    const SLICE: Duration = Duration::from_millis(150);
    /// At the beginning of a slice the port still holds frames of the one before.
    const SETTLE: Duration = Duration::from_millis(30);
    let (hostile, harmless) = (hostile.clone(), harmless.clone());
    let receiver = bridge.receiver();
    let ready = Instant::now();
    let sender = bridge.endless_messages();
    std::thread::sleep(Duration::from_secs(1));
    let open = bridge.wire();
    let flood = std::thread::spawn(move || {
        let mut wire = open();
        let mut sent = 0u64;
        let mut slice = |frames: &[Hostile]| {
            let start = Instant::now();
            for frame in frames.iter().cycle().take_while(|_| start.elapsed() < SLICE) {
                sent += u64::from(wire.send(&frame.frame).unwrap_or_else(|e| panic!("{}: {e}", frame.kind)));
            }
            (start + SETTLE - ready, start + SLICE - ready)
        };
        // Each goes first in turn: a machine that grows faster or slower meanwhile favours neither.
        let mut pair = |number: usize| {
            if number.is_multiple_of(2) {
                let first = slice(&hostile);
                (first, slice(&harmless))
            } else {
                let first = slice(&harmless);
                (slice(&hostile), first)
            }
        };
        ((0..PAIRS).map(&mut pair).collect::<Vec<_>>(), sent)
    });
    let (slices, sent) = flood.join().unwrap();
    sender.signal(rustix::process::Signal::TERM);
    assert_eq!(sender.end(LIMIT).code(), Some(130));
    let text = receiver.stop_with_text();
    let arrivals: Vec<u64> =
        serde_json::from_str::<Arrivals>(&text).unwrap().results.iter().map(|a| a.time_ns).collect();
    let within = |(from, to): (Duration, Duration)| {
        let before = |limit: Duration| arrivals.partition_point(|t| u128::from(*t) < limit.as_nanos());
        (before(to) - before(from)) as f64
    };
    let pairs: Vec<(f64, f64)> = slices.iter().map(|(bad, good)| (within(*bad), within(*good))).collect();
    let mut ratios: Vec<f64> = pairs.iter().map(|(bad, good)| bad / good.max(1.0)).collect();
    ratios.sort_by(f64::total_cmp);
    eprintln!("{} messages, {sent} frames; hostile and harmless: {pairs:?}; {ratios:.2?}", arrivals.len());
    assert!(pairs.iter().all(|(bad, _)| *bad > 0.0), "the transfer stood still: {pairs:?}");
    ratios[PAIRS / 2]
}
