//! The environment layer: started once, shared by handle, shut down when asked.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::args::{self, EalConfig, Machine};
use crate::error::{EalError, PortError};
use crate::info::{self, PortId, PortInfo};
use crate::memif;
use crate::mempool::Pools;
use crate::port::driver_error;
use crate::{af_packet, control, hint, log, stdio, tap};

/// Whether `rte_eal_init` was ever called. It cannot be called again, not even after it failed or was cleaned up.
static STARTED: AtomicBool = AtomicBool::new(false);

/// A handle on DPDK's environment. Cheap to clone; every pool, port, queue and registered thread holds one. The last one closes all
/// ports; of memif ports it removes the sockets.
#[derive(Clone)]
pub struct Eal(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    args: Vec<String>,
    vdevs: Mutex<Vec<String>>,
    hugepages: bool,
    main: ThreadId,
    ports: Mutex<Ports>,
    pools: Mutex<Pools>,
    /// Whether the ports have been closed for good.
    closed: AtomicBool,
}

impl Inner {
    /// Closes every port. What a driver keeps beside the process goes with that, as the XDP program of an interface does.
    ///
    /// At the `end` of a process a memif port only loses its socket. Closed, it would be freed while the driver still listens to its
    /// peer on a thread of DPDK's, which then, if the peer hangs up before the process is gone, reads what was freed (memif_intr_handler
    /// of DPDK 22.11).
    ///
    /// A port that is started still has an owner, who uses it: of that nothing but the socket goes.
    fn close_ports(&self, end: bool) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let ports = lock(&self.ports);
        for id in info::ids().collect::<Vec<_>>() {
            let started = ports.started.contains(&id);
            if end
                && let Ok(info) = info::read(id)
                && (info::traits(&info.driver).unmaps || started)
            {
                let vdevs = lock(&self.vdevs);
                let own = vdevs.iter().find(|device| device.split(',').next() == Some(&info.name));
                own.into_iter().for_each(|device| memif::remove_own_socket(device));
                continue;
            }
            if started {
                continue;
            }
            // SAFETY: nobody has started it, so nothing uses it, and the lock keeps it so.
            let ret = on_its_thread(id, move || unsafe { dpdk_sys::rte_eth_dev_close(id.0) });
            if ret != 0 {
                tracing::warn!(port = %id, error = -ret, "the port did not close");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close_ports(true);
    }
}

/// Which ports are started. The lock also keeps attaching and detaching apart.
#[derive(Default)]
struct Ports {
    started: Vec<PortId>,
}

impl std::fmt::Debug for Eal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eal")
            .field("args", &self.0.args)
            .field("hugepages", &self.0.hugepages)
            .finish_non_exhaustive()
    }
}

