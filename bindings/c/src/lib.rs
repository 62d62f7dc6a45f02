//! The services of Spraywire for programs in C, raw UD and reliable messages: opaque handles, integer errors, completions that are
//! polled for.
//!
//! The header is `include/spraywire.h`, made from this file by cbindgen; a test compares the two. A thin layer over
//! `dataplane::worker` and `dataplane::reliable`: an endpoint is a worker over one port, driven inline by [`spw_poll`] or
//! [`spw_poll_messages`].
//!
//! # Why unsafe
//! Each function takes pointers from a program in C, whose validity is the contract that its documentation states. Nothing
//! unwinds into the caller: a panic is caught and returned as an error.
#![allow(clippy::missing_safety_doc, reason = "the contract of each function is its documentation, for C")]
#![allow(non_camel_case_types, reason = "names are those that programs in C see")]

mod endpoint;
mod reliable;

use endpoint::{Endpoint, Failure, Settings};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What went wrong; functions return the negative of these.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum error {
    /// An argument that cannot be.
    Argument = 1,
    /// The port cannot be opened.
    Open = 2,
    /// A queue is full, the peer's MAC address is not known yet, or the session is not open yet: poll and try again.
    Again = 3,
    /// Nobody answers for the address.
    TimedOut = 4,
    /// No such queue pair, address handle or session (any more), or one in the error state.
    State = 5,
    /// An error of Spraywire itself.
    Internal = 6,
}

/// An open port with its queue pairs.
pub struct endpoint_t {
    inner: Endpoint,
}

/// How an endpoint is opened. Zero and NULL leave the defaults.
#[repr(C)]
pub struct config {
    /// The port in DPDK's syntax, such as "net_af_packet0,iface=veth0".
    pub port: *const c_char,
    /// Its addresses, with commas in between: "192.0.2.1/24,2001:db8::1".
    pub addresses: *const c_char,
    /// MTU of the port in bytes.
    pub mtu: u16,
    /// Seconds that a memif client waits for its server; 10 if zero.
    pub wait_seconds: u32,
    /// Queue pairs' first number; 0x10000 if zero.
    pub first_qpn: u32,
    /// UDP source ports to send from, as of --entropy-range: "49152-65535", the default. Each queue pair, and each path of a
    /// reliable session, has one of them.
    pub entropy_range: *const c_char,
}

/// A send: everything but its bytes.
#[repr(C)]
pub struct send {
    /// Your own number, given back in the completion.
    pub wr_id: u64,
    /// The queue pair to send from.
    pub qpn: u32,
    /// The address handle to send by.
    pub ah: u64,
    /// The peer's queue pair.
    pub dst_qpn: u32,
    /// The Q_Key to send.
    pub qkey: u32,
    /// An immediate in host byte order, if `has_imm` is not 0.
    pub imm: u32,
    /// Whether there is an immediate.
    pub has_imm: u8,
    /// Whether the send completes with an entry for spw_poll().
    pub signaled: u8,
}

/// A finished work request.
#[repr(C)]
pub struct completion {
    /// Your own number.
    pub wr_id: u64,
    /// The local queue pair.
    pub qpn: u32,
    /// 0: done. 1: the receive buffer was too short. 2: flushed. 3: it could not be done. After 1, the queue pair is in error.
    pub status: u32,
    /// Receives: bytes in the buffer, the 40 of the GRH area included. Sends: bytes sent.
    pub byte_len: u32,
    /// Receives: the sender's queue pair.
    pub src_qpn: u32,
    /// Receives: the immediate, if `has_imm` is not 0.
    pub imm: u32,
    /// Whether there is an immediate.
    pub has_imm: u8,
    /// Whether it is a receive.
    pub is_receive: u8,
}

