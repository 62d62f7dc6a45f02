//! Neighbours from the kernel's table, for ports that are interfaces of the kernel: a thread that asks by netlink (rtnetlink(7))
//! for those that the worker needs and passes on what changes.

use crate::error::Error;
use dataplane::feed::{Feed, Feeder};
use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use roce_proto::wire::ethernet::MacAddr;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Multicast group of changes to neighbour tables: RTNLGRP_NEIGH of linux/rtnetlink.h.
const NEIGHBOUR_GROUP: u32 = 3;

/// How often the thread looks for questions and news.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Rounds of reading the table before it is read anew.
const READ_LIMIT: u32 = 100;

/// Addresses that are kept in mind at the most; four times as many as a worker's table has by default.
const MAX_WATCHED: usize = 65_536;

/// The thread; it ends when this is dropped.
pub struct KernelTable {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KernelTable {
    /// Starts the thread for an interface of this name, and returns the worker's end of what it knows.
    ///
    /// # Errors
    /// There is no such interface, or no netlink.
    pub fn start(interface: &str) -> Result<(KernelTable, Feed), Error> {
        let cannot = |e: io::Error| {
            Error::usage(format_args!("cannot take neighbours from the kernel's table of {interface}: {e}"))
        };
        let any = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
        let any = any.map_err(|e| cannot(e.into()))?;
        let index = rustix::net::netdevice::name_to_index(&any, interface).map_err(|e| cannot(e.into()))?;
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(cannot)?;
        socket.bind_auto().map_err(cannot)?;
        socket.add_membership(NEIGHBOUR_GROUP).map_err(cannot)?;
        socket.set_non_blocking(true).map_err(cannot)?;
        let (feed, feeder) = dataplane::feed::pair();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut watch = Watch::new(socket, index, feeder);
        let thread = std::thread::Builder::new().name("neighbours".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                watch.round();
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Ok((KernelTable { stop, thread: Some(thread.map_err(cannot)?) }, feed))
    }
}

impl Drop for KernelTable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is known of an address that the worker needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    mac: Option<MacAddr>,
    /// The worker has not been told yet.
    news: bool,
}

struct Watch {
    socket: Socket,
    index: u32,
    feeder: Feeder,
    watched: HashMap<IpAddr, Known>,
    /// To be resolved unless the table, read just before, has them: the request changes what stands there, even permanent
    /// entries.
    unknown: Vec<IpAddr>,
    /// The table is being read: rounds until that is given up, if its end was lost.
    reading: u32,
    may_ask: bool,
}

impl Watch {
    fn new(socket: Socket, index: u32, feeder: Feeder) -> Watch {
        let (watched, unknown) = (HashMap::new(), Vec::new());
        Watch { socket, index, feeder, watched, unknown, reading: 0, may_ask: true }
    }

    fn round(&mut self) {
        self.reading = self.reading.saturating_sub(1);
        while self.reading == 0
            && let Some(ip) = self.feeder.wanted()
        {
            if self.watched.len() >= MAX_WATCHED {
                self.watched.clear();
            }
            // The worker asks because it has none, or has forgotten.
            let known = self.watched.entry(ip).or_default();
            known.news = known.mac.is_some();
            self.unknown.push(ip);
        }
        if !self.unknown.is_empty() && self.reading == 0 {
            self.read_table();
        }
        self.listen();
        for (ip, known) in self.watched.iter_mut().filter(|(_, known)| known.news) {
            known.news = !self.feeder.tell(*ip, known.mac);
        }
    }

    fn read_table(&mut self) {
        self.reading = READ_LIMIT;
        self.send(&RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), NLM_F_DUMP);
    }

    /// The table was read to its end: what it has not got is resolved.
    fn read(&mut self) {
        self.reading = 0;
        for ip in std::mem::take(&mut self.unknown) {
            if self.watched.get(&ip).is_none_or(|known| known.mac.is_none()) {
                self.send(&resolve(ip, self.index), NLM_F_CREATE);
            }
        }
    }

