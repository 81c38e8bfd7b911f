//! Whatever is wrong is told in one line on standard error, with exit code 2 and without a backtrace.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testing::{Scratch, lantern};
use tests::{Ran, binary, root, run, run_with_input, twostroke};

fn assert_one_line(ran: &Ran, code: i32, wanted: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.starts_with("twostroke: ") && ran.stderr.contains(wanted), "{wanted:?} in {ran:?}");
    for word in ["panicked", "backtrace", "thread '"] {
        assert!(!ran.stderr.contains(word), "{ran:?}");
    }
}

#[test]
fn wrong_flags_and_values() {
    let table: &[(&[&str], &str)] = &[
        (&["walk"], "walk"),
        (&["run", "hi there", "--temprature", "1"], "--temperature"),
        (&["run", "hi there", "--temperature", "hot"], "hot"),
        (&["run", "hi there", "--temperature", "-1"], "temperature"),
        (&["run", "hi there", "--temperature", "nan"], "temperature"),
        (&["run", "hi there", "--top-p", "2"], "top_p"),
        (&["run", "hi there", "--top-k", "-5"], "top_k"),
        (&["run", "hi there", "-n", "0"], "max_tokens"),
        (&["run", "hi there", "-t", "0"], "at least 1"),
        (&["run", "hi there", "-t", "100000"], "100000"),
        (&["run", "hi there", "--max-model-len", "1"], "max-model-len"),
        (&["run", "hi there", "--max-model-len", "1000000000"], "max-model-len"),
        (&["run", "hi there", "--weights", "fp3"], "fp3"),
        (&["run", "hi there", "--stop", ""], "stop"),
        (&["run", "hi there", "--raw", "--system", "x"], "--system"),
        (&["serve", "--port", "123456"], "123456"),
        (&["serve", "--block-size", "33"], "block-size"),
        (&["serve", "--max-num-seqs", "100000"], "max-num-seqs"),
        (
            &["serve", "--max-num-batched-tokens", "8", "--max-num-seqs", "16"],
            "8 is less than --max-num-seqs, which is 16",
        ),
        (&["serve", "--max-num-batched-tokens", "8"], "which is 64, and a step has a token of each: give 64 or more"),
        (&["serve", "--max-num-batched-tokens", "0"], "at most 65536"),
        (&["bench", "--isa", "avx2", "--device", "gpu"], "--isa chooses among the CPU's kernels"),
        (&["serve", "--ttft-slo", "500"], "500ms"),
        (&["serve", "--tpot-slo", "0ms"], "0.1ms"),
        (&["serve", "--tpot-slo", "soon"], "soon"),
        (&["serve", "--ttft-slo=-1s"], "-1s"),
        (&["bench", "--cost-model", "-p", "64"], "--cost-model"),
        (&["serve", "--lora-modules", "sql"], "NAME=DIR"),
        (&["serve", "--lora-modules", r#"{"name": "sql"}"#], "name and path"),
        (&["serve", "--lora-modules", "sql=/no/such"], "adapter 'sql' (/no/such): /no/such: no such directory"),
        (&["serve", "--lora-modules", "a=/no/such", "b=/no/such", "--max-loras", "0"], "--max-loras"),
        (&["serve", "--max-lora-rank", "513"], "1 to 512"),
        (&["run", "hi there", "--lora", "/usr"], "--lora: adapter_config.json: absent from /usr"),
        (&["run", "hi there", "--lora", "/no/such"], "--lora: /no/such: no such directory"),
        (&["batch", "-i", "/no/such", "-o", "/no/out"], "-i: /no/such: "),
        (&["serve", "--kv-cache-memory-bytes", "much"], "much"),
        (&["serve", "--kv-cache-memory-bytes", "1"], "kv"),
        (&["serve", "--speculative-config", r#"{"method": "mtp"}"#], "no layer for the token after the next"),
        (&["serve", "--speculative-config", r#"{"method": "medusa", "model": "/no/such"}"#], "/no/such"),
        (
            &["serve", "--speculative-config", r#"{"method": "ngram", "rejection_sample_method": "block"}"#],
            "rejection_sample_method: refused",
        ),
        (&["serve", "--speculative-config", r#"{"method": "ngram"}"#, "--speculate", "auto"], "--speculate"),
        (&["serve", "--host", "no such host"], "host"),
        (&["serve", "--api-key", ""], "--api-key: a key that is empty or has white space"),
        (&["serve", "--api-key", "sk-x "], "--api-key: a key that is empty or has white space"),
        (&["serve", "--gpu-memory-utilization", "0.9"], "--kv-cache-memory-bytes"),
        (&["serve", "--tensor-parallel-size", "2"], "-t"),
        (&["serve", "--dtype", "half"], "--weights"),
        (&["bench", "-o", "xml"], "xml"),
        (&["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", "-p", "1000000"], "1000000"),
        (&["bench", "-r", "0"], "at least 1"),
        (&["bench", "draws", "-p", "9"], "--n-prompt is of use only with forward"),
        (&["plan", "-t", "3"], "--threads is of use only with --machine here"),
        (&["doctor", "-t", "x"], "x"),
        (&["sim", "--model", "gpt-9"], "llama-3.1-8b"),
        (&["sim", "--model", "docs"], "config.json"),
        (&["sim", "--hardware", "abacus"], "h100"),
        (&["sim", "-m", "gpt-9"], "qwen3-8b"),
        (&["bench-serve", "--dataset-name", "sessions", "--burstiness", "2"], "--burstiness"),
        (&["sim", "--model", "llama-2-70b"], "--machines-per-instance"),
        (&["sim", "--trace", "no-such-trace.jsonl"], "no-such-trace.jsonl"),
        (&["sim", "--trace", "Cargo.toml"], "line 1"),
        (&["sim", "--trace", "x", "--input-tokens", "5"], "--input-tokens"),
        (&["sim", "--rate", "0"], "must be from 0.001"),
        (&["sim", "--ttft-slo", "fast"], "500ms"),
        (&["whatif", "no-such-log", "--speculate", "auto"], "--speculate"),
        (&["sim", "--acceptance", "1.5"], "--acceptance"),
        (&["sim", "--acceptance", "0.8,"], "not a share from 0 to 1"),
        (&["sim", "--requests", "0"], "at least 1"),
        (&["sim", "--requests", "40", "--burst-cv", "9"], "--burst-cv is of use only with --workload bursty"),
        (&["sim", "--max-num-batched-tokens", "8", "--max-num-seqs", "16"], "max_num_batched_tokens"),
        (&["sim", "--requests", "1", "--svg", "Cargo.toml/charts"], "--svg"),
    ];
    for (arguments, wanted) in tests::part_of(table, 3) {
        assert_one_line(&run(&mut twostroke(arguments)), 2, wanted);
    }
}

/// Where no reader hears what is wrong the exit code says it.
#[test]
fn errors_that_cannot_be_written_keep_their_exit_code() {
    let table: &[(&[&str], i32)] = &[
        (&["run", "--no-such-flag"], 2),
        (&["run", "hi there", "-n", "0"], 2),
        (&["plan", "no", "such"], 2),
        (&["why", "x"], 2),
    ];
    for (arguments, code) in table {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("every Linux has it");
        let status = twostroke(arguments).stdout(Stdio::null()).stderr(full).status().expect("it starts");
        assert_eq!(status.code(), Some(*code), "{arguments:?}");
    }
}

#[test]
fn models_that_are_not_there() {
    let table: &[(&str, &str)] = &[
        ("no-such-directory", "no-such-directory"),
        ("/no/such/directory", "/no/such/directory"),
        ("README.md", "is a file"),
        ("docs", "docs"),
        ("", "\"\" is no model"),
        ("no-such-model.gguf", "no-such-model.gguf: no such file or directory"),
        ("nobody/nothing", "HF_HUB_OFFLINE forbids downloading it; nobody/nothing is no directory here either"),
    ];
    for (model, wanted) in table {
        for verb in [&["run", "hi there"][..], &["serve", "--port", "0"], &["bench", "-p", "1", "-n", "1"]] {
            let arguments = [verb, &["-m", model]].concat();
            assert_one_line(&run(twostroke(&arguments).current_dir(root())), 2, wanted);
        }
    }
    // It has a folder `bin`, which is no pickle.
    assert_one_line(&run(&mut twostroke(&["run", "hi there", "-m", "/usr"])), 2, "no weights: found neither");
}

/// A copy of the built-in model with one file changed.
fn broken(name: &str, file: &str, change: impl Fn(Vec<u8>) -> Option<Vec<u8>>) -> Scratch {
    let copy = Scratch::copy_of(&lantern(), name);
    let path = copy.join(file);
    match change(fs::read(&path).expect("the model is there")) {
        Some(bytes) => fs::write(path, bytes).expect("it can be written"),
        None => fs::remove_file(path).expect("it is there"),
    }
    copy
}

/// Sets one field of a JSON file.
fn with(field: &'static str, value: Value) -> impl Fn(Vec<u8>) -> Option<Vec<u8>> {
    move |bytes| {
        let mut object: Value = serde_json::from_slice(&bytes).expect("JSON");
        object[field] = value.clone();
        Some(object.to_string().into_bytes())
    }
}

#[test]
fn models_that_are_broken() {
    let cut = |bytes: Vec<u8>| Some(bytes[..bytes.len() / 2].to_vec());
    let gone = |_: Vec<u8>| None;
    let huge_header = |mut bytes: Vec<u8>| {
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        Some(bytes)
    };
    let table: Vec<(&str, Scratch, &str)> = vec![
        ("no weights", broken("a", "model.safetensors", gone), "safetensors"),
        ("half the weights", broken("b", "model.safetensors", cut), "model.safetensors"),
        ("an endless header", broken("c", "model.safetensors", huge_header), "model.safetensors"),
        ("no configuration", broken("d", "config.json", gone), "config.json"),
        ("half a configuration", broken("e", "config.json", cut), "config.json"),
        (
            "another architecture",
            broken("f", "config.json", with("architectures", json!(["MambaForCausalLM"]))),
            "architectures",
        ),
        ("no layers", broken("g", "config.json", with("num_hidden_layers", json!(0))), "num_hidden_layers"),
        ("half a tokenizer", broken("h", "tokenizer.json", cut), "tokenizer.json"),
    ];
    for (what, directory, wanted) in table {
        let ran = run(&mut twostroke(&["run", "hi there", "-m", directory.text()]));
        assert_one_line(&ran, 2, wanted);
        assert!(ran.stderr.contains(directory.text()), "{what}: the line names the model: {ran:?}");
    }
}

/// Whichever of the files and threads of a start is the one too many, it is told in a line.
#[test]
fn too_few_descriptors_are_an_error() {
    for most in 5..24 {
        let script = format!("ulimit -n {most}; exec \"$0\" run -q -t 1 -n 2 hi");
        let ran = run(Command::new("bash").args(["-c", &script]).arg(binary()));
        let is_told = ran.code != Some(101) && ran.stderr.lines().count() == 1;
        assert!(ran.code == Some(0) || is_told, "{most}: {ran:?}");
        // Opening is not writing.
        assert!(!ran.stderr.contains("output:"), "{most}: {ran:?}");
    }
}

#[test]
fn input_that_is_no_prompt() {
    assert_one_line(&run(&mut twostroke(&["run"])), 2, "no prompt");
    assert_one_line(&run(&mut twostroke(&["run", ""])), 2, "no prompt");
    assert_one_line(&run(&mut twostroke(&["run", " "])), 2, "no prompt");
    assert_one_line(&run_with_input(&mut twostroke(&["run"]), b"  \n"), 2, "no prompt");
    assert_one_line(&run_with_input(&mut twostroke(&["run"]), b"\xff\xfe"), 2, "UTF-8");
    let long = "one two three ".repeat(10_000);
    assert_one_line(&run_with_input(&mut twostroke(&["run"]), long.as_bytes()), 2, "tokens");
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["serve", "-h"], &["bench", "--version"]] {
        let ran = run(&mut twostroke(arguments));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ran.stdout.contains("twostroke"), "{arguments:?}");
    }
    let bare = run(&mut twostroke::<&str>(&[]));
    assert_eq!(bare.code, Some(2), "no verb: {bare:?}");
}
