//! Recordings and traces of strangers, and numbers that no load has.

use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tests::twostroke;

use crate::base::{Base, Verdict, text};
use crate::case::{Bound, Case, FILE, Named, Outcome, Scratch};
use crate::child::{self, End, Ran};
use testing::{Dice, mutate};

const RECORDING: &str = "recording";
const TRACE: &str = "trace";
const NUMBERS: &str = "numbers";
/// What is simulated may be long; it must not be without end.
const SIMULATED: Bound = FILE.seconds(10);

/// A difference is told with exit code 1, what is no recording with 2; either in one line.
fn told(ran: &Ran, bound: &Bound) -> Outcome {
    let judged = ran.sane(bound).and_then(|()| match ran.end {
        End::Exit(0) => Ok(()),
        _ => ran.refused(&["line", "recording", "limits", "model", "answered", "/dev/zero"]),
    });
    Outcome::of(judged, ran.spent)
}

/// Recordings and traces with one to three changes from a seed.
pub(crate) fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = lines_changed(own.recording.as_bytes(), seed);
            let path = scratch.file("recording", bytes);
            let verb = if seed % 4 == 0 { "whatif" } else { "replay" };
            told(&child::run(&twostroke(&[verb, text(&path)]), scratch, &FILE, &[]), &FILE)
        };
        cases.push(Case::new(RECORDING, format!("mutated-{seed}"), check).drawn(seed));
        if seed % 2 > 0 {
            continue;
        }
        let check = move |scratch: &Scratch| {
            let mut bytes = lines_changed(&trace(seed % 4 == 0), seed);
            if seed % 8 == 0 {
                bytes = zipped(&bytes);
                if seed % 16 == 0 {
                    mutate::any_bytes(&mut bytes, &mut Dice::new(seed));
                }
            }
            simulated(scratch, &bytes, &Verdict::RefusedOr(vec!["trace"]))
        };
        cases.push(Case::new(TRACE, format!("mutated-{seed}"), check).drawn(seed));
    }
    cases
}

/// One to three lines changed, doubled, left out or swapped.
fn lines_changed(good: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let mut dice = Dice::new(seed);
    for _ in 0..=seed % 3 {
        mutate::lines(&mut bytes, &mut dice);
    }
    bytes
}

