//! The bits of the shipped model's answers, as digests in `data/bits.tsv`: of tokens, and of the logits that each was
//! drawn from. One line per precision, order of sums and kind of request; every way of serving must give that line.

use crate::common;

use std::net::SocketAddr;

use common::{options, start};
use engine::{
    AccumulationOrder, ClusterKey, DraftMethod, Drafters, Engine, EngineOptions, Event, HandoffOptions, KvDtype,
    LearnedDrafter, Prompt, RawRequest, Role, Rule, SamplingParams, Speculation, Stream, WeightClass,
};
use serde_json::json;
use testing::Golden;

/// A name, and what is special about the request.
type Kind = (&'static str, fn(&mut RawRequest));

/// Kinds of requests: sampling, rules, several answers.
const KINDS: [Kind; 8] = [
    ("greedy", |raw| raw.sampling.temperature = Some(0.0)),
    ("sampled", |raw| raw.sampling.temperature = Some(1.0)),
    ("top-p top-k min-p", |raw| {
        (raw.sampling.top_p, raw.sampling.top_k, raw.sampling.min_p) = (Some(0.9), Some(40), Some(0.02))
    }),
    ("penalties", |raw| {
        (raw.sampling.presence_penalty, raw.sampling.frequency_penalty, raw.sampling.repetition_penalty) =
            (Some(0.6), Some(0.3), Some(1.2));
    }),
    ("bias", |raw| raw.logit_bias = vec![(17, 3.0), (40, -2.0)]),
    ("four answers", |raw| raw.n = Some(4)),
    ("schema", |raw| {
        let number = json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 6});
        let schema = json!({"type": "object", "properties": {"keys": number, "tale": {"type": "string", "maxLength": 40}},
            "required": ["keys", "tale"], "additionalProperties": false});
        (raw.rule, raw.ignore_eos) = (Some(Rule::JsonSchema(schema)), false);
    }),
    ("stop", |raw| (raw.stop, raw.min_tokens) = (vec!["fox".to_owned(), "\n".to_owned()], Some(9))),
];

/// More than three blocks of prompt, so that there is something to share, to leave and to come back.
fn request(at: usize) -> (&'static str, RawRequest) {
    let (name, kind) = KINDS[at];
    let start = "A lantern in the window showed the fox the way home. ".repeat(9);
    let mut raw = RawRequest {
        max_tokens: Some(48),
        sampling: SamplingParams::at(0.8),
        ignore_eos: true,
        seed: Some(at as i64),
        receipt: true,
        ..RawRequest::new(Prompt::Text(format!("{start}Once upon a time, {at} of them")))
    };
    kind(&mut raw);
    (name, raw)
}

/// Digest of all answers: their tokens, and the digests of the rows that these were drawn from.
fn digest(mut stream: Stream) -> String {
    let mut answers = Vec::new();
    while let Some(output) = stream.blocking_recv() {
        match output {
            Event::Noted { answer, unsealed } => answers.push((answer, unsealed.tokens, unsealed.rows)),
            Event::Failed(error) => panic!("the request failed: {error}"),
            _ => {}
        }
    }
    answers.sort_by_key(|(answer, ..)| *answer);
    assert!(answers.iter().all(|(_, tokens, rows)| tokens.len() == rows.len() && !tokens.is_empty()));
    blake3::hash(format!("{answers:?}").as_bytes()).to_hex()[..32].to_owned()
}

/// The answers of all kinds, asked at the same time, under the name of `what` they are computed in.
fn take(golden: &mut Golden, what: &str, way: &str, engine: &Engine) {
    let submit = |at| {
        let (name, raw) = request(at);
        let request = engine.validate(raw).expect("a valid request");
        (name, engine.submit(request).expect("the queue has room"))
    };
    let streams: Vec<_> = (0..KINDS.len()).map(submit).collect();
    for (name, stream) in streams {
        golden.computed(&format!("{what} {name}"), way, digest(stream));
    }
}

