//! The code, behind a trait, and its encoder.

use crate::Error;
use crate::kernel::{Kernel, Matrix, best};
use crate::matrix::parity_rows;

/// Data and parity shards of a group together, at most: the field has as many elements.
pub const MAX_SHARDS: usize = 256;

/// How the wire names a code: which, and which version of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodecId {
    /// Which code.
    pub id: u8,
    /// Rises when the same data gives other parity.
    pub version: u8,
}

impl CodecId {
    /// Systematic Reed–Solomon over GF(2⁸) with 0x11d, parity from a Vandermonde matrix.
    pub const REED_SOLOMON: CodecId = CodecId { id: 1, version: 1 };
}

/// A code over groups of shards, all of one length, of which the data goes out as it is.
pub trait Codec {
    /// What the wire calls it.
    fn id(&self) -> CodecId;

    /// Data shards of a group.
    fn data_shards(&self) -> usize;

    /// Parity shards of a group.
    fn parity_shards(&self) -> usize;

    /// Makes all parity shards.
    ///
    /// # Errors
    /// Counts or lengths do not fit. Then nothing was written.
    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error>;

    /// Makes some parity shards, from number `first` on, in one pass over the data.
    ///
    /// # Errors
    /// Counts, lengths or the numbers do not fit. Then nothing was written.
    fn encode_from(&self, first: usize, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error>;
}

/// A systematic Reed–Solomon code for groups of `k` data and `r` parity shards, at most 256 together.
///
/// Any `k` shards of a group give the data back, see [`Decoder`](crate::Decoder).
#[derive(Clone, Debug)]
pub struct ReedSolomon {
    kernel: &'static dyn Kernel,
    data: usize,
    parity: usize,
    /// Coefficients of the parity shards.
    rows: Matrix,
}

impl ReedSolomon {
    /// A code with the fastest kernel of this processor. It takes some `k³` steps, so keep it.
    ///
    /// # Errors
    /// No data, no parity, or more than 256 shards.
    pub fn new(data: usize, parity: usize) -> Result<ReedSolomon, Error> {
        ReedSolomon::with_kernel(best(), data, parity)
    }

    /// A code with a kernel of the caller's choice.
    ///
    /// # Errors
    /// No data, no parity, or more than 256 shards.
    pub fn with_kernel(
        kernel: &'static dyn Kernel,
        data: usize,
        parity: usize,
    ) -> Result<ReedSolomon, Error> {
        if data == 0 || parity == 0 {
            return Err(Error::Empty { data, parity });
        }
        if data.saturating_add(parity) > MAX_SHARDS {
            return Err(Error::TooManyShards { data, parity });
        }
        let mut rows = Matrix::with_room(kernel, data, parity);
        rows.set(kernel, parity, |bytes| bytes.copy_from_slice(&parity_rows(data, parity)));
        Ok(ReedSolomon { kernel, data, parity, rows })
    }

    /// What does the work.
    pub fn kernel(&self) -> &'static dyn Kernel {
        self.kernel
    }

    /// The coefficient of a data shard in a parity shard.
    pub(crate) fn coefficient(&self, parity: usize, data: usize) -> u8 {
        self.rows.rows(parity, 1).bytes[data]
    }
}

impl Codec for ReedSolomon {
    fn id(&self) -> CodecId {
        CodecId::REED_SOLOMON
    }

    fn data_shards(&self) -> usize {
        self.data
    }

    fn parity_shards(&self) -> usize {
        self.parity
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        count(parity.len(), self.parity)?;
        self.encode_from(0, data, parity)
    }

    fn encode_from(&self, first: usize, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        count(data.len(), self.data)?;
        let end = first.saturating_add(parity.len());
        if end > self.parity {
            return Err(Error::Index { index: end - 1, parity: self.parity });
        }
        one_length(data.iter().copied().chain(parity.iter().map(|p| &**p)).enumerate())?;
        self.kernel.multiply(self.rows.rows(first, parity.len()), data, parity);
        Ok(())
    }
}

/// As many as there must be.
pub(crate) fn count(given: usize, wanted: usize) -> Result<(), Error> {
    if given == wanted { Ok(()) } else { Err(Error::Count { given, wanted }) }
}

/// All of one length, and not empty; each comes with its number.
pub(crate) fn one_length<'a>(shards: impl IntoIterator<Item = (usize, &'a [u8])>) -> Result<(), Error> {
    let mut wanted = None;
    for (shard, bytes) in shards {
        let wanted = *wanted.get_or_insert(bytes.len().max(1));
        if bytes.len() != wanted {
            return Err(Error::Length { shard, given: bytes.len(), wanted });
        }
    }
    Ok(())
}
