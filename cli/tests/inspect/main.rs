//! `spraywire inspect` as a user runs it, on captures of Linux Soft-RoCE and on what may become of captures.

mod output;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/pcaps")
}

fn capture(name: &str) -> PathBuf {
    captures().join(name)
}

fn all_captures() -> Vec<PathBuf> {
    let entries = fs::read_dir(captures()).expect("the captures are part of the tree");
    let mut files: Vec<PathBuf> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "pcap")).collect();
    files.sort();
    assert!(files.len() >= 30, "{files:?}");
    files
}

fn inspect<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    command.arg("inspect").args(args).stdin(Stdio::null()).env_remove("RUST_LOG");
    command.output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The report of a run with `--json`.
fn json<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> (i32, Value) {
    let args: Vec<std::ffi::OsString> =
        ["--json".into()].into_iter().chain(args.into_iter().map(|a| a.as_ref().to_owned())).collect();
    let output = inspect(args);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", stdout(&output), stderr(&output)));
    (code(&output), value)
}

/// A file of the test's own.
fn temporary(bytes: &[u8], suffix: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Offsets of the packets of a little-endian pcap, and their lengths.
fn packets(pcap: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 24;
    while at < pcap.len() {
        let len = u32::from_le_bytes(pcap[at + 8..at + 12].try_into().unwrap()) as usize;
        found.push((at + 16, len));
        at += 16 + len;
    }
    found
}

/// What MANIFEST.md says of each capture: packets by opcode, and frames that are no RoCEv2.
fn manifest() -> BTreeMap<String, (BTreeMap<String, u64>, u64)> {
    let text = fs::read_to_string(capture("MANIFEST.md")).unwrap();
    let mut found = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            name = heading.trim().to_owned();
        }
        let Some((head, opcodes)) = line.split_once(" with right ICRC") else { continue };
        let number = |words: &str| words.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        let frames = number(head.strip_prefix("- ").unwrap());
        let right = number(head.split_once("frames, ").unwrap().1);
        let (_, opcodes) = opcodes.split_once(": ").unwrap();
        let opcodes = opcodes.split(';').next().unwrap();
        let counts = opcodes.split(", ").map(|entry| {
            let (count, opcode) = entry.trim().split_once(' ').unwrap();
            (opcode.to_owned(), count.parse().unwrap())
        });
        found.insert(name.clone(), (counts.collect(), frames - right));
    }
    found
}

#[test]
fn every_captured_packet_of_soft_roce_is_right_and_counted() {
    let manifest = manifest();
    for file in all_captures() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let (expected, others) = &manifest[name];
        let (code, report) = json([&file]);
        assert_eq!(code, 0, "{name}");
        assert_eq!(report["schema"], "spraywire/1");
        assert_eq!(report["command"], "inspect");
        assert_eq!(report["ok"], true);
        let summary = &report["summary"];
        let by_opcode: BTreeMap<String, u64> = summary["opcodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| (o["name"].as_str().unwrap().to_owned(), o["packets"].as_u64().unwrap()))
            .collect();
        assert_eq!(&by_opcode, expected, "{name}");
        let roce: u64 = expected.values().sum();
        assert_eq!(summary["roce"]["icrc_ok"], roce, "{name}");
        assert_eq!(summary["roce"]["icrc_bad"], 0, "{name}");
        assert_eq!(summary["packets"], roce + others, "{name}");
        assert_eq!(report["results"].as_array().unwrap().len() as u64, roce, "{name}");
    }
}

#[test]
fn the_independent_checker_agrees_packet_by_packet() {
    // Written in another language from the standard, before this program.
    let checker = captures().join("../icrc_check.py");
    let all = all_captures();
    let output = Command::new("python3").arg(&checker).args(&all).output().expect("python3");
    assert!(output.status.success(), "{}", stderr(&output));
    for file in all.iter().take(8) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let mut bytes = fs::read(file).unwrap();
        let list = packets(&bytes);
        // The last byte before the ICRC of the first RoCEv2 packet that has the room.
        let (at, len) = *list.iter().find(|(_, len)| *len > 70).unwrap();
        bytes[at + len - 5] ^= 1;
        let bad = temporary(&bytes, ".pcap");
        let theirs = Command::new("python3").arg(&checker).arg(bad.path()).output().unwrap();
        assert_eq!(theirs.status.code(), Some(1), "{name}");
        assert_eq!(code(&inspect([bad.path()])), 1, "{name}");
    }
}

