//! The bare loops: the least code that does the same copies and the same CRC over the same port. They are the limit that
//! the worker is measured against.
//!
//! Each runs as two processes, a receiver (`rx`, `echo`, `answer`) that waits and a sender (`tx`, `ping`, `window`). The side that measures
//! prints one line of JSON.

mod frame;
mod latency;
mod port;
mod ring;
mod stream;
mod window;

use clap::{Args, Subcommand};
use port::Bare;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::time::Duration;

/// Longest wait for the peer.
const PEER: Duration = Duration::from_secs(10);

/// The sides of the bare loops.
#[derive(Subcommand)]
pub enum Command {
    /// Send as fast as the port takes
    Tx(StreamArgs),
    /// Count what arrives intact
    Rx(StreamArgs),
    /// Answer each message with another
    Echo(PingArgs),
    /// Send a message, await the answer, and so on
    Ping(PingArgs),
    /// Say how many messages have come, each time that some do
    Answer(WindowArgs),
    /// Keep a window of messages under way
    Window(WindowArgs),
}

/// The port of either side.
#[derive(Args, Clone)]
pub struct PortArgs {
    /// DPDK device, in DPDK's own syntax; the buffer size is added
    #[arg(long)]
    pub port: String,
    /// Port MTU in bytes; both sides must agree
    #[arg(long, default_value_t = 4200)]
    pub mtu: u16,
    /// Processor to pin to
    #[arg(long)]
    pub core: Option<usize>,
    /// Bytes of a message
    #[arg(short, long, default_value_t = 64)]
    pub size: usize,
    /// MAC address that frames are sent to
    #[arg(long, value_name = "MAC", value_parser = station, default_value = "02:00:00:00:00:01")]
    pub peer: [u8; 6],
}

fn station(text: &str) -> Result<[u8; 6], String> {
    let bytes: Vec<u8> = text.split(':').map_while(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().map_err(|_| "six bytes in hexadecimal: 02:00:00:00:00:01".into())
}

/// Options of `tx` and `rx`.
#[derive(Args, Clone)]
pub struct StreamArgs {
    #[command(flatten)]
    pub port: PortArgs,
    /// Message buffers of the sending application
    #[arg(short, long, default_value_t = 128)]
    pub tx_depth: usize,
    /// Message buffers of the receiving application
    #[arg(short, long, default_value_t = 512)]
    pub rx_depth: usize,
    /// Packets at once: 8, 16, 32 or 64; what is best for the size if not given
    #[arg(long)]
    pub burst: Option<usize>,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 0.2)]
    pub warmup: f64,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 0.7)]
    pub seconds: f64,
}

impl StreamArgs {
    /// Packets at once: as many as stay in the nearer caches on their way, within the bounds that were found best.
    fn burst(&self) -> usize {
        const BYTES: usize = 64 << 10;
        let fit = (BYTES / frame_len(self.port.size)).clamp(16, 64);
        self.burst.unwrap_or(1 << fit.ilog2())
    }

    /// After which a side gives up, whatever the other does.
    fn limit(&self) -> Duration {
        PEER + Duration::from_secs_f64(self.warmup + self.seconds)
    }
}

/// Options of `echo` and `ping`.
#[derive(Args, Clone)]
pub struct PingArgs {
    #[command(flatten)]
    pub port: PortArgs,
    /// Round trips before the measurement
    #[arg(long, default_value_t = 10_000)]
    pub warmup: usize,
    /// Round trips of the measurement
    #[arg(short = 'n', long, default_value_t = 100_000)]
    pub iters: usize,
}

/// Options of `answer` and `window`.
#[derive(Args, Clone)]
pub struct WindowArgs {
    #[command(flatten)]
    pub port: PortArgs,
    /// Messages under way at the most
    #[arg(short, long, default_value_t = 32)]
    pub window: usize,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 0.2)]
    pub warmup: f64,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 0.7)]
    pub seconds: f64,
}

/// What `rx` and `window` print.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamResult {
    /// Messages that arrived intact within the window.
    pub messages: u64,
    /// Messages of the whole run that did not.
    pub broken: u64,
    /// The window in seconds.
    pub seconds: f64,
}

/// What `ping` prints: round-trip times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingResult {
    /// Round trips measured.
    pub iters: usize,
    /// The least.
    pub min_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// Ninety-nine of a hundred are no longer.
    pub p99_ns: u64,
}

/// The line that says that the port is there and the peer may start.
pub const READY: &str = "READY";

/// Runs one side.
pub fn run(command: &Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Tx(args) => {
            let mut bare = open(&args.port)?;
            bare.wait(PEER)?;
            let sent = match args.burst() {
                8 => stream::send::<8>(&mut bare, args),
                16 => stream::send::<16>(&mut bare, args),
                32 => stream::send::<32>(&mut bare, args),
                64 => stream::send::<64>(&mut bare, args),
                other => Err(bad_burst(other)),
            }?;
            eprintln!("sent {sent}");
        }
        Command::Rx(args) => {
            let mut bare = open(&args.port)?;
            println!("{READY}");
            let result = match args.burst() {
                8 => stream::receive::<8>(&mut bare, args),
                16 => stream::receive::<16>(&mut bare, args),
                32 => stream::receive::<32>(&mut bare, args),
                64 => stream::receive::<64>(&mut bare, args),
                other => Err(bad_burst(other)),
            }?;
            println!("{}", serde_json::to_string(&result)?);
        }
        Command::Echo(args) => {
            let mut bare = open(&args.port)?;
            println!("{READY}");
            bare.wait(PEER)?;
            latency::echo(&mut bare, args)?;
        }
        Command::Ping(args) => {
            let mut bare = open(&args.port)?;
            bare.wait(PEER)?;
            println!("{}", serde_json::to_string(&latency::ping(&mut bare, args)?)?);
        }
        Command::Answer(args) => {
            let mut bare = open(&args.port)?;
            println!("{READY}");
            bare.wait(PEER)?;
            window::answer(&mut bare, args)?;
        }
        Command::Window(args) => {
            let mut bare = open(&args.port)?;
            bare.wait(PEER)?;
            println!("{}", serde_json::to_string(&window::send(&mut bare, args)?)?);
        }
    }
    Ok(())
}

/// Bytes of the frame of a payload.
pub fn frame_len(payload: usize) -> usize {
    payload + frame::OVERHEAD
}

fn open(args: &PortArgs) -> Result<Bare, Box<dyn Error>> {
    // The MTU counts from the IP header on.
    if frame_len(args.size) - 14 > usize::from(args.mtu) {
        return Err(format!("messages of {} bytes do not fit an MTU of {}", args.size, args.mtu).into());
    }
    Bare::open(&args.port, args.mtu, args.core)
}

fn bad_burst(burst: usize) -> Box<dyn Error> {
    format!("bursts of {burst} are not built in: 8, 16, 32 or 64").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stations() {
        assert_eq!(station("02:00:00:00:00:01"), Ok(frame::PEER));
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:x:00:01"] {
            assert!(station(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn larger_packets_travel_in_smaller_bursts() {
        let burst = |size, burst| {
            let port = PortArgs { port: String::new(), mtu: 9000, core: None, size, peer: frame::PEER };
            StreamArgs { port, tx_depth: 1, rx_depth: 1, burst, warmup: 0.0, seconds: 0.0 }.burst()
        };
        assert_eq!([64, 1024, 4096, 8192].map(|size| burst(size, None)), [64, 32, 16, 16]);
        assert_eq!(burst(64, Some(8)), 8);
    }
}
