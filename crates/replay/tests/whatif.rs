//! A past with other settings, and without one of its requests, worked out by hand.

use std::sync::Arc;

use engine::run_history::{PastAnswer, PastDrafts, PastRequest, PromptBlock, RunHistoryWindow};
use protocol::{Nanos, Priority, RequestId, Targets};
use replay::{Changes, WhatIfError, what_if};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits};

/// The next token of the answer, and how many drafts of it and those behind it were proposed, checked and accepted.
type Step = (u32, u16, u16, u16);

/// To the request of this number, whose prompt has 8 tokens. Times are milliseconds after the first request.
fn answer(id: u64, arrived: u64, ttft: u64, total: u64, tokens: usize, steps: &[Step]) -> Arc<PastAnswer> {
    let at = |ms: u64| Nanos(1000 + ms * 1_000_000);
    let drafts = |&(position, offered, drafted, held): &Step| PastDrafts {
        position,
        source: 0,
        strength: 5,
        offered,
        drafted,
        held,
    };
    let request = PastRequest {
        id: RequestId(id),
        prompt: Arc::from([PromptBlock { name: id, len: 8 }]),
        priority: Priority(0),
        tenant: 0,
        targets: Targets::default(),
        arrived: at(arrived),
    };
    Arc::new(PastAnswer {
        request,
        index: 0,
        tokens,
        cached_tokens: 0,
        first_token: at(arrived + ttft),
        last_token: at(arrived + total),
        longest_gap: Nanos(50_000_000),
        drafts: steps.iter().map(drafts).collect(),
    })
}

/// A step of up to eight rows takes 10 ms.
fn past(answers: Vec<Arc<PastAnswer>>) -> RunHistoryWindow {
    let limits = Limits {
        block_size: 8,
        num_blocks: 100,
        max_model_len: 400,
        max_num_seqs: 4,
        max_num_batched_tokens: 8,
        max_prefill_chunk: 8,
        max_prefill_seqs: 4,
        max_queued_requests: 100,
        max_queued_tokens: 1000,
        enable_prefix_caching: true,
        states: None,
        whole_prompts: false,
        hash_key: [0; 32],
    };
    let knots = [(1, 0.010), (8, 0.010), (108, 0.210)].map(|(rows, seconds)| Knot { rows, seconds });
    let cost = Some(CostModel::new(knots.to_vec(), Terms::default()));
    RunHistoryWindow { limits, cost, answers, steps: Vec::new(), preemptions: 0 }
}

/// Answers one after the other: their tokens, and their steps.
fn drafted(answers: &[(usize, &[Step])]) -> RunHistoryWindow {
    let answer = |(id, &(tokens, steps)): (u64, &(usize, &[Step]))| answer(id, 1000 * id, 10, 100, tokens, steps);
    past((0..).zip(answers).map(answer).collect())
}

