//! What the engine keeps of a session, and of its messages.

use super::api::Address;
use super::congestion::Controller;
use super::copies::{Copying, Course};
use super::segments::Chunks;
use super::table::List;
use super::window::Window;
use crate::time::Instant;
use crate::wire::shim::{CloseReason, Cookie, RejectReason, Semantics, Seq, Ticks};
use fec::policy::Protection;

/// Where a session stands; see `docs/protocol.md`, section 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// An INIT without a cookie was sent.
    InitSent,
    /// The cookie was sent back.
    Echoed,
    /// Data may flow.
    Open,
    /// It is over; its event waits to be taken.
    Down,
}

/// Control packets that a session has to send.
pub mod due {
    /// The INIT.
    pub const INIT: u8 = 1;
    /// The ACCEPT.
    pub const ACCEPT: u8 = 2;
    /// A REJECT.
    pub const REJECT: u8 = 4;
    /// An ANNOUNCE.
    pub const ANNOUNCE: u8 = 8;
    /// PROBEs, on the paths of a mask.
    pub const PROBE: u8 = 16;
    /// A FEEDBACK.
    pub const FEEDBACK: u8 = 32;
    /// The CLOSE of a session that is over.
    pub const CLOSE: u8 = 64;
    /// Announcements of all receives that are posted: not a packet, but what makes some.
    pub const TELL: u8 = 128;
}

/// Figures of a session since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Segments sent for the first time.
    pub segments_sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Of them, those that the peer had.
    pub spurious: u64,
    /// Segments received for the first time.
    pub segments_received: u64,
    /// Segments received more than once.
    pub duplicates: u64,
    /// Bytes of messages whose send has completed.
    pub bytes_sent: u64,
    /// Bytes of messages whose receive has completed.
    pub bytes_received: u64,
}

/// The sender's half.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Tx {
    /// The next sequence.
    pub next: Seq,
    /// The first that is not acknowledged.
    pub una: Seq,
    /// Segments that are not acknowledged.
    pub chunks: Chunks,
    /// Of them, those to be sent again.
    pub requested: u32,
    /// Of them, those in flight.
    pub in_flight: u32,
    /// One more than the record of what it protects, or 0.
    pub protecting: u32,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Messages that were begun and have segments that were never sent.
    pub active: List,
    /// Messages that may begin.
    pub ready: List,
    /// Messages that may begin once the grant reaches for all their segments.
    pub eager: List,
    /// Number of the next message.
    pub next_message: Seq,
    /// Unexpected segments that were sent in all.
    pub granted: Seq,
    /// Unexpected segments that may be sent in all.
    pub grant: Seq,
    /// The segment that asked for feedback last.
    pub asked: Seq,
    /// The first segment since there was nothing more to send.
    pub burst_from: Seq,
    /// What to wait for an acknowledgement before probing, nanoseconds.
    pub probe_after: u32,
    /// Messages of several segments that were begun and are not all acknowledged.
    pub begun: u16,
    /// How many of these the peer takes.
    pub most_begun: u16,
    /// How many are in `active`.
    pub active_count: u8,
    /// Segments sent since the turn of another message.
    pub burst: u8,
    /// The path used last.
    pub path: u8,
    /// Expiries since the last progress: the first probes.
    pub expiries: u8,
    /// Receives were announced since those of messages that wait for the grant were looked for.
    pub raised: bool,
    /// The next probe asks.
    pub asking: bool,
    /// There was no room for some of the peer's announcements.
    pub forgot: bool,
    /// The shortest round trip of the last feedback had a queue in it.
    pub queued: bool,
    /// Messages that wait for their receive to be announced.
    pub waiting: u32,
    /// When to probe or to give segments up; [`Instant::MAX`] if nothing is in flight.
    pub at: Instant,
    /// When something was sent last.
    pub last: Instant,
    /// Number of the last feedback taken.
    pub feedback: Seq,
    /// The peer's count of duplicates.
    pub duplicates: u32,
    /// How much may be in flight.
    pub control: Controller,
    /// What to wait for an acknowledgement before giving it up, nanoseconds.
    pub patience: u32,
    /// How long the peer's reports were under way from packet to feedback, at the worst of late: nanoseconds.
    pub peer_delay: u32,
    /// The longest queueing delay that the last feedback told of, nanoseconds.
    pub longest: u32,
    /// Segments sent again that no duplicate has been counted against.
    pub doubtful: u32,
    /// When the newest segment was sent that is known to have arrived.
    pub newest: Instant,
    /// When a suspect segment becomes a loss.
    pub gap_at: Instant,
    /// When to ask for a feedback to judge by.
    pub time_at: Instant,
    /// When to ask for announcements, if some still wait then.
    pub ask_at: Instant,
    /// When to look again for a chunk.
    pub wake_at: Instant,
    /// When a bad path is to be probed.
    pub bad_at: Instant,
    /// When to give up on a repair.
    pub repair_at: Instant,
    /// Which copies are to be sent, while the session is among those that have some.
    pub copies: Copying,
    /// Verdicts by time since it changed.
    pub time_verdicts: u16,
    /// The peer's count of segments that it repaired.
    pub repaired: u16,
    /// How often the reordering window was doubled.
    pub doublings: u8,
    /// How often the peer was asked since it last told.
    pub asks: u8,
    /// Segments from one that asks for feedback to the next, if the window is too small to wait for the peer's count; or 0.
    pub ask_every: u8,
    /// How copies go.
    pub course: Course,
}

