//! The Wireshark dissector of the reliable service's headers: it says of each packet what our own parser says.

mod tshark;

use crate::ends::{End, json, next_socket, results, shared};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use roce_proto::types::{PKey, Psn, QKey, Qpn};
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::{self, Frame};
use roce_proto::wire::shim::{
    Accept, Announce, AnnounceEntry, Close, CloseReason, Common, Cookie, CookieReply, Data, Feedback,
    FeedbackHead, Init, Kind, Offer, Parity, PathReport, Probe, Rails, Refuse, RefuseReason, RejectMessage,
    RejectReason, Reset, Semantics, Seq, Ticks, immediate,
};
use roce_proto::wire::ud::{IpRoute, Route, Send, Template};
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tshark::{Told, theirs, tshark};

#[derive(Default)]
struct Telling(Told);

impl Telling {
    fn add(&mut self, name: &str, value: impl ToString) {
        self.0.entry(name.to_owned()).or_default().push(value.to_string());
    }

    fn flag(&mut self, name: &str, value: bool) {
        self.add(name, u8::from(value));
    }

    fn offer(&mut self, o: &Offer) {
        self.add("offer.id", o.id);
        self.add("offer.epoch", o.epoch);
        self.add("offer.first", o.first.0);
        self.add("offer.segment", o.segment);
        self.add("offer.window", o.window);
        self.add("grant", o.grant);
        self.add("offer.eager", o.eager);
        self.add("time", o.time.0);
        self.add("offer.paths", o.paths);
        self.add("offer.codecs", o.codecs);
        self.add("offer.messages", o.messages);
    }

    fn data(&mut self, payload: &[u8]) {
        let (d, segment) = Data::parse(payload).unwrap();
        self.segment(&d, segment);
    }

    fn segment(&mut self, d: &Data, segment: &[u8]) {
        self.add("path_seq", d.path_seq.0);
        self.add("seq", d.seq.0);
        self.add("time", d.time.0);
        self.flag("data.ask", d.ask);
        self.flag("data.again", d.again);
        self.flag("data.void", d.void);
        self.flag("data.granted", d.granted);
        self.flag("data.more", d.more);
        self.flag("data.sync", d.semantics.sync);
        self.add("data.class", d.semantics.class);
        self.add("data.priority", d.semantics.priority);
        self.add("message", d.message.0);
        self.add("data.segment", d.segment);
        self.add("communicator", d.communicator);
        self.add("tag", d.tag);
        self.add("data.ordinal", d.ordinal.0);
        self.add("data.step", d.semantics.step);
        self.add("data.length", d.length);
        self.add("data.stage", d.semantics.stage);
        self.add("data.tolerance", d.semantics.tolerance);
        if !segment.is_empty() {
            self.add("payload", hex(segment));
        }
    }

    fn feedback(&mut self, payload: &[u8]) {
        let f = Feedback::parse(payload).unwrap();
        self.flag("feedback.cut", f.head.cut);
        self.flag("feedback.status", f.head.status);
        self.add("number", f.head.number.0);
        self.add("feedback.next", f.head.next.0);
        self.add("grant", f.head.grant.0);
        self.add("feedback.duplicates", f.head.duplicates);
        self.add("feedback.announced", f.head.announced.0);
        self.add("feedback.skipped", f.head.skipped);
        self.add("feedback.gaps", f.head.gaps);
        self.add("feedback.repaired", f.head.repaired);
        self.add("feedback.share", f.head.share);
        for r in f.paths() {
            self.add("feedback.report.path", r.path);
            self.flag("feedback.report.late", r.late);
            self.add("feedback.report.ce", r.ce);
            self.add("feedback.report.highest", r.highest.0);
            self.add("feedback.report.time", r.time.0);
            self.add("feedback.report.delay", r.delay.0);
        }
        let words: Vec<u32> = f.words().collect();
        words.iter().for_each(|word| self.add("feedback.word", word));
        let arrived = |bit: u32| words[bit as usize / 32] >> (bit % 32) & 1 == 1;
        let bits = words.len() as u32 * 32;
        let last = (0..bits).rev().find(|&bit| arrived(bit)).unwrap_or(0);
        for bit in (0..last).filter(|&bit| !arrived(bit)) {
            self.add("feedback.missing", f.base().add(bit).0);
        }
    }

