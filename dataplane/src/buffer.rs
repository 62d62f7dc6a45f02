//! Application memory that a work request carries.
//!
//! A buffer moves into the endpoint with its work request and comes back with the completion. So it can cross threads
//! without a lock and without unsafe code, and nobody can read a receive buffer that is still being filled. A binding
//! that deals in raw pointers wraps them in a type of its own.

/// Memory for one message, owned by whoever holds the value.
pub trait Buffer: Send + 'static {
    /// Bytes that it holds.
    fn capacity(&self) -> usize;

    /// Writes `bytes` at `offset`. Called only with `offset + bytes.len() <= capacity()`.
    fn write(&mut self, offset: usize, bytes: &[u8]);

    /// The first `len` bytes, for sending. Called only with `len <= capacity()`.
    fn bytes(&self, len: usize) -> &[u8];
}

impl Buffer for Vec<u8> {
    fn capacity(&self) -> usize {
        self.len()
    }

    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self[..len]
    }
}

impl Buffer for Box<[u8]> {
    fn capacity(&self) -> usize {
        self.len()
    }

    #[inline]
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self[..len]
    }
}
