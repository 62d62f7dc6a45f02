//! Every capture of Linux Soft-RoCE against the parser, the ICRC and the builder.

mod common;
#[path = "common/reverse.rs"]
mod reverse;

use std::collections::BTreeMap;
use std::fs;

use common::{captures, icrc_naive, l3_offset, pcaps};
use reverse::reverse;
use roce_proto::wire::ethernet::Header as Ethernet;
use roce_proto::wire::frame::{self, Frame, Ip, Packet};
use roce_proto::wire::grh::Grh;
use roce_proto::wire::ud::Template;
use roce_proto::wire::{Reject, arp, control, icmpv6};

/// What MANIFEST.md says of one capture.
#[derive(Debug, Default)]
struct Listed {
    frames: usize,
    right: usize,
    neighbour: usize,
    opcodes: BTreeMap<String, usize>,
    sizes: Vec<usize>,
    qkeys: Vec<u32>,
    immediates: Vec<u32>,
}

/// The numbers after `label` up to the end of its clause, in C notation.
fn numbers(line: &str, label: &str) -> Vec<u32> {
    let Some((_, rest)) = line.split_once(label) else { return Vec::new() };
    let clause = rest.split(';').next().unwrap_or_default();
    let parse = |t: &str| t.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
    clause.split_whitespace().map(|t| parse(t).unwrap_or_else(|| panic!("number in {line:?}"))).collect()
}

/// Reads MANIFEST.md: per capture a headline, and the lines with its counts.
fn manifest() -> BTreeMap<String, Listed> {
    let text = fs::read_to_string(pcaps().join("MANIFEST.md")).expect("MANIFEST.md");
    let mut all = BTreeMap::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(file) = line.strip_prefix("## ").and_then(|l| l.strip_suffix(".pcap")) {
            name = Some(file.to_owned());
            all.insert(file.to_owned(), Listed::default());
            continue;
        }
        let Some(entry) = name.as_ref().and_then(|n| all.get_mut(n)) else { continue };
        if line.contains("frames,") && line.contains("with right ICRC") {
            let (counts, rest) = line.trim_start_matches("- ").split_once(": ").expect("counts");
            for part in counts.split(", ") {
                let (n, what) = part.split_once(' ').expect("a number and its unit");
                let n = n.parse().expect("a number");
                match what {
                    "frames" => entry.frames = n,
                    "with right ICRC" => entry.right = n,
                    "ARP/ND" => entry.neighbour = n,
                    _ => panic!("unknown count in {line:?}"),
                }
            }
            let (opcodes, sizes) = rest.split_once("; sizes ").expect("sizes");
            for part in opcodes.split(", ") {
                let (n, opcode) = part.split_once(' ').expect("a number and an opcode");
                entry.opcodes.insert(opcode.to_owned(), n.parse().expect("a number"));
            }
            entry.sizes = sizes.split(' ').map(|s| s.parse().expect("a size")).collect();
        } else if line.starts_with("- Q_Key") || line.starts_with("- immediate") {
            entry.qkeys = numbers(line, "Q_Key");
            entry.immediates = numbers(line, "immediate");
        }
    }
    all
}

/// The values in the order in which they first appear.
fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn roce(frame: &[u8]) -> Option<Packet<'_>> {
    match frame::parse(frame) {
        Ok(Frame::Roce(packet)) => Some(packet),
        Ok(_) => None,
        Err(e) => panic!("a captured frame was refused: {e}"),
    }
}

#[test]
fn every_capture_parses_as_its_manifest_says() {
    let manifest = manifest();
    let captures = captures();
    let names: Vec<_> = captures.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, manifest.keys().cloned().collect::<Vec<_>>(), "captures and manifest differ");
    assert_eq!(captures.len(), 32);
    for (name, frames) in &captures {
        let listed = &manifest[name];
        let mut opcodes = BTreeMap::new();
        let (mut sizes, mut qkeys, mut immediates) = (Vec::new(), Vec::new(), Vec::new());
        let (mut right, mut neighbour) = (0, 0);
        for frame in frames {
            let Some(packet) = roce(frame) else {
                assert!(matches!(frame::parse(frame), Ok(Frame::Arp(..) | Frame::Icmp6(_))), "{name}");
                neighbour += 1;
                continue;
            };
            let from = l3_offset(frame);
            assert_eq!(from + packet.ip_len(), frame.len(), "{name}: nothing follows the ICRC");
            let naive = icrc_naive(&frame[from..frame.len() - 4]);
            assert_eq!(packet.icrc_expected(), naive, "{name}: against the bitwise ICRC");
            assert_eq!(packet.icrc().to_le_bytes(), frame[frame.len() - 4..], "{name}");
            right += usize::from(packet.icrc_ok());
            *opcodes.entry(packet.bth().opcode.to_string()).or_insert(0) += 1;
            let (extensions, payload) = packet.extensions().expect("headers of the opcode");
            if let Ok(ud) = packet.ud() {
                assert_eq!(extensions.deth, Some(ud.deth), "{name}");
                assert_eq!(extensions.immdt.map(|i| i.0), ud.imm, "{name}");
                assert_eq!(payload, ud.payload, "{name}");
                sizes.push(ud.payload.len());
                qkeys.push(ud.deth.qkey.0);
                immediates.extend(ud.imm);
            } else {
                sizes.push(packet.body().len());
            }
            assert!(packet.padding().iter().all(|&b| b == 0), "{name}");
        }
        assert_eq!(
            (frames.len(), right, neighbour),
            (listed.frames, listed.right, listed.neighbour),
            "{name}"
        );
        assert_eq!(right + neighbour, frames.len(), "{name}: every ICRC is right");
        assert_eq!(opcodes, listed.opcodes, "{name}");
        assert_eq!(distinct(sizes), listed.sizes, "{name}");
        assert_eq!(distinct(qkeys), listed.qkeys, "{name}");
        assert_eq!(distinct(immediates), listed.immediates, "{name}");
    }
}

