//! Messages to a peer that are far apart: what is not saved by waiting is not waited for, and no timer is left over.

use crate::basic::{config, pair};
use crate::net::{Net, Weather};
use roce_proto::transport::{Operation, Status};
use roce_proto::wire::shim::Kind;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Sends one message, and says how long it took until the sender knew that it had arrived.
fn one(net: &mut Net) -> Duration {
    let (from, before) = (net.now, net.completions(0, Operation::Send, Status::Success));
    net.receive(1, 0, 1, 100);
    net.send(0, 1, 1, 100);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) > before);
    net.now - from
}

fn feedbacks(net: &Net) -> u64 {
    net.hosts[1].engine.counters().sent(Kind::Feedback)
}

/// A session over a network with a round trip of 2 ms, an eighth of which is what feedback waits.
fn slow() -> Net {
    let weather = Weather { delay: Duration::from_millis(1), ..Weather::default() };
    let mut net = Net::new(1, weather, &[config(), config()]);
    net.open(0, 1);
    net.pass(Duration::from_millis(10));
    net
}

/// The same after a message that came alone, when the next would be answered at once; and the feedback of until then.
fn sparse() -> (Net, u64) {
    let mut net = slow();
    one(&mut net);
    net.pass(Duration::from_millis(3));
    let before = feedbacks(&net);
    (net, before)
}

#[test]
fn a_message_that_comes_alone_is_answered_at_once_when_waiting_was_in_vain() {
    let mut net = slow();
    let first = one(&mut net);
    assert!(first > Duration::from_micros(2_200), "{first:?}: the first waits for others");
    let before = feedbacks(&net);
    for _ in 0..20 {
        net.pass(Duration::from_millis(3));
        let took = one(&mut net);
        assert!(took < Duration::from_micros(2_050), "{took:?}");
    }
    assert_eq!(feedbacks(&net) - before, 20, "one for each, as if it had waited");
    let c = net.hosts[0].engine.counters();
    assert_eq!((c.retransmitted, c.sent(Kind::Data)), (0, 21));
}

#[test]
fn messages_that_come_close_together_share_their_feedback_again() {
    let (mut net, before) = sparse();
    for _ in 0..100 {
        net.receive(1, 0, 1, 100);
        net.send(0, 1, 1, 100);
        net.pass(Duration::from_micros(50));
    }
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 101);
    // One for the first, and then one for five.
    let some = feedbacks(&net) - before;
    assert!((15..=30).contains(&some), "{some} for 100 messages");
}

#[test]
fn the_first_segment_of_a_longer_message_is_not_answered_by_itself() {
    let (mut net, before) = sparse();
    // Its last segment, the short one, comes in a round of its own, within the delay of a feedback.
    net.detour = |bytes| Duration::from_micros(if bytes.len() < 1_000 { 100 } else { 0 });
    net.receive(1, 0, 1, 1_500);
    net.send(0, 1, 1, 1_500);
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 2);
    net.pass(Duration::from_millis(3));
    assert_eq!(feedbacks(&net) - before, 1);
}

#[test]
fn a_session_without_anything_in_flight_has_nothing_due_but_its_keep_alive() {
    let mut net = pair();
    net.open(0, 1);
    net.pass(Duration::from_millis(100));
    one(&mut net);
    let now = net.now;
    let due = net.hosts[0].engine.next_deadline().expect("a keep-alive");
    assert!(due > now + SECOND, "{:?}", due - now);
    // A loss is still found after that.
    net.filter = |bytes| bytes.first() != Some(&0x10);
    net.receive(1, 0, 1, 100);
    net.send(0, 1, 1, 100);
    net.pass(Duration::from_micros(5));
    net.filter = |_| true;
    net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 2);
    assert_eq!(net.hosts[0].engine.counters().retransmitted, 1);
}
