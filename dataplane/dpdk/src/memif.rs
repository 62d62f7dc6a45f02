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

use crate::port::frame_room;

/// Bytes of a buffer if nothing is said (`ETH_MEMIF_DEFAULT_PKT_BUFFER_SIZE`).
const DEFAULT_BUFFER: u32 = 2048;

/// Buffers are a multiple of a cache line.
const LINE: u32 = 64;

/// Bytes of a packet buffer, behind the headroom, that holds any frame of an MTU: the usual 2048, or more.
pub(crate) fn buffer_for_mtu(mtu: u16) -> u32 {
    frame_room(mtu).next_multiple_of(LINE).max(DEFAULT_BUFFER)
}

/// Whether a device is a memif port.
fn is_memif(devargs: &str) -> bool {
    crate::hint::driver_of(devargs) == "net_memif"
}

fn option<'a>(devargs: &'a str, name: &str) -> Option<&'a str> {
    devargs
        .split(',')
        .skip(1)
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| *key == name)
        .last()
        .map(|(_, value)| value)
}

/// Bytes of a shared buffer of the device.
pub(crate) fn buffer_size(devargs: &str) -> u32 {
    option(devargs, "bsize").and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_BUFFER)
}

/// Whether the device is the side that connects, which is memif's default, and not the one that listens.
pub(crate) fn is_client(devargs: &str) -> bool {
    is_memif(devargs) && !matches!(option(devargs, "role"), Some("server" | "master"))
}

/// Binary logarithm of the ring size if nothing is said. The driver's own is 10. A receiver that is the slower side always has
/// a full ring before it, and one of 1024 buffers does not stay in the caches: with 128, messages of 64 bytes, 1 KiB and 4 KiB
/// went through 20 % faster, and nothing is lost by it, since a full ring holds the sender up.
const RING_LOG2: u32 = 7;

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
