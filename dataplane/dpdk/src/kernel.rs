//! Interfaces of the kernel below a port (`net_af_packet`, `net_tap`, `net_af_xdp`): what the drivers do not say of them,
//! or say wrongly, the kernel does. `net_af_packet` reports its link as up from start to stop, whatever becomes of the
//! interface, and an MTU that has nothing to do with the interface's.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An interface of this process' network namespace. It is known by its number, which no other interface gets as long as the
/// machine runs, whatever happens to its name.
#[derive(Debug)]
pub struct Interface {
    index: u32,
    /// Questions are asked through a socket of any kind.
    socket: OwnedFd,
}

/// Whether packets can flow through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfaceState {
    /// They can.
    Up,
    /// It is up, and what it is connected to is not.
    NoCarrier,
    /// It was set down.
    Down,
    /// It was removed, or moved to another namespace.
    Gone,
}

impl Interface {
    /// The interface with that number; none if there is none, or if no question can be asked.
    pub fn by_index(index: u32) -> Option<Interface> {
        // SAFETY: takes no memory; the descriptor, if it is one, is ours alone.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        }?;
        let interface = Interface { index, socket };
        interface.name().is_some().then_some(interface)
    }

    /// The interface of that name.
    pub fn by_name(name: &str) -> Option<Interface> {
        let name = std::ffi::CString::new(name).ok()?;
        // SAFETY: a valid string.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 { None } else { Interface::by_index(index) }
    }

    /// The interface that a virtual device names with `iface=`.
    pub fn of_device(devargs: &str) -> Option<Interface> {
        crate::devargs::option(devargs, "iface").and_then(Interface::by_name)
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its present name; none if it is gone.
    pub fn name(&self) -> Option<String> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = i32::try_from(self.index).ok()?;
        self.ask(libc::SIOCGIFNAME, &mut request).ok()?;
        // SAFETY: the kernel filled in a name, which ends with a zero within the array.
        let name = unsafe { CStr::from_ptr(request.ifr_name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Its MTU in bytes; none if it is gone.
    pub fn mtu(&self) -> Option<u32> {
        let request = self.request(libc::SIOCGIFMTU)?;
        // SAFETY: the kernel filled in this member.
        u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
    }

    /// Whether packets can flow.
    pub fn state(&self) -> InterfaceState {
        let Some(request) = self.request(libc::SIOCGIFFLAGS) else { return InterfaceState::Gone };
        // SAFETY: the kernel filled in this member.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        match (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0) {
            (true, true) => InterfaceState::Up,
            (true, false) => InterfaceState::NoCarrier,
            (false, _) => InterfaceState::Down,
        }
    }

    /// A question about the interface, answered; none if it is gone.
    fn request(&self, question: libc::Ioctl) -> Option<libc::ifreq> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = i32::try_from(self.index).ok()?;
        // The one question that goes by number fills in the name, by which all others go.
        self.ask(libc::SIOCGIFNAME, &mut request).ok()?;
        self.ask(question, &mut request).ok()?;
        Some(request)
    }

    fn ask(&self, question: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: each of the questions above takes a `struct ifreq`, which is valid for reading and writing.
        let ret = unsafe { libc::ioctl(self.socket.as_raw_fd(), question, &raw mut *request) };
        if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn empty_request() -> libc::ifreq {
    // SAFETY: plain bytes, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known() {
        let lo = Interface::by_name("lo").unwrap();
        assert_eq!(lo.name().as_deref(), Some("lo"));
        assert_eq!(Interface::by_index(lo.index()).unwrap().index(), lo.index());
        assert_eq!(Interface::of_device("net_af_packet0,iface=lo,blocksz=4096").unwrap().index(), lo.index());
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(lo.mtu(), mtu.trim().parse().ok());
        assert_ne!(lo.state(), InterfaceState::Gone);
    }

    #[test]
    fn what_is_not_there_is_gone() {
        assert!(
            Interface::by_name("no-such-iface").is_none() && Interface::by_index(i32::MAX as u32).is_none()
        );
        assert!(Interface::by_index(u32::MAX).is_none() && Interface::by_name("\0").is_none());
        assert!(Interface::of_device("net_memif0,role=server").is_none());
        let gone = Interface { index: i32::MAX as u32, ..Interface::by_name("lo").unwrap() };
        assert_eq!((gone.state(), gone.mtu(), gone.name()), (InterfaceState::Gone, None, None));
    }
}
