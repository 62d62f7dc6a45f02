//! Protection domains, memory regions, and application memory as the endpoint's buffers.
//!
//! Nothing is pinned and nothing is translated: the endpoint reads and writes the application's memory where it lies, under the
//! lock of the device. A key is looked up in a table of slots that live as long as the process, each with a generation that
//! changes when its region goes. So a receive whose region was deregistered meanwhile is found out before it is written to.

use crate::context::Context;
use crate::device::Device;
use crate::say::{refuse, refuse_null, set_errno};
use crate::sys;
use dataplane::buffer::Buffer;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory regions of one device at the most: what fits the upper 24 bits of a key.
pub const MAX_MRS: usize = 1 << 20;

/// One key. Read and written only under the lock of its device.
pub struct Slot {
    generation: Cell<u32>,
    pd: Cell<*const sys::ibv_pd>,
    start: Cell<u64>,
    len: Cell<u64>,
    writable: Cell<bool>,
}

// SAFETY: every access is made by whoever holds the lock of the device that the slot belongs to.
unsafe impl Sync for Slot {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Slot {}

/// The keys of a device.
#[derive(Default)]
pub struct Keys {
    slots: Vec<&'static Slot>,
    free: Vec<u32>,
}

/// How many low bits of a key tell generations of one slot apart.
const GENERATION_BITS: u32 = 8;

impl Keys {
    fn add(&mut self, pd: *const sys::ibv_pd, start: u64, len: u64, writable: bool) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() >= MAX_MRS => return None,
            None => {
                // For good: buffers refer to it. Slots are used again, so there are as many as there ever were regions at
                // a time.
                let slot = Slot {
                    generation: Cell::new(1),
                    pd: Cell::new(pd),
                    start: Cell::new(0),
                    len: Cell::new(0),
                    writable: Cell::new(false),
                };
                self.slots.push(Box::leak(Box::new(slot)));
                (self.slots.len() - 1) as u32
            }
        };
        let slot = self.slots.get(index as usize)?;
        slot.pd.set(pd);
        slot.start.set(start);
        slot.len.set(len);
        slot.writable.set(writable);
        Some((index << GENERATION_BITS) | (slot.generation.get() & 0xff))
    }

    fn remove(&mut self, key: u32) {
        let index = key >> GENERATION_BITS;
        if let Some(slot) = self.slots.get(index as usize) {
            slot.generation.set(slot.generation.get().wrapping_add(1));
            slot.len.set(0);
            self.free.push(index);
        }
    }

    /// The piece of memory that a scatter or gather element names, if its key allows it.
    #[inline(always)]
    pub fn piece(&self, pd: *const sys::ibv_pd, sge: &sys::ibv_sge, write: bool) -> Option<Piece> {
        let slot = *self.slots.get((sge.lkey >> GENERATION_BITS) as usize)?;
        let generation = slot.generation.get();
        let offset = sge.addr.wrapping_sub(slot.start.get());
        let inside =
            u64::from(sge.length) <= slot.len.get() && offset <= slot.len.get() - u64::from(sge.length);
        let same = generation & 0xff == sge.lkey & 0xff && std::ptr::eq(slot.pd.get(), pd);
        (inside && same && (slot.writable.get() || !write)).then_some(Piece {
            start: place(sge.addr as *mut u8),
            len: sge.length,
            generation,
            slot: Some(slot),
        })
    }
}

/// An address as one that is not null: no bytes may lie anywhere.
#[inline]
fn place(start: *mut u8) -> NonNull<u8> {
    NonNull::new(start).unwrap_or(NonNull::dangling())
}

/// Copies `len` bytes. Few of them on the spot: a call takes as long, and all that a caller had in registers goes to memory and back.
///
/// # Safety
/// As of `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// Of a step.
    const STEP: usize = 32;
    /// Steps in which it is done on the spot.
    const FEW: usize = 4;
    if (STEP..=FEW * STEP).contains(&len) {
        let mut at = 0;
        while at + STEP < len {
            // SAFETY: by this function's contract.
            unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), STEP) };
            at += STEP;
        }
        // The rest, and of what is there already as much as makes a step of it.
        // SAFETY: by this function's contract: there is a step at least.
        unsafe { std::ptr::copy_nonoverlapping(from.add(len - STEP), to.add(len - STEP), STEP) };
    } else {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

/// Some bytes of the application's.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Where they are.
    start: NonNull<u8>,
    /// The region, or none for bytes that the library itself keeps.
    slot: Option<&'static Slot>,
    /// How many.
    pub len: u32,
    generation: u32,
}

