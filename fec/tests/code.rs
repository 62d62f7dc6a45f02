//! The code against another implementation, golden bytes, and every loss that a group can have.

use fec::{Codec, CodecId, Decoder, Error, MAX_SHARDS, ReedSolomon, kernel};
use proptest::prelude::*;
use reed_solomon_erasure::galois_8;

fn shards(count: usize, length: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (0..length).map(|_| random.u8(..)).collect()).collect()
}

fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(Vec::as_slice).collect()
}

fn encoded(code: &ReedSolomon, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0x5a; data[0].len()]; code.parity_shards()];
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&slices(data), &mut outputs).unwrap();
    parity
}

/// What the decoder makes of a group of which only some shards came.
fn recovered(
    decoder: &mut Decoder,
    group: &[Vec<u8>],
    came: impl Fn(usize) -> bool,
) -> Result<Vec<Vec<u8>>, Error> {
    let shards: Vec<Option<&[u8]>> =
        group.iter().enumerate().map(|(i, shard)| came(i).then_some(shard.as_slice())).collect();
    let missing = (0..decoder.code().data_shards()).filter(|i| !came(*i)).count();
    let mut lost = vec![vec![0x77; group[0].len()]; missing];
    let mut outputs: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
    decoder.recover(&shards, &mut outputs).map(|()| lost)
}

/// The lost data as it was, if enough came; the right refusal otherwise.
fn check(decoder: &mut Decoder, group: &[Vec<u8>], came: impl Fn(usize) -> bool + Copy) {
    let data = decoder.code().data_shards();
    let wanted: Vec<Vec<u8>> = (0..data).filter(|i| !came(*i)).map(|i| group[i].clone()).collect();
    let there = (data..group.len()).filter(|i| came(*i)).count();
    let expected = if wanted.len() <= there {
        Ok(wanted)
    } else {
        Err(Error::TooFewShards { lost: wanted.len(), parity: there })
    };
    let pattern: String = (0..group.len()).map(|i| if came(i) { '1' } else { '0' }).collect();
    assert_eq!(recovered(decoder, group, came), expected, "{pattern}");
}

#[test]
fn parity_equals_the_reference_with_every_kernel() {
    for (data, parity) in
        [(1, 1), (2, 3), (8, 2), (16, 4), (32, 2), (32, 4), (32, 8), (64, 12), (200, 56), (1, 255)]
    {
        let input = shards(data, 193, data as u64);
        let reference = galois_8::ReedSolomon::new(data, parity).unwrap();
        let mut wanted = vec![vec![0; 193]; parity];
        reference.encode_sep(&input, &mut wanted).unwrap();
        for kernel in kernel::all() {
            let code = ReedSolomon::with_kernel(kernel, data, parity).unwrap();
            assert!(encoded(&code, &input) == wanted, "({data},{parity}) with {}", kernel.name());
        }
    }
}

#[test]
fn some_parity_shards_are_the_same_as_among_all() {
    let data = shards(12, 100, 3);
    #[allow(unused_mut)]
    let mut kernels: Vec<_> = kernel::all().collect();
    #[cfg(feature = "isal")]
    kernels.push(kernel::ISAL);
    for kernel in kernels {
        let code = ReedSolomon::with_kernel(kernel, 12, 5).unwrap();
        let wanted = encoded(&code, &data);
        for (first, end) in (0..5).flat_map(|first| (first + 1..=5).map(move |end| (first, end))) {
            let mut parity = vec![vec![1; 100]; end - first];
            let mut places: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode_from(first, &slices(&data), &mut places).unwrap();
            assert_eq!(parity, wanted[first..end], "{}, {first} to {end}", kernel.name());
        }
    }
}

/// What is on the wire must not change without a new version.
#[test]
fn golden_parity() {
    assert_eq!(CodecId::REED_SOLOMON, CodecId { id: 1, version: 1 });
    let code = ReedSolomon::new(4, 2).unwrap();
    assert_eq!(code.id(), CodecId::REED_SOLOMON);
    let data: Vec<Vec<u8>> =
        ["spraywire", "reed-solo", "mon over ", "gf(2^8)!!"].map(|s| s.as_bytes().to_vec()).into();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let parity: Vec<String> = encoded(&code, &data).iter().map(|p| hex(p)).collect();
    assert_eq!(parity, GOLDEN);
}

const GOLDEN: [&str; 2] = ["a337a2e300b0900f2a", "986a4e94171537a21a"];

#[test]
fn every_loss_of_small_groups() {
    for (data, parity) in [(1, 1), (1, 3), (2, 2), (3, 3), (5, 4), (8, 2), (6, 6)] {
        let mut decoder = Decoder::new(ReedSolomon::new(data, parity).unwrap());
        let input = shards(data, 37, 11);
        let mut group = input.clone();
        group.extend(encoded(decoder.code(), &input));
        for pattern in 0u32..1 << (data + parity) {
            check(&mut decoder, &group, |i| pattern >> i & 1 != 0);
        }
    }
}

#[test]
fn one_and_two_losses_of_larger_groups() {
    for (data, parity) in [(32, 4), (32, 8), (16, 4)] {
        let mut decoder = Decoder::new(ReedSolomon::new(data, parity).unwrap());
        let input = shards(data, 65, 12);
        let mut group = input.clone();
        group.extend(encoded(decoder.code(), &input));
        for a in 0..data + parity {
            for b in 0..data + parity {
                check(&mut decoder, &group, |i| i != a && i != b);
            }
        }
    }
}

