//! Workers in threads of their own, over memory ports: real threads and queues, no DPDK.

use dataplane::ah::{AhConfig, AhKey, AhState};
use dataplane::clock::Clock;
use dataplane::cq::{Completion, WcOpcode, WcStatus};
use dataplane::io::memory::{MemoryConfig, MemoryPort};
use dataplane::qp::{CqKey, GRH_LEN, PostError, QpConfig, QpKey, QpState, RecvWr, SendWr};
use dataplane::thread::{Endpoint, Remains, StartError, ThreadConfig};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use roce_proto::types::{QKey, Qpn};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

type Handle = Endpoint<MemoryPort, Vec<u8>>;

struct End {
    handle: Handle,
    qp: QpKey,
    qpn: Qpn,
    cq: CqKey,
    clock: Clock,
}

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn worker(io: MemoryPort, last: u8) -> (Worker<MemoryPort, Vec<u8>>, CqKey, QpKey) {
    let mut worker = Worker::new(&WorkerConfig::default(), vec![(io, PortConfig::new(ip(last)))]).unwrap();
    let cq = worker.create_cq(4096);
    let config = QpConfig { send_depth: 1024, recv_depth: 1024, ..QpConfig::new(cq) };
    let qp = worker.create_qp(&config).unwrap();
    (worker, cq, qp)
}

fn start(io: MemoryPort, last: u8, queue: usize, clock: Clock) -> End {
    let (worker, cq, qp) = worker(io, last);
    let qpn = worker.qpn(qp).unwrap();
    let config = ThreadConfig { queue, ..ThreadConfig::default() };
    let handle = Endpoint::start(worker, vec![cq], &config, clock, || Ok(())).unwrap();
    End { handle, qp, qpn, cq, clock }
}

fn pair(queue: usize) -> (End, End, AhKey) {
    let clock = Clock::new();
    let (a, b) = MemoryPort::pair(&MemoryConfig::default());
    let (a, b) = (start(a, 1, queue, clock), start(b, 2, queue, clock));
    let now = clock.now();
    let ah = a.handle.call(move |w| w.create_ah(&AhConfig::new(ip(2)), now)).unwrap().unwrap();
    eventually(|| a.handle.call(move |w| w.ah_state(ah)).unwrap() == Some(AhState::Ready));
    (a, b, ah)
}

fn eventually(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "did not happen within 20 s");
        std::thread::yield_now();
    }
}

fn wr(ah: AhKey, dst_qpn: Qpn) -> SendWr {
    SendWr { wr_id: 7, ah, dst_qpn, qkey: QKey(0x1111_1111), imm: None, solicited: false, signaled: true }
}

fn post_recvs(end: &mut End, count: u64) {
    for wr_id in 0..count {
        let mut buf = vec![0; GRH_LEN + 8];
        eventually(|| match end.handle.post_recv(end.qp, RecvWr { wr_id, buf: std::mem::take(&mut buf) }) {
            Ok(()) => true,
            Err((e, back)) => {
                assert_eq!(e, PostError::PortBusy);
                buf = back;
                false
            }
        });
    }
    end.handle.flush();
}

/// The number that a message carries.
fn number(done: &Completion<Vec<u8>>) -> u64 {
    let buf = done.buf.as_ref().unwrap();
    u64::from_be_bytes(buf[GRH_LEN..GRH_LEN + 8].try_into().unwrap())
}

