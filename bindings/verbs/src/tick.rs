//! The thread of an open device, for the times when the program does not poll it: neighbours want answers, sends that were posted
//! and left want to go, and whoever sleeps at a completion channel wants to be woken.

use crate::channel;
use crate::device::Device;
use dataplane::idle::{Idle, IdlePolicy};
use dataplane::io::PortState;
use std::time::Duration;

/// How often it looks whether the program polls: a send that nobody follows up waits no longer. The program's own rounds, where it
/// polls, are ten thousand times as frequent.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// While completions wait for the program, it makes a round in so many looks only: what the port holds back is not lost, but what
/// comes for a queue pair that has no receive left is.
const SELDOM: u32 = 16;

/// With nobody at a channel it sleeps longer, after so many rounds in which nothing came.
const QUIET: u32 = 100;
/// How long then.
const QUIET_SLEEP: Duration = Duration::from_millis(4);

/// All signals of the calling thread, blocked until this is dropped. Threads that are started meanwhile have them blocked for
/// good: signals are the program's.
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    /// Blocks them.
    pub fn new() -> SignalsBlocked {
        // SAFETY: a set of signals is plain bits, for which zero is a value; both calls write within the two sets.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Starts the thread of a device that was opened for the first time.
pub fn start(device: &'static Device) {
    let _quiet = SignalsBlocked::new();
    let made = std::thread::Builder::new().name("spraywire".to_owned()).spawn(move || {
        loop {
            device.wait_open();
            run(device);
        }
    });
    if let Err(e) = made {
        crate::say::refuse(libc::EAGAIN, format_args!("no thread for the times without polling: {e}"));
    }
}

/// Looks after the device until nobody has it open.
fn run(device: &'static Device) {
    let always = device.config().thread;
    let mut idle = Idle::new(IdlePolicy::default());
    let mut seen = 0;
    let mut quiet = 0;
    let mut looks = 0u32;
    let mut state = None;
    let mut watch = None;
    loop {
        looks = looks.wrapping_add(1);
        let mut waited_for = always;
        let mut busy = false;
        // Where the program polls, its lock is left to it.
        let alone = device.rounds() == seen;
        if (alone || always || watch.is_none())
            && let Some(mut engine) = device.try_lock(Duration::ZERO)
        {
            waited_for |= !engine.armed.is_empty() && alone;
            let held_back = !looks.is_multiple_of(SELDOM) && engine.worker.has_completions();
            if (alone && !held_back) || always {
                engine.paused();
                busy = engine.round().any();
            }
            watch = Some((engine.facts.watch.clone(), engine.facts.waits_for_peer));
        }
        seen = device.rounds();
        let now =
            watch.as_ref().filter(|(_, waits_for_peer)| !waits_for_peer).map(|(watch, _)| watch.state());
        if let (Some(before), Some(now)) = (state, now)
            && before != now
        {
            // SAFETY: contexts that are open, which they stay meanwhile.
            device.each_context(|c| unsafe { channel::port_changed(c, now == PortState::Up) });
        }
        state = now;
        let mut any = false;
        device.each_context(|_| any = true);
        if !any {
            return;
        }
        if waited_for {
            quiet = 0;
            idle.after_round(busy);
        } else {
            quiet = if busy { 0 } else { quiet + 1 };
            idle.after_round(true);
            std::thread::sleep(if quiet > QUIET { QUIET_SLEEP } else { LOOK_EVERY });
        }
    }
}
