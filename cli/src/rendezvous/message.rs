//! What two ends of a benchmark say to each other, in-band over UD.
//!
//! JSON, because it happens a few times per test and a person may want to read it in a capture; split over as many UD
//! messages as the path's MTU asks for. Nothing here is reliable: whoever asks repeats the question until the answer
//! comes, and every answer can be given twice.

use serde::{Deserialize, Serialize};

/// Version of these messages. Ends with different versions refuse each other.
pub const VERSION: u16 = 1;

/// Which measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestKind {
    /// Throughput.
    Bw,
    /// Ping-pong latency.
    Lat,
}

impl TestKind {
    /// The subcommand.
    pub fn name(self) -> &'static str {
        match self {
            TestKind::Bw => "bw",
            TestKind::Lat => "lat",
        }
    }
}

impl TestKind {
    /// Whether a server of this kind serves clients of the other; the refusal is for the client's user.
    pub fn accepts(self, other: TestKind) -> Result<(), String> {
        if self == other {
            return Ok(());
        }
        let (ours, theirs) = (self.name(), other.name());
        Err(format!(
            "the server runs `spraywire {ours}`, the client `spraywire {theirs}`: use the same on both sides"
        ))
    }
}

/// What is to be measured: the client's wishes govern both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestSpec {
    /// Which measurement.
    pub kind: TestKind,
    /// Payload bytes of a message.
    pub size: u32,
    /// Queue pairs on each side, with consecutive numbers.
    pub qps: u16,
    /// Messages to send in all, or
    pub iters: Option<u64>,
    /// milliseconds to send for.
    pub duration_ms: Option<u64>,
    /// Sends outstanding per queue pair.
    pub tx_depth: u32,
    /// Receives posted per queue pair.
    pub rx_depth: u32,
    /// Both ends send.
    pub bidirectional: bool,
    /// Messages per second and sender, if limited.
    pub rate: Option<u64>,
}

/// What one end received.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RxReport {
    /// Messages completed into receive buffers.
    pub messages: u64,
    /// Those that came at once with the first of them: no time passed before they were there.
    #[serde(default)]
    pub first_burst: u64,
    /// From the first to the last of them, in nanoseconds.
    pub elapsed_ns: u64,
    /// The longest time between two of them, in nanoseconds; 0 where several ends are put together.
    #[serde(default)]
    pub longest_pause_ns: u64,
    /// Messages per second over the intervals within: the least, the first percentile, the median.
    pub interval_min: f64,
    /// First percentile.
    pub interval_p1: f64,
    /// Median.
    pub interval_p50: f64,
    /// Length of an interval in nanoseconds; 0 if the run was too short for any.
    pub interval_ns: u64,
    /// How many intervals.
    pub intervals: u32,
    /// Packets dropped during the test, by reason.
    pub drops: Vec<(String, u64)>,
    /// Messages that this end sent (as far as its driver took them).
    pub sent: u64,
    /// What came in each interval, where the results of several ends have to be put together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// Messages over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// The first message, on a clock that all ends of a side have in common, in nanoseconds.
    pub start_ns: u64,
    /// Length of an interval in nanoseconds.
    pub interval_ns: u64,
    /// Messages in each, from the first message on.
    pub counts: Vec<u64>,
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Message {
    /// Client: this is what I want.
    Hello {
        /// [`VERSION`].
        v: u16,
        /// Drawn by the client for its whole session.
        id: u64,
        /// Counts the tests of the session.
        test: u32,
        /// First of the client's data queue pairs.
        qpn: u32,
        /// The largest message the client's port carries.
        mtu: u32,
        /// Workers of the client, each of which has a session of its own with the server's of the same index.
        #[serde(default = "one")]
        workers: u16,
        /// The wish.
        spec: TestSpec,
    },
    /// Server: receives are posted, go.
    Welcome {
        /// Of the session.
        id: u64,
        /// Of the test.
        test: u32,
        /// First of the server's data queue pairs.
        qpn: u32,
    },
    /// Server: no.
    Refuse {
        /// Of the session.
        id: u64,
        /// What to do about it.
        why: String,
    },
    /// Client: I have sent everything.
    Done {
        /// Of the session.
        id: u64,
        /// Of the test.
        test: u32,
        /// Messages that the driver took.
        sent: u64,
    },
    /// Server: this is what came.
    Report {
        /// Of the session.
        id: u64,
        /// Of the test.
        test: u32,
        /// What came.
        rx: RxReport,
    },
    /// Client: are you there?
    Ping {
        /// Of the session.
        id: u64,
    },
    /// Server: yes.
    Pong {
        /// Of the session.
        id: u64,
        /// Messages received so far in the running test.
        received: u64,
    },
    /// Anybody: who is there? Needs no session.
    Probe {
        /// Drawn by who asks.
        id: u64,
    },
    /// The answer.
    About {
        /// Of the question.
        id: u64,
        /// The largest message the port carries, in bytes.
        mtu: u32,
        /// Tests run over the reliable service there.
        #[serde(default)]
        reliable: bool,
    },
    /// Either: the session is over.
    Bye {
        /// Of the session.
        id: u64,
    },
}

fn one() -> u16 {
    1
}

impl Message {
    /// The session it belongs to.
    pub fn session(&self) -> u64 {
        match self {
            Message::Hello { id, .. }
            | Message::Welcome { id, .. }
            | Message::Refuse { id, .. }
            | Message::Done { id, .. }
            | Message::Report { id, .. }
            | Message::Ping { id }
            | Message::Pong { id, .. }
            | Message::Probe { id }
            | Message::About { id, .. }
            | Message::Bye { id } => *id,
        }
    }
}
