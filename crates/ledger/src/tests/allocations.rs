//! A steady decode step allocates nothing in the ledger: what an account keeps is sized when its request enters.

use std::prelude::v1::*;

use crate::Ledger;
use allocation_counter::measure;
use protocol::{Nanos, RequestId, StopRules};
use scheduler::{Limits, Request, Scheduler, StepRecord};
use testing::plans;

/// Together they have 32 answers, as many as there are seats.
const REQUESTS: u64 = 28;

fn request(id: u64) -> Request {
    Request {
        num_answers: 1 + usize::from(id == 7) * 4,
        stop: StopRules { max_tokens: 400, min_tokens: 0, stop_token_ids: vec![1] },
        ..plans::request(id, (0..20).map(|token| token + id as u32 * 100).collect::<Vec<_>>())
    }
}

/// The records of `steps` steps with [`REQUESTS`] requests, one of them with five answers, and with `waiting` more that
/// wait for a seat.
fn records(waiting: u64, steps: u64) -> Vec<StepRecord> {
    let limits = Limits {
        block_size: 4,
        num_blocks: 4096,
        max_model_len: 1000,
        max_num_seqs: 32,
        max_prefill_chunk: 512,
        max_prefill_seqs: 32,
        ..plans::limits()
    };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    (0..REQUESTS + waiting).for_each(|id| scheduler.admit(request(id)).expect("there is room"));
    let one_step = |number| {
        let step = scheduler.schedule(Nanos(number));
        let token = 5000 + number as u32;
        scheduler.complete(plans::answer(&step, token), Nanos(number + 1)).record
    };
    (0..steps).map(one_step).collect()
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for waiting in [0, 20] {
        let mut ledger = Ledger::new(1024);
        (0..REQUESTS + waiting).map(request).for_each(|request| ledger.admit(&request));
        let records = records(waiting, 308);
        let (first, steady) = records.split_at(8);
        first.iter().for_each(|record| ledger.step(record, None, &mut |_| {}));
        assert!(steady.iter().all(|record| record.decode.len() == 32), "32 sequences decode");
        assert!(steady.iter().all(|record| record.waiting_requests == waiting as usize), "the others wait");
        let allocations = measure(|| steady.iter().for_each(|record| ledger.step(record, None, &mut |_| {})));
        assert!(ledger.totals().gaps.total() > Nanos(0));
        assert_eq!(allocations.count_total, 0, "allocations in 300 steady decode steps, {waiting} wait");
        ledger.check();
    }
}

/// A million requests may pass through: what one reserves, the next one has, and closed ones hold what they say.
#[test]
fn requests_reserve_nothing_after_the_first() {
    let mut ledger = Ledger::new(1024);
    (0..REQUESTS).map(request).for_each(|request| ledger.admit(&request));
    records(0, 8).iter().for_each(|record| ledger.step(record, None, &mut |_| {}));
    let closed: Vec<_> = (0..REQUESTS).filter_map(|id| ledger.end(RequestId(id))).collect();
    assert!(closed.iter().all(|account| 4 * account.visits.capacity() <= 5 * account.visits.len()));
    let records = records(0, 8);
    let reserved = measure(|| {
        (0..REQUESTS).map(request).for_each(|request| ledger.admit(&request));
        records.iter().for_each(|record| ledger.step(record, None, &mut |_| {}));
    });
    assert!(reserved.bytes_total < REQUESTS * 8192, "{} bytes", reserved.bytes_total);
}
