//! Echo requests of our own: whether a host is there, and how large a packet reaches it whole and comes back whole.

use super::Worker;
use super::control::{Body, Reply, send};
use super::port::Local;
use crate::ah::AhKey;
use crate::buffer::Buffer;
use crate::io::{PacketBurst, PortIo};
use roce_proto::wire::control as frames;
use roce_proto::wire::ethernet::VlanStack;
use roce_proto::wire::icmp::Echo;
use roce_proto::wire::ud::IpRoute;
use roce_proto::wire::{icmpv6, ipv4, ipv6};
use std::net::IpAddr;

/// What came back of an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply {
    /// Who answered.
    pub from: IpAddr,
    /// Sequence number of the request.
    pub sequence: u16,
    /// Bytes of the IP packet that came: of a sound answer as many as the request had.
    pub len: usize,
}

/// Why an echo request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EchoError {
    /// There is no such address handle.
    #[error("there is no such address handle")]
    NoAh,
    /// Nobody has told the MAC address of the next hop.
    #[error("the MAC address of the next hop is not known")]
    Unresolved,
    /// No such packet: shorter than its headers, or longer than the port's MTU.
    #[error("an echo request here has from {min} to {max} bytes, not {len}")]
    Length {
        /// Bytes asked for.
        len: usize,
        /// IP and ICMP headers.
        min: usize,
        /// MTU of the port.
        max: usize,
    },
    /// The port takes no more packets, or has no buffer, for the moment.
    #[error("the port is busy: try again after a round")]
    Busy,
}

/// Which answers a port waits for, and the last that came.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    ident: Option<u16>,
    last: Option<EchoReply>,
}

impl Awaited {
    /// Takes note of an answer in a packet of `header` bytes and the message; whether it was waited for.
    pub fn take(&mut self, from: IpAddr, header: usize, echo: &Echo<'_>) -> bool {
        let awaited = self.ident == Some(echo.ident);
        if awaited {
            self.last = Some(EchoReply { from, sequence: echo.sequence, len: header + echo.len() });
        }
        awaited
    }
}

impl<I: PortIo, B: Buffer> Worker<I, B> {
    /// Sends an echo request to the destination of an address handle: an IP packet of `len` bytes that routers may not
    /// fragment. Its port waits for answers with this identifier from now on, and for no others. Allocates: not for the fast
    /// path.
    ///
    /// # Errors
    /// See [`EchoError`].
    pub fn send_echo(&mut self, ah: AhKey, ident: u16, sequence: u16, len: usize) -> Result<(), EchoError> {
        let ah = self.core.ahs.get(ah).ok_or(EchoError::NoAh)?;
        let port = self.ports.get_mut(usize::from(ah.port)).ok_or(EchoError::NoAh)?;
        if !ah.ready {
            return Err(EchoError::Unresolved);
        }
        let route = ah.template.route();
        let header = match route.ip {
            IpRoute::V4 { .. } => ipv4::Header::LEN,
            IpRoute::V6 { .. } => ipv6::Header::LEN,
        };
        let (min, max) = (header + Echo::HEADER_LEN, usize::from(port.io.info().mtu));
        if !(min..=max).contains(&len) {
            return Err(EchoError::Length { len, min, max });
        }
        let data = vec![0; len - min];
        let echo = Echo { is_reply: false, ident, sequence, data: &data };
        let body = match route.ip {
            IpRoute::V4 { src, dst, .. } => Body::Echo4 { src, dst, echo },
            IpRoute::V6 { src, dst, .. } => Body::Icmp6 { src, dst, message: icmpv6::Message::Echo(echo) },
        };
        let vlans = VlanStack::single(route.vlan);
        let link = frames::Link { src: route.src_mac, dst: route.dst_mac, vlans };
        let request = Reply { link, body };
        if port.tx.is_full()
            || !send(
                &mut port.io,
                &mut port.tx,
                &mut port.runs,
                &mut port.unsealed,
                port.capture.as_ref(),
                &request,
            )
        {
            return Err(EchoError::Busy);
        }
        port.local.awaited.ident = Some(ident);
        Ok(())
    }

    /// The last answer that came to port `index` since this was asked.
    pub fn echo_reply(&mut self, index: usize) -> Option<EchoReply> {
        self.ports.get_mut(index)?.local.awaited.last.take()
    }
}

impl Local {
    /// An answer to an echo request, addressed to the port: whether it was waited for.
    pub(super) fn take_echo_reply(&mut self, from: IpAddr, echo: &Echo<'_>) -> bool {
        let header = if from.is_ipv4() { ipv4::Header::LEN } else { ipv6::Header::LEN };
        let awaited = self.awaited.take(from, header, echo);
        if awaited {
            self.counters.echo += 1;
        }
        awaited
    }
}
