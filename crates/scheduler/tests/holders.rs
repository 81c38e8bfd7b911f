//! The record names the holders of what the head of the queue waits for, and none where nothing waits.

use protocol::{Nanos, RequestId, TokenId};
use scheduler::{Blocked, Limits, Request, Scheduler, StepRecord};
use testing::plans;

fn limits() -> Limits {
    Limits {
        max_model_len: 100,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_prefill_chunk: 64,
        max_prefill_seqs: 8,
        ..plans::small()
    }
}

fn request(id: u64, prompt: Vec<TokenId>, num_answers: usize) -> Request {
    Request { num_answers, stop: plans::at_most(20), ..plans::request(id, prompt) }
}

fn step(scheduler: &mut Scheduler) -> StepRecord {
    let step = scheduler.schedule(Nanos(0));
    scheduler.check_invariants();
    scheduler.complete(plans::answer(&step, 9), Nanos(1)).record
}

/// What each holds, as shares of all in percent.
fn shares(record: &StepRecord) -> Vec<(u64, u64)> {
    let all: u64 = record.holders.iter().map(|holder| holder.held).sum();
    record.holders.iter().map(|holder| (holder.request.0, (holder.held * 100 + all / 2) / all)).collect()
}

#[test]
fn seats_are_held_from_the_start_by_all_answers() {
    let mut scheduler = Scheduler::new(Limits { max_num_seqs: 4, ..limits() }).expect("good limits");
    scheduler.admit(request(1, vec![1; 8], 3)).expect("room");
    scheduler.admit(request(2, vec![2; 8], 1)).expect("room");
    assert!(step(&mut scheduler).holders.is_empty(), "nothing waits");
    scheduler.admit(request(3, vec![3; 8], 1)).expect("room");
    let record = step(&mut scheduler);
    assert_eq!(record.blocked, Some(Blocked::Seats));
    assert_eq!(shares(&record), [(1, 25), (1, 25), (1, 25), (2, 25)], "three answers of 1, and 2");
}

#[test]
fn a_shared_block_is_held_by_each_in_part() {
    // 1 has 16 tokens and two blocks of its own; 2 begins as 1 does.
    let prompt: Vec<TokenId> = (0..24).collect();
    let mut scheduler = Scheduler::new(Limits { num_blocks: 12, ..limits() }).expect("good limits");
    scheduler.admit(request(1, prompt.clone(), 1)).expect("room");
    step(&mut scheduler);
    let mut second = prompt[..16].to_vec();
    second.extend([100; 3]);
    scheduler.admit(request(2, second, 1)).expect("room");
    step(&mut scheduler);
    scheduler.admit(request(3, vec![7; 24], 1)).expect("room");
    let record = step(&mut scheduler);
    assert_eq!(record.blocked, Some(Blocked::Kv));
    // Four shared blocks are two for each; 1 has three more, 2 has one.
    assert_eq!(shares(&record), [(1, 63), (2, 38)], "5 and 3 of 8");
    scheduler.abort(RequestId(1));
    let record = step(&mut scheduler);
    assert!(record.holders.is_empty() || shares(&record) == [(2, 100)], "what it shared is its own now: {record:?}");
}

#[test]
fn where_rows_are_short_the_rows_say_it() {
    let mut scheduler = Scheduler::new(Limits { max_num_batched_tokens: 16, ..limits() }).expect("good limits");
    scheduler.admit(request(1, vec![1; 32], 1)).expect("room");
    scheduler.admit(request(2, vec![2; 8], 1)).expect("room");
    let record = step(&mut scheduler);
    assert_eq!((record.blocked, record.holders.len()), (Some(Blocked::Budget), 0));
}
