//! An endpoint that runs, seen by its operators: `spraywire stats` by a socket of its own, and metrics by HTTP.
//!
//! Both are served by threads beside the poll loop, which answers through [`dataplane::observe`] and does nothing while nobody
//! asks.

pub mod http;
pub mod metrics;
#[cfg(feature = "dpdk")]
pub mod telemetry;

use crate::error::Error;
use clap::Args;
use dataplane::buffer::Buffer;
use dataplane::idle::allowed_cores;
use dataplane::io::PortIo;
use dataplane::worker::Worker;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;

pub use dataplane::observe::socket as runtime;
pub use dataplane::observe::{Name, Probe};

/// Where metrics are served if no address is given: a port that Prometheus' list of exporters leaves free.
pub const METRICS: &str = "127.0.0.1:9399";

/// How an endpoint is seen by its operators.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Operation")]
pub struct ObserveArgs {
    /// A name for this endpoint, by which `spraywire stats` finds it
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,

    /// Serve metrics for Prometheus (OpenMetrics) at http://ADDR:PORT/metrics, 127.0.0.1:9399 if no address is given
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, require_equals = true, default_missing_value = METRICS, value_parser = listen_at)]
    pub metrics: Option<SocketAddr>,

    /// Allow an address of --metrics that other machines can reach
    #[arg(long, requires = "metrics")]
    pub metrics_public: bool,

    /// Answer /spraywire commands on DPDK's telemetry socket: dpdk-telemetry.py -f NAME, or -f spraywire-PID without --name
    #[arg(long)]
    pub telemetry: bool,
}

/// An address to listen at.
fn listen_at(text: &str) -> Result<SocketAddr, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "`{text}` is no address with a port: write {METRICS} or [::1]:9399, with port 0 for a free one"
        )
    })
}

/// What can be bound before there is a worker, so that an address that is taken is found at once.
pub struct Prepared {
    args: ObserveArgs,
    http: Option<metrics::Bound>,
    /// Where the helpers run: not where the poll loop will be pinned to.
    cores: Vec<usize>,
}

impl Prepared {
    /// Binds what the arguments ask for.
    ///
    /// # Errors
    /// A name of `--telemetry` that another process has, an address of `--metrics` that cannot be had, or that other machines reach though nobody said that they may.
    pub fn new(args: &ObserveArgs) -> Result<Prepared, Error> {
        #[cfg(feature = "dpdk")]
        if args.telemetry {
            telemetry::check(args.name.as_ref())?;
        }
        let http = args.metrics.map(|addr| metrics::Bound::new(addr, args.metrics_public)).transpose()?;
        Ok(Prepared { args: args.clone(), http, cores: allowed_cores() })
    }

    /// Begins to serve, until what is returned is dropped. That `spraywire stats` cannot be served is logged and no error:
    /// an endpoint works without.
    ///
    /// # Errors
    /// A system that gives no thread.
    pub fn start<I: PortIo, B: Buffer>(self, workers: &mut [Worker<I, B>]) -> Result<Observation, Error> {
        let probe = Arc::new(Probe::new(self.args.name.as_ref()));
        workers.iter_mut().for_each(|worker| probe.attach(worker));
        let socket = match runtime::Socket::serve(&runtime::folder(), &probe, &self.cores) {
            Ok(socket) => Some(socket),
            Err(e) => {
                tracing::info!("spraywire stats cannot ask this endpoint: {e}");
                None
            }
        };
        let http = self.http.map(|bound| bound.serve(&probe, &self.cores)).transpose()?;
        #[cfg(feature = "dpdk")]
        let telemetry = match self.args.telemetry {
            true => Some(telemetry::serve(&probe, &telemetry::prefix(self.args.name.as_ref()))?),
            false => None,
        };
        Ok(Observation {
            _socket: socket,
            _http: http,
            #[cfg(feature = "dpdk")]
            _telemetry: telemetry,
        })
    }
}

/// An endpoint that can be asked. Dropping it ends that.
pub struct Observation {
    _socket: Option<runtime::Socket>,
    _http: Option<http::Serving>,
    #[cfg(feature = "dpdk")]
    _telemetry: Option<telemetry::Folder>,
}