#[test]
fn drafts_are_known_where_they_were_checked_and_assumed_elsewhere() {
    // A prompt's step, then tokens 1 to 8 and 9 to 16.
    let eights: &[_] = &[(1, 7, 7, 7), (9, 7, 7, 7)];
    // Of the drafts of 1 to 5 two were accepted; nothing was on offer for 4 to 6; at 7 again.
    let mixed: &[_] = &[(1, 5, 5, 2), (7, 5, 5, 1)];
    // On offer, and never checked: of four tokens two can be drafted at first, then one.
    let never: &[_] = &[(1, 7, 0, 0), (2, 7, 0, 0)];
    let rows = |rows| Changes { max_num_batched_tokens: Some(rows), ..Changes::default() };
    let off = Changes { without_drafts: true, ..Changes::default() };
    // The answers, the question; checked, held and assumed of it, and tokens a step.
    type Case<'a> = (&'a str, RunHistoryWindow, Changes, [usize; 3], f64);
    let cases: [Case<'_>; 8] = [
        ("as it was", drafted(&[(17, eights)]), Changes::default(), [14, 14, 0], 8.0),
        ("off", drafted(&[(17, eights)]), off, [0, 0, 0], 1.0),
        // Four rows: 1-4, 5-8, 9-12, 13-16. The offers at 5 and 13 are taken to go on; every draft but that of 8 was
        // checked, and is known.
        ("shorter runs find what is known", drafted(&[(17, eights)]), rows(4), [12, 12, 0], 4.0),
        // Six rows: 1-6, 7-12, 13-16. At 8 nothing was drafted: it is accepted, as all others.
        ("and assume the rest", drafted(&[(17, eights)]), rows(6), [13, 13, 1], 16.0 / 3.0),
        // 1, two held; 4, 5 and 6 are steps of one row; 7, one held; 9 is the last.
        ("what failed fails again", drafted(&[(10, mixed)]), Changes::default(), [7, 3, 0], 9.0 / 6.0),
        ("a draft less", drafted(&[(10, mixed)]), rows(4), [5, 3, 0], 9.0 / 6.0),
        // No draft of any request was ever checked: none is accepted.
        ("nothing is known", drafted(&[(4, never)]), Changes::default(), [3, 0, 2], 1.0),
        // Nothing of the second answer was checked, and all of the first held: so do those of the second.
        ("others' rate", drafted(&[(17, eights), (4, never)]), Changes::default(), [16, 16, 2], 8.0),
    ];
    for (what, past, changes, counts, tokens) in cases {
        let answer = what_if(&past, &changes, &mut |_, _| true).expect("there were requests");
        let told = answer.what_if;
        assert_eq!([told.drafted, told.held, told.assumed], counts, "{what}: {answer}");
        if !what.contains("rate") {
            assert!((told.tokens_per_step - tokens).abs() < 1e-9, "{what}: {answer}");
        }
        assert_eq!(
            (answer.recorded.completed, told.completed, told.refused),
            (past.answers.len(), past.answers.len(), 0)
        );
        let text = answer.to_string();
        assert_eq!(text.contains("are assumed"), answer.simulated.assumed + told.assumed > 0, "{what}: {text}");
        assert!(text.contains("drafts accepted"), "{what}: {text}");
    }
}

/// Of prompts of 8 tokens that came together, one is read in each step. Answers have one token.
fn crowd(requests: u64) -> RunHistoryWindow {
    past((0..requests).map(|id| answer(id, 0, 11 * (id + 1), 11 * (id + 1), 1, &[])).collect())
}

fn without(id: u64) -> Changes {
    Changes { without: vec![RequestId(id)], ..Changes::default() }
}

#[test]
fn those_behind_one_that_never_comes_are_served_one_step_earlier() {
    let answer = what_if(&crowd(5), &without(2), &mut |_, _| true).expect("it was there");
    let ms = |seconds: f64| (seconds * 1e3).round() as u64;
    let times = answer
        .answers
        .iter()
        .map(|answer| (answer.request.0, ms(answer.recorded.ttft), ms(answer.simulated.ttft), ms(answer.what_if.ttft)));
    let expected = [(0, 11, 10, 10), (1, 22, 20, 20), (3, 44, 40, 30), (4, 55, 50, 40)];
    assert_eq!(times.collect::<Vec<_>>(), expected, "request, recorded, simulated, without");
    assert_eq!((answer.simulated.completed, answer.what_if.completed), (5, 4));
}

#[test]
fn there_must_be_one_to_leave_out_and_one_to_stay() {
    let ask = |requests, other| what_if(&crowd(requests), &without(other), &mut |_, _| true).map(|_| ());
    assert_eq!([ask(5, 9), ask(1, 0), ask(0, 0)], [(); 3].map(|()| Err(WhatIfError::Nothing)));
    let seen_enough = what_if(&crowd(5), &without(2), &mut |_, _| false);
    assert_eq!(seen_enough, Err(WhatIfError::TooLong));
}
