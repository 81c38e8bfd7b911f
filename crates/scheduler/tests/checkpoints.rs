//! Models with states: which prefixes are found again, from checkpoints, and why others are not.

use protocol::{Nanos, RequestId};
use scheduler::{Limits, MissReason, Request, Scheduler, StateSizes, TierSizes};
use testing::plans;

const BLOCK: usize = 4;

struct World {
    scheduler: Scheduler,
    now: u64,
}

impl World {
    fn new(slots: usize, interval: usize) -> World {
        let limits = Limits { states: Some(StateSizes { slots, interval }), ..limits() };
        World { scheduler: Scheduler::new(limits).expect("good limits"), now: 0 }
    }

    /// Runs it to its end: how many tokens of its prompt were found, and why not more.
    fn ask(&mut self, id: u64, prompt: &[u32], answer: usize) -> (usize, MissReason) {
        let request = Request { stop: plans::at_most(answer), ..plans::request(id, prompt.to_vec()) };
        self.scheduler.admit(request).expect("room");
        let (mut cached, mut why) = (0, None);
        while self.scheduler.has_work() {
            self.now += 1;
            let step = self.scheduler.schedule(Nanos(self.now));
            self.scheduler.check_invariants();
            let record = self.scheduler.complete(plans::answer(&step, 900), Nanos(self.now)).record;
            cached += record.prefill.iter().map(|row| row.cached_tokens).sum::<usize>();
            why = why.or(record.misses.first().map(|miss| miss.why));
            self.scheduler.check_invariants();
        }
        assert_eq!(self.scheduler.states().expect("it has states").1.held, 0, "all slots are given back");
        (cached, why.expect("each is told"))
    }
}

/// Blocks of 4 tokens, chunks of at most 12 rows, two sequences.
fn limits() -> Limits {
    let (max_num_seqs, max_num_batched_tokens) = (2, 12);
    Limits { block_size: BLOCK, max_num_seqs, max_num_batched_tokens, max_prefill_chunk: 12, ..plans::small() }
}

/// Tokens that begin alike and go on with others of each kind.
fn tokens(alike: usize, kind: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| if (at as usize) < alike { at } else { 1000 * kind + at }).collect()
}

#[test]
fn a_prefix_is_found_as_far_as_its_last_checkpoint() {
    use MissReason::*;
    let first = tokens(0, 1, 26);
    let (longer, part) =
        (|len: usize| [&first[..], &tokens(0, 2, 40)[..len]].concat(), |len: usize| first[..len].to_vec());
    for (what, then, expected) in [
        ("the same again: its last two blocks", first.clone(), (24, BlockNotFull)),
        ("what follows it", longer(8), (24, BlockNotFull)),
        ("all but its last block, as a template's other end", [&part(23)[..], &[7; 9]].concat(), (20, OtherToken)),
        ("as far as the interval", [&part(17)[..], &[7; 9]].concat(), (16, OtherToken)),
        ("between two checkpoints", [&part(14)[..], &[7; 9]].concat(), (8, NoCheckpoint)),
        ("before the first", [&part(5)[..], &[7; 9]].concat(), (0, NoCheckpoint)),
        ("nothing of it", tokens(0, 3, 26), (0, New)),
    ] {
        let mut world = World::new(16, 2 * BLOCK);
        assert_eq!(world.ask(1, &first, 1).0, 0);
        assert_eq!(world.ask(2, &then, 1), expected, "{what}");
    }
}

#[test]
fn where_prompts_part_the_third_one_finds_what_the_second_missed() {
    let mut world = World::new(32, 64);
    // A system prompt of 13 tokens, and what each user says.
    let found = [1, 2, 3, 4].map(|user| world.ask(user.into(), &tokens(13, user, 30), 1).0);
    assert_eq!(found, [0, 0, 12, 12]);
}

#[test]
fn the_next_turn_finds_the_answer_and_each_answer_keeps_one_state() {
    let mut world = World::new(16, 64);
    let prompt = tokens(0, 1, 10);
    world.ask(1, &prompt, 12);
    let kept = world.scheduler.states().expect("states").1;
    // After 4 and 8 tokens of the prompt; of the answer after 12, 16 and 20, of which the newest stays.
    assert_eq!((kept.kept, kept.idle), (5, 3), "{kept:?}");
    let next = [&prompt[..], &[900; 12], &tokens(0, 2, 6)].concat();
    assert_eq!(world.ask(2, &next, 1).0, 20);
}

