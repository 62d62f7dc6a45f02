//! What goes into an engine and what comes out of it: plain values.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use super::protect::Shards;
use crate::time::Instant;
use crate::types::Qpn;
use crate::wire::shim::{CloseReason, Kind, RefuseReason, Semantics, Seq, ShimError};
use thiserror::Error;

/// Where a peer is: its IP address, its queue pair, and by which of our own we speak with it. UDP source ports do not count, they
/// are paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// IP address.
    pub ip: IpAddr,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Which of our own queue pairs its packets come to and ours leave from: 0 where there is one.
    pub via: u16,
}

impl Address {
    /// By the first of our own queue pairs.
    pub const fn new(ip: IpAddr, qpn: Qpn) -> Address {
        Address { ip, qpn, via: 0 }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (queue pair {})", self.ip, self.qpn)
    }
}

/// Where a path of a session leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Which of our own ports it leaves from: 0 is the first, others as [`Config::rails`](super::Config::rails) has them for the peer's
    /// family.
    pub rail: u8,
    /// IP address of the peer's port.
    pub ip: IpAddr,
    /// The peer's queue pair there.
    pub qpn: Qpn,
    /// Which of our own queue pairs on the first port it leaves from, if it leaves there.
    pub via: u16,
}

/// A session of an engine. It goes stale when the session is gone, and then names no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SessionKey {
    /// The place of the session, below [`Limits::sessions`](super::Limits::sessions): an index for what a driver keeps of it. It is
    /// given out again once the session is gone.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// A message to send. Its bytes stay with the caller, who gives parts of them when a [`Transmit`] asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// The caller's name for the operation.
    pub token: u64,
    /// Bytes of the message, at most 2⁴⁸ − 1 and at most 2³² segments.
    pub len: u64,
    /// The application's communicator.
    pub communicator: u32,
    /// The application's tag.
    pub tag: u64,
    /// What the application says of the message.
    pub semantics: Semantics,
}

/// A message to receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvRequest {
    /// The caller's name for the operation.
    pub token: u64,
    /// The longest message that it takes, in bytes.
    pub capacity: u64,
    /// The application's communicator.
    pub communicator: u32,
    /// The application's tag.
    pub tag: u64,
    /// Which step of its communicator's it belongs to, if the application says so: the receive is then expected to be filled soon after others of its step, and
    /// with all of its capacity. What is missing is asked for before any time-out.
    pub step: Option<u32>,
}

/// Which operation a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A send: the message has been placed at the peer.
    Send,
    /// A receive: the message is here.
    Recv,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Status {
    /// Every byte is in its place.
    #[error("success")]
    Success,
    /// The message is longer than its receive.
    #[error("the message is longer than the receive posted for it")]
    TooLong,
    /// The session went down; its event says why.
    #[error("the session went down")]
    SessionDown,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The session.
    pub session: SessionKey,
    /// Send or receive.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// The name that the request gave.
    pub token: u64,
    /// Bytes of the message; of a receive that got none, 0.
    pub len: u64,
    /// The communicator.
    pub communicator: u32,
    /// The tag.
    pub tag: u64,
    /// Number of the message among those of its session, communicator and tag.
    pub ordinal: Seq,
    /// When it was posted.
    pub posted: Instant,
    /// When it ended.
    pub done: Instant,
    /// Of a send, segments that were sent again.
    pub retransmitted: u32,
    /// Of a send with losses, from the first verdict to the last segment's acknowledgement; otherwise zero.
    pub recovery: Duration,
}

/// What happened to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is open. The first thing that an application hears of a session that a peer began.
    Up {
        /// The session.
        session: SessionKey,
        /// Its peer.
        peer: Address,
        /// Whether the peer began it.
        accepted: bool,
    },
    /// It is gone, and so is its key.
    Down {
        /// The session.
        session: SessionKey,
        /// Its peer.
        peer: Address,
        /// Why.
        reason: DownReason,
    },
}

