//! An engine on the model that ships, small enough for any test.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;

use checkpoint::{Checkpoint, Source};
use engine::{Engine, EngineOptions, Event, FinishReason, Prompt, RawRequest, SamplingParams, Timings, Usage};
pub(crate) use testing::wait;

/// Loads the shipped model with `options`.
pub(crate) fn start(options: &EngineOptions) -> Engine {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the shipped model opens");
    Engine::start(&checkpoint, options, &mut |_| {}).expect("the shipped model loads")
}

/// Loads a tiny model of another family, one of those that the `model` crate's tests compare with transformers. It has
/// no tokenizer.
pub(crate) fn start_family(name: &str, options: &EngineOptions) -> Engine {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name);
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the model opens");
    Engine::start(&checkpoint, options, &mut |_| {}).expect("the model loads")
}

/// Why the shipped model does not start with `options`.
pub(crate) fn refused(options: &EngineOptions) -> String {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the shipped model opens");
    Engine::start(&checkpoint, options, &mut |_| {}).err().expect("it is refused").to_string()
}

/// A small engine: two threads at most, room for a few thousand tokens.
pub(crate) fn options() -> EngineOptions {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(2));
    EngineOptions {
        threads: Some(threads),
        max_model_len: Some(1024),
        max_num_seqs: 16,
        kv_cache_bytes: Some(64 << 20),
        ..EngineOptions::default()
    }
}

/// Waits for what holds the engine.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Eight answers of 290 tokens that begin in the same step and need 80 blocks of 32 tokens: a smaller cache preempts some,
/// however slow the machine is. Their prompts have no full block, so no other worker reads them.
pub(crate) fn submit_crowd(engine: &Engine) -> Vec<engine::Stream> {
    assert!(now(engine.pause()));
    let submit = |seed: i64| {
        let prompt = Prompt::Tokens(vec![5, 6, 7]); // of any vocabulary
        let raw = RawRequest { prompt, seed: Some(seed), logprobs: Some(1), ..greedy("", 290) };
        engine.submit(engine.validate(raw).expect("valid")).expect("there is room")
    };
    let streams = (0..8).map(submit).collect();
    now(engine.resume());
    streams
}

/// One answer, gathered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) logprobs: Vec<f32>,
}

/// A request's outcome, gathered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answers: Vec<Answer>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    /// Of the prompt, if that is what was asked for.
    pub(crate) embedding: Vec<f32>,
}

/// Submits all of them and reads them to their ends. The first step finds all: which of them meet does not depend on
/// the machine.
pub(crate) fn at_once(engine: &Engine, requests: Vec<RawRequest>) -> Vec<Outcome> {
    assert!(now(engine.pause()));
    let streams = submit_all(engine, requests);
    now(engine.resume());
    streams.into_iter().map(|(answers, stream)| gather(stream, answers)).collect()
}

pub(crate) fn submit_all(engine: &Engine, requests: Vec<RawRequest>) -> Vec<(usize, engine::Stream)> {
    let submit = |raw| {
        let request = engine.validate(raw).expect("valid");
        (request.num_answers(), engine.submit(request).expect("room"))
    };
    requests.into_iter().map(submit).collect()
}

/// Bits of the log probabilities, not only tokens: equal tokens could hide a drift. Returns how many tokens were compared.
pub(crate) fn assert_same(what: &str, got: &[Outcome], want: &[Outcome]) -> usize {
    assert_eq!(got.len(), want.len(), "{what}");
    let mut tokens = 0;
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let bits = |answer: &Answer| answer.logprobs.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for (answer, (got, want)) in got.answers.iter().zip(&want.answers).enumerate() {
            assert_eq!(got, want, "{what}: request {index} answer {answer}");
            assert_eq!(bits(got), bits(want), "{what}: request {index} answer {answer}");
        }
        assert_eq!(got.usage.completion_tokens, want.usage.completion_tokens, "{what}: request {index}");
        tokens += got.usage.completion_tokens;
    }
    tokens
}

/// Reads a stream to its end.
pub(crate) fn gather(mut stream: engine::Stream, num_answers: usize) -> Outcome {
    let mut outcome = Outcome { answers: vec![Answer::default(); num_answers], ..Outcome::default() };
    loop {
        match stream.blocking_recv().expect("a stream ends with Done or Failed") {
            Event::Embedding(vector) => {
                assert!(outcome.embedding.is_empty(), "it comes once");
                outcome.embedding = vector;
            }
            Event::PromptLogprobs(_) | Event::Progress(_) | Event::Noted { .. } => {}
            Event::Token { answer, token, text, logprob } => {
                let answer = &mut outcome.answers[answer];
                assert_eq!(answer.reason, None, "no token follows the end");
                answer.tokens.push(token);
                answer.text.push_str(&text);
                answer.logprobs.extend(logprob.map(|logprob| logprob.logprob));
            }
            Event::Finished { answer, reason, text, .. } => {
                let answer = &mut outcome.answers[answer];
                assert_eq!(answer.reason.replace(reason), None, "one end per answer");
                answer.text.push_str(&text);
            }
            Event::Done { usage, timings } => {
                outcome.usage = usage;
                outcome.timings = timings;
                return outcome;
            }
            Event::Failed(error) => panic!("the request failed: {error}"),
        }
    }
}

/// Validates, submits and gathers.
pub(crate) fn ask(engine: &Engine, raw: RawRequest) -> Outcome {
    let request = engine.validate(raw).expect("the request is valid");
    let answers = request.num_answers();
    gather(engine.submit(request).expect("the queue has room"), answers)
}

/// A greedy request of exactly `tokens` tokens on a text prompt.
pub(crate) fn greedy(prompt: &str, tokens: i64) -> RawRequest {
    RawRequest {
        max_tokens: Some(tokens),
        sampling: SamplingParams::at(0.0),
        ignore_eos: true,
        ..RawRequest::new(Prompt::Text(prompt.to_owned()))
    }
}

/// Waits until nothing is open and every block has come back.
pub(crate) fn wait_until_quiet(engine: &Engine) {
    wait("all requests to end", || engine.health().open_requests == 0);
    wait("every block to come back", || engine.stats().used_blocks == 0);
}
