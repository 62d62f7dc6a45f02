//! Codes at hand for groups of any size that a packet may name: what drivers of the reliable transport use.

use crate::{Codec, Decoder, Error, ReedSolomon};
use arrayvec::ArrayVec;
use std::iter::Take;
use std::slice::ChunksExact;

/// Data shards of a group at the most.
pub const MOST_DATA: usize = 64;
/// Parity shards of a group at the most.
pub const MOST_PARITY: usize = 16;

/// Makes parity shards and recovers data shards of groups of up to [`MOST_DATA`] and [`MOST_PARITY`]. The parity of a group does not
/// depend on how many parity shards there are, so one code serves for each number of data shards; it is made when it is first used.
///
/// Of a message's last group the last shard may be shorter than the others. It counts as if zeros followed.
#[derive(Debug)]
pub struct Workshop {
    codes: Vec<Option<Box<Decoder>>>,
    /// A shard that was too short, with its zeros.
    padded: Vec<u8>,
    recovered: Vec<u8>,
}

impl Workshop {
    /// One for shards of up to `longest` bytes.
    pub fn new(longest: usize) -> Workshop {
        let codes = (0..MOST_DATA).map(|_| None).collect();
        Workshop { codes, padded: vec![0; longest], recovered: vec![0; longest * MOST_PARITY] }
    }

    /// Makes parity shards of a group from number `first` on, all of one length. It reads the data once, however many they are.
    ///
    /// # Errors
    /// More shards than there may be, or lengths that do not fit. Then nothing was written.
    pub fn encode(&mut self, first: usize, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        let Workshop { codes, padded, .. } = self;
        let code = code(codes, data.len())?;
        let mut shards: ArrayVec<&[u8], MOST_DATA> = data.iter().copied().collect();
        if let Some(last) = shards.last_mut() {
            *last = pad(last, parity.first().map_or(0, |shard| shard.len()), padded);
        }
        code.code().encode_from(first, &shards, parity)
    }

    /// Recovers the data shards that did not come, and returns them, one after the other, each of `length` bytes. `parity` are numbers and
    /// bytes of the parity shards that came.
    ///
    /// # Errors
    /// More shards than there may be, too few that came, or lengths that do not fit.
    pub fn recover<'a>(
        &'a mut self,
        length: usize,
        data: &[Option<&[u8]>],
        parity: &[(usize, &[u8])],
    ) -> Result<Take<ChunksExact<'a, u8>>, Error> {
        let Workshop { codes, padded, recovered } = self;
        let code = code(codes, data.len())?;
        let mut shards: ArrayVec<Option<&[u8]>, { MOST_DATA + MOST_PARITY }> = data.iter().copied().collect();
        if let Some(Some(last)) = shards.last_mut() {
            *last = pad(last, length, padded);
        }
        shards.extend([None; MOST_PARITY]);
        for (index, shard) in parity {
            match shards.get_mut(data.len() + index) {
                Some(place) => *place = Some(shard),
                None => return Err(Error::Index { index: *index, parity: MOST_PARITY }),
            }
        }
        let missing = data.iter().filter(|shard| shard.is_none()).count();
        let there = parity.len().min(MOST_PARITY);
        if missing > there || length == 0 || missing * length > recovered.len() {
            return Err(Error::TooFewShards { lost: missing, parity: there });
        }
        let mut lost: ArrayVec<&mut [u8], MOST_PARITY> =
            recovered.chunks_exact_mut(length).take(missing).collect();
        code.recover(&shards, &mut lost)?;
        drop(lost);
        Ok(recovered.chunks_exact(length).take(missing))
    }
}

fn code(codes: &mut [Option<Box<Decoder>>], data: usize) -> Result<&mut Decoder, Error> {
    if data == 0 {
        return Err(Error::Empty { data, parity: MOST_PARITY });
    }
    let Some(place) = codes.get_mut(data - 1) else {
        return Err(Error::TooManyShards { data, parity: MOST_PARITY });
    };
    let made = match place.take() {
        Some(made) => made,
        None => Box::new(Decoder::new(ReedSolomon::new(data, MOST_PARITY)?)),
    };
    Ok(place.insert(made))
}

/// A shard with zeros behind it, up to `length`; one that is as long already, or too long, as it is.
fn pad<'a>(shard: &'a [u8], length: usize, room: &'a mut [u8]) -> &'a [u8] {
    match room.get_mut(..length) {
        Some(room) if shard.len() < length => {
            let (head, tail) = room.split_at_mut(shard.len());
            head.copy_from_slice(shard);
            tail.fill(0);
            room
        }
        _ => shard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_a_short_end_comes_back() {
        let message: Vec<u8> = (0..1000u32).map(|i| (i * 7 + (i >> 5)) as u8).collect();
        let mut workshop = Workshop::new(300);
        for count in [1, 3, 7, 10] {
            let length = 1000usize.div_ceil(count).next_multiple_of(8);
            let mut shop = Workshop::new(length);
            let data: Vec<&[u8]> = message.chunks(length).collect();
            let mut parity = vec![vec![0xaa; length]; 3];
            for (i, shard) in parity.iter_mut().enumerate() {
                shop.encode(i, &data, &mut [shard]).unwrap();
            }
            for lost in [vec![0], vec![data.len() - 1], (0..data.len().min(3)).collect()] {
                let came: Vec<Option<&[u8]>> =
                    data.iter().enumerate().map(|(i, s)| (!lost.contains(&i)).then_some(*s)).collect();
                let shards: Vec<(usize, &[u8])> =
                    (0..lost.len()).map(|i| (2 - i, parity[2 - i].as_slice())).collect();
                let got: Vec<Vec<u8>> =
                    shop.recover(length, &came, &shards).unwrap().map(<[u8]>::to_vec).collect();
                for (i, got) in lost.iter().zip(&got) {
                    assert_eq!(got[..data[*i].len()], *data[*i]);
                    assert!(got[data[*i].len()..].iter().all(|b| *b == 0));
                }
                assert_eq!(got.len(), lost.len());
            }
        }
        let shard = [1u8; 8];
        assert!(matches!(workshop.encode(0, &[], &mut [&mut [0; 8]]), Err(Error::Empty { data: 0, .. })));
        let many = [shard.as_slice(); 65];
        assert!(matches!(
            workshop.encode(0, &many, &mut [&mut [0; 8]]),
            Err(Error::TooManyShards { data: 65, .. })
        ));
        assert_eq!(
            workshop.recover(8, &[None, Some(&shard)], &[]).map(|_| ()).unwrap_err(),
            Error::TooFewShards { lost: 1, parity: 0 }
        );
        assert!(workshop.recover(8, &[None], &[(16, &shard)]).is_err());
    }
}
