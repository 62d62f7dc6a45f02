//! The older format: a file header, then records.

use super::{CaptureError, Input, LinkType, MAX_CAPTURED, Order, Record};
use std::io::Read;

/// The magic number of files with microseconds.
const MICROS: u32 = 0xa1b2_c3d4;
/// The magic number of files with nanoseconds.
const NANOS: u32 = 0xa1b2_3c4d;

/// The state of a pcap file: what its header said.
pub(super) struct Pcap {
    order: Order,
    link: LinkType,
    nanos: bool,
}

impl Pcap {
    /// Reads the header behind its magic number.
    pub(super) fn open<R: Read>(magic: [u8; 4], input: &mut Input<R>) -> Result<Pcap, CaptureError> {
        let orders = [Order::Little, Order::Big];
        let order = orders.into_iter().find(|o| matches!(o.u32(magic), MICROS | NANOS));
        let order = order.ok_or(CaptureError::Magic(magic))?;
        // Version, two fields that are always zero, snap length, link type. The snap length is not believed: records
        // above it are met in practice.
        let [a, b, _, _, _, _, _, _, _, _, _, _, _, _, _, _, l0, l1, l2, l3] = input.exactly::<20>()?;
        let major = order.u16([a, b]);
        if major != 2 {
            return Err(CaptureError::Version(major));
        }
        // Above the link type stand bits about the frame check sequence.
        let link = LinkType((order.u32([l0, l1, l2, l3]) & 0xffff) as u16);
        Ok(Pcap { order, link, nanos: order.u32(magic) == NANOS })
    }

    /// The next record.
    pub(super) fn next<'a, R: Read>(
        &self,
        input: &'a mut Input<R>,
    ) -> Result<Option<Record<'a>>, CaptureError> {
        let Some(header) = input.maybe::<16>()? else { return Ok(None) };
        let word = |at: usize| self.order.u32([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (seconds, fraction, captured, orig_len) = (word(0), word(4), word(8), word(12));
        if captured > MAX_CAPTURED {
            return Err(CaptureError::Length { claimed: captured, bound: MAX_CAPTURED });
        }
        input.fill(captured)?;
        let nanos = u64::from(fraction) * if self.nanos { 1 } else { 1000 };
        Ok(Some(Record {
            time: Some(u64::from(seconds) * 1_000_000_000 + nanos),
            link: self.link,
            orig_len,
            data: &input.buffer,
        }))
    }
}
