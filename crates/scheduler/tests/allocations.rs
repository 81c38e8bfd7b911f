//! A steady decode step allocates nothing: vectors and tables are sized when a sequence enters.

use allocation_counter::measure;
use scheduler::{
    Limits, Nanos, Priority, Request, RequestId, RowOutput, Scheduler, Step, StepOutput, StepRecord, StopRules, Targets,
};

#[test]
fn a_steady_decode_step_allocates_nothing() {
    // Nobody waits, or some wait for a seat.
    [0, 20].into_iter().for_each(check);
}

fn check(waiting: u64) {
    let limits = Limits {
        block_size: 4, // small, so that blocks are taken, filled and registered all the time
        num_blocks: 4096,
        max_model_len: 1000,
        max_num_seqs: 32,
        max_num_batched_tokens: 2048,
        max_prefill_chunk: 512,
        max_prefill_seqs: 32,
        max_queued_requests: 64,
        max_queued_tokens: 100_000,
        enable_prefix_caching: true,
        hash_key: [5; 32],
    };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    for id in 0..28 + waiting {
        let request = Request {
            id: RequestId(id),
            prompt: (0..20).map(|token| token + id as u32 * 100).collect(),
            num_answers: 1 + usize::from(id == 7) * 4,
            stop: StopRules { max_tokens: 400, min_tokens: 0, stop_token_ids: vec![1] },
            priority: Priority(0),
            salt: 0,
            use_prefix_cache: true,
            tenant: 0,
            targets: Targets::default(),
            arrived: Nanos(0),
        };
        scheduler.admit(request).expect("there is room");
    }
    let (mut step, mut output) = (Step::default(), StepOutput::default());
    let (mut events, mut record) = (Vec::new(), StepRecord::default());
    let mut one_step = |number: u64| {
        scheduler.schedule_into(Nanos(number), &mut step);
        // What the engine does with buffers of its own.
        output.step = step.id;
        let token = 5000 + number as u32;
        output.rows.clear();
        for rows in step.rows() {
            output.rows.extend(std::iter::repeat_n(RowOutput { seq: rows.seq, token }, rows.samples));
        }
        events.clear();
        scheduler.complete_into(&output, Nanos(number), &mut events, &mut record);
        (step.decode.len(), record.taken_blocks)
    };
    (0..8).for_each(|number| _ = one_step(number));
    let mut rows = 0;
    let mut taken = 0;
    let allocations = measure(|| {
        for number in 8..308 {
            let (step_rows, step_taken) = one_step(number);
            rows += step_rows;
            taken += step_taken;
        }
    });
    assert_eq!((rows, taken), (300 * 32, 300 * 32 / 4), "32 sequences decode, and take a block every 4 tokens");
    assert_eq!(allocations.count_total, 0, "allocations in 300 steady decode steps");
}
