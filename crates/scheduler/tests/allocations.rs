//! A steady decode step allocates nothing: vectors and tables are sized when a sequence enters.

use allocation_counter::measure;
use protocol::{Nanos, StopRules};
use scheduler::cost::{Knot, Terms};
use scheduler::{
    CostModel, DraftProposal, DraftSource, Limits, Request, RowOutput, Scheduler, Step, StepOutput, StepRecord,
    TokenEvent,
};
use testing::plans;

const SEQS: usize = 32;

#[test]
fn a_steady_decode_step_allocates_nothing() {
    // No request waits, or some wait for a seat.
    for waiting in [0, 20] {
        let (mut scheduler, mut steps) = (scheduler(waiting), Steps::default());
        (0..8).for_each(|_| steps.one(&mut scheduler));
        let (mut rows, mut taken) = (0, 0);
        let allocations = measure(|| {
            for _ in 8..308 {
                steps.one(&mut scheduler);
                rows += steps.record.decode.len();
                taken += steps.record.taken_blocks;
            }
        });
        assert_eq!((rows, taken), (300 * SEQS, 300 * SEQS / 4), "they decode, and take a block every 4 tokens");
        assert_eq!(allocations.count_total, 0, "allocations in 300 steady decode steps");
    }
}

/// Rows are free as far as twice the sequences: the rule takes some of what is offered.
#[test]
fn a_steady_step_with_drafts_allocates_nothing() {
    let mut scheduler = scheduler(0);
    let knots = [(1, 0.010), (2 * SEQS, 0.0101), (8 * SEQS, 0.080)].map(|(rows, seconds)| Knot { rows, seconds });
    scheduler.set_cost_model(Some(CostModel::new(knots.to_vec(), Terms::default())));
    let mut steps = Steps::default();
    let mut seqs = Vec::with_capacity(SEQS);
    let mut one = || {
        assert!(scheduler.wants_proposals());
        seqs.clear();
        seqs.extend(scheduler.decoding().map(|sequence| sequence.id()));
        for (index, &seq) in seqs.iter().enumerate() {
            // Of the second offer for one the scheduler asks what it is worth.
            scheduler.propose(DraftProposal { seq, source: DraftSource(0), len: 8, strength: index as u8 % 8 });
            scheduler.propose(DraftProposal { seq, source: DraftSource(1), len: 4, strength: 7 });
        }
        steps.one(&mut scheduler);
        let drafts: usize = steps.record.decode.iter().map(|row| row.drafts).sum();
        (drafts, steps.record.decode_tokens())
    };
    (0..8).for_each(|_| _ = one());
    let (mut drafts, mut tokens) = (0, 0);
    let allocations = measure(|| {
        for _ in 8..108 {
            let (step_drafts, step_tokens) = one();
            drafts += step_drafts;
            tokens += step_tokens;
        }
    });
    assert!((100 * SEQS / 2..100 * SEQS * 8).contains(&drafts), "some drafts are verified: {drafts}");
    assert!(tokens > 100 * SEQS && tokens < 100 * SEQS + drafts, "and some of them hold: {tokens} of {drafts}");
    assert_eq!(allocations.count_total, 0, "allocations in 100 steady steps with drafts");
}

fn scheduler(waiting: u64) -> Scheduler {
    let limits = Limits {
        block_size: 4, // small, so that blocks are taken, filled and registered all the time
        num_blocks: 4096,
        max_model_len: 1000,
        max_num_seqs: 32,
        max_prefill_chunk: 512,
        max_prefill_seqs: 32,
        ..plans::limits()
    };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    for id in 0..28 + waiting {
        let request = Request {
            num_answers: 1 + usize::from(id == 7) * 4,
            stop: StopRules { max_tokens: 400, min_tokens: 0, stop_token_ids: vec![1] },
            ..plans::request(id, (0..20).map(|token| token + id as u32 * 100).collect::<Vec<_>>())
        };
        scheduler.admit(request).expect("there is room");
    }
    scheduler
}

/// Steps, in memory that is kept: what the engine does with buffers of its own.
#[derive(Default)]
struct Steps {
    number: u64,
    step: Step,
    output: StepOutput,
    events: Vec<TokenEvent>,
    record: StepRecord,
}

impl Steps {
    /// One step; three of four sequences have all their drafts accepted.
    fn one(&mut self, scheduler: &mut Scheduler) {
        let Steps { number, step, output, events, record } = self;
        scheduler.schedule_into(Nanos(*number), step);
        output.step = step.id;
        let token = 5000 + *number as u32;
        output.rows.clear();
        for (index, rows) in step.rows().enumerate() {
            let held = if (index as u64 + *number).is_multiple_of(4) { 0 } else { rows.drafts };
            let tokens = rows.samples + held;
            output.rows.extend(std::iter::repeat_n(RowOutput { seq: rows.seq, token }, tokens));
        }
        events.clear();
        scheduler.complete_into(output, Nanos(*number), events, record);
        *number += 1;
    }
}
