//! ICMP echo over IPv4 (RFC 792).

use super::checksum::Sum;
use super::{EmitError, Reject, be16, head};

/// Type of an echo reply.
pub const ECHO_REPLY: u8 = 0;
/// Type of an echo request.
pub const ECHO_REQUEST: u8 = 8;

/// An echo request or reply, of ICMP or of ICMPv6: they differ in type numbers and checksum only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Echo<'a> {
    /// A reply rather than a request.
    pub is_reply: bool,
    /// Identifier: which ping.
    pub ident: u16,
    /// Sequence number.
    pub sequence: u16,
    /// The data that a reply returns.
    pub data: &'a [u8],
}

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message<'a> {
    /// Echo request or reply.
    Echo(Echo<'a>),
    /// A message of another type or code: valid, and not looked into.
    Other {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
}

impl<'a> Message<'a> {
    /// Reads an ICMP message: all of an IPv4 payload.
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort) below 8 bytes; [`IcmpChecksum`](Reject::IcmpChecksum).
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Reject> {
        let h: &[u8; Echo::HEADER_LEN] = head(bytes)?;
        if !Sum::new().bytes(bytes).is_valid() {
            return Err(Reject::IcmpChecksum { found: be16(h[2], h[3]) });
        }
        Ok(match (h[0], h[1]) {
            (ECHO_REQUEST, 0) => Message::Echo(Echo::from_parts(false, bytes)),
            (ECHO_REPLY, 0) => Message::Echo(Echo::from_parts(true, bytes)),
            (kind, code) => Message::Other { kind, code },
        })
    }
}

impl<'a> Echo<'a> {
    /// Length of the header in bytes; the data follow.
    pub const HEADER_LEN: usize = 8;

    /// From a message whose header is known to be there.
    pub(crate) fn from_parts(is_reply: bool, bytes: &'a [u8]) -> Echo<'a> {
        let word = |at| bytes.get(at..at + 2).map_or(0, |b: &[u8]| be16(b[0], b[1]));
        let data = bytes.get(Echo::HEADER_LEN..).unwrap_or_default();
        Echo { is_reply, ident: word(4), sequence: word(6), data }
    }

    /// Length of the message in bytes.
    pub const fn len(&self) -> usize {
        Echo::HEADER_LEN + self.data.len()
    }

    /// Always false: a message has a header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The reply to this request.
    #[must_use]
    pub const fn reply(&self) -> Echo<'a> {
        Echo { is_reply: true, ident: self.ident, sequence: self.sequence, data: self.data }
    }

    /// Writes the ICMP message, its checksum included, into the first [`len`](Echo::len) bytes.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<(), EmitError> {
        let kind = if self.is_reply { ECHO_REPLY } else { ECHO_REQUEST };
        self.emit_with(kind, Sum::new(), bytes)
    }

    /// Writes the message with this type and a checksum that starts from `pseudo`.
    pub(crate) fn emit_with(&self, kind: u8, pseudo: Sum, bytes: &mut [u8]) -> Result<(), EmitError> {
        let (have, need) = (bytes.len(), self.len());
        let out = bytes.get_mut(..need).ok_or(EmitError::BufferLength { have, need })?;
        out[..4].copy_from_slice(&[kind, 0, 0, 0]);
        out[4..6].copy_from_slice(&self.ident.to_be_bytes());
        out[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        out[8..].copy_from_slice(self.data);
        let checksum = pseudo.bytes(out).checksum();
        out[2..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo request with five bytes of data; the checksum was added up by hand.
    const REQUEST: [u8; 13] = [8, 0, 0xa1, 0xf8, 0x12, 0x34, 0, 1, b'h', b'e', b'l', b'l', b'o'];

    #[test]
    fn known_bytes() {
        let echo = Echo { is_reply: false, ident: 0x1234, sequence: 1, data: b"hello" };
        assert_eq!(Message::parse(&REQUEST), Ok(Message::Echo(echo)));
        let mut out = [0; 13];
        echo.emit(&mut out).expect("fits");
        assert_eq!(out, REQUEST);
        echo.reply().emit(&mut out).expect("fits");
        assert_eq!(Message::parse(&out), Ok(Message::Echo(Echo { is_reply: true, ..echo })));
        assert_eq!(echo.emit(&mut out[..12]), Err(EmitError::BufferLength { have: 12, need: 13 }));
    }

    #[test]
    fn refusals_and_other_types() {
        assert_eq!(Message::parse(&REQUEST[..7]), Err(Reject::TooShort { have: 7, need: 8 }));
        let mut b = REQUEST;
        b[12] ^= 1;
        assert_eq!(Message::parse(&b), Err(Reject::IcmpChecksum { found: 0xa1f8 }));
        let unreachable = [3, 3, 0xfc, 0xfc, 0, 0, 0, 0];
        assert_eq!(Message::parse(&unreachable), Ok(Message::Other { kind: 3, code: 3 }));
    }
}
