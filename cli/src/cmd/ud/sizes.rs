//! The sizes of the messages of a run: one for all, or each of a range in turn.

use crate::units;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    from: usize,
    to: usize,
}

impl Sizes {
    /// The same for all messages.
    pub fn one(size: usize) -> Sizes {
        Sizes { from: size, to: size }
    }

    /// The size of message `number`: a range begins anew after its end.
    pub fn of(self, number: u64) -> usize {
        let sizes = ((self.to - self.from) as u64).saturating_add(1);
        self.from + (number % sizes) as usize
    }

    /// Bytes of the first `count` messages together.
    pub fn sum(self, count: u64) -> u64 {
        let (from, to) = (self.from as u64, self.to as u64);
        let sizes = (to - from).saturating_add(1);
        let sum = |n: u64| (from.saturating_mul(n)).saturating_add(n.saturating_sub(1).saturating_mul(n) / 2);
        (count / sizes).saturating_mul(sum(sizes)).saturating_add(sum(count % sizes))
    }

    /// The largest.
    pub fn longest(self) -> usize {
        self.to
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let size = |text| units::size(text).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let Some((from, to)) = text.split_once('-') else { return size(text).map(Sizes::one) };
        let (from, to) = (size(from)?, size(to)?);
        if from > to {
            return Err(format!("`{text}` begins above its end: write 0-1024, or one size"));
        }
        Ok(Sizes { from, to })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to {
            write!(f, "{}", self.to)
        } else {
            write!(f, "{} to {}", self.from, self.to)
        }
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.from == self.to {
            serializer.serialize_u64(self.to as u64)
        } else {
            serializer.collect_str(&format_args!("{}-{}", self.from, self.to))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_round_and_one_size_stays() {
        let sizes: Sizes = "3-5".parse().unwrap();
        assert_eq!([0, 1, 2, 3, 5].map(|n| sizes.of(n)), [3, 4, 5, 3, 5]);
        assert_eq!([0, 1, 2, 3, 7].map(|n| sizes.sum(n)), [0, 3, 7, 12, 27]);
        assert_eq!((sizes.longest(), sizes.to_string().as_str()), (5, "3 to 5"));
        assert_eq!(serde_json::to_value(sizes).unwrap(), "3-5");
        let one: Sizes = "1k".parse().unwrap();
        assert_eq!(
            (one, one.sum(3), one.of(77), one.to_string().as_str()),
            (Sizes::one(1024), 3072, 1024, "1024")
        );
        assert_eq!(serde_json::to_value(one).unwrap(), 1024);
        let most: Sizes = format!("0-{}", 1u64 << 63).parse().unwrap();
        assert_eq!(most.of(u64::MAX), (1 << 63) - 2);
        for bad in ["", "-", "5-", "-5", "5-3", "1-2-3", "x"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }
}
