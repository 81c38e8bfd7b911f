//! What fuzzing of rules starts from and what it found, on stable: the corpus in `fuzz/corpus` through its door, and
//! changes to it from fixed seeds. `cargo xtask fuzz` goes on from there.

#[allow(dead_code, unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;
#[allow(unreachable_pub, reason = "public to the other tests")]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/rules.rs"]
mod rules;

#[test]
fn rule() {
    replay::replay("rule", 5, rules::rule, mutate::rule);
}
