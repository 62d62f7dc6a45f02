//! How ranks meet: each opens a session with rank 0, and once that has told it where the others are, with every rank below its own.

use super::word::{Failure, Test, VERSION, Word};
use super::{LONGEST, Rank, State};
use dataplane::io::PortIo;
use roce_proto::time::Instant;
use roce_proto::transport::{DownReason, Event, SessionKey};

/// Receives that are posted for words of each session.
const RECEIVES: usize = 4;

impl<I: PortIo + 'static> Rank<I> {
    /// Sessions that are wanted and not there: with rank 0, and once all are known, with the ranks below.
    pub(super) fn meet(&mut self, now: Instant) -> Result<(), Failure> {
        for rank in 0..self.who.rank {
            let at = rank as usize;
            let (None, Some(address)) = (self.sessions[at], self.addresses[at]) else { continue };
            match self.reliable.connect(&mut self.worker, address, now) {
                Ok(session) => self.know(rank, session),
                Err(e) => return Err(self.own(e.to_string())),
            }
        }
        let late = now.saturating_since(self.begun) > self.who.wait;
        let open = |session: &Option<SessionKey>| session.is_some_and(|s| self.reliable.engine().is_open(s));
        let absent = (0..).zip(&self.sessions).find(|(rank, s)| *rank != self.who.rank && !open(s));
        match absent {
            // Rank 0 looks after those above.
            Some((rank, _)) if late && (rank < self.who.rank || self.who.rank == 0) => {
                let why = format!(
                    "did not come within {:?}: was it started, and does the network between let it through?",
                    self.who.wait
                );
                Err(Failure { rank, why })
            }
            Some(_) => Ok(()),
            None if !self.met => {
                self.met = true;
                self.report(Word::Met {})
            }
            None => Ok(()),
        }
    }

    pub(super) fn know(&mut self, rank: u32, session: SessionKey) {
        self.sessions[rank as usize] = Some(session);
        let slot = session.slot();
        if self.of_slot.len() <= slot {
            self.of_slot.resize(slot + 1, None);
        }
        self.of_slot[slot] = Some(rank);
    }

    pub(super) fn rank_of(&self, session: SessionKey) -> Option<u32> {
        self.of_slot.get(session.slot()).copied().flatten()
    }

    pub(super) fn hear_of(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Up { session, accepted, .. } => {
                for _ in 0..RECEIVES {
                    self.listen(session, vec![0; LONGEST].into())?;
                }
                match self.rank_of(session) {
                    _ if accepted => Ok(()),
                    Some(0) => {
                        let (rank, ranks, tests) = (self.who.rank, self.who.ranks, self.tests.clone());
                        self.say(0, &Word::Join { version: VERSION, rank, ranks, tests })
                    }
                    Some(rank) => self.say(rank, &Word::Hello { rank: self.who.rank }),
                    None => Ok(()),
                }
            }
            Event::Down { session, reason, .. } => {
                let Some(rank) = self.rank_of(session) else { return Ok(()) };
                if let Some(place) = self.of_slot.get_mut(session.slot()) {
                    *place = None;
                }
                if self.sessions[rank as usize] == Some(session) {
                    self.sessions[rank as usize] = None;
                }
                let again = matches!(reason, DownReason::NoAnswer(_) | DownReason::Refused(_));
                match self.state {
                    State::Over => Ok(()),
                    // It may not be there yet.
                    State::Meeting if again => Ok(()),
                    _ if rank == 0 && self.test_is_last_and_done() => {
                        self.state = State::Over;
                        Ok(())
                    }
                    _ => Err(Failure { rank, why: reason.to_string() }),
                }
            }
        }
    }

    /// Rank 0 has said that this was all, and closes.
    fn test_is_last_and_done(&self) -> bool {
        self.test == usize::MAX
    }

    /// A rank has come to rank 0.
    pub(super) fn joined(
        &mut self,
        session: SessionKey,
        version: u16,
        rank: u32,
        ranks: u32,
        tests: &[Test],
    ) -> Result<(), Failure> {
        if let Some(why) = self.refusal(version, rank, ranks, tests) {
            // It is none of those that everything is told to.
            self.say_by(session, &Word::Abort { rank, why: why.clone() })?;
            return Err(Failure { rank, why });
        }
        self.know(rank, session);
        self.addresses[rank as usize] = self.reliable.engine().peer(session);
        if self.addresses.iter().all(Option::is_some) {
            let addresses = self.addresses.iter().flatten().map(|a| (a.ip, a.qpn.get())).collect();
            let word = Word::Table { addresses };
            for rank in 1..self.who.ranks {
                self.say(rank, &word)?;
            }
        }
        Ok(())
    }

    /// Why a rank cannot take part, if it cannot.
    fn refusal(&self, version: u16, rank: u32, ranks: u32, tests: &[Test]) -> Option<String> {
        if self.who.rank != 0 {
            return Some(format!("takes rank {} for rank 0", self.who.rank));
        }
        if version != VERSION {
            return Some(format!("speaks version {version}, not {VERSION}"));
        }
        if ranks != self.who.ranks || rank == 0 || rank >= ranks {
            let own = self.who.ranks;
            return Some(format!("says that it is rank {rank} of {ranks}, and rank 0 is of {own}"));
        }
        if tests != self.tests.as_slice() {
            return Some(
                "was asked for other tests than rank 0: --workload, -s, -a, -n and -D must be the same"
                    .to_owned(),
            );
        }
        self.sessions[rank as usize].is_some().then(|| "is there twice".to_owned())
    }
}
