//! The receiver's window: which sequences beyond the next one have arrived. A session has a bitmap only while there is a hole.

use super::table::Slab;
use crate::wire::shim::Seq;
use bitvec::prelude::{BitSlice, Lsb0};

/// The bitmaps of all sessions, each as large as the window.
#[derive(Debug)]
pub struct Windows {
    words: Vec<u64>,
    used: Slab<()>,
    window: u32,
}

/// What one session received.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Every sequence before it has arrived.
    pub next: Seq,
    /// One more than the highest that has arrived.
    pub end: Seq,
    /// Sequences beyond `next` that have arrived.
    ones: u32,
    /// One more than the bitmap's number, or 0.
    bitmap: u32,
}

/// What a sequence is to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has not arrived yet, and can be taken.
    New,
    /// It has arrived.
    Duplicate,
    /// It lies beyond the window.
    Beyond,
    /// It would leave a hole, and all bitmaps are in use.
    NoBitmap,
}

impl Window {
    /// Nothing has arrived; `first` is the first to come.
    pub const fn new(first: Seq) -> Window {
        Window { next: first, end: first, ones: 0, bitmap: 0 }
    }

    /// Whether something is missing before something that has arrived.
    #[cfg(test)]
    pub const fn has_hole(&self) -> bool {
        self.ones > 0
    }
}

impl Windows {
    /// `count` bitmaps for windows of `window` sequences, a power of two of at least 64.
    pub fn new(count: u32, window: u32) -> Windows {
        let words = count as usize * (window as usize / 64);
        Windows { words: vec![0; words], used: Slab::new(count), window }
    }

