//! The headers of CSA-UD, the reliable service: what stands in a UD payload of ours. The layouts are those of
//! `docs/protocol.md`, section 2, which is the authority.
//!
//! Every packet begins with the same twelve bytes ([`Common`]). Parsing refuses with a [`ShimError`] and checks lengths
//! and what one packet alone can tell; whether a number makes sense in its session is the transport's business.

mod control;
mod data;
mod feedback;
mod handshake;
mod parity;
mod seq;

pub use control::{
    Announce, AnnounceEntry, Close, CloseReason, Probe, Refuse, RefuseReason, RejectMessage, RejectReason,
    Reset,
};
pub use data::{Data, Semantics};
pub use feedback::{Feedback, FeedbackHead, PathReport};
pub use handshake::{Accept, Cookie, CookieReply, Init, Offer, Rails};
pub use parity::Parity;
pub use seq::{Seq, Ticks};

use thiserror::Error;

/// The version of the headers, in the high four bits of their first byte.
pub const VERSION: u8 = 1;

/// Bytes that a segment size leaves free for a FEC extension.
pub const FEC_EXTENSION_LEN: usize = 12;
/// Bytes that a segment size leaves free for an authentication tag.
pub const TAG_LEN: usize = 16;

/// The longest control packet: a feedback with every path report and every word.
pub const MAX_CONTROL_LEN: usize =
    FeedbackHead::LEN + feedback::MAX_PATHS * PathReport::LEN + feedback::MAX_WORDS * 4;

pub use feedback::{MAX_PATHS, MAX_WORDS};
/// Entries of an [`Announce`] at the most.
pub const MAX_ENTRIES: usize = control::MAX_ENTRIES;

/// The segment size that packets with an IB MTU of `mtu` bytes can carry, whatever is added later: a multiple of 8.
///
/// ```
/// use roce_proto::wire::shim::segment_size;
/// assert_eq!(segment_size(4096), 4008);
/// assert_eq!(segment_size(1024), 936);
/// assert_eq!(segment_size(64), 0);
/// ```
pub const fn segment_size(mtu: usize) -> usize {
    mtu.saturating_sub(Data::LEN + FEC_EXTENSION_LEN + TAG_LEN) & !7
}

/// The immediate of a control packet: `0x5357_0100 | type`. Data and parity have none.
pub const fn immediate(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Data | Kind::Parity => None,
        _ => Some(0x5357_0000 | (VERSION as u32) << 8 | kind as u32),
    }
}

/// Why a payload is not a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShimError {
    /// It ends inside a header.
    #[error("{have} bytes, the header needs {need}")]
    TooShort {
        /// Bytes there are.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Another version.
    #[error("version {0}, this end speaks 1")]
    Version(u8),
    /// A type that is not known.
    #[error("packet type {0}")]
    Kind(u8),
    /// A count beyond what its type allows.
    #[error("{count} entries, at most {max}")]
    Count {
        /// The count found.
        count: u8,
        /// The most there can be.
        max: u8,
    },
    /// Longer than its fields say.
    #[error("{have} bytes, the fields say {say}")]
    Length {
        /// Bytes there are.
        have: usize,
        /// Bytes by its fields.
        say: usize,
    },
    /// Flags whose extension this end does not know.
    #[error("flags {0:#04x} ask for an extension that is not known")]
    Flags(u8),
    /// A reason that is not known.
    #[error("reason {0}")]
    Reason(u32),
}

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A segment of a message.
    Data = 0,
    /// What arrived.
    Feedback = 1,
    /// Asks for feedback.
    Probe = 2,
    /// Receives that are posted.
    Announce = 3,
    /// Begins a session.
    Init = 4,
    /// Asks to prove the source address.
    Cookie = 5,
    /// Opens a session.
    Accept = 6,
    /// Refuses a session.
    Refuse = 7,
    /// A session is not known.
    Reset = 8,
    /// A session ends.
    Close = 9,
    /// A message cannot be delivered.
    Reject = 10,
    /// A parity shard of a group of segments.
    Parity = 11,
}

