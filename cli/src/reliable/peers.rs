//! The further peers of a test: a session each, and what one costs.

use super::end::{End, lost};
use super::{Audience, Message};
use crate::error::Error;
use dataplane::io::PortIo;
use roce_proto::time::Instant;
use roce_proto::transport::{Address, Event, SessionKey};
use roce_proto::types::Qpn;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Sessions that are begun and not open yet: what a peer answers at a time without memory.
const AT_ONCE: usize = 48;
/// How long nothing may come of opening sessions.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the sessions of a test cost one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    /// Resident bytes more than before they were opened, for each.
    pub bytes_each: f64,
    /// Opening them all took so long, nanoseconds.
    pub setup_ns: u64,
}

impl Cost {
    fn since(begun: Instant, before: u64, now: Instant, count: usize) -> Cost {
        let more = resident().saturating_sub(before);
        let setup_ns = now.saturating_since(begun).as_nanos() as u64;
        Cost { bytes_each: more as f64 / count.max(1) as f64, setup_ns }
    }
}

/// Bytes of this process that are resident; 0 where the kernel does not say.
fn resident() -> u64 {
    // It walks the page tables; the counters of `statm` are some dozen pages off for each processor.
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Opens a session with each further queue pair of `server`; returns all, `first` before the others.
pub(super) fn open<I: PortIo + 'static>(
    end: &mut End<I>,
    server: Address,
    first: SessionKey,
    count: u16,
    audience: &mut impl Audience,
) -> Result<(Vec<SessionKey>, Cost), Error> {
    let (begun, before) = (end.now, resident());
    let mut sessions = Vec::with_capacity(usize::from(count));
    sessions.push(first);
    let (mut up, mut moved) = (1, end.now);
    while up < usize::from(count) {
        while sessions.len() < usize::from(count) && sessions.len() - up < AT_ONCE {
            let number = server.qpn.get() + sessions.len() as u32;
            let qpn = Qpn::new(number).ok_or_else(|| Error::failed("no queue pair number is left"))?;
            let (now, (reliable, worker)) = (end.now, end.both());
            let key = reliable.connect(worker, Address { qpn, ..server }, now).map_err(Error::failed)?;
            sessions.push(key);
        }
        end.round(false);
        while let Some(event) = end.event() {
            match event {
                Event::Up { .. } => (up, moved) = (up + 1, end.now),
                Event::Down { reason, .. } => return Err(lost(reason)),
            }
            if up.is_multiple_of(256) {
                audience.opening(up, count);
            }
        }
        check(end, moved, up, count)?;
    }
    audience.opening(up, count);
    let cost = Cost::since(begun, before, end.now, usize::from(count) - 1);
    Ok((sessions, cost))
}

/// Takes the sessions that a client opens with each further queue pair; returns all, `first` before the others.
pub(super) fn accept<I: PortIo + 'static>(
    end: &mut End<I>,
    first: SessionKey,
    count: u16,
    audience: &mut impl Audience,
) -> Result<(Vec<SessionKey>, Cost), Error> {
    let (begun, before) = (end.now, resident());
    let (reliable, worker) = end.both();
    reliable.widen(worker, count).map_err(Error::failed)?;
    let client = reliable.engine().peer(first).ok_or_else(|| Error::failed("the client is gone"))?;
    end.say(first, &Message::Connect {})?;
    let mut sessions = vec![first; usize::from(count)];
    let (mut up, mut moved) = (1, end.now);
    while up < usize::from(count) {
        end.round(false);
        while let Some(event) = end.event() {
            match event {
                // By the same peer, and over another queue pair each time.
                Event::Up { session, peer, .. } if (peer.ip, peer.qpn) == (client.ip, client.qpn) => {
                    if let Some(place) = sessions.get_mut(usize::from(peer.via)) {
                        *place = session;
                        (up, moved) = (up + 1, end.now);
                    }
                }
                Event::Up { session, .. } => end.listen(session)?,
                Event::Down { session, reason, .. } if session == first => return Err(lost(reason)),
                Event::Down { .. } => {}
            }
            if up.is_multiple_of(256) {
                audience.opening(up, count);
            }
        }
        // Receives of another test that is over.
        while end.reliable.poll_completion().is_some() {}
        check(end, moved, up, count)?;
    }
    let cost = Cost::since(begun, before, end.now, usize::from(count) - 1);
    Ok((sessions, cost))
}

fn check<I: PortIo + 'static>(end: &End<I>, moved: Instant, up: usize, count: u16) -> Result<(), Error> {
    end.check()?;
    if end.now.saturating_since(moved) > PATIENCE {
        return Err(Error::failed(format_args!(
            "only {up} of {count} sessions were opened: the other side is gone, or loses too much"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_becomes_resident() {
        let before = resident();
        assert!(before > 1 << 20, "{before}");
        // More than malloc ever serves from memory that was given back and stayed resident, and than other tests give back meanwhile.
        let touched = std::hint::black_box(vec![1u8; 128 << 20]);
        let after = resident();
        assert!(after > before + (64 << 20), "{before} {after} {}", touched.len());
    }
}
