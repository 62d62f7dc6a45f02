//! Both directions over ports within the process.

use super::recv::{RecvArgs, receive};
use super::send::{SendArgs, send};
use super::*;
use crate::report::json::{JsonTarget, Stream};
use crate::report::{Document, Out};
use clap::Parser;
use dataplane::idle::IdlePolicy;
use dataplane::io::memory::{MemoryConfig, MemoryPort};
use dataplane::worker::PortConfig;
use roce_proto::wire::ethernet::MacAddr;
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

#[derive(Parser)]
struct Recv {
    #[command(flatten)]
    args: RecvArgs,
}

#[derive(Parser)]
struct Send {
    #[command(flatten)]
    args: SendArgs,
}

fn recv_args(line: &str) -> RecvArgs {
    Recv::try_parse_from(std::iter::once("recv").chain(line.split_whitespace())).unwrap().args
}

fn send_args(line: &str) -> SendArgs {
    Send::try_parse_from(std::iter::once("send").chain(line.split_whitespace())).unwrap().args
}

/// An output that can be read back.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn out(&self) -> Out {
        Out::to(Box::new(self.clone()))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

const IDLE: IdlePolicy =
    IdlePolicy::BackOff { spins: 16, yields: 100, max_sleep: std::time::Duration::from_micros(100) };

fn worker(port: MemoryPort, addrs: &[&str]) -> UdWorker<MemoryPort> {
    let addrs = addrs.iter().map(|a| a.parse::<IpAddr>().unwrap().into()).collect();
    let config = PortConfig { addrs, ..PortConfig::new("192.0.2.1".parse().unwrap()) };
    Worker::new(&WorkerConfig::default(), vec![(port, config)]).unwrap()
}

struct Done {
    recv: (Result<Exit, Error>, String, Value),
    send: (Result<Exit, Error>, String, Value),
}

/// Runs a receiver with 192.0.2.1 and fd00::1, and a sender with 192.0.2.2 and fd00::2.
fn run_both(recv: &str, to_send: &str) -> Done {
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let recv_args = recv_args(recv);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recv.json");
    let target = JsonTarget::File(file.clone());
    let receiver = std::thread::spawn(move || {
        let mut worker = worker(a, &["192.0.2.1", "fd00::1"]);
        let paper = Paper::default();
        let json = Stream::begin(&target, "ud-recv", &()).unwrap();
        let exit = receive(&mut worker, &recv_args, IDLE, paper.out(), json, &Stop::default());
        (exit, paper.text())
    });
    let mut sender = worker(b, &["192.0.2.2", "fd00::2"]);
    let paper = Paper::default();
    let mut document = Document::new("ud-send", &());
    let args = send_args(to_send);
    let exit = send(&mut sender, &args, IDLE, paper.out(), &mut document, &Stop::default());
    let (recv_exit, recv_text) = receiver.join().unwrap();
    let json = std::fs::read(file).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
    Done { recv: (recv_exit, recv_text, json), send: (exit, paper.text(), document.value()) }
}

#[test]
fn every_field_arrives() {
    let done = run_both(
        "--qpn 0xfffffe --qkey 0x22222222 -n 3 -t 20",
        "192.0.2.1 --qpn 0xfffffe --qkey 0x22222222 -n 3 -s 5 --imm 0x01020304 -e --src-qpn 0x123456",
    );
    assert_eq!((done.recv.0.unwrap(), done.send.0.unwrap()), (Exit::Ok, Exit::Ok));
    let lines: Vec<&str> = done.recv.1.lines().collect();
    assert!(
        lines[0].starts_with("READY qpn 0xfffffe qkey 0x22222222 pkey 0xffff addr 192.0.2.1,fd00::1 mac 02:"),
        "{}",
        lines[0]
    );
    assert!(lines[0].ends_with(" mtu 4096"), "{}", lines[0]);
    assert_eq!(lines[1], "    1 from 192.0.2.2 qp 0x123456 len 5 imm 0x01020304 solicited");
    assert!(lines[2].starts_with("  0000  00 01 02 03 04  "), "{}", lines[2]);
    assert!(lines[4].starts_with("  0000  01 02 03 04 05  "), "{}", lines[4]);
    assert_eq!(lines[7], "3 messages received, 15 bytes");
    let report = done.recv.2;
    assert_eq!(report["results"][2]["src_qpn"], 0x12_3456);
    assert_eq!(report["results"][2]["imm"], 0x0102_0304);
    assert_eq!(report["endpoint"]["qpn"], 0xff_fffe);
    assert_eq!(report["counters"]["delivered"], 3);
    assert_eq!(done.send.2["results"][0]["bytes"], 15);
    assert_eq!(done.send.1, "3 messages of 5 bytes sent to 192.0.2.1 qp 0xfffffe from qp 0x123456\n");
}

