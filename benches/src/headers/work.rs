//! The operations that are timed and counted.

use clap::ValueEnum;
use crc32fast::Hasher;
use roce_proto::types::{PKey, Psn, QKey, Qpn};
use roce_proto::wire::ethernet::MacAddr;
use roce_proto::wire::frame::{self, Frame};
use roce_proto::wire::predict::Headers;
use roce_proto::wire::ud::{IpRoute, Route, Send, Template};
use std::hint::black_box;
use std::net::Ipv4Addr;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// The CRC over the bytes that the ICRC covers, and nothing else: what bounds the others
    Crc,
    /// Headers and ICRC around a payload that stands in the frame
    Build,
    /// Parse, check the ICRC, and find payload and keys
    Parse,
    /// Build by header prediction: copy the headers of the packet before, with the next PSN, and make the ICRC
    BuildNext,
    /// Receive by header prediction: compare with the packet before, and check the ICRC
    CheckNext,
}

impl Op {
    /// In the order in which they are shown; the first is the baseline.
    pub const ALL: [Op; 5] = [Op::Crc, Op::Build, Op::Parse, Op::BuildNext, Op::CheckNext];

    /// Shown in tables.
    pub fn title(self) -> &'static str {
        match self {
            Op::Crc => "bare CRC",
            Op::Build => "build + ICRC",
            Op::Parse => "parse + ICRC check",
            Op::BuildNext => "build, predicted",
            Op::CheckNext => "check, predicted",
        }
    }

    /// As an argument.
    pub fn name(self) -> &'static str {
        match self {
            Op::Crc => "crc",
            Op::Build => "build",
            Op::Parse => "parse",
            Op::BuildNext => "build-next",
            Op::CheckNext => "check-next",
        }
    }
}

/// Frames in turn: few enough to stay in the first-level cache, as a packet is that was just copied.
const FRAMES: usize = 4;
/// Where the bytes begin that the ICRC covers.
const L3: usize = 14;

/// What the operations work on.
pub struct Work {
    template: Template,
    send: Send,
    payload: usize,
    /// Those of the first frame; none before it is built.
    headers: Option<Headers>,
    frames: [Vec<u8>; FRAMES],
}

impl Work {
    /// Frames of `payload` bytes.
    pub fn new(payload: usize) -> Work {
        let template = Template::new(&Route {
            src_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vlan: None,
            ip: IpRoute::V4 { src: Ipv4Addr::new(192, 0, 2, 2), dst: Ipv4Addr::new(192, 0, 2, 1), ident: 0 },
            dscp: 0,
            ecn: 0,
            hop_limit: 64,
            src_port: 49152,
        });
        let send = Send {
            dst_qpn: Qpn::new(17).unwrap_or_default(),
            src_qpn: Qpn::new(18).unwrap_or_default(),
            qkey: QKey(0x1111_1111),
            pkey: PKey(0xffff),
            psn: Psn::from_low_bits(0),
            imm: None,
            solicited: false,
        };
        let len = template.frame_len(false, payload);
        let frames = [(); FRAMES].map(|()| (0..len).map(|i| i as u8).collect());
        let mut work = Work { template, send, payload, headers: None, frames };
        work.run(Op::Build, FRAMES as u64);
        work.headers = Headers::of_emitted(&work.frames[0], false, payload);
        work
    }

    /// Does an operation `iters` times; returns how many went well, which is all of them.
    pub fn run(&mut self, op: Op, iters: u64) -> u64 {
        let mut well = 0;
        for i in 0..iters {
            let Some(frame) = self.frames.get_mut(i as usize % FRAMES) else { continue };
            well += u64::from(match op {
                Op::Crc => {
                    let end = frame.len() - 4;
                    let mut hasher = Hasher::new_with_initial(black_box(0));
                    hasher.update(black_box(&frame[L3..end]));
                    black_box(hasher.finalize());
                    true
                }
                Op::Build => {
                    self.send.psn = self.send.psn.next();
                    let built =
                        black_box(&self.template).emit(&self.send, self.payload, black_box(&mut frame[..]));
                    built.is_ok()
                }
                Op::Parse => match frame::parse(black_box(&frame[..])) {
                    Ok(Frame::Roce(packet)) => packet.icrc_ok() && packet.ud().map(black_box).is_ok(),
                    _ => false,
                },
                Op::BuildNext => {
                    self.send.psn = self.send.psn.next();
                    let headers = black_box(&self.headers).as_ref();
                    headers.is_some_and(|h| h.emit(self.send.psn, black_box(&mut frame[..])).is_ok())
                }
                Op::CheckNext => {
                    let headers = black_box(&self.headers).as_ref();
                    headers.and_then(|h| h.verify(black_box(&frame[..]))) == Some(true)
                }
            });
        }
        well
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_what_is_parsed() {
        for payload in [64, 1024, 4096] {
            let mut work = Work::new(payload);
            for op in Op::ALL {
                assert_eq!(work.run(op, 10), 10, "{op:?}");
            }
            assert_eq!(work.frames[0].len(), payload + 66);
            let Ok(Frame::Roce(packet)) = frame::parse(&work.frames[1]) else {
                panic!("not a RoCEv2 packet")
            };
            assert_eq!(packet.ud().unwrap().payload.len(), payload);
            work.frames[2][70] ^= 1;
            assert_eq!(work.run(Op::Parse, 4), 3, "a broken frame does not go well");
            assert_eq!(work.run(Op::CheckNext, 4), 3, "by neither way");
        }
    }
}
