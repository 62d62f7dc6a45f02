//! Packets that lie in several pieces, as drivers give them whose buffers are small.

use super::*;
use crate::io::memory::{MemoryBuf, MemoryBurst};
use crate::io::{PacketBuf, PacketBurst, PortInfo, PortIo, PortStats};

/// A port whose received packets lie in pieces of up to [`PIECE`] bytes; those of one piece are whole.
struct Chained(MemoryPort);

const PIECE: usize = 100;

#[derive(Default)]
struct Burst(Vec<Buf>);

struct Buf(MemoryBuf);

impl PacketBuf for Buf {
    fn packet_len(&self) -> usize {
        self.0.packet_len()
    }

    fn contiguous(&self) -> Option<&[u8]> {
        self.0.contiguous().filter(|bytes| bytes.len() <= PIECE)
    }

    fn linearise(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for (from, to) in self.0.contiguous().unwrap().chunks(PIECE).zip(out.chunks_mut(PIECE)) {
            let count = from.len().min(to.len());
            to[..count].copy_from_slice(&from[..count]);
            copied += count;
        }
        copied
    }

    fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.append(len)
    }

    fn written(&mut self) -> &mut [u8] {
        self.0.written()
    }
}

impl PacketBurst for Burst {
    type Buf = Buf;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Option<&Buf> {
        self.0.get(index)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Buf> {
        self.0.get_mut(index)
    }

    fn push(&mut self, buf: Buf) -> Result<(), Buf> {
        self.0.push(buf);
        Ok(())
    }

    fn pop_front(&mut self) -> Option<Buf> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl PortIo for Chained {
    type Buf = Buf;
    type Burst = Burst;

    fn info(&self) -> &PortInfo {
        self.0.info()
    }

    fn rx_burst(&mut self, burst: &mut Burst, max: usize) -> usize {
        let mut came = MemoryBurst::default();
        let count = self.0.rx_burst(&mut came, max);
        burst.0.extend(std::iter::from_fn(|| came.pop_front()).map(Buf));
        count
    }

    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut to = MemoryBurst::default();
        let count = burst.0.len();
        burst.0.drain(..).for_each(|buf| assert!(to.push(buf.0).is_ok()));
        assert_eq!(self.0.tx_burst(&mut to), count, "what is sent here finds room");
        count
    }

    fn alloc(&mut self) -> Option<Buf> {
        self.0.alloc().map(Buf)
    }

    fn link_up(&self) -> bool {
        self.0.link_up()
    }

    fn stats(&self) -> PortStats {
        self.0.stats()
    }
}

#[test]
fn chained_packets_arrive_whole_and_what_is_too_long_is_counted() {
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let mtu = usize::from(b.info().mtu);
    let mut a = worker(a, 1);
    let config = PortConfig::new(v4(2));
    let mut b: Worker<_, Vec<u8>> =
        Worker::new(&WorkerConfig::default(), vec![(Chained(b), config)]).unwrap();
    let cq = [a.create_cq(64), b.create_cq(64)];
    let qp = [a.create_qp(&QpConfig::new(cq[0])).unwrap(), b.create_qp(&QpConfig::new(cq[1])).unwrap()];
    let ah = a.create_ah(&AhConfig::new(v4(2)), at(0)).unwrap();
    for us in 1..5 {
        b.poll(at(us));
        a.poll(at(us));
    }
    assert_eq!(a.ah_state(ah), Some(AhState::Ready));
    let dst_qpn = b.qpn(qp[1]).unwrap();
    let wr = SendWr { wr_id: 7, ah, dst_qpn, qkey: QKEY, imm: None, solicited: false, signaled: false };
    // Many of a kind, so that the flow is known after some; of one piece, of two, of many and as long as they get.
    for (turn, len) in [0usize, 40, 60, 333, 4096].into_iter().enumerate() {
        for n in 0..20u8 {
            b.post_recv(qp[1], RecvWr { wr_id: n.into(), buf: vec![0xEE; GRH_LEN + len] })
                .map_err(|e| e.0)
                .unwrap();
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8 ^ n).collect();
            a.post_send(qp[0], &wr, &payload).unwrap();
            a.flush();
            b.poll(at(100 * turn as u64 + 100));
            let done = b.cq(cq[1]).unwrap().pop().unwrap();
            assert_eq!((done.status, done.byte_len as usize), (WcStatus::Success, GRH_LEN + len));
            assert!(done.buf.unwrap()[GRH_LEN..] == payload, "{len} bytes");
        }
    }
    let counters = |b: &Worker<Chained, Vec<u8>>| {
        let counters = b.counters(0).unwrap();
        (counters.rx_packets, counters.delivered, counters.dropped(DropReason::Local(LocalDrop::Oversize)))
    };
    let (received, delivered, _) = counters(&b);
    assert_eq!(delivered, 100);
    // Longer than any frame of the port's MTU, with two tags.
    let mut other = MemoryPort::pair(&MemoryConfig { mtu: 9100, ..MemoryConfig::default() });
    std::mem::swap(&mut b.ports[0].io.0, &mut other.0);
    for (len, drops) in [(mtu + 22, 0), (mtu + 23, 1)] {
        let mut buf = other.1.alloc().unwrap();
        buf.append(len).unwrap().fill(0);
        let mut burst = MemoryBurst::default();
        burst.push(buf).map_err(|_| "full").unwrap();
        assert_eq!(other.1.tx_burst(&mut burst), 1);
        b.poll(at(10_000));
        assert_eq!((counters(&b).2, counters(&b).1), (drops, 100), "{len} bytes");
    }
    assert_eq!(counters(&b).0, received + 2);
}
