//! The header of a segment.

use super::{Common, Kind, Seq, ShimError, Ticks, be16, be32, be64, exact, head};

/// What the application says of a message beside its bytes; it travels in each of its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Semantics {
    /// Which round of a collective the message belongs to.
    pub step: u32,
    /// Class of traffic, 4 bits.
    pub class: u8,
    /// Priority within the class, 4 bits.
    pub priority: u8,
    /// Place in the application's pipeline.
    pub stage: u8,
    /// Loss that the application tolerates, in 1/256.
    pub tolerance: u8,
    /// Others wait for the end of this message.
    pub sync: bool,
}

/// The header of a segment. See `docs/protocol.md`, 2.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    /// The id that the receiver gave to the session.
    pub session: u64,
    /// Index of the path.
    pub path: u8,
    /// Number of the transmission on its path.
    pub path_seq: Seq,
    /// Number of the segment in its session.
    pub seq: Seq,
    /// The sender's clock.
    pub time: Ticks,
    /// Number of the message in its session.
    pub message: Seq,
    /// Number of the segment in its message.
    pub segment: u32,
    /// The application's communicator.
    pub communicator: u32,
    /// The application's tag.
    pub tag: u64,
    /// Number of the message in its session, communicator and tag.
    pub ordinal: Seq,
    /// Bytes of the whole message, 48 bits; of a void packet, the segments of it that were ever sent.
    pub length: u64,
    /// What the application says of the message.
    pub semantics: Semantics,
    /// Asks for feedback in this round.
    pub ask: bool,
    /// The segment was sent before.
    pub again: bool,
    /// There is no payload: the message was rejected.
    pub void: bool,
    /// The segment drew on the grant: it came without its receive being announced.
    pub granted: bool,
    /// Another segment follows in the same packet; this one is a whole message.
    pub more: bool,
}

const ASK: u8 = 0x01;
const AGAIN: u8 = 0x02;
const VOID: u8 = 0x04;
const FEC: u8 = 0x08;
const TAG: u8 = 0x10;
const SYNC: u8 = 0x20;
const GRANTED: u8 = 0x40;
const MORE: u8 = 0x80;

impl Data {
    /// Bytes on the wire.
    pub const LEN: usize = 60;
    /// The first byte: version and type.
    const FIRST: u8 = super::VERSION << 4 | Kind::Data as u8;
    /// The longest message that the header can tell, in bytes.
    pub const MAX_LENGTH: u64 = (1 << 48) - 1;

