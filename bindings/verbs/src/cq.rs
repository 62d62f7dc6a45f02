//! Completion queues.

use crate::channel::Channel;
use crate::context::{Context, forget};
use crate::device::Device;
use crate::engine::Engine;
use crate::memory::AppBuf;
use crate::pace::Pace;
use crate::say::{refuse, refuse_null, set_errno};
use crate::sys;
use dataplane::cq::{Arm, Completion, WcOpcode, WcStatus};
use dataplane::qp::CqKey;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, PoisonError};

/// Places of a completion queue at the most.
pub const MAX_CQE: u32 = 1 << 20;

/// A completion queue. A program may see it as the extended one, whose structure begins like the other's.
#[repr(C)]
pub struct Cq {
    base: UnsafeCell<sys::ibv_cq_ex>,
    device: &'static Device,
    key: CqKey,
    /// Queue pairs that complete here; under the device's lock.
    users: Cell<u32>,
    /// Events raised and acknowledged.
    events: Mutex<Events>,
    acknowledged: Condvar,
    /// What the extended interface looks at; whoever polls has it to himself, by the contract of the verbs.
    pub current: Cell<Option<sys::ibv_wc>>,
    pace: Pace,
}

#[derive(Default)]
struct Events {
    raised: u32,
    acknowledged: u32,
}

impl Cq {
    /// The queue of a pointer that programs hold.
    ///
    /// # Safety
    /// It is one of ours.
    pub unsafe fn of<'a>(cq: *const sys::ibv_cq) -> &'a Cq {
        // SAFETY: the base is the first field.
        unsafe { &*cq.cast::<Cq>() }
    }

    /// The pointer that programs hold.
    pub fn base(&self) -> *mut sys::ibv_cq {
        self.base.get().cast()
    }

    /// The worker's queue.
    pub fn key(&self) -> CqKey {
        self.key
    }

    /// Its device.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// A queue pair comes or goes; the engine stands for the lock.
    pub fn count(&self, _: &mut Engine, by: i32) {
        self.users.set(self.users.get().wrapping_add_signed(by));
    }

    /// Its channel, if it has one.
    pub fn channel(&self) -> Option<&Channel> {
        // SAFETY: set when it was made, and a channel outlives its queues by the contract of the verbs, to which we hold
        // programs by EBUSY.
        unsafe {
            let channel = (*self.base()).channel;
            (!channel.is_null()).then(|| Channel::of(channel))
        }
    }

    fn events(&self) -> std::sync::MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event of it goes into its channel.
    pub fn event_raised(&self) {
        self.events().raised += 1;
    }

    /// The program has dealt with so many.
    pub fn events_acknowledged(&self, count: u32) {
        let mut events = self.events();
        events.acknowledged = events.acknowledged.wrapping_add(count);
        self.acknowledged.notify_all();
    }

    /// The worker forgets it.
    pub fn leave(&self, engine: &mut Engine) {
        let me = NonNull::from(self);
        forget(&mut engine.armed, &me);
        // Its queue pairs are gone.
        let _ = engine.worker.destroy_cq(self.key);
    }

