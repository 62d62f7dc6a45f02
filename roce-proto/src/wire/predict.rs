//! Header prediction: the next packet of a flow has the headers of the last one, but for its PSN.
//!
//! Van Jacobson's idea for TCP, which fits UD better still: of two packets of equal length between the same queue pairs,
//! the 62 bytes (IPv4) or 82 bytes (IPv6) before the payload differ in three, the PSN. So the receiver compares instead of
//! parsing, the sender copies instead of building, and the ICRC of all of them begins with what the first one's came to
//! before its PSN. A packet that is not recognised, for whatever reason, takes the whole way; one
//! that is, is equal in every byte to a packet that the whole way has accepted.
//!
//! Flows with a VLAN tag, an immediate or a UDP checksum (which covers the payload and would have to be verified), and those
//! whose sender counts the IPv4 identification up, are not predicted.

use super::deth::Deth;
use super::frame::{Ip, Packet};
use super::icrc;
use super::opcode::Opcode;
use super::{EmitError, bth, ethernet, ipv4, ipv6, ud, udp};
use crate::types::Psn;
use crc32fast::Hasher;

/// Bytes before the payload over IPv4.
const V4: usize = ethernet::Header::LEN + ipv4::Header::LEN + udp::Header::LEN + bth::Header::LEN + Deth::LEN;
/// Bytes before the payload over IPv6.
const V6: usize = V4 - ipv4::Header::LEN + ipv6::Header::LEN;
/// Bytes from the PSN to the payload: its own three and the DETH.
const PSN_BACK: usize = 3 + Deth::LEN;

/// Bytes from where packets of a flow begin to differ in what the ICRC covers, to the payload: the second word of the BTH, whose
/// third holds the PSN, and the DETH. A whole block of 16 bytes, as fast CRC implementations want them.
const TAIL: usize = 16;

/// The headers that a flow's packets have in common.
#[derive(Clone, Debug)]
pub struct Headers {
    bytes: [u8; V6],
    ipv6: bool,
    pad: u8,
    payload_len: u16,
    /// The ICRC of what comes before the tail, with the effect of what is masked in the tail.
    prefix: Hasher,
}

impl Headers {
    /// The headers of `packet`, which was parsed from `frame`. `None` if its kind is not predicted.
    ///
    /// That its ICRC is right, and that it is for us, is for the caller to have found: the next one is taken to be as this
    /// one was.
    pub fn learn(frame: &[u8], packet: &Packet<'_>) -> Option<Headers> {
        let untagged = packet.link.l3_offset() == ethernet::Header::LEN;
        if !untagged || packet.udp_checksum() != 0 || packet.bth().opcode != Opcode::UD_SEND_ONLY {
            return None;
        }
        let payload = packet.ud().ok()?.payload;
        Headers::from_frame(frame, packet.ip.is_ipv6(), payload.len(), packet.bth().pad)
    }

    /// The headers of a frame that [`Template::emit`](ud::Template::emit) has made, untagged and without immediate. `None` if
    /// it is shorter than that.
    pub fn of_emitted(frame: &[u8], ipv6: bool, payload_len: usize) -> Option<Headers> {
        Headers::from_frame(frame, ipv6, payload_len, ud::pad(payload_len) as u8)
    }

    fn from_frame(frame: &[u8], ipv6: bool, payload_len: usize, pad: u8) -> Option<Headers> {
        let len = if ipv6 { V6 } else { V4 };
        let mut bytes = [0; V6];
        bytes[..len].copy_from_slice(frame.get(..len)?);
        let prefix = icrc::begin(bytes.get(ethernet::Header::LEN..len)?, len - ethernet::Header::LEN - TAIL)?;
        Some(Headers { bytes, ipv6, pad, payload_len: u16::try_from(payload_len).ok()?, prefix })
    }

