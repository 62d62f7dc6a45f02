//! Completion channels and asynchronous events.
//!
//! Each has a file descriptor that a program may wait at by whatever means it likes: an eventfd that counts one for each event
//! that lies in the queue beside it.

use crate::context::Context;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::say::{refuse_null, set_errno};
use crate::sys;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events of one kind that wait, and their file descriptor.
struct Queue<T> {
    fd: c_int,
    events: Mutex<VecDeque<T>>,
}

impl<T> Queue<T> {
    fn new() -> io::Result<Queue<T>> {
        // SAFETY: no precondition.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Queue { fd, events: Mutex::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: T) {
        self.lock().push_back(event);
        let one = 1u64;
        // SAFETY: eight bytes, as an eventfd takes them. It holds more than there can be events.
        unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
    }

    /// Waits for one, unless the program has made the descriptor non-blocking.
    fn pop(&self) -> Option<T> {
        loop {
            let mut one = 0u64;
            // SAFETY: eight bytes, as an eventfd gives them.
            if unsafe { libc::read(self.fd, (&raw mut one).cast(), 8) } < 0 {
                return None;
            }
            // It may have been taken back between the two.
            if let Some(event) = self.lock().pop_front() {
                return Some(event);
            }
        }
    }

    /// Takes events back; returns how many.
    fn retain(&self, keep: impl Fn(&T) -> bool) -> usize {
        let mut events = self.lock();
        let before = events.len();
        events.retain(keep);
        for _ in events.len()..before {
            let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
            let mut one = 0u64;
            // SAFETY: one descriptor, and eight bytes; nobody waits here, since it is read only when there is something.
            unsafe {
                if libc::poll(&raw mut poll, 1, 0) == 1 {
                    libc::read(self.fd, (&raw mut one).cast(), 8);
                }
            }
        }
        before - events.len()
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::close(self.fd) };
    }
}

/// A completion channel.
#[repr(C)]
pub struct Channel {
    base: sys::ibv_comp_channel,
    queue: Queue<Ready>,
}

/// A completion queue with news. It takes its events back before it goes.
#[derive(Clone, Copy)]
struct Ready(NonNull<Cq>);

// SAFETY: a pointer that is only handed on; see above.
unsafe impl Send for Ready {}

impl Channel {
    /// The channel of a pointer that programs hold.
    ///
    /// # Safety
    /// It is one of ours.
    pub unsafe fn of<'a>(channel: *const sys::ibv_comp_channel) -> &'a Channel {
        // SAFETY: the base is the first field.
        unsafe { &*channel.cast::<Channel>() }
    }

    /// A completion queue goes: nobody must hear of it any more. Returns how many of its events nobody has heard of.
    pub fn forget(&self, cq: NonNull<Cq>) -> u32 {
        self.queue.retain(|ready| ready.0 != cq) as u32
    }

    /// A completion queue comes or goes.
    ///
    /// # Safety
    /// The channel is one of ours.
    pub unsafe fn count(channel: *mut sys::ibv_comp_channel, by: c_int) {
        // SAFETY: the count is changed under the lock of a device only; channels are not shared by devices.
        unsafe { (*channel).refcnt += by };
    }
}

/// Raises the events of armed completion queues that have news.
#[cold]
pub fn raise(engine: &mut Engine) {
    let mut at = 0;
    while let Some(cq) = engine.armed.get(at).copied() {
        // SAFETY: completion queues leave the list before they go.
        let queue = unsafe { cq.as_ref() };
        if !engine.worker.cq(queue.key()).is_some_and(|cq| cq.take_event()) {
            at += 1;
            continue;
        }
        engine.armed.swap_remove(at);
        if let Some(channel) = queue.channel() {
            queue.event_raised();
            channel.queue.push(Ready(cq));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    let queue = match Queue::new() {
        Ok(queue) => queue,
        Err(e) => return refuse_null(e.raw_os_error().unwrap_or(libc::EMFILE), "no file descriptor is left"),
    };
    let base = sys::ibv_comp_channel { context, fd: queue.fd, refcnt: 0 };
    Box::into_raw(Box::new(Channel { base, queue })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    if unsafe { Channel::of(channel) }.base.refcnt > 0 {
        return libc::EBUSY;
    }
    // SAFETY: made by `ibv_create_comp_channel`, and nobody's any more.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let Some(Ready(ready)) = unsafe { Channel::of(channel) }.queue.pop() else { return -1 };
    // SAFETY: it is there, or it would have taken its event back; the caller's own places.
    unsafe {
        let base = ready.as_ref().base();
        cq.write(base);
        cq_context.write((*base).cq_context);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut sys::ibv_cq, events: c_uint) {
    // SAFETY: one of ours, by the contract of the verbs.
    unsafe { Cq::of(cq) }.events_acknowledged(events);
}

/// The asynchronous events of a context: its port's, which are all that there are.
pub struct Async(Queue<sys::ibv_event_type>);

impl Async {
    /// None so far.
    ///
    /// # Errors
    /// No file descriptor.
    pub fn new() -> io::Result<Async> {
        Queue::new().map(Async)
    }

    /// What programs wait at.
    pub fn fd(&self) -> c_int {
        self.0.fd
    }
}

/// The port of a context came up or went down.
///
/// # Safety
/// The context is open.
pub unsafe fn port_changed(context: usize, up: bool) {
    // SAFETY: an open context, by the caller's word.
    let context = unsafe { &*(context as *const Context) };
    context.events.0.push(if up { sys::IBV_EVENT_PORT_ACTIVE } else { sys::IBV_EVENT_PORT_ERR });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let Some(event_type) = (unsafe { Context::of(context) }).events.0.pop() else { return -1 };
    let mut happened = sys::ibv_async_event { event_type, ..sys::ibv_async_event::default() };
    happened.element.port_num = 1;
    // SAFETY: the caller's own place.
    unsafe { event.write(happened) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_: *mut sys::ibv_async_event) {
    set_errno(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_counts_what_waits() {
        let queue = Queue::new().unwrap();
        let ready = || {
            let mut poll = libc::pollfd { fd: queue.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        assert!(!ready());
        for n in 0..4 {
            queue.push(n);
        }
        assert_eq!(queue.pop(), Some(0));
        assert_eq!(queue.retain(|n| *n == 2), 2);
        assert!(ready());
        assert_eq!(queue.pop(), Some(2));
        assert!(!ready());
        // SAFETY: our own descriptor.
        unsafe { libc::fcntl(queue.fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.pop(), None, "as the program wants it");
    }
}
