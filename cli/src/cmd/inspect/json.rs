//! One packet as JSON.

use super::judge::{Icrc, Roce, Seen};
use super::line::Syndrome;
use crate::capture::Record;
use roce_proto::wire::ext::Extensions;
use serde_json::{Map, Value, json};

/// The packet `number` (from 1) of the file with index `file` (from 0).
pub(super) fn packet(file: usize, number: u64, record: &Record<'_>, seen: &Seen<'_>) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    set("file", json!(file));
    set("number", json!(number));
    set("time_ns", json!(record.time));
    set("bytes", json!(record.orig_len));
    set("captured", json!(record.data.len()));
    match seen {
        Seen::Roce(packet) => {
            set("kind", json!("roce"));
            if let Value::Object(more) = roce(packet) {
                fields.extend(more);
            }
        }
        Seen::Malformed(reject) => {
            set("kind", json!("malformed"));
            set("reason", json!(reject.reason().name()));
            set("detail", json!(reject.to_string()));
        }
        Seen::Rejected(reject) => {
            set("kind", json!("rejected"));
            set("reason", json!(reject.reason().name()));
            set("detail", json!(reject.to_string()));
        }
        Seen::Other(protocol) => {
            set("kind", json!("other"));
            set("protocol", json!(protocol.to_string()));
        }
        Seen::Cut => set("kind", json!("cut")),
        Seen::UnknownLink(link) => {
            set("kind", json!("unknown_link"));
            set("link", json!(link.0));
        }
    }
    Value::Object(fields)
}

fn roce(roce: &Roce<'_>) -> Value {
    let (packet, bth) = (&roce.packet, roce.packet.bth());
    let vlans: Vec<Value> = packet
        .link
        .vlans()
        .iter()
        .map(|t| json!({"tpid": t.tpid().0, "pcp": t.pcp(), "dei": t.dei(), "vid": t.vid()}))
        .collect();
    let mac = |mac: roce_proto::wire::ethernet::MacAddr| roce.has_macs.then(|| mac.to_string());
    let icrc = match roce.icrc {
        Icrc::Ok => json!({"status": "ok", "received": packet.icrc()}),
        Icrc::Bad { expected } => json!({"status": "bad", "received": packet.icrc(), "expected": expected}),
        Icrc::Cut => json!({"status": "cut"}),
    };
    json!({
        "src_mac": mac(packet.link.src()),
        "dst_mac": mac(packet.link.dst()),
        "vlans": vlans,
        "src": packet.ip.src().to_string(),
        "dst": packet.ip.dst().to_string(),
        "src_port": packet.src_port(),
        "dscp": packet.ip.dscp(),
        "ecn": packet.ip.ecn(),
        "hop_limit": packet.ip.hop_limit(),
        "ident": packet.ip.ident(),
        "flow_label": packet.ip.flow_label(),
        "udp_checksum": packet.udp_checksum(),
        "opcode": bth.opcode.0,
        "name": bth.opcode.to_string(),
        "dst_qpn": bth.dst_qpn.get(),
        "psn": bth.psn.get(),
        "pkey": bth.pkey.0,
        "pad": bth.pad,
        "solicited": bth.solicited,
        "migrated": bth.migrated,
        "ack_request": bth.ack_request,
        "fecn": bth.fecn,
        "becn": bth.becn,
        "extensions": roce.extensions.as_ref().map(extensions),
        "payload_len": roce.payload_len,
        "icrc": icrc,
    })
}

/// The extension headers that there are. Addresses and 64-bit operands are text: not every reader of JSON has 64 bits.
fn extensions(e: &Extensions) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    let hex = |v: u64| format!("{v:#018x}");
    set("rdeth", e.rdeth.map(|h| json!({"context": h.context})));
    set("deth", e.deth.map(|h| json!({"qkey": h.qkey.0, "src_qpn": h.src_qpn.get()})));
    set("xrceth", e.xrceth.map(|h| json!({"srq": h.srq.get()})));
    set("feth", e.feth.map(|h| json!({"placement": h.placement, "selectivity": h.selectivity})));
    set("reth", e.reth.map(|h| json!({"address": hex(h.address), "rkey": h.rkey, "len": h.len})));
    set(
        "atomiceth",
        e.atomic.map(|h| {
            json!({
                "address": hex(h.address),
                "rkey": h.rkey,
                "swap_or_add": hex(h.swap_or_add),
                "compare": hex(h.compare),
            })
        }),
    );
    set(
        "aeth",
        e.aeth.map(|h| json!({"syndrome": h.syndrome, "meaning": Syndrome(h).to_string(), "msn": h.msn})),
    );
    set("atomicacketh", e.atomic_ack.map(|h| json!({"original": hex(h.original)})));
    set("immdt", e.immdt.map(|h| json!(h.0)));
    set("ieth", e.ieth.map(|h| json!({"rkey": h.rkey})));
    Value::Object(fields)
}
