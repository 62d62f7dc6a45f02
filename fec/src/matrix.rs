//! The coefficients: those of the parity shards, and those that give lost data back.

use crate::field::{inverse, mul, power};

/// The coefficients of `parity` parity shards over `data` data shards, row by row.
///
/// Row `i` of the Vandermonde matrix is the powers of `i`, so that any `data` of its rows are independent. Multiplied by the inverse of
/// its first `data` rows, it begins with the identity, and the other rows are these. They do not depend on how many rows
/// there are.
pub fn parity_rows(data: usize, parity: usize) -> Vec<u8> {
    let vandermonde = |row: usize, column: usize| power(row as u8, column);
    let mut top: Vec<u8> = (0..data * data).map(|i| vandermonde(i / data, i % data)).collect();
    let mut inverted = vec![0; data * data];
    invert(&mut top, &mut inverted, data);
    let mut rows = Vec::with_capacity(parity * data);
    for row in data..data + parity {
        for column in 0..data {
            rows.push(
                (0..data).fold(0, |sum, i| sum ^ mul(vandermonde(row, i), inverted[i * data + column])),
            );
        }
    }
    rows
}

/// Gauss and Jordan: `inverted` becomes the inverse of the `n × n` matrix, which becomes the identity. What is left for a
/// matrix without an inverse means nothing; the callers' have one.
pub fn invert(matrix: &mut [u8], inverted: &mut [u8], n: usize) {
    inverted.fill(0);
    for i in 0..n {
        inverted[i * n + i] = 1;
    }
    for column in 0..n {
        let Some(pivot) = (column..n).find(|row| matrix[row * n + column] != 0) else { return };
        for i in 0..n {
            matrix.swap(pivot * n + i, column * n + i);
            inverted.swap(pivot * n + i, column * n + i);
        }
        let scale = inverse(matrix[column * n + column]);
        for i in 0..n {
            matrix[column * n + i] = mul(matrix[column * n + i], scale);
            inverted[column * n + i] = mul(inverted[column * n + i], scale);
        }
        for row in (0..n).filter(|row| *row != column) {
            let factor = matrix[row * n + column];
            if factor == 0 {
                continue;
            }
            for i in 0..n {
                matrix[row * n + i] ^= mul(factor, matrix[column * n + i]);
                inverted[row * n + i] ^= mul(factor, inverted[column * n + i]);
            }
        }
    }
}

/// The inverse of a `2 × 2` matrix: `[d b; c a] / (ad + bc)`, signs being none in this field.
pub fn invert_two([a, b, c, d]: [u8; 4]) -> [u8; 4] {
    let scale = inverse(mul(a, d) ^ mul(b, c));
    [mul(d, scale), mul(b, scale), mul(c, scale), mul(a, scale)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_by_hand() {
        // Two data shards: the rows of the matrix are (1, i); its top is [1 0; 1 1], which is its own inverse. Row 2 is (1, 2)
        // and gives (1 + 2, 2), row 3 gives (1 + 3, 3).
        assert_eq!(parity_rows(2, 2), [3, 2, 2, 3]);
    }

    #[test]
    fn an_inverse_times_the_matrix_is_the_identity() {
        let mut random = fastrand::Rng::with_seed(7);
        for n in 1..8 {
            // Rows of the code's own matrix, which always have an inverse, in any order and with a zero to pivot around.
            let rows = parity_rows(n, n);
            let mut matrix = rows.clone();
            if n > 1 {
                let (from, to) = (random.usize(..n), random.usize(..n));
                for i in 0..n {
                    matrix.swap(from * n + i, to * n + i);
                }
            }
            let original = matrix.clone();
            let mut inverted = vec![0; n * n];
            invert(&mut matrix, &mut inverted, n);
            for row in 0..n {
                for column in 0..n {
                    let entry =
                        (0..n).fold(0, |sum, i| sum ^ mul(original[row * n + i], inverted[i * n + column]));
                    assert_eq!(entry, u8::from(row == column), "{n}: {row}, {column}");
                }
            }
            if n == 2 {
                assert_eq!(invert_two(original.try_into().unwrap()).as_slice(), inverted);
            }
        }
    }

    #[test]
    fn a_zero_in_the_pivot_is_swapped_away() {
        let (mut matrix, mut inverted) = ([0, 1, 1, 0], [0; 4]);
        invert(&mut matrix, &mut inverted, 2);
        assert_eq!(inverted, [0, 1, 1, 0]);
    }
}
