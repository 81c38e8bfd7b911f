//! Fuzzing of everything that reads a model's files: `cargo xtask fuzz`.
//!
//! ```text
//! corpus/gguf/*   real files, small  ──mutate──► files that are wrong in one place  ──doors──► Ok, or one clear error
//! ```
//!
//! Bytes changed at random rarely pass a reader's first check. So `testing::mutate` knows the formats: it finds the fields of
//! a file (counts, lengths, kinds, offsets; the values of JSON) and changes one of them. `tests/it/fuzzed.rs` and files of
//! this name in `crates/model`, `crates/dialect` and `crates/grammar` compile the same doors and run the corpora, and
//! some thousand mutations of them from fixed seeds, on stable. `doors` needs the model alone; `answers` has what models
//! write, `rules` what an answer must look like, `frames` what workers say to each other, and `runs` recordings, traces
//! and the bodies of requests.

pub mod answers;
pub mod doors;
pub mod frames;
pub mod rules;
pub mod runs;

pub use testing::mutate;

use testing::Dice;

/// A panic that a reader catches (of the `tokenizers` crate, made an error) is no finding; the fuzzer aborts at one
/// that comes through all the same, without its hook.
pub fn leave_caught_panics_alone() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// One step of a fuzzer: mostly a change that knows the format, sometimes the fuzzer's own.
pub fn mutated(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    change: fn(&mut Vec<u8>, &mut Dice),
    own: fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    if seed % 8 == 0 {
        return own(data, size, max_size);
    }
    let mut bytes = data[..size].to_vec();
    change(&mut bytes, &mut Dice::new(seed.into()));
    bytes.truncate(max_size);
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}
