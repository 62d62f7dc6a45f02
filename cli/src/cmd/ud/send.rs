//! `spraywire ud send`.

use super::pattern::{Pattern, messages};
use super::sizes::Sizes;
use super::{Time, UdWorker, counters_json, link_line, text, with_worker};
use crate::args::{EndpointArgs, OutputArgs};
use crate::cmd::measure::ib_mtu;
use crate::endpoint::{OpenConfig, Role};
use crate::error::{Error, Exit};
use crate::report::Out;
use crate::report::json::Document;
use crate::signal::{self, Stop};
use crate::units::{self, Rate};
use clap::Args;
use dataplane::ah::{AhConfig, AhKey, AhState};
use dataplane::cq::WcStatus;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::{PortIo, PortState};
use dataplane::qp::{CqKey, PostError, QpConfig, QpKey, SendWr};
use roce_proto::types::{Mtu, Psn, QKey, Qpn};
use roce_proto::wire::ethernet::MacAddr;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;

const AFTER: &str = "\
UD is not acknowledged: exit code 0 says that the port took every message, not that it arrived.

Examples:
  spraywire ud send 192.0.2.1 --qpn 0x10000            to spraywire ud recv on the same machine
  spraywire ud send 10.0.0.2 --qpn 0x11 -s 1000 -n 10 --imm 0x01020304 \\
      --port net_af_packet0,iface=veth0 --ip 10.0.0.1
  spraywire ud send fd77::2 --qpn 0x12 --pattern text:hello --port 0000:01:00.0 --ip fd77::1
  spraywire ud send 10.0.0.2 --qpn 17 -n 1000 --rate 1kpps --tclass 0x68 --src-port 0xc123 \\
      --dmac 52:54:00:00:00:02";

/// Messages in flight at the most.
const DEPTH: u32 = 256;

/// Arguments of `ud send`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct SendArgs {
    /// IP address of the receiver
    #[arg(value_name = "ADDR")]
    pub to: IpAddr,

    /// Queue pair of the receiver
    #[arg(short = 'Q', long, value_name = "QPN", value_parser = units::qpn)]
    pub qpn: Qpn,

    /// Q_Key to send; with its high bit set the sending queue pair has it too, as the standard wants it
    #[arg(short = 'k', long, value_name = "KEY", default_value = "0x11111111", value_parser = units::qkey)]
    pub qkey: QKey,

    /// Message size in bytes, or FROM-TO for each size of a range in turn; 64, or what hex: and text: have
    #[arg(short, long, value_name = "BYTES")]
    pub size: Option<Sizes>,

    /// What messages hold: zero, incr, random, random:SEED, hex:…, text:…
    #[arg(long, value_name = "PATTERN", default_value = "incr")]
    pub pattern: Pattern,

    /// Number of messages
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "1", value_parser = units::count)]
    pub count: u64,

    /// Immediate data
    #[arg(short = 'i', long, value_name = "NUMBER", value_parser = units::immediate)]
    pub imm: Option<u32>,

    /// Ask for a solicited event
    #[arg(short = 'e', long)]
    pub solicited: bool,

    /// The most per second: 1kpps (messages), 10M (payload bits)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub rate: Option<Rate>,

    /// Time between two messages
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "rate")]
    pub interval: Option<Duration>,

    /// PSN of the first message; by chance if not given
    #[arg(long, value_name = "PSN", value_parser = units::psn)]
    pub psn: Option<Psn>,

    /// Number of the sending queue pair; the first free one from 0x10000 if not given
    #[arg(long, value_name = "QPN", value_parser = units::qpn)]
    pub src_qpn: Option<Qpn>,

    /// Own address to send from; the port's first of the receiver's family if not given
    #[arg(long, value_name = "ADDR")]
    pub src: Option<IpAddr>,

    /// Traffic class or ToS: DSCP and ECN, 8 bits
    #[arg(short = 'T', long, value_name = "BYTE", default_value = "0", value_parser = units::byte)]
    pub tclass: u8,

    /// Hop limit or TTL
    #[arg(long, value_name = "HOPS", default_value = "64", value_parser = units::byte)]
    pub hop_limit: u8,

    /// IPv6 flow label, 20 bits
    #[arg(long, value_name = "LABEL", default_value = "0", value_parser = units::flow_label)]
    pub flow_label: u32,

    /// UDP source port, any at all; one of --entropy-range, by the queue pair's number, if not given
    #[arg(long, value_name = "PORT", value_parser = units::word)]
    pub src_port: Option<u16>,

    /// MAC address of the receiver, or of the router on the way; without it the receiver is asked for its own
    #[arg(long, value_name = "MAC")]
    pub dmac: Option<MacAddr>,

    /// How long to wait for the link and for the receiver's MAC address
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = units::duration)]
    pub wait: Duration,

    /// How long the port stays open after the last message, so that the receiver can fetch it
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration)]
    pub linger: Duration,

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

impl SendArgs {
    fn size(&self) -> Sizes {
        self.size.unwrap_or(Sizes::one(self.pattern.size()))
    }

