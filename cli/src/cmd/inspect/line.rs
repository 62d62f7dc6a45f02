//! One packet as one line of text.

use super::judge::{Icrc, Roce, Seen};
use crate::capture::Record;
use roce_proto::wire::aeth::{AckKind, Aeth};
use roce_proto::wire::bth;
use roce_proto::wire::ext::Extensions;
use roce_proto::wire::frame::Packet;
use std::fmt;
use std::net::IpAddr;

/// A packet to be printed.
pub(super) struct Line<'a> {
    pub number: u64,
    /// Time of the file's first packet, in nanoseconds.
    pub start: u64,
    pub utc: bool,
    pub verbose: bool,
    pub record: &'a Record<'a>,
    pub seen: &'a Seen<'a>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} ", self.number)?;
        match self.record.time {
            Some(t) if self.utc => write!(f, "{} ", Utc(t))?,
            Some(t) => {
                let nanos = i128::from(t) - i128::from(self.start);
                let sign = if nanos < 0 { "-" } else { "" };
                let nanos = nanos.unsigned_abs();
                let text = format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
                write!(f, "{text:>13} ")?;
            }
            None => write!(f, "{:>13} ", "-")?,
        }
        match self.seen {
            Seen::Roce(roce) => self.roce(f, roce),
            Seen::Malformed(reject) => write!(f, "MALFORMED RoCEv2: {reject}"),
            Seen::Rejected(reject) => write!(f, "not RoCEv2: {reject}"),
            Seen::Other(protocol) => write!(f, "not RoCEv2: {protocol}, {} bytes", self.record.orig_len),
            Seen::Cut => write!(f, "cut: {} of {} bytes", self.record.data.len(), self.record.orig_len),
            Seen::UnknownLink(link) => write!(f, "{link} is not understood"),
        }
    }
}

impl Line<'_> {
    fn roce(&self, f: &mut fmt::Formatter<'_>, roce: &Roce<'_>) -> fmt::Result {
        let packet = &roce.packet;
        if self.verbose && roce.has_macs {
            write!(f, "{} > {} ", packet.link.src(), packet.link.dst())?;
        }
        for (i, tag) in packet.link.vlans().iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "vlan " } else { "." }, tag.vid())?;
        }
        if packet.link.vlans().depth() > 0 {
            f.write_str(" ")?;
        }
        match packet.ip.src() {
            IpAddr::V4(ip) => write!(f, "{ip}:{}", packet.src_port())?,
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}", packet.src_port())?,
        }
        write!(f, " > {} ", packet.ip.dst())?;
        if self.verbose {
            network(f, packet)?;
        }
        transport(f, &packet.bth())?;
        match &roce.extensions {
            Some(extensions) => extension_headers(f, extensions)?,
            None => f.write_str("(headers cut) ")?,
        }
        write!(f, "len {} pad {} ", roce.payload_len, packet.bth().pad)?;
        if roce.icrc != Icrc::Cut && packet.padding().iter().any(|&b| b != 0) {
            f.write_str("(not zero) ")?;
        }
        match roce.icrc {
            Icrc::Ok if self.verbose => write!(f, "icrc {:#010x} ok", packet.icrc()),
            Icrc::Ok => f.write_str("icrc ok"),
            Icrc::Bad { expected } => {
                write!(f, "icrc BAD: {:#010x}, expected {expected:#010x}", packet.icrc())
            }
            Icrc::Cut => {
                write!(f, "cut: {} of {} bytes", self.record.data.len(), self.record.orig_len)
            }
        }
    }
}

/// What the IP and UDP headers have beside addresses and ports.
fn network(f: &mut fmt::Formatter<'_>, packet: &Packet<'_>) -> fmt::Result {
    let ip = &packet.ip;
    write!(f, "dscp {} ecn {} ttl {} ", ip.dscp(), ip.ecn(), ip.hop_limit())?;
    if let Some(ident) = ip.ident() {
        write!(f, "id {ident:#06x} ")?;
    }
    if let Some(label) = ip.flow_label() {
        write!(f, "flow {label:#07x} ")?;
    }
    match packet.udp_checksum() {
        0 => Ok(()),
        sum => write!(f, "udp-sum {sum:#06x} "),
    }
}

