//! Queue pairs, work requests and completions: what a user of the verbs relies on.

use super::*;

#[test]
fn a_message_arrives_whole_over_either_family_with_its_grh_area() {
    for (dst, src, family) in [(v4(2), v4(1), Family::V4), (v6(2), v6(1), Family::V6)] {
        let mut net = Net::default();
        let ah = net.ah(AhConfig { traffic_class: 0x6a, hop_limit: 9, ..AhConfig::new(dst) });
        net.post_recv(1, 4096 + GRH_LEN);
        let payload: Vec<u8> = (0..1001u32).map(|i| i as u8).collect();
        let wr = SendWr { imm: Some(0xCAFE_F00D), solicited: true, ..net.wr(ah) };
        net.a.post_send(net.qp[0], &wr, &payload).unwrap();
        net.rounds(2);
        let done = net.received().unwrap();
        assert_eq!((done.wr_id, done.status, done.opcode), (1, WcStatus::Success, WcOpcode::Recv));
        assert_eq!(done.byte_len as usize, GRH_LEN + payload.len(), "pad and ICRC are not counted");
        assert_eq!(done.payload_len(), payload.len());
        assert_eq!(done.imm, Some(0xCAFE_F00D));
        assert_eq!(done.src_qpn, net.a.qpn(net.qp[0]).unwrap());
        assert_eq!(done.family, family);
        assert!(done.solicited);
        let buf = done.buf.as_ref().unwrap();
        assert_eq!(&buf[GRH_LEN..done.byte_len as usize], payload);
        assert!(buf[done.byte_len as usize..].iter().all(|&b| b == 0xEE), "the pad is not delivered");
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                assert_eq!(buf[..20], [0; 20]);
                assert_eq!(buf[20], 0x45);
                assert_eq!(buf[21], 0x6a);
                assert_eq!(buf[28], 9);
                assert_eq!(buf[32..36], src.octets());
                assert_eq!(buf[36..40], dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                assert_eq!(buf[0] >> 4, 6);
                assert_eq!(buf[7], 9);
                assert_eq!(buf[8..24], src.octets());
                assert_eq!(buf[24..40], dst.octets());
            }
            _ => unreachable!(),
        }
        let sent = net.sent().unwrap();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (7, WcStatus::Success, WcOpcode::Send));
        assert_eq!((sent.byte_len as usize, sent.payload_len()), (payload.len(), payload.len()));
        net.assert_reconciled();
    }
}

#[test]
fn both_families_reach_one_queue_pair() {
    let mut net = Net::default();
    let (four, six) = (net.ah(AhConfig::new(v4(2))), net.ah(AhConfig::new(v6(2))));
    for wr_id in 0..4 {
        net.post_recv(wr_id, 100);
    }
    for ah in [four, six, six, four] {
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.rounds(2);
    let families: Vec<_> = std::iter::from_fn(|| net.received()).map(|c| c.family).collect();
    assert_eq!(families, [Family::V4, Family::V6, Family::V6, Family::V4]);
}

#[test]
fn every_length_from_nothing_to_the_mtu_is_delivered_exactly() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let mtu = net.a.ib_mtu(0);
    assert_eq!(mtu, 4096);
    for len in (0..70).chain([1023, 1024, 1025, 4093, 4094, 4095, 4096]) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        // A buffer of exactly the needed size: one byte more from the wire would not fit.
        net.post_recv(len as u64, GRH_LEN + len);
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, &payload).unwrap();
        net.rounds(2);
        let done = net.received().unwrap();
        assert_eq!((done.status, done.payload_len()), (WcStatus::Success, len));
        assert_eq!(done.buf.unwrap()[GRH_LEN..], payload);
        net.sent().unwrap();
    }
    net.assert_reconciled();
}

#[test]
fn larger_than_the_mtu_is_refused_with_both_sizes_before_anything_is_queued() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    let e = net.a.post_send(net.qp[0], &wr, &vec![0; 4097]).unwrap_err();
    assert_eq!(e, PostError::TooLong { len: 4097, max: 4096 });
    assert!(e.to_string().contains("4097") && e.to_string().contains("4096"), "{e}");
    let before = net.a.counters(0).unwrap().clone();
    net.rounds(3);
    assert_eq!(*net.a.counters(0).unwrap(), before, "nothing left");
    assert_eq!(net.a.outstanding(net.qp[0]), 0);
}