#[test]
fn over_ipv6_and_verified() {
    let done = run_both("-n 500 -t 20 -q --verify incr -r 64", "fd00::1 --qpn 0x10000 -n 500 -s 4096");
    assert_eq!(done.recv.0.unwrap(), Exit::Ok, "{}", done.recv.1);
    assert_eq!(done.recv.1.lines().count(), 2, "{}", done.recv.1);
    assert!(
        done.recv.1.contains("500 messages received, 2048000 bytes, 0 not as expected"),
        "{}",
        done.recv.1
    );
    assert_eq!(done.recv.2["results"][499]["src"], "fd00::2");
    assert_eq!(done.recv.2["results"][499]["verified"], true);
}

#[test]
fn another_pattern_is_a_failure() {
    let done = run_both("-n 1 -t 20 --verify zero", "192.0.2.1 --qpn 0x10000 --pattern hex:000007");
    assert_eq!(done.recv.0.unwrap(), Exit::Failed);
    assert!(done.recv.1.contains("len 3 MISMATCH: byte 2 is 0x07, expected 0x00"), "{}", done.recv.1);
    assert_eq!(done.recv.2["ok"], false);
}

#[test]
fn what_does_not_come_is_missing_and_the_reason_is_told() {
    let done = run_both("-n 2 -t 0.5", "192.0.2.1 --qpn 0x10000 --qkey 0x33333333 -n 2");
    assert_eq!(done.send.0.unwrap(), Exit::Ok, "nobody tells the sender");
    assert_eq!(done.recv.0.unwrap(), Exit::Failed);
    assert!(
        done.recv.1.contains("0 messages received, 0 bytes, 2 missing\ndropped: qkey 2\n"),
        "{}",
        done.recv.1
    );
    assert_eq!(done.recv.2["counters"]["dropped"]["qkey"], 2);
}

#[test]
fn a_message_over_the_mtu_is_refused_with_the_numbers() {
    let (a, _b) = MemoryPort::pair(&MemoryConfig { mtu: 1500, ..MemoryConfig::default() });
    let mut worker = worker(a, &["192.0.2.2"]);
    let args = send_args("192.0.2.1 --qpn 2 -s 1025");
    let mut document = Document::new("ud-send", &());
    let error = send(&mut worker, &args, IDLE, Out::nowhere(), &mut document, &Stop::default()).unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    let text = error.to_string();
    assert!(text.contains("1025 bytes do not fit one UD packet") && text.contains("is 1024"), "{text}");
    assert!(text.contains("--mtu"), "{text}");
    assert_eq!(worker.counters(0).unwrap().tx_packets, 0);
}

#[test]
fn a_silent_neighbour_is_named() {
    use roce_proto::wire::frame::{Frame, parse};
    use roce_proto::wire::icmpv6::Message;
    let (a, mut b) = MemoryPort::pair(&MemoryConfig::default());
    let mut worker = worker(a, &["192.0.2.2", "fd00::2"]);
    for (to, how) in [("192.0.2.9", "ARP"), ("fd00::9", "neighbour discovery")] {
        let args = send_args(&format!("{to} --qpn 2 --wait 50ms"));
        let mut document = Document::new("ud-send", &());
        let error =
            send(&mut worker, &args, IDLE, Out::nowhere(), &mut document, &Stop::default()).unwrap_err();
        assert_eq!(error.exit, Exit::Failed);
        let text = error.to_string();
        assert!(text.contains(&format!("{to} does not answer {how} on port ")), "{text}");
        assert!(text.contains("1 requests in 50ms") && text.contains("--dmac"), "{text}");
        let frames: Vec<_> = std::iter::from_fn(|| b.take()).collect();
        let asked = frames.iter().filter(|frame| match parse(frame).unwrap() {
            Frame::Arp(_, packet) => to.parse() == Ok(packet.target_ip),
            Frame::Icmp6(packet) => match packet.message {
                Message::Solicitation(asked) => to.parse() == Ok(asked.target),
                _ => false,
            },
            other => panic!("sent to nobody: {other:?}"),
        });
        assert_eq!(asked.count(), 1, "requests");
    }
}

#[test]
fn headers_are_as_asked_for() {
    use roce_proto::wire::frame::{Frame, parse};
    let (a, mut b) = MemoryPort::pair(&MemoryConfig::default());
    let mut worker = worker(a, &["192.0.2.2"]);
    let args = send_args(
        "192.0.2.1 --qpn 0x777777 -n 2 --psn 0xffffff --tclass 0x6a --hop-limit 7 --src-port 0xc123 --vlan 42 \
         --dmac 52:54:00:00:00:09 --pattern text:hello --linger 0",
    );
    let mut document = Document::new("ud-send", &());
    let exit = send(&mut worker, &args, IDLE, Out::nowhere(), &mut document, &Stop::default());
    assert_eq!(exit.unwrap(), Exit::Ok);
    // The port also announces its address.
    let mut frames = std::iter::from_fn(|| b.take()).filter(|f| !matches!(parse(f), Ok(Frame::Arp(..))));
    for psn in [0xff_ffff, 0] {
        let frame = frames.next().unwrap();
        let Frame::Roce(packet) = parse(&frame).unwrap() else { panic!("{frame:02x?}") };
        assert!(packet.icrc_ok());
        assert_eq!(packet.link.dst(), MacAddr([0x52, 0x54, 0, 0, 0, 9]));
        assert_eq!(packet.link.vlans().outer().map(|t| t.vid()), Some(42));
        assert_eq!((packet.ip.traffic_class(), packet.ip.hop_limit()), (0x6a, 7));
        assert_eq!((packet.src_port(), packet.bth().psn.get()), (0xc123, psn));
        assert_eq!(packet.ud().unwrap().payload, b"hello");
    }
    assert!(frames.next().is_none());
}

