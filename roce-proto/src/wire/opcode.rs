//! Transport opcodes and the extension headers that each promises (IBTA volume 1, "Operation Code"; annex A17 for CNP).

use core::fmt;

/// The opcode byte of a BTH: three bits of transport service, five of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

/// The transport service that an opcode belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packets have a service code of their own.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// The two codes left to manufacturers.
    Manufacturer,
}

impl Service {
    /// Two to four letters, as the names of opcodes begin.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Rd => "RD",
            Service::Ud => "UD",
            Service::Cnp => "CNP",
            Service::Xrc => "XRC",
            Service::Manufacturer => "VENDOR",
        }
    }
}

/// An extension header, in the order in which they follow the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extension {
    /// Reliable datagram: end-to-end context.
    Rdeth,
    /// Datagram: Q_Key and source QP.
    Deth,
    /// Extended reliable connection: shared receive queue.
    Xrceth,
    /// FLUSH: placement type and selectivity.
    Feth,
    /// RDMA: address, key and length.
    Reth,
    /// Atomic operation: address, key and operands.
    AtomicEth,
    /// Acknowledgement: syndrome and message sequence number.
    Aeth,
    /// Atomic acknowledgement: the value before the operation.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// Remote key to invalidate.
    Ieth,
}

impl Extension {
    /// Length on the wire in bytes.
    pub const fn len(self) -> usize {
        match self {
            Extension::Deth | Extension::AtomicAckEth => 8,
            Extension::Reth => 16,
            Extension::AtomicEth => 28,
            _ => 4,
        }
    }

    /// Always false: every extension header has bytes.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Operations, the low five bits, of the connected services.
mod op {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACK: u8 = 0x11;
    pub const ATOMIC_ACK: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const RESYNC: u8 = 0x15;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
    pub const FLUSH: u8 = 0x1c;
    pub const ATOMIC_WRITE: u8 = 0x1d;
}

/// Names of the operations of RC; the other connected services have a part of them under the same low five bits.
const OPERATIONS: [Option<&str>; 32] = {
    let mut n = [None; 32];
    n[0x00] = Some("SEND_FIRST");
    n[0x01] = Some("SEND_MIDDLE");
    n[0x02] = Some("SEND_LAST");
    n[0x03] = Some("SEND_LAST_IMM");
    n[0x04] = Some("SEND_ONLY");
    n[0x05] = Some("SEND_ONLY_IMM");
    n[0x06] = Some("WRITE_FIRST");
    n[0x07] = Some("WRITE_MIDDLE");
    n[0x08] = Some("WRITE_LAST");
    n[0x09] = Some("WRITE_LAST_IMM");
    n[0x0a] = Some("WRITE_ONLY");
    n[0x0b] = Some("WRITE_ONLY_IMM");
    n[0x0c] = Some("READ_REQ");
    n[0x0d] = Some("READ_RESP_FIRST");
    n[0x0e] = Some("READ_RESP_MIDDLE");
    n[0x0f] = Some("READ_RESP_LAST");
    n[0x10] = Some("READ_RESP_ONLY");
    n[0x11] = Some("ACK");
    n[0x12] = Some("ATOMIC_ACK");
    n[0x13] = Some("CMP_SWAP");
    n[0x14] = Some("FETCH_ADD");
    n[0x15] = Some("RESYNC");
    n[0x16] = Some("SEND_LAST_INV");
    n[0x17] = Some("SEND_ONLY_INV");
    n[0x1c] = Some("FLUSH");
    n[0x1d] = Some("ATOMIC_WRITE");
    n
};

impl Opcode {
    /// UD SEND only.
    pub const UD_SEND_ONLY: Opcode = Opcode(0x64);
    /// UD SEND only with immediate.
    pub const UD_SEND_ONLY_IMM: Opcode = Opcode(0x65);
    /// Congestion notification packet of RoCEv2.
    pub const CNP: Opcode = Opcode(0x81);