#[test]
fn exactly_the_changed_packets_are_flagged() {
    let original = fs::read(capture("ib-read-bw-rc-v4.pcap")).unwrap();
    let list = packets(&original);
    let changed = [2usize, 3, 17, list.len() - 1];
    let mut bytes = original.clone();
    for (n, &index) in changed.iter().enumerate() {
        let (at, len) = list[index];
        // In turn: the ICRC, the PSN, the UDP source port, the payload or an extension header.
        let offset = [len - 1, 14 + 20 + 8 + 11, 14 + 20 + 1, 14 + 20 + 8 + 12 + 1][n];
        bytes[at + offset] ^= 0x40;
    }
    let file = temporary(&bytes, ".pcap");
    let (code, report) = json([file.path().as_os_str(), "--bad".as_ref()]);
    assert_eq!(code, 1);
    assert_eq!(report["ok"], false);
    let flagged: Vec<u64> =
        report["results"].as_array().unwrap().iter().map(|r| r["number"].as_u64().unwrap()).collect();
    assert_eq!(flagged, changed.map(|i| i as u64 + 1));
    assert_eq!(report["summary"]["roce"]["icrc_bad"], 4);
    assert_eq!(report["summary"]["roce"]["icrc_ok"], list.len() as u64 - 4);
    for result in report["results"].as_array().unwrap() {
        assert_eq!(result["icrc"]["status"], "bad");
        assert_ne!(result["icrc"]["received"], result["icrc"]["expected"]);
    }
    // What should have been there is what was there before.
    let (at, len) = list[17];
    let before = u32::from_le_bytes(original[at + len - 4..at + len].try_into().unwrap());
    let source_port = &report["results"][2];
    assert_eq!(source_port["icrc"]["received"], before);
}

#[test]
fn what_routers_change_leaves_the_icrc_right() {
    // Type of service and TTL, with the header checksum mended; the fields that the ICRC takes as ones.
    let mut bytes = fs::read(capture("ud-v4-mtu1024.pcap")).unwrap();
    for (at, _) in packets(&bytes) {
        let ip = &mut bytes[at + 14..at + 34];
        ip[1] = 0xb9;
        ip[8] = 3;
        ip[10..12].fill(0);
        let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let file = temporary(&bytes, ".pcap");
    let (code, report) = json([file.path()]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["results"][0]["hop_limit"], 3);
    assert_eq!((&report["results"][0]["dscp"], &report["results"][0]["ecn"]), (&46.into(), &1.into()));
}

#[test]
fn fields_of_known_packets() {
    let (_, report) = json([capture("ud-v4-mtu1024-imm.pcap")]);
    let packet = &report["results"][1];
    assert_eq!(packet["src"], "10.77.0.1");
    assert_eq!(packet["dst"], "10.77.0.2");
    assert_eq!(packet["src_mac"], "52:54:00:00:00:01");
    assert_eq!(packet["src_port"], 54281);
    assert_eq!(packet["name"], "UD SEND_ONLY_IMM");
    assert_eq!((&packet["opcode"], &packet["dst_qpn"]), (&0x65.into(), &0x12.into()));
    assert_eq!(packet["extensions"]["deth"], serde_json::json!({"qkey": 0x1111_1111, "src_qpn": 0x1b}));
    assert_eq!(packet["extensions"]["immdt"], 0x0102_0304);
    assert_eq!((&packet["payload_len"], &packet["pad"]), (&1.into(), &3.into()));
    assert_eq!(packet["pkey"], 0xffff);

    let text = stdout(&inspect([capture("ib-write-lat-rc-v6.pcap")]));
    let write = text.lines().next().unwrap();
    assert!(write.contains("[fd77::2]:51921 > fd77::1 RC WRITE_ONLY qp 0x000047 psn 10814480 "), "{write}");
    assert!(write.contains(" ack-request reth(va 0x"), "{write}");
    assert!(write.contains(" len 8) len 8 pad 0 icrc ok"), "{write}");
    assert!(text.contains(" RC ACK qp 0x") && text.contains(" aeth(ack msn 1) len 0 "), "{text}");

    let solicited = stdout(&inspect([capture("ud-v4-solicited-tos.pcap").as_os_str(), "-v".as_ref()]));
    let line = solicited.lines().next().unwrap();
    assert!(line.contains("52:54:00:00:00:01 > 52:54:00:00:00:02 10.77.0.1:53152 > 10.77.0.2 "), "{line}");
    assert!(line.contains(" dscp 26 ecn 2 ttl 64 "), "{line}");
    assert!(line.contains(" solicited deth(qkey 0x80000001 src-qp 0x000035) "), "{line}");
    assert!(line.contains("psn 16777214 "), "{line}");
}

#[test]
fn a_capture_is_not_overwritten_by_what_is_said_of_it() {
    let bytes = fs::read(capture("ud-v4-arp.pcap")).unwrap();
    let file = temporary(&bytes, ".pcap");
    let to = format!("--json={}", file.path().display());
    let output = inspect([to.as_ref(), file.path().as_os_str()]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("would overwrite the capture"), "{}", stderr(&output));
    assert_eq!(fs::read(file.path()).unwrap(), bytes);
}

#[test]
fn other_protocols_are_counted_and_shown_on_demand() {
    let file = capture("ud-v4-arp.pcap");
    let plain = stdout(&inspect([&file]));
    assert_eq!(plain.lines().filter(|l| l.contains("UD SEND_ONLY qp")).count(), 1);
    assert!(plain.contains("not RoCEv2: arp 2"), "{plain}");
    assert!(!plain.contains("arp, 42 bytes"), "{plain}");
    let verbose = stdout(&inspect([file.as_os_str(), "-v".as_ref()]));
    assert_eq!(verbose.lines().filter(|l| l.contains("not RoCEv2: arp, ")).count(), 2, "{verbose}");
}

#[test]
fn tags_and_link_types() {
    let original = fs::read(capture("ud-v6-mtu1024.pcap")).unwrap();
    let rewrite = |link: u32, change: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut out = original[..20].to_vec();
        out.extend_from_slice(&link.to_le_bytes());
        for (at, len) in packets(&original) {
            let packet = change(&original[at..at + len]);
            let len = (packet.len() as u32).to_le_bytes();
            out.extend_from_slice(&original[at - 16..at - 8]);
            out.extend_from_slice(&[&len[..], &len, &packet].concat());
        }
        temporary(&out, ".pcap")
    };
    let check = |file: tempfile::NamedTempFile| {
        let (code, report) = json([file.path()]);
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["summary"]["roce"]["icrc_ok"], 9, "{report:#}");
        report["results"][0].clone()
    };
    let tagged =
        check(rewrite(1, &|p| [&p[..12], &[0x88, 0xa8, 0, 7, 0x81, 0, 0x60, 42], &p[12..]].concat()));
    let vlans = tagged["vlans"].as_array().unwrap();
    assert_eq!(vlans.iter().map(|v| v["vid"].as_u64().unwrap()).collect::<Vec<_>>(), [7, 42]);
    assert_eq!(vlans[1]["pcp"], 3);
    let raw = check(rewrite(101, &|p| p[14..].to_vec()));
    assert_eq!(raw["src_mac"], Value::Null);
    check(rewrite(113, &|p| [&[0, 4, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xdd], &p[14..]].concat()));
    let sll2 = [0x86, 0xdd, 0, 0, 0, 0, 0, 1, 0, 1, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0];
    check(rewrite(276, &|p| [&sll2, &p[14..]].concat()));
    check(rewrite(0, &|p| [&[10, 0, 0, 0], &p[14..]].concat()));

    let unknown = rewrite(127, &|p| p.to_vec());
    let (code, report) = json([unknown.path()]);
    assert_eq!(code, 0);
    assert_eq!(report["summary"]["unknown_link"]["127"], 9);
}

