//! The short control packets of a session, and those without one.

use super::{Common, Kind, Seq, ShimError, Ticks, be32, be64, exact, head};

/// Entries of an announcement at the most.
pub const MAX_ENTRIES: usize = 32;

/// Reads what all begin with, if the packet is of one type.
pub(super) fn common_of(bytes: &[u8], kind: Kind) -> Result<Common, ShimError> {
    let common = Common::parse(bytes)?;
    if common.kind == kind { Ok(common) } else { Err(ShimError::Kind(common.kind as u8)) }
}

/// Asks for a feedback. See `docs/protocol.md`, 2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The id that the receiver gave to the session.
    pub session: u64,
    /// Index of the path.
    pub path: u8,
    /// Number of the transmission on its path.
    pub path_seq: Seq,
    /// The next sequence that was never sent.
    pub seq: Seq,
    /// The sender's clock.
    pub time: Ticks,
    /// The sender has messages that wait for their receives: all that are posted are to be announced.
    pub asks: bool,
    /// The sender had no room for some announcements: those are to be made again too.
    pub forgot: bool,
    /// No answer came for long: those to come go on another path.
    pub urgent: bool,
}

/// The flag of a probe that asks for announcements.
const ASKS: u8 = 0x01;
/// The flag of one whose sender does not know announcements that it has acknowledged.
const FORGOT: u8 = 0x02;
/// The flag of one that was sent since no answer came.
const URGENT: u8 = 0x04;

impl Probe {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Reads a payload that is exactly one probe.
    ///
    /// # Errors
    /// Another length or type.
    pub fn parse(bytes: &[u8]) -> Result<Probe, ShimError> {
        let common = common_of(bytes, Kind::Probe)?;
        let b: &[u8; 24] = exact(bytes)?;
        Ok(Probe {
            session: common.session,
            path: common.path,
            path_seq: Seq(be32(b, 12)),
            seq: Seq(be32(b, 16)),
            time: Ticks(be32(b, 20)),
            asks: common.flags & ASKS != 0,
            forgot: common.flags & FORGOT != 0,
            urgent: common.flags & URGENT != 0,
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 24] {
        let flags = (ASKS * u8::from(self.asks))
            | (FORGOT * u8::from(self.forgot))
            | (URGENT * u8::from(self.urgent));
        let common = Common { kind: Kind::Probe, flags, path: self.path, count: 0, session: self.session };
        let mut b = [0; 24];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..16].copy_from_slice(&self.path_seq.0.to_be_bytes());
        b[16..20].copy_from_slice(&self.seq.0.to_be_bytes());
        b[20..24].copy_from_slice(&self.time.0.to_be_bytes());
        b
    }
}

/// One channel of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnounceEntry {
    /// The application's communicator.
    pub communicator: u32,
    /// The application's tag.
    pub tag: u64,
    /// Receives for all ordinals before it are posted.
    pub through: Seq,
}

impl AnnounceEntry {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..4].copy_from_slice(&self.communicator.to_be_bytes());
        b[4..12].copy_from_slice(&self.tag.to_be_bytes());
        b[12..].copy_from_slice(&self.through.0.to_be_bytes());
        b
    }
}

/// Receives that are posted. See `docs/protocol.md`, 2.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce<'a> {
    /// The id that the receiver gave to the session.
    pub session: u64,
    /// Number of the announcement.
    pub number: Seq,
    entries: &'a [[u8; 16]],
}

impl<'a> Announce<'a> {
    /// Bytes before the entries.
    pub const HEAD_LEN: usize = 16;

    /// Reads a payload that is exactly one announcement.
    ///
    /// # Errors
    /// Another length than its count says, too many entries, or another type.
    pub fn parse(bytes: &'a [u8]) -> Result<Announce<'a>, ShimError> {
        let common = common_of(bytes, Kind::Announce)?;
        let b: &[u8; 16] = head(bytes)?;
        if usize::from(common.count) > MAX_ENTRIES {
            return Err(ShimError::Count { count: common.count, max: MAX_ENTRIES as u8 });
        }
        let say = Announce::HEAD_LEN + usize::from(common.count) * AnnounceEntry::LEN;
        if bytes.len() < say {
            return Err(ShimError::TooShort { have: bytes.len(), need: say });
        }
        if bytes.len() > say {
            return Err(ShimError::Length { have: bytes.len(), say });
        }
        let entries = bytes.get(Announce::HEAD_LEN..).unwrap_or_default().as_chunks().0;
        Ok(Announce { session: common.session, number: Seq(be32(b, 12)), entries })
    }

    /// The head's bytes for so many entries, at most [`MAX_ENTRIES`](super::MAX_ENTRIES).
    pub fn head_bytes(session: u64, number: Seq, count: u8) -> [u8; 16] {
        let common = Common { kind: Kind::Announce, flags: 0, path: 0, count, session };
        let mut b = [0; 16];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..].copy_from_slice(&number.0.to_be_bytes());
        b
    }