/// A trace that is good: Mooncake's lines, or Azure's.
fn trace(mooncake: bool) -> Vec<u8> {
    let mut text = String::new();
    if !mooncake {
        text.push_str("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    }
    for index in 0..40u64 {
        let (input, output) = (100 + index * 37 % 900, 1 + index * 13 % 60);
        let line = match mooncake {
            true => json!({ "timestamp": index * 50, "input_length": input, "output_length": output,
                "hash_ids": (0..input.div_ceil(512)).collect::<Vec<_>>() })
            .to_string(),
            false => format!("2023-11-16 18:17:{:02}.{:07},{input},{output}", index, index * 99),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text.into_bytes()
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory for it")
}

fn simulated(scratch: &Scratch, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let path = scratch.file("trace", bytes);
    verdict.judge(&child::run(&twostroke(&["sim", "--trace", text(&path)]), scratch, &SIMULATED, &[]), &SIMULATED)
}

/// Recordings as no server writes them.
pub(crate) fn built_recordings(base: &Arc<Base>) -> Vec<Case> {
    type Build = fn(&mut Vec<Value>);
    fn admit(lines: &mut [Value]) -> &mut Value {
        &mut lines.iter_mut().find(|line| line["admit"].is_object()).expect("there is one")["admit"]
    }
    fn step(lines: &mut [Value]) -> &mut Value {
        &mut lines.iter_mut().find(|line| line["step"].is_object()).expect("there is one")["step"]
    }
    let table: &[(&str, Build)] = &[
        ("an admit twice (row 13)", |lines| {
            let at = lines.iter().position(|line| line["admit"].is_object()).expect("there is one");
            lines.insert(at, lines[at].clone());
        }),
        ("arrived 2^63 (row 13)", |lines| admit(lines)["arrived"] = json!(1u64 << 63)),
        ("arrived 2^64-1", |lines| admit(lines)["arrived"] = json!(u64::MAX)),
        ("now 2^64-1", |lines| admit(lines)["now"] = json!(u64::MAX)),
        ("now before arrived", |lines| admit(lines)["now"] = json!(0)),
        ("67,108,864 blocks (row 13)", |lines| lines[0]["limits"]["num_blocks"] = json!(67_108_864)),
        ("33,554,432 blocks", |lines| lines[0]["limits"]["num_blocks"] = json!(33_554_432)),
        ("no blocks", |lines| lines[0]["limits"]["num_blocks"] = json!(0)),
        ("65,536 sequences", |lines| lines[0]["limits"]["max_num_seqs"] = json!(65_536)),
        ("a context of 2^26", |lines| lines[0]["limits"]["max_model_len"] = json!(1 << 26)),
        ("a block of 2^63 tokens", |lines| lines[0]["limits"]["block_size"] = json!(1u64 << 63)),
        ("a block of 1 token", |lines| lines[0]["limits"]["block_size"] = json!(1)),
        ("rows of a step 2^62", |lines| lines[0]["limits"]["max_num_batched_tokens"] = json!(1u64 << 62)),
        ("2^60 requests may wait", |lines| lines[0]["limits"]["max_queued_requests"] = json!(1u64 << 60)),
        ("10^9 answers", |lines| admit(lines)["n"] = json!(1_000_000_000)),
        ("no answers", |lines| admit(lines)["n"] = json!(0)),
        ("10^18 tokens", |lines| admit(lines)["max_tokens"] = json!(1_000_000_000_000_000_000u64)),
        ("no tokens", |lines| admit(lines)["max_tokens"] = json!(0)),
        ("least tokens above most", |lines| admit(lines)["min_tokens"] = json!(1_000_000)),
        ("no prompt", |lines| admit(lines)["prompt"] = json!([])),
        ("a prompt of 10^6", |lines| admit(lines)["prompt"] = json!(vec![1; 1_000_000])),
        ("a prompt of 2^32-1", |lines| admit(lines)["prompt"] = json!([u32::MAX])),
        ("10^6 stop tokens", |lines| admit(lines)["stop_token_ids"] = json!(vec![1; 1_000_000])),
        ("temperature 1e300", |lines| admit(lines)["sampling"]["temperature"] = json!(1e300)),
        ("2^32-1 logprobs", |lines| admit(lines)["sampling"]["logprobs"] = json!(u32::MAX)),
        ("2^32-1 logprobs of the prompt", |lines| admit(lines)["prompt_logprobs"] = json!(u32::MAX)),
        ("a target of 2^64-1", |lines| admit(lines)["ttft"] = json!(u64::MAX)),
        ("id 2^64-1", |lines| admit(lines)["id"] = json!(u64::MAX)),
        ("id 0", |lines| admit(lines)["id"] = json!(0)),
        ("the least priority", |lines| admit(lines)["priority"] = json!(i32::MIN)),
        ("a step that ends before it begins", |lines| step(lines)["to"] = json!(0)),
        ("a step that ends at 2^64-1", |lines| step(lines)["to"] = json!(u64::MAX)),
        ("a step of 2^64-1", |lines| step(lines)["n"] = json!(u64::MAX)),
        ("a step without tokens", |lines| step(lines)["tokens"] = json!([])),
        ("a step of 10^6 tokens", |lines| step(lines)["tokens"] = json!(vec![vec![1]; 1_000_000])),
        ("a step of empty answers", |lines| step(lines)["tokens"] = json!([[]])),
        ("a step of 64 tokens for one row", |lines| step(lines)["tokens"] = json!([vec![5; 64]])),
        ("tokens of 2^32-1", |lines| step(lines)["tokens"] = json!([[u32::MAX]])),
        ("a digest of nothing", |lines| step(lines)["digest"] = json!("")),
        ("a cancel of no request", |lines| lines.insert(1, json!({ "cancel": [77, 0] }))),
        ("a cancel at 2^64-1", |lines| lines.insert(2, json!({ "cancel": [1, u64::MAX] }))),
        ("a stop of no request", |lines| lines.insert(1, json!({ "stop": [77, 0] }))),
        ("a stop of answer 2^32", |lines| lines.insert(2, json!({ "stop": [1, 1u64 << 32] }))),
        ("a step failed before any", |lines| lines.insert(1, json!({ "failed": 3 }))),
        ("a failed step 2^64-1", |lines| lines.insert(3, json!({ "failed": u64::MAX }))),
        ("a thousand ends", |lines| lines.extend(vec![json!("end"); 1000])),
        ("lines behind the end", |lines| {
            let again = lines[1..].to_vec();
            lines.extend(again);
        }),
        ("nothing but the header", |lines| lines.truncate(1)),
        ("a header twice", |lines| lines.insert(1, lines[0].clone())),
        ("steps in another order", |lines| lines[1..].reverse()),
        ("costs of 1e308", |lines| set_texts(&mut lines[0]["cost"], "1e308")),
        ("costs of NaN", |lines| set_texts(&mut lines[0]["cost"], "NaN")),
        ("costs of -1", |lines| set_texts(&mut lines[0]["cost"], "-1")),
        ("costs of nothing", |lines| lines[0]["cost"] = json!({})),
        ("a model's name with control characters", |lines| lines[0]["model"] = json!("\u{1b}[2J\nfake: line")),
        ("weights of no class", |lines| lines[0]["weights"] = json!("int3")),
        ("an arithmetic of no order", |lines| lines[0]["arithmetic"] = json!("rings")),
    ];
    let mut cases = Vec::new();
    for &(name, build) in table {
        for verb in ["replay", "whatif"] {
            let own = Arc::clone(base);
            cases.push(Case::new(RECORDING, format!("{verb}: {name}"), move |scratch| {
                let lines = own.recording.lines().map(|line| serde_json::from_str(line).expect("a good line"));
                let mut lines: Vec<Value> = lines.collect();
                build(&mut lines);
                let bytes: String = lines.iter().map(|line| format!("{line}\n")).collect();
                let path = scratch.file("recording", bytes);
                told(&child::run(&twostroke(&[verb, text(&path)]), scratch, &FILE, &[]), &FILE)
            }));
        }
    }
    let own = Arc::clone(base);
    cases.push(Case::new(RECORDING, "replay with a model: 10^6 more blocks", move |scratch| {
        let lines = own.recording.lines().map(|line| serde_json::from_str(line).expect("a good line"));
        let mut lines: Vec<Value> = lines.collect();
        lines[0]["limits"]["num_blocks"] = json!(16_000_000);
        let path = scratch.file("recording", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
        told(&child::run(&twostroke(&["replay", text(&path), "-m", "lantern"]), scratch, &FILE, &[]), &FILE)
    }));
    let bytes: &[Named<Vec<u8>>] = &[
        ("a line of 70 MB", || vec![b'{'; 70 << 20]),
        ("a header 100,000 deep", || b"{\"a\":".repeat(100_000)),
        ("zeros", || vec![0; 1 << 20]),
    ];
    for &(name, build) in bytes {
        cases.push(Case::new(RECORDING, name, move |scratch| {
            let path = scratch.file("recording", build());
            let ran = child::run(&twostroke(&["replay", text(&path)]), scratch, &FILE, &[]);
            let _ = std::fs::remove_file(path); // large, and its recipe is its name
            told(&ran, &FILE)
        }));
    }
    for verb in ["replay", "whatif"] {
        cases.push(Case::new(RECORDING, format!("{verb}: a FIFO (row 11)"), move |scratch| {
            let path = scratch.path("recording");
            mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
            let ran = child::run(&twostroke(&[verb, text(&path)]), scratch, &FILE, &[]);
            let _ = std::fs::remove_file(path);
            told(&ran, &FILE)
        }));
        cases.push(Case::new(RECORDING, format!("{verb}: /dev/zero (row 11)"), move |scratch| {
            told(&child::run(&twostroke(&[verb, "/dev/zero"]), scratch, &FILE, &[]), &FILE)
        }));
    }
    cases
}

/// Every text in a value.
fn set_texts(value: &mut Value, text: &str) {
    match value {
        Value::String(old) => text.clone_into(old),
        Value::Array(items) => items.iter_mut().for_each(|item| set_texts(item, text)),
        Value::Object(map) => map.values_mut().for_each(|item| set_texts(item, text)),
        _ => {}
    }
}

/// Traces as no service writes them, and numbers of a load that no machine has.
pub(crate) fn built_traces() -> Vec<Case> {
    let line = |fields: &str| format!("{fields}\n").into_bytes();
    let refused: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("zeros", vec![0; 1 << 20]),
        ("100,000 lists deep", [b"[".repeat(100_000), b"\n".to_vec()].concat()),
        ("not UTF-8", vec![0xFF; 100]),
        ("a negative length", line(r#"{"timestamp": 0, "input_length": -1, "output_length": 5}"#)),
        ("a length of 2^64-1", line(r#"{"timestamp": 0, "input_length": 18446744073709551615, "output_length": 5}"#)),
        ("an answer of 2^63", line(r#"{"timestamp": 0, "input_length": 5, "output_length": 9223372036854775808}"#)),
        ("a time of 1e308", line(r#"{"timestamp": 1e308, "input_length": 5, "output_length": 5}"#)),
        ("gzip cut off", {
            let whole = zipped(&trace(true));
            whole[..whole.len() / 2].to_vec()
        }),
        ("gzip of gzip", zipped(&zipped(&trace(true)))),
        ("gzip of nothing", zipped(b"")),
        (
            "an Azure line of 2^64",
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,18446744073709551616,1\n".to_vec(),
        ),
        ("an Azure time of nothing", b"TIMESTAMP,ContextTokens,GeneratedTokens\n9999-99-99 99:99:99.9,1,1\n".to_vec()),
    ];
    let mut cases = Vec::new();
    for (name, bytes) in refused {
        let check = move |scratch: &Scratch| simulated(scratch, &bytes, &Verdict::Refused(vec!["trace"]));
        cases.push(Case::new(TRACE, name, check));
    }
    let either: Vec<(&str, Vec<u8>)> = vec![
        ("as it was", trace(true)),
        ("as it was, of Azure", trace(false)),
        ("as it was, in gzip", zipped(&trace(true))),
        ("a length of 0", line(r#"{"timestamp": 0, "input_length": 0, "output_length": 0}"#)),
        ("a length of 2^40", line(r#"{"timestamp": 0, "input_length": 1099511627776, "output_length": 5}"#)),
        ("an answer of 2^40", line(r#"{"timestamp": 0, "input_length": 5, "output_length": 1099511627776}"#)),
        ("a time of 2^63", {
            let first = line(r#"{"timestamp": 0, "input_length": 5, "output_length": 5}"#);
            [first, line(r#"{"timestamp": 9223372036854775807, "input_length": 5, "output_length": 5}"#)].concat()
        }),
        ("times that go back", {
            let first = line(r#"{"timestamp": 1000000, "input_length": 5, "output_length": 5}"#);
            [first, line(r#"{"timestamp": 0, "input_length": 5, "output_length": 5}"#)].concat()
        }),
        (
            "ids that are fewer than the tokens",
            line(r#"{"timestamp": 0, "input_length": 9000, "output_length": 5, "hash_ids": [1]}"#),
        ),
        ("ids that are more than the tokens", {
            let ids: Vec<u64> = (0..100_000).collect();
            line(&json!({ "timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ids }).to_string())
        }),
        (
            "a name with control characters",
            line("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"\\u001b[2J\": 1}"),
        ),
    ];
    for (name, bytes) in either {
        let check = move |scratch: &Scratch| simulated(scratch, &bytes, &Verdict::RefusedOr(vec!["trace"]));
        cases.push(Case::new(TRACE, name, check));
    }
    cases.push(Case::new(TRACE, "1 MB of gzip that holds 1 GiB (row 12)", |scratch| {
        let path = scratch.path("trace");
        let file = std::fs::File::create(&path).expect("it can be written");
        let mut encoder = GzEncoder::new(std::io::BufWriter::new(file), Compression::fast());
        let piece = [b'7'; 1 << 16];
        (0..1 << 14).for_each(|_| encoder.write_all(&piece).expect("room for it"));
        encoder.finish().and_then(|mut file| file.flush()).expect("room for it");
        let ran = child::run(&twostroke(&["sim", "--trace", text(&path)]), scratch, &SIMULATED, &[]);
        Verdict::Refused(vec!["trace"]).judge(&ran, &SIMULATED)
    }));
    cases.push(Case::new(TRACE, "gzip of 300 MB of lines", |scratch| {
        let path = scratch.path("trace");
        let file = std::fs::File::create(&path).expect("it can be written");
        let mut encoder = GzEncoder::new(std::io::BufWriter::new(file), Compression::fast());
        let line = b"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n".repeat(1000);
        (0..5400).for_each(|_| encoder.write_all(&line).expect("room for it"));
        encoder.finish().and_then(|mut file| file.flush()).expect("room for it");
        let ran =
            child::run(&twostroke(&["sim", "--trace", text(&path), "--requests", "10"]), scratch, &SIMULATED, &[]);
        Verdict::RefusedOr(vec!["trace"]).judge(&ran, &SIMULATED)
    }));
    cases.push(Case::new(TRACE, "a FIFO (row 12)", |scratch| {
        let path = scratch.path("trace");
        mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
        let ran = child::run(&twostroke(&["sim", "--trace", text(&path)]), scratch, &SIMULATED, &[]);
        let _ = std::fs::remove_file(path);
        Verdict::Refused(vec!["trace"]).judge(&ran, &SIMULATED)
    }));
    cases.push(Case::new(TRACE, "/dev/zero", |scratch| {
        let ran = child::run(&twostroke(&["sim", "--trace", "/dev/zero"]), scratch, &SIMULATED, &[]);
        Verdict::Refused(vec!["/dev/zero"]).judge(&ran, &SIMULATED)
    }));
    cases.push(Case::new(TRACE, "two hundred files", |scratch| {
        let path = scratch.file("trace", trace(true));
        let mut command = twostroke(&["sim"]);
        for _ in 0..200 {
            command.args(["--trace", text(&path)]);
        }
        Verdict::RefusedOr(vec!["trace"]).judge(&child::run(&command, scratch, &SIMULATED, &[]), &SIMULATED)
    }));
    cases
}

/// Numbers without end behind flags.
pub(crate) fn built_numbers() -> Vec<Case> {
    const MAX: &str = "18446744073709551615";
    let refused: &[&[&str]] = &[
        &["sim", "--requests", MAX],
        &["sim", "--requests", "99999999999"],
        &["sim", "--input-tokens", "99999999999"],
        &["sim", "--input-tokens", MAX],
        &["sim", "--output-tokens", "99999999999"],
        &["sim", "--output-tokens", MAX],
        &["sim", "--workload", "shared-prefix", "--prefix-tokens", MAX],
        &["sim", "--instances", MAX],
        &["sim", "--instances", "1000000000"],
        &["sim", "--machines-per-instance", MAX],
        &["sim", "--kv-blocks", MAX],
        &["sim", "--kv-blocks", "99999999999"],
        &["sim", "--block-size", MAX],
        &["sim", "--max-num-seqs", MAX],
        &["sim", "--rate", "inf"],
        &["sim", "--rate", "NaN"],
        &["sim", "--length-cv", "NaN"],
        &["sim", "--length-cv", "inf"],
        &["sim", "--workload", "bursty", "--burst-cv", "inf"],
        &["sim", "--workload", "sessions", "--pause", "1e300s"],
        &["sim", "--ttft-slo", "1e300s"],
        &["sim", "--ttft-slo", "NaNs"],
        &["plan", "-m", "7b", "-p", MAX],
        &["plan", "-m", "7b", "--flops", "NaN"],
        &["plan", "-m", "1e400b"],
        &["run", "x", "-t", MAX],
        &["run", "x", "-n", MAX],
        &["run", "x", "--max-model-len", MAX],
        &["run", "x", "--max-num-batched-tokens", MAX],
        &["run", "x", "--kv-cache-memory-bytes", "99999999999999999999"],
        &["run", "x", "--top-k", MAX],
        &["run", "x", "--temperature", "1e39"],
        &["serve", "--port", "0", "--kv-cache-memory-bytes", "8EiB"],
        &["serve", "--port", "0", "--max-num-seqs", MAX],
        &["serve", "--port", "0", "--block-size", MAX],
        &["serve", "--port", "0", "--max-queued-requests", MAX, "--max-queued-tokens", MAX, "--host", "no such host"],
        &["serve", "--port", "0", "--kv-swap-memory", "8EiB"],
        &["serve", "--port", "0", "--kv-swap-disk", "/proc:1GiB"],
        &["serve", "--port", "0", "--kv-swap-disk", "/dev/null:1GiB"],
        &["serve", "--port", "0", "--kv-swap-disk", "/tmp:16EiB"],
        &["serve", "--port", "0", "--record", "/dev/full/x"],
        &["serve", "--port", "0", "--ttft-slo", "1e300s"],
        &["serve", "--port", "0", "--drain-timeout", "1e300", "--host", "no such host"],
        &["bench", "-p", MAX],
        &["bench", "-n", MAX, "-p", "0"],
        &["bench", "-p", "1", "-n", "0", "-r", MAX, "-t", "0"],
        &["bench-serve", "--base-url", "http://127.0.0.1:1", "--num-prompts", MAX],
        &["quality", "-c", MAX],
        &["quality", "--text", "/dev/zero"],
        &["quantize", "--weights", "int4", "--text", "/dev/zero", "-o", "/dev/null/x"],
        &["quantize", "--weights", "int4", "--bits", "NaN", "-o", "/dev/null/x"],
        &["quantize", "--weights", "int8", "-o", "/dev/full"],
    ];
    let mut cases = Vec::new();
    for arguments in refused {
        // A server loads its model and measures its machine before it opens some of these: most of a second by itself.
        let bound = if arguments[0] == "serve" { FILE.seconds(8) } else { FILE };
        cases.push(Case::new(NUMBERS, arguments.join(" "), move |scratch| {
            let ran = child::run(&twostroke(arguments), scratch, &bound, &[]);
            Verdict::Refused(vec![]).judge(&ran, &bound)
        }));
    }
    let either: &[&[&str]] = &[
        &["plan", "-m", "7b", "--users", MAX, "--rate", "1e300/s"],
        &["sim", "--max-num-partial-prefills", MAX, "--requests", "50"],
        &["sim", "--max-num-batched-tokens", MAX, "--requests", "50"],
        &["sim", "--workload", "sessions", "--turns", MAX, "--requests", "50"],
        &["sim", "--workload", "shared-prefix", "--prefixes", MAX, "--requests", "50"],
        &["sim", "--requests", "100", "--length-cv", "1e300"],
        &["sim", "--requests", "100", "--rate", "1e300"],
        &["sim", "--requests", "100", "--rate", "1e-300"],
        &["sim", "--requests", "100", "--seed", MAX],
        &["sim", "--requests", "100", "--kv-blocks", "1"],
        &["sim", "--requests", "10", "--input-tokens", "1000000"],
        &["sim", "--requests", "100", "--workload", "bursty", "--burst-cv", "1e300"],
        &["sim", "--requests", "100", "--workload", "sessions", "--pause", "1000000h"],
        &["plan", "-m", "7b", "--flops", "1e-300"],
        &["plan", "-m", "7b", "--users", "1000000000", "--rate", "1e9/s"],
        &["plan", "-m", "999999b"],
        &["plan", "-m", "7b", "-b", MAX],
        &["plan", "-m", "7b", "-n", MAX],
        &["run", "x", "-n", "1", "-q", "--seed", MAX],
        &["run", "x", "-n", "1", "-q", "--temperature", "1e-38"],
    ];
    for arguments in either {
        cases.push(Case::new(NUMBERS, arguments.join(" "), move |scratch| {
            let ran = child::run(&twostroke(arguments), scratch, &SIMULATED, &[]);
            Verdict::RefusedOr(vec![]).judge(&ran, &SIMULATED)
        }));
    }
    cases
}
