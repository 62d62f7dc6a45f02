//! The endpoint below a device, and what its lock guards.

use crate::bias::this_thread;
use crate::channel;
use crate::config::DeviceConfig;
use crate::cq::Cq;
use crate::memory::{AppBuf, Keys};
use crate::qp::Qp;
use crate::stats;
use dataplane::capture::Capture;
use dataplane::clock::{Clock, RoundClock};
use dataplane::cq::Completion;
use dataplane::io::dpdk::DpdkPort;
use dataplane::io::{PortIo, PortState, PortWatch};
use dataplane::open::{self, Environment, Role, ThreadGuard};
use dataplane::qp::CqKey;
use dataplane::worker::{PortConfig, Progress, Worker, WorkerConfig};
use roce_proto::time::Instant;
use roce_proto::types::PKey;
use std::cell::RefCell;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Queue pairs of a device at the most.
pub const MAX_QPS: usize = 4096;
/// Address handles of a device at the most.
pub const MAX_AHS: usize = 65_536;

/// What does not change while the endpoint is there.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its IP addresses: the GID table.
    pub addrs: Vec<IpAddr>,
    /// Its P_Key table.
    pub pkeys: Vec<PKey>,
    /// The largest message in bytes.
    pub ib_mtu: usize,
    /// The largest that the port's MTU would carry.
    pub max_mtu: usize,
    /// The link is up only while another process is connected, which may come later.
    pub waits_for_peer: bool,
    /// State of the link.
    pub watch: PortWatch,
}

/// The endpoint and its tables. Everything in it, and what queue pairs, completion queues and memory regions share with it, is
/// used by whoever holds the lock of its device.
pub struct Engine {
    /// The worker.
    pub worker: Worker<DpdkPort, AppBuf>,
    /// Keys of memory regions.
    pub keys: Keys,
    /// What does not change.
    pub facts: Facts,
    clock: RoundClock,
    /// Completion queues that wait for an event.
    pub armed: Vec<NonNull<Cq>>,
    /// Queue pairs with sends that wait for room in front of the worker.
    pub stalled: Vec<NonNull<Qp>>,
    /// Sends posted so far.
    pub posts: u64,
    /// Rounds so far.
    rounds: &'static AtomicU64,
    /// Who polled last.
    thread: usize,
    environment: Environment,
}

// SAFETY: its pointers are to queue pairs and completion queues that leave its lists before they go, under the same lock; no
// part of it belongs to a thread.
unsafe impl Send for Engine {}

impl Engine {
    /// Opens the endpoint of a device. `devices` are all that there are, since DPDK is started once for all.
    ///
    /// # Errors
    /// A line that says what stands in the way.
    pub fn open(
        config: &DeviceConfig,
        devices: &[DeviceConfig],
        rounds: &'static AtomicU64,
    ) -> Result<Engine, String> {
        let (mut role, spec) = config.side();
        let ports: Vec<_> = devices.iter().map(|device| device.side().1).collect();
        let extra = devices.first().map_or(&[][..], |device| &device.eal);
        let environment = open::environment(&ports, extra).map_err(|e| e.to_string())?;
        let mut opened = open::open(&environment, &spec, config.mtu, config.wait);
        if opened.is_err()
            && role == Role::Server
            && let Some(client) = config.second_thought()
        {
            role = Role::Client;
            opened = open::open(&environment, &client, config.mtu, config.wait);
        }
        let port = opened.map_err(|e| e.to_string())?;
        Engine::over(port, config, role, environment, rounds)
    }

