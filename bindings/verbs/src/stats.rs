//! What `spraywire stats` asks for: a socket of this process, as every endpoint has one, with a worker for each open device.

use crate::config::DeviceConfig;
use crate::memory::AppBuf;
use dataplane::idle::allowed_cores;
use dataplane::io::PortIo;
use dataplane::observe::{Probe, socket};
use dataplane::worker::Worker;
use std::sync::{Arc, Mutex, PoisonError};

/// The socket, and what answers.
static SERVED: Mutex<Option<Served>> = Mutex::new(None);

struct Served {
    probe: Arc<Probe>,
    /// None if there cannot be one, which is no reason to do without the endpoint.
    _socket: Option<socket::Socket>,
}

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
        Served { probe, _socket: socket.ok() }
    });
    served.probe.attach(worker);
}

/// The process ends: the socket goes.
pub fn end() {
    // Whoever ends the process may have interrupted somebody who has the lock, and waits for nothing.
    if let Ok(mut served) = SERVED.try_lock() {
        drop(served.take());
    }
}
