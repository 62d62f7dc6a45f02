//! The packets that begin a session.

use super::control::common_of;
use super::{Common, Kind, Seq, ShimError, Ticks, be16, be32, be64, exact};
use crate::types::Qpn;
use core::net::IpAddr;

/// Proof that whoever has it receives at the address it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cookie(pub [u8; 16]);

impl Cookie {
    /// The cookie of an INIT that was given none.
    pub const NONE: Cookie = Cookie([0; 16]);
}

/// Where else a side is reached, beside the address that its packet comes from: its further ports, each with an address of the same family
/// and a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rails {
    count: u8,
    entries: [[u8; Rails::ENTRY]; Rails::MOST],
}

impl Rails {
    /// Further ports that a side can have.
    pub const MOST: usize = 3;
    /// Bytes of each: an IPv6 address, or an IPv4 address mapped to one (RFC 4291, section 2.5.5.2), a zero, and a queue pair number.
    const ENTRY: usize = 20;
    /// Bytes of all.
    const LEN: usize = Rails::MOST * Rails::ENTRY;
    /// None.
    pub const NONE: Rails = Rails { count: 0, entries: [[0; Rails::ENTRY]; Rails::MOST] };

    /// Adds one; beyond [`Rails::MOST`] nothing happens.
    pub fn push(&mut self, ip: IpAddr, qpn: Qpn) {
        if let Some(entry) = self.entries.get_mut(usize::from(self.count)) {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            entry[..16].copy_from_slice(&ip.octets());
            entry[16..].copy_from_slice(&qpn.get().to_be_bytes());
            self.count += 1;
        }
    }

    /// How many there are.
    #[inline]
    pub const fn len(&self) -> u8 {
        self.count
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One of them, from 0.
    pub fn get(&self, index: u8) -> Option<(IpAddr, Qpn)> {
        let entry = self.entries.get(usize::from(index)).filter(|_| index < self.count)?;
        let (ip, qpn) = entry.split_first_chunk::<16>()?;
        Some((IpAddr::from(*ip).to_canonical(), Qpn::new(be32(qpn, 0))?))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Qpn)> + '_ {
        (0..self.count).filter_map(|index| self.get(index))
    }

    /// From a count and the bytes after it; a queue pair number of more than 24 bits or a count beyond the most leaves none.
    fn read(count: u8, bytes: &[u8]) -> Rails {
        let mut rails = Rails { count, ..Rails::NONE };
        for (entry, from) in rails.entries.iter_mut().zip(bytes.as_chunks::<{ Rails::ENTRY }>().0) {
            *entry = *from;
        }
        let sound = rails.iter().count() == usize::from(count);
        if sound { rails } else { Rails::NONE }
    }
}

/// What one side says of itself: the part that INIT and ACCEPT share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The id by which to reach it.
    pub id: u64,
    /// Number of its incarnation.
    pub epoch: u64,
    /// First value of its counters.
    pub first: Seq,
    /// Largest segment size it takes, in bytes; in an ACCEPT the size agreed on.
    pub segment: u32,
    /// Sequences beyond the next one that it accepts.
    pub window: u32,
    /// Unexpected segments that it takes at first.
    pub grant: u32,
    /// Largest message that may come unannounced, in bytes.
    pub eager: u32,
    /// In an INIT its time; in an ACCEPT that time again.
    pub time: Ticks,
    /// Most paths that it receives on; in an ACCEPT the number agreed on.
    pub paths: u8,
    /// FEC codecs that it knows, one bit each.
    pub codecs: u8,
    /// Messages of several segments that it takes at once.
    pub messages: u16,
}

impl Offer {
    /// From bytes 12 to 56 of a packet.
    fn from_packet(b: &[u8]) -> Offer {
        Offer {
            id: be64(b, 12),
            epoch: be64(b, 20),
            first: Seq(be32(b, 28)),
            segment: be32(b, 32),
            window: be32(b, 36),
            grant: be32(b, 40),
            eager: be32(b, 44),
            time: Ticks(be32(b, 48)),
            paths: (be16(b, 52) >> 8) as u8,
            codecs: be16(b, 52) as u8,
            messages: be16(b, 54),
        }
    }

