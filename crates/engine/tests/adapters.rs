//! Requests through adapters: the answers of each are its own, whatever runs beside it and whatever was computed
//! before; adapters come and go while others are served.

use crate::common;
#[path = "../../model/tests/common/adapters.rs"]
pub(crate) mod files;

use std::path::{Path, PathBuf};

use common::*;
use engine::{AdapterError, Drafters, Engine, EngineOptions, Event, Observe, Prompt, RawRequest, Speculation};
use files::{Files, adapter, write_in};
use model::{AdapterRoom, ModelConfig};
use testing::Scratch;

const PROMPT: &str =
    "The lantern was lit, and the keeper of the lighthouse told the story of the ship that came too late";

fn config() -> ModelConfig {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    ModelConfig::load(&checkpoint::Checkpoint::open(checkpoint::Source::Directory(directory)).unwrap()).unwrap()
}

/// Loud ones: their answers differ from the first token on.
pub(crate) fn some(seed: u64) -> Files {
    adapter(&config(), seed, 8, 24.0, &[])
}

pub(crate) fn with_room(slots: usize, adapters: Vec<(String, PathBuf)>) -> EngineOptions {
    EngineOptions { adapters, adapter_room: AdapterRoom { slots, max_rank: 16 }, ..options() }
}

pub(crate) fn through(adapter: Option<&str>, raw: RawRequest) -> RawRequest {
    RawRequest { adapter: adapter.map(str::to_owned), ..raw }
}

/// An engine with two adapters, named.
fn engine_with_two(place: &Scratch, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let named = [("a", 1), ("b", 2)].map(|(name, seed)| (name.to_string(), write_in(place, name, &some(seed))));
    let mut options = with_room(2, named.to_vec());
    change(&mut options);
    start(&options)
}

const WHO: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// What each says alone, on an engine with an empty cache and no other request.
fn alone(place: &Scratch, raw: &RawRequest) -> [Answer; 3] {
    WHO.map(|adapter| {
        let engine = engine_with_two(place, |options| options.enable_prefix_caching = false);
        ask(&engine, through(adapter, raw.clone())).answers.remove(0)
    })
}

#[test]
fn answers_are_the_adapters_own_in_any_batch() {
    let place = Scratch::new("engine-beside");
    let raw = greedy(PROMPT, 24);
    let expected = alone(&place, &raw);
    let plain = ask(&start(&options()), raw.clone()).answers.remove(0);
    assert_eq!(expected[0], plain, "without an adapter as on an engine without room for any");
    assert!(expected[0].tokens != expected[1].tokens && expected[1].tokens != expected[2].tokens);

    let engine = engine_with_two(&place, |options| options.max_num_batched_tokens = 40);
    let streams: Vec<_> = (0..12)
        .map(|index| {
            let request = engine.validate(through(WHO[index % 3], raw.clone())).unwrap();
            (index % 3, engine.submit(request).unwrap())
        })
        .collect();
    for (who, stream) in streams {
        assert_eq!(gather(stream, 1).answers[0], expected[who], "{:?} beside the others", WHO[who]);
    }
}

/// A long prompt that all three have: each computes it once, and finds its own blocks the second time.
#[test]
fn no_block_of_the_cache_is_shared_between_adapters() {
    let place = Scratch::new("engine-cache");
    let raw = greedy(&PROMPT.repeat(6), 8);
    let expected = alone(&place, &raw);
    let engine = engine_with_two(&place, |_| {});
    for round in 0..2 {
        for (who, adapter) in WHO.iter().enumerate() {
            let outcome = ask(&engine, through(*adapter, raw.clone()));
            assert_eq!(outcome.answers[0], expected[who], "{adapter:?}, round {round}");
            let cached = outcome.usage.cached_tokens;
            assert_eq!(cached > 0, round == 1, "{adapter:?} found {cached} tokens in round {round}");
        }
    }
}

/// Repeated answers are drafted from earlier ones of the same adapter, and never change.
#[test]
fn drafts_change_no_answer_of_an_adapter() {
    let place = Scratch::new("engine-drafts");
    let raw = greedy(PROMPT, 40);
    let expected = alone(&place, &raw);
    let engine = engine_with_two(&place, |options| options.speculation = Speculation::By(Drafters::default()));
    for round in 0..3 {
        for (who, adapter) in WHO.iter().enumerate() {
            let outcome = ask(&engine, through(*adapter, raw.clone()));
            assert_eq!(outcome.answers[0], expected[who], "{adapter:?}, round {round}");
        }
    }
}

