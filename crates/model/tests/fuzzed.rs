//! What fuzzing starts from and what it found, on stable: the corpora in `fuzz/corpus` through the readers, and changes
//! to them from fixed seeds. `cargo xtask fuzz` goes on from there.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/doors.rs"]
mod doors;
#[allow(dead_code, unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;

#[allow(unreachable_pub, reason = "public to the other tests")]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn gguf() {
    replay("gguf", 2, doors::gguf, mutate::gguf);
}

#[test]
fn safetensors() {
    replay("safetensors", 1, doors::safetensors, mutate::safetensors);
}

#[test]
fn config() {
    replay("config", 6, doors::config, mutate::json);
}

#[test]
fn tokenizer() {
    replay("tokenizer", 3, doors::tokenizer, mutate::json);
}

#[test]
fn text() {
    replay("text", 3, doors::text, mutate::text);
}

#[test]
fn template() {
    replay("template", 3, doors::template, mutate::template);
}