    fn over(
        port: DpdkPort,
        config: &DeviceConfig,
        role: Role,
        environment: Environment,
        rounds: &'static AtomicU64,
    ) -> Result<Engine, String> {
        let info = port.info().clone();
        let is_memif = info.driver.contains("memif");
        let addrs = if config.addrs.is_empty() { vec![role.ip().into()] } else { config.addrs.clone() };
        let port_config = PortConfig {
            addrs,
            gateways: config.gateways.clone(),
            vlan: config.vlan,
            pkeys: config.pkeys.clone(),
            ib_mtu: config.ib_mtu,
            entropy: config.entropy,
        };
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        let worker_config =
            WorkerConfig { max_qps: MAX_QPS, max_ahs: MAX_AHS, seed, ..WorkerConfig::default() };
        let waits_for_peer = is_memif && !port.port().is_memif_client();
        let mut worker = Worker::new(&worker_config, vec![(port, port_config)]).map_err(|e| e.to_string())?;
        for (ip, mac) in &config.neighbours {
            worker.add_neighbour(0, *ip, *mac).map_err(|e| e.to_string())?;
        }
        let watch = worker.watch(0).ok_or("the worker has no port")?;
        let largest = roce_proto::types::Mtu::fitting(usize::from(info.mtu), MAX_OVERHEAD);
        let facts = Facts {
            addrs: worker.addrs(0).to_vec(),
            pkeys: config.pkeys.clone(),
            ib_mtu: worker.ib_mtu(0),
            max_mtu: largest.map_or(256, |mtu| mtu.bytes()),
            waits_for_peer,
            watch,
        };
        stats::serve(config, &mut worker);
        tracing::info!(
            "device {}: port {} with MAC address {}, MTU {}, addresses {:?}",
            config.name,
            info.name,
            info.mac,
            info.mtu,
            facts.addrs
        );
        Ok(Engine {
            worker,
            keys: Keys::default(),
            facts,
            clock: RoundClock::new(Clock::new()),
            armed: Vec::new(),
            stalled: Vec::new(),
            posts: 0,
            rounds,
            thread: this_thread(),
            environment,
        })
    }

    /// Whether packets can be sent and received, or can be once the other side comes.
    pub fn is_active(&self) -> bool {
        self.facts.waits_for_peer || self.facts.watch.state() == PortState::Up
    }

    /// The time, as the worker takes it.
    pub fn now(&self) -> Instant {
        self.clock.clock().now()
    }

    /// Writes what is sent and received to `capture`.
    pub fn set_capture(&mut self, capture: Option<Capture>) {
        self.worker.set_capture(capture);
    }

    /// Time has passed since the last round, or may have: the next one reads the clock.
    pub fn paused(&mut self) {
        self.clock.paused();
    }

    #[inline]
    fn count_round(&self) {
        // Only who holds the lock counts.
        self.rounds.store(self.rounds.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// One round of the worker, and what follows from it.
    #[inline]
    pub fn round(&mut self) -> Progress {
        self.count_round();
        let progress = self.worker.poll(self.clock.round());
        self.settle();
        progress
    }

    /// The same, with up to `room` receives of a completion queue handed over without being queued.
    #[inline(always)]
    pub fn round_handing(&mut self, cq: CqKey, room: usize, give: impl FnMut(&mut Completion<AppBuf>)) {
        self.count_round();
        self.worker.poll_handing(self.clock.round(), cq, room, give);
        self.settle();
    }

    /// Sends that waited are offered to the worker again, and events of completions that came are raised.
    #[inline]
    pub fn settle(&mut self) {
        if !self.stalled.is_empty() {
            self.unstall();
        }
        if !self.armed.is_empty() {
            channel::raise(self);
        }
    }

    #[cold]
    fn unstall(&mut self) {
        let mut at = 0;
        while let Some(qp) = self.stalled.get(at).copied() {
            // SAFETY: a queue pair leaves this list, under the lock that is held, before it goes.
            let left = unsafe { qp.as_ref() }.send_waiting(self);
            if left {
                at += 1;
            } else {
                self.stalled.swap_remove(at);
            }
        }
    }

    /// The calling thread is about to use the endpoint: it gets its own cache of packet buffers.
    #[inline]
    pub fn entered(&mut self) {
        let thread = this_thread();
        if thread != self.thread {
            self.thread = thread;
            register(&self.environment);
        }
    }
}

/// Bytes around a UD payload, from the IP header on, at the most.
const MAX_OVERHEAD: usize = roce_proto::wire::ud::overhead(true, true);

#[cold]
fn register(environment: &Environment) {
    thread_local! {
        // Given back when the thread ends.
        static GUARD: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
    }
    // A thread that is ending, or one too many: packet buffers come the slower way.
    let _ = GUARD.try_with(|guard| {
        let mut guard = guard.borrow_mut();
        if guard.is_none() {
            *guard = environment.register_thread().ok();
        }
    });
}