#[test]
fn our_builder_makes_the_very_frames_of_linux() {
    let mut counts = [0, 0];
    let mut asking = 0;
    for (name, frames) in captures() {
        for frame in &frames {
            let Some(packet) = roce(frame) else { continue };
            let Some((route, send)) = reverse(&packet) else { continue };
            let payload = packet.ud().expect("UD").payload;
            let imm = send.imm.is_some();
            let template = Template::new(&route);
            let mut ours = vec![0xaa; template.frame_len(imm, payload.len())];
            let at = template.header_len(imm);
            ours[at..at + payload.len()].copy_from_slice(payload);
            template.emit(&send, payload.len(), &mut ours).expect("the exact length");
            if packet.bth().ack_request {
                // Linux sets this bit in management datagrams; UD has no acknowledgements, and we never ask.
                asking += 1;
                let from = l3_offset(frame);
                let bth = at - if imm { 24 } else { 20 };
                ours[bth + 8] |= 0x80;
                let end = ours.len() - 4;
                let icrc = icrc_naive(&ours[from..end]);
                ours[end..].copy_from_slice(&icrc.to_le_bytes());
            }
            assert_eq!(ours, *frame, "{name}, PSN {}", send.psn);
            counts[usize::from(packet.ip.is_ipv6())] += 1;
        }
    }
    assert_eq!((counts, asking), ([139, 70], 14), "UD packets by IPv4 and IPv6");
}

#[test]
fn neighbour_frames_are_rebuilt_byte_for_byte() {
    let mut kinds = [0; 4];
    for (name, frames) in captures() {
        for frame in &frames {
            let ethernet = Ethernet::parse(frame).expect("valid");
            let link = control::Link { src: ethernet.src, dst: ethernet.dst, vlans: ethernet.vlans };
            let mut ours = [0; 128];
            let len = match frame::parse(frame) {
                Ok(Frame::Arp(l, packet)) => {
                    assert_eq!((l.src(), l.dst()), (link.src, link.dst));
                    kinds[usize::from(packet.operation == arp::Operation::Reply)] += 1;
                    control::arp(&link, &packet, &mut ours)
                }
                Ok(Frame::Icmp6(m)) => {
                    kinds[2 + usize::from(matches!(m.message, icmpv6::Message::Advertisement(_)))] += 1;
                    control::icmpv6(&link, m.src, m.dst, &m.message, &mut ours)
                }
                _ => continue,
            };
            assert_eq!(ours[..len.expect("fits")], frame[..], "{name}");
        }
    }
    assert_eq!(kinds, [1, 1, 1, 1], "requests, replies, solicitations, advertisements");
}

#[test]
fn the_grh_area_holds_the_ip_header_as_received() {
    for (name, frames) in captures() {
        for frame in &frames {
            let Some(packet) = roce(frame) else { continue };
            let mut area = [0xee; 40];
            packet.write_grh(&mut area);
            let at = l3_offset(frame);
            match packet.ip {
                Ip::V4(_) => {
                    assert_eq!(area[..20], [0; 20], "{name}");
                    assert_eq!(area[20..], frame[at..at + 20], "{name}");
                    assert!(matches!(Grh::parse(&area), Ok(Grh::V4(_))), "{name}");
                }
                Ip::V6(_) => {
                    assert_eq!(area[..], frame[at..at + 40], "{name}");
                    assert!(matches!(Grh::parse(&area), Ok(Grh::V6(_))), "{name}");
                }
            }
        }
    }
}

#[test]
fn frames_cut_anywhere_are_refused() {
    for (name, frames) in captures() {
        for frame in &frames {
            for len in 0..frame.len() {
                let cut = frame::parse(&frame[..len]);
                assert!(cut.is_err(), "{name}: {len} of {} bytes gave {cut:?}", frame.len());
            }
        }
    }
    assert_eq!(frame::parse(&[]).err(), Some(Reject::TooShort { have: 0, need: 14 }));
}

#[test]
fn ethernet_padding_after_the_packet_changes_nothing() {
    for (name, frames) in captures() {
        for frame in frames.iter().filter(|f| f.len() < 128) {
            let Some(packet) = roce(frame) else { continue };
            let padded = [&frame[..], &[0x5a; 46]].concat();
            let again = roce(&padded).expect("still a RoCE packet");
            assert_eq!(
                (again.body(), again.icrc(), again.icrc_ok()),
                (packet.body(), packet.icrc(), true),
                "{name}"
            );
        }
    }
}
