//! What the simulator's swarm found, each as small as it can be.

use crate::basic::{calm, config, pair};
use crate::net::Net;
use roce_proto::transport::{Config, Operation, Status};
use roce_proto::wire::shim::Kind;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// What one side lets the other send, and what that side lets itself, are two numbers: the receive of a message between them is
/// announced.
#[test]
fn a_message_of_more_than_the_allowance_goes_whatever_the_other_side_allows() {
    let small = Config { allowance: 2, ..config() };
    for (a, b) in [(config(), small), (small, config())] {
        let mut net = Net::new(1, calm(), &[a, b]);
        net.open(0, 1);
        for (from, to) in [(0, 1), (1, 0)] {
            net.receive(to, from, 1, 3_000);
            net.send(from, to, 1, 3_000);
        }
        net.run(SECOND, |net| (0..2).all(|at| net.completions(at, Operation::Recv, Status::Success) == 1));
    }
}

#[test]
fn a_long_message_whose_receive_is_short_is_told_so() {
    let mut net = pair();
    net.open(0, 1);
    // Short receives are not announced by themselves, and the message waits for its own.
    net.receive(1, 0, 1, 10);
    net.send(0, 1, 1, 200_000);
    net.run(SECOND, |net| {
        net.completions(0, Operation::Send, Status::TooLong) == 1
            && net.completions(1, Operation::Recv, Status::TooLong) == 1
    });
    // Whoever waits asks ever more rarely.
    net.send(0, 1, 2, 200_000);
    let probes = |net: &Net| net.hosts[0].engine.counters().sent(Kind::Probe);
    let before = probes(&net);
    net.pass(Duration::from_secs(10));
    assert!((5..20).contains(&(probes(&net) - before)), "{}", probes(&net) - before);
}

/// A program that waits for one message before it posts the receive of the next, in another order than its peer sends.
#[test]
fn receives_in_another_order_than_the_sends_do_not_wait_for_the_grant() {
    for ahead in [false, true] {
        let mut net = Net::new(1, calm(), &[config(), Config { allowance: 4, ..config() }]);
        net.open(0, 1);
        if ahead {
            net.receive(1, 0, 9, 100);
        }
        for tag in 0..10 {
            net.send(0, 1, tag, 100);
        }
        for (done, tag) in (0..10).rev().enumerate() {
            if !ahead || tag != 9 {
                net.receive(1, 0, tag, 100);
            }
            net.run(SECOND, |net| net.completions(1, Operation::Recv, Status::Success) == done + 1);
        }
        net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 10);
        net.assert_idle();
    }
}
