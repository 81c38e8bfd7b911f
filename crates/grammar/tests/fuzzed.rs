//! What fuzzing of rules starts from and what it found, on stable: the corpus in `fuzz/corpus` through its door, and
//! changes to it from fixed seeds. `cargo xtask fuzz` goes on from there.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/rules.rs"]
mod rules;

use testing::{corpus, mutate};

#[test]
fn rule() {
    corpus::replay("rule", 5, rules::rule, mutate::rule);
}