/// Why a session went down. The text says what is likely wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DownReason {
    /// The application closed it.
    #[error("closed")]
    Closed,
    /// The peer closed it.
    #[error("closed by the peer{}", closing(.0))]
    ByPeer(CloseReason),
    /// The peer began anew.
    #[error("the peer restarted: connect again")]
    Restarted,
    /// The peer knows nothing of the session.
    #[error("the peer has forgotten the session, most likely it restarted: connect again")]
    Forgotten,
    /// The peer refused it.
    #[error("refused by the peer: {}", refusal(.0))]
    Refused(RefuseReason),
    /// No answer to the handshake.
    #[error(
        "no answer within {0:.1?}: is an endpoint listening there, with this queue pair number and Q_Key, and does a firewall let UDP port 4791 pass?"
    )]
    NoAnswer(Duration),
    /// The peer fell silent.
    #[error(
        "nothing heard for {silent:.1?} ({unacknowledged} segments unacknowledged, last sent on path {path}): {}",
        if *.unacknowledged > 0 { "the peer stopped, or the network in between loses everything" } else { "the peer stopped without closing, or the network is cut" }
    )]
    Silence {
        /// Since the last packet from it.
        silent: Duration,
        /// Segments in flight.
        unacknowledged: u32,
        /// The path that was used last.
        path: u8,
    },
}

fn closing(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::Application => "",
        CloseReason::Silence => ", which had heard nothing from here for too long",
        CloseReason::Protocol => ", which found a breach of the protocol",
    }
}

fn refusal(reason: &RefuseReason) -> &'static str {
    match reason {
        RefuseReason::Version => "it speaks another version of the protocol",
        RefuseReason::Full => "it has no room for another session; raise its limit",
        RefuseReason::NotListening => "it does not listen",
        RefuseReason::Sizes => "its segment size or window cannot be agreed on",
    }
}

/// Why a session was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// Every session is in use.
    #[error("all {0} sessions are in use: raise limits.sessions or close some")]
    Full(u32),
    /// There is a session with this peer.
    #[error("there is a session with this peer already")]
    Exists(SessionKey),
}

/// Why an operation was not posted; nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// The session is gone.
    #[error("no such session")]
    NoSession,
    /// The session is not open yet.
    #[error("the session is not open yet: wait for its event")]
    NotOpen,
    /// The tables are full for now; take completions, run rounds, and try again.
    #[error("{0} operations are outstanding: take completions and try again")]
    Full(u32),
    /// More different tags than the session may have.
    #[error("more than {0} communicators and tags in use: raise limits.session_channels or limits.channels")]
    Channels(u32),
    /// The message is longer than the protocol can tell.
    #[error("a message of {len} bytes, at most {max} with this session's segments")]
    TooLong {
        /// Bytes asked for.
        len: u64,
        /// The most there can be.
        max: u64,
    },
}

impl PostError {
    /// Whether trying again after a round can succeed.
    pub const fn is_back_pressure(self) -> bool {
        matches!(self, PostError::Full(_) | PostError::NotOpen)
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the peer of a session.
    Session(SessionKey),
    /// An answer outside any session, back to where a packet came from.
    Address(Address),
}

/// Bytes of a message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The send's token.
    pub token: u64,
    /// Where in the message.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// A packet to send: the header was written, the bytes of [`source`](Transmit::source) follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub to: Destination,
    /// On which path of the session.
    pub path: u8,
    /// What it is. Control carries [`immediate`](crate::wire::shim::immediate).
    pub kind: Kind,
    /// Bytes of header.
    pub header_len: u16,
    /// The segment, if it has one.
    pub source: Option<Source>,
    /// What the parity shard behind the header is made of, if it is one.
    pub parity: Option<Shards>,
    /// Whether another segment may follow in the same packet, see [`Engine::follow`](super::Engine::follow).
    pub more: bool,
}

/// Where the segment of a received packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a posted receive.
    Receive {
        /// The receive's token.
        token: u64,
        /// Where in the message.
        offset: u64,
    },
    /// In a block of the bounce pool: no receive is posted yet.
    Block(u32),
    /// In a place for parity: other segments may be repaired with it.
    Shard(u32),
}

/// What to do with the payload of a received packet, before the engine is called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where to.
    pub to: Place,
    /// Bytes: the last ones of the packet's payload.
    pub len: u32,
}