/// How reliable messages are begun. Zero leaves the defaults.
#[repr(C)]
pub struct reliable_config {
    /// Number of its queue pair; the next free one if zero.
    pub qpn: u32,
    /// The Q_Key of both sides; 0x11111111 if zero.
    pub qkey: u32,
    /// Sessions at a time at most; 16,384 if zero.
    pub sessions: u32,
    /// Whether sessions that others begin are accepted.
    pub listen: u8,
    /// Paths (UDP source ports) of a session, 1 to 32; 1 if zero.
    pub paths: u8,
    /// Congestion control: 0 is a fixed window, 1 follows delay and ECN.
    pub congestion: u8,
    /// Bytes of a session in flight with a fixed window; 512 KiB if zero.
    pub window: u64,
}

/// A reliable message to send or to receive: everything but its bytes. The n-th send of a session, communicator and tag goes to
/// the n-th receive of the same at the other side. Members that you do not set must be zero.
#[repr(C)]
pub struct message {
    /// Your own number, given back when it is done.
    pub wr_id: u64,
    /// The session.
    pub session: u64,
    /// Your tag.
    pub tag: u64,
    /// Your communicator.
    pub communicator: u32,
    /// Of a send, what kind of traffic it is: 0 says nothing, and has no parity; 1 gradients of data-parallel training, 2 activations of
    /// pipeline-parallel training, 3 control. Those are protected over long round trips, as losses ask for.
    pub traffic_class: u8,
    /// Of a send with a class, its priority, 0 to 15. Gradients are protected from 8 on.
    pub priority: u8,
    /// Of a send with a class, its place in the pipeline: the earlier, the stronger it is protected.
    pub stage: u8,
    /// Of a send with a class, the loss that you tolerate, in 1/256. All of it arrives all the same.
    pub tolerance: u8,
}

/// A reliable message that is done with.
#[repr(C)]
pub struct done {
    /// Your own number.
    pub wr_id: u64,
    /// The session.
    pub session: u64,
    /// Your tag.
    pub tag: u64,
    /// Bytes of the message.
    pub len: u64,
    /// Your communicator.
    pub communicator: u32,
    /// Of a send, segments that were sent again.
    pub retransmitted: u32,
    /// 0: every byte is in its place. 1: longer than the receive posted for it. 2: the session went down.
    pub status: u32,
    /// Whether it is a receive.
    pub is_receive: u8,
}

/// What happened to a session.
#[repr(C)]
pub struct event {
    /// The session. One that a peer began is heard of first here.
    pub session: u64,
    /// The peer's queue pair.
    pub peer_qpn: u32,
    /// 1: it is open. 0: it is gone, and so is its number.
    pub is_up: u8,
    /// Whether the peer began it.
    pub accepted: u8,
    /// The peer's IP address.
    pub peer: [c_char; 48],
    /// Why it is gone, and what is likely wrong.
    pub reason: [c_char; 256],
}

/// Figures of a session since it began.
#[repr(C)]
pub struct session_figures {
    /// Segments sent for the first time.
    pub segments_sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Of them, those that the peer had.
    pub spurious: u64,
    /// Segments received for the first time.
    pub segments_received: u64,
    /// Segments received more than once.
    pub duplicates: u64,
    /// Bytes of messages whose send is done.
    pub bytes_sent: u64,
    /// Bytes of messages whose receive is done.
    pub bytes_received: u64,
    /// The smoothed round trip in nanoseconds; 0 before the first.
    pub round_trip_ns: u64,
}

/// Runs when the process ends by `exit` or a return from `main`, after everything that the program itself does then.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn at_end() {
        dataplane::open::end();
    }
    at_end
};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs a function; its error becomes a number and a text, and so does a panic.
fn guarded(f: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure {
            error: error::Internal,
            text: "an error of Spraywire itself: please report it".to_owned(),
        },
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no last error any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    -(failure.error as c_int)
}

fn argument(text: &str) -> Failure {
    Failure { error: error::Argument, text: text.to_owned() }
}

