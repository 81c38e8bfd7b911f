//! An answer goes on elsewhere as if it had never moved: at every position, whatever was asked, the rest has the same
//! bits.

use crate::common;
use crate::speculation::kinds_of_requests;

use common::{Answer, Outcome, ask, gather, now, options, start, wait_until_quiet};
use engine::{Engine, EngineOptions, FinishReason, Prompt, RawRequest};

/// Some of every kind of request.
fn workload(round: usize) -> Vec<RawRequest> {
    let some = kinds_of_requests(round + 1).into_iter().step_by(3).enumerate();
    let short = |(index, raw): (usize, RawRequest)| RawRequest {
        max_tokens: Some(20 + 6 * (index as i64 % 4)),
        min_tokens: raw.min_tokens.map(|_| 9),
        ..raw
    };
    some.map(short).collect()
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
        kv_cache_bytes: Some(12 * 32 * from.model().kv_bytes_per_token as u64),
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
