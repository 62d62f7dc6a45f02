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

/// Bytes of each type's packet, by its number; of DATA, FEEDBACK and ANNOUNCE what comes before a part of any length.
const LENGTHS: [usize; 11] = [60, 32, 24, 16, 96, 32, 64, 16, 12, 12, 24];
/// Segments are no longer than an IB MTU of 1024 leaves room for.
const SEGMENT: usize = 936;

/// A forged packet, of a type by `n` in turn: DATA, FEEDBACK, PROBE, ANNOUNCE, INIT, COOKIE, ACCEPT, REFUSE, RESET, CLOSE, REJECT, and one of
/// no type. It has a wrong session id and comes from anywhere, the peer's address among that; or the right id, but then not from the
/// peer, who alone may end its session. Fields are absurd, lengths often.
pub fn forged(rng: &mut Rng, to: &Target, known: &Known, n: u64) -> Vec<u8> {
    let kind = (n % 12) as usize;
    let mut payload = vec![0; LENGTHS.get(kind).copied().unwrap_or(40)];
    rng.fill(&mut payload);
    let version = if rng.u8(..64) == 0 { rng.u8(..) & 0xf0 } else { 0x10 };
    payload[0] = version | kind as u8;
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
        // Without a cookie, and with a wrong one.
        4 if rng.bool() => payload[56..72].fill(0),
        _ => {}
    }
    if rng.u8(..8) == 0 {
        payload.truncate(rng.usize(..payload.len()));
    }
    let source = if right || rng.bool() { any_v4(rng) } else { known.peer };
    let qpn = if rng.bool() { known.qpn } else { rng.u32(..1 << 24) };
    packet(rng, to, (source, qpn), (kind != 0).then_some(kind as u8), &payload)
}

/// A sound packet from a source; control has a type.
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
}
