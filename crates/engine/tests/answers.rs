//! One token, one answer: whatever else the engine does at the same time, a request's tokens are those of its solo run.

use crate::common;

use common::{Outcome, ask, assert_same, at_once, greedy, options, start, wait_until_quiet};
use engine::{Engine, EngineOptions, Prompt, RawRequest, SamplingParams};

/// Requests of many lengths and kinds; some share a prefix.
fn workload() -> Vec<RawRequest> {
    let prefix = "Once upon a time there was a fox who lived beside a quiet river. ".repeat(6);
    let mut requests = Vec::new();
    for index in 0..12i64 {
        let prompt = match index % 3 {
            0 => format!("{prefix} The fox met friend number {index}."),
            1 => format!("Story {index}: ") + &"a lantern in the window. ".repeat(index as usize),
            _ => format!("Number {index}"),
        };
        let mut request = greedy(&prompt, 16 + 8 * index);
        if index % 4 == 1 {
            request.sampling.temperature = Some(0.9);
            request.seed = Some(index);
            request.sampling.top_p = Some(0.95);
            request.sampling.repetition_penalty = Some(1.1);
        }
        if index % 5 == 2 {
            request.n = Some(3);
            request.sampling.temperature = Some(1.0);
            request.seed = Some(100 + index);
        }
        request.logprobs = Some(0);
        requests.push(request);
    }
    requests
}

fn solo(engine: &Engine) -> Vec<Outcome> {
    workload().into_iter().map(|raw| ask(engine, raw)).collect()
}

#[test]
fn answers_do_not_depend_on_company_chunks_cache_pressure_or_threads() {
    let base = EngineOptions { enable_prefix_caching: false, ..options() };
    let blocks = |n: u64| n * 32 * start(&base).model().kv_bytes_per_token as u64;
    // Small rows and chunks, and one thread, are in other tests too: a quick run has the first of four.
    answers_do_not_depend_on(
        4,
        vec![
            ("in company", base.clone()),
            ("rows of 16", EngineOptions { max_num_batched_tokens: 16, ..options() }),
            ("chunks of 7", EngineOptions { max_prefill_chunk: Some(7), ..options() }),
            ("chunks of 1", EngineOptions { max_prefill_chunk: Some(1), ..options() }),
            ("prefix cache", options()),
            ("one prompt at a time", EngineOptions { max_prefill_seqs: 1, ..options() }),
            ("blocks of 64", EngineOptions { block_size: 64, ..options() }),
            ("one thread", EngineOptions { threads: Some(1), ..options() }),
            ("few blocks", EngineOptions { kv_cache_bytes: Some(blocks(12)), max_model_len: Some(384), ..options() }),
        ],
    );
}

#[test]
fn answers_with_an_int8_cache_do_not_depend_on_company_chunks_or_cache_pressure() {
    let int8 = EngineOptions { kv_dtype: kernels::KvDtype::Int8, ..options() };
    let bytes = |options: &EngineOptions| start(options).model().kv_bytes_per_token as u64;
    assert!(bytes(&int8) < bytes(&options()) * 6 / 10, "half the memory, and the scales");
    let few = Some(12 * 32 * bytes(&int8));
    answers_do_not_depend_on(
        2,
        vec![
            ("in company", EngineOptions { enable_prefix_caching: false, ..int8.clone() }),
            ("prefix cache", int8.clone()),
            ("few blocks", EngineOptions { kv_cache_bytes: few, max_model_len: Some(384), ..int8.clone() }),
            ("chunks of 7", EngineOptions { max_prefill_chunk: Some(7), ..int8 }),
        ],
    );
}

