//! A failing scenario made smaller, by leaving out messages and faults as long as it still fails.

use crate::scenario::Scenario;
use crate::watch::Check;
use crate::{Trace, simulate};

/// What is left of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Only the first so many messages.
    pub messages: Option<usize>,
    /// Faults that are left out, by their number.
    pub without_faults: Vec<usize>,
}

impl Cut {
    /// The scenario with that left out.
    pub fn apply(&self, scenario: &Scenario) -> Scenario {
        let mut cut = scenario.clone();
        if let Some(messages) = self.messages {
            // What others wait for has a smaller number, unless receives block each other.
            cut.messages.truncate(messages);
            for m in &mut cut.messages {
                m.recv_after = m.recv_after.filter(|after| *after < messages);
            }
        }
        let mut number = 0;
        cut.faults.retain(|_| {
            number += 1;
            !self.without_faults.contains(&(number - 1))
        });
        cut
    }
}

/// Leaves out what is not needed for the same check to fail, in at most `tries` runs.
pub fn shrink(scenario: &Scenario, check: Check, tries: usize) -> Cut {
    let mut tries = tries;
    let mut fails = |cut: &Cut| {
        let left = tries > 0;
        tries = tries.saturating_sub(1);
        left && simulate(&cut.apply(scenario), Trace::hash()).1.is_err_and(|v| v.check == check)
    };
    let mut best = Cut::default();
    for fault in 0..scenario.faults.len() {
        let mut cut = best.clone();
        cut.without_faults.push(fault);
        if fails(&cut) {
            best = cut;
        }
    }
    // The shortest beginning that fails, by halves; then one by one.
    let (mut low, mut high) = (0, scenario.messages.len());
    while low + 1 < high {
        let middle = low.midpoint(high);
        let cut = Cut { messages: Some(middle), ..best.clone() };
        if fails(&cut) {
            high = middle;
            best = cut;
        } else {
            low = middle;
        }
    }
    best
}
