//! `net_tap`, and the signal that it would like to have.
//!
//! Its driver has the kernel send the process a realtime signal for each packet that arrives, so that a poll that finds nothing
//! needs no system call. The signal interrupts the very thread that polls, or wakes another one that has the processor to
//! itself for as long; under load either costs several times what reading the packet does, and rings overflow meanwhile.
//! Where no realtime signal is free, the driver reads whenever it is polled. So none is free while it looks for one.

use std::mem::{MaybeUninit, zeroed};
use std::ptr;

/// Whether a device, or an argument that names one, is of that driver.
pub(crate) fn is_tap(text: &str) -> bool {
    text.contains("net_tap") || text.contains("net_tun")
}

/// Does `work`, in which the driver makes its queues, with every realtime signal taken that nobody has.
///
/// A signal that another thread begins to ignore meanwhile has its default action again afterwards.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let free: Vec<i32> = (libc::SIGRTMIN()..=libc::SIGRTMAX())
        .filter(|&signal| action(signal) == Some(libc::SIG_DFL) && set_action(signal, libc::SIG_IGN))
        .collect();
    let result = work();
    for signal in free {
        if action(signal) == Some(libc::SIG_IGN) {
            set_action(signal, libc::SIG_DFL);
        }
    }
    result
}

/// What a signal does.
fn action(signal: i32) -> Option<libc::sighandler_t> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set, and `now` is valid for writing.
    let ret = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: the call succeeded, so it was written.
    (ret == 0).then(|| unsafe { now.assume_init() }.sa_sigaction)
}

/// Sets one of the two actions without a handler; whether that was possible.
fn set_action(signal: i32, action: libc::sighandler_t) -> bool {
    // SAFETY: plain bits, for which zero is a value: no flags, an empty mask, no restorer.
    let mut wanted: libc::sigaction = unsafe { zeroed() };
    wanted.sa_sigaction = action;
    // SAFETY: the structure is valid; ignoring and the default need no handler to be there.
    unsafe { libc::sigaction(signal, &raw const wanted, ptr::null_mut()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_taken_while_it_works_and_free_again_later() {
        let first = libc::SIGRTMIN();
        let ours = first + 1;
        assert!(set_action(ours, libc::SIG_IGN));
        assert_eq!(action(first), Some(libc::SIG_DFL));
        let taken = without_signals(|| {
            (first..=libc::SIGRTMAX()).filter(|&s| action(s) == Some(libc::SIG_DFL)).count()
        });
        assert_eq!(taken, 0);
        assert_eq!((action(first), action(ours)), (Some(libc::SIG_DFL), Some(libc::SIG_IGN)));
        assert_eq!(action(10_000), None);
    }

    #[test]
    fn its_devices_are_known() {
        assert!(is_tap("net_tap0,iface=x") && is_tap("--vdev=net_tun1"));
        assert!(!is_tap("net_af_packet0,iface=tap0"));
    }
}
