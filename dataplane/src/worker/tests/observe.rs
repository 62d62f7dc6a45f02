//! A worker that is looked at.

use super::*;
use crate::observe;

/// Looks from another thread while `net` goes on.
fn look(net: &mut Net, mut observer: observe::Observer) -> (observe::Snapshot, observe::Observer) {
    let looker = std::thread::spawn(move || {
        let snapshot = observer.look(Duration::from_secs(30)).cloned();
        (snapshot, observer)
    });
    while !looker.is_finished() {
        net.rounds(10);
        std::thread::yield_now();
    }
    let (snapshot, observer) = looker.join().unwrap();
    (snapshot.expect("a worker that polls answers"), observer)
}

#[test]
fn a_snapshot_is_what_the_worker_counted() {
    let mut net = Net::default();
    let (observed, observer) = observe::pair();
    net.b.set_observed(Some(observed));
    let ah = net.ah(AhConfig::new(v4(2)));
    net.post_recv(1, 1000);
    for _ in 0..3 {
        let wr = net.wr(ah);
        net.a.post_send(net.qp[0], &wr, b"hello").unwrap();
        net.rounds(2);
    }
    let (snapshot, _) = look(&mut net, observer);
    let port = &snapshot.ports[0];
    assert_eq!(&port.counters, net.b.counters(0).unwrap());
    assert_eq!((port.counters.delivered, port.counters.dropped_total()), (1, 2));
    assert_eq!(port.driver, net.b.port_stats(0).unwrap());
    assert!(port.link_up);
    assert_eq!((snapshot.ports.len(), snapshot.qp_count, snapshot.qps.len()), (1, 1, 1));
    let qp = snapshot.qps[0];
    assert_eq!((Some(qp.qpn), qp.state, qp.port), (net.b.qpn(net.qp[1]), QpState::ReadyToSend, 0));
    assert_eq!((qp.counters.received, qp.counters.no_receive, qp.receives), (1, 2, 0));
}

#[test]
fn queue_pairs_beyond_the_sheet_are_counted() {
    let mut net = Net::default();
    let (observed, observer) = observe::pair();
    net.a.set_observed(Some(observed));
    for _ in 0..observe::MAX_QPS + 4 {
        net.a.create_qp(&QpConfig::new(net.cq[0])).unwrap();
    }
    let (snapshot, observer) = look(&mut net, observer);
    assert_eq!((snapshot.qps.len(), snapshot.qp_count), (observe::MAX_QPS, observe::MAX_QPS + 5));
    // A second look starts from an empty sheet.
    let (snapshot, mut observer) = look(&mut net, observer);
    assert_eq!((snapshot.ports.len(), snapshot.qps.len()), (1, observe::MAX_QPS));
    net.a.set_observed(None);
    net.rounds(10);
    assert!(observer.look(Duration::ZERO).is_none());
}