fn learned(method: DraftMethod, name: &str) -> Speculation {
    let model = Some(format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR")));
    let learned = Some(LearnedDrafter { method, model, weights: None });
    Speculation::By(Drafters { lookup: None, learned, ..Drafters::default() })
}

/// Other ways to the same bits.
fn ways(options: &EngineOptions) -> Vec<(&'static str, EngineOptions)> {
    let with = |speculation| EngineOptions { speculation, ..options.clone() };
    let blocks = |count: u64| Some(count * 32 * start(options).model().kv_bytes_per_token as u64);
    vec![
        ("lookup", with(Speculation::By(Drafters::default()))),
        ("a draft model", with(learned(DraftMethod::DraftModel, "lantern-draft"))),
        ("Medusa heads", with(learned(DraftMethod::Medusa, "lantern-medusa"))),
        ("EAGLE-3", with(learned(DraftMethod::Eagle3, "lantern-eagle3"))),
        (
            "one thread, steps of 16 rows",
            EngineOptions { threads: Some(1), max_num_batched_tokens: 16, ..options.clone() },
        ),
        (
            "blocks that are swapped out",
            EngineOptions {
                kv_cache_bytes: blocks(14),
                kv_swap_bytes: 64 << 20,
                max_model_len: Some(384),
                ..options.clone()
            },
        ),
    ]
}

/// A worker that reads prompts, and one that answers.
fn split(options: &EngineOptions) -> (Engine, Engine) {
    let handoff = |listen, prefill_workers| {
        Some(HandoffOptions {
            role: Role::Both,
            role_may_change: false,
            listen,
            prefill_workers,
            key: ClusterKey::of(b"a key of these tests"),
            precisions: None,
        })
    };
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let reader = start(&EngineOptions { handoff: handoff(listen, Vec::new()), ..options.clone() });
    let address = reader.handoff_address().expect("it listens").to_string();
    let answers = start(&EngineOptions { handoff: handoff(None, vec![address]), ..options.clone() });
    (reader, answers)
}

#[test]
fn the_shipped_model_gives_the_bits_that_are_committed() {
    let mut golden = Golden::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bits.tsv"));
    let mut table = Vec::new();
    for weights in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
        for arithmetic in AccumulationOrder::ALL {
            for kv_dtype in [KvDtype::Bf16, KvDtype::Int8] {
                table.push((weights, arithmetic, kv_dtype));
            }
        }
    }
    for (at, (weights, arithmetic, kv_dtype)) in table.into_iter().enumerate() {
        // A quick run has one precision, in one order of sums.
        if !testing::is_long() && at != 0 {
            continue;
        }
        let what = format!("{weights:?} {} {kv_dtype:?}", arithmetic.name());
        let options = EngineOptions { weights, arithmetic: Some(arithmetic), kv_dtype, ..options() };
        take(&mut golden, &what, "plain", &start(&options));
        for (way, options) in testing::part_of(ways(&options).into_iter().filter(|_| at % 5 == 0), 3) {
            take(&mut golden, &what, way, &start(&options));
        }
        if at == 0 {
            let (reader, answers) = split(&options);
            take(&mut golden, &what, "a handoff", &answers);
            drop(reader);
        }
    }
    golden.close(testing::is_long());
}

/// A host that rounds up makes another number of 0.7 as it narrows it, and one that flushes denormals nothing of 1e-40.
#[test]
fn what_is_asked_for_is_read_the_same_in_any_host() {
    let engine = start(&options());
    let read = || {
        let (_, mut raw) = request(3);
        raw.sampling.temperature = Some(0.7);
        raw.sampling.min_p = Some(1e-40);
        raw.logit_bias = vec![(17, 0.1), (40, -0.3)];
        engine.validate(raw).expect("valid")
    };
    let odd = kernels::float_state::in_an_odd_host(read);
    assert_eq!(format!("{odd:?}"), format!("{:?}", read()));
}
