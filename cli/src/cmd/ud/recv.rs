//! `spraywire ud recv`.

use super::pattern::{Mismatch, Pattern, messages};
use super::{Time, UdWorker, counters_json, drops, link_line, text, with_worker};
use crate::args::{EndpointArgs, OutputArgs};
use crate::cmd::measure::ib_mtu;
use crate::endpoint::{OpenConfig, Role};
use crate::error::{Error, Exit};
use crate::report::hexdump::Hexdump;
use crate::report::json::Stream;
use crate::report::{Out, numbers::plural};
use crate::signal::{self, Stop};
use crate::units;
use clap::Args;
use dataplane::cq::{Completion, Family, WcOpcode, WcStatus};
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::{PortIo, PortState};
use dataplane::qp::{CqKey, GRH_LEN, QpConfig, QpKey, RecvWr};
use roce_proto::types::{Mtu, QKey, Qpn};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const AFTER: &str = "\
Prints a READY line first: queue pair number, Q_Key, P_Key, addresses, MAC address and IB MTU, for the sender to use. Then a \
line for each message. Exit code 1 if fewer than -n came in time, or one was not as --verify wants it.

Examples:
  spraywire ud recv -n 1
      the other side: spraywire ud send 192.0.2.1 --qpn 0x10000
  spraywire ud recv --qpn 0x123456 --qkey 0x11111111 -t 10 -n 100 --verify incr
  spraywire ud recv --port net_af_packet0,iface=veth0 --ip 10.0.0.2
  spraywire ud recv --port 0000:01:00.0 --ip 10.0.0.2 --mtu 4200 --pcap received.pcap";

/// Arguments of `ud recv`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct RecvArgs {
    /// Number of the queue pair; the first free one from 0x10000 if not given
    #[arg(short = 'Q', long, value_name = "QPN", value_parser = units::qpn)]
    pub qpn: Option<Qpn>,

    /// Q_Key of the queue pair
    #[arg(short = 'k', long, value_name = "KEY", default_value = "0x11111111", value_parser = units::qkey)]
    pub qkey: QKey,

    /// End after so many messages
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = units::count)]
    pub count: Option<u64>,

    /// End after this time
    #[arg(short = 't', long, value_name = "TIME", value_parser = units::duration)]
    pub time: Option<Duration>,

    /// Check each message: zero, incr, random, random:SEED, hex:…, text:…
    #[arg(long, value_name = "PATTERN")]
    pub verify: Option<Pattern>,

    /// Bytes of each message to show; none with --verify
    #[arg(short = 'x', long, value_name = "BYTES", value_parser = units::size)]
    pub hex: Option<u64>,

    /// No line for each message
    #[arg(short, long)]
    pub quiet: bool,

    /// Receives posted at a time
    #[arg(short = 'r', long, value_name = "COUNT", default_value_t = 512)]
    #[arg(value_parser = depth)]
    pub rx_depth: u32,

    /// IB MTU of the port: 256, 512, 1024, 2048 or 4096; the largest that fits if not given
    #[arg(short = 'm', long = "ib-mtu", value_name = "BYTES", value_parser = ib_mtu)]
    pub ib_mtu: Option<Mtu>,

    /// The port.
    #[command(flatten)]
    pub endpoint: EndpointArgs,

    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A depth of the receive queue.
fn depth(text: &str) -> Result<u32, String> {
    let fits = |n: &u32| (1..=65_536).contains(n);
    units::how_many(text).ok().filter(fits).ok_or_else(|| format!("`{text}` is no depth: write 1 to 65536"))
}

impl RecvArgs {
    fn parameters(&self) -> Value {
        json!({
            "qpn": self.qpn.map(Qpn::get),
            "qkey": self.qkey.0,
            "count": self.count,
            "time_s": self.time.map(|t| t.as_secs_f64()),
            "verify": self.verify,
            "rx_depth": self.rx_depth,
            "ib_mtu": self.ib_mtu.map(Mtu::bytes),
            "endpoint": self.endpoint,
        })
    }

    /// Bytes of each message that are shown.
    fn shown(&self) -> usize {
        let default = if self.verify.is_some() { 0 } else { 32 };
        self.hex.map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX))
    }
}