    /// The channels.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = AnnounceEntry> + 'a {
        self.entries.iter().map(|e| AnnounceEntry {
            communicator: be32(e, 0),
            tag: be64(e, 4),
            through: Seq(be32(e, 12)),
        })
    }
}

/// A packet came for a session that is not known. See `docs/protocol.md`, 2.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The id that was not known.
    pub session: u64,
}

impl Reset {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads a payload that is exactly one reset.
    ///
    /// # Errors
    /// Another length or type.
    pub fn parse(bytes: &[u8]) -> Result<Reset, ShimError> {
        let common = common_of(bytes, Kind::Reset)?;
        exact::<12>(bytes)?;
        Ok(Reset { session: common.session })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 12] {
        Common { kind: Kind::Reset, flags: 0, path: 0, count: 0, session: self.session }.to_bytes()
    }
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseReason {
    /// The application closed it.
    Application = 0,
    /// The peer was silent for too long.
    Silence = 1,
    /// The peer broke the protocol.
    Protocol = 2,
}

/// The session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The id that the receiver gave to the session.
    pub session: u64,
    /// Why.
    pub reason: CloseReason,
}

impl Close {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads a payload that is exactly one close.
    ///
    /// # Errors
    /// Another length, type or an unknown reason.
    pub fn parse(bytes: &[u8]) -> Result<Close, ShimError> {
        let common = common_of(bytes, Kind::Close)?;
        exact::<12>(bytes)?;
        let reason = match common.count {
            0 => CloseReason::Application,
            1 => CloseReason::Silence,
            2 => CloseReason::Protocol,
            other => return Err(ShimError::Reason(u32::from(other))),
        };
        Ok(Close { session: common.session, reason })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 12] {
        let (session, count) = (self.session, self.reason as u8);
        Common { kind: Kind::Close, flags: 0, path: 0, count, session }.to_bytes()
    }
}

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RejectReason {
    /// It is longer than its receive.
    TooLong = 1,
    /// It came before its receive, and there is no room to keep it: it is to be sent once its receive is announced.
    Postponed = 2,
}

/// A message cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectMessage {
    /// The id that the receiver of this packet gave to the session.
    pub session: u64,
    /// Number of the message.
    pub message: Seq,
    /// The sequence of the segment that came.
    pub seq: Seq,
    /// Why.
    pub reason: RejectReason,
}

impl RejectMessage {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Reads a payload that is exactly one rejection.
    ///
    /// # Errors
    /// Another length, type or an unknown reason.
    pub fn parse(bytes: &[u8]) -> Result<RejectMessage, ShimError> {
        let common = common_of(bytes, Kind::Reject)?;
        let b: &[u8; 24] = exact(bytes)?;
        let reason = match be32(b, 16) {
            1 => RejectReason::TooLong,
            2 => RejectReason::Postponed,
            other => return Err(ShimError::Reason(other)),
        };
        let (message, seq) = (Seq(be32(b, 12)), Seq(be32(b, 20)));
        Ok(RejectMessage { session: common.session, message, seq, reason })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 24] {
        let common = Common { kind: Kind::Reject, flags: 0, path: 0, count: 0, session: self.session };
        let mut b = [0; 24];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..16].copy_from_slice(&self.message.0.to_be_bytes());
        b[16..20].copy_from_slice(&u32::from(self.reason as u8).to_be_bytes());
        b[20..].copy_from_slice(&self.seq.0.to_be_bytes());
        b
    }
}

/// Why a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefuseReason {
    /// Another version of the protocol.
    Version = 1,
    /// No room for a session.
    Full = 2,
    /// Nobody listens there.
    NotListening = 3,
    /// The sizes offered do not fit.
    Sizes = 4,
}

/// A session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The initiator's id.
    pub session: u64,
    /// Why.
    pub reason: RefuseReason,
    /// The INIT's time.
    pub time: Ticks,
}

