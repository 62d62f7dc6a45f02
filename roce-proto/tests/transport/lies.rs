//! A peer that lies about what belongs together: groups of parity whose sequences are not those of their message.

use crate::basic::config;
use crate::net::address;
use roce_proto::time::Instant;
use roce_proto::transport::{
    Config, Drop, Engine, Fec, Operation, Origin, Protect, Received, RecvRequest, Repair, SessionKey, Status,
};
use roce_proto::wire::shim::{Accept, Data, Kind, MAX_CONTROL_LEN, Parity, Seq};
use std::time::Duration;

/// Bytes of a segment.
const SEGMENT: u64 = 1_000;

/// An engine, and what its peer knows of the session with it.
pub struct Victim {
    pub engine: Engine,
    pub key: SessionKey,
    session: u64,
    first: Seq,
    pub now: Instant,
}

impl Victim {
    pub fn new(config: &Config) -> Victim {
        let secret = |n| Config { secret: [n; 16], ..*config };
        let (mut peer, mut engine) = (Engine::new(&secret(1)).unwrap(), Engine::new(&secret(2)).unwrap());
        let mut now = Instant::from_nanos(1_000_000);
        peer.begin(now, Duration::ZERO);
        let theirs = peer.connect(address(1)).unwrap();
        let (mut buf, mut session) = ([0; MAX_CONTROL_LEN], 0);
        for _ in 0..10 {
            now += Duration::from_micros(100);
            for ours in [false, true] {
                let (x, y) = if ours { (&mut engine, &mut peer) } else { (&mut peer, &mut engine) };
                x.begin(now, Duration::ZERO);
                y.begin(now, Duration::ZERO);
                x.turn();
                while let Some(t) = x.transmit(&mut buf) {
                    let packet = &buf[..usize::from(t.header_len)];
                    if t.kind == Kind::Accept {
                        session = Accept::parse(packet).unwrap().offer.id;
                    }
                    let from = address(usize::from(ours));
                    assert!(matches!(y.receive(&Origin { from, ce: false }, packet), Received::Taken(_)));
                }
            }
        }
        assert!(peer.is_open(theirs));
        let key = engine.session_with(address(0)).unwrap();
        Victim { engine, key, session, first: config.first, now }
    }

    pub fn post(&mut self, tag: u64, capacity: u64, step: Option<u32>) {
        let request = RecvRequest { token: tag, capacity, communicator: 0, tag, step };
        self.engine.post_recv(self.key, &request).unwrap();
    }

    /// A segment of message `number`, the first of its tag.
    pub fn data(&self, (number, tag): (u32, u64), length: u64, segment: u32, seq: u32) -> Data {
        Data {
            session: self.session,
            path_seq: self.first.add(seq),
            seq: self.first.add(seq),
            message: self.first.add(number),
            segment,
            tag,
            ordinal: self.first,
            length,
            ..Data::default()
        }
    }

    fn take(&mut self, packet: &[u8]) -> Received {
        self.engine.begin(self.now, Duration::ZERO);
        self.engine.receive(&Origin { from: address(0), ce: false }, packet)
    }

    pub fn give(&mut self, data: Data) -> Received {
        let at = u64::from(data.segment) * SEGMENT;
        let len = if data.void { 0 } else { (data.length - at).min(SEGMENT) };
        self.take(&[&data.to_bytes()[..], &vec![7; len as usize]].concat())
    }

    /// Shard `index` of `shards`, of a group of so many segments.
    fn shard(&mut self, first: Data, (segments, stride): (u8, u8), (index, shards): (u8, u8)) -> Received {
        let len = (first.length - u64::from(first.segment) * SEGMENT).min(SEGMENT);
        let parity = Parity { first, codec: 1, version: 1, segments, shards, index, stride };
        self.take(&[&parity.to_bytes()[..], &vec![9; len as usize]].concat())
    }

    fn repair(&mut self) -> Option<Repair> {
        self.engine.next_repair()
    }

    /// What is kept, repaired and done.
    fn state(&mut self) -> (usize, u64, usize) {
        let in_use = self.engine.in_use();
        let kept = in_use.iter().find(|(name, _)| *name == "shards").unwrap().1;
        let mut done = 0;
        while let Some(c) = self.engine.poll_completion() {
            assert_eq!((c.operation, c.status), (Operation::Recv, Status::Success));
            done += 1;
        }
        (kept, self.engine.counters().repaired, done)
    }
}

fn is_placed(received: Received) -> bool {
    matches!(received, Received::Place(_))
}

#[test]
fn a_group_that_misses_more_than_its_message_does_is_not_repaired() {
    let mut v = Victim::new(&config());
    v.post(1, 3_000, None);
    for i in 0..2 {
        assert!(is_placed(v.give(v.data((0, 1), 3_000, i, i))));
    }
    // One segment is missing, and three sequences are.
    for index in 0..3 {
        v.shard(v.data((0, 1), 3_000, 0, 10), (3, 1), (index, 3));
        assert_eq!(v.repair(), None);
    }
    assert_eq!(v.state(), (0, 0, 0));
    assert!(is_placed(v.give(v.data((0, 1), 3_000, 2, 2))));
    assert_eq!(v.state(), (0, 0, 1));
}

