//! The whole receive path on any bytes: parser, ICRC, UD, GRH area, and our builder's version of the same packet.
#![no_main]

#[path = "../../tests/common/receive.rs"]
mod receive;

libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    receive::check(frame);
});
