//! Frames from one port to the other, through a link that impairs them.

use dataplane::io::{BURST, PacketBuf, PacketBurst, PortIo};
use roce_proto::time::Instant;
use roce_proto::wire::ecn;
use std::mem;
use testbed_impair::{Counters, Delivery, Link, Offer};

/// A direction: what the first port receives leaves by the second.
pub struct Way<I: PortIo> {
    link: Link<I::Buf>,
    /// Out of the link and not yet taken by the port.
    out: I::Burst,
    /// What came and went.
    pub passed: Passed,
}

/// What a direction has passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Frames received by the first port.
    pub received: u64,
    /// Their bytes, without FCS.
    pub received_bytes: u64,
    /// Frames that the second port took.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

/// Two ports, and a link for each direction between them.
pub struct Forwarder<I: PortIo> {
    ports: [I; 2],
    /// From the first to the second port, and back.
    pub ways: [Way<I>; 2],
}

impl<I: PortIo> Forwarder<I> {
    /// Joins two ports by two links.
    pub fn new(ports: [I; 2], links: [Link<I::Buf>; 2]) -> Forwarder<I> {
        let ways = links.map(|link| Way { link, out: I::Burst::default(), passed: Passed::default() });
        Forwarder { ports, ways }
    }

    /// The ports.
    pub fn ports(&self) -> &[I; 2] {
        &self.ports
    }

    /// One round at `now`: a burst received by each port, and what is due sent. Returns whether anything moved.
    pub fn round(&mut self, now: Instant) -> bool {
        let [a, b] = &mut self.ports;
        let [there, back] = &mut self.ways;
        // Both, whatever the first says.
        there.round(a, b, now) | back.round(b, a, now)
    }

    /// When the next frame is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.ways.iter().filter_map(|way| way.link.next_at()).min()
    }
}

impl<I: PortIo> Way<I> {
    /// What became of the frames on the way.
    pub fn fates(&self) -> Counters {
        self.link.counters()
    }

    /// Frames on the way.
    pub fn under_way(&self) -> usize {
        self.link.under_way() + self.out.len()
    }

    fn round(&mut self, from: &mut I, to: &mut I, now: Instant) -> bool {
        let mut burst = I::Burst::default();
        from.rx_burst(&mut burst, BURST);
        let mut moved = !burst.is_empty();
        while let Some(buf) = burst.pop_front() {
            let bytes = buf.packet_len();
            self.passed.received += 1;
            self.passed.received_bytes += bytes as u64;
            let ecn_capable = buf.contiguous().and_then(ecn::read).is_some_and(ecn::Ecn::is_capable);
            self.link.offer(now, Offer { bytes, ecn_capable }, buf, |buf| duplicate(to, buf));
        }
        loop {
            while !self.out.is_full()
                && let Some(delivery) = self.link.pop(now)
            {
                // There is room.
                let _ = self.out.push(finish(delivery));
            }
            let bytes = |out: &I::Burst| -> u64 {
                (0..out.len()).filter_map(|i| out.get(i)).map(|buf| buf.packet_len() as u64).sum()
            };
            let waiting = bytes(&self.out);
            let sent = if self.out.is_empty() { 0 } else { to.tx_burst(&mut self.out) };
            self.passed.sent += sent as u64;
            self.passed.sent_bytes += waiting - bytes(&self.out);
            moved |= sent > 0;
            if sent == 0 || !self.out.is_empty() {
                return moved;
            }
        }
    }
}

/// A copy of a frame, if the port has a buffer for it.
fn duplicate<I: PortIo>(port: &mut I, buf: &I::Buf) -> Option<I::Buf> {
    let mut copy = port.alloc()?;
    let room = copy.append(buf.packet_len())?;
    buf.linearise(room);
    Some(copy)
}

/// The frame as the link delivers it.
fn finish<B: PacketBuf>(delivery: Delivery<B>) -> B {
    let Delivery { mut packet, marked, corrupt, .. } = delivery;
    if marked || corrupt.is_some() {
        let bytes = packet.written();
        if marked {
            ecn::mark(bytes);
        }
        // A bit beyond the first piece of a chained buffer is one that nobody looks at here: such a frame stays as it is.
        if let Some(bit) = corrupt
            && let Some(byte) = bytes.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
        }
    }
    packet
}