/// The capture with its packets cut to `snaplen`.
fn cut_to(snaplen: usize, name: &str) -> tempfile::NamedTempFile {
    let original = fs::read(capture(name)).unwrap();
    let mut out = original[..16].to_vec();
    out.extend_from_slice(&(snaplen as u32).to_le_bytes());
    out.extend_from_slice(&original[20..24]);
    for (at, len) in packets(&original) {
        let kept = len.min(snaplen);
        out.extend_from_slice(&original[at - 16..at - 8]);
        out.extend_from_slice(&(kept as u32).to_le_bytes());
        out.extend_from_slice(&original[at - 4..at + kept]);
    }
    temporary(&out, ".pcap")
}

#[test]
fn packets_that_were_cut_are_not_called_wrong() {
    // All headers of UD over IPv4 with an immediate take 66 bytes.
    for (snaplen, name, whole) in [(96, "ud-v4-mtu1024-imm.pcap", 5), (100, "ud-v6-mtu1024.pcap", 5)] {
        let file = cut_to(snaplen, name);
        let (code, report) = json([file.path()]);
        assert_eq!(code, 0, "{report:#}");
        let roce = &report["summary"]["roce"];
        assert_eq!((&roce["packets"], &roce["icrc_ok"]), (&9.into(), &whole.into()), "{name}");
        assert_eq!((&roce["icrc_bad"], &roce["cut"]), (&0.into(), &(9 - whole).into()), "{name}");
        let last = &report["results"][8];
        assert_eq!(last["icrc"]["status"], "cut");
        assert_eq!((&last["payload_len"], &last["captured"]), (&1024.into(), &snaplen.into()));
        assert!(last["extensions"]["deth"]["qkey"] == 0x1111_1111, "{last:#}");
    }
    // In the middle of the DETH, of the BTH, of the IP header, and before everything.
    for (snaplen, roce, undecided) in [(58, 9, 0), (50, 0, 9), (30, 0, 9), (0, 0, 9)] {
        let file = cut_to(snaplen, "ud-v4-mtu1024.pcap");
        let (code, report) = json([file.path()]);
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["summary"]["roce"]["cut"], roce, "at {snaplen}");
        assert_eq!(report["summary"]["cut"], undecided, "at {snaplen}");
        if roce > 0 {
            assert_eq!(report["results"][0]["extensions"], Value::Null);
        }
    }
    let text = stdout(&inspect([cut_to(96, "ud-v4-mtu1024.pcap").path()]));
    assert!(text.contains("len 1024 pad 0 cut: 96 of 1090 bytes"), "{text}");
}