fn transport(f: &mut fmt::Formatter<'_>, bth: &bth::Header) -> fmt::Result {
    write!(f, "{} qp {} psn {} pkey {} ", bth.opcode, bth.dst_qpn, bth.psn, bth.pkey)?;
    let flags = [
        (bth.solicited, "solicited"),
        (bth.migrated, "migrated"),
        (bth.ack_request, "ack-request"),
        (bth.fecn, "fecn"),
        (bth.becn, "becn"),
    ];
    for (_, name) in flags.iter().filter(|(set, _)| *set) {
        write!(f, "{name} ")?;
    }
    Ok(())
}

fn extension_headers(f: &mut fmt::Formatter<'_>, e: &Extensions) -> fmt::Result {
    if let Some(h) = e.rdeth {
        write!(f, "rdeth(context {:#08x}) ", h.context)?;
    }
    if let Some(h) = e.deth {
        write!(f, "deth(qkey {} src-qp {}) ", h.qkey, h.src_qpn)?;
    }
    if let Some(h) = e.xrceth {
        write!(f, "xrceth(srq {}) ", h.srq)?;
    }
    if let Some(h) = e.feth {
        write!(f, "feth(placement {} selectivity {}) ", h.placement, h.selectivity)?;
    }
    if let Some(h) = e.reth {
        write!(f, "reth(va {:#018x} rkey {:#010x} len {}) ", h.address, h.rkey, h.len)?;
    }
    if let Some(h) = e.atomic {
        write!(f, "atomic(va {:#018x} rkey {:#010x} ", h.address, h.rkey)?;
        write!(f, "swap/add {:#x} compare {:#x}) ", h.swap_or_add, h.compare)?;
    }
    if let Some(h) = e.aeth {
        write!(f, "aeth({} msn {}) ", Syndrome(h), h.msn)?;
    }
    if let Some(h) = e.atomic_ack {
        write!(f, "atomic-ack({:#x}) ", h.original)?;
    }
    if let Some(h) = e.immdt {
        write!(f, "imm {:#010x} ", h.0)?;
    }
    if let Some(h) = e.ieth {
        write!(f, "ieth(rkey {:#010x}) ", h.rkey)?;
    }
    Ok(())
}

/// What an acknowledgement says, in words.
pub(super) struct Syndrome(pub Aeth);

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            AckKind::Ack { credits: 31 } => f.write_str("ack"),
            AckKind::Ack { credits } => write!(f, "ack credits {credits}"),
            AckKind::RnrNak { timer } => write!(f, "rnr-nak timer {timer}"),
            AckKind::Nak { code: 0 } => f.write_str("nak sequence-error"),
            AckKind::Nak { code: 1 } => f.write_str("nak invalid-request"),
            AckKind::Nak { code: 2 } => f.write_str("nak remote-access-error"),
            AckKind::Nak { code: 3 } => f.write_str("nak remote-operation-error"),
            AckKind::Nak { code: 4 } => f.write_str("nak invalid-rd-request"),
            AckKind::Nak { code } => write!(f, "nak {code}"),
            AckKind::Reserved => write!(f, "syndrome {:#04x}", self.0.syndrome),
        }
    }
}

/// Nanoseconds since 1970 as date and time in UTC.
struct Utc(u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{nanos:09}Z")
    }
}

/// Year, month and day of a number of days since 1970-01-01, by the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut rest = days;
    let mut year = 1970;
    // 64 bits of nanoseconds end in the year 2554.
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_399, "2000-02-28T23:59:59.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
        ] {
            assert_eq!(Utc(seconds * 1_000_000_000 + 7).to_string(), text);
        }
        assert!(Utc(u64::MAX).to_string().starts_with("2554-07-21T23:34:33"));
    }

    #[test]
    fn syndromes() {
        let text = |syndrome| Syndrome(Aeth { syndrome, msn: 1 }).to_string();
        assert_eq!(text(0x1f), "ack");
        assert_eq!(text(0x03), "ack credits 3");
        assert_eq!(text(0x60), "nak sequence-error");
        assert_eq!(text(0x7f), "nak 31");
        assert_eq!(text(0x2e), "rnr-nak timer 14");
        assert_eq!(text(0x40), "syndrome 0x40");
    }
}
