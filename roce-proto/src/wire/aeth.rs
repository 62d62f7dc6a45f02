//! The acknowledgement extended transport header (IBTA volume 1).

use super::fixed_header;

/// An acknowledgement: syndrome and message sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// The syndrome byte; [`kind`](Aeth::kind) takes it apart.
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// What a syndrome says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckKind {
    /// Received; with a credit count, 31 for "not limited".
    Ack {
        /// Encoded credits, 5 bits.
        credits: u8,
    },
    /// Receiver not ready: try again after the coded time.
    RnrNak {
        /// Encoded timer, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak {
        /// NAK code, 5 bits: 0 sequence error, 1 invalid request, 2 remote access, 3 remote operation, 4 invalid RD request.
        code: u8,
    },
    /// The reserved coding.
    Reserved,
}

fixed_header!(Aeth, 4);

impl Aeth {
    /// From its bytes.
    #[inline]
    pub const fn from_bytes(b: &[u8; 4]) -> Aeth {
        Aeth { syndrome: b[0], msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Its bytes; the sequence number is cut to 24 bits.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 4] {
        ((self.syndrome as u32) << 24 | self.msn & 0xff_ffff).to_be_bytes()
    }

    /// The syndrome's meaning: bits 6 and 5 are the kind, the low five its value. Bit 7 is reserved.
    pub const fn kind(self) -> AckKind {
        let value = self.syndrome & 0x1f;
        match self.syndrome >> 5 & 3 {
            0 => AckKind::Ack { credits: value },
            1 => AckKind::RnrNak { timer: value },
            2 => AckKind::Reserved,
            _ => AckKind::Nak { code: value },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_syndromes() {
        let h = Aeth { syndrome: 0x1f, msn: 0x01_0203 };
        assert_eq!(Aeth::parse(&[0x1f, 1, 2, 3]), Ok(h));
        assert_eq!(h.to_bytes(), [0x1f, 1, 2, 3]);
        assert_eq!(h.kind(), AckKind::Ack { credits: 31 });
        let kind = |syndrome| Aeth { syndrome, msn: 0 }.kind();
        assert_eq!(kind(0x2e), AckKind::RnrNak { timer: 14 });
        assert_eq!(kind(0x60), AckKind::Nak { code: 0 });
        assert_eq!(kind(0x63), AckKind::Nak { code: 3 });
        assert_eq!(kind(0x40), AckKind::Reserved);
    }
}
