//! The frame of the bare loops: headers that never change, a payload, a CRC.
//!
//! It has the sizes of a raw UD packet over IPv4, so that the same bytes are copied and the same bytes are covered by the
//! CRC, and nothing else of the protocol: no sequence number, no queue pair, no masking of fields that routers change.

use crc32fast::Hasher;

/// Bytes of Ethernet, IPv4, UDP, BTH and DETH headers.
pub const HEADER: usize = 14 + COVERED_HEADER;
/// Bytes of headers that the CRC covers: all but Ethernet's.
pub const COVERED_HEADER: usize = 20 + 8 + 12 + 8;
/// Bytes of the CRC.
pub const CRC: usize = 4;
/// Bytes before the payload in a receiver's buffer: the place of the GRH.
pub const GRH: usize = 40;
/// Bytes around a payload.
pub const OVERHEAD: usize = HEADER + CRC;

/// The station that frames are for unless another is named.
pub const PEER: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// What every frame of a run has in common.
#[derive(Clone)]
pub struct Template {
    header: [u8; HEADER],
    /// The CRC over eight bytes of ones and the covered headers: where the payload's begins.
    prefix: Hasher,
    payload: usize,
}

impl Template {
    /// The frames of payloads of that many bytes, to be copied and covered, to the station with that address.
    pub fn new(payload: usize, peer: [u8; 6]) -> Template {
        let mut header = [0; HEADER];
        header[..6].copy_from_slice(&peer);
        header[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 2]);
        header[12..14].copy_from_slice(&[0x08, 0x00]);
        // A plausible packet, so that nothing along the way takes it for broken.
        let ip_len = (COVERED_HEADER + payload + CRC) as u16;
        header[14] = 0x45;
        header[16..18].copy_from_slice(&ip_len.to_be_bytes());
        header[22] = 64;
        header[23] = 17;
        header[26..30].copy_from_slice(&[192, 0, 2, 2]);
        header[30..34].copy_from_slice(&[192, 0, 2, 1]);
        header[34..38].copy_from_slice(&[0xc0, 0, 0x12, 0xb7]);
        header[38..40].copy_from_slice(&(ip_len - 20).to_be_bytes());
        header[42] = 0x64;
        let sum = ip_checksum(&header[14..34]);
        header[24..26].copy_from_slice(&sum.to_be_bytes());
        let mut prefix = start();
        prefix.update(&header[HEADER - COVERED_HEADER..]);
        Template { header, prefix, payload }
    }

    /// Bytes of a frame.
    pub fn frame_len(&self) -> usize {
        self.payload + OVERHEAD
    }

    /// Writes the frame of `payload` into `frame`; false if the lengths do not fit each other.
    ///
    /// The headers are constant, so their share of the CRC is a number known beforehand, and the payload's is taken from
    /// the application's memory: reading back what was stored a moment ago would wait for the store buffer.
    #[inline]
    pub fn write(&self, payload: &[u8], frame: &mut [u8]) -> bool {
        let Some((head, rest)) = frame.split_first_chunk_mut::<HEADER>() else { return false };
        let Some((body, tail)) = rest.split_last_chunk_mut::<CRC>() else { return false };
        if body.len() != payload.len() {
            return false;
        }
        *head = self.header;
        body.copy_from_slice(payload);
        let mut crc = self.prefix.clone();
        crc.update(payload);
        *tail = crc.finalize().to_le_bytes();
        true
    }
}

/// The checksum of an IPv4 header whose checksum field is zero (RFC 1071): a kernel that has the other end looks at it.
fn ip_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The CRC over the eight bytes of ones that the ICRC begins with.
pub fn start() -> Hasher {
    let mut crc = Hasher::new();
    crc.update(&[0xff; 8]);
    crc
}

/// Whether a received frame's CRC is right. `start` is [`start`]'s, made once.
#[inline]
pub fn intact(start: &Hasher, frame: &[u8]) -> bool {
    let Some((covered, crc)) = frame.split_last_chunk::<CRC>() else { return false };
    let Some(covered) = covered.get(HEADER - COVERED_HEADER..) else { return false };
    let mut hasher = start.clone();
    hasher.update(covered);
    hasher.finalize().to_le_bytes() == *crc
}

/// Copies payload and the 40 bytes before it into the application's buffer; false if they do not fit it.
#[inline]
pub fn deliver(frame: &[u8], buffer: &mut [u8]) -> bool {
    let Some(bytes) = frame.get(HEADER - GRH..frame.len().wrapping_sub(CRC)) else { return false };
    let Some(out) = buffer.get_mut(..bytes.len()) else { return false };
    out.copy_from_slice(bytes);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_whole_and_its_crc_is_the_icrcs_kind() {
        let payload: Vec<u8> = (0..64).collect();
        let template = Template::new(64, PEER);
        let mut frame = vec![0; template.frame_len()];
        assert_eq!(frame.len(), 130);
        assert!(template.write(&payload, &mut frame));
        assert_eq!(frame[HEADER..HEADER + 64], payload);
        // The same value bit by bit: polynomial of IEEE 802.3 reflected, over ones and everything behind Ethernet.
        let mut crc = u32::MAX;
        for byte in [0xff; 8].iter().chain(&frame[14..126]) {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        assert_eq!(frame[126..], (!crc).to_le_bytes());
        assert!(intact(&start(), &frame));
        for at in [14, 61, 62, 125, 126, 129] {
            frame[at] ^= 0x10;
            assert!(!intact(&start(), &frame), "byte {at}");
            frame[at] ^= 0x10;
        }
        assert!(!intact(&start(), &frame[..17]));
    }

    #[test]
    fn delivery_leaves_room_for_the_grh() {
        let template = Template::new(4, PEER);
        let mut frame = vec![0; template.frame_len()];
        assert!(template.write(&[1, 2, 3, 4], &mut frame));
        let mut buffer = [0; GRH + 4];
        assert!(deliver(&frame, &mut buffer));
        assert_eq!(buffer[GRH..], [1, 2, 3, 4]);
        assert_eq!(buffer[GRH - 12], 0, "before it stand the transport headers");
        assert!(!deliver(&frame, &mut buffer[..43]));
        assert!(!deliver(&frame[..20], &mut buffer));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let template = Template::new(8, PEER);
        assert!(!template.write(&[0; 8], &mut [0; 73]));
        assert!(!template.write(&[0; 8], &mut [0; 75]));
        assert!(!template.write(&[0; 8], &mut [0; 3]));
        assert!(template.write(&[0; 8], &mut [0; 74]));
    }
}
