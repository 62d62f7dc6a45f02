//! Hostile frames to a program written for RDMA hardware, which a library preloaded into it makes an endpoint.

use super::{Bridge, KEPT, LIMIT, SEED, USUAL_QKEY};
use crate::stats::{fates, stats};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use testbed_hostile::kinds::KINDS;
use testbed_hostile::{Fate, Generator, Hostile, Target};
use testbed_net::{Process, Veth, eventually, veth};

/// Of each kind.
const EACH: usize = 40;
/// The first queue pair of a device.
const QPN: u32 = 0x1_0000;

/// Two ends of a ping-pong that does not end by itself, over the bridge; what they tell each other goes another way.
struct PingPong {
    server: Process,
    client: Process,
}

impl PingPong {
    fn start(bridge: &Bridge) -> PingPong {
        let side = |mut command: Command, host: u8, port: &str, to: &str| {
            command.env("SPRAYWIRE_RUNTIME_DIR", bridge.folder.path()).env_remove("RUST_LOG");
            command.args(["verbs", "--name", port, "--port", &format!("net_af_packet0,iface={port}")]);
            command.args(["--ip", &format!("10.9.0.{host}"), "--ip", &format!("fd09::{host}")]);
            let line = format!("ibv_ud_pingpong -g 0 -s 64 -n 100000000 -p 7470 {to}");
            Process::start(command.arg("--").args(line.split_whitespace()))
        };
        let bin = env!("CARGO_BIN_EXE_spraywire");
        let server = side(bridge.ns.command(bin), 1, "srv", "");
        let listens = || {
            let table = format!("/proc/{}/net/tcp", server.id());
            let tables = std::fs::read_to_string(&table).unwrap_or_default()
                + &std::fs::read_to_string(table + "6").unwrap_or_default();
            tables.contains(&format!(":{:04X} ", 7470))
        };
        assert!(eventually(LIMIT, listens), "{:?}", server.said());
        let client = side(bridge.cli.command(bin), 2, "cli", "10.77.0.1");
        PingPong { server, client }
    }

    /// The server as it is now.
    fn now(&self, bridge: &Bridge) -> Value {
        let endpoint = stats(bridge.folder.path(), "srv");
        assert!(endpoint.is_object(), "{:?} {:?}", self.server.said(), self.client.said());
        endpoint["workers"][0].clone()
    }

    /// Messages go on being received; the server then.
    fn goes_on(&self, bridge: &Bridge) -> Option<Value> {
        let received = |now: &Value| now["qps"][0]["received"].as_u64().unwrap_or_default();
        let before = received(&self.now(bridge));
        let mut now = Value::Null;
        let more = eventually(Duration::from_secs(10), || {
            now = self.now(bridge);
            received(&now) > before + 100
        });
        more.then_some(now)
    }
}

fn drops(worker: &Value) -> BTreeMap<String, u64> {
    let dropped = worker["ports"][0]["counters"]["dropped"].as_object().unwrap();
    dropped.iter().map(|(name, n)| (name.clone(), n.as_u64().unwrap())).filter(|(_, n)| *n > 0).collect()
}

#[test]
fn a_verbs_program_counts_each_kind_and_goes_on() {
    let Some(bridge) = Bridge::new("a_verbs_program_counts_each_kind_and_goes_on") else { return };
    std::fs::set_permissions(bridge.folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    veth((&bridge.ns, "m0"), (&bridge.cli, "m0"), Veth::default());
    bridge.ns.address("m0", "10.77.0.1/24");
    bridge.cli.address("m0", "10.77.0.2/24");
    let target = Target { qkey: USUAL_QKEY, ..bridge.target(QPN) };
    let kinds = KINDS.len();
    let all: Vec<Hostile> = Generator::new(SEED, target, |_| true).take(EACH * kinds).collect();
    let (decided, chance): (Vec<Hostile>, Vec<Hostile>) =
        all.into_iter().partition(|frame| matches!(frame.fate, Fate::Counted(_)));
    let mut want = BTreeMap::new();
    for frame in decided.iter().filter(|frame| frame.kind != KEPT) {
        let Fate::Counted(counter) = frame.fate else { continue };
        // What is answered or ignored is not told from what the two ends say to each other.
        if !matches!(counter, "delivered" | "neighbour" | "echo" | "ignored") {
            *want.entry(counter.to_owned()).or_insert(0u64) += 1;
        }
    }
    // A busy machine may leave the port unattended until its ring overflows, which ends a ping-pong and is not what is looked at here.
    let run = || {
        let both = PingPong::start(&bridge);
        assert!(eventually(LIMIT, || both.now(&bridge)["qps"][0]["received"].as_u64() > Some(100)));
        bridge.send_frames(&decided);
        let after = both.goes_on(&bridge)?;
        // Those whose fate is up to chance.
        bridge.send_frames(&chance);
        let last = both.goes_on(&bridge)?;
        let port = &last["ports"][0];
        assert_eq!(Some(fates(port)), port["counters"]["rx_packets"].as_u64(), "{port:#}");
        assert!(drops(&last).values().sum::<u64>() > drops(&after).values().sum::<u64>(), "{last:#}");
        (drops(&after).values().sum::<u64>() == want.values().sum::<u64>()).then(|| drops(&after))
    };
    let got = (0..3).find_map(|_| run()).expect("the port lost frames in each of three runs");
    assert_eq!(got, want, "seed {SEED:#x}");
}
