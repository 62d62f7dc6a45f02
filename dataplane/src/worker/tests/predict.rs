//! Header prediction: the short ways in and out must do what the long ones do.

use super::*;

/// Enough messages that the flow of `net` is known to the receiver.
fn make_known(net: &mut Net, ah: AhKey) {
    for i in 0..20 {
        net.post_recv(i, 100);
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
        net.rounds(2);
        assert_eq!(net.received().unwrap().wr_id, i);
        net.sent().unwrap();
    }
    let known = net.b.ports[0].known.len();
    assert_eq!(known, 1, "the flow was learnt");
}

#[test]
fn a_known_flow_keeps_every_check() {
    for dst in [v4(2), v6(2)] {
        let mut net = Net::default();
        let ah = net.ah(AhConfig::new(dst));
        make_known(&mut net, ah);
        // The next frames as they leave, broken on the way.
        let wr = net.wr(ah);
        let mut expected_icrc = 0;
        for (i, at_from_end) in [0usize, 1, 4, 5, 9, 12].into_iter().enumerate() {
            net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
            net.a.poll(at(1000));
            let mut frame = net.b.io_mut(0).unwrap().take().unwrap();
            let len = frame.len();
            frame[len - 1 - at_from_end] ^= 0x10;
            net.a.io_mut(0).unwrap().inject(&frame);
            net.post_recv(100 + i as u64, 100);
            net.b.poll(at(1000));
            expected_icrc += 1;
            assert!(net.received().is_none());
            assert_eq!(net.local_drops(LocalDrop::Icrc), expected_icrc, "byte {at_from_end} from the end");
        }
        // A right one is still delivered, into the first of those receives.
        net.a.post_send(net.qp[0], &wr, b"PAYLOAD").unwrap();
        net.rounds(2);
        let done = net.received().unwrap();
        assert_eq!(done.wr_id, 100);
        assert_eq!(&done.buf.unwrap()[GRH_LEN..GRH_LEN + 7], b"PAYLOAD");
        // A taken frame never reached the worker: only what was counted here has to add up.
        let counters = net.b.counters(0).unwrap();
        assert_eq!(counters.accounted(), counters.rx_packets);
    }
}

#[test]
fn a_known_flow_still_needs_a_receive_and_room() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    make_known(&mut net, ah);
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::NoReceive), 1);
    net.post_recv(1, GRH_LEN + 6);
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().status, WcStatus::LocalLengthError);
    assert_eq!(net.b.qp_state(net.qp[1]), Some(QpState::Error));
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QpState), 1, "the error state was noticed at once");
    net.assert_reconciled();
}

#[test]
fn what_was_known_dies_with_the_queue_pair() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    make_known(&mut net, ah);
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    net.b.destroy_qp(net.qp[1]).unwrap();
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::UnknownQpn), 1);
    // The same number again, with another Q_Key.
    let config = QpConfig { qpn: Some(wr.dst_qpn), qkey: QKey(5), ..QpConfig::new(net.cq[1]) };
    net.qp[1] = net.b.create_qp(&config).unwrap();
    net.post_recv(0, 100);
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QKey), 1);
    assert!(net.received().is_none());
    net.assert_reconciled();
}

#[test]
fn the_senders_short_way_follows_every_change_of_the_request() {
    let mut net = Net::new(MemoryConfig::default(), |q| q.psn = Psn::new(0xFF_FFF0));
    let four = net.ah(AhConfig::new(v4(2)));
    let six = net.ah(AhConfig { traffic_class: 7, ..AhConfig::new(v6(2)) });
    let base = SendWr { signaled: false, ..net.wr(four) };
    let requests = [
        base,
        SendWr { solicited: true, ..base },
        SendWr { imm: Some(9), ..base },
        SendWr { ah: six, ..base },
        SendWr { qkey: QKey(3), ..base },
        SendWr { dst_qpn: Qpn::new(0x77).unwrap(), ..base },
    ];
    let mut psn = Psn::new(0xFF_FFF0).unwrap();
    // Each request after each other, of the same length.
    let n = requests.len();
    for i in 0..2 * n * n {
        let (pair, second) = (i / 2, i % 2 == 1);
        let wr = &requests[if second { pair % n } else { pair / n }];
        let payload = vec![i as u8; 5 + pair % 4];
        net.a.post_send(net.qp[0], wr, &payload).unwrap();
        net.a.poll(at(i as u64));
        let frame = net.b.io_mut(0).unwrap().take().unwrap();
        let Ok(Frame::Roce(packet)) = frame::parse(&frame) else { panic!() };
        assert!(packet.icrc_ok(), "{i}");
        let (bth, ud) = (packet.bth(), packet.ud().unwrap());
        assert_eq!((bth.psn, bth.solicited, bth.dst_qpn), (psn, wr.solicited, wr.dst_qpn), "{i}");
        assert_eq!((ud.deth.qkey, ud.imm, ud.payload), (wr.qkey, wr.imm, &payload[..]), "{i}");
        assert_eq!(packet.ip.is_ipv6(), wr.ah == six);
        psn = psn.next();
    }
}