impl Tx {
    /// Nothing was sent; counters begin at `first`.
    pub fn new(first: Seq, control: Controller) -> Tx {
        Tx {
            next: first,
            una: first,
            chunks: Chunks::default(),
            requested: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            next_message: first,
            active: List::default(),
            active_count: 0,
            ready: List::default(),
            eager: List::default(),
            begun: 0,
            most_begun: 1,
            burst: 0,
            path: 0,
            ask_every: 0,
            granted: first,
            grant: Seq(0),
            feedback: Seq(0),
            duplicates: 0,
            doubtful: 0,
            repaired: 0,
            control,
            at: Instant::MAX,
            last: Instant::ZERO,
            peer_delay: 0,
            patience: 0,
            probe_after: 0,
            expiries: 0,
            gap_at: Instant::MAX,
            wake_at: Instant::MAX,
            waiting: 0,
            ask_at: Instant::MAX,
            asks: 0,
            asking: false,
            forgot: false,
            raised: false,
            asked: first.back(1),
            newest: Instant::ZERO,
            doublings: 0,
            time_verdicts: 0,
            time_at: Instant::MAX,
            longest: 0,
            queued: false,
            copies: Copying::from(first),
            course: Course::default(),
            burst_from: first,
            bad_at: Instant::MAX,
            protecting: 0,
            repair_at: Instant::MAX,
        }
    }
}

/// The receiver's half.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Rx {
    /// What has arrived.
    pub window: Window,
    /// When to see whether a feedback is to be sent.
    pub at: Instant,
    /// When to send it at the latest.
    pub latest: Instant,
    /// One more than the message that a segment came for last, or 0.
    pub last: u32,
    /// How many messages are coming in.
    pub incoming_count: u32,
    /// Of them, those of several segments that are not complete.
    pub partial: u32,
    /// Messages of 64 segments and more that are coming in.
    pub long: u32,
    /// Groups with parity, of which something is missing.
    pub groups: List,
    /// Segments that no feedback has told of.
    pub unreported: u16,
    /// Segments that were recovered, in all.
    pub repaired: u16,
    /// How often the wait for more segments of long messages was doubled, since few came in it.
    pub slowness: u8,
    /// The last wait for more segments was over without any: the next short message that comes after such a wait is answered at once.
    pub sparse: bool,
    /// The next feedback is a question.
    pub status: bool,
    /// Questions since the last new segment for a receive of a step.
    pub questions: u8,
    /// Number of the next feedback.
    pub feedback: Seq,
    /// Unexpected segments that the peer may send in all.
    pub grant: Seq,
    /// Duplicates in all.
    pub duplicates: u32,
    /// Number of the last announcement taken.
    pub announced: Seq,
    /// Path sequences that were skipped and have not come, in all.
    pub skipped: u32,
    /// Gaps that those were in, in all.
    pub gaps: u16,
    /// Parity shards that are kept of groups.
    pub shards: u32,
    /// Blocks held or reserved.
    pub blocks: u32,
    /// Messages coming in.
    pub incoming: List,
    /// When to see whether something is missing.
    pub ask_at: Instant,
    /// When the last question went.
    pub asked_at: Instant,
    /// The message to be rejected, the segment that came of it, and why.
    pub reject: (Seq, Seq, RejectReason),
}