#[cfg(test)]
mod answers;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use dataplane::counters::{Counters, DropReason};
    use dataplane::group::MemberCounters;
    use dataplane::io::PortStats;
    use dataplane::io::memory::{MemoryConfig, MemoryPort};
    use dataplane::observe::PortSnapshot;
    use dataplane::qp::QpConfig;
    use dataplane::worker::{PortConfig, WorkerConfig};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    /// A worker that polls in a thread and can be looked at. A packet has reached it that is no Ethernet frame.
    pub struct Running {
        pub probe: Arc<Probe>,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Running {
        pub fn start(name: &str) -> Running {
            let (io, mut peer) = MemoryPort::pair(&MemoryConfig::default());
            let config = PortConfig::new("192.0.2.1".parse().unwrap());
            let mut worker: Worker<_, Vec<u8>> =
                Worker::new(&WorkerConfig::default(), vec![(io, config)]).unwrap();
            let cq = worker.create_cq(4);
            worker.create_qp(&QpConfig::new(cq)).unwrap();
            crate::observe::tests::inject(&mut peer, &[0; 9]);
            let probe = Arc::new(Probe::new(Some(&name.parse().unwrap())));
            probe.attach(&mut worker);
            let stop = Arc::new(AtomicBool::new(false));
            let flag = stop.clone();
            let thread = std::thread::spawn(move || {
                let clock = dataplane::clock::Clock::new();
                while !flag.load(Ordering::Relaxed) {
                    worker.poll(clock.now());
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(peer);
            });
            Running { probe, stop, thread: Some(thread) }
        }

        /// Ends the poll loop; the probe remains.
        pub fn end(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            if let Some(thread) = self.thread.take() {
                thread.join().unwrap();
            }
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.end();
        }
    }

    /// Sends a frame as the other side.
    pub fn inject(port: &mut MemoryPort, frame: &[u8]) {
        use dataplane::io::{PacketBuf, PacketBurst};
        let mut buf = port.alloc().unwrap();
        buf.append(frame.len()).unwrap().copy_from_slice(frame);
        let mut burst = <MemoryPort as PortIo>::Burst::default();
        burst.push(buf).map_err(|_| "full").unwrap();
        assert_eq!(port.tx_burst(&mut burst), 1);
    }

    /// A port each of whose numbers is another.
    pub fn port_of_numbers() -> PortSnapshot {
        let mut counters = Counters::default();
        counters.rx_packets = 1;
        counters.rx_bytes = 2;
        counters.delivered = 3;
        counters.delivered_bytes = 4;
        counters.neighbour = 5;
        counters.echo = 6;
        counters.ignored = 7;
        counters.tx_packets = 8;
        counters.tx_bytes = 9;
        counters.tx_control = 10;
        counters.tx_busy = 11;
        counters.tx_no_buffer = 12;
        counters.link_lost = 13;
        counters.link_back = 14;
        for (reason, n) in DropReason::all().zip(0..) {
            (0..n).for_each(|_| counters.drop(reason));
        }
        PortSnapshot {
            counters,
            driver: PortStats {
                rx_packets: 31,
                rx_bytes: 32,
                rx_missed: 33,
                rx_errors: 34,
                rx_no_mbuf: 35,
                tx_packets: 36,
                tx_bytes: 37,
                tx_errors: 38,
            },
            queue: Some(MemberCounters {
                queue: Some(1),
                rx: 41,
                tx: 42,
                steered_in: 43,
                steered_out: 44,
                steer_full: 45,
                ..MemberCounters::default()
            }),
            link_up: true,
        }
    }

    #[test]
    fn names_are_no_numbers_and_no_paths() {
        for good in ["a", "rx-1", "rack7.node_3"] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "12", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn metrics_have_an_address_and_a_port() {
        assert_eq!(listen_at(METRICS).unwrap().port(), 9399);
        assert!(listen_at("[::1]:0").unwrap().is_ipv6());
        for bad in ["", "127.0.0.1", "9399", "::1", "localhost:9399", "127.0.0.1:65536"] {
            let error = listen_at(bad).unwrap_err();
            assert!(error.contains("write 127.0.0.1:9399"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_worker_that_does_not_poll_is_told_from_one_that_does() {
        let mut running = Running::start("x");
        assert!(running.probe.look()[0].now.is_some());
        running.end();
        assert!(running.probe.look()[0].now.is_none());
    }
}
