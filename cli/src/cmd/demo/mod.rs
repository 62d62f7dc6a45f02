//! `spraywire demo`: the main job with nothing prepared. Two endpoint processes over shared memory, a sweep of sizes, one
//! table.
//!
//! This process is the client. It starts itself again as the server ([`server`]), so that the two have nothing in common
//! but the port between them.

mod child;
mod cores;
pub mod server;
mod table;

use super::measure::{Job, MeasureArgs, Progress, WorkerKind, ib_mtu, open_config, seed, with_bench};
use crate::args::{CoresArg, EalArg, EndpointArgs, EntropyArg, Idle, NeighbourFrom, OutputArgs, PortSpec};
use crate::endpoint::{CLIENT_IP, SERVER_IP};
use crate::error::{Error, Exit};
use crate::reliable::{self, Audience, ScaleArgs, Service, ServiceArgs, Wish};
use crate::rendezvous::message::{TestKind, TestSpec};
use crate::report::numbers::{Bytes, Time};
use crate::report::{Document, JsonTarget};
use crate::signal::{self, Stop};
use crate::traffic::drive::Drive;
use crate::traffic::session::{Bench, Client, Side, TestResult, Watch, check_spec, message_size};
use crate::units;
use child::ServerProcess;
use clap::Args;
use cores::Cores;
use roce_proto::types::{Mtu, PKey};
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use table::Row;

const AFTER: &str = "\
Two processes exchange messages in RoCEv2 packets over a net_memif port, which is shared memory: no root, no NIC, no hugepages. For \
each size, first throughput, then latency. Rates are those of receiver completions; latencies are half of the round trip, with one \
message in flight. Drops are packets that the receiver did not take, by reason; every ICRC is made and checked. The messages are \
reliable, and the table says how many segments were sent again; with --service ud they are raw UD, a packet each.

Exit code 1: packets with a wrong ICRC came, or messages were lost that nobody counted as dropped.

Examples:
  spraywire demo                             64 B, 4 KiB, 64 KiB and 1 MiB, a second for each test
  spraywire demo --sizes 64,4k -D 5          two sizes, five seconds for each test
  spraywire demo --service ud                raw UD: 64 B, 256 B, 1 KiB and 4 KiB
  spraywire demo --service ud --worker thread  workers in threads of their own, behind queues
  spraywire demo --pcap demo.pcap -D 20ms    look at the packets: spraywire inspect demo.pcap
  spraywire demo --json                      the same as JSON";

/// Arguments of `demo`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = AFTER)]
pub struct DemoArgs {
    /// Which service carries the messages
    #[arg(long, value_enum, default_value_t = Service::Reliable)]
    pub service: Service,

    /// Message sizes in bytes; 64,4k,64k,1M if not given, over raw UD 64,256,1k,4k
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = units::size)]
    pub sizes: Vec<u64>,

    /// How long each test lasts: one of throughput and one of latency for each size
    #[arg(short = 'D', long, visible_alias = "seconds", value_name = "TIME", value_parser = units::duration)]
    #[arg(default_value = "1")]
    #[serde(rename = "duration_s", serialize_with = "units::seconds")]
    pub duration: Duration,

    /// Where the workers run
    #[arg(long, value_enum, default_value_t = WorkerKind::Inline)]
    pub worker: WorkerKind,

    /// IB MTU of the ports: 256, 512, 1024, 2048 or 4096
    #[arg(short = 'm', long = "ib-mtu", value_name = "BYTES", value_parser = ib_mtu, default_value = "4096")]
    #[serde(serialize_with = "mtu_bytes")]
    pub ib_mtu: Mtu,

    /// Cores to run on, such as 0,2-3: the first half for the client, the other for the server
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoresArg>,

    /// What the poll loops do in rounds without work
    #[arg(long, value_enum, default_value_t = Idle::Backoff, value_name = "HOW")]
    pub idle: Idle,

    /// More arguments for DPDK's EAL, as one word, for both sides
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, value_parser = eal_text)]
    pub eal: Option<String>,

    /// Write every frame that the client sends or receives to this pcap file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

/// The words are handed on to the server process as they were written, so only their form is looked at.
fn eal_text(text: &str) -> Result<String, String> {
    text.parse::<EalArg>().map(|_| text.to_owned())
}

fn mtu_bytes<S: serde::Serializer>(mtu: &Mtu, serializer: S) -> Result<S::Ok, S::Error> {
    mtu.bytes().serialize(serializer)
}

/// Sends outstanding and receives posted: `bw`'s.
const DEPTHS: (u32, u32) = (128, 512);

/// Time for the server to start, and for the two to meet: DPDK starts within a second on a machine that does nothing else.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Sizes if none were asked for.
const SIZES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// The same over raw UD, where a message is a packet.
const UD_SIZES: [u64; 4] = [64, 256, 1 << 10, 4 << 10];