    fn control(&mut self, kind: Kind, payload: &[u8]) {
        match kind {
            Kind::Data => self.data(payload),
            Kind::Parity => {
                let (p, shard) = Parity::parse(payload).unwrap();
                self.segment(&p.first, shard);
                self.add("parity.codec", p.codec);
                self.add("parity.version", p.version);
                self.add("parity.segments", p.segments);
                self.add("parity.shards", p.shards);
                self.add("parity.index", p.index);
                self.add("parity.stride", p.stride);
            }
            Kind::Feedback => self.feedback(payload),
            Kind::Probe => {
                let p = Probe::parse(payload).unwrap();
                self.add("path_seq", p.path_seq.0);
                self.add("seq", p.seq.0);
                self.add("time", p.time.0);
                self.flag("probe.asks", p.asks);
                self.flag("probe.forgot", p.forgot);
                self.flag("probe.urgent", p.urgent);
            }
            Kind::Announce => {
                let a = Announce::parse(payload).unwrap();
                self.add("number", a.number.0);
                for e in a.entries() {
                    self.add("communicator", e.communicator);
                    self.add("tag", e.tag);
                    self.add("announce.through", e.through.0);
                }
            }
            Kind::Init => {
                let init = Init::parse(payload).unwrap();
                self.offer(&init.offer);
                self.add("cookie", hex(&init.cookie.0));
                self.rails(&init.rails);
            }
            Kind::Cookie => {
                let c = CookieReply::parse(payload).unwrap();
                self.add("cookie", hex(&c.cookie.0));
                self.add("time", c.time.0);
            }
            Kind::Accept => {
                let accept = Accept::parse(payload).unwrap();
                self.offer(&accept.offer);
                self.add("accept.clock", accept.clock.0);
                self.rails(&accept.rails);
            }
            Kind::Refuse => {
                let r = Refuse::parse(payload).unwrap();
                self.add("refuse.reason", r.reason as u8);
                self.add("time", r.time.0);
            }
            Kind::Reset => {}
            Kind::Close => self.add("close.reason", Close::parse(payload).unwrap().reason as u8),
            Kind::Reject => {
                let r = RejectMessage::parse(payload).unwrap();
                self.add("message", r.message.0);
                self.add("seq", r.seq.0);
                self.add("reject.reason", r.reason as u32);
            }
        }
    }