impl Refuse {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads a payload that is exactly one refusal.
    ///
    /// # Errors
    /// Another length, type or an unknown reason.
    pub fn parse(bytes: &[u8]) -> Result<Refuse, ShimError> {
        let common = common_of(bytes, Kind::Refuse)?;
        let b: &[u8; 16] = exact(bytes)?;
        let reason = match common.count {
            1 => RefuseReason::Version,
            2 => RefuseReason::Full,
            3 => RefuseReason::NotListening,
            4 => RefuseReason::Sizes,
            other => return Err(ShimError::Reason(u32::from(other))),
        };
        Ok(Refuse { session: common.session, reason, time: Ticks(be32(b, 12)) })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 16] {
        let (session, count) = (self.session, self.reason as u8);
        let mut b = [0; 16];
        b[..12].copy_from_slice(&Common { kind: Kind::Refuse, flags: 0, path: 0, count, session }.to_bytes());
        b[12..].copy_from_slice(&self.time.0.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 0x0102_0304_0506_0708;
    const HEAD: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    fn packet(first: [u8; 4], rest: &[u8]) -> Vec<u8> {
        [&first[..], &HEAD, rest].concat()
    }

    #[test]
    fn known_bytes() {
        let seq = Seq(0xffff_fffe);
        for (asks, forgot, urgent, flags) in [
            (false, false, false, 0),
            (true, false, false, 1),
            (false, true, false, 2),
            (false, false, true, 4),
        ] {
            let probe =
                Probe { session: ID, path: 9, path_seq: Seq(1), seq, time: Ticks(2), asks, forgot, urgent };
            let bytes = packet([0x12, flags, 9, 0], &[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 2]);
            assert_eq!(Probe::parse(&bytes), Ok(probe));
            assert_eq!(probe.to_bytes()[..], bytes);
        }

        let entry = AnnounceEntry { communicator: 1, tag: 2, through: Seq(3) };
        let body = [0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        let bytes = packet([0x13, 0, 0, 1], &body);
        let announce = Announce::parse(&bytes).expect("sound");
        assert_eq!((announce.session, announce.number), (ID, Seq(7)));
        assert_eq!(announce.entries().collect::<Vec<_>>(), [entry]);
        assert_eq!([Announce::head_bytes(ID, Seq(7), 1), entry.to_bytes()].concat(), bytes);

        let bytes = packet([0x18, 0, 0, 0], &[]);
        assert_eq!(Reset::parse(&bytes), Ok(Reset { session: ID }));
        assert_eq!(Reset { session: ID }.to_bytes()[..], bytes);

        let close = Close { session: ID, reason: CloseReason::Silence };
        let bytes = packet([0x19, 0, 0, 1], &[]);
        assert_eq!(Close::parse(&bytes), Ok(close));
        assert_eq!(close.to_bytes()[..], bytes);

        let reason = RejectReason::Postponed;
        let reject = RejectMessage { session: ID, message: Seq(5), seq: Seq(6), reason };
        let bytes = packet([0x1a, 0, 0, 0], &[0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 6]);
        assert_eq!(RejectMessage::parse(&bytes), Ok(reject));
        assert_eq!(reject.to_bytes()[..], bytes);

        let refuse = Refuse { session: ID, reason: RefuseReason::NotListening, time: Ticks(6) };
        let bytes = packet([0x17, 0, 0, 3], &[0, 0, 0, 6]);
        assert_eq!(Refuse::parse(&bytes), Ok(refuse));
        assert_eq!(refuse.to_bytes()[..], bytes);
    }

    #[test]
    fn other_lengths_counts_and_reasons_are_refused() {
        let probe = packet([0x12, 0, 0, 0], &[0; 13]);
        assert_eq!(Probe::parse(&probe), Err(ShimError::Length { have: 25, say: 24 }));
        assert_eq!(Probe::parse(&probe[..23]), Err(ShimError::TooShort { have: 23, need: 24 }));
        assert_eq!(Reset::parse(&probe), Err(ShimError::Kind(2)));
        let many = packet([0x13, 0, 0, 33], &[0; 4 + 33 * 16]);
        assert_eq!(Announce::parse(&many), Err(ShimError::Count { count: 33, max: 32 }));
        let short = packet([0x13, 0, 0, 2], &[0; 4 + 31]);
        assert_eq!(Announce::parse(&short), Err(ShimError::TooShort { have: 47, need: 48 }));
        assert_eq!(Close::parse(&packet([0x19, 0, 0, 3], &[])), Err(ShimError::Reason(3)));
        assert_eq!(Refuse::parse(&packet([0x17, 0, 0, 0], &[0; 4])), Err(ShimError::Reason(0)));
        assert_eq!(RejectMessage::parse(&packet([0x1a, 0, 0, 0], &[0; 12])), Err(ShimError::Reason(0)));
    }
}
