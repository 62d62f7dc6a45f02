//! What one must know of DPDK's `net_af_packet` driver.
//!
//! It exchanges frames with the kernel through two rings of memory (packet(7), `PACKET_MMAP`), whose geometry its arguments
//! give: frames of `framesz` bytes, of which a whole number must fill a block of `blocksz`, and `framecnt` of them in a
//! ring. A frame longer than its place arrives cut off, and leaves not at all. The defaults hold Ethernet's 1500 bytes and
//! 512 frames.

use crate::devargs::{driver_of, number, option};
use crate::kernel::{Interface, InterfaceState};
use crate::port::frame_room;

/// Bytes of a frame's place if nothing is said (`DFLT_FRAME_SIZE`).
const DEFAULT_FRAME: u32 = 2048;

/// Bytes before a received frame in its place: the kernel's header, room for an address, and an alignment
/// (`TPACKET_ALIGN(TPACKET2_HDRLEN + 16)` of `linux/if_packet.h`, less the Ethernet header).
const BEFORE: u32 = 66;

/// Bytes of a place that the driver does not count as a packet's (`TPACKET2_HDRLEN` less an address): a packet buffer must hold
/// all others, or the driver refuses it.
const NOT_DATA: u32 = 32;

/// Bytes of a block, of which each is one piece of memory.
const BLOCK: u32 = 64 * 1024;

/// Bytes of a ring for which its number of frames is chosen: 4096 of the usual length, which is what a busy sender has ready
/// when the receiver was off its processor for a few milliseconds.
const RING: u32 = 8 * 1024 * 1024;

/// Whether a driver or device is this one.
pub(crate) fn is_af_packet(devargs: &str) -> bool {
    matches!(driver_of(devargs), "net_af_packet" | "eth_af_packet")
}

/// Bytes of a frame's place that holds any frame of an MTU, with two VLAN tags: a power of two, since only those fill blocks
/// without a rest.
fn frame_for_mtu(mtu: u16) -> u32 {
    (frame_room(mtu) + BEFORE).next_power_of_two().max(DEFAULT_FRAME)
}

/// Bytes of the largest frame that fits the device's places, the checksum and two VLAN tags counted as [`frame_room`] does.
pub(crate) fn largest_frame(devargs: &str) -> u32 {
    number(devargs, "framesz", DEFAULT_FRAME).saturating_sub(BEFORE)
}

/// Bytes that a packet buffer must have behind the headroom, whatever the MTU.
pub(crate) fn buffer_size(devargs: &str) -> u32 {
    number(devargs, "framesz", DEFAULT_FRAME).saturating_sub(NOT_DATA)
}

/// Completes the arguments of a device with rings that hold frames of an MTU. With one of the three sizes given, all are the
/// user's, since they depend on each other.
pub(crate) fn af_packet_device(devargs: &str, mtu: u16) -> String {
    let given = |name| option(devargs, name).is_some();
    if !is_af_packet(devargs) || given("framesz") || given("blocksz") || given("framecnt") {
        return devargs.to_owned();
    }
    let frame = frame_for_mtu(mtu);
    let block = frame.max(BLOCK);
    format!("{devargs},blocksz={block},framesz={frame},framecnt={}", RING / frame)
}

/// What the kernel said to a refused device, where that is known. The driver itself returns -1 for every failure, which reads
/// as "Operation not permitted".
pub(crate) fn refusal(devargs: &str, said: &str) -> Option<i32> {
    fanout_refused(devargs, said).then_some(libc::EINVAL)
}

/// What to do about a refused device, if what the driver said tells the cause.
pub(crate) fn advice(devargs: &str, said: &str) -> Option<String> {
    if !is_af_packet(devargs) {
        return None;
    }
    let Some(interface) = option(devargs, "iface") else {
        return Some("It needs the name of an interface: net_af_packet0,iface=NAME".into());
    };
    if said.contains("No such device") {
        return Some(format!(
            "There is no interface {interface} in this network namespace: ip link shows those that there are"
        ));
    }
    if !fanout_refused(devargs, said) {
        return None;
    }
    // Older kernels have no groups for an interface that is down.
    if Interface::of_device(devargs).is_some_and(|i| i.state() == InterfaceState::Down) {
        return Some(format!("The interface {interface} is down: ip link set dev {interface} up"));
    }
    Some(format!(
        "The driver makes the number of its fanout group of the low 16 bits of process id and interface index, and a port of another process on another interface of this network namespace seems to have the same number: start this one again, so that it has another process id, or give the interface a namespace of its own (ip link set dev {interface} netns NAME) and start there"
    ))
}

/// Whether the kernel would not let the port join a fanout group. Its number is `(getpid() ^ ifindex) & 0xffff`, and a group
/// has one interface: packet(7) has EINVAL for the rest.
fn fanout_refused(devargs: &str, said: &str) -> bool {
    is_af_packet(devargs) && said.contains("PACKET_FANOUT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_what_an_mtu_needs() {
        let device = "net_af_packet0,iface=e0";
        let sizes = |mtu| {
            let made = af_packet_device(device, mtu);
            assert!(made.starts_with(device));
            ["blocksz", "framesz", "framecnt"].map(|name| number(&made, name, 0))
        };
        assert_eq!(sizes(1500), [65_536, 2048, 4096]);
        // 4200 + 26 + 66 bytes.
        assert_eq!(sizes(4200), [65_536, 8192, 1024]);
        // The last MTU that fits 2048, and the first that does not.
        assert_eq!((sizes(1956)[1], sizes(1957)[1]), (2048, 4096));
        for mtu in [64, 1500, 4200, 9000, u16::MAX] {
            let [block, frame, count] = sizes(mtu);
            assert!(block % frame == 0 && block % 4096 == 0 && count % (block / frame) == 0 && count > 0);
            assert!(largest_frame(&af_packet_device(device, mtu)) >= frame_room(mtu));
        }
    }

    #[test]
    fn what_the_user_says_stays() {
        for device in
            ["net_af_packet0,iface=e0,framesz=8192", "net_af_packet0,framecnt=16", "net_ring0", "net_memif0"]
        {
            assert_eq!(af_packet_device(device, 9000), device);
        }
        assert_eq!(largest_frame("net_af_packet0,iface=e0"), 2048 - 66);
        assert_eq!(buffer_size("net_af_packet0,framesz=8192"), 8160);
    }

    #[test]
    fn a_refused_fanout_group_is_explained() {
        let device = "net_af_packet0,iface=lo";
        let said = "eth_af: could not set PACKET_FANOUT on AF_PACKET socket for lo: Invalid argument";
        assert_eq!(refusal(device, said), Some(libc::EINVAL));
        let is_down = Interface::of_device(device).unwrap().state() == InterfaceState::Down;
        let text = advice(device, said).unwrap();
        assert_eq!(text.contains("start this one again"), !is_down, "{text}");
        assert_eq!(text.contains("ip link set dev lo up"), is_down, "{text}");
        for (device, said) in [(device, "could not bind"), ("net_tap0,iface=lo", said)] {
            assert_eq!((refusal(device, said), advice(device, said)), (None, None));
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        let said = "rte_pmd_init_internals(): net_af_packet0: ioctl failed (SIOCGIFINDEX):No such device";
        let text = advice("net_af_packet0,iface=nope,blocksz=65536", said).unwrap();
        assert!(text.contains("no interface nope"), "{text}");
        let text = advice("net_af_packet0,blocksz=65536", "").unwrap();
        assert!(text.contains("iface=NAME"), "{text}");
    }
}