    /// The transport service: the top three bits.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            _ => Service::Manufacturer,
        }
    }

    /// The name of the operation without that of its service; `None` for codes that the standard leaves reserved.
    pub const fn operation(self) -> Option<&'static str> {
        let low = self.0 & 0x1f;
        let defined = match self.service() {
            Service::Rc => low != op::RESYNC,
            Service::Uc => low <= op::WRITE_ONLY_IMM,
            Service::Rd => low <= op::RESYNC,
            Service::Ud => low == 0x04 || low == 0x05,
            Service::Xrc => low <= op::FETCH_ADD || matches!(low, 0x16 | 0x17 | op::FLUSH | op::ATOMIC_WRITE),
            Service::Cnp | Service::Manufacturer => false,
        };
        match (self, defined) {
            (Opcode::CNP, _) => Some("CNP"),
            (_, true) => OPERATIONS[low as usize],
            (_, false) => None,
        }
    }

    /// Whether the standard defines this opcode.
    pub const fn is_defined(self) -> bool {
        self.operation().is_some()
    }

    /// The extension headers that follow the BTH, in their order; none for an undefined opcode.
    pub const fn extensions(self) -> &'static [Extension] {
        use Extension::{AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, Xrceth};
        if !self.is_defined() {
            return &[];
        }
        let low = self.0 & 0x1f;
        match self.service() {
            Service::Ud if low == op::SEND_ONLY_IMM => &[Deth, ImmDt],
            Service::Ud => &[Deth],
            Service::Rc | Service::Uc => match low {
                op::SEND_LAST_IMM | op::SEND_ONLY_IMM | op::WRITE_LAST_IMM => &[ImmDt],
                op::WRITE_FIRST | op::WRITE_ONLY | op::READ_REQUEST | op::ATOMIC_WRITE => &[Reth],
                op::WRITE_ONLY_IMM => &[Reth, ImmDt],
                op::COMPARE_SWAP | op::FETCH_ADD => &[AtomicEth],
                op::SEND_LAST_INVALIDATE | op::SEND_ONLY_INVALIDATE => &[Ieth],
                op::FLUSH => &[Feth, Reth],
                _ => response(low),
            },
            Service::Xrc => match low {
                op::SEND_LAST_IMM | op::SEND_ONLY_IMM | op::WRITE_LAST_IMM => &[Xrceth, ImmDt],
                op::WRITE_FIRST | op::WRITE_ONLY | op::READ_REQUEST | op::ATOMIC_WRITE => &[Xrceth, Reth],
                op::WRITE_ONLY_IMM => &[Xrceth, Reth, ImmDt],
                op::COMPARE_SWAP | op::FETCH_ADD => &[Xrceth, AtomicEth],
                op::SEND_LAST_INVALIDATE | op::SEND_ONLY_INVALIDATE => &[Xrceth, Ieth],
                op::FLUSH => &[Xrceth, Feth, Reth],
                op::READ_RESPONSE_FIRST..=op::ATOMIC_ACK => response(low),
                _ => &[Xrceth],
            },
            Service::Rd => reliable_datagram(low),
            Service::Cnp | Service::Manufacturer => &[],
        }
    }
}

/// Extension headers of the responses of RC and XRC; none for the operations that have none.
const fn response(low: u8) -> &'static [Extension] {
    match low {
        op::READ_RESPONSE_FIRST | op::READ_RESPONSE_LAST | op::READ_RESPONSE_ONLY | op::ACK => {
            &[Extension::Aeth]
        }
        op::ATOMIC_ACK => &[Extension::Aeth, Extension::AtomicAckEth],
        _ => &[],
    }
}

/// Extension headers of RD: an RDETH in every packet, a DETH in every request.
const fn reliable_datagram(low: u8) -> &'static [Extension] {
    use Extension::{Aeth, AtomicAckEth, AtomicEth, Deth, ImmDt, Rdeth, Reth};
    match low {
        op::SEND_LAST_IMM | op::SEND_ONLY_IMM | op::WRITE_LAST_IMM => &[Rdeth, Deth, ImmDt],
        op::WRITE_FIRST | op::WRITE_ONLY | op::READ_REQUEST => &[Rdeth, Deth, Reth],
        op::WRITE_ONLY_IMM => &[Rdeth, Deth, Reth, ImmDt],
        op::COMPARE_SWAP | op::FETCH_ADD => &[Rdeth, Deth, AtomicEth],
        op::READ_RESPONSE_FIRST | op::READ_RESPONSE_LAST | op::READ_RESPONSE_ONLY | op::ACK => &[Rdeth, Aeth],
        op::READ_RESPONSE_MIDDLE => &[Rdeth],
        op::ATOMIC_ACK => &[Rdeth, Aeth, AtomicAckEth],
        op::SEND_FIRST..=op::RESYNC => &[Rdeth, Deth],
        _ => &[],
    }
}