#[test]
fn a_pattern_that_comes_again_is_remembered_and_others_do_not_disturb_it() {
    let mut decoder = Decoder::new(ReedSolomon::new(32, 4).unwrap());
    let groups: Vec<Vec<Vec<u8>>> = (0..3)
        .map(|seed| {
            let mut group = shards(32, 48, seed);
            let parity = encoded(decoder.code(), &group);
            group.extend(parity);
            group
        })
        .collect();
    for group in &groups {
        for first in 0..8 {
            check(&mut decoder, group, |i| i != first && i != first + 9);
        }
    }
    assert_eq!(decoder.cache_hits(), 16, "eight patterns, each made once");
    // Beyond the first 64 shards too.
    let mut large = Decoder::new(ReedSolomon::new(100, 4).unwrap());
    let mut group = shards(100, 8, 5);
    group.extend(encoded(large.code(), &group));
    for lost in [70, 71, 70, 71] {
        check(&mut large, &group, |i| i != lost);
    }
    assert_eq!(large.cache_hits(), 2);
    // More patterns than there is room for: the right bytes all the same.
    for group in &groups[..2] {
        for first in 0..20 {
            check(&mut decoder, group, |i| i != first);
        }
    }
}

#[test]
fn wrong_numbers_are_refused() {
    let new = |data, parity| ReedSolomon::new(data, parity).map(|_| ()).unwrap_err();
    assert_eq!(new(0, 4), Error::Empty { data: 0, parity: 4 });
    assert_eq!(new(4, 0), Error::Empty { data: 4, parity: 0 });
    assert_eq!(new(250, 7), Error::TooManyShards { data: 250, parity: 7 });
    assert_eq!(new(usize::MAX, 7), Error::TooManyShards { data: usize::MAX, parity: 7 });
    assert!(ReedSolomon::new(MAX_SHARDS - 6, 6).is_ok());

    let code = ReedSolomon::new(3, 2).unwrap();
    let good = shards(3, 10, 1);
    let (mut a, mut b, mut short) = ([9; 10], [9; 10], [9; 4]);
    let encode = |data: &[&[u8]], parity: &mut [&mut [u8]]| code.encode(data, parity).unwrap_err();
    assert_eq!(encode(&slices(&good)[..2], &mut [&mut a, &mut b]), Error::Count { given: 2, wanted: 3 });
    assert_eq!(encode(&slices(&good), &mut [&mut a]), Error::Count { given: 1, wanted: 2 });
    let error = encode(&slices(&good), &mut [&mut a, &mut short]);
    assert_eq!(error, Error::Length { shard: 4, given: 4, wanted: 10 });
    let error = encode(&[&[], &[], &[]], &mut [&mut [], &mut []]);
    assert_eq!(error, Error::Length { shard: 0, given: 0, wanted: 1 });
    let from = |first, parity: &mut [&mut [u8]]| code.encode_from(first, &slices(&good), parity);
    assert_eq!(from(2, &mut [&mut a]), Err(Error::Index { index: 2, parity: 2 }));
    assert_eq!(from(1, &mut [&mut a, &mut b]), Err(Error::Index { index: 2, parity: 2 }));
    assert_eq!(from(usize::MAX, &mut [&mut a]), Err(Error::Index { index: usize::MAX - 1, parity: 2 }));
    assert_eq!((a, b, short), ([9; 10], [9; 10], [9; 4]), "nothing was written");

    let mut decoder = Decoder::new(code);
    let (some, mut lost) = (Some([1; 10].as_slice()), [9; 10]);
    let mut recover =
        |shards: &[Option<&[u8]>], lost: &mut [&mut [u8]]| decoder.recover(shards, lost).unwrap_err();
    assert_eq!(recover(&[some; 4], &mut []), Error::Count { given: 4, wanted: 5 });
    assert_eq!(recover(&[None, some, some, some, None], &mut []), Error::Count { given: 0, wanted: 1 });
    let error = recover(&[None, some, Some(&[1; 4]), some, None], &mut [&mut lost]);
    assert_eq!(error, Error::Length { shard: 2, given: 4, wanted: 10 });
    let error = recover(&[None, some, some, some, None], &mut [&mut short]);
    assert_eq!(error, Error::Length { shard: 3, given: 10, wanted: 4 });
    let error = recover(&[None, some, some, None, None], &mut [&mut lost]);
    assert_eq!(error, Error::TooFewShards { lost: 1, parity: 0 });
    assert_eq!(lost, [9; 10]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Groups of any size, with as many losses as they bear, and one more.
    #[test]
    fn any_k_shards_give_the_data_back(
        data in 1usize..100, parity in 1usize..20, length in 1usize..200, seed in any::<u64>(),
    ) {
        let mut decoder = Decoder::new(ReedSolomon::new(data, parity).unwrap());
        let input = shards(data, length, seed);
        let mut group = input.clone();
        group.extend(encoded(decoder.code(), &input));
        let mut order: Vec<usize> = (0..data + parity).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        for losses in [parity, parity.min(2), parity + 1] {
            check(&mut decoder, &group, |i| !order[..losses].contains(&i));
        }
    }
}
