//! Shared by the integration tests: the captures, and an ICRC that owes nothing to the library.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;

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
    while matches!((frame[at], frame[at + 1]), (0x81 | 0x91, 0) | (0x88, 0xa8)) {
        at += 4;
    }
    at + 2
}