impl Piece {
    /// No bytes.
    pub const NONE: Piece = Piece { start: NonNull::dangling(), slot: None, len: 0, generation: 0 };

    /// Bytes that the library keeps, or that the application must leave as they are for this call.
    #[inline]
    pub fn of_ours(start: *mut u8, len: u32) -> Piece {
        Piece { start: place(start), len, ..Piece::NONE }
    }

    /// Whether its region is still there.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.slot.is_none_or(|slot| slot.generation.get() == self.generation)
    }

    /// Copies its bytes to the front of `place`; returns the rest of that.
    ///
    /// # Safety
    /// The memory must be readable, and `place` no shorter.
    #[inline(always)]
    pub unsafe fn read_to<'a>(&self, place: &'a mut [u8]) -> &'a mut [u8] {
        let (front, rest) = place.split_at_mut(self.len as usize);
        // SAFETY: readable by the caller's word; `front` is as long, and memory of an application is no packet buffer.
        unsafe { copy(self.start.as_ptr(), front.as_mut_ptr(), front.len()) };
        rest
    }
}

/// The memory of a posted receive: one piece, or a list of them that its queue pair keeps. It is moved with every message, so it is
/// as small as one piece: a list is told by its slot.
pub struct AppBuf(Piece);

/// The slot of lists.
static LIST: Slot = Slot {
    generation: Cell::new(0),
    pd: Cell::new(std::ptr::null()),
    start: Cell::new(0),
    len: Cell::new(0),
    writable: Cell::new(false),
};

const _: () = assert!(size_of::<Option<AppBuf>>() == 24, "a receive is to be moved at little cost");

// SAFETY: it is used by whoever holds the lock of its device, from whichever thread.
unsafe impl Send for AppBuf {}

impl AppBuf {
    /// A receive into one piece.
    ///
    /// # Safety
    /// The memory must stay writable until the receive completes, its region is deregistered, or its queue pair is gone.
    #[inline]
    pub unsafe fn one(piece: Piece) -> AppBuf {
        AppBuf(piece)
    }

    /// A receive that is scattered over `pieces`.
    ///
    /// # Safety
    /// As [`AppBuf::one`] for each, and for the list itself.
    pub unsafe fn many(pieces: &mut [Piece]) -> AppBuf {
        AppBuf(Piece {
            start: NonNull::from(&mut *pieces).cast(),
            slot: Some(&LIST),
            len: pieces.len() as u32,
            generation: 0,
        })
    }

    /// Whether all of its regions are still there.
    #[inline(always)]
    pub fn is_valid(&self) -> bool {
        match self.list() {
            Some(list) => list.all_valid(),
            None => self.0.is_valid(),
        }
    }

    /// Its pieces, if it is a list.
    #[inline(always)]
    fn list(&self) -> Option<List> {
        let Piece { start, slot, len, .. } = self.0;
        slot.is_some_and(|slot| std::ptr::eq(slot, &raw const LIST)).then_some(List(start, len))
    }
}

/// The pieces of a receive that has several. A value of its own, since what is rarely done with them is done by functions: a buffer that is
/// lent to one would have to be in memory with every message.
struct List(NonNull<u8>, u32);

impl List {
    fn pieces(&self) -> &[Piece] {
        // SAFETY: that many pieces, which stay as long as the receive: see `AppBuf::many`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1 as usize) }
    }

    #[cold]
    fn all_valid(self) -> bool {
        self.pieces().iter().all(Piece::is_valid)
    }

    #[cold]
    fn capacity(self) -> usize {
        let pieces = self.pieces();
        if pieces.iter().all(Piece::is_valid) { pieces.iter().map(|p| p.len as usize).sum() } else { 0 }
    }

    #[cold]
    fn scatter(self, offset: usize, bytes: &[u8]) {
        let (mut skip, mut bytes) = (offset, bytes);
        for piece in self.pieces() {
            let len = piece.len as usize;
            let room = len.saturating_sub(skip).min(bytes.len());
            if room > 0 {
                let to = piece.start.as_ptr();
                // SAFETY: within the piece, which is writable: see `AppBuf::many`. The bytes are a packet's.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(skip), room) };
                bytes = &bytes[room..];
            }
            skip = skip.saturating_sub(len);
        }
    }
}