#[test]
fn sent_counts_only_what_the_driver_took() {
    let mut net = Net::new(MemoryConfig { ring: 8, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    let mut posted = 0;
    let refusal = loop {
        // More signaled ones than the ring takes, fewer than the completion queue holds.
        let wr = SendWr { signaled: posted < 32, ..wr };
        match net.a.post_send(net.qp[0], &wr, b"abc") {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(refusal, PostError::PortBusy);
    assert!(refusal.is_back_pressure());
    // The ring took 8, the burst behind it holds the rest.
    assert_eq!(posted, 8 + crate::io::BURST);
    assert_eq!(net.a.counters(0).unwrap().tx_packets, 8);
    assert_eq!(net.a.counters(0).unwrap().tx_busy, 1);
    assert_eq!(std::iter::from_fn(|| net.sent()).count(), 8, "completions follow the driver");
    assert_eq!(net.a.outstanding(net.qp[0]) as usize, crate::io::BURST);
    for wr_id in 0..posted as u64 {
        net.post_recv(wr_id, 64);
    }
    let mut received = 0;
    for _ in 0..10 {
        net.rounds(1);
        received += std::iter::from_fn(|| net.received()).count();
    }
    assert_eq!(net.a.counters(0).unwrap().tx_packets, posted as u64);
    assert_eq!(received, posted, "nothing was lost");
}

#[test]
fn an_exhausted_pool_is_back_pressure_and_leaks_nothing() {
    let mut net = Net::new(MemoryConfig { buffers: 4, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..4 {
        net.a.post_send(net.qp[0], &wr, b"abc").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b"abc"), Err(PostError::NoBuffer));
    assert_eq!(net.a.counters(0).unwrap().tx_no_buffer, 1);
    net.rounds(3);
    assert_eq!(net.a.io_mut(0).unwrap().free_buffers(), 4);
    net.a.post_send(net.qp[0], &wr, b"abc").unwrap();
}

#[test]
fn full_queues_refuse_and_recover() {
    let mut net = Net::new(MemoryConfig::default(), |q| (q.send_depth, q.recv_depth) = (4, 2));
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..4 {
        net.a.post_send(net.qp[0], &wr, b"").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b""), Err(PostError::QueueFull { depth: 4 }));
    net.post_recv(0, 40);
    net.post_recv(1, 40);
    let (e, back) = net.b.post_recv(net.qp[1], RecvWr { wr_id: 9, buf: vec![1, 2, 3] }).unwrap_err();
    assert_eq!(e, PostError::QueueFull { depth: 2 });
    assert_eq!((back.wr_id, back.buf), (9, vec![1, 2, 3]), "the request comes back");
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::NoReceive), 2, "four came for two receives");
    net.a.post_send(net.qp[0], &wr, b"").unwrap();
    net.assert_reconciled();
}

#[test]
fn a_full_completion_queue_refuses_signaled_sends_and_drops_packets_without_losing_a_receive() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..64 {
        net.a.post_send(net.qp[0], &wr, b"").unwrap();
    }
    assert_eq!(net.a.post_send(net.qp[0], &wr, b""), Err(PostError::CqFull));
    let unsignaled = SendWr { signaled: false, ..wr };
    net.a.post_send(net.qp[0], &unsignaled, b"").unwrap();
    for wr_id in 0..70 {
        net.post_recv(wr_id, 40);
    }
    net.rounds(4);
    assert_eq!(net.local_drops(LocalDrop::CqFull), 1);
    let ids: Vec<_> = std::iter::from_fn(|| net.received()).map(|c| c.wr_id).collect();
    assert_eq!(ids, (0..64).collect::<Vec<_>>());
    net.a.post_send(net.qp[0], &unsignaled, b"").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().wr_id, 64, "the dropped packet took no receive");
    net.assert_reconciled();
}