    fn rails(&mut self, rails: &Rails) {
        for (ip, qpn) in rails.iter() {
            let ip = if ip.is_ipv4() { format!("::ffff:{ip}") } else { ip.to_string() };
            self.add("offer.rail.ip", ip.replace(':', ""));
            self.add("offer.rail.qpn", qpn.get());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What our own parser says of each packet of ours, in order.
fn ours(pcap: &Path) -> Vec<(Kind, Told)> {
    let mut reader = PcapReader::new(File::open(pcap).unwrap()).unwrap();
    let mut all = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let Ok(Frame::Roce(roce)) = frame::parse(&packet.data) else { continue };
        let ud = roce.ud().unwrap();
        // The tests' questions about raw UD have another Q_Key.
        let Ok(common) = Common::parse(ud.payload) else { continue };
        if ud.deth.qkey != QKEY || ud.imm != immediate(common.kind) {
            continue;
        }
        let mut telling = Telling::default();
        let mut left = Some(ud.payload);
        while let Some(payload) = left {
            left = Data::following(payload);
            let common = Common::parse(payload).unwrap();
            telling.add("version", 1);
            telling.add("type", common.kind as u8);
            telling.add("path", common.path);
            telling.add("count", common.count);
            telling.add("session", common.session);
            telling.control(common.kind, payload);
        }
        all.push((common.kind, telling.0));
    }
    all
}

const QKEY: QKey = QKey(0x1111_1111);

fn assert_same(pcap: &Path) -> Vec<(Kind, Told)> {
    let (ours, theirs) = (ours(pcap), theirs(pcap));
    assert_eq!(ours.len(), theirs.len(), "packets of ours in {}", pcap.display());
    for (i, ((kind, ours), theirs)) in ours.iter().zip(&theirs).enumerate() {
        for name in ours.keys().chain(theirs.keys()) {
            assert_eq!(ours.get(name), theirs.get(name), "{name} of packet {i}, {}", kind.name());
        }
    }
    assert!(
        tshark(pcap, "_ws.malformed || _ws.lua.error || csaud.wrong", &["frame.number".into()]).is_empty()
    );
    ours
}

/// Real traffic, with losses on the way.
#[test]
fn the_dissector_reads_a_transfer_as_we_do() {
    let _turn = shared();
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().join("client.pcap");
    let socket = next_socket();
    let server = End::server(socket, "default bw --paths 2");
    let args =
        format!("default bw 10.0.0.1 --json --peers 3 --paths 2 -n 12 -s 200000 --pcap {}", pcap.display());
    let client = json(&End::client(socket, &args).ok());
    server.ok();
    assert_eq!(results(&client)[0]["client_to_server"]["received"], 12);
    let packets = assert_same(&pcap);
    let count = |kind| packets.iter().filter(|(k, _)| *k == kind).count();
    for (kind, least) in [
        (Kind::Init, 6),
        (Kind::Cookie, 3),
        (Kind::Accept, 3),
        (Kind::Announce, 3),
        // 50 segments each, and what the sides say to each other.
        (Kind::Data, 600),
        (Kind::Feedback, 3),
        (Kind::Close, 3),
    ] {
        assert!(count(kind) >= least, "{} of {}", count(kind), kind.name());
    }
    // Each peer got some of twelve random messages: one is left out in three runs of a hundred, two never.
    let long = |told: &Told| told.get("data.length").is_some_and(|l| l[0] == "200000");
    let mut sessions: Vec<_> =
        packets.iter().filter(|(_, t)| long(t)).map(|(_, t)| &t["session"][0]).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert!(sessions.len() >= 2, "{sessions:?}");
    let paths: Vec<_> = packets.iter().filter(|(_, t)| long(t)).map(|(_, t)| &t["path"][0]).collect();
    assert!(paths.iter().any(|p| *p == "0") && paths.iter().any(|p| *p == "1"));
}

fn an_offer() -> Offer {
    Offer {
        id: 0x8102_0304_0506_0708,
        epoch: u64::MAX - 1,
        first: Seq(u32::MAX),
        segment: 4_008,
        window: 65_536,
        grant: 0x8000_0001,
        eager: 65_536,
        time: Ticks(0xfedc_ba98),
        paths: 32,
        codecs: 0xa5,
        messages: 0xfffe,
    }
}

/// Three segments in a packet, of which the second is empty.
fn a_bundle(last: &Data) -> Vec<u8> {
    let whole = |length| Data { segment: 0, length, more: true, ..*last };
    [&whole(5).to_bytes()[..], b"first", &whole(0).to_bytes(), &last.to_bytes(), b"last"].concat()
}

/// A feedback with two path reports and two words of bitmap.
fn with_reports(head: &FeedbackHead) -> Vec<u8> {
    let report = PathReport {
        path: 3,
        late: true,
        ce: 0xfff1,
        highest: Seq(u32::MAX),
        time: Ticks(0x9000_0000),
        delay: Ticks(7),
    };
    let mut feedback = head.to_bytes().to_vec();
    feedback.extend(report.to_bytes());
    feedback.extend(PathReport { path: 30, late: false, ..report }.to_bytes());
    // Bits before `next` are ones; the second word is beyond the wrap.
    feedback.extend(0xa01f_ffffu32.to_be_bytes());
    feedback.extend(0x0000_0105u32.to_be_bytes());
    feedback
}

/// Each type with values that use every bit, and what is not ours between them.
fn made() -> Vec<(Option<u32>, Vec<u8>)> {
    let offer = an_offer();
    let session = 0xf1f2_f3f4_f5f6_f7f8;
    let semantics =
        Semantics { step: 0x8765_4321, class: 15, priority: 9, stage: 200, tolerance: 255, sync: true };
    let mut data = Data {
        session,
        path: 31,
        path_seq: Seq(u32::MAX),
        seq: Seq(0x8000_0000),
        time: Ticks(1),
        message: Seq(2),
        segment: 0xffff_fff0,
        communicator: 0xdead_beef,
        tag: u64::MAX,
        ordinal: Seq(3),
        length: Data::MAX_LENGTH,
        semantics,
        ask: true,
        again: true,
        void: false,
        granted: false,
        more: false,
    };
    let mut all = vec![(None, [&data.to_bytes()[..], &[0x5a; 33]].concat())];
    (data.ask, data.again, data.void, data.granted) = (false, false, true, true);
    all.push((None, data.to_bytes().to_vec()));
    // Each flag by itself.
    for flag in 0..4 {
        (data.ask, data.again, data.void, data.granted) = (flag == 0, flag == 1, flag == 2, flag == 3);
        data.semantics.sync = false;
        all.push((None, data.to_bytes().to_vec()));
    }
    let (codec, version, segments, shards, index, stride) = (0x81, 0x92, 64, 16, 0xf5, 255);
    let parity =
        Parity { first: Data { void: false, ..data }, codec, version, segments, shards, index, stride };
    all.push((None, [&parity.to_bytes()[..], &[0xa5; 40]].concat()));
    (data.granted, data.semantics.sync) = (false, true);
    all.push((None, data.to_bytes().to_vec()));
    all.push((None, a_bundle(&data)));
    let mut control = |kind: Kind, bytes: &[u8]| all.push((immediate(kind), bytes.to_vec()));
    let head = FeedbackHead {
        session,
        cut: true,
        status: false,
        paths: 2,
        words: 2,
        number: Seq(9),
        next: Seq(u32::MAX - 10),
        grant: Seq(u32::MAX),
        duplicates: 0x8000_0003,
        announced: Seq(4),
        skipped: 0x8000_0001,
        gaps: 0xfffe,
        repaired: 0x8003,
        share: 0x8000_0005,
    };
    let feedback = with_reports(&head);
    control(Kind::Feedback, &feedback);
    let asks = FeedbackHead { cut: false, status: true, paths: 0, words: 0, ..head };
    control(Kind::Feedback, &asks.to_bytes());
    for flag in 0..3 {
        let (asks, forgot, urgent) = (flag == 0, flag == 1, flag == 2);
        let (seq, time) = (Seq(u32::MAX), Ticks(u32::MAX));
        let probe = Probe { session, path: 5, path_seq: Seq(6), seq, time, asks, forgot, urgent };
        control(Kind::Probe, &probe.to_bytes());
    }
    let mut announce = Announce::head_bytes(session, Seq(u32::MAX), 2).to_vec();
    for tag in [1, u64::MAX] {
        let entry = AnnounceEntry { communicator: u32::MAX, tag, through: Seq(0x8000_0000) };
        announce.extend(entry.to_bytes());
    }
    control(Kind::Announce, &announce);
    let cookie = Cookie(core::array::from_fn(|i| 0xf0 - i as u8));
    let mut rails = Rails::NONE;
    rails.push([192, 0, 2, 1].into(), Qpn::new(0xff_fffe).unwrap());
    rails.push([0x2001, 0xdb8, 0, 0, 0xffff, 0, 0, 0xf00f].into(), Qpn::new(0x80_0000).unwrap());
    control(Kind::Init, &Init { offer, cookie, rails }.to_bytes());
    control(Kind::Cookie, &CookieReply { session, cookie, time: Ticks(0x8000_0000) }.to_bytes());
    control(Kind::Accept, &Accept { session, offer, clock: Ticks(0x8765_4321), rails }.to_bytes());
    for reason in [RefuseReason::Version, RefuseReason::Full, RefuseReason::NotListening, RefuseReason::Sizes]
    {
        control(Kind::Refuse, &Refuse { session, reason, time: Ticks(8) }.to_bytes());
    }
    control(Kind::Reset, &Reset { session }.to_bytes());
    for reason in [CloseReason::Application, CloseReason::Silence, CloseReason::Protocol] {
        control(Kind::Close, &Close { session, reason }.to_bytes());
    }
    for reason in [RejectReason::TooLong, RejectReason::Postponed] {
        let reject = RejectMessage { session, message: Seq(u32::MAX), seq: Seq(10), reason };
        control(Kind::Reject, &reject.to_bytes());
    }
    all
}

/// Writes UD packets with these immediates and payloads.
fn write(folder: &Path, packets: &[(Option<u32>, Vec<u8>)]) -> PathBuf {
    let template = Template::new(&Route {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        ip: IpRoute::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2), ident: 7 },
        dscp: 0,
        ecn: 2,
        hop_limit: 64,
        src_port: 0xc123,
    });
    let path = folder.join("made.pcap");
    let mut writer = PcapWriter::new(File::create(&path).unwrap()).unwrap();
    for (i, (imm, payload)) in packets.iter().enumerate() {
        let send = Send {
            dst_qpn: Qpn::new(0x11).unwrap(),
            src_qpn: Qpn::new(0x12).unwrap(),
            qkey: QKEY,
            pkey: PKey::DEFAULT,
            psn: Psn::new(i as u32).unwrap(),
            imm: *imm,
            solicited: false,
        };
        let mut frame = vec![0; template.frame_len(imm.is_some(), payload.len())];
        let at = template.header_len(imm.is_some());
        frame[at..at + payload.len()].copy_from_slice(payload);
        template.emit(&send, payload.len(), &mut frame).unwrap();
        writer
            .write_packet(&PcapPacket::new(Duration::from_millis(i as u64), frame.len() as u32, &frame))
            .unwrap();
    }
    path
}

