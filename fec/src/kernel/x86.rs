//! The kernels for x86: byte shuffles of 16 and 32 bytes (SSSE3, AVX2), and GFNI's bit matrices of 32 and 64 bytes.
//!
//! Loads and stores are casts of byte arrays, so nothing here is unsafe but to be called where the features are not there.

#[cfg(target_arch = "x86")]
use std::arch::x86 as arch;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;

/// Two lookups for each vector, one for each half of the bytes.
pub mod ssse3 {
    use super::arch::*;
    use crate::kernel::tables::NIBBLES;

    type Vector = __m128i;
    const WIDTH: usize = 16;

    #[derive(Clone, Copy)]
    struct Halves {
        low: Vector,
        high: Vector,
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn zero() -> Vector {
        _mm_setzero_si128()
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn xor(a: Vector, b: Vector) -> Vector {
        _mm_xor_si128(a, b)
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn load(bytes: &[u8; WIDTH]) -> Vector {
        bytemuck::cast(*bytes)
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn store(vector: Vector, bytes: &mut [u8; WIDTH]) {
        *bytes = bytemuck::cast(vector);
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn split(vector: Vector) -> Halves {
        let mask = _mm_set1_epi8(15);
        let high = _mm_and_si128(_mm_srli_epi64::<4>(vector), mask);
        Halves { low: _mm_and_si128(vector, mask), high }
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn factor(constant: u8) -> Halves {
        let [low, high] = &NIBBLES[usize::from(constant)];
        Halves { low: load(low), high: load(high) }
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn add(sum: Vector, data: Halves, factor: Halves) -> Vector {
        let low = _mm_shuffle_epi8(factor.low, data.low);
        let high = _mm_shuffle_epi8(factor.high, data.high);
        _mm_xor_si128(sum, _mm_xor_si128(low, high))
    }

    #[target_feature(enable = "ssse3")]
    #[inline]
    fn add_two(sum: Vector, data: (Halves, Halves), factors: (Halves, Halves)) -> Vector {
        add(add(sum, data.0, factors.0), data.1, factors.1)
    }

    vector_kernel!("ssse3", { 1 => 4, 2 => 2, 3 => 2, 4 => 2 });
}

/// The same, 32 bytes wide: the shuffle looks up in each 16 bytes by themselves.
pub mod avx2 {
    use super::arch::*;
    use crate::kernel::tables::NIBBLES;

    type Vector = __m256i;
    const WIDTH: usize = 32;

    #[derive(Clone, Copy)]
    struct Halves {
        low: Vector,
        high: Vector,
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn zero() -> Vector {
        _mm256_setzero_si256()
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn xor(a: Vector, b: Vector) -> Vector {
        _mm256_xor_si256(a, b)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(bytes: &[u8; WIDTH]) -> Vector {
        bytemuck::cast(*bytes)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn store(vector: Vector, bytes: &mut [u8; WIDTH]) {
        *bytes = bytemuck::cast(vector);
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn split(vector: Vector) -> Halves {
        let mask = _mm256_set1_epi8(15);
        let high = _mm256_and_si256(_mm256_srli_epi64::<4>(vector), mask);
        Halves { low: _mm256_and_si256(vector, mask), high }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn factor(constant: u8) -> Halves {
        let [low, high] = &NIBBLES[usize::from(constant)];
        Halves {
            low: _mm256_broadcastsi128_si256(bytemuck::cast(*low)),
            high: _mm256_broadcastsi128_si256(bytemuck::cast(*high)),
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(sum: Vector, data: Halves, factor: Halves) -> Vector {
        let low = _mm256_shuffle_epi8(factor.low, data.low);
        let high = _mm256_shuffle_epi8(factor.high, data.high);
        _mm256_xor_si256(sum, _mm256_xor_si256(low, high))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add_two(sum: Vector, data: (Halves, Halves), factors: (Halves, Halves)) -> Vector {
        add(add(sum, data.0, factors.0), data.1, factors.1)
    }

    vector_kernel!("avx2", { 1 => 4, 2 => 2, 3 => 2, 4 => 2 });
}

/// One matrix of bits for each coefficient.
pub mod gfni {
    use super::arch::*;
    use crate::kernel::tables::AFFINE;

    type Vector = __m256i;
    const WIDTH: usize = 32;

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn zero() -> Vector {
        _mm256_setzero_si256()
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn xor(a: Vector, b: Vector) -> Vector {
        _mm256_xor_si256(a, b)
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn load(bytes: &[u8; WIDTH]) -> Vector {
        bytemuck::cast(*bytes)
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn store(vector: Vector, bytes: &mut [u8; WIDTH]) {
        *bytes = bytemuck::cast(vector);
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn split(vector: Vector) -> Vector {
        vector
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn factor(constant: u8) -> Vector {
        _mm256_set1_epi64x(AFFINE[usize::from(constant)].cast_signed())
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn add(sum: Vector, data: Vector, factor: Vector) -> Vector {
        _mm256_xor_si256(sum, _mm256_gf2p8affine_epi64_epi8::<0>(data, factor))
    }

    #[target_feature(enable = "avx2,gfni")]
    #[inline]
    fn add_two(sum: Vector, data: (Vector, Vector), factors: (Vector, Vector)) -> Vector {
        add(add(sum, data.0, factors.0), data.1, factors.1)
    }

    vector_kernel!("avx2,gfni", { 1 => 4, 2 => 4, 3 => 2, 4 => 2, 5 => 2, 6 => 1, 7 => 1, 8 => 1 });
}

/// The same, 64 bytes wide.
pub mod gfni512 {
    use super::arch::*;
    use crate::kernel::tables::AFFINE;

    type Vector = __m512i;
    const WIDTH: usize = 64;

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn zero() -> Vector {
        _mm512_setzero_si512()
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn xor(a: Vector, b: Vector) -> Vector {
        _mm512_xor_si512(a, b)
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn load(bytes: &[u8; WIDTH]) -> Vector {
        bytemuck::cast(*bytes)
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn store(vector: Vector, bytes: &mut [u8; WIDTH]) {
        *bytes = bytemuck::cast(vector);
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn split(vector: Vector) -> Vector {
        vector
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn factor(constant: u8) -> Vector {
        _mm512_set1_epi64(AFFINE[usize::from(constant)].cast_signed())
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn add(sum: Vector, data: Vector, factor: Vector) -> Vector {
        _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(data, factor))
    }

    #[target_feature(enable = "avx512f,gfni")]
    #[inline]
    fn add_two(sum: Vector, data: (Vector, Vector), factors: (Vector, Vector)) -> Vector {
        let first = _mm512_gf2p8affine_epi64_epi8::<0>(data.0, factors.0);
        let second = _mm512_gf2p8affine_epi64_epi8::<0>(data.1, factors.1);
        // The sum of all three.
        _mm512_ternarylogic_epi64::<0x96>(sum, first, second)
    }

    vector_kernel!("avx512f,gfni", { 1 => 16, 2 => 8, 3 => 4, 4 => 4, 5 => 2, 6 => 2, 7 => 2, 8 => 2 });
}