#[test]
fn keys_numbers_and_states_each_have_their_own_counter() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    let good = net.wr(ah);
    let other = Qpn::new(0x77).unwrap();
    net.a.post_send(net.qp[0], &SendWr { qkey: QKey(0x1111_1112), ..good }, b"x").unwrap();
    net.a.post_send(net.qp[0], &SendWr { dst_qpn: other, ..good }, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QKey), 1);
    assert_eq!(net.b.qp_counters(net.qp[1]).unwrap().qkey_violations, 1);
    assert_eq!(net.local_drops(LocalDrop::UnknownQpn), 1);
    net.b.modify_qp(net.qp[1], QpState::Reset).unwrap();
    net.b.modify_qp(net.qp[1], QpState::Init).unwrap();
    net.post_recv(1, 64);
    net.a.post_send(net.qp[0], &good, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.local_drops(LocalDrop::QpState), 1);
    net.b.modify_qp(net.qp[1], QpState::ReadyToReceive).unwrap();
    net.a.post_send(net.qp[0], &good, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().wr_id, 1);
    net.assert_reconciled();
}

#[test]
fn a_partition_key_that_does_not_match_is_dropped() {
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let ports = |last: u8, pkeys: Vec<PKey>| PortConfig { pkeys, ..PortConfig::new(v4(last)) };
    let mut a =
        W::new(&WorkerConfig::default(), vec![(a, ports(1, vec![PKey(0x8001), PKey(0x0002), PKey(0x8002)]))])
            .unwrap();
    let mut b = W::new(&WorkerConfig::default(), vec![(b, ports(2, vec![PKey(0x0002)]))]).unwrap();
    let (acq, bcq) = (a.create_cq(16), b.create_cq(16));
    let bqp = b.create_qp(&QpConfig::new(bcq)).unwrap();
    let ah = a.create_ah(&AhConfig::new(v4(2)), at(0)).unwrap();
    for us in 0..4 {
        a.poll(at(us));
        b.poll(at(us));
    }
    assert_eq!(a.create_qp(&QpConfig { pkey_index: 3, ..QpConfig::new(acq) }), Err(QpError::NoPKey(3)));
    // Another partition; both limited members of the same; a full and a limited member.
    for (pkey_index, delivered) in [(0, 0), (1, 0), (2, 1)] {
        let qp = a.create_qp(&QpConfig { pkey_index, ..QpConfig::new(acq) }).unwrap();
        b.post_recv(bqp, RecvWr { wr_id: 0, buf: vec![0; 64] }).map_err(|e| e.0).unwrap();
        let wr = SendWr {
            wr_id: 0,
            ah,
            dst_qpn: b.qpn(bqp).unwrap(),
            qkey: QKEY,
            imm: None,
            solicited: false,
            signaled: false,
        };
        a.post_send(qp, &wr, b"x").unwrap();
        a.poll(at(10));
        b.poll(at(10));
        assert_eq!(b.counters(0).unwrap().delivered, delivered, "P_Key index {pkey_index}");
    }
    assert_eq!(b.counters(0).unwrap().dropped(DropReason::Local(LocalDrop::PKey)), 2);
}

#[test]
fn a_controlled_qkey_is_replaced_by_the_queue_pairs_own() {
    let mut net = Net::new(MemoryConfig::default(), |q| q.qkey = QKey(0x8765_4321));
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    let wr = SendWr { qkey: QKey(0x8000_0000), ..net.wr(ah) };
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().status, WcStatus::Success);
}

#[test]
fn a_short_buffer_completes_in_error_and_flushes_the_rest() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, GRH_LEN + 9);
    net.post_recv(1, 100);
    net.post_recv(2, 100);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, &[1; 10]).unwrap();
    net.rounds(3);
    let got: Vec<_> = std::iter::from_fn(|| net.received()).collect();
    let statuses: Vec<_> = got.iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(
        statuses,
        [
            (0, WcStatus::LocalLengthError),
            (1, WcStatus::WorkRequestFlushed),
            (2, WcStatus::WorkRequestFlushed)
        ]
    );
    assert!(got.iter().all(|c| c.buf.as_ref().is_some_and(|b| b.iter().all(|&x| x == 0xEE))));
    assert_eq!(net.b.qp_state(net.qp[1]), Some(QpState::Error));
    assert_eq!(net.local_drops(LocalDrop::ShortBuffer), 1);
    net.assert_reconciled();
}

#[test]
fn flushing_waits_for_room_in_the_completion_queue() {
    let mut net = Net::default();
    for wr_id in 0..200 {
        net.post_recv(wr_id, 1);
    }
    net.b.modify_qp(net.qp[1], QpState::Error).unwrap();
    let mut ids = Vec::new();
    for _ in 0..10 {
        net.rounds(1);
        assert!(net.b.cq(net.cq[1]).unwrap().len() <= 64);
        ids.extend(std::iter::from_fn(|| net.received()).map(|c| (c.wr_id, c.status)));
    }
    assert_eq!(ids, (0..200).map(|i| (i, WcStatus::WorkRequestFlushed)).collect::<Vec<_>>());
}

