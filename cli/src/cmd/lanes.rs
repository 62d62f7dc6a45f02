//! `bw` with several workers: each has a thread, a session with the other side's worker of the same index, and its share of the
//! test; results are put together.

use super::bw::{BwArgs, Measured, Report};
use super::measure::{Progress, idle_for, open_config, resolve, seed};
use crate::endpoint::{Crew, Endpoint, OpenConfig};
use crate::error::{Error, Exit};
use crate::rendezvous::message::{TestKind, TestSpec};
use crate::report::Table;
use crate::report::table::Align::{Left, Right};
use crate::signal::Stop;
use crate::traffic::drive::{Buf, Inline};
use crate::traffic::merge;
use crate::traffic::session::{Bench, Client, Lane, MAX_OUTSTANDING, Serve, TestResult, Watch};
use dataplane::clock::Clock;
use dataplane::group::{Group, Member, MemberCounters};
use dataplane::idle::{IdlePolicy, pin_current_thread};
use dataplane::io::dpdk::DpdkPort;
use dataplane::worker::{Worker, WorkerConfig};
use dpdk::{Eal, Rss};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What came out of all lanes.
pub struct Outcome {
    /// The results of the tests, and their end.
    pub measured: Measured,
    /// What each worker and queue moved, as JSON.
    pub queues: Value,
}

/// Runs the command with all its workers.
///
/// # Errors
/// Those of opening the port, and the first one that a lane met.
pub fn run(args: &BwArgs, verbosity: u8, stop: &Stop, mut report: Report<'_>) -> Result<Outcome, Error> {
    let config =
        OpenConfig { queues: args.queues, workers: args.workers, ..open_config(&args.common, verbosity) };
    let endpoint = Endpoint::open(&args.common.endpoint, &config, stop)?;
    let policy = endpoint.idle();
    let idle = idle_for(policy, policy == IdlePolicy::default(), usize::from(args.workers));
    let cores: Vec<Option<usize>> = (0..usize::from(args.workers)).map(|i| endpoint.core(i)).collect();
    let worker_config = WorkerConfig { seed: seed(), ..WorkerConfig::default() };
    let Crew { group, workers, rss, environment } = endpoint.into_group(args.workers, &worker_config)?;
    tell_spread(&group, rss);
    let shared = Shared {
        args,
        clock: Clock::new(),
        idle,
        stop,
        eal: environment.eal.clone(),
        group: group.clone(),
        results: Mutex::new(vec![Vec::new(); usize::from(args.workers)]),
    };
    let ended = shared.run_all(workers, &cores, &mut report);
    environment.close();
    if report.results.is_empty() {
        ended?;
        return Err(Error::failed("no test was run"));
    }
    let uneven = group.warn_if_uneven();
    let members = group.counters();
    report.lines(&queue_table(&members).to_string())?;
    let queues = json!({
        "count": group.queues(),
        "rss": { "ip": rss.ip, "udp_ports": rss.udp },
        "uneven": uneven.map(|u| u.queue),
        "workers": members.iter().enumerate().map(worker_json).collect::<Vec<_>>(),
    });
    Ok(Outcome { measured: Measured { results: report.results, ended }, queues })
}

/// Says in the log how packets find their queue.
fn tell_spread(group: &Group, rss: Rss) {
    let (queues, workers) = (group.queues(), group.owners().workers());
    match (queues, rss) {
        (1, _) => {
            tracing::info!("{workers} workers share one queue: what it brings is handed on in software")
        }
        (_, Rss { udp: true, .. }) => {
            tracing::info!("{queues} queues, filled by a hash of IP addresses and UDP ports");
        }
        (_, Rss { ip: true, .. }) => tracing::warn!(
            "{queues} queues, filled by a hash of IP addresses alone: all that one peer sends comes by the same queue"
        ),
        _ => tracing::info!(
            "{queues} queues, filled as the driver or the sender chooses: the port has no hash of its own"
        ),
    }
}

/// What all lanes need.
struct Shared<'a> {
    args: &'a BwArgs,
    clock: Clock,
    idle: IdlePolicy,
    stop: &'a Stop,
    eal: Eal,
    group: Group,
    /// By lane.
    results: Mutex<Vec<Vec<TestResult>>>,
}

/// The worker of a lane, and where it runs.
struct Seat {
    worker: Worker<Member<DpdkPort>, Buf>,
    lane: Lane,
    index: usize,
    core: Option<usize>,
}

type LaneBench = Bench<Inline<Member<DpdkPort>>>;