    /// Time between two messages; zero for none.
    pub(super) fn gap(&self) -> Duration {
        let seconds = match self.rate {
            Some(Rate::MessagesPerSecond(n)) => 1.0 / n,
            Some(Rate::BitsPerSecond(n)) => self.size().longest() as f64 * 8.0 / n,
            None => return self.interval.unwrap_or_default(),
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    fn parameters(&self) -> Value {
        json!({
            "to": self.to.to_string(),
            "qpn": self.qpn.get(),
            "qkey": self.qkey.0,
            "size": self.size(),
            "pattern": self.pattern,
            "count": self.count,
            "imm": self.imm,
            "solicited": self.solicited,
            "interval_s": self.gap().as_secs_f64(),
            "psn": self.psn.map(Psn::get),
            "src_qpn": self.src_qpn.map(Qpn::get),
            "src": self.src,
            "tclass": self.tclass,
            "hop_limit": self.hop_limit,
            "flow_label": self.flow_label,
            "src_port": self.src_port,
            "vlan": self.endpoint.vlan.map(|v| v.0.vid()),
            "dmac": self.dmac.map(|m| m.to_string()),
            "ib_mtu": self.ib_mtu.map(Mtu::bytes),
            "endpoint": self.endpoint,
        })
    }
}

/// Runs the command.
pub fn run(args: &SendArgs, verbosity: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    args.output.json().check_beside(args.endpoint.pcap.as_ref())?;
    // Before anything is opened: what no IB MTU holds, or not the one asked for.
    if args.count == 0 {
        return Err(Error::usage("there is nothing to send: -n 1 or more"));
    }
    check_size(args, args.ib_mtu.unwrap_or(Mtu::B4096).bytes())?;
    let config = OpenConfig {
        ib_mtu: args.ib_mtu,
        measures: false,
        peer_wait: args.wait,
        link_wait: Some(args.wait),
        ..OpenConfig::new(Role::Client, verbosity)
    };
    with_worker(&args.endpoint, &config, &stop, |worker| {
        let out = text(&args.output);
        let mut document = Document::new("ud-send", &args.parameters());
        let exit = send(worker, args, args.endpoint.idle.policy(), out, &mut document, &stop)?;
        document.write(&args.output.json())?;
        Ok(exit)
    })
}

/// Sends over any worker.
pub(super) fn send<I: PortIo>(
    worker: &mut UdWorker<I>,
    args: &SendArgs,
    idle: IdlePolicy,
    mut out: Out,
    document: &mut Document,
    stop: &Stop,
) -> Result<Exit, Error> {
    let (size, mtu) = (args.size(), worker.ib_mtu(0));
    check_size(args, mtu)?;
    let time = Time::default();
    let cq = worker.create_cq(DEPTH as usize);
    let config = QpConfig {
        qpn: args.src_qpn,
        // A controlled Q_Key is never taken from a work request, but from the queue pair.
        qkey: args.qkey,
        psn: args.psn,
        send_depth: DEPTH,
        recv_depth: 1,
        ..QpConfig::new(cq)
    };
    let qp = worker.create_qp(&config).map_err(Error::usage)?;
    let ah = resolve(worker, args, time, stop)?;

    let mut sender = Sender { qp, cq, ah, sent: 0, posted: 0 };
    sender.run(worker, args, idle, time, stop)?;
    let seconds = time.elapsed().as_secs_f64();
    linger(worker, args.linger, time, stop);

    let interrupted = sender.sent < args.count && stop.requested();
    let ok = sender.sent == args.count;
    let bytes: u64 = size.sum(sender.sent);
    let from = worker.qpn(qp).unwrap_or_default();
    out.line(format_args!(
        "{} of {size} bytes sent to {} qp {} from qp {from}",
        messages(sender.sent),
        args.to,
        args.qpn
    ))?;
    if let Some(c) = worker.counters(0).filter(|c| c.tx_packets < sender.sent) {
        out.line(format_args!("the port took only {}", c.tx_packets))?;
    }
    link_line(worker, &mut out)?;
    out.flush()?;
    document.set("results", &[json!({"messages": sender.sent, "bytes": bytes, "seconds": seconds})]);
    document.set("endpoint", &json!({"qpn": from.get(), "addrs": worker.addrs(0), "ib_mtu": mtu}));
    document.set("counters", &counters_json(worker));
    document.set("interrupted", &interrupted);
    document.set("ok", &ok);
    Ok(match (interrupted, ok) {
        (true, _) => Exit::Interrupted,
        (_, false) => Exit::Failed,
        _ => Exit::Ok,
    })
}

/// Refuses a message that is longer than the IB MTU: UD has no segmentation.
fn check_size(args: &SendArgs, mtu: usize) -> Result<(), Error> {
    let len = args.size().longest();
    if len <= mtu {
        return Ok(());
    }
    Err(Error::usage(PostError::TooLong { len, max: mtu }).hint(format_args!(
        "send at most {mtu} bytes (-s), or raise the MTU: --mtu of the port, and -m if it was given; 4096 is the most that \
         there is"
    )))
}

/// The address handle of the receiver, once it is ready.
fn resolve<I: PortIo>(
    worker: &mut UdWorker<I>,
    args: &SendArgs,
    time: Time,
    stop: &Stop,
) -> Result<AhKey, Error> {
    let config = AhConfig {
        src: args.src,
        dst_mac: args.dmac,
        vlan: args.endpoint.vlan.map(|v| v.0),
        traffic_class: args.tclass,
        hop_limit: args.hop_limit,
        flow_label: args.flow_label,
        src_port: args.src_port,
        ..AhConfig::new(args.to)
    };
    let ah = worker.create_ah(&config, time.clock.now()).map_err(Error::usage)?;
    let deadline = time.elapsed() + args.wait;
    let mut idle = Idle::new(IdlePolicy::default());
    loop {
        let busy = worker.poll(time.clock.now()).any();
        let asked = match worker.ah_state(ah) {
            Some(AhState::Ready) => return Ok(ah),
            Some(AhState::Resolving { asked } | AhState::Failed { asked }) => asked,
            None => return Err(Error::failed("the address handle is gone")),
        };
        if stop.requested() {
            return Err(Error::interrupted());
        }
        if time.elapsed() > deadline {
            let port = worker.port_info(0).map(|p| p.name.clone()).unwrap_or_default();
            let how = if args.to.is_ipv4() { "ARP" } else { "neighbour discovery" };
            return Err(Error::failed(format_args!(
                "{} does not answer {how} on port {port}: {asked} requests in {:?}",
                args.to, args.wait
            ))
            .hint(
                "is the address right, the other side running, and both in one network (and VLAN)? \
                 Behind a router, the router must be given (--gateway, or its MAC address by --dmac); a peer that never answers can be given \
                 with --neighbour IP=MAC",
            ));
        }
        idle.after_round(busy);
    }
}

struct Sender {
    qp: QpKey,
    cq: CqKey,
    ah: AhKey,
    /// Messages that the driver took.
    sent: u64,
    /// Messages handed to the worker.
    posted: u64,
}

impl Sender {
    fn run<I: PortIo>(
        &mut self,
        worker: &mut UdWorker<I>,
        args: &SendArgs,
        idle: IdlePolicy,
        time: Time,
        stop: &Stop,
    ) -> Result<(), Error> {
        let mut message = vec![0; args.size().longest()];
        let gap = args.gap();
        let mut due = time.elapsed();
        let mut idle = Idle::new(idle);
        // What the port does not take for so long it will not take: its other end is gone.
        let port = worker.watch(0);
        let patience = args.wait.max(Duration::from_secs(1));
        let mut last_progress = time.elapsed();
        while self.sent < args.count {
            if stop.requested() {
                return Ok(());
            }
            let now = time.elapsed();
            let mut busy = false;
            if self.posted < args.count && now >= due {
                let message = &mut message[..args.size().of(self.posted)];
                args.pattern.fill(self.posted, message);
                if self.post(worker, args, message)? {
                    busy = true;
                    // A pause is not made up for by a burst.
                    due = if gap.is_zero() { now } else { (due + gap).max(now.saturating_sub(gap)) };
                }
            }
            busy |= worker.poll(time.clock.now()).any();
            while let Some(done) = worker.cq(self.cq).and_then(|cq| cq.pop()) {
                if done.status != WcStatus::Success {
                    return Err(Error::failed(format_args!("a send ended with {:?}", done.status)));
                }
                self.sent += 1;
                busy = true;
            }
            if port.as_ref().is_some_and(|port| port.state() == PortState::Gone) {
                return Err(Error::port_gone());
            }
            if busy || self.posted == self.sent {
                last_progress = now;
            } else if now.saturating_sub(last_progress) > patience {
                return Err(Error::failed(format_args!(
                    "the port took {} of {} and then nothing for {patience:?}",
                    self.sent,
                    messages(args.count)
                ))
                .hint("has the other side ended, or does it not poll its port?"));
            }
            idle.after_round(busy);
        }
        Ok(())
    }

    /// Hands one message over; false for back-pressure.
    fn post<I: PortIo>(
        &mut self,
        worker: &mut UdWorker<I>,
        args: &SendArgs,
        message: &[u8],
    ) -> Result<bool, Error> {
        let wr = SendWr {
            wr_id: self.posted,
            ah: self.ah,
            dst_qpn: args.qpn,
            qkey: args.qkey,
            imm: args.imm,
            solicited: args.solicited,
            signaled: true,
        };
        match worker.post_send(self.qp, &wr, message) {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(e) if e.is_back_pressure() => Ok(false),
            Err(e) => Err(Error::failed(e)),
        }
    }
}

/// Keeps answering for a moment: shared memory goes away with the port, and what lies in it.
fn linger<I: PortIo>(worker: &mut UdWorker<I>, linger: Duration, time: Time, stop: &Stop) {
    let end = time.elapsed() + linger;
    let mut idle = Idle::new(IdlePolicy::default());
    while time.elapsed() < end && !stop.requested() && worker.link_up(0) {
        let busy = worker.poll(time.clock.now()).any();
        idle.after_round(busy);
    }
}