#[test]
fn blocks_that_were_swapped_out_come_back_to_their_own() {
    let place = Scratch::new("engine-swap");
    let raw = greedy(&PROMPT.repeat(4), 8);
    let expected = alone(&place, &raw);
    let engine = engine_with_two(&place, |options| {
        options.kv_cache_bytes = Some(12 << 20);
        options.kv_swap_bytes = 64 << 20;
    });
    for round in 0..3 {
        for (who, adapter) in WHO.iter().enumerate() {
            let outcome = ask(&engine, through(*adapter, raw.clone()));
            assert_eq!(outcome.answers[0], expected[who], "{adapter:?}, round {round}");
        }
    }
}

#[test]
fn adapters_come_and_go_while_others_are_served() {
    let place = Scratch::new("engine-churn");
    let raw = greedy(PROMPT, 16);
    let expected = alone(&place, &raw);
    let engine = start(&with_room(2, vec![("a".to_string(), place.join("a"))]));
    let long = |adapter| engine.submit(engine.validate(through(adapter, greedy(PROMPT, 300))).unwrap()).unwrap();
    let (plain, own) = (long(None), long(Some("a")));
    for round in 0..4 {
        // Under one name, in turns: what is in the cache of the one is nothing to the other.
        let (from, who) = if round % 2 == 0 { ("b", 2) } else { ("a", 1) };
        engine.load_adapter("turns", &place.join(from)).unwrap();
        let outcome = ask(&engine, through(Some("turns"), raw.clone()));
        assert_eq!(outcome.answers[0], expected[who], "round {round}");
        unload_when_unused(&engine, "turns");
    }
    let (plain, own) = (gather(plain, 1), gather(own, 1));
    assert_eq!(plain.answers[0].tokens[..16], expected[0].tokens, "the model's own, all the while");
    assert_eq!(own.answers[0].tokens[..16], expected[1].tokens, "a's own, all the while");
}

/// A request that has ended for its client lets go of its adapter soon after.
fn unload_when_unused(engine: &Engine, name: &str) {
    wait("the adapter to be unused", || match engine.unload_adapter(name) {
        Err(AdapterError::InUse { .. }) => false,
        other => other.map(|()| true).unwrap(),
    });
}

#[test]
fn an_adapter_stays_as_long_as_a_request_has_it() {
    let place = Scratch::new("engine-use");
    let engine = engine_with_two(&place, |_| {});
    assert!(now(engine.pause()));
    let waits = engine.validate(through(Some("a"), greedy(PROMPT, 4))).unwrap();
    assert_eq!(
        engine.unload_adapter("a").unwrap_err().to_string(),
        "the adapter 'a' is in use by 1 requests: unload it when they have ended",
        "a validated one has it"
    );
    let stream = engine.submit(waits).unwrap();
    let listed = |engine: &Engine| {
        let adapters = engine.model().adapters.list().into_iter();
        adapters.map(|it| (it.name, it.waiting, it.running)).collect::<Vec<_>>()
    };
    assert_eq!(listed(&engine), [("a".to_string(), 1, 0), ("b".to_string(), 0, 0)]);
    assert!(matches!(engine.unload_adapter("a"), Err(AdapterError::InUse { .. })));
    now(engine.resume());
    assert_eq!(gather(stream, 1).answers[0].tokens.len(), 4);
    unload_when_unused(&engine, "a");
    assert_eq!(listed(&engine), [("b".to_string(), 0, 0)]);
    let rejection = engine.validate(through(Some("a"), greedy(PROMPT, 4))).unwrap_err();
    assert_eq!((rejection.param, rejection.code), (Some("model"), Some("model_not_found")));
}

#[test]
fn who_leaves_lets_go() {
    let place = Scratch::new("engine-leave");
    let engine = engine_with_two(&place, |_| {});
    let mut stream = engine.submit(engine.validate(through(Some("b"), greedy(PROMPT, 400))).unwrap()).unwrap();
    assert!(matches!(stream.blocking_recv(), Some(Event::Token { .. })));
    drop(stream);
    unload_when_unused(&engine, "b");
}

