//! What happened, as lines for people and as a number that two runs can be compared by.

use roce_proto::time::Instant;
use std::fmt;

/// Takes one line.
pub type Sink = Box<dyn FnMut(&str)>;

/// A record of a run.
pub struct Trace {
    hash: u64,
    events: u64,
    sink: Option<Sink>,
}

impl Trace {
    /// A record that is a number only.
    pub fn hash() -> Trace {
        Trace { hash: 0x243f_6a88_85a3_08d3, events: 0, sink: None }
    }

    /// The same, and each event as a line: time, host, event.
    pub fn lines(sink: impl FnMut(&str) + 'static) -> Trace {
        Trace { sink: Some(Box::new(sink)), ..Trace::hash() }
    }

    /// Notes an event: `what` and `value` go into the number, `line` is only called if lines are wanted.
    pub fn note<D: fmt::Display>(
        &mut self,
        now: Instant,
        host: Option<usize>,
        what: u64,
        value: u64,
        line: impl FnOnce() -> D,
    ) {
        self.events += 1;
        for word in [now.as_nanos(), host.map_or(u64::MAX, |h| h as u64), what, value] {
            // The multiplication of FNV-1a, over words, with a turn so that high bits come down.
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        if let Some(sink) = &mut self.sink {
            let text = match host {
                Some(host) => format!("{now} h{host:<3} {}", line()),
                None => format!("{now} net  {}", line()),
            };
            sink(&text);
        }
    }

    /// Whether lines are wanted.
    pub const fn has_lines(&self) -> bool {
        self.sink.is_some()
    }

    /// The number so far.
    pub const fn value(&self) -> u64 {
        self.hash
    }
}
