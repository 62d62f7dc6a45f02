//! The end of a worker's thread, at moments that real threads seldom come to.

use super::*;
use crate::io::memory::{MemoryConfig, MemoryPort};
use crate::worker::{PortConfig, WorkerConfig};
use std::time::Duration;

/// The application takes nothing while the worker is told to stop: its completions fill the queue, and it holds the next.
#[test]
fn a_held_completion_is_not_lost_by_a_stop() {
    let (io, _peer) = MemoryPort::pair(&MemoryConfig::default());
    let port = PortConfig::new("192.0.2.1".parse().unwrap());
    let worker: Worker<_, Vec<u8>> = Worker::new(&WorkerConfig::default(), vec![(io, port)]).unwrap();
    let (mut side, mut end) = halves(worker, Vec::new(), &ThreadConfig::default(), Clock::new());
    let room = side.completions.room() as u64;
    for wr_id in 0..=room {
        assert_eq!(side.give(flush(Qpn::SMI, WcOpcode::Send, wr_id, None)), wr_id < room);
    }
    end.stop.store(true, Ordering::Release);
    let taken = std::thread::scope(|scope| {
        let ended = scope.spawn(|| side.run());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ended.is_finished(), "it holds one");
        let mut taken = Vec::new();
        while !ended.is_finished() {
            taken.extend(std::iter::from_fn(|| end.completions.pop()).map(|done| done.wr_id));
        }
        let (_, flushed) = ended.join().unwrap();
        assert!(flushed.is_empty());
        taken.extend(std::iter::from_fn(|| end.completions.pop()).map(|done| done.wr_id));
        taken
    });
    assert_eq!(taken, (0..=room).collect::<Vec<_>>());
}