/// # Safety
/// Null, or a string that ends with a zero.
unsafe fn text<'a>(pointer: *const c_char) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's word.
    let text = unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| argument("a string is no UTF-8"))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// # Safety
/// Null, or an endpoint of ours that nobody else uses meanwhile.
unsafe fn endpoint<'a>(pointer: *mut endpoint_t) -> Result<&'a mut Endpoint, Failure> {
    // SAFETY: by the caller's word.
    unsafe { pointer.as_mut() }.map(|e| &mut e.inner).ok_or_else(|| argument("the endpoint is NULL"))
}

/// What went wrong last in this thread, and what to do about it. The text stays until the next error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn spw_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Opens a port; the endpoint goes to `*out`. The first call starts DPDK, once for the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_open(config: *const config, out: *mut *mut endpoint_t) -> c_int {
    guarded(|| {
        // SAFETY: null or valid, by the contract.
        let config = unsafe { config.as_ref() }.ok_or_else(|| argument("the configuration is NULL"))?;
        if out.is_null() {
            return Err(argument("there is no place for the endpoint"));
        }
        // SAFETY: null or strings, by the contract.
        let (port, addresses, entropy) =
            unsafe { (text(config.port)?, text(config.addresses)?, text(config.entropy_range)?) };
        let settings = Settings {
            port: port
                .ok_or_else(|| argument("the port is missing: \"net_memif0,role=server,id=0,socket=x\""))?,
            addresses: addresses.ok_or_else(|| argument("the addresses are missing: \"192.0.2.1\""))?,
            mtu: Some(config.mtu).filter(|mtu| *mtu > 0),
            wait: Duration::from_secs(match config.wait_seconds {
                0 => 10,
                seconds => seconds.into(),
            }),
            first_qpn: config.first_qpn,
            entropy,
        };
        let inner = Endpoint::open(&settings)?;
        // SAFETY: a place for a pointer, by the contract.
        unsafe { out.write(Box::into_raw(Box::new(endpoint_t { inner }))) };
        Ok(0)
    })
}

/// Closes an endpoint. Buffers of posted receives are yours again. NULL is allowed. The end of the process closes its port, unless
/// the endpoint is still open then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_close(endpoint: *mut endpoint_t) {
    if !endpoint.is_null() {
        guarded(|| {
            // SAFETY: made by `spw_open`, and not used any more, by the contract.
            drop(unsafe { Box::from_raw(endpoint) });
            Ok(0)
        });
    }
}

/// The largest message in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_max_message(endpoint: *mut endpoint_t) -> c_int {
    // SAFETY: by the contract.
    guarded(|| Ok(unsafe { self::endpoint(endpoint) }?.max_message() as c_int))
}

/// Makes a queue pair that is ready to send and receive; its number goes to `*qpn`. Incoming messages must carry `qkey`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_qp_create(
    endpoint: *mut endpoint_t,
    qkey: u32,
    send_depth: u32,
    recv_depth: u32,
    qpn: *mut u32,
) -> c_int {
    guarded(|| {
        // SAFETY: by the contract.
        let number = unsafe { self::endpoint(endpoint) }?.create_qp(qkey, send_depth, recv_depth)?;
        // SAFETY: null or a place for a number, by the contract.
        *unsafe { qpn.as_mut() }.ok_or_else(|| argument("there is no place for the number"))? = number;
        Ok(0)
    })
}

/// Destroys a queue pair with its work. Buffers of its receives are yours again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_qp_destroy(endpoint: *mut endpoint_t, qpn: u32) -> c_int {
    // SAFETY: by the contract.
    guarded(|| unsafe { self::endpoint(endpoint) }?.destroy_qp(qpn).map(|()| 0))
}

