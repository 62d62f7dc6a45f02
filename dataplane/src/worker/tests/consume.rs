//! Receives that go through a function of the caller's, from the queue or past it.

use super::*;

/// Sends `payloads` from `a`, without a round of `b`.
fn send(net: &mut Net, ah: AhKey, payloads: &[&[u8]]) {
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    for payload in payloads {
        net.a.post_send(net.qp[0], &wr, payload).unwrap();
    }
    net.now += 10;
    net.a.poll(at(net.now));
}

/// A round of `b` that looks at each message; returns their payloads, with `true` posting the buffer again.
fn look(net: &mut Net, max: usize, again: bool) -> (Vec<Vec<u8>>, usize) {
    let mut seen = Vec::new();
    let (_, queued) = net.b.poll_into(at(net.now), net.cq[1], max, |done| {
        assert_eq!(done.status, WcStatus::Success);
        seen.push(done.buf.as_ref().unwrap()[GRH_LEN..done.byte_len as usize].to_vec());
        again
    });
    (seen, queued)
}

#[test]
fn buffers_go_round_without_being_posted_by_the_application() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 100);
    net.post_recv(1, 100);
    // Long enough for the flow to become known, so that both ways of delivery are taken.
    for i in 0..50u8 {
        send(&mut net, ah, &[&[i], &[i, i]]);
        assert_eq!(look(&mut net, 64, true), (vec![vec![i], vec![i, i]], 0), "round {i}");
    }
    assert_eq!(net.b.qp_counters(net.qp[1]).unwrap().received, 100);
    assert!(net.b.ports[0].known.len() > 0);
    // Not posted again: two messages, then there is no receive left.
    send(&mut net, ah, &[b"a", b"b", b"c"]);
    assert_eq!(look(&mut net, 64, false).0, [b"a", b"b"]);
    assert_eq!(net.local_drops(LocalDrop::NoReceive), 1);
    net.assert_reconciled();
}

#[test]
fn what_waits_in_the_queue_comes_first_and_keeps_the_order() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    for wr_id in 0..8 {
        net.post_recv(wr_id, 100);
    }
    send(&mut net, ah, &[b"1", b"2", b"3"]);
    net.b.poll(at(net.now));
    send(&mut net, ah, &[b"4"]);
    // Two of the three that wait; the fourth must not overtake the third.
    assert_eq!(look(&mut net, 2, true), (vec![b"1".to_vec(), b"2".to_vec()], 2));
    assert_eq!(net.b.cq(net.cq[1]).unwrap().len(), 2);
    send(&mut net, ah, &[b"5"]);
    assert_eq!(look(&mut net, 64, true), (vec![b"3".to_vec(), b"4".to_vec(), b"5".to_vec()], 2));
    net.assert_reconciled();
}

#[test]
fn an_armed_queue_raises_its_event() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 100);
    net.b.cq(net.cq[1]).unwrap().arm(Arm::Next);
    send(&mut net, ah, &[b"x"]);
    assert_eq!(look(&mut net, 64, true).0.len(), 0, "it is queued");
    assert!(net.b.cq(net.cq[1]).unwrap().take_event());
    assert_eq!(look(&mut net, 64, true), (vec![b"x".to_vec()], 1));
}

#[test]
fn a_receive_that_fails_is_not_posted_again() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, GRH_LEN);
    net.post_recv(1, 100);
    send(&mut net, ah, &[b"x"]);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        net.b.poll_into(at(net.now), net.cq[1], 64, |done| {
            statuses.push((done.wr_id, done.status));
            true
        });
    }
    assert_eq!(statuses, [(0, WcStatus::LocalLengthError), (1, WcStatus::WorkRequestFlushed)]);
    assert_eq!(net.b.qp_state(net.qp[1]), Some(QpState::Error));
    net.assert_reconciled();
}

#[test]
fn direct_completions_never_fill_the_queue() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    for wr_id in 0..4 {
        net.post_recv(wr_id, 100);
    }
    for _ in 0..40 {
        send(&mut net, ah, &[b"x", b"y", b"z", b"w"]);
        assert_eq!(look(&mut net, 64, true).0.len(), 4);
    }
    assert_eq!(net.b.counters(0).unwrap().delivered, 160);
    assert_eq!(net.local_drops(LocalDrop::CqFull), 0);
}

