//! ICRCs are made for several packets at once, when they leave: no order of events may let one leave without.

use super::*;
use crate::io::PacketBurst;
use pcap_file::pcap::PcapReader;

/// One thing that happens to the sender.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// So many messages of a length, from one of the queue pairs to one of the address handles, one by one or as a list.
    Post {
        qp: usize,
        six: bool,
        len: usize,
        count: usize,
        list: bool,
        signaled: bool,
        imm: bool,
    },
    /// The Q_Key, P_Key or PSN of a queue pair changes.
    Change {
        qp: usize,
        qkey: u32,
    },
    /// A queue pair goes through the error and reset states, or goes altogether and another comes.
    Reset {
        qp: usize,
    },
    Replace {
        qp: usize,
    },
    /// A neighbour asks, and is answered with the next burst.
    Asked,
    /// An echo request joins the burst between two rounds.
    Ping {
        six: bool,
    },
    /// A capture begins anew.
    Capture,
    Poll,
    Flush,
    /// The wire carries so many away, so that the driver takes part of a burst.
    Take(usize),
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let len = prop_oneof![Just(0usize), Just(1), Just(64), Just(66), Just(1024), Just(4096)];
    prop_oneof![
        6 => (0..3usize, any::<bool>(), len, 1..70usize, any::<bool>(), any::<bool>(), 0..8u8).prop_map(
            |(qp, six, len, count, list, signaled, imm)| Event::Post {
                qp, six, len, count, list, signaled: signaled && count < 8, imm: imm == 0,
            },
        ),
        1 => (0..3usize, any::<u32>()).prop_map(|(qp, qkey)| Event::Change { qp, qkey: qkey >> 1 }),
        1 => (0..3usize).prop_map(|qp| Event::Reset { qp }),
        1 => (0..3usize).prop_map(|qp| Event::Replace { qp }),
        2 => Just(Event::Asked),
        2 => any::<bool>().prop_map(|six| Event::Ping { six }),
        1 => Just(Event::Capture),
        2 => Just(Event::Poll),
        1 => Just(Event::Flush),
        3 => (1..40usize).prop_map(Event::Take),
    ]
}

/// A sender with three queue pairs, and the end of its wire.
pub(super) struct Sender {
    pub w: W,
    peer: MemoryPort,
    pub cq: CqKey,
    pub qps: Vec<QpKey>,
    pub ahs: [AhKey; 2],
    /// An ARP request for its address.
    question: Vec<u8>,
    now: u64,
    pub wire: Vec<Vec<u8>>,
    pub sent: usize,
    /// Single sends are tried the quick way first, and so many were taken so.
    pub quickly: Option<usize>,
    /// Of what completed, the numbers.
    pub done: Vec<u64>,
    folder: tempfile::TempDir,
    captured: Vec<Vec<u8>>,
    /// Whether there is a capture, for whose order packets are sealed more often.
    captures: bool,
}