/// Makes an address handle to an IP address, for which it waits at most `timeout_ms`; its number goes to `*ah`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_ah_create(
    endpoint: *mut endpoint_t,
    address: *const c_char,
    timeout_ms: u32,
    ah: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: a string, by the contract.
        let address = unsafe { text(address) }?.ok_or_else(|| argument("the address is missing"))?;
        if ah.is_null() {
            return Err(argument("there is no place for the handle"));
        }
        let limit = Duration::from_millis(timeout_ms.into());
        // SAFETY: by the contract.
        let handle = unsafe { self::endpoint(endpoint) }?.create_ah(address, limit)?;
        // SAFETY: a place for a number, by the contract.
        unsafe { ah.write(handle) };
        Ok(0)
    })
}

/// Destroys an address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_ah_destroy(endpoint: *mut endpoint_t, ah: u64) -> c_int {
    // SAFETY: by the contract.
    guarded(|| unsafe { self::endpoint(endpoint) }?.destroy_ah(ah).map(|()| 0))
}

/// Posts a send of `len` bytes, which are copied at once. SPW_ERROR_AGAIN is back-pressure: poll and try again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_post_send(
    endpoint: *mut endpoint_t,
    send: *const send,
    data: *const c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null or valid, by the contract.
        let send = unsafe { send.as_ref() }.ok_or_else(|| argument("the send is NULL"))?;
        let data = match len {
            0 => &[],
            _ if data.is_null() => return Err(argument("the data is NULL")),
            // SAFETY: so many bytes, by the contract.
            _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) },
        };
        // SAFETY: by the contract.
        unsafe { self::endpoint(endpoint) }?.post_send(send, data).map(|()| 0)
    })
}

/// Posts a receive into `len` bytes at `buffer`: 40 bytes of GRH area, then the message. The memory is the endpoint's until the
/// receive completes, or its queue pair or endpoint is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_post_recv(
    endpoint: *mut endpoint_t,
    qpn: u32,
    wr_id: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        if buffer.is_null() {
            return Err(argument("the buffer is NULL"));
        }
        // SAFETY: so many bytes for as long as the contract says, and the endpoint by the same.
        unsafe { self::endpoint(endpoint)?.post_recv(qpn, wr_id, buffer.cast(), len) }.map(|()| 0)
    })
}

/// Moves packets, and takes up to `max` completions, oldest first; how many. To be called often: nothing moves, and no neighbour is
/// answered, otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_poll(
    endpoint: *mut endpoint_t,
    completions: *mut completion,
    max: usize,
) -> c_int {
    guarded(|| {
        if completions.is_null() && max > 0 {
            return Err(argument("there is no place for completions"));
        }
        let mut at = completions;
        // SAFETY: by the contract.
        let taken = unsafe { self::endpoint(endpoint) }?.poll(max, |done| {
            // SAFETY: places for `max` of them, by the contract.
            unsafe {
                at.write(done);
                at = at.add(1);
            }
        });
        Ok(taken as c_int)
    })
}

/// Begins with reliable messages, once for an endpoint; the number of their queue pair, by which peers connect, goes to `*qpn`. With a
/// configuration of NULL everything is as zeros leave it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_reliable_start(
    endpoint: *mut endpoint_t,
    config: *const reliable_config,
    qpn: *mut u32,
) -> c_int {
    guarded(|| {
        let none =
            reliable_config { qpn: 0, qkey: 0, sessions: 0, listen: 0, paths: 0, congestion: 0, window: 0 };
        // SAFETY: null or valid, by the contract.
        let config = unsafe { config.as_ref() }.unwrap_or(&none);
        // SAFETY: null or a place for a number, by the contract.
        let place = unsafe { qpn.as_mut() }.ok_or_else(|| argument("there is no place for the number"))?;
        // SAFETY: by the contract.
        *place = unsafe { self::endpoint(endpoint) }?.start_reliable(config)?;
        Ok(0)
    })
}

