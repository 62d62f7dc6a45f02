//! Devices: their list, and the endpoint that is opened with the first context.

use crate::bias::{Guard, Lock, this_thread};
use crate::config::{self, DeviceConfig};
use crate::engine::Engine;
use crate::say::{open_log, refuse, set_errno};
use crate::stats;
use crate::sys;
use crate::tick;
use dataplane::capture::Capture;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A device of this process. There from the first list to the end.
#[repr(C)]
pub struct Device {
    base: sys::ibv_device,
    config: DeviceConfig,
    guid: u64,
    /// The endpoint. It is opened with the first context and stays: another context finds it as it is.
    engine: Lock<Option<Engine>>,
    /// Rounds of the endpoint so far: by it the device's own thread sees, without the lock, whether anybody else polls.
    rounds: AtomicU64,
    /// Contexts that are open.
    contexts: Mutex<Vec<usize>>,
    /// One was opened.
    opened: Condvar,
    /// Its thread was started.
    ticking: AtomicBool,
}

// SAFETY: what the base's name arrays hold never changes, and everything else guards itself.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// The devices.
struct Devices {
    all: Vec<&'static Device>,
}

static DEVICES: OnceLock<Devices> = OnceLock::new();

fn devices() -> &'static Devices {
    DEVICES.get_or_init(|| {
        open_log();
        let configs = config::devices().unwrap_or_else(|e| {
            refuse(libc::ENODEV, e);
            Vec::new()
        });
        let all = configs.into_iter().map(|config| &*Box::leak(Box::new(Device::new(config)))).collect();
        Devices { all }
    })
}

/// Runs when the process ends by `exit` or a return from `main`, after everything that the program itself does then.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn at_end() {
        // A child's endpoint is its parent's, and one that nobody has asked for is not there.
        let Some(devices) = DEVICES.get().filter(|_| !FORKED.load(Ordering::Relaxed)) else { return };
        ENDING.store(this_thread(), Ordering::Release);
        stats::end();
        devices.all.iter().for_each(|device| device.end());
        dataplane::open::end();
    }
    at_end
};

/// The thread that ends the process, once one does.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// There is no endpoint. Threads that still use theirs while another one ends the process would take that for a failure, and say so with
/// their last breath: they wait for the end instead.
#[cold]
fn gone() -> c_int {
    let ending = ENDING.load(Ordering::Acquire);
    while ending != 0 && ending != this_thread() && !FORKED.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_secs(1));
    }
    set_errno(libc::EIO);
    libc::EIO
}

/// True in a process that was forked from one with an open device: the endpoint is the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    stats::in_child();
}

