//! What a request may ask for, and how it ends.

use crate::common;

use std::time::Duration;

use common::{Outcome, ask, gather, greedy, options, start, wait_until_quiet};
use engine::{
    Chat, EngineOptions, Event, FinishReason, Prompt, RawRequest, RequestError, SamplingParams, Stream, SubmitError,
};

#[test]
fn an_answer_ends_for_the_reason_it_states() {
    let engine = start(&options());
    let free = ask(&engine, greedy("Once upon a time", 40));
    let answer = &free.answers[0];
    assert_eq!((answer.reason, answer.tokens.len()), (Some(FinishReason::Length), 40));

    // A stop string: any piece of the text that it would have written.
    let cut = answer.text.char_indices().nth(20).map_or(answer.text.len(), |(at, _)| at);
    let (before, rest) = answer.text.split_at(cut);
    let stop: String = rest.chars().take(5).collect();
    let stopped = ask(&engine, RawRequest { stop: vec![stop.clone()], ..greedy("Once upon a time", 40) });
    let first = answer.text.find(&stop).unwrap_or(before.len());
    assert_eq!(stopped.answers[0].text, answer.text[..first]);
    assert_eq!(stopped.answers[0].reason, Some(FinishReason::Stop(None)));
    let included =
        RawRequest { stop: vec![stop.clone()], include_stop_str_in_output: true, ..greedy("Once upon a time", 40) };
    assert_eq!(ask(&engine, included).answers[0].text, answer.text[..first + stop.len()]);

    // ... but not before `min_tokens`.
    let later = RawRequest { stop: vec![stop.clone()], min_tokens: Some(40), ..greedy("Once upon a time", 40) };
    assert_eq!(ask(&engine, later).answers[0].text, answer.text);

    // A stop token: counted, and its text withheld.
    let token = answer.tokens[7];
    let at = answer.tokens.iter().position(|&other| other == token).unwrap_or(7);
    let raw = RawRequest { stop_token_ids: vec![i64::from(token)], ..greedy("Once upon a time", 40) };
    let stopped = ask(&engine, raw.clone());
    assert_eq!(stopped.answers[0].reason, Some(FinishReason::Stop(Some(token))));
    assert_eq!(stopped.answers[0].tokens, answer.tokens[..=at]);
    assert_eq!(stopped.usage.completion_tokens, at + 1);

    // ... unless it may not come yet: then it is not even offered.
    let later = ask(&engine, RawRequest { min_tokens: Some(30), ..raw });
    assert!(!later.answers[0].tokens[..30].contains(&token));

    // The context's end.
    let engine = start(&EngineOptions { max_model_len: Some(64), ..options() });
    let raw = RawRequest { max_tokens: None, ..greedy("Once upon a time", 1) };
    let outcome = ask(&engine, raw);
    assert_eq!(outcome.usage.prompt_tokens + outcome.usage.completion_tokens, 64);
    assert_eq!(outcome.answers[0].reason, Some(FinishReason::Length));
}

#[test]
fn several_answers_share_the_prompt_and_differ() {
    let engine = start(&options());
    let raw = RawRequest {
        n: Some(4),
        sampling: SamplingParams::at(1.5),
        seed: Some(3),
        ..greedy(&"A long prompt about lanterns. ".repeat(10), 16)
    };
    let outcome = ask(&engine, raw.clone());
    assert_eq!(outcome.answers.len(), 4);
    assert!(outcome.answers.iter().all(|answer| answer.tokens.len() == 16));
    assert!(outcome.answers.windows(2).any(|pair| pair[0].tokens != pair[1].tokens));
    assert_eq!(outcome.timings.prefill_tokens, outcome.usage.prompt_tokens, "the prompt was computed once");
    assert_eq!(ask(&engine, raw).answers, outcome.answers, "a seed makes it repeatable");
}