impl Eal {
    /// Starts DPDK and attaches the virtual devices of `config`. The calling thread becomes its main thread and keeps the
    /// processor affinity that it had.
    ///
    /// # Errors
    /// If DPDK was started before in this process, if it does not start, or if a device cannot be attached. After a
    /// failure that is not [`EalError::HugePages`] or [`EalError::Argument`], the process cannot try again.
    pub fn init(config: &EalConfig) -> Result<Eal, EalError> {
        let affinity = Affinity::of_this_thread();
        let (arguments, hugepages) = args::build(config, &Machine::here(affinity.cpus()))?;
        let strings = arguments
            .iter()
            .map(|arg| CString::new(arg.as_str()).map_err(|_| EalError::Argument(arg.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(EalError::AlreadyInitialised);
        }
        log::open();
        log::clear_errors();
        // DPDK permutes the array and keeps pointers into the strings, so both stay for the life of the process.
        let mut argv: Vec<*mut c_char> = strings.into_iter().map(CString::into_raw).collect();
        let argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
        argv.push(std::ptr::null_mut());
        let argv = argv.leak();
        // SAFETY: `argv` holds `argc` valid strings and a null, all leaked; the flag above makes this the only call.
        let mut start = || unsafe { dpdk_sys::rte_eal_init(argc, argv.as_mut_ptr()) };
        // The user's own arguments may name one.
        let has_tap = arguments.iter().any(|argument| tap::is_tap(argument));
        let mut start = || if has_tap { tap::without_signals(&mut start) } else { start() };
        let ret = if config.usage_to_stderr { stdio::to_stderr(start) } else { start() };
        // It pins the thread to its lcore. Where threads run is the caller's business.
        affinity.restore();
        if ret < 0 {
            let (errno, said) = (errno(), log::errors());
            let hint = hint::start(hugepages, &said);
            return Err(EalError::Init { errno, said, args: arguments[1..].join(" "), hint });
        }
        let eal = Eal(Arc::new(Inner {
            args: arguments,
            vdevs: Mutex::new(Vec::new()),
            hugepages,
            main: thread::current().id(),
            ports: Mutex::default(),
            pools: Mutex::default(),
            closed: AtomicBool::new(false),
        }));
        for device in &config.vdevs {
            eal.attach(device)?;
        }
        Ok(eal)
    }

    /// The arguments that DPDK was started with, the program's name first.
    pub fn args(&self) -> &[String] {
        &self.0.args
    }

    /// Whether packet memory lies on hugepages.
    pub fn hugepages(&self) -> bool {
        self.0.hugepages
    }

    /// DPDK's name and version, for example "DPDK 22.11.11".
    pub fn version() -> String {
        // SAFETY: rte_version returns a static string.
        unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
    }

    /// The folder that shared drivers are loaded from, or none if they are linked in.
    pub fn driver_dir() -> Option<PathBuf> {
        if cfg!(feature = "static") {
            return None;
        }
        // SAFETY: the shim returns a static string.
        let dir = unsafe { CStr::from_ptr(dpdk_sys::spw_driver_dir()) }.to_string_lossy();
        (!dir.is_empty()).then(|| PathBuf::from(dir.into_owned()))
    }

    /// Every port, in order of its number.
    pub fn ports(&self) -> Vec<PortInfo> {
        info::ids().filter_map(|id| info::read(id).ok()).collect()
    }

    /// One port.
    ///
    /// # Errors
    /// If it does not exist or its driver does not answer.
    pub fn port(&self, id: PortId) -> Result<PortInfo, PortError> {
        info::read(id)
    }

    /// Finds a port by its name (`net_memif0`), MAC address (`02:00:00:00:00:01`) or PCI address (`0000:03:00.0`, or
    /// without the domain if that is zero).
    ///
    /// # Errors
    /// [`PortError::NoPorts`] if there is none at all, [`PortError::NotFound`] if none is called so.
    pub fn find(&self, wanted: &str) -> Result<PortId, PortError> {
        let ports = self.require_ports().map_err(|e| e.looked_for(wanted))?;
        if let Some(port) = ports.iter().find(|port| port.answers_to(wanted)) {
            return Ok(port.id);
        }
        let have =
            ports.iter().map(|port| format!("{} ({})", port.name, port.mac)).collect::<Vec<_>>().join(", ");
        Err(PortError::NotFound { wanted: wanted.to_owned(), have })
    }

    /// Every port, of which there must be at least one.
    ///
    /// # Errors
    /// [`PortError::NoPorts`], which says where drivers were looked for and which devices were asked for.
    pub fn require_ports(&self) -> Result<Vec<PortInfo>, PortError> {
        let ports = self.ports();
        if !ports.is_empty() {
            return Ok(ports);
        }
        let drivers = Eal::driver_dir()
            .map_or_else(|| "the program itself".to_owned(), |dir| dir.display().to_string());
        let vdevs = self.vdevs();
        let vdevs = if vdevs.is_empty() { "none".to_owned() } else { vdevs.join(" ") };
        Err(PortError::NoPorts { wanted: None, drivers, vdevs })
    }

    /// The virtual devices asked for, those in the user's own arguments included.
    pub(crate) fn vdevs(&self) -> Vec<String> {
        let mut vdevs = Vec::new();
        for (i, arg) in self.0.args.iter().enumerate() {
            if let Some(device) = arg.strip_prefix("--vdev=") {
                vdevs.push(device.to_owned());
            } else if arg == "--vdev"
                && let Some(device) = self.0.args.get(i + 1)
            {
                vdevs.push(device.clone());
            }
        }
        vdevs.extend(lock(&self.0.vdevs).iter().cloned());
        vdevs
    }

    /// Attaches a device, in DPDK's syntax (`net_memif0,role=client,id=0` or a PCI address), and returns its port; the
    /// first, if it has several. A PCI device needs an environment that looks at PCI: see [`EalConfig::allow`].
    ///
    /// # Errors
    /// [`PortError::Attach`], which says what the driver needs and this process lacks.
    pub fn attach(&self, devargs: &str) -> Result<PortId, PortError> {
        let fail = |errno: i32| {
            let said = log::errors();
            let hint = hint::device(devargs, &said, Eal::driver_dir().as_deref());
            let errno = af_packet::refusal(devargs, &said).unwrap_or(errno);
            PortError::Attach { devargs: devargs.to_owned(), errno, said, hint }
        };
        let Ok(text) = CString::new(devargs) else { return Err(fail(libc::EINVAL)) };
        let _one_at_a_time = lock(&self.0.ports);
        memif::remove_stale_socket(devargs);
        lock(&self.0.vdevs).push(devargs.to_owned());
        log::clear_errors();
        let before: Vec<PortId> = info::ids().collect();
        // SAFETY: `text` is a valid string, copied by DPDK; the environment is started.
        let probe = || unsafe { dpdk_sys::rte_dev_probe(text.as_ptr()) };
        let ret = if tap::is_tap(devargs) { tap::without_signals(probe) } else { probe() };
        if ret != 0 {
            return Err(fail(ret.unsigned_abs().try_into().unwrap_or(libc::EINVAL)));
        }
        let added = info::ids().find(|id| !before.contains(id));
        added.ok_or_else(|| PortError::NotEthernet(devargs.to_owned()))
    }

    /// Removes a port and its device.
    ///
    /// # Errors
    /// [`PortError::Busy`] while it is started; [`PortError::Gone`] if it does not exist.
    pub fn detach(&self, id: PortId) -> Result<(), PortError> {
        let ports = lock(&self.0.ports);
        if ports.started.contains(&id) {
            return Err(PortError::Busy(id));
        }
        let device = info::read(id)?.device;
        let ret = on_its_thread(id, move || match info::device(id) {
            // SAFETY: the device was just read from the port, which is stopped, and the lock keeps others from removing it.
            Ok(device) => unsafe { dpdk_sys::rte_dev_remove(device) },
            Err(_) => -libc::ENODEV,
        });
        if ret != 0 {
            return Err(driver_error(id, "removal", ret));
        }
        lock(&self.0.vdevs).retain(|vdev| vdev.split(',').next() != Some(&device));
        Ok(())
    }

    /// Gives the calling thread an lcore id, without which it works around the pools' per-thread caches and every single
    /// allocation takes the slow way. Threads that poll should do it first; the thread that started DPDK has one.
    ///
    /// # Errors
    /// [`EalError::ThreadRegister`] if all ids are taken.
    pub fn register_thread(&self) -> Result<ThreadGuard, EalError> {
        // SAFETY: a plain read of a thread-local variable.
        let had_one = unsafe { dpdk_sys::spw_lcore_id() } != u32::MAX;
        if !had_one {
            let mut pools = self.pools();
            // SAFETY: the environment is started, and this thread has no lcore id.
            let ret = unsafe { dpdk_sys::rte_thread_register() };
            if ret != 0 {
                return Err(EalError::ThreadRegister(errno()));
            }
            pools.registered += 1;
        }
        Ok(ThreadGuard { eal: self.clone(), registered: !had_one, here: PhantomData })
    }

    /// The process is about to end: closes the ports that nobody has started, as dropping the last handle does, whoever has other
    /// handles. None can be opened afterwards.
    pub fn end(&self) {
        self.0.close_ports(true);
    }

    /// Closes every port and gives DPDK's memory back. For a process that goes on without DPDK. Before the end of a process it is
    /// enough to drop the last handle, which closes the ports or what would outlive them: all else that DPDK has goes with the process, and its threads may
    /// still be using it until then. DPDK cannot be started again afterwards.
    ///
    /// # Errors
    /// [`EalError::WrongThread`], [`EalError::InUse`], or [`EalError::MbufsOut`] if packets are still held. Then DPDK stays
    /// up; in the last case without its ports.
    pub fn shutdown(self) -> Result<(), EalError> {
        if !self.is_main() {
            return Err(EalError::WrongThread);
        }
        let mut inner =
            Arc::try_unwrap(self.0).map_err(|shared| EalError::InUse(Arc::strong_count(&shared) - 1))?;
        inner.close_ports(false);
        // No pool handle and no registered thread is left, and this is the main thread: nobody can be in the middle of
        // a free, so the count is exact.
        let out = inner.pools.get_mut().unwrap_or_else(PoisonError::into_inner).outstanding();
        if out != 0 {
            return Err(EalError::MbufsOut(out));
        }
        control::park();
        // SAFETY: ports are closed, no pool, queue, packet or registered thread is left.
        let ret = unsafe { dpdk_sys::rte_eal_cleanup() };
        if ret != 0 { Err(EalError::Cleanup(-ret)) } else { Ok(()) }
    }

    pub(crate) fn is_main(&self) -> bool {
        thread::current().id() == self.0.main
    }

    pub(crate) fn pools(&self) -> MutexGuard<'_, Pools> {
        lock(&self.0.pools)
    }

    /// Marks a port as started; false if it was already.
    pub(crate) fn claim(&self, id: PortId) -> bool {
        let mut ports = lock(&self.0.ports);
        if ports.started.contains(&id) || self.0.closed.load(Ordering::Acquire) {
            return false;
        }
        ports.started.push(id);
        true
    }

    pub(crate) fn release(&self, id: PortId) {
        lock(&self.0.ports).started.retain(|started| *started != id);
    }
}

/// Takes a port down on the thread that its driver needs for that; see [`crate::control`].
fn on_its_thread(id: PortId, work: impl FnOnce() -> i32 + Send + 'static) -> i32 {
    if info::read(id).is_ok_and(|info| info::traits(&info.driver).unmaps) {
        control::run(work)
    } else {
        work()
    }
}

/// A panic while a lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error number of this thread's last failed DPDK call.
pub(crate) fn errno() -> i32 {
    // SAFETY: a plain read of a thread-local variable.
    unsafe { dpdk_sys::spw_errno() }
}

/// Keeps the calling thread registered. When dropped, it empties the thread's pool caches and gives the lcore id back.
pub struct ThreadGuard {
    eal: Eal,
    registered: bool,
    /// The registration belongs to the thread.
    here: PhantomData<*const ()>,
}

impl ThreadGuard {
    /// The thread's lcore id.
    pub fn lcore(&self) -> u32 {
        // SAFETY: a plain read of a thread-local variable.
        unsafe { dpdk_sys::spw_lcore_id() }
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        let mut pools = self.eal.pools();
        // Otherwise what lies in this thread's caches would be lost to everybody until the id is given out again.
        pools.flush_thread();
        // SAFETY: this thread was registered by `register_thread`, and the guard cannot leave it.
        unsafe { dpdk_sys::rte_thread_unregister() };
        pools.registered -= 1;
    }
}

/// Which processors a thread may run on.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn of_this_thread() -> Affinity {
        // SAFETY: a cpu_set_t is plain bits, for which zero is a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid for its size; 0 means the calling thread. On failure it stays empty.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        Affinity(set)
    }

    fn cpus(&self) -> Vec<usize> {
        // SAFETY: the index is within the set.
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) }).collect()
    }

    fn restore(&self) {
        if self.cpus().is_empty() {
            return;
        }
        // SAFETY: the set was filled by the kernel for this thread.
        let ret = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if ret != 0 {
            tracing::warn!("the thread that started DPDK stays pinned by it");
        }
    }
}
