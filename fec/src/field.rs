//! GF(2⁸), bytes as polynomials over GF(2) modulo x⁸ + x⁴ + x³ + x² + 1 (0x11d), the field of most erasure codes.
//!
//! Addition is exclusive-or. [`product`] is the definition, in eight steps; everything else follows from it.

/// The polynomial without its highest term.
const REDUCTION: u8 = 0x1d;

/// The product of two elements, from its definition: shift and add, reduced after each shift.
pub const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        let overflows = a & 0x80 != 0;
        a <<= 1;
        if overflows {
            a ^= REDUCTION;
        }
        b >>= 1;
    }
    sum
}

/// Logarithms to the base 2, which generates the field; that of 0 is not used.
const LOG: [u8; 256] = tables().0;
/// Powers of 2, twice around, so that a sum of two logarithms is an index.
const EXP: [u8; 510] = tables().1;

const fn tables() -> ([u8; 256], [u8; 510]) {
    let (mut log, mut exp) = ([0; 256], [0; 510]);
    let (mut i, mut power) = (0, 1u8);
    while i < 255 {
        log[power as usize] = i as u8;
        exp[i] = power;
        exp[i + 255] = power;
        power = product(power, 2);
        i += 1;
    }
    (log, exp)
}

/// The product of two elements, by logarithms.
pub fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])]
}

/// The inverse; 0 has none and gives 0.
pub fn inverse(a: u8) -> u8 {
    if a == 0 { 0 } else { EXP[255 - usize::from(LOG[usize::from(a)])] }
}

/// `a` to the power of `n`; 0⁰ is 1.
pub fn power(a: u8, n: usize) -> u8 {
    match (a, n) {
        (_, 0) => 1,
        (0, _) => 0,
        _ => EXP[usize::from(LOG[usize::from(a)]) * n % 255],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_by_hand() {
        // 0x80 · 2 leaves x⁸, which is x⁴ + x³ + x² + 1; 3 · 3 is (x + 1)² = x² + 1.
        assert_eq!((product(0x80, 2), product(3, 3), product(0x53, 1)), (0x1d, 5, 0x53));
    }

    #[test]
    fn logarithms_agree_with_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), product(a, b), "{a} · {b}");
            }
            assert_eq!(product(a, inverse(a)), u8::from(a != 0), "1 / {a}");
        }
    }

    #[test]
    fn powers_are_repeated_products() {
        for a in [0, 1, 2, 3, 0x8e, 255] {
            let mut expected = 1;
            for n in 0..600 {
                assert_eq!(power(a, n), expected, "{a}^{n}");
                expected = product(expected, a);
            }
        }
    }
}
