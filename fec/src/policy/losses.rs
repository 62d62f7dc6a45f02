//! What is lost, as measured: up at once, down slowly.

/// Packets of the short window: what a stream of 1 Gb/s sends in most of a round trip of 25 ms.
const SHORT: u32 = 512;
/// Runs of losses in it that tell a rate. Fewer are what a much lower rate has now and then: at 0.1 % one window of a hundred has four.
const TELLING: u32 = 4;
/// Packets of the long window, whose rate is believed whatever it is. With losses of 0.1 % in bursts of 8 it has two to four bursts, and at 1 Gb/s it is 25 round trips of 25 ms long.
const LONG: u32 = 16_384;
/// What is left of a level after a round trip without as many losses: a hundredth after 44, which together with both halves of the long window is less than a hundred.
const DECAY: f64 = 0.9;
/// The share of packets that is taken for lost before anything was measured: a long way that is neither good nor bad. Taken for ten times as much,
/// each session would begin with twice the parity, for as long as it takes to forget that. Taken for less, the first losses that come
/// together are sent again, and raise the level at once.
const FIRST: f64 = 1e-3;
/// The same of the mean burst: neighbouring losses; as if so many runs had been seen.
const FIRST_BURST: f64 = 2.0;
const FIRST_RUNS: f64 = 2.0;
/// Levels are told in steps of this factor; the lowest is what nobody has to protect much against.
const STEP: f64 = 2.0;
const LOWEST: f64 = 1e-6;
/// A step is left downwards when the level is this much of it, so that a rate at a boundary does not toggle.
const HYSTERESIS: f64 = 0.35;
/// Runs that the mean burst is taken over, and half as many: the length of a burst has no other scale than its mean, so 8 of them tell
/// that within a third.
const RUNS: f64 = 16.0;
/// Bursts are told in steps of √2, and another step is told when the mean is so far from this one, in steps.
const BURST_HYSTERESIS: f64 = 0.7;

/// Packets, those that were lost, and the runs that these came in: of a window that fills, and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window([Seen; 2]);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    sent: u32,
    lost: u32,
    runs: u32,
}

impl Window {
    fn observe(&mut self, size: u32, sent: u32, lost: u32, runs: u32) {
        let now = &mut self.0[0];
        now.sent = now.sent.saturating_add(sent);
        now.lost = now.lost.saturating_add(lost);
        now.runs = now.runs.saturating_add(runs);
        if now.sent >= size {
            // It is full: the one before it goes when this one is half as old.
            self.0 = [Seen::default(), self.0[0]];
        }
    }

    /// The share that was lost, of `size` packets at the least, if it was in enough runs.
    fn rate(&self, size: u32, runs: u32) -> f64 {
        let [now, before] = &self.0;
        let enough = now.runs.saturating_add(before.runs) >= runs;
        let sent = now.sent.saturating_add(before.sent).max(size);
        let lost = now.lost.saturating_add(before.lost);
        if enough { f64::from(lost) / f64::from(sent) } else { 0.0 }
    }
}

/// An estimate of loss and burst length.
///
/// Too weak a protection costs a round trip with every loss, too strong a one some bandwidth. So what is worse than believed is believed at
/// once, and what is better is believed after many round trips. A burst is one event, however long it is: rates are told from
/// the number of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    short: Window,
    long: Window,
    level: f64,
    told: f64,
    /// Lost packets and runs, the older ones less.
    run_lost: f64,
    runs: f64,
    burst: f64,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses {
            short: Window::default(),
            long: Window::default(),
            level: FIRST,
            told: step_above(FIRST),
            run_lost: FIRST_BURST * FIRST_RUNS,
            runs: FIRST_RUNS,
            burst: FIRST_BURST,
        }
    }
}

impl Losses {
    /// Packets whose fate is known now, how many of them are lost, repaired ones included, and in how many runs on a path they were.
    pub fn observe(&mut self, sent: u32, lost: u32, runs: u32) {
        let lost = lost.min(sent);
        let runs = if lost == 0 { 0 } else { runs.clamp(1, lost) };
        self.short.observe(SHORT, sent, lost, runs);
        self.long.observe(LONG, sent, lost, runs);
        if runs > 0 {
            let (lost, runs) = (f64::from(lost), f64::from(runs));
            if self.runs + runs > RUNS || lost / runs > self.run_lost / self.runs {
                // Longer ones count more, so that the first of them are noticed.
                (self.run_lost, self.runs) = (self.run_lost / 2.0, self.runs / 2.0);
            }
            self.run_lost += lost;
            self.runs += runs;
            let mean = self.run_lost / self.runs;
            if (2.0 * (mean / self.burst).log2()).abs() > BURST_HYSTERESIS {
                self.burst = ((2.0 * mean.log2()).round() / 2.0).exp2();
            }
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

    /// The mean number of packets of a path that are lost one after the other, by steps.
    pub fn burst(&self) -> f64 {
        self.burst
    }

    fn rate(&self) -> f64 {
        self.short.rate(SHORT, TELLING).max(self.long.rate(LONG, 1))
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
