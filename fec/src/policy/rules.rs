//! One rule each, with its reason.

use crate::{MOST_DATA, MOST_PARITY};

use super::{Class, Message, Network, Policy, Protection, Strength, group_failure};

/// Priorities from this on are high.
pub const HIGH: u8 = 8;
/// Messages of so many segments are short.
const SHORT: u32 = 64;
/// The deepest interleaving: a parity shard of each group is a burst of its own by then.
const DEEPEST: u8 = 32;
/// Smaller groups than this cost a parity shard for every few data shards; rather less interleaving.
const SMALLEST: u8 = 4;

/// Large groups are cheap, small ones are done early. Gradients are long and nobody takes part of them: (32, up to 4). An early stage
/// holds up all stages after it: half as long groups, up to as strong as (16,4) and (32,8) are, and stronger. A late stage holds up few:
/// (32, up to 2). Control is short. Untagged traffic asked for nothing.
pub fn kind<'a>(policy: &'a Policy, message: &Message) -> Option<&'a Strength> {
    match message.class {
        Class::Untagged => None,
        Class::DataParallel => Some(&policy.gradients),
        Class::PipelineParallel if message.stage < policy.late_stage => Some(&policy.early),
        Class::PipelineParallel => Some(&policy.late),
        Class::Control => Some(&policy.control),
    }
}

/// Low-priority gradients are late by nobody's measure: what is lost of them is sent again, or compensated by the application.
pub fn wants_protection(message: &Message, kind: &Strength) -> bool {
    kind.parity > 0 && kind.data > 0 && message.priority >= kind.from_priority
}

/// Who fixes a code knows the network better than measuring does, or compares. Only what a block holds, and a message, bounds it.
pub fn as_given(policy: &Policy, message: &Message, kind: &Strength, depth: u8) -> Protection {
    let data = group(policy, message, kind.data.min(MOST_DATA as u8), 1);
    let room = policy.block / u32::from(data);
    let depth = u32::from(depth).min(room).min(message.segments.div_ceil(data.into())).max(1) as u8;
    Protection { data, parity: kind.parity.min(MOST_PARITY as u8), depth }
}

/// Parity is sent for every message, a retransmission for a lost segment only. It pays where the round trip that it saves is long, and
/// where the message would be late by it: a deadline of four round trips leaves time for a loss, its report, the repair, and one
/// more of each.
pub fn repair_is_faster(policy: &Policy, message: &Message, network: &Network) -> bool {
    let has_time = message.deadline > 4 * network.round_trip;
    message.segments > 0 && network.round_trip > policy.short_round_trip && !has_time
}

/// What is lost early in a long message is known of, sent again and there while the rest still comes: it costs nobody time. So only what the way carries
/// in the time that this takes is protected: a round trip, and an eighth of one for the peer to tell. Short messages are protected whole, as the time of a few segments is not known well.
pub fn late(message: &Message, carried: u32) -> u32 {
    carried.saturating_add(carried / 8).max(SHORT).min(message.segments)
}

/// A burst must not take more of a group than its parity. How deep that asks to interleave follows from what it costs: a shallow block needs more
/// parity in each group, a deep one has shorter groups. So each depth is tried, and [`cheapest`] decides. Without bursts interleaving
/// gains nothing and repairs later.
pub fn depths(policy: &Policy, message: &Message, network: &Network) -> impl Iterator<Item = u8> {
    let room = message.segments.min(policy.block) / u32::from(SMALLEST);
    // A mean of 1.2 is what independent losses of a sixth would have.
    let deepest = if network.burst < 1.2 { 1 } else { room.clamp(1, DEEPEST.into()) };
    (0..=DEEPEST.ilog2()).map(|i| 1 << i).filter(move |depth| u32::from(*depth) <= deepest)
}

/// Of those that leave no more groups unrepaired than may be, the one with the least parity, and of equals the shallowest; if none does, the one that leaves the
/// fewest.
pub fn cheapest(
    message: &Message,
    network: &Network,
    residual: f64,
    protections: impl Iterator<Item = Protection>,
) -> Option<Protection> {
    let mut best: Option<(Protection, f64, u32)> = None;
    for p in protections {
        let fails =
            group_failure(p.data.into(), p.parity.into(), network.loss, network.burst, p.depth.into());
        let cost = shards(message, p);
        let better = best.is_none_or(|(_, least, cheapest)| {
            if fails <= residual && least <= residual { cost < cheapest } else { fails < least }
        });
        if better {
            best = Some((p, fails, cost));
        }
    }
    best.map(|(p, ..)| p)
}

/// Parity shards of a whole message.
fn shards(message: &Message, p: Protection) -> u32 {
    let (whole, rest) = (message.segments / p.block(), message.segments % p.block());
    let groups = whole * u32::from(p.depth) + rest.div_ceil(p.data.into()).min(p.depth.into());
    groups * u32::from(p.parity)
}

/// Interleaving is worth more than long groups: a message that is too short for both has shorter groups. So does one whose groups would
/// make a longer block than there may be. And blocks are of one length, so that none of a few segments has as much parity as the others.
pub fn group(policy: &Policy, message: &Message, data: u8, depth: u8) -> u8 {
    let depth = u32::from(depth);
    let fits = (message.segments.div_ceil(depth)).min(policy.block / depth).max(1);
    let most = u32::from(data).min(fits);
    let blocks = message.segments.div_ceil(most * depth).max(1);
    message.segments.div_ceil(blocks * depth).clamp(1, most) as u8
}

/// A message has no more groups than it has.
pub fn groups_there_are(message: &Message, data: u8, depth: u8) -> u8 {
    message.segments.div_ceil(u32::from(data)).min(u32::from(depth)) as u8
}

/// Who tolerates losses tolerates groups that are not repaired, as these are sent again and merely late. A message whose deadline leaves no
/// time to send again is not merely late: ten times as seldom.
pub fn residual(message: &Message, network: &Network, residual: f64) -> f64 {
    let tolerated = residual.max(f64::from(message.tolerance) / 256.0 / 16.0);
    let only_chance = message.deadline > 0 && 2 * message.deadline < 3 * network.round_trip;
    if only_chance { tolerated / 10.0 } else { tolerated }
}

/// The least parity with which no more groups fail than may; at most what the class may spend, and never more than data.
pub fn strength(data: u8, depth: u8, most: u8, residual: f64, network: &Network) -> u8 {
    let most = most.min(data);
    let fails =
        |parity: u8| group_failure(data.into(), parity.into(), network.loss, network.burst, depth.into());
    (1..most).find(|parity| fails(*parity) <= residual).unwrap_or(most)
}
