//! A steady step allocates nothing until its results are delivered: plan, batch, rows of logits and sampled tokens are
//! in memory that is kept. Delivering does: clients get text of their own. Steady is an engine whose ring of records is
//! full: until then each step's record is new.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use allocation_counter::measure;
use observe::Views;
use protocol::sampling::SamplingParams;
use protocol::{Nanos, RequestId};
use scheduler::{Limits, Scheduler, TierSizes};
use speculate::{DrafterSet, Drafters};
use testing::plans;

use super::fake::{EOS, Fake, Faults, NAN, POISON};
use super::world::{model_info, tokenizer};
use crate::command::ArrivalInfo;
use crate::core::EngineCore;
use crate::output;
use crate::validate::{self, Prompt, RawRequest};
use crate::verify::Verify;

/// The records that are kept, and a few steps for the prompts.
const WARM_UP: u64 = 4096 + 20;
/// Steps that are measured.
const STEPS: u64 = 100;
/// Longer than an answer comes to be; no index of a text doubles while steps are measured.
const MOST_TOKENS: usize = 16_000;
const ANSWERS: usize = 12;

#[test]
fn a_steady_step_allocates_nothing_until_it_is_told() {
    check(None);
}

/// Of 24 tokens any three stood before, so all have offers, and without a cost model the plan takes them all.
#[test]
fn a_steady_step_with_lookup_allocates_nothing() {
    check(Some(Drafters::default()));
}

fn check(drafters: Option<Drafters>) {
    let limits = Limits {
        num_blocks: 50_000,
        max_model_len: MOST_TOKENS,
        max_num_seqs: ANSWERS,
        max_num_batched_tokens: 1024,
        max_prefill_chunk: 256,
        max_prefill_seqs: ANSWERS,
        ..plans::small()
    };
    let tokenizer = Arc::new(tokenizer());
    let model = model_info(&limits, &tokenizer, None, TierSizes::default());
    let faults = Arc::new(Mutex::new(Faults::default()));
    let forward = Box::new(Fake::new(limits.num_blocks, limits.block_size, faults, Arc::new(AtomicU64::new(0))));
    let views = Arc::new(Mutex::new(Views::new(limits.block_size)));
    let scheduler = Scheduler::new(limits).expect("good limits");
    let mut core = EngineCore::new(scheduler, forward, Some(tokenizer), 0, views);
    core.add_feature(Box::new(Verify::new(None)));
    let speculates = drafters.is_some();
    if let Some(drafters) = drafters {
        core.set_drafters(DrafterSet::of(&drafters));
    }
    for id in 0..8 {
        let raw = RawRequest {
            max_tokens: Some(MOST_TOKENS as i64 - 20),
            n: Some(1 + i64::from(id == 7) * 4),
            sampling: SamplingParams { top_p: Some(0.9), ..SamplingParams::at([0.0, 0.8][id as usize % 2]) },
            seed: Some(id),
            logit_bias: [EOS, NAN, POISON].map(|token| (i64::from(token), -100.0)).to_vec(),
            ..RawRequest::new(Prompt::Tokens((0..20).map(|token| 1 + (token + id) % 20).collect()))
        };
        let request = validate::validate(raw, &model, model.targets, &[1; 32]).expect("a good request");
        let (sender, ..) = output::event_channel();
        let arrived = ArrivalInfo { at: Nanos(0), held: Nanos(0), permit: None };
        core.admit(RequestId(id as u64), request, arrived, sender, Nanos(0)).expect("there is room");
    }
    let (mut allocations, mut rows) = (0, 0);
    for number in 0..WARM_UP + STEPS {
        let mut sampled = 0;
        let step = measure(|| sampled = core.begin_step(Nanos(2 * number)));
        core.end_step(Nanos(2 * number + 1));
        if number >= WARM_UP {
            allocations += step.count_total;
            rows += sampled;
        }
    }
    match speculates {
        false => assert_eq!(rows, STEPS as usize * ANSWERS, "all answers decode"),
        true => assert!(rows > STEPS as usize * ANSWERS, "and some drafts are accepted: {rows} tokens"),
    }
    assert_eq!(allocations, 0, "allocations in {STEPS} steady steps");
}