#[test]
fn a_list_is_sent_as_its_requests_one_by_one_would_be() {
    let mut net = Net::new(MemoryConfig::default(), |q| q.recv_depth = 300);
    let ah = net.ah(AhConfig::new(v4(2)));
    let payloads: Vec<Vec<u8>> = (0..200).map(|i| vec![i as u8; if i % 50 < 40 { 64 } else { i }]).collect();
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    let mut rest = &payloads[..];
    let mut got = Vec::new();
    for wr_id in 0..200 {
        net.post_recv(wr_id, GRH_LEN + 200);
    }
    while !rest.is_empty() {
        let (taken, error) = net.a.post_send_list(net.qp[0], &wr, rest);
        assert!(error.is_none_or(PostError::is_back_pressure), "{error:?}");
        rest = &rest[taken..];
        net.rounds(1);
        got.extend(std::iter::from_fn(|| net.received()));
    }
    for _ in 0..10 {
        net.rounds(1);
        got.extend(std::iter::from_fn(|| net.received()));
    }
    assert_eq!(got.len(), payloads.len());
    for (done, want) in got.iter().zip(&payloads) {
        let len = done.payload_len();
        assert_eq!(&done.buf.as_ref().unwrap()[GRH_LEN..GRH_LEN + len], &want[..]);
    }
    assert_eq!(net.a.counters(0).unwrap().tx_packets, 200);
    assert_eq!(net.a.qp_counters(net.qp[0]).unwrap().sent, 200);
    assert_eq!(net.a.outstanding(net.qp[0]), 0);
    net.assert_reconciled();
}

#[test]
fn a_list_stops_at_its_first_refusal_and_says_how_far_it_came() {
    let mut net = Net::new(MemoryConfig { ring: 1, ..MemoryConfig::default() }, |q| q.send_depth = 20);
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    let mut payloads = vec![vec![1u8; 10]; 30];
    let (taken, error) = net.a.post_send_list(net.qp[0], &wr, &payloads);
    assert_eq!((taken, error), (20, Some(PostError::QueueFull { depth: 20 })));
    net.rounds(50);
    payloads[3] = vec![0; 5000];
    let (taken, error) = net.a.post_send_list(net.qp[0], &wr, &payloads[..6]);
    assert_eq!((taken, error), (3, Some(PostError::TooLong { len: 5000, max: 4096 })));
    let none: [&[u8]; 0] = [];
    assert_eq!(net.a.post_send_list(net.qp[0], &wr, &none), (0, None));
}

#[test]
fn a_known_flow_is_not_delivered_to_a_queue_pair_in_error() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    make_known(&mut net, ah);
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    net.post_recv(7, 100);
    net.b.modify_qp(net.qp[1], QpState::Error).unwrap();
    net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
    net.rounds(3);
    assert_eq!(net.local_drops(LocalDrop::QpState), 1);
    assert_eq!(net.received().unwrap().status, WcStatus::WorkRequestFlushed);
    assert!(net.received().is_none());
}

#[test]
fn the_senders_short_way_follows_a_peer_that_moves() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    make_known(&mut net, ah);
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    let destination = |net: &mut Net, us| {
        net.a.post_send(net.qp[0], &wr, b"payload").unwrap();
        net.a.poll(at(us));
        let frame = net.b.io_mut(0).unwrap().take().unwrap();
        let Ok(Frame::Roce(packet)) = frame::parse(&frame) else { panic!() };
        packet.link.dst()
    };
    let before = destination(&mut net, 5_000);
    let moved = MacAddr([2, 9, 9, 9, 9, 9]);
    assert_ne!(before, moved);
    // What the peer says from its new place.
    let (IpAddr::V4(a), IpAddr::V4(b)) = (v4(1), v4(2)) else { panic!() };
    let to = net.a.port_info(0).unwrap().mac;
    let link = roce_proto::wire::control::Link {
        src: moved,
        dst: to,
        vlans: roce_proto::wire::ethernet::VlanStack::EMPTY,
    };
    let mut bytes = [0; 64];
    let request = roce_proto::wire::arp::Packet::request(moved, b, a);
    let n = roce_proto::wire::control::arp(&link, &request, &mut bytes).unwrap();
    assert!(net.b.io_mut(0).unwrap().inject(&bytes[..n]));
    // Later than the second in which no other address is taken.
    net.a.poll(at(1_200_000));
    assert!(net.b.io_mut(0).unwrap().take().is_some(), "the answer");
    assert_eq!(destination(&mut net, 1_200_001), moved);
}

#[test]
fn a_reset_forgets_sends_that_have_not_left() {
    let mut net = Net::new(MemoryConfig { ring: 1, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..10 {
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    for state in [QpState::Reset, QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
        net.a.modify_qp(net.qp[0], state).unwrap();
    }
    assert_eq!(net.a.outstanding(net.qp[0]), 0);
    net.rounds(50);
    assert!(net.sent().is_none(), "no completion of work from before the reset");
    for _ in 0..64 {
        while let Err(e) = net.a.post_send(net.qp[0], &wr, b"x") {
            assert_eq!(e, PostError::PortBusy, "every place of the completion queue is free again");
            net.rounds(1);
        }
    }
}

#[test]
fn a_capture_has_the_packets_of_lists_too() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let file = tempfile::NamedTempFile::new().unwrap();
    let capture = crate::capture::Capture::create(file.path()).unwrap();
    net.a.set_capture(Some(capture.clone()));
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    let payloads: Vec<[u8; 4]> = (0..20u32).map(u32::to_be_bytes).collect();
    assert_eq!(net.a.post_send_list(net.qp[0], &wr, &payloads), (20, None));
    net.rounds(2);
    capture.flush().unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(file.reopen().unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next_packet() {
        let record = record.unwrap();
        let Ok(Frame::Roce(packet)) = frame::parse(&record.data) else { continue };
        assert!(packet.icrc_ok(), "it is written as it leaves");
        found.push(packet.ud().unwrap().payload.to_vec());
    }
    assert_eq!(found, payloads);
}
