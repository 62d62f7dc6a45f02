//! The kernels without vectors.

use super::{Coefficients, Kernel, tables::NIBBLES};
use crate::field::product;

/// The definition.
#[derive(Debug)]
pub struct Oracle;

impl Kernel for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn multiply(&self, coefficients: Coefficients<'_>, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        for (row, output) in coefficients.bytes.chunks(inputs.len()).zip(outputs) {
            for (at, byte) in output.iter_mut().enumerate() {
                *byte = row.iter().zip(inputs).fold(0, |sum, (c, input)| sum ^ product(*c, input[at]));
            }
        }
    }
}

/// Tables, for processors that none of the others is for.
#[derive(Debug)]
pub struct Scalar;

impl Kernel for Scalar {
    fn name(&self) -> &'static str {
        "scalar"
    }

    fn multiply(&self, coefficients: Coefficients<'_>, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        tail(coefficients.bytes, inputs, outputs, 0);
    }
}

/// The bytes from `from` on.
pub fn tail(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]], from: usize) {
    for (row, output) in coefficients.chunks(inputs.len()).zip(outputs) {
        let output = &mut output[from..];
        output.fill(0);
        for (constant, input) in row.iter().zip(inputs) {
            let [low, high] = &NIBBLES[usize::from(*constant)];
            for (sum, byte) in output.iter_mut().zip(&input[from..]) {
                *sum ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
            }
        }
    }
}
