//! How a message is to be protected: as its tags ask by `fec`'s policy, or as one needs it that others wait for.

use super::send::Protecting;
use super::{CODECS, Protect};
use crate::transport::congestion::Congestion;
use crate::transport::engine::Engine;
use crate::transport::session::Sending;
use crate::wire::shim::{Data, Semantics};
use fec::policy::{Class, Message, Network, Policy, Protection, adapt, choose, late};
use fec::{MOST_DATA, MOST_PARITY};

/// Segments of messages tagged SYNC that have parity: shorter ones have copies, which cost as much, and of longer ones the first losses are known of before the last segment is sent.
const SYNC: core::ops::RangeInclusive<u32> = 3..=64;
/// Of them, segments of a group, and its parity.
const SYNC_DATA: u32 = 32;
const SYNC_PARITY: u8 = 2;
/// Share of lost segments from which on they have it.
const LOSING: f64 = 1.6e-5;

/// A message: what its application says of it, its segments, and how it is protected if it has begun.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asked {
    semantics: Semantics,
    segments: u32,
    begun: Option<Protection>,
}

/// What the answer of the policy depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    asked: Asked,
    // Levels, which are told apart by half of their digits.
    loss: f32,
    burst: f32,
    short: bool,
    window: u32,
}

impl Engine {
    /// Whether a message may be one to protect. All that others pay for protection is to be asked this.
    #[inline]
    pub(in crate::transport) fn may_protect(&self, semantics: &Semantics) -> bool {
        // One branch.
        (semantics.class | u8::from(semantics.sync) | self.protects_all) != 0
    }

    /// A message was posted: it is protected as it is to be.
    #[cold]
    pub(in crate::transport) fn protect_send(&mut self, at: u32) {
        let Sending { session: slot, semantics, segments, .. } = self.sends[at];
        let protect = self.config.fec.protect;
        let tagged = Class::from_wire(semantics.class) != Class::Untagged;
        if !tagged && !matches!(protect, Protect::Everything(_)) && !self.is_awaited(&semantics, segments) {
            return;
        }
        self.counters.class(semantics.class).messages += 1;
        if protect == Protect::Nothing || self.sessions[slot].codecs & CODECS == 0 {
            return;
        }
        let protection = self.strength(slot, &Asked { semantics, segments, begun: None });
        let send = &mut self.sends[at];
        send.protection = protection;
        send.alone &= protection.is_none();
    }

    /// A block of a protected message is about to begin. What was answered when it was posted may be long ago: its first block is as the
    /// policy says now, the others have their shape from that and their strength from what is measured.
    #[cold]
    pub(in crate::transport) fn renew_protection(&mut self, slot: u32, at: u32) -> Option<Protection> {
        let send = &self.sends[at];
        let (segments, first) = (send.segments, send.sent == 0);
        let begun = send.protection.filter(|_| send.sent > send.bare);
        let semantics = send.semantics;
        let bare = if first { segments - self.late_segments(slot, semantics, segments) } else { send.bare };
        let asked = Asked { semantics, segments: segments - bare, begun };
        let protection = self.strength(slot, &asked);
        let send = &mut self.sends[at];
        (send.protection, send.bare) = (protection, bare);
        protection
    }

    /// Of a message, the segments at its end that have parity.
    fn late_segments(&self, slot: u32, semantics: Semantics, segments: u32) -> u32 {
        let Some(at) = self.sessions[slot].tx.protecting.checked_sub(1) else { return segments };
        let least = self.path(slot, 0).tx.rtt.least();
        let (Protect::ByTag, Some(least)) = (self.config.fec.protect, least) else { return segments };
        let least = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        let Some(bytes) = self.protecting[at].pace.carries(least) else { return segments };
        let carried = bytes / (u64::from(self.sessions[slot].segment) + Data::LEN as u64);
        let carried = u32::try_from(carried).unwrap_or(u32::MAX);
        late(&self.config.fec.policy, &message(&semantics, segments), carried)
    }

