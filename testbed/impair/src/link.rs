//! A direction of a link: packets in, packets out, later and fewer.

use crate::config::{Config, ConfigError};
use crate::loss::LossState;
use crate::queue::Queue;
use roce_proto::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What the link has to know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes that it takes on the wire, for the rate and the queue.
    pub bytes: usize,
    /// Its IP header says that it may be marked instead of dropped (ECT(0) or ECT(1)).
    pub ecn_capable: bool,
}

/// A packet that comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<P> {
    /// The packet.
    pub packet: P,
    /// When it came out, at or before the time asked for.
    pub at: Instant,
    /// The queue was long: the one who delivers it sets Congestion Experienced.
    pub marked: bool,
    /// The one who delivers it inverts this bit, counted from the first byte's lowest.
    pub corrupt: Option<usize>,
}

/// What became of the packets. `offered + duplicated` is the sum of the others but the last two, and of those still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Offered.
    pub offered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Delivered.
    pub delivered: u64,
    /// Lost by the loss process.
    pub lost: u64,
    /// Dropped in a black-out.
    pub dark: u64,
    /// Dropped at the tail of the queue.
    pub queue_full: u64,
    /// Dropped because as many packets as the link holds were under way.
    pub too_many: u64,
    /// Marked.
    pub marked: u64,
    /// Corrupted.
    pub corrupted: u64,
}

/// A packet under way; the order is that of delivery, then that of coming.
#[derive(Debug)]
struct UnderWay<P> {
    at: Instant,
    serial: u64,
    marked: bool,
    corrupt: Option<usize>,
    packet: P,
}

impl<P> PartialEq for UnderWay<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}

impl<P> Eq for UnderWay<P> {}

impl<P> PartialOrd for UnderWay<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for UnderWay<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// A direction of a link. `P` is whatever its user's packets are.
#[derive(Debug)]
pub struct Link<P> {
    config: Config,
    rng: fastrand::Rng,
    loss: LossState,
    queue: Queue,
    /// The latest delivery of those that keep their order.
    last: Instant,
    serial: u64,
    under_way: BinaryHeap<Reverse<UnderWay<P>>>,
    counters: Counters,
}

impl<P> Link<P> {
    /// A link with nothing under way.
    pub fn new(config: Config, seed: u64) -> Result<Link<P>, ConfigError> {
        config.check()?;
        Ok(Link {
            config,
            rng: fastrand::Rng::with_seed(seed),
            loss: LossState::default(),
            queue: Queue::default(),
            last: Instant::ZERO,
            serial: 0,
            under_way: BinaryHeap::new(),
            counters: Counters::default(),
        })
    }

    /// Another configuration from now on; what is under way stays so.
    pub fn reconfigure(&mut self, config: Config) -> Result<(), ConfigError> {
        config.check()?;
        self.config = config;
        Ok(())
    }

    /// A packet enters at `now`, which must not go back. `copy` makes a second one of it where it is to come twice; if it cannot,
    /// there is one. Returns the packet if it is lost here.
    pub fn offer(
        &mut self,
        now: Instant,
        offer: Offer,
        packet: P,
        copy: impl FnOnce(&P) -> Option<P>,
    ) -> Option<P> {
        self.counters.offered += 1;
        if self.config.black_out.is_some_and(|b| b.is_dark(now)) {
            self.counters.dark += 1;
            return Some(packet);
        }
        if self.loss.next(&self.config.loss, &mut self.rng) {
            self.counters.lost += 1;
            return Some(packet);
        }
        let second = if self.happens(self.config.duplicate) { copy(&packet) } else { None };
        self.counters.duplicated += u64::from(second.is_some());
        let lost = self.enter(now, offer, packet);
        if let Some(second) = second {
            // What there was no room for once there is none for again.
            self.enter(now, offer, second);
        }
        lost
    }

    /// Draws nothing for what never happens, so that switching one thing on changes nothing about the others' fates before it.
    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.f64() < share
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if most == 0 { 0 } else { self.rng.u64(0..=most) })
    }

    fn enter(&mut self, now: Instant, offer: Offer, packet: P) -> Option<P> {
        if self.under_way.len() >= self.config.capacity {
            self.counters.too_many += 1;
            return Some(packet);
        }
        let mut sent = now;
        let mut marked = false;
        if let Some(rate) = self.config.rate {
            let Some(taken) = self.queue.take(&rate, now, offer.bytes as u64) else {
                self.counters.queue_full += 1;
                return Some(packet);
            };
            sent = taken.at;
            marked = taken.long && offer.ecn_capable;
        }
        let jitter = self.up_to(self.config.jitter);
        let mut at = sent + self.config.delay + jitter;
        if let Some(stall) = self.config.stall {
            at = stall.end(at);
        }
        let overtaken = self.config.reorder.filter(|reorder| reorder.share > 0.0);
        match overtaken {
            Some(reorder) if self.happens(reorder.share) => at = at.max(self.last) + self.up_to(reorder.by),
            _ => {
                at = at.max(self.last);
                self.last = at;
            }
        }
        let bits = offer.bytes * 8;
        let corrupt = (bits > 0 && self.happens(self.config.corrupt)).then(|| self.rng.usize(0..bits));
        self.counters.marked += u64::from(marked);
        self.counters.corrupted += u64::from(corrupt.is_some());
        let serial = self.serial;
        self.serial += 1;
        self.under_way.push(Reverse(UnderWay { at, serial, marked, corrupt, packet }));
        None
    }

    /// When the next packet comes out.
    pub fn next_at(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(next)| next.at)
    }

    /// The next packet that has come out by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<Delivery<P>> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse(UnderWay { at, marked, corrupt, packet, .. }) = self.under_way.pop()?;
        self.counters.delivered += 1;
        Some(Delivery { packet, at, marked, corrupt })
    }

    /// When the bottleneck will have sent what it holds.
    pub fn empty_at(&self) -> Instant {
        self.queue.empty_at()
    }

    /// Packets under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// What became of the packets so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
