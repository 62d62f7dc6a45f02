//! The endpoint behind the handle.

use crate::reliable::Messages;
use crate::{completion, error, send};
use dataplane::ah::{AhConfig, AhKey, AhState};
use dataplane::buffer::Buffer;
use dataplane::clock::Clock;
use dataplane::cq::{WcOpcode, WcStatus};
use dataplane::entropy::EntropyRange;
use dataplane::io::dpdk::DpdkPort;
use dataplane::open::{self, Environment};
use dataplane::qp::{CqKey, PostError, QpConfig, QpKey, RecvWr, SendWr};
use dataplane::spec::{self, PortSpec};
use dataplane::worker::{PortConfig, Worker, WorkerConfig};
use roce_proto::types::{PKey, QKey, Qpn};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// An error and what it is in words.
pub struct Failure {
    /// The number.
    pub error: error,
    /// The words.
    pub text: String,
}

impl Failure {
    pub fn new(error: error, text: impl ToString) -> Failure {
        Failure { error, text: text.to_string() }
    }
}

/// How an endpoint is opened.
pub struct Settings<'a> {
    pub port: &'a str,
    pub addresses: &'a str,
    pub mtu: Option<u16>,
    pub wait: Duration,
    pub first_qpn: u32,
    pub entropy: Option<&'a str>,
}

/// Memory of work requests.
pub enum Memory {
    /// The program's, lent with a receive.
    Filled {
        /// Where it begins.
        start: *mut u8,
        /// Bytes.
        len: usize,
    },
    /// The program's, lent with a reliable send.
    Read {
        /// Where it begins; anything if it has no bytes.
        start: *const u8,
        /// Bytes.
        len: usize,
    },
    /// Our own.
    Own(Box<[u8]>),
}

// SAFETY: it goes where its endpoint goes, which one thread at a time uses.
unsafe impl Send for Memory {}

