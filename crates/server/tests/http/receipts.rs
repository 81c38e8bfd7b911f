//! Receipts as clients get them, verified on every instruction set; and spot checks, of a sound machine and a sick one.

use std::path::Path;

use checkpoint::{Checkpoint, Source};
use engine::receipt::Receipt;
use engine::{EngineOptions, Isa, SpotChecked, Verifier};
use model::{Batch, Forward};
use serde_json::{Value, json};

use crate::host::{Host, local_server, small_engine, wait};
use crate::sick::{Illness, Sick};
use testing::{is_long, part_of};

/// The receipts of a whole answer or of a stream's events, by the index of their choice.
fn receipts(answers: &[Value]) -> Vec<Receipt> {
    let choices = answers.iter().flat_map(|answer| answer["choices"].as_array().expect("choices"));
    let mut found: Vec<(u64, Receipt)> = choices
        .filter(|choice| choice.get("receipt").is_some())
        .map(|choice| {
            assert!(choice["finish_reason"].is_string(), "it comes with the end: {choice}");
            let receipt = Receipt::of(choice["receipt"].clone()).expect("a receipt");
            (choice["index"].as_u64().expect("an index"), receipt)
        })
        .collect();
    found.sort_by_key(|&(index, _)| index);
    found.into_iter().map(|(_, receipt)| receipt).collect()
}

/// Computes all of them again, alone, on `isa`, `rows` at a time.
fn assert_equal(receipts: &[Receipt], isa: Isa, rows: usize) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the model of this repository");
    let options = EngineOptions {
        threads: Some(1),
        isa: Some(isa),
        max_num_seqs: 1,
        max_num_batched_tokens: rows,
        ..EngineOptions::default()
    };
    let longest = receipts.iter().map(|receipt| receipt.asked.prompt.len() + receipt.tokens.len()).max().unwrap();
    let definition = &receipts[0].definition;
    let mut verifier = Verifier::load(definition, longest, &checkpoint, &options, &mut |_| {}).expect("it loads");
    for (at, receipt) in receipts.iter().enumerate() {
        let verdict = verifier.verify(receipt).expect("the files are there");
        assert!(verdict.is_equal(), "receipt {at} on {isa:?}, {rows} rows: {verdict:?}");
    }
}

/// A cache with little room, in which requests push each other out.
fn crowded() -> EngineOptions {
    EngineOptions { kv_cache_bytes: Some(3 << 20), kv_swap_bytes: 1 << 20, ..small_engine() }
}

#[test]
fn every_answer_has_a_receipt_that_any_machine_verifies() {
    let host = Host::start();
    let messages = json!([{"role": "user", "content": "What is 17 + 25?"}]);
    let table = [
        ("/v1/chat/completions", json!({"messages": messages}), 1),
        ("/v1/chat/completions", json!({"messages": messages, "n": 3, "temperature": 1, "seed": -5}), 3),
        ("/v1/chat/completions", json!({"messages": messages, "temperature": 0, "logprobs": true}), 1),
        ("/v1/completions", json!({"prompt": ["The fox", "A lantern"], "n": 2, "max_tokens": 9, "logprobs": 2}), 4),
        ("/v1/completions", json!({"prompt": "The fox", "max_tokens": 60, "stop": ["the", " a"], "min_tokens": 3}), 1),
        (
            "/v1/completions",
            json!({"prompt": "The fox", "max_tokens": 60, "stop": ["zzz"], "repetition_penalty": 1.3}),
            1,
        ),
        (
            "/v1/completions",
            json!({"prompt": "Once", "max_tokens": 20, "top_k": 7, "top_p": 0.8, "min_p": 0.01, "presence_penalty": 0.5,
                "frequency_penalty": 0.25, "logit_bias": {"300": 4.5}, "ignore_eos": true, "seed": 9007199254740993i64}),
            1,
        ),
        ("/v1/chat/completions", json!({"messages": messages, "n": 2, "response_format": {"type": "json_object"}}), 2),
        ("/v1/completions", json!({"prompt": "The fox", "max_tokens": 60, "guided_regex": "[a-z ]{9,30}[0-9]"}), 1),
        ("/v1/completions", json!({"prompt": "The fox", "ignore_eos": true, "guided_choice": ["gold", "no"]}), 1),
        ("/v1/completions", json!({"prompt": [5, 6, 7], "max_tokens": 0, "prompt_logprobs": 0, "echo": true}), 1),
    ];
    let mut all = Vec::new();
    for (at, (path, mut body, number)) in table.into_iter().enumerate() {
        body["return_token_ids"] = json!(true);
        if is_long() || at % 4 == 0 {
            assert!(!host.ask(path, &body).to_string().contains("receipt"), "it was not asked for: {body}");
        }
        body["receipt"] = json!(true);
        let whole = host.ask(path, &body);
        let found = receipts(std::slice::from_ref(&whole));
        assert_eq!(found.len(), number, "{whole}");
        for (receipt, choice) in found.iter().zip(whole["choices"].as_array().unwrap()) {
            assert_eq!(json!(receipt.tokens), choice["token_ids"], "{body}");
            let prompt = choice.get("prompt_token_ids").unwrap_or(&whole["prompt_token_ids"]);
            assert_eq!(&json!(receipt.asked.prompt), prompt, "{body}");
            assert_eq!(receipt.model, "lantern");
        }
        let streamed = receipts(&host.stream(path, &body));
        assert_eq!(streamed.len(), number, "{body}");
        if !body["seed"].is_null() || body["temperature"] == 0 {
            let marks = |all: &[Receipt]| all.iter().map(|one| (one.seal, one.tokens.clone())).collect::<Vec<_>>();
            let seeded = !body["seed"].is_null();
            assert!(!seeded || marks(&streamed) == marks(&found), "the same request, the same receipt: {body}");
        }
        all.extend(found.into_iter().chain(streamed));
    }
    host.quiet();
    drop(host);
    // Plain loops take a hundred times as long: a quick run has two of the receipts computed by them, and half of all
    // by each of the others, which take turns.
    for (turn, isa) in Isa::available().into_iter().enumerate() {
        let (each, rows) = if isa == Isa::Scalar { (22, 64) } else { (2, 7) };
        let first = if is_long() { 0 } else { turn % 2 };
        let some: Vec<Receipt> = part_of(all[first..].iter().cloned(), each).collect();
        assert_equal(&some, isa, rows);
    }
}