#[test]
fn a_rate_is_kept() {
    let start = std::time::Instant::now();
    let done = run_both("-n 20 -t 20 -q", "192.0.2.1 --qpn 0x10000 -n 20 --rate 200pps --linger 0");
    assert_eq!(done.recv.0.unwrap(), Exit::Ok);
    // Nineteen pauses of 5 ms.
    assert!(start.elapsed() >= std::time::Duration::from_millis(95), "{:?}", start.elapsed());
    // 64 bytes at 51200 bit/s are a message every 10 ms.
    let args = send_args("192.0.2.1 --qpn 2 --rate 51.2k");
    assert_eq!(args.gap(), std::time::Duration::from_millis(10));
}

#[test]
fn every_field_of_the_reports_is_documented() {
    fn names(value: &Value, schema: &str, found: &mut usize) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    assert!(schema.contains(&format!("`{name}`")), "{name}");
                    *found += 1;
                    if !["parameters", "dropped"].contains(&name.as_str()) {
                        names(value, schema, found);
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|v| names(v, schema, found)),
            _ => {}
        }
    }
    let done = run_both("-n 1 -t 20 --verify incr", "192.0.2.1 --qpn 0x10000");
    let schema = include_str!("../../../json.md");
    let mut found = 0;
    names(&done.recv.2, schema, &mut found);
    names(&done.send.2, schema, &mut found);
    assert!(found > 50, "{found}");
}

/// A port that asks for a stop as soon as it has received: a signal at the worst moment.
struct Signalled {
    port: MemoryPort,
    stop: Stop,
}

impl PortIo for Signalled {
    type Buf = <MemoryPort as PortIo>::Buf;
    type Burst = <MemoryPort as PortIo>::Burst;

    fn info(&self) -> &dataplane::io::PortInfo {
        self.port.info()
    }

    fn rx_burst(&mut self, burst: &mut Self::Burst, max: usize) -> usize {
        let received = self.port.rx_burst(burst, max);
        if received > 0 {
            self.stop.request();
        }
        received
    }

    fn tx_burst(&mut self, burst: &mut Self::Burst) -> usize {
        self.port.tx_burst(burst)
    }

    fn alloc(&mut self) -> Option<Self::Buf> {
        self.port.alloc()
    }

    fn link_up(&self) -> bool {
        self.port.link_up()
    }

    fn stats(&self) -> dataplane::io::PortStats {
        self.port.stats()
    }
}

#[test]
fn what_arrived_before_a_signal_is_reported_after_it() {
    use dataplane::ah::AhConfig;
    use dataplane::qp::{QpConfig, SendWr};
    use roce_proto::types::{QKey, Qpn};
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let mac = a.info().mac;
    let mut sender = worker(b, &["192.0.2.2"]);
    let cq = sender.create_cq(8);
    let qp = sender.create_qp(&QpConfig::new(cq)).unwrap();
    let now = Clock::new().now();
    let to = AhConfig { dst_mac: Some(mac), ..AhConfig::new("192.0.2.1".parse().unwrap()) };
    let ah = sender.create_ah(&to, now).unwrap();
    let (dst_qpn, qkey) = (Qpn::new(7).unwrap(), QKey(0x1111_1111));
    let wr = SendWr { wr_id: 0, ah, dst_qpn, qkey, imm: None, solicited: false, signaled: false };
    for _ in 0..5 {
        sender.post_send(qp, &wr, b"last words").unwrap();
    }
    sender.poll(now);

    let stop = Stop::default();
    let port = Signalled { port: a, stop: stop.clone() };
    let config = PortConfig::new("192.0.2.1".parse().unwrap());
    let mut receiver: UdWorker<Signalled> =
        Worker::new(&WorkerConfig::default(), vec![(port, config)]).unwrap();
    let (paper, json) = (Paper::default(), Stream::begin(&JsonTarget::None, "ud-recv", &()).unwrap());
    let exit = receive(&mut receiver, &recv_args("--qpn 7 -t 20"), IDLE, paper.out(), json, &stop);
    assert_eq!(exit.unwrap(), Exit::Interrupted);
    let text = paper.text();
    assert_eq!(receiver.counters(0).unwrap().delivered, 5, "{text}");
    assert!(text.contains("5 messages received, 50 bytes"), "{text}");
}