    fn to_bytes(self) -> [u8; 44] {
        let mut b = [0; 44];
        b[..8].copy_from_slice(&self.id.to_be_bytes());
        b[8..16].copy_from_slice(&self.epoch.to_be_bytes());
        let words = [self.first.0, self.segment, self.window, self.grant, self.eager, self.time.0];
        for (place, word) in b[16..40].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        b[40] = self.paths;
        b[41] = self.codecs;
        b[42..].copy_from_slice(&self.messages.to_be_bytes());
        b
    }
}

/// Begins a session. See `docs/protocol.md`, 2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// What the initiator says of itself.
    pub offer: Offer,
    /// The cookie it was given, or [`Cookie::NONE`].
    pub cookie: Cookie,
    /// Its further ports.
    pub rails: Rails,
}

impl Init {
    /// Bytes on the wire: more than any answer has.
    pub const LEN: usize = 160;

    /// Reads a payload that is exactly one INIT.
    ///
    /// # Errors
    /// Another length or type.
    pub fn parse(bytes: &[u8]) -> Result<Init, ShimError> {
        let common = common_of(bytes, Kind::Init)?;
        let b: &[u8; Init::LEN] = exact(bytes)?;
        let mut cookie = [0; 16];
        cookie.copy_from_slice(&b[56..72]);
        let rails = Rails::read(common.count, &b[72..]);
        Ok(Init { offer: Offer::from_packet(b), cookie: Cookie(cookie), rails })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Init::LEN] {
        let mut b = [0; Init::LEN];
        b[..12].copy_from_slice(
            &Common { kind: Kind::Init, flags: 0, path: 0, count: self.rails.count, session: 0 }.to_bytes(),
        );
        b[12..56].copy_from_slice(&self.offer.to_bytes());
        b[56..72].copy_from_slice(&self.cookie.0);
        b[72..72 + Rails::LEN].copy_from_slice(self.rails.entries.as_flattened());
        b
    }
}

/// Asks an initiator to prove its address. See `docs/protocol.md`, 2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieReply {
    /// The initiator's id.
    pub session: u64,
    /// To be sent back.
    pub cookie: Cookie,
    /// The INIT's time.
    pub time: Ticks,
}

impl CookieReply {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// Reads a payload that is exactly one COOKIE.
    ///
    /// # Errors
    /// Another length or type.
    pub fn parse(bytes: &[u8]) -> Result<CookieReply, ShimError> {
        let common = common_of(bytes, Kind::Cookie)?;
        let b: &[u8; 32] = exact(bytes)?;
        let mut cookie = [0; 16];
        cookie.copy_from_slice(&b[12..28]);
        Ok(CookieReply { session: common.session, cookie: Cookie(cookie), time: Ticks(be32(b, 28)) })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; 32] {
        let common = Common { kind: Kind::Cookie, flags: 0, path: 0, count: 0, session: self.session };
        let mut b = [0; 32];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..28].copy_from_slice(&self.cookie.0);
        b[28..].copy_from_slice(&self.time.0.to_be_bytes());
        b
    }
}

/// Opens a session. See `docs/protocol.md`, 2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The initiator's id.
    pub session: u64,
    /// What the responder says of itself, and what was agreed on.
    pub offer: Offer,
    /// The responder's clock, for whoever reads captures.
    pub clock: Ticks,
    /// The responder's further ports.
    pub rails: Rails,
}

impl Accept {
    /// Bytes on the wire.
    pub const LEN: usize = 124;

