//! What fuzzing starts from and what it found, on stable: the corpora in `fuzz/corpus` through the readers, and changes
//! to them from fixed seeds. `cargo xtask fuzz` goes on from there.

#[allow(unreachable_pub, reason = "public to the fuzzer")]
#[path = "../../../fuzz/src/doors.rs"]
mod doors;

use testing::corpus::replay;
use testing::mutate;

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
    // A bomb takes gigabytes.
    const MOST_BYTES: u64 = 300 << 20;
    let door = |bytes: &[u8]| {
        let mut taken = false;
        let memory = allocation_counter::measure(|| taken = doors::tokenizer(bytes)).bytes_max;
        assert!(memory < MOST_BYTES, "{} MiB", memory >> 20);
        taken
    };
    replay("tokenizer", 8, door, mutate::json);
}

#[test]
fn text() {
    replay("text", 3, doors::text, mutate::text);
}

#[test]
fn template() {
    replay("template", 3, doors::template, mutate::template);
}
