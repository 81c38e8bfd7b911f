//! Runs that were recorded by an earlier build: the same steps, and with the model the same tokens.

use crate::common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use common::{gather, greedy, options, start};
use engine::{AccumulationOrder, Drafters, EngineOptions, RawRequest, Rule, Speculation, WeightClass};
use replay::{Recording, replay, replay_with_model};

/// A kind of run: what the engine is started with, and what is special about its requests.
type Run = (&'static str, fn(EngineOptions) -> EngineOptions, fn(&mut RawRequest));

const RUNS: [Run; 5] = [
    ("plain", |options| options, |raw| raw.sampling.temperature = Some(0.7)),
    (
        "preempted",
        |options| EngineOptions { kv_cache_bytes: Some(2 << 20), ..options },
        |raw| raw.max_tokens = Some(90),
    ),
    ("guessed", |options| EngineOptions { speculation: Speculation::By(Drafters::default()), ..options }, |_| {}),
    (
        "ruled",
        |options| EngineOptions { weights: WeightClass::Int8, ..options },
        |raw| (raw.rule, raw.n) = (Some(Rule::Regex("[a-z ]{0,40}[.]".into())), Some(2)),
    ),
    (
        "tenants",
        |options| EngineOptions { is_shared: true, weights: WeightClass::Int4, ..options },
        |raw| raw.tenant = raw.seed.map(|seed| [seed as u8 % 3; 32]),
    ),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("{name}.jsonl"))
}

/// Records a run of a dozen requests, some of which leave.
fn record((name, engine, request): Run) {
    let _ = std::fs::remove_file(file(name));
    let options = EngineOptions {
        arithmetic: Some(AccumulationOrder::Vdpbf16),
        max_num_seqs: 6,
        max_num_batched_tokens: 64,
        max_model_len: Some(512),
        record: Some(file(name)),
        ..options()
    };
    let engine = start(&engine(options));
    let ask = |index: i64| {
        let story = "Once upon a time there was a fox who lived beside a quiet river. ".repeat(1 + index as usize % 4);
        let mut raw = greedy(&format!("{story} Part {index}:"), 20 + 2 * index);
        (raw.seed, raw.logprobs) = (Some(index), Some(1));
        request(&mut raw);
        let request = engine.validate(raw).expect("valid");
        (request.num_answers(), engine.submit(request).expect("room"))
    };
    let streams: Vec<_> = (0..12).map(ask).collect();
    for (index, (answers, mut stream)) in streams.into_iter().enumerate() {
        if index % 5 == 4 {
            stream.blocking_recv();
        } else {
            gather(stream, answers);
        }
    }
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));
}

#[test]
fn runs_that_an_earlier_build_recorded_give_the_same_steps_and_tokens() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let checkpoint = Checkpoint::open(Source::Directory(model)).expect("the shipped model opens");
    for run in RUNS {
        let (name, ..) = run;
        if std::env::var_os("TWOSTROKE_WRITE_BITS").is_some() {
            record(run);
        }
        let open = || Recording::open(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let replayed = replay(open(), &mut |_| {}).expect("it can be replayed");
        assert_eq!(replayed.difference, None, "{name}: the scheduler decides otherwise");
        assert!(replayed.steps > 20 && replayed.tokens > 100, "{name}: there is something to compare: {replayed:?}");
        if name == "preempted" || name == "plain" || testing::is_long() {
            let options = EngineOptions { threads: Some(1), ..options() };
            let computed = replay_with_model(open(), &checkpoint, &options, &mut |_| {}).expect("it can be computed");
            assert_eq!(computed, replayed, "{name}: other tokens");
        }
    }
}
