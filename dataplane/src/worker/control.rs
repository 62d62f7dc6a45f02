//! The small protocols that keep an endpoint reachable: ARP, neighbour discovery, echo.

use super::Worker;
use super::core::Core;
use super::port::{Local, TxRuns};
use super::rx::Outcome;
use crate::buffer::Buffer;
use crate::capture::Capture;
use crate::counters::{DropReason, LocalDrop};
use crate::io::{PacketBuf, PacketBurst, PortIo};
use roce_proto::time::Instant;
use roce_proto::wire::control as frames;
use roce_proto::wire::ethernet::{Header as EthernetHeader, MacAddr};
use roce_proto::wire::frame::{Frame, Icmp4, Icmp6, Link};
use roce_proto::wire::{EmitError, arp, icmp, icmpv6, ipv4, ipv6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A frame that the worker itself has to say.
pub(crate) struct Reply<'a> {
    link: frames::Link,
    body: Body<'a>,
}

enum Body<'a> {
    Arp(arp::Packet),
    Echo4 { src: Ipv4Addr, dst: Ipv4Addr, echo: icmp::Echo<'a> },
    Icmp6 { src: Ipv6Addr, dst: Ipv6Addr, message: icmpv6::Message<'a> },
}

impl Reply<'_> {
    pub fn is_echo(&self) -> bool {
        matches!(self.body, Body::Echo4 { .. } | Body::Icmp6 { message: icmpv6::Message::Echo(_), .. })
    }

    fn len(&self) -> usize {
        EthernetHeader::LEN
            + self.link.vlans.depth() * 4
            + match &self.body {
                Body::Arp(_) => arp::Packet::LEN,
                Body::Echo4 { echo, .. } => ipv4::Header::LEN + echo.len(),
                Body::Icmp6 { message, .. } => ipv6::Header::LEN + message.len(),
            }
    }

    fn emit(&self, frame: &mut [u8]) -> Result<usize, EmitError> {
        match &self.body {
            Body::Arp(packet) => frames::arp(&self.link, packet, frame),
            Body::Echo4 { src, dst, echo } => frames::icmp_echo(&self.link, *src, *dst, echo, frame),
            Body::Icmp6 { src, dst, message } => frames::icmpv6(&self.link, *src, *dst, message, frame),
        }
    }
}

/// Puts a reply at the end of the port's burst; false if there is no room or no buffer for it.
pub(super) fn send<I: PortIo, B>(
    io: &mut I,
    tx: &mut I::Burst,
    runs: &mut TxRuns<B>,
    capture: Option<&Capture>,
    reply: &Reply<'_>,
) -> bool {
    if tx.is_full() {
        return false;
    }
    let Some(mut buf) = io.alloc() else { return false };
    let frame_len = reply.len();
    let Some(frame) = buf.append(frame_len) else { return false };
    if reply.emit(frame).is_err() {
        return false;
    }
    if let Some(capture) = capture {
        capture.frame(frame);
    }
    if tx.push(buf).is_err() {
        return false;
    }
    runs.note(None, true, frame_len, None);
    true
}

/// Handles a frame that is not RoCEv2.
#[cold]
pub(super) fn handle<'a, B: Buffer>(
    frame: &Frame<'a>,
    index: usize,
    at: &mut Local,
    core: &mut Core<B>,
) -> Outcome<'a> {
    let link = match frame {
        Frame::Arp(link, _) => link,
        Frame::Icmp4(message) => &message.link,
        Frame::Icmp6(message) => &message.link,
        Frame::Roce(_) | Frame::Other(_) => {
            at.counters.ignored += 1;
            return Outcome::Done;
        }
    };
    if !at.in_vlan(|| link.vlans()) {
        return Outcome::Drop(DropReason::Local(LocalDrop::Vlan));
    }
    if link.dst() != at.mac && !link.dst().is_multicast() {
        return Outcome::Drop(DropReason::Local(LocalDrop::ForeignMac));
    }
    match frame {
        Frame::Arp(_, packet) => on_arp(packet, link, index, at, core),
        Frame::Icmp4(message) => on_icmp4(message, at),
        Frame::Icmp6(message) => on_icmp6(message, index, at, core),
        Frame::Roce(_) | Frame::Other(_) => Outcome::Done,
    }
}

/// The way back to whoever sent a frame, with its VLAN tags.
fn back(link: &Link<'_>, at: &Local, to: MacAddr) -> frames::Link {
    frames::Link { src: at.mac, dst: to, vlans: link.vlans() }
}

fn learn<B>(ip: IpAddr, mac: MacAddr, index: usize, at: &mut Local, core: &mut Core<B>) {
    if at.neighbours.learn(ip, mac) {
        if let Some(asked) = &at.asked {
            asked.answered(index, ip);
        }
        core.neighbour_resolved(index, ip, mac);
    }
}

fn noted<'a>(at: &mut Local) -> Outcome<'a> {
    at.counters.neighbour += 1;
    Outcome::Done
}

fn ignored<'a>(at: &mut Local) -> Outcome<'a> {
    at.counters.ignored += 1;
    Outcome::Done
}