#[test]
fn a_message_takes_its_groups_along_when_it_ends() {
    let mut v = Victim::new(&config());
    v.post(1, 12_000, None);
    // Sequences that never come.
    assert!(is_placed(v.shard(v.data((0, 1), 12_000, 10, 100), (2, 1), (0, 2))));
    assert_eq!(v.state(), (1, 0, 0));
    for i in 0..12 {
        assert!(is_placed(v.give(v.data((0, 1), 12_000, i, i))));
    }
    assert_eq!(v.state(), (0, 0, 1));
    // Another message by the same number, which has no such segments.
    v.post(2, 3_000, None);
    assert!(is_placed(v.give(v.data((0, 2), 3_000, 0, 12))));
    v.shard(v.data((0, 1), 12_000, 10, 100), (2, 1), (1, 2));
    assert_eq!((v.repair(), v.state()), (None, (0, 0, 0)));
}

/// What came between the packet that made a group repairable and the repair: the segments under other sequences.
#[test]
fn a_repair_is_of_what_is_missing_when_it_is_asked_for() {
    for whole in [true, false] {
        let mut v = Victim::new(&config());
        v.post(1, 4_000, None);
        v.post(2, 10, None);
        // Too long for its receive: it has to come void.
        assert_eq!(v.give(v.data((1, 2), 100, 0, 20)), Received::Dropped(Drop::Rejected));
        while v.engine.poll_completion().is_some() {}
        assert!(is_placed(v.shard(v.data((0, 1), 4_000, 0, 0), (3, 1), (0, 2))));
        for i in 0..2 {
            assert!(is_placed(v.give(v.data((0, 1), 4_000, i, 10 + i))));
            assert_eq!(v.repair(), None);
        }
        let void = Data { void: true, length: 1, ..v.data((1, 2), 0, 0, 2) };
        assert_eq!((v.give(void), v.repair()), (Received::Taken(Kind::Data), None));
        // Now the group misses two, as many as there is parity, and as many as the message does.
        assert!(is_placed(v.shard(v.data((0, 1), 4_000, 0, 0), (3, 1), (1, 2))));
        for i in 2..if whole { 4 } else { 3 } {
            assert!(is_placed(v.give(v.data((0, 1), 4_000, i, 10 + i))));
        }
        assert_eq!(v.repair(), None);
        assert_eq!(v.state(), (0, 0, usize::from(whole)));
    }
}

/// Else each packet would have to be held against all groups.
#[test]
fn no_segment_is_of_two_groups() {
    let mut v = Victim::new(&config());
    v.post(1, 40_000, None);
    let mut kept = 0;
    for (seq, segments, stride, fits) in [
        (10, 3, 2, true),
        (11, 3, 2, true),
        // Behind and before them.
        (16, 8, 1, true),
        // By one segment: its last and its first.
        (15, 2, 3, false),
        (9, 2, 1, false),
        (7, 3, 1, true),
        // In their midst.
        (12, 2, 2, false),
        (13, 2, 3, false),
        (10, 2, 2, false),
        (10, 3, 3, false),
        (0, 9, 1, false),
        (23, 2, 1, false),
        (0, 20, 2, false),
        (24, 2, 1, true),
    ] {
        let received = v.shard(v.data((0, 1), 40_000, seq, seq), (segments, stride), (0, 1));
        let wanted = Received::Dropped(Drop::Inconsistent);
        assert!(if fits { is_placed(received) } else { received == wanted }, "{seq}: {received:?}");
        kept += usize::from(fits);
        assert_eq!(v.state(), (kept, 0, 0));
    }
    // The same sequences, and other segments.
    let other = v.shard(v.data((0, 1), 40_000, 11, 10), (3, 2), (0, 1));
    assert_eq!(other, Received::Dropped(Drop::Inconsistent));
    // The same segments, of a message of another length.
    let other = v.shard(v.data((0, 1), 30_000, 10, 10), (3, 2), (1, 2));
    assert_eq!(other, Received::Dropped(Drop::Inconsistent));
    assert!(is_placed(v.shard(v.data((0, 1), 40_000, 10, 10), (3, 2), (1, 2))));
}

/// What parity brings of a step is of the step: the rest of it is asked for.
#[test]
fn what_is_repaired_counts_for_its_step() {
    let mut v = Victim::new(&Config { fec: Fec { protect: Protect::Nothing, ..Fec::default() }, ..config() });
    v.post(1, 1_000, Some(5));
    v.post(2, 1_000, Some(5));
    assert!(is_placed(v.shard(v.data((0, 1), 1_000, 0, 0), (1, 1), (0, 1))));
    assert_eq!(v.repair().map(|r| r.missing), Some(1));
    assert_eq!(v.state(), (0, 1, 1));
    for _ in 0..40 {
        v.now += Duration::from_micros(40);
        v.engine.begin(v.now, Duration::ZERO);
        v.engine.turn();
    }
    assert!(v.engine.counters().questions > 0);
}