    fn send(&self, message: &RouteNetlinkMessage, flags: u16) {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message.clone()));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        if let Err(e) = self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0) {
            // The worker asks again in a second.
            tracing::debug!("netlink: {e}");
        }
    }

    /// Takes what the kernel has to say.
    fn listen(&mut self) {
        loop {
            let bytes = match self.socket.recv_from_full() {
                Ok((bytes, _)) => bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => {
                    // News were lost (ENOBUFS): the table as it is now tells them again.
                    tracing::debug!("netlink: {e}");
                    return self.read_table();
                }
            };
            for message in messages(&bytes) {
                self.take(message.payload);
            }
        }
    }

    fn take(&mut self, payload: NetlinkPayload<RouteNetlinkMessage>) {
        let (neighbour, gone) = match payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(n)) => (n, false),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(n)) => (n, true),
            NetlinkPayload::Error(e) if e.code.is_some() && std::mem::take(&mut self.may_ask) => {
                return tracing::warn!(
                    "the kernel does not resolve neighbours for us ({}; it wants CAP_NET_ADMIN): only those that it knows \
                     anyway are found",
                    e.to_io()
                );
            }
            NetlinkPayload::Done(_) => return self.read(),
            _ => return,
        };
        let Some((ip, mac)) = entry(&neighbour, self.index) else { return };
        if gone {
            // Cleared away because the kernel itself did not use it, most often: it is resolved again, and the worker hears of it
            // if that fails or brings another address.
            if let Some(known) = self.watched.get_mut(&ip)
                && !self.unknown.contains(&ip)
            {
                known.mac = None;
                self.unknown.push(ip);
            }
            return;
        }
        let failed = neighbour.header.state == NeighbourState::Failed;
        if let Some(known) = self.watched.get_mut(&ip)
            && (known.mac != mac || failed)
        {
            *known = Known { mac, news: mac.is_some() || failed };
        }
    }
}

/// The messages of a datagram. One that cannot be understood is passed over.
fn messages(mut bytes: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    let mut all = Vec::new();
    // Each begins with its length and at a multiple of four bytes (NLMSG_ALIGN).
    while let Some(length) = bytes.first_chunk() {
        let len = (u32::from_ne_bytes(*length) as usize).next_multiple_of(4);
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
            Ok(message) => all.push(message),
            Err(e) => tracing::debug!("netlink: {e}"),
        }
        match bytes.get(len..) {
            Some(rest) if len > 0 => bytes = rest,
            _ => break,
        }
    }
    all
}

/// The request to resolve `ip` now, as if a packet was to be sent to it.
fn resolve(ip: IpAddr, index: u32) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.ifindex = index;
    message.header.state = NeighbourState::None;
    message.header.flags = NeighbourFlags::Use;
    let ip = match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    message.attributes.push(NeighbourAttribute::Destination(ip));
    RouteNetlinkMessage::NewNeighbour(message)
}

/// What an entry of the interface `index` says: an address, and the MAC address that may be used for it.
fn entry(message: &NeighbourMessage, index: u32) -> Option<(IpAddr, Option<MacAddr>)> {
    if message.header.ifindex != index {
        return None;
    }
    let ip = message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    let usable = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    );
    let mac = message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(mac) => <[u8; 6]>::try_from(mac.as_slice()).ok().map(MacAddr),
        _ => None,
    });
    Some((ip, mac.filter(|_| usable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(state: NeighbourState, mac: &[u8]) -> NeighbourMessage {
        let RouteNetlinkMessage::NewNeighbour(mut message) = resolve("192.0.2.7".parse().unwrap(), 5) else {
            panic!()
        };
        message.header.state = state;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        message
    }

    #[test]
    fn entries_count_as_far_as_they_may_be_used() {
        let ip = "192.0.2.7".parse().unwrap();
        let mac = [2, 0, 0, 0, 0, 9];
        let known = |state, mac: &[u8], index| entry(&message(state, mac), index);
        for state in [NeighbourState::Reachable, NeighbourState::Stale, NeighbourState::Permanent] {
            assert_eq!(known(state, &mac, 5), Some((ip, Some(MacAddr(mac)))));
            assert_eq!(known(state, &mac, 6), None, "another interface");
            assert_eq!(known(state, &mac[..5], 5), Some((ip, None)));
        }
        assert_eq!(known(NeighbourState::Failed, &mac, 5), Some((ip, None)));
        assert_eq!(known(NeighbourState::Incomplete, &mac, 5), Some((ip, None)));
    }

    #[test]
    fn a_request_is_what_the_kernel_expects() {
        let mut packet = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::from(resolve("192.0.2.7".parse().unwrap(), 5)),
        );
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        // struct ndmsg (family, padding, index, state, flags NTF_USE, type), then NDA_DST.
        assert_eq!(bytes[4..6], 28u16.to_ne_bytes(), "RTM_NEWNEIGH");
        assert_eq!(bytes[16..28], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(bytes[28..36], [8, 0, 1, 0, 192, 0, 2, 7]);
        let twice = [bytes.clone(), bytes].concat();
        assert_eq!(messages(&twice).len(), 2);
    }
}