/// Bytes that leave the bounce pool for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The block, free for others after this.
    pub block: u32,
    /// Bytes from its beginning.
    pub len: u32,
    /// The receive's token.
    pub token: u64,
    /// Where in the message.
    pub offset: u64,
}

/// What a driver knows of a received packet beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Source IP address and source queue pair.
    pub from: Address,
    /// Whether the IP header carried Congestion Experienced.
    pub ce: bool,
}

/// What a received packet led to. Each is counted in one counter of [`Counters`](super::Counters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The engine has what it needs.
    Taken(Kind),
    /// The segment is new: it must be placed.
    Place(Placement),
    /// The packet is dropped.
    Dropped(Drop),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Drop {
    /// It is not one of ours.
    #[error(transparent)]
    Malformed(#[from] ShimError),
    /// Its session id is not that of a living session.
    #[error("unknown session")]
    UnknownSession,
    /// It did not come from the session's peer.
    #[error("not from the session's peer")]
    ForeignSource,
    /// It came before the session was open.
    #[error("the session is not open")]
    NotOpen,
    /// The segment was there already.
    #[error("duplicate")]
    Duplicate,
    /// The sequence lies beyond the window.
    #[error("beyond the window")]
    BeyondWindow,
    /// Length, segment number or path contradict the message or session.
    #[error("inconsistent")]
    Inconsistent,
    /// The message was rejected.
    #[error("of a rejected message")]
    Rejected,
    /// No receive, and the message is too long to come without.
    #[error("unexpected and longer than the eager limit")]
    NotEager,
    /// No room for unexpected data.
    #[error("no room for unexpected data")]
    NoBlock,
    /// No room for another incoming message.
    #[error("no room for another incoming message")]
    NoIncoming,
    /// No room for another window with a hole.
    #[error("no room for another window with a hole")]
    NoWindow,
    /// An older feedback or announcement than the last one.
    #[error("stale")]
    Stale,
    /// The cookie is neither this interval's nor the last one's.
    #[error("bad cookie")]
    BadCookie,
    /// The limit of answers outside sessions is reached.
    #[error("too many answers outside sessions")]
    RateLimited,
    /// Parity of a code that this end does not know.
    #[error("parity of a code that is not known")]
    UnknownCodec,
    /// Parity of a message that has no receive yet.
    #[error("parity of a message without a receive")]
    NoUse,
    /// No room for another parity shard.
    #[error("no room for parity")]
    NoShard,
}

impl Drop {
    /// How many kinds of drop there are.
    pub const COUNT: usize = 18;
    /// The names that counters and reports carry, in the order of [`index`](Drop::index).
    pub const NAMES: [&'static str; Drop::COUNT] = [
        "malformed",
        "unknown_session",
        "foreign_source",
        "not_open",
        "duplicate",
        "beyond_window",
        "inconsistent",
        "rejected",
        "not_eager",
        "no_block",
        "no_incoming",
        "no_window",
        "stale",
        "bad_cookie",
        "rate_limited",
        "unknown_codec",
        "no_use",
        "no_shard",
    ];

    /// The kind's number, without what a malformed packet says besides.
    #[inline]
    pub const fn index(self) -> usize {
        match self {
            Drop::Malformed(_) => 0,
            Drop::UnknownSession => 1,
            Drop::ForeignSource => 2,
            Drop::NotOpen => 3,
            Drop::Duplicate => 4,
            Drop::BeyondWindow => 5,
            Drop::Inconsistent => 6,
            Drop::Rejected => 7,
            Drop::NotEager => 8,
            Drop::NoBlock => 9,
            Drop::NoIncoming => 10,
            Drop::NoWindow => 11,
            Drop::Stale => 12,
            Drop::BadCookie => 13,
            Drop::RateLimited => 14,
            Drop::UnknownCodec => 15,
            Drop::NoUse => 16,
            Drop::NoShard => 17,
        }
    }

    /// The name that counters and reports carry.
    pub const fn name(self) -> &'static str {
        Drop::NAMES[self.index()]
    }
}