impl Passed {
    /// What has passed since `before`, which becomes now.
    pub fn since(&self, before: &mut Passed) -> Passed {
        let then = mem::replace(before, *self);
        Passed {
            received: self.received - then.received,
            received_bytes: self.received_bytes - then.received_bytes,
            sent: self.sent - then.sent,
            sent_bytes: self.sent_bytes - then.sent_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::io::memory::{MemoryConfig, MemoryPort};
    use std::time::Duration;
    use testbed_impair::{Config, Loss, Rate};

    struct Net {
        forwarder: Forwarder<MemoryPort>,
        ends: [MemoryPort; 2],
    }

    fn net(there: Config, back: Config) -> Net {
        let config = MemoryConfig::default();
        let (a, near) = MemoryPort::pair(&config);
        let (b, far) = MemoryPort::pair(&config);
        let links = [Link::new(there, 1).unwrap(), Link::new(back, 2).unwrap()];
        Net { forwarder: Forwarder::new([near, far], links), ends: [a, b] }
    }

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    /// Sends from one end. A memory port's `inject` is what its peer would have sent; `take` what it has sent itself.
    fn send(end: &mut MemoryPort, frame: &[u8]) {
        let mut burst = <MemoryPort as PortIo>::Burst::default();
        let mut buf = end.alloc().unwrap();
        buf.append(frame.len()).unwrap().copy_from_slice(frame);
        burst.push(buf).ok().unwrap();
        assert_eq!(end.tx_burst(&mut burst), 1);
    }

    fn received(end: &mut MemoryPort) -> Vec<Vec<u8>> {
        let mut burst = <MemoryPort as PortIo>::Burst::default();
        end.rx_burst(&mut burst, BURST);
        std::iter::from_fn(|| burst.pop_front()).map(|buf| buf.contiguous().unwrap().to_vec()).collect()
    }

    #[test]
    fn frames_cross_in_their_time_and_each_direction_has_its_own() {
        let delay = |ms| Config { delay: Duration::from_millis(ms), ..Config::default() };
        let mut net = net(delay(10), delay(3));
        send(&mut net.ends[0], &[1; 60]);
        send(&mut net.ends[1], &[2; 70]);
        assert!(net.forwarder.round(at(0)));
        assert_eq!(net.forwarder.next_at(), Some(at(3000)));
        assert!(!net.forwarder.round(at(2999)));
        assert!(net.forwarder.round(at(3000)));
        assert_eq!(received(&mut net.ends[0]), [vec![2; 70]]);
        assert!(received(&mut net.ends[1]).is_empty());
        assert_eq!(net.forwarder.ways[0].under_way(), 1);
        assert!(net.forwarder.round(at(10_000)));
        assert_eq!(received(&mut net.ends[1]), [vec![1; 60]]);
        let passed = net.forwarder.ways[0].passed;
        assert_eq!(passed, Passed { received: 1, received_bytes: 60, sent: 1, sent_bytes: 60 });
    }

    #[test]
    fn frames_are_doubled_lost_and_bent() {
        let mut doubling = net(Config { duplicate: 1.0, ..Config::default() }, Config::default());
        send(&mut doubling.ends[0], &[7; 60]);
        doubling.forwarder.round(at(0));
        assert_eq!(received(&mut doubling.ends[1]), [[7; 60], [7; 60]]);
        let mut losing = net(Config { loss: Loss::Random(1.0), ..Config::default() }, Config::default());
        send(&mut losing.ends[0], &[7; 60]);
        losing.forwarder.round(at(0));
        assert!(received(&mut losing.ends[1]).is_empty());
        assert_eq!(losing.forwarder.ways[0].fates().lost, 1);
        let mut bending = net(Config { corrupt: 1.0, ..Config::default() }, Config::default());
        send(&mut bending.ends[0], &[0; 60]);
        bending.forwarder.round(at(0));
        let came = received(&mut bending.ends[1]);
        assert_eq!(came[0].iter().map(|b| b.count_ones()).sum::<u32>(), 1, "one bit");
    }

    #[test]
    fn a_long_queue_marks_what_may_be_marked() {
        let rate = Some(Rate { bits_per_second: 8_000_000, queue: 1 << 20, mark_from: Some(100) });
        let mut net = net(Config { rate, ..Config::default() }, Config::default());
        let mut frame = vec![0; 100];
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x20]);
        for _ in 0..3 {
            send(&mut net.ends[0], &frame);
        }
        net.forwarder.round(at(0));
        net.forwarder.round(at(1000));
        let came: Vec<_> = received(&mut net.ends[1]).iter().map(|f| ecn::read(f).unwrap()).collect();
        assert_eq!(came, [ecn::Ecn::Ect0, ecn::Ecn::Ce, ecn::Ecn::Ce]);
    }

    /// A port that takes nothing holds frames up, and loses none that was still in the link.
    #[test]
    fn what_a_port_does_not_take_stays_in_order() {
        let config = MemoryConfig { ring: 8, ..MemoryConfig::default() };
        let (mut a, near) = MemoryPort::pair(&MemoryConfig::default());
        let (far, mut b) = MemoryPort::pair(&config);
        let links = [(); 2].map(|()| Link::new(Config::default(), 1).unwrap());
        let mut forwarder = Forwarder::new([near, far], links);
        for n in 0..100 {
            send(&mut a, &[n; 60]);
            forwarder.round(at(0));
        }
        let mut came = Vec::new();
        for _ in 0..100 {
            came.extend(received(&mut b).iter().map(|f| f[0]));
            forwarder.round(at(1));
        }
        assert_eq!(came, (0..100).collect::<Vec<_>>());
        assert_eq!(forwarder.ways[0].passed.sent, 100);
    }
}
