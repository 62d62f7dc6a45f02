//! Forged packets of the reliable service (`docs/protocol.md`): sound RoCEv2 in every header, so that they reach its engine. Put together
//! byte by byte from that page, without the code that is tested with them.

use crate::frame::{self, Target, any_mac, any_v4, ethernet, fix_icrc};
use fastrand::Rng;
use std::net::Ipv4Addr;

/// What is known of a session between others, to forge better.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The address of the target's peer.
    pub peer: Ipv4Addr,
    /// Its queue pair.
    pub qpn: u32,
    /// The id by which it reaches the target.
    pub session: u64,
}

/// Bytes of each type's packet, by its number; of DATA, FEEDBACK, ANNOUNCE and PARITY what comes before a part of any length.
const LENGTHS: [usize; 12] = [60, 44, 24, 16, 160, 32, 124, 16, 12, 12, 24, 72];
/// The number of parity's type.
const PARITY: usize = 11;
/// Not a type: DATA behind DATA in one packet.
const BUNDLE: usize = 12;
/// Segments are no longer than an IB MTU of 1024 leaves room for.
const SEGMENT: usize = 936;

/// A forged packet, of a type by `n` in turn: DATA, FEEDBACK, PROBE, ANNOUNCE, INIT, COOKIE, ACCEPT, REFUSE, RESET, CLOSE, REJECT, PARITY, a
/// bundle of DATA, and one of no type. It has a wrong session id and comes from anywhere, the peer's address among that; or the right id, but then not from the
/// peer, who alone may end its session. Fields are absurd, lengths often.
pub fn forged(rng: &mut Rng, to: &Target, known: &Known, n: u64) -> Vec<u8> {
    let kind = (n % 14) as usize;
    let mut payload = vec![0; LENGTHS.get(kind).copied().unwrap_or(40)];
    rng.fill(&mut payload);
    let version = if rng.u8(..64) == 0 { rng.u8(..) & 0xf0 } else { 0x10 };
    payload[0] = version | if kind == BUNDLE { 0 } else { kind as u8 };
    if rng.bool() {
        // As they mostly are: no flags, the first path, no reports.
        payload[1..4].fill(0);
    }
    let right = rng.u8(..3) == 0;
    let session = match () {
        () if right => known.session,
        // A slot that there may be, and nothing of the 40 bits.
        () => u64::from(rng.u8(..4)) << 40 | rng.u64(..1 << 40),
    };
    if kind != 4 {
        payload[4..12].copy_from_slice(&session.to_be_bytes());
    }
    match kind {
        0 => payload.resize(60 + [0, 1, 8, SEGMENT][rng.usize(..4)], frame::PAYLOAD),
        1 | 3 => payload.resize(payload.len() + rng.usize(..40) * 16, 0xff),
        PARITY => {
            payload[60..66].copy_from_slice(&group(rng));
            payload.resize(72 + [0, 1, 8, SEGMENT][rng.usize(..4)], frame::PAYLOAD);
        }
        BUNDLE => payload = bundle(rng, session),
        // Without a cookie, and with a wrong one.
        4 if rng.bool() => payload[56..72].fill(0),
        _ => {}
    }
    if rng.u8(..8) == 0 {
        payload.truncate(rng.usize(..payload.len()));
    }
    let source = if right || rng.bool() { any_v4(rng) } else { known.peer };
    let qpn = if rng.bool() { known.qpn } else { rng.u32(..1 << 24) };
    let control = ![0, PARITY, BUNDLE].contains(&kind);
    packet(rng, to, (source, qpn), control.then_some(kind as u8), &payload)
}

/// Codec, its version, segments, shards, index and stride of a group of parity: what there may be, the ends, or anything.
fn group(rng: &mut Rng) -> [u8; 6] {
    let mut one = |usual: u8, ends: [u8; 3]| match rng.u8(..8) {
        0 => rng.u8(..),
        n @ 1..=3 => ends[usize::from(n) - 1],
        _ => usual,
    };
    [
        one(1, [0, 2, 255]),
        one(1, [0, 2, 255]),
        one(32, [0, 64, 65]),
        one(4, [0, 16, 17]),
        one(1, [3, 4, 255]),
        one(1, [0, 255, 128]),
    ]
}

/// Segments behind each other in a packet, each with the flag *more*, whose lengths are right in every second, or a little wrong, or beyond all reason. Some
/// are void or no message's first, after which there is to be nothing; some are of another session.
fn bundle(rng: &mut Rng, session: u64) -> Vec<u8> {
    let (mut payload, lies) = (Vec::new(), rng.bool());
    for _ in 0..rng.usize(1..=32) {
        let len = rng.usize(..20);
        let mut header = [0; 60];
        rng.fill(&mut header[12..]);
        header[..4].copy_from_slice(&[0x10, 0x80 | if rng.u8(..16) == 0 { 0x04 } else { 0 }, 0, 0]);
        let id = if rng.u8(..8) == 0 { rng.u64(..1 << 42) } else { session };
        header[4..12].copy_from_slice(&id.to_be_bytes());
        header[28..32].copy_from_slice(&u32::from(rng.u8(..16) == 0).to_be_bytes());
        let said = match if lies { rng.u8(..8) } else { 7 } {
            0 => len as u64 + 1,
            1 => (len as u64).saturating_sub(1),
            2 => [60, 1 << 16, 1 << 31, (1 << 48) - 1][rng.usize(..4)],
            _ => len as u64,
        };
        header[52..58].copy_from_slice(&said.to_be_bytes()[2..]);
        if payload.len() + header.len() + len > 60 + SEGMENT {
            break;
        }
        payload.extend(header);
        payload.resize(payload.len() + len, frame::PAYLOAD);
    }
    payload
}

