//! The bare loop of throughput: one side sends as fast as the port takes, the other counts what arrives intact.

use super::frame::{self, GRH, Template};
use super::port::Bare;
use super::ring::Ring;
use super::{StreamArgs, StreamResult};
use dpdk::Burst;
use std::error::Error;
use std::time::{Duration, Instant};

/// The clock is read once in so many rounds.
const ROUNDS_PER_LOOK: u32 = 64;
/// The sender goes on for that long after the receiver's window should have ended.
const MARGIN: Duration = Duration::from_millis(250);

/// Turns of a wait after the ring was found full by the sender, or without a whole burst by the receiver: some
/// microseconds, in which the other side works on a ring that nobody looks into. On the machines this was tried on, it gains
/// up to a tenth, most where the two processors share a core.
const PAUSE: u32 = 64;

fn pause() {
    for _ in 0..PAUSE {
        std::hint::spin_loop();
    }
}

/// Sends bursts of `N` for as long as the receiver measures; returns how many messages the port took.
///
/// It ends by the clock and not when the receiver has gone, so that neither side ever polls a port whose peer disconnects.
pub fn send<const N: usize>(bare: &mut Bare, args: &StreamArgs) -> Result<u64, Box<dyn Error>> {
    let template = Template::new(args.port.size, args.port.peer);
    let frame_len = template.frame_len();
    let mut messages = Ring::new(args.tx_depth, args.port.size);
    let mut burst = Burst::<N>::new();
    let mut sent = 0_u64;
    let mut look = 0;
    let until = Instant::now() + Duration::from_secs_f64(args.warmup + args.seconds) + MARGIN;
    loop {
        if burst.is_empty() && bare.pool.alloc_bulk(&mut burst, N) {
            for packet in burst.iter_mut() {
                let Some(frame) = packet.append(frame_len) else {
                    return Err("the frame has no room".into());
                };
                template.write(messages.next(), frame);
            }
        }
        sent += bare.tx.tx_burst(&mut burst) as u64;
        if !burst.is_empty() {
            pause();
        }
        look += 1;
        if look == ROUNDS_PER_LOOK {
            look = 0;
            if Instant::now() > until {
                return Ok(sent);
            }
        }
    }
}

/// What the receiver counted.
#[derive(Clone, Copy, Default)]
struct Count {
    messages: u64,
    broken: u64,
}

/// Receives: waits for the first message, warms up, counts for the window, and waits for the sender's end
/// without polling the port.
pub fn receive<const N: usize>(bare: &mut Bare, args: &StreamArgs) -> Result<StreamResult, Box<dyn Error>> {
    let mut receiver = Receiver::<N> {
        messages: Ring::new(args.rx_depth, GRH + args.port.size),
        frame_len: super::frame_len(args.port.size),
        burst: Burst::new(),
        crc: frame::start(),
        count: Count::default(),
    };
    let until = Instant::now() + args.limit();
    while receiver.round(bare) == 0 {
        if Instant::now() > until {
            return Err("no message came".into());
        }
    }
    receiver.run(bare, Duration::from_secs_f64(args.warmup));
    let before = receiver.count;
    let took = receiver.run(bare, Duration::from_secs_f64(args.seconds));
    let messages = receiver.count.messages - before.messages;
    let broken = receiver.count.broken;
    // Only where the sender's end is to be seen, and where its port would be missed.
    while bare.link_follows_peer() && bare.link_up() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(StreamResult { messages, broken, seconds: took.as_secs_f64() })
}

struct Receiver<const N: usize> {
    messages: Ring,
    frame_len: usize,
    burst: Burst<N>,
    crc: crc32fast::Hasher,
    count: Count,
}

impl<const N: usize> Receiver<N> {
    /// Runs for that long; returns how long it was.
    fn run(&mut self, bare: &mut Bare, window: Duration) -> Duration {
        let start = Instant::now();
        loop {
            for _ in 0..ROUNDS_PER_LOOK {
                if self.round(bare) < N {
                    pause();
                }
            }
            let took = start.elapsed();
            if took >= window {
                return took;
            }
        }
    }

    /// One burst.
    #[inline]
    fn round(&mut self, bare: &mut Bare) -> usize {
        let n = bare.rx.rx_burst(&mut self.burst);
        let (mut good, mut others) = (0, 0);
        for packet in self.burst.iter() {
            let frame = packet.data();
            if frame.len() != self.frame_len {
                // The kernel, where it has the other end, says something of its own now and then.
                others += 1;
            } else if frame::intact(&self.crc, frame) && frame::deliver(frame, self.messages.next_mut()) {
                good += 1;
            }
        }
        self.count.messages += good;
        self.count.broken += n as u64 - good - others;
        self.burst.clear();
        n
    }
}