#[test]
fn malformed_roce_is_wrong_and_broken_others_are_not() {
    let original = fs::read(capture("ud-v4-mtu1024.pcap")).unwrap();
    let (at, _) = packets(&original)[0];
    let with = |offset: usize, value: u8| {
        let mut bytes = original.clone();
        bytes[at + offset] = value;
        let file = temporary(&bytes, ".pcap");
        json([file.path()])
    };
    let bth = 14 + 20 + 8;
    let (code, report) = with(bth + 1, 0x0f);
    assert_eq!((code, &report["summary"]["malformed"]["bth_version"]), (1, &1.into()));
    assert_eq!(report["results"][0]["kind"], "malformed");
    // More fragments; IPv4 options; a UDP length that is not true; a pad that is not there.
    assert_eq!(with(14 + 6, 0x20).1["summary"]["malformed"].as_object().unwrap().len(), 1);
    assert_eq!(with(14 + 20 + 5, 9).1["summary"]["malformed"]["udp_length"], 1);
    // Another protocol with a wrong header checksum is none of ours.
    let (code, report) = with(14 + 9, 6);
    assert_eq!((code, &report["summary"]["rejected"]["ipv4_checksum"]), (0, &1.into()));
    // To another port it is not RoCEv2 any more.
    let (code, report) = with(14 + 20 + 3, 0xb8);
    assert_eq!((code, &report["summary"]["other"]["udp"]), (0, &1.into()));
}

#[test]
fn pcapng_gives_the_same_packets() {
    use pcap_file::DataLink;
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::{
        InterfaceDescriptionBlock, InterfaceDescriptionOption,
    };
    let original = fs::read(capture("cm-send-bw-ud-v4.pcap")).unwrap();
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    interface.options.push(InterfaceDescriptionOption::IfTsResol(9));
    writer.write_pcapng_block(interface).unwrap();
    for (at, len) in packets(&original) {
        let word = |i: usize| u32::from_le_bytes(original[i..i + 4].try_into().unwrap());
        let timestamp = std::time::Duration::new(word(at - 16).into(), word(at - 12) * 1000);
        let data = original[at..at + len].into();
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp,
            original_len: len as u32,
            data,
            options: vec![],
        };
        writer.write_pcapng_block(block).unwrap();
    }
    let pcapng = temporary(&writer.into_inner(), ".pcapng");
    let (code, ng) = json([pcapng.path()]);
    let (_, classic) = json([capture("cm-send-bw-ud-v4.pcap")]);
    assert_eq!(code, 0);
    assert_eq!(ng["files"][0]["format"], "pcapng");
    assert_eq!(ng["results"], classic["results"]);
    assert_eq!(ng["summary"], classic["summary"]);
}

