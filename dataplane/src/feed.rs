//! Neighbours from another source than the wire, such as the kernel's table: two bounded queues without a lock between a
//! worker and whoever knows.
//!
//! The worker says whom it needs, as often as it would ask the wire; the other end answers with what it knows, and again when
//! that changes.

use crossbeam_queue::ArrayQueue;
use roce_proto::wire::ethernet::MacAddr;
use std::net::IpAddr;
use std::sync::Arc;

/// Places of each queue. What finds no room is asked for again a second later.
const DEPTH: usize = 1024;

#[derive(Debug)]
struct Queues {
    wanted: ArrayQueue<IpAddr>,
    found: ArrayQueue<(IpAddr, Option<MacAddr>)>,
}

/// The worker's end; see [`crate::worker::Worker::set_neighbour_feed`].
#[derive(Debug)]
pub struct Feed(Arc<Queues>);

/// The other end.
#[derive(Debug)]
pub struct Feeder(Arc<Queues>);

/// Both ends.
pub fn pair() -> (Feed, Feeder) {
    let queues = Arc::new(Queues { wanted: ArrayQueue::new(DEPTH), found: ArrayQueue::new(DEPTH) });
    (Feed(Arc::clone(&queues)), Feeder(queues))
}

impl Feed {
    /// Says that the MAC address of `ip` is needed; false if there is no room for it now.
    pub(crate) fn want(&self, ip: IpAddr) -> bool {
        self.0.wanted.push(ip).is_ok()
    }

    /// Whether there is news.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.0.found.is_empty()
    }

    /// What is known, the oldest first.
    pub(crate) fn news(&self) -> Option<(IpAddr, Option<MacAddr>)> {
        self.0.found.pop()
    }
}

impl Feeder {
    /// Whose MAC address the worker needs, the longest waiting first.
    pub fn wanted(&self) -> Option<IpAddr> {
        self.0.wanted.pop()
    }

    /// Tells the worker the MAC address of `ip`, or that it has none any more; false if there is no room for it now. What the
    /// worker has no use for, it ignores.
    pub fn tell(&self, ip: IpAddr, mac: Option<MacAddr>) -> bool {
        self.0.found.push((ip, mac)).is_ok()
    }
}
