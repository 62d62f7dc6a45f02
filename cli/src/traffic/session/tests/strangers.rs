//! Clients that are refused, and what only looks like one.

use super::*;
use crate::rendezvous::message::VERSION;
use crate::rendezvous::{CONTROL_QPN, Peer};

fn refused<A: Act<Out = Result<Vec<TestResult>, Error>>>(pair: &Pair, serving: Serving, client: A) -> String {
    pair.server_stop.store(false, Ordering::Relaxed);
    let (server, client) = pair.start(serving, client);
    let error = client.out().unwrap_err();
    pair.server_stop.store(true, Ordering::Relaxed);
    assert_eq!(server.out().0.unwrap_err().exit, Exit::Interrupted);
    assert_eq!(error.exit, Exit::Usage, "{error}");
    error.to_string()
}

#[test]
fn a_server_refuses_with_its_reason() {
    let pair = Pair::new(Form::Inline);
    let serving = Serving { refusal: Some("only on Sundays".to_owned()), ..Serving::default() };
    let said = refused(&pair, serving, Run::new([bw(64, 1)]));
    assert!(said.contains("192.0.2.1 refused the test: only on Sundays"), "{said}");
    let pair = Pair { server_mtu: Mtu::from_bytes(1024), ..pair };
    let said = refused(&pair, Serving::default(), Run::new([bw(2000, 1)]));
    assert!(said.contains("2000 bytes do not fit the IB MTU of 1024"), "{said}");
}

/// Says hello in a version that does not exist, and returns the refusal.
struct FromTheFuture;

impl Act for FromTheFuture {
    type Out = Result<Vec<TestResult>, Error>;

    fn act<D: Drive>(self, mut bench: Bench<D>) -> Self::Out {
        let peer = Peer { ip: SERVER.parse().unwrap(), qpn: Qpn::new(CONTROL_QPN).unwrap() };
        let hello = Message::Hello { v: 9, id: 5, test: 1, qpn: 77, mtu: 4096, workers: 1, spec: bw(1, 1) };
        loop {
            bench.control.send(&mut bench.drive, peer, &hello)?;
            bench.linger()?;
            if let Some((_, Message::Refuse { id: 5, why })) = bench.control.next_message() {
                return Err(Error::usage(why));
            }
        }
    }
}

#[test]
fn versions_that_differ_refuse_each_other() {
    let said = refused(&Pair::new(Form::Inline), Serving::default(), FromTheFuture);
    assert!(said.contains("version 1, the client 9"), "{said}");
}

/// A session, and while it lasts the hello of another client.
struct Two;

impl Act for Two {
    type Out = Result<Vec<TestResult>, Error>;

    fn act<D: Drive>(self, bench: Bench<D>) -> Self::Out {
        let mut watch = Run::new([]);
        let mut client = Client::new(bench, SERVER.parse().unwrap(), 1, Duration::from_secs(30));
        let first = client.run(&bw(64, 100), &mut watch)?;
        assert_eq!(first.server.messages, 100);
        client.id = 2;
        client.test = 0;
        client.run(&bw(64, 100), &mut watch).map(|second| vec![first, second])
    }
}

#[test]
fn one_client_at_a_time() {
    let said = refused(&Pair::new(Form::Inline), Serving::default(), Two);
    assert!(said.contains("another client is being served"), "{said}");
}

/// A hello, as anybody can forge it, then nothing for too long, then a session. It wants messages sent to whom it names.
struct OneWord {
    unasked: Arc<AtomicU64>,
}

impl Act for OneWord {
    type Out = Result<Vec<TestResult>, Error>;

    fn act<D: Drive>(self, mut bench: Bench<D>) -> Self::Out {
        let peer = Peer { ip: SERVER.parse().unwrap(), qpn: Qpn::new(CONTROL_QPN).unwrap() };
        let spec = TestSpec { bidirectional: true, ..bw(1, 100_000) };
        let hello = Message::Hello { v: VERSION, id: 5, test: 1, qpn: 77, mtu: 4096, workers: 1, spec };
        while !matches!(bench.control.next_message(), Some((_, Message::Welcome { id: 5, .. }))) {
            bench.control.send(&mut bench.drive, peer, &hello)?;
            bench.linger()?;
        }
        let until = std::time::Instant::now() + SILENCE + Duration::from_secs(1);
        let frames =
            |bench: &mut Bench<D>| bench.drive.with_worker(|w| w.counters(0).unwrap().rx_packets).unwrap();
        let before = frames(&mut bench);
        while std::time::Instant::now() < until {
            bench.idle_round();
            bench.control.pump(&mut bench.drive)?;
        }
        self.unasked.store(frames(&mut bench) - before, Ordering::Relaxed);
        let mut client = Client::new(bench, SERVER.parse().unwrap(), 77, Duration::from_secs(30));
        // A server that stood still for a while waits for so much longer.
        let result = loop {
            match client.run(&bw(64, 100), &mut Run::new([])) {
                Err(e) if e.message().contains("another client") => {
                    std::thread::sleep(Duration::from_millis(200))
                }
                result => break result,
            }
            client.test = 0;
        };
        client.bye()?;
        result.map(|result| vec![result])
    }
}

#[test]
fn a_hello_and_nothing_more_ends_no_server() {
    let unasked = Arc::new(AtomicU64::new(0));
    let act = OneWord { unasked: unasked.clone() };
    let (server, client) = Pair::new(Form::Inline).start(Serving::default(), act);
    let results = client.out().unwrap();
    // Its welcome may be there twice, and somebody may ask for a MAC address.
    let unasked = unasked.load(Ordering::Relaxed);
    assert!(unasked < 10, "{unasked} packets to whom a stranger named");
    assert_eq!(results[0].server.messages, 100);
    let (outcome, seen) = server.out();
    outcome.unwrap();
    assert_eq!(seen.len(), 1, "of what nobody sent, nothing is told");
}

/// Has something long to say to an address that there is no way to; whether what is left of that disturbs what comes after it.
struct NoWay;

impl Act for NoWay {
    type Out = (bool, Result<(), Error>);

    fn act<D: Drive>(self, mut bench: Bench<D>) -> Self::Out {
        let nobody = Peer { ip: "224.0.0.1".parse().unwrap(), qpn: Qpn::new(CONTROL_QPN).unwrap() };
        let long = Message::Refuse { id: 1, why: "x".repeat(10_000) };
        let refused = bench.control.send(&mut bench.drive, nobody, &long).is_err();
        (refused, (0..3).try_for_each(|_| bench.control.pump(&mut bench.drive)))
    }
}

#[test]
fn what_cannot_be_said_to_somebody_is_nobody_elses_matter() {
    let (_server, client) = Pair::new(Form::Inline).start(NoWay, NoWay);
    let (refused, later) = client.out();
    assert!(refused);
    later.unwrap();
}