    /// Takes a payload apart into header and segment.
    ///
    /// # Errors
    /// Too short, not data, an extension that is not known, or a void packet with a payload.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Data, &[u8]), ShimError> {
        let b: &[u8; 60] = head(bytes)?;
        let common = Common::parse(b)?;
        if common.kind != Kind::Data {
            return Err(ShimError::Kind(common.kind as u8));
        }
        let data = Data::fields(b, common)?;
        let mut payload = bytes.get(Data::LEN..).unwrap_or_default();
        if data.more {
            let say = (data.length as usize).saturating_add(2 * Data::LEN);
            if data.segment != 0 || data.void || say > bytes.len() {
                return Err(ShimError::Length { have: bytes.len(), say });
            }
            payload = payload.get(..data.length as usize).unwrap_or_default();
        }
        if data.void {
            exact::<60>(bytes)?;
        }
        Ok((data, payload))
    }

    /// The fields, whatever the type.
    #[inline]
    pub(super) fn fields(b: &[u8; 60], common: Common) -> Result<Data, ShimError> {
        let flags = common.flags;
        if flags & (FEC | TAG) != 0 {
            return Err(ShimError::Flags(flags));
        }
        Ok(Data {
            session: common.session,
            path: common.path,
            path_seq: Seq(be32(b, 12)),
            seq: Seq(be32(b, 16)),
            time: Ticks(be32(b, 20)),
            message: Seq(be32(b, 24)),
            segment: be32(b, 28),
            communicator: be32(b, 32),
            tag: be64(b, 36),
            ordinal: Seq(be32(b, 44)),
            length: u64::from(be16(b, 52)) << 32 | u64::from(be32(b, 54)),
            semantics: Semantics {
                step: be32(b, 48),
                class: common.count >> 4,
                priority: common.count & 0x0f,
                stage: b[58],
                tolerance: b[59],
                sync: flags & SYNC != 0,
            },
            ask: flags & ASK != 0,
            again: flags & AGAIN != 0,
            void: flags & VOID != 0,
            granted: flags & GRANTED != 0,
            more: flags & MORE != 0,
        })
    }

    /// Marks a header, of a segment that is a whole message, to say that another segment follows in the packet.
    #[inline]
    pub fn set_more(header: &mut [u8]) {
        if let Some(flags) = header.get_mut(1) {
            *flags |= MORE;
        }
    }

    /// What follows the first segment of a payload in the same packet: a payload to be read as one of its own. `None` if nothing does, if
    /// [`parse`](Data::parse) refuses the first, or if what follows is no segment of the same session: else one packet could be of many
    /// sessions, and bring an answer for each.
    #[inline]
    pub fn following(bytes: &[u8]) -> Option<&[u8]> {
        let b: &[u8; 60] = bytes.first_chunk()?;
        if b[1] & MORE == 0 || b[0] != Data::FIRST || b[1] & (FEC | TAG | VOID) != 0 || be32(b, 28) != 0 {
            return None;
        }
        let length = usize::from(be16(b, 52)) << 32 | be32(b, 54) as usize;
        let rest = bytes.get(Data::LEN.saturating_add(length)..)?;
        let next: &[u8; 60] = rest.first_chunk()?;
        (next[0] == Data::FIRST && next[4..12] == b[4..12]).then_some(rest)
    }

    /// The header's bytes. Class, priority and length are cut to their width.
    #[inline]
    pub fn to_bytes(&self) -> [u8; 60] {
        self.bytes_of(Kind::Data)
    }

    /// The same of a packet of another type that has these fields.
    #[inline(always)]
    pub(super) fn bytes_of(&self, kind: Kind) -> [u8; 60] {
        let s = &self.semantics;
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let common = Common {
            kind,
            flags: flag(self.ask, ASK)
                | flag(self.again, AGAIN)
                | flag(self.void, VOID)
                | flag(s.sync, SYNC)
                | flag(self.granted, GRANTED)
                | flag(self.more, MORE),
            path: self.path,
            count: s.class << 4 | s.priority & 0x0f,
            session: self.session,
        };
        let mut b = [0; 60];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..16].copy_from_slice(&self.path_seq.0.to_be_bytes());
        b[16..20].copy_from_slice(&self.seq.0.to_be_bytes());
        b[20..24].copy_from_slice(&self.time.0.to_be_bytes());
        b[24..28].copy_from_slice(&self.message.0.to_be_bytes());
        b[28..32].copy_from_slice(&self.segment.to_be_bytes());
        b[32..36].copy_from_slice(&self.communicator.to_be_bytes());
        b[36..44].copy_from_slice(&self.tag.to_be_bytes());
        b[44..48].copy_from_slice(&self.ordinal.0.to_be_bytes());
        b[48..52].copy_from_slice(&s.step.to_be_bytes());
        // Six bytes of the length and then the two of the semantics.
        let last = self.length << 16 | u64::from(s.stage) << 8 | u64::from(s.tolerance);
        b[52..60].copy_from_slice(&last.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const BYTES: [u8; 60] = [
        0x10, 0x63, 0x05, 0xa7,
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
        0x11, 0x12, 0x13, 0x14, // path sequence
        0xff, 0xff, 0xff, 0xff, // sequence
        0x21, 0x22, 0x23, 0x24, // time
        0x31, 0x32, 0x33, 0x34, // message
        0x00, 0x00, 0x01, 0x00, // segment
        0x41, 0x42, 0x43, 0x44, // communicator
        0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // tag
        0x61, 0x62, 0x63, 0x64, // ordinal
        0x71, 0x72, 0x73, 0x74, // step
        0x00, 0x01, 0x40, 0x00, 0x00, 0x02, // length
        0x09, 0x80,
    ];

    fn value() -> Data {
        Data {
            session: 0x0102_0304_0506_0708,
            path: 5,
            path_seq: Seq(0x1112_1314),
            seq: Seq(u32::MAX),
            time: Ticks(0x2122_2324),
            message: Seq(0x3132_3334),
            segment: 256,
            communicator: 0x4142_4344,
            tag: 0x5152_5354_5556_5758,
            ordinal: Seq(0x6162_6364),
            length: 0x1_4000_0002,
            semantics: Semantics {
                step: 0x7172_7374,
                class: 10,
                priority: 7,
                stage: 9,
                tolerance: 128,
                sync: true,
            },
            ask: true,
            again: true,
            void: false,
            granted: true,
            more: false,
        }
    }

    #[test]
    fn known_bytes() {
        let mut packet = BYTES.to_vec();
        packet.extend([1, 2, 3]);
        assert_eq!(Data::parse(&packet), Ok((value(), &[1, 2, 3][..])));
        assert_eq!(value().to_bytes(), BYTES);
        assert_eq!(Data::parse(&BYTES), Ok((value(), &[][..])));
    }

    #[test]
    fn refusals() {
        assert_eq!(Data::parse(&BYTES[..59]), Err(ShimError::TooShort { have: 59, need: 60 }));
        let mut void = Data { void: true, ..value() }.to_bytes().to_vec();
        assert!(Data::parse(&void).is_ok());
        void.push(0);
        assert_eq!(Data::parse(&void), Err(ShimError::Length { have: 61, say: 60 }));
        // Only a whole message has another segment behind it, and only in a packet that has room for that.
        let packet = |data: Data| [&data.to_bytes()[..], &[7; 5], &value().to_bytes()[..]].concat();
        let whole = Data { segment: 0, length: 5, more: true, ..value() };
        assert_eq!(Data::parse(&packet(whole)), Ok((whole, &[7; 5][..])));
        assert_eq!(Data::following(&packet(whole)), Some(&value().to_bytes()[..]));
        for wrong in [
            Data { segment: 1, ..whole },
            Data { void: true, ..whole },
            Data { length: 6, ..whole },
            Data { length: Data::MAX_LENGTH, ..whole },
        ] {
            let packet = packet(wrong);
            let refused = Data::parse(&packet);
            assert!(matches!(refused, Err(ShimError::Length { have: 125, .. })), "{refused:?}");
            // And so is everything behind it.
            assert_eq!(Data::following(&packet), None, "{wrong:?}");
        }
        for flag in [FEC, TAG] {
            let mut extended = packet(whole);
            extended[1] |= flag;
            assert_eq!(Data::following(&extended), None);
        }
        // Nor does anything else than a segment follow, or one of another session.
        for (at, change) in [(65, 0x02), (65, 0x20), (69, 1), (76, 1)] {
            let mut other = packet(whole);
            other[at] ^= change;
            assert_eq!(Data::following(&other), None, "byte {at}");
        }
        assert_eq!(Data::following(&packet(Data { more: false, ..whole })), None);
        for flag in [FEC, TAG] {
            let mut other = BYTES;
            other[1] = flag;
            assert_eq!(Data::parse(&other), Err(ShimError::Flags(flag)));
        }
        let mut other = BYTES;
        other[0] = 0x11;
        assert_eq!(Data::parse(&other), Err(ShimError::Kind(1)));
    }
}
