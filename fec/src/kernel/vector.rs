//! The loop that all vector kernels share, as a macro: what is inlined into a function must have its target features, and only a
//! function that names them itself can have them.

/// Writes `multiply` for an instruction set. The module has `type Vector`, `WIDTH` bytes wide, `type Split`, `type Factor`, and
/// functions with the same target features: `load` and `store`, `zero`, `xor`, `split` for what the products of an input need of
/// it, `factor` for what they need of a coefficient, `add` for a sum with a product, `add_two` for one with two. `$rows => $columns` says how many outputs go
/// at once, and over how many vectors: as many sums as the registers hold, so that each input is loaded once.
macro_rules! vector_kernel {
    ($features:literal, { $($rows:literal => $columns:literal),+ }) => {
        /// Sums of products, by vectors; see [`Kernel::multiply`](crate::kernel::Kernel::multiply).
        #[target_feature(enable = $features)]
        pub fn multiply(coefficients: &[u8], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
            const MOST: usize = { let all = [$($rows),+]; all[all.len() - 1] };
            let length = outputs.first().map_or(0, |output| output.len());
            if length < WIDTH || inputs.is_empty() {
                return crate::kernel::scalar::tail(coefficients, inputs, outputs, 0);
            }
            let all = coefficients.chunks(MOST * inputs.len()).zip(outputs.chunks_mut(MOST));
            for (coefficients, outputs) in all {
                match outputs.len() {
                    $($rows => shards::<$rows, $columns>(coefficients, inputs, outputs, length),)+
                    _ => {}
                }
            }
        }

        /// The sum of the inputs; see [`Kernel::sum`](crate::kernel::Kernel::sum).
        #[target_feature(enable = $features)]
        pub fn sum(inputs: &[&[u8]], output: &mut [u8]) {
            const C: usize = 8;
            let whole = output.len() - output.len() % (C * WIDTH);
            for at in (0..whole).step_by(C * WIDTH) {
                let mut sums = [zero(); C];
                for input in inputs {
                    let (vectors, _) = input[at..at + C * WIDTH].as_chunks::<WIDTH>();
                    for c in 0..C {
                        sums[c] = xor(sums[c], load(&vectors[c]));
                    }
                }
                let (vectors, _) = output[at..at + C * WIDTH].as_chunks_mut::<WIDTH>();
                for c in 0..C {
                    store(sums[c], &mut vectors[c]);
                }
            }
            crate::kernel::add_up(inputs, output, whole);
        }

        #[target_feature(enable = $features)]
        fn shards<const R: usize, const C: usize>(
            coefficients: &[u8],
            inputs: &[&[u8]],
            outputs: &mut [&mut [u8]],
            length: usize,
        ) {
            let mut at = 0;
            while at + C * WIDTH <= length {
                block::<R, C>(coefficients, inputs, outputs, at);
                at += C * WIDTH;
            }
            while at + WIDTH <= length {
                block::<R, 1>(coefficients, inputs, outputs, at);
                at += WIDTH;
            }
            // The last vector may overlap the one before: it gives the same bytes once more.
            if at < length {
                block::<R, 1>(coefficients, inputs, outputs, length - WIDTH);
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn block<const R: usize, const C: usize>(
            coefficients: &[u8],
            inputs: &[&[u8]],
            outputs: &mut [&mut [u8]],
            at: usize,
        ) {
            let count = inputs.len();
            let rows: [&[u8]; R] = std::array::from_fn(|row| &coefficients[row * count..(row + 1) * count]);
            let mut sums = [[zero(); C]; R];
            // By twos, as some instruction sets add two products at once.
            let mut i = 0;
            while i + 2 <= count {
                let (first, _) = inputs[i][at..at + C * WIDTH].as_chunks::<WIDTH>();
                let (second, _) = inputs[i + 1][at..at + C * WIDTH].as_chunks::<WIDTH>();
                let factors: [_; R] = std::array::from_fn(|r| (factor(rows[r][i]), factor(rows[r][i + 1])));
                for c in 0..C {
                    let data = (split(load(&first[c])), split(load(&second[c])));
                    for r in 0..R {
                        sums[r][c] = add_two(sums[r][c], data, factors[r]);
                    }
                }
                i += 2;
            }
            if i < count {
                let (vectors, _) = inputs[i][at..at + C * WIDTH].as_chunks::<WIDTH>();
                for r in 0..R {
                    let factor = factor(rows[r][i]);
                    for c in 0..C {
                        sums[r][c] = add(sums[r][c], split(load(&vectors[c])), factor);
                    }
                }
            }
            for (r, output) in outputs.iter_mut().enumerate().take(R) {
                let (vectors, _) = output[at..at + C * WIDTH].as_chunks_mut::<WIDTH>();
                for c in 0..C {
                    store(sums[r][c], &mut vectors[c]);
                }
            }
        }
    };
}
