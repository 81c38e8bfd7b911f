//! An answer goes on elsewhere as if it had never moved: at every position, whatever was asked, the rest has the same
//! bits.

use crate::common;

use common::{Answer, Outcome, ask, gather, now, options, start, wait_until_quiet};
use engine::{Engine, EngineOptions, FinishReason, Prompt, RawRequest, Rule, SamplingParams};
use serde_json::json;

/// Every kind of request, each with a seed.
fn workload(round: i64) -> Vec<RawRequest> {
    let prompts = [
        "Once upon a time there was a fox who".to_owned(),
        "The fox sat by the door. The owl sang of gold.\n".repeat(3),
        "1 2 3 4 5 1 2 3 4 5 1 2 3 4".to_owned(),
    ];
    let kinds: [fn(&mut RawRequest); 9] = [
        |raw| raw.sampling.temperature = Some(0.0),
        |raw| (raw.sampling.top_p, raw.sampling.top_k) = (Some(0.9), Some(40)),
        |raw| (raw.sampling.presence_penalty, raw.sampling.frequency_penalty) = (Some(0.6), Some(0.3)),
        |raw| raw.sampling.repetition_penalty = Some(1.2),
        |raw| raw.n = Some(3),
        |raw| (raw.stop, raw.min_tokens) = (vec![" the".to_owned(), "\n".to_owned()], Some(9)),
        |raw| (raw.ignore_eos, raw.min_tokens) = (false, Some(12)),
        |raw| raw.logit_bias = vec![(17, 3.0), (40, -2.0)],
        |raw| (raw.rule, raw.ignore_eos) = (Some(fox()), false),
    ];
    let mut requests = Vec::new();
    for (kind, change) in kinds.iter().enumerate() {
        for (index, prompt) in prompts.iter().enumerate() {
            let mut raw = RawRequest {
                max_tokens: Some(20 + 6 * ((kind + index) % 4) as i64),
                sampling: SamplingParams::at(0.9),
                ignore_eos: true,
                seed: Some(round * 1000 + (kind * 10 + index) as i64),
                logprobs: Some(0),
                ..RawRequest::new(Prompt::Text(prompt.clone()))
            };
            change(&mut raw);
            requests.push(raw);
        }
    }
    requests
}

fn fox() -> Rule {
    Rule::JsonSchema(json!({
        "type": "object",
        "properties": {"animal": {"enum": ["fox", "owl"]}, "tale": {"type": "string", "maxLength": 30}},
        "required": ["animal", "tale"],
        "additionalProperties": false,
    }))
}

/// The rest of each answer after `generated` tokens; none of one that is over by then.
fn began(whole: &Outcome, before: usize) -> Vec<Option<Vec<i64>>> {
    let of = |answer: &Answer| {
        let tokens = answer.tokens.get(..before).filter(|_| before < answer.tokens.len());
        tokens.map(|tokens| tokens.iter().map(|&token| i64::from(token)).collect())
    };
    whole.answers.iter().map(of).collect()
}

/// Resumes at every position; all positions of an answer at once, so that they share what they can. How many answers.
fn compare(from: &Engine, to: &Engine, raw: &RawRequest) -> usize {
    let whole = ask(from, raw.clone());
    let longest = whole.answers.iter().map(|answer| answer.tokens.len()).max().expect("there are answers");
    for positions in (0..longest).collect::<Vec<_>>().chunks(12) {
        assert!(now(to.pause()));
        let streams: Vec<_> = positions
            .iter()
            .map(|&before| {
                let generated = began(&whole, before);
                let request = to.validate(RawRequest { generated, ..raw.clone() }).expect("valid");
                (before, to.submit(request).expect("room"))
            })
            .collect();
        now(to.resume());
        for (before, stream) in streams {
            let rest = gather(stream, whole.answers.len());
            for (index, (rest, whole)) in rest.answers.iter().zip(&whole.answers).enumerate() {
                let what = || format!("{raw:?}: answer {index} from {before} on");
                if before >= whole.tokens.len() {
                    assert_eq!(*rest, Answer::default(), "{}", what());
                    continue;
                }
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(rest.tokens, whole.tokens[before..], "{}", what());
                assert_eq!(bits(&rest.logprobs), bits(&whole.logprobs[before..]), "{}", what());
                assert_eq!(rest.reason, whole.reason, "{}", what());
                assert!(whole.text.ends_with(&rest.text), "{}: {:?} of {:?}", what(), rest.text, whole.text);
            }
            let generated: usize = rest.answers.iter().map(|answer| answer.tokens.len()).sum();
            assert_eq!(rest.usage.completion_tokens, generated, "what was generated here is what is counted");
        }
    }
    whole.answers.len()
}

/// As many answers as `TWOSTROKE_RESUMED` says; 100 in a long run.
#[test]
fn an_answer_resumes_at_every_position_with_the_same_bits() {
    let wanted = std::env::var("TWOSTROKE_RESUMED")
        .map_or(if testing::is_long() { 100 } else { 25 }, |text| text.parse().expect("a number"));
    let from = start(&options());
    // Another engine altogether: other threads, small chunks, and so few blocks that what resumes is preempted too.
    let to = start(&EngineOptions {
        threads: Some(1),
        max_prefill_chunk: Some(7),
        max_num_seqs: 12,
        kv_cache_bytes: Some(7 * 32 * from.model().kv_bytes_per_token as u64),
        max_model_len: Some(192),
        ..options()
    });
    let mut answers = 0;
    for raw in (0..).flat_map(workload) {
        answers += compare(&from, &to, &raw);
        if answers >= wanted {
            break;
        }
    }
    println!("{answers} answers, {} preemptions, {} prefix hits", to.stats().preemptions, to.stats().prefix_hits);
    assert!(to.stats().preemptions > 0 && to.stats().prefix_hits > 0, "both must happen to mean anything");
    wait_until_quiet(&to);
}

#[test]
fn what_cannot_go_on_is_refused_by_name() {
    let engine = start(&options());
    let raw = |generated: Vec<Option<Vec<i64>>>| RawRequest {
        generated,
        seed: Some(1),
        max_tokens: Some(4),
        ..RawRequest::new(Prompt::Text("Once".to_owned()))
    };
    let tokens = || Some(vec![40, 41]);
    let refused = |raw: RawRequest| engine.validate(raw).expect_err("it is refused");
    let cases = [
        ("seed", RawRequest { seed: None, ..raw(vec![tokens()]) }, "continuing an answer requires its seed"),
        ("generated", raw(vec![tokens(), tokens()]), "2 answers were generated in part, and 1 are asked for"),
        ("generated", raw(vec![None]), "all answers are already complete"),
        ("generated", raw(vec![Some(vec![1_000_000_000])]), "outside the vocabulary"),
        ("generated", RawRequest { receipt: true, ..raw(vec![tokens()]) }, "begin here"),
        ("generated", raw(vec![Some(vec![40; 4])]), "answer 0 has ended"),
        ("generated", RawRequest { stop_token_ids: vec![41], ..raw(vec![tokens()]) }, "answer 0 has ended"),
    ];
    for (param, raw, says) in cases {
        let rejection = refused(raw);
        assert_eq!(rejection.param, Some(param));
        assert!(rejection.message.contains(says), "{}", rejection.message);
    }
    assert_eq!(ask(&engine, raw(vec![Some(Vec::new())])).answers[0].reason, Some(FinishReason::Length));
}