#[test]
fn prompt_logprobs_cover_the_prompt_and_agree_with_generation() {
    let engine = start(&EngineOptions { max_num_batched_tokens: 16, ..options() });
    let generated = ask(&engine, RawRequest { logprobs: Some(0), ..greedy("Once upon a time", 24) });
    let prompt: Vec<i64> = engine
        .validate(greedy("Once upon a time", 1))
        .expect("valid")
        .prompt()
        .iter()
        .chain(&generated.answers[0].tokens)
        .map(|&token| i64::from(token))
        .collect();
    let prompt_len = prompt.len();
    let raw =
        RawRequest { prompt_logprobs: Some(2), max_tokens: Some(0), ..RawRequest::new(Prompt::Tokens(prompt.clone())) };
    let request = engine.validate(raw).expect("valid");
    let mut stream = engine.submit(request).expect("room");
    let Some(Event::PromptLogprobs(logprobs)) = stream.blocking_recv() else { panic!("the prompt's come first") };
    assert_eq!(logprobs.len(), prompt_len);
    assert!(logprobs[0].is_none(), "nothing comes before the first token");
    for (position, entry) in logprobs.iter().enumerate().skip(1) {
        let entry = entry.as_ref().expect("every later token has one");
        assert_eq!(i64::from(entry.token), prompt[position]);
        assert_eq!(entry.top.len(), 2);
    }
    let scored: Vec<u32> = logprobs[prompt_len - 24..].iter().flatten().map(|entry| entry.logprob.to_bits()).collect();
    let drawn: Vec<u32> = generated.answers[0].logprobs.iter().map(|logprob| logprob.to_bits()).collect();
    assert_eq!(scored, drawn, "reading a text and writing it give the same bits");
    let outcome = gather(stream, 1);
    assert_eq!((outcome.usage.completion_tokens, outcome.answers[0].reason), (0, Some(FinishReason::Length)));
}

#[test]
fn a_prompt_has_one_vector_however_it_is_read() {
    let embed =
        |text: &str| RawRequest { embed: true, max_tokens: Some(0), ..RawRequest::new(Prompt::Text(text.to_owned())) };
    let texts: Vec<String> = (1..9).map(|n| format!("{} {n}", "The old fox told a story.".repeat(n * n))).collect();
    let bits = |outcome: &Outcome| outcome.embedding.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let alone: Vec<Vec<u32>> = {
        let engine = start(&EngineOptions { threads: Some(1), ..options() });
        texts.iter().map(|text| bits(&ask(&engine, embed(text)))).collect()
    };
    assert!(alone.iter().all(|vector| vector.len() == alone[0].len() && vector.iter().any(|&bits| bits != 0)));
    assert_eq!(alone.iter().collect::<std::collections::HashSet<_>>().len(), alone.len(), "each text has its own");
    for rows in [16, 512] {
        let engine = start(&EngineOptions { max_num_batched_tokens: rows, ..options() });
        // Side by side, in chunks, beside answers; and again, from the prefix cache.
        for again in [false, true] {
            let writes = engine.submit(engine.validate(greedy("Once upon a time", 40)).expect("valid")).expect("room");
            let streams: Vec<_> = texts
                .iter()
                .map(|text| engine.submit(engine.validate(embed(text)).expect("valid")).expect("room"))
                .collect();
            for (stream, alone) in streams.into_iter().zip(&alone) {
                let outcome = gather(stream, 1);
                assert_eq!(&bits(&outcome), alone, "{rows} rows");
                assert_eq!((outcome.usage.completion_tokens, outcome.answers[0].tokens.len()), (0, 0));
                assert!(!again || outcome.usage.prompt_tokens < 33 || outcome.usage.cached_tokens > 0, "{outcome:?}");
            }
            gather(writes, 1);
        }
    }
    let engine = start(&options());
    for (param, raw) in [
        ("max_tokens", RawRequest { max_tokens: Some(1), ..embed("x") }),
        ("max_tokens", RawRequest { max_tokens: None, ..embed("x") }),
        ("prompt_logprobs", RawRequest { prompt_logprobs: Some(1), ..embed("x") }),
        ("max_tokens", RawRequest { embed: false, ..embed("x") }),
    ] {
        assert_eq!(engine.validate(raw).expect_err("refused").param, Some(param));
    }
}

#[test]
fn a_dropped_stream_gives_its_blocks_back() {
    let engine = start(&EngineOptions { max_num_batched_tokens: 16, ..options() });
    for taken in [0, 1, 5] {
        let raw = RawRequest { n: Some(if taken == 5 { 3 } else { 1 }), ..greedy(&"long ".repeat(100), 500) };
        let mut stream = engine.submit(engine.validate(raw).expect("valid")).expect("room");
        for _ in 0..taken {
            assert!(stream.blocking_recv().is_some());
        }
        drop(stream);
        wait_until_quiet(&engine);
    }
    assert_eq!(engine.stats().finished_cancelled, 3);
    assert!(engine.stats().generated_tokens >= 6, "tokens of cancelled requests count too");
    assert_eq!(engine.stats().waiting_requests, 0);
}