#[test]
fn lists_arrive_in_order_and_every_buffer_comes_back() {
    const N: u64 = 20_000;
    let (mut a, mut b, ah) = pair(256);
    post_recvs(&mut b, 1000);
    let wr = wr(ah, b.qpn);
    let mut bufs: Vec<Vec<u8>> = (0..100).map(|_| vec![0; 8]).collect();
    let (mut posted, mut got) = (0u64, 0u64);
    let mut again = VecDeque::new();
    eventually(|| {
        // Far fewer on the way than receives exist, many of which may be on their way back to the worker: a datagram that
        // found none would be dropped.
        let room = (300 - (posted - got)).min(N - posted) as usize;
        let mut ready: Vec<_> = bufs.drain(..room.min(bufs.len())).collect();
        for (n, buf) in (posted..).zip(&mut ready) {
            buf.copy_from_slice(&n.to_be_bytes());
        }
        let mut ready = ready.into_iter();
        posted += a.handle.post_send_list(a.qp, &wr, 8, &mut ready) as u64;
        bufs.extend(ready);
        bufs.extend(std::iter::from_fn(|| a.handle.reclaim()));
        assert!(a.handle.poll_cq().is_none(), "lists are unsignaled");
        while let Some(done) = b.handle.poll_cq() {
            assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::Recv));
            assert_eq!(number(&done), got);
            got += 1;
            again.push_back(RecvWr { wr_id: done.wr_id, buf: done.buf.unwrap() });
        }
        while let Some(wr) = again.pop_front() {
            let wr_id = wr.wr_id;
            if let Err((e, buf)) = b.handle.post_recv(b.qp, wr) {
                assert_eq!(e, PostError::PortBusy);
                again.push_front(RecvWr { wr_id, buf });
                break;
            }
        }
        b.handle.flush();
        got == N
    });
    eventually(|| {
        bufs.extend(std::iter::from_fn(|| a.handle.reclaim()));
        bufs.len() == 100
    });
}

#[test]
fn stopping_loses_no_completion() {
    let (mut a, mut b, ah) = pair(256);
    post_recvs(&mut b, 500);
    let wr = wr(ah, b.qpn);
    let mut sent = 0;
    for n in 0..500u64 {
        let mut buf = n.to_be_bytes().to_vec();
        eventually(|| match a.handle.post_send(a.qp, &wr, 8, std::mem::take(&mut buf)) {
            Ok(()) => true,
            Err((_, back)) => {
                buf = back;
                sent += std::iter::from_fn(|| a.handle.poll_cq()).count();
                false
            }
        });
    }
    // Whatever was posted is carried out, though nobody takes a completion meanwhile.
    let Remains { worker, completions: rest, .. } = a.handle.stop().unwrap();
    assert_eq!(sent + rest.len(), 500);
    assert!(
        rest.iter().all(|c| c.status == WcStatus::Success && c.opcode == WcOpcode::Send && c.buf.is_some())
    );
    assert_eq!(worker.counters(0).unwrap().tx_packets, 500);
    let qp = b.qp;
    eventually(|| b.handle.call(move |w| w.qp_counters(qp).unwrap().received).unwrap() == 500);
    let rest = b.handle.stop().unwrap().completions;
    let (done, unused): (Vec<_>, Vec<_>) = rest.into_iter().partition(|c| c.status == WcStatus::Success);
    assert!(unused.iter().all(|c| c.status == WcStatus::WorkRequestFlushed));
    assert_eq!(done.iter().map(number).collect::<Vec<_>>(), (0..500).collect::<Vec<_>>());
}

#[test]
fn stopping_sends_the_lists_that_the_port_still_takes_and_returns_every_buffer() {
    for _ in 0..5 {
        let (mut a, b, ah) = pair(2048);
        let wr = wr(ah, b.qpn);
        let mut bufs = (0..1024).map(|_| vec![0; 8]);
        let mut posted = 0;
        while let n @ 1.. = a.handle.post_send_list(a.qp, &wr, 8, &mut bufs) {
            posted += n;
        }
        assert_eq!(posted, 1024);
        let Remains { worker, completions, buffers } = a.handle.stop().unwrap();
        assert_eq!(buffers.len(), posted);
        assert!(completions.is_empty(), "{:?}", completions.first());
        assert_eq!(worker.counters(0).unwrap().tx_packets, 1024);
    }
}

#[test]
fn stopping_ends_what_a_dead_port_does_not_take() {
    let (mut a, b, ah) = pair(2048);
    let wr = wr(ah, b.qpn);
    drop(b);
    let mut bufs = (0..512).map(|_| vec![0; 8]);
    while a.handle.post_send_list(a.qp, &wr, 8, &mut bufs) > 0 {}
    let Remains { worker, completions, buffers } = a.handle.stop().unwrap();
    assert_eq!(buffers.len(), 512);
    assert!(completions.iter().all(|c| c.status == WcStatus::WorkRequestFlushed));
    // Those in the burst that the driver refuses are copied already: they are the worker's, unsent.
    let unsent = worker.outstanding(a.qp) as usize;
    assert_eq!(worker.counters(0).unwrap().tx_packets as usize + unsent + completions.len(), 512);
}

