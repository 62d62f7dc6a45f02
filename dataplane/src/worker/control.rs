//! The small protocols that keep an endpoint reachable: ARP, neighbour discovery, echo.

use super::Worker;
use super::core::Core;
use super::port::{Local, Port, TxRuns, Unsealed};
use super::rx::Outcome;
use crate::announce::Say;
use crate::buffer::Buffer;
use crate::capture::Capture;
use crate::counters::{DropReason, LocalDrop};
use crate::feed::Feed;
use crate::io::{PacketBuf, PacketBurst, PortIo};
use crate::neighbour::{Claim, Due};
use crate::route;
use roce_proto::time::Instant;
use roce_proto::wire::control as frames;
use roce_proto::wire::ethernet::{Header as EthernetHeader, MacAddr};
use roce_proto::wire::frame::{Frame, Icmp4, Icmp6, Link};
use roce_proto::wire::{EmitError, arp, icmp, icmpv6, ipv4, ipv6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A frame that the worker itself has to say.
pub(crate) struct Reply<'a> {
    pub(super) link: frames::Link,
    pub(super) body: Body<'a>,
}

pub(super) enum Body<'a> {
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
    unsealed: &mut Unsealed,
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
        // A capture has them in the order in which they leave.
        unsealed.seal(tx, Some(capture));
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
pub(super) fn handle<'a, B: Buffer>(frame: &Frame<'a>, at: &mut Local, core: &mut Core<B>) -> Outcome<'a> {
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
        Frame::Arp(_, packet) => on_arp(packet, link, at, core),
        Frame::Icmp4(message) => on_icmp4(message, at),
        Frame::Icmp6(message) => on_icmp6(message, at, core),
        Frame::Roce(_) | Frame::Other(_) => Outcome::Done,
    }
}

/// The way back to whoever sent a frame, with its VLAN tags.
fn back(link: &Link<'_>, at: &Local, to: MacAddr) -> frames::Link {
    frames::Link { src: at.mac, dst: to, vlans: link.vlans() }
}

fn learn<B>(claim: &Claim, at: &mut Local, core: &mut Core<B>) {
    if at.neighbours.claim(claim, at.now) {
        if let Some(asked) = &at.asked {
            asked.answered(at.index, claim.ip);
        }
        core.neighbour_changed(at.neighbours.users(claim.ip), Some(claim.mac));
    }
}

/// The station `mac` says that it has our address `ip`. That changes nothing here; but whoever runs either wants to know.
fn on_own_address<'a>(ip: IpAddr, mac: MacAddr, at: &mut Local) -> Outcome<'a> {
    if mac == at.mac {
        // Our own frame, come back; or the kernel's, where it has the same port with the same address.
        return ignored(at);
    }
    if at.announcer.on_conflict(ip, mac, at.now) {
        tracing::warn!(
            "{mac} claims {ip}, an address of port {}: two stations with one address do not work; give one of them another",
            at.name
        );
    }
    Outcome::Drop(DropReason::Local(LocalDrop::DuplicateAddress))
}

fn noted<'a>(at: &mut Local) -> Outcome<'a> {
    at.counters.neighbour += 1;
    Outcome::Done
}

pub(super) fn ignored<'a>(at: &mut Local) -> Outcome<'a> {
    at.counters.ignored += 1;
    Outcome::Done
}

fn on_arp<'a, B: Buffer>(
    packet: &arp::Packet,
    link: &Link<'_>,
    at: &mut Local,
    core: &mut Core<B>,
) -> Outcome<'a> {
    let (sender, mac) = (IpAddr::V4(packet.sender_ip), packet.sender_mac);
    if at.is_local(sender) {
        return on_own_address(sender, mac, at);
    }
    if mac == at.mac && sender.is_unspecified() {
        // Our own probe, come back: no question of another's.
        return ignored(at);
    }
    let solicited = packet.operation == arp::Operation::Reply && link.dst() == at.mac;
    learn(&Claim { ip: sender, mac, solicited, replaces: true }, at, core);
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
    if route::no_host(IpAddr::V4(message.src)).is_some() {
        return Outcome::Drop(DropReason::Local(LocalDrop::SourceIp));
    }
    let to = message.link.src();
    if message.echo.is_reply {
        let awaited = at.take_echo_reply(IpAddr::V4(message.src), &message.echo);
        return if awaited { Outcome::Done } else { ignored(at) };
    }
    if to.is_multicast() || to.is_zero() {
        return ignored(at);
    }
    Outcome::Reply(Reply {
        link: back(&message.link, at, to),
        body: Body::Echo4 { src: message.dst, dst: message.src, echo: message.echo.reply() },
    })
}