    /// Whether the packets are IPv6.
    #[inline]
    pub const fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Bytes of a packet's payload.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.payload_len as usize
    }

    /// Bytes of the headers: before the payload.
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    #[inline]
    pub const fn len(&self) -> usize {
        if self.ipv6 { V6 } else { V4 }
    }

    /// Bytes of a whole frame: headers, payload, pad and ICRC.
    #[inline]
    pub const fn frame_len(&self) -> usize {
        self.len() + self.payload_len as usize + self.pad as usize + icrc::LEN
    }

    /// Whether `frame` has these headers, and then whether its ICRC is right.
    #[inline(always)]
    pub fn verify(&self, frame: &[u8]) -> Option<bool> {
        if self.ipv6 { self.verify_at::<V6>(frame) } else { self.verify_at::<V4>(frame) }
    }

    #[inline(always)]
    fn verify_at<const N: usize>(&self, frame: &[u8]) -> Option<bool> {
        let end = N + usize::from(self.payload_len) + usize::from(self.pad);
        let icrc = u32::from_le_bytes(*frame.get(end..)?.first_chunk()?);
        if !same(frame.first_chunk::<N>()?, self.bytes.first_chunk()?) {
            return None;
        }
        Some(self.icrc(frame.get(N - TAIL..end)?) == icrc)
    }

    /// The ICRC of a packet of these headers, from its tail to the end of its pad.
    #[inline(always)]
    fn icrc(&self, from_tail: &[u8]) -> u32 {
        let mut hasher = self.prefix.clone();
        hasher.update(from_tail);
        hasher.finalize()
    }

    /// IP header and payload of a frame that was verified.
    #[inline]
    pub fn parts<'a>(&self, frame: &'a [u8]) -> Option<(Ip<'a>, &'a [u8])> {
        let len = usize::from(self.payload_len);
        let ip = frame.get(ethernet::Header::LEN..)?;
        Some(if self.ipv6 {
            (Ip::V6(ip.first_chunk()?), frame.get(V6..V6 + len)?)
        } else {
            (Ip::V4(ip.first_chunk()?), frame.get(V4..V4 + len)?)
        })
    }

    /// Writes headers, pad and ICRC around a payload that already stands in `frame`, as
    /// [`Template::emit`](ud::Template::emit) does.
    ///
    /// # Errors
    /// [`BufferLength`](EmitError::BufferLength) unless the frame has exactly the length of the first one.
    #[inline]
    pub fn emit(&self, psn: Psn, frame: &mut [u8]) -> Result<(), EmitError> {
        self.fill(psn, frame)?;
        self.seal().close(frame);
        Ok(())
    }

    /// The first half of [`Headers::emit`]: all but the ICRC. [`Seal::close`] is the other, and best called when a whole
    /// burst has been filled: a CRC that reads what was written a moment ago waits for the processor's store buffer.
    ///
    /// # Errors
    /// As those of [`Headers::emit`].
    #[inline(always)]
    pub fn fill(&self, psn: Psn, frame: &mut [u8]) -> Result<(), EmitError> {
        let (have, need) = (frame.len(), self.frame_len());
        let short = EmitError::BufferLength { have, need };
        if have != need {
            return Err(short);
        }
        let pad = usize::from(self.pad);
        if pad != 0 {
            let end = need - icrc::LEN;
            frame.get_mut(end - pad..end).ok_or(short)?.fill(0);
        }
        if self.ipv6 { self.fill_at::<V6>(psn, frame) } else { self.fill_at::<V4>(psn, frame) }.ok_or(short)
    }

    #[inline(always)]
    fn fill_at<const N: usize>(&self, psn: Psn, frame: &mut [u8]) -> Option<()> {
        let head = frame.first_chunk_mut::<N>()?;
        *head = *self.bytes.first_chunk()?;
        let [_, psn @ ..] = psn.get().to_be_bytes();
        *head.get_mut(N - PSN_BACK..)?.first_chunk_mut()? = psn;
        Some(())
    }

    /// What the ICRC of frames that [`Headers::fill`] has made takes: these headers may change before they are sealed.
    #[inline]
    pub fn seal(&self) -> Seal {
        Seal { prefix: self.prefix.clone(), tail: self.len() - TAIL }
    }
}

