//! The newer format: sections of blocks.

use super::{CaptureError, Input, LinkType, MAX_BLOCK, MAX_CAPTURED, MAX_INTERFACES, Order, Record};
use std::io::Read;

/// The type of a section header block; the same bytes in either order.
pub(super) const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// What a section header says of its byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Block types that matter here.
mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    /// Obsolete, and still met.
    pub const PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// Options of an interface that matter here.
mod option {
    pub const TS_RESOLUTION: u16 = 9;
    pub const TS_OFFSET: u16 = 14;
}

/// Type, length and length again.
const FRAME: u32 = 12;

/// The state of a pcapng file: its current section.
pub(super) struct Pcapng {
    order: Order,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy)]
struct Interface {
    link: LinkType,
    snaplen: u32,
    resolution: Resolution,
    /// Seconds to add to each time.
    offset: i64,
}

/// The unit of an interface's timestamps.
#[derive(Clone, Copy)]
enum Resolution {
    /// 10⁻ⁿ seconds.
    Decimal(u32),
    /// 2⁻ⁿ seconds.
    Binary(u32),
}

/// What of a packet block is known before its bytes are at hand: an interface, a time, lengths, and where the bytes are.
struct Found {
    interface: Interface,
    ticks: Option<u64>,
    captured: usize,
    orig_len: u32,
    at: usize,
}

impl Pcapng {
    /// Reads the first section header, behind its block type.
    pub(super) fn open<R: Read>(input: &mut Input<R>) -> Result<Pcapng, CaptureError> {
        let mut file = Pcapng { order: Order::Little, interfaces: Vec::new() };
        file.section(input)?;
        Ok(file)
    }

