//! The fuzz target's function over mutated captures for a few seconds, on a stable toolchain.
//!
//! The seed is new in every run and printed; `FUZZ_SMOKE_SEED` repeats a run, `FUZZ_SMOKE_SECONDS` makes it longer.

mod common;
#[path = "common/receive.rs"]
mod receive;

use std::collections::BTreeMap;
use std::panic;
use std::time::{Duration, Instant, SystemTime};

use common::{build, captures, datagram, fix_ipv4_checksum, icrc_naive, l3_offset, route};
use receive::Outcome;
use roce_proto::wire::RejectReason;
use roce_proto::wire::ethernet::{MacAddr, VlanStack};
use roce_proto::wire::frame::{self, Frame};
use roce_proto::wire::{control, icmp, icmpv6};

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose mutations.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which is not zero.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}

/// The captures' frames up to 1,200 bytes (longer ones only cost time), and what they lack.
fn seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<_> =
        captures().into_iter().flat_map(|(_, frames)| frames).filter(|f| f.len() <= 1200).collect();
    let link = control::Link { src: MacAddr([2; 6]), dst: MacAddr([4; 6]), vlans: VlanStack::EMPTY };
    let echo = icmp::Echo { is_reply: false, ident: 1, sequence: 2, data: &[3; 21] };
    let mut buffer = [0; 128];
    let len = control::icmp_echo(&link, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &echo, &mut buffer);
    all.push(buffer[..len.expect("fits")].to_vec());
    let (a, b) = ("fe80::1".parse().expect("address"), "fe80::2".parse().expect("address"));
    let len = control::icmpv6(&link, a, b, &icmpv6::Message::Echo(echo), &mut buffer);
    all.push(buffer[..len.expect("fits")].to_vec());
    for ipv6 in [false, true] {
        let frame = build(&route(ipv6), &datagram(Some(5)), &[1; 17]);
        all.push([&frame[..12], &[0x81, 0, 0, 9], &frame[12..]].concat());
        all.push([&frame[..12], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 8], &frame[12..]].concat());
        all.push(build(&route(ipv6), &datagram(None), &[]));
    }
    all
}

/// Changes a frame a little; most of the time near its headers.
fn mutate(random: &mut Random, frame: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    for _ in 0..=random.below(3) {
        let near = frame.len().min(96);
        if near < 2 {
            return;
        }
        let at = if random.below(4) == 0 { random.below(frame.len()) } else { random.below(near) };
        match random.below(9) {
            0 | 1 => frame[at] ^= 1 << random.below(8),
            2 => frame[at] = random.next() as u8,
            3 => frame[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            4 => {
                // A 16-bit field moved a little: lengths.
                let at = at.min(frame.len() - 2);
                let value = u16::from_be_bytes([frame[at], frame[at + 1]]);
                let value = value.wrapping_add(random.below(17) as u16).wrapping_sub(8);
                frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
            }
            5 => frame.truncate(at),
            6 => frame.extend((0..random.below(20)).map(|i| i as u8)),
            7 if frame.len() > 14 => {
                let tag = [0x81, 0, 0, random.next() as u8];
                frame.splice(12..12, tag);
            }
            _ => {
                // The end of another frame.
                let other = &seeds[random.below(seeds.len())];
                frame.truncate(at);
                frame.extend_from_slice(other.get(at..).unwrap_or_default());
            }
        }
    }
}

/// Sets the IP and UDP lengths of a frame to what is there.
fn fix_lengths(frame: &mut [u8], l3: usize) {
    let len = frame.len() - l3;
    let (field, value, l4) = match frame[l3] {
        0x45 => (l3 + 2, len, l3 + 20),
        0x60..=0x6f if len >= 40 => (l3 + 4, len - 40, l3 + 40),
        _ => return,
    };
    frame[field..field + 2].copy_from_slice(&(value as u16).to_be_bytes());
    if let Some(udp) = frame.get_mut(l4 + 4..l4 + 6) {
        udp.copy_from_slice(&((l3 + len - l4) as u16).to_be_bytes());
    }
}

/// Makes lengths and checksums right again, so that mutations reach what lies behind them.
fn repair(random: &mut Random, frame: &mut [u8]) {
    if frame.len() < 14 {
        return;
    }
    let at = l3_offset(frame);
    if frame.len() < at + 20 {
        return;
    }
    if random.below(2) == 0 {
        fix_lengths(frame, at);
    }
    if frame[at] == 0x45 && random.below(4) != 0 {
        fix_ipv4_checksum(frame);
    }
    let Ok(Frame::Roce(packet)) = frame::parse(frame) else { return };
    if random.below(2) == 0 {
        let end = at + packet.ip_len() - 4;
        let icrc = icrc_naive(&frame[at..end]);
        frame[end..end + 4].copy_from_slice(&icrc.to_le_bytes());
    }
}

#[test]
fn receive_path_holds_on_mutated_captures() {
    let clock =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = variable("FUZZ_SMOKE_SEED").unwrap_or(clock);
    let seconds = variable("FUZZ_SMOKE_SECONDS").unwrap_or(5);
    println!("FUZZ_SMOKE_SEED={seed}");
    let mut random = Random(seed);
    let seeds = seeds();
    let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
    for frame in &seeds {
        *outcomes.entry(receive::check(frame)).or_default() += 1;
    }
    assert!(!outcomes.keys().any(|o| matches!(o, Outcome::Refused(_))), "seeds are valid: {outcomes:?}");

    let until = Instant::now() + Duration::from_secs(seconds);
    let mut count = 0u64;
    while count < 1_000 || (count < 400_000 || seconds > 5) && Instant::now() < until {
        count += 1;
        let mut frame = seeds[random.below(seeds.len())].clone();
        mutate(&mut random, &mut frame, &seeds);
        repair(&mut random, &mut frame);
        let outcome = panic::catch_unwind(|| receive::check(&frame)).unwrap_or_else(|_| {
            let hex: String = frame.iter().map(|b| format!("{b:02x}")).collect();
            panic!("input {count} of seed {seed} breaks a promise of the receive path: {hex}")
        });
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!("{count} inputs");
    for (outcome, n) in &outcomes {
        match outcome {
            Outcome::Refused(reason) => println!("{n:8} refused: {}", RejectReason::ALL[*reason].name()),
            other => println!("{n:8} {other:?}"),
        }
    }
    // Blind mutation that reached nothing would prove nothing.
    for wanted in [Outcome::Ud { intact: true }, Outcome::Ud { intact: false }, Outcome::Roce, Outcome::Other]
    {
        assert!(outcomes.contains_key(&wanted), "{wanted:?} was never reached");
    }
    let refusals = outcomes.keys().filter(|o| matches!(o, Outcome::Refused(_))).count();
    assert!(refusals >= 15, "only {refusals} reasons of refusal were reached");
}
