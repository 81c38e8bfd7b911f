//! What fuzzing of answers starts from and what it found, on stable: the corpus in `fuzz/corpus/answer`, and changes to
//! it from fixed seeds. `cargo xtask fuzz` goes on from there.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/answers.rs"]
mod answers;
#[allow(dead_code, unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;
#[allow(unreachable_pub, reason = "public to the other tests")]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn answer() {
    replay("answer", 9, answers::answer, mutate::answer);
}
