//! Giving lost data back.

use crate::Error;
use crate::codec::{Codec, MAX_SHARDS, ReedSolomon, count, one_length};
use crate::field::{inverse, mul};
use crate::kernel::Matrix;
use crate::matrix::{invert, invert_two};
use arrayvec::ArrayVec;

/// Patterns of losses whose coefficients are kept. Groups that are interleaved lose alike: a burst takes the same place, or two, of
/// each. Making them anew costs some hundred multiplications for one or two losses, so a miss is no matter.
const CACHED: usize = 16;

/// Which shards of a group are used, one bit each.
type Pattern = [u64; MAX_SHARDS / 64];

/// Gives lost data shards of a code's groups back. It has all its memory from the start.
///
/// With `l` lost data shards, `l` parity shards are equations in `l` unknowns. So only an `l × l` matrix is to be inverted, not a `k × k`
/// one; its product with the rows of the parity is one matrix over what has come, and that is kept for when the same shards are lost
/// again. One and two losses are solved in closed form.
#[derive(Debug)]
pub struct Decoder {
    code: ReedSolomon,
    cache: Vec<Cached>,
    /// Which entry is replaced next.
    oldest: usize,
    /// An `r × r` matrix and its inverse.
    square: Vec<u8>,
    inverted: Vec<u8>,
    hits: u64,
}

#[derive(Debug)]
struct Cached {
    used: Pattern,
    coefficients: Matrix,
}

impl Decoder {
    /// One for the groups of a code. It takes 16 · k · r bytes, and the kernel's tables for as many coefficients.
    pub fn new(code: ReedSolomon) -> Decoder {
        let (data, parity) = (code.data_shards(), code.parity_shards());
        // No group uses no shard, so an entry of zeros is nobody's.
        let empty = || Cached {
            used: Pattern::default(),
            coefficients: Matrix::with_room(code.kernel(), data, parity.min(data)),
        };
        let cache = (0..CACHED).map(|_| empty()).collect();
        let square = vec![0; parity * parity];
        Decoder { cache, oldest: 0, inverted: square.clone(), square, hits: 0, code }
    }

    /// The code that it is for.
    pub fn code(&self) -> &ReedSolomon {
        &self.code
    }

    /// How often the coefficients were there already.
    pub fn cache_hits(&self) -> u64 {
        self.hits
    }

    /// Writes the lost data shards, in order of their numbers. `shards` are the `k` data and then the `r` parity shards, those that
    /// came; `lost` has a slice for each data shard that did not come.
    ///
    /// # Errors
    /// Counts or lengths do not fit, or fewer than `k` shards came. Then nothing was written.
    pub fn recover(&mut self, shards: &[Option<&[u8]>], lost: &mut [&mut [u8]]) -> Result<(), Error> {
        let (data, parity) = (self.code.data_shards(), self.code.parity_shards());
        count(shards.len(), data + parity)?;
        let length = lost.first().map_or(0, |shard| shard.len());
        // One pass, its sums in registers: with short shards it takes as long as the recovery of one.
        let mut substitutes = shards.iter().enumerate().skip(data);
        let mut inputs: ArrayVec<&[u8], MAX_SHARDS> = ArrayVec::new();
        let (mut used, mut missing, mut sound) = (Pattern::default(), 0, true);
        for (word, shards) in shards[..data].chunks(64).enumerate() {
            let mut came = 0;
            inputs.extend(shards.iter().enumerate().map(|(place, shard)| {
                let bytes = match shard {
                    Some(bytes) => {
                        came |= 1 << place;
                        *bytes
                    }
                    // A lost shard's place in the sums is taken by a parity shard.
                    None => {
                        missing += 1;
                        match substitutes.find_map(|(i, shard)| shard.map(|shard| (i, shard))) {
                            Some((i, bytes)) => {
                                used[i / 64] |= 1 << (i % 64);
                                bytes
                            }
                            None => &[],
                        }
                    }
                };
                sound &= bytes.len() == length;
                bytes
            }));
            used[word] |= came;
        }
        count(lost.len(), missing)?;
        if missing == 0 {
            return Ok(());
        }
        one_length(lost.iter().enumerate().map(|(i, shard)| (data + parity + i, &**shard)))?;
        if !sound {
            return Err(unfit(shards, data, missing, length));
        }
        let entry = match self.cache.iter().position(|cached| cached.used == used) {
            Some(entry) => {
                self.hits += 1;
                entry
            }
            None => self.solve(used, missing),
        };
        let coefficients = self.cache[entry].coefficients.rows(0, missing);
        self.code.kernel().multiply(coefficients, &inputs, lost);
        Ok(())
    }

    /// Makes the coefficients for a pattern of shards that are used, in the place of the oldest. Returns where.
    fn solve(&mut self, used: Pattern, missing: usize) -> usize {
        let Decoder { code, cache, square, inverted, oldest, .. } = self;
        let (data, parity) = (code.data_shards(), code.parity_shards());
        let entry = *oldest;
        *oldest = (entry + 1) % CACHED;
        let is_used = |shard: usize| used[shard / 64] >> (shard % 64) & 1 != 0;
        // Each lost shard, and the number of the parity shard in its place.
        let lost = || (0..data).filter(|i| !is_used(*i)).zip((0..parity).filter(|i| is_used(data + i)));
        // Row by row, what each parity shard has of each lost one.
        let size = missing * missing;
        for (row, (_, parity)) in lost().enumerate() {
            for (column, (unknown, _)) in lost().enumerate() {
                square[row * missing + column] = code.coefficient(parity, unknown);
            }
        }
        match missing {
            1 => inverted[0] = inverse(square[0]),
            2 => inverted[..4].copy_from_slice(&invert_two([square[0], square[1], square[2], square[3]])),
            _ => invert(&mut square[..size], &mut inverted[..size], missing),
        }
        let cached = &mut cache[entry];
        cached.used = used;
        cached.coefficients.set(code.kernel(), missing, |rows| {
            for (row, weights) in rows.chunks_mut(data).zip(inverted.chunks(missing)) {
                // A parity shard counts by its weight, a data shard by what it has in all of them.
                let mut weight = weights.iter();
                for (place, coefficient) in row.iter_mut().enumerate() {
                    *coefficient = if is_used(place) {
                        let parts = weights.iter().zip(lost());
                        parts.fold(0, |sum, (w, (_, parity))| sum ^ mul(*w, code.coefficient(parity, place)))
                    } else {
                        weight.next().copied().unwrap_or_default()
                    };
                }
            }
        });
        entry
    }
}

/// What is wrong with the shards that came: too few, or one of another length.
#[cold]
fn unfit(shards: &[Option<&[u8]>], data: usize, missing: usize, wanted: usize) -> Error {
    let there = |(i, shard): (usize, &Option<&[u8]>)| Some((i, shard.as_ref()?.len()));
    let parity = shards[data..].iter().flatten().count();
    if parity < missing {
        return Error::TooFewShards { lost: missing, parity };
    }
    let substitutes = shards.iter().enumerate().skip(data).filter_map(there).take(missing);
    let mut used = substitutes.chain(shards.iter().enumerate().take(data).filter_map(there));
    let (shard, given) = used.find(|(_, given)| *given != wanted).unwrap_or_default();
    Error::Length { shard, given, wanted }
}
