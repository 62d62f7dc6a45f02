//! What messages are filled with, and whether they arrived so.

use crate::report::numbers::plural;
use std::fmt;
use std::str::FromStr;

/// The content of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Zeros.
    Zero,
    /// Each byte one more than that before it; message number n begins with n, modulo 256. A receiver takes any first
    /// byte, so that lost messages do not matter.
    Incr,
    /// Bytes without a pattern, the same in every message; both sides must know the seed.
    Random(u64),
    /// These bytes, over and over.
    Bytes(Vec<u8>),
}

/// Where a message differs from its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset of the first byte that differs.
    pub at: usize,
    /// What is there.
    pub got: u8,
    /// What should be.
    pub want: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is {:#04x}, expected {:#04x}", self.at, self.got, self.want)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let expected =
            || format!("`{text}` is no pattern: zero, incr, random, random:SEED, hex:DEADBEEF or text:hello");
        let some =
            |bytes: Vec<u8>| if bytes.is_empty() { Err(expected()) } else { Ok(Pattern::Bytes(bytes)) };
        match text.split_once(':') {
            None => match text {
                "zero" => Ok(Pattern::Zero),
                "incr" => Ok(Pattern::Incr),
                "random" => Ok(Pattern::Random(0)),
                _ => Err(expected()),
            },
            Some(("random", seed)) => seed.parse().map(Pattern::Random).map_err(|_| expected()),
            Some(("text", text)) => some(text.as_bytes().to_vec()),
            Some(("hex", digits)) => {
                let digits: Vec<u8> = digits.bytes().filter(|b| !matches!(b, b' ' | b'_' | b':')).collect();
                let (pairs, rest) = digits.as_chunks::<2>();
                let byte = |pair: &[u8; 2]| {
                    let value = |digit: u8| (digit as char).to_digit(16);
                    Some((value(pair[0])? << 4 | value(pair[1])?) as u8)
                };
                match pairs.iter().map(byte).collect() {
                    Some(bytes) if rest.is_empty() => some(bytes),
                    _ => Err(expected()),
                }
            }
            _ => Err(expected()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Zero => f.write_str("zero"),
            Pattern::Incr => f.write_str("incr"),
            Pattern::Random(seed) => write!(f, "random:{seed}"),
            Pattern::Bytes(bytes) => {
                f.write_str("hex:")?;
                bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

impl serde::Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Pattern {
    /// The size that a message of this pattern has if none is asked for, in bytes.
    pub fn size(&self) -> usize {
        match self {
            Pattern::Bytes(bytes) => bytes.len(),
            _ => 64,
        }
    }

    /// Fills message number `number`.
    pub fn fill(&self, number: u64, message: &mut [u8]) {
        self.write(number as u8, message);
    }

    /// Whether a message that came is as this pattern fills it.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(&self, message: &[u8]) -> Result<(), Mismatch> {
        let mut want = vec![0; message.len()];
        self.write(message.first().copied().unwrap_or(0), &mut want);
        match message.iter().zip(&want).position(|(a, b)| a != b) {
            Some(at) => Err(Mismatch { at, got: message[at], want: want[at] }),
            None => Ok(()),
        }
    }

    fn write(&self, first: u8, message: &mut [u8]) {
        match self {
            Pattern::Zero => message.fill(0),
            Pattern::Incr => {
                let mut next = first;
                for byte in message {
                    *byte = next;
                    next = next.wrapping_add(1);
                }
            }
            Pattern::Random(seed) => {
                let mut state = *seed;
                for part in message.chunks_mut(8) {
                    part.copy_from_slice(&split_mix(&mut state).to_le_bytes()[..part.len()]);
                }
            }
            Pattern::Bytes(bytes) => {
                for part in message.chunks_mut(bytes.len().max(1)) {
                    part.copy_from_slice(&bytes[..part.len()]);
                }
            }
        }
    }
}

/// The next number of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): written out, so that two versions of this program agree
/// about it.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `3 messages`, for sentences about them.
pub(super) fn messages(count: u64) -> String {
    plural(count, "message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pattern: &str, number: u64, len: usize) -> Vec<u8> {
        let mut message = vec![0xee; len];
        pattern.parse::<Pattern>().unwrap().fill(number, &mut message);
        message
    }

    #[test]
    fn patterns() {
        assert_eq!(filled("zero", 5, 3), [0, 0, 0]);
        assert_eq!(filled("incr", 255, 3), [255, 0, 1]);
        assert_eq!(filled("hex:de ad_BE", 0, 5), [0xde, 0xad, 0xbe, 0xde, 0xad]);
        assert_eq!(filled("text:a:b", 0, 4), *b"a:ba");
        // The first outputs for seed 0, from the algorithm's reference implementation.
        assert_eq!(filled("random", 0, 8), 0xe220_a839_7b1d_cdafu64.to_le_bytes());
        assert_eq!(filled("random:0", 9, 12)[8..], 0x6e78_9e6a_a1b9_65f4u64.to_le_bytes()[..4]);
        for bad in ["", "ones", "hex:", "hex:abc", "hex:zz", "text:", "random:x", "incr:1", "hex:é"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_come_back() {
        for text in ["zero", "incr", "random:7", "hex:00ff", "text:hi"] {
            let pattern: Pattern = text.parse().unwrap();
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        for text in ["zero", "incr", "random:3", "hex:0102030405"] {
            let pattern: Pattern = text.parse().unwrap();
            let mut message = filled(text, 77, 100);
            assert_eq!(pattern.check(&message), Ok(()), "{text}");
            let want = message[41];
            message[41] ^= 0x10;
            assert_eq!(pattern.check(&message), Err(Mismatch { at: 41, got: want ^ 0x10, want }), "{text}");
            assert_eq!(pattern.check(&[]), Ok(()));
        }
    }
}
