//! Multiplication by a constant as a table. It is linear over GF(2), so the product of a byte is the sum of those of its halves, and
//! also a matrix of bits.

use crate::field::product;

/// For each constant its products with 0..16, then with 0, 16, … 240: what byte shuffles look up.
pub static NIBBLES: [[[u8; 16]; 2]; 256] = nibbles();

/// For each constant the matrix of bits that GFNI's affine transformation takes: byte `7 - i` has the bits of the argument whose sum
/// is bit `i` of the product. The transformation knows no polynomial, so any field will do; the multiplication of
/// GFNI itself is that of another.
#[cfg(any(target_arch = "x86", target_arch = "x86_64", test))]
pub static AFFINE: [u64; 256] = affine();

const fn nibbles() -> [[[u8; 16]; 2]; 256] {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[constant][0][nibble] = product(constant as u8, nibble as u8);
            tables[constant][1][nibble] = product(constant as u8, (nibble as u8) << 4);
            nibble += 1;
        }
        constant += 1;
    }
    tables
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64", test))]
const fn affine() -> [u64; 256] {
    let mut matrices = [0; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut column = 0;
        while column < 8 {
            let product = product(constant as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if product >> row & 1 != 0 {
                    matrices[constant] |= 1 << (8 * (7 - row) + column);
                }
                row += 1;
            }
            column += 1;
        }
        constant += 1;
    }
    matrices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_the_products() {
        for constant in 0..=255u8 {
            let [low, high] = &NIBBLES[usize::from(constant)];
            let matrix = AFFINE[usize::from(constant)].to_le_bytes();
            for byte in 0..=255u8 {
                let wanted = product(constant, byte);
                assert_eq!(low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)], wanted);
                let by_bits = (0..8)
                    .fold(0, |sum, i| sum | u8::from((matrix[7 - i] & byte).count_ones() % 2 == 1) << i);
                assert_eq!(by_bits, wanted, "{constant} · {byte}");
            }
        }
    }
}