#[test]
fn an_unread_stream_ends_and_holds_no_more_than_it_may() {
    let engine = start(&options());
    let mut unread = engine.submit(engine.validate(greedy("Hello", 900)).expect("valid")).expect("room");
    unread.limit_unread(40);
    wait_until_quiet(&engine);
    let outputs: Vec<Event> = std::iter::from_fn(|| unread.blocking_recv()).collect();
    assert_eq!(outputs.len(), 42, "what may wait, the one too many, and the end");
    assert_eq!(outputs.last(), Some(&Event::Failed(RequestError::SlowReader)));
    // Who reads may have any number.
    let mut read = engine.submit(engine.validate(greedy("Hello", 300)).expect("valid")).expect("room");
    read.limit_unread(299 + 2);
    let last = std::iter::from_fn(|| read.blocking_recv()).last();
    assert!(matches!(last, Some(Event::Done { .. })), "{last:?}");
    assert_eq!(engine.stats().finished_cancelled, 1);
}

#[test]
fn a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let engine = start(&EngineOptions { max_num_seqs: 1, max_queued_requests: 3, ..options() });
    let submit = || engine.submit(engine.validate(greedy("Hello", 900)).expect("valid"));
    let mut streams = Vec::new();
    let refused = loop {
        match submit() {
            Ok(stream) => streams.push(stream),
            Err(error) => break error,
        }
        assert!(streams.len() <= 5, "one runs, three wait, one may be on its way");
    };
    let SubmitError::QueueFull { waiting_requests, retry_after } = refused else { panic!("{refused:?}") };
    assert_eq!(waiting_requests, 3);
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&retry_after));
    drop(streams);
    wait_until_quiet(&engine);
    assert!(submit().is_ok(), "the queue is open again");
}

#[test]
fn stopping_ends_every_request_with_an_error_and_refuses_new_ones() {
    let engine = start(&options());
    let mut stream = engine.submit(engine.validate(greedy("Hello", 900)).expect("valid")).expect("room");
    assert!(stream.blocking_recv().is_some());
    engine.drain();
    let refused = engine.submit(engine.validate(greedy("Hello", 1)).expect("valid"));
    assert_eq!(refused.err(), Some(SubmitError::ShuttingDown));
    engine.stop();
    let last = std::iter::from_fn(|| stream.blocking_recv()).last();
    assert_eq!(last, Some(Event::Failed(RequestError::ShuttingDown)));
}

#[test]
fn an_answer_can_be_asked_for_token_by_token() {
    let engine = start(&options());
    let whole = engine.validate(RawRequest { ignore_eos: true, ..greedy("Once upon a time", 6) }).expect("valid");
    let tokens = |mut stream: Stream| {
        let mut told = Vec::new();
        while let Some(output) = stream.blocking_recv() {
            if let Event::Token { token, logprob, .. } = output {
                told.push((token, logprob.map_or(0, |logprob| logprob.top.len())));
            }
        }
        told
    };
    let expected = tokens(engine.submit(whole.clone()).expect("room"));
    let mut tail = Vec::new();
    for (token, _) in expected {
        let next = engine.submit(whole.next_token(&tail, 3)).expect("room");
        assert!(next.latency_bound().is_none());
        assert_eq!(tokens(next), [(token, 3)], "behind {tail:?}");
        tail.push(token);
    }
    engine.drain();
    assert_eq!(engine.submit(whole.next_token(&tail[..2], 3)).err(), Some(SubmitError::ShuttingDown));
}

#[test]
fn how_long_an_answer_may_be_is_settled_at_the_door() {
    let engine = start(&options());
    let prompt = vec![5; 1000];
    // (asked for, whether more than there is room for is cut, tokens)
    for (max_tokens, cut_max_tokens, settled) in [
        (None, false, 24),
        (Some(-1), false, 24),
        (Some(-1), true, 24),
        (Some(24), false, 24),
        (Some(25), true, 24),
        (Some(i64::MAX), true, 24),
        (Some(7), true, 7),
    ] {
        let raw = RawRequest { max_tokens, cut_max_tokens, ..RawRequest::new(Prompt::Tokens(prompt.clone())) };
        let request = engine.validate(raw).unwrap_or_else(|error| panic!("{max_tokens:?}: {error}"));
        assert_eq!(request.max_tokens(), settled, "{max_tokens:?}");
    }
    // The least of an answer is against what there is.
    let raw = RawRequest {
        max_tokens: Some(9000),
        cut_max_tokens: true,
        min_tokens: Some(25),
        ..RawRequest::new(Prompt::Tokens(prompt))
    };
    assert_eq!(engine.validate(raw).expect_err("it does not fit").param, Some("min_tokens"));
}

