//! A packet that is known to be lost: no detector, but what the driver was told by whoever lost it, such as a switch that says what it dropped.

use super::Cause;
use crate::transport::api::SessionKey;
use crate::transport::engine::Engine;
use crate::transport::segments::State;
use crate::transport::session::due;
use crate::wire::shim::{Common, Data, Kind, Probe};

impl Engine {
    /// A packet of a session is lost: `packet` is what the engine wrote of it, whether or not the payload follows. Segments that are in flight as it says are lost at once; what it
    /// told the peer is told again. Anything else is as if nothing had been said. May be called between rounds.
    pub fn lost(&mut self, session: SessionKey, packet: &[u8]) {
        let (Some(slot), Ok(common)) = (self.slot_of(session), Common::parse(packet)) else { return };
        match common.kind {
            Kind::Data => {
                let (mut bytes, mut left) = (0, Some(packet));
                while let Some(packet) = left {
                    left = Data::following(packet);
                    if let Ok((data, _)) = Data::parse(packet) {
                        bytes += self.lost_segment(slot, &data);
                    }
                }
                self.lost_bytes(slot, bytes);
            }
            Kind::Feedback => self.owe(slot, due::FEEDBACK),
            Kind::Announce => self.owe(slot, due::ANNOUNCE),
            Kind::Probe => {
                if let Ok(probe) = Probe::parse(packet)
                    && probe.path < self.sessions[slot].paths
                {
                    self.sessions[slot].probe |= 1 << probe.path;
                    self.owe(slot, due::PROBE);
                }
            }
            Kind::Reject | Kind::Parity => {}
            Kind::Init | Kind::Cookie | Kind::Accept | Kind::Refuse | Kind::Reset | Kind::Close => {}
        }
    }

    /// One of its segments; returns its bytes if that was its last transmission. A copy is not waited for.
    fn lost_segment(&mut self, slot: u32, data: &Data) -> u64 {
        let Some(record) = self.find_open(slot, data.seq) else { return 0 };
        let segment = self.segments.get(record);
        let this = segment.path == data.path && segment.path_seq == data.path_seq;
        if segment.state != State::InFlight || !this {
            return 0;
        }
        self.lose(slot, record, Cause::Told)
    }
}