#[test]
fn checkpoints_give_way_to_running_sequences_the_oldest_first() {
    // Four slots for two sequences, and two to keep states in.
    let mut world = World::new(6, 64);
    let prompts: Vec<Vec<u32>> = (1..4).map(|kind| tokens(0, kind, 9)).collect();
    for (id, prompt) in prompts.iter().enumerate() {
        world.ask(id as u64, prompt, 1);
    }
    let states = world.scheduler.states().expect("states").1;
    assert!(states.given_up > 0 && states.idle <= 6, "{states:?}");
    let found: Vec<usize> = (0..3).rev().map(|kind| world.ask(10 + kind as u64, &prompts[kind], 1).0).collect();
    assert_eq!(found[0], 8, "the newest is there");
    // No slot but those that must be free: nothing is kept that a sequence could need.
    let mut bare = World::new(4, 64);
    bare.ask(1, &prompts[0], 1);
    assert!(bare.scheduler.states().expect("states").1.idle <= 4);
    assert_eq!(bare.ask(2, &tokens(9, 1, 30), 1).0 % BLOCK, 0);
}

#[test]
fn drafts_leave_a_state_each_and_the_answer_goes_on_from_the_last_that_held() {
    use scheduler::{DraftProposal, DraftSource, RowOutput, StepOutput};
    let mut world = World::new(16, 64);
    let request = Request { stop: plans::at_most(20), ..plans::request(1, tokens(0, 1, 5)) };
    world.scheduler.admit(request).expect("room");
    let step = world.scheduler.schedule(Nanos(1));
    world.scheduler.complete(plans::answer(&step, 900), Nanos(2));
    let seq = world.scheduler.decoding().next().expect("it decodes").id();
    world.scheduler.propose(DraftProposal { seq, source: DraftSource(0), len: 3, strength: 7 });
    let step = world.scheduler.schedule(Nanos(3));
    let drafts = step.decode[0].drafts;
    assert!(drafts > 0, "{step:?}");
    assert_eq!(step.states.iter().map(|save| save.after).collect::<Vec<_>>(), (6..=6 + drafts).collect::<Vec<_>>());
    let before = world.scheduler.sequence(seq).and_then(|seq| seq.state());
    assert!(step.states.iter().all(|save| Some(save.slot) != before), "what is read is not written");
    // The first draft does not hold.
    let rows = vec![RowOutput { seq, token: 900 }];
    world.scheduler.complete(StepOutput { step: step.id, rows, ..StepOutput::default() }, Nanos(4));
    world.scheduler.check_invariants();
    assert_eq!(world.scheduler.sequence(seq).and_then(|seq| seq.state()), Some(step.states[0].slot));
    assert_eq!(world.scheduler.states().expect("states").1.held, 1);
}

#[test]
fn a_checkpoint_that_another_worker_computed_is_one_of_the_prompt() {
    use scheduler::ReceiveError;
    let mut world = World::new(16, 64);
    let limits = Limits { states: Some(StateSizes { slots: 16, interval: 64 }), ..limits() };
    let tiers = TierSizes { host_slots: 8, disk_slots: 0 };
    world.scheduler = Scheduler::new(limits).expect("good limits");
    world.scheduler.set_tiers(tiers);
    let prompt = tokens(0, 1, 14);
    let (id, request) = (RequestId(1), Request { stop: plans::at_most(1), ..plans::request(1, prompt.clone()) });
    world.scheduler.admit_remote(request).expect("room");
    assert_eq!(world.scheduler.receive_checkpoint(id, 1), Err(ReceiveError::NoParent), "before its blocks");
    for index in 0..3 {
        assert_eq!(world.scheduler.tokens_to_compute(id), 3 * BLOCK, "blocks alone are of no use");
        let slot = world.scheduler.begin_receive(id, index).expect("a slot");
        assert!(world.scheduler.end_receive(slot, true));
    }
    let slot = world.scheduler.receive_checkpoint(id, 3).expect("a slot");
    world.scheduler.check_invariants();
    for (what, blocks, expected) in
        [("a second one", 3, ReceiveError::Known), ("with the block of the last token", 4, ReceiveError::NotCached)]
    {
        assert_eq!(world.scheduler.receive_checkpoint(id, blocks), Err(expected), "{what}");
    }
    assert_eq!(world.scheduler.receive_checkpoint(RequestId(2), 1), Err(ReceiveError::NotWaiting));
    assert_eq!((world.scheduler.tokens_to_compute(id), world.scheduler.missing_blocks(id)), (0, 3..3));
    world.scheduler.remote_prefill_ended(id, &[Some(&[])], Nanos(1)).expect("it has no token");
    let step = world.scheduler.schedule(Nanos(1));
    for load in step.loads {
        world.scheduler.load_ended(load, true, Nanos(1));
    }
    let step = world.scheduler.schedule(Nanos(2));
    assert_eq!(step.prefill.iter().map(|rows| (rows.start, rows.len)).collect::<Vec<_>>(), [(12, 2)]);
    let seq = step.prefill[0].seq;
    assert_eq!(world.scheduler.sequence(seq).and_then(|seq| seq.state()), Some(slot));
    world.scheduler.complete(plans::answer(&step, 900), Nanos(3));
    world.scheduler.check_invariants();
}