impl Shared<'_> {
    /// Runs every lane, the first one in this thread; true if they were interrupted.
    fn run_all(
        &self,
        workers: Vec<Worker<Member<DpdkPort>, Buf>>,
        cores: &[Option<usize>],
        report: &mut Report<'_>,
    ) -> Result<bool, Error> {
        let mut workers: Vec<_> = workers.into_iter().map(Some).collect();
        let lanes = Lane::side_by_side(self.group.owners()).into_iter().enumerate();
        let mut seats = lanes.filter_map(|(index, (worker, lane))| {
            let core = cores.get(index).copied().flatten();
            Some(Seat { worker: workers.get_mut(worker)?.take()?, lane, index, core })
        });
        let Some(first) = seats.next() else { return Err(Error::failed("no worker")) };
        let rest: Vec<Seat> = seats.collect();
        let ended = std::thread::scope(|scope| {
            let threads: Vec<_> = rest
                .into_iter()
                .map(|seat| {
                    let name = format!("spraywire-lane{}", seat.index);
                    std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                        let _guard = self.eal.register_thread().map_err(Error::failed)?;
                        self.lane(seat, None)
                    })
                })
                .collect();
            let mut outcomes = vec![self.lane(first, Some(report))];
            for thread in threads {
                outcomes.push(match thread.map(std::thread::ScopedJoinHandle::join) {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) => Err(Error::failed("a worker's thread ended by itself")),
                    Err(e) => Err(Error::failed(format_args!("cannot start a thread: {e}"))),
                });
            }
            verdict(outcomes, self.any_results())
        });
        self.rest(report)?;
        ended
    }

    /// One lane, from its first round to its last. `report` is with the first.
    fn lane(&self, seat: Seat, report: Option<&mut Report<'_>>) -> Result<bool, Error> {
        let ending = seat.lane.ending();
        let outcome = self.open(seat).and_then(|(mut bench, index)| {
            let outcome = match &self.args.common.host {
                Some(host) => {
                    let (outcome, back) = self.client(bench, index, host, report);
                    bench = back;
                    outcome
                }
                None => self.server(&mut bench, index, report),
            };
            if outcome.is_err() {
                // The others cannot go on without it.
                self.stop.request();
            }
            bench.stay_for_others(ending);
            outcome
        });
        if outcome.is_err() {
            self.stop.request();
        }
        outcome
    }

    fn open(&self, seat: Seat) -> Result<(LaneBench, usize), Error> {
        let Seat { mut worker, lane, index, core } = seat;
        if let Some(core) = core {
            pin_current_thread(core).map_err(Error::usage)?;
        }
        let cqs = [worker.create_cq(MAX_OUTSTANDING), worker.create_cq(256)];
        let listen = self.args.common.host.is_none();
        let drive = Inline::new(worker, cqs, self.clock, self.idle);
        let bench = Bench::in_lane(drive, cqs[0], cqs[1], listen, self.stop.flag(), lane)?;
        Ok((bench, index))
    }

    fn keep(&self, index: usize, result: TestResult) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(results) = results.get_mut(index) {
            results.push(result);
        }
    }

    fn any_results(&self) -> bool {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|lane| !lane.is_empty())
    }

    /// Test number `at`, of all lanes that got so far.
    fn merged(&self, at: usize) -> Option<TestResult> {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<TestResult> = results.iter().filter_map(|lane| lane.get(at).cloned()).collect();
        merge::results(&parts)
    }

    /// Reports what has not been.
    fn rest(&self, report: &mut Report<'_>) -> Result<(), Error> {
        while let Some(result) = self.merged(report.results.len()) {
            report.row(&result)?;
        }
        Ok(())
    }

    fn client(
        &self,
        bench: LaneBench,
        index: usize,
        host: &str,
        report: Option<&mut Report<'_>>,
    ) -> (Result<bool, Error>, LaneBench) {
        let ip = match resolve(host, false) {
            Ok(ip) => ip,
            Err(e) => return (Err(e), bench),
        };
        let mut client = Client::new(bench, ip, seed(), self.args.common.wait);
        let outcome = self.tests(&mut client, index, report);
        // The server is told in any case, so that it does not have to wait for our silence.
        let bye = client.bye();
        (outcome.and_then(|interrupted| bye.map(|()| interrupted)), client.into_bench())
    }

    /// The tests of a client's lane, each at the same time as the other lanes'.
    fn tests(
        &self,
        client: &mut Client<Inline<Member<DpdkPort>>>,
        index: usize,
        mut report: Option<&mut Report<'_>>,
    ) -> Result<bool, Error> {
        let specs = self.args.specs(client.ib_mtu()?)?;
        for (at, spec) in specs.iter().enumerate() {
            let part = merge::part_of(spec, index, usize::from(self.args.workers));
            let result = match &mut report {
                Some(report) => {
                    let progress = &mut report.progress;
                    client.run(&part, &mut ClientLane { group: &self.group, progress })?
                }
                None => client.run(&part, &mut Quiet)?,
            };
            let interrupted = result.interrupted;
            let failed = result.failure.clone();
            self.keep(index, result);
            if let Some(e) = failed {
                return Err(e);
            }
            if interrupted {
                return Ok(true);
            }
            client.meet()?;
            if let Some(report) = &mut report
                && let Some(merged) = self.merged(at)
            {
                report.row(&merged)?;
            }
        }
        Ok(false)
    }

    fn server(
        &self,
        bench: &mut LaneBench,
        index: usize,
        report: Option<&mut Report<'_>>,
    ) -> Result<bool, Error> {
        let (addrs, mtu) = bench.addresses()?;
        let mut lane = ServerLane { shared: self, index, report };
        if let Some(report) = &mut lane.report {
            let at = addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            report.progress.show(&format!("waiting for a client at {at} (IB MTU {mtu})"), true);
        }
        bench.serve(&mut lane).map(|()| false)
    }
}

