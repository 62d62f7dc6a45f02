//! The base transport header (IBTA volume 1): twelve bytes in every packet.

use super::opcode::Opcode;
use super::{be16, fixed_header};
use crate::types::{PKey, Psn, Qpn};

/// The base transport header.
///
/// Reserved bits are read as zero except those beside FECN and BECN, which the ICRC does not cover; they are dropped too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the packet is.
    pub opcode: Opcode,
    /// The responder should raise a completion event.
    pub solicited: bool,
    /// Migration state.
    pub migrated: bool,
    /// Zero bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits; only 0 exists.
    pub version: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dst_qpn: Qpn,
    /// An acknowledgement is asked for.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

fixed_header!(Header, 12);

impl Header {
    /// From its bytes. Whether the version is known, and the pad possible, is for the caller to check.
    #[inline]
    pub const fn from_bytes(b: &[u8; 12]) -> Header {
        Header {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0x0f,
            pkey: PKey(be16(b[2], b[3])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dst_qpn: Qpn::from_word(u32::from_be_bytes([b[4], b[5], b[6], b[7]])),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::from_low_bits(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
        }
    }

    /// Its bytes, reserved bits zero. Pad and version are cut to their widths.
    #[inline]
    pub const fn to_bytes(&self) -> [u8; 12] {
        let flags = (self.solicited as u8) << 7
            | (self.migrated as u8) << 6
            | (self.pad & 3) << 4
            | self.version & 0x0f;
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let congestion = (self.fecn as u32) << 31 | (self.becn as u32) << 30;
        let [q0, q1, q2, q3] = (congestion | self.dst_qpn.get()).to_be_bytes();
        let [s0, s1, s2, s3] = ((self.ack_request as u32) << 31 | self.psn.get()).to_be_bytes();
        [self.opcode.0, flags, p0, p1, q0, q1, q2, q3, s0, s1, s2, s3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reject;

    /// The first packet of `ud-v4-solicited-tos.pcap`.
    const UD: [u8; 12] = [0x64, 0x80, 0xff, 0xff, 0x00, 0x00, 0x00, 0x15, 0x00, 0xff, 0xff, 0xfe];

    fn ud() -> Header {
        Header {
            opcode: Opcode::UD_SEND_ONLY,
            solicited: true,
            migrated: false,
            pad: 0,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dst_qpn: Qpn::new(0x15).expect("24 bits"),
            ack_request: false,
            psn: Psn::new(0xff_fffe).expect("24 bits"),
        }
    }

    #[test]
    fn known_bytes_of_a_capture() {
        assert_eq!(Header::parse(&UD), Ok(ud()));
        assert_eq!(ud().to_bytes(), UD);
        // The first packet of `ib-write-lat-rc-v6.pcap` asks for an acknowledgement.
        let rc = [0x0a, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x47, 0x80, 0xa5, 0x04, 0x10];
        let h = Header::from_bytes(&rc);
        assert_eq!((h.opcode, h.ack_request, h.psn.get()), (Opcode(0x0a), true, 10_814_480));
        assert_eq!(h.to_bytes(), rc);
        assert_eq!(Header::parse(&UD[..11]), Err(Reject::TooShort { have: 11, need: 12 }));
    }

    #[test]
    fn each_flag_has_its_bit() {
        let base = ud().to_bytes();
        let differs = |h: Header| {
            let b = h.to_bytes();
            let at: Vec<_> = (0..12).filter(|&i| b[i] != base[i]).map(|i| (i, b[i] ^ base[i])).collect();
            at
        };
        assert_eq!(differs(Header { solicited: false, ..ud() }), [(1, 0x80)]);
        assert_eq!(differs(Header { migrated: true, ..ud() }), [(1, 0x40)]);
        assert_eq!(differs(Header { pad: 3, ..ud() }), [(1, 0x30)]);
        assert_eq!(differs(Header { version: 15, ..ud() }), [(1, 0x0f)]);
        assert_eq!(differs(Header { fecn: true, ..ud() }), [(4, 0x80)]);
        assert_eq!(differs(Header { becn: true, ..ud() }), [(4, 0x40)]);
        assert_eq!(differs(Header { ack_request: true, ..ud() }), [(8, 0x80)]);
    }
}