/// The second half of [`Headers::emit`], for any number of frames of the same flow and length.
#[derive(Clone, Debug)]
pub struct Seal {
    prefix: Hasher,
    tail: usize,
}

impl Seal {
    /// Writes the ICRC of a frame that [`Headers::fill`] has made; nothing if it is too short to be one.
    #[inline(always)]
    pub fn close(&self, frame: &mut [u8]) {
        if let Some((covered, icrc)) = frame.split_last_chunk_mut::<{ icrc::LEN }>()
            && let Some(from_tail) = covered.get(self.tail..)
        {
            let mut hasher = self.prefix.clone();
            hasher.update(from_tail);
            *icrc = hasher.finalize().to_le_bytes();
        }
    }
}

/// Whether two headers are equal but for the PSN. Without a branch per word: packets of a flow nearly always are.
#[inline(always)]
fn same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let mut differ = 0;
    let mut at = 0;
    while at + 8 <= N - PSN_BACK {
        differ |= word(a, at) ^ word(b, at);
        at += 8;
    }
    // What is left before the PSN, by words that overlap: the last one with the PSN masked out. Then the DETH.
    const BEFORE_PSN: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]);
    differ |= word(a, N - 24) ^ word(b, N - 24);
    differ |= (word(a, N - 16) ^ word(b, N - 16)) & BEFORE_PSN;
    differ |= word(a, N - 8) ^ word(b, N - 8);
    differ == 0
}