#[test]
fn the_door_names_the_field_and_takes_nothing() {
    let engine = start(&options());
    let base = || greedy("Hello", 4);
    let vocab = engine.model().config.vocab_size as i64;
    let cases: Vec<(&str, RawRequest)> = vec![
        ("prompt", RawRequest::new(Prompt::Tokens(vec![]))),
        ("prompt", RawRequest::new(Prompt::Tokens(vec![-1]))),
        ("prompt", RawRequest::new(Prompt::Tokens(vec![vocab]))),
        ("prompt", RawRequest::new(Prompt::Tokens(vec![1; 1024]))),
        ("prompt", RawRequest::new(Prompt::Text("x".repeat(10_000_000)))),
        ("messages", chat(vec![])),
        ("max_tokens", RawRequest { max_tokens: Some(0), ..base() }),
        ("max_tokens", RawRequest { max_tokens: Some(-2), ..base() }),
        ("max_tokens", RawRequest { max_tokens: Some(i64::MAX), ..base() }),
        ("min_tokens", RawRequest { min_tokens: Some(5), ..base() }),
        ("min_tokens", RawRequest { min_tokens: Some(2000), max_tokens: None, ..base() }),
        ("min_tokens", RawRequest { min_tokens: Some(-1), ..base() }),
        ("n", RawRequest { n: Some(0), ..base() }),
        ("n", RawRequest { n: Some(1_000_000_000), ..base() }),
        ("temperature", RawRequest { sampling: SamplingParams::at(f64::NAN), ..base() }),
        ("logit_bias", RawRequest { logit_bias: vec![(vocab, 1.0)], ..base() }),
        ("logit_bias", RawRequest { logit_bias: vec![(1, f64::NAN)], ..base() }),
        ("logit_bias", RawRequest { logit_bias: vec![(1, 1.0); 2000], ..base() }),
        ("stop", RawRequest { stop: vec![String::new()], ..base() }),
        ("stop", RawRequest { stop: vec!["x".repeat(1 << 20)], ..base() }),
        ("stop", RawRequest { stop: vec!["x".into(); 100_000], ..base() }),
        ("stop_token_ids", RawRequest { stop_token_ids: vec![vocab], ..base() }),
        ("logprobs", RawRequest { logprobs: Some(1_000_000), ..base() }),
        ("prompt_logprobs", RawRequest { prompt_logprobs: Some(21), ..base() }),
        ("priority", RawRequest { priority: Some(i64::MAX), ..base() }),
        ("cache_salt", RawRequest { cache_salt: Some(String::new()), ..base() }),
        ("cache_salt", RawRequest { cache_salt: Some("x".repeat(129)), ..base() }),
        ("cache_salt", RawRequest { cache_salt: Some("a\nb".into()), ..base() }),
        ("allowed_token_ids", RawRequest { allowed_token_ids: Some(vec![]), ..base() }),
        ("allowed_token_ids", RawRequest { allowed_token_ids: Some(vec![1 << 40]), ..base() }),
        ("bad_words", RawRequest { bad_words: vec![" ".into()], ..base() }),
        ("bad_words", RawRequest { bad_words: vec!["x".repeat(257)], ..base() }),
        ("bad_words", RawRequest { bad_words: vec!["x".into(); 1025], ..base() }),
        ("logprob_token_ids", RawRequest { logprob_token_ids: vec![1], ..base() }),
        ("logprob_token_ids", RawRequest { logprob_token_ids: vec![-1], logprobs: Some(0), ..base() }),
        ("logprob_token_ids", RawRequest { logprob_token_ids: vec![1; 21], logprobs: Some(0), ..base() }),
        ("logprobs", RawRequest { logprobs: Some(-2), max_logprobs: -1, ..base() }),
        ("logprobs", RawRequest { logprobs: Some(-1), ..base() }),
        ("prompt_logprobs", RawRequest { prompt_logprobs: Some(4), max_logprobs: 3, ..base() }),
        ("truncate_prompt_tokens", RawRequest { truncate_prompt_tokens: Some(0), ..base() }),
        ("truncate_prompt_tokens", RawRequest { truncate_prompt_tokens: Some(-2), ..base() }),
    ];
    for (param, raw) in cases {
        let rejection = engine.validate(raw).expect_err(param);
        assert_eq!(rejection.param, Some(param), "{rejection}");
    }
    assert_eq!((engine.stats().steps, engine.stats().used_blocks), (0, 0));
}

