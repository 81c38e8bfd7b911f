//! Guesses change no answer: whatever is asked and however it is served, tokens, log probabilities, reasons and counts
//! are those of an engine that never guesses.

mod common;

use common::{Outcome, ask, gather, options, start, used_blocks_when_quiet};
use engine::{Engine, EngineOptions, Prompt, RawRequest, Speculation};
use kernels::{Isa, KvDtype, WeightClass};

/// Texts that repeat themselves, so that there is much to guess, and some that do not.
fn prompts() -> Vec<String> {
    vec![
        "The fox sat by the door. The owl sang of gold.\n".repeat(5),
        "1 2 3 4 5 1 2 3 4 5 1 2 3 4".to_owned(),
        "Once upon a time there was a fox who".to_owned(),
        format!("{} And so the fox", "A lantern in the window showed the fox the way home. ".repeat(4)),
    ]
}

/// Every kind of request.
fn workload() -> Vec<RawRequest> {
    let kinds: [fn(&mut RawRequest); 14] = [
        |_| {},
        |raw| raw.temperature = Some(0.7),
        |raw| (raw.temperature, raw.top_p, raw.top_k) = (Some(1.3), Some(0.9), Some(40)),
        |raw| (raw.temperature, raw.min_p) = (Some(1.3), Some(0.05)),
        |raw| (raw.presence_penalty, raw.frequency_penalty) = (Some(0.6), Some(0.3)),
        |raw| (raw.temperature, raw.repetition_penalty) = (Some(0.8), Some(1.2)),
        |raw| raw.logit_bias = vec![(17, 3.0), (40, -2.0)],
        |raw| (raw.ignore_eos, raw.min_tokens, raw.temperature) = (false, Some(40), Some(1.0)),
        |raw| (raw.ignore_eos, raw.stop) = (false, vec!["gold".to_owned(), "\n".to_owned()]),
        |raw| (raw.logprobs, raw.temperature) = (Some(3), Some(0.5)),
        |raw| (raw.n, raw.temperature) = (Some(3), Some(0.9)),
        |raw| (raw.stop, raw.min_tokens, raw.n) = (vec![" the".to_owned()], Some(7), Some(2)),
        |raw| raw.prediction = Some(format!(" sat by the door. {}", prompts().concat())),
        |raw| (raw.n, raw.temperature, raw.prediction) = (Some(3), Some(0.8), Some(prompts().concat())),
    ];
    let mut requests = Vec::new();
    for (kind, change) in kinds.iter().enumerate() {
        for (index, prompt) in prompts().into_iter().enumerate() {
            let mut raw = RawRequest {
                max_tokens: Some(40 + 23 * ((kind + index) % 5) as i64),
                temperature: Some(0.0),
                ignore_eos: true,
                seed: Some((kind * 10 + index) as i64),
                logprobs: Some(0),
                ..RawRequest::new(Prompt::Text(prompt))
            };
            change(&mut raw);
            requests.push(raw);
        }
    }
    requests
}

fn alone(engine: &Engine) -> Vec<Outcome> {
    workload().into_iter().map(|raw| ask(engine, raw)).collect()
}

/// All at once, as far as there are places.
fn together(engine: &Engine) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for some in workload().chunks(12) {
        let submitted: Vec<_> = some
            .iter()
            .map(|raw| {
                let request = engine.validate(raw.clone()).expect("valid");
                (request.num_answers(), engine.submit(request).expect("room"))
            })
            .collect();
        outcomes.extend(submitted.into_iter().map(|(answers, stream)| gather(stream, answers)));
    }
    outcomes
}

