//! A past once more without one of its requests, worked out by hand.

use std::sync::Arc;

use engine::past::{Past, PastAnswer, PastRequest, PromptBlock};
use replay::{WhatIfError, without};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits, Nanos, Priority, RequestId, Targets};

/// A step takes 10 ms and holds 8 rows, so of prompts of 8 tokens one is read in each. Answers have one token.
fn past(requests: u64) -> Past {
    let answer = |id: u64| {
        let request = PastRequest {
            id: RequestId(id),
            prompt: Arc::from([PromptBlock { name: id, len: 8 }]),
            priority: Priority(0),
            tenant: 0,
            targets: Targets::default(),
            arrived: Nanos(1000),
        };
        let last_token = Nanos(1000 + 11_000_000 * (id + 1));
        Arc::new(PastAnswer {
            request,
            index: 0,
            tokens: 1,
            first_token: last_token,
            last_token,
            longest_gap: Nanos(0),
            drafts: Vec::new(),
        })
    };
    let limits = Limits {
        block_size: 8,
        num_blocks: 100,
        max_model_len: 100,
        max_num_seqs: 8,
        max_num_batched_tokens: 8,
        max_prefill_chunk: 8,
        max_prefill_seqs: 8,
        max_queued_requests: 100,
        max_queued_tokens: 1000,
        enable_prefix_caching: true,
        hash_key: [0; 32],
    };
    Past {
        limits,
        cost: Some(CostModel::new(vec![Knot { rows: 1, seconds: 0.010 }], Terms::default())),
        answers: (0..requests).map(answer).collect(),
        steps: Vec::new(),
        preemptions: 0,
    }
}

#[test]
fn those_behind_it_are_served_one_step_earlier() {
    let answers = without(&past(5), &[RequestId(2)], &mut |_, _| true).expect("it was there");
    let ms = |seconds: f64| (seconds * 1e3).round() as u64;
    let times = answers
        .iter()
        .map(|answer| (answer.request.0, ms(answer.recorded.ttft), ms(answer.simulated.ttft), ms(answer.without.ttft)));
    let expected = [(0, 11, 10, 10), (1, 22, 20, 20), (3, 44, 40, 30), (4, 55, 50, 40)];
    assert_eq!(times.collect::<Vec<_>>(), expected, "request, recorded, simulated, without");
}

#[test]
fn there_must_be_one_to_leave_out_and_one_to_stay() {
    let ask = |requests, other| without(&past(requests), &[RequestId(other)], &mut |_, _| true).map(|_| ());
    assert_eq!([ask(5, 9), ask(1, 0), ask(0, 0)], [(); 3].map(|()| Err(WhatIfError::Nothing)));
    let seen_enough = without(&past(5), &[RequestId(2)], &mut |_, _| false);
    assert_eq!(seen_enough, Err(WhatIfError::TooLong));
}
