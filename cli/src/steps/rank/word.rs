//! What ranks agree on, and what they say to each other.

use super::super::collective::Workload;
use roce_proto::wire::shim::Semantics;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// Version of the words below.
pub(super) const VERSION: u16 = 2;

/// A test: steps of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// The collective.
    pub workload: Workload,
    /// Bytes of each rank's buffer.
    pub size: u64,
    /// Steps that count, if their number was asked for.
    pub steps: Option<u64>,
    /// Time of the steps that count, if that was asked for.
    pub duration: Option<Duration>,
}

/// What ranks say to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub(super) enum Word {
    /// To rank 0: this is who I am, and what I was asked for.
    Join { version: u16, rank: u32, ranks: u32, tests: Vec<Test> },
    /// Of rank 0: where everybody is.
    Table { addresses: Vec<(IpAddr, u32)> },
    /// To a lower rank: this is who I am.
    Hello { rank: u32 },
    /// To rank 0: I have met everybody.
    Met {},
    /// Of rank 0: prepare this step of that test.
    Next { test: usize, step: u64 },
    /// To rank 0: I am prepared.
    Ready {},
    /// Of rank 0: begin.
    Go {},
    /// To rank 0: my part is done.
    Done { ns: u64, wrong: u64, sent: Sent },
    /// Of rank 0: that was all.
    Finish {},
    /// To rank 0: I know.
    Bye {},
    /// To all: there is no going on, because of that rank.
    Abort { rank: u32, why: String },
}

/// What a rank's transport sent in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Segments, those sent again included.
    pub segments: u64,
    /// Of them, those sent again.
    pub again: u64,
    /// Packets of parity.
    pub parity: u64,
}

/// Why there is no going on, and because of which rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank.
    pub rank: u32,
    /// What is wrong with it.
    pub why: String,
}

/// Which rank, of how many, and how long it waits for the others.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// From 0.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// How long it waits.
    pub wait: Duration,
    /// What it says of the messages of a step.
    pub semantics: Semantics,
}
