//! Ports without a network: `net_ring`, which gives back what it is sent, and `net_pcap`, which replays files.

use crate::run::{LIMIT, json, spraywire};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use std::fs::File;
use std::path::Path;
use testbed_net::Process;

#[test]
fn a_ring_gives_back_what_it_was_sent() {
    // To ourselves, but for another address: each message comes back, and into exactly one counter.
    let args = "ud send 10.0.0.2 --dmac 02:00:00:00:00:01 --qpn 2 -n 300 -s 1000 --ip 10.0.0.1 --json";
    let text = Process::start(&mut spraywire("net_ring0", args)).end(LIMIT).ok();
    let counters = &json(&text)["counters"];
    assert_eq!(counters["tx_packets"], 300, "{counters:#}");
    assert_eq!(counters["dropped"], serde_json::json!({"foreign_mac": 300}));
    // Besides it asks whether another has its address, and announces it; that comes back too, and is no answer.
    assert_eq!(counters["ignored"], counters["tx_control"], "{counters:#}");
    let ignored = counters["ignored"].as_u64().unwrap();
    assert!(ignored >= 2 && counters["rx_packets"] == 300 + ignored, "{counters:#}");
}

/// The port's own address, which replayed frames must carry to be taken.
fn mac_of_the_port(pcap: &Path) -> [u8; 6] {
    let port = format!("net_pcap0,rx_pcap={}", pcap.display());
    let text = Process::start(&mut spraywire(&port, "ud recv -t 1ms --ip 10.77.0.2")).end(LIMIT).ok();
    let mac = text.split_once(" mac ").unwrap().1.split_whitespace().next().unwrap();
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// What Linux' Soft-RoCE sent, replayed into a port.
#[test]
fn a_capture_of_another_implementation_is_replayed_into_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let pcaps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testbed/pcaps");
    for (file, ip) in [("ud-v4-mtu1024.pcap", "10.77.0.2"), ("ud-v6-mtu1024.pcap", "fd77::2")] {
        let golden = pcaps.join(file);
        let mac = mac_of_the_port(&golden);
        let replay = folder.path().join(file);
        let mut reader = PcapReader::new(File::open(&golden).unwrap()).unwrap();
        let mut writer = PcapWriter::with_header(File::create(&replay).unwrap(), reader.header()).unwrap();
        let mut lengths = Vec::new();
        let mut qpn = 0;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let mut frame = packet.data.to_vec();
            frame[..6].copy_from_slice(&mac);
            // Destination queue pair and length, by the offsets of the headers: Ethernet, IP, UDP, BTH; then DETH and ICRC.
            let udp = if ip.contains(':') { 14 + 40 } else { 14 + 20 };
            qpn = u32::from_be_bytes([0, frame[udp + 13], frame[udp + 14], frame[udp + 15]]);
            let pad = usize::from(frame[udp + 9] >> 4 & 3);
            let udp_len = usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
            lengths.push(udp_len - 8 - 12 - 8 - 4 - pad);
            writer.write_packet(&PcapPacket::new_owned(packet.timestamp, packet.orig_len, frame)).unwrap();
        }
        drop(writer);
        assert_eq!(lengths, [0, 1, 2, 3, 4, 64, 1000, 1023, 1024], "{file}");
        let port = format!("net_pcap0,rx_pcap={}", replay.display());
        let args = format!("ud recv --qpn {qpn} --ip {ip} -n 9 -t 30 --json");
        let report = json(&Process::start(&mut spraywire(&port, &args)).end(LIMIT).ok());
        let got: Vec<u64> =
            report["results"].as_array().unwrap().iter().map(|r| r["len"].as_u64().unwrap()).collect();
        assert_eq!(got, [0, 1, 2, 3, 4, 64, 1000, 1023, 1024], "{file}");
        let counters = &report["counters"];
        assert_eq!((&counters["rx_packets"], &counters["delivered"]), (&9.into(), &9.into()), "{counters:#}");
        // To another queue pair, as it came, and with a flipped bit: dropped, each for its reason.
        let args = format!("ud recv --qpn {:#x} --ip {ip} -n 1 -t 1 --json", qpn + 1);
        let report = json(&Process::start(&mut spraywire(&port, &args)).end(LIMIT).out);
        assert_eq!(report["counters"]["dropped"], serde_json::json!({"unknown_qpn": 9}), "{file}");
        let port = format!("net_pcap0,rx_pcap={}", golden.display());
        let report = json(&Process::start(&mut spraywire(&port, &args)).end(LIMIT).out);
        assert_eq!(report["counters"]["dropped"], serde_json::json!({"foreign_mac": 9}), "{file}");
    }
}
