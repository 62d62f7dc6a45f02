//! The bare loop of a window: so many messages are under way and no more, and small frames say how many have come. It does for each message what the
//! bare loop of throughput does. What a network and the processors leave of a window is what this makes of it.

use super::frame::{self, GRH, HEADER, Template};
use super::port::Bare;
use super::ring::Ring;
use super::{StreamResult, WindowArgs};
use dpdk::Burst;
use std::error::Error;
use std::time::{Duration, Instant};

/// Packets at once.
const BURST: usize = 32;
/// Empty rounds before the processor is left to others: there may be more processes than processors.
const SPINS: u32 = 64;
/// Rounds between looks at the clock.
const ROUNDS_PER_LOOK: u32 = 16;
/// After that long without a message, beyond what a round trip may take, the peer is taken for gone.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer: the number of messages that have come, and what makes it as long as feedback is.
const ANSWER: usize = 60;

/// What both sides do in a round that found nothing.
#[derive(Default)]
struct Rest(u32);

impl Rest {
    fn after_round(&mut self, moved: bool) {
        self.0 = if moved { 0 } else { self.0.saturating_add(1) };
        if self.0 > SPINS {
            std::thread::yield_now();
        }
    }
}

/// Sends what is in the burst, whole.
fn send_all(bare: &mut Bare, burst: &mut Burst<BURST>) {
    while !burst.is_empty() {
        bare.tx.tx_burst(burst);
    }
}

/// Answers each burst with the number of messages that have come, until none come any more.
pub fn answer(bare: &mut Bare, args: &WindowArgs) -> Result<(), Box<dyn Error>> {
    let template = Template::new(ANSWER, args.port.peer);
    let mut messages = Ring::new(args.window.clamp(64, 1024), GRH + args.port.size);
    let (crc, mut burst, mut rest) = (frame::start(), Burst::<BURST>::new(), Rest::default());
    let (mut came, mut look, mut heard) = (0_u64, 0, None::<Instant>);
    loop {
        let n = bare.rx.rx_burst(&mut burst);
        for packet in burst.iter() {
            if !(frame::intact(&crc, packet.data()) && frame::deliver(packet.data(), messages.next_mut())) {
                return Err("a message arrived broken".into());
            }
        }
        burst.clear();
        came += n as u64;
        if n > 0 && bare.pool.alloc_bulk(&mut burst, 1) {
            let mut payload = [0; ANSWER];
            payload[..8].copy_from_slice(&came.to_be_bytes());
            for packet in burst.iter_mut() {
                let frame = packet.append(template.frame_len()).ok_or("the frame has no room")?;
                template.write(&payload, frame);
            }
            send_all(bare, &mut burst);
        }
        look += 1;
        if n > 0 {
            heard = None;
        } else if came > 0
            && look % ROUNDS_PER_LOOK == 0
            && heard.get_or_insert_with(Instant::now).elapsed() > SILENCE
        {
            return Ok(());
        }
        rest.after_round(n > 0);
    }
}

/// Keeps a window of messages under way; counts those that are known to have come.
pub fn send(bare: &mut Bare, args: &WindowArgs) -> Result<StreamResult, Box<dyn Error>> {
    let template = Template::new(args.port.size, args.port.peer);
    let mut messages = Ring::new(args.window.clamp(64, 1024), args.port.size);
    let (crc, mut burst, mut rest) = (frame::start(), Burst::<BURST>::new(), Rest::default());
    let (mut sent, mut came, mut look) = (0_u64, 0_u64, 0_u32);
    let start = Instant::now();
    let [warm, end] = [args.warmup, args.warmup + args.seconds].map(Duration::from_secs_f64);
    // When the measurement began, and what had come by then.
    let mut since: Option<(Instant, u64)> = None;
    loop {
        let answers = bare.rx.rx_burst(&mut burst);
        for packet in burst.iter() {
            let count = packet.data().get(HEADER..HEADER + 8).and_then(|bytes| bytes.try_into().ok());
            match count.map(u64::from_be_bytes).filter(|_| frame::intact(&crc, packet.data())) {
                Some(count) => came = came.max(count),
                None => return Err("an answer arrived broken".into()),
            }
        }
        burst.clear();
        let room = (args.window as u64).saturating_sub(sent - came.min(sent));
        let room = room.min(BURST as u64) as usize;
        if room > 0 && bare.pool.alloc_bulk(&mut burst, room) {
            for packet in burst.iter_mut() {
                let frame = packet.append(template.frame_len()).ok_or("the frame has no room")?;
                template.write(messages.next(), frame);
            }
            sent += room as u64;
            send_all(bare, &mut burst);
        }
        look += 1;
        if look % ROUNDS_PER_LOOK == 0 {
            let now = Instant::now();
            match since {
                None if now - start >= warm => since = Some((now, came)),
                Some((began, before)) if now - start >= end => {
                    let messages = came - before;
                    return Ok(StreamResult { messages, broken: 0, seconds: (now - began).as_secs_f64() });
                }
                _ => {}
            }
        }
        rest.after_round(answers > 0 || room > 0);
    }
}