/// A list that the port took a part of: the others are flushed, and those that it took are not.
#[test]
fn stopping_ends_a_list_that_is_half_sent() {
    let (mut a, b, ah) = pair(2048);
    let wr = wr(ah, b.qpn);
    drop(b);
    // A burst holds 64, of which ten are another list's.
    for count in [10, 64] {
        let mut bufs = (0..count).map(|_| vec![0; 8]);
        assert_eq!(a.handle.post_send_list(a.qp, &wr, 8, &mut bufs), count);
        a.handle.flush();
    }
    let Remains { worker, completions, buffers } = a.handle.stop().unwrap();
    assert_eq!(buffers.len(), 74);
    assert_eq!(worker.outstanding(a.qp), 64, "in the burst that nobody takes");
    assert_eq!(completions.len(), 10);
    assert!(completions.iter().all(|c| c.status == WcStatus::WorkRequestFlushed && c.wr_id == 7));
}

#[test]
fn a_full_receive_queue_fails_its_own_requests_and_no_others() {
    let (mut a, _b, _) = pair(256);
    let (small, cq_depth) = (a.qp, 1024);
    let other = a.handle.call(move |w| {
        let cq = w.create_cq(16);
        w.create_qp(&QpConfig { recv_depth: 4, ..QpConfig::new(cq) }).unwrap()
    });
    let other = other.unwrap();
    for wr_id in 0..5 {
        a.handle.post_recv(other, RecvWr { wr_id, buf: vec![0; 64] }).map_err(|e| e.0).unwrap();
    }
    a.handle.post_recv(small, RecvWr { wr_id: 9, buf: vec![0; 64] }).map_err(|e| e.0).unwrap();
    a.handle.flush();
    let mut failed = None;
    eventually(|| {
        failed = failed.take().or_else(|| a.handle.poll_cq());
        failed.is_some()
    });
    let failed = failed.unwrap();
    assert_eq!((failed.wr_id, failed.status), (4, WcStatus::LocalQpOperationError));
    assert_eq!(failed.buf.unwrap().len(), 64);
    // The receive behind it was posted: the queue pair has one place less.
    for wr_id in 0..cq_depth {
        let mut buf = vec![0; 64];
        // A worker that sleeps takes its time, and the queue to it is shorter than the queue pair's.
        while let Err((_, back)) = a.handle.post_recv(small, RecvWr { wr_id, buf }) {
            buf = back;
            a.handle.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    a.handle.flush();
    eventually(|| a.handle.poll_cq().is_some_and(|c| c.status == WcStatus::LocalQpOperationError));
}

#[test]
fn requests_that_cannot_be_carried_out_complete_in_error_with_their_buffers() {
    let (mut a, b, ah) = pair(256);
    let good = wr(ah, b.qpn);
    let failed = |a: &mut End| {
        a.handle.flush();
        let mut done = None;
        eventually(|| {
            done = a.handle.poll_cq();
            done.is_some()
        });
        let done = done.unwrap();
        assert_eq!(done.status, WcStatus::LocalQpOperationError);
        done
    };
    // Larger than the MTU; longer than its buffer; by a handle that does not exist; to a queue pair that does not.
    a.handle.post_send(a.qp, &good, 5000, vec![0; 5000]).unwrap();
    assert_eq!(failed(&mut a).buf.unwrap().len(), 5000);
    a.handle.post_send(a.qp, &good, 9, vec![0; 8]).unwrap();
    assert_eq!(failed(&mut a).buf.unwrap().len(), 8);
    a.handle.post_send(a.qp, &SendWr { ah: AhKey::default(), ..good }, 8, vec![0; 8]).unwrap();
    failed(&mut a);
    // To an address that nobody has: not held, since it would hold up all that come after it.
    let now = a.clock.now();
    let nobody = a.handle.call(move |w| w.create_ah(&AhConfig::new(ip(77)), now)).unwrap().unwrap();
    a.handle.post_send(a.qp, &SendWr { ah: nobody, ..good }, 6, vec![0; 6]).unwrap();
    assert_eq!(failed(&mut a).buf.unwrap().len(), 6);
    a.handle.post_recv(QpKey::default(), RecvWr { wr_id: 3, buf: vec![0; 77] }).unwrap();
    let done = failed(&mut a);
    assert_eq!((done.wr_id, done.opcode, done.buf.unwrap().len()), (3, WcOpcode::Recv, 77));
    // In a list: the second of three is too short for the length.
    let mut list = vec![vec![0; 8], vec![0; 7], vec![0; 8]].into_iter();
    assert_eq!(a.handle.post_send_list(a.qp, &good, 8, &mut list), 3);
    assert_eq!(failed(&mut a).opcode, WcOpcode::Send);
    let mut back = Vec::new();
    eventually(|| {
        back.extend(std::iter::from_fn(|| a.handle.reclaim()));
        back.len() == 3
    });
    eventually(|| a.handle.call(|w| w.counters(0).unwrap().tx_packets).unwrap() == 2);
}

#[test]
fn a_thread_that_cannot_start_says_why() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let (w, cq, _) = worker(io, 1);
    let config = ThreadConfig { core: Some(100_000), ..ThreadConfig::default() };
    match Endpoint::start(w, vec![cq], &config, Clock::new(), || Ok(())) {
        Err(StartError::Pin(e)) => assert_eq!(e.core, 100_000),
        other => panic!("{:?}", other.err()),
    }
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let (w, cq, _) = worker(io, 1);
    let refused = Endpoint::start(w, vec![cq], &ThreadConfig::default(), Clock::new(), || {
        Err::<(), _>("no lcore left".to_owned())
    });
    assert!(refused.err().unwrap().to_string().contains("no lcore left"));
}

#[test]
fn an_idle_worker_thread_sleeps() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let (w, cq, _) = worker(io, 1);
    let handle: Handle =
        Endpoint::start(w, vec![cq], &ThreadConfig::default(), Clock::new(), || Ok(())).unwrap();
    let cpu = || handle.call(|_| rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
    // The moment that it takes to go from spinning over yielding to the longest sleeps.
    std::thread::sleep(Duration::from_millis(500));
    let (before, started) = (cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (after, elapsed) = (cpu(), started.elapsed());
    let used = (after.tv_sec - before.tv_sec) as f64 + (after.tv_nsec - before.tv_nsec) as f64 / 1e9;
    assert!(used < 0.05 * elapsed.as_secs_f64(), "{used} s of CPU in {elapsed:?}");
}

#[test]
fn receives_go_back_with_their_completions() {
    const N: u64 = 20_000;
    const RECVS: u64 = 200;
    let (mut a, mut b, ah) = pair(256);
    post_recvs(&mut b, RECVS);
    let wr = wr(ah, b.qpn);
    let mut bufs: Vec<Vec<u8>> = (0..100).map(|_| vec![0; 8]).collect();
    let (mut posted, mut got, mut ids) = (0u64, 0u64, Vec::new());
    eventually(|| {
        // A third of the receives at the most is on its way, so that none is missing when a datagram comes.
        let room = (RECVS / 3 - (posted - got)).min(N - posted) as usize;
        let mut ready: Vec<_> = bufs.drain(..room.min(bufs.len())).collect();
        for (n, buf) in (posted..).zip(&mut ready) {
            buf.copy_from_slice(&n.to_be_bytes());
        }
        let mut ready = ready.into_iter();
        posted += a.handle.post_send_list(a.qp, &wr, 8, &mut ready) as u64;
        bufs.extend(ready);
        bufs.extend(std::iter::from_fn(|| a.handle.reclaim()));
        b.handle.consume(50, |done| {
            assert_eq!((done.status, done.opcode, done.qpn), (WcStatus::Success, WcOpcode::Recv, b.qpn));
            assert_eq!(number(done), got);
            ids.push(done.wr_id);
            got += 1;
            true
        });
        got == N
    });
    // Each receive was used in its turn, again and again, by its own name.
    assert!(ids.iter().zip((0..RECVS).cycle()).all(|(id, want)| *id == want), "{ids:?}");
    // They are all there at the end, in the queue pair or as flushed.
    let Remains { mut worker, completions, .. } = b.handle.stop().unwrap();
    assert!(completions.iter().all(|done| done.status == WcStatus::WorkRequestFlushed));
    worker.modify_qp(b.qp, QpState::Error).unwrap();
    worker.poll(b.clock.now());
    let mut left = completions.len() as u64;
    while let Some(done) = worker.cq(b.cq).unwrap().pop() {
        assert_eq!(done.status, WcStatus::WorkRequestFlushed);
        left += 1;
    }
    assert_eq!(left, RECVS);
}
