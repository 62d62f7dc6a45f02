//! Whole sessions over in-process ports: both ends, in threads of this process, with either form of worker.

mod strangers;

use super::*;
use crate::error::Exit;
use crate::rendezvous::message::{Message, TestKind};
use crate::traffic::drive::{Buf, Inline, Threaded};
use crate::traffic::pingpong::WARM_UP;
use dataplane::clock::Clock;
use dataplane::idle::IdlePolicy;
use dataplane::io::memory::{MemoryBuf, MemoryBurst, MemoryConfig, MemoryPort};
use dataplane::io::{PortInfo, PortIo, PortStats};
use dataplane::qp::QpCounters;
use dataplane::thread::{Endpoint, ThreadConfig};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use roce_proto::types::Mtu;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, channel};

/// No test lasts longer, however loaded the machine.
const LIMIT: Duration = Duration::from_secs(60);

const SERVER: &str = "192.0.2.1";
const CLIENT: &str = "192.0.2.2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Inline,
    Thread,
}

/// A port that loses about one packet in `every` of those that come to it; 0 loses none.
struct Lossy {
    port: MemoryPort,
    every: usize,
    since: usize,
    lost: Arc<AtomicU64>,
}

impl PortIo for Lossy {
    type Buf = MemoryBuf;
    type Burst = MemoryBurst;

    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn rx_burst(&mut self, burst: &mut MemoryBurst, max: usize) -> usize {
        if self.every > 0 && self.since + 1 >= self.every && self.port.take().is_some() {
            self.since = 0;
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        let n = self.port.rx_burst(burst, max);
        self.since += n;
        n
    }

    fn tx_burst(&mut self, burst: &mut MemoryBurst) -> usize {
        self.port.tx_burst(burst)
    }

    fn alloc(&mut self) -> Option<MemoryBuf> {
        self.port.alloc()
    }

    fn link_up(&self) -> bool {
        self.port.link_up()
    }

    fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

/// What an end does.
trait Act: Send + 'static {
    type Out: Send + 'static;
    fn act<D: Drive>(self, bench: Bench<D>) -> Self::Out;
}

/// An end that runs; what comes out of it, within [`LIMIT`].
struct Running<T>(Receiver<T>);

impl<T> Running<T> {
    fn out(self) -> T {
        self.0.recv_timeout(LIMIT).expect("the end neither ended nor failed")
    }
}

/// Opens an end in a thread of its own.
fn start<A: Act>(
    port: Lossy,
    config: PortConfig,
    form: Form,
    stop: Arc<AtomicBool>,
    act: A,
) -> Running<A::Out> {
    let (tell, out) = channel();
    std::thread::spawn(move || {
        let idle = IdlePolicy::BackOff { spins: 4, yields: 2000, max_sleep: Duration::from_millis(1) };
        let listen = config.addrs[0].ip.to_string() == SERVER;
        let clock = Clock::new();
        let mut worker: Worker<Lossy, Buf> =
            Worker::new(&WorkerConfig::default(), vec![(port, config)]).unwrap();
        let (data, control) = (worker.create_cq(MAX_OUTSTANDING), worker.create_cq(256));
        let result = match form {
            Form::Inline => {
                let drive = Inline::new(worker, [data, control], clock, idle);
                act.act(Bench::new(drive, data, control, listen, stop).unwrap())
            }
            Form::Thread => {
                let thread = ThreadConfig { idle, ..ThreadConfig::default() };
                let handle = Endpoint::start(worker, vec![data, control], &thread, clock, || Ok(())).unwrap();
                let drive = Threaded::new(handle, clock, idle);
                act.act(Bench::new(drive, data, control, listen, stop).unwrap())
            }
        };
        let _ = tell.send(result);
    });
    Running(out)
}

/// Two ends back to back.
struct Pair {
    form: Form,
    lose_every: usize,
    server_mtu: Option<Mtu>,
    server_stop: Arc<AtomicBool>,
    client_stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Pair {
    fn new(form: Form) -> Pair {
        Pair {
            form,
            lose_every: 0,
            server_mtu: None,
            server_stop: Arc::default(),
            client_stop: Arc::default(),
            lost: Arc::default(),
        }
    }

    fn start<S: Act, C: Act>(&self, server: S, client: C) -> (Running<S::Out>, Running<C::Out>) {
        let (a, b) = MemoryPort::pair(&MemoryConfig { mtu: 4200, ..MemoryConfig::default() });
        let lossy = |port| Lossy { port, every: self.lose_every, since: 0, lost: self.lost.clone() };
        let at = |ip: &str| PortConfig::new(ip.parse().unwrap());
        let server_config = PortConfig { ib_mtu: self.server_mtu, ..at(SERVER) };
        let server = start(lossy(a), server_config, self.form, self.server_stop.clone(), server);
        (server, start(lossy(b), at(CLIENT), self.form, self.client_stop.clone(), client))
    }
}

type Hook = Box<dyn FnMut() + Send>;

/// Serves, and keeps what it saw.
#[derive(Default)]
struct Serving {
    results: Vec<TestResult>,
    refusal: Option<String>,
    on_progress: Option<Hook>,
}

impl Watch for Serving {
    fn progress(&mut self, _: &TestSpec, _: u64, _: Duration) {
        if let Some(hook) = &mut self.on_progress {
            hook();
        }
    }
}

impl Serve for Serving {
    fn accept(&mut self, _: &TestSpec, _: usize) -> Result<(), String> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    fn began(&mut self, peer: IpAddr, _: &TestSpec) {
        assert_eq!(peer.to_string(), CLIENT);
    }

