//! Why a frame was refused, with its numbers; and the same reasons without numbers, to count by.

use thiserror::Error;

/// A buffer that cannot take what should be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmitError {
    /// The buffer has another length than the header or frame needs.
    #[error("buffer of {have} bytes, {need} needed")]
    BufferLength {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The packet would not fit the 16-bit length field of its IP header.
    #[error("payload of {len} bytes, at most {max} fit an IP packet")]
    PayloadTooLong {
        /// Payload bytes given.
        len: usize,
        /// The most that fits.
        max: usize,
    },
}

/// Declares the refusals once: the variants with their numbers, and their fieldless mirror with its names.
macro_rules! rejects {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $snake:literal, $text:literal $({ $( $(#[doc = $fdoc:literal])+ $field:ident : $fty:ty ),+ })?;
    )+) => {
        /// Why a received frame was refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
        pub enum Reject {
            $(
                $(#[doc = $doc])+
                #[error($text)]
                $name $({ $( $(#[doc = $fdoc])+ $field: $fty ),+ })?,
            )+
        }

        /// The kind of a [`Reject`], for counters: `reason as usize` indexes an array of [`RejectReason::COUNT`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum RejectReason {
            $( $(#[doc = $doc])+ $name, )+
        }

        impl RejectReason {
            /// Every reason, in the order of its discriminants.
            pub const ALL: &'static [RejectReason] = &[$(RejectReason::$name),+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name that counters and reports carry, in snake case.
            pub const fn name(self) -> &'static str {
                match self { $(RejectReason::$name => $snake),+ }
            }
        }

        impl Reject {
            /// The reason without its numbers.
            #[inline]
            pub const fn reason(&self) -> RejectReason {
                match self { $(Reject::$name $({ $($field: _),+ })? => RejectReason::$name),+ }
            }
        }
    };
}

rejects! {
    /// The frame ends inside a header.
    TooShort = "too_short", "{have} bytes, the header needs {need}" {
        /// Bytes there are.
        have: usize,
        /// Bytes the header takes.
        need: usize
    };
    /// More VLAN tags than two.
    VlanDepth = "vlan_depth", "more than two VLAN tags";
    /// The version nibble of the IP header contradicts the EtherType.
    IpVersion = "ip_version", "IP version {version} behind the EtherType of another" {
        /// The nibble found.
        version: u8
    };
    /// An IPv4 header length below the 20 bytes every header has.
    Ipv4HeaderLength = "ipv4_header_length", "IPv4 header length of {words} words" {
        /// The IHL field, in 4-byte words.
        words: u8
    };
    /// IPv4 options: RoCEv2 packets carry none, and the ICRC is not defined over them.
    Ipv4Options = "ipv4_options", "IPv4 header of {words} words: options are not taken" {
        /// The IHL field, in 4-byte words.
        words: u8
    };
    /// A fragment: RoCEv2 packets are never fragmented.
    Ipv4Fragment = "ipv4_fragment", "IPv4 fragment (offset {offset} bytes, more fragments: {more})" {
        /// Offset in bytes.
        offset: u16,
        /// The "more fragments" flag.
        more: bool
    };
    /// The IPv4 header checksum is wrong.
    Ipv4Checksum = "ipv4_checksum", "IPv4 header checksum {found:#06x} is wrong" {
        /// The checksum field.
        found: u16
    };
    /// The IPv4 total length is beyond the frame, or too small for the header.
    Ipv4TotalLength = "ipv4_total_length", "IPv4 total length {total} with {have} bytes there" {
        /// The total length field.
        total: u16,
        /// Bytes from the IP header to the end of the frame.
        have: usize
    };
    /// The IPv6 payload length is beyond the frame.
    Ipv6PayloadLength = "ipv6_payload_length", "IPv6 payload length {len} with {have} bytes there" {
        /// The payload length field.
        len: u16,
        /// Bytes from the end of the IP header to the end of the frame.
        have: usize
    };
    /// An IPv6 extension header: RoCEv2 packets carry none.
    Ipv6Extension = "ipv6_extension", "IPv6 extension header {next_header}" {
        /// The next header value that names the extension.
        next_header: u8
    };
    /// The UDP length differs from what the IP header leaves.
    UdpLength = "udp_length", "UDP length {len} in an IP payload of {have} bytes" {
        /// The UDP length field.
        len: u16,
        /// The IP payload's length.
        have: usize
    };
    /// The UDP checksum is present and wrong.
    UdpChecksum = "udp_checksum", "UDP checksum {found:#06x} is wrong" {
        /// The checksum field.
        found: u16
    };
    /// The UDP payload cannot hold a base transport header and an ICRC.
    RoceLength = "roce_length", "UDP payload of {have} bytes, RoCEv2 needs {need}" {
        /// UDP payload bytes.
        have: usize,
        /// The least that is needed.
        need: usize
    };
    /// The UDP payload is no multiple of four bytes: the pad count exists to make it one.
    RoceAlignment = "roce_alignment", "UDP payload of {have} bytes, no multiple of 4" {
        /// UDP payload bytes.
        have: usize
    };
    /// A transport header version other than 0.
    BthVersion = "bth_version", "transport header version {version}" {
        /// The TVer field.
        version: u8
    };
    /// The pad count is larger than what follows the base transport header.
    PadCount = "pad_count", "pad count {pad} with {have} bytes between BTH and ICRC" {
        /// The pad count field.
        pad: u8,
        /// Bytes between the base transport header and the ICRC.
        have: usize
    };
    /// An opcode that the reader does not take.
    Opcode = "opcode", "opcode {opcode:#04x} is not taken here" {
        /// The opcode byte.
        opcode: u8
    };
    /// The packet is too short for the extension headers that its opcode promises.
    ExtensionLength = "extension_length", "{have} bytes after the BTH, the opcode's headers need {need}" {
        /// Bytes between the base transport header and the pad.
        have: usize,
        /// Bytes of extension headers.
        need: usize
    };
    /// An ARP packet of other hardware or protocol addresses than Ethernet and IPv4.
    ArpFormat = "arp_format", "ARP for hardware type {hardware}, protocol {protocol:#06x}" {
        /// The hardware type field.
        hardware: u16,
        /// The protocol type field.
        protocol: u16
    };
    /// An ARP operation other than request and reply.
    ArpOperation = "arp_operation", "ARP operation {operation}" {
        /// The operation field.
        operation: u16
    };
    /// The ICMP checksum is wrong.
    IcmpChecksum = "icmp_checksum", "ICMP checksum {found:#06x} is wrong" {
        /// The checksum field.
        found: u16
    };
    /// The ICMPv6 checksum is wrong.
    Icmpv6Checksum = "icmpv6_checksum", "ICMPv6 checksum {found:#06x} is wrong" {
        /// The checksum field.
        found: u16
    };
    /// Neighbour discovery with another hop limit than 255 has crossed a router: forged (RFC 4861 §7.1).
    NdHopLimit = "nd_hop_limit", "neighbour discovery with hop limit {hop_limit}" {
        /// The hop limit found.
        hop_limit: u8
    };
    /// A neighbour discovery message that RFC 4861 §7.1 tells a receiver to discard: code, target or addresses.
    NdInvalid = "nd_invalid", "neighbour discovery message breaks RFC 4861 section 7.1";
    /// A neighbour discovery option of length zero, beyond the message, or of a wrong length for its type.
    NdOption = "nd_option", "neighbour discovery option {kind} of {len} bytes with {have} left" {
        /// The option's type.
        kind: u8,
        /// Its length in bytes.
        len: usize,
        /// Bytes left in the message.
        have: usize
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_mirror_rejects_and_have_distinct_snake_case_names() {
        assert_eq!(RejectReason::COUNT, RejectReason::ALL.len());
        for (i, reason) in RejectReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            assert!(RejectReason::ALL[..i].iter().all(|r| r.name() != reason.name()));
        }
        assert_eq!(Reject::BthVersion { version: 3 }.reason(), RejectReason::BthVersion);
        assert_eq!(Reject::VlanDepth.reason().name(), "vlan_depth");
        assert_eq!(Reject::TooShort { have: 3, need: 14 }.to_string(), "3 bytes, the header needs 14");
    }
}