    /// Reads a payload that is exactly one ACCEPT.
    ///
    /// # Errors
    /// Another length or type.
    pub fn parse(bytes: &[u8]) -> Result<Accept, ShimError> {
        let common = common_of(bytes, Kind::Accept)?;
        let b: &[u8; Accept::LEN] = exact(bytes)?;
        let (offer, clock) = (Offer::from_packet(b), Ticks(be32(b, 56)));
        Ok(Accept { session: common.session, offer, clock, rails: Rails::read(common.count, &b[64..]) })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Accept::LEN] {
        let (count, session) = (self.rails.count, self.session);
        let common = Common { kind: Kind::Accept, flags: 0, path: 0, count, session };
        let mut b = [0; Accept::LEN];
        b[..12].copy_from_slice(&common.to_bytes());
        b[12..56].copy_from_slice(&self.offer.to_bytes());
        b[56..60].copy_from_slice(&self.clock.0.to_be_bytes());
        b[64..].copy_from_slice(self.rails.entries.as_flattened());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const OFFER: [u8; 44] = [
        1, 2, 3, 4, 5, 6, 7, 8,
        9, 10, 11, 12, 13, 14, 15, 16,
        0xff, 0xff, 0xff, 0xf0, // first
        0, 0, 0x0f, 0xa8, // segment
        0, 0, 0x10, 0, // window
        0, 0, 0, 64, // grant
        0, 1, 0, 0, // eager
        0x21, 0x22, 0x23, 0x24, // time
        8, 1, 0, 64,
    ];

    const VALUE: Offer = Offer {
        id: 0x0102_0304_0506_0708,
        epoch: 0x090a_0b0c_0d0e_0f10,
        first: Seq(0xffff_fff0),
        segment: 4008,
        window: 4096,
        grant: 64,
        eager: 65536,
        time: Ticks(0x2122_2324),
        paths: 8,
        codecs: 1,
        messages: 64,
    };

    #[test]
    fn known_bytes() {
        let cookie = core::array::from_fn(|i| 0xc0 + i as u8);
        let mut rails = Rails::NONE;
        rails.push([192, 0, 2, 1].into(), Qpn::new(0x00_0102).unwrap());
        rails.push([0xfd, 0, 0, 0, 0, 0, 0, 7].into(), Qpn::new(0xff_fffe).unwrap());
        #[rustfmt::skip]
        let entries = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 0, 0, 1, 2,
            0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0xff, 0xff, 0xfe,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let init = Init { offer: VALUE, cookie: Cookie(cookie), rails };
        let bytes =
            [&[0x14, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0][..], &OFFER, &cookie, &entries, &[0; 28]].concat();
        assert_eq!(Init::parse(&bytes), Ok(init));
        assert_eq!(init.to_bytes()[..], bytes);

        let reply = CookieReply { session: 0x0807_0605_0403_0201, cookie: Cookie(cookie), time: Ticks(5) };
        let bytes = [&[0x15, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1][..], &cookie, &[0, 0, 0, 5]].concat();
        assert_eq!(CookieReply::parse(&bytes), Ok(reply));
        assert_eq!(reply.to_bytes()[..], bytes);

        let accept =
            Accept { session: 0x0807_0605_0403_0201, offer: VALUE, clock: Ticks(0x3132_3334), rails };
        let rest = [0x31, 0x32, 0x33, 0x34, 0, 0, 0, 0];
        let bytes = [&[0x16, 0, 0, 2, 8, 7, 6, 5, 4, 3, 2, 1][..], &OFFER, &rest, &entries].concat();
        assert_eq!(Accept::parse(&bytes), Ok(accept));
        assert_eq!(accept.to_bytes()[..], bytes);
    }

    #[test]
    fn no_answer_is_longer_than_its_question() {
        for answer in [CookieReply::LEN, Accept::LEN, super::super::Refuse::LEN, super::super::Reset::LEN] {
            assert!(answer < Init::LEN);
        }
        assert_eq!(Init::parse(&[0x14; 159]), Err(ShimError::TooShort { have: 159, need: 160 }));
        assert_eq!(Init::parse(&[0x14; 161]), Err(ShimError::Length { have: 161, say: 160 }));
    }

    #[test]
    fn rails_are_as_many_as_there_is_room_for_and_sound() {
        let mut rails = Rails::NONE;
        assert!(rails.is_empty() && rails.get(0).is_none());
        for n in 1..=5 {
            rails.push([192, 0, 2, n].into(), Qpn::new(u32::from(n) << 16).unwrap());
        }
        let all: Vec<_> = rails.iter().map(|(ip, qpn)| (ip.to_string(), qpn.get())).collect();
        assert_eq!(all, [1, 2, 3].map(|n| (format!("192.0.2.{n}"), n << 16)));
        let bytes = rails.entries.as_flattened().to_owned();
        assert_eq!(Rails::read(3, &bytes), rails);
        assert_eq!(Rails::read(2, &bytes).iter().count(), 2);
        assert_eq!(Rails::read(4, &bytes), Rails::NONE);
        let mut bad = bytes;
        bad[36] = 1;
        assert_eq!((Rails::read(2, &bad), Rails::read(1, &bad).len()), (Rails::NONE, 1));
    }
}
