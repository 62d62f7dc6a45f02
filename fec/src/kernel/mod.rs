//! What multiplies shards by coefficients, once for each instruction set.
//!
//! Coding and decoding are the same work: each output is a sum of all inputs, each multiplied by a coefficient. An implementation
//! of that is a [`Kernel`]. [`oracle`] is the definition, in the fewest words; the others are held to its bytes.

// First, as modules see macros that stand above them.
#[cfg(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64"))]
#[macro_use]
mod vector;

mod dispatch;
#[cfg(feature = "isal")]
mod isal;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod tables;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

#[cfg(feature = "isal")]
pub use isal::ISAL;

use std::fmt::Debug;

/// Sums of multiplied shards. The caller has checked counts and lengths; an implementation may panic where they do not fit, and
/// does nothing unsound.
pub trait Kernel: Debug + Send + Sync {
    /// A word for it.
    fn name(&self) -> &'static str;

    /// How many bytes it wants to precompute for each coefficient.
    fn table_bytes(&self) -> usize {
        0
    }

    /// Precomputes for `rows × columns` coefficients; `tables` has [`Kernel::table_bytes`] for each of them.
    fn prepare(&self, columns: usize, rows: usize, coefficients: &[u8], tables: &mut [u8]) {
        let _ = (columns, rows, coefficients, tables);
    }

    /// `outputs[j]` becomes the sum over `i` of `coefficient(j, i) · inputs[i]`. All slices are of one length.
    fn multiply(&self, coefficients: Coefficients<'_>, inputs: &[&[u8]], outputs: &mut [&mut [u8]]);

    /// `output` becomes the sum of the inputs, all of one length: what bounds the recovery of one shard, which multiplies besides.
    fn sum(&self, inputs: &[&[u8]], output: &mut [u8]) {
        add_up(inputs, output, 0);
    }
}

/// The sum of the inputs from a place on.
fn add_up(inputs: &[&[u8]], output: &mut [u8], from: usize) {
    output[from..].fill(0);
    for input in inputs {
        output[from..].iter_mut().zip(&input[from..]).for_each(|(sum, byte)| *sum ^= byte);
    }
}

/// A matrix of coefficients, and what the kernel has prepared for it.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients<'a> {
    /// One row for each output, with a coefficient for each input.
    pub bytes: &'a [u8],
    /// What [`Kernel::prepare`] wrote.
    pub tables: &'a [u8],
}

/// A matrix of coefficients that is kept, with what the kernel has prepared for it.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    columns: usize,
    bytes: Vec<u8>,
    tables: Vec<u8>,
    /// Bytes of tables for each coefficient.
    each: usize,
}

impl Matrix {
    /// Room for a matrix, all zero.
    pub fn with_room(kernel: &dyn Kernel, columns: usize, rows: usize) -> Matrix {
        let each = kernel.table_bytes();
        Matrix { columns, bytes: vec![0; rows * columns], tables: vec![0; rows * columns * each], each }
    }

    /// Sets the first rows, as many as there are, and prepares for them.
    pub fn set(&mut self, kernel: &dyn Kernel, rows: usize, fill: impl FnOnce(&mut [u8])) {
        let bytes = &mut self.bytes[..rows * self.columns];
        fill(bytes);
        let tables = &mut self.tables[..rows * self.columns * kernel.table_bytes()];
        kernel.prepare(self.columns, rows, bytes, tables);
    }

    /// Some of the rows.
    pub fn rows(&self, from: usize, rows: usize) -> Coefficients<'_> {
        let each = self.each;
        let (start, end) = (from * self.columns, (from + rows) * self.columns);
        Coefficients { bytes: &self.bytes[start..end], tables: &self.tables[start * each..end * each] }
    }
}

/// The definition: every product step by step. Some hundred times slower than the others.
pub fn oracle() -> &'static dyn Kernel {
    &scalar::Oracle
}

/// Every kernel that this processor can run, the slowest first.
pub fn all() -> impl Iterator<Item = &'static dyn Kernel> {
    let portable: [&'static dyn Kernel; 2] = [&scalar::Oracle, &scalar::Scalar];
    portable.into_iter().chain(dispatch::found())
}

/// The fastest kernel that this processor can run.
pub fn best() -> &'static dyn Kernel {
    dispatch::found().last().unwrap_or(&scalar::Scalar)
}

#[cfg(test)]
mod tests;
