//! The engine of the reliable service under any sequence of calls: what the bytes say is done, by two engines that talk to each other.
#![no_main]

#[path = "../../../testbed/sim/tests/operations/rig.rs"]
mod rig;

/// Calls of one input at most: more only cost time.
const MOST: usize = 600;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((seed, mut rest)) = bytes.split_first() else { return };
    let mut ops = Vec::new();
    while !rest.is_empty() && ops.len() < MOST {
        // As many bytes as the bound takes; zeros after the end.
        ops.push(rig::draw(&mut |bound| {
            let len = (8 - (bound - 1).leading_zeros() as usize / 8).min(rest.len());
            let (bytes, after) = rest.split_at(len);
            rest = after;
            bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % bound
        }));
    }
    rig::run(u64::from(*seed), &ops);
});