impl Rx {
    /// Nothing has come; own counters begin at `first`.
    pub fn new(first: Seq) -> Rx {
        Rx {
            window: Window::new(Seq(0)),
            feedback: first,
            unreported: 0,
            long: 0,
            at: Instant::MAX,
            latest: Instant::MAX,
            slowness: 0,
            sparse: false,
            grant: Seq(0),
            blocks: 0,
            duplicates: 0,
            skipped: 0,
            gaps: 0,
            repaired: 0,
            announced: Seq(0),
            incoming: List::default(),
            incoming_count: 0,
            partial: 0,
            last: 0,
            questions: 0,
            status: false,
            asked_at: Instant::ZERO,
            ask_at: Instant::MAX,
            groups: List::default(),
            shards: 0,
            reject: (Seq(0), Seq(0), RejectReason::TooLong),
        }
    }
}

/// What a session's receives announce.
#[derive(Clone, Debug)]
pub struct Announcing {
    /// Channels to be announced.
    pub dirty: List,
    /// Channels of the announcement that is not acknowledged.
    pub outstanding: List,
    /// Number of the last announcement.
    pub number: Seq,
    /// When to repeat it.
    pub at: Instant,
    /// How often it was repeated.
    pub repeats: u8,
    /// The peer forgot some: all are to be made again.
    pub again: bool,
}

/// A session. With thousands of peers each packet finds it in no cache near by, so what packets touch stands together: first what all do, then what
/// segments that come in do, then what sending and feedback do, from one line of the cache to the next.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Session {
    /// The id by which its peer reaches it.
    pub id: u64,
    /// Its peer.
    pub peer: Address,
    /// When it began; then when the last packet came.
    pub heard: Instant,
    /// What the timer is set to.
    pub wheel_at: Instant,
    /// Bytes of a segment.
    pub segment: u32,
    /// Paths to probe.
    pub probe: u32,
    /// Where it stands.
    pub state: State,
    /// Control packets to send.
    pub due: u8,
    /// Whether it is among those with control packets to send.
    pub in_due: bool,
    /// Whether it is among those with data to send.
    pub in_ready: bool,
    /// Whether it is among those with copies to send.
    pub in_copying: bool,
    /// Paths in use.
    pub paths: u8,
    /// The path that answers go on.
    pub reply: u8,
    /// FEC codecs that both sides know, one bit each.
    pub codecs: u8,
    /// The receiver's half.
    pub rx: Rx,
    /// Its receives.
    pub receives: List,
    /// The id by which to reach its peer.
    pub remote: u64,
    /// Its sends.
    pub sends: List,
    /// Sequences that the peer accepts beyond its next.
    pub peer_window: u32,
    /// Largest message that may go unannounced.
    pub eager: u32,
    /// When to ask whether the peer is there; while the session begins, when to repeat the INIT.
    pub alive_at: Instant,
    /// Its channels.
    pub channels: List,
    /// Channels in use.
    pub channel_count: u32,
    /// First value of the peer's counters.
    pub peer_first: Seq,
    /// The sender's half.
    pub tx: Tx,
    /// What its receives announce.
    pub announcing: Announcing,
    /// Figures.
    pub stats: SessionStats,
    /// The cookie while the session begins.
    pub cookie: Cookie,
    /// The peer's incarnation.
    pub epoch: u64,
    /// The time in the peer's INIT, which the ACCEPT echoes.
    pub began: Ticks,
    /// Whether the peer began it.
    pub accepted: bool,
    /// What a CLOSE says.
    pub goodbye: CloseReason,
    /// Whether the event of its end was taken.
    pub told: bool,
    /// INITs sent.
    pub inits: u8,
}

/// A session, communicator and tag.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The session's slot.
    pub session: u32,
    /// The communicator.
    pub communicator: u32,
    /// The tag.
    pub tag: u64,
    /// Ordinal of the next send.
    pub next_send: Seq,
    /// The peer has receives for ordinals before it.
    pub through: Seq,
    /// Ordinal of the next receive.
    pub next_receive: Seq,
    /// Receives before it need to be announced.
    pub announce: Seq,
    /// What the last announcement said.
    pub announced: Seq,
    /// A message of it was postponed: its receives are announced, however small.
    pub always: bool,
    /// Whether it is in one of its session's lists of announcements.
    pub listed: bool,
    /// Long sends that wait for their receive.
    pub waiting: List,
}