#[test]
fn a_request_that_could_never_fit_the_cache_is_refused() {
    let bytes = 8 * 32 * start(&options()).model().kv_bytes_per_token as u64;
    let engine = start(&EngineOptions { kv_cache_bytes: Some(bytes), max_model_len: Some(256), ..options() });
    let rejection = engine.validate(RawRequest { n: Some(2), ..greedy("Hello", 200) }).expect_err("13 blocks of 8");
    assert_eq!((rejection.param, rejection.code), (Some("n"), Some("kv_cache_too_small")));
    assert!(engine.validate(greedy("Hello", 200)).is_ok());
}

fn chat(messages: Vec<engine::ChatMessage>) -> RawRequest {
    RawRequest::new(Prompt::Chat(Chat::new(messages)))
}

/// What the steps asked of the machine is counted by phase, and adds up to what the requests did.
#[test]
fn the_phases_work_is_counted() {
    let engine = start(&options());
    let demands = engine.model().demands();
    assert_eq!(engine.stats().work, [engine::PhaseWork::default(); 2]);
    let outcome = ask(&engine, greedy("Once upon a time", 20));
    let (prompt, answer) = (outcome.usage.prompt_tokens, outcome.usage.completion_tokens);
    let [prefill, decode] = engine.stats().work;
    let close = |got: f64, wanted: f64| assert!((got / wanted - 1.0).abs() < 1e-9, "{got} is not {wanted}");
    let read = demands.prefill(0, prompt, prompt);
    close(prefill.total.flops(), read.flops());
    close(prefill.total.bytes, read.bytes);
    // Rows at positions prompt .. prompt + answer - 2: each sees itself and what is before it.
    let steps = answer - 1;
    let keys: usize = (prompt + 1..prompt + answer).sum();
    let written = demands.decode(steps, steps, keys as f64);
    close(decode.total.flops(), written.flops());
    close(decode.total.bytes, written.bytes);
    // Nothing is forgotten within a second.
    assert!(prefill.recent_seconds > 0.0 && decode.last > prefill.last, "{prefill:?} {decode:?}");
    assert!(decode.recent.bytes > 0.5 * decode.total.bytes && decode.recent.bytes <= decode.total.bytes);
    assert_eq!(engine.stats().oldest_waiting_seconds, 0.0);
}

/// A prompt's progress is sent to the clients that asked for it, chunk by chunk, and to no others.
#[test]
fn a_prompt_says_how_far_it_is_read() {
    let engine = start(&EngineOptions { max_num_batched_tokens: 64, ..options() });
    let told = |progress: bool| {
        let raw = RawRequest { progress, ..greedy(&"The fox looked at the lantern. ".repeat(40), 3) };
        let mut stream = engine.submit(engine.validate(raw).expect("valid")).expect("room");
        let (mut told, mut tokens) = (Vec::new(), Vec::new());
        while let Some(output) = stream.blocking_recv() {
            match output {
                Event::Progress(progress) => {
                    assert!(tokens.is_empty(), "before any token");
                    told.push(progress);
                }
                Event::Token { token, .. } => tokens.push(token),
                _ => {}
            }
        }
        (told, tokens, stream.prompt().len())
    };
    let (silent, same, _) = told(false);
    assert!(silent.is_empty());
    // What was read for the first is in the cache for the second.
    let (told, tokens, total) = told(true);
    assert_eq!(tokens, same);
    let (first, last) = (told[0], told[told.len() - 1]);
    assert!(first.cached > 0 && (first.processed, first.ms) == (first.cached, 0.0), "{told:?}");
    assert_eq!((last.processed, last.total), (total, total));
    assert!(told.is_sorted_by(|a, b| a.processed < b.processed && a.ms <= b.ms), "{told:?}");
}

/// The text that an engine answers.
fn said(engine: &engine::Engine, raw: RawRequest) -> String {
    ask(engine, raw).answers[0].text.clone()
}

