//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::ethernet::MacAddr;
use super::{EmitError, Reject, be16, head, head_mut};

/// What an ARP packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Asks who has the target address.
    Request,
    /// Answers that the sender has it.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// The sender's IPv4 address; 0.0.0.0 in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// The target's Ethernet address: zero in a request.
    pub target_mac: MacAddr,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Length on the wire in bytes.
    pub const LEN: usize = 28;

    /// Reads a packet.
    ///
    /// # Errors
    /// [`TooShort`](Reject::TooShort), [`ArpFormat`](Reject::ArpFormat), [`ArpOperation`](Reject::ArpOperation).
    pub fn parse(bytes: &[u8]) -> Result<Packet, Reject> {
        let b: &[u8; Packet::LEN] = head(bytes)?;
        let (hardware, protocol) = (be16(b[0], b[1]), be16(b[2], b[3]));
        if hardware != 1 || protocol != 0x0800 || b[4] != 6 || b[5] != 4 {
            return Err(Reject::ArpFormat { hardware, protocol });
        }
        let operation = match be16(b[6], b[7]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            operation => return Err(Reject::ArpOperation { operation }),
        };
        Ok(Packet {
            operation,
            sender_mac: MacAddr([b[8], b[9], b[10], b[11], b[12], b[13]]),
            sender_ip: Ipv4Addr::new(b[14], b[15], b[16], b[17]),
            target_mac: MacAddr([b[18], b[19], b[20], b[21], b[22], b[23]]),
            target_ip: Ipv4Addr::new(b[24], b[25], b[26], b[27]),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Packet::LEN] {
        let mut b = [0; Packet::LEN];
        b[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        b[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        b[8..14].copy_from_slice(&self.sender_mac.0);
        b[14..18].copy_from_slice(&self.sender_ip.octets());
        b[18..24].copy_from_slice(&self.target_mac.0);
        b[24..28].copy_from_slice(&self.target_ip.octets());
        b
    }

    /// Writes the packet into the first 28 bytes.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) with fewer bytes.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<(), EmitError> {
        *head_mut(bytes)? = self.to_bytes();
        Ok(())
    }

    /// The question who has `target_ip`.
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Packet {
        Packet { operation: Operation::Request, sender_mac, sender_ip, target_mac: MacAddr::ZERO, target_ip }
    }

    /// The answer to this request by the station `mac` that has the target address.
    #[must_use]
    pub const fn reply(&self, mac: MacAddr) -> Packet {
        Packet {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two ARP packets of `ud-v4-arp.pcap`.
    const REQUEST: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0, 0, 1, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 10, 77, 0, 2];
    const REPLY: [u8; 28] =
        [0, 1, 8, 0, 6, 4, 0, 2, 0x52, 0x54, 0, 0, 0, 2, 10, 77, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 10, 77, 0, 1];
    const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);

    #[test]
    fn known_bytes_of_a_capture() {
        let request = Packet::request(A, Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(Packet::parse(&REQUEST), Ok(request));
        assert_eq!(request.to_bytes(), REQUEST);
        assert_eq!(request.reply(B).to_bytes(), REPLY);
        assert_eq!(Packet::parse(&REPLY), Ok(request.reply(B)));
    }

    #[test]
    fn refusals() {
        assert_eq!(Packet::parse(&REQUEST[..27]), Err(Reject::TooShort { have: 27, need: 28 }));
        for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16)] {
            let mut b = REQUEST;
            b[at] = value;
            assert!(matches!(Packet::parse(&b), Err(Reject::ArpFormat { .. })), "byte {at}");
        }
        let mut b = REQUEST;
        b[7] = 3;
        assert_eq!(Packet::parse(&b), Err(Reject::ArpOperation { operation: 3 }));
    }
}
