//! UDP source ports, by which networks choose a path: which there are, and which one a queue pair or a path has.

use roce_proto::types::Qpn;
use roce_proto::wire::ROCE_PORT;

/// The UDP source ports that a port of ours sends from, first and last included.
///
/// IBTA annex A17 leaves the choice to the sender; 0xC000–0xFFFF is what Linux uses, and the default. A narrower range suits a
/// network whose filters let only some ports pass, or that hashes only some of their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntropyRange {
    first: u16,
    last: u16,
}

/// Why two numbers are no range of UDP source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntropyError {
    /// The first is above the last.
    #[error("the range {first}-{last} is empty: the lower port comes first")]
    Reversed {
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Port 0 says that there is none (RFC 768).
    #[error("UDP port 0 stands for none: begin at 1 or above")]
    Zero,
    /// The port that RoCEv2 packets are sent to.
    #[error("the range {first}-{last} contains {ROCE_PORT}, to which all RoCEv2 packets are sent")]
    Destination {
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Paths of one session must differ.
    #[error("{paths} paths need as many UDP source ports, and there are {ports} in the range {range}")]
    Narrow {
        /// Paths of a session.
        paths: u8,
        /// Ports that there are.
        ports: u32,
        /// The range.
        range: EntropyRange,
    },
}

impl EntropyRange {
    /// The dynamic ports that Linux's RoCE drivers draw from.
    pub const DEFAULT: EntropyRange = EntropyRange { first: 0xC000, last: 0xFFFF };

    /// The ports from `first` to `last`.
    ///
    /// # Errors
    /// Numbers that are no range, or ports that nobody sends from.
    pub fn new(first: u16, last: u16) -> Result<EntropyRange, EntropyError> {
        if first > last {
            return Err(EntropyError::Reversed { first, last });
        }
        if first == 0 {
            return Err(EntropyError::Zero);
        }
        if (first..=last).contains(&ROCE_PORT) {
            return Err(EntropyError::Destination { first, last });
        }
        Ok(EntropyRange { first, last })
    }

    /// Ports in it, 1 to 65,535.
    pub fn ports(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }

    /// Whether `paths` paths of a session can have a port each.
    ///
    /// # Errors
    /// [`EntropyError::Narrow`] if they cannot.
    pub fn check(self, paths: u8) -> Result<(), EntropyError> {
        let ports = self.ports();
        if u32::from(paths) > ports {
            return Err(EntropyError::Narrow { paths, ports, range: self });
        }
        Ok(())
    }

    /// The port of a queue pair's path; path 0 is its own. Paths fewer than [`EntropyRange::ports`] have different ports.
    ///
    /// Numbers of queue pairs are spread by the golden-ratio hash (Knuth, TAOCP volume 3, 6.4), so that neighbours land far apart.
    /// Paths go on from there in steps of the golden section of the range, each far from all before it. The step has no divisor in
    /// common with the range's length, and so comes to every port before it comes back.
    pub fn port(self, qpn: Qpn, path: u8) -> u16 {
        const GOLDEN: u32 = 0x9E37_79B9;
        let ports = u64::from(self.ports());
        let section = |n: u32| (u64::from(n) * ports) >> 32;
        let own = section(qpn.get().wrapping_mul(GOLDEN));
        let mut step = section(GOLDEN);
        while path > 0 && divisor(step, ports) > 1 {
            step += 1;
        }
        // Less than the length, so it is a port of the range.
        self.first + ((own + u64::from(path) * step) % ports) as u16
    }
}

impl Default for EntropyRange {
    fn default() -> EntropyRange {
        EntropyRange::DEFAULT
    }
}

impl std::fmt::Display for EntropyRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The greatest common divisor (Euclid); of a number and 1 it is 1, also of 0.
fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn qpn(n: u32) -> Qpn {
        Qpn::new(n).unwrap()
    }

    #[test]
    fn ranges_that_cannot_be_are_refused_with_the_reason() {
        let refused = |first, last| EntropyRange::new(first, last).unwrap_err();
        assert_eq!(refused(50_001, 50_000), EntropyError::Reversed { first: 50_001, last: 50_000 });
        assert_eq!(refused(0, 9), EntropyError::Zero);
        for (first, last) in [(4_791, 4_791), (1, 65_535), (4_791, 5_000), (4_000, 4_791)] {
            assert_eq!(refused(first, last), EntropyError::Destination { first, last });
        }
        for (first, last, ports) in [(1, 4_790, 4_790), (4_792, 65_535, 60_744), (7, 7, 1)] {
            assert_eq!(EntropyRange::new(first, last).unwrap().ports(), ports);
        }
        assert_eq!(EntropyRange::new(0xC000, 0xFFFF), Ok(EntropyRange::DEFAULT));
    }

    #[test]
    fn a_range_holds_as_many_paths_as_it_has_ports() {
        let range = EntropyRange::new(60_000, 60_003).unwrap();
        assert_eq!(range.check(4), Ok(()));
        let error = range.check(5).unwrap_err();
        assert_eq!(error, EntropyError::Narrow { paths: 5, ports: 4, range });
        assert!(error.to_string().ends_with("there are 4 in the range 60000-60003"), "{error}");
    }

    #[test]
    fn paths_differ_and_stay_in_the_range_whatever_its_length() {
        for len in (1..=300).chain([997, 1_024, 4_097, 16_384, 60_744]) {
            // At the upper end, where one too far would wrap.
            let range = EntropyRange::new((65_536 - len) as u16, 65_535).unwrap();
            for n in [2, 0x10000, 0x10001, 0xFF_FFFE] {
                let paths = len.min(256);
                let ports: BTreeSet<u16> = (0..paths).map(|p| range.port(qpn(n), p as u8)).collect();
                assert_eq!(ports.len(), paths as usize, "{len} ports, queue pair {n:#x}");
                assert!(ports.iter().all(|p| u32::from(*p) >= 65_536 - len), "{len} ports");
            }
        }
    }

    #[test]
    fn neighbouring_queue_pairs_and_paths_land_far_apart() {
        let range = EntropyRange::DEFAULT;
        let of_qps: BTreeSet<u16> = (0x10000..0x10100).map(|q| range.port(qpn(q), 0)).collect();
        assert_eq!(of_qps.len(), 256);
        // Where a network hashes few of the bits, paths must differ in the high ones as well as in the low ones.
        let of_paths: Vec<u16> = (0..8).map(|path| range.port(qpn(0x10000), path)).collect();
        for (shift, what) in [(11, "high"), (0, "low")] {
            let bits: BTreeSet<u16> = of_paths.iter().map(|p| p >> shift & 7).collect();
            assert!(bits.len() >= 5, "{what} bits of {of_paths:?}");
        }
    }
}