impl DemoArgs {
    /// With the sizes that are meant if none were given.
    fn filled(&self) -> DemoArgs {
        let mut filled = self.clone();
        if filled.sizes.is_empty() {
            filled.sizes = match self.service {
                Service::Reliable => SIZES,
                Service::Ud => UD_SIZES,
            }
            .to_vec();
        }
        filled
    }

    /// The client's end, which the server's mirrors.
    fn client(&self, socket: &str, cores: &Cores) -> Result<MeasureArgs, Error> {
        let port: PortSpec = device("client", socket).parse().map_err(Error::failed)?;
        let eal = self.eal.as_deref().map(str::parse).transpose().map_err(Error::usage)?;
        Ok(MeasureArgs {
            host: Some(SERVER_IP.to_string()),
            ib_mtu: Some(self.ib_mtu),
            worker: self.worker,
            service: ServiceArgs { service: self.service, ..ServiceArgs::default() },
            wait: START_LIMIT,
            endpoint: EndpointArgs {
                entropy_range: EntropyArg::default(),
                ports: vec![port],
                ip: vec![crate::args::IpArg { addr: CLIENT_IP, prefix: None }],
                gateway: Vec::new(),
                vlan: None,
                mtu: None,
                pkey: PKey::DEFAULT,
                neighbour: Vec::new(),
                neighbour_from: NeighbourFrom::Wire,
                cores: cores.client(),
                idle: self.idle,
                eal,
                pcap: self.pcap.clone(),
                observe: crate::observe::ObserveArgs::default(),
            },
            output: OutputArgs::default(),
        })
    }

    /// Both tests of every size.
    ///
    /// # Errors
    /// A size that the MTU does not carry.
    fn specs(&self) -> Result<Vec<[TestSpec; 2]>, Error> {
        self.sizes.iter().map(|&size| self.pair(size)).collect()
    }

    fn pair(&self, size: u64) -> Result<[TestSpec; 2], Error> {
        let bw = TestSpec {
            kind: TestKind::Bw,
            size: message_size(size)?,
            qps: 1,
            iters: None,
            duration_ms: Some(self.duration.as_millis() as u64),
            tx_depth: DEPTHS.0,
            rx_depth: DEPTHS.1,
            bidirectional: false,
            rate: None,
        };
        let most = match self.service {
            Service::Reliable => u32::MAX as usize,
            Service::Ud => self.ib_mtu.bytes(),
        };
        check_spec(&bw, most).map_err(Error::usage)?;
        let lat = TestSpec { kind: TestKind::Lat, tx_depth: 64, rx_depth: 64, ..bw.clone() };
        Ok([bw, lat])
    }
}

/// The device of one side; both name the same abstract socket, which leaves no file.
fn device(role: &str, socket: &str) -> String {
    format!("net_memif0,role={role},id=0,socket={socket}")
}

/// Runs the command.
pub fn run(args: &DemoArgs, verbosity: u8) -> Result<Exit, Error> {
    let args = &args.filled();
    let stop = signal::install()?;
    let json_target = args.output.json();
    json_target.check_beside(args.pcap.as_ref())?;
    let specs = args.specs()?;
    let cores = Cores::choose(args.cores.as_ref(), args.worker)?;
    let socket = format!("spraywire-demo-{}-{:x}", std::process::id(), seed() & 0xffff);
    let mut progress = Progress::new();
    progress.show("starting the server process", true);
    let mut server = ServerProcess::start(args, &socket, &cores, verbosity)?;
    let mut rows = Vec::new();
    let outcome = server.wait_ready(START_LIMIT, &stop).and_then(|()| {
        let client = args.client(&socket, &cores)?;
        let job =
            ClientJob { specs: &specs, duration: args.duration, rows: &mut rows, progress: &mut progress };
        match args.service {
            Service::Ud => with_bench(&client, &open_config(&client, verbosity), &stop, job),
            Service::Reliable => job.reliable(&client, verbosity, &stop),
        }
    });
    progress.clear();
    let outcome = match outcome {
        // The client speaks of silence; that its server is dead says more.
        Err(e) if e.exit == Exit::Failed => Err(server.died().unwrap_or(e)),
        Ok(()) => server.end(),
        other => other,
    };
    let interrupted = stop.requested();
    let about = About { args, cores: &cores, server: server.id() };
    report(&about, &rows, interrupted, outcome.is_ok(), &json_target)?;
    match outcome {
        _ if interrupted => Ok(Exit::Interrupted),
        Err(e) => Err(e),
        Ok(()) => verdict(&rows),
    }
}

/// Whether everything that was sent is accounted for.
fn verdict(rows: &[Row]) -> Result<Exit, Error> {
    let icrc: u64 = rows.iter().map(Row::icrc_errors).sum();
    if icrc > 0 {
        return Err(Error::failed(format_args!("{icrc} packets came with a wrong ICRC"))
            .hint("nothing between the two processes may change a packet: this is a fault of the program or the memory"));
    }
    let unexplained: u64 = rows.iter().map(Row::unexplained).sum();
    if unexplained > 0 {
        return Err(Error::failed(format_args!(
            "{unexplained} messages were lost, and no drop counter knows of them"
        )));
    }
    Ok(Exit::Ok)
}

