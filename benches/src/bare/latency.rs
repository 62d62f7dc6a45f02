//! The bare loop of latency: one message at a time, there and back. Both sides spin.

use super::frame::{self, GRH, Template};
use super::port::Bare;
use super::ring::Ring;
use super::{PingArgs, PingResult};
use dpdk::Burst;
use std::error::Error;
use std::time::{Duration, Instant};

/// Empty polls between looks at the link and the clock.
const POLLS_PER_LOOK: u32 = 1 << 16;
/// After that long without a message the peer is taken for dead.
const SILENCE: Duration = Duration::from_millis(400);

/// One side's buffers.
struct Side {
    template: Template,
    out: Ring,
    inbox: Ring,
    crc: crc32fast::Hasher,
    burst: Burst<32>,
}

impl Side {
    fn new(size: usize) -> Side {
        Side {
            template: Template::new(size, frame::PEER),
            out: Ring::new(1, size),
            inbox: Ring::new(1, GRH + size),
            crc: frame::start(),
            burst: Burst::new(),
        }
    }

    /// Sends one message from the application's memory.
    #[inline]
    fn send(&mut self, bare: &mut Bare) -> Result<(), Box<dyn Error>> {
        while !bare.pool.alloc_bulk(&mut self.burst, 1) {}
        for packet in self.burst.iter_mut() {
            let frame = packet.append(self.template.frame_len()).ok_or("the frame has no room")?;
            self.template.write(self.out.next(), frame);
        }
        let mut polls = 0_u32;
        while bare.tx.tx_burst(&mut self.burst) == 0 {
            polls += 1;
            if polls == POLLS_PER_LOOK {
                return Err("the port takes nothing".into());
            }
        }
        Ok(())
    }

    /// Spins until a message has arrived and been copied to the application; false if the peer has gone.
    #[inline]
    fn receive(&mut self, bare: &mut Bare) -> Result<bool, Box<dyn Error>> {
        let mut polls = 0_u32;
        let mut since = None;
        while bare.rx.rx_burst(&mut self.burst) == 0 {
            polls += 1;
            if polls == POLLS_PER_LOOK {
                polls = 0;
                if !bare.link_up() || since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                    return Ok(false);
                }
            }
        }
        let mut intact = true;
        for packet in self.burst.iter() {
            let frame = packet.data();
            intact &= frame::intact(&self.crc, frame) && frame::deliver(frame, self.inbox.next_mut());
        }
        self.burst.clear();
        if intact { Ok(true) } else { Err("a message arrived broken".into()) }
    }
}

/// Answers until the peer has gone.
pub fn echo(bare: &mut Bare, args: &PingArgs) -> Result<(), Box<dyn Error>> {
    let mut side = Side::new(args.port.size);
    while side.receive(bare)? {
        side.send(bare)?;
    }
    Ok(())
}

/// Measures round trips.
pub fn ping(bare: &mut Bare, args: &PingArgs) -> Result<PingResult, Box<dyn Error>> {
    let mut side = Side::new(args.port.size);
    let mut times = vec![0_u64; args.iters.max(1)];
    for _ in 0..args.warmup {
        side.send(bare)?;
        if !side.receive(bare)? {
            return Err("the echo fell silent".into());
        }
    }
    for time in &mut times {
        let start = Instant::now();
        side.send(bare)?;
        if !side.receive(bare)? {
            return Err("the echo fell silent".into());
        }
        *time = start.elapsed().as_nanos() as u64;
    }
    // The echo's polling ends before this side disconnects; see `stream::send`.
    std::thread::sleep(SILENCE + SILENCE / 4);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(PingResult { iters: times.len(), min_ns: at(0.0), p50_ns: at(0.5), p99_ns: at(0.99) })
}
