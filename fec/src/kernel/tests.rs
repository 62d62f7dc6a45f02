//! Every kernel against the oracle.

use super::*;

fn kernels() -> Vec<&'static dyn Kernel> {
    #[allow(unused_mut)]
    let mut kernels: Vec<_> = all().collect();
    #[cfg(feature = "isal")]
    kernels.push(ISAL);
    kernels
}

fn product_of(kernel: &dyn Kernel, coefficients: &[u8], inputs: &[Vec<u8>], rows: usize) -> Vec<Vec<u8>> {
    let mut matrix = Matrix::with_room(kernel, inputs.len(), rows);
    matrix.set(kernel, rows, |bytes| bytes.copy_from_slice(coefficients));
    let length = inputs[0].len();
    // What was in the outputs must not matter.
    let mut outputs = vec![vec![0xa5; length]; rows];
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    kernel.multiply(matrix.rows(0, rows), &inputs, &mut slices);
    outputs
}

/// Every product of two bytes, at every place of a vector.
#[test]
fn each_product_of_two_bytes() {
    for kernel in kernels() {
        for constant in 0..=255u8 {
            let input = vec![(0..=255u8).collect::<Vec<u8>>()];
            let wanted: Vec<u8> = input[0].iter().map(|b| crate::field::product(constant, *b)).collect();
            assert_eq!(
                product_of(kernel, &[constant], &input, 1),
                [wanted],
                "{} · {constant}",
                kernel.name()
            );
        }
    }
}

/// Lengths around each vector width and each number of them that goes at once, all numbers of outputs that go at once and one more.
#[test]
fn all_lengths_and_numbers_of_outputs() {
    let mut random = fastrand::Rng::with_seed(1);
    let lengths = [
        1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 191, 255, 256, 257, 300, 511, 513, 1024,
        1025, 1100,
    ];
    for length in lengths {
        for rows in 1..=10 {
            let columns = random.usize(1..12);
            let bytes =
                |random: &mut fastrand::Rng, n: usize| (0..n).map(|_| random.u8(..)).collect::<Vec<u8>>();
            let coefficients = bytes(&mut random, rows * columns);
            let inputs: Vec<Vec<u8>> = (0..columns).map(|_| bytes(&mut random, length)).collect();
            let wanted = product_of(oracle(), &coefficients, &inputs, rows);
            for kernel in kernels() {
                let got = product_of(kernel, &coefficients, &inputs, rows);
                assert_eq!(got, wanted, "{}: {length} bytes, {columns} to {rows}", kernel.name());
            }
        }
    }
}

#[test]
fn sums_are_sums() {
    for kernel in kernels() {
        for length in [1, 100, 511, 512, 513, 1100] {
            let inputs: Vec<Vec<u8>> =
                (1..4u8).map(|n| (0..length).map(|i| (i as u8).wrapping_mul(n) ^ n).collect()).collect();
            let wanted: Vec<u8> =
                (0..length).map(|i| inputs.iter().fold(0, |sum, input| sum ^ input[i])).collect();
            let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let mut output = vec![0xa5; length];
            kernel.sum(&slices, &mut output);
            assert_eq!(output, wanted, "{}: {length}", kernel.name());
        }
    }
}

#[test]
fn the_best_is_not_the_oracle_and_names_differ() {
    assert_ne!(best().name(), oracle().name());
    let names: Vec<&str> = kernels().iter().map(|k| k.name()).collect();
    assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
}