    /// The next packet, past all blocks that are none.
    pub(super) fn next<'a, R: Read>(
        &mut self,
        input: &'a mut Input<R>,
    ) -> Result<Option<Record<'a>>, CaptureError> {
        let found = loop {
            let Some(kind) = input.maybe::<4>()? else { return Ok(None) };
            let found = match self.order.u32(kind) {
                block::SECTION => {
                    self.section(input)?;
                    None
                }
                block::INTERFACE => {
                    self.body(input)?;
                    self.interface(&input.buffer)?;
                    None
                }
                block::ENHANCED_PACKET => {
                    self.body(input)?;
                    Some(self.packet(&input.buffer, false)?)
                }
                block::PACKET => {
                    self.body(input)?;
                    Some(self.packet(&input.buffer, true)?)
                }
                block::SIMPLE_PACKET => {
                    self.body(input)?;
                    Some(self.simple_packet(&input.buffer)?)
                }
                _ => {
                    let len = self.length(input)?;
                    input.skip(len - FRAME)?;
                    self.trailer(len, input)?;
                    None
                }
            };
            if let Some(found) = found {
                break found;
            }
        };
        let claimed = found.captured as u32;
        let data = input
            .buffer
            .get(found.at..)
            .and_then(|b| b.get(..found.captured))
            .ok_or(CaptureError::Length { claimed, bound: input.buffer.len() as u32 })?;
        Ok(Some(Record {
            time: found.ticks.map(|t| found.interface.nanos(t)),
            link: found.interface.link,
            orig_len: found.orig_len,
            data,
        }))
    }

    /// A section header behind its type: the byte order is the first thing in it that tells how to read its length.
    fn section<R: Read>(&mut self, input: &mut Input<R>) -> Result<(), CaptureError> {
        let len: [u8; 4] = input.exactly()?;
        let magic: [u8; 4] = input.exactly()?;
        let orders = [Order::Little, Order::Big];
        self.order = orders
            .into_iter()
            .find(|o| o.u32(magic) == BYTE_ORDER)
            .ok_or(CaptureError::SectionMagic(u32::from_be_bytes(magic)))?;
        let len = self.order.u32(len);
        // The magic, versions and the section's length; options may follow.
        const LEAST: u32 = FRAME + 16;
        if len < LEAST || !len.is_multiple_of(4) {
            return Err(CaptureError::Length { claimed: len, bound: LEAST });
        }
        let major = self.order.u16(input.exactly()?);
        if major != 1 {
            return Err(CaptureError::SectionVersion(major));
        }
        input.skip(len - FRAME - 4 - 2)?;
        self.trailer(len, input)?;
        self.interfaces.clear();
        Ok(())
    }

    /// The length field of a block.
    fn length<R: Read>(&self, input: &mut Input<R>) -> Result<u32, CaptureError> {
        let len = self.order.u32(input.exactly()?);
        // Lengths that are no multiple of four are written by some tools; what they mean is clear all the same.
        if len < FRAME { Err(CaptureError::Length { claimed: len, bound: FRAME }) } else { Ok(len) }
    }

    /// Reads the body of a block into the buffer.
    fn body<R: Read>(&self, input: &mut Input<R>) -> Result<(), CaptureError> {
        let len = self.length(input)?;
        if len > MAX_BLOCK {
            return Err(CaptureError::Length { claimed: len, bound: MAX_BLOCK });
        }
        input.fill(len - FRAME)?;
        self.trailer(len, input)
    }

    /// The length again, behind the body.
    fn trailer<R: Read>(&self, front: u32, input: &mut Input<R>) -> Result<(), CaptureError> {
        let back = self.order.u32(input.exactly()?);
        if back == front { Ok(()) } else { Err(CaptureError::Trailer { front, back }) }
    }

    /// An interface description block.
    fn interface(&mut self, body: &[u8]) -> Result<(), CaptureError> {
        let short = CaptureError::Length { claimed: body.len() as u32 + FRAME, bound: FRAME + 8 };
        let (fixed, options) = body.split_first_chunk::<8>().ok_or(short)?;
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(CaptureError::TooManyInterfaces);
        }
        let [l0, l1, _, _, s0, s1, s2, s3] = *fixed;
        let mut interface = Interface {
            link: LinkType(self.order.u16([l0, l1])),
            snaplen: self.order.u32([s0, s1, s2, s3]),
            resolution: Resolution::Decimal(6),
            offset: 0,
        };
        let mut rest = options;
        // Options that run over the end are ignored, like all that are not understood.
        while let Some((&[c0, c1, n0, n1], behind)) = rest.split_first_chunk::<4>() {
            let (code, len) = (self.order.u16([c0, c1]), usize::from(self.order.u16([n0, n1])));
            let Some(value) = behind.get(..len) else { break };
            match (code, value) {
                (0, _) => break,
                (option::TS_RESOLUTION, &[r]) => {
                    let power = u32::from(r & 0x7f);
                    interface.resolution =
                        if r & 0x80 == 0 { Resolution::Decimal(power) } else { Resolution::Binary(power) };
                }
                (option::TS_OFFSET, _) => {
                    if let Ok(bytes) = value.try_into() {
                        interface.offset = self.order.u64(bytes) as i64;
                    }
                }
                _ => {}
            }
            rest = behind.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// An enhanced packet block, or the obsolete packet block whose interface has 16 bits and a drop count beside it.
    fn packet(&self, body: &[u8], obsolete: bool) -> Result<Found, CaptureError> {
        const FIXED: usize = 20;
        let short = CaptureError::Length { claimed: body.len() as u32 + FRAME, bound: FRAME + FIXED as u32 };
        let fixed: &[u8; FIXED] = body.first_chunk().ok_or(short)?;
        let word = |at: usize| self.order.u32([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let number = if obsolete { u32::from(self.order.u16([fixed[0], fixed[1]])) } else { word(0) };
        let interface = self.interfaces.get(number as usize).ok_or(CaptureError::Interface(number))?;
        Ok(Found {
            interface: *interface,
            ticks: Some(u64::from(word(4)) << 32 | u64::from(word(8))),
            captured: bounded(word(12))?,
            orig_len: word(16),
            at: FIXED,
        })
    }

    /// A simple packet block: of the first interface, without a time; its captured length follows from the others.
    fn simple_packet(&self, body: &[u8]) -> Result<Found, CaptureError> {
        let short = CaptureError::Length { claimed: body.len() as u32 + FRAME, bound: FRAME + 4 };
        let (&len, data) = body.split_first_chunk::<4>().ok_or(short)?;
        let interface = self.interfaces.first().ok_or(CaptureError::Interface(0))?;
        let orig_len = self.order.u32(len);
        let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        // Padding behind the data is at most three bytes; what is missing beyond that was not captured.
        let captured = bounded(orig_len.min(snaplen).min(data.len() as u32))?;
        Ok(Found { interface: *interface, ticks: None, captured, orig_len, at: 4 })
    }
}

/// A captured length that is possible.
fn bounded(captured: u32) -> Result<usize, CaptureError> {
    if captured > MAX_CAPTURED {
        return Err(CaptureError::Length { claimed: captured, bound: MAX_CAPTURED });
    }
    Ok(captured as usize)
}

impl Interface {
    /// A timestamp of this interface in nanoseconds; what is out of range stops at its ends.
    fn nanos(&self, ticks: u64) -> u64 {
        const SECOND: i128 = 1_000_000_000;
        let ticks = i128::from(ticks);
        let nanos = match self.resolution {
            Resolution::Decimal(n) if n <= 9 => ticks * 10i128.pow(9 - n),
            Resolution::Decimal(n) => 10i128.checked_pow(n - 9).map_or(0, |divisor| ticks / divisor),
            // 64 bits of ticks times 30 bits of nanoseconds fit; a shift of all bits leaves nothing.
            Resolution::Binary(n) => (ticks * SECOND) >> n,
        };
        let shifted = nanos + i128::from(self.offset) * SECOND;
        u64::try_from(shifted).unwrap_or(if shifted < 0 { 0 } else { u64::MAX })
    }
}
