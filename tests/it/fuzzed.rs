//! What fuzzing of runs, requests and frames starts from and what it found, on stable: the corpora in `fuzz/corpus` through
//! their doors, and changes to them from fixed seeds. `cargo xtask fuzz` goes on from there; model files and texts are
//! in `crates/model/tests/fuzzed.rs`.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../fuzz/src/frames.rs"]
mod frames;
#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../fuzz/src/runs.rs"]
mod runs;

use testing::corpus::replay;
use testing::mutate;

#[test]
fn recording() {
    replay("recording", 1, runs::recording, mutate::lines);
}

#[test]
fn trace() {
    replay("trace", 2, runs::trace, mutate::lines);
}

#[test]
fn body() {
    replay("body", 8, runs::body, mutate::body);
}

#[test]
fn frame() {
    replay("frame", 10, frames::frame, mutate::frame);
}