/// What the end of all lanes is: an error that is more than an interruption, or whether they were interrupted.
fn verdict(outcomes: Vec<Result<bool, Error>>, any_results: bool) -> Result<bool, Error> {
    let (mut interrupted, mut stopped) = (false, None);
    for outcome in outcomes {
        match outcome {
            Ok(one) => interrupted |= one,
            Err(e) if e.exit == Exit::Interrupted => stopped = Some(e),
            Err(e) => return Err(e),
        }
    }
    match stopped {
        // What was measured before the signal is reported.
        Some(e) if !any_results => Err(e),
        stopped => Ok(interrupted || stopped.is_some()),
    }
}

/// Watches and says nothing: another lane does.
struct Quiet;

impl Watch for Quiet {}

/// The first lane of a client, which also looks at what each queue takes.
struct ClientLane<'a> {
    group: &'a Group,
    progress: &'a mut Progress,
}

impl Watch for ClientLane<'_> {
    fn waiting(&mut self, host: IpAddr, elapsed: Duration) {
        self.progress.waiting(host, elapsed);
    }

    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        self.progress.progress(spec, messages, elapsed);
        self.group.warn_if_uneven();
    }
}

/// A server's lane.
struct ServerLane<'a, 'b, 'c> {
    shared: &'a Shared<'a>,
    index: usize,
    report: Option<&'b mut Report<'c>>,
}

impl Watch for ServerLane<'_, '_, '_> {
    fn progress(&mut self, spec: &TestSpec, messages: u64, elapsed: Duration) {
        if let Some(report) = &mut self.report {
            report.progress.progress(spec, messages, elapsed);
            self.shared.group.warn_if_uneven();
        }
    }
}

impl Serve for ServerLane<'_, '_, '_> {
    fn accept(&mut self, spec: &TestSpec, _mtu: usize) -> Result<(), String> {
        TestKind::Bw.accepts(spec.kind)
    }

    fn began(&mut self, peer: IpAddr, spec: &TestSpec) {
        tracing::info!("{peer} runs {spec:?} with worker {}", self.index);
    }

    fn ended(&mut self, result: TestResult) -> Result<(), Error> {
        self.shared.keep(self.index, result);
        Ok(())
    }
}

fn worker_json((index, m): (usize, &MemberCounters)) -> Value {
    json!({
        "worker": index,
        "queue": m.queue,
        "rx_packets": m.rx,
        "tx_packets": m.tx,
        "tx_for_others": m.lent,
        "steered_in": m.steered_in,
        "steered_out": m.steered_out,
        "steer_full": m.steer_full,
        "copies_in": m.news_in,
        "copies_lost": m.news_lost,
    })
}

/// One row for each worker: what its queue moved, and what passed between it and the others.
fn queue_table(members: &[MemberCounters]) -> Table {
    let columns = [
        ("worker", Right),
        ("queue", Right),
        ("  received", Right),
        (" share", Right),
        ("      sent", Right),
        ("handed over", Right),
        ("taken over", Right),
        ("dropped between", Left),
    ];
    let mut table = Table::new(columns);
    let all: u64 = members.iter().map(|m| m.rx).sum();
    for (index, m) in members.iter().enumerate() {
        let of_queue = |text: String| if m.queue.is_some() { text } else { "-".to_owned() };
        table.row([
            index.to_string(),
            m.queue.map_or("-".to_owned(), |q| q.to_string()),
            of_queue(m.rx.to_string()),
            of_queue(format!("{:.0} %", m.rx as f64 * 100.0 / all.max(1) as f64)),
            of_queue(m.tx.to_string()),
            m.steered_out.to_string(),
            m.steered_in.to_string(),
            m.steer_full.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_counts_more_than_the_interruption_it_caused() {
        let interrupted = || Err(Error::interrupted());
        let e = verdict(vec![interrupted(), Err(Error::failed("x")), Ok(false)], true).unwrap_err();
        assert_eq!(e.exit, Exit::Failed);
        assert!(verdict(vec![Ok(false), interrupted()], true).unwrap());
        assert_eq!(verdict(vec![interrupted(), interrupted()], false).unwrap_err().exit, Exit::Interrupted);
        assert!(!verdict(vec![Ok(false), Ok(false)], true).unwrap());
    }

    #[test]
    fn a_worker_without_a_queue_has_no_share_of_what_the_port_received() {
        let members = [
            MemberCounters { queue: Some(0), rx: 300, tx: 7, steered_out: 100, ..MemberCounters::default() },
            MemberCounters { queue: Some(1), rx: 100, steer_full: 3, ..MemberCounters::default() },
            MemberCounters { steered_in: 97, ..MemberCounters::default() },
        ];
        let text = queue_table(&members).to_string();
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["0", "0", "300", "75", "%", "7", "100", "0", "0"]);
        assert_eq!(rows[1], ["1", "1", "100", "25", "%", "0", "0", "0", "3"]);
        assert_eq!(rows[2], ["2", "-", "-", "-", "-", "0", "97", "0"]);
    }
}