fn on_arp<'a, B: Buffer>(
    packet: &arp::Packet,
    link: &Link<'_>,
    index: usize,
    at: &mut Local,
    core: &mut Core<B>,
) -> Outcome<'a> {
    let (sender, mac) = (IpAddr::V4(packet.sender_ip), packet.sender_mac);
    if at.is_local(sender) {
        // Our own address from another station: nothing that may change anything here.
        return ignored(at);
    }
    learn(sender, mac, index, at, core);
    if packet.operation != arp::Operation::Request || !at.is_local(IpAddr::V4(packet.target_ip)) {
        return noted(at);
    }
    if mac.is_zero() || mac.is_multicast() {
        return ignored(at);
    }
    Outcome::Reply(Reply { link: back(link, at, mac), body: Body::Arp(packet.reply(at.mac)) })
}

fn on_icmp4<'a>(message: &Icmp4<'a>, at: &mut Local) -> Outcome<'a> {
    if !at.is_local(IpAddr::V4(message.dst)) {
        return Outcome::Drop(DropReason::Local(LocalDrop::ForeignIp));
    }
    let to = message.link.src();
    if message.echo.is_reply || to.is_multicast() || to.is_zero() {
        return ignored(at);
    }
    Outcome::Reply(Reply {
        link: back(&message.link, at, to),
        body: Body::Echo4 { src: message.dst, dst: message.src, echo: message.echo.reply() },
    })
}

fn on_icmp6<'a, B: Buffer>(
    message: &Icmp6<'a>,
    index: usize,
    at: &mut Local,
    core: &mut Core<B>,
) -> Outcome<'a> {
    let to = message.link.src();
    match message.message {
        icmpv6::Message::Echo(echo) => {
            if !at.is_local(IpAddr::V6(message.dst)) {
                return Outcome::Drop(DropReason::Local(LocalDrop::ForeignIp));
            }
            if echo.is_reply || to.is_multicast() || to.is_zero() {
                return ignored(at);
            }
            let body = Body::Icmp6 {
                src: message.dst,
                dst: message.src,
                message: icmpv6::Message::Echo(echo.reply()),
            };
            Outcome::Reply(Reply { link: back(&message.link, at, to), body })
        }
        icmpv6::Message::Solicitation(asked) => {
            if let Some(mac) = asked.source_mac {
                learn(IpAddr::V6(message.src), mac, index, at, core);
            }
            if !at.is_local(IpAddr::V6(asked.target)) {
                return noted(at);
            }
            // RFC 4861, 7.2.4: an asker without an address (duplicate address detection) is answered by multicast.
            let anonymous = message.src.is_unspecified();
            let dst = if anonymous { ALL_NODES } else { message.src };
            let mac = if anonymous {
                MacAddr::for_ipv6_multicast(ALL_NODES)
            } else {
                asked.source_mac.unwrap_or(to)
            };
            if !anonymous && (mac.is_zero() || mac.is_multicast()) {
                return ignored(at);
            }
            let answer = icmpv6::Advertisement {
                router: false,
                solicited: !anonymous,
                override_cached: true,
                target: asked.target,
                target_mac: Some(at.mac),
            };
            let message6 = icmpv6::Message::Advertisement(answer);
            Outcome::Reply(Reply {
                link: back(&message.link, at, mac),
                body: Body::Icmp6 { src: asked.target, dst, message: message6 },
            })
        }
        icmpv6::Message::Advertisement(answer) => {
            if at.is_local(IpAddr::V6(answer.target)) {
                return ignored(at);
            }
            if let Some(mac) = answer.target_mac {
                learn(IpAddr::V6(answer.target), mac, index, at, core);
            }
            noted(at)
        }
        icmpv6::Message::Other { .. } => ignored(at),
    }
}

/// All nodes on the link (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Asks for the neighbours of port `index` that are due.
    #[inline]
    pub(super) fn neighbour_timers(&mut self, index: usize, now: Instant) {
        let Some(port) = self.ports.get_mut(index) else { return };
        // A full burst means that a request would be lost: it stays due.
        while !port.tx.is_full() {
            let Some(ip) = port.local.neighbours.next_request(now) else { return };
            // The answer to another worker's question comes here too.
            if let Some(asked) = &port.local.asked
                && !asked.may_ask(index, ip, now)
            {
                continue;
            }
            if let Some(request) = request(ip, &port.local)
                && !send(&mut port.io, &mut port.tx, &mut port.runs, port.capture.as_ref(), &request)
            {
                return port.local.neighbours.not_sent(ip, now);
            }
        }
    }
}

/// The question for the MAC address of `ip`. `None` if the port has no address of that family to ask from.
fn request<'a>(ip: IpAddr, at: &Local) -> Option<Reply<'a>> {
    let src = at.way_to(ip, None).ok()?.src;
    match (src, ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Reply {
            link: frames::Link { src: at.mac, dst: MacAddr::BROADCAST, vlans: at.tags() },
            body: Body::Arp(arp::Packet::request(at.mac, src, dst)),
        }),
        (IpAddr::V6(src), IpAddr::V6(target)) => {
            let dst = icmpv6::solicited_node(target);
            let asked = icmpv6::Solicitation { target, source_mac: Some(at.mac) };
            Some(Reply {
                link: frames::Link { src: at.mac, dst: MacAddr::for_ipv6_multicast(dst), vlans: at.tags() },
                body: Body::Icmp6 { src, dst, message: icmpv6::Message::Solicitation(asked) },
            })
        }
        _ => None,
    }
}