/// All give the answers that the first gives to each request alone; in a quick run each `n`th.
fn answers_do_not_depend_on(n: usize, cases: Vec<(&str, EngineOptions)>) {
    let want = solo(&start(&cases[0].1));
    for (what, options) in testing::part_of(cases, n) {
        let engine = start(&options);
        assert_same(what, &at_once(&engine, workload()), &want);
        // A second time: prompts are now in the prefix cache, if there is one.
        if testing::is_long() || options.enable_prefix_caching {
            assert_same(what, &at_once(&engine, workload()), &want);
        }
        wait_until_quiet(&engine);
        if what == "few blocks" {
            assert!(engine.stats().preemptions > 0, "the case must press the cache to mean anything");
        }
        if what == "prefix cache" {
            assert!(engine.stats().prefix_hits > 0, "the case must hit the cache to mean anything");
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_answers() {
    for arithmetic in kernels::AccumulationOrder::ALL {
        let mut want: Option<Vec<Outcome>> = None;
        for isa in kernels::Isa::available() {
            let (isa, arithmetic) = (Some(isa), Some(arithmetic));
            let engine = start(&EngineOptions { isa, arithmetic, max_num_seqs: 8, ..options() });
            let raw = |prompt: &str| RawRequest { logprobs: Some(0), ..greedy(prompt, 8) };
            let got = vec![ask(&engine, raw("Tell me a story about a fox.")), ask(&engine, raw("7 + 8 ="))];
            match &want {
                None => want = Some(got),
                Some(want) => _ = assert_same(&format!("{isa:?}, {arithmetic:?}"), &got, want),
            }
        }
    }
}

#[test]
fn a_full_prefix_hit_reports_its_cached_tokens() {
    let engine = start(&options());
    let prompt = Prompt::Tokens((0..200).map(|id| 20 + id % 50).collect());
    let raw = RawRequest { max_tokens: Some(4), sampling: SamplingParams::at(0.0), ..RawRequest::new(prompt) };
    let cold = ask(&engine, raw.clone());
    let warm = ask(&engine, raw);
    assert_eq!(cold.usage.cached_tokens, 0);
    // 200 tokens are six full blocks of 32; the last token is always computed.
    assert_eq!(warm.usage.cached_tokens, 192);
    assert_eq!(warm.timings.prefill_tokens, 8);
    assert_eq!(warm.answers, cold.answers);
}

#[test]
fn tenants_and_salts_do_not_share_blocks() {
    let engine = start(&options());
    let prompt = Prompt::Tokens(vec![42; 100]);
    let raw = RawRequest { max_tokens: Some(1), ..RawRequest::new(prompt) };
    let cached = |raw: &RawRequest| ask(&engine, raw.clone()).usage.cached_tokens;
    assert_eq!(cached(&raw), 0);
    assert_eq!(cached(&raw), 96);
    let other_tenant = RawRequest { tenant: Some([7; 32]), ..raw.clone() };
    assert_eq!(cached(&other_tenant), 0);
    let other_salt = RawRequest { cache_salt: Some("mine".into()), ..raw };
    assert_eq!(cached(&other_salt), 0);
    assert_eq!(cached(&other_salt), 96);
}

#[test]
fn the_phases_of_a_request_add_up() {
    let engine = start(&options());
    let outcome = ask(&engine, greedy(&"word ".repeat(200), 20));
    let timings = outcome.timings;
    assert!((timings.queue_ms + timings.prefill_ms - timings.ttft_ms).abs() < 1e-6, "{timings:?}");
    assert!(timings.ttft_ms + timings.decode_ms <= timings.total_ms + 1e-6, "{timings:?}");
    assert_eq!(timings.prefill_tokens, outcome.usage.prompt_tokens);
    assert_eq!(timings.decode_tokens, 19);
    assert_eq!(timings.decode_steps, 19);
    let records = engine.records(1000);
    let decode: usize = records.iter().map(|record| record.decode.len()).sum();
    let prefill: usize = records.iter().flat_map(|record| &record.prefill).map(|row| row.len).sum();
    assert_eq!((decode, prefill), (19, outcome.usage.prompt_tokens));
    let stats = engine.stats();
    assert_eq!(stats.time_to_first_token.count(), 1);
    assert_eq!(stats.inter_token_latency.count(), 19);
}
