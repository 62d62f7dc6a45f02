//! Which vector kernels this processor can run, and the calls that enter them.
//!
//! The kernels themselves are safe code; that the processor has their instructions is what a call has to be sure of.

#![allow(unsafe_code)]

use super::{Coefficients, Kernel};

/// A kernel that is lent only where its instructions were found.
macro_rules! found_at_run_time {
    ($kernel:ident, $name:literal, $module:ident) => {
        #[derive(Debug)]
        struct $kernel(());

        impl Kernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            fn multiply(&self, coefficients: Coefficients<'_>, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
                // SAFETY: the function needs the target features that it names, and nothing else. The only value of this
                // type is lent by `found`, which has asked the processor for each of them.
                unsafe { $module::multiply(coefficients.bytes, inputs, outputs) }
            }

            fn sum(&self, inputs: &[&[u8]], output: &mut [u8]) {
                // SAFETY: as above.
                unsafe { $module::sum(inputs, output) }
            }
        }
    };
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86_found {
    use super::super::x86::{avx2, gfni, gfni512, ssse3};
    use super::{Coefficients, Kernel};
    use std::arch::is_x86_feature_detected as has;

    found_at_run_time!(Ssse3, "ssse3", ssse3);
    found_at_run_time!(Avx2, "avx2", avx2);
    found_at_run_time!(Gfni, "gfni", gfni);
    found_at_run_time!(Gfni512, "gfni-avx512", gfni512);

    /// Those for x86, the slowest first.
    pub fn found() -> impl Iterator<Item = &'static dyn Kernel> {
        let gfni = has!("gfni");
        let kernels: [Option<&'static dyn Kernel>; 4] = [
            has!("ssse3").then_some(&Ssse3(())),
            has!("avx2").then_some(&Avx2(())),
            (gfni && has!("avx2")).then_some(&Gfni(())),
            (gfni && has!("avx512f")).then_some(&Gfni512(())),
        ];
        kernels.into_iter().flatten()
    }
}

#[cfg(target_arch = "aarch64")]
mod arm_found {
    use super::super::neon;
    use super::{Coefficients, Kernel};

    found_at_run_time!(Neon, "neon", neon);

    /// The one for ARMv8.
    pub fn found() -> impl Iterator<Item = &'static dyn Kernel> {
        let kernel: Option<&'static dyn Kernel> =
            std::arch::is_aarch64_feature_detected!("neon").then_some(&Neon(()));
        kernel.into_iter()
    }
}

#[cfg(target_arch = "aarch64")]
pub use arm_found::found;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub use x86_found::found;

/// None for other processors.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
pub fn found() -> impl Iterator<Item = &'static dyn Kernel> {
    std::iter::empty()
}
