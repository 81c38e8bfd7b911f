//! Guesses change no answer: whatever is asked and however it is served, tokens, log probabilities, reasons and counts
//! are those of an engine that never guesses.

mod common;

use common::{Outcome, ask, gather, options, start, used_blocks_when_quiet};
use engine::{
    ChatMessage, DraftMethod, Drafters, Engine, EngineOptions, LearnedDrafter, Prompt, RawRequest, Speculation,
};
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

/// Every kind of request. Each round has its seeds, and the first is greedy where nothing else is said.
fn workload(round: usize) -> Vec<RawRequest> {
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
                temperature: Some(0.2 * (round % 6) as f64),
                ignore_eos: true,
                seed: Some((round * 1000 + kind * 10 + index) as i64),
                logprobs: Some(0),
                ..RawRequest::new(Prompt::Text(prompt))
            };
            change(&mut raw);
            requests.push(raw);
        }
    }
    requests
}

fn alone(engine: &Engine, round: usize) -> Vec<Outcome> {
    workload(round).into_iter().map(|raw| ask(engine, raw)).collect()
}

/// All at once, as far as there are places.
fn together(engine: &Engine, round: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for some in workload(round).chunks(12) {
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

/// Over 100,000 tokens; over so many more as `TWOSTROKE_CHAOS_TOKENS` says, which `cargo xtask chaos` does.
#[test]
fn guesses_change_no_bit_of_any_answer() {
    let wanted = std::env::var("TWOSTROKE_CHAOS_TOKENS").map_or(100_000, |text| text.parse().expect("a number"));
    let mut compared = Compared::default();
    let mut round = 0;
    while round == 0 || compared.tokens < wanted {
        compare(round, &mut compared);
        round += 1;
        println!("{} tokens are equal to the bit after {round} rounds", compared.tokens);
    }
    let Compared { tokens, drafted, accepted } = compared;
    println!("{tokens} tokens: {drafted:?} guessed, {accepted:?} of them right");
    assert!(tokens >= wanted, "{tokens} tokens are compared");
    let wrong = |by: usize| drafted[by] - accepted[by];
    assert!((0..4).all(|by| accepted[by] > 2_000 && wrong(by) > 1_000), "{drafted:?} guessed, {accepted:?} right");
}

/// Tokens that were compared, and guesses: by texts, a draft model, both, and by one who errs now and then.
#[derive(Default)]
struct Compared {
    tokens: usize,
    drafted: [u64; 4],
    accepted: [u64; 4],
}

fn compare(round: usize, compared: &mut Compared) {
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
    let both = Drafters { learned: draft_model().learned, ..Drafters::default() };
    let erring = Drafters { lookup: None, rehearsed: Some(0.8), ..Drafters::default() };
    let guessed_by: [(&str, Drafters); 4] = [
        ("texts", Drafters::default()),
        ("a draft model", draft_model()),
        ("both", both),
        ("one who has heard it before, and errs", erring),
    ];
    let plain = |options: &EngineOptions| {
        alone(&start(&EngineOptions { speculation: Speculation::Off, ..options.clone() }), round)
    };
    let want = plain(&options());
    for (index, (what, options, company)) in cases.into_iter().enumerate() {
        let is_other = options.weights != WeightClass::Bf16;
        let other = is_other.then(|| plain(&options));
        for (by, (who, drafters)) in guessed_by.iter().enumerate() {
            // These where company and prefix cache are, which is enough.
            if by >= 2 && index != 2 && index != 3 {
                continue;
            }
            let what = format!("{what}, guessed by {who}");
            // The bytes of a cache are those of both models.
            let more = if drafters.learned.is_some() { 2 } else { 1 };
            let kv_cache_bytes = options.kv_cache_bytes.map(|bytes| bytes * more);
            let speculation = Speculation::By(drafters.clone());
            let engine = start(&EngineOptions { speculation, kv_cache_bytes, ..options.clone() });
            if drafters.rehearsed.is_some() {
                compared.tokens += assert_same(&what, &together(&engine, round), &want);
            }
            let before = engine.stats().accepted_tokens;
            let got = if company { together(&engine, round) } else { alone(&engine, round) };
            compared.tokens += assert_same(&what, &got, other.as_ref().unwrap_or(&want));
            assert_eq!(used_blocks_when_quiet(&engine), 0, "{what}: blocks are left");
            let stats = engine.stats();
            compared.drafted[by] += stats.drafted_tokens;
            compared.accepted[by] += stats.accepted_tokens;
            let told: usize = got.iter().map(|outcome| outcome.timings.accepted_tokens).sum();
            assert_eq!(told as u64, stats.accepted_tokens - before, "{what}: requests and counters say the same");
        }
    }
}

/// The smaller model that was trained for the one that ships, and nobody else.
fn draft_model() -> Drafters {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lantern-draft");
    let learned = LearnedDrafter { method: DraftMethod::DraftModel, model: Some(path.to_owned()), weights: None };
    Drafters { lookup: None, learned: Some(learned), ..Drafters::default() }
}

#[test]
fn a_draft_model_draws_as_its_target_does() {
    // One guess at a time: each is judged. On stories, of 1,100 places at temperature 0.7, rejection sampling would
    // accept 0.936 in the mean, and this race 0.927.
    let drafters = Drafters { most_guesses: 1, ..draft_model() };
    let engine = start(&EngineOptions { speculation: Speculation::By(drafters), ..options() });
    for (temperature, least) in [(0.0, 0.88), (0.7, 0.9), (1.0, 0.88)] {
        let before = engine.stats();
        for (seed, story) in stories().into_iter().enumerate() {
            let messages = vec![ChatMessage::new("user", story)];
            let prompt =
                Prompt::Chat { messages, template_kwargs: serde_json::Map::new(), add_generation_prompt: true };
            let raw = RawRequest {
                max_tokens: Some(160),
                temperature: Some(temperature),
                seed: Some(seed as i64),
                ..RawRequest::new(prompt)
            };
            ask(&engine, raw);
        }
        let after = engine.stats();
        let drafted = (after.drafted_tokens - before.drafted_tokens) as f64;
        let share = (after.accepted_tokens - before.accepted_tokens) as f64 / drafted;
        println!("temperature {temperature}: {share:.3} of {drafted} hold");
        assert!(drafted > 900.0 && share >= least, "temperature {temperature}: {share} of {drafted} hold");
    }
}

/// What people ask for a story with, in words that the models were not trained with.
fn stories() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lantern/heldout.jsonl");
    let cases = std::fs::read_to_string(path).expect("the cases ship with the model");
    let cases = cases.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let stories = cases.filter(|case| case["kind"] == "story");
    stories.map(|case| case["messages"][0]["content"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn a_draft_model_that_does_not_fit_is_refused() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let table: [(String, &str); 3] = [
        ("/no/such/model".to_owned(), "no such"),
        (format!("{directory}/models"), "config.json"),
        (format!("{directory}/crates/model/tests/data/llama3"), "tokens"),
    ];
    for (path, says) in table {
        let learned = LearnedDrafter { method: DraftMethod::DraftModel, model: Some(path.clone()), weights: None };
        let speculation = Speculation::By(Drafters { learned: Some(learned), ..Drafters::default() });
        let error = common::refused(&EngineOptions { speculation, ..options() });
        assert!(error.starts_with("--speculative-config: model:") && error.contains(says), "{path}: {error}");
    }
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