/// A send.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The session's slot.
    pub session: u32,
    /// Its channel.
    pub channel: u32,
    /// The application's name for it.
    pub token: u64,
    /// Bytes.
    pub len: u64,
    /// Number of the message in its session.
    pub number: Seq,
    /// Number in its channel.
    pub ordinal: Seq,
    /// Segments in all.
    pub segments: u32,
    /// Segments that were sent.
    pub sent: u32,
    /// Segments that were acknowledged.
    pub acked: u32,
    /// Segments that were sent again.
    pub again: u32,
    /// What the application says of it.
    pub semantics: Semantics,
    /// How it is protected.
    pub protection: Option<Protection>,
    /// Segments at its beginning that have no parity though it is protected: what is lost of them is there again in time.
    pub bare: u32,
    /// It is one segment without parity, which others may share a packet with.
    pub alone: bool,
    /// Which queue it waits in.
    pub queue: Queue,
    /// Why the peer rejected it, if it did.
    pub void: Option<RejectReason>,
    /// Whether it drew on the grant.
    pub granted: bool,
    /// When it was posted.
    pub posted: Instant,
    /// When its first segment was lost; zero if none was.
    pub lost: Instant,
}

/// Where a send waits for its next segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Nowhere: all were.
    None,
    /// Among those that were begun.
    Active,
    /// Among those that may begin.
    Ready,
    /// Among those that draw on the grant.
    Eager,
    /// In its channel, for its receive to be announced.
    Waiting,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Receiving {
    /// The session's slot.
    pub session: u32,
    /// The communicator.
    pub communicator: u32,
    /// The tag.
    pub tag: u64,
    /// Number in its channel.
    pub ordinal: Seq,
    /// One more than its step's number in the table, or 0.
    pub step: u32,
    /// The application's name for it.
    pub token: u64,
    /// Bytes it takes.
    pub capacity: u64,
    /// When it was posted.
    pub posted: Instant,
}

/// A message of which something has come.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The session's slot.
    pub session: u32,
    /// Number of the message in its session.
    pub number: Seq,
    /// The communicator.
    pub communicator: u32,
    /// The tag.
    pub tag: u64,
    /// Number in its channel.
    pub ordinal: Seq,
    /// Bytes.
    pub length: u64,
    /// Segments in all.
    pub segments: u32,
    /// Segments that have not come; of a rejected one, those that came void.
    pub count: u32,
    /// What becomes of it.
    pub fate: Fate,
    /// Blocks that it holds.
    pub blocks: List,
}

/// What becomes of an incoming message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to this receive.
    Placed(u32),
    /// It lies in the bounce pool until its receive is posted.
    Unexpected,
    /// It came before its receive, which is too short: the rest is acknowledged and thrown away.
    Discarded,
    /// It cannot be taken: it must come void.
    Rejected(RejectReason),
}

/// A block of unexpected data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    /// Where in the message.
    pub offset: u64,
    /// The receive it moves to, once that is posted.
    pub token: u64,
    /// Bytes.
    pub len: u32,
}

#[cfg(test)]
mod tests {
    use super::super::path::Path;
    use super::*;
    use core::mem::offset_of;

    /// What `docs/protocol.md`, section 11, says of the records' sizes.
    #[test]
    fn records_keep_within_their_bounds() {
        assert!(
            size_of::<Session>() + size_of::<Path>() <= 768,
            "{} {}",
            size_of::<Session>(),
            size_of::<Path>()
        );
        // What is read in advance are these lines of the cache, see `Engine::look_at_sender`.
        let lines = [
            offset_of!(Session, rx),
            offset_of!(Session, rx.feedback),
            offset_of!(Session, tx),
            offset_of!(Session, tx.next_message),
        ];
        assert_eq!(lines, [64, 128, 256, 320]);
        assert_eq!([offset_of!(Session, tx.control), offset_of!(Session, tx.newest)], [384, 448]);
        assert!(size_of::<Channel>() <= 64, "{}", size_of::<Channel>());
        assert!(size_of::<Sending>() <= 128, "{}", size_of::<Sending>());
        assert!(size_of::<Receiving>() <= 64, "{}", size_of::<Receiving>());
        assert!(size_of::<Incoming>() <= 96, "{}", size_of::<Incoming>());
        assert!(size_of::<Block>() <= 24, "{}", size_of::<Block>());
        let step = size_of::<super::super::recovery::Step>();
        assert!(step <= 64, "{step}");
    }
}
