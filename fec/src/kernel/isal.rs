//! Intel's ISA-L as a kernel, to compare with.

#![allow(unsafe_code)]

use super::{Coefficients, Kernel};
use crate::codec::MAX_SHARDS;
use arrayvec::ArrayVec;
use std::ffi::{c_int, c_uchar};

#[link(name = "isal")]
unsafe extern "C" {
    /// `isa-l/erasure_code.h`: expands `k × rows` coefficients, row by row, to 32 bytes each. Does not write to `a`.
    fn ec_init_tables(k: c_int, rows: c_int, a: *mut c_uchar, gftbls: *mut c_uchar);
    /// The same header: `rows` sums of `k` inputs of `len` bytes. Does not write to `gftbls` and `data`.
    fn ec_encode_data(
        len: c_int,
        k: c_int,
        rows: c_int,
        gftbls: *mut c_uchar,
        data: *mut *mut c_uchar,
        coding: *mut *mut c_uchar,
    );
}

/// What ISA-L keeps for a coefficient.
const TABLE: usize = 32;

#[derive(Debug)]
struct Isal;

/// Dispatches to the processor's instructions by itself.
pub static ISAL: &dyn Kernel = &Isal;

impl Kernel for Isal {
    fn name(&self) -> &'static str {
        "isa-l"
    }

    fn table_bytes(&self) -> usize {
        TABLE
    }

    fn prepare(&self, columns: usize, rows: usize, coefficients: &[u8], tables: &mut [u8]) {
        assert!(columns <= MAX_SHARDS && rows <= MAX_SHARDS);
        assert_eq!(coefficients.len(), columns * rows);
        assert_eq!(tables.len(), columns * rows * TABLE);
        // SAFETY: both lengths are what the function reads and writes, as just checked; it writes the tables only.
        unsafe {
            ec_init_tables(
                columns as c_int,
                rows as c_int,
                coefficients.as_ptr().cast_mut(),
                tables.as_mut_ptr(),
            );
        }
    }

    fn multiply(&self, coefficients: Coefficients<'_>, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let length = outputs.first().map_or(0, |output| output.len());
        assert!(inputs.iter().all(|input| input.len() == length));
        assert!(outputs.iter().all(|output| output.len() == length));
        assert!(coefficients.tables.len() >= inputs.len() * outputs.len() * TABLE);
        let (columns, rows) = (inputs.len() as c_int, outputs.len() as c_int);
        let mut from: ArrayVec<*mut u8, MAX_SHARDS> = inputs.iter().map(|i| i.as_ptr().cast_mut()).collect();
        let mut to: ArrayVec<*mut u8, MAX_SHARDS> = outputs.iter_mut().map(|o| o.as_mut_ptr()).collect();
        let length = c_int::try_from(length).expect("shards are packets");
        // SAFETY: there are as many pointers as said, each to `length` bytes, and as many tables as it reads; it writes the
        // outputs only, which are borrowed exclusively.
        unsafe {
            ec_encode_data(
                length,
                columns,
                rows,
                coefficients.tables.as_ptr().cast_mut(),
                from.as_mut_ptr(),
                to.as_mut_ptr(),
            );
        }
    }
}
