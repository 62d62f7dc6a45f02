//! The packets of the reliable service: what is built is read back, and no bytes make a reader fail otherwise than by saying so.

use proptest::prelude::*;
use roce_proto::types::Qpn;
use roce_proto::wire::shim::{
    Accept, Announce, AnnounceEntry, Close, CloseReason, Common, Cookie, CookieReply, Data, Feedback,
    FeedbackHead, Init, Kind, MAX_ENTRIES, MAX_PATHS, MAX_WORDS, Offer, PathReport, Probe, Rails, Refuse,
    RefuseReason, RejectMessage, RejectReason, Reset, Semantics, Seq, Ticks,
};

fn seq() -> impl Strategy<Value = Seq> {
    any::<u32>().prop_map(Seq)
}

fn semantics() -> impl Strategy<Value = Semantics> {
    (any::<u32>(), 0u8..16, 0u8..16, any::<u8>(), any::<u8>(), any::<bool>()).prop_map(
        |(step, class, priority, stage, tolerance, sync)| Semantics {
            step,
            class,
            priority,
            stage,
            tolerance,
            sync,
        },
    )
}

prop_compose! {
    fn data()(
        session in any::<u64>(), path in any::<u8>(), seqs in (seq(), seq(), seq(), seq()), time in any::<u32>(),
        segment in any::<u32>(), communicator in any::<u32>(), tag in any::<u64>(),
        length in 0..=Data::MAX_LENGTH, semantics in semantics(), flags in any::<[bool; 4]>(),
    ) -> Data {
        Data {
            session, path, path_seq: seqs.0, seq: seqs.1, message: seqs.2, ordinal: seqs.3, time: Ticks(time),
            segment, communicator, tag, length, semantics,
            ask: flags[0], again: flags[1], void: flags[2], granted: flags[3], more: false,
        }
    }
}

prop_compose! {
    fn offer()(
        ids in any::<[u64; 2]>(), words in any::<[u32; 6]>(), paths in any::<u8>(), codecs in any::<u8>(), messages in any::<u16>(),
    ) -> Offer {
        let [first, segment, window, grant, eager, time] = words;
        Offer {
            id: ids[0], epoch: ids[1], first: Seq(first), segment, window, grant, eager, time: Ticks(time),
            paths, codecs, messages,
        }
    }
}