#[test]
fn a_buffer_that_the_function_keeps_is_its_own() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 100);
    send(&mut net, ah, &[b"keep"]);
    let mut kept = None;
    net.b.poll_into(at(net.now), net.cq[1], 64, |done| {
        kept = done.buf.take();
        true
    });
    assert_eq!(&kept.unwrap()[GRH_LEN..GRH_LEN + 4], b"keep");
    send(&mut net, ah, &[b"gone"]);
    look(&mut net, 64, true);
    assert_eq!(net.local_drops(LocalDrop::NoReceive), 1, "nothing was posted in its place");
}

#[test]
fn no_more_are_given_than_there_is_room_for() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    // Twice: the flow is known the second time.
    for round in 0..2 {
        for n in 0..20 {
            net.post_recv(n, 100);
        }
        send(&mut net, ah, &[b"x".as_slice(); 20]);
        net.a.flush();
        let mut given = Vec::new();
        net.b.poll_giving(at(10_000 + round), 7, |done| given.push(done.wr_id));
        assert_eq!(given, (0..7).collect::<Vec<_>>());
        assert!(net.received().is_none(), "the others of the burst wait for the next round");
        let progress = net.b.poll_giving(at(20_000 + round), 7, |done| given.push(done.wr_id));
        assert_eq!((given.len(), progress.received, progress.drained), (14, 7, false));
        // No room at all, as of a thread whose completions nobody takes: what comes is queued, and goes on being counted.
        net.b.poll_giving(at(30_000 + round), 0, |_| panic!("there is no room"));
        assert_eq!(given, (0..14).collect::<Vec<_>>());
        let queued: Vec<_> = std::iter::from_fn(|| net.received()).map(|done| done.wr_id).collect();
        assert_eq!(queued, (14..20).collect::<Vec<_>>());
        while net.sent().is_some() {}
    }
    net.assert_reconciled();
}

#[test]
fn what_is_of_another_queue_is_left_there() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let other_cq = net.b.create_cq(8);
    let other = net.b.create_qp(&QpConfig::new(other_cq)).unwrap();
    net.b.post_recv(other, RecvWr { wr_id: 5, buf: vec![0; 100] }).map_err(|(e, _)| e).unwrap();
    net.post_recv(6, 100);
    let wr = SendWr { signaled: false, ..net.wr(ah) };
    let dst_qpn = net.b.qpn(other).unwrap();
    net.a.post_send(net.qp[0], &SendWr { dst_qpn, ..wr }, b"theirs").unwrap();
    net.a.post_send(net.qp[0], &wr, b"ours").unwrap();
    net.a.flush();
    assert_eq!(look(&mut net, 64, true), (vec![b"ours".to_vec()], 0));
    let done = net.b.cq(other_cq).unwrap().pop().unwrap();
    assert_eq!((done.wr_id, done.qpn), (5, dst_qpn));
}

#[test]
fn a_queue_pair_in_error_gets_no_receive_back() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(0, 100);
    send(&mut net, ah, &[b"x"]);
    net.b.poll(at(net.now));
    net.b.modify_qp(net.qp[1], QpState::Error).unwrap();
    net.b.poll(at(net.now));
    assert_eq!(net.b.consume(net.cq[1], 9, |_| true), 1);
    net.b.poll(at(net.now));
    assert!(net.received().is_none());
    assert!(net.b.core.qps[net.qp[1]].recv.is_empty(), "it would wait there for ever");
}

#[test]
fn a_burst_that_is_taken_in_parts_holds_nothing_back() {
    let mut net = Net::default();
    let ah = net.ah(AhConfig::new(v4(2)));
    let back = net.b.create_ah(&AhConfig::new(v4(1)), at(net.now)).unwrap();
    net.rounds(4);
    for wr_id in 0..10 {
        net.post_recv(wr_id, 100);
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"x").unwrap();
    }
    net.a.flush();
    let now = at(net.now + 1);
    let take = |net: &mut Net, room| {
        let mut count = 0;
        let sent = net.b.poll_handing(now, net.cq[1], room, |_| count += 1).sent;
        (count, sent, net.b.has_packets())
    };
    assert_eq!((net.b.has_packets(), take(&mut net, 4)), (false, (4, 0, true)));
    assert_eq!(take(&mut net, 4), (4, 0, true));
    let dst_qpn = net.a.qpn(net.qp[0]).unwrap();
    let wr = SendWr { dst_qpn, signaled: false, ..net.wr(back) };
    net.b.post_send(net.qp[1], &wr, b"y").unwrap();
    assert_eq!(take(&mut net, 1), (1, 1, true), "an answer leaves with the next round");
    assert_eq!(take(&mut net, 4), (1, 0, false));
    assert_eq!(take(&mut net, 4), (0, 0, false));
    net.assert_reconciled();
}