impl Kind {
    /// Every type, in the order of its number.
    pub const ALL: [Kind; 12] = [
        Kind::Data,
        Kind::Feedback,
        Kind::Probe,
        Kind::Announce,
        Kind::Init,
        Kind::Cookie,
        Kind::Accept,
        Kind::Refuse,
        Kind::Reset,
        Kind::Close,
        Kind::Reject,
        Kind::Parity,
    ];

    /// The name that counters and reports carry.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Feedback => "feedback",
            Kind::Probe => "probe",
            Kind::Announce => "announce",
            Kind::Init => "init",
            Kind::Cookie => "cookie",
            Kind::Accept => "accept",
            Kind::Refuse => "refuse",
            Kind::Reset => "reset",
            Kind::Close => "close",
            Kind::Reject => "reject",
            Kind::Parity => "parity",
        }
    }
}

/// What all packets begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// The type.
    pub kind: Kind,
    /// Flags of the type.
    pub flags: u8,
    /// The path, or the number of path reports.
    pub path: u8,
    /// The third number, by type.
    pub count: u8,
    /// The id that the receiver gave to the session.
    pub session: u64,
}

impl Common {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads the first bytes of a payload.
    ///
    /// # Errors
    /// Too short, another version, or an unknown type.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Common, ShimError> {
        let b: &[u8; 12] = head(bytes)?;
        if b[0] >> 4 != VERSION {
            return Err(ShimError::Version(b[0] >> 4));
        }
        let kind = b[0] & 0x0f;
        let kind = *Kind::ALL.get(usize::from(kind)).ok_or(ShimError::Kind(kind))?;
        Ok(Common { kind, flags: b[1], path: b[2], count: b[3], session: be64(b, 4) })
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; 12] {
        let mut b = [0; 12];
        b[0] = VERSION << 4 | self.kind as u8;
        b[1] = self.flags;
        b[2] = self.path;
        b[3] = self.count;
        b[4..12].copy_from_slice(&self.session.to_be_bytes());
        b
    }
}

/// The first `N` bytes.
#[inline]
fn head<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], ShimError> {
    bytes.first_chunk().ok_or(ShimError::TooShort { have: bytes.len(), need: N })
}

/// Exactly `N` bytes.
#[inline]
fn exact<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], ShimError> {
    let b = head(bytes)?;
    if bytes.len() > N { Err(ShimError::Length { have: bytes.len(), say: N }) } else { Ok(b) }
}

/// Big-endian 32 bits at a place that is within the array.
#[inline]
fn be32(b: &[u8], at: usize) -> u32 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |w| u32::from_be_bytes(*w))
}

/// Big-endian 64 bits at a place that is within the array.
#[inline]
fn be64(b: &[u8], at: usize) -> u64 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |w| u64::from_be_bytes(*w))
}

/// Big-endian 16 bits at a place that is within the array.
#[inline]
fn be16(b: &[u8], at: usize) -> u16 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |w| u16::from_be_bytes(*w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_stand_at_their_number() {
        for (i, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i);
            assert!(Kind::ALL[..i].iter().all(|k| k.name() != kind.name()));
        }
        assert_eq!(immediate(Kind::Data), None);
        assert_eq!(immediate(Kind::Feedback), Some(0x5357_0101));
        assert_eq!(immediate(Kind::Reject), Some(0x5357_010a));
        assert_eq!(MAX_CONTROL_LEN, 1068);
    }

    #[test]
    fn known_bytes_of_what_all_begin_with() {
        let bytes = [0x12, 0xa5, 7, 3, 1, 2, 3, 4, 5, 6, 7, 8];
        let common =
            Common { kind: Kind::Probe, flags: 0xa5, path: 7, count: 3, session: 0x0102_0304_0506_0708 };
        assert_eq!(Common::parse(&bytes), Ok(common));
        assert_eq!(common.to_bytes(), bytes);
        assert_eq!(Common::parse(&bytes[..11]), Err(ShimError::TooShort { have: 11, need: 12 }));
        assert_eq!(Common::parse(&[0x22; 12]), Err(ShimError::Version(2)));
        assert_eq!(Common::parse(&[0x1c; 12]), Err(ShimError::Kind(12)));
    }
}