    /// Whether others wait for a message, and it is of those that have parity for that.
    fn is_awaited(&self, semantics: &Semantics, segments: u32) -> bool {
        semantics.sync && self.config.mechanisms.parity && SYNC.contains(&segments)
    }

    /// As the tags ask, or as a message needs it that others wait for: it is over before the first of its losses is known of, so that each costs a round trip. What the copies of its last two
    /// segments would take is parity that repairs any two of up to 32, while the session loses segments.
    fn strength(&mut self, slot: u32, message: &Asked) -> Option<Protection> {
        let &Asked { ref semantics, segments, begun } = message;
        let everything = matches!(self.config.fec.protect, Protect::Everything(_));
        if everything || Class::from_wire(semantics.class) != Class::Untagged {
            let asked = self.ask_policy(slot, message);
            if asked.is_some() {
                return asked;
            }
        }
        if begun.is_some() || !self.is_awaited(semantics, segments) {
            return begun;
        }
        let at = self.protecting_of(slot)?;
        let losing = self.protecting[at].losses.loss() >= LOSING;
        let data = segments.min(SYNC_DATA) as u8;
        losing.then_some(Protection { data, parity: SYNC_PARITY, depth: 1 })
    }

    /// The record of what a session protects. Without room nothing is protected, and everything sent again.
    fn protecting_of(&mut self, slot: u32) -> Option<u32> {
        if self.sessions[slot].tx.protecting == 0 {
            self.sessions[slot].tx.protecting =
                self.protecting.insert(Protecting::new(self.packets_told(slot)))? + 1;
        }
        Some(self.sessions[slot].tx.protecting - 1)
    }

    fn ask_policy(&mut self, slot: u32, asked: &Asked) -> Option<Protection> {
        let &Asked { ref semantics, segments, begun } = asked;
        let at = self.protecting_of(slot)?;
        // A block is out before its first loss is known of: it is half of what may be in flight at the most.
        let s = &self.sessions[slot];
        let in_flight = s.tx.control.window() / u64::from(s.segment);
        let window = in_flight.min(u64::from(s.peer_window)) / 2;
        let block = self.config.fec.policy.block.min(u32::try_from(window).unwrap_or(u32::MAX)).max(1);
        if let Protect::Everything(p) = self.config.fec.protect {
            if begun.is_some() {
                return begun;
            }
            let data = u32::from(p.data).min(block).min(segments).clamp(1, MOST_DATA as u32);
            let depth = u32::from(p.depth).min(block / data).min(segments.div_ceil(data)).max(1);
            let parity = p.parity.clamp(1, MOST_PARITY as u8);
            return Some(Protection { data: data as u8, parity, depth: depth as u8 });
        }
        let round_trip = self.path(slot, 0).tx.rtt.smoothed()?;
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        let short = round_trip <= self.config.fec.policy.short_round_trip;
        let protecting = &mut self.protecting[at];
        let (loss, burst) = (protecting.losses.loss(), protecting.losses.burst());
        let question =
            Question { asked: *asked, loss: loss as f32, burst: burst as f32, short, window: block };
        if let Some((before, answer)) = protecting.answer
            && before == question
        {
            return answer;
        }
        let policy = Policy { block, ..self.config.fec.policy };
        let message = message(semantics, segments);
        let network = Network { loss, burst, round_trip };
        let answer = match begun {
            Some(begun) => Some(adapt(&policy, &message, &network, begun)),
            None => choose(&policy, &message, &network),
        };
        protecting.answer = Some((question, answer));
        answer
    }
}

/// What the policy is told of a message.
fn message(semantics: &Semantics, segments: u32) -> Message {
    Message {
        class: Class::from_wire(semantics.class),
        priority: semantics.priority,
        stage: semantics.stage,
        tolerance: semantics.tolerance,
        segments,
        deadline: 0,
    }
}