#[test]
fn what_cannot_be_loaded_leaves_everything_as_it_was() {
    let place = Scratch::new("engine-bad");
    let engine = engine_with_two(&place, |options| options.adapter_room.slots = 3);
    let wide = write_in(&place, "wide", &adapter(&config(), 1, 17, 8.0, &["q_proj"]));
    let load = |name: &str, path: &Path| engine.load_adapter(name, path).unwrap_err().to_string();
    assert_eq!(load("a", &place.join("b")), "the adapter 'a' is loaded already");
    for name in ["", "two\nlines", "a,b", &"x".repeat(257)] {
        assert!(load(name, &place.join("b")).starts_with("the name of an adapter has 1 to 256 bytes"), "{name}");
    }
    assert_eq!(
        load("wide", &wide),
        format!(
            "adapter 'wide' ({}): adapter_config.json: r: 17; ranks from 1 to 16 are served; --max-lora-rank allows more",
            wide.display()
        )
    );
    assert!(load("nowhere", Path::new("/nowhere")).contains("/nowhere: no such directory"));
    // The slot that failed is free.
    engine.load_adapter("c", &place.join("b")).unwrap();
    assert_eq!(load("d", &place.join("b")), "3 adapters are loaded, as many as --max-loras allows: unload one first");
    assert_eq!(engine.unload_adapter("d").unwrap_err().to_string(), "there is no adapter 'd'");
    let none = start(&options());
    let why = none.load_adapter("a", &place.join("a")).unwrap_err().to_string();
    assert_eq!(why, "this server has no room for adapters: --max-loras sets how many there may be");
}

#[test]
fn an_engine_starts_with_all_its_adapters_or_not_at_all() {
    let place = Scratch::new("engine-start");
    let good = write_in(&place, "good", &some(1));
    let named = |names: &[&str]| names.iter().map(|name| (name.to_string(), good.clone())).collect::<Vec<_>>();
    let table = [
        (with_room(1, named(&["a", "b"])), "1 adapters are loaded, as many as --max-loras allows"),
        (with_room(2, named(&["a", "a"])), "the adapter 'a' is loaded already"),
        (with_room(1, vec![("a".to_string(), "/nowhere".into())]), "adapter 'a' (/nowhere): /nowhere"),
        (with_room(2000, Vec::new()), "--max-loras: at most 1024"),
        (
            EngineOptions { record: Some(place.join("run.jsonl")), ..with_room(1, Vec::new()) },
            "--record: a recording does not hold adapters",
        ),
    ];
    for (options, why) in table {
        let found = refused(&options);
        assert!(found.starts_with(why), "{found}");
    }
}

#[test]
fn receipts_are_the_models_alone() {
    let place = Scratch::new("engine-receipts");
    let engine = engine_with_two(&place, |options| options.spot_check = 1.0);
    let raw = RawRequest { receipt: true, ..greedy(PROMPT, 4) };
    let rejection = engine.validate(through(Some("a"), raw.clone())).unwrap_err();
    assert_eq!(rejection.param, Some("receipt"));
    assert!(engine.validate(raw).is_ok());
    // Nothing is computed again with another model than it was computed with.
    for adapter in WHO {
        ask(&engine, through(adapter, greedy(PROMPT, 6)));
    }
    wait("the check", || engine.stats().spot_checks.equal > 0);
    let checks = engine.stats().spot_checks;
    assert_eq!((checks.equal, checks.different), (1, 0), "{checks:?}");
}

/// Token ids and vectors go through adapters as answers do.
#[test]
fn vectors_are_the_adapters_own() {
    let place = Scratch::new("engine-vectors");
    let engine = engine_with_two(&place, |_| {});
    let raw = || RawRequest { max_tokens: Some(0), embed: true, ..RawRequest::new(Prompt::Text(PROMPT.to_string())) };
    let vectors = WHO.map(|adapter| ask(&engine, through(adapter, raw())).embedding);
    assert!(!vectors[0].is_empty() && vectors[0] != vectors[1] && vectors[1] != vectors[2]);
    assert_eq!(vectors, WHO.map(|adapter| ask(&engine, through(adapter, raw())).embedding));
}