#[test]
fn what_was_computed_in_a_crowd_is_computed_again_alone() {
    let host = Host::with(crowded(), local_server());
    let ask = |number: usize| {
        let prompt = "Once upon a time there was a fox. ".repeat(1 + number % 4 * 7);
        let body = json!({"prompt": prompt, "max_tokens": 100 + 10 * (number % 12), "ignore_eos": true, "receipt": true,
            "temperature": number % 3});
        receipts(&[host.ask("/v1/completions", &body)])
    };
    let now = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let all: Vec<Receipt> = std::thread::scope(|scope| {
        let ask = &ask;
        // All wait before the first step, so that they meet on a machine that is busy with other things too.
        assert!(now.block_on(host.engine.pause()));
        let threads: Vec<_> = (0..24).map(|number| scope.spawn(move || ask(number))).collect();
        wait("all to wait", || host.engine.health().open_requests == 24);
        now.block_on(host.engine.resume());
        threads.into_iter().flat_map(|thread| thread.join().expect("an answer")).collect()
    });
    let stats = host.engine.stats();
    assert!(stats.preemptions > 0 && stats.prefix_hits > 0, "it was no crowd: {stats:?}");
    drop(host);
    let isa = *Isa::available().iter().rfind(|&&isa| isa <= Isa::Avx2).expect("there is a plainest one");
    assert_equal(&all, isa, 100);
}

#[test]
fn a_receipt_is_wanted_or_not() {
    let host = Host::start();
    for body in [json!({"receipt": 1}), json!({"receipt": "yes"}), json!({"receipt": {}})] {
        let mut body = body;
        body["prompt"] = json!("The fox");
        let answer = host.post("/v1/completions", &body);
        assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, json!("receipt")), "{body}");
    }
}

fn checked(host: &Host, number: u64) -> SpotChecked {
    let sum = || {
        let SpotChecked { equal, different, dropped } = host.engine.stats().spot_checks;
        equal + different + dropped
    };
    wait("all checks to be done", || sum() == number);
    host.engine.stats().spot_checks
}

#[test]
fn spot_checks_find_a_sound_machine_sound_and_leave_the_cache_alone() {
    // An eighth of it is for checks: room for the longest answer here.
    let options = EngineOptions { spot_check: 1.0, kv_cache_bytes: Some(8 << 20), ..crowded() };
    let host = Host::with(options, local_server());
    let body = json!({"prompt": "Once upon a time there was a fox. ".repeat(9), "max_tokens": 40, "n": 2});
    let first = host.ask("/v1/completions", &body);
    let SpotChecked { equal, .. } = checked(&host, 2);
    assert_eq!(equal, 2);
    let again = host.ask("/v1/completions", &body);
    let cached = |answer: &Value| answer["timings"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached(&first) == 0 && cached(&again) >= 64, "the prompt is where it was: {}", again["timings"]);
    std::thread::scope(|scope| {
        for number in 0..24 {
            let host = &host;
            scope.spawn(move || {
                let prompt = "Once upon a time there was a fox. ".repeat(1 + number % 4 * 7);
                host.ask("/v1/completions", &json!({"prompt": prompt, "max_tokens": 30 + 5 * number}));
            });
        }
    });
    let SpotChecked { equal, different, .. } = checked(&host, 4 + 24);
    assert!(equal > 4 && different == 0, "{equal} equal, {different} different");
    let page = host.get("/metrics");
    assert!(page.text().contains(&format!("\ntwostroke_spot_checks_total{{result=\"equal\"}} {equal}\n")));
    host.quiet();
}

#[test]
fn spot_checks_find_a_bit_that_decode_alone_gets_wrong() {
    let around = |inner| Box::new(Sick { inner, illness: OneBit::default() }) as Box<dyn Forward>;
    let host = Host::around(EngineOptions { spot_check: 1.0, ..small_engine() }, local_server(), around);
    let ask = |max_tokens: usize| {
        host.ask("/v1/completions", &json!({"prompt": "The fox", "max_tokens": max_tokens, "ignore_eos": true}));
    };
    // The first token comes from a prompt, and prompts are sound here.
    ask(1);
    assert_eq!(checked(&host, 1), SpotChecked { equal: 1, different: 0, dropped: 0 });
    ask(5);
    assert_eq!(checked(&host, 2), SpotChecked { equal: 1, different: 1, dropped: 0 });
    host.quiet();
}

/// Where a pass has one row, one bit of one logit is wrong.
#[derive(Default)]
struct OneBit {
    num_rows: usize,
}

impl Illness for OneBit {
    fn before(&mut self, batch: &Batch) {
        self.num_rows = batch.num_rows();
    }

    fn logits(&mut self, _: usize, logits: &mut [f32]) {
        if self.num_rows == 1 {
            logits[123] = f32::from_bits(logits[123].to_bits() ^ 1);
        }
    }
}
