//! Several segments in one packet (as SCTP bundles its chunks, RFC 9260, section 6.10): what a packet costs is shared by the small messages
//! that wait for the same peer. Nothing waits to be bundled.

use super::api::{Destination, Transmit};
use super::engine::Engine;
use crate::wire::shim::Data;

impl Engine {
    /// The segment that goes behind `last` in its packet, of which `used` bytes are taken; `None` if there is none that may. Its header is
    /// written into `buf`, which has room for [`Data::LEN`] bytes. The driver marks the header of `last` with [`Data::set_more`], and goes
    /// on until there is none.
    ///
    /// Only to be called right after the call that returned `last`.
    #[inline(always)]
    pub fn follow(&mut self, last: &Transmit, used: usize, buf: &mut [u8]) -> Option<Transmit> {
        if !last.more {
            return None;
        }
        let slot = self.ready.head()?;
        let Destination::Session(key) = last.to else { return None };
        if key != self.key(slot) {
            return None;
        }
        let room = (self.sessions[slot].segment as usize + Data::LEN).checked_sub(used)?;
        let next = self.bundle_segment(slot, last.path, room, buf)?;
        self.counters.bundled += 1;
        Some(next)
    }
}