#[test]
fn psn_and_numbers_cross_their_wraps() {
    let mut net = Net::new(MemoryConfig::default(), |q| {
        (q.qpn, q.psn) = (Qpn::new(0xFF_FFFE), Psn::new(0xFF_FFFE));
    });
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for wr_id in 0..4 {
        net.post_recv(wr_id, 64);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.poll(at(100));
    let psns: Vec<_> = std::iter::from_fn(|| net.b.io_mut(0).unwrap().take())
        .map(|f| match frame::parse(&f).unwrap() {
            Frame::Roce(p) => {
                assert_eq!(p.bth().dst_qpn.get(), 0xFF_FFFE);
                assert_eq!(p.ud().unwrap().deth.src_qpn.get(), 0xFF_FFFE);
                p.bth().psn.get()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(psns, [0xFF_FFFE, 0xFF_FFFF, 0, 1]);
}

#[test]
fn queue_pair_numbers_wrap_within_the_range_for_applications() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let config =
        WorkerConfig { first_qpn: Qpn::new(0xFF_FFFD).unwrap(), max_qps: 5, ..WorkerConfig::default() };
    let mut w = W::new(&config, vec![(io, PortConfig::new(v4(1)))]).unwrap();
    let cq = w.create_cq(4);
    let small = QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(cq) };
    let taken = w.create_qp(&QpConfig { qpn: Qpn::new(2), ..small }).unwrap();
    let made: Vec<_> = (0..4).map(|_| w.create_qp(&small).unwrap()).collect();
    let numbers: Vec<_> = made.iter().map(|&q| w.qpn(q).unwrap().get()).collect();
    assert_eq!(numbers, [0xFF_FFFD, 0xFF_FFFE, 3, 4], "2 is taken; 0, 1 and 0xFFFFFF are reserved");
    assert_eq!(w.create_qp(&small), Err(QpError::TooMany(5)));
    w.destroy_qp(taken).unwrap();
    assert_eq!(w.qpn(taken), None, "a stale key names nothing");
    for reserved in [0, 1, 0xFF_FFFF] {
        let config = QpConfig { qpn: Qpn::new(reserved), ..small };
        assert_eq!(w.create_qp(&config), Err(QpError::QpnReserved(reserved)));
    }
    assert_eq!(w.create_qp(&QpConfig { qpn: Qpn::new(3), ..small }), Err(QpError::QpnTaken(3)));
}

#[test]
fn destroying_a_queue_pair_with_work_outstanding_returns_every_place() {
    let mut net = Net::new(MemoryConfig { ring: 1, ..MemoryConfig::default() }, |_| {});
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    for _ in 0..20 {
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.destroy_qp(net.qp[0]).unwrap();
    assert_eq!(net.a.post_send(net.qp[0], &wr, b"x"), Err(PostError::NoQp));
    net.rounds(50);
    assert!(net.sent().is_none(), "no completion of a queue pair that is gone");
    let again = net.a.create_qp(&QpConfig::new(net.cq[0])).unwrap();
    for _ in 0..64 {
        while let Err(e) = net.a.post_send(again, &wr, b"x") {
            assert_eq!(e, PostError::PortBusy, "all 64 places of the completion queue are free");
            net.rounds(1);
        }
    }
    assert_eq!(net.a.destroy_cq(net.cq[0]), Err(QpError::CqInUse));
    net.a.destroy_qp(again).unwrap();
    net.a.destroy_cq(net.cq[0]).unwrap();
    assert_eq!(net.a.destroy_cq(net.cq[0]), Err(QpError::NoCq));
}

#[test]
fn ten_thousand_handles_and_queue_pairs_leave_the_tables_as_they_were() {
    let mut net = Net::default();
    for i in 0..10_000u32 {
        let ah = net.a.create_ah(&AhConfig::new(v4((i % 200) as u8 + 3)), at(0)).unwrap();
        let qp =
            net.a.create_qp(&QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(net.cq[0]) }).unwrap();
        net.a.destroy_qp(qp).unwrap();
        assert!(net.a.destroy_ah(ah));
    }
    assert_eq!((net.a.core.qps.len(), net.a.core.ahs.len()), (1, 0));
    assert!(net.a.core.qps.capacity() < 64, "slots are reused");
    net.a.poll(at(0));
    assert!(net.a.ports[0].local.neighbours.is_empty());
}

#[test]
fn a_solicited_message_raises_the_event_that_was_asked_for() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 64);
    net.post_recv(1, 64);
    net.b.cq(net.cq[1]).unwrap().arm(Arm::Solicited);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.rounds(2);
    assert!(!net.b.cq(net.cq[1]).unwrap().take_event());
    net.a.post_send(net.qp[0], &SendWr { solicited: true, ..wr }, b"x").unwrap();
    net.rounds(2);
    assert!(net.b.cq(net.cq[1]).unwrap().take_event());
}

