//! All extension headers of a packet at once, for tools that show every opcode.

use super::aeth::Aeth;
use super::atomiceth::{AtomicAckEth, AtomicEth};
use super::deth::Deth;
use super::ieth::Ieth;
use super::immdt::ImmDt;
use super::opcode::{Extension, Opcode};
use super::reth::Reth;
use super::{Reject, fixed_header};
use crate::types::Qpn;

/// The end-to-end context of a reliable datagram (IBTA volume 1, RDETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rdeth {
    /// End-to-end context, 24 bits.
    pub context: u32,
}

fixed_header!(Rdeth, 4);

impl Rdeth {
    /// From its bytes; the reserved byte is ignored.
    pub const fn from_bytes(b: &[u8; 4]) -> Rdeth {
        Rdeth { context: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Its bytes; the context is cut to 24 bits.
    pub const fn to_bytes(&self) -> [u8; 4] {
        (self.context & 0xff_ffff).to_be_bytes()
    }
}

/// The shared receive queue that an XRC request goes to (IBTA annex A14, XRCETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Xrceth {
    /// Shared receive queue, 24 bits like a queue pair.
    pub srq: Qpn,
}

fixed_header!(Xrceth, 4);

impl Xrceth {
    /// From its bytes; the reserved byte is ignored.
    pub const fn from_bytes(b: &[u8; 4]) -> Xrceth {
        Xrceth { srq: Qpn::from_word(u32::from_be_bytes(*b)) }
    }

    /// Its bytes.
    pub const fn to_bytes(&self) -> [u8; 4] {
        self.srq.get().to_be_bytes()
    }
}

/// What a FLUSH asks for (IBTA annex A19, FETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feth {
    /// Placement type, 4 bits: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 a range, 1 a whole memory region.
    pub selectivity: u8,
}

fixed_header!(Feth, 4);

impl Feth {
    /// From its bytes; reserved bits are ignored.
    pub const fn from_bytes(b: &[u8; 4]) -> Feth {
        Feth { placement: b[3] & 0x0f, selectivity: b[3] >> 4 & 3 }
    }

    /// Its bytes; both fields are cut to their widths.
    pub const fn to_bytes(&self) -> [u8; 4] {
        [0, 0, 0, (self.selectivity & 3) << 4 | self.placement & 0x0f]
    }
}

/// The extension headers of one packet; those that its opcode does not have are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extensions {
    /// Reliable datagram context.
    pub rdeth: Option<Rdeth>,
    /// Datagram.
    pub deth: Option<Deth>,
    /// Extended reliable connection.
    pub xrceth: Option<Xrceth>,
    /// Flush.
    pub feth: Option<Feth>,
    /// RDMA.
    pub reth: Option<Reth>,
    /// Atomic request.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// Atomic acknowledgement.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub immdt: Option<ImmDt>,
    /// Invalidation.
    pub ieth: Option<Ieth>,
}

impl Extensions {
    /// Reads the headers that `opcode` promises from `body`, and returns them with the payload behind them.
    ///
    /// An undefined opcode has no extension headers: all of the body is its payload.
    ///
    /// # Errors
    /// [`ExtensionLength`](Reject::ExtensionLength) if the body is shorter than they are.
    pub fn parse(opcode: Opcode, body: &[u8]) -> Result<(Extensions, &[u8]), Reject> {
        let list = opcode.extensions();
        let need = list.iter().map(|e| e.len()).sum();
        if body.len() < need {
            return Err(Reject::ExtensionLength { have: body.len(), need });
        }
        let mut found = Extensions::default();
        let mut rest = body;
        for extension in list {
            match extension {
                Extension::Rdeth => found.rdeth = Some(Rdeth::parse(rest)?),
                Extension::Deth => found.deth = Some(Deth::parse(rest)?),
                Extension::Xrceth => found.xrceth = Some(Xrceth::parse(rest)?),
                Extension::Feth => found.feth = Some(Feth::parse(rest)?),
                Extension::Reth => found.reth = Some(Reth::parse(rest)?),
                Extension::AtomicEth => found.atomic = Some(AtomicEth::parse(rest)?),
                Extension::Aeth => found.aeth = Some(Aeth::parse(rest)?),
                Extension::AtomicAckEth => found.atomic_ack = Some(AtomicAckEth::parse(rest)?),
                Extension::ImmDt => found.immdt = Some(ImmDt::parse(rest)?),
                Extension::Ieth => found.ieth = Some(Ieth::parse(rest)?),
            }
            rest = &rest[extension.len()..];
        }
        Ok((found, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defined_opcode_takes_exactly_its_headers() {
        let body: Vec<u8> = (0..64).collect();
        for opcode in (0..=255).map(Opcode) {
            let need: usize = opcode.extensions().iter().map(|e| e.len()).sum();
            let (_, payload) = Extensions::parse(opcode, &body).expect("long enough");
            assert_eq!(payload, &body[need..], "{opcode}");
            if need > 0 {
                let short = Extensions::parse(opcode, &body[..need - 1]);
                assert_eq!(short, Err(Reject::ExtensionLength { have: need - 1, need }), "{opcode}");
            }
        }
    }

    #[test]
    fn headers_come_in_their_order() {
        let body: Vec<u8> = (0..24).collect();
        let (e, payload) = Extensions::parse(Opcode(0xab), &body).expect("XRC WRITE_ONLY_IMM");
        assert_eq!(e.xrceth, Some(Xrceth { srq: Qpn::new(0x01_0203).expect("24 bits") }));
        assert_eq!(e.reth.map(|r| (r.rkey, r.len)), Some((0x0c0d_0e0f, 0x1011_1213)));
        assert_eq!(e.immdt, Some(ImmDt(0x1415_1617)));
        assert_eq!((e.deth, e.aeth, payload.len()), (None, None, 0));
    }

    #[test]
    fn small_headers_keep_to_their_bits() {
        assert_eq!(Rdeth::from_bytes(&[9, 1, 2, 3]).to_bytes(), [0, 1, 2, 3]);
        assert_eq!(Xrceth::from_bytes(&[9, 1, 2, 3]).to_bytes(), [0, 1, 2, 3]);
        let feth = Feth::from_bytes(&[9, 9, 9, 0xd2]);
        assert_eq!(feth, Feth { placement: 2, selectivity: 1 });
        assert_eq!(feth.to_bytes(), [0, 0, 0, 0x12]);
    }
}
