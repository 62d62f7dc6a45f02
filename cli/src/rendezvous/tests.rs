//! Two control queue pairs over in-process ports, polled by the test.

use super::*;
use crate::traffic::drive::Inline;
use dataplane::clock::Clock;
use dataplane::idle::IdlePolicy;
use dataplane::io::memory::{MemoryConfig, MemoryPort};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};

struct Side {
    drive: Inline<MemoryPort>,
    control: Control,
}

impl Side {
    fn open(port: MemoryPort, ip: &str, listen: bool) -> Side {
        let config = PortConfig::new(ip.parse().unwrap());
        let mut worker = Worker::new(&WorkerConfig::default(), vec![(port, config)]).unwrap();
        let cqs = [worker.create_cq(64), worker.create_cq(256)];
        let mut drive = Inline::new(worker, cqs, Clock::new(), IdlePolicy::Spin);
        let control = Control::open(&mut drive, cqs[1], Qpn::new(CONTROL_QPN).filter(|_| listen)).unwrap();
        Side { drive, control }
    }

    /// One round; the receive that completed in it, not yet taken.
    fn round(&mut self) -> Option<Completion<Buf>> {
        self.control.pump(&mut self.drive).unwrap();
        self.drive.turn(true);
        self.drive.complete().filter(|done| done.opcode == WcOpcode::Recv)
    }
}

/// Rounds until `to` has a message of `from`.
fn arrival(from: &mut Side, to: &mut Side, id: u64) -> Completion<Buf> {
    let peer = Peer { ip: "192.0.2.1".parse().unwrap(), qpn: Qpn::new(CONTROL_QPN).unwrap() };
    from.control.send(&mut from.drive, peer, &Message::Ping { id }).unwrap();
    for _ in 0..1000 {
        from.round();
        if let Some(done) = to.round() {
            return done;
        }
    }
    panic!("message {id} does not arrive");
}

#[test]
fn a_receive_without_room_is_posted_with_a_later_pump() {
    let (a, b) = MemoryPort::pair(&MemoryConfig { mtu: 4200, ..MemoryConfig::default() });
    let mut server = Side::open(a, "192.0.2.1", true);
    let mut client = Side::open(b, "192.0.2.2", false);
    let first = arrival(&mut client, &mut server, 1);
    // Another one takes its place in the queue.
    let buf = vec![0; GRH_LEN + server.control.mtu].into_boxed_slice();
    server.drive.recv(server.control.qp, 0, buf).unwrap();
    server.control.take_own(&mut server.drive, first);
    assert!(matches!(server.control.next_message(), Some((_, Message::Ping { id: 1 }))));
    assert_eq!(server.control.unposted.len(), 1);
    server.control.pump(&mut server.drive).unwrap();
    assert_eq!(server.control.unposted.len(), 1, "there is no room yet");

    let second = arrival(&mut client, &mut server, 2);
    server.control.pump(&mut server.drive).unwrap();
    assert!(server.control.unposted.is_empty());
    // The queue is full again: it was posted indeed.
    server.control.take_own(&mut server.drive, second);
    assert_eq!(server.control.unposted.len(), 1);
    assert!(matches!(server.control.next_message(), Some((_, Message::Ping { id: 2 }))));
}
