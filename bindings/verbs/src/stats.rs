//! What `spraywire stats` asks for: a socket of this process, as every endpoint has one, with a worker for each open device.

use crate::config::DeviceConfig;
use crate::memory::AppBuf;
use dataplane::idle::allowed_cores;
use dataplane::io::PortIo;
use dataplane::observe::{Probe, socket};
use dataplane::worker::Worker;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The socket, and what answers.
static SERVED: Mutex<Option<Served>> = Mutex::new(None);

struct Served {
    probe: Arc<Probe>,
    /// None if there cannot be one, which is no reason to do without the endpoint.
    _socket: Option<socket::Socket>,
}

/// The descriptor that the socket listens at, or none.
static LISTENER: AtomicI32 = AtomicI32::new(NONE);
const NONE: i32 = -1;

/// The worker of a device can be asked from now on. The process has the name of the device that it opens first.
pub fn serve<I: PortIo>(config: &DeviceConfig, worker: &mut Worker<I, AppBuf>) {
    let mut served = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let served = served.get_or_insert_with(|| {
        // A device may be called what no endpoint may: then it has none.
        let name = config.name.parse().ok();
        let probe = Arc::new(Probe::new(name.as_ref()));
        let socket = socket::Socket::serve(&socket::folder(), &probe, &allowed_cores());
        if let Err(e) = &socket {
            tracing::info!("spraywire stats cannot ask this process: {e}");
        }
        LISTENER.store(socket.as_ref().map_or(NONE, |socket| socket.listener()), Ordering::Relaxed);
        Served { probe, _socket: socket.ok() }
    });
    served.probe.attach(worker);
}

/// The process ends: the socket goes.
pub fn end() {
    // Whoever ends the process may have interrupted somebody who has the lock, and waits for nothing.
    if let Ok(mut served) = SERVED.try_lock() {
        LISTENER.store(NONE, Ordering::Relaxed);
        drop(served.take());
    }
}

/// This is a child that was forked: the socket is its parent's alone. Nothing but what is allowed between fork and exec.
pub fn in_child() {
    let listener = LISTENER.swap(NONE, Ordering::Relaxed);
    if listener != NONE {
        // SAFETY: the child's copy of the parent's descriptor; its owner is a thread of the parent's.
        unsafe { libc::close(listener) };
    }
}
