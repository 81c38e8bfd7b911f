//! Models whose layers have states: one token, one answer, through everything that moves, drops and restores a state.

use crate::common;

use common::{Outcome, ask, assert_same, at_once, options, start_family, wait, wait_until_quiet};
use engine::ledger::Owner;
use engine::{Drafters, EngineOptions, Prompt, RawRequest, SamplingParams, Speculation};
use testing::Dice;

/// Layers of linear attention between those of full attention; layers with keys and a state; states beside latents.
const FAMILIES: [&str; 5] = ["qwen3.5", "qwen3.5-moe", "qwen3-next", "falcon-h1", "kimi-linear"];

/// Prompts that share beginnings of many lengths, so that some are found up to a checkpoint and others are not.
fn workload() -> Vec<RawRequest> {
    let mut dice = Dice::new(7);
    let shared: Vec<i64> = (0..160).map(|_| dice.within(3..=127) as i64).collect();
    let request = |index: i64| {
        let mut prompt = shared[..20 + 17 * (index as usize % 9)].to_vec();
        prompt.extend((0..dice.within(1..=120)).map(|_| dice.within(3..=127) as i64));
        RawRequest {
            max_tokens: Some(64 + 9 * (index % 5)),
            sampling: SamplingParams::at(if index % 3 == 0 { 0.0 } else { 0.9 }),
            n: Some(if index % 4 == 1 { 3 } else { 1 }),
            seed: Some(index),
            ignore_eos: true,
            logprobs: Some(0),
            ..RawRequest::new(Prompt::Tokens(prompt))
        }
    };
    (0..16).map(request).collect()
}

fn small() -> EngineOptions {
    EngineOptions { max_model_len: Some(384), ..options() }
}

#[test]
fn answers_of_models_with_states_do_not_depend_on_what_becomes_of_the_states() {
    for (turn, family) in FAMILIES.into_iter().enumerate() {
        let base = small();
        let apart = EngineOptions { enable_prefix_caching: false, ..base.clone() };
        let engine = start_family(family, &apart);
        let want: Vec<Outcome> = workload().into_iter().map(|raw| ask(&engine, raw)).collect();
        let bytes = |blocks: u64| Some(blocks * 32 * engine.model().kv_bytes_per_token as u64);
        let few = EngineOptions { kv_cache_bytes: bytes(26), ..base.clone() };
        let drafts = Speculation::By(Drafters { max_drafts: 5, ..Drafters::default() });
        let cases = [
            ("in company", apart),
            ("prefix cache", base.clone()),
            ("chunks of 7", EngineOptions { max_prefill_chunk: Some(7), ..base.clone() }),
            ("few blocks", few.clone()),
            ("few blocks, swap", EngineOptions { kv_swap_bytes: bytes(40).expect("some"), ..few.clone() }),
            ("drafts", EngineOptions { speculation: drafts.clone(), ..base.clone() }),
            ("drafts, few blocks", EngineOptions { speculation: drafts, ..few }),
            ("one thread", EngineOptions { threads: Some(1), max_num_batched_tokens: 16, ..base.clone() }),
            ("experts read", EngineOptions { expert_memory: Some(20_000), ..base }),
        ];
        let has_experts = engine.model().config.experts.is_some();
        let cases = cases.into_iter().filter(|(what, _)| has_experts || *what != "experts read").enumerate();
        // A quick run has every case for one or two families.
        let in_turn = cases.filter(|(at, _)| testing::is_long() || (at + turn) % 3 == 0);
        for (_, (what, options)) in in_turn {
            let what = format!("{family}, {what}");
            let engine = start_family(family, &options);
            for _ in 0..2 {
                assert_same(&what, &at_once(&engine, workload()), &want);
            }
            wait_until_quiet(&engine);
            let stats = engine.stats();
            let (_, states) = stats.states.expect("it has states");
            assert_eq!(states.held, 0, "{what}: every slot comes back");
            if what.contains("few blocks") {
                assert!(stats.preemptions > 0, "{what}: the case must press the cache to mean anything");
            }
            if what.contains("drafts") {
                assert!(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.drafted_tokens, "{what}: of both");
            }
            let reads = what.ends_with("experts read");
            assert_eq!(stats.experts.count > 0, reads, "{what}");
            let [ttft, gaps] = [&stats.owners.ttft, &stats.owners.gaps].map(|of| of.of(Owner::ExpertReads).0 > 0);
            assert_eq!([ttft, gaps], [reads; 2], "{what}: the time has an owner");
            if what.ends_with("prefix cache") {
                assert!(stats.prefix_hits > 1000 && states.kept > 0, "{what}: the case must hit the cache");
            }
        }
    }
}

#[test]
fn a_chat_goes_on_from_the_state_of_its_last_turn() {
    let engine = start_family("qwen3.5", &small());
    let mut dice = Dice::new(3);
    let mut tokens: Vec<i64> = (0..200).map(|_| dice.within(3..=127) as i64).collect();
    let mut found = Vec::new();
    for _ in 0..3 {
        let raw = RawRequest {
            max_tokens: Some(40),
            sampling: SamplingParams::at(0.0),
            ignore_eos: true,
            ..RawRequest::new(Prompt::Tokens(tokens.clone()))
        };
        let outcome = ask(&engine, raw);
        found.push(outcome.usage.cached_tokens);
        tokens.extend(outcome.answers[0].tokens.iter().map(|&token| i64::from(token)));
        tokens.extend((0..10).map(|_| dice.within(3..=127) as i64));
    }
    // The last token of an answer is not computed: what is found are the full blocks before it.
    assert_eq!(found, [0, 224, 288]);
}

#[test]
fn answers_of_models_with_states_are_computed_again_to_the_same_bits() {
    let engine = start_family("qwen3.5", &EngineOptions { spot_check: 1.0, ..small() });
    for raw in workload().into_iter().take(3) {
        ask(&engine, raw);
    }
    wait("the answers to be computed again", || {
        let checks = engine.stats().spot_checks;
        checks.equal + checks.different >= 3
    });
    assert_eq!(engine.stats().spot_checks.different, 0);
}
