//! Control messages in pieces that fit the path's MTU.
//!
//! Each piece: two bytes `SW`, the version (1), the index and the count of pieces (1 byte each), a message number (4,
//! big-endian), then its part of the bytes.

use super::message::{Message, VERSION};
use std::collections::VecDeque;

const MAGIC: [u8; 2] = *b"SW";
const HEADER: usize = 9;
/// Pieces of a message at the most: 32 of an IB MTU of 256 hold 7.7 kB, more than any message needs.
const MAX_PIECES: usize = 32;
/// Messages that may be incomplete at once; the oldest gives way.
const MAX_PARTIAL: usize = 16;

/// Splits a message into UD payloads of at most `mtu` bytes. `None` if it would take too many.
pub fn split(message: &Message, number: u32, mtu: usize) -> Option<Vec<Vec<u8>>> {
    let body = serde_json::to_vec(message).ok()?;
    let room = mtu.checked_sub(HEADER).filter(|r| *r > 0)?;
    let count = body.len().div_ceil(room);
    if count > MAX_PIECES {
        return None;
    }
    let piece = |(index, part): (usize, &[u8])| {
        let mut bytes = Vec::with_capacity(HEADER + part.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION as u8, index as u8, count as u8]);
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(part);
        bytes
    };
    Some(body.chunks(room).enumerate().map(piece).collect())
}

/// Why a piece was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Not one of our messages.
    Foreign,
    /// A version that we do not speak.
    Version(u8),
    /// The pieces together are no message.
    Content,
}

struct Partial<S> {
    source: S,
    number: u32,
    pieces: Vec<Option<Vec<u8>>>,
}

/// Puts pieces together; `S` names a sender.
pub struct Assembler<S> {
    partial: VecDeque<Partial<S>>,
}

impl<S: PartialEq + Copy> Assembler<S> {
    /// Holds nothing.
    pub fn new() -> Self {
        Assembler { partial: VecDeque::new() }
    }

    /// Takes a piece; returns the message that it completes.
    pub fn take(&mut self, source: S, bytes: &[u8]) -> Result<Option<Message>, Bad> {
        let (header, part) = bytes.split_first_chunk::<HEADER>().ok_or(Bad::Foreign)?;
        let [m0, m1, version, index, count, n0, n1, n2, n3] = *header;
        if [m0, m1] != MAGIC {
            return Err(Bad::Foreign);
        }
        if u16::from(version) != VERSION {
            return Err(Bad::Version(version));
        }
        let (index, count) = (usize::from(index), usize::from(count));
        if count == 0 || count > MAX_PIECES || index >= count {
            return Err(Bad::Foreign);
        }
        let number = u32::from_be_bytes([n0, n1, n2, n3]);
        let same = |p: &Partial<S>| p.source == source && p.number == number && p.pieces.len() == count;
        let at = match self.partial.iter().position(same) {
            Some(at) => at,
            None => {
                if self.partial.len() >= MAX_PARTIAL {
                    self.partial.pop_front();
                }
                self.partial.push_back(Partial { source, number, pieces: vec![None; count] });
                self.partial.len() - 1
            }
        };
        self.partial[at].pieces[index] = Some(part.to_vec());
        if self.partial[at].pieces.iter().any(Option::is_none) {
            return Ok(None);
        }
        let whole: Vec<u8> = match self.partial.remove(at) {
            Some(done) => done.pieces.into_iter().flatten().flatten().collect(),
            None => return Ok(None),
        };
        serde_json::from_slice(&whole).map(Some).map_err(|_| Bad::Content)
    }
}

impl<S: PartialEq + Copy> Default for Assembler<S> {
    fn default() -> Self {
        Assembler::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{RxReport, Series, TestKind, TestSpec};
    use super::*;
    use crate::traffic::meter::MAX_SERIES;

    fn largest() -> Message {
        let drops = (0..12).map(|i| (format!("some_long_drop_reason_{i}"), u64::MAX)).collect();
        let rx = RxReport {
            messages: u64::MAX,
            first_burst: u64::MAX,
            elapsed_ns: u64::MAX,
            longest_pause_ns: u64::MAX,
            interval_min: 1.234_567_890_123e7,
            interval_p1: 1.234_567_890_123e7,
            interval_p50: 1.234_567_890_123e7,
            interval_ns: u64::MAX,
            intervals: u32::MAX,
            drops,
            sent: u64::MAX,
            series: Some(Series {
                start_ns: u64::MAX,
                interval_ns: u64::MAX,
                counts: vec![u64::MAX; MAX_SERIES],
            }),
        };
        Message::Report { id: u64::MAX, test: u32::MAX, rx }
    }

    #[test]
    fn any_message_fits_the_smallest_mtu_and_comes_back_in_any_order() {
        let message = largest();
        for mtu in [256, 512, 1024, 4096] {
            let mut pieces = split(&message, 7, mtu).unwrap();
            assert!(pieces.iter().all(|p| p.len() <= mtu));
            assert_eq!(pieces.len() > 1, mtu < 4096, "{mtu}");
            pieces.reverse();
            let mut assembler = Assembler::new();
            let last = pieces.pop().unwrap();
            for piece in &pieces {
                assert_eq!(assembler.take(1, piece), Ok(None));
                assert_eq!(assembler.take(1, piece), Ok(None), "a duplicate changes nothing");
            }
            assert_eq!(
                assembler.take(2, &last).map(|m| m.is_some()),
                Ok(pieces.is_empty()),
                "another sender"
            );
            assert_eq!(assembler.take(1, &last), Ok(Some(message.clone())));
        }
    }

    #[test]
    fn hello_with_the_largest_numbers_takes_two_pieces_at_most() {
        let spec = TestSpec {
            kind: TestKind::Lat,
            size: u32::MAX,
            qps: u16::MAX,
            iters: Some(u64::MAX),
            duration_ms: Some(u64::MAX),
            tx_depth: u32::MAX,
            rx_depth: u32::MAX,
            bidirectional: false,
            rate: Some(u64::MAX),
        };
        let hello = Message::Hello {
            v: VERSION,
            id: u64::MAX,
            test: u32::MAX,
            qpn: 0xff_fffe,
            mtu: u32::MAX,
            workers: u16::MAX,
            spec,
        };
        assert!(split(&hello, 0, 256).unwrap().len() <= 2);
    }

    #[test]
    fn foreign_and_broken_pieces_are_refused_and_held_memory_is_bounded() {
        let mut assembler = Assembler::new();
        for bytes in [
            &b""[..],
            b"SW",
            b"XX\x01\x00\x01\0\0\0\0{}",
            b"SW\x01\x01\x01\0\0\0\0{}",
            b"SW\x01\x00\x00\0\0\0\0",
        ] {
            assert_eq!(assembler.take(0, bytes), Err(Bad::Foreign), "{bytes:?}");
        }
        assert_eq!(assembler.take(0, b"SW\x09\x00\x01\0\0\0\0{}"), Err(Bad::Version(9)));
        assert_eq!(assembler.take(0, b"SW\x01\x00\x01\0\0\0\0{\"t\":\"hell\"}"), Err(Bad::Content));
        for number in 0..10_000u32 {
            let mut piece = b"SW\x01\x00\x02".to_vec();
            piece.extend_from_slice(&number.to_be_bytes());
            assert_eq!(assembler.take(0, &piece), Ok(None));
        }
        assert_eq!(assembler.partial.len(), MAX_PARTIAL);
    }
}
