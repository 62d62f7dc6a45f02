//! Opening a device: the context, and its table of operations, through which the inlined part of the verbs goes.

use crate::channel::Async;
use crate::cq::{self, Cq};
use crate::cq_ex;
use crate::device::Device;
use crate::engine::Engine;
use crate::qp::{self, Qp};
use crate::query;
use crate::recv;
use crate::refused;
use crate::say::{refuse_null, set_errno};
use crate::send;
use crate::sys;
use dataplane::ah::AhKey;
use std::ffi::c_int;
use std::ptr::NonNull;

/// An open device.
#[repr(C)]
pub struct Context {
    /// The public part; programs hold the address of its last field.
    verbs: sys::verbs_context,
    /// Its device.
    pub device: &'static Device,
    /// Its asynchronous events.
    pub events: Async,
    /// What was made with it and not destroyed, for the case that it is closed before; under the device's lock.
    owned: std::cell::UnsafeCell<Owned>,
}

/// Objects of a context that the worker has.
#[derive(Default)]
pub struct Owned {
    /// Queue pairs.
    pub qps: Vec<NonNull<Qp>>,
    /// Completion queues.
    pub cqs: Vec<NonNull<Cq>>,
    /// Address handles.
    pub ahs: Vec<AhKey>,
}

/// Forgets one.
pub fn forget<T: PartialEq>(list: &mut Vec<T>, item: &T) {
    // From the end: what was made last tends to go first.
    if let Some(at) = list.iter().rposition(|other| other == item) {
        list.swap_remove(at);
    }
}

impl Context {
    /// The context of a pointer that programs hold.
    ///
    /// # Safety
    /// It is an open one of ours.
    pub unsafe fn of<'a>(context: *const sys::ibv_context) -> &'a Context {
        let before = std::mem::offset_of!(sys::verbs_context, context);
        // SAFETY: the public part begins that many bytes before, and is the first field.
        unsafe { &*context.byte_sub(before).cast::<Context>() }
    }

    /// The pointer that programs hold.
    pub fn base(&self) -> *mut sys::ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// What was made with it; the engine stands for the lock that is held.
    pub fn owned<'a>(&self, _: &'a mut Engine) -> &'a mut Owned {
        // SAFETY: only here, and with the device's lock held, as the engine shows; the borrow ends with the engine's.
        unsafe { &mut *self.owned.get() }
    }

    fn new(device: &'static Device, events: Async) -> Box<Context> {
        let ops = sys::ibv_context_ops {
            poll_cq: Some(cq::poll_cq),
            req_notify_cq: Some(cq::req_notify_cq),
            post_send: Some(send::post_send),
            post_recv: Some(recv::post_recv),
            alloc_mw: Some(refused::alloc_mw),
            bind_mw: Some(refused::bind_mw),
            dealloc_mw: Some(refused::dealloc_mw),
            post_srq_recv: Some(refused::post_srq_recv),
            ..sys::ibv_context_ops::default()
        };
        let context = sys::ibv_context {
            device: device.base(),
            ops,
            cmd_fd: -1,
            async_fd: events.fd(),
            num_comp_vectors: 1,
            // __VERBS_ABI_IS_EXTENDED of the header.
            abi_compat: std::ptr::without_provenance_mut(usize::MAX),
            ..sys::ibv_context::default()
        };
        let verbs = sys::verbs_context {
            query_port: Some(query::query_port),
            query_device_ex: Some(query::query_device_ex),
            create_qp_ex: Some(qp::create_qp_ex),
            create_cq_ex: Some(cq_ex::create_cq_ex),
            create_srq_ex: Some(refused::create_srq_ex),
            open_xrcd: Some(refused::open_xrcd),
            open_qp: Some(refused::open_qp),
            ibv_create_flow: Some(refused::create_flow),
            create_wq: Some(refused::create_wq),
            alloc_dm: Some(refused::alloc_dm),
            sz: size_of::<sys::verbs_context>(),
            context,
            ..sys::verbs_context::default()
        };
        Box::new(Context { verbs, device, events, owned: std::cell::UnsafeCell::default() })
    }

    /// Takes down what the program left behind. The structures that it holds stay: it may still refer to them.
    fn abandon(&self) {
        let Ok(mut engine) = self.device.lock() else { return };
        let owned = std::mem::take(self.owned(&mut engine));
        for qp in owned.qps {
            // SAFETY: queue pairs leave the list before they go.
            unsafe { qp.as_ref() }.leave(&mut engine);
        }
        for cq in owned.cqs {
            // SAFETY: completion queues leave the list before they go.
            unsafe { cq.as_ref() }.leave(&mut engine);
        }
        for ah in owned.ahs {
            engine.worker.destroy_ah(ah);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    if device.is_null() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: from our list, by the contract of the verbs.
    let device = unsafe { Device::of(device) };
    let events = match Async::new() {
        Ok(events) => events,
        Err(e) => return refuse_null(e.raw_os_error().unwrap_or(libc::EMFILE), "no file descriptor is left"),
    };
    let context = Box::into_raw(Context::new(device, events));
    match device.enter(context as usize) {
        // SAFETY: just made.
        Ok(()) => unsafe { &*context }.base(),
        Err(why) => {
            // SAFETY: just made, and nobody has seen it.
            drop(unsafe { Box::from_raw(context) });
            refuse_null(libc::ENODEV, format_args!("{} cannot be opened: {why}", device.config().name))
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> c_int {
    // SAFETY: an open context of ours, by the contract of the verbs.
    let context = unsafe { Context::of(context) };
    let whole = std::ptr::from_ref(context).cast_mut();
    context.abandon();
    context.device.leave(whole as usize);
    // SAFETY: made by `ibv_open_device`, and nobody's any more; the device's thread holds its list while it uses it.
    drop(unsafe { Box::from_raw(whole) });
    0
}
