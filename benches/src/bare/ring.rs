//! The application's message memory: a ring of equal buffers, used in turn.

/// Buffers are that many bytes apart at least, so that none shares a cache line with the next.
const LINE: usize = 64;

/// `count` buffers of `len` bytes in one piece of memory.
pub struct Ring {
    memory: Vec<u8>,
    stride: usize,
    len: usize,
    next: usize,
}

impl Ring {
    /// Filled with a pattern, so that every page is there before the measurement starts.
    pub fn new(count: usize, len: usize) -> Ring {
        let stride = len.max(1).next_multiple_of(LINE);
        let memory = (0..count.max(1) * stride).map(|i| (i ^ (i >> 8)) as u8).collect();
        Ring { memory, stride, len, next: 0 }
    }

    /// Where the next buffer starts.
    #[inline]
    fn advance(&mut self) -> usize {
        let at = self.next;
        let after = at + self.stride;
        self.next = if after == self.memory.len() { 0 } else { after };
        at
    }

    /// The next buffer, to send from.
    #[inline]
    pub fn next(&mut self) -> &[u8] {
        let at = self.advance();
        &self.memory[at..at + self.len]
    }

    /// The next buffer, to receive into.
    #[inline]
    pub fn next_mut(&mut self) -> &mut [u8] {
        let at = self.advance();
        &mut self.memory[at..at + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_come_round() {
        let mut ring = Ring::new(3, 104);
        for i in 0..3 {
            assert_eq!(ring.next_mut().len(), 104);
            ring.memory[i * 128] = i as u8;
        }
        let firsts: Vec<u8> = (0..4).map(|_| ring.next()[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0]);
    }
}
