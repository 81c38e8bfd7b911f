//! Every flag of vLLM's and llama.cpp's servers against the binary: taken, taken without effect, or refused with what to
//! use. The list is the last section of docs/reference/flags.md; what is taken is here.

use tests::{part_of, root, run, twostroke};

/// Flags of theirs that mean the same here, with a value that does not end the start by itself.
const TAKEN: &[&[&str]] = &[
    &["--host", "127.0.0.1"],
    &["--port", "0"],
    &["--uds", "/tmp/x"],
    &["--ssl-keyfile", "/k", "--ssl-certfile", "/c"],
    &["--ssl-key-file", "/k", "--ssl-cert-file", "/c"],
    &["--api-key", "k"],
    &["--api-key-file", "/k"],
    &["--chat-template", "{{ x }}"],
    &["--chat-template-kwargs", "{}"],
    &["--default-chat-template-kwargs", "{}"],
    &["--trust-request-chat-template"],
    &["--lora-modules", "a=/x"],
    &["--max-loras", "2"],
    &["--max-lora-rank", "16"],
    &["--tool-call-parser", "hermes"],
    &["--reasoning-parser", "qwen3"],
    &["--served-model-name", "x"],
    &["--generation-config", "vllm"],
    &["--override-generation-config", "{}"],
    &["--max-logprobs", "5"],
    &["--max-model-len", "1024"],
    &["--ctx-size", "1024"],
    &["-c", "1024"],
    &["--threads", "1"],
    &["-t", "1"],
    &["--seed", "1"],
    &["--block-size", "32"],
    &["--kv-cache-memory-bytes", "1GiB"],
    &["--kv-cache-dtype", "bf16"],
    &["--enable-prefix-caching"],
    &["--no-enable-prefix-caching"],
    &["--max-num-batched-tokens", "512"],
    &["--max-num-seqs", "8"],
    &["--max-num-partial-prefills", "2"],
    &["--long-prefill-token-threshold", "64"],
    &["--speculative-config", r#"{"method": "ngram"}"#],
    &["--kv-events-config", r#"{"enable_kv_cache_events": false}"#],
    &["--revision", "main"],
    &["--root-path", "/x"],
    &["--api-prefix", "/x"],
    &["--no-ui"],
];

/// The rows of the two tables: flags, and the words about them.
fn rows(from: &str, to: Option<&str>) -> Vec<(Vec<String>, String)> {
    let text = std::fs::read_to_string(root().join("docs/reference/flags.md")).expect("the reference");
    let text = text.split_once(from).expect("a section").1;
    let text = to.map_or(text, |to| text.split_once(to).expect("a section").0);
    let row = |line: &str| {
        let (flags, why) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
        Some((flags.split("`, `").map(str::to_owned).collect(), why.replace("\\|", "|")))
    };
    text.lines().filter_map(row).collect()
}

/// A start that ends when its flags are read: there is no such model.
fn start(flags: &[&str]) -> (Option<i32>, String) {
    let ran = run(&mut twostroke(&[&["serve", "-m", "/no/such/model"], flags].concat()));
    assert_eq!(ran.stdout, "", "{flags:?}: {ran:?}");
    (ran.code, ran.stderr)
}

const NO_MODEL: &str = "/no/such/model: no such file or directory";

#[test]
fn what_means_the_same_is_taken() {
    for flags in part_of(TAKEN, 4) {
        let (code, said) = start(flags);
        let wanted = said.lines().count() == 1 && !said.contains("unexpected") && !said.contains("invalid value");
        assert!(code == Some(2) && wanted, "{flags:?}: {said}");
    }
}

#[test]
fn what_says_nothing_is_taken_with_one_line() {
    let hinted = rows("and the log says why they have no effect:", Some("These are errors"));
    assert!(hinted.len() > 30, "the whole table");
    for (flags, why) in part_of(hinted, 6) {
        for flag in part_of(flags, 3) {
            let (code, said) = start(&[&flag]);
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!((code, lines.len()), (Some(2), 2), "{flag}: {said}");
            assert_eq!(lines[0], format!("note: {flag} says nothing here: {why}"));
            assert!(lines[1].contains(NO_MODEL), "{flag}: {said}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_what_to_use() {
    let refused = rows("These are errors", None);
    assert!(refused.len() > 40, "the whole table");
    for (flags, instead) in part_of(refused, 6) {
        for flag in part_of(flags, 8) {
            let (code, said) = start(&[&flag, "1"]);
            assert_eq!((code, said.lines().count()), (Some(2), 1), "{flag}: {said}");
            assert!(said.contains(&format!("'{flag}' found: {instead}")), "{flag}: {said}");
        }
    }
}
