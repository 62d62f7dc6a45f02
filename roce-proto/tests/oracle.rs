//! Frames that we build, judged by `testbed/icrc_check.py`: an independent decoder in another language.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use common::{build, datagram, route, testbed};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use roce_proto::wire::ethernet::VlanTag;
use roce_proto::wire::ud::Route;

/// Frames of both families, with and without tag and immediate, of every length modulo four.
fn frames() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for ipv6 in [false, true] {
        for vlan in [None, VlanTag::dot1q(42)] {
            for imm in [None, Some(0xdead_beef)] {
                for len in [0, 1, 2, 3, 4, 63, 64, 1023, 1024, 4096] {
                    let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                    all.push(build(&Route { vlan, ..route(ipv6) }, &datagram(imm), &payload));
                }
            }
        }
    }
    all
}

fn write_pcap(name: &str, frames: &[Vec<u8>]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut writer =
        PcapWriter::new(File::create(&path).expect("a file in the target directory")).expect("a header");
    for (i, frame) in frames.iter().enumerate() {
        let at = Duration::from_micros(i as u64);
        let packet = PcapPacket::new_owned(at, frame.len() as u32, frame.clone());
        writer.write_packet(&packet).expect("written");
    }
    path
}

/// Runs the checker; without Python there is no verdict, and the test says so by failing.
fn judge(path: &Path) -> Output {
    Command::new("python3")
        .arg(testbed("icrc_check.py"))
        .arg(path)
        .output()
        .expect("python3, which this test needs: apt-get install python3")
}

#[test]
fn the_independent_checker_accepts_every_frame() {
    let frames = frames();
    let output = judge(&write_pcap("oracle-good.pcap", &frames));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.trim_end().ends_with(&format!(": {} ICRC ok, 0 bad, 0 other frames", frames.len())),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(0), "{said}");
}

#[test]
fn the_independent_checker_finds_one_flipped_bit() {
    let mut frames = frames();
    let count = frames.len();
    let frame = &mut frames[count / 2 + 5];
    let at = frame.len() - 20;
    frame[at] ^= 0x04;
    let output = judge(&write_pcap("oracle-bad.pcap", &frames));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.trim_end().ends_with(&format!(": {} ICRC ok, 1 bad, 0 other frames", count - 1)),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(1), "{said}");
}
