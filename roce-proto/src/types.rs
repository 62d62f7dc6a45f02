//! The numbers that the InfiniBand architecture gives a width: queue pairs, sequence numbers, keys, path MTUs.

use core::fmt;

/// Low 24 bits.
const MASK_24: u32 = 0x00ff_ffff;

/// A queue pair number: 24 bits (IBTA volume 1, BTH and DETH).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// QP 0, the subnet management interface; RoCE has none.
    pub const SMI: Qpn = Qpn(0);
    /// QP 1, the general services interface: connection management datagrams.
    pub const GSI: Qpn = Qpn(1);
    /// The destination QPN of every multicast packet.
    pub const MULTICAST: Qpn = Qpn(MASK_24);
    /// The largest number that a queue pair of its own can have.
    pub const MAX: Qpn = Qpn(MASK_24 - 1);

    /// `None` if `value` needs more than 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Option<Qpn> {
        if value <= MASK_24 { Some(Qpn(value)) } else { None }
    }

    /// The number, at most 0xFF_FFFF.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From the low 24 bits of a big-endian word; the eight bits above belong to other fields.
    #[inline]
    pub(crate) const fn from_word(word: u32) -> Qpn {
        Qpn(word & MASK_24)
    }
}

/// `0x00001a`: as verbs tools print it.
impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::LowerHex for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A packet sequence number: 24 bits, wrapping.
///
/// It has no `Ord`: which of two comes first is a question about their [`distance`](Psn::distance).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The last number before the wrap to zero.
    pub const MAX: Psn = Psn(MASK_24);

    /// `None` if `value` needs more than 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Option<Psn> {
        if value <= MASK_24 { Some(Psn(value)) } else { None }
    }

    /// The number, at most 0xFF_FFFF.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From the low 24 bits of a word; the bits above are ignored.
    #[inline]
    pub const fn from_low_bits(word: u32) -> Psn {
        Psn(word & MASK_24)
    }

    /// The number after this one: after 0xFF_FFFF comes 0.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// The number `n` steps on, modulo 2²⁴.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MASK_24)
    }

    /// Signed steps from `self` to `to` by serial number arithmetic (RFC 1982 with 24 bits).
    ///
    /// Positive if `to` comes after `self`. The range is −2²³ … 2²³−1; numbers exactly half the circle apart are −2²³ in
    /// both directions.
    #[inline]
    pub const fn distance(self, to: Psn) -> i32 {
        // Eight bits to the left, the sign bit of the 24-bit difference is that of the word.
        ((to.0.wrapping_sub(self.0) << 8) as i32) >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A queue key: a datagram is taken only if its Q_Key is the one of the queue pair it goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of QP 1 (IBTA volume 1, general services).
    pub const GSI: QKey = QKey(0x8001_0000);

    /// Whether this is a controlled key, one with its high bit set.
    ///
    /// A work request that names a controlled key is sent with the Q_Key of the sending queue pair itself instead
    /// (IBTA volume 1, Q_Keys; `ibv_post_send` documents the same), so that only whoever set up the queue pair can use it.
    #[inline]
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A partition key: 15 bits of partition and, on top, whether the holder is a full member of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// Full membership of the default partition: the only key on most Ethernet installations.
    pub const DEFAULT: PKey = PKey(0xffff);

    /// The partition's number, 15 bits.
    #[inline]
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Full members talk to every member, limited ones to full members only.
    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether a packet with the key `other` may pass a holder of `self` (IBTA volume 1, partitioning): same partition,
    /// and at least one side a full member. The partition number 0 is invalid and matches nothing.
    #[inline]
    pub const fn matches(self, other: PKey) -> bool {
        self.partition() == other.partition() && self.partition() != 0 && (self.is_full() || other.is_full())
    }
}

impl Default for PKey {
    fn default() -> PKey {
        PKey::DEFAULT
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// An InfiniBand path MTU: the payload bytes of the largest packet, one of five sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what an Ethernet MTU of 1500 carries.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// From the smallest to the largest.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Payload bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// The MTU of exactly `bytes`, if that is one of the five.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The largest path MTU whose packet, with `overhead` bytes around its payload, fits in `link_mtu` bytes.
    ///
    /// `overhead` counts from the IP header on, as a link's MTU does; see [`crate::wire::ud::overhead`].
    pub fn fitting(link_mtu: usize, overhead: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + overhead <= link_mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_is_24_bits_wide() {
        assert_eq!(Qpn::new(0xff_ffff), Some(Qpn::MULTICAST));
        assert_eq!(Qpn::new(0x100_0000), None);
        assert_eq!(Qpn::new(u32::MAX), None);
        assert_eq!(Qpn::MAX.get(), 0xff_fffe);
        assert_eq!(Qpn::from_word(0xab12_3456).get(), 0x12_3456);
        assert_eq!(Qpn::new(0x1a).map(|q| q.to_string()).as_deref(), Some("0x00001a"));
    }

    #[test]
    fn psn_wraps_and_orders_across_the_wrap() {
        assert_eq!(Psn::MAX.next(), Psn::default());
        assert_eq!(Psn::MAX.add(3).get(), 2);
        assert_eq!(Psn::from_low_bits(0xff00_0001).get(), 1);
        assert_eq!(Psn::new(0x100_0000), None);
        let before = Psn::MAX;
        let after = Psn::from_low_bits(4);
        assert_eq!(before.distance(after), 5);
        assert_eq!(after.distance(before), -5);
        assert_eq!(before.distance(before), 0);
        assert_eq!(Psn::default().distance(Psn::from_low_bits(0x7f_ffff)), 0x7f_ffff);
        assert_eq!(Psn::default().distance(Psn::from_low_bits(0x80_0000)), -0x80_0000);
    }

    #[test]
    fn high_bit_makes_a_controlled_qkey() {
        assert!(QKey(0x8000_0001).is_controlled());
        assert!(QKey::GSI.is_controlled());
        assert!(!QKey(0x7fff_ffff).is_controlled());
        assert!(!QKey(0x1111_1111).is_controlled());
    }

    #[test]
    fn pkey_membership() {
        let full = PKey(0x8123);
        let limited = PKey(0x0123);
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited), "two limited members do not talk");
        assert!(!full.matches(PKey(0x8124)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)), "partition 0 is invalid");
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
    }

    #[test]
    fn mtu_sizes_and_the_largest_that_fits() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::from_bytes(2048), Some(Mtu::B2048));
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::fitting(1500, 52), Some(Mtu::B1024));
        assert_eq!(Mtu::fitting(4148, 52), Some(Mtu::B4096));
        assert_eq!(Mtu::fitting(4147, 52), Some(Mtu::B2048));
        assert_eq!(Mtu::fitting(300, 52), None);
    }
}
