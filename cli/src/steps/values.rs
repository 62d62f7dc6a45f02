//! What ranks contribute, and whether what came is right: 32-bit integers, whose sums are exact in every order.

/// Steps of a contribution from one element to the next: every byte of an element differs from its neighbour's.
const STRIDE: u32 = 0x9e37_79b1;
/// Bytes of an element.
pub const ELEMENT: usize = 4;

/// What an element of number 0 has: another for each rank, for whom it is meant, and each step.
fn base(rank: u32, to: u32, step: u64) -> u32 {
    let mut x = (u64::from(rank) << 40 | u64::from(to) << 24) ^ step.wrapping_mul(0xd1b5_4a32_d192_ed03);
    // The finaliser of SplitMix64.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as u32
}

/// Fills a buffer with what `rank` has for `to` in a step. In an all-reduce, `to` is nobody in particular: 0.
pub fn fill(buf: &mut [u8], rank: u32, to: u32, step: u64) {
    let mut value = base(rank, to, step);
    for element in buf.chunks_exact_mut(ELEMENT) {
        element.copy_from_slice(&value.to_le_bytes());
        value = value.wrapping_add(STRIDE);
    }
}

/// Adds elements to others.
pub fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.chunks_exact_mut(ELEMENT).zip(from.chunks_exact(ELEMENT)) {
        let (a, b) = (read(to), read(from));
        to.copy_from_slice(&a.wrapping_add(b).to_le_bytes());
    }
}

fn read(element: &[u8]) -> u32 {
    element.try_into().map_or(0, u32::from_le_bytes)
}

/// Elements of a buffer that are not `start`, `start + stride`, `start + 2 stride`, …
fn differ(buf: &[u8], start: u32, stride: u32) -> u64 {
    let mut value = start;
    let mut wrong = 0;
    for element in buf.chunks_exact(ELEMENT) {
        wrong += u64::from(read(element) != value);
        value = value.wrapping_add(stride);
    }
    wrong
}

/// Elements that are not the sum of what `ranks` ranks have in a step.
pub fn wrong_in_sum(buf: &[u8], ranks: u32, step: u64) -> u64 {
    let start = (0..ranks).fold(0u32, |sum, rank| sum.wrapping_add(base(rank, 0, step)));
    differ(buf, start, STRIDE.wrapping_mul(ranks))
}

/// Elements that are not what `rank` has for `to` in a step.
pub fn wrong_from(buf: &[u8], rank: u32, to: u32, step: u64) -> u64 {
    differ(buf, base(rank, to, step), STRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rank: u32, to: u32, step: u64) -> Vec<u8> {
        let mut buf = vec![0; 400];
        fill(&mut buf, rank, to, step);
        buf
    }

    #[test]
    fn a_sum_is_right_only_with_everybody_once_and_everything_in_its_place() {
        let sum = |ranks: &[u32], step| {
            let mut sum = vec![0; 400];
            ranks.iter().for_each(|&rank| add(&mut sum, &of(rank, 0, step)));
            sum
        };
        assert_eq!(wrong_in_sum(&sum(&[0, 1, 2], 7), 3, 7), 0);
        assert_eq!(wrong_in_sum(&sum(&[2, 0, 1], 7), 3, 7), 0, "in any order");
        assert_eq!(wrong_in_sum(&sum(&[0, 1], 7), 3, 7), 100, "one is missing");
        assert_eq!(wrong_in_sum(&sum(&[0, 1, 1], 7), 3, 7), 100, "one is there twice");
        assert_eq!(wrong_in_sum(&sum(&[0, 1, 2], 6), 3, 7), 100, "of another step");
        let mut bent = sum(&[0, 1, 2], 7);
        bent[41] ^= 1;
        assert_eq!(wrong_in_sum(&bent, 3, 7), 1);
        bent.rotate_left(4);
        assert_eq!(wrong_in_sum(&bent, 3, 7), 100, "in another place");
        // A whole sum worked out by hand.
        let by_hand = base(0, 0, 7).wrapping_add(base(1, 0, 7)).wrapping_add(STRIDE).wrapping_add(STRIDE);
        assert_eq!(sum(&[0, 1], 7)[4..8], by_hand.to_le_bytes());
    }

    #[test]
    fn every_pair_and_step_has_values_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for (rank, to, step) in (0..8).flat_map(|r| (0..8).flat_map(move |t| (0..8).map(move |s| (r, t, s))))
        {
            assert!(seen.insert(base(rank, to, step)));
            assert_eq!(wrong_from(&of(rank, to, step), rank, to, step), 0);
        }
        assert_eq!(wrong_from(&of(1, 2, 3), 2, 1, 3), 100);
    }
}