    fn ended(&mut self, result: TestResult) -> Result<(), Error> {
        self.results.push(result);
        Ok(())
    }
}

impl Act for Serving {
    type Out = (Result<(), Error>, Vec<TestResult>);

    fn act<D: Drive>(mut self, mut bench: Bench<D>) -> Self::Out {
        let outcome = bench.serve(&mut self);
        (outcome, self.results)
    }
}

/// Serves, and says what each of the last test's queue pairs counted.
struct Sharing;

impl Act for Sharing {
    type Out = Vec<QpCounters>;

    fn act<D: Drive>(self, mut bench: Bench<D>) -> Self::Out {
        bench.serve(&mut Serving::default()).unwrap();
        let keys = bench.qps.take().unwrap().keys;
        let counters =
            bench.drive.with_worker(move |w| keys.iter().map(|&k| w.qp_counters(k).unwrap()).collect());
        counters.unwrap()
    }
}

/// Runs tests, one after the other.
struct Run {
    specs: Vec<TestSpec>,
    on_progress: Option<Hook>,
}

impl Run {
    fn new(specs: impl IntoIterator<Item = TestSpec>) -> Run {
        Run { specs: specs.into_iter().collect(), on_progress: None }
    }
}

impl Watch for Run {
    fn progress(&mut self, _: &TestSpec, _: u64, _: Duration) {
        if let Some(hook) = &mut self.on_progress {
            hook();
        }
    }
}

impl Act for Run {
    type Out = Result<Vec<TestResult>, Error>;

