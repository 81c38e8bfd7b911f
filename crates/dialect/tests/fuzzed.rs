//! The fuzzing corpus of answers and its findings, on stable: the corpus in `fuzz/corpus/answer`, and changes to it from
//! fixed seeds. `cargo xtask fuzz` continues from there.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/answers.rs"]
mod answers;

use testing::{corpus, mutate};

#[test]
fn answer() {
    corpus::replay("answer", 9, answers::answer, mutate::answer);
}
