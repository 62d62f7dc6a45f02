//! UD queue pairs and their states.

use crate::context::{Context, forget};
use crate::cq::Cq;
use crate::device::Device;
use crate::engine::{Engine, MAX_QPS};
use crate::memory::Pd;
use crate::recv::{self, Scatter};
use crate::say::{refuse, refuse_null, set_errno};
use crate::send::{self, MAX_INLINE, Waiting};
use crate::sys;
use crate::wr::{self, Builder};
use dataplane::qp::{QpChange, QpConfig, QpKey, QpState};
use roce_proto::types::{Psn, QKey};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::NonNull;

/// Work requests of a queue pair at the most, in each direction.
pub const MAX_WR: u32 = 32_768;

/// A queue pair.
#[repr(C)]
pub struct Qp {
    base: UnsafeCell<sys::ibv_qp_ex>,
    device: &'static Device,
    key: QpKey,
    pd: *mut sys::ibv_pd,
    cap: sys::ibv_qp_cap,
    signals_all: bool,
    extended: bool,
    /// What was set of it, for those who ask; under the device's lock, as the next two.
    attr: UnsafeCell<sys::ibv_qp_attr>,
    waiting: UnsafeCell<Waiting>,
    scatter: UnsafeCell<Scatter>,
    /// Work requests between `ibv_wr_start` and `ibv_wr_complete`, of the one thread that may be there.
    builder: UnsafeCell<Builder>,
}

impl Qp {
    /// The queue pair of a pointer that programs hold.
    ///
    /// # Safety
    /// It is one of ours.
    #[inline]
    pub unsafe fn of<'a>(qp: *const sys::ibv_qp) -> &'a Qp {
        // SAFETY: the base is the first field, and begins with the plain one.
        unsafe { &*qp.cast::<Qp>() }
    }

    /// The pointer that programs hold.
    pub fn base(&self) -> *mut sys::ibv_qp {
        self.base.get().cast()
    }

