//! The fields of `struct rte_mbuf`, as plain loads and stores.
//!
//! # Safety
//! Every function here needs `m` to point to an initialised mbuf that no other thread writes meanwhile; setters need it
//! to be owned by the caller alone. The C compiler asserts that each field has the width that is read here.

use crate::{
    SPW_MBUF_BUF_ADDR, SPW_MBUF_BUF_LEN, SPW_MBUF_DATA_LEN, SPW_MBUF_DATA_OFF, SPW_MBUF_NB_SEGS,
    SPW_MBUF_NEXT, SPW_MBUF_OL_FLAGS, SPW_MBUF_PKT_LEN, SPW_MBUF_POOL, SPW_MBUF_PORT, SPW_MBUF_REFCNT,
    SPW_MBUF_RSS_HASH, SPW_MBUF_VLAN_TCI, rte_mbuf, rte_mempool,
};

macro_rules! getter {
    ($(#[$doc:meta])* $name:ident, $offset:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See the module.
        #[inline(always)]
        pub unsafe fn $name(m: *const rte_mbuf) -> $type {
            // SAFETY: the caller vouches for `m`; offset and width come from the compiler of the C side.
            unsafe { m.cast::<u8>().add($offset as usize).cast::<$type>().read() }
        }
    };
}

macro_rules! setter {
    ($(#[$doc:meta])* $name:ident, $offset:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See the module.
        #[inline(always)]
        pub unsafe fn $name(m: *mut rte_mbuf, value: $type) {
            // SAFETY: the caller owns `m`; offset and width come from the compiler of the C side.
            unsafe { m.cast::<u8>().add($offset as usize).cast::<$type>().write(value) }
        }
    };
}

getter!(/// Start of the segment's buffer.
    buf_addr, SPW_MBUF_BUF_ADDR, *mut u8);
getter!(/// Bytes from the start of the buffer to the data.
    data_off, SPW_MBUF_DATA_OFF, u16);
setter!(/// Moves the start of the data, in bytes from the start of the buffer.
    set_data_off, SPW_MBUF_DATA_OFF, u16);
getter!(/// Reference count.
    refcnt, SPW_MBUF_REFCNT, u16);
getter!(/// Segments in the chain; valid in its first mbuf.
    nb_segs, SPW_MBUF_NB_SEGS, u16);
setter!(/// Sets the number of segments in the chain.
    set_nb_segs, SPW_MBUF_NB_SEGS, u16);
getter!(/// Port that received the packet.
    port, SPW_MBUF_PORT, u16);
getter!(/// Offload flags (`RTE_MBUF_F_*`).
    ol_flags, SPW_MBUF_OL_FLAGS, u64);
getter!(/// Bytes in the whole chain; valid in its first mbuf.
    pkt_len, SPW_MBUF_PKT_LEN, u32);
setter!(/// Sets the bytes in the whole chain.
    set_pkt_len, SPW_MBUF_PKT_LEN, u32);
getter!(/// Bytes in this segment.
    data_len, SPW_MBUF_DATA_LEN, u16);
setter!(/// Sets the bytes in this segment.
    set_data_len, SPW_MBUF_DATA_LEN, u16);
getter!(/// VLAN tag that the hardware took off.
    vlan_tci, SPW_MBUF_VLAN_TCI, u16);
getter!(/// Receive-side scaling hash.
    rss_hash, SPW_MBUF_RSS_HASH, u32);
getter!(/// Bytes of the segment's buffer.
    buf_len, SPW_MBUF_BUF_LEN, u16);
getter!(/// Pool that the segment goes back to.
    pool, SPW_MBUF_POOL, *mut rte_mempool);
getter!(/// Next segment, or null.
    next, SPW_MBUF_NEXT, *mut rte_mbuf);
setter!(/// Links the next segment.
    set_next, SPW_MBUF_NEXT, *mut rte_mbuf);
