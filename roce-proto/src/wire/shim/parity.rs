//! A parity shard of a group of segments. See `docs/protocol.md`, 2.7.

use super::{Common, Data, FEC_EXTENSION_LEN, Kind, ShimError, head};

/// The header of a parity shard: that of the group's first segment, and an extension that says which segments the group has and which
/// shard this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parity {
    /// The fields of the group's first segment; path, path sequence and time are the packet's own.
    pub first: Data,
    /// Which code.
    pub codec: u8,
    /// Which version of its bytes.
    pub version: u8,
    /// Segments of the group.
    pub segments: u8,
    /// Parity shards of the group.
    pub shards: u8,
    /// Which of them this is, from 0.
    pub index: u8,
    /// From one segment of the group to the next: in number and in sequence.
    pub stride: u8,
}

impl Parity {
    /// Bytes on the wire.
    pub const LEN: usize = Data::LEN + FEC_EXTENSION_LEN;

    /// Takes a payload apart into header and shard.
    ///
    /// # Errors
    /// Too short, not parity, or an extension that is not known.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Parity, &[u8]), ShimError> {
        let b: &[u8; 72] = head(bytes)?;
        let common = Common::parse(b)?;
        if common.kind != Kind::Parity {
            return Err(ShimError::Kind(common.kind as u8));
        }
        let first = Data::fields(head(b)?, common)?;
        let [codec, version, segments, shards, index, stride] = [60, 61, 62, 63, 64, 65].map(|at| b[at]);
        let parity = Parity { first, codec, version, segments, shards, index, stride };
        Ok((parity, bytes.get(Parity::LEN..).unwrap_or_default()))
    }

    /// The header's bytes. What [`Data::to_bytes`] cuts is cut.
    #[inline]
    pub fn to_bytes(&self) -> [u8; 72] {
        let mut b = [0; 72];
        b[..60].copy_from_slice(&self.first.bytes_of(Kind::Parity));
        b[60..66].copy_from_slice(&[
            self.codec,
            self.version,
            self.segments,
            self.shards,
            self.index,
            self.stride,
        ]);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Seq, Ticks};
    use super::*;

    #[test]
    fn known_bytes() {
        let first = Data {
            session: 0x0102_0304_0506_0708,
            path: 3,
            path_seq: Seq(0x1112_1314),
            seq: Seq(0x2122_2324),
            time: Ticks(0x3132_3334),
            segment: 5,
            length: 100_000,
            ..Data::default()
        };
        let parity = Parity { first, codec: 1, version: 2, segments: 32, shards: 4, index: 3, stride: 16 };
        let bytes = parity.to_bytes();
        assert_eq!(bytes[..4], [0x1b, 0, 3, 0]);
        assert_eq!(bytes[12..24], [0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34]);
        assert_eq!(bytes[60..], [1, 2, 32, 4, 3, 16, 0, 0, 0, 0, 0, 0]);
        let mut packet = bytes.to_vec();
        packet.extend([9, 8, 7]);
        assert_eq!(Parity::parse(&packet), Ok((parity, [9, 8, 7].as_slice())));
        assert_eq!(Parity::parse(&bytes[..71]), Err(ShimError::TooShort { have: 71, need: 72 }));
        packet[0] = 0x10;
        assert_eq!(Parity::parse(&packet), Err(ShimError::Kind(0)));
    }
}