/// Runs the command.
pub fn run(args: &RecvArgs, verbosity: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    args.output.json().check_beside(args.endpoint.pcap.as_ref())?;
    let config =
        OpenConfig { ib_mtu: args.ib_mtu, measures: false, ..OpenConfig::new(Role::Server, verbosity) };
    with_worker(&args.endpoint, &config, &stop, |worker| {
        let out = text(&args.output);
        let json = Stream::begin(&args.output.json(), "ud-recv", &args.parameters())?;
        receive(worker, args, args.endpoint.idle.policy(), out, json, &stop)
    })
}

/// What came.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    messages: u64,
    bytes: u64,
    mismatches: u64,
}

/// Receives over any worker until the count is reached, time is over, or a stop is asked for.
pub(super) fn receive<I: PortIo>(
    worker: &mut UdWorker<I>,
    args: &RecvArgs,
    idle: IdlePolicy,
    mut out: Out,
    mut json: Stream,
    stop: &Stop,
) -> Result<Exit, Error> {
    let depth = args.rx_depth as usize;
    let cq = worker.create_cq(depth);
    let config = QpConfig { qpn: args.qpn, qkey: args.qkey, recv_depth: args.rx_depth, ..QpConfig::new(cq) };
    let qp = worker.create_qp(&config).map_err(Error::usage)?;
    let mtu = worker.ib_mtu(0);
    for wr_id in 0..depth as u64 {
        post(worker, qp, wr_id, vec![0; GRH_LEN + mtu])?;
    }
    out.line(ready(worker, qp, args, mtu))?;

    let time = Time::default();
    let mut idle = Idle::new(idle);
    let mut tally = Tally::default();
    let mut gone = None;
    let enough = |tally: &Tally| args.count.is_some_and(|n| tally.messages >= n);
    let port = worker.watch(0);
    while !enough(&tally) && !stop.requested() && args.time.is_none_or(|limit| time.elapsed() < limit) {
        let busy = worker.poll(time.clock.now()).any();
        while !enough(&tally)
            && let Some(completion) = worker.cq(cq).and_then(|cq| cq.pop())
        {
            take(worker, qp, args, completion, &mut tally, time, &mut out, &mut json)?;
        }
        if port.as_ref().is_some_and(|port| port.state() == PortState::Gone) {
            gone = Some(Error::port_gone());
            break;
        }
        idle.after_round(busy);
    }
    let exit = finish(worker, (qp, cq), args, tally, time, out, json, stop)?;
    // What came before is reported all the same.
    gone.map_or(Ok(exit), Err)
}

fn post<I: PortIo>(worker: &mut UdWorker<I>, qp: QpKey, wr_id: u64, buf: Vec<u8>) -> Result<(), Error> {
    worker.post_recv(qp, RecvWr { wr_id, buf }).map_err(|(e, _)| Error::failed(e))
}

/// The line that says where to send to.
fn ready<I: PortIo>(worker: &UdWorker<I>, qp: QpKey, args: &RecvArgs, mtu: usize) -> String {
    let qpn = worker.qpn(qp).unwrap_or_default();
    let addrs: Vec<String> = worker.addrs(0).iter().map(IpAddr::to_string).collect();
    let mac = worker.port_info(0).map(|p| p.mac.to_string()).unwrap_or_default();
    format!(
        "READY qpn {qpn} qkey {} pkey {} addr {} mac {mac} mtu {mtu}",
        args.qkey,
        args.endpoint.pkey,
        addrs.join(",")
    )
}

/// Reports one completion and posts its buffer again.
#[expect(clippy::too_many_arguments, reason = "the loop's whole state; a struct would only rename it")]
fn take<I: PortIo>(
    worker: &mut UdWorker<I>,
    qp: QpKey,
    args: &RecvArgs,
    completion: Completion<Vec<u8>>,
    tally: &mut Tally,
    time: Time,
    out: &mut Out,
    json: &mut Stream,
) -> Result<(), Error> {
    let Completion { wr_id, status, .. } = completion;
    if completion.opcode != WcOpcode::Recv || status != WcStatus::Success {
        return Err(Error::failed(format_args!("a receive ended with {status:?}")));
    }
    let message = Message::of(&completion);
    tally.messages += 1;
    tally.bytes += message.payload.len() as u64;
    let verdict = args.verify.as_ref().map(|pattern| pattern.check(message.payload));
    if verdict.is_some_and(|v| v.is_err()) {
        tally.mismatches += 1;
    }
    if !args.quiet {
        out.line(message.line(tally.messages, verdict))?;
        let shown = message.payload.len().min(args.shown());
        if shown > 0 {
            out.line(Hexdump(&message.payload[..shown]))?;
        }
    }
    if json.is_on() {
        json.push(&message.json(tally.messages, verdict, time.elapsed()))?;
    }
    match completion.buf {
        Some(buf) => post(worker, qp, wr_id, buf),
        None => Ok(()),
    }
}