proptest! {
    #[test]
    fn data_is_read_back(data in data(), payload in prop::collection::vec(any::<u8>(), 0..50)) {
        let payload = if data.void { Vec::new() } else { payload };
        let packet = [&data.to_bytes()[..], &payload].concat();
        prop_assert_eq!(Data::parse(&packet), Ok((data, &payload[..])));
        let common = Common::parse(&packet).unwrap();
        prop_assert_eq!((common.kind, common.session), (Kind::Data, data.session));
    }

    /// Some whole messages and one segment of any kind in a packet are read one by one; one that lies about its length, or is no
    /// whole message, ends the packet where it stands.
    #[test]
    fn bundles_are_read_back(
        whole in prop::collection::vec((data(), prop::collection::vec(any::<u8>(), 0..50)), 0..6),
        last in data(), end in prop::collection::vec(any::<u8>(), 0..50), cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = Vec::new();
        let mut parts = Vec::new();
        for (data, payload) in whole {
            let length = payload.len() as u64;
            let data = Data { session: last.session, void: false, segment: 0, length, ..data };
            let mut header = data.to_bytes();
            Data::set_more(&mut header);
            packet.extend(header);
            packet.extend(&payload);
            parts.push((Data { more: true, ..data }, payload));
        }
        let end = if last.void { Vec::new() } else { end };
        packet.extend(last.to_bytes());
        packet.extend(&end);
        parts.push((last, end));
        let mut left = Some(&packet[..]);
        for (data, payload) in &parts {
            let bytes = left.expect("as many as were put in");
            prop_assert_eq!(Data::parse(bytes), Ok((*data, &payload[..])));
            left = Data::following(bytes);
        }
        prop_assert_eq!(left, None);
        // Cut off anywhere: what is read is a part of what was there, and refused where there is less than it says.
        let mut left = Some(&packet[..cut.index(packet.len())]);
        let mut read = 0;
        while let Some(bytes) = left {
            left = Data::following(bytes);
            match Data::parse(bytes) {
                Ok((data, payload)) => {
                    prop_assert_eq!(data, parts[read].0);
                    prop_assert!(parts[read].1.starts_with(payload));
                    prop_assert_eq!(left.is_some(), data.more);
                }
                Err(_) => prop_assert!(left.is_none()),
            }
            read += 1;
        }
    }

    #[test]
    fn feedback_is_read_back(
        numbers in any::<[u32; 7]>(), counts in any::<[u16; 2]>(), session in any::<u64>(), cut in any::<bool>(), status in any::<bool>(),
        reports in prop::collection::vec((any::<u8>(), any::<bool>(), any::<u16>(), any::<[u32; 3]>()), 0..=MAX_PATHS),
        words in prop::collection::vec(any::<u32>(), 0..=MAX_WORDS),
    ) {
        let [number, next, grant, duplicates, announced, skipped, share] = numbers;
        let [gaps, repaired] = counts;
        let head = FeedbackHead {
            session, cut, status, paths: reports.len() as u8, words: words.len() as u8, number: Seq(number), next: Seq(next),
            grant: Seq(grant), duplicates, announced: Seq(announced), skipped, gaps, repaired, share,
        };
        let reports: Vec<PathReport> = reports
            .into_iter()
            .map(|(path, late, ce, [highest, time, delay])| PathReport {
                path, late, ce, highest: Seq(highest), time: Ticks(time), delay: Ticks(delay),
            })
            .collect();
        let mut packet = head.to_bytes().to_vec();
        reports.iter().for_each(|r| packet.extend(r.to_bytes()));
        words.iter().for_each(|w| packet.extend(w.to_be_bytes()));
        let feedback = Feedback::parse(&packet).unwrap();
        prop_assert_eq!(feedback.head, head);
        prop_assert_eq!(feedback.paths().collect::<Vec<_>>(), reports);
        prop_assert_eq!(feedback.words().collect::<Vec<_>>(), words);
        prop_assert_eq!(feedback.base().0 % 32, 0);
        prop_assert!(feedback.base().until(head.next) < 32);
        prop_assert!(Feedback::parse(&packet[..packet.len() - 1]).is_err());
    }

    #[test]
    fn control_is_read_back(
        session in any::<u64>(), path in any::<u8>(), seqs in (seq(), seq()), time in any::<u32>(), offer in offer(),
        cookie in any::<[u8; 16]>(), entries in prop::collection::vec((any::<u32>(), any::<u64>(), seq()), 0..=MAX_ENTRIES),
        reason in any::<bool>(), ports in prop::collection::vec((any::<std::net::IpAddr>(), 0u32..1 << 24), 0..=Rails::MOST),
    ) {
        let time = Ticks(time);
        let mut rails = Rails::NONE;
        ports.iter().for_each(|(ip, qpn)| rails.push(*ip, Qpn::new(*qpn).unwrap()));
        let canonical = ports.iter().map(|(ip, qpn)| (ip.to_canonical(), Qpn::new(*qpn).unwrap()));
        prop_assert_eq!(rails.iter().collect::<Vec<_>>(), canonical.collect::<Vec<_>>());
        let probe = Probe { session, path, path_seq: seqs.0, seq: seqs.1, time, asks: reason, forgot: !reason, urgent: reason };
        prop_assert_eq!(Probe::parse(&probe.to_bytes()), Ok(probe));
        let entries: Vec<AnnounceEntry> = entries
            .into_iter()
            .map(|(communicator, tag, through)| AnnounceEntry { communicator, tag, through })
            .collect();
        let mut packet = Announce::head_bytes(session, seqs.0, entries.len() as u8).to_vec();
        entries.iter().for_each(|e| packet.extend(e.to_bytes()));
        let announce = Announce::parse(&packet).unwrap();
        prop_assert_eq!((announce.session, announce.number), (session, seqs.0));
        prop_assert_eq!(announce.entries().collect::<Vec<_>>(), entries);
        let init = Init { offer, cookie: Cookie(cookie), rails };
        prop_assert_eq!(Init::parse(&init.to_bytes()), Ok(init));
        let reply = CookieReply { session, cookie: Cookie(cookie), time };
        prop_assert_eq!(CookieReply::parse(&reply.to_bytes()), Ok(reply));
        let accept = Accept { session, offer, clock: time, rails };
        prop_assert_eq!(Accept::parse(&accept.to_bytes()), Ok(accept));
        for why in [RefuseReason::Version, RefuseReason::Full, RefuseReason::NotListening, RefuseReason::Sizes] {
            let refuse = Refuse { session, reason: why, time };
            prop_assert_eq!(Refuse::parse(&refuse.to_bytes()), Ok(refuse));
        }
        for why in [CloseReason::Application, CloseReason::Silence, CloseReason::Protocol] {
            let close = Close { session, reason: why };
            prop_assert_eq!(Close::parse(&close.to_bytes()), Ok(close));
        }
        let reason = if reason { RejectReason::TooLong } else { RejectReason::Postponed };
        let reject = RejectMessage { session, message: seqs.0, seq: seqs.1, reason };
        prop_assert_eq!(RejectMessage::parse(&reject.to_bytes()), Ok(reject));
        prop_assert_eq!(Reset::parse(&Reset { session }.to_bytes()), Ok(Reset { session }));
    }

    /// Whatever the bytes: an answer, and what was taken is built again to the same bytes where nothing is ignored.
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..12) {
        if let Some(first) = bytes.first_mut() {
            *first = 0x10 | kind;
        }
        if let Some(flags) = bytes.get_mut(1) {
            // The one flag that nobody has yet is ignored.
            *flags &= 0x7f;
        }
        if let Ok((data, payload)) = Data::parse(&bytes) {
            prop_assert_eq!([&data.to_bytes()[..], payload].concat(), bytes.clone());
        }
        let _ = Feedback::parse(&bytes).map(|f| (f.paths().count(), f.words().count()));
        let _ = Announce::parse(&bytes).map(|a| a.entries().count());
        let _ = (Init::parse(&bytes), Accept::parse(&bytes), CookieReply::parse(&bytes), Refuse::parse(&bytes));
        let _ = (Probe::parse(&bytes), Reset::parse(&bytes), Close::parse(&bytes), RejectMessage::parse(&bytes));
    }
}