    /// Its device.
    #[inline]
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The worker's.
    #[inline]
    pub fn key(&self) -> QpKey {
        self.key
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> *const sys::ibv_pd {
        self.pd
    }

    /// Every send is signaled.
    #[inline]
    pub fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// Bytes of inline data at the most.
    #[inline]
    pub fn max_inline(&self) -> u32 {
        self.cap.max_inline_data
    }

    /// Pieces of a receive at the most.
    pub fn max_recv_sge(&self) -> u32 {
        self.cap.max_recv_sge
    }

    /// Its sends that wait; the engine stands for the lock that is held.
    #[inline]
    pub fn waiting<'a>(&'a self, _: &'a mut Engine) -> &'a mut Waiting {
        // SAFETY: only here, and with the device's lock held, as the engine shows; the borrow ends with the engine's.
        unsafe { &mut *self.waiting.get() }
    }

    /// Its lists of pieces; the engine stands for the lock that is held.
    pub fn scatter<'a>(&'a self, _: &'a mut Engine) -> &'a mut Scatter {
        // SAFETY: as above.
        unsafe { &mut *self.scatter.get() }
    }

    fn attr<'a>(&'a self, _: &'a mut Engine) -> &'a mut sys::ibv_qp_attr {
        // SAFETY: as above.
        unsafe { &mut *self.attr.get() }
    }

    /// What is being built on it.
    ///
    /// # Safety
    /// Only for the one thread that is between start and complete, by the contract of the verbs.
    #[expect(clippy::mut_from_ref, reason = "one thread at a time, by the contract of the verbs")]
    pub unsafe fn builder(&self) -> &mut Builder {
        // SAFETY: by the caller's word.
        unsafe { &mut *self.builder.get() }
    }

    /// The worker forgets it, with all its work.
    pub fn leave(&self, engine: &mut Engine) {
        forget(&mut engine.stalled, &NonNull::from(self));
        self.waiting(engine).clear();
        let _ = engine.worker.destroy_qp(self.key);
        let base = self.base();
        // SAFETY: its own queues, which cannot go before it.
        unsafe {
            Cq::of((*base).send_cq).count(engine, -1);
            Cq::of((*base).recv_cq).count(engine, -1);
        }
    }
}

/// What a program wants, whichever way it asked.
struct Wanted {
    pd: *mut sys::ibv_pd,
    attr: sys::ibv_qp_init_attr,
    extended: bool,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: the caller's own attributes, which are told the capacities; by the contract of the verbs.
    unsafe {
        let wanted = Wanted { pd, attr: *attr, extended: false };
        match create(&wanted) {
            Some(qp) => {
                (*attr).cap = qp.as_ref().cap;
                qp.as_ref().base()
            }
            None => std::ptr::null_mut(),
        }
    }
}

/// `ibv_create_qp_ex`.
pub unsafe extern "C" fn create_qp_ex(
    _: *mut sys::ibv_context,
    attr: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    // SAFETY: the caller's own attributes.
    let asked = unsafe { &mut *attr };
    let known =
        sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    if asked.comp_mask & !known != 0 || asked.comp_mask & sys::IBV_QP_INIT_ATTR_PD == 0 {
        return refuse_null(libc::EOPNOTSUPP, "queue pairs with RSS, TSO or XRC domains are not known here");
    }
    if asked.comp_mask & sys::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && asked.create_flags != 0 {
        return refuse_null(libc::EOPNOTSUPP, "no flags of a queue pair's creation are known here");
    }
    let extended = asked.comp_mask & sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let sends = u64::from(sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM);
    if extended && asked.send_ops_flags & !sends != 0 {
        return refuse_null(
            libc::EOPNOTSUPP,
            "a UD queue pair has sends, with an immediate or without, only",
        );
    }
    let plain = sys::ibv_qp_init_attr {
        qp_context: asked.qp_context,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        cap: asked.cap,
        qp_type: asked.qp_type,
        sq_sig_all: asked.sq_sig_all,
    };
    // SAFETY: by the contract of the verbs, which is the caller's.
    match unsafe { create(&Wanted { pd: asked.pd, attr: plain, extended }) } {
        Some(qp) => {
            // SAFETY: just made.
            let qp = unsafe { qp.as_ref() };
            asked.cap = qp.cap;
            qp.base()
        }
        None => std::ptr::null_mut(),
    }
}

/// The capacities that a queue pair gets, or why it cannot have what was asked for.
fn capacities(asked: &sys::ibv_qp_cap) -> Result<sys::ibv_qp_cap, String> {
    if asked.max_send_wr > MAX_WR || asked.max_recv_wr > MAX_WR {
        return Err(format!("a queue pair has up to {MAX_WR} work requests in each direction"));
    }
    let (send_sge, recv_sge) = (send::MAX_SGE as u32, recv::MAX_SGE as u32);
    if asked.max_send_sge > send_sge || asked.max_recv_sge > recv_sge {
        return Err(format!("a work request has up to {send_sge} pieces"));
    }
    if asked.max_inline_data > MAX_INLINE {
        return Err(format!("inline data has up to {MAX_INLINE} bytes"));
    }
    Ok(sys::ibv_qp_cap {
        max_send_wr: asked.max_send_wr.max(1),
        max_recv_wr: asked.max_recv_wr.max(1),
        max_send_sge: send_sge,
        max_recv_sge: asked.max_recv_sge.max(1),
        max_inline_data: asked.max_inline_data,
    })
}

/// # Safety
/// The pointers are what they say, by the contract of the verbs.
unsafe fn create(wanted: &Wanted) -> Option<NonNull<Qp>> {
    let Wanted { pd, ref attr, extended } = *wanted;
    let say = |errno, why: &str| {
        refuse(errno, why);
        None
    };
    if attr.qp_type != sys::IBV_QPT_UD {
        let name = match attr.qp_type {
            sys::IBV_QPT_RC => "RC",
            sys::IBV_QPT_UC => "UC",
            sys::IBV_QPT_XRC_SEND | sys::IBV_QPT_XRC_RECV => "XRC",
            sys::IBV_QPT_RAW_PACKET => "raw packet",
            _ => "such",
        };
        let why = format!("there are no {name} queue pairs, only UD ones (perftest: -c UD)");
        return say(libc::EOPNOTSUPP, &why);
    }
    if !attr.srq.is_null() {
        return say(libc::EOPNOTSUPP, "there are no shared receive queues");
    }
    if attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return say(libc::EINVAL, "a queue pair needs a completion queue for each direction");
    }
    let cap = match capacities(&attr.cap) {
        Ok(cap) => cap,
        Err(why) => return say(libc::EINVAL, &why),
    };
    // SAFETY: a protection domain of ours, whose context is open.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let owner = unsafe { Context::of(context) };
    // SAFETY: completion queues of ours.
    let (send_cq, recv_cq) = unsafe { (Cq::of(attr.send_cq), Cq::of(attr.recv_cq)) };
    if !std::ptr::eq(send_cq.device(), owner.device) || !std::ptr::eq(recv_cq.device(), owner.device) {
        return say(libc::EINVAL, "a completion queue of another device");
    }
    let mut engine = owner.device.lock().ok()?;
    let config = QpConfig {
        qkey: QKey(0),
        send_depth: cap.max_send_wr,
        recv_depth: cap.max_recv_wr,
        send_cq: send_cq.key(),
        recv_cq: recv_cq.key(),
        ..QpConfig::new(send_cq.key())
    };
    let key = match engine.worker.create_qp_in_reset(&config) {
        Ok(key) => key,
        Err(e) => return say(libc::ENOMEM, &format!("{e} (of at most {MAX_QPS})")),
    };
    let qp_num = engine.worker.qpn(key).map_or(0, |qpn| qpn.get());
    let plain = sys::ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        qp_num,
        handle: qp_num,
        state: sys::IBV_QPS_RESET,
        qp_type: attr.qp_type,
        ..sys::ibv_qp::default()
    };
    let qp = Box::new(Qp {
        base: UnsafeCell::new(wr::with_operations(plain, extended)),
        device: owner.device,
        key,
        pd,
        cap,
        signals_all: attr.sq_sig_all != 0,
        extended,
        attr: UnsafeCell::default(),
        waiting: UnsafeCell::new(Waiting::new(cap.max_send_wr, cap.max_inline_data)),
        scatter: UnsafeCell::new(Scatter::new(cap.max_recv_wr, cap.max_recv_sge)),
        builder: UnsafeCell::default(),
    });
    let qp = NonNull::from(Box::leak(qp));
    owner.owned(&mut engine).qps.push(qp);
    send_cq.count(&mut engine, 1);
    recv_cq.count(&mut engine, 1);
    // SAFETY: a protection domain of ours.
    unsafe { Pd::enter(pd) };
    Some(qp)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut sys::ibv_qp) -> *mut sys::ibv_qp_ex {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Qp::of(qp) };
    if queue.extended { queue.base.get() } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Qp::of(qp) };
    let mut engine = match queue.device.lock() {
        Ok(engine) => engine,
        Err(errno) => return errno,
    };
    // What was posted and taken leaves, as it would have with hardware.
    engine.worker.flush();
    queue.leave(&mut engine);
    // SAFETY: its context is open.
    let owner = unsafe { Context::of((*qp).context) };
    forget(&mut owner.owned(&mut engine).qps, &NonNull::from(queue));
    drop(engine);
    // SAFETY: a protection domain of ours, which the queue pair has used until now.
    unsafe { Pd::leave(queue.pd) };
    // SAFETY: made by `create`, and nobody's any more.
    drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
    0
}

