//! An Ethernet switch within the process: a port for each rank, so that many can meet without a network.

use dataplane::io::memory::{MemoryBuf, MemoryBurst, MemoryConfig, MemoryPort};
use dataplane::io::{BURST, PacketBuf, PacketBurst, PortIo};
use roce_proto::wire::ethernet::MacAddr;

/// MTU of its ports: an IB MTU of 4096 fits.
const MTU: u16 = 4200;
/// Frames that wait at a port at the most: whole windows of many ranks.
const QUEUE: usize = 8_192;
/// Buffers of a rank's port: for windows of several others.
pub const BUFFERS: usize = 1_024;

/// The switch.
pub struct Switch {
    ports: Vec<MemoryPort>,
    /// What leaves by each port.
    out: Vec<MemoryBurst>,
    loss: f64,
    rng: fastrand::Rng,
    /// Frames lost by chance.
    pub lost: u64,
    /// Frames that a port had no room for.
    pub full: u64,
}

impl Switch {
    /// A switch that loses a share of the frames to single stations, and the ports of as many stations, with so many buffers each.
    pub fn new(stations: u32, buffers: usize, loss: f64, seed: u64) -> (Switch, Vec<MemoryPort>) {
        let config = MemoryConfig { mtu: MTU, ring: QUEUE, buffers };
        let pairs = (0..stations).map(|station| {
            let (near, far) = MemoryPort::pair(&config);
            (near.with_mac(mac(station)), far)
        });
        let (near, ports): (Vec<_>, Vec<_>) = pairs.unzip();
        let out = ports.iter().map(|_| MemoryBurst::default()).collect();
        let rng = fastrand::Rng::with_seed(seed);
        (Switch { ports, out, loss, rng, lost: 0, full: 0 }, near)
    }

    /// Passes on what waits; whether anything did.
    pub fn round(&mut self) -> bool {
        let mut moved = false;
        for from in 0..self.ports.len() {
            let mut burst = MemoryBurst::default();
            if let Some(port) = self.ports.get_mut(from) {
                port.rx_burst(&mut burst, BURST);
            }
            while let Some(frame) = burst.pop_front() {
                moved = true;
                self.pass(from, frame);
            }
        }
        for to in 0..self.ports.len() {
            self.flush(to);
        }
        moved
    }

    fn pass(&mut self, from: usize, frame: MemoryBuf) {
        let Some(to) = frame.contiguous().and_then(|bytes| bytes.first_chunk::<6>()).copied() else { return };
        if to[0] & 1 == 1 {
            for station in (0..self.ports.len()).filter(|&station| station != from) {
                let copy = self.ports.get_mut(station).and_then(|port| copy(port, &frame));
                match copy {
                    Some(copy) => self.push(station, copy),
                    None => self.full += 1,
                }
            }
        } else if let Some(station) = station(to).filter(|&station| station < self.ports.len()) {
            if self.loss > 0.0 && self.rng.f64() < self.loss {
                self.lost += 1;
            } else {
                self.push(station, frame);
            }
        }
    }

    fn push(&mut self, to: usize, frame: MemoryBuf) {
        if self.out.get(to).is_some_and(PacketBurst::is_full) {
            self.flush(to);
        }
        // There is room now.
        let _ = self.out.get_mut(to).map(|burst| burst.push(frame));
    }

    /// Hands a port what leaves by it. What it has no room for is lost, as in any switch.
    fn flush(&mut self, to: usize) {
        if let (Some(port), Some(burst)) = (self.ports.get_mut(to), self.out.get_mut(to))
            && !burst.is_empty()
        {
            port.tx_burst(burst);
            self.full += burst.len() as u64;
            burst.clear();
        }
    }
}

fn copy(port: &mut MemoryPort, frame: &MemoryBuf) -> Option<MemoryBuf> {
    let mut copy = port.alloc()?;
    let room = copy.append(frame.packet_len())?;
    frame.linearise(room);
    Some(copy)
}

/// The MAC address of a station: a locally administered one.
fn mac(station: u32) -> MacAddr {
    let [.., high, low] = station.to_be_bytes();
    MacAddr([0x02, 0x53, 0x57, 1, high, low])
}

fn station(mac: [u8; 6]) -> Option<usize> {
    let [0x02, 0x53, 0x57, 1, high, low] = mac else { return None };
    Some(usize::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: [u8; 6], tag: u8) -> Vec<u8> {
        [&to[..], &[tag; 54]].concat()
    }

    #[test]
    fn frames_go_to_whom_they_are_for() {
        let (mut switch, mut ports) = Switch::new(300, 4, 0.0, 1);
        let to = ports[299].info().mac;
        assert_ne!(to, ports[43].info().mac);
        assert!(ports[0].inject(&frame(to.0, 1)));
        assert!(ports[1].inject(&frame([0xff; 6], 2)));
        assert!(ports[2].inject(&frame([0x02, 0x53, 0x57, 1, 0xff, 0], 3)), "nobody");
        assert!(switch.round() && !switch.round());
        let tags = |port: &mut MemoryPort| -> Vec<u8> {
            std::iter::from_fn(|| port.take()).map(|frame| frame[6]).collect()
        };
        assert_eq!(tags(&mut ports[299]), [1, 2]);
        assert_eq!(tags(&mut ports[0]), [2]);
        assert!(tags(&mut ports[1]).is_empty(), "not back to where it came from");
    }

    #[test]
    fn as_many_are_lost_as_asked() {
        let (mut switch, mut ports) = Switch::new(2, 4, 0.25, 7);
        let to = ports[1].info().mac;
        let mut came = 0;
        for _ in 0..4000 {
            assert!(ports[0].inject(&frame(to.0, 1)));
            switch.round();
            came += u64::from(ports[1].take().is_some());
        }
        assert_eq!(switch.lost + came, 4000);
        // Six standard deviations.
        assert!((1000 - 165..=1000 + 165).contains(&switch.lost), "{}", switch.lost);
    }
}
