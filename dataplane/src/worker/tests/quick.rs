//! The quick ways of posting do what the others do, or nothing.

use super::sealed::{Event, Sender, event};
use super::*;
use crate::io::PacketBurst;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// The same happens to two senders of which one tries the quick way first: the same leaves, in the same order, and completes.
    #[test]
    fn what_is_posted_quickly_leaves_as_if_it_were_not(events in proptest::collection::vec(event(), 1..60)) {
        let [quick, plain] = [Some(0), None].map(|quickly| {
            let mut sender = Sender::new(false);
            sender.quickly = quickly;
            sender.drain();
            events.iter().for_each(|event| sender.happens(event));
            sender.drain();
            // From the IP header on: two ports have different MAC addresses.
            let sent: Vec<Vec<u8>> = sender.wire.iter().map(|frame| frame[14..].to_vec()).filter(|ip| ip[0] != 0).collect();
            let qps: Vec<_> = sender.qps.iter().map(|qp| sender.w.qp_counters(*qp).unwrap()).collect();
            let c = sender.w.counters(0).unwrap();
            (sender.sent, sent, sender.done, qps, (c.tx_packets, c.tx_bytes, c.tx_busy, c.tx_control))
        });
        prop_assert_eq!(quick, plain);
    }
}

/// The first of a flow, and the first and the last of a burst, are of the other way; with a completion, there is one more of each.
#[test]
fn of_sends_that_are_alike_most_go_quickly() {
    for (signaled, want) in [(false, 62), (true, 0)] {
        let mut sender = Sender::new(false);
        sender.quickly = Some(0);
        sender.drain();
        sender.happens(&Event::Post {
            qp: 0,
            six: false,
            len: 64,
            count: 64,
            list: false,
            signaled,
            imm: false,
        });
        assert_eq!((sender.quickly, sender.sent), (Some(want), 64), "{signaled}");
        assert!(sender.w.ports[0].tx.len() < 64, "a whole burst was offered to the port");
    }
}

fn plain(ah: AhKey) -> SendWr {
    SendWr {
        wr_id: 1,
        ah,
        dst_qpn: Qpn::new(0x77).unwrap(),
        qkey: QKey(1),
        imm: None,
        solicited: false,
        signaled: false,
    }
}

/// After so many sends of a length and one more that may be signaled, whether the quick way takes the next one.
fn takes(depth: u32, (len, count): (usize, usize), signals: [bool; 2]) -> bool {
    let mut sender = Sender::new(false);
    sender.drain();
    let w = &mut sender.w;
    let qp = w.create_qp(&QpConfig { send_depth: depth, ..QpConfig::new(sender.cq) }).unwrap();
    let plain = plain(sender.ahs[0]);
    let message = vec![7; len];
    let [before, next] = signals.map(|signaled| SendWr { signaled, ..plain });
    for i in 1..count {
        // The first of a flow is of the other way, as are those that do not go on with a burst.
        let quickly = w.post_send_quickly(qp, plain, len, |to| to.copy_from_slice(&message));
        assert!(quickly || w.post_send(qp, &plain, &message).is_ok(), "{i}");
    }
    w.post_send(qp, &before, &message).unwrap();
    w.post_send_quickly(qp, next, len, |to| to.copy_from_slice(&message))
}

#[test]
fn what_needs_more_than_the_quick_way_does_goes_the_other() {
    let plain = [false; 2];
    assert!(takes(8, (64, 4), plain));
    assert!(!takes(8, (64, 4), [false, true]), "it completes");
    assert!(!takes(8, (64, 4), [true, false]), "the one before completes, so that another run begins");
    assert!(takes(5, (64, 4), plain) && !takes(4, (64, 4), plain), "as deep as its queue");
    // Frames of 4096 and 62 bytes. The first is not among those that get their ICRC together.
    assert!(takes(8, (4096, 4), plain) && !takes(8, (4096, 5), plain), "more than 16 KiB without their ICRC");
    assert!(!takes(8, (64, 1), plain), "the first of a burst");
}

/// The ICRC of a packet begins with its own queue pair's headers.
#[test]
fn queue_pairs_that_take_turns_do_not_go_on_with_each_other() {
    let mut sender = Sender::new(false);
    sender.drain();
    let w = &mut sender.w;
    let qps = [(); 2].map(|()| w.create_qp(&QpConfig::new(sender.cq)).unwrap());
    let wr = plain(sender.ahs[0]);
    for _ in 0..4 {
        for qp in qps {
            assert!(!w.post_send_quickly(qp, wr, 64, |to| to.fill(7)));
            w.post_send(qp, &wr, &[7; 64]).unwrap();
        }
    }
    assert!(w.post_send_quickly(qps[1], wr, 64, |to| to.fill(7)), "now it is the same one's turn again");
}

#[test]
fn receives_are_posted_quickly_where_there_is_room() {
    let mut sender = Sender::new(false);
    let w = &mut sender.w;
    let qp = w.create_qp(&QpConfig { recv_depth: 2, ..QpConfig::new(sender.cq) }).unwrap();
    for state in [QpState::Error, QpState::Reset, QpState::Init] {
        w.modify_qp(qp, state).unwrap();
        assert!(!w.post_recv_quickly(qp, 1, || panic!("{state:?}")));
    }
    w.modify_qp(qp, QpState::ReadyToReceive).unwrap();
    assert!(w.post_recv_quickly(qp, 1, || vec![0; 50]) && w.post_recv_quickly(qp, 2, || vec![0; 60]));
    assert!(!w.post_recv_quickly(qp, 3, || panic!("there is no room")));
    w.destroy_qp(qp).unwrap();
    assert!(!w.post_recv_quickly(qp, 3, || panic!("there is no queue pair")));
}
