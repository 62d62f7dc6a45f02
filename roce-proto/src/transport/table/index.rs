//! From a key to a record's number, in a table of fixed size.

/// Hashes keys under a secret, so that a peer that chooses its tags cannot make them collide.
#[derive(Clone, Copy, Debug)]
pub struct Mixer([u64; 2]);

impl Mixer {
    /// From a secret of 16 bytes.
    pub fn new(secret: &[u8; 16]) -> Mixer {
        let (a, b) = secret.split_at(8);
        let word = |b: &[u8]| b.iter().fold(0u64, |w, x| w << 8 | u64::from(*x));
        // Odd constants (digits of pi) keep an all-zero secret from making zeroes of everything.
        Mixer([word(a) ^ 0x243f_6a88_85a3_08d3, word(b) ^ 0x1319_8a2e_0370_7345])
    }

    /// The hash of two words: the high and low halves of their product, folded.
    #[inline]
    pub fn mix(&self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.0[0]) * u128::from(b ^ self.0[1]);
        (product >> 64) as u64 ^ product as u64
    }
}

/// Chains of records with the same hash. The keys stay in the records, whose owner compares them.
#[derive(Debug)]
pub struct Index {
    /// One more than a record's number; 0 is none.
    buckets: Vec<u32>,
    next: Vec<u32>,
}

impl Index {
    /// For records with numbers below `capacity`.
    pub fn new(capacity: u32) -> Index {
        let n = capacity as usize;
        Index { buckets: vec![0; n.next_power_of_two()], next: vec![0; n] }
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Adds a record that is not in it.
    #[inline]
    pub fn insert(&mut self, hash: u64, at: u32) {
        let bucket = self.bucket(hash);
        self.next[at as usize] = self.buckets[bucket];
        self.buckets[bucket] = at + 1;
    }

    /// The record with this hash that `is` the one.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut link = self.buckets[self.bucket(hash)];
        while let Some(at) = link.checked_sub(1) {
            if is(at) {
                return Some(at);
            }
            link = self.next[at as usize];
        }
        None
    }

    /// Takes out a record that is in it with this hash.
    #[inline]
    pub fn remove(&mut self, hash: u64, at: u32) {
        let bucket = self.bucket(hash);
        let me = at + 1;
        if self.buckets[bucket] == me {
            self.buckets[bucket] = self.next[at as usize];
            return;
        }
        let mut link = self.buckets[bucket];
        while let Some(i) = link.checked_sub(1) {
            link = self.next[i as usize];
            if link == me {
                self.next[i as usize] = self.next[at as usize];
                return;
            }
        }
        debug_assert!(false, "record {at} is not in the index");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((any::<bool>(), 0u64..6), 1..100)) {
            let mixer = Mixer::new(&[7; 16]);
            let mut index = Index::new(6);
            let mut model = BTreeMap::new();
            let mut keys = [0u64; 6];
            for (insert, key) in ops {
                // Two buckets only, so that chains grow.
                let hash = mixer.mix(key, 1) & 1;
                let found = index.find(hash, |i| keys[i as usize] == key);
                prop_assert_eq!(found, model.get(&key).copied());
                match found {
                    None if insert => {
                        let at = (0..6).find(|i| !model.values().any(|v| v == i)).expect("six keys, six places");
                        keys[at as usize] = key;
                        index.insert(hash, at);
                        model.insert(key, at);
                    }
                    Some(at) if !insert => {
                        index.remove(hash, at);
                        model.remove(&key);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn neighbouring_keys_spread() {
        let mixer = Mixer::new(&[0; 16]);
        let mut used = [0u32; 1024];
        for tag in 0..1024u64 {
            used[mixer.mix(tag, 0) as usize & 1023] += 1;
        }
        assert!(used.iter().filter(|n| **n == 0).count() < 512, "random placement leaves 377 empty");
        assert!(used.iter().all(|n| *n < 10));
    }
}
