//! A real checkpoint, SmolLM2-135M-Instruct: random and tiny weights have none of the outliers that trained ones grow.
//!
//! | weights | demanded |
//! |---|---|
//! | bf16 | ten greedy answers are those of llama.cpp in float32 (`real/answers.json`), but where two tokens are as good |
//! | each, both arithmetics | no answer runs in circles, but where bf16 does so behind the same token |
//! | each | KL divergence from float32 within `real/gates.json`; of int8, what Q8_0 of ik_llama.cpp loses |
//!
//! `cargo xtask test` installs the model and says where it is; without it these tests say that they were skipped.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, Source};
use engine::{ChatMessage, Engine, EngineOptions, Event, Prompt, RawRequest, SamplingParams, Stream};
use kernels::{AccumulationOrder, WeightClass};
use model::ModelConfig;
use serde_json::Value;
use tests::{root, run, text, twostroke};
use text::chat_template::{ChatTemplate, TemplateOptions};
use text::tokenizer::Tokenizer;

/// Two tokens as good as each other: rounding to bf16 may choose either. In nats.
const TIE: f32 = 0.15;

/// More rounds than this in a row are a circle.
const MOST_CIRCLES: usize = 6;

/// The GGUF file, if this run has it.
fn file() -> Option<PathBuf> {
    let path = std::env::var_os("TWOSTROKE_SMOLLM2").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: `cargo xtask test` installs SmolLM2");
    }
    path
}

/// A question of `real/answers.json`.
struct Case {
    question: String,
    prompt: Vec<u32>,
    /// llama.cpp's, greedy, its end included.
    answer: Vec<u32>,
}

fn cases() -> Vec<Case> {
    let json = text("tests/real/answers.json").expect("the answers are there");
    let cases: Vec<Value> = serde_json::from_str(&json).expect("a list");
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("a token") as u32).collect()
    };
    let case = |case: &Value| Case {
        question: case["question"].as_str().expect("a text").to_string(),
        prompt: ids(&case["prompt"]),
        answer: ids(&case["answer"]),
    };
    cases.iter().map(case).collect()
}

fn checkpoint(file: &Path) -> Checkpoint {
    Checkpoint::open(Source::Gguf(file.to_path_buf())).expect("the model is there")
}

/// A generated token, and the top two at its place with their log probabilities.
struct Chosen {
    token: u32,
    best: Vec<(u32, f32)>,
}

fn engine(file: &Path, weights: WeightClass, arithmetic: AccumulationOrder) -> Engine {
    let (arithmetic, max_model_len) = (Some(arithmetic), Some(512));
    let options = EngineOptions { weights, arithmetic, max_num_seqs: 16, max_model_len, ..EngineOptions::default() };
    Engine::start(&checkpoint(file), &options, &mut |_| {}).expect("it starts")
}

/// Greedy answers to all prompts. They are asked at once, and share steps.
fn answers(engine: &Engine, prompts: &[Vec<u32>], max_tokens: i64) -> Vec<Vec<Chosen>> {
    let ask = |prompt: &Vec<u32>| -> Stream {
        let prompt = Prompt::Tokens(prompt.iter().map(|&id| i64::from(id)).collect());
        let raw = RawRequest {
            sampling: SamplingParams::at(0.0),
            max_tokens: Some(max_tokens),
            logprobs: Some(2),
            ..RawRequest::new(prompt)
        };
        engine.submit(engine.validate(raw).expect("a valid request")).expect("the queue has room")
    };
    let streams: Vec<Stream> = prompts.iter().map(ask).collect();
    streams.into_iter().map(chosen).collect()
}

fn tokens(found: &[Chosen]) -> Vec<u32> {
    found.iter().map(|chosen| chosen.token).collect()
}

fn chosen(mut stream: Stream) -> Vec<Chosen> {
    let mut found = Vec::new();
    while let Some(output) = stream.blocking_recv() {
        match output {
            Event::Token { token, logprob, .. } => {
                found.push(Chosen { token, best: logprob.expect("it was asked for").top });
            }
            Event::Failed(error) => panic!("{error}"),
            Event::Finished { .. }
            | Event::Done { .. }
            | Event::PromptLogprobs(_)
            | Event::Embedding(_)
            | Event::Progress(_)
            | Event::Noted { .. } => {}
        }
    }
    found
}

#[test]
fn a_chat_becomes_the_tokens_that_llama_cpp_was_given() {
    let Some(file) = file() else { return };
    let checkpoint = checkpoint(&file);
    let config = ModelConfig::load(&checkpoint).expect("a configuration");
    let tokenizer = Tokenizer::load(&checkpoint, config.vocab_size).expect("a tokenizer");
    let template = ChatTemplate::load(&checkpoint).expect("it is read").expect("the model chats");
    for case in cases() {
        let messages = [ChatMessage::new("user", &*case.question)];
        let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
        let ids = tokenizer.encode_chat(&template, &messages, &options).expect("it is rendered");
        assert_eq!(ids, case.prompt, "{}", case.question);
    }
}

