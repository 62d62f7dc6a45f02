//! Looking after the ports: whether their links are up, and bringing them up again.

use super::Worker;
use super::port::Port;
use crate::buffer::Buffer;
use crate::io::{PortIo, PortState};
use roce_proto::time::Instant;
use std::time::Duration;

/// Between two looks at a port. A look may cost a call into the driver, and four a second are no part of any figure; a
/// person who pulls a cable is answered at once all the same.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a connection that was begun may take before it is begun again.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// When a port is looked at, and tended.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    pub look: Instant,
    recover: Instant,
}

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Looks at port `index` if it is time to.
    #[inline]
    pub(super) fn look_after(&mut self, index: usize, now: Instant) {
        if let Some(port) = self.ports.get_mut(index)
            && now >= port.schedule.look
        {
            port.look(now);
        }
    }
}

impl<I: PortIo, B> Port<I, B> {
    #[cold]
    fn look(&mut self, now: Instant) {
        self.schedule.look = now + LOOK_EVERY;
        let state = self.io.state();
        if let Some(before) = self.watch.note(state) {
            let name = &self.local.name;
            tracing::info!("port {name}: the link is {}", state.name());
            if before == PortState::Up {
                self.local.counters.link_lost += 1;
                self.schedule.recover = now;
            }
            if state == PortState::Up {
                self.local.counters.link_back += 1;
                // Whoever is there now may be another than before.
                self.local.neighbours.ask_anew(now);
                self.local.announcer.link_up(now);
            }
        }
        if state == PortState::Down && now >= self.schedule.recover {
            let under_way = self.io.recover();
            self.schedule.recover = now + if under_way { CONNECT_LIMIT } else { LOOK_EVERY };
        }
    }
}
