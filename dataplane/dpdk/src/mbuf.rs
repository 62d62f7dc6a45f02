//! One packet.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use dpdk_sys::{mbuf, rte_mbuf};

/// A packet buffer, or a chain of them, owned. Dropping it gives the whole chain back to the pool it came from.
///
/// Lengths and positions are read and written in place; no call leaves this crate except to free. Buffers of one mbuf are
/// never shared with another: nothing here attaches, clones or references an mbuf.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf has one owner and no tie to a thread; pools take mbufs back from any thread.
unsafe impl Send for Mbuf {}
// SAFETY: through a shared reference the fields are only read.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    /// # Safety
    /// `raw` is the first mbuf of a valid chain that nobody else owns.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<rte_mbuf> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    #[inline]
    fn ptr(&self) -> *mut rte_mbuf {
        self.0.as_ptr()
    }

    /// Bytes of the packet, all segments together.
    #[inline]
    pub fn pkt_len(&self) -> usize {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::pkt_len(self.ptr()) as usize }
    }

    /// Bytes of the first segment.
    #[inline]
    pub fn data_len(&self) -> usize {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::data_len(self.ptr()) as usize }
    }

    /// Whether the packet lies in one piece.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::nb_segs(self.ptr()) == 1 }
    }

    /// Number of segments, at least one.
    #[inline]
    pub fn segment_count(&self) -> usize {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::nb_segs(self.ptr()) as usize }
    }

    /// The bytes of the first segment: the whole packet if it is contiguous.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: offset and length stay within the buffer by DPDK's rules and ours; pool memory is initialised, since it
        // comes from the kernel zeroed; it is owned for as long as `self` is borrowed.
        unsafe { slice::from_raw_parts(data_ptr(self.ptr()), mbuf::data_len(self.ptr()) as usize) }
    }

    /// The bytes of the first segment, for writing.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(data_ptr(self.ptr()), mbuf::data_len(self.ptr()) as usize) }
    }

    /// The segments' bytes, in order.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: self.ptr(), packet: PhantomData }
    }

    /// Bytes free before the data.
    #[inline]
    pub fn headroom(&self) -> usize {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::data_off(self.ptr()) as usize }
    }

    /// Bytes free behind the data of the last segment.
    #[inline]
    pub fn tailroom(&self) -> usize {
        // SAFETY: the mbuf is valid and owned, so are the segments it links.
        unsafe { tailroom(self.last()) }
    }

    /// Makes the packet `n` bytes longer at its end, and returns those bytes for writing, or none if the last segment has
    /// no room. What they hold is whatever the buffer held before.
    #[inline(always)]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let last = self.last();
        // SAFETY: the chain is valid and borrowed exclusively; the new length was checked against the buffer, so it fits
        // 16 bits; a chain has fewer than 2^16 segments of fewer than 2^16 bytes, so the sum fits 32.
        unsafe {
            if n > tailroom(last) {
                return None;
            }
            let len = mbuf::data_len(last);
            let tail = data_ptr(last).add(len as usize);
            mbuf::set_data_len(last, len + n as u16);
            mbuf::set_pkt_len(self.ptr(), mbuf::pkt_len(self.ptr()) + n as u32);
            Some(slice::from_raw_parts_mut(tail, n))
        }
    }

    /// Makes the packet `n` bytes longer at its start, and returns the first segment's first `n` bytes for writing, or
    /// none if there is no such headroom.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        let m = self.ptr();
        // SAFETY: the mbuf is borrowed exclusively; `n` is at most the headroom, a 16-bit number. The length cannot
        // overflow: offset and length together stay within the buffer, as before.
        unsafe {
            mbuf::set_data_off(m, mbuf::data_off(m) - n as u16);
            mbuf::set_data_len(m, mbuf::data_len(m) + n as u16);
            mbuf::set_pkt_len(m, mbuf::pkt_len(m) + n as u32);
            Some(slice::from_raw_parts_mut(data_ptr(m), n))
        }
    }

    /// Takes `n` bytes off the end of the last segment; false, and nothing changes, if that has fewer.
    #[inline]
    #[must_use]
    pub fn trim(&mut self, n: usize) -> bool {
        let last = self.last();
        // SAFETY: the chain is borrowed exclusively; `n` is at most the segment's length, a 16-bit number.
        unsafe {
            let len = mbuf::data_len(last);
            if n > len as usize {
                return false;
            }
            mbuf::set_data_len(last, len - n as u16);
            mbuf::set_pkt_len(self.ptr(), mbuf::pkt_len(self.ptr()) - n as u32);
        }
        true
    }

    /// Takes `n` bytes off the start of the first segment; false, and nothing changes, if that has fewer.
    #[inline]
    #[must_use]
    pub fn adj(&mut self, n: usize) -> bool {
        let m = self.ptr();
        // SAFETY: the mbuf is borrowed exclusively; `n` is at most the segment's length, a 16-bit number.
        unsafe {
            let len = mbuf::data_len(m);
            if n > len as usize {
                return false;
            }
            mbuf::set_data_len(m, len - n as u16);
            mbuf::set_data_off(m, mbuf::data_off(m) + n as u16);
            mbuf::set_pkt_len(m, mbuf::pkt_len(m) - n as u32);
        }
        true
    }

    /// Links `tail` behind the packet. It comes back if the chain would have more segments than DPDK can count.
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let m = self.ptr();
        let last = self.last();
        // SAFETY: both chains are valid and owned; the tail's ownership passes into this chain.
        unsafe {
            let Some(segments) = mbuf::nb_segs(m).checked_add(mbuf::nb_segs(tail.ptr())) else {
                return Err(tail);
            };
            let Some(len) = mbuf::pkt_len(m).checked_add(mbuf::pkt_len(tail.ptr())) else { return Err(tail) };
            let tail = tail.into_raw().as_ptr();
            mbuf::set_nb_segs(tail, 1);
            mbuf::set_next(last, tail);
            mbuf::set_nb_segs(m, segments);
            mbuf::set_pkt_len(m, len);
        }
        Ok(())
    }

    /// Copies the packet from byte `offset` on into `out`, over segment borders, and returns how many bytes there were,
    /// at most the length of `out`.
    pub fn copy_to_slice(&self, offset: usize, out: &mut [u8]) -> usize {
        let mut skip = offset;
        let mut done = 0;
        for segment in self.segments() {
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            let part = &segment[skip..];
            skip = 0;
            let n = part.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&part[..n]);
            done += n;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// Number of the port that received the packet; of no meaning in a fresh mbuf.
    #[inline]
    pub fn port(&self) -> u16 {
        // SAFETY: the mbuf is valid and owned.
        unsafe { mbuf::port(self.ptr()) }
    }

    /// The hash by which the device chose the receive queue, if it computed one.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        // SAFETY: the mbuf is valid and owned; the flag is a constant of the shim.
        unsafe {
            let has_one = mbuf::ol_flags(self.ptr()) & dpdk_sys::SPW_MBUF_F_RX_RSS_HASH != 0;
            has_one.then(|| mbuf::rss_hash(self.ptr()))
        }
    }

    /// Whether the port has verified the IPv4 header's checksum, and UDP's, and found each right. False if it has not looked, or is not sure.
    #[inline]
    pub fn good_checksums(&self) -> (bool, bool) {
        // SAFETY: the mbuf is valid and owned; the flags are constants of the shim.
        unsafe {
            let flags = mbuf::ol_flags(self.ptr());
            let ip = flags & dpdk_sys::SPW_MBUF_F_RX_IP_CKSUM_MASK == dpdk_sys::SPW_MBUF_F_RX_IP_CKSUM_GOOD;
            let l4 = flags & dpdk_sys::SPW_MBUF_F_RX_L4_CKSUM_MASK == dpdk_sys::SPW_MBUF_F_RX_L4_CKSUM_GOOD;
            (ip, l4)
        }
    }

    /// Last mbuf of the chain.
    #[inline]
    fn last(&self) -> *mut rte_mbuf {
        let mut m = self.ptr();
        if self.is_contiguous() {
            return m;
        }
        // SAFETY: the segments of the chain are valid as long as the first one is.
        unsafe {
            loop {
                let next = mbuf::next(m);
                if next.is_null() {
                    return m;
                }
                m = next;
            }
        }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the chain is owned, and not used afterwards.
        unsafe { dpdk_sys::spw_free(self.ptr()) }
    }
}

impl std::fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mbuf")
            .field("pkt_len", &self.pkt_len())
            .field("segments", &self.segment_count())
            .finish()
    }
}

/// # Safety
/// `m` is valid.
#[inline]
unsafe fn data_ptr(m: *mut rte_mbuf) -> *mut u8 {
    // SAFETY: the offset stays within the buffer.
    unsafe { mbuf::buf_addr(m).add(mbuf::data_off(m) as usize) }
}

/// # Safety
/// `m` is valid.
#[inline]
unsafe fn tailroom(m: *mut rte_mbuf) -> usize {
    // SAFETY: the caller vouches for `m`.
    let (room, used) =
        unsafe { (mbuf::buf_len(m) as usize, mbuf::data_off(m) as usize + mbuf::data_len(m) as usize) };
    room.saturating_sub(used)
}

/// The segments of a packet, in order.
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    next: *mut rte_mbuf,
    packet: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let m = self.next;
        if m.is_null() {
            return None;
        }
        // SAFETY: the chain is borrowed for 'a, so its segments are valid and not written.
        unsafe {
            self.next = mbuf::next(m);
            Some(slice::from_raw_parts(data_ptr(m), mbuf::data_len(m) as usize))
        }
    }
}
