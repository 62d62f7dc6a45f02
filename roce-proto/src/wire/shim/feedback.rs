//! What a receiver tells of what arrived.

use super::{Common, Kind, Seq, ShimError, Ticks, be16, be32, head};

/// Path reports of a feedback at the most.
pub const MAX_PATHS: usize = 32;
/// Words of a feedback's bitmap at the most.
pub const MAX_WORDS: usize = 128;

const CUT: u8 = 0x01;
const STATUS: u8 = 0x02;
const TAG: u8 = 0x10;
const LATE: u8 = 0x01;

/// The fixed part of a feedback. See `docs/protocol.md`, 2.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackHead {
    /// The id that the receiver of this packet gave to the session.
    pub session: u64,
    /// The bitmap had no room for all that arrived.
    pub cut: bool,
    /// The receiver misses something that it expects: what is in flight is to be judged by its age.
    pub status: bool,
    /// Path reports that follow.
    pub paths: u8,
    /// Words of bitmap that follow them.
    pub words: u8,
    /// Number of this feedback.
    pub number: Seq,
    /// Every sequence before it has arrived.
    pub next: Seq,
    /// Unexpected segments that may have been sent in all.
    pub grant: Seq,
    /// Segments that arrived more than once, in all.
    pub duplicates: u32,
    /// Number of the last announcement taken.
    pub announced: Seq,
    /// Path sequences that were skipped, on all paths together, and have not come since, in all.
    pub skipped: u32,
    /// Gaps that they were in, in all, modulo 2¹⁶.
    pub gaps: u16,
    /// Segments that did not come and were recovered from parity, in all, modulo 2¹⁶.
    pub repaired: u16,
    /// Bytes that the peer should have in flight at the most, while others send too; 0 says nothing.
    pub share: u32,
}

impl FeedbackHead {
    /// Bytes on the wire.
    pub const LEN: usize = 44;

    /// The head's bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; FeedbackHead::LEN] {
        let common = Common {
            kind: Kind::Feedback,
            flags: (CUT * u8::from(self.cut)) | (STATUS * u8::from(self.status)),
            path: self.paths,
            count: self.words,
            session: self.session,
        };
        let mut b = [0; FeedbackHead::LEN];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..16].copy_from_slice(&self.number.0.to_be_bytes());
        b[16..20].copy_from_slice(&self.next.0.to_be_bytes());
        b[20..24].copy_from_slice(&self.grant.0.to_be_bytes());
        b[24..28].copy_from_slice(&self.duplicates.to_be_bytes());
        b[28..32].copy_from_slice(&self.announced.0.to_be_bytes());
        b[32..36].copy_from_slice(&self.skipped.to_be_bytes());
        b[36..38].copy_from_slice(&self.gaps.to_be_bytes());
        b[38..40].copy_from_slice(&self.repaired.to_be_bytes());
        b[40..].copy_from_slice(&self.share.to_be_bytes());
        b
    }
}

/// What came on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// The path.
    pub path: u8,
    /// The packet may have waited for the receiver's round, and `delay` has all of that: no time to measure a round trip by.
    pub late: bool,
    /// Its packets that carried Congestion Experienced, in all, modulo 2¹⁶.
    pub ce: u16,
    /// The highest path sequence that came.
    pub highest: Seq,
    /// The time that stood in that packet.
    pub time: Ticks,
    /// Between its arrival and the feedback.
    pub delay: Ticks,
}

impl PathReport {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    #[inline]
    fn from_bytes(b: &[u8; 16]) -> PathReport {
        PathReport {
            path: b[0],
            late: b[1] & LATE != 0,
            ce: be16(b, 2),
            highest: Seq(be32(b, 4)),
            time: Ticks(be32(b, 8)),
            delay: Ticks(be32(b, 12)),
        }
    }

    /// Its bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut b = [0; 16];
        b[0] = self.path;
        b[1] = if self.late { LATE } else { 0 };
        b[2..4].copy_from_slice(&self.ce.to_be_bytes());
        b[4..8].copy_from_slice(&self.highest.0.to_be_bytes());
        b[8..12].copy_from_slice(&self.time.0.to_be_bytes());
        b[12..16].copy_from_slice(&self.delay.0.to_be_bytes());
        b
    }
}

/// A feedback as received; reports and bitmap stay where they lie in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback<'a> {
    /// The fixed part.
    pub head: FeedbackHead,
    paths: &'a [[u8; 16]],
    words: &'a [[u8; 4]],
}