#[test]
fn greedy_answers_in_bf16_are_those_of_llama_cpp_in_float32() {
    let Some(file) = file() else { return };
    let cases = cases();
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt.clone()).collect();
    let mut equal = 0;
    let found = answers(&engine(&file, WeightClass::Bf16, AccumulationOrder::best()), &prompts, 48);
    for (case, found) in cases.iter().zip(found) {
        let tokens = tokens(&found);
        let common = tokens.iter().zip(&case.answer).take_while(|(ours, theirs)| ours == theirs).count();
        if tokens == case.answer {
            equal += 1;
            continue;
        }
        // Behind the first difference the two read different texts.
        let differs = found.get(common).unwrap_or_else(|| panic!("{}: it ends early", case.question));
        let [(_, best), (other, second)] = differs.best[..] else { panic!("two were asked for") };
        println!("{:?}: token {common} differs, our best two are {:.3} nats apart", case.question, best - second);
        assert!(best - second <= TIE, "{}: token {common} is {}, clearly", case.question, differs.token);
        assert_eq!(Some(&other), case.answer.get(common), "{}: token {common}", case.question);
    }
    println!("{equal} of {} answers are equal to the end", cases.len());
}

/// The longest circle: how often the same 1 to 4 tokens come in a row, at most.
fn circles(tokens: &[u32]) -> usize {
    let rounds = |n: usize, start: usize| {
        let first = &tokens[start..start + n];
        tokens[start..].chunks_exact(n).take_while(|&next| next == first).count()
    };
    let starts = |n: usize| (0..(tokens.len() + 1).saturating_sub(n)).map(move |start| rounds(n, start));
    (1..=4).flat_map(starts).max().unwrap_or(0)
}

#[test]
fn circles_are_recognised() {
    for (tokens, want) in [
        (&[][..], 0),
        (&[5], 1),
        (&[1, 2, 3], 1),
        (&[9, 7, 7, 7, 8], 3),
        (&[0, 1, 2, 1, 2, 1, 2, 1], 3),
        (&[1, 2, 3, 4, 1, 2, 3, 4, 5], 2),
        (&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 1),
    ] {
        assert_eq!(circles(tokens), want, "{tokens:?}");
    }
}

/// In float32 none of these answers repeats anything more than twice. Where two tokens are as good, a class may take
/// the other, behind which bf16 may run in circles as well: that is the model's own.
#[test]
fn no_weight_class_runs_in_circles_where_bf16_does_not() {
    let Some(file) = file() else { return };
    let cases = cases();
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt.clone()).collect();
    // Each is a definition of its own; a machine has both.
    for arithmetic in AccumulationOrder::ALL {
        let bf16 = engine(&file, WeightClass::Bf16, arithmetic);
        let plain: Vec<Vec<u32>> = answers(&bf16, &prompts, 96).iter().map(|found| tokens(found)).collect();
        for (case, plain) in cases.iter().zip(&plain) {
            assert!(circles(plain) <= MOST_CIRCLES, "bf16, {}: {}: {plain:?}", arithmetic.name(), case.question);
        }
        for weights in [WeightClass::Int8, WeightClass::Int4] {
            let all = answers(&engine(&file, weights, arithmetic), &prompts, 96);
            for ((case, plain), found) in cases.iter().zip(&plain).zip(all) {
                let (about, tokens) = (format!("{}, {}", weights.name(), arithmetic.name()), tokens(&found));
                println!("{about} {:?}: {} tokens, {} in a row", case.question, tokens.len(), circles(&tokens));
                if circles(&tokens) <= MOST_CIRCLES {
                    continue;
                }
                let common = tokens.iter().zip(plain).take_while(|(ours, theirs)| ours == theirs).count();
                let [(_, best), (_, second)] = found[common].best[..] else { panic!("two were asked for") };
                assert!(best - second <= TIE, "{about}: {}: token {common} differs clearly: {tokens:?}", case.question);
                let same_way = [&case.prompt[..], &tokens[..=common]].concat();
                let own = self::tokens(&answers(&bf16, &[same_way], 96)[0]);
                println!("  behind token {common}, {:.3} nats from the next: bf16 {}", best - second, circles(&own));
                assert!(circles(&own) > MOST_CIRCLES, "{about}: {}: {tokens:?}, bf16 {own:?}", case.question);
            }
        }
    }
}

#[test]
fn each_class_loses_no_more_than_its_gate() {
    let Some(file) = file() else { return };
    let (file, sample) = (file.to_string_lossy(), root().join("crates/cli/calibration.txt"));
    let gates: Value = serde_json::from_str(&text("tests/real/gates.json").expect("it is there")).expect("an object");
    let gates = gates["smollm2"].as_array().expect("a list");
    assert!(gates.len() >= 5, "{gates:?}");
    for gate in gates {
        let field = |name: &str| gate[name].as_str().expect("a text");
        let (weights, kv_dtype, why) = (field("weights"), field("kv_dtype"), field("why"));
        // Above its gate, where that is known: it may not get worse.
        let known = gate["known_kl"].as_f64().map(|known| 1.02 * known);
        let most = known.or(gate["most_kl"].as_f64()).expect("a number");
        // What llama-perplexity judges with -c 512: the second half of each whole window.
        let sample = sample.to_string_lossy();
        let arguments = ["quality", "-m", &file, "--text", &sample, "-c", "512", "--skip", "256", "--json"];
        let ran = run(&mut twostroke(&[&arguments[..], &["--weights", weights, "--kv-dtype", kv_dtype]].concat()));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let found = ran.json();
        let kl = found["mean_kl"].as_f64().expect("a number");
        println!("{weights} weights, {kv_dtype} KV cache: {kl:.6} nats; gate {}: {why}", gate["most_kl"]);
        assert!(kl > 0.0 && kl <= most, "{weights}, {kv_dtype}: {kl} nats is above {most}: {why}");
        // The same text through llama-perplexity, in float32: 49.0428.
        let perplexity = found["reference_perplexity"].as_f64().expect("a number");
        assert!((perplexity / 49.0428 - 1.0).abs() < 1e-3, "float32: {perplexity}");
        assert_eq!(found["tokens"], 5 * 255, "{found}");
    }
}