#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    // In range for the constants above; the fallback is for the compiler.
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::super::frame::{self, Frame};
    use super::super::ud::{IpRoute, Route, Send, Template};
    use super::*;
    use crate::types::{PKey, QKey, Qpn};
    use crate::wire::ethernet::{MacAddr, VlanTag};
    use proptest::prelude::*;

    fn route(ipv6: bool) -> Route {
        let ip = if ipv6 {
            let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            IpRoute::V6 { src, dst, flow_label: 0x12345 }
        } else {
            let (src, dst) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
            IpRoute::V4 { src, dst, ident: 0x77 }
        };
        Route {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            ip,
            dscp: 10,
            ecn: 2,
            hop_limit: 9,
            src_port: 0xC123,
        }
    }

    fn send(psn: u32) -> Send {
        Send {
            dst_qpn: Qpn::new(0x12_3456).unwrap(),
            src_qpn: Qpn::new(0xFF_FFFE).unwrap(),
            qkey: QKey(0x8765_4321),
            pkey: PKey(0x8001),
            psn: Psn::from_low_bits(psn),
            imm: None,
            solicited: true,
        }
    }

    fn built(ipv6: bool, psn: u32, payload: &[u8]) -> Vec<u8> {
        let template = Template::new(&route(ipv6));
        let mut frame = vec![0xEE; template.frame_len(false, payload.len())];
        let at = template.header_len(false);
        frame[at..at + payload.len()].copy_from_slice(payload);
        template.emit(&send(psn), payload.len(), &mut frame).unwrap();
        frame
    }

    fn learnt(frame: &[u8]) -> Option<Headers> {
        match frame::parse(frame) {
            Ok(Frame::Roce(packet)) => Headers::learn(frame, &packet),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_kinds_are_not_learnt() {
        let tagged = Route { vlan: VlanTag::dot1q(5), ..route(false) };
        for (route, imm) in [(tagged, None), (route(true), Some(7))] {
            let template = Template::new(&route);
            let mut frame = vec![0; template.frame_len(imm.is_some(), 8)];
            template.emit(&Send { imm, ..send(1) }, 8, &mut frame).unwrap();
            assert!(learnt(&frame).is_none());
        }
        // A right UDP checksum: the next one would have to be computed.
        let mut frame = built(false, 1, b"payload!");
        let words = |bytes: &[u8]| {
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum::<u32>()
        };
        let mut sum = words(&frame[26..34]) + 17 + (frame.len() as u32 - 34) + words(&frame[34..]);
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        frame[40..42].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        assert!(learnt(&frame).is_none());
        assert!(Headers::of_emitted(&[0; 61], false, 0).is_none());
        assert!(Headers::of_emitted(&[0; 81], true, 0).is_none());
    }

    proptest! {
        /// The sender's short way makes the bytes of the long way, at any PSN.
        #[test]
        fn emitting_equals_building(
            ipv6: bool, first: u32, next: u32, payload in proptest::collection::vec(any::<u8>(), 0..300))
        {
            let model = built(ipv6, next, &payload);
            let start = built(ipv6, first, &payload);
            let headers = Headers::of_emitted(&start, ipv6, payload.len()).unwrap();
            let learnt = learnt(&start).unwrap();
            prop_assert_eq!((learnt.bytes, learnt.pad, learnt.payload_len), (headers.bytes, headers.pad, headers.payload_len));
            let mut frame = vec![0xEE; model.len()];
            let at = if ipv6 { V6 } else { V4 };
            frame[at..at + payload.len()].copy_from_slice(&payload);
            headers.emit(Psn::from_low_bits(next), &mut frame).unwrap();
            prop_assert_eq!(frame, model);
            let mut short = vec![0; start.len() - 1];
            prop_assert!(headers.emit(Psn::default(), &mut short).is_err());
        }

        /// Whatever is recognised is what the long way finds, with the same verdict on its ICRC; and a packet of the flow is
        /// recognised.
        #[test]
        fn recognising_equals_parsing(
            ipv6: bool, first: u32, next: u32, payload in proptest::collection::vec(any::<u8>(), 0..100),
            other in proptest::collection::vec(any::<u8>(), 0..100), trailer in 0usize..20,
            flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..3))
        {
            let headers = learnt(&built(ipv6, first, &payload)).unwrap();
            let mut body = other;
            body.resize(payload.len(), 0x55);
            let mut frame = built(ipv6, next, &body);
            frame.resize(frame.len() + trailer, 0);
            for (index, bit) in &flips {
                let at = index.index(frame.len());
                frame[at] ^= 1 << bit;
            }
            match headers.verify(&frame) {
                Some(intact) => {
                    let Ok(Frame::Roce(packet)) = frame::parse(&frame) else { panic!("not RoCE") };
                    let ud = packet.ud().unwrap();
                    let (ip, payload) = headers.parts(&frame).unwrap();
                    prop_assert_eq!((ip.src(), ip.dst()), (packet.ip.src(), packet.ip.dst()));
                    prop_assert_eq!(payload, ud.payload);
                    prop_assert_eq!(intact, packet.icrc_ok());
                    prop_assert!(learnt(&frame).is_some());
                }
                None => prop_assert!(!flips.is_empty(), "a packet of the flow was not recognised"),
            }
        }

        /// A change of any header byte but the PSN's is noticed.
        #[test]
        fn any_other_header_byte_matters(ipv6: bool, at in 0usize..V6, bit in 0u8..8) {
            let frame = built(ipv6, 5, b"payload");
            let headers = learnt(&frame).unwrap();
            let len = if ipv6 { V6 } else { V4 };
            let at = at % len;
            let mut changed = frame.clone();
            changed[at] ^= 1 << bit;
            let psn = (len - PSN_BACK..len - PSN_BACK + 3).contains(&at);
            prop_assert_eq!(headers.verify(&changed).is_some(), psn);
            for cut in 0..frame.len() {
                prop_assert!(headers.verify(&frame[..cut]).is_none());
            }
        }
    }
}