impl Buffer for AppBuf {
    #[inline(always)]
    fn capacity(&self) -> usize {
        // What is gone has no room, so that nothing is written to it.
        match self.list() {
            Some(list) => list.capacity(),
            None if self.0.is_valid() => self.0.len as usize,
            None => 0,
        }
    }

    #[inline(always)]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(list) = self.list() {
            return list.scatter(offset, bytes);
        }
        let room = self.0.len as usize;
        if bytes.len() <= room && offset <= room - bytes.len() {
            let to = self.0.start.as_ptr();
            // SAFETY: within the piece, which is writable: see `one`. The bytes are a packet's, not the application's.
            unsafe { copy(bytes.as_ptr(), to.add(offset), bytes.len()) };
        }
    }

    fn bytes(&self, _: usize) -> &[u8] {
        // Sends are read where they lie; no buffer of this kind is ever sent from.
        &[]
    }
}

/// A protection domain.
#[repr(C)]
pub struct Pd {
    base: sys::ibv_pd,
    users: AtomicU32,
}

impl Pd {
    /// Another object uses it.
    ///
    /// # Safety
    /// `pd` is one of ours.
    pub unsafe fn enter(pd: *mut sys::ibv_pd) {
        // SAFETY: every ibv_pd of ours is the first field of a Pd.
        unsafe { (*pd.cast::<Pd>()).users.fetch_add(1, Ordering::Relaxed) };
    }