fn state_of(state: sys::ibv_qp_state) -> Option<QpState> {
    Some(match state {
        sys::IBV_QPS_RESET => QpState::Reset,
        sys::IBV_QPS_INIT => QpState::Init,
        sys::IBV_QPS_RTR => QpState::ReadyToReceive,
        sys::IBV_QPS_RTS => QpState::ReadyToSend,
        sys::IBV_QPS_ERR => QpState::Error,
        _ => return None,
    })
}

fn state_from(state: QpState) -> sys::ibv_qp_state {
    match state {
        QpState::Reset => sys::IBV_QPS_RESET,
        QpState::Init => sys::IBV_QPS_INIT,
        QpState::ReadyToReceive => sys::IBV_QPS_RTR,
        QpState::ReadyToSend => sys::IBV_QPS_RTS,
        QpState::Error => sys::IBV_QPS_ERR,
    }
}

/// What a transition of a UD queue pair must come with, and what else it may (IBTA volume 1, 11.2.5.2).
fn masks(from: QpState, to: QpState) -> (u32, u32) {
    use sys::*;
    let always = IBV_QP_STATE | IBV_QP_CUR_STATE;
    match (from, to) {
        (QpState::Reset, QpState::Init) => {
            let must = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
            (must, always | must)
        }
        (QpState::Init, QpState::Init) => (0, always | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (QpState::Init, QpState::ReadyToReceive) => (0, always | IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        (QpState::ReadyToReceive, QpState::ReadyToSend) => {
            (IBV_QP_SQ_PSN, always | IBV_QP_SQ_PSN | IBV_QP_QKEY)
        }
        (QpState::ReadyToSend, QpState::ReadyToSend) => (0, always | IBV_QP_QKEY),
        _ => (0, always),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, attr: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: one of ours and the caller's own attributes, by the contract of the verbs.
    let (queue, attr) = unsafe { (Qp::of(qp), &*attr) };
    let mask = mask as u32;
    let mut engine = match queue.device.lock() {
        Ok(engine) => engine,
        Err(errno) => return errno,
    };
    let changed = change(&mut engine, queue, attr, mask);
    let state = engine.worker.qp_state(queue.key).map_or(sys::IBV_QPS_ERR, state_from);
    // SAFETY: the field that programs read; written under the lock.
    unsafe { (*qp).state = state };
    match changed {
        Ok(()) => 0,
        Err(why) => refuse(libc::EINVAL, format_args!("a queue pair was not changed: {why}")),
    }
}

fn change(engine: &mut Engine, qp: &Qp, attr: &sys::ibv_qp_attr, mask: u32) -> Result<(), String> {
    let from = engine.worker.qp_state(qp.key).ok_or("it is gone")?;
    let to = if mask & sys::IBV_QP_STATE == 0 {
        from
    } else {
        state_of(attr.qp_state)
            .ok_or("there are no drained and send queue error states of UD queue pairs here")?
    };
    if mask & sys::IBV_QP_CUR_STATE != 0 && state_of(attr.cur_qp_state) != Some(from) {
        return Err(format!(
            "it is in the state {from:?}, not in the one that the program takes it to be in"
        ));
    }
    if !from.may_become(to) {
        return Err(format!("there is no transition from {from:?} to {to:?}"));
    }
    let (must, may) = masks(from, to);
    if mask & must != must || mask & !may != 0 {
        let which = if mask & must != must { "lacks" } else { "has too much" };
        let (lacking, more) = (must & !mask, mask & !may);
        return Err(format!(
            "the mask of a transition from {from:?} to {to:?} {which}: {:#x}",
            if lacking != 0 { lacking } else { more }
        ));
    }
    let given = |bit: u32| mask & bit != 0;
    if given(sys::IBV_QP_PORT) && attr.port_num != 1 {
        return Err(format!("there is no port {}, only 1", attr.port_num));
    }
    let change = QpChange {
        qkey: given(sys::IBV_QP_QKEY).then_some(QKey(attr.qkey)),
        pkey_index: given(sys::IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        psn: given(sys::IBV_QP_SQ_PSN).then(|| Psn::from_low_bits(attr.sq_psn)),
    };
    engine.worker.change_qp(qp.key, change).map_err(|e| e.to_string())?;
    if mask & sys::IBV_QP_STATE != 0 {
        if to == QpState::Reset {
            qp.waiting(engine).clear();
        }
        engine.worker.modify_qp(qp.key, to).map_err(|e| e.to_string())?;
    }
    let known = qp.attr(engine);
    if given(sys::IBV_QP_QKEY) {
        known.qkey = attr.qkey;
    }
    if given(sys::IBV_QP_PKEY_INDEX) {
        known.pkey_index = attr.pkey_index;
    }
    if given(sys::IBV_QP_PORT) {
        known.port_num = attr.port_num;
    }
    if given(sys::IBV_QP_SQ_PSN) {
        known.sq_psn = attr.sq_psn;
    }
    // Flushed completions are there when this returns, as far as there is room.
    engine.round();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _: c_int,
    init_attr: *mut sys::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: one of ours, by the contract of the verbs.
    let queue = unsafe { Qp::of(qp) };
    let mut engine = match queue.device.lock() {
        Ok(engine) => engine,
        Err(errno) => return errno,
    };
    let Some(state) = engine.worker.qp_state(queue.key) else {
        set_errno(libc::EINVAL);
        return libc::EINVAL;
    };
    let mut now = *queue.attr(&mut engine);
    now.qp_state = state_from(state);
    now.cur_qp_state = now.qp_state;
    now.cap = queue.cap;
    // SAFETY: the caller's own places, and a queue pair of ours.
    unsafe {
        let base = &*qp;
        attr.write(now);
        init_attr.write(sys::ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: std::ptr::null_mut(),
            cap: queue.cap,
            qp_type: base.qp_type,
            sq_sig_all: c_int::from(queue.signals_all),
        });
        (*qp).state = now.qp_state;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_ask_for_what_the_specification_has() {
        let (must, may) = masks(QpState::Reset, QpState::Init);
        assert_eq!(must, 0x10 | 0x20 | 0x40, "P_Key index, port, Q_Key");
        assert_eq!(may & 0x1_0000, 0, "no PSN yet");
        assert_eq!(masks(QpState::Init, QpState::ReadyToReceive).0, 0);
        assert_eq!(masks(QpState::ReadyToReceive, QpState::ReadyToSend).0, 0x1_0000, "the PSN");
        assert_eq!(masks(QpState::ReadyToSend, QpState::Error), (0, 1 | 2));
    }

    #[test]
    fn capacities_have_bounds() {
        let cap = |send, sge, inline| sys::ibv_qp_cap {
            max_send_wr: send,
            max_recv_wr: 0,
            max_send_sge: sge,
            max_recv_sge: 0,
            max_inline_data: inline,
        };
        let least = capacities(&cap(0, 0, 0)).unwrap();
        assert_eq!((least.max_send_wr, least.max_recv_wr, least.max_recv_sge), (1, 1, 1));
        assert!(capacities(&cap(MAX_WR, 4, MAX_INLINE)).is_ok());
        for asked in [cap(MAX_WR + 1, 1, 0), cap(1, 5, 0), cap(1, 1, MAX_INLINE + 1)] {
            assert!(capacities(&asked).is_err());
        }
    }
}