#[test]
fn several_files_and_standard_input() {
    let (a, b) = (capture("ud-v4-echo.pcap"), capture("ud-v6-nd.pcap"));
    let (status, report) = json([&a, &b]);
    assert_eq!(status, 0);
    assert_eq!(report["summary"]["packets"], 13);
    assert_eq!(report["files"][1]["packets"], 3);
    assert_eq!(report["results"][10]["file"], 1);

    let mut child = Command::new(env!("CARGO_BIN_EXE_spraywire"))
        .args(["inspect", "--summary", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(&a).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("UD SEND_ONLY       10"), "{}", stdout(&output));
}

/// Who writes may be silent for long: one signal ends the wait, with the summary of what came.
#[test]
fn a_signal_ends_the_wait_for_a_pipe_or_a_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let bytes = fs::read(&all_captures()[0]).unwrap();
    for (path, feed) in [(Path::new("-"), &bytes[..]), (Path::new("-"), &[]), (&fifo, &[])] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
        command.args(["inspect", "--summary", "--json"]).arg(path).env_remove("RUST_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(feed).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(child.try_wait().unwrap(), None, "it waits for more");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(10) {
                child.kill().unwrap();
                panic!("{}: the signal ended nothing", path.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130, "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["interrupted"], true);
        assert_eq!(report["summary"]["packets"].as_u64().unwrap() > 0, !feed.is_empty(), "{report:#}");
    }
}

#[test]
fn files_that_cannot_be_read() {
    let good = capture("ud-v4-echo.pcap");
    let bytes = fs::read(&good).unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"", "the file is empty"),
        (b"not a capture", "neither pcap nor pcapng"),
        (&bytes[..bytes.len() - 1], "breaks off"),
        (&[0x1f, 0x8b, 8, 0, 0], "gzip"),
    ];
    for (content, why) in cases {
        let file = temporary(content, ".pcap");
        // The other file is inspected all the same.
        let output = inspect([file.path(), &good]);
        assert_eq!(code(&output), 2);
        let error = stderr(&output);
        assert!(error.starts_with("spraywire: error: ") && error.contains(why), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(stdout(&output).contains("UD SEND_ONLY"), "{}", stdout(&output));
    }
    // What stands before the break is reported.
    let file = temporary(&bytes[..bytes.len() - 1], ".pcap");
    let (status, report) = json([file.path()]);
    assert_eq!((status, &report["summary"]["packets"]), (2, &9.into()));
    assert!(report["files"][0]["error"].as_str().unwrap().contains("breaks off"));

    assert_eq!(code(&inspect(["/nonexistent.pcap"])), 2);
    assert_eq!(code(&inspect([captures()])), 2);
    assert_eq!(code(&inspect([] as [&str; 0])), 2, "no file at all");
    // A header without packets is a file like any other.
    let empty = temporary(&bytes[..24], ".pcap");
    assert_eq!(code(&inspect([empty.path()])), 0);
}

#[test]
fn hex_and_utc() {
    let text = stdout(&inspect(["-x", "--utc", capture("ud-v4-arp.pcap").to_str().unwrap()]));
    let line = text.lines().next().unwrap();
    let time = line.split_whitespace().nth(1).unwrap();
    assert!(time.len() == 30 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{line}");
    assert_eq!(text.lines().filter(|l| l.starts_with("  00")).count(), 4, "64 bytes: {text}");
}

#[test]
fn mutated_captures_never_panic() {
    let seed = 7;
    let mut random = fastrand::Rng::with_seed(seed);
    let original = fs::read(capture("cm-send-bw-ud-v4.pcap")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for n in 0..300 {
        let mut bytes = original.clone();
        for _ in 0..random.u32(1..40) {
            let at = random.usize(20..bytes.len());
            bytes[at] = random.u8(..);
        }
        if n % 3 == 0 {
            bytes.truncate(random.usize(..bytes.len()));
        }
        let path = dir.path().join(n.to_string());
        fs::write(&path, bytes).unwrap();
        files.push(path);
    }
    for part in files.chunks(100) {
        let output =
            inspect(["-v".as_ref(), "--json".as_ref()].into_iter().chain(part.iter().map(|p| p.as_os_str())));
        assert!([1, 2].contains(&code(&output)), "seed {seed}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "seed {seed}: {}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        // Every packet is in exactly one count.
        let summary = &report["summary"];
        let sum = |name: &str| -> u64 {
            summary[name].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum()
        };
        let total = summary["roce"]["packets"].as_u64().unwrap()
            + summary["cut"].as_u64().unwrap()
            + sum("malformed")
            + sum("other")
            + sum("rejected")
            + sum("unknown_link");
        assert_eq!(summary["packets"], total);
        let roce = &summary["roce"];
        let of = |name: &str| roce[name].as_u64().unwrap();
        assert_eq!(of("packets"), of("icrc_ok") + of("icrc_bad") + of("cut"));
    }
}

/// The names of all fields below a value, without those whose names are data.
fn names(value: &Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(name.clone());
                let by_name = ["malformed", "rejected", "other", "unknown_link", "parameters"];
                if !by_name.contains(&name.as_str()) {
                    names(value, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|v| names(v, found)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("json.md")).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for file in all_captures() {
        names(&json([file.as_os_str(), "-v".as_ref()]).1, &mut found);
    }
    names(&json([cut_to(60, "ud-v4-mtu1024.pcap").path()]).1, &mut found);
    assert!(found.len() > 60, "{found:?}");
    let missing: Vec<&String> = found.iter().filter(|name| !schema.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