#[test]
fn the_dissector_knows_every_type_with_any_value() {
    let folder = tempfile::tempdir().unwrap();
    let packets = made();
    let path = write(folder.path(), &packets);
    let told = assert_same(&path);
    assert_eq!(told.len(), packets.len());
    assert!(Kind::ALL.iter().all(|kind| told.iter().any(|(k, _)| k == kind)));
}

#[test]
fn the_dissector_leaves_alone_what_is_not_ours_and_says_what_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (_, data) = &made()[0];
    let mut other_version = data.clone();
    other_version[0] = 0x20;
    // More, but not the whole message; and then with nothing behind it.
    let mut not_whole = data.clone();
    not_whole[1] |= 0x80;
    let mut nothing_behind = not_whole.clone();
    nothing_behind[28..32].fill(0);
    nothing_behind[52..58].copy_from_slice(&[0, 0, 0, 0, 0, 33]);
    // Longer than its message.
    let mut too_long = data.clone();
    too_long[52..58].copy_from_slice(&[0, 0, 0, 0, 0, 32]);
    let close = Close { session: 1, reason: CloseReason::Silence }.to_bytes().to_vec();
    let strangers = [
        (None, b"hello".to_vec()),
        (None, (0x10u8..0x90).collect()),
        (None, other_version),
        (None, not_whole),
        (None, nothing_behind),
        (None, too_long),
        // Control without the immediate of its type.
        (None, close.clone()),
        (Some(7), close.clone()),
        (immediate(Kind::Reset), close.clone()),
    ];
    let path = write(folder.path(), &strangers);
    assert_eq!(tshark(&path, "csaud", &["frame.number".into()]), Vec::<Vec<String>>::new());
    assert_eq!(tshark(&path, "infiniband", &["frame.number".into()]).len(), strangers.len());
    // A feedback whose bitmap is missing in part.
    let mut cut = made().into_iter().find(|(imm, _)| *imm == immediate(Kind::Feedback)).unwrap();
    cut.1.truncate(cut.1.len() - 8);
    let path = write(folder.path(), &[cut, (immediate(Kind::Close), close)]);
    assert_eq!(tshark(&path, "csaud.wrong", &["frame.number".into()]), [["1"]]);
    assert_eq!(tshark(&path, "csaud.close.reason == 1", &["frame.number".into()]), [["2"]]);
}