#[test]
fn a_message_in_pieces_is_gathered_into_its_place() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(1, 100);
    net.post_recv(2, 100);
    let wr = net.wr(ah);
    let gather = |place: &mut [u8]| {
        let (first, second) = place.split_at_mut(3);
        first.copy_from_slice(b"abc");
        second.copy_from_slice(b"defg");
    };
    // The first makes the headers, the second is made like it.
    for _ in 0..2 {
        net.a.post_send_with(net.qp[0], &wr, 7, gather).unwrap();
    }
    net.rounds(2);
    for _ in 0..2 {
        assert_eq!(net.received().unwrap().buf.unwrap()[GRH_LEN..GRH_LEN + 7], *b"abcdefg");
    }
    let too_long = net.a.post_send_with(net.qp[0], &wr, 4097, |_| panic!("a refused send is not filled"));
    assert_eq!(too_long, Err(PostError::TooLong { len: 4097, max: 4096 }));
    net.assert_reconciled();
}

#[test]
fn what_a_queue_pair_was_made_with_can_be_changed() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let exchange = |net: &mut Net, qkey| {
        // As often as a receiver needs to know the flow by heart.
        for wr_id in 0..20 {
            net.post_recv(wr_id, 100);
            let wr = SendWr { qkey, ..net.wr(ah) };
            net.a.post_send(net.qp[0], &wr, b"x").unwrap();
            net.rounds(2);
            assert_eq!(net.sent().unwrap().status, WcStatus::Success);
        }
        std::iter::from_fn(|| net.received()).count()
    };
    assert_eq!(exchange(&mut net, QKEY), 20);
    let other = QKey(0x2222);
    net.b.change_qp(net.qp[1], QpChange { qkey: Some(other), ..QpChange::default() }).unwrap();
    assert_eq!(exchange(&mut net, QKEY), 0);
    assert_eq!(net.b.qp_counters(net.qp[1]).unwrap().qkey_violations, 20);
    net.b.modify_qp(net.qp[1], QpState::Reset).unwrap();
    for state in [QpState::Init, QpState::ReadyToReceive] {
        net.b.modify_qp(net.qp[1], state).unwrap();
    }
    assert_eq!(exchange(&mut net, other), 20);
    let change = QpChange { pkey_index: Some(1), qkey: Some(QKEY), psn: None };
    assert_eq!(net.b.change_qp(net.qp[1], change), Err(QpError::NoPKey(1)));
    net.b.modify_qp(net.qp[1], QpState::Reset).unwrap();
    for state in [QpState::Init, QpState::ReadyToReceive] {
        net.b.modify_qp(net.qp[1], state).unwrap();
    }
    assert_eq!(exchange(&mut net, other), 20, "a refused change changes nothing");
}

#[test]
fn a_send_that_was_never_posted_can_be_failed() {
    let mut net = Net::new(MemoryConfig::default(), |_| ());
    let qp = net.qp[0];
    net.a.fail_send(qp, 77, WcStatus::LocalQpOperationError).unwrap();
    let done = net.sent().unwrap();
    assert_eq!((done.wr_id, done.status), (77, WcStatus::LocalQpOperationError));
    let depth = net.a.cq(net.cq[0]).unwrap().depth();
    for n in 0..depth as u64 {
        net.a.fail_send(qp, n, WcStatus::WorkRequestFlushed).unwrap();
    }
    assert_eq!(net.a.fail_send(qp, 1, WcStatus::WorkRequestFlushed), Err(PostError::CqFull));
}