#[test]
fn words_and_tokens_that_are_not_wanted_are_not_drawn() {
    let engine = start(&options());
    let free = said(&engine, greedy("Once upon a time there was", 40));
    let word = free.split(|c: char| !c.is_alphabetic()).find(|word| word.len() > 3).expect("a word");
    let without = RawRequest { bad_words: vec![word.to_owned()], ..greedy("Once upon a time there was", 40) };
    let without = said(&engine, without);
    assert!(!without.split(|c: char| !c.is_alphabetic()).any(|other| other == word), "{word}: {without}");
    // Up to where it would have come the answers are the same.
    let at = free.find(word).expect("it was found in it");
    assert_eq!(without[..at], free[..at]);

    let tokenizer = engine.model().tokenizer.clone().expect("it has one");
    let ids: Vec<i64> = tokenizer.encode_plain("abc").expect("a text").into_iter().map(i64::from).collect();
    let raw = RawRequest { allowed_token_ids: Some(ids.clone()), ignore_eos: true, ..greedy("The fox", 12) };
    let outcome = ask(&engine, raw);
    assert_eq!(outcome.answers[0].tokens.len(), 12);
    assert!(outcome.answers[0].tokens.iter().all(|&token| ids.contains(&i64::from(token))), "{:?}", outcome.answers[0]);
}

#[test]
fn of_a_long_prompt_its_end_is_read() {
    let engine = start(&options());
    let context = engine.model().max_model_len;
    let tokens = |count: usize| Prompt::Tokens((0..count).map(|at| 5 + at as i64 % 90).collect());
    let ends = |raw: RawRequest| engine.validate(raw).expect("it fits").prompt().to_vec();
    let whole = ends(RawRequest::new(tokens(40)));
    for (last, kept) in [(1, 1), (7, 7), (40, 40), (1000, 40), (-1, 40)] {
        let raw = RawRequest { truncate_prompt_tokens: Some(last), ..RawRequest::new(tokens(40)) };
        assert_eq!(ends(raw), whole[40 - kept..], "the last {last}");
    }
    // What fits beside the answer that is wanted.
    for (max_tokens, kept) in [(None, context - 1), (Some(10), context - 10), (Some(1 << 40), 1)] {
        let raw = RawRequest {
            truncate_prompt_tokens: Some(-1),
            max_tokens,
            cut_max_tokens: true,
            ..RawRequest::new(tokens(3 * context))
        };
        assert_eq!(ends(raw).len(), kept, "{max_tokens:?}");
    }
    assert!(engine.validate(RawRequest::new(tokens(3 * context))).is_err());
    let long = RawRequest { truncate_prompt_tokens: Some(5), ..RawRequest::new(Prompt::Text("fox ".repeat(200_000))) };
    assert_eq!(ends(long).len(), 5);
    let mut long = chat(vec![engine::ChatMessage::new("user", "fox ".repeat(200_000))]);
    long.truncate_prompt_tokens = Some(5);
    assert_eq!(ends(long).len(), 5);
}

#[test]
fn log_probabilities_may_be_of_named_tokens_or_of_all() {
    let engine = start(&options());
    let vocabulary = engine.model().config.vocab_size;
    let of = |raw: RawRequest| -> Vec<engine::TokenLogprob> {
        let mut stream = engine.submit(engine.validate(raw).expect("a valid request")).expect("the queue has room");
        let outputs = std::iter::from_fn(|| stream.blocking_recv());
        outputs.filter_map(|output| if let Event::Token { logprob, .. } = output { logprob } else { None }).collect()
    };
    let all = of(RawRequest { logprobs: Some(-1), max_logprobs: -1, ..greedy("The fox", 3) });
    let named = vec![400, 3, 17];
    let some = of(RawRequest { logprobs: Some(0), logprob_token_ids: named.clone(), ..greedy("The fox", 3) });
    assert_eq!((all.len(), some.len()), (3, 3));
    for (all, some) in all.iter().zip(&some) {
        assert_eq!((all.token, all.logprob), (some.token, some.logprob));
        let mut ids: Vec<u32> = all.top.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..vocabulary as u32).collect::<Vec<_>>());
        assert!(all.top.is_sorted_by(|a, b| a.1 >= b.1));
        let sum: f64 = all.top.iter().map(|&(_, logprob)| f64::from(logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        let of_all = |id: i64| *all.top.iter().find(|(other, _)| i64::from(*other) == id).expect("each is there");
        assert_eq!(some.top, named.iter().map(|&id| of_all(id)).collect::<Vec<_>>());
    }
}
