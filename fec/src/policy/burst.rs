//! What a code leaves unrepaired where losses come in bursts: the two-state chain of Gilbert (1960) and Elliott (1963), exactly.

/// A path that loses every packet in its bad state and none in its good one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bursts {
    /// Share of packets that are lost.
    loss: f64,
    /// What is left of the present state with each packet: the chain's second eigenvalue. 0 is independent losses.
    memory: f64,
}

impl Bursts {
    /// A path that loses a share of its packets, from 0 to 1, in runs of a mean length. Independent losses have runs of
    /// `1 / (1 - loss)`, and shorter ones are taken for that.
    fn new(loss: f64, mean_burst: f64) -> Bursts {
        let loss = loss.clamp(0.0, 1.0);
        // It leaves the bad state with 1/burst, and enters it so often that the share of bad packets is the loss.
        let leave = 1.0 / mean_burst.max(1.0);
        let memory = if loss < 1.0 { 1.0 - leave / (1.0 - loss) } else { 0.0 };
        Bursts { loss, memory: memory.max(0.0) }
    }

    /// The chance that a packet is lost which comes so many after one whose fate is known.
    fn lost_after(&self, was_lost: bool, packets: u32) -> f64 {
        let left = self.memory.powi(packets.min(i32::MAX as u32) as i32);
        if was_lost { self.loss + (1.0 - self.loss) * left } else { self.loss * (1.0 - left) }
    }
}

/// The chance that a group of `data` and `parity` shards loses more than `parity` of them, if each is sent `depth` packets after the
/// one before on a path with such losses.
pub fn group_failure(data: u32, parity: u32, loss: f64, mean_burst: f64, depth: u32) -> f64 {
    /// Parity shards that fit: more than any policy asks for.
    const MOST: usize = 64;
    let path = Bursts::new(loss, mean_burst);
    let (from_good, from_bad) = (path.lost_after(false, depth), path.lost_after(true, depth));
    // good[n], bad[n]: the chance that n shards were lost so far, and that the last one came or did not.
    let most = (parity as usize).min(MOST - 1);
    let (mut good, mut bad) = ([0.0; MOST], [0.0; MOST]);
    good[0] = 1.0 - path.loss;
    let mut failed = 0.0;
    if most == 0 {
        failed = path.loss;
    } else {
        bad[1] = path.loss;
    }
    for _ in 1..data.saturating_add(parity) {
        let (mut next_good, mut next_bad) = ([0.0; MOST], [0.0; MOST]);
        for n in 0..=most {
            let lost = good[n] * from_good + bad[n] * from_bad;
            next_good[n] = good[n] + bad[n] - lost;
            if n < most {
                next_bad[n + 1] = lost;
            } else {
                failed += lost;
            }
        }
        (good, bad) = (next_good, next_bad);
    }
    failed
}