impl Buffer for Memory {
    fn capacity(&self) -> usize {
        match self {
            Memory::Filled { len, .. } | Memory::Read { len, .. } => *len,
            Memory::Own(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        match self {
            Memory::Filled { start, len } => {
                if bytes.len() <= *len && offset <= *len - bytes.len() {
                    // SAFETY: within what the program has lent; the bytes are a packet's, not the program's.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(offset), bytes.len()) };
                }
            }
            Memory::Own(own) => own.write(offset, bytes),
            // Nothing is received into it.
            Memory::Read { .. } => {}
        }
    }

    #[inline]
    fn bytes(&self, wanted: usize) -> &[u8] {
        match self {
            Memory::Read { len, .. } if *len == 0 => &[],
            // SAFETY: so many bytes that the program has lent, and does not write to meanwhile.
            Memory::Read { start, len } => unsafe { std::slice::from_raw_parts(*start, wanted.min(*len)) },
            Memory::Own(own) => own.bytes(wanted),
            // Nothing is sent from it.
            Memory::Filled { .. } => &[],
        }
    }
}

/// Completions that wait at the most.
const CQ_DEPTH: usize = 65_536;

/// A worker over one port.
pub struct Endpoint {
    pub worker: Worker<DpdkPort, Memory>,
    pub clock: Clock,
    /// Reliable messages, once they are wanted.
    pub messages: Option<Messages>,
    cq: CqKey,
    qps: HashMap<u32, QpKey>,
    ahs: HashMap<u64, AhKey>,
    next_ah: u64,
    /// Packet buffers of this port must not outlive DPDK.
    _environment: Environment,
}

impl Endpoint {
    pub fn open(settings: &Settings<'_>) -> Result<Endpoint, Failure> {
        let fail = |text: String| Failure::new(error::Argument, text);
        let spec: PortSpec = settings.port.parse().map_err(fail)?;
        let addrs = settings.addresses.split(',').map(|a| spec::addr(a.trim()));
        let addrs = addrs.collect::<Result<Vec<_>, _>>().map_err(fail)?;
        let first_qpn = match settings.first_qpn {
            0 => WorkerConfig::default().first_qpn,
            number => Qpn::new(number).ok_or_else(|| fail("a queue pair number has 24 bits".to_owned()))?,
        };
        let entropy = settings.entropy.map_or(Ok(EntropyRange::DEFAULT), spec::entropy).map_err(fail)?;
        let cannot = |e: open::StartError| Failure::new(error::Open, e);
        let environment = open::environment(std::slice::from_ref(&spec), &[]).map_err(cannot)?;
        let port = open::open(&environment, &spec, settings.mtu, settings.wait).map_err(cannot)?;
        let config = PortConfig {
            addrs,
            gateways: Vec::new(),
            vlan: None,
            pkeys: vec![PKey::DEFAULT],
            ib_mtu: None,
            entropy,
        };
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        let worker_config = WorkerConfig { seed, first_qpn, ..WorkerConfig::default() };
        let mut worker = Worker::new(&worker_config, vec![(port, config)])
            .map_err(|e| Failure::new(error::Argument, e))?;
        let cq = worker.create_cq(CQ_DEPTH);
        Ok(Endpoint {
            worker,
            clock: Clock::new(),
            messages: None,
            cq,
            qps: HashMap::new(),
            ahs: HashMap::new(),
            next_ah: 1,
            _environment: environment,
        })
    }

    pub fn max_message(&self) -> usize {
        self.worker.ib_mtu(0)
    }

    pub fn create_qp(&mut self, qkey: u32, send_depth: u32, recv_depth: u32) -> Result<u32, Failure> {
        let config = QpConfig { qkey: QKey(qkey), send_depth, recv_depth, ..QpConfig::new(self.cq) };
        let key = self.worker.create_qp(&config).map_err(|e| Failure::new(error::Argument, e))?;
        let number = self.worker.qpn(key).map_or(0, |qpn| qpn.get());
        self.qps.insert(number, key);
        Ok(number)
    }

    fn qp(&self, qpn: u32) -> Result<QpKey, Failure> {
        let found = self.qps.get(&qpn).copied();
        found.ok_or_else(|| Failure::new(error::State, format_args!("there is no queue pair {qpn:#x}")))
    }

    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), Failure> {
        let key = self.qp(qpn)?;
        self.qps.remove(&qpn);
        self.worker.destroy_qp(key).map_err(|e| Failure::new(error::State, e))
    }

    pub fn create_ah(&mut self, address: &str, limit: Duration) -> Result<u64, Failure> {
        let dst: IpAddr = address
            .parse()
            .map_err(|_| Failure::new(error::Argument, format_args!("`{address}` is no IP address")))?;
        let now = self.clock.now();
        let key =
            self.worker.create_ah(&AhConfig::new(dst), now).map_err(|e| Failure::new(error::Argument, e))?;
        let start = Instant::now();
        while self.worker.ah_state(key) != Some(AhState::Ready) {
            if start.elapsed() > limit {
                self.worker.destroy_ah(key);
                let text = format!("nobody answers for {dst}: is its endpoint running, and polled?");
                return Err(Failure::new(error::TimedOut, text));
            }
            if !self.round() {
                std::thread::yield_now();
            }
        }
        let number = self.next_ah;
        self.next_ah += 1;
        self.ahs.insert(number, key);
        Ok(number)
    }

    pub fn destroy_ah(&mut self, ah: u64) -> Result<(), Failure> {
        let key = self.ahs.remove(&ah).ok_or_else(|| no_ah(ah))?;
        self.worker.destroy_ah(key);
        Ok(())
    }

    pub fn post_send(&mut self, send: &send, data: &[u8]) -> Result<(), Failure> {
        let qp = self.qp(send.qpn)?;
        let ah = *self.ahs.get(&send.ah).ok_or_else(|| no_ah(send.ah))?;
        let dst_qpn = Qpn::new(send.dst_qpn)
            .ok_or_else(|| Failure::new(error::Argument, "a queue pair number has 24 bits"))?;
        let wr = SendWr {
            wr_id: send.wr_id,
            ah,
            dst_qpn,
            qkey: QKey(send.qkey),
            imm: (send.has_imm != 0).then_some(send.imm),
            solicited: false,
            signaled: send.signaled != 0,
        };
        self.worker.post_send(qp, &wr, data).map_err(refused)
    }

    /// # Safety
    /// `len` bytes at `start` must be the endpoint's until the receive completes, or its queue pair or the endpoint is gone.
    pub unsafe fn post_recv(
        &mut self,
        qpn: u32,
        wr_id: u64,
        start: *mut u8,
        len: usize,
    ) -> Result<(), Failure> {
        let qp = self.qp(qpn)?;
        self.worker
            .post_recv(qp, RecvWr { wr_id, buf: Memory::Filled { start, len } })
            .map_err(|(e, _)| refused(e))
    }

    /// Moves packets; returns whether there were any.
    pub fn round(&mut self) -> bool {
        let now = self.clock.now();
        match &mut self.messages {
            Some(messages) => messages.round(&mut self.worker, now).any(),
            None => self.worker.poll(now).any(),
        }
    }

    pub fn poll(&mut self, max: usize, mut give: impl FnMut(completion)) -> usize {
        self.round();
        let Some(cq) = self.worker.cq(self.cq) else { return 0 };
        let mut taken = 0;
        while taken < max
            && let Some(done) = cq.pop()
        {
            give(completion {
                wr_id: done.wr_id,
                qpn: done.qpn.get(),
                status: match done.status {
                    WcStatus::Success => 0,
                    WcStatus::LocalLengthError => 1,
                    WcStatus::WorkRequestFlushed => 2,
                    WcStatus::LocalQpOperationError => 3,
                },
                byte_len: done.byte_len,
                src_qpn: done.src_qpn.get(),
                imm: done.imm.unwrap_or(0),
                has_imm: done.imm.is_some().into(),
                is_receive: (done.opcode == WcOpcode::Recv).into(),
            });
            taken += 1;
        }
        taken
    }
}

fn no_ah(ah: u64) -> Failure {
    Failure::new(error::State, format_args!("there is no address handle {ah}"))
}

fn refused(e: PostError) -> Failure {
    let number = match e {
        e if e.is_back_pressure() => error::Again,
        PostError::TooLong { .. } => error::Argument,
        _ => error::State,
    };
    Failure::new(number, e)
}
