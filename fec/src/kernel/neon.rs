//! The kernel for ARMv8: byte lookups of 16 bytes.

use super::tables::NIBBLES;
use std::arch::aarch64::*;

type Vector = uint8x16_t;
const WIDTH: usize = 16;

#[derive(Clone, Copy)]
struct Halves {
    low: Vector,
    high: Vector,
}

#[target_feature(enable = "neon")]
#[inline]
fn zero() -> Vector {
    vdupq_n_u8(0)
}

#[target_feature(enable = "neon")]
#[inline]
fn xor(a: Vector, b: Vector) -> Vector {
    veorq_u8(a, b)
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; WIDTH]) -> Vector {
    bytemuck::cast(*bytes)
}

#[target_feature(enable = "neon")]
#[inline]
fn store(vector: Vector, bytes: &mut [u8; WIDTH]) {
    *bytes = bytemuck::cast(vector);
}

#[target_feature(enable = "neon")]
#[inline]
fn split(vector: Vector) -> Halves {
    Halves { low: vandq_u8(vector, vdupq_n_u8(15)), high: vshrq_n_u8::<4>(vector) }
}

#[target_feature(enable = "neon")]
#[inline]
fn factor(constant: u8) -> Halves {
    let [low, high] = &NIBBLES[usize::from(constant)];
    Halves { low: load(low), high: load(high) }
}

#[target_feature(enable = "neon")]
#[inline]
fn add(sum: Vector, data: Halves, factor: Halves) -> Vector {
    let low = vqtbl1q_u8(factor.low, data.low);
    let high = vqtbl1q_u8(factor.high, data.high);
    veorq_u8(sum, veorq_u8(low, high))
}

#[target_feature(enable = "neon")]
#[inline]
fn add_two(sum: Vector, data: (Halves, Halves), factors: (Halves, Halves)) -> Vector {
    add(add(sum, data.0, factors.0), data.1, factors.1)
}

vector_kernel!("neon", { 1 => 4, 2 => 4, 3 => 2, 4 => 2 });