fn watch_for_forks() {
    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        // SAFETY: the handler does nothing but atomic stores and a close(2), which are allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// The endpoint of a device, with its lock held.
pub struct Locked(Guard<'static, Option<Engine>>);

impl std::ops::Deref for Locked {
    type Target = Engine;

    #[inline(always)]
    fn deref(&self) -> &Engine {
        // SAFETY: it was there when this was made, and nobody else takes it meanwhile.
        unsafe { self.0.as_ref().unwrap_unchecked() }
    }
}

impl std::ops::DerefMut for Locked {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Engine {
        // SAFETY: as above.
        unsafe { self.0.as_mut().unwrap_unchecked() }
    }
}

impl Device {
    fn new(config: DeviceConfig) -> Device {
        let mut base = sys::ibv_device {
            node_type: sys::IBV_NODE_CA,
            transport_type: sys::IBV_TRANSPORT_IB,
            ..sys::ibv_device::default()
        };
        let put = |text: &str, place: &mut [c_char]| {
            for (to, from) in place.iter_mut().zip(text.bytes()) {
                *to = from as c_char;
            }
        };
        put(&config.name, &mut base.name);
        put("uverbs-spraywire", &mut base.dev_name);
        // There is nothing below them; programs that look get the error that they get for any missing file.
        put("/sys/class/infiniband_verbs/spraywire", &mut base.dev_path);
        put("/sys/class/infiniband/spraywire", &mut base.ibdev_path);
        // What tells devices of one network apart before their ports are open, FNV-1a by its authors' definition; the second
        // bit of the first byte says that it was assigned locally (IEEE, EUI-64).
        let identity = format!("{} {:?} {:?} {:?}", config.name, config.port, config.role, config.addrs);
        let hash = identity
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let guid = (hash | 1 << 57) & !(1 << 56);
        Device {
            base,
            config,
            guid,
            engine: Lock::new(None),
            rounds: AtomicU64::new(0),
            contexts: Mutex::default(),
            opened: Condvar::new(),
            ticking: AtomicBool::new(false),
        }
    }

    /// The device of a pointer that programs hold.
    ///
    /// # Safety
    /// It is from our list.
    pub unsafe fn of(device: *const sys::ibv_device) -> &'static Device {
        // SAFETY: the base is the first field, and devices are never freed.
        unsafe { &*device.cast::<Device>() }
    }

    /// The pointer that programs hold.
    pub fn base(&'static self) -> *mut sys::ibv_device {
        (&raw const self.base).cast_mut()
    }

    /// How it was configured.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Rounds of its endpoint so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Its globally unique identifier.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The endpoint, which must have been opened.
    ///
    /// # Errors
    /// `EIO`, also in `errno`, in a child process and when there is no endpoint.
    #[inline(always)]
    pub fn lock(&'static self) -> Result<Locked, c_int> {
        // Nothing but this, and not in memory, for the thread that uses the device alone.
        if !FORKED.load(Ordering::Relaxed)
            && let Some(guard) = self.engine.lock_as_owner()
            && guard.is_some()
        {
            return Ok(Locked(guard));
        }
        self.lock_slowly().ok_or_else(gone)
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&'static self) -> Option<Locked> {
        if FORKED.load(Ordering::Relaxed) {
            return None;
        }
        let mut guard = self.engine.lock();
        let is_owners = guard.is_owners();
        let engine = guard.as_mut()?;
        if !is_owners {
            engine.entered();
        }
        Some(Locked(guard))
    }

    /// The endpoint, if nobody uses it for longer than `limit`.
    pub fn try_lock(&'static self, limit: Duration) -> Option<Locked> {
        let mut guard = self.engine.try_lock(limit)?;
        guard.as_mut()?.entered();
        Some(Locked(guard))
    }

    /// Opens the endpoint for a context, if that is the first.
    ///
    /// # Errors
    /// A line that says what stands in the way.
    pub fn enter(&'static self, context: usize) -> Result<(), String> {
        if FORKED.load(Ordering::Relaxed) {
            return Err("this process was forked from one with an open device; start it anew".to_owned());
        }
        watch_for_forks();
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        // Before it is taken: it is a lock too.
        if self.config.thread {
            self.engine.keep_even();
        }
        let mut engine = self.engine.lock();
        if engine.is_none() {
            let all: Vec<DeviceConfig> = devices().all.iter().map(|d| d.config.clone()).collect();
            // DPDK starts threads of its own, which should not get the program's signals.
            let _quiet = tick::SignalsBlocked::new();
            *engine = Some(Engine::open(&self.config, &all, &self.rounds)?);
        }
        if let (Some(path), true, Some(engine)) = (&self.config.pcap, contexts.is_empty(), &mut *engine) {
            let capture =
                Capture::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            engine.set_capture(Some(capture));
        }
        contexts.push(context);
        self.opened.notify_all();
        if !self.ticking.swap(true, Ordering::Relaxed) {
            tick::start(self);
        }
        Ok(())
    }

    /// The process ends, and with it the endpoint: what was posted leaves, and the port is stopped.
    fn end(&'static self) {
        /// A thread that is within a verb is done with it long before; one that was interrupted there never is.
        const PATIENCE: Duration = Duration::from_millis(500);
        /// What a peer that shares its processor with others takes to read a ring.
        const UNREAD: Duration = Duration::from_millis(50);
        if let Some(mut guard) = self.engine.try_lock(PATIENCE)
            && let Some(mut engine) = guard.take()
        {
            engine.worker.flush();
            // The peer drops what it has not read of a memif ring once the other side is gone, the last answer of a ping-pong for instance.
            if engine.worker.port_info(0).is_some_and(|port| port.driver == "net_memif") {
                std::thread::sleep(UNREAD);
            }
        }
    }

    /// A context was closed.
    pub fn leave(&'static self, context: usize) {
        // The parent's thread may have held the list's lock at the fork, and nobody gives it back here.
        if FORKED.load(Ordering::Relaxed) {
            return;
        }
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|c| *c != context);
        if contexts.is_empty()
            && let Ok(mut engine) = self.lock()
        {
            engine.set_capture(None);
        }
    }

    /// Waits until a context is open.
    pub fn wait_open(&self) {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(contexts, |open| open.is_empty()));
    }

    /// Does something with each context that is open; none is closed meanwhile.
    pub fn each_context(&self, mut f: impl FnMut(usize)) {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|c| f(*c));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut sys::ibv_device {
    let all = &devices().all;
    // SAFETY: a plain allocation; `ibv_free_device_list` gives it back.
    let list = unsafe { libc::calloc(all.len() + 1, size_of::<*mut sys::ibv_device>()) };
    let list = list.cast::<*mut sys::ibv_device>();
    if list.is_null() {
        set_errno(libc::ENOMEM);
        return list;
    }
    for (at, device) in all.iter().enumerate() {
        // SAFETY: within the list, which is one longer than there are devices.
        unsafe { list.add(at).write(device.base()) };
    }
    if !num.is_null() {
        // SAFETY: the caller's own place for the number.
        unsafe { num.write(all.len() as c_int) };
    }
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    // SAFETY: allocated by `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: a device of ours; the name ends with a zero.
    unsafe { Device::of(device) }.base.name.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut sys::ibv_device) -> u64 {
    // SAFETY: a device of ours.
    unsafe { Device::of(device) }.guid.to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut sys::ibv_device) -> c_int {
    devices().all.iter().position(|d| std::ptr::eq(d.base(), device)).map_or(-1, |at| at as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    // Nothing is pinned: a parent's memory stays its own after a fork.
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> sys::ibv_fork_status {
    sys::IBV_FORK_UNNEEDED
}
