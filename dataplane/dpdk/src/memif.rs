//! What one must know of DPDK's `net_memif` driver to use it without harm.
//!
//! Frames lie in buffers of shared memory whose size (`bsize=`) each side is told for itself. Two things go wrong in
//! DPDK 22.11 and, as its source stands, later:
//! - A descriptor's "continued in the next buffer" mark is set and never taken back, so after a frame that took several
//!   buffers, later frames that happen to reuse its descriptors are glued together.
//! - A receiver whose mbufs hold its own buffer size copies as many bytes as the sender's descriptor says, so a peer with
//!   larger buffers writes over the end of them.
//!
//! So a frame must fit one buffer, which [`crate::Port::start`] checks, and both sides must agree on the size. For that,
//! [`memif_device`] ties the size to memif's `secret=`, without which two sides do not connect.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::devargs::{driver_of, number, option};
use crate::port::frame_room;

/// Where the socket is if nothing is said (`ETH_MEMIF_DEFAULT_SOCKET_FILENAME`).
const DEFAULT_SOCKET: &str = "/run/memif.sock";

/// Bytes of a buffer if nothing is said (`ETH_MEMIF_DEFAULT_PKT_BUFFER_SIZE`).
const DEFAULT_BUFFER: u32 = 2048;

/// Buffers are a multiple of a cache line.
pub(crate) const LINE: u32 = 64;

/// Bytes of a packet buffer, behind the headroom, that holds any frame of an MTU: the usual 2048, or more.
pub(crate) fn buffer_for_mtu(mtu: u16) -> u32 {
    frame_room(mtu).next_multiple_of(LINE).max(DEFAULT_BUFFER)
}

/// Whether a device is a memif port.
fn is_memif(devargs: &str) -> bool {
    driver_of(devargs) == "net_memif"
}

/// Bytes of a shared buffer of the device.
pub(crate) fn buffer_size(devargs: &str) -> u32 {
    number(devargs, "bsize", DEFAULT_BUFFER)
}

/// Whether the device is the side that connects, which is memif's default, and not the one that listens.
pub(crate) fn is_client(devargs: &str) -> bool {
    is_memif(devargs) && !matches!(option(devargs, "role"), Some("server" | "master"))
}

/// Binary logarithm of the ring size if nothing is said. The driver's own is 10. A receiver that is the slower side always has
/// a full ring before it, and one of 1024 buffers does not stay in the caches: with 128, messages of 64 bytes, 1 KiB and 4 KiB
/// went through 20 % faster, and nothing is lost by it, since a full ring holds the sender up.
const RING_LOG2: u32 = 7;

/// Removes the socket file that a server left behind which was killed: the driver refuses to take its place. A file that
/// somebody listens at stays, as does one that is no socket.
pub(crate) fn remove_stale_socket(devargs: &str) {
    let Some(path) = socket_file(devargs) else { return };
    // memif's sockets are of another type, so one that is in use answers with another error, and is not disturbed.
    let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
    if is_socket(path) && UnixStream::connect(path).is_err_and(refused) {
        match fs::remove_file(path) {
            Ok(()) => tracing::info!("removed {}, which a dead process had left behind", path.display()),
            Err(e) => tracing::warn!("{} was left behind by a dead process and stays: {e}", path.display()),
        }
    }
}

/// Removes the socket file of a server's port that was attached, at the end of its process.
pub(crate) fn remove_own_socket(devargs: &str) {
    if let Some(path) = socket_file(devargs).filter(|path| is_socket(path))
        && let Err(e) = fs::remove_file(path)
    {
        tracing::warn!("{} stays: {e}", path.display());
    }
}

/// The file at which a server listens. Abstract sockets leave none; they are the driver's default.
fn socket_file(devargs: &str) -> Option<&Path> {
    let in_a_file = matches!(option(devargs, "socket-abstract"), Some("no"));
    let server = matches!(option(devargs, "role"), Some("server" | "master"));
    let path = || Path::new(option(devargs, "socket").unwrap_or(DEFAULT_SOCKET));
    (is_memif(devargs) && server && in_a_file).then(path)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Completes the arguments of a `net_memif` device for ports of an MTU: adds a buffer size that holds its frames, a
/// secret that names this size, so that a peer with another does not connect, and a ring size that suits the caches. What the
/// arguments say already stays, and with `bsize=` given, no secret is added: to talk to other programs over memif, give
/// `bsize=` on both sides. Other devices come back unchanged.
///
/// A pool made with [`crate::Mempool::data_room_for_mtu`] of the same MTU has buffers of exactly this size, which lets
/// the driver take its fast paths for receiving and for sending.
pub fn memif_device(devargs: &str, mtu: u16) -> String {
    if !is_memif(devargs) {
        return devargs.to_owned();
    }
    let ring = if option(devargs, "rsize").is_some() { String::new() } else { format!(",rsize={RING_LOG2}") };
    if option(devargs, "bsize").is_some() {
        return format!("{devargs}{ring}");
    }
    let size = buffer_for_mtu(mtu);
    let secret =
        if option(devargs, "secret").is_some() { String::new() } else { format!(",secret=bsize-{size}") };
    format!("{devargs},bsize={size}{secret}{ring}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn arguments_are_completed() {
        let device = "net_memif0,role=server,id=0";
        assert_eq!(memif_device(device, 1500), format!("{device},bsize=2048,secret=bsize-2048,rsize=7"));
        // 4200 + 26, in whole cache lines.
        assert_eq!(memif_device(device, 4200), format!("{device},bsize=4288,secret=bsize-4288,rsize=7"));
        let own = "net_memif1,bsize=9216,rsize=4";
        assert_eq!(memif_device(own, 1500), own);
        let secret = "net_memif1,secret=x";
        assert_eq!(memif_device(secret, 2023), format!("{secret},bsize=2112,rsize=7"));
        assert_eq!(memif_device("net_ring0", 4200), "net_ring0");
        assert_eq!(memif_device("0000:03:00.0", 4200), "0000:03:00.0");
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_removed() {
        let folder = std::env::temp_dir().join(format!("spw-stale-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("memif.sock");
        let device = |rest: &str| format!("net_memif0,socket={},{rest}", path.display());
        let ours = device("role=server,socket-abstract=no");
        let listener = UnixListener::bind(&path).unwrap();
        remove_stale_socket(&ours);
        assert!(path.exists(), "somebody listens");
        drop(listener);
        for others in [device("role=server"), device("role=client,socket-abstract=no")] {
            remove_stale_socket(&others);
            assert!(path.exists(), "{others}");
        }
        remove_stale_socket(&ours);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        remove_stale_socket(&ours);
        assert!(path.exists(), "no socket");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn sides() {
        assert!(is_client("net_memif0") && is_client("net_memif0,id=1,role=client,bsize=2048"));
        assert!(is_client("net_memif0,role=slave"));
        assert!(!is_client("net_memif0,role=server,id=0") && !is_client("net_memif0,role=master"));
        assert!(!is_client("net_ring0,role=client"));
    }

    #[test]
    fn buffers_of_devices() {
        assert_eq!(buffer_size("net_memif0,role=server"), 2048);
        assert_eq!(buffer_size("net_memif0,bsize=4096,role=server"), 4096);
        assert_eq!(buffer_size("net_memif0,bsize=4096,bsize=8192"), 8192);
    }
}