impl Sender {
    pub fn new(captures: bool) -> Sender {
        let (io, peer) = MemoryPort::pair(&MemoryConfig { ring: 50, ..MemoryConfig::default() });
        let mut w = worker(io, 1);
        let cq = w.create_cq(4096);
        let qps = (0..3).map(|_| w.create_qp(&QpConfig::new(cq)).unwrap()).collect();
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 9]));
        let ahs = [v4(2), v6(2)]
            .map(|dst| w.create_ah(&AhConfig { dst_mac: mac, ..AhConfig::new(dst) }, at(0)).unwrap());
        // What another endpoint asks, taken off a wire of its own.
        let (mut end, other) = MemoryPort::pair(&MemoryConfig::default());
        let mut other = worker(other, 2);
        other.create_ah(&AhConfig::new(v4(1)), at(0)).unwrap();
        for i in 0..4 {
            other.poll(at(i * 10));
        }
        let question = std::iter::from_fn(|| end.take())
            .find(|f| matches!(frame::parse(f), Ok(Frame::Arp(_, arp)) if arp.target_ip == Ipv4Addr::new(192, 0, 2, 1)));
        let folder = tempfile::tempdir().unwrap();
        let question = question.unwrap();
        Sender {
            w,
            peer,
            cq,
            qps,
            ahs,
            question,
            now: 0,
            wire: vec![],
            sent: 0,
            quickly: None,
            done: vec![],
            folder,
            captured: vec![],
            captures,
        }
    }

    fn poll(&mut self) {
        self.now += 1;
        self.w.poll(at(self.now));
        self.done.extend(std::iter::from_fn(|| self.w.cq(self.cq).unwrap().pop()).map(|done| done.wr_id));
    }

    fn capture(&mut self) {
        if !self.captures {
            return;
        }
        self.read_capture();
        let path = self.folder.path().join("a.pcap");
        self.w.set_capture(Some(Capture::create(&path).unwrap()));
    }

    fn read_capture(&mut self) {
        self.w.set_capture(None);
        let Ok(file) = std::fs::File::open(self.folder.path().join("a.pcap")) else { return };
        let own = self.w.port_info(0).unwrap().mac.0;
        let mut reader = PcapReader::new(file).unwrap();
        while let Some(packet) = reader.next_packet() {
            let data = packet.unwrap().data.into_owned();
            if data[6..12] == own {
                self.captured.push(data);
            }
        }
    }

    fn take(&mut self, most: usize) {
        for _ in 0..most {
            let Some(frame) = self.peer.take() else { return };
            self.wire.push(frame);
        }
    }

    pub fn drain(&mut self) {
        for _ in 0..5 {
            self.take(usize::MAX);
            self.poll();
        }
        self.take(usize::MAX);
        assert!(self.w.ports[0].tx.is_empty());
    }

    pub fn happens(&mut self, event: &Event) {
        match *event {
            Event::Post { qp, six, len, count, list, signaled, imm } => {
                let wr = SendWr {
                    wr_id: self.sent as u64,
                    ah: self.ahs[usize::from(six)],
                    dst_qpn: Qpn::new(0x77).unwrap(),
                    qkey: QKey(0x8000_0000),
                    imm: imm.then_some(9),
                    solicited: false,
                    signaled,
                };
                // Different from any other message, so that a wrong ICRC is one.
                let payloads: Vec<Vec<u8>> =
                    (0..count).map(|i| vec![(self.sent + i * 7) as u8; len]).collect();
                if list {
                    self.sent += self.w.post_send_list(self.qps[qp], &wr, &payloads).0;
                } else {
                    let post = |p: &&Vec<u8>| {
                        if let Some(quickly) = &mut self.quickly
                            && self.w.post_send_quickly(self.qps[qp], wr, p.len(), |to| to.copy_from_slice(p))
                        {
                            *quickly += 1;
                            return true;
                        }
                        self.w.post_send(self.qps[qp], &wr, p).is_ok()
                    };
                    self.sent += payloads.iter().filter(post).count();
                }
            }
            Event::Change { qp, qkey } => {
                let change =
                    QpChange { qkey: Some(QKey(qkey)), psn: Psn::new(qkey & 0xff_ffff), pkey_index: None };
                self.w.change_qp(self.qps[qp], change).unwrap();
            }
            Event::Reset { qp } => {
                use QpState::*;
                for state in [Error, Reset, Init, ReadyToReceive, ReadyToSend] {
                    self.w.modify_qp(self.qps[qp], state).unwrap();
                }
            }
            Event::Replace { qp } => {
                self.w.destroy_qp(self.qps[qp]).unwrap();
                self.qps[qp] = self.w.create_qp(&QpConfig::new(self.cq)).unwrap();
            }
            Event::Asked => {
                self.peer.inject(&self.question);
                self.poll();
            }
            Event::Ping { six } => {
                // A full burst has no room for it.
                let _ = self.w.send_echo(self.ahs[usize::from(six)], 1, 1, 64);
            }
            Event::Capture => self.capture(),
            Event::Poll => self.poll(),
            Event::Flush => {
                self.w.flush();
            }
            Event::Take(most) => self.take(most),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_packet_leaves_without_its_icrc(
        captures: bool, quickly: bool, events in proptest::collection::vec(event(), 1..60))
    {
        let mut sender = Sender::new(captures);
        sender.quickly = quickly.then_some(0);
        sender.drain();
        sender.wire.clear();
        sender.capture();
        for event in &events {
            sender.happens(event);
        }
        sender.drain();
        sender.read_capture();
        let mut roce = 0;
        for (i, frame) in sender.wire.iter().enumerate() {
            if let Ok(Frame::Roce(packet)) = frame::parse(frame) {
                prop_assert!(packet.icrc_ok(), "packet {i} of {}", sender.wire.len());
                roce += 1;
            } else {
                prop_assert!(
                    matches!(frame::parse(frame), Ok(Frame::Arp(..) | Frame::Icmp4(_) | Frame::Icmp6(_))),
                    "frame {i} of {} was spoilt", sender.wire.len()
                );
            }
        }
        prop_assert_eq!(roce, sender.sent, "each send leaves once");
        // The place of the first that differs says more than two long lists.
        let differs = sender.captured.iter().zip(&sender.wire).position(|(a, b)| a != b);
        let lens = (sender.captured.len(), sender.wire.len());
        prop_assert!(!captures || differs.is_none() && lens.0 == lens.1, "captured and left: {lens:?}, first differs {differs:?}");
    }
}

#[test]
fn a_control_packet_between_two_of_a_flow_is_left_alone() {
    let mut sender = Sender::new(false);
    sender.drain();
    sender.wire.clear();
    let post = Event::Post { qp: 0, six: false, len: 64, count: 3, list: true, signaled: false, imm: false };
    for event in [&post, &Event::Ping { six: false }, &post, &Event::Poll] {
        sender.happens(event);
    }
    sender.drain();
    let kinds = sender.wire.iter().map(|frame| match frame::parse(frame) {
        Ok(Frame::Roce(packet)) => packet.icrc_ok().then_some("roce"),
        Ok(Frame::Icmp4(_)) => Some("echo"),
        _ => None,
    });
    let (roce, echo) = (Some("roce"), Some("echo"));
    assert_eq!(kinds.collect::<Vec<_>>(), [roce, roce, roce, echo, roce, roce, roce]);
}
