//! See `fuzz::frames::frame`.
#![no_main]

use fuzz::mutate::frame as change;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(init: fuzz::leave_caught_panics_alone(), |bytes: &[u8]| {
    fuzz::frames::frame(bytes);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzz::mutated(data, size, max_size, seed, change, fuzzer_mutate)
});
