//! The buffers of outstanding operations, at the numbers that the engine knows them by.

use crate::buffer::Buffer;

/// A buffer and its owner's name for the operation.
#[derive(Debug)]
pub(super) struct Entry<B> {
    pub wr_id: u64,
    pub len: u64,
    pub buf: B,
}

/// At most so many entries; numbers given back are used again first.
#[derive(Debug)]
pub(super) struct Store<B> {
    entries: Vec<Option<Entry<B>>>,
    free: Vec<u32>,
}

impl<B: Buffer> Store<B> {
    pub fn new(capacity: u32) -> Store<B> {
        let n = capacity as usize;
        Store { entries: Vec::with_capacity(n), free: Vec::with_capacity(n) }
    }

    /// The number that the next entry gets.
    #[inline]
    pub fn next(&self) -> u64 {
        self.free.last().map_or(self.entries.len() as u64, |at| u64::from(*at))
    }

    /// Puts an entry at [`next`](Store::next).
    #[inline(always)]
    pub fn insert(&mut self, entry: Entry<B>) {
        match self.free.pop() {
            Some(at) => self.entries[at as usize] = Some(entry),
            None => self.entries.push(Some(entry)),
        }
    }

    /// Takes an entry out.
    #[inline(always)]
    pub fn remove(&mut self, token: u64) -> Option<Entry<B>> {
        let entry = self.entries.get_mut(token as usize)?.take()?;
        self.free.push(token as u32);
        Some(entry)
    }

    /// Bytes to send.
    #[inline]
    pub fn bytes(&self, token: u64, offset: u64, len: usize) -> Option<&[u8]> {
        let entry = self.entries.get(token as usize)?.as_ref()?;
        entry.buf.bytes(entry.len as usize).get(offset as usize..offset as usize + len)
    }

    /// Writes bytes that arrived; the engine has checked that they fit.
    #[inline]
    pub fn write(&mut self, token: u64, offset: u64, bytes: &[u8]) {
        if let Some(Some(entry)) = self.entries.get_mut(token as usize) {
            entry.buf.write(offset as usize, bytes);
        }
    }
}