    /// Makes one; the caller may change its structure before the program sees it.
    ///
    /// # Safety
    /// The pointers are null or what they say.
    pub unsafe fn create(
        context: *mut sys::ibv_context,
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut sys::ibv_comp_channel,
        vector: u32,
    ) -> Option<NonNull<Cq>> {
        if cqe == 0 || cqe > MAX_CQE || vector > 0 {
            refuse(
                libc::EINVAL,
                format_args!("a completion queue has 1 to {MAX_CQE} places and completion vector 0"),
            );
            return None;
        }
        // SAFETY: an open context of ours, by the contract of the verbs.
        let owner = unsafe { Context::of(context) };
        let mut engine = owner.device.lock().ok()?;
        let key = engine.worker.create_cq(cqe as usize);
        let base = sys::ibv_cq_ex { context, channel, cq_context, cqe: cqe as c_int, ..Default::default() };
        let cq = Box::new(Cq {
            base: UnsafeCell::new(base),
            device: owner.device,
            key,
            users: Cell::new(0),
            events: Mutex::default(),
            acknowledged: Condvar::new(),
            current: Cell::new(None),
            pace: Pace::default(),
        });
        let cq = NonNull::from(Box::leak(cq));
        owner.owned(&mut engine).cqs.push(cq);
        if !channel.is_null() {
            // SAFETY: a channel of ours, by the contract of the verbs.
            unsafe { Channel::count(channel, 1) };
        }
        Some(cq)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    vector: c_int,
) -> *mut sys::ibv_cq {
    let (Ok(cqe), Ok(vector)) = (u32::try_from(cqe), u32::try_from(vector)) else {
        return refuse_null(libc::EINVAL, "a completion queue of a negative size");
    };
    // SAFETY: by the contract of the verbs, which is the caller's.
    unsafe { Cq::create(context, cqe, cq_context, channel, vector) }
        .map_or(std::ptr::null_mut(), |cq| cq.as_ptr().cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut sys::ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    if cqe > 0 && cqe <= unsafe { (*cq).cqe } {
        return 0;
    }
    refuse(libc::EOPNOTSUPP, "a completion queue cannot grow: create it as large as it must be")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Cq::of(cq) };
    {
        let mut engine = match queue.device.lock() {
            Ok(engine) => engine,
            Err(errno) => return errno,
        };
        if queue.users.get() > 0 {
            return libc::EBUSY;
        }
        // SAFETY: its context is open, by the contract of the verbs.
        let owner = unsafe { Context::of((*cq).context) };
        queue.leave(&mut engine);
        forget(&mut owner.owned(&mut engine).cqs, &NonNull::from(queue));
        if let Some(channel) = queue.channel() {
            let unheard = channel.forget(NonNull::from(queue));
            queue.events().raised -= unheard;
            // SAFETY: its own channel.
            unsafe { Channel::count((*cq).channel, -1) };
        }
    }
    // An event that the program has taken must be acknowledged before, as the verbs have it; those that it has not taken are
    // taken back.
    let taken = |events: &mut Events| events.acknowledged != events.raised;
    drop(queue.acknowledged.wait_while(queue.events(), taken));
    // SAFETY: made by `Cq::create`, and nobody's any more.
    drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    0
}

/// What a completion is to a program.
#[inline(always)]
fn work_completion(done: &Completion<AppBuf>) -> sys::ibv_wc {
    let receive = done.opcode == WcOpcode::Recv;
    let status = match done.status {
        WcStatus::Success => sys::IBV_WC_SUCCESS,
        // The region of the receive is gone: it had no room any more.
        WcStatus::LocalLengthError if done.buf.as_ref().is_some_and(|buf| !buf.is_valid()) => {
            sys::IBV_WC_LOC_PROT_ERR
        }
        WcStatus::LocalLengthError => sys::IBV_WC_LOC_LEN_ERR,
        WcStatus::LocalQpOperationError => sys::IBV_WC_LOC_QP_OP_ERR,
        WcStatus::WorkRequestFlushed => sys::IBV_WC_WR_FLUSH_ERR,
    };
    let mut wc = sys::ibv_wc {
        wr_id: done.wr_id,
        status,
        opcode: if receive { sys::IBV_WC_RECV } else { sys::IBV_WC_SEND },
        vendor_err: 0,
        byte_len: done.byte_len,
        qp_num: done.qpn.get(),
        src_qp: done.src_qpn.get(),
        // Every RoCEv2 packet has what stands for a GRH.
        wc_flags: if receive { sys::IBV_WC_GRH } else { 0 },
        ..sys::ibv_wc::default()
    };
    if let Some(imm) = done.imm {
        wc.wc_flags |= sys::IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = imm.to_be();
    }
    wc
}

/// Takes up to `max` completions, from the endpoint if none waits; how many, and whether there may be more at hand.
#[inline(always)]
fn take(engine: &mut Engine, cq: CqKey, max: usize, mut give: impl FnMut(sys::ibv_wc)) -> (usize, bool) {
    let taken = pop(engine, cq, max, &mut give);
    if taken > 0 || max == 0 {
        return (taken, taken == max || engine.worker.has_packets());
    }
    let mut taken = 0;
    engine.round_handing(
        cq,
        max,
        #[inline(always)]
        |done| {
            give(work_completion(done));
            taken += 1;
        },
    );
    let queued = pop(engine, cq, max - taken, &mut give);
    let over = engine.worker.has_packets() || (queued > 0 && taken + queued == max);
    (taken + queued, over)
}

/// Takes up to `max` completions that wait.
#[inline]
fn pop(engine: &mut Engine, cq: CqKey, max: usize, give: &mut impl FnMut(sys::ibv_wc)) -> usize {
    let Some(queue) = engine.worker.cq(cq) else { return 0 };
    let mut taken = 0;
    while taken < max
        && let Some(done) = queue.pop()
    {
        give(work_completion(&done));
        taken += 1;
    }
    taken
}

/// One completion.
///
/// # Errors
/// An error number.
pub fn take_one(cq: &Cq) -> Result<Option<sys::ibv_wc>, c_int> {
    let mut engine = cq.device.lock()?;
    let mut one = None;
    take(&mut engine, cq.key, 1, |wc| one = Some(wc));
    Ok(one)
}

/// `ibv_poll_cq`.
pub unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, entries: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Cq::of(cq) };
    queue.pace.before();
    let Ok(mut engine) = queue.device.lock() else { return -1 };
    let mut at = wc;
    let max = usize::try_from(entries).unwrap_or(0);
    let (taken, over) = take(
        &mut engine,
        queue.key,
        max,
        #[inline(always)]
        |done| {
            // SAFETY: the caller has places for as many as it asked for.
            unsafe {
                at.write(done);
                at = at.add(1);
            }
        },
    );
    // For others, and for the device's own thread, it is free meanwhile.
    let (posts, stalled) = (engine.posts, !engine.stalled.is_empty());
    let burst = engine.worker.burst(0);
    drop(engine);
    queue.pace.after(taken, over, burst, posts, stalled);
    taken as c_int
}

/// `ibv_req_notify_cq`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Cq::of(cq) };
    if queue.channel().is_none() {
        set_errno(libc::EINVAL);
        return libc::EINVAL;
    }
    let mut engine = match queue.device.lock() {
        Ok(engine) => engine,
        Err(errno) => return errno,
    };
    let arm = if solicited_only == 0 { Arm::Next } else { Arm::Solicited };
    if let Some(cq) = engine.worker.cq(queue.key) {
        cq.arm(arm);
    }
    let me = NonNull::from(queue);
    if !engine.armed.contains(&me) {
        engine.armed.push(me);
    }
    // What was posted leaves now: the program is about to sleep.
    engine.worker.flush();
    engine.settle();
    0
}

/// Which flags of the verbs the extended interface can give.
pub const WC_FLAGS: c_uint = sys::IBV_WC_EX_WITH_BYTE_LEN
    | sys::IBV_WC_EX_WITH_IMM
    | sys::IBV_WC_EX_WITH_QP_NUM
    | sys::IBV_WC_EX_WITH_SRC_QP
    | sys::IBV_WC_EX_WITH_SLID
    | sys::IBV_WC_EX_WITH_SL
    | sys::IBV_WC_EX_WITH_DLID_PATH_BITS;
