//! Counts over all packets. Every packet is in exactly one of them.

use super::judge::{Icrc, Protocol, Roce, Seen};
use crate::capture::{LinkType, Record};
use crate::report::numbers::plural;
use crate::report::table::{Align, Table};
use roce_proto::wire::RejectReason;
use roce_proto::wire::opcode::Opcode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Packets of one opcode, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    packets: u64,
    /// Bytes on the wire, from the Ethernet header on.
    bytes: u64,
    icrc_ok: u64,
    icrc_bad: u64,
    cut: u64,
}

impl Tally {
    fn add(&mut self, bytes: u32, icrc: Icrc) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        match icrc {
            Icrc::Ok => self.icrc_ok += 1,
            Icrc::Bad { .. } => self.icrc_bad += 1,
            Icrc::Cut => self.cut += 1,
        }
    }

    fn cells(&self, name: String) -> [String; 6] {
        let n = |n: u64| n.to_string();
        [name, n(self.packets), n(self.bytes), n(self.icrc_ok), n(self.icrc_bad), n(self.cut)]
    }
}

/// What was seen in all files.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// All packets, of whatever kind.
    pub packets: u64,
    bytes: u64,
    roce: Tally,
    opcodes: BTreeMap<Opcode, Tally>,
    malformed: BTreeMap<RejectReason, u64>,
    rejected: BTreeMap<RejectReason, u64>,
    other: BTreeMap<Protocol, u64>,
    links: BTreeMap<LinkType, u64>,
    /// Cut before it could be told what they are.
    cut: u64,
}

impl Summary {
    /// Counts one packet.
    pub fn add(&mut self, record: &Record<'_>, seen: &Seen<'_>) {
        self.packets += 1;
        self.bytes += u64::from(record.orig_len);
        match seen {
            Seen::Roce(Roce { packet, icrc, .. }) => {
                self.roce.add(record.orig_len, *icrc);
                self.opcodes.entry(packet.bth().opcode).or_default().add(record.orig_len, *icrc);
            }
            Seen::Malformed(reject) => *self.malformed.entry(reject.reason()).or_default() += 1,
            Seen::Rejected(reject) => *self.rejected.entry(reject.reason()).or_default() += 1,
            Seen::Other(protocol) => *self.other.entry(*protocol).or_default() += 1,
            Seen::UnknownLink(link) => *self.links.entry(*link).or_default() += 1,
            Seen::Cut => self.cut += 1,
        }
    }

    /// Whether any RoCEv2 packet is wrong.
    pub fn any_wrong(&self) -> bool {
        self.roce.icrc_bad > 0 || !self.malformed.is_empty()
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        let opcodes: Vec<Value> = self
            .opcodes
            .iter()
            .map(|(opcode, t)| {
                json!({
                    "opcode": opcode.0,
                    "name": opcode.to_string(),
                    "packets": t.packets,
                    "bytes": t.bytes,
                    "icrc_ok": t.icrc_ok,
                    "icrc_bad": t.icrc_bad,
                    "cut": t.cut,
                })
            })
            .collect();
        json!({
            "packets": self.packets,
            "bytes": self.bytes,
            "roce": {
                "packets": self.roce.packets,
                "bytes": self.roce.bytes,
                "icrc_ok": self.roce.icrc_ok,
                "icrc_bad": self.roce.icrc_bad,
                "cut": self.roce.cut,
            },
            "opcodes": opcodes,
            "malformed": named(&self.malformed, |r| r.name().to_owned()),
            "other": named(&self.other, Protocol::to_string),
            "rejected": named(&self.rejected, |r| r.name().to_owned()),
            "cut": self.cut,
            "unknown_link": named(&self.links, |l| l.0.to_string()),
        })
    }
}

/// A map with text for keys.
fn named<K>(map: &BTreeMap<K, u64>, name: impl Fn(&K) -> String) -> BTreeMap<String, u64> {
    map.iter().map(|(key, count)| (name(key), *count)).collect()
}

/// `arp 2, tcp 14`, the most frequent first; a long tail is summed up.
fn list<K: fmt::Display>(map: &BTreeMap<K, u64>) -> String {
    const SHOWN: usize = 12;
    let mut entries: Vec<(&K, u64)> = map.iter().map(|(k, n)| (k, *n)).collect();
    entries.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let mut parts: Vec<String> = entries.iter().take(SHOWN).map(|(k, n)| format!("{k} {n}")).collect();
    let rest: u64 = entries.iter().skip(SHOWN).map(|(_, n)| n).sum();
    if rest > 0 {
        parts.push(format!("others {rest}"));
    }
    parts.join(", ")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.opcodes.is_empty() {
            write!(f, "{}, none of them a whole RoCEv2 packet", plural(self.packets, "packet"))?;
        } else {
            let right = Align::Right;
            let mut table = Table::new([
                ("opcode", Align::Left),
                ("packets", right),
                ("bytes", right),
                ("icrc ok", right),
                ("bad", right),
                ("cut", right),
            ]);
            for (opcode, tally) in &self.opcodes {
                table.row(tally.cells(opcode.to_string()));
            }
            if self.opcodes.len() > 1 {
                table.row(self.roce.cells("all".to_owned()));
            }
            write!(f, "{table}")?;
        }
        let reasons = |map: &BTreeMap<RejectReason, u64>| list(&named(map, |r| r.name().to_owned()));
        if !self.malformed.is_empty() {
            write!(f, "\nMALFORMED RoCEv2: {}", reasons(&self.malformed))?;
        }
        if !self.other.is_empty() {
            write!(f, "\nnot RoCEv2: {}", list(&self.other))?;
        }
        if !self.rejected.is_empty() {
            write!(f, "\nnot RoCEv2 and not sound: {}", reasons(&self.rejected))?;
        }
        if self.cut > 0 {
            write!(f, "\ncut before it could be told what it is: {}", plural(self.cut, "packet"))?;
        }
        if !self.links.is_empty() {
            write!(f, "\nlink types that are not understood: {}", list(&self.links))?;
        }
        Ok(())
    }
}