fn on_icmp6<'a, B: Buffer>(message: &Icmp6<'a>, at: &mut Local, core: &mut Core<B>) -> Outcome<'a> {
    let to = message.link.src();
    match message.message {
        icmpv6::Message::Echo(echo) => {
            if !at.is_local(IpAddr::V6(message.dst)) {
                return Outcome::Drop(DropReason::Local(LocalDrop::ForeignIp));
            }
            if route::no_host(IpAddr::V6(message.src)).is_some() {
                return Outcome::Drop(DropReason::Local(LocalDrop::SourceIp));
            }
            if echo.is_reply {
                let awaited = at.take_echo_reply(IpAddr::V6(message.src), &echo);
                return if awaited { Outcome::Done } else { ignored(at) };
            }
            if to.is_multicast() || to.is_zero() {
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
            let src = IpAddr::V6(message.src);
            if src.is_unspecified() && to == at.mac {
                return ignored(at);
            }
            if at.is_local(src) {
                return on_own_address(src, asked.source_mac.unwrap_or(to), at);
            }
            if let Some(mac) = asked.source_mac {
                learn(&Claim { ip: src, mac, solicited: false, replaces: true }, at, core);
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
            let ip = IpAddr::V6(answer.target);
            if at.is_local(ip) {
                return on_own_address(ip, answer.target_mac.unwrap_or(to), at);
            }
            // A station that was asked by unicast need not repeat the address it was asked at (RFC 4861, 4.4).
            let known = || at.neighbours.get(ip).and_then(|n| n.mac).filter(|_| answer.solicited);
            if let Some(mac) = answer.target_mac.or_else(known) {
                let (solicited, replaces) = (answer.solicited, answer.override_cached);
                learn(&Claim { ip, mac, solicited, replaces }, at, core);
            }
            noted(at)
        }
        icmpv6::Message::Other { .. } => ignored(at),
    }
}

/// All nodes on the link (RFC 4291, 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Asks for the neighbours of port `index` that are due, and announces its addresses.
    #[inline]
    pub(super) fn neighbour_timers(&mut self, index: usize, now: Instant) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let local = &port.local;
        if now >= local.neighbours.next_due()
            || now >= local.announcer.next_due()
            || local.feed.as_ref().is_some_and(Feed::has_news)
        {
            port.on_timers(&mut self.core, now);
        }
    }
}

impl<I: PortIo, B: Buffer> Port<I, B> {
    /// [`send`] of a frame of the port's own accord.
    fn say(&mut self, frame: &Reply<'_>) -> bool {
        let capture = self.capture.as_ref();
        send(&mut self.io, &mut self.tx, &mut self.runs, &mut self.unsealed, capture, frame)
    }