/// A sound packet from a source; control has a type.
/// A message to the target's queue pair with this content, from this address and queue pair.
pub fn message(rng: &mut Rng, to: &Target, source: (Ipv4Addr, u32), payload: &[u8]) -> Vec<u8> {
    packet(rng, to, source, None, payload)
}

fn packet(
    rng: &mut Rng,
    to: &Target,
    (source, qpn): (Ipv4Addr, u32),
    control: Option<u8>,
    payload: &[u8],
) -> Vec<u8> {
    let pad = payload.len().wrapping_neg() % 4;
    let mut bth = to.bth(rng, pad as u8);
    let mut rest = to.deth().to_vec();
    rest[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    if let Some(kind) = control {
        bth[0] = 0x65;
        rest.extend((0x5357_0100 | u32::from(kind)).to_be_bytes());
    }
    rest.extend(payload);
    rest.resize(rest.len() + pad + 4, 0);
    let len = ((8 + bth.len() + rest.len()) as u16).to_be_bytes();
    let ports = [rng.u16(49152..).to_be_bytes(), 4791u16.to_be_bytes()].concat();
    let udp = [&ports[..], &len, &[0, 0], &bth, &rest].concat();
    let ip = frame::ipv4(source, to.v4, frame::UDP, &udp);
    let mut frame = ethernet(to.mac, any_mac(rng), 0x0800, &ip);
    fix_icrc(&mut frame);
    frame
}

/// What a captured frame says of the session that it belongs to: a DATA packet over IPv4 to the target, without tags.
pub fn known(frame: &[u8], to: &Target) -> Option<Known> {
    let udp = frame::L3 + 20;
    let [bth, deth, shim] = [udp + 8, udp + 20, udp + 28];
    let ours = frame.len() > shim + 60
        && frame[..6] == to.mac
        && frame[12..15] == [0x08, 0x00, 0x45]
        && frame[udp + 2..udp + 4] == 4791u16.to_be_bytes()
        && frame[bth] == 0x64
        && frame[bth + 5..bth + 8] == to.qpn.to_be_bytes()[1..]
        && frame[shim] == 0x10;
    ours.then(|| {
        let peer: [u8; 4] = frame[frame::L3 + 12..frame::L3 + 16].try_into().unwrap_or_default();
        let qpn = u32::from_be_bytes([0, frame[deth + 5], frame[deth + 6], frame[deth + 7]]);
        let session = frame[shim + 4..shim + 12].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        Known { peer: peer.into(), qpn, session }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forged_with_a_right_id_comes_from_somebody_else() {
        let v6 = "fd00::9".parse().unwrap();
        let v4 = Ipv4Addr::new(10, 0, 0, 9);
        let to = Target { mac: [2, 0, 0, 0, 0, 9], v4, v6, qpn: 0x53_5058, qkey: 0x1111_1111 };
        let peer = Ipv4Addr::new(10, 0, 0, 8);
        let known = Known { peer, qpn: 7, session: 0x0102_0304_0506_0708 };
        let mut rng = Rng::with_seed(1);
        let (mut right, mut wrong) = (0, 0);
        for n in 0..12_000 {
            let frame = forged(&mut rng, &to, &known, n);
            let Some(found) = super::known(&frame, &to) else { continue };
            if found.session == known.session {
                assert_ne!(found.peer, peer);
                right += 1;
            } else {
                wrong += usize::from(found.peer == peer);
            }
        }
        assert!(right > 100 && wrong > 100, "{right} {wrong}");
    }

    /// Whoever takes them apart meets every kind of lie: what the engine refuses, and what it would believe.
    #[test]
    fn parity_and_bundles_are_forged_in_all_ways() {
        let mut rng = Rng::with_seed(2);
        let groups: Vec<[u8; 6]> = (0..2_000).map(|_| group(&mut rng)).collect();
        let any = |lie: fn(&[u8; 6]) -> bool| groups.iter().filter(|g| lie(g)).count() > 20;
        assert!(any(|g| g[0] != 1) && any(|g| g[2] == 0) && any(|g| g[2] > 64) && any(|g| g[3] > 16));
        assert!(any(|g| g[4] >= g[3]) && any(|g| g[5] == 0) && any(|g| *g == [1, 1, 32, 4, 1, 1]));
        let (mut whole, mut short, mut long) = (0, 0, 0);
        for _ in 0..500 {
            let payload = bundle(&mut rng, 7);
            assert!((60..=60 + SEGMENT).contains(&payload.len()));
            // As a reader goes that trusts the lengths.
            let mut at = 0;
            loop {
                let rest = &payload[at.min(payload.len())..];
                match rest.len() {
                    0 => break whole += 1,
                    1..60 => break short += 1,
                    _ => {}
                }
                let said = rest[52..58].iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
                if said > rest.len() - 60 {
                    break long += 1;
                }
                at += 60 + said;
            }
        }
        assert!(whole > 100 && short > 0 && long > 100, "{whole} {short} {long}");
    }
}
