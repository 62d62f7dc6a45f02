//! The folder in which each running endpoint has a socket, and the socket's two ends.
//!
//! The folder belongs to one user and nobody else may enter it. Who connects is told the endpoint's state, one JSON document,
//! and nothing is read from him.

use super::{Probe, document};
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The environment variable that names another folder, as for a service with a runtime folder of its own.
pub const VARIABLE: &str = "SPRAYWIRE_RUNTIME_DIR";

/// How long an end waits for the other.
const PATIENCE: Duration = Duration::from_secs(3);
/// For who comes sooner after another, the endpoint is not looked at anew.
pub const FRESH: Duration = Duration::from_millis(50);

/// More than any endpoint has to say: 256 queue pairs and 64 ports take a tenth of it.
const MAX_DOCUMENT: u64 = 4 << 20;

/// This user's folder: of the environment, of the session, of the system for root, or a temporary one.
pub fn folder() -> PathBuf {
    let named = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = rustix::process::geteuid();
    match (named(VARIABLE), named("XDG_RUNTIME_DIR")) {
        (Some(folder), _) => folder,
        (None, Some(session)) => session.join("spraywire"),
        (None, None) if uid.is_root() => PathBuf::from("/run/spraywire"),
        (None, None) => temporary(),
    }
}

fn temporary() -> PathBuf {
    std::env::temp_dir().join(format!("spraywire-{}", rustix::process::geteuid().as_raw()))
}

/// Binds a socket in a folder, which an endpoint that ends may have removed a moment ago.
fn bind(folder: &Path, path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            prepare(folder)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Removes a socket, and the temporary folder with the last: nobody else has a use for it.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    if let Some(folder) = path.parent().filter(|folder| *folder == temporary()) {
        // As long as there are others in it, the system refuses.
        let _ = fs::remove_dir(folder);
    }
}

/// Makes the folder if it is not there. One that somebody else could write to is refused.
///
/// # Errors
/// The system's, and a folder that is not this user's alone.
pub fn prepare(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = fs::symlink_metadata(folder)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        let what = format!("{} is not a folder of this user's alone (chmod 700)", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

/// The endpoints that have a socket in the folder: their processes and where. Those of dead processes are removed.
pub fn endpoints(folder: &Path) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse().ok());
        let Some(pid) = pid else { continue };
        let path = entry.path();
        if is_dead(&path) {
            let _ = fs::remove_file(&path);
        } else {
            found.push((pid, path));
        }
    }
    found.sort();
    found
}

/// Nobody listens any more.
fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// What the endpoint at that socket says of itself.
///
/// # Errors
/// An endpoint that is gone, or does not answer in time.
pub fn ask(path: &Path) -> io::Result<serde_json::Value> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.take(MAX_DOCUMENT).read_to_end(&mut text).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "nothing came for three seconds")
        }
        _ => e,
    })?;
    Ok(serde_json::from_slice(&text)?)
}

/// A socket that answers for this process. Dropping it removes it.
pub struct Socket {
    path: PathBuf,
    listener: RawFd,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Serves `probe` by a thread that runs on `cores`.
    ///
    /// # Errors
    /// A folder that cannot be used, or a socket that cannot be made.
    pub fn serve(folder: &Path, probe: &Arc<Probe>, cores: &[usize]) -> io::Result<Socket> {
        prepare(folder)?;
        endpoints(folder);
        let path = folder.join(format!("{}.sock", probe.identity().pid));
        // Of an earlier process with our number, or of a life of this one before.
        let _ = fs::remove_file(&path);
        let listener = bind(folder, &path)?;
        let fd = listener.as_raw_fd();
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, probe, cores) = (stop.clone(), probe.clone(), cores.to_vec());
        let thread = std::thread::Builder::new().name("spraywire-stats".to_owned()).spawn(move || {
            run_on(&cores);
            answer(&listener, &probe, &flag);
        });
        match thread {
            Ok(thread) => Ok(Socket { path, listener: fd, stop, thread: Some(thread) }),
            Err(e) => {
                remove(&path);
                Err(e)
            }
        }
    }
}

impl Socket {
    /// The number of the descriptor that it listens at, which is open until this is dropped. A child that was forked has a copy: nobody
    /// there would answer, and whoever asks would wait in vain once this process is gone. So the child has to close it.
    pub fn listener(&self) -> RawFd {
        self.listener
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Its thread waits for a connection, so it gets one.
        let woken = UnixStream::connect(&self.path).is_ok();
        remove(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread away from a core that a poll loop was pinned to.
pub fn run_on(cores: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < rustix::thread::CpuSet::MAX_CPU) {
        set.set(core);
    }
    // Where it may not, it stays.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn answer(listener: &UnixListener, probe: &Probe, stop: &AtomicBool) {
    /// Before the next try where there is no file descriptor left.
    const PAUSE: Duration = Duration::from_millis(100);
    let mut latest = Latest { at: None, text: Vec::new() };
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // Who goes away, or does not read, misses the answer.
        let _ = tell(stream, probe, &mut latest);
    }
}

/// The document, made anew for who comes later than a moment after the last: a look takes as long as the poll loop's pauses, and a crowd
/// would wait for it in a row.
struct Latest {
    at: Option<Instant>,
    text: Vec<u8>,
}

impl Latest {
    fn of(&mut self, probe: &Probe) -> io::Result<&[u8]> {
        if self.at.is_none_or(|at| at.elapsed() > FRESH) {
            self.text = serde_json::to_vec(&document::of(probe))?;
            self.at = Some(Instant::now());
        }
        Ok(&self.text)
    }
}

fn tell(mut stream: UnixStream, probe: &Probe, latest: &mut Latest) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    // A connection that was closed at once only asked whether anybody lives here.
    stream.set_nonblocking(true)?;
    if matches!((&stream).read(&mut [0]), Ok(0)) {
        return Ok(());
    }
    stream.set_nonblocking(false)?;
    stream.write_all(latest.of(probe)?)?;
    // Closed is it only once a child that was forked meanwhile has closed it too.
    stream.shutdown(Shutdown::Both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_whoever_else_has_the_connection() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let _childs = ours.try_clone().unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let probe = Probe::new(None);
        tell(ours, &probe, &mut Latest { at: None, text: Vec::new() }).unwrap();
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert!(text.ends_with('}'), "{text}");
    }
}