/// Begins a session with the reliable endpoint at an IP address and queue pair; its number goes to `*session`. It is open, or refused,
/// once spw_poll_event() says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_connect(
    endpoint: *mut endpoint_t,
    address: *const c_char,
    qpn: u32,
    session: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: a string, by the contract.
        let address = unsafe { text(address) }?.ok_or_else(|| argument("the address is missing"))?;
        // SAFETY: null or a place for a number, by the contract.
        let place =
            unsafe { session.as_mut() }.ok_or_else(|| argument("there is no place for the session"))?;
        // SAFETY: by the contract.
        *place = unsafe { self::endpoint(endpoint) }?.connect(address, qpn)?;
        Ok(0)
    })
}

/// Ends a session. What is not done yet is done with status 2, and spw_poll_event() says when it is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_disconnect(endpoint: *mut endpoint_t, session: u64) -> c_int {
    // SAFETY: by the contract.
    guarded(|| unsafe { self::endpoint(endpoint) }?.disconnect(session).map(|()| 0))
}

/// Sends a message of `len` bytes. The memory must stay, and not be written to, until the send is done or the endpoint closed.
/// SPW_ERROR_AGAIN is back-pressure: poll and try again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_send_message(
    endpoint: *mut endpoint_t,
    message: *const message,
    data: *const c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null or valid, by the contract.
        let message = unsafe { message.as_ref() }.ok_or_else(|| argument("the message is NULL"))?;
        if data.is_null() && len > 0 {
            return Err(argument("the data is NULL"));
        }
        // SAFETY: so many bytes for as long as the contract says, and the endpoint by the same.
        unsafe { self::endpoint(endpoint)?.send_message(message, data.cast(), len) }.map(|()| 0)
    })
}

/// Posts a receive of a message of up to `len` bytes. The memory is the endpoint's until the receive is done or the endpoint closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_recv_message(
    endpoint: *mut endpoint_t,
    message: *const message,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null or valid, by the contract.
        let message = unsafe { message.as_ref() }.ok_or_else(|| argument("the message is NULL"))?;
        if buffer.is_null() && len > 0 {
            return Err(argument("the buffer is NULL"));
        }
        // SAFETY: so many bytes for as long as the contract says, and the endpoint by the same.
        unsafe { self::endpoint(endpoint)?.recv_message(message, buffer.cast(), len) }.map(|()| 0)
    })
}

/// Moves packets, as spw_poll() does, and takes up to `max` reliable messages that are done, oldest first; how many. To be called often.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_poll_messages(
    endpoint: *mut endpoint_t,
    messages: *mut done,
    max: usize,
) -> c_int {
    guarded(|| {
        if messages.is_null() && max > 0 {
            return Err(argument("there is no place for messages"));
        }
        let mut at = messages;
        // SAFETY: by the contract.
        let taken = unsafe { self::endpoint(endpoint) }?.poll_messages(max, |one| {
            // SAFETY: places for `max` of them, by the contract.
            unsafe {
                at.write(one);
                at = at.add(1);
            }
        })?;
        Ok(taken as c_int)
    })
}

/// Takes the next event of a session: 1 if there was one, otherwise 0. Events wait until the messages that are done have been taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_poll_event(endpoint: *mut endpoint_t, event: *mut event) -> c_int {
    guarded(|| {
        if event.is_null() {
            return Err(argument("there is no place for the event"));
        }
        // SAFETY: by the contract.
        let Some(told) = unsafe { self::endpoint(endpoint) }?.session_event()? else { return Ok(0) };
        // SAFETY: a place for it, by the contract.
        unsafe { event.write(told) };
        Ok(1)
    })
}

/// Figures of an open session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spw_session_stats(
    endpoint: *mut endpoint_t,
    session: u64,
    stats: *mut session_figures,
) -> c_int {
    guarded(|| {
        if stats.is_null() {
            return Err(argument("there is no place for the figures"));
        }
        // SAFETY: by the contract.
        let told = unsafe { self::endpoint(endpoint) }?.stats(session)?;
        // SAFETY: a place for them, by the contract.
        unsafe { stats.write(told) };
        Ok(0)
    })
}