impl<'a> Feedback<'a> {
    /// Reads a payload that is exactly one feedback.
    ///
    /// # Errors
    /// Too short or too long for its counts, counts beyond their limits, or not a feedback.
    pub fn parse(bytes: &'a [u8]) -> Result<Feedback<'a>, ShimError> {
        let b: &[u8; FeedbackHead::LEN] = head(bytes)?;
        let common = Common::parse(b)?;
        if common.kind != Kind::Feedback {
            return Err(ShimError::Kind(common.kind as u8));
        }
        if common.flags & TAG != 0 {
            return Err(ShimError::Flags(common.flags));
        }
        let (paths, words) = (usize::from(common.path), usize::from(common.count));
        if paths > MAX_PATHS {
            return Err(ShimError::Count { count: common.path, max: MAX_PATHS as u8 });
        }
        if words > MAX_WORDS {
            return Err(ShimError::Count { count: common.count, max: MAX_WORDS as u8 });
        }
        let bitmap_at = FeedbackHead::LEN + paths * PathReport::LEN;
        let say = bitmap_at + words * 4;
        if bytes.len() < say {
            return Err(ShimError::TooShort { have: bytes.len(), need: say });
        }
        if bytes.len() > say {
            return Err(ShimError::Length { have: bytes.len(), say });
        }
        let (reports, bitmap) = bytes.split_at(bitmap_at);
        Ok(Feedback {
            head: FeedbackHead {
                session: common.session,
                cut: common.flags & CUT != 0,
                status: common.flags & STATUS != 0,
                paths: common.path,
                words: common.count,
                number: Seq(be32(b, 12)),
                next: Seq(be32(b, 16)),
                grant: Seq(be32(b, 20)),
                duplicates: be32(b, 24),
                announced: Seq(be32(b, 28)),
                skipped: be32(b, 32),
                gaps: be16(b, 36),
                repaired: be16(b, 38),
                share: be32(b, 40),
            },
            paths: reports.get(FeedbackHead::LEN..).unwrap_or_default().as_chunks().0,
            words: bitmap.as_chunks().0,
        })
    }

    /// The path reports.
    #[inline]
    pub fn paths(&self) -> impl ExactSizeIterator<Item = PathReport> + 'a {
        self.paths.iter().map(PathReport::from_bytes)
    }

    /// The words of the bitmap; the first begins at [`base`](Feedback::base).
    #[inline]
    pub fn words(&self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.words.iter().map(|w| u32::from_be_bytes(*w))
    }

    /// The sequence of bit 0 of word 0.
    #[inline]
    pub const fn base(&self) -> Seq {
        Seq(self.head.next.0 & !31)
    }

    /// The first sequence that this feedback does not speak of, if there is one: usually what it does not name has not arrived.
    #[inline]
    pub fn end(&self) -> Option<Seq> {
        self.head.cut.then(|| self.base().add(32 * self.words.len() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const BYTES: [u8; 68] = [
        0x11, 0x01, 0x01, 0x02,
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
        0x00, 0x00, 0x00, 0x09, // number
        0xff, 0xff, 0xff, 0xfe, // next
        0x00, 0x00, 0x01, 0x00, // grant
        0x00, 0x00, 0x00, 0x03, // duplicates
        0x00, 0x00, 0x00, 0x04, // announced
        0x00, 0x01, 0x00, 0x02, // skipped
        0x00, 0x05, 0xff, 0xfe, // gaps, repaired
        0x80, 0x00, 0x1f, 0x50, // share
        0x06, 0x01, 0x00, 0x07, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x00, 0x00, 0x00, 0x40,
        0xbf, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x05,
    ];

    #[test]
    fn known_bytes() {
        let f = Feedback::parse(&BYTES).expect("sound");
        let head = FeedbackHead {
            session: 0x0102_0304_0506_0708,
            cut: true,
            status: false,
            paths: 1,
            words: 2,
            number: Seq(9),
            next: Seq(0xffff_fffe),
            grant: Seq(256),
            duplicates: 3,
            announced: Seq(4),
            skipped: 0x1_0002,
            gaps: 5,
            repaired: 0xfffe,
            share: 0x8000_1f50,
        };
        assert_eq!(f.head, head);
        assert_eq!(head.to_bytes(), BYTES[..44]);
        let asks = FeedbackHead { cut: false, status: true, ..head };
        assert_eq!(asks.to_bytes()[1], 2);
        let mut bytes = BYTES;
        bytes[1] = 2;
        assert_eq!(Feedback::parse(&bytes).expect("sound").head, asks);
        let report = PathReport {
            path: 6,
            late: true,
            ce: 7,
            highest: Seq(0x1112_1314),
            time: Ticks(0x2122_2324),
            delay: Ticks(64),
        };
        assert_eq!(f.paths().collect::<Vec<_>>(), [report]);
        assert_eq!(report.to_bytes(), BYTES[44..60]);
        assert_eq!(f.words().collect::<Vec<_>>(), [0xbfff_ffff, 5]);
        assert_eq!(f.base(), Seq(0xffff_ffe0));
        assert_eq!(f.end(), Some(Seq(0x20)), "the bitmap goes on past the wrap");
    }

    #[test]
    fn refusals() {
        assert_eq!(Feedback::parse(&BYTES[..67]), Err(ShimError::TooShort { have: 67, need: 68 }));
        let mut long = BYTES.to_vec();
        long.push(0);
        assert_eq!(Feedback::parse(&long), Err(ShimError::Length { have: 69, say: 68 }));
        let mut many = BYTES;
        many[2] = 33;
        assert_eq!(Feedback::parse(&many), Err(ShimError::Count { count: 33, max: 32 }));
        many[2] = 1;
        many[3] = 129;
        assert_eq!(Feedback::parse(&many), Err(ShimError::Count { count: 129, max: 128 }));
    }
}
