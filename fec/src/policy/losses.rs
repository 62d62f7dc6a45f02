//! What is lost, as measured: up at once, down slowly.

/// Packets from which a rate is told; fewer count as so many, so that the first loss of all is not a storm.
const ENOUGH: u32 = 512;
/// What is left of a level after a round trip without as many losses: a hundredth after 90.
const DECAY: f64 = 0.95;
/// The share of packets that is taken for lost before anything was measured: the classes' full strength.
const FIRST: f64 = 1e-2;
/// The same of the mean burst: neighbouring losses.
const FIRST_BURST: f64 = 2.0;
/// Levels are told in steps of this factor; the lowest is what nobody has to protect much against.
const STEP: f64 = 2.0;
const LOWEST: f64 = 1e-6;
/// A step is left downwards when the level is this much of it, so that a rate at a boundary does not toggle.
const HYSTERESIS: f64 = 0.35;

/// An estimate of loss and burst length.
///
/// Too weak a protection costs a round trip with every loss, too strong a one some bandwidth. So what is worse than believed is believed at
/// once, and what is better is believed after many round trips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// Of the last two windows, packets and those lost.
    sent: [u32; 2],
    lost: [u32; 2],
    level: f64,
    told: f64,
    burst: f64,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses { sent: [0; 2], lost: [0; 2], level: FIRST, told: step_above(FIRST), burst: FIRST_BURST }
    }
}

impl Losses {
    /// Packets whose fate is known now, and how many of them are lost, repaired ones included. `run` is the mean number
    /// of those that were lost one after the other on a path; it counts if something was lost.
    pub fn observe(&mut self, sent: u32, lost: u32, run: f64) {
        self.sent[0] = self.sent[0].saturating_add(sent);
        self.lost[0] = self.lost[0].saturating_add(lost.min(sent));
        if self.sent[0] >= ENOUGH {
            // The window is full: the one before it goes when this one is half as old.
            self.sent = [0, self.sent[0]];
            self.lost = [0, self.lost[0]];
        }
        if lost > 0 {
            self.burst = run.max(self.burst + (run.max(1.0) - self.burst) / 8.0);
        }
        self.level = self.level.max(self.rate());
        self.tell();
    }

    /// A round trip is over.
    pub fn round(&mut self) {
        self.level = (self.level * DECAY).max(self.rate()).max(LOWEST / STEP);
        self.tell();
    }

    /// The share that is lost, a step above what was measured.
    pub fn loss(&self) -> f64 {
        self.told
    }

    /// The mean number of packets of a path that are lost one after the other.
    pub fn burst(&self) -> f64 {
        self.burst
    }

    fn rate(&self) -> f64 {
        let (sent, lost) = (self.sent[0].saturating_add(self.sent[1]), self.lost[0] + self.lost[1]);
        // A single loss says little of a rate.
        if lost < 2 { 0.0 } else { f64::from(lost) / f64::from(sent.max(ENOUGH)) }
    }

    fn tell(&mut self) {
        if self.level > self.told || self.level < self.told * HYSTERESIS {
            self.told = step_above(self.level);
        }
    }
}

/// The lowest step that is not below a level.
fn step_above(level: f64) -> f64 {
    let mut step = LOWEST;
    while step < level && step < 1.0 {
        step *= STEP;
    }
    step.min(1.0)
}