/// A received message.
struct Message<'a> {
    source: IpAddr,
    completion: &'a Completion<Vec<u8>>,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    fn of(completion: &'a Completion<Vec<u8>>) -> Message<'a> {
        let bytes = completion.buf.as_deref().unwrap_or_default();
        let (grh, rest) = bytes.split_first_chunk::<GRH_LEN>().unwrap_or((&[0; GRH_LEN], &[]));
        // Over IPv4 the header stands in the second half of the area.
        let source = match completion.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::new(grh[32], grh[33], grh[34], grh[35])),
            Family::V6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&grh[8..24]);
                IpAddr::V6(Ipv6Addr::from(octets))
            }
        };
        let payload = rest.get(..completion.payload_len()).unwrap_or_default();
        Message { source, completion, payload }
    }

    fn line(&self, number: u64, verdict: Option<Result<(), Mismatch>>) -> String {
        let mut line = format!(
            "{number:>5} from {} qp {} len {}",
            self.source,
            self.completion.src_qpn,
            self.payload.len()
        );
        if let Some(imm) = self.completion.imm {
            line.push_str(&format!(" imm {imm:#010x}"));
        }
        if self.completion.solicited {
            line.push_str(" solicited");
        }
        match verdict {
            Some(Ok(())) => line.push_str(" ok"),
            Some(Err(mismatch)) => line.push_str(&format!(" MISMATCH: {mismatch}")),
            None => {}
        }
        line
    }

    fn json(&self, number: u64, verdict: Option<Result<(), Mismatch>>, at: Duration) -> Value {
        json!({
            "number": number,
            "time_ns": at.as_nanos() as u64,
            "src": self.source.to_string(),
            "src_qpn": self.completion.src_qpn.get(),
            "len": self.payload.len(),
            "imm": self.completion.imm,
            "solicited": self.completion.solicited,
            "verified": verdict.map(|v| v.is_ok()),
        })
    }
}

/// The sum, and the verdict.
#[expect(clippy::too_many_arguments, reason = "the loop's whole state; a struct would only rename it")]
fn finish<I: PortIo>(
    worker: &mut UdWorker<I>,
    (qp, _cq): (QpKey, CqKey),
    args: &RecvArgs,
    tally: Tally,
    time: Time,
    mut out: Out,
    json: Stream,
    stop: &Stop,
) -> Result<Exit, Error> {
    let missing = args.count.map_or(0, |n| n.saturating_sub(tally.messages));
    let interrupted = stop.requested() && (missing > 0 || args.count.is_none());
    let ok = missing == 0 && tally.mismatches == 0;
    let mut sum = format!("{} received, {}", messages(tally.messages), plural(tally.bytes, "byte"));
    if args.verify.is_some() {
        sum.push_str(&format!(", {} not as expected", tally.mismatches));
    }
    if missing > 0 {
        sum.push_str(&format!(", {missing} missing"));
    }
    out.line(sum)?;
    if let Some(drops) = worker.counters(0).and_then(drops) {
        out.line(format_args!("dropped: {drops}"))?;
    }
    link_line(worker, &mut out)?;
    out.flush()?;
    json.finish(&[
        (
            "endpoint",
            json!({
                "qpn": worker.qpn(qp).map(Qpn::get),
                "qkey": args.qkey.0,
                "addrs": worker.addrs(0),
                "mac": worker.port_info(0).map(|p| p.mac.to_string()),
                "ib_mtu": worker.ib_mtu(0),
            }),
        ),
        (
            "summary",
            json!({
                "messages": tally.messages,
                "bytes": tally.bytes,
                "mismatches": tally.mismatches,
                "missing": missing,
                "seconds": time.elapsed().as_secs_f64(),
            }),
        ),
        ("counters", counters_json(worker)),
        ("interrupted", json!(interrupted)),
        ("ok", json!(ok)),
    ])?;
    Ok(match (interrupted, ok) {
        (true, _) => Exit::Interrupted,
        (_, false) => Exit::Failed,
        _ => Exit::Ok,
    })
}
