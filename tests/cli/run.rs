//! `twostroke run`, one shot.

use std::io::Read;
use std::process::Stdio;

use serde_json::Value;
use testing::Scratch;
use tests::{run, run_with_input, signal, twostroke};

use crate::narrower::keep_limits;

const QUESTION: &str = "What is 7 + 5?";

#[test]
fn an_argument_is_answered_on_standard_output_and_the_phases_on_standard_error() {
    let ran = run(&mut twostroke(&["run", QUESTION, "--temperature", "0", "-n", "16"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.trim().is_empty(), "{ran:?}");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "two lines about the weights, one about the phases: {ran:?}");
    assert!(lines[0].starts_with("weights: bf16") && lines[1].starts_with("int8 would bring: "), "{lines:?}");
    for part in ["prefill ", " tok in ", " tok/s", " · decode "] {
        assert!(lines[2].contains(part), "{part:?} in {:?}", lines[2]);
    }
}

/// One answer is not worth two seconds of measuring: what an earlier start has left is used.
#[test]
fn shares_of_limits_are_those_that_are_known() {
    let cache = Scratch::new("shares");
    let ask = |arguments: &[&str]| {
        let asked = [&["run", QUESTION, "--temperature", "0", "-n", "4", "-t", "1"], arguments].concat();
        let ran = run(twostroke(&asked).env("XDG_CACHE_HOME", &*cache));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    };
    let kept = |ending: &str| {
        let files = cache.join("twostroke/packed").read_dir().into_iter().flatten().flatten();
        files.filter(|file| file.path().to_string_lossy().ends_with(ending)).count()
    };
    let line = ask(&[]).stderr;
    assert!(line.contains(" · decode ") && !line.contains("limit") && !line.contains("bound by"), "{line}");
    let object = ask(&["--json"]).json();
    assert!(object["prefill"]["flops"].as_f64() > Some(0.0) && object["prefill"].get("limit_percent").is_none());
    assert!(object.get("limits").is_none() && object.get("bound_by").is_none(), "{object}");
    assert_eq!(kept(".limits"), 0, "nothing was measured");
    keep_limits(&cache, 4e12, 2e12);
    let line = ask(&[]).stderr;
    assert!(line.contains(" % of limit") && line.contains(" · bound by "), "{line}");
    let object = ask(&["--json"]).json();
    for phase in ["prefill", "decode"] {
        for name in ["limit_percent", "compute_percent", "memory_percent"] {
            assert!(object[phase][name].as_f64() > Some(0.0), "{phase}.{name} in {object}");
        }
    }
    assert!(object["bound_by"].is_string(), "{object}");
    assert!(object["limits"]["read_bandwidth_bytes_s"].as_f64() > Some(0.0), "{object}");
}

/// Thoughts are not written to pipes: without a word the answer would be an empty line.
#[test]
fn who_cuts_a_thought_short_is_told() {
    let ran = run(&mut twostroke(&["run", "What is 17 + 25?", "--temperature", "0", "-n", "8"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "\n"), "{ran:?}");
    assert!(ran.stderr.contains("cut within its thought: -n allows more"), "{ran:?}");
}

#[test]
fn standard_input_is_a_prompt() {
    let argument = run(&mut twostroke(&["run", QUESTION, "--temperature", "0", "-q"]));
    let piped =
        run_with_input(&mut twostroke(&["run", "--temperature", "0", "-q"]), format!("{QUESTION}\n").as_bytes());
    let dash = run_with_input(&mut twostroke(&["run", "-", "--temperature", "0", "-q"]), QUESTION.as_bytes());
    assert_eq!((piped.code, &piped.stdout), (Some(0), &argument.stdout));
    assert_eq!((dash.code, &dash.stdout), (Some(0), &argument.stdout));
    assert_eq!(piped.stderr, "", "--quiet says nothing");
}

/// The built-in model goes by its name everywhere.
#[test]
fn the_built_in_model_has_a_name() {
    let [named, first, plain] = [&[QUESTION, "-m", "lantern"][..], &["lantern", QUESTION], &[QUESTION]].map(|words| {
        let asked = run(twostroke(&["run", "--temperature", "0", "-q"]).args(words));
        assert_eq!((asked.code, asked.stderr.as_str()), (Some(0), ""), "{asked:?}");
        asked.stdout
    });
    assert_eq!((&named, &first), (&plain, &plain));
}

#[test]
fn what_is_piped_in_stands_below_the_prompt() {
    let prompt_tokens = |prompt: &str, input: &[u8]| {
        let arguments = ["run", prompt, "--json", "-q", "-n", "4", "--temperature", "0"];
        let ran = run_with_input(&mut twostroke(&arguments), input);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let object = ran.json();
        (object["usage"]["prompt_tokens"].as_u64().expect("a count"), object["text"].clone())
    };
    let both = prompt_tokens("Tell me a story", b"about a fox and a lantern\n");
    assert_eq!(both, prompt_tokens("Tell me a story\n\nabout a fox and a lantern", b""));
    assert!(both.0 > prompt_tokens("Tell me a story", b"").0, "{both:?}");
    let wrong = run_with_input(&mut twostroke(&["run", "Summarise this:", "-q"]), b"\xff\xfe");
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("standard input: not UTF-8"), "{wrong:?}");
}

#[test]
fn json_holds_answer_usage_and_timings() {
    let object = run(&mut twostroke(&["run", QUESTION, "--json", "--seed", "1", "-n", "8"])).json();
    for phase in ["prefill", "decode"] {
        for name in ["tokens", "ms", "tok_s", "flops", "bytes", "intensity"] {
            assert!(object[phase][name].as_f64() > Some(0.0), "{phase}.{name} in {object}");
        }
    }
    for name in ["model", "backend", "text", "finish_reason"] {
        assert!(object[name].is_string(), "{name} in {object}");
    }
    assert!(object["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{object}");
    assert!(object["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| (1..=8).contains(&tokens)), "{object}");
    let timings = &object["timings"];
    let number = |name: &str| timings[name].as_f64().unwrap_or_else(|| panic!("{name} in {timings}"));
    assert!((number("queue_ms") + number("prefill_ms") - number("ttft_ms")).abs() < 0.01, "{timings}");
    assert!((number("ttft_ms") + number("decode_ms") - number("total_ms")).abs() < 0.01, "{timings}");
}

fn answer(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = ["run", "Tell me a story about a fox and a lantern", "--json", "-q", "-n", "40"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    run(&mut twostroke(&arguments)).json()["text"].clone()
}

#[test]
fn a_seed_gives_the_same_answer_again_on_any_number_of_threads() {
    let first = answer(&["--seed", "7"]);
    assert_eq!(first, answer(&["--seed", "7"]));
    assert_eq!(first, answer(&["--seed", "7", "-t", "1"]));
    assert_eq!(first, answer(&["--seed", "7", "--max-num-batched-tokens", "1"]), "chunks of one token");
    assert_ne!(first, answer(&["--seed", "8"]));
}

#[test]
fn smaller_weights_answer_too() {
    for weights in ["int8", "int4"] {
        assert!(answer(&["--weights", weights, "--temperature", "0"]).as_str().is_some_and(|text| text.len() > 20));
    }
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let whole = answer(&["--temperature", "0"]);
    let word = whole.as_str().and_then(|text| text.split(' ').nth(5)).expect("a story has words");
    let cut = answer(&["--temperature", "0", "--stop", word]);
    let cut = cut.as_str().expect("text");
    assert!(!cut.contains(word) && whole.as_str().is_some_and(|text| text.starts_with(cut)), "{cut:?} of {whole}");
}

#[test]
fn raw_continues_the_text_itself() {
    let chat = run(&mut twostroke(&["run", "Once upon a time", "--json", "-q", "-n", "1"])).json();
    let raw = run(&mut twostroke(&["run", "Once upon a time", "--json", "-q", "-n", "1", "--raw"])).json();
    let prompt = |object: &Value| object["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(prompt(&raw) < prompt(&chat), "the template adds tokens: {raw} {chat}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = twostroke(&["run", "Tell me a story about a fox", "-q"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_pipe_that_says_nothing_and_stays_open_is_given_up_and_named() {
    // As a service manager, a remote shell or a parent process leaves one.
    let mut child = twostroke(&["run", QUESTION, "-q", "-n", "4"]);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("it starts");
    let open = child.stdin.take();
    let output = child.wait_with_output().expect("it ends");
    drop(open);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.lines().count() == 1 && said.contains("standard input said nothing"), "{said}");
    assert!(!output.stdout.is_empty());
}

#[test]
fn ctrl_c_and_a_terminal_that_goes_end_the_answer_with_130() {
    ["INT", "HUP"].into_iter().for_each(ends_the_answer);
}

fn ends_the_answer(by: &str) {
    // To the end of the context, unless it is stopped.
    let mut command = twostroke(&["run", "Once upon a time", "--ignore-eos", "--weights", "bf16"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("standard output is piped");
    stdout.read_exact(&mut [0]).expect("it begins to answer");
    signal(by, child.id());
    stdout.read_to_end(&mut Vec::new()).expect("the rest of the answer");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(130), ""));
}
