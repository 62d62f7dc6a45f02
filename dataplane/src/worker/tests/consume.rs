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
