//! Packets, what became of them, and events, in the words of a trace.

use roce_proto::transport::{Drop, Event, Received};
use roce_proto::wire::shim::{Common, Data, Kind, Parity};

/// A packet in some words.
pub(crate) fn packet_line(bytes: &[u8]) -> String {
    use roce_proto::wire::shim::{Feedback, RejectMessage};
    let Ok(common) = Common::parse(bytes) else { return "malformed".to_owned() };
    match common.kind {
        Kind::Data => match Data::parse(bytes) {
            Ok((d, segment)) => {
                let flag = |set, text| if set { text } else { "" };
                let (again, void) = (flag(d.again, " again"), flag(d.void, " void"));
                let (granted, ask) = (flag(d.granted, " granted"), flag(d.ask, " ask"));
                format!(
                    "data seq {} path {}/{} message {} segment {} of {} bytes, channel {}/{}/{} len {}{again}{void}{granted}{ask}",
                    d.seq,
                    d.path,
                    d.path_seq,
                    d.message,
                    d.segment,
                    d.length,
                    d.communicator,
                    d.tag,
                    d.ordinal,
                    segment.len()
                )
            }
            Err(e) => e.to_string(),
        },
        Kind::Feedback => match Feedback::parse(bytes) {
            Ok(f) => {
                let h = f.head;
                let words: Vec<String> = f.words().map(|w| format!("{w:08x}")).collect();
                format!(
                    "feedback {} next {} grant {} duplicates {} announced {} skipped {}/{} repaired {} {}",
                    h.number,
                    h.next,
                    h.grant,
                    h.duplicates,
                    h.announced,
                    h.skipped,
                    h.gaps,
                    h.repaired,
                    words.join(" ")
                )
            }
            Err(e) => e.to_string(),
        },
        Kind::Parity => match Parity::parse(bytes) {
            Ok((p, shard)) => format!(
                "parity {}/{} of {} from seq {} every {} on path {}/{} message {} segment {}, {} bytes",
                p.index,
                p.shards,
                p.segments,
                p.first.seq,
                p.stride,
                p.first.path,
                p.first.path_seq,
                p.first.message,
                p.first.segment,
                shard.len()
            ),
            Err(e) => e.to_string(),
        },
        Kind::Reject => match RejectMessage::parse(bytes) {
            Ok(r) => format!("reject message {} seq {} {:?}", r.message, r.seq, r.reason),
            Err(e) => e.to_string(),
        },
        kind => format!("{} session {:#x}", kind.name(), common.session),
    }
}

pub(crate) fn received_line(received: &Received) -> String {
    match received {
        Received::Taken(_) => "taken".to_owned(),
        Received::Place(p) => format!("placed {:?}", p.to),
        Received::Dropped(Drop::Malformed(e)) => format!("malformed: {e}"),
        Received::Dropped(why) => format!("dropped: {why}"),
    }
}

/// An event in some words.
pub(crate) fn event_line(event: &Event) -> String {
    match event {
        Event::Up { peer, accepted, .. } => {
            format!("session up with {peer}{}", if *accepted { ", accepted" } else { "" })
        }
        Event::Down { peer, reason, .. } => format!("session down with {peer}: {reason}"),
    }
}
