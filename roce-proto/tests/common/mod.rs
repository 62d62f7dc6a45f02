//! Shared by the integration tests: the captures, and an ICRC that owes nothing to the library.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use roce_proto::types::{PKey, Psn, QKey, Qpn};
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::{self, Frame, Packet};
use roce_proto::wire::ud::{IpRoute, Route, Send, Template};

/// Where the captures of Linux Soft-RoCE are.
pub fn pcaps() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/pcaps")
}

/// A file below `testbed`.
pub fn testbed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed").join(name)
}

/// The frames of one capture.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let mut all = Vec::new();
    while let Some(packet) = reader.next_packet() {
        all.push(packet.expect("a whole packet").data.into_owned());
    }
    all
}

/// Every capture: its name without extension, and its frames.
pub fn captures() -> Vec<(String, Vec<Vec<u8>>)> {
    let mut all: Vec<_> = fs::read_dir(pcaps())
        .expect("testbed/pcaps")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), frames(&path)))
        .collect();
    all.sort();
    all
}

/// CRC-32 of IEEE 802.3 bit by bit.
pub fn crc32_bitwise(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

/// The ICRC by the letter of annex A17: `packet` from its IP header to its pad, masked by a list of (byte, bits to set).
pub fn icrc_naive(packet: &[u8]) -> u32 {
    let (l4, ip_masks): (usize, &[(usize, u8)]) = match packet[0] >> 4 {
        4 => (20, &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)]),
        6 => (40, &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)]),
        version => panic!("IP version {version}"),
    };
    let transport_masks = [(l4 + 6, 0xff), (l4 + 7, 0xff), (l4 + 8 + 4, 0xff)];
    let mut masked = packet.to_vec();
    for &(at, bits) in ip_masks.iter().chain(&transport_masks) {
        masked[at] |= bits;
    }
    crc32_bitwise([0xff; 8].into_iter().chain(masked))
}

/// Where the IP header of a frame starts, by its tags.
pub fn l3_offset(frame: &[u8]) -> usize {
    let mut at = 12;
    while at + 6 <= frame.len() && matches!((frame[at], frame[at + 1]), (0x81 | 0x91, 0) | (0x88, 0xa8)) {
        at += 4;
    }
    at + 2
}

/// A route between two neighbours, as the captures have it.
pub fn route(ipv6: bool) -> Route {
    let ip = if ipv6 {
        IpRoute::V6 {
            src: "fd77::1".parse().expect("address"),
            dst: "fd77::2".parse().expect("address"),
            flow_label: 0,
        }
    } else {
        IpRoute::V4 { src: [10, 77, 0, 1].into(), dst: [10, 77, 0, 2].into(), ident: 0 }
    };
    Route {
        src_mac: MacAddr([0x52, 0x54, 0, 0, 0, 1]),
        dst_mac: MacAddr([0x52, 0x54, 0, 0, 0, 2]),
        vlan: None,
        ip,
        dscp: 26,
        ecn: 2,
        hop_limit: 64,
        src_port: 0xc123,
    }
}

/// A datagram for QP 0x11 from QP 0x12.
pub fn datagram(imm: Option<u32>) -> Send {
    Send {
        dst_qpn: Qpn::new(0x11).expect("24 bits"),
        src_qpn: Qpn::new(0x12).expect("24 bits"),
        qkey: QKey(0x1111_1111),
        pkey: PKey::DEFAULT,
        psn: Psn::new(7).expect("24 bits"),
        imm,
        solicited: false,
    }
}

/// The frame that the builder makes of them.
pub fn build(route: &Route, send: &Send, payload: &[u8]) -> Vec<u8> {
    let template = Template::new(route);
    let imm = send.imm.is_some();
    let mut frame = vec![0xaa; template.frame_len(imm, payload.len())];
    let at = template.header_len(imm);
    frame[at..at + payload.len()].copy_from_slice(payload);
    template.emit(send, payload.len(), &mut frame).expect("the exact length");
    frame
}

/// Makes the IPv4 header checksum of a frame right again.
pub fn fix_ipv4_checksum(frame: &mut [u8]) {
    let at = l3_offset(frame);
    frame[at + 10..at + 12].fill(0);
    let mut sum: u32 = frame[at..at + 20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at + 10..at + 12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// The RoCEv2 packet that a frame must hold.
#[track_caller]
pub fn roce(frame: &[u8]) -> Packet<'_> {
    match frame::parse(frame) {
        Ok(Frame::Roce(packet)) => packet,
        other => panic!("no RoCEv2 packet but {other:?}"),
    }
}
