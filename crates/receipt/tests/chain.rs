//! Every change to a receipt is detected.

use protocol::sampling::Sampling;
use receipt::{
    AnswerEnd, Asked, Cause, Computed, ComputedRow, Definition, Digest, Discrepancy, Provenance, Receipt,
    SamplingTerms, StopTerms, Unsealed, Verdict, judge,
};
use serde_json::{Value, json};

const TOKENS: [u32; 6] = [7, 11, 7, 3, 19, 2];

/// The row behind a history, in a model whose logits are a function of it.
fn row(weights: u64, history: &[u32]) -> Digest {
    let hash = history
        .iter()
        .fold(weights, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    let logits: Vec<f32> = (0..100u64).map(|id| (hash.wrapping_mul(2 * id + 1) >> 40) as f32).collect();
    Digest::of_row(&logits)
}

fn rows(weights: u64, prompt: &[u32], tokens: &[u32]) -> Vec<Digest> {
    (0..tokens.len()).map(|at| row(weights, &[prompt, &tokens[..at]].concat())).collect()
}

fn basis() -> Provenance {
    let definition = Definition {
        engine: "twostroke-0.1.0".into(),
        arithmetic: "pairs".into(),
        weights: "bf16".into(),
        as_stored: false,
        kv: "bf16".into(),
        layout: 7,
    };
    Provenance { model: "a model".into(), weights: Digest([1; 32]), config: Digest([2; 32]), definition }
}

fn asked() -> Asked {
    let params = Sampling {
        temperature: 0.7,
        top_p: 0.95,
        top_k: 40,
        min_p: 0.05,
        presence_penalty: 0.1,
        frequency_penalty: -0.3,
        repetition_penalty: 1.1,
        logit_bias: vec![(5, -1.5)],
        ..Sampling::default()
    };
    let sampling = SamplingTerms { params, seed: u64::MAX - 1, answer: 1 };
    let stop = StopTerms {
        max_tokens: 20,
        min_tokens: 2,
        token_ids: vec![2],
        strings: vec!["the \"end\"\n".into()],
        include_string: false,
        skip_special: true,
        shown: Vec::new(),
    };
    Asked { prompt: vec![4, 5, 6], sampling, stop, rule: None }
}

fn made() -> Receipt {
    let rows = rows(1, &asked().prompt, &TOKENS);
    Unsealed { asked: asked(), tokens: TOKENS.to_vec(), rows, end: AnswerEnd::StopToken }.seal(basis())
}

/// The recomputation of an honest verifier: each row of the claimed tokens gives the sampled token of then.
fn computed(receipt: &Receipt) -> Computed {
    let honest = rows(1, &asked().prompt, &TOKENS);
    let rows: Vec<ComputedRow> = rows(1, &receipt.asked.prompt, &receipt.tokens)
        .into_iter()
        .map(|logits| {
            let known = honest.iter().position(|&other| other == logits);
            ComputedRow { logits, token: Some(known.map_or(99, |at| TOKENS[at])) }
        })
        .collect();
    let end = receipt.tokens.iter().position(|&token| token == 2).map(|at| (at + 1, AnswerEnd::StopToken));
    Computed { basis: basis(), rows, end }
}

fn verdict(receipt: &Receipt) -> Verdict {
    judge(receipt, &computed(receipt))
}

fn changed(change: impl FnOnce(&mut Value)) -> Receipt {
    let mut json = serde_json::to_value(made()).unwrap();
    change(&mut json);
    Receipt::of(json).expect("it is still a receipt")
}

#[test]
fn an_honest_receipt_is_equal_and_survives_its_json() {
    let receipt = made();
    assert_eq!(verdict(&receipt), Verdict::default());
    let text = serde_json::to_string(&receipt).unwrap();
    assert_eq!(Receipt::of(serde_json::from_str(&text).unwrap()).unwrap(), receipt);
    assert!(text.contains(&format!("\"seed\":\"{}\"", u64::MAX - 1)), "{text}");
    // Every f32 comes back as it was.
    for bits in (0..u32::MAX).step_by(1_000_003).map(f32::from_bits).filter(|x| x.is_finite()) {
        let params = Sampling { temperature: bits, ..Sampling::default() };
        let json = serde_json::to_string(&SamplingTerms { params, ..asked().sampling }).unwrap();
        let back: SamplingTerms = serde_json::from_str(&json).unwrap();
        assert_eq!(back.params.temperature.to_bits(), bits.to_bits(), "{json}");
    }
}

#[test]
fn digests_do_not_change() {
    // Receipts are kept: another digest is another format, and its version says so.
    let receipt = made();
    assert_eq!(
        [receipt.head.to_string(), receipt.seal.to_string(), receipt.logits[5].to_string()],
        [
            "40d7e1ed1cd8619807cb7f65fbc7e7d9962c15e3e4b34a06ab41f2e6d9e06e88",
            "5f38f5b4633d42a8e61169cc3d8a5ca0bca47bdee131eb561ce54118e53f9a4c",
            "c9b3271ae0e9815c"
        ]
    );
}

#[test]
fn one_bit_of_one_logit_is_another_row() {
    let logits: Vec<f32> = (0..50_000).map(|id| id as f32 * 0.37 - 9000.0).collect();
    let whole = Digest::of_row(&logits);
    for at in [0, 1, 4095, 4096, 31_111, 49_999] {
        for bit in [0, 12, 31] {
            let mut other = logits.clone();
            other[at] = f32::from_bits(other[at].to_bits() ^ (1 << bit));
            assert_ne!(Digest::of_row(&other), whole, "bit {bit} of logit {at}");
        }
    }
    assert_ne!(Digest::of_row(&logits[..49_999]), whole);
    assert_ne!(Digest::of_row(&[0.0]), Digest::of_row(&[-0.0]), "bits, and not numbers");
}

#[test]
fn whatever_is_changed_above_the_tokens_is_found() {
    let changes: &[(&str, Value)] = &[
        ("/model", json!("another")),
        ("/config", json!("ab".repeat(32))),
        ("/definition/engine", json!("twostroke-0.0.9")),
        ("/definition/arithmetic", json!("tiles")),
        ("/definition/weights", json!("int4")),
        ("/definition/as_stored", json!(true)),
        ("/definition/kv", json!("int8")),
        ("/definition/layout", json!(8)),
        ("/sampling/temperature", json!(0.70000005)),
        ("/sampling/top_p", json!(0.9)),
        ("/sampling/top_k", json!(41)),
        ("/sampling/min_p", json!(0.0)),
        ("/sampling/presence_penalty", json!(0.2)),
        ("/sampling/frequency_penalty", json!(0.3)),
        ("/sampling/repetition_penalty", json!(1.0)),
        ("/sampling/logit_bias", json!([])),
        ("/sampling/seed", json!("7")),
        ("/sampling/answer", json!(0)),
        ("/stop/max_tokens", json!(21)),
        ("/stop/min_tokens", json!(1)),
        ("/stop/token_ids", json!([])),
        ("/stop/strings", json!(["the", "\"end\"\n"])),
        ("/stop/include_string", json!(true)),
        ("/stop/skip_special", json!(false)),
    ];
    for (field, value) in changes {
        let receipt = changed(|json| *json.pointer_mut(field).expect("it is there") = value.clone());
        let verdict = verdict(&receipt);
        assert!(matches!(verdict.discrepancies[0], Discrepancy::Head { .. }), "{field}: {verdict:?}");
        assert_eq!((verdict.cause, verdict.discrepancies.len()), (Some(Cause::Terms), 1), "{field}");
    }
    // Every field of the terms is in the table, but for the prompt and the weights, which have effects.
    let json = serde_json::to_value(made()).unwrap();
    let leaves = |name: &str| json[name].as_object().unwrap().len();
    assert_eq!(changes.len(), 2 + leaves("definition") + leaves("sampling") + leaves("stop"));
}

#[test]
fn the_first_token_that_is_not_is_named() {
    // (change, kind of the first difference, its token, cause)
    type Change = fn(&mut Value);
    let table: &[(&str, Change, &str, usize, Cause)] = &[
        ("a token", |json| json["tokens"][2] = json!(8), "token", 2, Cause::Tokens),
        ("the first token", |json| json["tokens"][0] = json!(8), "token", 0, Cause::Tokens),
        ("the last token", |json| json["tokens"][5] = json!(8), "token", 5, Cause::Tokens),
        ("two in each other's place", |json| json["tokens"] = json!([7, 7, 11, 3, 19, 2]), "token", 1, Cause::Tokens),
        ("a token of the prompt", |json| json["prompt"][1] = json!(9), "logits", 0, Cause::Prompt),
        ("a digest", |json| json["logits"][3] = json!("0123456789abcdef"), "logits", 3, Cause::Digests),
        ("the last digest", |json| json["logits"][5] = json!("0123456789abcdef"), "logits", 5, Cause::Digests),
        (
            "the end is cut off",
            |json| {
                json["tokens"].as_array_mut().unwrap().truncate(3);
                json["logits"].as_array_mut().unwrap().truncate(3);
            },
            "end",
            3,
            Cause::End,
        ),
        ("another end", |json| json["end"] = json!("length"), "end", 5, Cause::End),
    ];
    for (what, change, kind, token, cause) in table {
        let verdict = verdict(&changed(change));
        let first = verdict.first().unwrap_or_else(|| panic!("{what}: {verdict:?}"));
        let found = match first {
            Discrepancy::Logits { .. } => "logits",
            Discrepancy::Token { .. } => "token",
            Discrepancy::End { .. } => "end",
            other => panic!("{what}: {other:?}"),
        };
        let spot = first.spot().unwrap();
        assert_eq!((found, spot.token, spot.position), (*kind, *token, 3 + token), "{what}");
        assert_eq!(verdict.cause.as_ref(), Some(cause), "{what}");
    }
}

#[test]
fn another_seal_or_other_weights_are_found() {
    let verdict_of = |change: fn(&mut Value)| verdict(&changed(change));
    let seal = verdict_of(|json| json["seal"] = json!("00".repeat(32)));
    assert!(matches!(seal.discrepancies[..], [Discrepancy::Seal { .. }]), "{seal:?}");
    let weights = verdict_of(|json| json["weights"] = json!("00".repeat(32)));
    assert!(matches!(weights.discrepancies[0], Discrepancy::Weights { .. }), "{weights:?}");
    assert_eq!(weights.cause, Some(Cause::Weights));

    // One that was computed with other weights and says so honestly: the first token's logits.
    let other = Unsealed {
        asked: asked(),
        tokens: TOKENS.to_vec(),
        rows: rows(2, &asked().prompt, &TOKENS),
        end: AnswerEnd::StopToken,
    };
    let receipt = other.seal(basis());
    let verdict = verdict(&receipt);
    assert!(verdict.has_other_logits());
    assert_eq!(
        (verdict.first().and_then(Discrepancy::spot).map(|at| at.token), verdict.cause),
        (Some(0), Some(Cause::Prompt))
    );
}

#[test]
fn another_sampler_is_told_from_other_tokens() {
    let receipt = made();
    let mut computed = computed(&receipt);
    computed.rows[2].token = Some(1);
    let verdict = judge(&receipt, &computed);
    assert_eq!(verdict.first().and_then(Discrepancy::spot).map(|at| at.token), Some(2));
    assert_eq!(verdict.cause, Some(Cause::Sampling), "every row is as claimed");
}

#[test]
fn what_is_no_receipt_says_why() {
    let json = serde_json::to_value(made()).unwrap();
    let cases: &[(&str, Value, &str)] = &[
        ("/receipt", json!(2), "version 2"),
        ("/receipt", json!("1"), "not a version"),
        ("/logits/0", json!("0123"), "16 lower-case hexadecimal digits"),
        ("/logits/0", json!("0123456789ABCDEF"), "lower-case"),
        ("/seal", json!("12"), "64 lower-case"),
        ("/tokens/0", json!(-1), "-1"),
        ("/tokens/0", json!(1u64 << 32), "4294967296"),
        ("/sampling/seed", json!(7), "string"),
        ("/sampling/seed", json!("07"), "decimal"),
        ("/end", json!("tired"), "tired"),
        ("/tokens", json!([1, 2]), "6 digests for 2 tokens"),
        ("/prompt", json!([]), "prompt"),
    ];
    for (field, value, wanted) in cases {
        let mut json = json.clone();
        *json.pointer_mut(field).expect("it is there") = value.clone();
        let error = Receipt::of(json).expect_err(field).to_string();
        assert!(error.contains(wanted), "{field} = {value}: {error}");
    }
    for object in ["", "/definition", "/sampling", "/stop"] {
        let mut json = json.clone();
        json.pointer_mut(object).unwrap()["more"] = json!(1);
        let error = Receipt::of(json).expect_err("an unknown field").to_string();
        assert!(error.contains("more"), "{object}: {error}");
    }
    let mut told = json;
    told["sampling"]["logprobs"] = json!(2);
    assert!(Receipt::of(told).expect_err("no term").to_string().contains("log probabilities"));
    for value in [json!(null), json!([]), json!({}), json!({"receipt": 1}), json!("receipt")] {
        Receipt::of(value).expect_err("no receipt");
    }
}