/// Bits of the log probabilities, not only tokens. Returns how many tokens were compared.
fn assert_same(what: &str, got: &[Outcome], want: &[Outcome]) -> usize {
    let mut tokens = 0;
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let bits = |outcome: &Outcome| -> Vec<Vec<u32>> {
            outcome.answers.iter().map(|answer| answer.logprobs.iter().map(|x| x.to_bits()).collect()).collect()
        };
        for (answer, (got, want)) in got.answers.iter().zip(&want.answers).enumerate() {
            assert_eq!(got, want, "{what}: request {index} answer {answer}");
        }
        assert_eq!(bits(got), bits(want), "{what}: request {index}");
        assert_eq!(got.usage.completion_tokens, want.usage.completion_tokens, "{what}: request {index}");
        tokens += got.usage.completion_tokens;
    }
    tokens
}

#[test]
fn guesses_change_no_bit_of_any_answer() {
    let kib = |options: &EngineOptions, tokens: u64| tokens * start(options).model().kv_bytes_per_token as u64;
    let few = Some(kib(&options(), 16 * 32));
    let other_isa = Isa::available().into_iter().find(|&isa| isa != Isa::best() && isa != Isa::Scalar);
    let quiet = EngineOptions { enable_prefix_caching: false, ..options() };
    let cases: Vec<(&str, EngineOptions, bool)> = vec![
        ("alone", quiet.clone(), false),
        ("in company", quiet, true),
        ("prefix cache", options(), true),
        (
            "rows of 16, chunks of 7",
            EngineOptions { max_num_batched_tokens: 16, max_prefill_chunk: Some(7), ..options() },
            true,
        ),
        ("blocks of 64", EngineOptions { block_size: 64, ..options() }, true),
        ("one thread", EngineOptions { threads: Some(1), ..options() }, true),
        ("another instruction set", EngineOptions { isa: other_isa, ..options() }, true),
        ("few blocks", EngineOptions { kv_cache_bytes: few, max_model_len: Some(384), ..options() }, true),
        ("int8, int8 cache", EngineOptions { weights: WeightClass::Int8, kv_dtype: KvDtype::Int8, ..options() }, true),
        ("int4", EngineOptions { weights: WeightClass::Int4, ..options() }, true),
    ];
    let (mut tokens, mut drafted, mut accepted) = (0, 0, 0);
    let plain =
        |options: &EngineOptions| alone(&start(&EngineOptions { speculation: Speculation::Off, ..options.clone() }));
    let want = plain(&options());
    for (what, options, company) in cases {
        let is_other = options.weights != WeightClass::Bf16;
        let other = is_other.then(|| plain(&options));
        let engine = start(&EngineOptions { speculation: Speculation::auto(), ..options });
        let got = if company { together(&engine) } else { alone(&engine) };
        tokens += assert_same(what, &got, other.as_ref().unwrap_or(&want));
        assert_eq!(used_blocks_when_quiet(&engine), 0, "{what}: blocks are left");
        let stats = engine.stats();
        (drafted, accepted) = (drafted + stats.drafted_tokens, accepted + stats.accepted_tokens);
        let told: usize = got.iter().map(|outcome| outcome.timings.accepted_tokens).sum();
        assert_eq!(told as u64, stats.accepted_tokens, "{what}: requests and counters say the same");
    }
    println!("{tokens} tokens, {drafted} guessed, {accepted} of them right");
    assert!(tokens > 40_000 && accepted > 5_000 && drafted > accepted + 2_000, "{tokens}, {drafted}, {accepted}");
}

#[test]
fn who_wants_no_guesses_has_none() {
    let engine = start(&EngineOptions { speculation: Speculation::auto(), ..options() });
    let raw = RawRequest {
        max_tokens: Some(100),
        temperature: Some(0.0),
        ignore_eos: true,
        ..RawRequest::new(Prompt::Text(prompts()[0].clone()))
    };
    let with = ask(&engine, raw.clone());
    assert!(with.timings.accepted_tokens > 50, "{:?}", with.timings);
    assert!(with.timings.decode_steps + with.timings.accepted_tokens == 99, "each token has a step or was guessed");
    let without = ask(&engine, RawRequest { speculate: false, ..raw });
    assert_eq!((without.timings.drafted_tokens, without.timings.decode_steps), (0, 99));
    assert_eq!(with.answers, without.answers);
}