    #[cold]
    fn on_timers(&mut self, core: &mut Core<B>, now: Instant) {
        let addrs = self.local.addrs.len();
        // A full burst means that a frame would be lost: it stays due.
        while !self.tx.is_full()
            && let Some(say) = self.local.announcer.next(now, addrs)
        {
            // One worker of those that share a port says it.
            if self.local.is_first_to_say(say)
                && let Some(frame) = announcement(say, &self.local)
                && !self.say(&frame)
            {
                return;
            }
            self.local.announcer.said(now, addrs);
        }
        while let Some((ip, mac)) = self.local.feed.as_ref().and_then(Feed::news) {
            if self.local.neighbours.feed(ip, mac, now) {
                core.neighbour_changed(self.local.neighbours.users(ip), mac);
            }
        }
        while !self.tx.is_full() {
            let used = |ah| core.ahs.get_mut(ah).is_some_and(|ah| std::mem::take(&mut ah.used));
            let Some(due) = self.local.neighbours.next(now, used) else { return };
            let (ip, to) = match due {
                Due::Ask(ip) => (ip, None),
                Due::Probe(ip, mac) => (ip, Some(mac)),
                Due::Lost(ip) => {
                    tracing::warn!("port {}: {ip} no longer answers", self.local.name);
                    core.neighbour_changed(self.local.neighbours.users(ip), None);
                    continue;
                }
            };
            if let Some(feed) = &self.local.feed {
                if !feed.want(ip) {
                    return self.local.neighbours.not_sent(ip, now);
                }
                continue;
            }
            // The answer to another worker's question comes here too.
            if let Some(asked) = &self.local.asked
                && !asked.may_ask(self.local.index, ip, now)
            {
                continue;
            }
            if let Some(request) = request(ip, to, &self.local)
                && !self.say(&request)
            {
                return self.local.neighbours.not_sent(ip, now);
            }
        }
    }
}

/// The question for the MAC address of `ip`, to everybody or to whom had it last. `None` if the port has no address of that
/// family to ask from.
fn request<'a>(ip: IpAddr, to: Option<MacAddr>, at: &Local) -> Option<Reply<'a>> {
    match (at.way_to(ip, None).ok()?.src, ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Reply {
            link: frames::Link { src: at.mac, dst: to.unwrap_or(MacAddr::BROADCAST), vlans: at.tags() },
            body: Body::Arp(arp::Packet::request(at.mac, src, dst)),
        }),
        (IpAddr::V6(src), IpAddr::V6(target)) => {
            let group = icmpv6::solicited_node(target);
            let dst = if to.is_some() { target } else { group };
            let asked = icmpv6::Solicitation { target, source_mac: Some(at.mac) };
            Some(Reply {
                link: frames::Link {
                    src: at.mac,
                    dst: to.unwrap_or(MacAddr::for_ipv6_multicast(group)),
                    vlans: at.tags(),
                },
                body: Body::Icmp6 { src, dst, message: icmpv6::Message::Solicitation(asked) },
            })
        }
        _ => None,
    }
}

/// The frame that asks whether another station has an address of ours (RFC 5227, 2.1.1; RFC 4862, 5.4.2), or says that it is
/// here (RFC 5227, 2.3; RFC 4861, 7.2.6).
fn announcement<'a>(say: Say, at: &Local) -> Option<Reply<'a>> {
    let (Say::Probe(index) | Say::Announce(index)) = say;
    let probes = matches!(say, Say::Probe(_));
    let link = |dst| frames::Link { src: at.mac, dst, vlans: at.tags() };
    Some(match *at.addrs.get(index)? {
        IpAddr::V4(ip) => {
            let sender = if probes { Ipv4Addr::UNSPECIFIED } else { ip };
            let packet = arp::Packet::request(at.mac, sender, ip);
            Reply { link: link(MacAddr::BROADCAST), body: Body::Arp(packet) }
        }
        IpAddr::V6(ip) => {
            let (src, dst, message) = if probes {
                let asked = icmpv6::Solicitation { target: ip, source_mac: None };
                (Ipv6Addr::UNSPECIFIED, icmpv6::solicited_node(ip), icmpv6::Message::Solicitation(asked))
            } else {
                let here = icmpv6::Advertisement {
                    router: false,
                    solicited: false,
                    override_cached: true,
                    target: ip,
                    target_mac: Some(at.mac),
                };
                (ip, ALL_NODES, icmpv6::Message::Advertisement(here))
            };
            let link = link(MacAddr::for_ipv6_multicast(dst));
            Reply { link, body: Body::Icmp6 { src, dst, message } }
        }
    })
}
