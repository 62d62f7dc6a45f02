//! Small messages that share packets.

use crate::basic::{calm, config};
use crate::net::{Net, Weather};
use roce_proto::transport::{Config, Mechanisms, Operation, Status};
use roce_proto::wire::shim::{Kind, Semantics};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Sends messages of these sizes from 0 to 1, posted together; returns the network when they are there.
fn send(weather: Weather, config: &Config, sizes: &[usize]) -> Net {
    let mut net = Net::new(5, weather, &[*config, *config]);
    net.open(0, 1);
    for size in sizes {
        net.receive(1, 0, 9, *size);
        net.send(0, 1, 9, *size);
    }
    net.run(20 * SECOND, |net| {
        net.completions(1, Operation::Recv, Status::Success) == sizes.len()
            && net.completions(0, Operation::Send, Status::Success) == sizes.len()
    });
    net.assert_idle();
    net
}

/// Packets with data that host 0 sent, and segments in them.
fn packets(net: &Net) -> (u64, u64) {
    let c = net.hosts[0].engine.counters();
    (c.sent(Kind::Data) - c.bundled, c.sent(Kind::Data))
}

#[test]
fn small_messages_that_wait_together_share_packets() {
    // A packet holds a segment of 1,000 bytes and its header of 60: 100 + 60 go six times into that.
    let net = send(calm(), &config(), &[100; 60]);
    assert_eq!(packets(&net), (10, 60));
    assert_eq!(net.hosts[1].engine.counters().placed, 60);
    // Nothing but headers: 17 of them.
    assert_eq!(packets(&send(calm(), &config(), &[0; 17])), (1, 17));
    assert_eq!(packets(&send(calm(), &config(), &[0; 18])), (2, 18));
    // To the byte: 60 + 470 twice are 1,060.
    assert_eq!(packets(&send(calm(), &config(), &[470, 470])), (1, 2));
    assert_eq!(packets(&send(calm(), &config(), &[470, 471])), (2, 2));
}

/// Messages whose class may be protected, and is not so near by; and behind protected ones, whose parity goes first.
#[test]
fn tagged_messages_share_packets_where_they_have_no_parity() {
    for (delay, alone) in [(10, 0), (1_000, 4)] {
        let weather = Weather { delay: Duration::from_micros(delay), ..calm() };
        let mut net = Net::new(5, weather, &[config(), config()]);
        net.open(0, 1);
        net.pass(Duration::from_millis(10));
        let control = Semantics { class: 3, ..Semantics::default() };
        let untagged = Semantics::default();
        let kinds = [(4, control), (60, if alone == 0 { control } else { untagged })];
        let all: Vec<_> = kinds.into_iter().flat_map(|(n, kind)| std::iter::repeat_n(kind, n)).collect();
        for semantics in &all {
            net.receive(1, 0, 9, 100);
            net.send_tagged(0, 1, (9, 100), *semantics);
        }
        net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == all.len());
        let parity = net.hosts[0].engine.counters().sent(Kind::Parity);
        assert_eq!(parity > 0, alone > 0);
        // Six to a packet, where the turns of 16 segments leave so many.
        let (packets, segments) = packets(&net);
        assert!(segments == 64 && packets - alone <= 14, "{packets} packets, {parity} parity");
        assert_eq!(net.hosts[0].engine.counters().retransmitted, 0);
    }
}

#[test]
fn it_can_be_turned_off() {
    let net = send(
        calm(),
        &Config { mechanisms: Mechanisms { bundle: false, ..Mechanisms::default() }, ..config() },
        &[100; 60],
    );
    assert_eq!(packets(&net), (60, 60));
}

#[test]
fn segments_of_longer_messages_go_alone() {
    // Three segments, of which the last is small, and a message that would go with it.
    let net = send(calm(), &config(), &[2_010, 10]);
    assert_eq!(packets(&net), (4, 4));
    // The other way around, nothing of a longer message goes behind a small one.
    let net = send(calm(), &config(), &[10, 2_010]);
    assert_eq!(packets(&net), (4, 4));
}

#[test]
fn messages_to_different_peers_do_not_share_packets() {
    let mut net = Net::new(6, calm(), &[config(); 3]);
    net.open(0, 1);
    net.open(0, 2);
    for to in [1, 2, 1, 2] {
        net.receive(to, 0, 9, 10);
        net.send(0, to, 9, 10);
    }
    net.run(SECOND, |net| {
        [1, 2].iter().all(|at| net.completions(*at, Operation::Recv, Status::Success) == 2)
    });
    assert_eq!(packets(&net), (2, 4));
}

#[test]
fn what_shared_a_lost_packet_is_repaired_whole_and_in_shared_packets() {
    for paths in [1, 4] {
        let lossy = Weather { loss: 200, ..calm() };
        let net = send(lossy, &Config { paths, ..config() }, &[60; 400]);
        let c = net.hosts[0].engine.counters();
        assert!(c.retransmitted > 20, "{paths} paths: {} sent again", c.retransmitted);
        let (packets, segments) = packets(&net);
        assert_eq!(segments, 400 + c.retransmitted);
        // Eight to a packet, were there no losses: those sent again share packets too, if not always as many.
        assert!(packets * 5 < segments, "{paths} paths: {packets} packets with {segments} segments");
    }
}
