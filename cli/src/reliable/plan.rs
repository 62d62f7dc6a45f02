//! What a test is, as both its ends know it, and what it takes of a side.

use super::MAX_PEERS;
use crate::host::Host;
use crate::rendezvous::message::{TestKind, TestSpec};
use crate::tags::Mix;
use crate::traffic::session::check_spec;
use roce_proto::transport::Limits;

/// Receives that are left for what tests say to each other, by all clients.
const SPARE_RECEIVES: u32 = 8_192;

/// What is measured, as both ends know it.
#[derive(Clone, Debug)]
pub(super) struct Test {
    pub spec: TestSpec,
    pub peers: u16,
    pub memory: u64,
    /// The classes of its messages, if they are several.
    pub mix: Option<Mix>,
}

fn depth(wanted: u32, size: usize, memory: usize) -> usize {
    (wanted as usize).min((memory / size.max(1)).max(2))
}

impl Test {
    fn bytes(&self) -> usize {
        usize::try_from(self.memory).unwrap_or(usize::MAX)
    }

    /// Receives of each peer and class.
    fn receives(&self) -> usize {
        let peers = usize::from(self.peers.max(1)) * self.classes();
        let memory = self.bytes() / peers;
        let places = (Limits::default().receives - SPARE_RECEIVES) as usize / peers;
        depth(self.spec.rx_depth.div_ceil(self.classes() as u32), self.spec.size as usize, memory).min(places)
    }

    /// Classes that its messages say that they are of, or one.
    fn classes(&self) -> usize {
        self.mix.map_or(1, |mix| mix.classes().count().max(1))
    }

    /// Messages that a side sends at a time, and receives of each peer and class.
    pub fn depths(&self) -> (usize, usize) {
        if self.spec.kind == TestKind::Lat {
            return (1, 4);
        }
        (depth(self.spec.tx_depth, self.spec.size as usize, self.bytes()), self.receives())
    }

    /// Whether a side sends of its own accord, and whether it receives.
    pub fn roles(&self, client: bool) -> (bool, bool) {
        let lat = self.spec.kind == TestKind::Lat;
        (client || (self.spec.bidirectional && !lat), !client || self.spec.bidirectional || lat)
    }

    /// Bytes of its messages at a side.
    fn most(&self, client: bool) -> u64 {
        let ((tx, rx), (sends, receives)) = (self.depths(), self.roles(client));
        let receives = if receives { rx * usize::from(self.peers) * self.classes() } else { 0 };
        let messages = if sends { tx } else { 0 } + receives;
        u64::from(self.spec.size).saturating_mul(messages as u64)
    }

    /// Why it cannot be run at a side, if it cannot.
    pub fn check(&self, kind: Option<TestKind>, client: bool, host: &Host) -> Result<(), String> {
        kind.map_or(Ok(()), |kind| kind.accepts(self.spec.kind))?;
        check_spec(&self.spec, u32::MAX as usize)?;
        if self.peers == 0 || self.peers > MAX_PEERS {
            return Err(format!("{} peers: it must be 1 to {MAX_PEERS}", self.peers));
        }
        host.check_memory(self.most(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;
    use crate::tags;

    fn test(kind: TestKind, bidirectional: bool, peers: u16) -> Test {
        let spec = TestSpec {
            kind,
            size: 1 << 20,
            qps: 1,
            tx_depth: 128,
            rx_depth: 3,
            iters: Some(1),
            duration_ms: None,
            bidirectional,
            rate: None,
        };
        Test { spec, peers, memory: 8 << 20, mix: None }
    }

    #[test]
    fn a_side_has_memory_for_what_it_sends_and_receives() {
        let most = |test: &Test| [true, false].map(|client| test.most(client) >> 20);
        // Eight sends of 1 MiB are in 8 MiB, and receives are as deep as asked; of many peers, two each.
        assert_eq!(most(&test(TestKind::Bw, false, 1)), [8, 3]);
        assert_eq!(most(&test(TestKind::Bw, true, 1)), [11, 11]);
        assert_eq!(most(&test(TestKind::Bw, false, 100)), [8, 200]);
        assert_eq!(most(&test(TestKind::Lat, false, 1)), [5, 4]);
        // Receives are shared out among classes, and rounded up.
        let mixed =
            |classes, memory| Test { mix: tags::mix(classes).ok(), memory, ..test(TestKind::Bw, false, 1) };
        assert_eq!(most(&mixed("dp,pp,control", 8 << 20)), [8, 3]);
        assert_eq!(most(&mixed("dp,pp", 8 << 20)), [8, 4]);
        assert_eq!(most(&mixed("dp", 8 << 20)), [8, 3]);
    }

    #[test]
    fn what_a_side_has_no_memory_for_is_refused_there() {
        let machine = Machine::new();
        machine.file("/proc/meminfo", "MemAvailable: 5120 kB\n");
        let test = test(TestKind::Bw, false, 1);
        let check = |client| test.check(Some(TestKind::Bw), client, &machine.host);
        assert_eq!(check(false), Ok(()));
        let refused = check(true).unwrap_err();
        assert!(refused.contains("take 8 MiB") && refused.contains("5 MiB are left"), "{refused}");
    }
}
