//! A handful of packets that move together.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use dpdk_sys::rte_mbuf;

use crate::mbuf::Mbuf;

/// Up to `N` packets, owned, in order. Made once and used over and over; dropping it frees what it holds, in bulk.
///
/// Drivers put in and take out whole runs of it, so receiving, allocating and sending move no packet one by one.
pub struct Burst<const N: usize = 64> {
    /// The packets are `slots[head..tail]`. `head` is zero unless some were taken from the front and others stayed.
    head: usize,
    tail: usize,
    slots: [MaybeUninit<NonNull<rte_mbuf>>; N],
}

// SAFETY: it owns mbufs, which are Send.
unsafe impl<const N: usize> Send for Burst<N> {}
// SAFETY: it owns mbufs, which are Sync.
unsafe impl<const N: usize> Sync for Burst<N> {}

impl<const N: usize> Burst<N> {
    /// Packets that fit.
    pub const CAPACITY: usize = {
        // DPDK counts the packets of a burst in 16 bits.
        assert!(N > 0 && N <= u16::MAX as usize);
        N
    };

    /// An empty one.
    #[inline]
    pub const fn new() -> Burst<N> {
        let _ = Self::CAPACITY;
        Burst { head: 0, tail: 0, slots: [MaybeUninit::uninit(); N] }
    }

    /// Packets in it.
    #[inline]
    pub const fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Whether it holds none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether it holds all it can.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len() == N
    }

    /// Packets that still fit.
    #[inline]
    pub const fn room(&self) -> usize {
        N - self.len()
    }

    /// Adds a packet at the end; it comes back if there is no room.
    #[inline]
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        if self.tail == N {
            if self.head == 0 {
                return Err(packet);
            }
            self.close_gap();
        }
        self.slots[self.tail] = MaybeUninit::new(packet.into_raw());
        self.tail += 1;
        Ok(())
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Mbuf> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: the slot lies within head..tail, so it holds a packet that we own; it leaves the range now.
        let packet = unsafe { Mbuf::from_raw(self.slots[self.head].assume_init()) };
        self.take_front(1);
        Some(packet)
    }

    /// Takes the last packet.
    #[inline]
    pub fn pop_back(&mut self) -> Option<Mbuf> {
        if self.is_empty() {
            return None;
        }
        self.tail -= 1;
        // SAFETY: the slot lay within head..tail, so it holds a packet that we own; it has left the range.
        Some(unsafe { Mbuf::from_raw(self.slots[self.tail].assume_init()) })
    }

    /// Takes the packets out one by one, from the front. Those not taken stay.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_, N> {
        Drain(self)
    }

    /// The packets, in order.
    #[inline]
    pub fn as_slice(&self) -> &[Mbuf] {
        // SAFETY: the slots head..tail hold mbufs, and `Mbuf` is a transparent wrapper of what a slot holds.
        unsafe { slice::from_raw_parts(self.slots.as_ptr().add(self.head).cast::<Mbuf>(), self.len()) }
    }

    /// The packets, in order, for writing.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Mbuf] {
        let len = self.len();
        // SAFETY: as in `as_slice`, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.slots.as_mut_ptr().add(self.head).cast::<Mbuf>(), len) }
    }

    /// The packets, in order.
    #[inline]
    pub fn iter(&self) -> slice::Iter<'_, Mbuf> {
        self.as_slice().iter()
    }

    /// The packets, in order, for writing.
    #[inline]
    pub fn iter_mut(&mut self) -> slice::IterMut<'_, Mbuf> {
        self.as_mut_slice().iter_mut()
    }

    /// Moves packets from the front of `other` to the end of this one, as many as fit, and returns how many.
    pub fn append<const M: usize>(&mut self, other: &mut Burst<M>) -> usize {
        let (slots, room) = self.spare();
        let n = room.min(other.len());
        // SAFETY: `n` packets lie at the front of `other`, and `slots` has room for as many; the memory is distinct.
        unsafe {
            slots.copy_from_nonoverlapping(other.front(), n);
            self.add_len(n);
        }
        other.take_front(n);
        n
    }

    /// Frees every packet.
    #[inline]
    pub fn clear(&mut self) {
        let n = self.len();
        if n == 0 {
            return;
        }
        let front = self.front();
        self.head = 0;
        self.tail = 0;
        // SAFETY: `front` points to `n` packets that we owned and have just let go of. `n` fits, see CAPACITY.
        unsafe { dpdk_sys::spw_free_bulk(front, n as u32) }
    }

    /// The packets as the driver wants them.
    #[inline]
    pub(crate) fn front(&mut self) -> *mut *mut rte_mbuf {
        // SAFETY: head is at most N.
        unsafe { self.slots.as_mut_ptr().add(self.head).cast() }
    }

    /// Lets go of the first `n` packets, at most as many as there are; they belong to somebody else now.
    #[inline]
    pub(crate) fn take_front(&mut self, n: usize) {
        self.head += n.min(self.len());
        if self.head == self.tail {
            self.head = 0;
            self.tail = 0;
        }
    }

    /// The free slots, and how many there are.
    #[inline]
    pub(crate) fn spare(&mut self) -> (*mut *mut rte_mbuf, usize) {
        if self.head != 0 {
            self.close_gap();
        }
        // SAFETY: tail is at most N.
        (unsafe { self.slots.as_mut_ptr().add(self.tail).cast() }, N - self.tail)
    }

    /// # Safety
    /// The first `n` of the slots that `spare` gave were filled with packets that nobody else owns.
    #[inline]
    pub(crate) unsafe fn add_len(&mut self, n: usize) {
        debug_assert!(self.tail + n <= N);
        self.tail += n;
    }

    /// Moves the packets to the start of the slots.
    #[cold]
    fn close_gap(&mut self) {
        self.slots.copy_within(self.head..self.tail, 0);
        self.tail -= self.head;
        self.head = 0;
    }
}

impl<const N: usize> Default for Burst<N> {
    fn default() -> Self {
        Burst::new()
    }
}

impl<const N: usize> Drop for Burst<N> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<const N: usize> std::fmt::Debug for Burst<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, const N: usize> IntoIterator for &'a Burst<N> {
    type Item = &'a Mbuf;
    type IntoIter = slice::Iter<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, const N: usize> IntoIterator for &'a mut Burst<N> {
    type Item = &'a mut Mbuf;
    type IntoIter = slice::IterMut<'a, Mbuf>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// Takes packets from the front of a burst.
#[derive(Debug)]
pub struct Drain<'a, const N: usize>(&'a mut Burst<N>);

impl<const N: usize> Iterator for Drain<'_, N> {
    type Item = Mbuf;

    #[inline]
    fn next(&mut self) -> Option<Mbuf> {
        self.0.pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl<const N: usize> ExactSizeIterator for Drain<'_, N> {}
