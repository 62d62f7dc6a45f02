//! Two engines that exchange messages without a tag, for `scripts/untagged.sh`, which counts the instructions of [`in_engine`].
//! Prints how many segments were sent.

use roce_proto::time::Instant;
use roce_proto::transport::{
    Address, Config, Engine, Limits, Operation, Origin, RecvRequest, SendRequest, SessionKey,
};
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{Kind, MAX_CONTROL_LEN, Semantics};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Bytes of a packet at the most.
const ROOM: usize = MAX_CONTROL_LEN + 64;
/// Bytes of a segment: few, as payloads do not pass through the engine.
const SEGMENT: u32 = 64;

type Packet = ([u8; ROOM], usize);

/// Calls into an engine, and nothing else: what is counted.
#[inline(never)]
fn in_engine<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// One round of an engine: takes what came, and leaves what it sends.
fn round(engine: &mut Engine, now: Instant, from: Address, came: &mut Vec<Packet>, sent: &mut Vec<Packet>) {
    in_engine(|| engine.begin(now, Duration::ZERO));
    for (bytes, len) in came.drain(..) {
        let bytes = &bytes[..len];
        in_engine(|| {
            engine.receive(&Origin { from, ce: false }, bytes);
            while engine.next_repair().is_some() {}
        });
    }
    in_engine(|| engine.turn());
    let mut buf = [0; ROOM];
    while let Some(transmit) = in_engine(|| engine.transmit(&mut buf)) {
        let len = usize::from(transmit.header_len) + transmit.source.map_or(0, |source| source.len as usize);
        sent.push((buf, len));
    }
    while engine.poll_event().is_some() {}
}

fn main() {
    let address =
        |n: u8| Address::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), Qpn::new(n.into()).unwrap_or_default());
    let config = Config { segment: SEGMENT, limits: Limits::SMALL, ..Config::default() };
    let mut engines = [1u64, 2].map(|epoch| {
        Engine::new(&Config { epoch, secret: [epoch as u8; 16], ..config })
            .expect("the configuration is sound")
    });
    let mut wires = [Vec::new(), Vec::new()];
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let key = |engine: &Engine, n| -> Option<SessionKey> { engine.session_with(address(n)) };
    engines[0].connect(address(2)).expect("there is room");
    let [first, second] = &mut engines;
    let mut rounds = |first: &mut Engine, second: &mut Engine| {
        for _ in 0..6 {
            now += Duration::from_micros(20);
            let [to_first, to_second] = &mut wires;
            round(first, now, address(2), to_first, to_second);
            round(second, now, address(1), to_second, to_first);
        }
    };
    for _ in 0..20 {
        rounds(first, second);
    }
    // Messages of one segment, and of 64.
    for i in 0..4_000u64 {
        let len = u64::from(SEGMENT) * if i % 64 == 0 { 64 } else { 1 };
        let (communicator, tag, semantics) = (1, 1, Semantics::default());
        let receive = RecvRequest { token: i, capacity: len, communicator, tag, step: None };
        let send = SendRequest { token: i, len, communicator, tag, semantics };
        let (to, from) = (key(first, 2).expect("open"), key(second, 1).expect("open"));
        in_engine(|| second.post_recv(from, &receive)).expect("there is room");
        in_engine(|| first.post_send(to, &send)).expect("there is room");
        if i % 16 == 0 {
            rounds(first, second);
        }
        for engine in [&mut *first, &mut *second] {
            while in_engine(|| engine.poll_completion()).is_some() {}
        }
    }
    (0..20).for_each(|_| rounds(first, second));
    let mut done = 0;
    for engine in [&mut *first, &mut *second] {
        while let Some(completion) = engine.poll_completion() {
            done += u32::from(completion.operation == Operation::Send);
        }
    }
    assert!(done <= 16, "{done} sends were open at the end");
    let counters = first.counters();
    assert_eq!((counters.sent(Kind::Parity), counters.retransmitted), (0, 0));
    println!("{}", counters.sent(Kind::Data));
}