    /// Bitmaps in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.used.len()
    }

    #[inline]
    fn bits(&self, bitmap: u32) -> &BitSlice<u64, Lsb0> {
        let words = self.window as usize / 64;
        let from = (bitmap - 1) as usize * words;
        BitSlice::from_slice(&self.words[from..from + words])
    }

    #[inline]
    fn bits_mut(&mut self, bitmap: u32) -> &mut BitSlice<u64, Lsb0> {
        let words = self.window as usize / 64;
        let from = (bitmap - 1) as usize * words;
        BitSlice::from_slice_mut(&mut self.words[from..from + words])
    }

    #[inline]
    const fn place(&self, seq: Seq) -> usize {
        (seq.0 & (self.window - 1)) as usize
    }

    /// Whether a sequence can be taken.
    #[inline]
    pub fn judge(&self, w: &Window, seq: Seq) -> Verdict {
        let ahead = w.next.distance(seq);
        if ahead == 0 {
            return Verdict::New;
        }
        if ahead < 0 {
            return Verdict::Duplicate;
        }
        if ahead as u32 >= self.window {
            return Verdict::Beyond;
        }
        if w.bitmap == 0 {
            return if self.used.has_room() { Verdict::New } else { Verdict::NoBitmap };
        }
        if self.bits(w.bitmap)[self.place(seq)] { Verdict::Duplicate } else { Verdict::New }
    }

    /// Takes a sequence that was judged new.
    #[inline]
    pub fn take(&mut self, w: &mut Window, seq: Seq) {
        if w.end.distance(seq) >= 0 {
            w.end = seq.next();
        }
        if seq == w.next {
            w.next = seq.next();
            if w.ones > 0 {
                self.close_up(w);
            }
            return;
        }
        if w.bitmap == 0 {
            let Some(at) = self.used.insert(()) else { return };
            w.bitmap = at + 1;
        }
        let place = self.place(seq);
        self.bits_mut(w.bitmap).set(place, true);
        w.ones += 1;
    }

    /// `next` has moved: it moves on over what has arrived before.
    fn close_up(&mut self, w: &mut Window) {
        while w.ones > 0 {
            let place = self.place(w.next);
            let bits = self.bits_mut(w.bitmap);
            let run = bits[place..].leading_ones();
            if run == 0 {
                return;
            }
            bits[place..place + run].fill(false);
            w.next = w.next.add(run as u32);
            w.ones -= run as u32;
        }
        self.release(w);
    }

    /// Gives the bitmap back, which must be clear.
    fn release(&mut self, w: &mut Window) {
        if let Some(at) = w.bitmap.checked_sub(1) {
            self.used.remove(at);
            w.bitmap = 0;
        }
    }

    /// Forgets what a session received.
    pub fn clear(&mut self, w: &mut Window) {
        if w.bitmap != 0 {
            self.bits_mut(w.bitmap).fill(false);
            w.ones = 0;
            self.release(w);
        }
    }

    /// Fills in the bitmap of a feedback: big-endian words from `next & !31` to the last with a one beyond `next`. Returns the
    /// number of words, and whether there were more than `out` has room for.
    pub fn report(&self, w: &Window, out: &mut [[u8; 4]]) -> (usize, bool) {
        if w.ones == 0 {
            return (0, false);
        }
        let base = Seq(w.next.0 & !31);
        let need = base.until(w.end).div_ceil(32) as usize;
        let words = need.min(out.len());
        let bits = self.bits(w.bitmap);
        for (i, word) in out.iter_mut().take(words).enumerate() {
            let from = base.add(32 * i as u32);
            let at = self.place(from);
            let mut bitmap =
                bits[at..at + 32].iter().by_vals().rev().fold(0u32, |b, bit| b << 1 | u32::from(bit));
            if i == 0 {
                bitmap |= !(u32::MAX << (w.next.0 % 32));
            }
            // A window that is full turns back on itself: what stands before `base` there is beyond the end here.
            let left = from.until(w.end);
            if left < 32 {
                bitmap &= !(u32::MAX << left);
            }
            *word = bitmap.to_be_bytes();
        }
        (words, need > words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set of what arrived, from a start near the wrap, in a small window that is often full.
        #[test]
        fn behaves_like_a_set(start in (u32::MAX - 70)..=u32::MAX, arrivals in prop::collection::vec(-20i32..80, 1..300)) {
            let mut windows = Windows::new(1, 64);
            let mut w = Window::new(Seq(start));
            let mut model: BTreeSet<u32> = BTreeSet::new();
            for ahead in arrivals {
                let next = (0..).find(|k| !model.contains(k)).expect("finite");
                let Some(key) = next.checked_add_signed(ahead) else { continue };
                let seq = Seq(start).add(key);
                let expected = if model.contains(&key) {
                    Verdict::Duplicate
                } else if key >= next + 64 {
                    Verdict::Beyond
                } else {
                    Verdict::New
                };
                prop_assert_eq!(windows.judge(&w, seq), expected);
                if expected == Verdict::New {
                    windows.take(&mut w, seq);
                    model.insert(key);
                }
                let next = (0..).find(|k| !model.contains(k)).expect("finite");
                let end = model.last().map_or(0, |k| k + 1);
                prop_assert_eq!((w.next, w.end), (Seq(start).add(next), Seq(start).add(end)));
                prop_assert_eq!(w.has_hole(), end > next);
                prop_assert_eq!(windows.in_use(), usize::from(end > next));
                let mut out = [[0; 4]; 4];
                let (words, more) = windows.report(&w, &mut out);
                prop_assert!(!more);
                let base = w.next.0 & !31;
                for bit in 0..32 * words as u32 {
                    let seq = base.wrapping_add(bit);
                    let told = u32::from_be_bytes(out[bit as usize / 32]) >> (bit % 32) & 1 == 1;
                    let key = seq.wrapping_sub(start) as i32;
                    prop_assert_eq!(told, key < 0 || model.contains(&(key as u32)), "bit {}", bit);
                }
                if words > 0 {
                    prop_assert!(out[words - 1] != [0; 4]);
                    prop_assert_eq!(windows.report(&w, &mut out[..1]).1, words > 1);
                }
            }
            windows.clear(&mut w);
            prop_assert_eq!(windows.in_use(), 0);
            prop_assert!(windows.words.iter().all(|w| *w == 0));
        }
    }

    #[test]
    fn without_a_bitmap_a_hole_is_refused_and_order_goes_on() {
        let mut windows = Windows::new(1, 64);
        let (mut a, mut b) = (Window::new(Seq(0)), Window::new(Seq(0)));
        windows.take(&mut a, Seq(5));
        assert_eq!(windows.judge(&b, Seq(1)), Verdict::NoBitmap);
        assert_eq!(windows.judge(&b, Seq(0)), Verdict::New);
        windows.take(&mut b, Seq(0));
        assert_eq!(b.next, Seq(1));
    }
}