/// `UD SEND_ONLY_IMM`, `CNP`; an undefined code as `RC 0x1f`.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(name) if *self == Opcode::CNP => f.write_str(name),
            Some(name) => write!(f, "{} {name}", self.service().name()),
            None => write!(f, "{} {:#04x}", self.service().name(), self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Extension::*;

    #[test]
    fn names_by_service() {
        let names = [
            (0x00, "RC SEND_FIRST"),
            (0x0b, "RC WRITE_ONLY_IMM"),
            (0x11, "RC ACK"),
            (0x15, "RC 0x15"),
            (0x17, "RC SEND_ONLY_INV"),
            (0x1c, "RC FLUSH"),
            (0x1d, "RC ATOMIC_WRITE"),
            (0x1f, "RC 0x1f"),
            (0x24, "UC SEND_ONLY"),
            (0x2c, "UC 0x2c"),
            (0x55, "RD RESYNC"),
            (0x56, "RD 0x56"),
            (0x60, "UD 0x60"),
            (0x64, "UD SEND_ONLY"),
            (0x65, "UD SEND_ONLY_IMM"),
            (0x80, "CNP 0x80"),
            (0x81, "CNP"),
            (0xa4, "XRC SEND_ONLY"),
            (0xb5, "XRC 0xb5"),
            (0xc0, "VENDOR 0xc0"),
        ];
        for (code, name) in names {
            assert_eq!(Opcode(code).to_string(), name);
        }
        let defined =
            |service| (0..=255).filter(|&c| Opcode(c).is_defined() && Opcode(c).service() == service).count();
        assert_eq!(defined(Service::Rc), 25);
        assert_eq!(defined(Service::Uc), 12);
        assert_eq!(defined(Service::Rd), 22);
        assert_eq!(defined(Service::Ud), 2);
        assert_eq!(defined(Service::Cnp), 1);
        assert_eq!(defined(Service::Xrc), 25);
        assert_eq!(defined(Service::Manufacturer), 0);
    }

    #[test]
    fn extension_headers_by_opcode() {
        let table: [(u8, &[Extension]); 26] = [
            (0x00, &[]),
            (0x03, &[ImmDt]),
            (0x06, &[Reth]),
            (0x0a, &[Reth]),
            (0x0b, &[Reth, ImmDt]),
            (0x0c, &[Reth]),
            (0x0d, &[Aeth]),
            (0x0e, &[]),
            (0x0f, &[Aeth]),
            (0x11, &[Aeth]),
            (0x12, &[Aeth, AtomicAckEth]),
            (0x13, &[AtomicEth]),
            (0x16, &[Ieth]),
            (0x1c, &[Feth, Reth]),
            (0x1f, &[]),
            (0x25, &[ImmDt]),
            (0x2b, &[Reth, ImmDt]),
            (0x44, &[Rdeth, Deth]),
            (0x4e, &[Rdeth]),
            (0x51, &[Rdeth, Aeth]),
            (0x64, &[Deth]),
            (0x65, &[Deth, ImmDt]),
            (0x81, &[]),
            (0xa4, &[Xrceth]),
            (0xab, &[Xrceth, Reth, ImmDt]),
            (0xb1, &[Aeth]),
        ];
        for (code, extensions) in table {
            assert_eq!(Opcode(code).extensions(), extensions, "{}", Opcode(code));
        }
        // Each list is in the order in which the headers follow each other.
        for code in 0..=255 {
            assert!(Opcode(code).extensions().is_sorted());
        }
    }
}
