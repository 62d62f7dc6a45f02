//! Asking tshark, with the dissector, what it sees.

use crate::ends::run;
use std::collections::BTreeMap;
use std::path::Path;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wireshark/spraywire.lua");

/// What is told of a packet: the values of each field, all as decimal numbers or bytes in hexadecimal.
pub type Told = BTreeMap<String, Vec<String>>;

/// Every field of the dissector that our parser can vouch for.
const FIELDS: [&str; 66] = [
    "version",
    "type",
    "path",
    "count",
    "session",
    "path_seq",
    "seq",
    "time",
    "data.ask",
    "data.again",
    "data.void",
    "data.sync",
    "data.granted",
    "data.more",
    "data.class",
    "data.priority",
    "message",
    "data.segment",
    "communicator",
    "tag",
    "data.ordinal",
    "data.step",
    "data.length",
    "data.stage",
    "data.tolerance",
    "payload",
    "feedback.cut",
    "feedback.status",
    "number",
    "feedback.next",
    "grant",
    "feedback.duplicates",
    "feedback.skipped",
    "feedback.gaps",
    "feedback.repaired",
    "feedback.share",
    "feedback.announced",
    "feedback.report.path",
    "feedback.report.late",
    "feedback.report.ce",
    "feedback.report.highest",
    "feedback.report.time",
    "feedback.report.delay",
    "feedback.word",
    "feedback.missing",
    "parity.codec",
    "parity.version",
    "parity.segments",
    "parity.shards",
    "parity.index",
    "parity.stride",
    "announce.through",
    "offer.id",
    "offer.epoch",
    "offer.first",
    "offer.segment",
    "offer.window",
    "offer.eager",
    "offer.paths",
    "offer.codecs",
    "offer.messages",
    "offer.rail.ip",
    "offer.rail.qpn",
    "cookie",
    "refuse.reason",
    "close.reason",
];

pub fn tshark(pcap: &Path, filter: &str, fields: &[String]) -> Vec<Vec<String>> {
    let pcap = pcap.to_str().unwrap();
    let script = &format!("lua_script:{SCRIPT}");
    let mut args = vec!["-n", "-X", script, "-r", pcap, "-Y", filter, "-T", "fields"];
    args.extend(["-E", "occurrence=a", "-E", "aggregator=;", "-E", "separator=|"]);
    args.extend(fields.iter().flat_map(|field| ["-e", field.as_str()]));
    let output = run("tshark", &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect()
}

/// Numbers in decimal, truth as 1 and 0, bytes without colons.
fn plain(value: &str) -> String {
    match value {
        "True" => "1".to_owned(),
        "False" => "0".to_owned(),
        _ => match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap().to_string(),
            None => value.replace(':', ""),
        },
    }
}

/// What the dissector says of each packet of ours, in order.
pub fn theirs(pcap: &Path) -> Vec<Told> {
    let mut names: Vec<String> = FIELDS.iter().map(|name| format!("csaud.{name}")).collect();
    names.extend(
        ["reject.reason", "probe.asks", "probe.forgot", "probe.urgent", "accept.clock"]
            .map(|name| format!("csaud.{name}")),
    );
    let told = |line: Vec<String>| {
        let cells = names.iter().map(|name| name.trim_start_matches("csaud.").to_owned()).zip(line);
        let some = cells.filter(|(_, cell)| !cell.is_empty());
        some.map(|(name, cell)| (name, cell.split(';').map(plain).collect())).collect()
    };
    tshark(pcap, "csaud", &names).into_iter().map(told).collect()
}