#[test]
fn receives_are_plentiful_above_half_of_the_depth_of_each_of_a_few_queue_pairs() {
    let mut net = Net::default();
    let cq = net.b.create_cq(8);
    let other = net.b.create_qp(&QpConfig { recv_depth: 4, ..QpConfig::new(cq) }).unwrap();
    let depth = QpConfig::new(cq).recv_depth;
    net.b.destroy_qp(net.qp[1]).unwrap();
    let post = |net: &mut Net, count| {
        for wr_id in 0..count {
            net.b.post_recv(other, RecvWr { wr_id, buf: vec![0; 64] }).unwrap();
        }
        net.b.core.receives_are_plentiful()
    };
    assert!(!post(&mut net, 2));
    assert!(post(&mut net, 1));
    let second = net.b.create_qp(&QpConfig::new(cq)).unwrap();
    assert!(!post(&mut net, 0), "{depth} receives and none posted");
    net.b.destroy_qp(second).unwrap();
    // Too many to look at.
    for _ in 0..8 {
        let qp = net.b.create_qp(&QpConfig { recv_depth: 1, ..QpConfig::new(cq) }).unwrap();
        net.b.post_recv(qp, RecvWr { wr_id: 0, buf: vec![0; 64] }).unwrap();
    }
    assert!(!post(&mut net, 1));
}

#[test]
fn receives_are_handed_over_in_order_as_far_as_there_is_room() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    for wr_id in 0..10 {
        net.post_recv(wr_id, 100);
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.flush();
    let mut ids = Vec::new();
    let now = at(net.now + 1);
    net.b.poll_handing(now, net.cq[1], 4, |done| ids.push(done.wr_id));
    net.b.poll_handing(now, net.cq[1], 2, |done| ids.push(done.wr_id));
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    net.b.poll(now);
    // Something waits, so nothing may pass it.
    net.post_recv(10, 100);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.a.flush();
    net.b.poll_handing(now, net.cq[1], 4, |_| panic!("ahead of what waits"));
    while let Some(done) = net.b.cq(net.cq[1]).unwrap().pop() {
        ids.push(done.wr_id);
    }
    assert_eq!(ids, (0..11).collect::<Vec<_>>());
    // Another queue's are not ours.
    net.post_recv(11, 100);
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.a.flush();
    let other = net.b.create_cq(4);
    net.b.poll_handing(now, other, 4, |_| panic!("of another queue"));
    assert_eq!(net.received().unwrap().wr_id, 11);
    net.assert_reconciled();
}

#[test]
fn a_receive_posted_in_error_is_flushed_and_one_posted_after_a_reset_is_not() {
    let mut net = Net::default();
    net.post_recv(1, 64);
    net.b.modify_qp(net.qp[1], QpState::Error).unwrap();
    net.rounds(1);
    net.post_recv(2, 64);
    net.rounds(1);
    let flushed: Vec<_> = std::iter::from_fn(|| net.received()).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(flushed, [1, 2].map(|id| (id, WcStatus::WorkRequestFlushed)));
    // Reset before the next round, in which this one would be flushed.
    net.post_recv(3, 64);
    for state in [QpState::Reset, QpState::Init] {
        net.b.modify_qp(net.qp[1], state).unwrap();
    }
    net.post_recv(4, 64);
    net.rounds(2);
    assert!(net.received().is_none());
    net.b.modify_qp(net.qp[1], QpState::ReadyToReceive).unwrap();
    let ah = net.ah(AhConfig::new(v4(2)));
    let wr = net.wr(ah);
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.rounds(2);
    assert_eq!(net.received().unwrap().wr_id, 4);
}

#[test]
fn completions_go_with_their_queue_pair() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let other = net.b.create_qp(&QpConfig::new(net.cq[1])).unwrap();
    net.post_recv(1, 64);
    net.b.post_recv(other, RecvWr { wr_id: 2, buf: vec![0; 64] }).map_err(|(e, _)| e).unwrap();
    let wr = net.wr(ah);
    let dst_qpn = net.b.qpn(other).unwrap();
    net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    net.a.post_send(net.qp[0], &SendWr { dst_qpn, ..wr }, b"x").unwrap();
    net.rounds(2);
    net.b.destroy_qp(net.qp[1]).unwrap();
    assert_eq!(net.received().unwrap().wr_id, 2, "that of the other stays");
    assert!(net.received().is_none());
}