    /// One less.
    ///
    /// # Safety
    /// As [`Pd::enter`].
    pub unsafe fn leave(pd: *mut sys::ibv_pd) {
        // SAFETY: every ibv_pd of ours is the first field of a Pd.
        unsafe { (*pd.cast::<Pd>()).users.fetch_sub(1, Ordering::Relaxed) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    let base = sys::ibv_pd { context, handle: 0 };
    Box::into_raw(Box::new(Pd { base, users: AtomicU32::new(0) })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    let pd = pd.cast::<Pd>();
    // SAFETY: a domain of ours, by the contract of the verbs.
    if unsafe { (*pd).users.load(Ordering::Relaxed) } > 0 {
        return libc::EBUSY;
    }
    // SAFETY: made by `ibv_alloc_pd`, and nobody's any more.
    drop(unsafe { Box::from_raw(pd) });
    0
}

/// A memory region.
#[repr(C)]
struct Mr {
    base: sys::ibv_mr,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: by the caller's contract, which is this function's.
    unsafe { register(pd, addr, length, addr as u64, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: by the caller's contract, which is this function's.
    unsafe { register(pd, addr, length, iova, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: by the caller's contract, which is this function's.
    unsafe { register(pd, addr, length, iova, access) }
}

/// # Safety
/// `pd` is one of ours; the memory must be there as long as the region is used.
unsafe fn register(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    if iova != addr as u64 {
        return refuse_null(
            libc::EOPNOTSUPP,
            "a memory region is addressed by its own addresses: no other iova",
        );
    }
    let write = access & sys::IBV_ACCESS_LOCAL_WRITE != 0;
    let remote_write = access & (sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if (remote_write && !write) || (addr as u64).checked_add(length as u64).is_none() {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    if access & (sys::IBV_ACCESS_ZERO_BASED | sys::IBV_ACCESS_MW_BIND) != 0 {
        return refuse_null(libc::EOPNOTSUPP, "no memory windows and no zero-based memory regions");
    }
    // SAFETY: a domain of ours, by the contract of the verbs.
    let context = unsafe { (*pd).context };
    // SAFETY: its context is one of ours.
    let device: &'static Device = unsafe { Context::of(context) }.device;
    let Ok(mut engine) = device.lock() else { return std::ptr::null_mut() };
    let Some(key) = engine.keys.add(pd, addr as u64, length as u64, write) else {
        return refuse_null(libc::ENOMEM, format_args!("more than {MAX_MRS} memory regions"));
    };
    drop(engine);
    // SAFETY: a domain of ours.
    unsafe { Pd::enter(pd) };
    let base = sys::ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    Box::into_raw(Box::new(Mr { base })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: a region of ours, by the contract of the verbs.
    let base = unsafe { &(*mr.cast::<Mr>()).base };
    // SAFETY: its context is one of ours.
    let device: &'static Device = unsafe { Context::of(base.context) }.device;
    match device.lock() {
        Ok(mut engine) => engine.keys.remove(base.lkey),
        Err(errno) => return errno,
    }
    // SAFETY: a domain of ours, which this region has used until now.
    unsafe { Pd::leave(base.pd) };
    // SAFETY: made by `register`, and nobody's any more.
    drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    _: *mut sys::ibv_mr,
    _: c_int,
    _: *mut sys::ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    refuse(libc::EOPNOTSUPP, "a memory region cannot be registered anew: deregister it and make another");
    // IBV_REREG_MR_ERR_INPUT of the header: nothing was changed.
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(bytes: &[u8], lkey: u32) -> sys::ibv_sge {
        sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey }
    }

    #[test]
    fn keys_open_their_own_region_only() {
        let memory = vec![0u8; 1000];
        let pd = sys::ibv_pd { context: std::ptr::null_mut(), handle: 0 };
        let other = sys::ibv_pd { context: std::ptr::null_mut(), handle: 1 };
        let mut keys = Keys::default();
        let part = &memory[100..200];
        let key = keys.add(&pd, part.as_ptr() as u64, 100, false).unwrap();
        assert!(keys.piece(&pd, &sge(part, key), false).is_some());
        assert!(keys.piece(&pd, &sge(&part[100..], key), false).is_some(), "no bytes, at the end");
        assert!(keys.piece(&pd, &sge(&memory[99..199], key), false).is_none(), "before it");
        assert!(keys.piece(&pd, &sge(&memory[101..201], key), false).is_none(), "behind it");
        assert!(keys.piece(&pd, &sge(part, key), true).is_none(), "read only");
        assert!(keys.piece(&other, &sge(part, key), false).is_none(), "another domain's");
        assert!(keys.piece(&pd, &sge(part, key + 1), false).is_none(), "another generation's");
        assert!(keys.piece(&pd, &sge(part, key + (1 << 8)), false).is_none(), "no such key");
        let wild = sys::ibv_sge { addr: u64::MAX, length: u32::MAX, lkey: key };
        assert!(keys.piece(&pd, &wild, false).is_none());
        let piece = keys.piece(&pd, &sge(part, key), false).unwrap();
        keys.remove(key);
        assert!(!piece.is_valid() && keys.piece(&pd, &sge(part, key), false).is_none());
        let again = keys.add(&pd, memory.as_ptr() as u64, 1000, true).unwrap();
        assert_eq!((again >> 8, keys.slots.len()), (key >> 8, 1), "its slot is used again");
        assert!(again != key && !piece.is_valid());
        assert!(keys.piece(&pd, &sge(&memory, again), true).is_some());
    }

    #[test]
    fn a_list_has_no_room_once_a_region_of_it_is_gone() {
        let memory = [0u8; 100];
        let pd = sys::ibv_pd { context: std::ptr::null_mut(), handle: 0 };
        let mut keys = Keys::default();
        let key = [0, 50].map(|at| keys.add(&pd, memory[at..].as_ptr() as u64, 50, true).unwrap());
        let piece = |at: usize| keys.piece(&pd, &sge(&memory[50 * at..50 * at + 40], key[at]), true).unwrap();
        let mut list = [piece(0), piece(1)];
        // SAFETY: nothing is written to it.
        let buf = unsafe { AppBuf::many(&mut list) };
        assert_eq!((buf.capacity(), buf.is_valid()), (80, true));
        keys.remove(key[1]);
        assert_eq!((buf.capacity(), buf.is_valid()), (0, false));
    }

    #[test]
    fn receives_are_scattered_over_their_pieces() {
        let (mut a, mut b, mut c) = ([0xeeu8; 5], [0xeeu8; 1], [0xeeu8; 10]);
        let piece = |bytes: &mut [u8]| Piece::of_ours(bytes.as_mut_ptr(), bytes.len() as u32);
        let mut list = [piece(&mut a), Piece::NONE, piece(&mut b), piece(&mut c)];
        // SAFETY: the arrays outlive the buffer, and nobody else looks at them meanwhile.
        let mut buf = unsafe { AppBuf::many(&mut list) };
        assert_eq!(buf.capacity(), 16);
        buf.write(0, &[1, 2, 3]);
        buf.write(3, &[4, 5, 6, 7, 8]);
        assert_eq!((a, b, c[..3].to_vec()), ([1, 2, 3, 4, 5], [6], vec![7, 8, 0xee]));
        // SAFETY: as above.
        let mut one = unsafe { AppBuf::one(piece(&mut c)) };
        one.write(8, &[9, 9]);
        one.write(9, &[1, 1]);
        assert_eq!(c[7..], [0xee, 9, 9], "what does not fit is not written");
    }
}