/// What the figures were made with.
struct About<'a> {
    args: &'a DemoArgs,
    cores: &'a Cores,
    server: u32,
}

impl About<'_> {
    fn line(&self) -> String {
        let worker = match self.args.worker {
            WorkerKind::Inline => "inline",
            WorkerKind::Thread => "in threads of their own",
        };
        format!(
            "Two processes ({} and {}) over net_memif (shared memory), IB MTU {}, workers {worker} on {}, {}; latencies are \
             half of the round trip.",
            std::process::id(),
            self.server,
            self.args.ib_mtu.bytes(),
            self.cores,
            dpdk::Eal::version()
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "driver": "net_memif",
            "ib_mtu": self.args.ib_mtu.bytes(),
            "worker": self.args.worker,
            "client_cores": self.cores.client().unwrap_or_default(),
            "server_cores": self.cores.server().unwrap_or_default(),
            "dpdk": dpdk::Eal::version(),
        })
    }
}

/// JSON first: a text that nobody reads to its end should not cost the file.
fn report(
    about: &About<'_>,
    rows: &[Row],
    interrupted: bool,
    ended_well: bool,
    target: &JsonTarget,
) -> Result<(), Error> {
    let mut document = Document::new("demo", about.args);
    document.set("environment", &about.json());
    document.set("interrupted", &interrupted);
    document.set("ok", &(ended_well && !interrupted && verdict(rows).is_ok()));
    document.set("results", &rows.iter().map(Row::json).collect::<Vec<_>>());
    document.write(target)?;
    if rows.is_empty() {
        return Ok(());
    }
    let mut out = target.text();
    for line in table::table(rows).to_string().lines() {
        out.line(line)?;
    }
    for drops in rows.iter().filter_map(Row::drops_text) {
        out.line(drops)?;
    }
    out.line("")?;
    out.line(about.line())?;
    out.flush()
}

struct ClientJob<'a> {
    specs: &'a [[TestSpec; 2]],
    duration: Duration,
    rows: &'a mut Vec<Row>,
    progress: &'a mut Progress,
}

impl Job for ClientJob<'_> {
    type Out = ();

    fn run<D: Drive>(mut self, bench: Bench<D>) -> Result<(), Error> {
        let mut client = Client::new(bench, SERVER_IP, seed(), START_LIMIT);
        let outcome = self.sweep(&mut client);
        // The server is told in any case, so that it does not have to wait for our silence.
        let bye = client.bye();
        outcome.and(bye)
    }
}

impl Watch for ClientJob<'_> {
    fn waiting(&mut self, host: std::net::IpAddr, elapsed: Duration) {
        self.progress.waiting(host, elapsed);
    }

    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        self.progress.progress(spec, messages, elapsed);
    }
}

impl Audience for ClientJob<'_> {
    fn begins(&mut self, nth: usize, spec: &TestSpec) {
        self.announce(nth, spec);
    }

    fn result(&mut self, result: TestResult) -> Result<(), Error> {
        self.keep(result);
        Ok(())
    }
}

impl ClientJob<'_> {
    /// The sweep over the reliable service.
    fn reliable(mut self, client: &MeasureArgs, verbosity: u8, stop: &Stop) -> Result<(), Error> {
        let specs: Vec<TestSpec> = self.specs.iter().flatten().cloned().collect();
        let wish = Wish { specs: &specs, scale: ScaleArgs::default(), mix: None, kind: None };
        reliable::run(client, &open_config(client, verbosity), &wish, stop, &mut self).map(|_| ())
    }

    fn announce(&mut self, nth: usize, spec: &TestSpec) {
        self.progress.prefix(format!("[{}/{}] ", nth + 1, self.specs.len() * 2));
        let what = if spec.kind == TestKind::Bw { "throughput" } else { "latency" };
        let text = format!("{what} of {} for {}", Bytes(spec.size.into()), Time(self.duration));
        self.progress.show(&text, true);
    }

    fn sweep<D: Drive>(&mut self, client: &mut Client<D>) -> Result<(), Error> {
        let specs = self.specs;
        for (i, spec) in specs.iter().flatten().enumerate() {
            self.announce(i, spec);
            let result = client.run(spec, self.progress)?.whole()?;
            let interrupted = result.interrupted;
            self.keep(result);
            if interrupted {
                break;
            }
        }
        Ok(())
    }

    fn keep(&mut self, result: TestResult) {
        match result.spec.kind {
            _ if result.failure.is_some() => {}
            // Of one that a signal ended before the server could say what came there is no row.
            TestKind::Bw if result.known(Side::Server).is_none() => {}
            TestKind::Bw => self.rows.push(Row { bw: result, lat: None }),
            TestKind::Lat => {
                if let Some(row) = self.rows.last_mut() {
                    row.lat = Some(result);
                }
            }
        }
    }
}