    fn act<D: Drive>(mut self, bench: Bench<D>) -> Self::Out {
        let mut client = Client::new(bench, SERVER.parse().unwrap(), 77, Duration::from_secs(30));
        let specs = std::mem::take(&mut self.specs);
        let results = specs.iter().map(|spec| client.run(spec, &mut self)).collect();
        client.bye()?;
        results
    }
}

fn bw(size: u32, iters: u64) -> TestSpec {
    TestSpec {
        kind: TestKind::Bw,
        size,
        qps: 1,
        iters: Some(iters),
        duration_ms: None,
        tx_depth: 128,
        rx_depth: 512,
        bidirectional: false,
        rate: None,
    }
}

fn lasting(seconds: u64) -> TestSpec {
    TestSpec { iters: None, duration_ms: Some(seconds * 1000), ..bw(64, 0) }
}

fn lat(size: u32, iters: u64) -> TestSpec {
    TestSpec { kind: TestKind::Lat, tx_depth: 64, rx_depth: 64, ..bw(size, iters) }
}

fn drops(rx: &RxReport) -> u64 {
    rx.drops.iter().map(|(_, n)| n).sum()
}

/// Inline there is a receive for every packet. Behind queues there may be none, which then is counted.
fn assert_accounted(form: Form, sent: u64, rx: &RxReport) {
    assert_eq!(rx.messages + drops(rx), sent, "{form:?}: {rx:?}");
    if form == Form::Inline {
        assert_eq!(rx.messages, sent, "{rx:?}");
    }
    assert!(rx.drops.iter().all(|(reason, _)| reason == "no_receive"), "{rx:?}");
}

#[test]
fn every_message_of_an_exact_count_is_accounted_for_on_both_sides() {
    for form in [Form::Inline, Form::Thread] {
        let specs = [bw(64, 20_000), bw(4096, 3000), bw(1, 1), bw(0, 10)];
        let (server, client) = Pair::new(form).start(Serving::default(), Run::new(specs.clone()));
        let results = client.out().unwrap();
        let (outcome, seen) = server.out();
        outcome.unwrap();
        assert_eq!((results.len(), seen.len()), (4, 4));
        for ((spec, ours), theirs) in specs.iter().zip(&results).zip(&seen) {
            assert_eq!(ours.client.sent, spec.iters.unwrap());
            assert_accounted(form, ours.client.sent, &ours.server);
            assert_eq!(ours.server, theirs.server, "both sides say the same");
            assert_eq!(theirs.client.sent, ours.client.sent);
            assert_eq!((ours.client.messages, ours.interrupted), (0, false));
        }
    }
}

#[test]
fn both_directions_over_several_queue_pairs() {
    for form in [Form::Inline, Form::Thread] {
        let spec = TestSpec { bidirectional: true, qps: 4, ..bw(300, 8001) };
        let (server, client) = Pair::new(form).start(Serving::default(), Run::new([spec]));
        let result = client.out().unwrap().remove(0);
        server.out().0.unwrap();
        assert_eq!((result.client.sent, result.server.sent), (8001, 8001));
        assert_accounted(form, 8001, &result.server);
        assert_accounted(form, 8001, &result.client);
    }
}

#[test]
fn queue_pairs_take_turns_with_each_message() {
    // What is over goes to the first ones.
    let shares = [2668, 2667, 2667];
    for form in [Form::Inline, Form::Thread] {
        let spec = TestSpec { bidirectional: true, qps: 3, ..bw(300, 8002) };
        let (server, client) = Pair::new(form).start(Sharing, Run::new([spec]));
        let result = client.out().unwrap().remove(0);
        assert_accounted(form, 8002, &result.server);
        let counted = server.out();
        assert_eq!(counted.iter().map(|c| c.sent).collect::<Vec<_>>(), shares, "{form:?}");
        // Each of the client's sends to its like.
        let came = counted.iter().map(|c| c.received + c.no_receive);
        assert_eq!(came.collect::<Vec<_>>(), shares, "{form:?}");
    }
}

#[test]
fn the_rate_limit_is_kept() {
    let spec = TestSpec { rate: Some(10_000), ..lasting(2) };
    let (server, client) = Pair::new(Form::Inline).start(Serving::default(), Run::new([spec]));
    let result = client.out().unwrap().remove(0);
    server.out().0.unwrap();
    let rx = &result.server;
    let rate = (rx.messages - 1) as f64 / (rx.elapsed_ns as f64 / 1e9);
    assert!((rate / 10_000.0 - 1.0).abs() < 0.05, "{rate}");
    assert!(result.client.sent <= 20_001, "{}", result.client.sent);
    assert!(rx.intervals > 100 && rx.interval_min <= rx.interval_p1 && rx.interval_p1 <= rx.interval_p50);
}

#[test]
fn round_trips_are_counted_and_timed() {
    for form in [Form::Inline, Form::Thread] {
        let (server, client) =
            Pair::new(form).start(Serving::default(), Run::new([lat(64, 300), lat(2, 300)]));
        let results = client.out().unwrap();
        server.out().0.unwrap();
        for result in results {
            let rtt = result.rtt.unwrap();
            // An answer that a loaded machine delays by 200 ms counts as lost.
            assert!(rtt.len() <= 300 && rtt.len() + result.unanswered >= 300, "{}", rtt.len());
            assert!(result.unanswered < 30 && rtt.min() > 0 && rtt.max() >= rtt.value_at_percentile(50.0));
            assert_eq!(result.client.sent, 300 + WARM_UP);
            assert_eq!(result.server.messages, 300 + WARM_UP);
            assert_eq!(result.server.sent, 300 + WARM_UP);
        }
    }
}

#[test]
fn lost_packets_are_reported_and_lost_questions_repeated() {
    // Of the few control messages of a test every fourth is lost too: questions and answers must both be given again.
    for every in [4, 5, 7] {
        let pair = Pair { lose_every: every, ..Pair::new(Form::Inline) };
        let specs = vec![TestSpec { bidirectional: true, ..bw(64, 5000) }; 3];
        let (server, client) = pair.start(Serving::default(), Run::new(specs));
        let results = client.out().unwrap();
        let (outcome, seen) = server.out();
        outcome.unwrap();
        assert_eq!((results.len(), seen.len()), (3, 3));
        let mut missing = 0;
        for (ours, theirs) in results.iter().zip(&seen) {
            assert_eq!((ours.client.sent, ours.server.sent, &ours.server), (5000, 5000, &theirs.server));
            assert!(ours.server.messages < 5000 && ours.client.messages < 5000, "losses must show");
            missing += 10_000 - ours.server.messages - ours.client.messages;
        }
        let lost = pair.lost.load(Ordering::Relaxed);
        assert!(missing <= lost, "missing {missing}, lost with the control messages {lost}");
    }
}

#[test]
fn lost_pings_are_counted_and_the_test_goes_on() {
    let pair = Pair { lose_every: 100, ..Pair::new(Form::Inline) };
    let (server, client) = pair.start(Serving::default(), Run::new([lat(64, 300)]));
    let result = client.out().unwrap().remove(0);
    server.out().0.unwrap();
    assert!(result.unanswered >= 2, "{}", result.unanswered);
    let warming = result.client.sent - 300;
    assert!(result.rtt.unwrap().len() + result.unanswered <= 300 + warming);
}

#[test]
fn an_end_that_falls_silent_is_missed_by_the_other() {
    let hang = || -> Hook { Box::new(|| std::thread::sleep(SILENCE + Duration::from_secs(4))) };
    let ends = [Form::Inline, Form::Thread].map(|form| {
        let serving = Serving { on_progress: Some(hang()), ..Serving::default() };
        let silent_server = Pair::new(form).start(serving, Run::new([lasting(30)]));
        let run = Run { on_progress: Some(hang()), ..Run::new([lasting(30)]) };
        (silent_server, Pair::new(form).start(Serving::default(), run))
    });
    for ((_, client), (server, _)) in ends {
        let (mut ours, (server, mut theirs)) = (client.out().unwrap(), server.out());
        let (ours, theirs) = (ours.remove(0), theirs.remove(0));
        // What each knows is told all the same.
        assert!(ours.client.sent > 0 && ours.known(Side::Server).is_none() && !ours.interrupted);
        assert!(theirs.server.messages > 0 && theirs.sent(Side::Client).is_none() && !theirs.interrupted);
        let (client, server) = (ours.whole().unwrap_err(), server.unwrap_err());
        assert_eq!(theirs.failure.as_ref(), Some(&server));
        assert_eq!((client.exit, server.exit), (Exit::Failed, Exit::Failed));
        let (client, server) = (client.to_string(), server.to_string());
        assert!(client.contains("192.0.2.1 has not answered for 5 seconds"), "{client}");
        assert!(client.contains("the server was killed"), "{client}");
        assert!(server.contains("192.0.2.2 has been silent for 5 seconds, after "), "{server}");
        assert!(server.contains("the client was killed"), "{server}");
    }
}

#[test]
fn a_machine_that_stood_still_for_both_parts_nobody() {
    let hang_once = || -> Hook {
        let mut again = false;
        Box::new(move || {
            if !std::mem::replace(&mut again, true) {
                std::thread::sleep(SILENCE + Duration::from_secs(1));
            }
        })
    };
    let serving = Serving { on_progress: Some(hang_once()), ..Serving::default() };
    let run = Run { on_progress: Some(hang_once()), ..Run::new([lasting(1), bw(64, 100)]) };
    let (server, client) = Pair::new(Form::Inline).start(serving, run);
    let results = client.out().unwrap();
    server.out().0.unwrap();
    assert_eq!((results.len(), results[1].server.messages), (2, 100));
}

#[test]
fn a_stop_of_the_client_gives_what_there_is() {
    for spec in [lasting(40), TestSpec { iters: None, duration_ms: Some(40_000), ..lat(64, 0) }] {
        let pair = Pair::new(Form::Inline);
        let stop = pair.client_stop.clone();
        let hook: Hook = Box::new(move || stop.store(true, Ordering::Relaxed));
        let run = Run { on_progress: Some(hook), ..Run::new([spec]) };
        let started = std::time::Instant::now();
        let (server, client) = pair.start(Serving::default(), run);
        let result = client.out().unwrap().remove(0);
        let (outcome, seen) = server.out();
        outcome.unwrap();
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(result.interrupted && result.client.sent > 0);
        assert_eq!(result.server.messages, result.client.sent);
        assert_eq!(seen[0].server, result.server);
    }
}

#[test]
fn a_stop_of_the_server_is_told_to_the_client() {
    let pair = Pair::new(Form::Inline);
    let stop = pair.server_stop.clone();
    let hook: Hook = Box::new(move || stop.store(true, Ordering::Relaxed));
    let serving = Serving { on_progress: Some(hook), ..Serving::default() };
    let (server, client) = pair.start(serving, Run::new([lasting(40)]));
    let ours = client.out().unwrap().remove(0);
    assert!(ours.client.sent > 0 && ours.known(Side::Server).is_none() && !ours.interrupted);
    let error = ours.whole().unwrap_err();
    assert_eq!(error.exit, Exit::Failed);
    assert!(error.to_string().contains("the server ended the session"), "{error}");
    let (outcome, seen) = server.out();
    assert_eq!(outcome.unwrap_err().exit, Exit::Interrupted);
    // It has what came until then, and does not know what was sent.
    let theirs = &seen[0];
    assert!(theirs.interrupted && theirs.failure.is_none() && theirs.server.messages > 0);
    assert_eq!(theirs.sent(Side::Client), None);
}

#[test]
fn without_a_server_the_client_says_what_is_missing() {
    struct Nothing;
    impl Act for Nothing {
        type Out = ();
        fn act<D: Drive>(self, mut bench: Bench<D>) {
            // There, but with no server: answers ARP.
            let end = bench.drive.now() + Duration::from_secs(3);
            while bench.drive.now() < end {
                bench.idle_round();
            }
        }
    }
    struct Impatient;
    impl Act for Impatient {
        type Out = Error;
        fn act<D: Drive>(self, bench: Bench<D>) -> Error {
            let mut client = Client::new(bench, "192.0.2.99".parse().unwrap(), 1, Duration::from_millis(300));
            client.run(&bw(64, 1), &mut Run::new([])).unwrap_err()
        }
    }
    let (_there, client) = Pair::new(Form::Inline).start(Nothing, Impatient);
    let error = client.out().to_string();
    assert!(error.contains("192.0.2.99 did not answer within 0.3 s"), "{error}");
    assert!(error.contains("ARP"), "{error}");
}

#[test]
fn what_cannot_be_run_is_refused_with_the_numbers() {
    let check = |spec: TestSpec| check_spec(&spec, 4096).unwrap_err();
    assert_eq!(check_spec(&bw(4096, 1), 4096), Ok(()));
    let long = check(bw(4097, 1));
    assert!(long.contains("4097 bytes do not fit the IB MTU of 4096; use -s 4096"), "{long}");
    let many = check(TestSpec { qps: 200, ..bw(64, 1) });
    assert!(many.contains("200 queue pairs of depth 128 + 512 are 128 k requests"), "{many}");
    assert!(many.contains("65536") && many.contains("lower -q, -t or -r"), "{many}");
    for none in [
        TestSpec { qps: 0, ..bw(64, 1) },
        TestSpec { tx_depth: 0, ..bw(64, 1) },
        TestSpec { rx_depth: 0, ..bw(64, 1) },
    ] {
        assert!(check(none).contains("at least 1"));
    }
    assert!(check(TestSpec { iters: None, ..bw(64, 1) }).contains("for a duration"));
    assert!(check(TestSpec { duration_ms: Some(1), ..bw(64, 1) }).contains("for a duration"));
}
